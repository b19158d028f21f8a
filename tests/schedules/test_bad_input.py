"""The verbs of schedules and calendars accept their arguments or refuse them with a duly error."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any, get_type_hints

import pytest

from duly import Ctx, Duly, DulyError, Expect, ManualClock
from duly.calendars.verbs import Calendars
from duly.calendars.views import CalendarChanges, CalendarContent
from duly.errors import StoreError
from duly.schedules.define import ScheduleOptions
from duly.schedules.verbs import Schedules
from tests.jobs.support import Database
from tests.schedules.support import dump, utc

HALF = "\ud800"
"""Half a surrogate pair: a str that is no text."""
NUL = "a\0b"
NAN = float("nan")
LONG = "x" * 100_000
HUGE = 10**30
NAIVE = utc(2026, 7, 1).replace(tzinfo=None)
ANYTHING: Sequence[Any] = [5, 1.5, NAN, [], {}, b"x", object(), HALF, NUL]

TEXT = [*ANYTHING, True]
NAME = [*TEXT, "", LONG]
FLAG = [value for value in ANYTHING if value is not True] + [0, "true", timedelta(1)]
COUNT = [*ANYTHING[1:], 0, -1, True, "5", HUGE, timedelta(1)]
TIME = [*ANYTHING[1:], True, HUGE, -HUGE, utc(9999, 12, 31), utc(1, 1, 1), NAIVE]
LENGTH = [*ANYTHING[2:], -1, True, HUGE, float("inf"), timedelta(days=10**6), utc(2026, 7, 1)]
ZONE = [*TEXT, "Nowhere/At_all", "../etc", LONG]
WORD = [*TEXT, "whatever", LONG]
MAPPING = [5, NAN, b"x", object(), HALF, "x", [5], {5: 1}, {HALF: 1}, {"a": object()}]
CALL = [*ANYTHING, print, True]
DAY = [5, NAN, object(), HALF, "2026-02-30", NAIVE, LONG]
DATES = [5, NAN, object(), HALF, "2026-07-03", [5], [HALF], ["2026-02-30"], {"2026-07-03": HALF}]
RULES = [5, NAN, object(), HALF, "weekends", [5], [HALF], [[]], ["whatever"]]
SEED = "weekends"
ADDRESSES = [
    "http://[::1",
    "http://host:99999/x",
    "http://host:abc/x",
    "http://ho st/x",
    "http://host<b>/x",
    "http:///x",
    "https://host/\n",
    "ftp://host/x",
    "https://" + LONG,
]

OPTIONS: Mapping[str, Sequence[Any]] = {
    "cron": [*TEXT, "", "whatever", "99 9 * * *", LONG],
    "every": LENGTH,
    "at": TIME,
    "trigger": [*ANYTHING, "0 9 * * *"],
    "tz": ZONE,
    "calendar": NAME,
    "shift": WORD,
    "first_run": WORD,
    "condition": MAPPING,
    "rotation": [5, NAN, object(), HALF, [5], [HALF], [{"n": HALF}], [{"whatever": 1}], [{5: 1}]],
    "overlap": WORD,
    "catch_up": [*ANYTHING[1:], -1, True, "5", HUGE],
    "catch_up_window": LENGTH,
    "jitter": LENGTH,
    "budget": ANYTHING,
    "start_at": TIME,
    "end_at": TIME,
    "remaining": COUNT,
    "expect": ANYTHING,
    "alert": [*TEXT, "", print, *ADDRESSES],
    "fire_at_once": FLAG,
    "enabled": FLAG,
    "note": [*TEXT, LONG],
}
BESIDE: Mapping[str, Mapping[str, Any]] = {
    "cron": {},
    "every": {},
    "at": {},
    "trigger": {},
    "shift": {"cron": "0 9 * * *", "calendar": SEED},
    "alert": {"cron": "0 9 * * *", "expect": Expect(every=3600)},
    "fire_at_once": {"every": 3600},
}
"""What an option goes with; all others go with a cron expression."""

KEY = {"key": [value for value in NAME if value not in ("", LONG)]}
BY = {"by": NAME}
SCHEDULES: Mapping[str, tuple[Mapping[str, Any], Mapping[str, Sequence[Any]]]] = {
    "of": ({"owner": "anna"}, {"owner": NAME}),
    "create": ({}, {"key": NAME, "call": CALL, "owner": NAME, "id": TEXT} | BY),
    "update": ({"note": "x"}, KEY | BY | {"call": CALL, "version": [*ANYTHING, HUGE]}),
    "enable": ({}, KEY | BY | {"note": [*TEXT, LONG]}),
    "disable": ({}, KEY | BY | {"note": [*TEXT, LONG]}),
    "remove": ({}, KEY | BY),
    "attach": ({"calendar": SEED}, KEY | BY | {"calendar": NAME}),
    "detach": ({}, KEY | BY),
    "set_rotation": ({"rotation": []}, KEY | BY | {"rotation": OPTIONS["rotation"]}),
    "clear_rotation": ({}, KEY | BY),
    "plan": ({}, {}),
    "apply": ({}, BY | {"dry_run": FLAG}),
    "prune": ({}, BY | {"dry_run": FLAG}),
    "get": ({}, KEY),
    "list": (
        {},
        {
            "function": TEXT,
            "enabled": FLAG,
            "parked": FLAG,
            "calendar": NAME,
            "owner": NAME,
            "after": WORD,
            "limit": COUNT,
        },
    ),
    "ticks": (
        {},
        KEY | {"after": TIME, "before": TIME, "outcome": WORD, "reason": WORD, "limit": COUNT},
    ),
    "preview": (
        {"n": 1},
        KEY
        | {"n": COUNT, "after": TIME, "tz": ZONE, "simulate": FLAG}
        | {"result": [*MAPPING, [], 0, {"a": {"b": HALF}}]},
    ),
    "forecast": ({"days": 1}, {"days": COUNT, "start": TIME}),
    "explain": ({}, KEY | {"condition": MAPPING}),
    "why": ({}, KEY),
    "health": ({}, KEY),
    "run": ({}, KEY | BY | {"id": TEXT, "inputs": [*MAPPING, [], {"n": HALF}, {"whatever": 1}]}),
    "backfill": (
        {"start": utc(2026, 6, 29), "end": utc(2026, 6, 30)},
        KEY | BY | {"start": TIME, "end": TIME, "dry_run": FLAG, "without_ledger": FLAG},
    ),
    "skip_next": ({}, KEY | BY),
    "move_next": ({"to": utc(2026, 7, 1, 9, 30)}, KEY | BY | {"to": TIME}),
}

CALENDAR = {"calendar": [value for value in NAME if value not in ("", LONG)]}
CONTENT: dict[str, Sequence[Any]] = {
    "add": DATES,
    "remove": DATES,
    "dates": DATES,
    "rules": RULES,
    "kind": WORD,
    "tz": ZONE,
}
NEW = {"name": "another", "tz": "UTC"}
EVENT = """BEGIN:VCALENDAR
BEGIN:VEVENT
DTSTART;VALUE=DATE:20260703
END:VEVENT
END:VCALENDAR
"""
CALENDARS: Mapping[str, tuple[Mapping[str, Any], Mapping[str, Sequence[Any]]]] = {
    "of": ({"owner": "anna"}, {"owner": NAME}),
    "get": ({}, CALENDAR),
    "list": ({}, {"after": WORD, "limit": COUNT}),
    "create": (
        {"calendar": "another", "kind": "skip_dates"},
        BY
        | {"calendar": NAME, "kind": WORD, "id": TEXT, "tz": ZONE, "dates": DATES, "rules": RULES},
    ),
    "clone": (
        {"source": SEED, "name": "another"},
        BY | CONTENT | {"source": CALENDAR["calendar"], "name": NAME},
    ),
    "update": ({}, CALENDAR | BY | CONTENT | {"name": NAME, "version": [*ANYTHING, HUGE]}),
    "remove": ({}, CALENDAR | BY),
    "import_ical": (
        NEW | {"source": EVENT},
        BY
        | {"name": NAME, "source": [*TEXT, "", "whatever"], "kind": WORD, "tz": ZONE}
        | {"first": DAY, "last": DAY},
    ),
    "holidays": (
        NEW | {"country": "TR", "years": 2026},
        BY
        | {"name": NAME, "country": WORD, "subdivision": WORD, "kind": WORD, "tz": ZONE}
        | {"years": [1.5, NAN, [], {}, object(), HALF, 0, HUGE, [HUGE], ["2026"], [True]]},
    ),
    "changes": ({}, CALENDAR | CONTENT | {"name": NAME, "n": COUNT}),
    "ending": ({}, {"days": [*ANYTHING[1:], -1, True]}),
}
POSITIONAL = ("update", "changes")
"""Verbs of calendars whose first parameter has no name for callers."""


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(utc(2026, 7, 1))


@pytest.fixture
def there(app: Duly) -> Duly:
    """An app with a schedule "here" and a calendar "closed"."""

    @app.action
    def work(ctx: Ctx, n: int = 1) -> int:
        return n

    app.migrate()
    app.calendars.create("closed", "skip_dates", dates=["2026-07-03"])
    app.schedules.create("here", work, cron="0 9 * * *")
    return app


def refused(verb: Any, **given: Any) -> str | None:
    """What is wrong with how a call is refused, if anything is."""
    try:
        answer = verb(**given)
    except StoreError as error:
        return f"the database had to refuse it: {error}"
    except DulyError as error:
        return None if str(error) else "no word of what is wrong"
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return f"accepted: {answer!r}"


def show(name: str, value: object) -> str:
    return f"{name}={ascii(value)[:60]}"


def described(verb: Any) -> set[str]:
    """The parameters of a verb."""
    parameters = inspect.signature(verb).parameters.values()
    return {p.name for p in parameters if p.name != "self" and p.kind is not p.VAR_KEYWORD}


def verbs_of(cls: type) -> set[str]:
    names = {name for name in dir(cls) if not name.startswith("_")}
    return {name for name in names if inspect.isfunction(getattr(cls, name))}


def test_every_parameter_of_every_verb_is_tried():
    assert verbs_of(Schedules) == SCHEDULES.keys()
    assert verbs_of(Calendars) == CALENDARS.keys()
    assert ScheduleOptions.__annotations__.keys() == OPTIONS.keys()
    for name, (_, tried) in SCHEDULES.items():
        assert described(getattr(Schedules, name)) == tried.keys(), name
    more = {"clone": CalendarContent, "update": CalendarChanges, "changes": CalendarChanges}
    for name, (_, tried) in CALENDARS.items():
        names = described(getattr(Calendars, name))
        if name in more:
            names |= get_type_hints(more[name]).keys()
        assert names == tried.keys(), name


@pytest.mark.parametrize("name", SCHEDULES)
def test_a_verb_of_schedules_refuses_what_makes_no_sense(there: Duly, db: Database, name: str):
    verb = getattr(there.schedules, name)
    usual, tried = SCHEDULES[name]
    base = dict(usual)
    if "key" in tried:
        base.setdefault("key", "here")
    if name == "create":
        base |= {"key": "new", "call": there.function("work"), "every": 3600}
    before = dump(db)
    wrong = [
        f"{show(parameter, value)}: {fault}"
        for parameter, values in tried.items()
        for value in values
        if (fault := refused(verb, **base | {parameter: value}))
    ]
    assert not wrong, "\n".join(wrong)
    assert dump(db) == before
    verb(**base)


@pytest.mark.parametrize("name", ["create", "update", "declare"])
def test_an_option_that_makes_no_sense_is_refused(there: Duly, db: Database, name: str):
    work = there.function("work")
    verbs: dict[str, Any] = {
        "create": lambda **given: there.schedules.create("new", work, **given),
        "update": lambda **given: there.schedules.update("here", **given),
        "declare": lambda **given: there.schedule("declared", work, **given),
    }
    before = dump(db)
    wrong: list[str] = []
    for option, values in OPTIONS.items():
        beside: Mapping[str, Any] = BESIDE.get(option, {"cron": "0 9 * * *"})
        for value in values:
            # A calendar that code declares is looked for when the set is applied.
            unknown = name == "declare" and option == "calendar" and value in ("", LONG)
            if not unknown and (fault := refused(verbs[name], **beside, **{option: value})):
                wrong.append(f"{show(option, value)}: {fault}")
    assert not wrong, "\n".join(wrong)
    assert dump(db) == before


@pytest.mark.parametrize("name", CALENDARS)
def test_a_verb_of_calendars_refuses_what_makes_no_sense(there: Duly, db: Database, name: str):
    verb = getattr(there.calendars, name)
    usual, tried = CALENDARS[name]
    base = {"calendar": "closed", **usual} if "calendar" in tried else dict(usual)

    def call(**given: Any) -> Any:
        args = [given.pop("calendar")] if name in POSITIONAL else []
        return verb(*args, **given)

    before = dump(db)
    wrong = [
        f"{show(parameter, value)}: {fault}"
        for parameter, values in tried.items()
        for value in values
        if (fault := refused(call, **base | {parameter: value}))
    ]
    assert not wrong, "\n".join(wrong)
    assert dump(db) == before
    call(**base)
