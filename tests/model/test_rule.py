"""Rules and several triggers at once, on the clocks of zones."""

from datetime import UTC, datetime
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from duly import AnyOf, At, Cron, Every, Rule, UnknownZone
from duly.clock import from_ms, to_ms
from duly.errors import BadInput, InvalidOption
from duly.model.trigger import Trigger, anchored, decode, encode, in_phase, spread

ISTANBUL = "Europe/Istanbul"
NEW_YORK = "America/New_York"
DAY_MS = 86_400_000


def ms(text: str) -> int:
    return to_ms(datetime.fromisoformat(text).replace(tzinfo=UTC))


def ticks(trigger: Trigger, start: str, end: str) -> list[str]:
    return [f"{from_ms(tick):%d %H:%M}" for tick in trigger.between(ms(start), ms(end))]


@pytest.mark.spec("N79")
def test_a_start_in_every_form_is_the_same_rule():
    text = "FREQ=WEEKLY;INTERVAL=2;BYDAY=MO"
    rule = Rule(text, datetime(2026, 1, 5, 9, tzinfo=ZoneInfo(ISTANBUL)))
    assert (rule.start, rule.tz) == ("2026-01-05T09:00:00", ISTANBUL)
    assert rule.starts == datetime(2026, 1, 5, 6, tzinfo=UTC)
    assert rule.describe() == f"Every 2 weeks on Monday at 09:00, from 2026-01-05 ({ISTANBUL})"
    for same in (
        Rule("rrule:freq=weekly;interval=2;byday=mo;", "2026-01-05T09:00", ISTANBUL),
        Rule(text, datetime(2026, 1, 5, 6, tzinfo=UTC), ISTANBUL),
        Rule(text, "2026-01-05T06:00:00Z", ISTANBUL),
        Rule(f"DTSTART;TZID={ISTANBUL}:20260105T090000\r\nRRULE:{text}"),
        Rule(f"DTSTART:20260105T060000Z {text}", tz=ISTANBUL),
        decode(encode(rule)),
    ):
        assert same == rule
        assert hash(same) == hash(rule)
    assert ticks(rule, "2026-01-01", "2026-02-17") == [
        "05 06:00",
        "19 06:00",
        "02 06:00",
        "16 06:00",
    ]
    assert Rule(text, datetime(2026, 1, 5, 9, tzinfo=UTC)).tz == "UTC"


@pytest.mark.spec("N79")
@pytest.mark.parametrize(
    ("given_", "says"),
    [
        (("FREQ=DAILY",), "start: a rule needs one"),
        (("FREQ=DAILY", "soon", "UTC"), "start: 'soon' is not a date and time"),
        (("FREQ=DAILY", "2026-01-05T09:00"), "start: it has no time zone"),
        (("FREQ=DAILY", datetime(2026, 1, 5)), "start: it has no time zone"),  # noqa: DTZ001
        (("FREQ=DAILY", "2026-01-05T09:00+03:00"), "has an offset, but no time zone"),
        (("FREQ=DAILY", "1969-01-05T09:00", "UTC"), "must be in the years 1970 to 2199"),
        (("FREQ=DAILY", "0001-01-01T00:00+14:00", "UTC"), "must be in the years 1970 to 2199"),
        (("FREQ=DAILY", 5, "UTC"), "must be a datetime or text"),
        ((5, "2026-01-05T09:00", "UTC"), "rule: must be text"),
        (("", "2026-01-05T09:00", "UTC"), "rule: give one RRULE"),
        (("FREQ=DAILY EXDATE:20260105", "2026-01-05T09:00", "UTC"), "rule: give one RRULE"),
        (("DTSTART:20260105T060000Z FREQ=DAILY", "2026-01-05T09:00"), "has a DTSTART"),
        (("FREQ=DAILY;UNTIL=20261301", "2026-01-05T09:00", "UTC"), "UNTIL=20261301 is not a date"),
        (("FREQ=DAILY;UNTIL=20260104", "2026-01-05T09:00", "UTC"), "it would never run"),
        (("FREQ=YEARLY;BYMONTH=2;BYMONTHDAY=30", "2026-01-05T09:00", "UTC"), "it would never run"),
    ],
)
def test_a_rule_that_cannot_be_is_refused(given_, says):
    with pytest.raises(InvalidOption) as caught:
        Rule(*given_)
    assert says in str(caught.value)


def test_the_zone_of_a_rule_must_exist():
    with pytest.raises(UnknownZone):
        Rule("FREQ=DAILY", "2026-01-05T09:00", "Europe/Atlantis")


@pytest.mark.spec("N79", "R22", "R23", "R24")
def test_rules_keep_the_rule_for_days_on_which_clocks_change():
    def daily(text: str, start: str = "2026-01-01T00:00", tz: str = NEW_YORK) -> Rule:
        return Rule(text, start, tz)

    # Clocks go forward at 07:00Z on 8 March, and back at 06:00Z on 1 November.
    fixed = daily("FREQ=DAILY;BYHOUR=2;BYMINUTE=30")
    assert ticks(fixed, "2026-03-07", "2026-03-10") == ["07 07:30", "08 07:00", "09 06:30"]
    [moved] = fixed.between(ms("2026-03-08"), ms("2026-03-09"))
    assert fixed.adjusted(moved)
    assert not fixed.adjusted(ms("2026-03-07T07:30"))
    both = daily("FREQ=DAILY;BYHOUR=2;BYMINUTE=0,30")
    assert ticks(both, "2026-03-08", "2026-03-09") == ["08 07:00"]
    hourly = daily("FREQ=HOURLY;BYMINUTE=30")
    assert ticks(hourly, "2026-03-08T05:00", "2026-03-08T09:00") == [
        "08 05:30",
        "08 06:30",
        "08 07:30",
        "08 08:30",
    ]
    once = daily("FREQ=DAILY;BYHOUR=1;BYMINUTE=30")
    assert ticks(once, "2026-11-01", "2026-11-02") == ["01 05:30"]
    twice = daily("FREQ=HOURLY;BYHOUR=1;BYMINUTE=30")
    assert ticks(twice, "2026-11-01", "2026-11-02") == ["01 05:30", "01 06:30"]
    lost = Rule("FREQ=DAILY", "2011-12-28T12:00", "Pacific/Apia")
    assert ticks(lost, "2011-12-28", "2012-01-01") == [
        "28 22:00",
        "29 22:00",
        "30 22:00",
        "31 22:00",
    ]
    # A cron expression for the same times says the same, all year, in all ways.
    pairs = [
        (fixed, Cron("30 2 * * *", NEW_YORK)),
        (both, Cron("0,30 2 * * *", NEW_YORK)),
        (hourly, Cron("30 * * * *", NEW_YORK)),
        (daily("FREQ=MINUTELY;INTERVAL=20"), Cron("*/20 * * * *", NEW_YORK)),
        (daily("FREQ=WEEKLY;BYDAY=SU;BYHOUR=1,2,3", tz="Australia/Lord_Howe"),
         Cron("0 1,2,3 * * SUN", "Australia/Lord_Howe")),
    ]  # fmt: skip
    for rule, cron in pairs:
        mine = list(rule.between(ms("2026-01-02"), ms("2027-01-01")))
        assert mine == list(cron.between(ms("2026-01-02"), ms("2027-01-01"))), rule
        for tick in (*mine[:3], *mine[-3:], moved, ms("2026-11-01T06:00")):
            for near in (tick - 1, tick, tick + 1):
                assert rule.next_after(near) == cron.next_after(near), rule
                assert rule.count_between(ms("2026-01-02"), near) == cron.count_between(
                    ms("2026-01-02"), near
                )
                if near > mine[1]:
                    assert rule.prev_before(near) == cron.prev_before(near), rule


@pytest.mark.spec("N79")
def test_count_and_until_end_a_rule_exactly():
    def between(text: str, start: str = "2026-10-31T01:30") -> list[str]:
        rule = Rule(text, start, NEW_YORK)
        found = ticks(rule, "2026-01-01", "2028-01-01")
        assert rule.count_between(0, ms("2100-01-01")) == len(found)
        last = rule.prev_before(ms("2100-01-01"))
        assert last is not None
        assert rule.next_after(last) is None
        assert rule.upcoming(100, 0)[-1] == last
        return found

    # Of a time that clocks show twice, both ticks of an hourly rule count.
    assert between("FREQ=HOURLY;BYHOUR=1;COUNT=3") == ["31 05:30", "01 05:30", "01 06:30"]
    assert between("FREQ=DAILY;COUNT=3") == ["31 05:30", "01 05:30", "02 06:30"]
    assert between("FREQ=DAILY;UNTIL=20261101") == ["31 05:30", "01 05:30"]
    assert between("FREQ=DAILY;UNTIL=20261102T013000") == ["31 05:30", "01 05:30", "02 06:30"]
    assert between("FREQ=DAILY;UNTIL=20261102T062959Z") == ["31 05:30", "01 05:30"]
    assert between("FREQ=HOURLY;BYHOUR=1;UNTIL=20261101T053000Z") == ["31 05:30", "01 05:30"]
    assert between("FREQ=DAILY;COUNT=1") == ["31 05:30"]
    many = Rule("FREQ=SECONDLY;COUNT=1000000", "2026-01-01T00:00", "UTC")
    assert many.prev_before(ms("2100-01-01")) == ms("2026-01-01") + 999_999_000
    # Some programs mean "forever" by that.
    assert Rule("FREQ=DAILY;UNTIL=99991231", "2026-01-01T00:00", "UTC").next_after(ms("2500-01-01"))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("FREQ=DAILY", "Every day at 09:00"),
        ("FREQ=DAILY;INTERVAL=3;COUNT=5", "Every 3 days at 09:00, from 2026-07-06, 5 times"),
        ("FREQ=WEEKLY;UNTIL=20261231", "Every week on Monday at 09:00, until 2026-12-31"),
        ("FREQ=WEEKLY;BYDAY=MO,TU,WE,TH,FR;BYHOUR=9,17",
         "Every week on Monday through Friday at 09:00 and 17:00"),
        ("FREQ=MONTHLY;BYMONTHDAY=1,15,-1",
         "Every month on days 1 and 15 and the last day of the month at 09:00"),
        ("FREQ=MONTHLY;BYDAY=2TU,-1FR",
         "Every month on the second Tuesday and the last Friday of the month at 09:00"),
        ("FREQ=MONTHLY;BYDAY=MO,TU,WE,TH,FR;BYSETPOS=-1",
         "Every month on Monday through Friday at 09:00, only the last of these in each "
         "month"),
        ("FREQ=MONTHLY;BYMONTHDAY=13;BYDAY=FR",
         "Every month on day 13 of the month if it is Friday at 09:00"),
        ("FREQ=YEARLY", "Every year on day 6 of the month in July at 09:00"),
        ("FREQ=YEARLY;BYDAY=-2SU;BYMONTH=3,10",
         "Every year on the second to last Sunday of the month in March and October at "
         "09:00"),
        ("FREQ=YEARLY;BYWEEKNO=1,20;BYDAY=MO", "Every year in weeks 1 and 20 on Monday at 09:00"),
        ("FREQ=YEARLY;BYYEARDAY=100,-1",
         "Every year on day 100 and the last day of the year at 09:00"),
        ("FREQ=HOURLY;INTERVAL=2;BYHOUR=9,11,13",
         "Every 2 hours at minute 0 past the hour in hours 9, 11 and 13, from 2026-07-06"),
        ("FREQ=MINUTELY;INTERVAL=15", "Every 15 minutes, from 2026-07-06"),
        ("FREQ=SECONDLY;BYSECOND=0,30", "Every second at seconds 0 and 30"),
        ("FREQ=DAILY;BYHOUR=1,2,3,4;BYMINUTE=0,30",
         "Every day at hours 1 through 4, minutes 0 and 30"),
        ("FREQ=YEARLY;BYDAY=21MO,22TU,23WE",
         "Every year on the 21st Monday, the 22nd Tuesday and the 23rd Wednesday of the "
         "year at 09:00"),
    ],
)  # fmt: skip
def test_rules_in_words(text, words):
    assert Rule(text, "2026-07-06T09:00", "UTC").describe() == f"{words} (UTC)"


# Several triggers ---------------------------------------------------------------------------------

MEMBERS = st.one_of(
    st.builds(
        Cron,
        st.sampled_from(["0 9 * * *", "0 */6 * * *", "30 2 * * *", "0 9 1 * *"]),
        st.sampled_from(["UTC", NEW_YORK, "Europe/Berlin"]),
    ),
    st.builds(
        Every,
        st.sampled_from([2, 3, 5, 24]).map(lambda hours: hours * 3_600_000),
        st.integers(0, 3).map(lambda hours: ms("2026-03-01") + hours * 3_600_000),
    ),
    st.integers(0, 240).map(lambda hours: At(ms("2026-03-02") + hours * 3_600_000)),
    st.builds(
        Rule,
        st.sampled_from(["FREQ=DAILY;INTERVAL=2", "FREQ=HOURLY;INTERVAL=7;COUNT=9"]),
        st.just("2026-03-02T09:00"),
        st.sampled_from(["UTC", NEW_YORK]),
    ),
)


@pytest.mark.spec("N80")
@given(st.lists(MEMBERS, min_size=1, max_size=5), st.integers(0, 300), st.integers(0, 300))
def test_any_of_several_triggers_ticks_when_one_does(members, first, length):
    trigger = AnyOf(*members)
    start = ms("2026-03-01") + first * 3_600_000
    end = start + length * 3_600_000
    union = sorted({tick for each in members for tick in each.between(start, end)})
    assert list(trigger.between(start, end)) == union
    assert trigger.count_between(start, end) == len(union)
    back = list[int]()
    tick = trigger.prev_before(end)
    while tick is not None and tick >= start:
        back.insert(0, tick)
        tick = trigger.prev_before(tick)
    assert back == union
    for tick in union[:5]:
        plain = [each for each in members if each.matches(tick) and not each.adjusted(tick)]
        assert trigger.matches(tick)
        assert trigger.adjusted(tick) == (not plain)
    assert decode(encode(trigger)) == trigger


@pytest.mark.spec("N80")
def test_several_triggers_are_flat_and_keep_what_each_has():
    cron, every = Cron("H 9 * * *", ISTANBUL), Every(3_600_000)
    trigger = AnyOf(every, AnyOf(cron, every), cron)
    assert trigger.triggers == (every, cron)
    assert trigger == AnyOf(every, cron) != AnyOf(cron, every)
    assert hash(trigger) == hash(AnyOf(every, cron))
    assert trigger.tz == ISTANBUL
    assert AnyOf(every).tz == "UTC"
    assert repr(At(5)) in repr(AnyOf(At(5)))
    assert trigger.describe().startswith("Every hour; at 09:")
    stored = anchored(spread(trigger, "key"), 1_000, None)
    assert isinstance(stored, AnyOf)
    assert stored.triggers == (every.anchored(3_601_000), cron.spread_by("key"))
    assert in_phase(AnyOf(cron, every), stored).triggers == (cron, every.anchored(3_601_000))
    for wrong in ((), ("0 9 * * *",), tuple(map(At, range(21)))):
        with pytest.raises(InvalidOption, match="AnyOf takes"):
            AnyOf(*wrong)
    for data in (
        {"kind": "any_of"},
        {"kind": "any_of", "triggers": "x"},
        {"kind": "any_of", "triggers": []},
        {"kind": "any_of", "triggers": ["x"]},
        {"kind": "any_of", "triggers": [encode(trigger)]},
        {"kind": "any_of", "triggers": [encode(cron)] * 21},
        {"kind": "any_of", "triggers": [encode(cron)], "tz": "UTC"},
        {"kind": "rule", "rule": "FREQ=DAILY", "start": None, "tz": "UTC"},
    ):
        with pytest.raises(BadInput):
            decode(data)


def test_rules_are_as_fast_as_they_need_to_be():
    """Millions of ticks are counted, not listed."""
    rule = Rule("FREQ=SECONDLY;INTERVAL=3", "2000-01-01T00:00", NEW_YORK)
    start = ms("2026-01-01")
    assert rule.count_between(start, start + 365 * DAY_MS) == 365 * 28_800
