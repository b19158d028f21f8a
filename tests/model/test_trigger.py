"""When a schedule is due: zones, days on which clocks change, intervals, and the way back."""

import json
from datetime import UTC, datetime, timedelta
from importlib import resources
from itertools import pairwise

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import duly
from duly import At, Cron, Every, InvalidCron, UnknownZone, zones
from duly.clock import to_ms
from duly.errors import InvalidOption, InvalidTime
from duly.model.trigger import (
    MAX_FIRES,
    Trigger,
    daily,
    decode,
    encode,
    every,
    hourly,
    monthly,
    next_fires,
    weekly,
)

NEW_YORK = "America/New_York"
LORD_HOWE = "Australia/Lord_Howe"
DAY = 86_400_000
HOUR = 3_600_000


def ms(text: str) -> int:
    return to_ms(datetime.fromisoformat(text).replace(tzinfo=UTC))


def utc(instant: int | None) -> str:
    assert instant is not None
    return (datetime(1970, 1, 1) + timedelta(milliseconds=instant)).isoformat(" ", "minutes")  # noqa: DTZ001


def fires(trigger: Trigger, start: str, end: str) -> list[str]:
    return [utc(tick) for tick in trigger.between(ms(start), ms(end))]


# Cron --------------------------------------------------------------------------------------------


@pytest.mark.spec("R17")
@pytest.mark.parametrize(
    ("expression", "after", "expected"),
    [
        ("0 9 * * 1-5", "2026-01-02T09:00", ["2026-01-05 09:00", "2026-01-06 09:00"]),
        ("0 0 * * *", "2026-01-01T00:00", ["2026-01-02 00:00", "2026-01-03 00:00"]),
        ("0 */4 * * *", "2026-01-01T19:59", ["2026-01-01 20:00", "2026-01-02 00:00"]),
        ("30 8 1 * *", "2026-01-01T08:30", ["2026-02-01 08:30", "2026-03-01 08:30"]),
        ("0 9 * * 1", "2026-01-05T08:59", ["2026-01-05 09:00", "2026-01-12 09:00"]),
    ],
)
def test_the_usual_expressions(expression, after, expected):
    assert [utc(tick) for tick in Cron(expression).upcoming(2, ms(after))] == expected
    assert [utc(tick) for tick in next_fires(expression, "UTC", ms(after), 2)] == expected


@pytest.mark.spec("R16")
def test_a_leap_day_is_waited_for():
    assert utc(Cron("0 0 29 2 *").next_after(ms("2026-01-01"))) == "2028-02-29 00:00"


@pytest.mark.spec("R21")
def test_nine_in_new_york_is_another_instant_in_summer():
    working = Cron("0 9 * * 1-5", NEW_YORK)

    assert utc(working.next_after(ms("2026-01-03"))) == "2026-01-05 14:00"
    assert utc(working.next_after(ms("2026-07-04"))) == "2026-07-06 13:00"


@pytest.mark.spec("R22")
def test_a_time_that_does_not_exist_fires_once_when_the_gap_ends():
    half_past_two = Cron("30 2 * * *", NEW_YORK)

    assert fires(half_past_two, "2026-03-07", "2026-03-10") == [
        "2026-03-07 07:30",
        "2026-03-08 07:00",
        "2026-03-09 06:30",
    ]
    assert half_past_two.adjusted(ms("2026-03-08T07:00"))
    assert not half_past_two.adjusted(ms("2026-03-09T06:30"))
    assert not half_past_two.adjusted(ms("2026-03-08T07:30"))


@pytest.mark.spec("R22")
def test_times_lost_together_fire_together():
    assert fires(Cron("0,30 2 * * *", NEW_YORK), "2026-03-08", "2026-03-09") == ["2026-03-08 07:00"]
    both = Cron("30 2,3 * * *", NEW_YORK)
    assert fires(both, "2026-03-08", "2026-03-09") == ["2026-03-08 07:00", "2026-03-08 07:30"]
    # 03:00 comes anyway, so nothing was moved.
    together = Cron("0,30 2,3 * * *", NEW_YORK)
    assert fires(together, "2026-03-08", "2026-03-09") == ["2026-03-08 07:00", "2026-03-08 07:30"]
    assert not together.adjusted(ms("2026-03-08T07:00"))
    seconds = Cron("* 30 2 * * *", NEW_YORK)
    assert seconds.count_between(ms("2026-03-08"), ms("2026-03-09")) == 1
    assert seconds.count_between(ms("2026-03-09"), ms("2026-03-10")) == 60


@pytest.mark.spec("R23")
def test_a_repeated_time_fires_when_it_comes_first():
    half_past_one = Cron("30 1 * * *", NEW_YORK)

    assert fires(half_past_one, "2026-11-01", "2026-11-03") == [
        "2026-11-01 05:30",
        "2026-11-02 06:30",
    ]
    assert not half_past_one.adjusted(ms("2026-11-01T05:30"))
    assert not half_past_one.matches(ms("2026-11-01T06:30"))


@pytest.mark.spec("R23", "R27")
@pytest.mark.parametrize("asked", ["05:30", "05:59", "06:00", "06:29:59", "06:30", "06:59:59"])
def test_asked_during_the_second_pass_the_answer_is_the_next_day(asked):
    after = ms(f"2026-11-01T{asked}")
    assert utc(Cron("30 1 * * *", NEW_YORK).next_after(after)) == "2026-11-02 06:30"
    assert utc(Cron("30 1 * * *", NEW_YORK).prev_before(after + 1)) == "2026-11-01 05:30"


@pytest.mark.spec("R24")
def test_a_schedule_that_follows_the_clock_fires_in_both_passes():
    through = fires(Cron("*/30 * * * *", NEW_YORK), "2026-11-01T04:30", "2026-11-01T08:00")
    assert [f[11:] for f in through] == [
        "04:30",
        "05:00",
        "05:30",
        "06:00",
        "06:30",
        "07:00",
        "07:30",
    ]
    one = fires(Cron("*/30 1 * * *", NEW_YORK), "2026-11-01", "2026-11-02")
    assert [f[11:] for f in one] == ["05:00", "05:30", "06:00", "06:30"]
    hourly_at_half = fires(Cron("30 * * * *", NEW_YORK), "2026-11-01T05:00", "2026-11-01T08:00")
    assert [f[11:] for f in hourly_at_half] == ["05:30", "06:30", "07:30"]


@pytest.mark.spec("R24")
def test_the_second_pass_is_found_also_when_the_next_match_is_a_year_away():
    yearly = Cron("*/30 1 1 11 *", NEW_YORK)

    assert utc(yearly.next_after(ms("2026-11-01T05:45"))) == "2026-11-01 06:00"
    assert utc(yearly.prev_before(ms("2026-11-01T06:00"))) == "2026-11-01 05:30"
    assert utc(yearly.next_after(ms("2026-11-01T06:30"))) == "2027-11-01 05:00"
    assert utc(yearly.prev_before(ms("2027-11-01T05:00"))) == "2026-11-01 06:30"


@pytest.mark.spec("R25")
def test_a_schedule_that_follows_the_clock_leaves_a_gap_out():
    through = fires(Cron("*/30 * * * *", NEW_YORK), "2026-03-08T06:00", "2026-03-08T08:00")
    assert [f[11:] for f in through] == ["06:00", "06:30", "07:00", "07:30"]
    assert fires(Cron("*/30 2 * * *", NEW_YORK), "2026-03-08", "2026-03-09") == []
    half = fires(Cron("30 * * * *", NEW_YORK), "2026-03-08T06:00", "2026-03-08T08:00")
    assert [f[11:] for f in half] == ["06:30", "07:30"]


@pytest.mark.spec("R26")
def test_half_an_hour_is_lost_and_repeated_on_lord_howe():
    # Back from 02:00 to 01:30 on 5 April 2026, forward from 02:00 to 02:30 on 4 October.
    assert fires(Cron("45 1 * * *", LORD_HOWE), "2026-04-04T10:00", "2026-04-05T10:00") == [
        "2026-04-04 14:45"
    ]
    assert fires(Cron("*/15 1 * * *", LORD_HOWE), "2026-04-04T10:00", "2026-04-05T10:00") == [
        f"2026-04-04 {time}" for time in ("14:00", "14:15", "14:30", "14:45", "15:00", "15:15")
    ]
    lost = Cron("15 2 * * *", LORD_HOWE)
    assert fires(lost, "2026-10-03T10:00", "2026-10-04T10:00") == ["2026-10-03 15:30"]
    assert lost.adjusted(ms("2026-10-03T15:30"))
    kept = Cron("30 2 * * *", LORD_HOWE)
    assert fires(kept, "2026-10-03T10:00", "2026-10-04T10:00") == ["2026-10-03 15:30"]
    assert not kept.adjusted(ms("2026-10-03T15:30"))


def test_a_lost_day_does_not_fire():
    # Samoa went from 29 to 31 December 2011.
    noon = Cron("0 12 * * *", "Pacific/Apia")
    assert fires(noon, "2011-12-29", "2011-12-31") == ["2011-12-29 22:00", "2011-12-30 22:00"]
    assert Cron("0 12 30 12 *", "Pacific/Apia").upcoming(1, ms("2011-12-29")) == [
        ms("2012-12-29T22:00")
    ]
    assert not noon.adjusted(ms("2011-12-30T10:00"))
    assert noon.prev_before(ms("2011-12-30T22:00")) == ms("2011-12-29T22:00")


def test_a_gap_of_three_hours_fires_and_a_longer_one_does_not():
    # Casey station went forward by three hours on 4 October 2020, at 00:01 local time.
    assert fires(
        Cron("30 1 * * *", "Antarctica/Casey"), "2020-10-03T12:00", "2020-10-04T12:00"
    ) == ["2020-10-03 16:01"]


def test_midnight_that_does_not_exist_fires_at_one():
    # Clocks in Beirut, and once in Brazil, go forward at midnight.
    assert fires(Cron("0 0 * * *", "America/Sao_Paulo"), "2018-11-04", "2018-11-05") == [
        "2018-11-04 03:00"
    ]


def test_a_repeated_midnight_is_of_one_day_only():
    # Back from 24:00 to 23:00 on 4 November 2018 in Havana: at 01:00, to 00:00.
    assert fires(Cron("30 0 * * *", "America/Havana"), "2018-11-04", "2018-11-05") == [
        "2018-11-04 04:30"
    ]


@pytest.mark.spec("R15")
def test_what_clocks_always_skip_is_refused():
    with pytest.raises(InvalidCron, match="skip every such time") as caught:
        Cron("*/30 2 * 3 SUN#2", NEW_YORK)
    assert (caught.value.field, caught.value.text, caught.value.position) == ("hour", "2", 5)
    # The fixed form fires when the gap ends, and other zones have that hour.
    assert Cron("0,30 2 * 3 SUN#2", NEW_YORK).next_after(0)
    assert Cron("*/30 2 * 3 SUN#2", "Asia/Tokyo").next_after(0)


@pytest.mark.spec("R20")
def test_a_zone_is_checked_when_it_is_written():
    with pytest.raises(UnknownZone, match="Europe/Istanbul"):
        Cron("0 9 * * *", "Europe/Istambul")
    assert Cron("0 9 * * *", None).tz == "UTC"  # type: ignore[arg-type]


@pytest.mark.parametrize("expression", [None, 5, b"* * * * *", ["*"]])
def test_an_expression_is_text(expression):
    with pytest.raises(InvalidOption, match="cron: must be text"):
        Cron(expression)


def test_milliseconds_are_not_lost():
    minutely = Cron("* * * * *")
    assert minutely.next_after(ms("2026-01-01") - 1) == ms("2026-01-01")
    assert minutely.next_after(ms("2026-01-01")) == ms("2026-01-01T00:01")
    assert minutely.prev_before(ms("2026-01-01")) == ms("2025-12-31T23:59")
    assert minutely.prev_before(ms("2026-01-01") + 1) == ms("2026-01-01")
    assert not minutely.matches(ms("2026-01-01") + 1)


def test_zone_data_that_changes_is_followed(tmp_path):
    nine = Cron("0 9 * * *", "Europe/Istanbul")
    before = nine.next_after(ms("2026-01-01"))
    (tmp_path / "Europe").mkdir()
    tokyo = resources.files("tzdata").joinpath("zoneinfo/Asia/Tokyo")
    (tmp_path / "Europe/Istanbul").write_bytes(tokyo.read_bytes())
    (tmp_path / "tzdata.zi").write_text("# version 2099a\n")
    zones.forget([tmp_path])
    try:
        assert (before, nine.next_after(ms("2026-01-01"))) == (
            ms("2026-01-01T06:00"),
            ms("2026-01-02T00:00"),
        )
    finally:
        zones.forget()


def test_the_ends_of_time_have_no_ticks_beyond():
    noon = Cron("0 12 * * *", NEW_YORK)
    assert noon.next_after(10**18) is None
    assert noon.prev_before(-(10**18)) is None
    assert noon.next_after(-(10**18)) is not None
    assert noon.prev_before(10**18) is not None


# Every expression at every time ------------------------------------------------------------------

EXPRESSIONS = [
    "* * * * *",
    "*/30 * * * *",
    "*/30 2 * * *",
    "30 * * * *",
    "30 2 * * *",
    "30 1 * * *",
    "0,30 0-4 * * *",
    "0 0 * * *",
    "59 23 L * *",
    "0 2 * * 0",
    "15 1,2,3 */3 * 7",
    "0 3 1W * FRI#5",
    "*/20 30 1,2 * * *",
    "5 5 29 2 *",
    "H H(0-3) * * *",
]
ZONES = [
    "UTC",
    NEW_YORK,
    LORD_HOWE,
    "Europe/London",
    "Pacific/Apia",
    "Africa/Casablanca",
    "America/Havana",
    "Asia/Kathmandu",
    "Antarctica/Casey",
    "Antarctica/Troll",
    "Africa/Monrovia",
    "America/Santiago",
]
CRONS = st.builds(Cron, st.sampled_from(EXPRESSIONS), st.sampled_from(ZONES))


@st.composite
def instants(draw: st.DrawFn, tz: str) -> int:
    """Any instant, most of them near a change of clocks."""
    instant = draw(st.integers(ms("1970-01-01"), ms("2040-01-01")))
    span = zones.zone(tz).span(instant // 1000)
    near = draw(st.sampled_from([span.start * 1000, span.end * 1000, None]))
    distance = draw(st.sampled_from([0, 1, 1000, 60_000, 30 * 60_000, HOUR, 3 * HOUR, DAY]))
    return instant if near is None else near + draw(st.sampled_from([-1, 1])) * distance


@pytest.mark.spec("R27")
@given(st.data(), CRONS)
def test_the_next_tick_is_later_and_the_same_until_it_comes(data, cron):
    asked = data.draw(instants(cron.tz))
    tick = cron.next_after(asked)

    assert tick is not None
    assert tick > asked
    later = data.draw(st.integers(asked, tick - 1))
    assert cron.next_after(later) == tick
    assert cron.matches(tick)


@given(st.data(), CRONS)
def test_back_and_forth_lead_to_the_same_ticks(data, cron):
    asked = data.draw(instants(cron.tz))
    tick = cron.next_after(asked)
    before = cron.prev_before(asked)

    assert before is not None
    assert tick is not None
    assert before < asked
    assert cron.next_after(before) in (asked, tick)
    assert cron.prev_before(tick) == (asked if cron.matches(asked) else before)
    assert cron.prev_before(tick + 1) == tick


@pytest.mark.spec("R27")
@given(st.data(), CRONS, st.sampled_from([HOUR, DAY, 3 * DAY]))
def test_ticks_grow_and_are_counted_without_being_made(data, cron, length):
    start = data.draw(instants(cron.tz))
    end = start + length
    ticks = list(cron.between(start, end))

    assert all(a < b for a, b in pairwise(ticks))
    assert all(start <= tick < end for tick in ticks)
    assert cron.count_between(start, end) == len(ticks)
    assert cron.upcoming(len(ticks), start - 1) == ticks
    back: list[int] = []
    tick = cron.prev_before(end)
    while tick is not None and tick >= start:
        back.append(tick)
        tick = cron.prev_before(tick)
    assert back[::-1] == ticks


@given(CRONS, st.integers(ms("1971-01-01"), ms("2035-01-01")), st.integers(0, 5 * 365 * DAY))
def test_long_stretches_are_counted_by_their_parts(cron, start, length):
    middle, end = start + length // 3, start + length

    parts = cron.count_between(start, middle) + cron.count_between(middle, end)
    assert cron.count_between(start, end) == parts
    assert cron.count_between(end, start) == 0


@given(st.data(), CRONS)
@example(None, Cron("30 2 * * *", NEW_YORK))
def test_a_tick_shows_a_matching_time_unless_it_was_moved(data, cron):
    asked = data.draw(instants(cron.tz)) if data else ms("2026-03-08")
    tick = cron.next_after(asked)
    assert tick is not None
    shown = tick // 1000 + zones.zone(cron.tz).offset(tick // 1000)
    span = zones.zone(cron.tz).span(tick // 1000)

    if cron.adjusted(tick):
        assert tick == span.start * 1000
        assert 0 < span.offset - span.before <= 3 * 3600
    else:
        assert Cron(cron.expression).matches(shown * 1000)


# Every and At ------------------------------------------------------------------------------------


@pytest.mark.spec("R19")
def test_the_zone_of_an_interval_is_kept_and_has_no_effect():
    hour = Every(HOUR, ms("2026-03-08T00:10"), tz="America/New_York")

    ticks = fires(hour, "2026-03-08T06:00", "2026-03-08T09:00")
    assert ticks == ["2026-03-08 06:10", "2026-03-08 07:10", "2026-03-08 08:10"]
    assert decode(encode(hour)) == hour
    assert hour.tz == "America/New_York"
    with pytest.raises(UnknownZone):
        Every(HOUR, tz="Mars/Olympus")


@pytest.mark.spec("R20")
def test_an_empty_string_is_not_a_zone():
    for asked in (lambda: next_fires("0 9 * * *", ""), lambda: Cron("0 9 * * *", " ")):
        with pytest.raises(UnknownZone, match="an empty string is not a time zone"):
            asked()
    assert next_fires("0 9 * * *", None) == next_fires("0 9 * * *")


@pytest.mark.spec("R102")
def test_the_first_tick_is_one_interval_after_the_anchor():
    every_hour = Every(HOUR).anchored(5)

    assert every_hour.next_after(5) == 5 + HOUR
    assert every_hour.next_after(5 + HOUR) == 5 + 2 * HOUR
    assert every_hour.anchored(99) == every_hour


@pytest.mark.spec("R102")
def test_an_interval_that_starts_later_starts_at_its_anchor():
    later = Every(HOUR, 100 * HOUR)

    assert later.next_after(0) == 100 * HOUR
    assert later.prev_before(100 * HOUR) is None
    assert later.prev_before(100 * HOUR + 1) == 100 * HOUR


@given(
    st.integers(1000, 10**10),
    st.integers(-(10**12), 10**13),
    st.integers(-(10**12), 10**13),
    st.integers(0, 20),
)
def test_ticks_of_an_interval(interval, anchor, start, length):
    trigger = Every(interval, anchor)
    tick, before = trigger.next_after(start), trigger.prev_before(start)

    assert tick > start
    assert (tick - anchor) % interval == 0
    assert tick >= anchor
    assert tick - start <= interval or tick == anchor
    assert before is None or (before < start and start - before <= interval)
    end = start + length * interval // 2
    assert trigger.count_between(start, end) == len(list(trigger.between(start, end)))
    assert (
        trigger.count_between(0, 10**13)
        == trigger.count_between(0, start) + (trigger.count_between(start, 10**13))
        or not 0 <= start <= 10**13
    )


def test_counting_an_interval_takes_no_time():
    assert Every(1000, 0).count_between(0, 10**15) == 10**12


def test_an_interval_without_an_anchor_has_no_ticks_to_ask_for():
    for ask in (Every(HOUR).next_after, Every(HOUR).prev_before):
        with pytest.raises(InvalidOption, match="anchored"):
            ask(0)


@pytest.mark.spec("R18")
@pytest.mark.parametrize("milliseconds", [999, 0, -1, True, 1.5, "1000", None, 10**15])
def test_an_interval_is_a_second_at_least(milliseconds):
    with pytest.raises(InvalidOption, match="milliseconds: must be a whole number from 1000"):
        Every(milliseconds)
    assert Every(1000).milliseconds == 1000


def test_at_ticks_once():
    once = At(1000)

    assert (once.next_after(999), once.next_after(1000)) == (1000, None)
    assert (once.prev_before(1001), once.prev_before(1000)) == (1000, None)
    assert (once.matches(1000), once.matches(999)) == (True, False)
    assert (once.count_between(1000, 1001), once.count_between(0, 1000)) == (1, 0)
    assert once.upcoming(5, 0) == [1000]
    assert At.of(datetime(2026, 1, 1, tzinfo=UTC)) == At(ms("2026-01-01"))


@pytest.mark.parametrize("instant", [None, "now", 1.5, True, 10**18])
def test_at_takes_milliseconds(instant):
    with pytest.raises(InvalidTime, match="milliseconds"):
        At(instant)
    with pytest.raises(InvalidTime, match="naive"):
        At.of(datetime(2026, 1, 1))  # noqa: DTZ001


# Helpers -----------------------------------------------------------------------------------------


@pytest.mark.spec("R99")
def test_helpers_write_the_expression():
    assert hourly(15) == Cron("15 * * * *")
    assert daily(9, 30, tz=NEW_YORK) == Cron("30 9 * * *", NEW_YORK)
    assert weekly("monday", 9, 0) == weekly("Mon", 9, 0) == weekly(1, 9, 0) == Cron("0 9 * * 1")
    assert weekly("sunday", 9, 0) == weekly(7, 9, 0) == weekly(0, 9, 0)
    assert monthly(31, 0, 0) == Cron("0 0 31 * *")


@pytest.mark.spec("R99")
def test_day_31_leaves_short_months_out():
    ends = [utc(tick) for tick in monthly(31, 9, 0).upcoming(4, ms("2026-01-01"))]
    assert [end[:10] for end in ends] == ["2026-01-31", "2026-03-31", "2026-05-31", "2026-07-31"]


@pytest.mark.spec("R106")
@pytest.mark.parametrize("helper", [hourly(), daily(3), weekly("fri", 3), monthly(1, 3)])
def test_without_a_minute_each_schedule_has_its_own(helper):
    seeds = [f"owner/{n}" for n in range(60)]
    minutes = {helper.spread_by(seed).next_after(0) // 60_000 % 60 for seed in seeds}

    assert len(minutes) > 30
    assert helper.spread_by("a").spread_by("b") == helper.spread_by("a")
    assert helper.spread_by("a").next_after(0) == helper.spread_by("a").next_after(0)


@pytest.mark.spec("R99")
@pytest.mark.parametrize(
    ("call", "option"),
    [
        (lambda: hourly(60), "minute"),
        (lambda: hourly(-1), "minute"),
        (lambda: hourly(True), "minute"),
        (lambda: daily(24), "hour"),
        (lambda: daily(9, 60), "minute"),
        (lambda: daily("9"), "hour"),  # type: ignore[arg-type]
        (lambda: weekly("someday", 9), "day"),
        (lambda: weekly(8, 9), "day"),
        (lambda: weekly(1, 9.5), "hour"),  # type: ignore[arg-type]
        (lambda: monthly(0, 9), "day"),
        (lambda: monthly(32, 9), "day"),
        (lambda: every(), "every"),
        (lambda: every(seconds=1, minutes=1), "every"),
        (lambda: every(seconds=0), "seconds"),
        (lambda: every(minutes=-5), "minutes"),
        (lambda: every(hours=1.5), "hours"),  # type: ignore[arg-type]
        (lambda: every(hours=True), "hours"),
    ],
)
def test_helpers_refuse_what_is_out_of_range(call, option):
    with pytest.raises(InvalidOption) as caught:
        call()
    assert caught.value.option == option


@pytest.mark.spec("R99")
def test_an_interval_in_one_unit():
    assert every(seconds=90) == Every(90_000)
    assert every(minutes=5) == Every(300_000)
    assert every(hours=2) == Every(2 * HOUR)


def test_next_fires_is_public_and_bounded():
    assert duly.next_fires("0 9 * * *", None, 0, 1) == [9 * HOUR]
    assert next_fires("@yearly", None, 0, 0) == []
    assert len(next_fires("* * * * *", "UTC", 0, MAX_FIRES)) == MAX_FIRES
    for n in (-1, MAX_FIRES + 1, True):
        with pytest.raises(InvalidOption, match="n: must be a whole number"):
            next_fires("* * * * *", "UTC", 0, n)
    with pytest.raises(InvalidTime):
        next_fires("* * * * *", "UTC", 1.5, 1)  # type: ignore[arg-type]
    with pytest.raises(InvalidCron):
        next_fires("60 * * * *", "UTC", 0, 1)


# As data, and in words ---------------------------------------------------------------------------

TRIGGERS: list[Trigger] = [
    Cron("0 9 * * 1-5", NEW_YORK, "a seed"),
    Cron("@daily"),
    Every(5000),
    Every(5000, 17),
    At(1000),
]


@pytest.mark.parametrize("trigger", TRIGGERS)
def test_a_trigger_survives_as_data(trigger):
    text = json.dumps(encode(trigger), allow_nan=False)

    assert decode(json.loads(text)) == trigger
    assert decode(msgspec.json.decode(msgspec.json.encode(encode(trigger)))) == trigger


def test_the_data_of_a_trigger():
    assert encode(Cron("0 9 * * *")) == {
        "kind": "cron",
        "expression": "0 9 * * *",
        "tz": "UTC",
        "spread": "",
    }
    interval = {"kind": "interval", "milliseconds": 5000, "anchor": 1}
    assert encode(Every(5000, 1)) == interval | {"tz": "UTC"}
    assert decode(interval) == Every(5000, 1)
    assert encode(At(5)) == {"kind": "at", "instant": 5}
    assert decode({"kind": "cron", "expression": "0 9 * * *"}) == Cron("0 9 * * *")


@pytest.mark.parametrize(
    ("data", "option"),
    [
        ({}, "kind"),
        ({"kind": "sometimes"}, "kind"),
        ({"kind": ["cron"]}, "kind"),
        ({"kind": "cron"}, "expression"),
        ({"kind": "cron", "expression": "* * * * *", "zone": "UTC"}, "zone"),
        ({"kind": "cron", "expression": 5}, "cron"),
        ({"kind": "cron", "expression": "* * * * *", "spread": None}, "spread"),
        ({"kind": "interval"}, "milliseconds"),
        ({"kind": "at", "instant": 5, "tz": "UTC"}, "tz"),
        ({"kind": "interval", "milliseconds": "5000"}, "milliseconds"),
        ({"kind": "at"}, "instant"),
        ({"kind": "at", "instant": 5, "milliseconds": 5}, "milliseconds"),
    ],
)
def test_data_that_is_no_trigger_is_refused_by_name(data, option):
    with pytest.raises(InvalidOption) as caught:
        decode(data)
    assert caught.value.option == option


def test_triggers_are_values():
    assert len({Cron("@daily"), Cron("@daily"), Every(1000), At(1)}) == 3
    with pytest.raises(AttributeError):
        Cron("@daily").tz = "Asia/Tokyo"  # type: ignore[misc]


@pytest.mark.parametrize(
    ("trigger", "words"),
    [
        (Cron("0 9 * * 1-5", NEW_YORK), "At 09:00, Monday through Friday (America/New_York)"),
        (Cron("*/5 * * * *"), "Every 5 minutes (UTC)"),
        (Cron("30 8 1 * *"), "At 08:30, on day 1 of the month (UTC)"),
        (Cron("0 0 13 * 5"), "At 00:00, on day 13 of the month, or on Friday (UTC)"),
        (Cron("0 0 * * FRI-SUN"), "At 00:00, Friday through Sunday (UTC)"),
        (Cron("15 30 9 * * *"), "At 09:30:15 (UTC)"),
        (Cron("@yearly"), "At 00:00, on day 1 of the month, only in January (UTC)"),
        (Cron("0 0 LW * *"), "At 00:00, on the last weekday of the month (UTC)"),
        (Cron("0 0 * * 5L"), "At 00:00, on the last Friday of the month (UTC)"),
        (Cron("0 0 * * FRIL"), "At 00:00, on the last Friday of the month (UTC)"),
        (Cron("0 0 * * MON#2"), "At 00:00, on the second Monday of the month (UTC)"),
        (
            Cron("0 0 1,LW 6 1#2"),
            "At 00:00, on day 1 of the month, or on the last weekday of the month, "
            "or on the second Monday of the month, only in June (UTC)",
        ),
        (Cron("0 H * * *", spread="morning digest"), "At 19:00 (UTC)"),
        (Every(300_000), "Every 5 minutes"),
        (Every(3_600_000), "Every hour"),
        (Every(90_000), "Every 90 seconds"),
        (Every(1_500), "Every 1.5 seconds"),
        (Every(2 * DAY), "Every 2 days"),
        (At(1_767_225_600_000), "Once, at 2026-01-01T00:00:00Z"),
    ],
)
def test_words_for_people(trigger, words):
    assert trigger.describe() == words


@given(CRONS)
def test_every_expression_has_words(cron):
    assert cron.describe().endswith(f"({cron.tz})")
    assert "None" not in cron.describe()
