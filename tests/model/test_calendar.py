"""A calendar judges the date in its own zone, knows its end, and can move a tick."""

import datetime as dt
import json
from zoneinfo import ZoneInfo

import holidays as package
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from duly.calendars.holidays import holidays
from duly.errors import BadInput, InvalidCalendar, MissingExtra, UnknownZone
from duly.model.calendar import MAX_DATES, SEEDS, Calendar, shift
from duly.model.yearly import BAYRAM, RULES

ZONES = ["UTC", "America/New_York", "Europe/Istanbul", "Asia/Kathmandu", "Pacific/Apia"]
YEARS = st.datetimes(dt.datetime(2000, 1, 1), dt.datetime(2037, 12, 31))  # noqa: DTZ001


def at(text: str, tz: str = "UTC") -> int:
    """An instant, from local time."""
    moment = dt.datetime.fromisoformat(text).replace(tzinfo=ZoneInfo(tz))
    return round(moment.timestamp() * 1000)


def local(instant: int, tz: str) -> str:
    return dt.datetime.fromtimestamp(instant / 1000, ZoneInfo(tz)).isoformat(timespec="minutes")


# What it allows -----------------------------------------------------------------------------------


@pytest.mark.spec("R112")
def test_a_date_that_is_listed_is_skipped():
    closed = Calendar("closed", "skip_dates", dates=["2026-07-03"])
    assert not closed.allows(at("2026-07-03T12:00"))
    assert closed.allows(at("2026-07-04T12:00"))


@pytest.mark.spec("R113")
def test_only_listed_dates_are_allowed_and_none_if_none_is_listed():
    open_days = Calendar("open", "only_dates", dates=["2026-07-03"])
    assert open_days.allows(at("2026-07-03T12:00"))
    assert not open_days.allows(at("2026-07-04T12:00"))
    assert not Calendar("never", "only_dates").allows(at("2026-07-03T12:00"))


@pytest.mark.spec("R114")
def test_today_is_the_date_in_the_calendars_zone():
    tick = at("2026-07-04T02:00")
    assert not Calendar("ny", "skip_dates", tz="America/New_York", dates=["2026-07-03"]).allows(
        tick
    )
    assert Calendar("utc", "skip_dates", dates=["2026-07-03"]).allows(tick)


@pytest.mark.spec("R115")
@given(YEARS, st.sampled_from(ZONES))
@example(dt.datetime(2011, 12, 29), "Pacific/Apia")  # noqa: DTZ001
@example(dt.datetime(2026, 3, 8), "America/New_York")  # noqa: DTZ001
def test_the_decision_flips_at_midnight_in_the_calendars_zone(moment, tz):
    day = moment.date()
    calendar = Calendar("one", "skip_dates", tz=tz, dates=[day])
    begin = dt.datetime.combine(day, dt.time(), ZoneInfo(tz)).timestamp() * 1000
    if dt.datetime.fromtimestamp(begin / 1000, ZoneInfo(tz)).date() != day:
        return  # Samoa had no 30 December 2011.
    assert calendar.allows(int(begin) - 1)
    assert not calendar.allows(int(begin))
    end = int(begin)
    while dt.datetime.fromtimestamp(end / 1000, ZoneInfo(tz)).date() == day:
        end += 3_600_000 // 4
    assert calendar.allows(end)
    assert not calendar.allows(end - 1)


@given(YEARS, st.sampled_from(ZONES), st.sampled_from(["skip_dates", "only_dates"]))
def test_the_two_kinds_are_opposites_and_agree_with_zoneinfo(moment, tz, kind):
    instant = at(moment.isoformat())
    days = [moment.date() + dt.timedelta(days=n) for n in (-1, 1)]
    here = dt.datetime.fromtimestamp(instant / 1000, ZoneInfo(tz)).date()
    verdict = Calendar("c", kind, tz=tz, dates=days).verdict(instant)
    assert verdict.day == here
    assert verdict.listed == (here in days)
    assert verdict.allowed == ((here in days) == (kind == "only_dates"))


def test_a_verdict_says_which_day_it_is():
    us = SEEDS["us-federal-holidays-2026"]
    holiday = us.verdict(at("2026-07-04T02:00"))
    assert holiday.detail == (
        "2026-07-03 is Independence Day (observed) in us-federal-holidays-2026"
    )
    assert us.verdict(at("2026-07-06T12:00")).detail == (
        "2026-07-06 is not in us-federal-holidays-2026"
    )
    closed = Calendar("closed", "skip_dates", dates=["2026-07-03"])
    assert closed.verdict(at("2026-07-03T02:00")).detail == "2026-07-03 is listed in closed"


def test_a_calendar_whose_zone_is_gone_allows_nothing_and_says_why():
    stored = Calendar("c", "skip_dates").encode() | {"tz": "Europe/Atlantis"}
    verdict = Calendar.decode(stored).verdict(at("2026-07-03T12:00"))
    assert not verdict.allowed
    assert "Europe/Atlantis" in verdict.detail
    assert shift(at("2026-07-03T12:00"), "UTC", Calendar.decode(stored)) is None


# What is refused ----------------------------------------------------------------------------------


@pytest.mark.spec("R118")
@pytest.mark.parametrize(
    ("wrong", "field", "named"),
    [
        ({"dates": ["2026-07-03", "2026-7-4"]}, "dates[1]", "2026-7-4"),
        ({"dates": ["2026-02-30"]}, "dates[0]", "2026-02-30"),
        ({"dates": ["20260703"]}, "dates[0]", "20260703"),
        ({"dates": ["2026-W01-1"]}, "dates[0]", "2026-W01-1"),
        ({"dates": ["٢٠٢٦-٠٧-٠٣"]}, "dates[0]", "٢٠٢٦"),
        ({"dates": ["2026-07-03\n"]}, "dates[0]", "2026-07-03"),
        ({"dates": [20260703]}, "dates[0]", "20260703"),
        ({"dates": [dt.datetime(2026, 7, 3, tzinfo=dt.UTC)]}, "dates[0]", "time of day"),
        ({"dates": "2026-07-03"}, "dates", "list"),
        ({"dates": None}, "dates", "list"),
        ({"dates": {"2026-07-03": None}}, "dates[0]", "label"),
        ({"dates": {"2026-07-03": "a\0b"}}, "dates[0]", "label"),
        ({"kind": "skip"}, "kind", "skip_dates"),
        ({"kind": None}, "kind", "only_dates"),
        ({"tz": "Europe/Istambul"}, "tz", "Istambul"),
        ({"tz": "../etc/passwd"}, "tz", "passwd"),
        ({"tz": 3}, "tz", "3"),
        ({"name": ""}, "name", "1 to 200"),
        ({"name": "a\nb"}, "name", "printable"),
        ({"rules": ["moon"]}, "rules", "moon"),
        ({"rules": [[]]}, "rules", "the rules are us-federal-holidays"),
        ({"rules": "weekends"}, "rules", "list"),
    ],
)
def test_a_bad_field_is_refused_by_name(wrong, field, named):
    fields = {"name": "c", "kind": "skip_dates", "tz": "UTC"} | wrong
    with pytest.raises(BadInput) as refused:
        Calendar(**fields)
    assert isinstance(refused.value, InvalidCalendar | UnknownZone)
    assert refused.value.field == field
    assert named in str(refused.value)


def test_the_number_of_dates_is_bounded_and_endless_ones_are_not_read():
    days = (dt.date(1990, 1, 1) + dt.timedelta(days=n) for n in range(10**9))
    with pytest.raises(InvalidCalendar, match="10,000"):
        Calendar("c", "skip_dates", dates=days)
    assert MAX_DATES == 10_000


def test_dates_are_kept_once_and_in_order():
    given_twice = Calendar(
        "c", "skip_dates", dates=["2026-07-04", dt.date(2026, 7, 3), "2026-07-04"]
    )
    assert list(given_twice.dates) == [dt.date(2026, 7, 3), dt.date(2026, 7, 4)]


# As data ------------------------------------------------------------------------------------------


@given(
    st.dictionaries(st.dates(), st.text(st.characters(categories=["L", "N"]), max_size=9)),
    st.sampled_from(ZONES),
    st.lists(st.sampled_from(sorted(RULES)), unique=True),
)
def test_what_is_encoded_comes_back(dates, tz, rules):
    calendar = Calendar("c", "only_dates", tz=tz, dates=dates, rules=rules)
    back = Calendar.decode(json.loads(json.dumps(calendar.encode())))
    assert back == calendar
    assert hash(back) == hash(calendar)
    assert back.encode() == calendar.encode()


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"colour": "red"}, "colour"),
        ({"kind": 7}, "kind"),
        ({"dates": {"3 July": ""}}, "dates[0]"),
        ({"dates": 3}, "dates"),
        ({"tz": None}, "tz"),
    ],
)
def test_stored_nonsense_is_refused(change, field):
    with pytest.raises(InvalidCalendar) as refused:
        Calendar.decode(Calendar("c", "skip_dates").encode() | change)
    assert refused.value.field == field


def test_a_missing_field_is_named():
    stored = Calendar("c", "skip_dates").encode()
    del stored["rules"]
    with pytest.raises(InvalidCalendar, match="rules: missing"):
        Calendar.decode(stored)
    with pytest.raises(InvalidCalendar, match="object"):
        Calendar.decode([])


def test_a_calendar_cannot_be_changed():
    calendar = Calendar("c", "skip_dates", dates=["2026-07-03"])
    with pytest.raises(AttributeError):
        calendar.tz = "UTC"  # type: ignore[misc]
    with pytest.raises(TypeError, match="assignment"):
        calendar.dates[dt.date(2026, 7, 4)] = ""  # type: ignore[index]


# Its end ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["skip_dates", "only_dates"])
def test_a_dated_calendar_warns_for_thirty_days_and_is_then_exhausted(kind):
    last = dt.date(2026, 12, 25)
    calendar = Calendar("c", kind, tz="America/New_York", dates=["2026-01-01", last])
    ny = "America/New_York"
    assert calendar.last_date() == last
    assert calendar.runs_out(at("2026-11-24T23:59", ny)) is None
    assert calendar.runs_out(at("2026-11-25T00:00", ny)) == last
    assert calendar.runs_out(at("2026-11-24T23:59", ny), days=31) == last
    assert not calendar.exhausted(at("2026-12-25T23:59", ny))
    assert calendar.covers(at("2026-12-25T23:59", ny))
    assert calendar.exhausted(at("2026-12-26T00:00", ny))
    assert not calendar.covers(at("2026-12-26T00:00", ny))
    assert calendar.runs_out(at("2027-06-01T00:00", ny)) == last


def test_rules_for_every_year_never_run_out():
    far = at("2900-01-01T00:00")
    for calendar in (
        SEEDS["us-federal-holidays"],
        SEEDS["weekends"],
        Calendar("mine", "skip_dates", dates=["2026-01-02"], rules=["us-federal-holidays"]),
    ):
        assert calendar.last_date() is None
        assert calendar.runs_out(far) is None
        assert not calendar.exhausted(far)


def test_turkish_religious_holidays_are_known_until_a_year_and_run_out_then():
    turkish = SEEDS["tr-public-holidays"]
    last = turkish.last_date()
    assert last == dt.date(max(BAYRAM), 12, 31)
    assert turkish.runs_out(at("2032-12-15T00:00")) == last
    assert turkish.exhausted(at("2033-01-01T00:00"))
    both = Calendar("both", "skip_dates", rules=["tr-public-holidays"], dates=["2040-01-01"])
    assert both.last_date() == dt.date(2040, 1, 1)


def test_a_calendar_that_lists_nothing_has_nothing_to_run_out_of():
    assert not Calendar("c", "skip_dates").exhausted(at("2026-01-01T00:00"))
    assert Calendar("c", "only_dates").runs_out(at("2026-01-01T00:00")) is None


# The seeds ----------------------------------------------------------------------------------------


@pytest.mark.spec("R120")
def test_the_three_dated_seeds_have_their_dates():
    us = SEEDS["us-federal-holidays-2026"]
    assert (us.kind, us.tz, us.rules) == ("skip_dates", "America/New_York", ())
    assert [day.isoformat() for day in us.dates] == [
        "2026-01-01",
        "2026-01-19",
        "2026-02-16",
        "2026-05-25",
        "2026-06-19",
        "2026-07-03",
        "2026-09-07",
        "2026-10-12",
        "2026-11-11",
        "2026-11-26",
        "2026-12-25",
    ]
    turkish = SEEDS["tr-public-holidays-2026"]
    assert (turkish.kind, turkish.tz, turkish.rules) == ("skip_dates", "Europe/Istanbul", ())
    assert [day.isoformat() for day in turkish.dates] == [
        "2026-01-01",
        "2026-03-20",
        "2026-03-21",
        "2026-03-22",
        "2026-04-23",
        "2026-05-01",
        "2026-05-19",
        "2026-05-27",
        "2026-05-28",
        "2026-05-29",
        "2026-05-30",
        "2026-07-15",
        "2026-08-30",
        "2026-10-29",
    ]
    weekends = SEEDS["weekends-only"]
    assert (weekends.kind, weekends.tz, weekends.rules) == ("only_dates", "UTC", ())
    days = [dt.date(2026, 1, 1) + dt.timedelta(days=n) for n in range(365)]
    assert list(weekends.dates) == [day for day in days if day.isoweekday() in (6, 7)]
    assert len(weekends.dates) == 104


def test_an_evergreen_seed_agrees_with_its_dated_twin():
    twins = {
        "us-federal-holidays-2026": "us-federal-holidays",
        "tr-public-holidays-2026": "tr-public-holidays",
        "weekends-only": "weekends",
    }
    assert set(SEEDS) == {*twins, *twins.values()}
    for dated, evergreen in twins.items():
        assert SEEDS[evergreen].dates == {}
        assert not dated.startswith(evergreen) or SEEDS[dated].kind == SEEDS[evergreen].kind
        for n in range(365):
            noon = at("2026-01-01T12:00", SEEDS[dated].tz) + n * 86_400_000
            assert SEEDS[dated].verdict(noon)[2:] == SEEDS[evergreen].verdict(noon)[2:]


def test_federal_holidays_of_every_year_are_those_of_the_holidays_package():
    for year in range(2022, 2100):
        theirs = package.country_holidays("US", years=[year, year + 1])
        # The package lists a holiday at the weekend beside the day on which it is observed.
        observed = {
            day
            for day, name in theirs.items()
            if day.year == year and (day.weekday() < 5 or "observed" in name)
        }
        assert set(RULES["us-federal-holidays"].days(year)) == observed, year


def test_new_years_day_on_a_saturday_is_observed_in_the_year_before():
    days = RULES["us-federal-holidays"].days(2027)
    assert days[dt.date(2027, 12, 31)] == "New Year's Day (observed)"
    assert dt.date(2028, 1, 1) not in RULES["us-federal-holidays"].days(2028)


def test_turkish_holidays_are_those_of_the_holidays_package():
    for year in BAYRAM:
        theirs = package.country_holidays("TR", years=year)
        assert set(RULES["tr-public-holidays"].days(year)) == set(theirs), year


def test_two_holidays_on_one_day_are_both_named():
    assert RULES["tr-public-holidays"].days(2023)[dt.date(2023, 4, 23)] == (
        "National Sovereignty and Children's Day, Ramazan Bayramı"
    )


@pytest.mark.parametrize("rule", sorted(RULES))
@pytest.mark.parametrize("year", [1, 1583, 9999])
def test_a_rule_has_an_answer_for_every_year_that_there_is(rule, year):
    assert all(day.year == year for day in RULES[rule].days(year))


# Moving a tick ------------------------------------------------------------------------------------

WEEKDAYS_ONLY = Calendar(
    "no weekends", "skip_dates", tz="America/New_York", dates=SEEDS["weekends-only"].dates
)
NY = "America/New_York"


@pytest.mark.parametrize(
    ("tick", "direction", "moved"),
    [
        ("2026-07-03T09:00", "next", "2026-07-03T09:00"),  # A Friday: stays.
        ("2026-07-04T09:00", "next", "2026-07-06T09:00"),
        ("2026-07-04T09:00", "previous", "2026-07-03T09:00"),
        ("2026-07-04T09:00", "nearest", "2026-07-03T09:00"),
        ("2026-07-05T09:00", "nearest", "2026-07-06T09:00"),
        ("2026-03-07T09:00", "next", "2026-03-09T09:00"),  # Over the change to summer time.
        ("2026-11-01T09:00", "previous", "2026-10-30T09:00"),  # Back over the change to winter.
    ],
)
def test_a_tick_moves_to_a_business_day_at_the_same_local_time(tick, direction, moved):
    assert shift(at(tick, NY), NY, WEEKDAYS_ONLY, direction) == at(moved, NY)


def test_the_later_of_two_equally_near_dates_is_taken():
    closed = Calendar("closed", "skip_dates", dates=["2026-07-08"])
    assert shift(at("2026-07-08T09:00"), "UTC", closed, "nearest") == at("2026-07-09T09:00")


def test_a_tick_moved_into_a_gap_fires_at_its_end_and_into_a_repeated_hour_the_first_time():
    closed = Calendar("closed", "skip_dates", tz=NY, dates=["2026-03-07", "2026-10-31"])
    gap = shift(at("2026-03-07T02:30", NY), NY, closed)
    assert gap == at("2026-03-08T07:00")
    repeated = shift(at("2026-10-31T01:30", NY), NY, closed)
    assert repeated == at("2026-11-01T05:30")


def test_a_tick_is_not_moved_to_a_day_that_was_lost():
    closed = Calendar("closed", "skip_dates", tz="Pacific/Apia", dates=["2011-12-29"])
    moved = shift(at("2011-12-29T09:00", "Pacific/Apia"), "Pacific/Apia", closed)
    assert moved is not None
    assert local(moved, "Pacific/Apia").startswith("2011-12-31T09:00")


def test_the_calendars_zone_decides_where_the_schedules_differs():
    closed = Calendar("closed", "skip_dates", tz=NY, dates=["2026-07-03"])
    moved = shift(at("2026-07-04T02:00"), "UTC", closed)
    assert moved == at("2026-07-05T02:00")


@pytest.mark.parametrize("direction", ["next", "previous", "nearest"])
def test_a_month_without_an_allowed_date_is_too_far(direction):
    assert shift(at("2026-07-03T09:00"), "UTC", Calendar("never", "only_dates"), direction) is None
    far = [dt.date(2026, 7, 3) + dt.timedelta(days=n) for n in (-31, 31)]
    reachable = Calendar("far", "only_dates", dates=far)
    assert shift(at("2026-07-03T09:00"), "UTC", reachable, direction) is not None
    assert shift(at("2026-07-03T09:00") + 86_400_000 * 63, "UTC", reachable, direction) is None


def test_a_tick_keeps_its_milliseconds_and_an_unknown_direction_is_refused():
    closed = Calendar("closed", "skip_dates", dates=["2026-07-03"])
    assert shift(at("2026-07-03T09:00") + 7, "UTC", closed) == at("2026-07-04T09:00") + 7
    with pytest.raises(InvalidCalendar, match="sideways"):
        shift(0, "UTC", closed, "sideways")  # type: ignore[arg-type]


@given(YEARS, st.sampled_from(ZONES), st.sampled_from(ZONES), st.sampled_from(["next", "previous"]))
def test_a_moved_tick_is_allowed_and_nothing_nearer_is(moment, tz, calendar_tz, direction):
    instant = at(moment.replace(microsecond=0).isoformat())
    busy = Calendar("c", "skip_dates", tz=calendar_tz, rules=["weekends"])
    moved = shift(instant, tz, busy, direction)
    assert moved is not None
    assert busy.allows(moved)
    assert abs(moved - instant) <= 5 * 86_400_000
    assert (moved == instant) == busy.allows(instant)
    if moved != instant:
        assert (moved > instant) == (direction == "next")


# The holidays package -----------------------------------------------------------------------------


def test_holidays_of_any_country_and_year_make_a_calendar():
    german = holidays("de", [2026, 2027], subdivision="BY")
    assert german == sorted(german)
    assert (dt.date(2026, 1, 6), "Epiphany") in german
    calendar = Calendar("by", "skip_dates", tz="Europe/Berlin", dates=dict(german))
    assert not calendar.allows(at("2027-01-06T12:00"))
    assert (dt.date(2026, 1, 6), "Epiphany") not in holidays("DE", 2026)


@pytest.mark.parametrize(
    ("arguments", "field"),
    [
        (("XX", 2026), "country"),
        (("Turkey", 2026), "country"),
        (("DE", 2026, "ZZ"), "subdivision"),
        (("DE", []), "years"),
        (("DE", range(200)), "years"),
        (("DE", 0), "years"),
        (("DE", ["2026"]), "years"),
    ],
)
def test_unknown_places_and_years_are_refused(arguments, field):
    with pytest.raises(InvalidCalendar) as refused:
        holidays(*arguments)
    assert refused.value.field == field


def test_without_the_package_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "holidays", None)
    with pytest.raises(MissingExtra, match=r"duly\[holidays\]"):
        holidays("TR", 2026)
