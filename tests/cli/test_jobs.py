"""`duly run` and `duly jobs`: the same on an app's database and on a server."""

import pytest

from tests.cli.places import Place


def test_run_calls_a_function_and_waits(place: Place) -> None:
    with place.app:
        ran = place.duly("run", "touch", "text=hello")
        assert ran.out.splitlines() == ["succeeded", "hello"]
        job = place.duly("run", "touch", "text=again", "--json").json
        assert (job["state"], job["result"], job["args"]) == (
            "succeeded",
            "again",
            {"text": "again"},
        )
        failed = place.duly("run", "fail", "text=x", code=1)
        assert "user: ValueError: always" in failed.out
    listed = place.duly("jobs", "list", "--json").json
    assert [each["function"] for each in listed] == ["fail", "touch", "touch"]
    shown = place.duly("jobs", "show", listed[0]["id"]).out
    assert "ValueError: always" in shown
    assert "Traceback" in shown
    for columns, size in ((80, 36), (40, 13)):
        printed = place.duly("jobs", "list", "--state", "failed", columns=columns).plain
        assert listed[0]["id"][:size] in printed
        assert "failed" in printed
        assert max(map(len, printed.splitlines())) <= columns


def test_what_does_not_exist_is_named_with_the_nearest(place: Place) -> None:
    wrong = place.duly("run", "tuch", "text=x", code=1)
    assert "did you mean 'touch'?" in wrong.err
    assert "Traceback" not in wrong.err
    job = place.duly("run", "touch", "text=x", "--no-wait").out.strip()
    other = place.duly("jobs", "show", job[:-1] + ("0" if job[-1] != "0" else "1"), code=1)
    assert f"did you mean '{job}'?" in other.err


@pytest.mark.parametrize("answer", ["y", "n"])
def test_ctrl_c_asks_whether_to_cancel(place: Place, answer: str) -> None:
    keys = [("pending", "\x03"), ("Cancel job", f"{answer}\n")]
    left = place.duly("run", "touch", "text=x", columns=80, keys=keys, code=130)
    [job] = place.app.jobs()
    assert job.state == ("canceled" if answer == "y" else "pending")
    assert job.id in left.plain
