"""Events of an iCalendar file become dates, exactly, or are refused with their line."""

import datetime as dt
import time

import pytest
from dateutil.rrule import rrulestr  # type: ignore[import-untyped]
from hypothesis import given
from hypothesis import strategies as st

from duly.errors import BadInput, InvalidCalendar
from duly.model.calendar import Calendar
from duly.model.ical import MAX_TEXT, dates_of
from duly.model.recurrence import NthDay, parse

FIRST, LAST = dt.date(2026, 1, 1), dt.date(2027, 12, 31)


def file(*lines: str) -> str:
    return "\r\n".join(["BEGIN:VCALENDAR", "VERSION:2.0", *lines, "END:VCALENDAR", ""])


def event(*lines: str) -> list[str]:
    return ["BEGIN:VEVENT", *lines, "END:VEVENT"]


def days(*lines: str, tz: str = "UTC", last: dt.date = LAST) -> list[str]:
    return [day.isoformat() for day, _ in dates_of(file(*event(*lines)), FIRST, last, tz)]


# Single events ------------------------------------------------------------------------------------


def test_a_file_of_holidays_becomes_a_calendar():
    text = file(
        *event("DTSTART;VALUE=DATE:20260101", "DTEND;VALUE=DATE:20260102", "SUMMARY:New Year"),
        "BEGIN:VTODO",
        "DTSTART;VALUE=DATE:20260105",
        "END:VTODO",
        *event(
            "SUMMARY;LANGUAGE=en:Founders\\, and\\nothers \\; all of th",
            " em",
            "DTSTART;VALUE=DATE:20260",
            "\t601",
            "BEGIN:VALARM",
            "DTSTART;VALUE=DATE:20260909",
            "SUMMARY:wake up",
            "END:VALARM",
        ),
    )
    found = dates_of(text, FIRST, LAST)
    assert found == [
        (dt.date(2026, 1, 1), "New Year"),
        (dt.date(2026, 6, 1), "Founders, and others ; all of them"),
    ]
    assert Calendar("c", "skip_dates", dates=dict(found)).last_date() == dt.date(2026, 6, 1)


@pytest.mark.parametrize("ending", ["\r\n", "\n", "\r"])
def test_any_line_ending_and_a_byte_order_mark_are_read(ending):
    text = "\ufeff" + file(*event("DTSTART;VALUE=DATE:20260101")).replace("\r\n", ending)
    assert dates_of(text, FIRST, LAST) == [(dt.date(2026, 1, 1), "")]


@pytest.mark.parametrize(
    ("lines", "found"),
    [
        (["DTSTART;VALUE=DATE:20260529", "DTEND;VALUE=DATE:20260601"], ["05-29", "05-30", "05-31"]),
        (["DTSTART;VALUE=DATE:20260529", "DTEND;VALUE=DATE:20260529"], ["05-29"]),
        (["DTSTART:20260529"], ["05-29"]),
        (["DTSTART;VALUE=DATE:20260529", "DURATION:P2D"], ["05-29", "05-30"]),
        (["DTSTART:20260529T220000Z", "DTEND:20260530T000000Z"], ["05-29"]),
        (["DTSTART:20260529T220000Z", "DTEND:20260530T000001Z"], ["05-29", "05-30"]),
        (["DTSTART:20260529T220000Z", "DURATION:PT2H1S"], ["05-29", "05-30"]),
        (["DTSTART:20260529T220000Z"], ["05-29"]),
        (["DTSTART:20260529T000000Z", "DURATION:P1W"], [f"05-{n}" for n in (29, 30, 31)]
            + [f"06-0{n}" for n in (1, 2, 3, 4)]),
    ],
)  # fmt: skip
def test_the_end_of_an_event_is_excluded(lines, found):
    assert days(*lines) == [f"2026-{day}" for day in found]


@pytest.mark.parametrize(
    ("start", "tz", "day"),
    [
        ("DTSTART:20260529T220000Z", "Europe/Istanbul", "2026-05-30"),
        ("DTSTART:20260529T020000Z", "America/New_York", "2026-05-28"),
        ("DTSTART;TZID=America/New_York:20260529T220000", "UTC", "2026-05-30"),
        ('DTSTART;TZID="America/New_York":20260529T220000', "UTC", "2026-05-30"),
        ("DTSTART;TZID=America/New_York:20260529T220000", "America/New_York", "2026-05-29"),
        ("DTSTART:20260529T230000", "Europe/Istanbul", "2026-05-29"),
        ("DTSTART;VALUE=DATE:20260529", "Pacific/Kiritimati", "2026-05-29"),
        ("DTSTART;TZID=America/New_York:20260308T023000", "UTC", "2026-03-08"),
    ],
)
def test_a_time_is_a_date_in_the_zone_of_the_calendar(start, tz, day):
    assert days(start, tz=tz) == [day]


def test_only_the_window_counts_and_names_of_one_day_are_joined():
    text = file(
        *event("DTSTART;VALUE=DATE:20251230", "DTEND;VALUE=DATE:20260103", "SUMMARY:a"),
        *event("DTSTART;VALUE=DATE:20260102", "SUMMARY:b"),
        *event("DTSTART;VALUE=DATE:20260102", "SUMMARY:a"),
        *event("DTSTART;VALUE=DATE:20280102", "SUMMARY:c"),
    )
    assert dates_of(text, FIRST, LAST) == [
        (dt.date(2026, 1, 1), "a"),
        (dt.date(2026, 1, 2), "a, b"),
    ]


def test_a_canceled_event_does_not_count():
    assert days("DTSTART;VALUE=DATE:20260101", "STATUS:CANCELLED") == []


# Repetition ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("start", "rule", "found"),
    [
        ("20201126", "FREQ=YEARLY;BYMONTH=11;BYDAY=4TH", ["2026-11-26", "2027-11-25"]),
        ("20200525", "FREQ=YEARLY;BYMONTH=5;BYDAY=-1MO", ["2026-05-25", "2027-05-31"]),
        ("19000704", "FREQ=YEARLY", ["2026-07-04", "2027-07-04"]),
        ("20240229", "FREQ=YEARLY", []),
        ("20251231", "FREQ=DAILY;COUNT=3", ["2026-01-01", "2026-01-02"]),
        ("20260101", "FREQ=DAILY;UNTIL=20260103", ["2026-01-01", "2026-01-02", "2026-01-03"]),
        ("20260131", "FREQ=MONTHLY;COUNT=3", ["2026-01-31", "2026-03-31", "2026-05-31"]),
        ("20260105", "FREQ=WEEKLY;BYDAY=MO,WE;COUNT=3", ["2026-01-05", "2026-01-07", "2026-01-12"]),
        ("20260105", "FREQ=HOURLY;INTERVAL=25;COUNT=3", ["2026-01-05", "2026-01-06", "2026-01-07"]),
        ("20260105", "FREQ=MONTHLY;BYDAY=MO,FR;BYSETPOS=-1;COUNT=2", ["2026-01-30", "2026-02-27"]),
        ("20260105", "FREQ=YEARLY;BYWEEKNO=20;BYDAY=WE;COUNT=2", ["2026-05-13", "2027-05-19"]),
        ("20260105", "FREQ=DAILY;INTERVAL=9;BYHOUR=9;COUNT=2", ["2026-01-05", "2026-01-14"]),
        ("20260101", "FREQ=YEARLY;UNTIL=99991231T235959Z", ["2026-01-01", "2027-01-01"]),
    ],
)
def test_repeating_events_are_expanded(start, rule, found):
    assert days(f"DTSTART;VALUE=DATE:{start}", f"RRULE:{rule}") == found


def test_a_repetition_ends_at_an_instant_whatever_zone_it_is_written_in():
    lines = ["DTSTART;TZID=America/New_York:20260101T200000", "RRULE:FREQ=DAILY;UNTIL="]
    assert days(*lines[:1], lines[1] + "20260103T010000Z", tz="America/New_York") == [
        "2026-01-01",
        "2026-01-02",
    ]
    assert days(*lines[:1], lines[1] + "20260103T005959Z", tz="America/New_York") == ["2026-01-01"]


def test_dates_are_left_out_and_added():
    daily = ["DTSTART;VALUE=DATE:20260101", "RRULE:FREQ=DAILY;COUNT=4"]
    extra = ["EXDATE;VALUE=DATE:20260102,20260103", "RDATE;VALUE=DATE:20260601"]
    assert days(*daily, *extra) == ["2026-01-01", "2026-01-04", "2026-06-01"]
    timed = ["DTSTART;TZID=America/New_York:20260101T120000", "RRULE:FREQ=DAILY;COUNT=3"]
    assert days(*timed, "EXDATE:20260102T170000Z") == ["2026-01-01", "2026-01-03"]
    assert days(*timed, "EXDATE;VALUE=DATE:20260103") == ["2026-01-01", "2026-01-02"]


def test_a_repetition_that_was_moved_is_where_it_was_moved_to():
    text = file(
        *event("UID:1", "DTSTART;VALUE=DATE:20260101", "RRULE:FREQ=DAILY;COUNT=3"),
        *event("UID:1", "RECURRENCE-ID;VALUE=DATE:20260102", "DTSTART;VALUE=DATE:20260202"),
        *event("UID:2", "DTSTART;VALUE=DATE:20260301", "RRULE:FREQ=DAILY;COUNT=2"),
        *event(
            "UID:2",
            "RECURRENCE-ID;VALUE=DATE:20260301",
            "DTSTART;VALUE=DATE:20260301",
            "STATUS:CANCELLED",
        ),
    )
    found = [day.isoformat() for day, _ in dates_of(text, FIRST, LAST)]
    assert found == ["2026-01-01", "2026-01-03", "2026-02-02", "2026-03-02"]


weekday = st.sampled_from("MO TU WE TH FR SA SU".split())
numbered = st.builds("{}{}".format, st.sampled_from([1, 2, 4, 5, -1, -2]), weekday)


def joined(parts: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    return st.lists(parts, min_size=1, max_size=3, unique=True).map(",".join)


@st.composite
def rules(draw: st.DrawFn) -> str:
    freq = draw(st.sampled_from(["DAILY", "WEEKLY", "MONTHLY", "YEARLY"]))
    parts = [f"FREQ={freq}", f"INTERVAL={draw(st.integers(1, 4))}"]
    if draw(st.booleans()):
        parts.append("BYMONTH=" + draw(joined(st.integers(1, 12).map(str))))
    choice = draw(st.sampled_from(["none", "days", "numbered", "month days", "both"]))
    if choice == "days" or choice == "both":
        parts.append("BYDAY=" + draw(joined(weekday)))
    if choice == "numbered":
        nth = numbered if freq in ("MONTHLY", "YEARLY") else weekday
        parts.append("BYDAY=" + draw(joined(nth)))
    if choice in ("month days", "both") and freq != "WEEKLY":
        parts.append("BYMONTHDAY=" + draw(joined(st.sampled_from("1 13 28 29 31 -1 -3".split()))))
    if draw(st.booleans()):
        parts.append(f"WKST={draw(weekday)}")
    ending = draw(st.sampled_from(["", "COUNT", "UNTIL"]))
    if ending == "COUNT":
        parts.append(f"COUNT={draw(st.integers(1, 60))}")
    elif ending == "UNTIL":
        parts.append(f"UNTIL={draw(st.dates(FIRST, LAST)):%Y%m%d}")
    return ";".join(parts)


@given(st.dates(dt.date(2023, 1, 1), LAST), rules())
def test_every_rule_gives_the_dates_that_dateutil_finds(start, rule):
    ended = rule if "COUNT" in rule or "UNTIL" in rule else f"{rule};UNTIL={LAST:%Y%m%d}"
    repeated = rrulestr(ended, dtstart=dt.datetime.combine(start, dt.time()))
    theirs = [moment.date() for moment in repeated]
    assert days(f"DTSTART;VALUE=DATE:{start:%Y%m%d}", f"RRULE:{rule}") == [
        day.isoformat() for day in theirs if FIRST <= day <= LAST
    ]


# What is refused ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("lines", "number", "named"),
    [
        (["DTSTART:2026-01-01"], 4, "2026-01-01"),
        (["DTSTART;VALUE=DATE:20260230"], 4, "20260230"),
        (["DTSTART:00010101"], 4, "years"),
        (["DTSTART:99991231T235959Z"], 4, "years"),
        (["DTSTART;TZID=Customized Time Zone:20260101T000000"], 4, "Customized"),
        (["DTSTART;VALUE=DATE:20260101", "DTEND;VALUE=DATE:20251201"], 3, "before"),
        (["DTSTART;VALUE=DATE:20260101", "DTEND:20260102T000000Z"], 3, "reverse"),
        (["DTSTART;VALUE=DATE:19990101", "DTEND;VALUE=DATE:20990101"], 3, "3,660"),
        (["DTSTART;VALUE=DATE:20260101", "DURATION:-P1D"], 5, "-P1D"),
        (["DTSTART;VALUE=DATE:20260101", "DURATION:P"], 5, "'P'"),
        (["SUMMARY:x"], 3, "DTSTART"),
        (["DTSTART;VALUE=DATE:20260101", "EXRULE:FREQ=DAILY"], 5, "not supported"),
        (["DTSTART;VALUE=DATE:20260101", "RRULE:FREQ=DAILY", "RRULE:FREQ=DAILY"], 6, "one"),
        (["RDATE;VALUE=PERIOD:20260101T000000Z/PT1H"], 4, "periods"),
        (["RECURRENCE-ID;RANGE=THISANDFUTURE:20260101T000000Z"], 4, "RANGE"),
        ([":x"], 4, "not a property"),
        (["DTSTART"], 4, "no value"),
        (['DTSTART;TZID="UTC:20260101'], 4, "no value"),
        (["END:VTODO"], 4, "'VTODO' has no BEGIN"),
    ],
)
def test_a_line_that_makes_no_sense_is_named(lines, number, named):
    with pytest.raises(InvalidCalendar, match=f"line {number}:") as refused:
        days(*lines)
    assert named in str(refused.value)
    assert refused.value.field == "ical"


@pytest.mark.parametrize(
    "rule",
    [
        "",
        "FREQ=DAILY;BYSETPOS=1",
        "FREQ=DAILY;INTERVAL=0",
        "FREQ=DAILY;INTERVAL=-1",
        "FREQ=DAILY;INTERVAL=99999999999999999999",
        "FREQ=DAILY;COUNT=0",
        "FREQ=DAILY;COUNT=x",
        "FREQ=DAILY;COUNT=3;UNTIL=20260101",
        "FREQ=DAILY;UNTIL=tomorrow",
        "FREQ=DAILY;COUNT=1;COUNT=2",
        "FREQ=WEEKLY;BYDAY=2MO",
        "FREQ=WEEKLY;BYMONTHDAY=3",
        "FREQ=MONTHLY;BYDAY=0MO",
        "FREQ=MONTHLY;BYDAY=XX",
        "FREQ=MONTHLY;BYMONTHDAY=0",
        "FREQ=MONTHLY;BYMONTHDAY=32",
        "FREQ=YEARLY;BYMONTH=13",
        "FREQ=WEEKLY;WKST=XX",
        "FREQ=DAILY;WHAT",
        "FREQ=MONTHLY;BYDAY=" + ",".join(["MO"] * 401),
        "FREQ=MONTHLY;BYMONTHDAY=" + ",".join(["1"] * 401),
        "FREQ=DAILY;BYMONTH=" + ",".join(["1"] * 401),
    ],
    ids=lambda rule: rule[:40],
)
def test_a_rule_that_cannot_be_expanded_exactly_is_refused(rule):
    with pytest.raises(InvalidCalendar, match="line 5: RRULE"):
        days("DTSTART;VALUE=DATE:20260101", f"RRULE:{rule}")


def test_an_entry_of_a_list_counts_once():
    mondays = ",".join(["MO"] * 400)
    found = days("DTSTART;VALUE=DATE:20260105", f"RRULE:FREQ=MONTHLY;COUNT=2;BYDAY={mondays}")
    assert found == ["2026-01-05", "2026-01-12"]
    assert parse(f"FREQ=MONTHLY;BYDAY={mondays}").by_day == (NthDay(0),)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "\r\n\r\n",
        "hello",
        "<html>",
        "BEGIN:VEVENT\nEND:VEVENT",
        "BEGIN:VCALENDAR",
        "BEGIN:VCALENDAR\nBEGIN:VEVENT\nEND:VCALENDAR",
        "END:VCALENDAR",
        "x" * (MAX_TEXT + 1),
    ],
    ids=len,
)
def test_what_is_no_calendar_is_refused(text):
    with pytest.raises(InvalidCalendar):
        dates_of(text, FIRST, LAST)


@pytest.mark.parametrize(
    "text",
    [
        file(*event("DTSTART;VALUE=DATE:15830101", "RRULE:FREQ=DAILY")),
        file(*(event("DTSTART;VALUE=DATE:20260101", "RRULE:FREQ=DAILY") * 400)),
        file(*event("DTSTART;VALUE=DATE:20260101", "DTEND;VALUE=DATE:20360101") * 3000),
        file(*event("DTSTART;VALUE=DATE:20260130", "RRULE:FREQ=YEARLY;BYMONTH=2")),
        file(*event("DTSTART;VALUE=DATE:20260101", "RRULE:FREQ=DAILY;COUNT=1000000") * 3),
        file(*event("DTSTART;VALUE=DATE:15830101", "RRULE:FREQ=YEARLY;BYDAY=53MO") * 200),
        file(*event("DTSTART:20260101T000000", "RRULE:FREQ=DAILY;BYDAY=MO;BYSETPOS=2") * 3000),
        file(*event("DTSTART:20260101T000000", "RRULE:FREQ=SECONDLY") * 3000),
        file(*(["BEGIN:X"] * 50_000)),
        file("A;" * 500_000 + ":"),
        file("A" + ';B="' * 200_000),
        file(*event("DTSTART;VALUE=DATE:20260101", "SUMMARY:" + "\\" * 1_000_000)),
        file(*event("DTSTART;VALUE=DATE:20260101", *(["SUMMARY:x"] + [" y"] * 100_000))),
        file(*event("DTSTART:98990101T000000Z", "RRULE:FREQ=DAILY", "DURATION:P3000D")),
    ],
)
def test_a_hostile_file_costs_little(text):
    began = time.process_time()
    try:
        found = dates_of(text, dt.date.min, dt.date.max, "America/New_York")
    except InvalidCalendar:
        found = []
    assert len(found) <= 10_000
    assert all(len(label) <= 200 for _, label in found)
    assert time.process_time() - began < 10


def test_many_long_events_are_refused_instead_of_being_walked_through():
    long = event("DTSTART;VALUE=DATE:20260101", "DTEND;VALUE=DATE:20360101")
    assert len(dates_of(file(*long * 50), FIRST, dt.date.max)) == 3652
    with pytest.raises(InvalidCalendar, match="200,000 days"):
        dates_of(file(*long * 60), FIRST, dt.date.max)


line = st.sampled_from(
    [
        "BEGIN:VEVENT",
        "END:VEVENT",
        "BEGIN:VALARM",
        "END:VALARM",
        "DTSTART;VALUE=DATE:20260101",
        "DTSTART;TZID=America/New_York:20260308T023000",
        "DTSTART:20260101T000000Z",
        "DTEND:20260103T000000Z",
        "DTEND;VALUE=DATE:20260103",
        "DURATION:PT36H",
        "RRULE:FREQ=WEEKLY;COUNT=3",
        "EXDATE:20260101T000000Z",
        "RECURRENCE-ID:20260101T000000Z",
        "UID:1",
        " folded",
        "",
    ]
)


@given(st.lists(line | st.text(max_size=20), max_size=12), st.sampled_from(["UTC", "Asia/Tokyo"]))
def test_any_text_is_read_or_refused(lines, tz):
    try:
        found = dates_of(file(*lines), FIRST, LAST, tz)
    except BadInput:
        return
    assert found == sorted(found)
    Calendar("c", "skip_dates", dates=dict(found))
