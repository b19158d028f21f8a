"""What a cron expression means, and what is none."""

import time
from datetime import UTC, date, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from duly.errors import BadInput, InvalidCron
from duly.model.cron import MAX_LENGTH, parse

NAMES = "second minute hour day-of-month month day-of-week year".split()


def local(text: str) -> int:
    return int(datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp())


def text(second: int | None) -> str:
    assert second is not None
    return datetime.fromtimestamp(second, UTC).strftime("%Y-%m-%d %H:%M:%S")


def values(mask: int) -> list[int]:
    return [bit for bit in range(64) if mask >> bit & 1]


def days(expression: str, year: int, month: int) -> list[int]:
    """The days of a month on which an expression fires."""
    parsed = parse(expression)
    first = date(year, month, 1)
    dates = [first + timedelta(days=n) for n in range(31)]
    matching = [d for d in dates if d.month == month and parsed.matches(local(d.isoformat()))]
    return [d.day for d in matching]


# Syntax ------------------------------------------------------------------------------------------


@pytest.mark.spec("R10")
@pytest.mark.parametrize(
    ("field", "minutes"),
    [
        ("*", list(range(60))),
        ("7", [7]),
        ("1,3,5", [1, 3, 5]),
        ("10-13", [10, 11, 12, 13]),
        ("*/20", [0, 20, 40]),
        ("*/60", [0]),
        ("10-40/15", [10, 25, 40]),
        ("5-59/15", [5, 20, 35, 50]),
        ("1,10-12,*/30", [0, 1, 10, 11, 12, 30]),
        ("09", [9]),
        ("3-3", [3]),
    ],
)
def test_lists_ranges_and_steps(field, minutes):
    assert values(parse(f"{field} * * * *").minutes) == minutes


@pytest.mark.spec("R10")
def test_six_fields_begin_with_seconds():
    parsed = parse("*/20 5 * * * *")

    assert (values(parsed.seconds), values(parsed.minutes)) == ([0, 20, 40], [5])
    assert values(parse("5 * * * *").seconds) == [0]


@pytest.mark.spec("R11")
def test_names_in_any_case_and_two_sundays():
    assert parse("0 0 * jan,Feb,MAR *").months == parse("0 0 * 1-3 *").months
    assert values(parse("0 0 * * mon-Fri").week_days) == [1, 2, 3, 4, 5]
    assert parse("0 0 * * 7").week_days == parse("0 0 * * 0").week_days == 1
    assert values(parse("0 0 * * 5-7").week_days) == [0, 5, 6]
    assert values(parse("0 0 * * FRI-SUN").week_days) == [0, 5, 6]
    assert values(parse("0 0 * * SUN-TUE").week_days) == [0, 1, 2]
    assert values(parse("0 0 * * SUN-SUN").week_days) == [0]
    assert values(parse("0 0 * * MON-FRI/2").week_days) == [1, 3, 5]
    assert values(parse("0 0 * * 0-7").week_days) == list(range(7))


@pytest.mark.spec("R12")
def test_either_day_matches_when_both_are_restricted():
    assert days("0 0 13 * FRI", 2026, 3) == [6, 13, 20, 27]
    assert days("0 0 13 * FRI", 2026, 4) == [3, 10, 13, 17, 24]


@pytest.mark.spec("R12")
@pytest.mark.parametrize("free", ["*", "?"])
def test_a_free_day_field_leaves_the_days_to_the_other(free):
    assert days(f"0 0 13 * {free}", 2026, 4) == [13]
    assert days(f"0 0 {free} * FRI", 2026, 4) == [3, 10, 17, 24]
    assert days(f"0 0 {free} * ?", 2026, 4) == list(range(1, 31))


@pytest.mark.spec("R12")
def test_a_step_restricts_a_day_field():
    assert days("0 0 */10 * FRI", 2026, 4) == [1, 3, 10, 11, 17, 21, 24]


@pytest.mark.spec("R13")
def test_steps_in_days_of_the_month_begin_at_the_first():
    assert days("0 0 */10 * *", 2026, 1) == [1, 11, 21, 31]


@pytest.mark.spec("R10")
@pytest.mark.parametrize(
    ("expression", "month", "expected"),
    [
        ("0 0 L * *", 2, [28]),
        ("0 0 L * *", 4, [30]),
        ("0 0 L-3 * *", 1, [28]),
        ("0 0 L-3 * *", 2, [25]),
        ("0 0 l-30,L-1 * *", 1, [1, 30]),
        ("0 0 L-30 * *", 4, []),
        ("0 0 LW * *", 1, [30]),  # the 31st is a Saturday
        ("0 0 LW * *", 5, [29]),  # the 31st is a Sunday
        ("0 0 lw * *", 3, [31]),
        ("0 0 15W * *", 3, [16]),  # a Sunday: the Monday after
        ("0 0 15W * *", 8, [14]),  # a Saturday: the Friday before
        ("0 0 15W * *", 1, [15]),
        ("0 0 1W * *", 8, [3]),  # a Saturday: not in the month before
        ("0 0 1W * *", 2, [2]),
        ("0 0 31W * *", 5, [29]),  # a Sunday: not in the month after
        ("0 0 30W * *", 5, [29]),
        ("0 0 31W * *", 4, []),
        ("0 0 1,LW * *", 1, [1, 30]),
        ("0 0 * * 5L", 1, [30]),
        ("0 0 * * FRIL", 1, [30]),
        ("0 0 * * 7L", 1, [25]),
        ("0 0 * * 0L", 1, [25]),
        ("0 0 * * 1#2", 1, [12]),
        ("0 0 * * mon#1", 1, [5]),
        ("0 0 * * 7#1", 1, [4]),
        ("0 0 * * THU#5", 1, [29]),
        ("0 0 * * MON#5", 1, []),
        ("0 0 * * MON#1,FRIL,3", 1, [5, 7, 14, 21, 28, 30]),
        ("0 0 15W * 1#1", 1, [5, 15]),
    ],
)
def test_days_that_depend_on_the_month(expression, month, expected):
    assert days(expression, 2026, month) == expected


@pytest.mark.spec("R10")
@pytest.mark.parametrize(
    ("macro", "expression"),
    [
        ("@hourly", "0 * * * *"),
        ("@daily", "0 0 * * *"),
        ("@midnight", "0 0 * * *"),
        ("@weekly", "0 0 * * 0"),
        ("@monthly", "0 0 1 * *"),
        ("@yearly", "0 0 1 1 *"),
        ("@Annually", "0 0 1 1 *"),
        (" @daily\n", "0 0 * * *"),
    ],
)
def test_names_of_whole_expressions(macro, expression):
    assert parse(macro).resolved == parse(expression).resolved


def test_white_space_does_not_matter():
    assert parse("  5\t 4  * * *\n").resolved == parse("5 4 * * *").resolved


def test_an_expression_is_parsed_once():
    assert parse("5 4 * * *") is parse("5 4 * * *")


# Spread ------------------------------------------------------------------------------------------


@pytest.mark.spec("R106")
def test_h_is_stable_for_a_seed_and_spread_over_seeds():
    minutes = [values(parse("H * * * *", f"schedule {n}").minutes) for n in range(300)]

    assert all(len(minute) == 1 for minute in minutes)
    assert len({minute[0] for minute in minutes}) > 50
    parse.cache_clear()
    assert minutes == [values(parse("H * * * *", f"schedule {n}").minutes) for n in range(300)]
    # Stored schedules rely on it: another value here moves every one of them.
    assert parse("H H H H H", "morning digest").resolved == ("0", "55", "19", "17", "2", "6")


@pytest.mark.spec("R106")
@pytest.mark.parametrize("seed", ["", "a", "b", "\ud800", "a long seed with ünïcode"])
def test_h_stays_in_its_range(seed):
    parsed = parse("H(10-20) H(22-23) H * H", seed)
    assert values(parsed.minutes)[0] in range(10, 21)
    assert values(parsed.hours)[0] in (22, 23)
    # Every month has it.
    assert values(parsed.month_days)[0] in range(1, 29)
    steps = values(parse("H/15 * * * *", seed).minutes)
    assert len(steps) == 4
    assert steps == list(range(steps[0], 60, 15))
    assert values(parse("H(30-50)/10 * * * *", seed).minutes)[0] in range(30, 40)
    assert 3 in values(parse("h,3 * * * *", seed).minutes)


def test_fields_are_spread_each_for_itself():
    found = [parse("H H * * *", str(n)) for n in range(50)]
    assert len({(parsed.minutes, parsed.hours) for parsed in found}) > 40
    alike = [p for p in found if values(p.minutes)[0] % 24 == values(p.hours)[0]]
    assert len(alike) < 10


# Refusals ----------------------------------------------------------------------------------------


@pytest.mark.spec("R14")
@pytest.mark.parametrize(
    ("expression", "field", "offending", "position", "hint"),
    [
        ("60 * * * *", "minute", "60", 0, "0-59"),
        ("* 24 * * *", "hour", "24", 2, "0-23"),
        ("* * 0 * *", "day of month", "0", 4, "1-31"),
        ("* * 32 * *", "day of month", "32", 4, "1-31"),
        ("* * * 13 *", "month", "13", 6, "JAN-DEC"),
        ("* * * * 8", "day of week", "8", 8, "SUN-SAT"),
        ("60 * * * * *", "second", "60", 0, "0-59"),
        ("*/0 * * * *", "minute", "0", 2, "1 to 60"),
        ("*/61 * * * *", "minute", "61", 2, "interval"),
        ("* */25 * * *", "hour", "25", 4, "interval"),
        ("*/ * * * *", "minute", "", 2, "1 to 60"),
        ("5/15 * * * *", "minute", "5/15", 0, "write 5-59/15"),
        ("* 9/2 * * *", "hour", "9/2", 2, "write 9-23/2"),
        ("*/2/3 * * * *", "minute", "2/3", 2, "1 to 60"),
        ("30-10 * * * *", "minute", "30-10", 0, "write 30-59,0-10"),
        ("* * * NOV-FEB *", "month", "NOV-FEB", 6, "write NOV-12,1-FEB"),
        ("* * * * SAT-MON", "day of week", "SAT-MON", 8, "write SAT-6,0-MON"),
        ("* * * * 7-2", "day of week", "7-2", 8, "reversed"),
        ("1,,2 * * * *", "minute", "", 2, "missing"),
        ("1, * * * *", "minute", "", 2, "missing"),
        ("-5 * * * *", "minute", "", 0, "missing"),
        ("5- * * * *", "minute", "", 2, "missing"),
        ("1-2-3 * * * *", "minute", "2-3", 2, "not a value"),
        ("*-5 * * * *", "minute", "*", 0, "not a value"),
        ("** * * * *", "minute", "**", 0, "not a value"),
        ("a * * * *", "minute", "a", 0, "not a value"),
        ("MON * * * *", "minute", "MON", 0, "not a value"),
        ("* * * MON *", "month", "MON", 6, "not a value"),
        ("1.5 * * * *", "minute", "1.5", 0, "not a value"),
        ("+5 * * * *", "minute", "+5", 0, "not a value"),
        ("0x5 * * * *", "minute", "0x5", 0, "not a value"),
        ("99999 * * * *", "minute", "99999", 0, "not a value"),
        ("٣ * * * *", "minute", "٣", 0, "ASCII"),
        ("* 1٣ * * *", "hour", "٣", 3, "ASCII"),
        ("* * * * ＊", "day of week", "＊", 8, "ASCII"),
        ("*\0 * * * *", "minute", "\0", 1, "ASCII"),
        ("? * * * *", "minute", "?", 0, "write *"),
        ("* * ?,5 * *", "day of month", "?", 4, "not a value"),
        ("0 0 * * L", "day of week", "L", 8, "5L"),
        ("0 0 L-0 * *", "day of month", "0", 6, "1-30"),
        ("0 0 L-31 * *", "day of month", "31", 6, "1-30"),
        ("0 0 L-x * *", "day of month", "x", 6, "before the last"),
        ("0 0 L-30 FEB *", "day of month", "L-30", 4, "never fire"),
        ("0 0 9 1 1 * 1969", "year", "1969", 12, "1970-2099"),
        ("0 0 9 1 1 * 2027/2", "year", "2027/2", 12, "write 2027-2099/2"),
        ("0 0 9 1 1 * H", "year", "H", 12, "1970-2099"),
        ("0 0 0 29 2 * 2027", "day of month", "29", 6, "never fire"),
        ("0 9 1 1 * 2027", "day of week", "2027", 10, "a year needs seven fields"),
        ("0 0 W * *", "day of month", "W", 4, "not a value"),
        ("0 0 32W * *", "day of month", "32", 4, "1-31"),
        ("0 0 1-5W * *", "day of month", "5W", 6, "not a value"),
        ("0 0 5L * *", "day of month", "5L", 4, "not a value"),
        ("0 0 * * 8L", "day of week", "8", 8, "0-7"),
        ("0 0 * * 1#6", "day of week", "6", 10, "1-5"),
        ("0 0 * * 1#0", "day of week", "0", 10, "1-5"),
        ("0 0 * * #2", "day of week", "", 8, "missing"),
        ("0 0 1#2 * *", "day of month", "1#2", 4, "not a value"),
        ("H(5-2) * * * *", "minute", "H(5-2)", 0, "write H(2-5)"),
        ("H(5-99) * * * *", "minute", "99", 4, "0-59"),
        ("H/0 * * * *", "minute", "0", 2, "1 to 60"),
        ("H(5) * * * *", "minute", "H(5)", 0, "not a value"),
        ("HH * * * *", "minute", "HH", 0, "not a value"),
    ],
)
def test_a_field_that_makes_no_sense(expression, field, offending, position, hint):
    with pytest.raises(InvalidCron) as caught:
        parse(expression)

    error = caught.value
    assert (error.field, error.text, error.position) == (field, offending, position)
    assert error.expression == expression
    assert hint in str(error)
    assert field in str(error)
    assert isinstance(error, BadInput)


@pytest.mark.spec("R14")
@pytest.mark.parametrize(
    ("expression", "says"),
    [
        ("", "empty"),
        (" \t\n", "empty"),
        ("*", "1 field;"),
        ("* * * *", "4 fields"),
        ("* * * * * * * *", "8 fields"),
        ("@reboot", "where the process starts"),
        ("@every 5m", "interval"),
        ("@fortnightly", "@daily"),
        ("@daily *", "@daily"),
        ("* " * MAX_LENGTH, "too many"),
        ("9" * 10_000_000, "too many"),
    ],
)
def test_a_whole_that_makes_no_sense(expression, says):
    with pytest.raises(InvalidCron) as caught:
        parse(expression)

    assert caught.value.field == "expression"
    assert caught.value.hint
    assert says in str(caught.value)
    assert len(str(caught.value)) < 300


def test_the_longest_expression_that_says_everything_is_taken():
    written_out = [",".join(map(str, range(a, b))) for a, b in ((0, 60), (0, 60), (0, 24))]
    whole = " ".join([*written_out, ",".join(map(str, range(1, 32))), "*", "*"])
    assert parse(whole).seconds == parse("* * * * * *").seconds


@pytest.mark.spec("R15")
@pytest.mark.parametrize(
    "expression",
    ["0 0 30 2 *", "0 0 31 2,4,6,9,11 *", "0 0 31W 2 ?", "0 0 30-31 FEB *", "H H 31 4 *"],
)
def test_what_never_fires_is_refused_at_once(expression):
    began = time.process_time()
    with pytest.raises(InvalidCron, match="never fire") as caught:
        parse(expression)

    assert caught.value.field == "day of month"
    assert time.process_time() - began < 0.05


@pytest.mark.spec("R15", "R16")
@pytest.mark.parametrize(
    ("expression", "after", "expected"),
    [
        ("0 0 29 2 *", "2026-01-01", "2028-02-29 00:00:00"),
        ("0 0 29 2 *", "2096-03-01", "2104-02-29 00:00:00"),
        ("0 0 * 2 1#5", "2026-01-01", "2044-02-29 00:00:00"),
        ("0 0 30 2 1", "2026-01-01", "2026-02-02 00:00:00"),
        ("0 0 31 2,3 *", "2026-01-01", "2026-03-31 00:00:00"),
    ],
)
def test_what_fires_rarely_is_found(expression, after, expected):
    parsed = parse(expression)
    found = parsed.first_from(local(after))

    assert text(found) == expected
    assert found is not None
    assert parsed.last_until(local("2110-01-01")) is not None
    assert parsed.last_until(found) == found


@pytest.mark.spec("N78")
def test_seven_fields_end_with_years():
    parsed = parse("0 0 9 1 1,6 * 2025-2030/2,2040")
    found, second = list[str](), local("2026-01-01")
    while (tick := parsed.first_from(second)) is not None:
        found.append(text(tick)[:10])
        second = tick + 1

    assert found == [
        f"{day}-01" for day in "2027-01 2027-06 2029-01 2029-06 2040-01 2040-06".split()
    ]
    assert parsed.count(local("2026-01-01"), local("2090-01-01")) == len(found)
    assert text(parsed.last_until(local("2099-01-01"))) == "2040-06-01 09:00:00"
    assert text(parsed.last_until(local("2039-01-01"))) == "2029-06-01 09:00:00"
    assert parsed.last_until(local("2024-12-31")) is None
    assert parse("0 0 0 29 2 * 2029-2035").first_from(0) == local("2032-02-29")
    assert parse("0 0 0 29 2 * 2029-2035").last_until(local("2050-01-01")) == local("2032-02-29")
    assert parse("5 4 3 * * * *").resolved == parse("5 4 3 * * *").resolved
    # The years that cannot be written.
    assert parse("0 0 0 1 1 * *").first_from(local("2150-06-01")) == local("2151-01-01")


def refusal(expression: str) -> InvalidCron | None:
    try:
        parse(expression)
    except InvalidCron as error:
        return error
    return None


@given(st.text(max_size=30))
def test_any_text_parses_or_is_refused_properly(anything):
    if error := refusal(anything):
        assert error.hint
        assert error.field == "expression" or error.field.replace(" ", "-") in NAMES
        assert 0 <= error.position <= len(anything)


FIELD = st.text("*?0123456789,-/LW#HhMONsun()", min_size=1, max_size=6)
YEAR = st.sampled_from(["", " *", " 2027", " 1970-2099/7", " 2000", " 197"])


@given(st.builds("{}{}".format, st.lists(FIELD, min_size=5, max_size=6).map(" ".join), YEAR))
def test_anything_like_an_expression_parses_or_is_refused_properly(anything):
    if error := refusal(anything):
        assert anything[error.position :].startswith(error.text)
    else:
        assert parse(anything).first_from(0) is not None
