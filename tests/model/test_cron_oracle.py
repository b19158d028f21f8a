"""Two other engines and a slow model agree with ours, apart from the differences listed here.

croniter and cronsim are asked about random expressions. Where clocks do not change, all must say
the same. Where they do, cronsim follows the same rule (Debian's cron), and a third engine judges:
cronsim's calendar without zones, put on the clock by the standard library, one time after another.

What differs, and why; each has its own test below:

- cronsim wants both days to match where a day field starts with `*`: `*/2`. Ours asks whether the
  field is exactly `*`, as does croniter.
- croniter fires fixed schedules in both passes of a repeated hour.
- croniter moves schedules that follow the clock out of a gap, too.
- cronsim makes up for a lost day at its end; ours leaves out gaps of more than three hours.
- cronsim follows the clock whenever there is a seconds field.
- cronsim follows the clock in steps of an hour, and misses times right after a change that is
  not from one full hour to another.
- croniter takes a range of one value, `4-4`, for the whole field.
- croniter takes 31W for the last weekday of a short month. Ours does not fire there, as for 31.
"""

import random
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from itertools import islice

import pytest
from croniter import CroniterBadDateError, croniter
from cronsim import CronSim
from dateutil.rrule import MONTHLY, rrule  # type: ignore[import-untyped]

from duly.clock import to_ms
from duly.errors import InvalidCron
from duly.model.trigger import Cron
from duly.zones import Span, zone
from tests.model.test_zones import PACKAGE, transitions

DAY = 86_400
SINCE = int(datetime(1975, 1, 1, tzinfo=UTC).timestamp())
UNTIL = int(datetime(2037, 1, 1, tzinfo=UTC).timestamp())
NAMES = (PACKAGE / "zones").read_text().split()
LONGEST_GAP = 3 * 3600


# Random expressions ------------------------------------------------------------------------------


def number(chance: random.Random, least: int, most: int) -> str:
    return str(chance.randint(least, most))


def item(chance: random.Random, least: int, most: int) -> str:
    kind = chance.randrange(4)
    if kind < 2:
        return number(chance, least, most)
    first, last = sorted(chance.sample(range(least, most + 1), 2))
    return f"{first}-{last}" if kind == 2 else f"{first}-{last}/{chance.randint(1, last - first)}"


def field(chance: random.Random, least: int, most: int, stars: float) -> str:
    if chance.random() < stars:
        return chance.choice(["*", "*", f"*/{chance.randint(1, most - least + 1)}"])
    return ",".join(item(chance, least, most) for _ in range(chance.choice([1, 1, 1, 2, 3])))


def expression(chance: random.Random, *, near_midnight: bool = False) -> str:
    """Five fields of the syntax that everybody knows; at most one of the days restricted by *."""
    minute = field(chance, 0, 59, 0.3)
    hour = field(chance, 0, 4 if near_midnight else 23, 0.3)
    if near_midnight:
        return f"{minute} {hour} * * *"
    day, weekday = chance.choice(
        [
            ("*", "*"),
            (field(chance, 1, 31, 0), "*"),
            ("*", field(chance, 0, 7, 0)),
            (field(chance, 1, 31, 0), field(chance, 0, 6, 0)),
            ("L", "*"),
            ("*", f"{chance.randint(0, 6)}#{chance.randint(1, 5)}"),
            (f"*/{chance.randint(1, 31)}", "*"),
        ]
    )
    month = field(chance, 1, 12, 0.7)
    return f"{minute} {hour} {day} {month} {weekday}"


def ours(text: str, tz: str, after: datetime, n: int) -> list[datetime]:
    ticks = Cron(text, tz).upcoming(n, to_ms(after))
    return [datetime.fromtimestamp(tick // 1000, UTC) for tick in ticks]


# Where clocks do not change ----------------------------------------------------------------------


@pytest.mark.spec("R10", "R17")
def test_the_calendar_is_that_of_croniter_and_cronsim():
    chance = random.Random(1)
    compared = 0
    while compared < 400:
        text = expression(chance)
        after = datetime(2020, 1, 1, tzinfo=UTC) + timedelta(
            seconds=chance.randrange(10 * 365 * DAY)
        )
        if text.split()[2] in ("30", "31", "30-31") and not croniter.is_valid(text):
            continue
        mine = ours(text, "UTC", after, 12)
        assert mine == list(islice(CronSim(text, after), 12)), text
        theirs = croniter(text, after, ret_type=datetime)
        assert mine == [theirs.get_next() for _ in range(12)], text
        compared += 1


def test_the_way_back_is_that_of_croniter_and_cronsim():
    chance = random.Random(2)
    for _ in range(200):
        text = expression(chance)
        before = datetime(2030, 1, 1, tzinfo=UTC) - timedelta(seconds=chance.randrange(365 * DAY))
        tick = to_ms(before)
        mine: list[datetime] = []
        for _ in range(8):
            found = Cron(text).prev_before(tick)
            assert found is not None
            tick = found
            mine.append(datetime.fromtimestamp(tick // 1000, UTC))
        assert mine == list(islice(CronSim(text, before, reverse=True), 8)), text
        theirs = croniter(text, before, ret_type=datetime)
        assert mine == [theirs.get_prev() for _ in range(8)], text


def test_days_that_depend_on_the_month_are_those_of_croniter_and_cronsim():
    chance = random.Random(3)
    after = datetime(2024, 1, 1, tzinfo=UTC)
    for day in range(1, 29):
        text = f"0 0 {day}W * *"
        theirs = croniter(text, after, ret_type=datetime)
        assert ours(text, "UTC", after, 60) == [theirs.get_next() for _ in range(60)], text
    for text in ("0 0 LW * *", "0 0 1,LW * *", "0 0 LW,L * 3", "0 0 * * 0L", "0 0 * * 5L,2"):
        assert ours(text, "UTC", after, 60) == list(islice(CronSim(text, after), 60)), text
    for _ in range(40):
        text = f"0 0 * * {chance.randint(0, 7)}L"
        assert ours(text, "UTC", after, 40) == list(islice(CronSim(text, after), 40)), text


@pytest.mark.spec("N78")
def test_years_are_those_of_croniter_and_days_before_the_last_those_of_dateutil():
    chance = random.Random(7)
    for _ in range(60):
        text = f"0 {expression(chance)} {field(chance, 2020, 2099, 0)}"
        if not croniter.is_valid(text, second_at_beginning=True):
            continue
        after = datetime(2019, 1, 1, tzinfo=UTC) + timedelta(days=chance.randrange(20 * 365))
        theirs = croniter(
            text, after, ret_type=datetime, second_at_beginning=True, max_years_between_matches=130
        )
        try:
            mine = ours(text, "UTC", after, 5)
        except InvalidCron:
            mine = []  # It never fires, which is refused.
        for tick in mine:
            assert tick == theirs.get_next(), text
        if len(mine) < 5:
            with pytest.raises(CroniterBadDateError):
                theirs.get_next()
    for days in range(1, 31):
        theirs = rrule(MONTHLY, bymonthday=-days - 1, dtstart=datetime(2024, 1, 1, tzinfo=UTC))
        mine = ours(f"0 0 L-{days} * *", "UTC", datetime(2023, 12, 31, 23, tzinfo=UTC), 40)
        assert mine == list(islice(theirs, 40))


# Where they do -----------------------------------------------------------------------------------


def changes(name: str) -> Iterator[int]:
    """When clocks changed, as the zone's file lists it, and when they will by its last rule."""
    yield from (instant for instant, _ in transitions(name) if SINCE <= instant < UNTIL)
    second = UNTIL - 400 * DAY
    while second < UNTIL:
        span = zone(name).span(second)
        if span.offset != span.before:
            yield span.start
        second = span.end


def sample(chance: random.Random) -> Iterator[tuple[str, Span]]:
    """Two changes of every zone that has had any."""
    for name in NAMES:
        found = sorted(set(changes(name)))
        for instant in chance.sample(found, min(2, len(found))):
            yield name, zone(name).span(instant)


def judged(text: str, name: str, start: int, end: int) -> list[int]:
    """The rule word for word: every matching local time, put on the clock by the library."""
    minute, hour = text.split()[:2]
    follows_clock = minute.startswith("*") or hour.startswith("*")
    info = zone(name)._info
    offsets = {zone(name)._ask(start), zone(name)._ask(end)}
    shown = datetime.fromtimestamp(start + min(offsets) - 4 * 3600, UTC).replace(tzinfo=None)
    found: set[int] = set()
    for local in CronSim(text, shown):
        if local.replace(tzinfo=UTC).timestamp() > end + max(offsets):
            break
        first, second = (local.replace(tzinfo=info, fold=fold).timestamp() for fold in (0, 1))
        exists = datetime.fromtimestamp(first, info).replace(tzinfo=None, fold=0) == local
        if exists:
            found |= {int(first), int(second)} if follows_clock else {int(min(first, second))}
        elif not follows_clock and abs(first - second) <= LONGEST_GAP:
            # The library takes the offset before the gap for one fold, the one after for the other.
            found.add(end_of_gap(name, int(min(first, second)), int(max(first, second))))
    return sorted(tick for tick in found if start <= tick < end)


def end_of_gap(name: str, low: int, high: int) -> int:
    after = zone(name)._ask(high)
    while high - low > 1:
        middle = (low + high) // 2
        if zone(name)._ask(middle) == after:
            high = middle
        else:
            low = middle
    return high


def backwards(cron: Cron, start: int, end: int) -> list[int]:
    found: list[int] = []
    tick = cron.prev_before(end)
    while tick is not None and tick >= start:
        found.insert(0, tick // 1000)
        tick = cron.prev_before(tick)
    return found


@pytest.mark.spec("R22", "R23", "R24", "R25", "R26")
def test_every_zone_keeps_the_rule_when_its_clocks_change():
    chance = random.Random(4)
    compared = 0
    for name, span in sample(chance):
        text = expression(chance, near_midnight=True)
        start, end = span.start - DAY // 2, span.start + DAY // 2
        cron = Cron(text, name)
        mine = [tick // 1000 for tick in cron.between(start * 1000, end * 1000)]
        assert mine == judged(text, name, start, end), (text, name, span)
        assert cron.count_between(start * 1000, end * 1000) == len(mine), (text, name, span)
        assert backwards(cron, start * 1000, end * 1000) == mine, (text, name, span)
        compared += 1
    assert compared > 700


@pytest.mark.spec("R22", "R23", "R24", "R25", "R26")
def test_cronsim_says_the_same_when_clocks_change():
    chance = random.Random(5)
    for name, span in sample(chance):
        text = expression(chance, near_midnight=True)
        if span.offset - span.before > LONGEST_GAP or is_odd(text, span):
            continue
        after = datetime.fromtimestamp(span.start - DAY // 2, zone(name)._info)
        theirs = [tick.astimezone(UTC) for tick in islice(CronSim(text, after), 30)]
        assert ours(text, name, after.astimezone(UTC), 30) == theirs, (text, name, span)


def is_odd(text: str, span: Span) -> bool:
    """A change that is not from hour to hour, for cronsim to follow the clock through."""
    on_the_hour = (span.start + span.before) % 3600 == (span.start + span.offset) % 3600 == 0
    return not on_the_hour and "*" in [field[0] for field in text.split()[:2]]


def test_croniter_says_the_same_on_all_other_days():
    chance = random.Random(6)
    compared = 0
    for name in chance.sample(NAMES, 150):
        text = expression(chance)
        after = datetime.fromtimestamp(chance.randrange(SINCE, UNTIL), UTC)
        mine = ours(text, name, after, 4)
        near = zone(name).span(int(after.timestamp()))
        if near.start + 2 * DAY > after.timestamp() or near.end < mine[-1].timestamp() + 2 * DAY:
            continue
        theirs = croniter(text, after.astimezone(zone(name)._info), ret_type=datetime)
        assert mine == [theirs.get_next().astimezone(UTC) for _ in range(4)], (text, name)
        compared += 1
    assert compared > 60


# What differs ------------------------------------------------------------------------------------

NEW_YORK = "America/New_York"


def hours(ticks: list[datetime]) -> list[str]:
    return [tick.astimezone(UTC).strftime("%d %H:%M") for tick in ticks]


def both(text: str, tz: str, after: datetime, n: int) -> tuple[list[str], list[str], list[str]]:
    """What ours, croniter and cronsim say."""
    aware = after.replace(tzinfo=UTC).astimezone(zone(tz)._info)
    iterator = croniter(text, aware, ret_type=datetime, second_at_beginning=True)
    return (
        hours(ours(text, tz, aware.astimezone(UTC), n)),
        hours([iterator.get_next() for _ in range(n)]),
        hours(list(islice(CronSim(text, aware), n))),
    )


def test_a_stepped_day_field_is_a_restriction_to_all_but_cronsim():
    mine, croniters, cronsims = both("0 0 */10 * 5", "UTC", datetime(2026, 4, 1, 12), 3)  # noqa: DTZ001
    assert mine == croniters == ["03 00:00", "10 00:00", "11 00:00"]
    assert cronsims == ["01 00:00", "31 00:00", "21 00:00"]  # Fridays in May, July, August


def test_croniter_fires_fixed_times_twice():
    mine, croniters, cronsims = both("30 1 * * *", NEW_YORK, datetime(2026, 11, 1), 2)  # noqa: DTZ001
    assert mine == cronsims == ["01 05:30", "02 06:30"]
    assert croniters == ["01 05:30", "01 06:30"]


def test_croniter_moves_what_follows_the_clock():
    mine, croniters, cronsims = both("*/30 2 * * *", NEW_YORK, datetime(2026, 3, 8), 2)  # noqa: DTZ001
    assert mine == cronsims == ["09 06:00", "09 06:30"]
    assert croniters == ["08 07:00", "09 06:00"]


def test_cronsim_makes_up_for_a_lost_day():
    mine, _, cronsims = both("0 12 * * *", "Pacific/Apia", datetime(2011, 12, 29), 3)  # noqa: DTZ001
    assert mine == ["29 22:00", "30 22:00", "31 22:00"]
    assert cronsims == ["29 22:00", "30 10:00", "30 22:00"]


def test_cronsim_follows_the_clock_where_there_are_seconds():
    text = "0 30 1 * * *"
    mine, _, cronsims = both(text, NEW_YORK, datetime(2026, 11, 1), 2)  # noqa: DTZ001
    assert mine == ["01 05:30", "02 06:30"]
    assert cronsims == ["01 05:30", "01 06:30"]


def test_cronsim_misses_times_after_an_odd_change():
    # Singapore went from 23:30 to 00:00 as 1982 began.
    mine, _, cronsims = both("*/30 0 * * *", "Asia/Singapore", datetime(1981, 12, 31, 12), 2)  # noqa: DTZ001
    assert mine == ["31 16:00", "31 16:30"]
    assert cronsims == ["31 16:30", "01 16:00"]


def test_croniter_takes_a_range_of_one_for_any():
    mine, croniters, cronsims = both("0 0 * * 4-4", "UTC", datetime(2026, 1, 1), 2)  # noqa: DTZ001
    assert mine == cronsims == ["08 00:00", "15 00:00"]
    assert croniters == ["02 00:00", "03 00:00"]


def test_croniter_finds_day_31_in_short_months():
    after = datetime(2026, 1, 1, tzinfo=UTC)
    theirs = croniter("0 0 31W * *", after, ret_type=datetime)

    assert hours(ours("0 0 31W * *", "UTC", after, 3)) == ["30 00:00", "31 00:00", "29 00:00"]
    assert hours([theirs.get_next() for _ in range(3)]) == ["30 00:00", "27 00:00", "31 00:00"]
