"""`duly schedules`: the same on an app's database and on a server."""

import json
import re
from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from duly import AnyOf, Cron, Rule, ScheduleNotFound
from duly.model.trigger import encode
from tests.cli.places import Place
from tests.cli.shop import make
from tests.cli.terminal import Terminal
from tests.schedules.support import tick_all

CONDITION = '{"/last_24h_stats/failed": {"lt": 3}, "/prior_run_result/status": {"eq": "completed"}}'
BERLIN = ZoneInfo("Europe/Berlin")
SELDOM = "0 0 29 2 *"
ROTATION = '[{"text": "a"}, {"text": "b"}]'


@pytest.mark.spec("N79", "N80")
def test_a_schedule_by_a_rule_and_by_several_triggers(place: Place) -> None:
    rule = ("--rule", "FREQ=WEEKLY;INTERVAL=2;BYDAY=MO", "--anchor", "2099-07-06T09:00")
    made = place.duly("schedules", "create", "pay", "touch", "text=x", *rule, "--tz", "Asia/Tokyo")
    assert "pay calls touch: Every 2 weeks on Monday at 09:00, from 2099-07-06" in made.plain
    stored = place.app.schedules.get("pay").trigger
    assert stored == Rule("FREQ=WEEKLY;INTERVAL=2;BYDAY=MO", "2099-07-06T09:00", "Asia/Tokyo")
    whole = "DTSTART;TZID=Asia/Tokyo:20990706T090000 RRULE:FREQ=DAILY;COUNT=3"
    place.duly("schedules", "update", "pay", "--rule", whole)
    assert place.app.schedules.get("pay").trigger == Rule(whole)
    several = AnyOf(stored, Cron("0 9 * * *", spread="pay"))
    place.duly("schedules", "update", "pay", "--trigger", json.dumps(encode(several)))
    assert place.app.schedules.get("pay").trigger == several
    assert "at 09:00 (UTC)" in place.duly("schedules", "show", "pay", columns=200).out
    unstarted = place.duly("schedules", "update", "pay", "--rule", "FREQ=DAILY", code=1)
    assert "start: a rule needs one" in unstarted.err
    two = place.duly("schedules", "update", "pay", "--every=5m", "--rule", "FREQ=DAILY", code=2)
    assert "give --every or --rule, not both" in two.err


def test_a_schedule_is_made_changed_and_looked_at(place: Place) -> None:
    closed = {str(day(n)): "party" for n in range(2, 20)} | {"2099-01-01": "far"}
    place.app.calendars.create("closed", "skip_dates", dates=closed)
    first = day(1).isoformat()
    made = place.duly(
        *("schedules", "create", "nightly", "touch", "text=hello", "--cron", "30 12 * * *"),
        *("--tz", "Europe/Berlin", "--calendar", "closed", "--note", "each night", "--jitter=5m"),
        *("--start", f"{first}T00:00", "--catch-up", "3", "--overlap", "buffer_one"),
        *("--display-tz", "Europe/Berlin"),
        columns=80,
    ).plain
    assert "nightly calls touch: At 12:30 (Europe/Berlin)" in made
    assert "nightly is enabled (each night); next tick" in made
    assert re.search(rf"● dispatch  \w+ {first} 12:30 +{{\"text\": \"hello\"}}", made)
    assert re.search(rf"○ skip      \w+ {day(2)} 12:30  calendar  {day(2)} is party in", made)
    assert len(re.findall("○", made)) == 2 * 4, "in the table and on the time line"
    stored = place.app.schedules.get("nightly")
    assert (stored.policies.jitter, stored.policies.catch_up) == (300_000, 3)
    assert stored.start_at == datetime.fromisoformat(f"{first}T00:00").replace(tzinfo=BERLIN)
    assert stored.changed_by is not None

    changed = place.duly("schedules", "update", "nightly", "text=bye", "--cron", "45 12 * * *").out
    assert "At 12:45 (Europe/Berlin)" in changed
    options = ("--clear", "calendar", "--clear", "note", "--queue", "slow")
    after = place.duly("schedules", "update", stored.id, *options, "--json").json
    assert (after["calendar"], after["note"], after["args"]) == (None, None, {"text": "bye"})
    stale = place.duly("schedules", "update", "nightly", "--jitter=9", "--version=1", code=1)
    assert "'nightly' is no longer at version 1; nothing was changed" in stale.err
    assert "duly schedules show nightly" in stale.err
    assert place.app.schedules.get("nightly").policies.jitter == 300_000

    shown = place.duly("schedules", "show", "nightly").out
    for line in ("arguments", "Europe/Berlin", "jitter", "5m", "buffer_one", "version"):
        assert line in shown
    assert place.duly("schedules", "show", "nightly", "--json").json == after
    for width in (80, 40):
        listed = place.duly("schedules", "list", columns=width).plain
        assert all(len(line) <= width for line in listed.splitlines())
        assert "nightly" in listed
        assert "enabled" in listed


def day(ahead: int) -> date:
    """The date in so many days."""
    return datetime.now(BERLIN).date() + timedelta(days=ahead)


def test_what_operators_do_to_one(place: Place) -> None:
    call = ("schedules", "create", "hourly", "touch", "text=x", "--cron", "0 * * * *")
    assert place.duly(*call, "--disabled", "--json").json["status"] == "disabled"
    assert (
        "hourly is enabled (go); next tick"
        in place.duly("schedules", "enable", "hourly", "--note", "go").out
    )
    assert "hourly is disabled" in place.duly("schedules", "disable", "hourly").out
    refused = place.duly("schedules", "skip-next", "hourly", code=1)
    assert "Traceback" not in refused.err
    place.duly("schedules", "enable", "hourly")
    assert ", skipped by " in place.duly("schedules", "skip-next", "hourly").out
    assert ", moved by " in place.duly("schedules", "move-next", "hourly", "+30m").out
    wrong = place.duly("schedules", "move-next", "hourly", day(-1).isoformat(), code=1)
    assert "run the schedule now instead" in wrong.err

    attach = ("schedules", "attach", "hourly")
    holidays = "us-federal-holidays"
    assert f"except on dates in {holidays}" in place.duly(*attach, holidays).out
    assert "only on dates in weekends" in place.duly(*attach, "weekends").out
    assert place.app.schedules.get("hourly").calendar == "weekends"
    assert "on every date" in place.duly("schedules", "detach", "hourly").out
    assert place.app.schedules.get("hourly").calendar is None

    assert "has no rotation" in place.duly("schedules", "rotation", "hourly").out
    turns = place.duly("schedules", "rotation", "hourly", "--set", ROTATION).out
    assert '→ next      0  {"text": "a"}' in turns
    assert place.duly("schedules", "rotation", "hourly", "--json").json["rotation_index"] == 0
    assert "has no rotation" in place.duly("schedules", "rotation", "hourly", "--clear").out

    assert "has no condition" in place.duly("schedules", "condition", "hourly").out
    tried = place.duly("schedules", "condition", "hourly", "--try", CONDITION).out
    assert "✓ /last_24h_stats/failed lt 3: 0 is less than 3\n" in tried
    missing = "there is no such value; eq is false for a missing value"
    assert f"✗ /prior_run_result/status eq completed: {missing}\n" in " ".join(tried.split(" "))
    assert "it is not met" in tried
    assert place.app.schedules.get("hourly").condition is None
    file = place.folder / "condition.json"
    file.write_text(CONDITION)
    assert not place.duly("schedules", "condition", "hourly", "--set", f"@{file}", "--json").json[
        "passes"
    ]
    assert place.app.schedules.get("hourly").condition == json.loads(CONDITION)
    place.duly("schedules", "condition", "hourly", "--clear")
    assert place.app.schedules.get("hourly").condition is None
    both = place.duly("schedules", "condition", "hourly", "--clear", "--try", "{}", code=2)
    assert "give only one of --clear and --try" in both.err


def test_once_and_to_an_endpoint(place: Place) -> None:
    once = ("schedules", "create", "once", "touch", "text=x", "--at", f"{day(2)}T09:00")
    place.duly(*once, "--tz", "Asia/Tokyo")
    [coming] = place.app.schedules.preview("once")
    assert coming.utc.isoformat() == f"{day(2)}T00:00:00+00:00"
    place.app.endpoints.create("billing", "https://example.com/x")
    ping = ("schedules", "create", "ping", "endpoint:billing", "body:=[1]", "--every", "1h")
    assert place.duly(*ping, "--json").json["every_ms"] == 3_600_000
    assert place.duly("schedules", "list", "--parked", "--json").json == []
    listed = place.duly("schedules", "list", "--enabled", "--limit", "1", "--json").json
    assert [each["key"] for each in listed] == ["once"]


@pytest.mark.spec("R161")
def test_removing_asks_or_needs_force(place: Place) -> None:
    for key in ("one", "two"):
        place.app.schedules.create(key, touch(place), every=3600)
    refused = place.duly("schedules", "remove", "one", code=1)
    assert "this is not a terminal" in refused.err
    assert "--force" in refused.err
    keys = [("Remove schedule 'one' of touch?", "n\n")]
    left = place.duly("schedules", "remove", "one", columns=80, keys=keys, code=1)
    assert "nothing was changed" in left.plain
    assert {each.key for each in place.app.schedules.list()} == {"one", "two"}
    keys = [("Remove schedule 'one' of touch?", "y\n")]
    assert (
        "one was removed" in place.duly("schedules", "remove", "one", columns=80, keys=keys).plain
    )
    place.duly("schedules", "remove", "two", "--force")
    assert place.app.schedules.list() == []


def touch(place: Place, text: str = "x") -> Any:
    """A call of the shop's function."""
    function: Any = place.app.functions.get("touch")
    return function.bind(text)


def test_what_is_to_come(place: Place) -> None:
    touching = touch(place)
    place.app.schedules.create("early", touching, cron="30 2 * * *", tz="Europe/Berlin")
    place.app.schedules.create("often", touching, every=900, rotation=json.loads(ROTATION))
    sunday = clocks_forward()
    before = sunday - timedelta(days=1)
    after = f"{before - timedelta(days=1)}T12:00Z"
    forward = ("schedules", "preview", "early", "-n", "3", "--after", after)
    seen = place.duly(*forward, "--display-tz", "Asia/Tokyo", columns=120).plain
    assert re.search(rf"● dispatch  Sat {before} 02:30  Sat 10:30 +{{\"text\"", seen)
    assert re.search(
        rf"● dispatch  Sun {sunday} 03:00  Sun 10:00 .*DST: its local time is skipped",
        seen,
    )
    assert "local time is UTC+01:00, yours is Asia/Tokyo" in seen
    assert seen.count("●") == 3 + 3, "in the table and on the time line"
    narrow = place.duly(*forward, columns=40).plain
    assert f"● Sun {sunday:%d} 03:00" in narrow.replace("●  ", "● ")
    assert all(len(line) <= 40 for line in narrow.splitlines())
    plain = place.duly("schedules", "preview", "often", "-n", "2").out
    assert 'rotation 0: {"text": "a"}' in plain
    assert 'rotation 1: {"text": "b"}' in plain
    assert "\x1b" not in plain
    foreseen = place.duly("schedules", "preview", "often", "-n", "4", "--json").json
    assert [tick["rotation_index"] for tick in foreseen] == [0, 1, 0, 1]
    coloured = place.duly("schedules", "preview", "often", "-n", "2", columns=80).out
    assert "\x1b[32m● dispatch" in coloured
    bare = place.duly("schedules", "preview", "often", columns=80, env={"NO_COLOR": "1"}).out
    assert "\x1b[32m" not in bare


def clocks_forward() -> date:
    """The Sunday in March of next year on which clocks in Berlin are set forward."""
    end = date(datetime.now(UTC).year + 1, 3, 31)
    return end - timedelta(days=(end.weekday() + 1) % 7)


@pytest.mark.spec("N15")
def test_the_forecast_as_a_strip_and_as_a_feed(place: Place) -> None:
    touching = touch(place)
    place.app.schedules.create("often", touching, every=900)
    place.app.schedules.create("daily", touching, cron="0 12 * * *")
    strip = place.duly("schedules", "forecast", "--days", "2", columns=80).plain
    assert re.search(r"\d+ dispatches of 2 schedules, UTC", strip)
    [tomorrow] = [line for line in strip.splitlines() if f"{day_name(1)} " in line]
    # Every hour has two characters; the one of noon is the fullest.
    cells = tomorrow[11 : 11 + 48]
    assert cells[24:26] == "██"
    assert set(cells.replace("█", "")) <= set("▁▂▃▄▅▆▇")
    assert tomorrow.endswith(" 97")
    assert "busiest minutes" in strip
    narrow = place.duly("schedules", "forecast", columns=40).plain
    assert all(len(line) <= 40 for line in narrow.splitlines())
    found = place.duly("schedules", "forecast", "--days", "2", "--json").json
    assert (found["schedules"], found["complete"]) == (2, True)
    assert len(found["hours"]) == 48
    feed = place.duly("schedules", "forecast", "--ics", "--schedule", "daily", "--days", "3").out
    assert feed.startswith("BEGIN:VCALENDAR")
    assert feed.count("SUMMARY:daily") == 3
    assert "give" not in place.duly("schedules", "forecast", "--schedule", "daily", code=2).out


def day_name(ahead: int) -> str:
    return f"{datetime.now(UTC) + timedelta(days=ahead):%a %d %b}"


@pytest.mark.spec("R158")
def test_a_past_range_is_filled_after_a_look_at_it(place: Place) -> None:
    place.app.schedules.create("hourly", touch(place), cron="0 * * * *", overlap="allow")
    start, end = (f"{datetime.now(UTC) - timedelta(days=n):%Y-%m-%dT%H:30Z}" for n in (2, 1))
    fill = ("schedules", "backfill", "hourly", start, end)
    would = place.duly(*fill, "--dry-run").out
    assert "24 ticks would be dispatched, 0 skipped" in would
    assert "… and 14 more" in would
    assert place.app.jobs() == []
    assert "this is not a terminal" in place.duly(*fill, code=1).err
    keys = [("Run 24 ticks of 'hourly'?", "n\n")]
    assert "nothing was changed" in place.duly(*fill, columns=80, keys=keys, code=1).plain
    assert place.app.jobs() == []
    keys = [("Run 24 ticks of 'hourly'?", "y\n")]
    assert "24 ticks were dispatched, 0 skipped" in place.duly(*fill, columns=80, keys=keys).plain
    assert len(place.app.jobs()) == 24
    again = place.duly(*fill, "--force").out
    assert "0 ticks would be dispatched, 24 skipped" in again
    assert len(place.app.jobs()) == 24
    wrong = place.duly("schedules", "backfill", "hourly", "now", "-1d", code=1)
    assert "must be later than the start" in wrong.err


def test_a_long_range_is_filled_in_parts(place: Place) -> None:
    place.app.schedules.create("often", touch(place), cron="* * * * *", overlap="allow")
    fill = ("schedules", "backfill", "often", f"{day(-2)}T00:00Z", f"{day(-2)}T20:00Z")
    filled = place.duly(*fill, "--force", "--json").json
    assert (filled["dispatched"], filled["skipped"], filled["dry_run"]) == (1200, 0, False)
    ticks = [tick["tick_at_ms"] for tick in filled["ticks"]]
    assert len(set(ticks)) == 1200
    assert ticks == sorted(ticks)


def test_runs_and_the_ledger(place: Place) -> None:
    place.app.schedules.create("hourly", touch(place), cron=SELDOM)
    with place.app:
        ran = place.duly("schedules", "run", "hourly", "text=now", "--wait").out
        assert ran.splitlines() == ["succeeded", "now"]
    ran = place.duly("schedules", "run", "hourly").out
    [job, _] = place.app.jobs()
    assert ran == f"hourly runs as job {job.id}\n"
    refused = place.duly("schedules", "run", "hourly", code=1).out
    assert refused == f"hourly was not run: job {job.id} is unfinished\n"
    due(place, minutes=30)
    place.app.schedules.skip_next("hourly", by="ann")
    tick_all(place.app)
    listed = place.duly("schedules", "ticks", "hourly", columns=100).plain
    assert f"dispatched  job {job.id}, run by hand" in listed
    assert "skipped     operator: skipped by ann" in listed
    assert f"skipped     overlap_in_flight: job {job.id} is unfin" in listed
    some = place.duly("schedules", "ticks", "hourly", "--reason", "operator", "--json").json
    assert [tick["detail"] for tick in some] == [{"by": "ann"}]
    assert len(place.duly("schedules", "ticks", "hourly", "--limit", "1", "--json").json) == 1
    assert "no ticks" in place.duly("schedules", "ticks", "hourly", "--after", "+1d").out


def due(place: Place, minutes: int) -> None:
    """Let the next tick of every schedule have been due for so long."""
    table = "duly_schedules" if place.db.is_sqlite else "duly.schedules"
    past = place.app.core.now() - minutes * 60_000
    place.db.execute(f"UPDATE {table} SET due_at = {past}, next_tick_at = {past}")


@pytest.mark.spec("R159")
def test_health_is_one_word_and_an_exit_code(place: Place) -> None:
    assert "no schedules" in place.duly("schedules", "health").out
    for key in ("good", "late"):
        place.app.schedules.create(key, touch(place), every=3600)
    place.app.schedules.create("quiet", touch(place), every=3600, enabled=False, note="holidays")
    place.app.schedules.run("good")
    table = "duly_schedules" if place.db.is_sqlite else "duly.schedules"
    health = place.duly("schedules", "health")
    assert re.search(r"OK\s+good\s+its last tick was dispatched", health.out)
    assert re.search(r"NEVER_RAN\s+late\s+no tick yet", health.out)
    assert re.search(r"PAUSED\s+quiet\s+holidays", health.out)
    assert "1 never_ran, 1 ok, 1 paused" in health.err
    past = place.app.core.now() - 3_600_000
    place.db.execute(f"UPDATE {table} SET due_at = {past} WHERE key = 'late'")
    missed = place.duly("schedules", "health", code=1)
    assert re.search(r"MISSED\s+late\s+overdue for 36\d\d s; is a ticker running\?", missed.out)
    assert place.duly("schedules", "health", "good", "--json").json[0]["state"] == "ok"
    bad = place.duly("schedules", "health", "late", "--json", code=1)
    assert json.loads(bad.out)[0]["state"] == "missed"


@pytest.fixture(params=["here", "server"])
def declaring(
    request: pytest.FixtureRequest, terminal: Terminal, url: str, tmp_path: Path
) -> Iterator[Place]:
    """A place whose code declares schedules; another version of it did so before."""
    earlier = tmp_path / "earlier"
    earlier.mkdir()
    (earlier / "schedules").write_text("kept 0 1 * * *\nother 0 2 * * *\ngone 0 3 * * *\n")
    (tmp_path / "schedules").write_text("kept 0 1 * * *\nother 30 2 * * *\nnew 0 4 * * *\n")
    (earlier / "calendars").write_text("closed 2030-01-01\nold 2030-01-01\ntaken 2030-01-01\n")
    (tmp_path / "calendars").write_text("closed 2030-01-02\nfair 2030-01-01\nother 2030-01-01\n")
    place = Place(terminal, url, tmp_path)
    before = make(url, earlier)
    before.schedules.apply()
    before.close()
    if request.param == "server":
        place.move_to_a_server()
    yield place
    place.close()


@pytest.mark.spec("N12", "N71")
def test_what_code_declares_is_planned_applied_and_pruned(declaring: Place) -> None:
    schedules = declaring.app.schedules
    schedules.skip_next("kept", by="ann")
    kept = schedules.get("kept").record
    declaring.app.calendars.create("other", "skip_dates")
    declaring.app.schedules.update("gone", calendar="taken")
    planned = declaring.duly("schedules", "plan").out.splitlines()
    assert "+ new" in planned
    assert "~ other" in planned
    assert any("trigger" in line and "30 2 * * *" in line for line in planned)
    assert any(line.startswith("- gone: no longer declared") for line in planned)
    assert "+ calendar fair" in planned
    assert "~ calendar closed" in planned
    assert "    dates: {'2030-01-01': ''} → {'2030-01-02': ''}" in [
        line.replace('"', "'") for line in planned
    ]
    assert any(line.startswith("- calendar old: no longer declared; `duly sch") for line in planned)
    assert any(line.startswith("! calendar other: a different calendar with") for line in planned)
    assert planned[-1] == "1 unchanged"
    assert declaring.duly("schedules", "plan", "--json").json["changes"] == 7
    keys = [("Apply 7 changes?", "n\n")]
    left = declaring.duly("schedules", "apply", columns=80, keys=keys, code=1)
    assert "nothing was changed" in left.plain
    assert "\x1b[32m+ new" in left.out
    assert "this is not a terminal" in declaring.duly("schedules", "apply", code=1).err
    with pytest.raises(ScheduleNotFound):
        schedules.get("new")

    applied = declaring.duly("schedules", "apply", "--force").out
    assert applied.splitlines()[-1] == "applied: 7"
    assert schedules.get("new").status == "enabled"
    assert schedules.get("gone").status == "orphaned"
    assert schedules.get("kept").record == kept
    assert "nothing to change" in declaring.duly("schedules", "apply").out

    declaring.app.schedules.update("kept", calendar="taken")
    keys = [("Remove 2 objects?", "y\n")]
    pruned = declaring.duly("schedules", "prune", columns=80, keys=keys).plain
    assert "- gone" in pruned
    assert "- calendar old" in pruned
    assert "! calendar taken: a schedule uses it" in pruned
    assert "removed: 2" in pruned
    with pytest.raises(ScheduleNotFound):
        schedules.get("gone")
    assert "nothing to change" in declaring.duly("schedules", "prune").out


def test_wrong_names_and_options(place: Place) -> None:
    place.app.schedules.create("nightly", touch(place), every=3600)
    place.app.schedules.of("anna").create("hers", touch(place), every=3600)
    wrong = place.duly("schedules", "show", "nihgtly", code=1)
    assert "there is no schedule 'nihgtly'" in wrong.err
    assert "did you mean 'nightly'?" in wrong.err
    foreign = place.duly("schedules", "show", "hers", code=1)
    assert "'hers' is a schedule of anna" in foreign.err
    assert (
        place.duly("schedules", "show", "hers", "--owner", "anna", "--json").json["key"] == "hers"
    )
    create = ("schedules", "create", "x")
    nobody = place.duly(*create, "tuch", "text=x", "--every", "1h", code=1)
    assert "did you mean 'touch'?" in nobody.err
    assert (
        "give --cron, --every, --at, --rule or --trigger"
        in place.duly(*create, "touch", code=2).err
    )
    two = place.duly(*create, "touch", "--every=1h", "--at=+1h", code=2)
    assert "give --every or --at, not both" in two.err
    assert (
        "closed"
        in place.duly(*create, "touch", "text=x", "--every=1h", "--calendar=closed", code=1).err
    )
    again = place.duly("schedules", "create", "nightly", "touch", "text=x", "--every=1h", code=1)
    assert "nightly" in again.err
    assert "Traceback" not in again.err
    assert "at least one option" in place.duly("schedules", "update", "nightly", code=2).err
    cleared = place.duly("schedules", "update", "nightly", "--note=a", "--clear=note", code=2)
    assert "both set and cleared" in cleared.err
    assert [each.key for each in place.app.schedules.list()] == ["nightly", "hers"]


def test_what_data_says_is_shown_and_not_obeyed(place: Place) -> None:
    place.app.schedules.create("evil", touch(place), every=3600, note="\x1b]0;mine\x07")
    shown = place.duly("schedules", "show", "evil", columns=80).out
    assert "\x1b]0" not in shown
    assert "mine" in shown


@pytest.mark.parametrize("command", ["create", "backfill", "preview", "condition", "plan"])
def test_help_teaches_and_fits(terminal: Terminal, command: str) -> None:
    said = terminal.run("schedules", command, "--help", columns=80).plain
    assert all(len(line) <= 80 for line in said.splitlines())
    assert command == "plan" or f"duly schedules {command} nightly" in said
