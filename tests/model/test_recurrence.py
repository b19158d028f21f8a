"""Recurrence rules select the same local times as dateutil's, however far from their start."""

import random
import time
from datetime import UTC, datetime, timedelta
from itertools import islice

import pytest
from dateutil.rrule import rrulestr  # type: ignore[import-untyped]

from duly.errors import InvalidOption
from duly.model.recurrence import FREQUENCIES, WEEKDAYS, Recurrence, parse

HOUR = 3_600
DAY = 24 * HOUR


def second(moment: datetime) -> int:
    return int(moment.timestamp())


def some(chance: random.Random, least: int, most: int, n: int = 3) -> str:
    values = chance.sample(range(least, most + 1), min(n, most - least + 1))
    return ",".join(str(value) for value in values[: chance.randint(1, n)])


def signed(chance: random.Random, most: int) -> str:
    numbers = {chance.choice([-1, 1]) * chance.randint(1, most) for _ in range(3)}
    return ",".join(map(str, numbers))


def weekdays(chance: random.Random, *, numbered: bool) -> str:
    names = chance.sample([*WEEKDAYS], chance.randint(1, 3))
    if not numbered:
        return ",".join(names)
    # Of weekdays with and without a number, dateutil takes those that are both.
    numbers = chance.choice([[""], ["1", "2", "-1", "5"]])
    return ",".join(f"{chance.choice(numbers)}{name}" for name in names)


def rule(chance: random.Random) -> str:
    """Any rule, except for what dateutil reads differently from RFC 5545."""
    freq = chance.choice(FREQUENCIES)
    parts = [f"FREQ={freq}"]

    def perhaps(odds: float, name: str, value: str) -> bool:
        taken = chance.random() < odds
        if taken:
            parts.append(f"{name}={value}")
        return taken

    most = {"YEARLY": 4, "MONTHLY": 14, "WEEKLY": 9, "DAILY": 40, "HOURLY": 30}.get(freq, 100_000)
    perhaps(0.6, "INTERVAL", str(chance.choice([1, 2, 3, chance.randint(1, most)])))
    perhaps(0.3, "BYMONTH", some(chance, 1, 12, 5))
    by_week = freq == "YEARLY" and perhaps(0.2, "BYWEEKNO", some(chance, 1, 53))
    if not by_week and freq != "WEEKLY":
        perhaps(0.25, "BYMONTHDAY", signed(chance, 31))
    if not by_week and freq in ("YEARLY", "HOURLY", "MINUTELY", "SECONDLY"):
        perhaps(0.15, "BYYEARDAY", signed(chance, 366))
    numbered = not by_week and freq in ("YEARLY", "MONTHLY")
    # Without a weekday, dateutil takes all of the week, and not that of the start.
    perhaps(1 if by_week else 0.4, "BYDAY", weekdays(chance, numbered=numbered))
    perhaps(0.25, "BYHOUR", some(chance, 0, 23, 6))
    perhaps(0.25, "BYMINUTE", some(chance, 0, 59, 6))
    perhaps(0.15, "BYSECOND", some(chance, 0, 59))
    if len(parts) > 2 and any(part.startswith("BY") for part in parts):
        # dateutil begins the first week at the start, and not at its first day.
        perhaps(0.25 if freq != "WEEKLY" else 0, "BYSETPOS", signed(chance, 4))
    perhaps(0.2, "WKST", chance.choice(["SU", "MO", "WE"]))
    return ";".join(parts)


@pytest.mark.spec("N79")
def test_rules_select_what_dateutil_selects():
    chance = random.Random(1)
    compared = 0
    while compared < 250:
        text = rule(chance)
        start = datetime(2020, 1, 1, tzinfo=UTC) + timedelta(
            seconds=chance.randrange(4 * 365 * DAY)
        )
        found = Recurrence(parse(text), second(start))
        # Its own search would take forever where little matches.
        mine: list[int] = []
        local = second(start)
        while len(mine) < 40 and (tick := found.first_from(local)) is not None:
            mine.append(tick)
            local = tick + 1
        if not mine or mine[-1] - second(start) > 60 * 365 * DAY or is_slow(text, mine):
            continue
        theirs = [second(tick) for tick in islice(rrulestr(text, dtstart=start), len(mine))]
        assert mine == theirs, (text, start)
        compared += 1
        # Backwards, and counted.
        back, local = list[int](), mine[-1]
        while (tick := found.last_until(local)) is not None:
            back.insert(0, tick)
            local = tick - 1
        assert back == mine, (text, start)
        for _ in range(10):
            low, high = sorted(chance.choices(range(second(start) - DAY, mine[-1] + 1), k=2))
            low, high = chance.choice([low, mine[0]]), chance.choice([high, mine[-1]])
            between = sum(1 for tick in mine if low <= tick < high)
            assert found.count(low, high) == between, (text, start, low, high)


def is_slow(text: str, mine: list[int]) -> bool:
    """Whether dateutil, which tries each interval, would need long."""
    unit = {"HOURLY": HOUR, "MINUTELY": 60, "SECONDLY": 1}.get(text[5:].partition(";")[0], DAY)
    return (mine[-1] - mine[0]) / unit > 200_000


def test_weeks_begin_before_the_start():
    """Of the week of the start, BYSETPOS counts the days before it, too."""
    start = datetime(2026, 7, 1, 9, tzinfo=UTC)  # a Wednesday
    found = Recurrence(parse("FREQ=WEEKLY;BYDAY=MO,TH,FR;BYSETPOS=2"), second(start))
    assert found.first_from(0) == second(datetime(2026, 7, 2, 9, tzinfo=UTC))
    found = Recurrence(parse("FREQ=WEEKLY;BYDAY=MO,TH,FR;BYSETPOS=1,-1"), second(start))
    assert found.first_from(0) == second(datetime(2026, 7, 3, 9, tzinfo=UTC))
    # At the turn of the year, in one week.
    at = found.first_from(second(datetime(2026, 12, 29, tzinfo=UTC)))
    assert at == second(datetime(2027, 1, 1, 9, tzinfo=UTC))
    # A week alone means the weekday of the start.
    found = Recurrence(parse("FREQ=YEARLY;BYWEEKNO=10"), second(start))
    assert found.first_from(0) == second(datetime(2027, 3, 10, 9, tzinfo=UTC))


@pytest.mark.spec("N79")
def test_far_from_the_start_is_as_fast_as_near():
    start = second(datetime(2000, 1, 1, tzinfo=UTC))
    far = second(datetime(2190, 5, 5, tzinfo=UTC))
    began = time.process_time()
    for text in (
        "FREQ=SECONDLY;INTERVAL=7",
        "FREQ=MINUTELY;INTERVAL=77;BYDAY=MO;BYHOUR=3",
        "FREQ=DAILY;INTERVAL=13",
        "FREQ=MONTHLY;BYDAY=MO,TU,WE,TH,FR;BYSETPOS=-1",
        "FREQ=YEARLY;BYMONTH=2;BYMONTHDAY=29",
        # Never, which must not take long either.
        "FREQ=YEARLY;BYMONTH=2;BYMONTHDAY=30",
        "FREQ=MONTHLY;INTERVAL=12;BYMONTH=3",
        "FREQ=MINUTELY;INTERVAL=1440;BYMINUTE=7",
        "FREQ=DAILY;BYDAY=MO;BYSETPOS=2",
    ):
        found = Recurrence(parse(text), start)
        tick = found.first_from(far)
        if tick is not None:
            assert found.last_until(tick) == tick, text
            assert found.count(tick, tick + 1) == 1, text
    assert time.process_time() - began < 2


@pytest.mark.spec("N79")
@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "FREQ is missing"),
        ("FREQ=FORTNIGHTLY", "FREQ=FORTNIGHTLY is unknown; use one of YEARLY"),
        ("WEEKLY", "'WEEKLY' is not valid"),
        ("FREQ=DAILY;FREQ=DAILY", "'FREQ=DAILY' is not valid"),
        ("FREQ=DAILY;BYEASTER=0", "BYEASTER is not supported; the parts are FREQ"),
        ("FREQ=DAILY;INTERVAL=0", "INTERVAL=0: must be 1 to 100,000"),
        ("FREQ=DAILY;COUNT=x", "COUNT=X: must be 1 to 1,000,000"),
        ("FREQ=DAILY;COUNT=2;UNTIL=20270101", "COUNT and UNTIL cannot be combined"),
        ("FREQ=DAILY;UNTIL=2027", "UNTIL=2027 is not valid; write 20261231"),
        ("FREQ=DAILY;BYHOUR=24", "BYHOUR=24: must be 0 to 23"),
        ("FREQ=MONTHLY;BYMONTHDAY=0", "BYMONTHDAY=0: counting starts at 1"),
        ("FREQ=MONTHLY;BYDAY=XX", "BYDAY=XX is not valid; write MO, or 2MO, or -1MO"),
        ("FREQ=WEEKLY;BYDAY=2MO", "BYDAY with numbers needs FREQ=MONTHLY or FREQ=YEARLY"),
        ("FREQ=WEEKLY;BYMONTHDAY=3", "BYMONTHDAY cannot be combined with FREQ=WEEKLY"),
        ("FREQ=DAILY;BYYEARDAY=3", "BYYEARDAY cannot be combined with FREQ=DAILY"),
        ("FREQ=DAILY;BYWEEKNO=3", "BYWEEKNO needs FREQ=YEARLY"),
        ("FREQ=DAILY;BYSETPOS=1", "BYSETPOS needs another BY"),
        ("FREQ=DAILY;WKST=XX", "WKST=XX is not valid; use one of MO"),
        ("FREQ=SECONDLY;BYSECOND=" + "1," * 401, "BYSECOND has more than 400 entries"),
        ("FREQ=DAILY;" + "X" * 4_000, "the limit is 4,000"),
    ],
)
def test_a_rule_that_makes_no_sense(text, says):
    with pytest.raises(InvalidOption) as caught:
        parse(text)
    assert says in str(caught.value)
    assert caught.value.option == "rule"
