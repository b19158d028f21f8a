"""Counting the dispatches of a window gives what listing them gives."""

from collections import Counter
from itertools import islice
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from duly.model.calendar import Calendar
from duly.model.decide import Dispatch
from duly.model.forecast import HOUR_MS, MINUTE_MS, Forecast, Minute, Share, forecast, outlook
from duly.model.schedule import Override, Plan, Policies
from duly.model.trigger import AnyOf, At, Cron, Every, Rule, Trigger
from duly.zones import zone
from tests.model.test_trigger import ZONES, instants, ms
from tests.model.test_walk import planned

DAY = 24 * HOUR_MS
MOST = 300

EXPRESSIONS = [
    "* * * * * *",
    "*/7 * * * * *",
    "0,59 * 1-3 * * *",
    "* * * * *",
    "*/15 * * * *",
    "59 * * * *",
    "30 2 * * *",
    "0 0 * * *",
    "30 1,2,3 */3 * 7",
    "0 9 L * *",
    "0 0 0 29 2 * 2028",
]
RULES = [
    "FREQ=SECONDLY;INTERVAL=7",
    "FREQ=MINUTELY;INTERVAL=11;BYHOUR=0,1,2,3",
    "FREQ=HOURLY;BYMINUTE=0,30",
    "FREQ=DAILY;BYHOUR=2;BYMINUTE=30",
    "FREQ=DAILY;COUNT=20",
    "FREQ=WEEKLY;BYDAY=SU;BYHOUR=1,2,3",
    "FREQ=MONTHLY;BYDAY=SU;BYSETPOS=-1",
]


@st.composite
def singles(draw: st.DrawFn, near: int, tz: str) -> Cron | Every | At | Rule:
    kind = draw(st.sampled_from(["cron", "every", "at", "rule"]))
    if kind == "cron":
        return Cron(draw(st.sampled_from(EXPRESSIONS)), tz)
    if kind == "every":
        length = draw(st.sampled_from([1_000, 1_500, 1_001, 7_000, 90_000, 600_000, HOUR_MS, DAY]))
        return Every(length, near + draw(st.integers(-2 * DAY, DAY)))
    if kind == "at":
        return At(near + draw(st.integers(0, DAY)))
    return Rule(draw(st.sampled_from(RULES)), _local(max(0, near - 3 * DAY)), tz)


def _local(instant: int) -> str:
    day = Calendar("days", "only_dates").day(instant)
    return f"{day}T00:30:00"


@st.composite
def windows(draw: st.DrawFn) -> tuple[str, int, Trigger]:
    """A zone, an instant that is often near a change of its clocks, and a trigger."""
    tz = draw(st.sampled_from(ZONES))
    near = draw(instants(tz))
    members = draw(st.lists(singles(near, tz), min_size=1, max_size=3))
    trigger = AnyOf(*members) if len(members) > 1 else members[0]
    start = near - draw(st.sampled_from([0, 1, 59_999, HOUR_MS, DAY]))
    return tz, start, trigger


def is_frequent(trigger: Trigger, start: int) -> bool:
    """Whether it ticks more than once a minute for hours."""
    return len(list(islice(trigger.between(start, start + 5 * HOUR_MS), MOST))) == MOST


def positions(trigger: Trigger, start: int, end: int) -> Counter[int]:
    return Counter(
        at + second * 1000
        for at, bits in trigger.ticks_between(start, end)
        for second, bit in enumerate(f"{bits:b}"[::-1])
        if bit == "1"
    )


@pytest.mark.spec("N81")
@given(windows(), st.sampled_from([1, 5, 26, 80]), st.integers(0, HOUR_MS))
def test_the_ticks_of_a_day_at_a_time_are_those_one_by_one(window, hours, less):
    _, start, trigger = window
    hours = 1 if is_frequent(trigger, start) else hours
    end = start + hours * HOUR_MS - less
    found = positions(trigger, start, end)
    assert found == Counter(trigger.between(start, end))
    assert trigger.count_between(start, end) == found.total()


@pytest.mark.spec("N81")
@pytest.mark.parametrize("tz", ZONES)
def test_days_on_which_clocks_change_are_counted(tz: str):
    second = ms("2026-01-01") // 1000
    changes = set[int]()
    while (second := zone(tz).span(second).end) < ms("2027-01-01") // 1000:
        changes.add(second * 1000)
    often = ["59 * * * *", "*/15 1-3 * * *", "0,30 0-4 * * *", "30 1,2,3 * * *", "15 2 * * *"]
    triggers: list[Trigger] = [Cron(text, tz) for text in often]
    triggers += [Rule(text, "2026-01-01T01:30", tz) for text in RULES[1:]]
    for change in changes:
        for start in (change - DAY, change - HOUR_MS, change - 1, change, change + 1):
            for trigger in triggers:
                for end in (change, change + 1, change + DAY):
                    assert positions(trigger, start, end) == Counter(trigger.between(start, end))


def by_listing(
    plans: list[Plan], calendars: dict[str, Calendar], start: int, hours: int, now: int
) -> Forecast:
    """The forecast from a list of all decisions."""
    start -= start % MINUTE_MS
    end = start + hours * HOUR_MS
    minutes: Counter[int] = Counter()
    shares: list[Share] = []
    for plan in plans:
        found = [
            tick.due_at
            for tick in outlook(plan, calendars, start, end, now)
            if isinstance(tick.decision, Dispatch) and start <= tick.due_at < end
        ]
        minutes.update(due_at - due_at % MINUTE_MS for due_at in found)
        shares.append(Share(plan.id, plan.record.key, len(found)))
    by_hour = [0] * hours
    for minute, count in minutes.items():
        by_hour[(minute - start) // HOUR_MS] += count
    ranked = sorted(minutes.items(), key=lambda item: (-item[1], item[0]))[:10]
    shares.sort(key=lambda share: -share.dispatches)
    busiest = tuple(Minute(*each) for each in ranked)
    return Forecast(start, end, tuple(by_hour), busiest, tuple(shares), True)


@st.composite
def plans(draw: st.DrawFn, trigger: Trigger, now: int, tz: str) -> Plan:
    """A schedule that was created a while ago, some of whose ticks may be due already."""
    ago = [0, MINUTE_MS] if is_frequent(trigger, now) else [0, 5 * HOUR_MS]
    created = now - draw(st.sampled_from(ago))
    shifts = isinstance(trigger, Cron) and trigger.expression in ("30 2 * * *", "0 0 * * *")
    policies = Policies(
        jitter=draw(st.sampled_from([0, 0, 1, 90_000, 3 * HOUR_MS])),
        shift=draw(st.sampled_from([None, "next", "nearest"])) if shifts else None,
        catch_up=draw(st.sampled_from([0, 10])),
    )
    first = trigger.next_after(created)
    columns: dict[str, Any] = {
        "key": "key",
        "next_tick_at": first,
        "calendar": draw(st.sampled_from([None, None, "some", "most", "unknown"])),
        "remaining": draw(st.sampled_from([None, None, 1, 3, 500])),
        "end_at": draw(st.none() | st.integers(now, now + 4 * DAY)),
    }
    plan = planned(trigger, policies, **columns)
    if first is None or first <= now or not draw(st.booleans()):
        return plan
    to = draw(st.sampled_from([None, first + 1_000]))
    override = Override(first, None, to)
    return Plan(plan.record, trigger, policies, None, None, override)


@pytest.mark.spec("N81", "N82")
@given(st.data(), st.lists(windows(), min_size=1, max_size=2), st.sampled_from([1, 5, 26, 80]))
def test_a_forecast_counts_what_a_list_of_all_decisions_has(data, chosen, hours):
    tz, now, _ = chosen[0]
    triggers = [trigger for _, _, trigger in chosen]
    frequent = any(is_frequent(trigger, now) for trigger in triggers)
    hours = 1 if frequent else hours
    # Ticks before the start use up what remains.
    start = now + data.draw(st.sampled_from([0, 1, MINUTE_MS] if frequent else [0, 1, 2 * DAY]))
    days = [_local(start + n * DAY)[:10] for n in (-1, 0, 1, 3)]
    calendars = {
        "some": Calendar("some", "only_dates", tz=tz, dates=days),
        "most": Calendar("most", "skip_dates", tz="America/New_York", dates=days[1:]),
    }
    made = [data.draw(plans(trigger, now, tz)) for trigger in triggers]
    assert forecast(made, calendars, start, hours, now) == by_listing(
        made, calendars, start, hours, now
    )


@pytest.mark.spec("N81")
@pytest.mark.parametrize(
    ("trigger", "per_day"),
    [
        (Cron("* * * * * *", "America/New_York"), 86_400),
        (Every(1_000, 7), 86_400),
        (Every(1_500, 7), 57_600),
        (Rule("FREQ=SECONDLY", "2026-01-01T00:00", "America/New_York"), 86_400),
        (AnyOf(Cron("* * * * * *"), Every(60_000, 30_000), Every(1_000, 500)), 2 * 86_400),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_schedule_that_ticks_every_second_is_counted_to_the_end(
    trigger: Trigger, per_day: int, monkeypatch: pytest.MonkeyPatch
):
    start = ms("2026-09-01")  # New York sets its clocks back within the window.
    steps: list[int] = []
    for kind in (Cron, Every, Rule, AnyOf):
        plain: Any = kind.next_after

        def counted(self: Any, instant: int, plain: Any = plain) -> Any:
            steps.append(instant)
            return plain(self, instant)

        monkeypatch.setattr(kind, "next_after", counted)
    plan = planned(trigger, next_tick_at=trigger.next_after(start - 1), key="often")
    found = forecast([plan], {}, start, 92 * 24, start - 1)
    assert set(found.hours) == {per_day // 24}
    assert found.by_schedule == (Share("s", "often", 92 * per_day),)
    assert found.busiest[0] == Minute(start, per_day // 1440)
    assert found.complete
    assert len(steps) < 1_000, "it takes no step for each tick"


@pytest.mark.spec("N82")
def test_too_many_ticks_with_jitter_are_counted_without_it():
    policies = Policies(jitter=2 * HOUR_MS)
    trigger = Cron("0 * * * *")
    made = [
        planned(trigger, policies, id=str(n), key=str(n), next_tick_at=HOUR_MS) for n in range(2)
    ]
    exact = forecast(made, {}, 0, 24, 0)
    rough = forecast(made, {}, 0, 24, 0, max_delayed=26)
    assert (exact.complete, rough.complete) == (True, False)
    # The first schedule is still exact, and the second has its ticks at the times of its trigger.
    [first, second] = (forecast([plan], {}, 0, 24, 0) for plan in made)
    assert [one + other for one, other in zip(first.hours, second.hours, strict=True)] == [
        *exact.hours
    ]
    assert rough.hours == (first.hours[0], *(count + 1 for count in first.hours[1:]))
