"""`duly functions`: what can be called, and what operators decide about it."""

import json
import shlex
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Annotated, Any, Literal

import pytest

from duly import AnyOf, Budget, Ctx, Every, Expect, Redact, Rule
from duly.cli.functions import call_of, example_of, type_of
from duly.schedules.define import Definition
from tests.cli.places import Place
from tests.jobs.support import on_sqlite


@dataclass
class Address:
    street: str
    number: int


@on_sqlite
def test_functions_are_shown_with_how_to_call_them(place: Place) -> None:
    @place.app.action
    def ship(
        ctx: Ctx,
        to: Address,
        speed: Literal["slow", "fast"],
        copies: int,
        code: Annotated[str, Redact],
        tags: list[str] | None = None,
    ) -> None: ...

    place.app.functions.publish()
    shown = place.duly("functions", "show", "ship").plain
    lines = [" ".join(line.split()) for line in shown.splitlines()]
    assert "copies integer required" in lines
    assert 'speed "fast" | "slow" required' in lines or "speed fast | slow required" in lines
    assert "tags list of string or null optional" in lines
    [call] = [line for line in lines if line.startswith("duly run ship")]
    assert "copies:=1" in call
    assert """'to:={"street": "text", "number": 1}'""" in call
    place.duly(*call.split()[1:3], *_words(call)[3:], "--no-wait")
    [job] = place.app.jobs(function="ship")
    assert job.state == "pending"

    listed = place.duly("functions", "list", columns=80).plain
    assert "note_when" in listed
    assert max(map(len, listed.splitlines())) <= 80
    assert max(map(len, place.duly("functions", "list", columns=40).plain.splitlines())) <= 40
    names = [each["name"] for each in place.duly("functions", "list", "--json").json]
    assert {"ship", "touch", "note"} <= set(names)
    wrong = place.duly("functions", "show", "shipp", code=1)
    assert "did you mean 'ship'?" in wrong.err


def _words(call: str) -> list[str]:
    return shlex.split(call)


@pytest.mark.spec("N27")
def test_a_restored_function_says_how_to_create_its_schedules_again(place: Place) -> None:
    app = place.app
    touch = app.function("touch")
    app.calendars.create("plant's closed", "skip_dates", dates=["2099-12-24"], tz="Asia/Tokyo")
    many: dict[str, Any] = {
        "calendar": "plant's closed",
        "shift": "next",
        "condition": {"/last_24h_stats/failed": {"lt": 3}},
        "rotation": [{"text": "it's a"}, {"text": "$(b)"}],
        "overlap": "buffer_one",
        "catch_up": 3,
        "catch_up_window": 90.5,
        "jitter": 30,
        "budget": Budget(runs=5, per=3600),
        "end_at": datetime(2030, 1, 1, tzinfo=UTC),
        "remaining": 7,
        "expect": Expect(within=900),
        "note": "every morning; `date`",
    }
    many |= {"cron": "0 9 * * 1-5", "tz": "Asia/Tokyo"}
    app.schedules.create("it's nine", touch.bind("a b"), **many)
    often = touch.using(queue="mail", priority=3, timeout=60).bind("$HOME")
    app.schedules.create("often", often, every=5400, tz="Europe/Berlin", enabled=False)
    app.schedules.create("-once", touch.bind("x"), at=datetime(2030, 1, 1, tzinfo=UTC))
    app.schedules.of("anna").create("theirs", touch.bind("x"), every=600)
    rule = Rule("FREQ=WEEKLY;INTERVAL=2;BYDAY=MO", "2026-07-06T09:00", "Asia/Tokyo")
    app.schedules.create("fortnightly", touch.bind("x"), trigger=rule)
    app.schedules.create("several", touch.bind("x"), trigger=AnyOf(rule, Every(600_000)))

    def written() -> dict[str, list[Any]]:
        """What was written of each schedule; not where it stands."""
        fields = (*Definition.__struct_fields__, "owner", "enabled", "note")
        found = app.schedules.list()
        return {each.key: [read(getattr(each.record, name)) for name in fields] for each in found}

    def read(value: Any) -> Any:
        """What JSON says, in which 60 and 60.0 are the same."""
        return json.loads(value) if str(value)[:1] in ("{", "[") else value

    before = written()
    place.duly("functions", "delete", "touch", "--force")
    assert app.schedules.list() == []
    assert "it's a" not in place.duly("audit", "--json").out
    said = place.duly("functions", "restore", "touch").out.splitlines()
    assert said[0] == "touch is active"
    for command in said[1:]:
        program, *arguments = shlex.split(command)
        assert program == "duly"
        place.duly(*arguments)
    after = written()
    for key, fields in before.items():
        assert after.pop(key) == fields
    assert after == {}


@pytest.mark.spec("R161")
def test_operators_decide(place: Place) -> None:
    app = place.app
    touch = app.function("touch")
    app.run(touch, "x")
    app.schedules.create("daily", touch.bind("x"), cron="0 9 * * *")

    said = place.duly("functions", "pause", "touch", "--note", "full").out
    assert said == "touch is paused; its jobs wait\n"
    info = app.functions.info("touch")
    assert (info.status, info.status_note) == ("paused", "full")
    assert "full" in place.duly("functions", "show", "touch").out
    place.duly("functions", "resume", "touch")
    assert app.functions.info("touch").status == "active"
    assert place.duly("functions", "deprecate", "touch", "--json").json["status"] == "deprecated"

    keys = [("1 pending job and removes 1 schedule.", "n\n")]
    kept = place.duly("functions", "delete", "touch", columns=100, keys=keys, code=1)
    assert "nothing was changed" in kept.plain
    assert "--force" in place.duly("functions", "delete", "touch", code=1).err
    assert app.schedules.list()
    place.duly("functions", "delete", "touch", "--force")
    assert (app.functions.info("touch").status, app.schedules.list()) == ("deleted", [])
    assert [job.state for job in app.jobs()] == ["canceled"]
    assert "touch" not in place.duly("functions", "list").out.split()
    assert "touch" in place.duly("functions", "list", "--all").out.split()
    place.duly("functions", "restore", "touch")
    assert app.functions.info("touch").status == "active"
    for verb in ("pause", "delete"):
        wrong = place.duly("functions", verb, "tuch", code=1)
        assert "did you mean 'touch'?" in wrong.err


def test_a_schema_is_said_in_words() -> None:
    root = {
        "$defs": {"Loop": {"$ref": "#/$defs/Loop"}, "Day": {"type": "string", "format": "date"}}
    }
    day = {"$ref": "#/$defs/Day"}
    assert (type_of(root, day), example_of(root, day)) == ("date", "2026-05-01")
    assert type_of(root, {"type": "array", "items": day}) == "list of date"
    assert type_of(root, {"type": ["integer", "null"]}) == "integer or null"
    assert type_of(root, {"anyOf": [{"type": "integer"}, {"type": "null"}]}) == "integer or null"
    for odd in ({"$ref": "#/$defs/Loop"}, {"$ref": "#/$defs/None"}, True, {}):
        assert type_of(root, odd) == "anything"
        assert example_of(root, odd) == "text"
    nested = {"type": "array", "items": {"type": "array", "items": {"type": "boolean"}}}
    assert example_of({}, nested) == [[True]]
    plain = {"name": "a b", "arguments": {"properties": {"x": {}}, "required": ["x"]}}
    assert call_of(plain) == "duly run 'a b' x=text"
