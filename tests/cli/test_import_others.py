"""The schedules of Celery and APScheduler, read as those read them: by objects that look alike."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from types import SimpleNamespace
from typing import Any, NamedTuple
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from duly import Cron
from duly.cli.imports import from_apscheduler as apscheduler
from duly.cli.imports import from_celery as celery_beat
from duly.cli.imports.entry import Entry, NotImportable
from duly.cli.imports.from_celery import Refused, beat_of, read_beat

START = datetime(2026, 2, 23, tzinfo=UTC)
DAYS = 70


def crontab(**given_: Any) -> SimpleNamespace:
    """What remains of a crontab of Celery that matters here."""
    every = dict.fromkeys(celery_beat.FIELDS, "*") | given_
    return SimpleNamespace(**{f"_orig_{name}": value for name, value in every.items()})


def days_of(expression: str) -> list[str]:
    """The dates on which it fires."""
    start = int(START.timestamp() * 1000)
    ticks = Cron(expression).between(start, start + DAYS * 86_400_000)
    return sorted({f"{datetime.fromtimestamp(tick / 1000, UTC):%m-%d}" for tick in ticks})


def dates(matches: Any) -> list[str]:
    every = [START + timedelta(days=number) for number in range(DAYS)]
    return [f"{day:%m-%d}" for day in every if matches(day)]


# Celery ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given_", "expression"),
    [
        ({}, "* * * * *"),
        ({"minute": 0, "hour": 7}, "0 7 * * *"),
        ({"minute": "*/15"}, "*/15 * * * *"),
        ({"minute": {0, 30}, "hour": [8, 9, 10]}, "0,30 8-10 * * *"),
        ({"minute": 0, "hour": "22-2"}, "0 0-2,22,23 * * *"),
        ({"minute": 0, "hour": "*/3,8-17"}, "0 */3,8-17 * * *"),
        ({"minute": "0", "hour": "0", "day_of_week": "sunday"}, "0 0 * * 0"),
        ({"minute": 0, "hour": 0, "day_of_week": "fri-mon"}, "0 0 * * 0,1,5,6"),
        ({"minute": 0, "hour": 0, "day_of_week": "mon-fri"}, "0 0 * * mon-fri"),
        ({"minute": 0, "hour": 0, "day_of_week": "*/2"}, "0 0 * * */2"),
        ({"minute": 0, "hour": 0, "day_of_week": "0-6", "day_of_month": "1"}, "0 0 1 * *"),
        ({"minute": 0, "hour": 0, "day_of_month": "1-7", "month_of_year": "*/3"}, "0 0 1-7 */3 *"),
    ],
)
def test_a_crontab_of_celery(given_: dict[str, Any], expression: str) -> None:
    assert celery_beat.expression_of(crontab(**given_)) == expression


@pytest.mark.parametrize(
    "given_",
    [
        {"day_of_week": 1, "day_of_month": "1-7"},
        {"day_of_week": 7},
        {"minute": 60},
        {"minute": "5/15"},
        {"minute": "*/0"},
        {"minute": "x"},
        {"hour": []},
    ],
)
def test_a_crontab_that_duly_has_not(given_: dict[str, Any]) -> None:
    with pytest.raises(Refused):
        celery_beat.expression_of(crontab(**given_))


@given(
    day=st.sampled_from(["*", "*/3", "1", "28-3", "10-20/4", "1-31"]),
    weekday=st.sampled_from(["*", "sun", "5-1", "*/2", "0-6", "mon,wed", 6]),
)
@settings(max_examples=60, deadline=None)
def test_both_days_of_celery_have_to_match(day: str, weekday: Any) -> None:
    try:
        expression = celery_beat.expression_of(
            crontab(minute=0, hour=3, day_of_month=day, day_of_week=weekday)
        )
    except Refused:
        return
    in_month = celery_beat.expand(day, 3)
    in_week = celery_beat.expand(weekday, 5)
    assert days_of(expression) == dates(
        lambda date: date.day in in_month and date.isoweekday() % 7 in in_week
    )


@pytest.mark.spec("N86")
def test_a_beat_schedule() -> None:
    conf = SimpleNamespace(
        timezone="Europe/Istanbul",
        beat_schedule={
            "digest": {
                "task": "shop.tasks.digest",
                "schedule": crontab(minute=0, hour=9),
                "args": ("tech",),
                "kwargs": {"tone": "dry"},
                "options": {"queue": "mail", "expires": 60, "countdown": 3},
            },
            "poll": {"task": "poll", "schedule": 30.0},
            "tidy": {
                "task": "tidy",
                "schedule": timedelta(hours=2),
                "options": {"expires": timedelta(minutes=5), "queue": None},
            },
            "freq": {"task": "x", "schedule": SimpleNamespace(run_every=timedelta(minutes=5))},
            "text": {"task": "x", "schedule": "0 4 * * 1", "options": {"expires": START}},
            "dawn": {"task": "x", "schedule": SimpleNamespace(event="dawn_civil", lat=1, lon=2)},
            "none": {"schedule": 5},
        },
    )
    beat = beat_of(SimpleNamespace(conf=conf))
    assert beat is not None
    assert beat.tz == "Europe/Istanbul"
    found = {each.where: each for each in read_beat(beat.schedule, beat.tz)}
    digest = found["entry digest"]
    assert isinstance(digest, Entry)
    assert digest.times == {"cron": "0 9 * * *", "tz": "Europe/Istanbul"}
    assert (digest.args, digest.kwargs) == (("tech",), {"tone": "dry"})
    assert digest.options == {"queue": "mail", "expires": 60}
    assert digest.lost == ("option countdown",)
    tidy, text = found["entry tidy"], found["entry text"]
    assert isinstance(tidy, Entry)
    assert (tidy.options, tidy.lost) == ({"expires": 300.0}, ())
    assert isinstance(text, Entry)
    assert (text.options, text.lost) == ({}, ("option expires",))
    times = {where: each.times for where, each in found.items() if isinstance(each, Entry)}
    assert times["entry poll"] == {"every_ms": 30_000}
    assert times["entry tidy"] == {"every_ms": 7_200_000}
    assert times["entry freq"] == {"every_ms": 300_000}
    assert times["entry text"]["cron"] == "0 4 * * 1"
    refused = {
        where: each.reason for where, each in found.items() if isinstance(each, NotImportable)
    }
    assert "not a crontab or an interval" in refused["entry dawn"]
    assert refused["entry none"] == "it has no task"


def test_what_has_no_beat_schedule() -> None:
    assert beat_of(SimpleNamespace()) is None
    assert beat_of({"beat_schedule": {"x": {}}, "timezone": ZoneInfo("Asia/Tokyo")}) == (
        {"x": {}},
        "Asia/Tokyo",
    )
    assert beat_of({"x": {}}) == ({"x": {}}, None)


# APScheduler -------------------------------------------------------------------------------------


class Field(NamedTuple):
    name: str
    text: str

    def __str__(self) -> str:
        return self.text


USUAL = {
    "year": "*",
    "month": "*",
    "day": "*",
    "week": "*",
    "day_of_week": "*",
    "hour": "0",
    "minute": "0",
    "second": "0",
}


@pytest.mark.parametrize(
    ("given_", "expression"),
    [
        ({}, "0 0 * * *"),
        ({"day_of_week": "0"}, "0 0 * * 1"),  # Monday
        ({"day_of_week": "6"}, "0 0 * * 0"),  # Sunday
        ({"day_of_week": "mon-fri"}, "0 0 * * 1-5"),
        ({"day_of_week": "0-6"}, "0 0 * * *"),
        ({"day_of_week": "*/2"}, "0 0 * * 0,1,3,5"),  # Monday, Wednesday, Friday, Sunday
        ({"day_of_week": "sat,sun"}, "0 0 * * 0,6"),
        ({"day": "last"}, "0 0 L * *"),
        ({"day": "2nd fri"}, "0 0 ? * 5#2"),
        ({"day": "last sun"}, "0 0 ? * 0L"),
        ({"day": "1,2nd fri"}, "0 0 1 * 5#2"),
        ({"day": "1-31"}, "0 0 * * *"),
        ({"minute": "5/15"}, "5,20,35,50 0 * * *"),
        ({"minute": "*/5", "hour": "*"}, "*/5 * * * *"),
        ({"hour": "8-18/2"}, "0 8-18/2 * * *"),
        ({"month": "jan-mar"}, "0 0 * jan-mar *"),
        ({"year": "2027-2030", "hour": "9"}, "0 0 9 * * * 2027-2030"),
        ({"second": "*/10", "minute": "*", "hour": "*"}, "*/10 * * * * *"),
    ],
)
def test_a_cron_of_apscheduler(given_: dict[str, str], expression: str) -> None:
    found = apscheduler.expression_of(USUAL | given_)
    assert found == expression
    assert Cron(found).next_after(0) is not None


@pytest.mark.parametrize(
    "given_",
    [
        {"year": "1969"},
        {"week": "*/2"},
        {"day": "1-7", "day_of_week": "mon"},
        {"day": "2nd fri", "day_of_week": "mon"},
        {"hour": "24"},
        {"minute": "soon"},
    ],
)
def test_a_cron_that_duly_has_not(given_: dict[str, str]) -> None:
    with pytest.raises(Refused):
        apscheduler.expression_of(USUAL | given_)


@given(
    day=st.sampled_from(["*", "*/3", "1", "10-20/4", "1-31"]),
    weekday=st.sampled_from(["*", "0", "6", "4-6", "sun", "*/2", "0-6", "mon,wed"]),
)
@settings(max_examples=60, deadline=None)
def test_both_days_of_apscheduler_have_to_match(day: str, weekday: str) -> None:
    try:
        expression = apscheduler.expression_of(USUAL | {"day": day, "day_of_week": weekday})
    except Refused:
        return
    names = "mon tue wed thu fri sat sun".split()
    in_month = {"*/3": range(1, 32, 3), "1": [1], "10-20/4": [10, 14, 18]}.get(day, range(1, 32))
    in_week = {
        "0": [0],
        "6": [6],
        "4-6": [4, 5, 6],
        "sun": [names.index("sun")],
        "*/2": [0, 2, 4, 6],
        "mon,wed": [0, 2],
    }.get(weekday, range(7))
    assert days_of(expression) == dates(
        lambda date: date.day in in_month and date.weekday() in in_week
    )


def job(name: str, trigger: Any, **more: Any) -> SimpleNamespace:
    usual = {"id": name, "name": name, "func_ref": f"jobs:{name}", "args": (), "kwargs": {}}
    return SimpleNamespace(**usual | {"trigger": trigger} | more)


def test_the_jobs_of_a_scheduler() -> None:
    berlin = ZoneInfo("Europe/Berlin")
    fields = [Field(name, text) for name, text in (USUAL | {"hour": "9"}).items()]
    ends = datetime(2030, 1, 1, tzinfo=berlin)
    cron = SimpleNamespace(
        fields=fields, timezone=berlin, start_date=None, end_date=ends, jitter=30
    )
    begins = datetime(2026, 1, 1, tzinfo=timezone(timedelta(hours=1)))
    interval = SimpleNamespace(interval=timedelta(minutes=5), start_date=begins, end_date=None)
    date = SimpleNamespace(run_date=ends)
    naive = SimpleNamespace(run_date=datetime(2030, 1, 1))  # noqa: DTZ001
    scheduler = SimpleNamespace(
        get_jobs=lambda: [
            job("digest", cron, args=("tech",)),
            job("poll", interval, next_run_time=None),
            job("poll", interval, id="0" * 32),
            job("once", date, next_run_time=ends),
            job("naive", naive),
            job("either", SimpleNamespace(triggers=[cron, date])),
        ]
    )
    found = list(apscheduler.read_jobs(scheduler))
    digest, poll, other, once, *refused = found
    assert isinstance(digest, Entry)
    assert digest.times == {"cron": "0 9 * * *", "tz": "Europe/Berlin"}
    assert digest.made_with == {"end_at": "2030-01-01T00:00:00+01:00", "jitter": 30.0}
    assert digest.args == ("tech",)
    assert isinstance(poll, Entry)
    assert poll.times == {"every_ms": 300_000}
    assert poll.made_with == {"anchor_at": "2026-01-01T00:00:00+01:00", "enabled": False}
    # Ids that nobody has chosen change, so these go by what they call.
    assert [each.key for each in (poll, other) if isinstance(each, Entry)] == ["poll", "jobs:poll"]
    assert isinstance(once, Entry)
    assert once.times == {"at": "2030-01-01T00:00:00+01:00"}
    reasons = [each.reason for each in refused if isinstance(each, NotImportable)]
    assert ["no time zone" in reasons[0], "not a cron" in reasons[1]] == [True, True]


def test_jobs_of_one_function_keep_their_keys_in_whatever_order_they_come() -> None:
    often, seldom = (SimpleNamespace(interval=timedelta(minutes=n)) for n in (5, 7))
    jobs = [
        job("poll", often, id="a" * 32, args=(1,)),
        job("poll", often, id="b" * 32, args=(2,)),
        job("poll", seldom, id="c" * 32, args=(1,)),
        job("poll", seldom, id="d" * 32, kwargs={"page": 1}),
        job("tidy", often, id="e" * 32),
    ]

    def keys(order: list[SimpleNamespace]) -> dict[str, str]:
        found = apscheduler.read_jobs(SimpleNamespace(get_jobs=lambda: order))
        return {each.where: each.key for each in found if isinstance(each, Entry)}

    given_keys = keys(jobs)
    assert len(set(given_keys.values())) == 5
    assert given_keys["job " + "e" * 32] == "jobs:tidy"
    assert keys(jobs[::-1]) == given_keys
    # Those that are alike are told apart by a number, and it does not matter which is which.
    alike = keys([job("poll", often, id=letter * 32) for letter in "ab"])
    first, second = sorted(alike.values())
    assert second == f"{first}-2"
