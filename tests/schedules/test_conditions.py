"""Conditions: what they see of earlier jobs and of the world, and what that comes to."""

import json
import os
import threading
from collections import deque
from contextlib import closing
from datetime import timedelta
from typing import Any

import msgspec
import pytest

from duly import Ctx, Duly, InvalidCondition, ManualClock, Retry, Schedule, State
from duly.errors import InvalidOption
from duly.model.job import Finish
from duly.runtime import signals
from duly.runtime.ticker import Ticker
from duly.store.schedules.facts import COUNTED
from duly.testing import drain
from tests.jobs.support import Database, Hire, prepare, tidy
from tests.schedules.support import at, ledger, tick_all, utc

DAY = 86_400
COMPLETED = {"/prior_run_result/status": {"eq": "completed"}}


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(utc(2026, 7, 1))


@pytest.fixture
def work(app: Duly) -> Any:
    @app.action
    def work(ctx: Ctx, result: Any = None, fail: bool = False) -> Any:
        if fail:
            raise ValueError("as asked")
        return result

    return work


def done(app: Duly, work: Any, *args: Any, **kwargs: Any) -> str:
    job = app.run(work, *args, **kwargs)
    drain(app, raises=False)
    return job.id


def verdict(app: Duly, condition: Any) -> tuple[str, dict[str, Any]]:
    """What the next tick of a schedule with this condition would come to."""
    app.schedules.update("digest", condition=condition)
    [row] = app.schedules.preview("digest", 1)
    return row.decision, row.detail


def passes(app: Duly, condition: Any) -> bool:
    return verdict(app, condition)[0] == "dispatch"


@pytest.mark.spec("R137")
def test_the_latest_finished_job_of_the_target_is_seen(app: Duly, clock: ManualClock, work: Any):
    app.schedules.create("digest", work, cron="0 9 * * *", overlap="allow")
    assert passes(app, {"/prior_run_result": {"eq": None}})
    assert not passes(app, COMPLETED)

    done(app, work, {"count": 3, "items": [{"id": 7}]})
    assert passes(app, COMPLETED | {"/prior_run_result/count": {"gt": 2}})
    assert passes(app, {"/prior_run_result/items/0/id": {"eq": 7}})
    clock.advance(1)
    done(app, work, 5)
    assert passes(app, COMPLETED | {"/prior_run_result/value": {"eq": 5}})
    clock.advance(1)
    done(app, work, {"status": "partial"})
    assert passes(app, {"/prior_run_result": {"eq": {"status": "partial"}}})
    clock.advance(1)
    done(app, work, fail=True)
    assert passes(app, {"/prior_run_result": {"eq": {"status": "failed"}}})
    clock.advance(1)
    app.run_after(60, work).cancel()
    assert passes(app, {"/prior_run_result": {"eq": {"status": "canceled"}}})
    # What is not finished says nothing yet.
    clock.advance(1)
    app.run_after(60, work)
    assert passes(app, {"/prior_run_result/status": {"eq": "canceled"}})


@pytest.mark.spec("R137")
@pytest.mark.parametrize("delay", [3600, 3 * DAY], ids=["the same day", "another day"])
@pytest.mark.parametrize("days", [1, 40], ids=["a day at a time", "all at once"])
def test_retention_does_not_change_what_is_seen(
    app: Duly, clock: ManualClock, hire: Hire, days: int, delay: int
):
    @app.action
    def work(ctx: Ctx, name: str) -> str:
        return name

    app.schedules.create("digest", work.bind("scheduled"), cron="0 9 1 1 *")
    # The one that was created last ends first, and is the first to grow old.
    slow = app.run_after(delay, work, "slow")
    clock.advance(1)
    app.run(work, "latest")
    worker = hire()
    worker.work()
    clock.advance(delay)
    worker.work()
    assert slow.result(0) == "slow"
    latest = {"/prior_run_result/value": {"eq": "latest"}}
    assert passes(app, latest)
    for _ in range(12):
        clock.advance(days * DAY)
        worker.beat()
        tidy(app)
        assert passes(app, latest)
    assert [job.result(0) for job in app.jobs()] == ["latest"]
    app.run(work, "newer")
    worker.work()
    tidy(app)
    assert passes(app, {"/prior_run_result/value": {"eq": "newer"}})


@pytest.mark.spec("R137")
def test_dead_letters_that_are_kept_are_no_later_than_they_are(
    app: Duly, clock: ManualClock, hire: Hire
):
    @app.action(retry=Retry(attempts=2, delay=0, jitter=0))
    def work(ctx: Ctx, fail: bool) -> None:
        if fail:
            raise ConnectionError

    app.schedules.create("digest", work.bind(False), cron="0 9 1 1 *")
    worker = hire()
    for fail in (True, False):
        app.run(work, fail)
        worker.work()
        clock.advance(1)
    for _ in range(40):
        clock.advance(DAY)
        tidy(app)
        assert passes(app, COMPLETED)


@pytest.mark.spec("R138")
def test_the_last_day_is_counted_by_creation_and_without_its_edge(
    app: Duly, clock: ManualClock, work: Any
):
    app.schedules.create("digest", work, cron="0 9 * * *", overlap="allow")

    def stats(**expected: int) -> bool:
        return passes(app, {"/last_24h_stats": {"eq": expected}})

    assert stats(succeeded=0, failed=0, total=0)
    done(app, work)
    done(app, work, fail=True)
    app.run(work)
    app.run_after(2 * DAY, work).cancel()
    assert stats(succeeded=1, failed=1, total=4)
    clock.advance(DAY - 0.001)
    assert stats(succeeded=1, failed=1, total=4)
    clock.advance(0.001)
    assert stats(succeeded=0, failed=0, total=0)


@pytest.mark.spec("R138")
def test_attempts_are_not_counted_and_running_jobs_are(app: Duly, clock: ManualClock, hire: Hire):
    @app.action(retry=Retry(attempts=3, delay=0, jitter=0))
    def flaky(ctx: Ctx) -> None:
        raise ConnectionError

    app.schedules.create("digest", flaky, cron="0 9 * * *", overlap="allow")
    app.run(flaky)
    worker = hire()
    worker.work()
    assert passes(app, {"/last_24h_stats": {"eq": {"succeeded": 0, "failed": 1, "total": 1}}})
    app.run(flaky)
    worker.claim_only()
    assert passes(app, {"/last_24h_stats": {"eq": {"succeeded": 0, "failed": 1, "total": 2}}})


@pytest.mark.spec("R138")
def test_so_many_are_counted_and_no_more(app: Duly, clock: ManualClock, work: Any, hire: Hire):
    """That no more are looked at is seen in the plans, in tests/store/test_schedule_plans.py."""
    cap = COUNTED
    assert cap == 10_000
    app.schedules.create("digest", work, cron="0 9 * * *", overlap="allow")
    jobs = deque(app.run_many(work.bind() for _ in range(2 * cap + 1)))
    worker = hire(concurrency=len(jobs))

    def stats(**expected: int) -> bool:
        return passes(app, {"/last_24h_stats": {"eq": expected}})

    def end(state: State, count: int) -> None:
        ends = [Finish(id=jobs.popleft().id, token=1, state=state) for _ in range(count)]
        settled, _ = app.store.exchange(ends, None, clock.now())
        assert len(settled) == count

    assert stats(succeeded=0, failed=0, total=cap)  # they all wait
    worker.claim_only()
    assert stats(succeeded=0, failed=0, total=cap)  # they all run
    end(State.SUCCEEDED, cap - 1)
    assert stats(succeeded=cap - 1, failed=0, total=cap)
    end(State.FAILED, cap - 1)
    assert stats(succeeded=cap - 1, failed=cap - 1, total=cap)
    end(State.SUCCEEDED, 1)
    end(State.FAILED, 1)
    assert stats(succeeded=cap, failed=cap, total=cap)
    end(State.SUCCEEDED, 1)
    assert stats(succeeded=cap, failed=cap, total=cap)


@pytest.mark.spec("R136")
def test_a_stored_condition_that_makes_no_sense_fails_its_ticks_and_nothing_else(
    app: Duly, db: Database, clock: ManualClock, work: Any
):
    for key in ("one", "two", "three"):
        app.schedules.create(key, work, cron="0 9 * * *", condition={"": {"neq": 1}})
    bad = {"one": '{"/a": {"between": [1, 2]}}', "two": "{"}
    for key, text in bad.items():
        db.execute("UPDATE @schedules SET condition = ? WHERE key = ?", text, key)
    at(clock, utc(2026, 7, 1, 9))
    tick_all(app)
    assert ledger(app, "three") == [("dispatched", None)]
    for key in bad:
        [tick] = app.schedules.ticks(key)
        assert (tick.outcome, tick.reason) == ("skipped", "condition_failed")
        assert tick.detail["error"]
        assert app.schedules.get(key).status == "enabled"
    assert "between" in app.schedules.ticks("one")[0].detail["error"]
    assert app.schedules.update("one", condition=None).condition is None


MISSPELLED = {"/last_24h_stat/failed": {"lt": 3}}


@pytest.mark.spec("N74")
def test_a_value_that_does_not_exist_is_refused_wherever_a_condition_is_given(app: Duly, work: Any):
    app.schedules.create("digest", work, cron="0 9 * * *")
    for give in (
        lambda: app.schedules.create("new", work, cron="0 9 * * *", condition=MISSPELLED),
        lambda: app.schedules.update("digest", condition=MISSPELLED),
        lambda: app.schedule("declared", work, cron="0 9 * * *", condition=MISSPELLED),
        lambda: app.schedules.explain("digest", MISSPELLED),
    ):
        with pytest.raises(InvalidCondition, match="did you mean 'last_24h_stats'") as refused:
            give()
        assert refused.value.pointer == "/last_24h_stat/failed"
    assert app.schedules.get("digest").condition is None
    assert [schedule.key for schedule in app.schedules.list()] == ["digest"]


@pytest.mark.spec("N74")
def test_a_stored_value_that_does_not_exist_is_evaluated_and_explained(
    app: Duly, db: Database, clock: ManualClock, work: Any
):
    stored = {"digest": {"lt": 3}, "other": {"neq": 3}}
    for key, operator in stored.items():
        app.schedules.create(key, work, cron="0 9 * * *", overlap="allow")
        condition = json.dumps({"/last_24h_stat/failed": operator}, separators=(",", ":"))
        db.execute("UPDATE @schedules SET condition = ? WHERE key = ?", condition, key)
    # Another change keeps it.
    assert app.schedules.update("digest", note="kept").condition == MISSPELLED
    assert app.schedules.update("digest", condition=MISSPELLED).condition == MISSPELLED
    at(clock, utc(2026, 7, 1, 9))
    tick_all(app)
    assert ledger(app, "digest") == [("skipped", "condition_failed")]
    assert ledger(app, "other") == [("dispatched", None)]
    for key in stored:
        [check] = app.schedules.explain(key).checks
        assert "did you mean 'last_24h_stats'?" in check.why


@pytest.mark.spec("N76")
def test_a_schedule_says_what_a_missing_previous_run_comes_to(
    app: Duly, clock: ManualClock, work: Any
):
    after_success = {"/prior_run_result/status": {"eq": "succeeded"}}
    not_failed = {"/prior_run_result/status": {"neq": "failed"}}
    options: dict[str, dict[str, Any]] = {
        "usual": {"condition": after_success},
        "starts": {"condition": after_success, "first_run": "pass"},
        "waits": {"condition": not_failed, "first_run": "fail"},
        "other": {"condition": after_success | {"": {"eq": 1}}, "first_run": "pass"},
    }
    for key, given in options.items():
        app.schedules.create(key, work.bind(key), cron="0 9 * * *", overlap="allow", **given)
    at(clock, utc(2026, 7, 1, 9))
    tick_all(app)
    dispatched, skipped = [("dispatched", None)], [("skipped", "condition_failed")]
    assert {key: ledger(app, key) for key in options} == {
        "usual": skipped,
        "starts": dispatched,
        "waits": skipped,
        "other": skipped,
    }
    assert "first_run is fail" in app.schedules.ticks("waits")[0].detail["why"]
    drain(app)
    for key in ("usual", "starts", "waits"):
        assert app.schedules.explain(key).passes
    assert app.schedules.get("waits").policies.first_run == "fail"
    with pytest.raises(InvalidOption, match="must be one of check, pass, fail"):
        app.schedules.update("waits", first_run="maybe")  # type: ignore[arg-type]


def test_a_long_detail_is_cut_and_still_says_why(app: Duly, clock: ManualClock, work: Any):
    condition = {f"/prior_run_result/{n}/{'x' * 90}": {"eq": n} for n in range(60)}
    app.schedules.create("digest", work, cron="0 9 * * *", condition=condition)
    foreseen = app.schedules.preview("digest", 1)[0].detail
    at(clock, utc(2026, 7, 1, 9))
    tick_all(app)
    detail = app.schedules.ticks("digest")[0].detail
    assert detail == foreseen
    assert detail["truncated"]
    assert "is missing" in detail["why"]
    assert len(json.dumps(detail)) < 5_000


# The signal --------------------------------------------------------------------------------------

OPEN = {"/signal_rpc_result/open": {"eq": True}}


def with_hook(app: Duly, url: str, hook: Any, **settings: Any) -> Duly:
    other = prepare(Duly(url, clock=app.clock, signal=hook, **settings))
    for function in app.functions.values():
        other.core.functions.register(function)
    return other


@pytest.mark.spec("R139")
def test_without_a_hook_the_signal_is_null(app: Duly, work: Any):
    app.schedules.create("digest", work, cron="0 9 * * *")
    assert passes(app, {"/signal_rpc_result": {"eq": None}})
    assert not passes(app, OPEN)


@pytest.mark.spec("R139")
def test_the_hook_is_asked_for_those_that_look_at_it(
    app: Duly, url: str, clock: ManualClock, work: Any
):
    seen: list[Schedule] = []

    def hook(schedule: Schedule) -> Any:
        seen.append(schedule)
        return {"open": schedule.key == "yes"}

    other = with_hook(app, url, hook)
    for key in ("yes", "no"):
        app.schedules.create(key, work.bind(key), cron="0 9 * * *", condition=OPEN)
    app.schedules.create("else", work, cron="0 9 * * *", condition=COMPLETED)
    at(clock, utc(2026, 7, 1, 9))
    tick_all(other)
    assert sorted(s.key for s in seen) == ["no", "yes"]
    assert all(type(s) is Schedule and s.arguments == {"result": s.key} for s in seen)
    assert ledger(app, "yes") == [("dispatched", None)]
    assert ledger(app, "no") == [("skipped", "condition_failed")]
    assert app.schedules.ticks("no")[0].detail["checks"][0]["actual"] is False
    other.close()


def _raise(schedule: Schedule) -> Any:
    raise OSError("no route to the signal")


def _half(schedule: Schedule) -> Any:
    raise OSError(os.fsdecode(b"no file \xff"))


def _exit(schedule: Schedule) -> Any:
    raise SystemExit(1)


@pytest.mark.spec("R139")
@pytest.mark.parametrize(
    ("hook", "why"),
    [
        (_raise, "OSError: no route to the signal"),
        (_half, "no file \\udcff"),
        (_exit, "SystemExit"),
        (lambda schedule: {"open": object()}, ".open: object is not JSON"),
        (lambda schedule: float("nan"), "nan is not a JSON number"),
        (lambda: True, "TypeError"),
    ],
)
def test_a_hook_that_fails_fails_the_condition(
    app: Duly, url: str, clock: ManualClock, work: Any, hook: Any, why: str
):
    other = with_hook(app, url, hook)
    app.schedules.create("digest", work, cron="0 9 * * *", condition=OPEN)
    app.schedules.create("other", work, cron="0 9 * * *")
    assert why in other.schedules.preview("digest", 1)[0].detail["error"]
    at(clock, utc(2026, 7, 1, 9))
    tick_all(other)
    [tick] = app.schedules.ticks("digest")
    assert (tick.outcome, tick.reason) == ("skipped", "condition_failed")
    assert why in tick.detail["error"]
    assert ledger(app, "other") == [("dispatched", None)]
    other.close()


@pytest.mark.spec("R139")
def test_a_hook_that_hangs_fails_its_condition_and_nobody_waits_for_it(
    app: Duly, url: str, clock: ManualClock, work: Any, monkeypatch: pytest.MonkeyPatch
):
    release = threading.Event()

    def hook(schedule: Schedule) -> Any:
        if schedule.key == "slow":
            release.wait(60)
        return {"open": True}

    seats = threading.Semaphore(2)
    monkeypatch.setattr(signals, "_seats", seats)
    other = with_hook(app, url, hook, signal_timeout=timedelta(seconds=0.3))
    for key in ("slow", "quick"):
        app.schedules.create(key, work, cron="0 9 * * *", condition=OPEN, overlap="allow")
    for day in (1, 2, 3):
        at(clock, utc(2026, 7, day, 9))
        tick_all(other)
    assert ledger(app, "slow") == [("skipped", "condition_failed")] * 3
    assert "in time" in app.schedules.ticks("slow")[0].detail["error"]
    # Two threads hang: the third time no thread is left to ask.
    assert next(outcome for outcome, _ in ledger(app, "quick")) == "dispatched"
    assert ledger(app, "quick")[-1] == ("skipped", "condition_failed")
    assert all(t.daemon for t in threading.enumerate() if t.name == "duly-signal")
    release.set()
    assert seats.acquire(timeout=60)
    assert seats.acquire(timeout=60)
    other.close()


@pytest.mark.spec("R139")
def test_many_schedules_share_a_few_threads(app: Duly, url: str, clock: ManualClock, work: Any):
    most, now, guard = 0, 0, threading.Lock()

    def hook(schedule: Schedule) -> Any:
        nonlocal most, now
        with guard:
            now += 1
            most = max(most, now)
        with guard:
            now -= 1
        return {"open": True}

    other = with_hook(app, url, hook)
    for n in range(50):
        app.schedules.create(f"s{n}", work, cron="0 9 * * *", condition=OPEN)
    at(clock, utc(2026, 7, 1, 9))
    tick_all(other)
    assert all(ledger(app, f"s{n}") == [("dispatched", None)] for n in range(50))
    assert most <= signals.MAX_CALLS_AT_ONCE
    other.close()


@pytest.mark.spec("R139")
def test_whoever_there_was_no_time_to_ask_is_asked_in_the_next_pass(
    app: Duly, url: str, clock: ManualClock, work: Any, monkeypatch: pytest.MonkeyPatch
):
    enough, release = threading.Event(), threading.Event()

    class Open(deque[Any]):
        def clear(self) -> None:
            super().clear()
            enough.set()

    def hook(schedule: Schedule) -> Any:
        if schedule.key == "slow":
            release.wait(0.3)
        if schedule.key == "asked late":
            assert enough.wait(60)
        if schedule.key == "hangs":
            release.wait(60)
        return {"open": True}

    monkeypatch.setattr(signals, "MAX_CALLS_AT_ONCE", 1)
    monkeypatch.setattr(signals, "deque", Open)
    other = with_hook(app, url, hook, signal_timeout=timedelta(seconds=0.5))
    keys = ("slow", "asked late", "quick", "hangs", "last")
    for key in keys:
        app.schedules.create(key, work, cron="0 9 * * *", condition=OPEN)
        clock.advance(0.001)
    at(clock, utc(2026, 7, 1, 9))
    ticker = Ticker(other.core)
    dispatched, skipped = [("dispatched", None)], [("skipped", "condition_failed")]
    assert ticker.one_pass() == 0
    assert [ledger(app, key) for key in keys] == [dispatched, dispatched, [], [], []]
    assert ticker.one_pass() == 0
    assert [ledger(app, key) for key in keys[2:]] == [dispatched, skipped, []]
    assert ticker.one_pass() > 0
    assert ledger(app, "last") == dispatched
    release.set()
    other.close()


@pytest.mark.spec("R139")
def test_without_threads_nobody_is_asked_and_others_tick(
    app: Duly, url: str, clock: ManualClock, work: Any, monkeypatch: pytest.MonkeyPatch
):
    def no_more(thread: threading.Thread) -> None:
        if thread.name == "duly-signal":
            raise RuntimeError("can't start new thread")
        start(thread)

    seats, start = threading.Semaphore(2), threading.Thread.start
    monkeypatch.setattr(signals, "_seats", seats)
    other = with_hook(app, url, lambda schedule: {"open": True})
    app.schedules.create("asks", work, cron="0 9 * * *", condition=OPEN)
    app.schedules.create("does not", work, cron="0 9 * * *")
    at(clock, utc(2026, 7, 1, 9))
    ticker = Ticker(other.core)
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", no_more)
        for _ in range(3):
            ticker.one_pass()
        assert "in time" in other.schedules.preview("asks", 1)[0].detail["error"]
    assert [ledger(app, key) for key in ("asks", "does not")] == [[], [("dispatched", None)]]
    ticker.one_pass()
    assert ledger(app, "asks") == [("dispatched", None)]
    other.close()


@pytest.mark.spec("R140")
def test_ticks_follow_the_example_of_the_document(app: Duly, clock: ManualClock, work: Any):
    """Only dispatch when the prior run succeeded and the 24h failure count is low."""
    example = COMPLETED | {"/last_24h_stats/failed": {"lt": 3}}
    app.schedules.create("digest", work, cron="0 * * * *", condition=example, overlap="allow")

    def next_tick() -> tuple[str, str | None]:
        clock.advance(3600)
        tick_all(app)
        drain(app)
        return ledger(app, "digest")[-1]

    assert next_tick() == ("skipped", "condition_failed"), "there is no prior run"
    done(app, work)
    assert next_tick() == ("dispatched", None)
    for _ in range(2):
        done(app, work, fail=True)
    assert next_tick() == ("skipped", "condition_failed"), "the prior run failed"
    clock.advance(1)
    done(app, work)
    assert next_tick() == ("dispatched", None), "two failures are fewer than three"
    done(app, work, fail=True)
    clock.advance(1)
    done(app, work)
    assert next_tick() == ("skipped", "condition_failed"), "three are not"
    clock.advance(DAY)
    app.schedules.enable("digest")
    tick_all(app)
    assert next_tick() == ("dispatched", None), "they are more than a day ago"


@pytest.mark.spec("R140")
def test_a_condition_that_is_tried_gets_the_signal_that_it_looks_at(url: str):
    asked: list[str] = []

    def signal(schedule: Schedule) -> Any:
        asked.append(schedule.key)
        return {"mood": "calm"}

    with closing(prepare(Duly(url, clock=ManualClock(), signal=signal))) as app:

        @app.action
        def post(ctx: Ctx) -> None: ...

        looks = {"/signal_rpc_result/mood": {"eq": "calm"}}
        app.schedules.create("without", post, cron="0 * * * *")
        app.schedules.create("with", post, cron="0 * * * *", condition=looks)

        tried = app.schedules.explain("without", looks)
        assert [(check.found, check.actual) for check in tried.checks] == [(True, "calm")]
        assert tried.passes
        assert asked == ["without"]
        assert app.schedules.explain("with").passes
        assert asked == ["without", "with"]
        assert app.schedules.explain("with", {"/last_24h_stats/failed": {"lt": 3}}).passes
        assert asked == ["without", "with"], "this one does not look at it"


@pytest.mark.spec("R140")
def test_a_condition_is_explained_operator_by_operator(app: Duly):
    @app.action
    def post(ctx: Ctx) -> None: ...

    condition = {
        "/prior_run_result/status": {"eq": "completed"},
        "/last_24h_stats/failed": {"lt": 3},
    }
    app.schedules.create("digest", post, cron="0 * * * *", condition=condition)
    found = app.schedules.explain("digest")
    assert not found.passes
    assert [(check.pointer, check.found, check.actual, check.passes) for check in found.checks] == [
        ("/prior_run_result/status", False, None, False),
        ("/last_24h_stats/failed", True, 0, True),
    ]
    app.run(post)
    drain(app)
    assert app.schedules.explain("digest").passes
    # Another one is tried without being stored.
    other = app.schedules.explain("digest", {"/last_24h_stats/total": {"gt": 1}})
    assert other.detail == "/last_24h_stats/total is 1, expected > 1"
    assert app.schedules.get("digest").condition == condition
    with pytest.raises(InvalidCondition, match="nonsense"):
        app.schedules.explain("digest", {"nonsense": {"eq": 1}})


def test_whoever_was_not_asked_for_is_left_to_the_next_pass(
    url: str, clock: ManualClock, app: Duly, work: Any, monkeypatch: pytest.MonkeyPatch
):
    """Another ticker takes those that were looked at; those locked instead have no answer yet."""
    app.core.settings = msgspec.structs.replace(
        app.core.settings, signal=lambda schedule: {"stop": True}
    )
    closed = {"/signal_rpc_result": {"eq": None}}
    for key in ("first", "second"):
        app.schedules.create(key, work, cron="0 9 * * *", condition=closed, overlap="allow")
    at(clock, utc(2026, 7, 1, 9))
    store = app.ready()
    tick = store.tick
    once = [1]

    def late(*args: Any, **kwargs: Any) -> Any:
        if once:
            once.clear()
            app.schedules.remove("first")
        return tick(*args, **kwargs)

    ticker = Ticker(app.core, page=1)
    peek = store.due_schedules
    monkeypatch.setattr(store, "due_schedules", lambda now, limit, **k: peek(now, 1, **k))
    monkeypatch.setattr(store, "tick", late)
    assert ticker.one_pass() > 0
    assert app.schedules.ticks("second") == []
    ticker.one_pass()
    assert ledger(app, "second") == [("skipped", "condition_failed")]


@pytest.mark.spec("R137", "R138")
def test_a_renamed_function_keeps_its_history(app: Duly, clock: ManualClock, url: str, work: Any):
    app.schedules.create("digest", work, cron="0 9 * * *", overlap="allow", condition=COMPLETED)
    done(app, work, {"n": 1})
    clock.advance(1)
    renamed = Duly(url, clock=clock)

    @renamed.action(aliases=("work",))
    def job(ctx: Ctx, result: Any = None, fail: bool = False) -> Any:
        return result

    renamed.functions.publish()
    assert passes(renamed, {"/prior_run_result/n": {"eq": 1}})
    renamed.run(job, {"n": 2})
    drain(renamed)
    # Both by the old name, which the schedule has, and by the new one.
    for _ in range(2):
        assert passes(renamed, {"/prior_run_result/n": {"eq": 2}})
        assert passes(renamed, {"/last_24h_stats/total": {"eq": 2}})
        renamed.schedules.update("digest", job)
    renamed.close()
