"""`duly workflows`: the same on an app's database and on a server."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from tests.cli.places import Place
from tests.jobs.support import ManualWorker

pytestmark = pytest.mark.spec("N92")


@contextmanager
def working(place: Place) -> Iterator[ManualWorker]:
    worker = ManualWorker(place.app)
    yield worker
    worker.stop()


def start(place: Place, name: str, *args: Any) -> str:
    return str(place.app.run(place.app.function(name), *args).id)


def test_a_run_is_followed_and_answered(place: Place) -> None:
    run = start(place, "checkout", "seven")
    assert place.duly("workflows", "list").out.splitlines()[1].split("\t")[:3] == [
        run,
        "checkout",
        "not started",
    ]
    with working(place) as worker:
        worker.work()
        row = place.duly("workflows", "list", "--state", "waiting").out.splitlines()[1]
        assert row.split("\t")[2] == "waiting"
        assert row.endswith("event packed")
        assert place.duly("workflows", "list", "--state", "held").out == "no workflow runs\n"

        shown = place.duly("workflows", "show", run[:18]).plain
        assert "waits for" in shown
        assert "event packed" in shown
        [step] = [line for line in shown.splitlines() if line.startswith("touch")]
        assert step.split()[:4] == ["touch", "action", "succeeded", "1"]
        assert '{"text": "seven"}' in step
        said = place.duly("why", run).out
        assert said.startswith("checkout is waiting\n")
        assert "it has been waiting for event 'packed' for 0 seconds, and times out in" in said
        assert place.duly("why", run[:18], "--json").json["reasons"][0]["traceback"] is None

        sent = place.duly("workflows", "send", run, "packed", '{"id": 1}', "--once", "k").out
        assert sent == f"packed was sent to {run}\n"
        again = ("workflows", "send", run, "packed", "2", "--once", "k", "--json")
        assert place.duly(*again).json["seq"] == 1
        place.duly("workflows", "send", run, "unheard")
        worker.work()
        shown = place.duly("workflows", "show", run).plain
        assert "approval approval" in shown
        assert "ann: Release it? (yes, later, no)" in shown
        assert "unread events" in shown
        assert "unheard" in shown
        assert (
            "perhaps" in place.duly("workflows", "approve", run, "--choice", "perhaps", code=1).err
        )
        answered = place.duly(
            "workflows", "approve", run, "--choice", "later", "--data", '{"days": 2}'
        ).out
        assert answered == f"approval of {run} was answered with later\n"
        late = place.duly("workflows", "reject", run, code=1)
        assert "it was answered with 'later' by" in late.err
        worker.work()
    told = place.duly("workflows", "show", run, "--json").json
    assert told["result"][:4] == ["seven", {"id": 1}, "later", {"days": 2}]
    assert told["result"][4]
    assert [step["label"] for step in told["steps"]] == ["touch", "packed", "approval"]
    assert [event["name"] for event in told["unread_events"]] == ["unheard"]


def test_a_held_run_is_explained_and_resumed(place: Place) -> None:
    run = start(place, "typo")
    with working(place) as worker:
        worker.work()
        said = place.duly("why", run).out
        assert said.startswith("typo is held\n")
        assert "its code raised KeyError: 'adress'; it continues when other code starts" in said
        assert "in typo" in said, "with its traceback"
        assert "KeyError: 'adress'" in place.duly("workflows", "show", run).plain
        assert place.duly("workflows", "resume", run).out == f"{run} continues\n"
        assert place.duly("workflows", "resume", run, code=1).out == f"{run} is not held\n"
        worker.work()
    assert place.duly("workflows", "list", "--json").json[0]["phase"] == "held"


def test_what_is_not_a_run_is_named(place: Place) -> None:
    run = start(place, "checkout", "seven")
    other = run[:-1] + ("0" if run[-1] != "0" else "1")
    assert f"did you mean '{run}'?" in place.duly("workflows", "show", other, code=1).err
    job = start(place, "touch", "x")
    assert "which is not a workflow" in place.duly("workflows", "show", job, code=1).err
    rejected = place.duly("workflows", "reject", run, code=1).err
    assert "the workflow does not ask for it" in rejected
