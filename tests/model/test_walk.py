"""One walk over the ticks of a schedule, for every purpose."""

from typing import Any

import pytest

from duly.model.decide import Decided, Dispatch, Facts, InFlight, Purpose, Skip, tick_row, walk
from duly.model.preview import preview
from duly.model.schedule import Plan, Policies, Reason, ScheduleRecord, TickKind
from duly.model.trigger import Cron, Every, Trigger

MINUTE = 60_000
EVERY = Every(milliseconds=MINUTE, anchor=0)


def planned(trigger: Trigger = EVERY, policies: Policies | None = None, **columns: Any) -> Plan:
    empty: dict[str, Any] = dict.fromkeys(ScheduleRecord.__struct_fields__)
    known = {"id": "s", "function": "f", "args": "{}", "rotation_index": 0, "next_tick_at": MINUTE}
    record = ScheduleRecord(**(empty | known | columns))
    return Plan(record, trigger, policies or Policies(), None, None, None)


def said(ticks: Any) -> list[tuple[int, str | None]]:
    """The minutes, and why they are skipped."""
    return [(t.tick_at // MINUTE, reason(t)) for t in ticks]


def reason(tick: Decided) -> str | None:
    return tick.decision.reason if isinstance(tick.decision, Skip) else None


@pytest.mark.parametrize(
    ("purpose", "count"),
    [(Purpose.TICK, 0), (Purpose.FORECAST, 0), (Purpose.BACKFILL, 0), (Purpose.RUN, 1)],
)
def test_only_an_operator_runs_one_that_has_ended(purpose: Purpose, count: int):
    ticks = list(walk(planned(remaining=0), Facts(), [MINUTE], MINUTE, purpose))
    assert len(ticks) == count
    assert all(tick.standing.remaining == 0 for tick in ticks)


@pytest.mark.parametrize("purpose", Purpose)
def test_a_walk_ends_when_nothing_remains(purpose: Purpose):
    ticks = walk(planned(remaining=2), Facts(), EVERY.between(0, 5 * MINUTE), MINUTE, purpose)
    left = [tick.standing.remaining for tick in ticks]
    assert left == ([1, 0, 0, 0, 0] if purpose is Purpose.RUN else [1, 0])


@pytest.mark.parametrize(
    ("purpose", "expected"),
    [
        (Purpose.TICK, [(1, None), (3, None)]),
        (Purpose.FORECAST, [(1, None), (3, None)]),
        (Purpose.BACKFILL, [(1, None), (2, Reason.SLOT_EXISTS), (3, None)]),
        (Purpose.RUN, [(1, None), (2, None), (3, None)]),
    ],
)
def test_a_slot_that_was_taken_is_passed_over_or_named(purpose: Purpose, expected: list[Any]):
    facts = Facts(slots={"s": frozenset({2 * MINUTE})})
    ticks = EVERY.between(MINUTE, 4 * MINUTE)
    assert said(walk(planned(), facts, ticks, MINUTE, purpose)) == expected


@pytest.mark.parametrize("purpose", Purpose)
def test_ticks_that_somebody_asks_for_stand_at_their_own_time(purpose: Purpose):
    moved = planned(policies=Policies(jitter=MINUTE))
    ticks = list(walk(moved, Facts(), EVERY.between(MINUTE, 20 * MINUTE), MINUTE, purpose))
    asked_for = purpose in (Purpose.RUN, Purpose.BACKFILL)
    assert all(tick.due_at == tick.tick_at for tick in ticks) is asked_for


def test_a_preview_passes_over_slots_that_were_taken():
    facts = Facts(slots={"s": frozenset({2 * MINUTE, 3 * MINUTE})})
    coming = preview(planned(), facts, 0)
    assert said([next(coming), next(coming)]) == [(1, None), (4, None)]


def test_a_simulated_preview_begins_with_things_as_they_are():
    facts = Facts(in_flight={"s": InFlight(running="job")})
    for simulate, later in ((False, Reason.OVERLAP_IN_FLIGHT), (True, None)):
        coming = preview(planned(), facts, 0, simulate=simulate)
        assert said([next(coming), next(coming)]) == [(1, Reason.OVERLAP_IN_FLIGHT), (2, later)]


def test_only_a_slot_stands_for_a_time_that_clocks_skip():
    plan = planned(Cron("30 2 * * *", "Europe/Berlin"))
    [tick] = walk(plan, Facts(), [1_774_746_000_000], MINUTE)  # 29 March 2026, 03:00 in Berlin
    assert isinstance(tick.decision, Dispatch)
    rows = [tick_row(plan, kind, tick, "job", MINUTE) for kind in (TickKind.SLOT, TickKind.MANUAL)]
    assert [row.dst_adjusted for row in rows] == [True, False]
