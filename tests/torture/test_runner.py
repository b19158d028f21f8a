"""`make torture` shares the time out, fails with a violation, and writes its table."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

import pytest

from torture import run
from torture.load import memory
from torture.load.scene import Order
from torture.measures import fuzzed, load, simulated
from torture.measures.base import Share
from torture.table import BEGIN, END, Row, Written, none_of, write_report

PAGE = f"# Page\n\n{BEGIN}\nold\n{END}\n\nthe rest\n"


def good(share: Share) -> Iterator[Row]:
    yield none_of("good", f"{share.seconds:.0f} of {share.whole:.0f} s", 0)


def bad(share: Share) -> Iterator[Row]:
    yield none_of("bad", "1", 3)


def broken(share: Share) -> Iterator[Row]:
    yield none_of("half", "1", 0)
    raise RuntimeError("no more")


@pytest.fixture
def measures(monkeypatch: pytest.MonkeyPatch) -> None:
    known = {"good": (0.6, good), "bad": (0.2, bad), "broken": (0.2, broken)}
    monkeypatch.setattr(run, "MEASURES", known)


def test_the_table_goes_where_the_last_one_stood(measures, tmp_path, capsys):
    page = tmp_path / "page.md"
    page.write_text(PAGE)
    assert run.main(["90s", "--only", "good", "--seed", "7", "--report", str(page)]) == 0
    printed = capsys.readouterr().out
    assert "| good    | 90 of 90 s | 0     | 0     | ok  |" in printed
    text = page.read_text()
    assert text.startswith(f"# Page\n\n{BEGIN}\n\ndate: ")
    assert text.endswith(f"{END}\n\nthe rest\n")
    assert printed.strip() in text
    assert "seed: 7" in text
    assert "old" not in text


def test_what_was_found_before_an_interruption_is_kept(measures, tmp_path, capsys):
    page = tmp_path / "page.md"
    page.write_text(PAGE)
    seen: list[str] = []

    def interrupted(share: Share) -> Iterator[Row]:
        seen.append(page.read_text())
        yield none_of("half", "1", 0)
        raise SystemExit(143)

    run.MEASURES["good"] = (0.5, good)
    run.MEASURES["broken"] = (0.5, interrupted)
    assert run.main(["90s", "--only", "good,broken,bad", "--report", str(page)]) == 1
    assert "minutes so far" in seen[0]
    assert "| good " in seen[0]
    text = page.read_text()
    assert "so far" not in text
    assert "| half " in text
    assert "interrupted" in text
    assert capsys.readouterr().out.strip() in text


def test_a_run_that_was_ended_goes_on_with_what_it_owes(measures, tmp_path, capsys):
    page = tmp_path / "page.md"
    page.write_text(PAGE)

    def killed(share: Share) -> Iterator[Row]:
        raise SystemExit(143)
        yield

    run.MEASURES["bad"] = (0.2, killed)
    assert run.main(["100s", "--only", "good,bad", "--seed", "7", "--report", str(page)]) == 1
    run.MEASURES["bad"] = (0.2, lambda share: iter([none_of("mended", f"{share.seconds:.0f}", 0)]))
    more = ["100s", "--only", "bad", "--seed", "8", "--report", str(page), "--go-on"]
    assert run.main(more) == 0

    text = page.read_text()
    assert "interrupted" not in text
    assert text.count("| good ") == text.count("| mended  | 20 ") == 1
    assert text.index("seed: 7.") < text.index("seed: 8; only: bad.") < text.index("| good ")
    assert text.endswith(f"{END}\n\nthe rest\n")
    again = ["100s", "--only", "good", "--seed", "9", "--report", str(page), "--go-on"]
    assert run.main(again) == 0
    assert page.read_text().count("| good ") == page.read_text().count("| mended ") == 1
    with pytest.raises(SystemExit):
        run.main(["100s", "--only", "bad", "--go-on"])
    capsys.readouterr()


def test_a_page_is_good_only_when_all_its_rows_are(measures, tmp_path, capsys):
    page = tmp_path / "page.md"
    page.write_text(PAGE)
    assert run.main(["100s", "--only", "broken", "--report", str(page)]) == 1
    assert "broken: broke down" in page.read_text()
    go_on = ["100s", "--report", str(page), "--go-on", "--only"]
    assert run.main([*go_on, "good"]) == 1
    run.MEASURES["broken"] = (0.2, good)
    assert run.main([*go_on, "broken"]) == 0
    assert "broke down" not in page.read_text()
    capsys.readouterr()


def test_an_act_that_breaks_down_does_not_end_the_others(monkeypatch):
    played: list[str] = []

    def breaks(order: Order) -> NoReturn:
        played.append(order.store)
        raise AssertionError("it never came true that every job has ended")

    monkeypatch.setattr(load, "play_on", breaks)
    (row,) = load.run(Share(60, 600, ("sqlite", "postgres"), 5))
    assert played == ["sqlite", "postgres"]
    assert not row.kept


def test_growth_leaves_out_the_first_half_and_single_peaks():
    samples = [1] * 4 + [50] * 4 + [100, 100, 100, 700] + [100, 110, 110, 900]
    assert memory.growth(samples) == pytest.approx(0.1)
    assert memory.growth([100, 200]) == 0
    assert memory.own_pages("900 500 120 7 0 300 0") == 380


def test_a_page_without_a_place_for_it_is_left_alone(tmp_path: Path):
    page = tmp_path / "page.md"
    page.write_text("# Page\n")
    with pytest.raises(SystemExit, match="no place"):
        write_report(page, Written([], []))
    assert page.read_text() == "# Page\n"


@pytest.mark.parametrize(
    ("only", "shown"), [("bad", "| 3     | 0     | **VIOLATED**"), ("broken,good", "broke down")]
)
def test_a_violation_and_a_measure_that_breaks_down_fail_the_run(measures, capsys, only, shown):
    assert run.main(["10m", "--only", only]) == 1
    assert shown in capsys.readouterr().out


def test_a_time_is_a_number_and_a_unit():
    assert [run.seconds_of(text) for text in ("90s", "10m", "8h")] == [90, 600, 28_800]
    with pytest.raises(argparse.ArgumentTypeError, match="a time is like"):
        run.seconds_of("1d")


@pytest.mark.parametrize(("whole", "acts"), [(600, 1), (3_600, 3)])
def test_an_hour_owes_its_faults_in_acts_of_some_minutes(whole, acts):
    share = Share(whole * 0.45, whole, ("sqlite", "postgres"), 5)
    orders = list(load.orders(share))
    assert [order.store for order in orders] == ["sqlite", "postgres"] * acts
    assert sum(order.seconds for order in orders) < share.seconds
    assert sum(order.plan.kills for order in orders) >= 2_000 * whole / 3_600
    assert sum(order.plan.connections for order in orders) >= 300 * whole / 3_600
    assert all(order.plan.restarts == 0 for order in orders if order.store == "sqlite")


def test_in_full_it_goes_on_until_there_are_as_many_as_it_owes(monkeypatch):
    share = Share(0, 10, ("sqlite",), 5)
    assert list(share.until_enough(7)) == []
    assert list(share._replace(in_full=True).until_enough(7)) == list(range(7))
    monkeypatch.setattr(simulated, "HOURLY", 360 * 25)
    assert list(simulated._chunks(share)) == []
    chunks = list(simulated._chunks(share._replace(in_full=True)))
    assert chunks == [(5, 10, ""), (15, 10, " --schedules"), (25, 10, " --glitches")]


def test_what_reads_text_from_outside_survives_twenty_thousand_inputs(report):
    pytest.importorskip("atheris")
    for target in fuzzed.TARGETS:
        runs, crash = fuzzed.fuzz(target, 20_000, 60, seed=1)
        report(f"{target}: {runs} inputs")
        assert not crash, crash
        assert runs >= 20_000
