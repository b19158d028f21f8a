"""Schedules that code declares: checked at once, applied as a set, never against an operator."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Any

import msgspec
import pytest

from duly import (
    Cron,
    Ctx,
    Duly,
    DulyError,
    Every,
    InvalidCondition,
    InvalidCron,
    InvalidRotation,
    ManualClock,
    Redact,
    Schedule,
    ScheduleExists,
    ScheduleNotFound,
    Tx,
    UnknownZone,
    every,
    fault,
    hourly,
    monthly,
    weekly,
)
from duly.errors import InvalidArgument, InvalidOption, StoreUnavailable, UnknownFunction, UseTx
from duly.runtime.ticker import Ticker
from duly.schedules.declarations import Declarations
from duly.testing import drain
from tests.jobs.support import on_postgres, wait_until
from tests.schedules.support import at, tick_all, utc
from tests.store.processes import run_together

NOWHERE = "postgresql://nobody@nowhere.invalid/nothing"
STOPPED = {"/signal_rpc_result/stop": {"eq": True}}
Given = Mapping[str, Mapping[str, Any]]
Release = Callable[..., Duly]


def expression_of(schedule: Schedule) -> str:
    trigger = schedule.trigger
    assert isinstance(trigger, Cron)
    return trigger.expression


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(utc(2026, 7, 1))


@pytest.fixture
def release(app: Duly, url: str, clock: ManualClock) -> Iterator[Release]:
    """Make an app as one release of the code would: what it declares, by key."""
    made: list[Duly] = []

    def make(given: Given, *, name: str = "default", apply: str = "start") -> Duly:
        release = Duly(url, name=name, clock=clock, apply=apply)
        made.append(release)

        @release.action
        def post(ctx: Ctx, audience: str = "all", token: Annotated[str, Redact()] = "") -> str:
            return audience

        for key, options in given.items():
            rest = dict(options)
            release.schedule(key, post.bind(**rest.pop("bind", {})), **rest)
        return release

    yield make
    for each in made:
        each.close()


def start(app: Duly) -> Duly:
    """What a process with a ticker does first."""
    tick_all(app)
    return app


def kinds(plan: Any) -> dict[str, str]:
    return {entry.key: entry.kind for entry in plan}


def actions(app: Duly, key: str) -> list[str]:
    """What was done to a schedule, oldest first."""
    found = app.store.audit_of(f"schedule:{app.schedules.get(key).id}")
    return [entry.action.removeprefix("schedule.") for entry in reversed(found)]


NINE: dict[str, Any] = {"cron": "0 9 * * *"}
TEN: dict[str, Any] = {"cron": "0 10 * * *"}
ANCHORED = Every(600_000, anchor=int(utc(2026, 7, 1, 0, 7).timestamp() * 1000))


# Declaring ---------------------------------------------------------------------------------------


@pytest.fixture
def offline() -> Duly:
    """An app whose database does not exist."""
    return Duly(NOWHERE)


def test_a_declaration_touches_no_database(offline: Duly):
    @offline.action
    def post(ctx: Ctx, audience: str) -> None: ...

    digest = offline.schedule("digest", post.bind("tech"), cron="0 9 * * 1-5", calendar="our days")

    assert (digest.key, digest.function) == ("digest", "post")
    assert digest.source.startswith(__file__)


@pytest.mark.spec("R99")
@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"cron": "0 25 * * *"}, InvalidCron),
        ({"cron": "0 9 * * *", "tz": "Europe/Instanbul"}, UnknownZone),
        ({"cron": "0 9 * * *", "condition": {"/x": {"nearly": 3}}}, InvalidCondition),
        ({"cron": "0 9 * * *", "rotation": [{"audience": 7}]}, InvalidRotation),
        ({"cron": "0 9 * * *", "rotation": [{"nobody": "x"}]}, InvalidRotation),
        ({"cron": "0 9 * * *", "every": 60}, InvalidOption),
        ({}, InvalidOption),
        ({"every": 0.5}, InvalidOption),
        ({"every": 0}, InvalidOption),
        ({"every": -60}, InvalidOption),
        ({"cron": "0 9 * * *", "overlap": "sometimes"}, InvalidOption),
        ({"cron": "0 9 * * *", "colour": "red"}, InvalidOption),
        ({"cron": "0 9 * * *", "enabled": "yes"}, InvalidOption),
        ({"cron": "0 9 * * *", "calendar": 7}, InvalidOption),
        ({"every": 60, "start_at": utc(2027, 1, 1), "end_at": utc(2026, 12, 1)}, InvalidOption),
        ({"every": 60, "start_at": utc(2027, 1, 1).replace(tzinfo=None)}, DulyError),
    ],
)
def test_what_makes_no_sense_is_refused_where_it_is_written(offline: Duly, options, error):
    @offline.action
    def post(ctx: Ctx, audience: str = "all") -> None: ...

    with pytest.raises(error):
        offline.schedule("digest", post, **options)
    assert offline.core.declarations == {}


@pytest.mark.spec("R99")
@pytest.mark.parametrize(
    "make",
    [
        lambda: every(),
        lambda: every(seconds=5, minutes=1),
        lambda: every(seconds=0),
        lambda: every(minutes=1.5),  # type: ignore[arg-type]
        lambda: hourly(60),
        lambda: weekly("someday", 9, 0),
        lambda: monthly(32, 9, 0),
    ],
)
def test_the_helpers_refuse_what_is_no_time(make):
    with pytest.raises(InvalidOption):
        make()


@pytest.mark.spec("R99")
def test_intervals_and_months_as_declared(release: Release, clock):
    app = start(
        release(
            {
                "fast": {"trigger": every(seconds=1)},
                "ends": {"trigger": monthly(31, 9, 0)},
                "at once": {"trigger": every(hours=1), "fire_at_once": True},
            }
        )
    )

    assert app.schedules.get("fast").next_tick == utc(2026, 7, 1, 0, 0, 1)
    ends = [tick.utc for tick in app.schedules.preview("ends", 3)]
    assert ends == [utc(2026, 7, 31, 9), utc(2026, 8, 31, 9), utc(2026, 10, 31, 9)]
    [tick] = app.schedules.ticks("at once")
    assert (tick.at, tick.outcome) == (utc(2026, 7, 1), "dispatched")


@pytest.mark.spec("R100")
def test_a_key_is_declared_once(offline: Duly):
    @offline.action
    def post(ctx: Ctx, audience: str = "all") -> None: ...

    first = offline.schedule("digest", post, cron="0 9 * * *")
    with pytest.raises(ScheduleExists) as caught:
        offline.schedule("digest", post, cron="0 9 * * *")

    assert first.source in str(caught.value)
    assert str(caught.value).count(Path(__file__).name) == 2


@pytest.mark.spec("R100")
def test_a_key_is_declared_once_also_in_a_loop(offline: Duly):
    @offline.action
    def post(ctx: Ctx, audience: str = "all") -> None: ...

    def declare(audience: str) -> None:
        offline.schedule("digest", post.bind(audience), every=60)

    declare("tech")
    with pytest.raises(ScheduleExists):
        declare("business")


@pytest.mark.spec("R100")
def test_the_same_declaration_may_be_imported_again(offline: Duly):
    @offline.action
    def post(ctx: Ctx) -> None: ...

    for _ in range(2):
        offline.schedule("digest", post, every=60)

    assert list(offline.core.declarations) == ["digest"]


@pytest.mark.spec("R100")
@pytest.mark.parametrize(
    "key", ["", "two\nlines", "bell\a", "x" * 201, 7, "01890a5d-ac96-774b-bcce-b302099a8057"]
)
def test_a_key_is_printable(offline: Duly, key):
    @offline.action
    def post(ctx: Ctx) -> None: ...

    with pytest.raises(InvalidOption, match="key"):
        offline.schedule(key, post, every=60)


@pytest.mark.spec("R197")
def test_arguments_are_taken_when_they_are_declared(app: Duly):
    @app.action
    def post(ctx: Ctx, audiences: list[str]) -> None: ...

    audiences = ["tech"]
    digest = app.schedule("digest", post.bind(audiences), every=60)
    audiences.append("business")
    start(app)

    assert app.schedules.get(digest).arguments == {"audiences": ["tech"]}


async def nothing() -> None: ...


@pytest.mark.spec("R197")
@pytest.mark.parametrize("kind", ["function", "class", "coroutine", "future"])
def test_what_can_be_called_or_awaited_is_no_argument(offline: Duly, kind):
    @offline.action
    def post(ctx: Ctx, data: Any, more: Any = None) -> None: ...

    loop = asyncio.new_event_loop()
    coroutine = nothing()
    value = {
        "function": print,
        "class": int,
        "coroutine": coroutine,
        "future": loop.create_future(),
    }[kind]
    try:
        with pytest.raises(InvalidArgument, match="data"):
            offline.schedule("digest", post.bind({"deep": [value]}), every=60)
        with pytest.raises((InvalidArgument, InvalidRotation)):
            offline.schedule("digest", post, every=60, rotation=[{"data": value}])
    finally:
        coroutine.close()
        loop.close()
    assert offline.core.declarations == {}


def test_type_hints_are_not_resolved_before_they_can_be(app: Duly):
    @app.action
    def post(ctx: Ctx, when: Later = 1) -> None: ...  # type: ignore[name-defined]  # noqa: F821

    with pytest.raises(InvalidCron):
        app.schedule("digest", post, cron="nonsense")
    app.schedule("digest", post, cron="0 9 * * *", rotation=[{"when": 2}])
    app.schedule("other", post, cron="0 9 * * *", rotation=[{"nobody": 2}])

    globals()["Later"] = int
    try:
        with pytest.raises(InvalidRotation):
            app.schedules.plan()
        del app.core.declarations["other"]
        app.schedules.apply()
        assert app.schedules.get("digest").rotation == [{"when": 2}]
    finally:
        del globals()["Later"]


# Applying ----------------------------------------------------------------------------------------


@pytest.mark.spec("N12", "R101")
def test_a_set_is_applied_by_whoever_starts_with_it(release: Release, clock):
    app = release({"digest": NINE | {"bind": {"audience": "tech"}}})
    with pytest.raises(ScheduleNotFound):
        app.schedules.get("digest")

    start(app)

    schedule = app.schedules.get("digest")
    assert (schedule.declared, schedule.status) == (True, "enabled")
    at(clock, utc(2026, 7, 1, 9))
    tick_all(app)
    assert [job.result() for job in drain(app)] == ["tech"]


def test_a_declaration_stands_for_its_key(app: Duly, clock):
    @app.action
    def post(ctx: Ctx) -> None: ...

    app.schedules.of("anna").create("digest", post, **TEN)
    app.schedules.create("digest", post, **TEN)
    digest = app.schedule("digest", post, **NINE)
    app.schedules.apply()

    assert app.schedules.get(digest).next_tick == utc(2026, 7, 1, 9)
    assert app.schedules.disable(digest).status == "disabled"
    assert app.schedules.run(digest).outcome == "dispatched"
    with pytest.raises(ScheduleNotFound):
        app.schedules.of("anna").get(digest)
    with pytest.raises(InvalidOption, match="owner"):
        app.schedules.of("anna").apply()


def test_async_code_plans_and_applies_too(release: Release):
    app = release({"digest": NINE})

    async def deploy() -> None:
        assert kinds(await app.aio.schedules.plan()) == {"digest": "create"}
        assert kinds(await app.aio.schedules.apply()) == {"digest": "create"}
        assert not await app.aio.schedules.prune(dry_run=True)

    asyncio.run(deploy())


def test_what_is_declared_is_there_when_the_app_has_started(url: str, app: Duly):
    live = Duly(url)

    @live.action
    def post(ctx: Ctx) -> None: ...

    digest = live.schedule("digest", post, every=3600)
    with live:
        assert live.schedules.get(digest).status == "enabled"
    live.close()


@pytest.mark.spec("R101", "N12")
def test_the_same_definition_keeps_its_state_and_next_tick(release: Release, clock):
    given = {
        "digest": {
            "every": 3600,
            "remaining": 5,
            "rotation": [{"audience": "a"}, {"audience": "b"}, {"audience": "c"}],
        }
    }
    app = start(release(given))
    clock.advance(3600)
    tick_all(app)
    clock.advance(1800)
    before = app.schedules.get("digest").record

    new = release(given | {"other": NINE})
    assert kinds(new.schedules.plan()) == {"digest": "unchanged", "other": "create"}
    start(new)

    assert new.schedules.get("digest").record == before
    assert (before.rotation_index, before.remaining) == (1, 4)
    assert before.next_tick_at == utc(2026, 7, 1, 2).timestamp() * 1000


@pytest.mark.spec("R101")
@pytest.mark.parametrize(
    "trigger", [{"cron": "30 0 * * *"}, {"cron": "0 9 * * *", "tz": "Asia/Tokyo"}, {"every": 1800}]
)
def test_a_changed_trigger_counts_from_now(release: Release, clock, trigger):
    old = start(release({"digest": NINE | {"rotation": [{"audience": "a"}, {"audience": "b"}]}}))
    at(clock, utc(2026, 7, 1, 9))
    tick_all(old)
    at(clock, utc(2026, 7, 2))

    given = trigger | {"rotation": [{"audience": "a"}, {"audience": "b"}]}
    app = start(release({"digest": given}))

    schedule = app.schedules.get("digest")
    assert schedule.next_tick == utc(2026, 7, 2, 0, 30) if "tz" not in trigger else utc(2026, 7, 3)
    assert (schedule.rotation_index, len(app.schedules.ticks("digest"))) == (1, 1)


@pytest.mark.spec("R101")
@pytest.mark.parametrize(
    ("options", "look"),
    [
        ({"overlap": "allow"}, lambda s: s.policies.overlap == "allow"),
        ({"catch_up": 3}, lambda s: s.policies.catch_up == 3),
        ({"bind": {"audience": "tech"}}, lambda s: s.arguments == {"audience": "tech"}),
        ({"rotation": [{"audience": "a"}]}, lambda s: s.rotation == [{"audience": "a"}]),
        ({"condition": STOPPED}, lambda s: s.condition == STOPPED),
        ({"note": "for Anna"}, lambda s: s.note == "for Anna"),
        ({"remaining": 3}, lambda s: s.remaining == 3),
        ({"calendar": "us-federal-holidays-2026"}, lambda s: s.calendar is not None),
    ],
)
def test_any_other_change_keeps_the_next_tick(release: Release, clock, options, look):
    old = start(release({"digest": {"every": 3600}}))
    # A tick that is overdue is still the next one.
    clock.advance(5400)

    app = release({"digest": {"every": 3600, **options}})
    app.schedules.apply()

    schedule = app.schedules.get("digest")
    assert look(schedule)
    assert schedule.next_tick == utc(2026, 7, 1, 1)
    assert schedule.id == old.schedules.get("digest").id
    [entry] = release({"digest": {"every": 3600}}).schedules.plan()
    [name] = options
    assert list(entry.fields) == ["arguments" if name == "bind" else name]


@pytest.mark.spec("R101")
def test_jitter_that_is_declared_later_moves_only_when_the_tick_is_looked_at(release: Release):
    start(release({"digest": NINE}))

    app = start(release({"digest": NINE | {"jitter": 3600}}))

    schedule = app.schedules.get("digest")
    assert schedule.next_tick == utc(2026, 7, 1, 9)
    assert schedule.due is not None
    assert timedelta() < schedule.due - schedule.next_tick <= timedelta(hours=1)


@pytest.mark.spec("R101")
def test_what_is_no_longer_declared_is_disabled_and_kept(release: Release, clock):
    old = start(release({"digest": NINE, "report": TEN}))
    at(clock, utc(2026, 7, 1, 10))
    tick_all(old)

    app = start(release({"report": TEN}))

    orphan = app.schedules.get("digest")
    assert (orphan.status, orphan.enabled, orphan.next_tick) == ("orphaned", False, None)
    assert actions(app, "digest") == ["create", "orphan"]
    at(clock, utc(2026, 7, 3))
    tick_all(app)
    assert len(app.schedules.ticks("digest")) == 1
    assert len(app.schedules.ticks("report")) == 2


@pytest.mark.spec("R101")
def test_only_a_prune_removes_and_it_can_be_looked_at_first(release: Release, clock):
    start(release({"digest": NINE, "report": TEN}))
    app = start(release({"report": TEN}))
    orphan = app.schedules.get("digest")
    app.schedules.create("by hand", app.function("post"), cron="0 9 * * *")

    assert kinds(app.schedules.prune(dry_run=True)) == {"digest": "remove"}
    assert app.schedules.get("digest").id == orphan.id

    assert kinds(app.schedules.prune(by="anna")) == {"digest": "remove"}
    assert sorted(s.key for s in app.schedules.list()) == ["by hand", "report"]
    [removal, *_] = app.store.audit_of(f"schedule:{orphan.id}")
    assert (removal.action, removal.actor) == ("schedule.remove", "anna")
    assert not app.schedules.prune()


def test_a_prune_leaves_what_this_code_declares(release: Release):
    old = start(release({"digest": NINE, "report": TEN}))
    start(release({"report": TEN}))

    assert not old.schedules.prune()
    assert kinds(old.schedules.plan())["digest"] == "revive"


@pytest.mark.spec("N24", "R101")
def test_a_prune_leaves_what_newer_code_declares(release: Release):
    start(release({"digest": NINE, "report": TEN}))
    app = start(release({"report": TEN}))

    assert kinds(release({}).schedules.prune()) == {"digest": "remove"}
    assert [s.key for s in app.schedules.list()] == ["report"]


@pytest.mark.spec("R101")
def test_a_declaration_that_comes_back_is_the_same_schedule(release: Release, clock):
    first = start(release({"digest": NINE, "report": TEN}))
    at(clock, utc(2026, 7, 1, 9))
    tick_all(first)
    start(release({"report": TEN}))
    at(clock, utc(2026, 7, 5, 9, 30))

    app = start(release({"digest": NINE, "report": TEN, "third": NINE}))

    schedule = app.schedules.get("digest")
    assert (schedule.status, schedule.next_tick) == ("enabled", utc(2026, 7, 6, 9))
    assert [tick.at for tick in app.schedules.ticks("digest")] == [utc(2026, 7, 1, 9)]
    assert schedule.id == first.schedules.get("digest").id


# Operators ---------------------------------------------------------------------------------------


@pytest.mark.spec("R101", "N12")
def test_what_an_operator_disabled_stays_disabled(release: Release):
    app = start(release({"digest": NINE}))
    app.schedules.disable("digest", note="broken", by="anna")

    app = start(release({"digest": NINE, "report": NINE}))
    assert app.schedules.get("digest").status == "disabled"

    app = start(release({"digest": TEN, "report": NINE}))
    schedule = app.schedules.get("digest")
    assert (schedule.status, schedule.note, expression_of(schedule)) == (
        "disabled",
        "broken",
        "0 10 * * *",
    )

    start(release({"report": NINE}))
    app = start(release({"digest": TEN, "report": TEN}))
    assert app.schedules.get("digest").status == "disabled"

    assert app.schedules.apply() or app.schedules.get("digest").status == "disabled"
    assert app.schedules.enable("digest").next_tick == utc(2026, 7, 1, 10)


def test_code_may_enable_and_disable_too(release: Release):
    app = start(release({"digest": NINE | {"enabled": False}}))
    assert app.schedules.get("digest").status == "disabled"

    app = start(release({"digest": NINE}))
    assert app.schedules.get("digest").next_tick == utc(2026, 7, 1, 9)

    app = start(release({"digest": NINE | {"enabled": False, "note": "not now"}}))
    assert app.schedules.get("digest").status == "disabled"


@pytest.mark.spec("N12")
def test_what_an_operator_changed_stays_unless_the_code_changes_it(release: Release):
    app = start(release({"digest": NINE}))
    app.schedules.update("digest", cron="0 8 * * *", jitter=60)

    app = start(release({"digest": NINE | {"overlap": "allow"}}))
    schedule = app.schedules.get("digest")
    assert expression_of(schedule) == "0 8 * * *"
    assert (schedule.policies.overlap, schedule.policies.jitter) == ("allow", 60_000)

    app = start(release({"digest": TEN | {"overlap": "allow"}}))
    assert app.schedules.get("digest").next_tick == utc(2026, 7, 1, 10)


@pytest.mark.spec("N12")
def test_a_start_that_an_operator_chose_outlives_a_changed_trigger(release: Release):
    app = start(release({"digest": NINE, "poll": {"every": 600}}))
    for key in ("digest", "poll"):
        app.schedules.update(key, start_at=utc(2026, 9, 1), by="anna")

    app = start(release({"digest": TEN, "poll": {"every": 1200}}))

    coming = {key: app.schedules.get(key).next_tick for key in ("digest", "poll")}
    assert coming == {"digest": utc(2026, 9, 1, 10), "poll": utc(2026, 9, 1)}
    assert app.schedules.get("digest").start_at == utc(2026, 9, 1)


@pytest.mark.spec("N12")
def test_a_trigger_that_an_operator_chose_outlives_a_changed_start(release: Release):
    given: Given = {
        "poll": {"every": 600},
        "digest": {"every": 600},
        "anchored": {"trigger": ANCHORED},
    }
    app = start(release(given))
    app.schedules.update("poll", every=7200, by="anna")
    app.schedules.update("digest", cron="0 9 * * *", by="anna")

    later = {"start_at": utc(2026, 7, 2, 0, 30)}
    app = start(release({key: dict(options) | later for key, options in given.items()}))

    def coming(key: str) -> list[Any]:
        return [tick.utc for tick in app.schedules.preview(key, 2)]

    assert coming("poll") == [utc(2026, 7, 2, 0, 30), utc(2026, 7, 2, 2, 30)]
    assert coming("digest") == [utc(2026, 7, 2, 9), utc(2026, 7, 3, 9)]
    # What code itself says of an interval's phase is not forgotten either.
    assert coming("anchored") == [utc(2026, 7, 2, 0, 37), utc(2026, 7, 2, 0, 47)]


def test_a_new_definition_wakes_what_is_parked(release: Release, url: str, clock):
    app = start(release({"digest": NINE}))
    other = Duly(url, name="other", clock=clock)
    at(clock, utc(2026, 7, 1, 9))
    app.store.edit_schedule(app.schedules.get("digest").id, _without_next, "park", None, None, 0)
    tick_all(other)
    assert app.schedules.get("digest").status == "parked"

    app = start(release({"digest": NINE | {"note": "mended"}}))

    schedule = app.schedules.get("digest")
    assert (schedule.status, schedule.next_tick) == ("enabled", utc(2026, 7, 2, 9))
    other.close()


def _without_next(record: Any) -> Any:
    return msgspec.structs.replace(
        record, next_tick_at=None, due_at=None, error="no such function", parked_at=1
    )


# Plans -------------------------------------------------------------------------------------------


@pytest.mark.spec("N12")
def test_a_plan_says_what_would_change_and_changes_nothing(release: Release, clock):
    start(
        release(
            {
                "changed": NINE | {"bind": {"token": "old secret"}, "jitter": 60},
                "gone": NINE,
                "same": NINE,
                "was called": TEN,
            }
        )
    )
    app = release(
        {
            "changed": TEN | {"bind": {"token": "new secret"}, "overlap": "allow"},
            "same": NINE,
            "is called": TEN,
            "new": {"cron": "0 11 * * *"},
        }
    )
    stored = app.schedules.list()
    audited = [len(app.store.audit_of(f"schedule:{s.id}")) for s in stored]

    plan = app.schedules.plan()

    assert kinds(plan) == {
        "changed": "change",
        "same": "unchanged",
        "is called": "rename",
        "new": "create",
        "gone": "orphan",
    }
    changed = next(entry for entry in plan if entry.key == "changed")
    assert changed.fields == {
        "arguments": ({"token": "***"}, {"token": "***"}),
        "jitter": (60, 0),
        "overlap": ("skip", "allow"),
        "trigger": ("0 9 * * * (UTC)", "0 10 * * * (UTC)"),
    }
    assert "secret" not in str(plan)
    assert "    overlap: 'skip' -> 'allow'\n" in str(plan)
    assert "> is called: rename from was called\n" in str(plan)
    assert str(plan).endswith("\n1 unchanged")
    assert plan == app.schedules.apply(dry_run=True)

    assert [s.record for s in app.schedules.list()] == [s.record for s in stored]
    assert [len(app.store.audit_of(f"schedule:{s.id}")) for s in stored] == audited
    applied = app.schedules.apply()
    assert kinds(applied) == kinds(plan)
    assert not app.schedules.plan()
    assert not app.schedules.apply()


@pytest.mark.spec("N24")
def test_a_rename_keeps_everything_but_the_key(release: Release, clock):
    given = {"cron": "H 9 * * *", "rotation": [{"audience": "a"}, {"audience": "b"}]}
    old = start(release({"old name": given, "other": NINE}))
    clock.advance(86400)
    tick_all(old)
    old.schedules.disable("other")
    before = old.schedules.get("old name")

    app = release({"new name": given, "another": NINE})
    assert kinds(app.schedules.plan()) == {"new name": "rename", "another": "rename"}
    start(app)

    after = app.schedules.get("new name")
    assert (after.id, after.rotation_index, after.next_tick) == (before.id, 1, before.next_tick)
    assert len(app.schedules.ticks("new name")) == 1
    assert app.schedules.get("another").status == "disabled"
    with pytest.raises(ScheduleNotFound):
        app.schedules.get("old name")
    # The next deploy finds it as it is.
    assert kinds(app.schedules.plan()) == {"new name": "unchanged", "another": "unchanged"}


def test_a_start_that_changes_keeps_the_spread_of_a_renamed_schedule(release: Release):
    start(release({"old name": {"cron": "H H * * *"}}))
    app = start(release({"new name": {"cron": "H H * * *"}}))
    before = app.schedules.get("new name")

    start(release({"new name": {"cron": "H H * * *", "start_at": utc(2026, 8, 1)}}))

    after = app.schedules.get("new name")
    assert after.next_tick is not None
    assert after.trigger == before.trigger
    assert after.next_tick >= utc(2026, 8, 1)


def test_an_interval_counts_from_the_start_that_is_declared(release: Release):
    start(release({"digest": {"every": 3600}}))

    app = start(release({"digest": {"every": 3600, "start_at": utc(2026, 7, 4, 0, 20)}}))

    coming = [tick.utc for tick in app.schedules.preview("digest", 2)]
    assert coming == [utc(2026, 7, 4, 0, 20), utc(2026, 7, 4, 1, 20)]


@pytest.mark.spec("R19")
def test_another_zone_of_an_interval_changes_no_tick(release: Release, clock):
    app = start(release({"digest": {"every": 3600}}))
    clock.advance(600)
    before = app.schedules.get("digest")

    app = release({"digest": {"every": 3600, "tz": "Asia/Tokyo"}})
    [entry] = app.schedules.plan()
    assert entry.fields == {"trigger": ("Every hour", "Every hour (Asia/Tokyo)")}
    after = start(app).schedules.get("digest")

    assert after.tz == "Asia/Tokyo"
    assert after.next_tick == before.next_tick
    assert isinstance(after.trigger, Every)
    assert isinstance(before.trigger, Every)
    assert after.trigger.anchor == before.trigger.anchor
    assert kinds(app.schedules.plan()) == {"digest": "unchanged"}


def test_a_schedule_that_is_there_is_not_renamed_over(release: Release):
    start(release({"a": NINE, "b": TEN}))
    start(release({"a": NINE}))

    app = release({"b": NINE})

    assert kinds(app.schedules.plan()) == {"b": "revive", "a": "orphan"}
    start(app)
    assert app.schedules.get("b").next_tick == utc(2026, 7, 1, 9)


# Old alongside new, others alongside us ----------------------------------------------------------


@pytest.mark.spec("N24")
def test_an_old_process_that_starts_again_changes_nothing(release: Release, caplog):
    old = {"digest": NINE, "gone": {"every": 60}}
    new = {"digest": TEN, "report": {"every": 90}}
    start(release(old))
    app = start(release(new))
    before = [s.record for s in app.schedules.list()]

    again = release(old)
    with caplog.at_level(logging.WARNING):
        start(again)

    assert "were replaced by a newer set; to bring them back, run" in caplog.text
    assert [s.record for s in app.schedules.list()] == before
    assert again.schedules.plan().applied_before
    start(release(new))
    assert [s.record for s in app.schedules.list()] == before

    assert kinds(again.schedules.apply(by="anna")) == {
        "digest": "change",
        "gone": "revive",
        "report": "orphan",
    }
    assert again.schedules.get("digest").next_tick == utc(2026, 7, 1, 9)
    # Rolled back: now it is the newer release that restarts alongside it.
    start(release(new))
    assert again.schedules.get("report").status == "orphaned"


@pytest.mark.spec("N24")
def test_an_old_process_that_is_late_changes_nothing(release: Release):
    """It had looked when its set was new, and comes to apply it when it no longer is."""
    late, other = release({"digest": NINE}), release({"digest": NINE})
    start(other)
    app = start(release({"digest": TEN}))

    assert not Declarations(late.core).apply(only_new=True)
    assert app.schedules.get("digest").next_tick == utc(2026, 7, 1, 10)


@pytest.mark.spec("N24")
def test_another_app_on_the_same_database_changes_nothing(release: Release):
    shop = start(release({"digest": NINE, "report": NINE}, name="shop"))
    before = [s.record for s in shop.schedules.list()]

    crm = start(release({"digest": TEN}, name="crm"))

    assert kinds(crm.schedules.plan()) == {"digest": "unchanged"}
    crm.schedules.apply()
    crm.schedules.prune()
    assert [s.record for s in crm.schedules.list() if s.record.app == "shop"] == before
    assert crm.schedules.get("digest").next_tick == utc(2026, 7, 1, 10)
    assert shop.schedules.get("digest").next_tick == utc(2026, 7, 1, 9)
    with pytest.raises(ScheduleNotFound):
        crm.schedules.get("report")


def test_manual_means_that_only_apply_applies(release: Release):
    app = start(release({"digest": NINE}, apply="manual"))
    assert app.schedules.list() == []

    assert kinds(app.schedules.apply()) == {"digest": "create"}
    assert app.schedules.get("digest").status == "enabled"
    with pytest.raises(InvalidOption, match="apply"):
        release({}, apply="sometimes")


def test_a_process_that_declares_nothing_takes_nothing_away(release: Release, caplog):
    app = start(release({"digest": NINE}))

    empty = start(release({}))
    assert app.schedules.get("digest").status == "enabled"
    assert "declares no schedules" in caplog.text

    assert kinds(empty.schedules.apply()) == {"digest": "orphan"}
    assert app.schedules.get("digest").status == "orphaned"


# What goes wrong ---------------------------------------------------------------------------------


def test_a_set_with_an_unknown_function_is_refused(url: str, app: Duly, release: Release):
    other = Duly(NOWHERE)

    @other.action
    def elsewhere(ctx: Ctx) -> None: ...

    @app.declare
    def unheard_of() -> None: ...

    app.schedule("digest", elsewhere, every=60)
    with pytest.raises(UnknownFunction):
        app.schedules.plan()
    del app.core.declarations["digest"]
    app.schedule("report", unheard_of, every=60)
    with pytest.raises(UnknownFunction):
        app.schedules.apply()
    assert app.schedules.list() == []


def test_a_function_that_an_operator_deleted_is_left_out(release: Release):
    app = start(release({"digest": NINE}))
    app.functions.delete("post")
    assert app.schedules.list() == []

    app = start(release({"digest": TEN}))
    assert app.schedules.list() == []
    plan = app.schedules.plan()
    assert (kinds(plan), bool(plan)) == ({"digest": "blocked"}, False)

    app.functions.restore("post")
    app.core.functions.refresh()
    assert kinds(app.schedules.apply()) == {"digest": "create"}


def test_a_store_that_is_away_is_tried_again(app: Duly, release: Release):
    app = release({"digest": NINE})
    ticker = Ticker(app.core)

    def hang_up(point: str) -> None:
        if point == "declared.written":
            raise StoreUnavailable("the line is dead")

    with fault.inject(hang_up), pytest.raises(StoreUnavailable):
        ticker.one_pass()
    assert app.schedules.list() == []
    ticker.one_pass()

    assert app.schedules.get("digest").status == "enabled"


def test_an_app_starts_though_its_set_cannot_be_applied(url: str, app: Duly, caplog):
    live = Duly(url)

    @live.action
    def post(ctx: Ctx) -> None: ...

    live.schedule("digest", post, every=3600)
    away = threading.Event()
    away.set()

    def hang_up(point: str) -> None:
        if point == "declared.written" and away.is_set():
            raise StoreUnavailable("the line is dead")

    with fault.inject(hang_up), live:
        assert "the ticker will try again" in caplog.text
        away.clear()
        wait_until(live.schedules.list, "the schedule")
    live.close()


def test_a_faulty_set_is_not_tried_again_and_again(app: Duly, caplog):
    other = Duly(NOWHERE)

    @other.action
    def elsewhere(ctx: Ctx) -> None: ...

    app.schedule("digest", elsewhere, every=60)
    ticker = Ticker(app.core)
    for _ in range(3):
        ticker.one_pass()

    assert caplog.text.count("were not applied") == 1


@pytest.mark.spec("N12")
def test_a_set_is_applied_as_a_whole_or_not_at_all(release: Release):
    start(release({"a": NINE, "b": {"every": 60}}))
    app = release({"a": TEN, "c": NINE})

    def fail(point: str) -> None:
        if point == "declared.written":
            raise OSError("the power is gone")

    with fault.inject(fail), pytest.raises(OSError, match="power"):
        app.schedules.apply()

    assert kinds(app.schedules.plan()) == {"a": "change", "c": "create", "b": "orphan"}
    assert not app.schedules.plan().applied_before


def test_inside_a_mutation_nothing_is_applied(app: Duly, hire):
    refused: list[str] = []

    @app.mutation
    def deploy(tx: Tx) -> None:
        for verb in (app.schedules.apply, app.schedules.prune):
            try:
                verb()
            except UseTx as error:
                refused.append(str(error))

    app.run(deploy)
    hire().work()
    assert len(refused) == 2


# Together ----------------------------------------------------------------------------------------


@pytest.mark.spec("N12", "R101")
def test_those_who_start_together_apply_once(release: Release):
    given = {f"schedule {n}": NINE for n in range(20)}
    apps = [release(given) for _ in range(4)]

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(start, apps))

    assert len(apps[0].schedules.list()) == 20
    assert all(actions(apps[0], key) == ["create"] for key in given)


@pytest.mark.spec("N12")
def test_different_sets_that_are_applied_together_do_not_mix(release: Release):
    sets = [
        {f"schedule {n}": {"cron": f"{minute} 9 * * *"} for n in range(minute + 5)}
        for minute in range(4)
    ]
    apps = [release(given) for given in sets]

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda app: app.schedules.apply(), apps))

    last = apps[0].store.declared("default").sets[-1]
    [winner] = [n for n, app in enumerate(apps) if not app.schedules.plan()]
    assert len(apps[0].store.declared("default").sets) == 4
    alive = [s for s in apps[0].schedules.list() if s.status == "enabled"]
    assert {s.key: {"cron": expression_of(s)} for s in alive} == sets[winner]
    assert apps[winner].schedules.apply() or apps[0].store.declared("default").sets[-1] == last


APPLY = """
from duly import Ctx, Duly

number, url = int(sys.argv[1]), sys.argv[2]
app = Duly(url)


@app.action
def post(ctx: Ctx) -> None: ...


for each in range(10):
    app.schedule(f"schedule {each}", post, cron="0 9 * * *")
app.ready()
ready()
app.core.apply_declared()
print(len(app.schedules.list()))
app.close()
"""


@pytest.mark.spec("N12", "N24")
def test_processes_that_start_together_apply_once(app: Duly, url: str):
    heard = run_together(APPLY, url, count=4)

    assert [text.split()[-1] for text in heard] == ["10"] * 4
    assert all(actions(app, s.key) == ["create"] for s in app.schedules.list())


@on_postgres
@pytest.mark.spec("R101")
def test_what_ticks_while_a_set_is_applied_is_not_undone(release: Release, clock):
    given = {"every": 60, "rotation": [{"audience": "a"}, {"audience": "b"}, {"audience": "c"}]}
    ticking = start(release({"digest": given}))
    app = release({"digest": given | {"note": "changed"}})
    clock.advance(60)

    def tick_meanwhile(point: str) -> None:
        if point == "declared.read":
            with ThreadPoolExecutor(1) as pool:
                pool.submit(Ticker(ticking.core).one_pass).result()

    with fault.inject(tick_meanwhile):
        app.schedules.apply()
    tick_all(app)

    schedule = app.schedules.get("digest")
    assert (schedule.note, schedule.rotation_index) == ("changed", 1)
    assert schedule.next_tick == utc(2026, 7, 1, 0, 2)


@pytest.mark.spec("R101")
def test_a_set_is_applied_while_others_tick(release: Release, clock):
    given = {f"schedule {n}": {"every": 60, "overlap": "allow"} for n in range(10)}
    ticking = start(release(given))
    apps = [
        release({key: {**options, "note": f"set {n}"} for key, options in given.items()})
        for n in range(3)
    ]
    clock.advance(600)

    with ThreadPoolExecutor(4) as pool:
        ticks = pool.submit(tick_all, ticking, page=2)
        list(pool.map(lambda app: app.schedules.apply(), apps))
        ticks.result()
    # What was locked when the ticker came by is left for its next pass.
    tick_all(ticking)

    for key in given:
        assert len(ticking.schedules.ticks(key)) == 10
        assert ticking.schedules.get(key).next_tick == utc(2026, 7, 1, 0, 11)


@pytest.mark.parametrize("enable", ["enable", "update"])
def test_an_orphan_that_is_enabled_is_no_orphan(release: Release, enable: str):
    release({"digest": NINE}).schedules.apply()
    schedules = release({}).schedules
    schedules.apply()
    assert schedules.update("digest", note="why?").status == "orphaned"
    if enable == "enable":
        schedules.enable("digest")
    else:
        schedules.update("digest", enabled=True)
    schedule = schedules.get("digest")
    assert (schedule.status, schedule.next_tick) == ("enabled", utc(2026, 7, 1, 9))
    assert not schedules.prune()
    assert schedules.get("digest").status == "enabled"


def test_whoever_enables_an_orphan_keeps_it(release: Release):
    start(release({"digest": NINE, "report": NINE}))
    app = start(release({"report": NINE}))
    app.schedules.enable("digest", by="anna")

    # Later sets leave it alone: those without it, and those that declare the same otherwise.
    start(release({"report": TEN}))
    app = start(release({"report": TEN, "news": NINE}))
    assert app.schedules.get("digest").next_tick == utc(2026, 7, 1, 9)
    assert app.schedules.get("digest").status == "enabled"
    assert kinds(app.schedules.plan()) == {"report": "unchanged", "news": "unchanged"}
    assert not app.schedules.prune()
    # It stays with its operator even while it is disabled.
    app.schedules.disable("digest")
    assert not app.schedules.apply()
    assert not app.schedules.prune()

    # Code that declares it again takes it as it is, and what code takes away then is an orphan.
    again = {"report": TEN, "news": NINE, "digest": NINE}
    app = start(release(again))
    assert app.schedules.get("digest").status == "disabled"
    assert set(kinds(app.schedules.apply()).values()) == {"unchanged"}
    app = release({"report": TEN, "news": NINE})
    assert kinds(app.schedules.apply())["digest"] == "orphan"


def test_that_a_schedule_was_disabled_once_is_forgotten_when_it_is_enabled(
    app: Duly, release: Release
):
    here, gone = release({"digest": NINE}), release({})
    here.schedules.apply()
    app.schedules.disable("digest")
    gone.schedules.apply()
    app.schedules.enable("digest")
    assert kinds(here.schedules.apply()) == {"digest": "revive"}
    # Its definition is the same as ever, also under another key.
    assert kinds(release({"news": NINE}).schedules.plan()) == {"news": "rename"}
    gone.schedules.apply()
    assert kinds(here.schedules.apply()) == {"digest": "revive"}
    assert app.schedules.get("digest").status == "enabled"
    # One that is disabled when it becomes an orphan still comes back disabled.
    app.schedules.disable("digest")
    gone.schedules.apply()
    here.schedules.apply()
    assert app.schedules.get("digest").status == "disabled"


def test_what_an_operator_said_of_the_next_tick_outlives_a_changed_end(app: Duly, release: Release):
    release({"digest": NINE}).schedules.apply()
    app.schedules.skip_next("digest")
    release({"digest": NINE | {"end_at": utc(2026, 8, 1)}}).schedules.apply()
    assert app.schedules.preview("digest", 1)[0].reason == "operator"
    release({"digest": TEN}).schedules.apply()
    assert app.schedules.preview("digest", 1)[0].decision == "dispatch"
