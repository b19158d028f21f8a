"""The words for a cron expression say what it matches: read back, they name the same times."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from duly.model.cron import Expression, parse
from duly.model.cron_words import DAYS, MONTHS, ORDINALS, in_words


@pytest.mark.parametrize(
    ("expression", "words"),
    [
        ("* * * * *", "Every minute"),
        ("*/15 * * * *", "Every 15 minutes"),
        ("*/30 * * * *", "Every 30 minutes"),
        ("*/7 * * * *", "At minutes 0, 7, 14, … and 56 past the hour"),
        ("2-59/5 * * * *", "Every 5 minutes from minute 2"),
        ("2-40/5 * * * *", "At minutes 2, 7, 12, … and 37 past the hour"),
        ("1-10,30 * * * *", "At minutes 1 through 10 and 30 past the hour"),
        ("*/5 9-17 * * MON-FRI", "Every 5 minutes, between 09:00 and 17:59, Monday through Friday"),
        ("*/5 1,5-7 * * *", "Every 5 minutes, between 01:00 and 01:59 or between 05:00 and 07:59"),
        ("*/20 */3 * * *", "Every 20 minutes, in hours 0, 3, 6, … and 21"),
        ("0 * * * *", "Every hour"),
        ("1 * * * *", "At 1 minute past every hour"),
        ("0 */6 * * *", "Every 6 hours"),
        ("15 2-23/6 * * *", "Every 6 hours from 02:15"),
        ("0 */5 * * *", "At 00:00, 05:00, 10:00, 15:00 and 20:00"),
        ("0 9-17 * * *", "Every hour from 09:00 through 17:00"),
        ("0,30 9,17 * * *", "At 09:00, 09:30, 17:00 and 17:30"),
        ("* * * * * *", "Every second"),
        ("*/10 * * * * *", "Every 10 seconds"),
        ("*/7 5 9 * * *", "At seconds 0, 7, 14, … and 56 of the minute, "
         "at minute 5 past the hour, between 09:00 and 09:59"),
        ("5 */10 * * * *", "At second 5, every 10 minutes"),
        ("0 0 * * 0,6", "At 00:00, only on Saturday and Sunday"),
        ("0 0 * * SUN-THU", "At 00:00, Sunday through Thursday"),
        ("0 0 * * MON-WED,SAT", "At 00:00, only on Monday through Wednesday and Saturday"),
        ("0 0 1-5,20 * *", "At 00:00, on days 1 through 5 and 20 of the month"),
        ("0 0 */2 * *", "At 00:00, on days 1, 3, 5, … and 31 of the month"),
        ("0 0 1-31 * 5", "At 00:00"),
        ("0 0 15W,L * *", "At 00:00, on the weekday nearest day 15 of the month, "
         "or on the last day of the month"),
        ("0 0 1 JAN-MAR,JUL *", "At 00:00, on day 1 of the month, "
         "only in January through March and July"),
        ("0 0 L-1,L-3 * *", "At 00:00, 1 day before the last day of the month, "
         "or 3 days before the last day of the month"),
        ("0 0 0 1 1 * 2027", "At 00:00, on day 1 of the month, only in January, "
         "in the year 2027"),
        ("0 */5 * * * * 2027-2029,2040", "Every 5 minutes, "
         "in the years 2027 through 2029 and 2040"),
        ("@weekly", "At 00:00, only on Sunday"),
    ],
)  # fmt: skip
def test_words(expression: str, words: str) -> None:
    assert in_words(parse(expression)) == words


# Read back ---------------------------------------------------------------------------------------

ITEM = r"(?:\d+ through \d+|[\d…]+)"
LIST = rf"({ITEM}(?:(?:, | and ){ITEM})*)"


def numbers(text: str) -> set[int]:
    items = re.split(r", | and ", text)
    if "…" in items:
        start, second, *_, end = (int(item) for item in items if item != "…")
        assert (end - start) % (second - start) == 0
        return {*range(start, end + 1, second - start)}
    found: set[int] = set()
    for item in items:
        first, _, last = item.partition(" through ")
        found |= {*range(int(first), int(last or first) + 1)}
    return found


def times_said(words: str) -> set[int]:
    """The seconds of a day that the words name."""
    if found := re.match(r"At (\d\d:.*?)(?:$|, on|, Mon|, [A-Z]|, only|, \d+ day|, in)", words):
        return {seconds_of(time) for time in re.split(r", | and ", found[1])}
    if found := re.match(r"At (?:(\d+) minutes?)?(?: and )?(?:(\d+) seconds?)? past every", words):
        offset = int(found[1] or 0) * 60 + int(found[2] or 0)
        return {hour * 3600 + offset for hour in range(24)}
    if found := re.match(
        r"Every (?:(\d+) )?hours?(?: from (\S+?))?(?: through (\S+?))?(?:,|$)", words
    ):
        start = seconds_of(found[2] or "00:00")
        end = seconds_of(found[3]) if found[3] else 86_399
        return {*range(start, end + 1, int(found[1] or 1) * 3600)}
    seconds, minutes = values_said(words, "second", {0}), values_said(words, "minute", {*range(60)})
    return {
        hour * 3600 + minute * 60 + second
        for hour in hours_said(words)
        for minute in minutes
        for second in seconds
    }


def seconds_of(time: str) -> int:
    hour, minute, *second = map(int, time.split(":"))
    return hour * 3600 + minute * 60 + sum(second)


def values_said(words: str, unit: str, otherwise: set[int]) -> set[int]:
    """Which of sixty: an interval goes round and round."""
    if found := re.search(rf"[Ee]very (?:(\d+) )?{unit}s?(?: from {unit} (\d+))?", words):
        step, start = int(found[1] or 1), int(found[2] or 0)
        return {(start + n * step) % 60 for n in range(60)}
    found = re.search(rf"[Aa]t {unit}s? {LIST}", words)
    return numbers(found[1]) if found else otherwise


def hours_said(words: str) -> set[int]:
    if found := re.search(rf"in hours {LIST}", words):
        return numbers(found[1])
    spans = re.findall(r"between (\d\d):00 and (\d\d):59", words)
    hours = {hour for first, last in spans for hour in range(int(first), int(last) + 1)}
    return hours or {*range(24)}


def days_said(words: str, weekday: int, length: int) -> set[int]:
    """The days of a month that begins on that weekday (Sunday is 0)."""
    found: set[int] = set()
    if match := re.search(rf"on days? {LIST} of the month", words):
        found |= {day for day in numbers(match[1]) if day <= length}
    by_weekday = {
        name: [day for day in range(1, length + 1) if (weekday + day - 1) % 7 == number]
        for number, name in enumerate(DAYS)
    }
    for which in re.findall(r"on the (.*?) of the month", words):
        found |= special_said(which, by_weekday, length)
    for before in re.findall(r"(\d+) days? before the last day of the month", words):
        found |= {length - int(before)} if int(before) < length else set()
    plain = re.sub(r"on the .*? of the month", "", words)
    for name in week_days_said(plain):
        found |= {*by_weekday[name]}
    return (
        found
        if found or "month" in words or set(words.split()) & set(DAYS)
        else {*range(1, length + 1)}
    )


def special_said(which: str, by_weekday: dict[str, list[int]], length: int) -> set[int]:
    working = {day for name in DAYS[1:6] for day in by_weekday[name]}
    if which == "last day":
        return {length}
    if which == "last weekday":
        return {max(working)}
    if which.startswith("weekday nearest"):
        day = int(which.split()[-1])
        near = sorted(working, key=lambda other: (abs(other - day), other))
        return {near[0]} if day <= length else set()
    place, name = which.split()
    days = by_weekday[name]
    nth = len(days) - 1 if place == "last" else ORDINALS.index(place)
    return {days[nth]} if nth < len(days) else set()


def week_days_said(words: str) -> Iterator[str]:
    for first, last in re.findall(rf"({'|'.join(DAYS)})(?: through ({'|'.join(DAYS)}))?", words):
        start, end = DAYS.index(first), DAYS.index(last or first)
        yield from (DAYS[(start + n) % 7] for n in range((end - start) % 7 + 1))


def months_said(words: str) -> set[int]:
    _, only, said = words.partition("only in ")
    if not only:
        return {*range(1, 13)}
    found: set[int] = set()
    for first, last in re.findall(r"([A-Z]\w+)(?: through ([A-Z]\w+))?", said):
        found |= {*range(MONTHS.index(first) + 1, MONTHS.index(last or first) + 2)}
    return found


def years_said(words: str) -> set[int]:
    found = re.search(rf"in the years? {LIST}$", words)
    return numbers(found[1]) if found else set()


def fields(least: int, most: int, *more: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    value = st.integers(least, most)
    ranges = st.tuples(value, value).map(sorted).map(lambda pair: f"{pair[0]}-{pair[1]}")
    step = st.integers(1, most - least + 1)
    items = st.one_of(
        value.map(str), ranges, st.builds("{}/{}".format, st.just("*") | ranges, step), *more
    )
    return st.just("*") | st.lists(items, min_size=1, max_size=3).map(",".join)


EXPRESSIONS = st.builds(
    lambda *parts: " ".join(parts),
    st.just("0") | st.just("30") | st.just("0") | fields(0, 59),
    fields(0, 59),
    fields(0, 23),
    fields(
        1,
        28,
        st.just("L"),
        st.just("LW"),
        st.integers(1, 31).map("{}W".format),
        st.integers(1, 27).map("L-{}".format),
    ),
    fields(1, 12),
    fields(
        0,
        6,
        st.builds("{}#{}".format, st.integers(0, 7), st.integers(1, 5)),
        st.integers(0, 7).map("{}L".format),
    ),
    st.just("") | fields(1970, 2099),
).map(str.strip)


@given(EXPRESSIONS)
def test_words_that_are_read_back_name_the_same_times(text: str) -> None:
    expression = parse(text)
    words = in_words(expression)
    assert times_said(words) == matched_times(expression), words
    assert months_said(words) == {n for n in range(1, 13) if expression.months >> n & 1}, words
    assert years_said(words) == {n for n in range(2100) if expression.years >> n & 1}, words
    for weekday in range(7):
        for length in (28, 29, 30, 31):
            mask = expression._match_month(weekday, length)
            matched = {day for day in range(1, length + 1) if mask >> day & 1}
            assert days_said(words, weekday, length) == matched, (words, weekday, length)


def matched_times(expression: Expression) -> set[int]:
    return {
        hour * 3600 + minute * 60 + second
        for hour in range(24)
        if expression.hours >> hour & 1
        for minute in range(60)
        if expression.minutes >> minute & 1
        for second in range(60)
        if expression.seconds >> second & 1
    }


def test_what_is_called_an_interval_is_one() -> None:
    """Every sequence of minutes with equal steps: it is an interval if it goes on into the hour."""
    for step in range(2, 31):
        for start in range(60 - step):
            words = in_words(parse(f"{start}-59/{step} * * * *"))
            minutes = [*range(start, 60, step)]
            goes_on = minutes[-1] + step == start + 60
            assert words.startswith(f"Every {step} minutes") == goes_on, words
