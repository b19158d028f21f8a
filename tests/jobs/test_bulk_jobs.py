"""Bulk cancel, retry and reschedule by filter: one tracked job, page by page, whatever dies."""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest

from duly import (
    BulkPreview,
    Ctx,
    Duly,
    Function,
    Group,
    Job,
    JobCanceled,
    JobFailed,
    Limit,
    ManualClock,
    Retry,
    State,
    Tx,
    fault,
)
from duly.clock import os_monotonic
from duly.errors import (
    FunctionDeleted,
    InvalidOption,
    InvalidTime,
    QueryTooBroad,
    StoreUnavailable,
    UnknownFunction,
    UseTx,
)
from duly.store.postgres.store import SHORT_QUERY, PostgresStore
from duly.testing import advance, drain, override
from tests.jobs.child import run_until_killed
from tests.jobs.support import (
    PATIENCE,
    Database,
    Hire,
    on_postgres,
    on_sqlite,
    rescue_the_dead,
    state_of,
    tidy,
    wait_until,
)

HOUR = 3600
Send = Function[[int], int]


@pytest.fixture
def send(app: Duly) -> Send:
    @app.action(owner="ada")
    def send(ctx: Ctx, n: int) -> int:
        if n < 0:
            raise ValueError("negative")
        return n

    return send


@pytest.fixture
def other(app: Duly) -> Function[[], None]:
    @app.action(queue="mail")
    def other(ctx: Ctx) -> None: ...

    return other


@pytest.fixture
def pages_of_two(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("duly.calls.bulk.PAGE", 2)


def later(app: Duly, send: Send, count: int) -> list[Job[int]]:
    return [app.run_after(HOUR, send, n) for n in range(count)]


def failed(app: Duly, send: Send, hire: Hire, count: int) -> list[Job[int]]:
    jobs = [app.run(send, -1 - n) for n in range(count)]
    hire().work()
    assert {job.state for job in jobs} == {State.FAILED}
    return jobs


def counts(matched: int, changed: int | None = None) -> dict[str, int]:
    changed = matched if changed is None else changed
    return {"matched": matched, "changed": changed, "skipped": matched - changed}


# Cancel


@pytest.mark.spec("N14")
@pytest.mark.usefixtures("pages_of_two")
def test_a_bulk_cancel_is_one_job_that_cancels_what_matches(
    app: Duly, send: Send, other: Any, hire: Hire
):
    jobs = later(app, send, 5)
    left = app.run_after(HOUR, other)

    bulk = app.bulk.cancel(function=send, by="ada", note="wrong prices")
    assert (bulk.function, bulk.actor) == ("duly.bulk", "ada")
    assert bulk.arguments["order"]["note"] == "wrong prices"
    assert {job.state for job in jobs} == {State.PENDING}, "nothing happens before a worker comes"
    hire().work()

    assert bulk.result(0) == counts(5)
    assert {job.state for job in jobs} == {State.CANCELED}
    assert {job.canceled_by for job in jobs} == {f"job:{bulk.id}"}
    assert left.state == State.PENDING
    assert bulk.progress is not None
    assert (bulk.progress.value, bulk.progress.note) == (1.0, "5 of 5 jobs")
    assert [line.text for line in bulk.logs()] == [
        "cancel: 0 of 5 jobs, 0 changed",
        "cancel: 2 of 5 jobs, 2 changed",
        "cancel: 4 of 5 jobs, 4 changed",
        "cancel: 5 of 5 jobs, 5 changed",
    ]


@pytest.mark.spec("N14")
def test_running_jobs_are_canceled_and_told(app: Duly, hire: Hire):
    seen: list[str] = []

    @app.action
    def wait(ctx: Ctx) -> None:
        wait_until(lambda: ctx.canceled)
        seen.append(ctx.job_id)

    @app.action
    def parent(ctx: Ctx) -> str:
        return ctx.run_after(HOUR, parent).id

    job = app.run(wait)
    mother = app.run(parent)
    worker = hire()
    worker.start_due()
    worker.wait_for(mother)
    (child,) = mother.children()
    bulk = app.bulk.cancel(everything=True)
    worker.start_due()
    worker.wait_for(bulk)
    worker.beat()
    worker.wait_for_bodies()

    assert bulk.result(0) == counts(2)
    assert (job.state, child.state, mother.state) == ("canceled", "canceled", "succeeded")
    assert seen == [job.id]


@pytest.mark.spec("N14")
def test_only_pending_jobs_are_canceled_if_only_they_are_meant(app: Duly, send: Send, hire: Hire):
    pending = later(app, send, 1)[0]
    running = app.run(send, 1)
    hire().claim_only()
    bulk = app.bulk.cancel(state="pending", function="send")
    hire().work()

    assert bulk.result(0) == counts(1)
    assert (pending.state, running.state) == ("canceled", "running")


@pytest.mark.spec("N14")
def test_what_goes_with_its_parent_is_canceled_too(app: Duly, send: Send, hire: Hire):
    @app.action
    def parent(ctx: Ctx) -> None:
        ctx.run_after(HOUR, send, 1)
        raise AssertionError("never reached") if ctx.canceled else RuntimeError("again")

    job = app.run(parent.using(retry=Retry(attempts=3, jitter=0)))
    hire().work()
    (child,) = job.children()
    bulk = app.bulk.cancel(function=parent)
    hire().work()

    assert bulk.result(0) == counts(1), "of those that match"
    assert (state_of(job), child.state) == (State.CANCELED, State.CANCELED)
    assert child.canceled_by == f"parent:{job.id}"


@pytest.mark.spec("N14")
def test_a_job_that_ends_meanwhile_is_skipped(app: Duly, send: Send, hire: Hire):
    jobs = later(app, send, 3)
    store: Any = app.store
    live_ids = store.live_ids

    def one_ends(*args: Any) -> Any:
        found = live_ids(*args)
        jobs[1].cancel()
        return found

    bulk = app.bulk.cancel(function=send)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(store, "live_ids", one_ends)
        hire().work()

    assert bulk.result(0) == counts(3, 2)
    assert [job.canceled_by for job in jobs] == [f"job:{bulk.id}", "operator", f"job:{bulk.id}"]


# Retry


@pytest.mark.spec("N14")
@pytest.mark.usefixtures("pages_of_two")
def test_failed_and_canceled_jobs_are_run_again_once(
    app: Duly, send: Send, hire: Hire, db: Database
):
    broken = failed(app, send, hire, 3)
    canceled = later(app, send, 2)
    for job in canceled:
        job.cancel()
    fine = app.run(send, 7)
    hire().work()
    repeated = app.retry(broken[0])

    bulk = app.bulk.retry(function=send)
    hire(queues=["nothing else"]).work()
    assert bulk.result(0) == counts(5, 4)
    links = db.execute("SELECT retry_of FROM @jobs WHERE retry_of IS NOT NULL")
    links += db.execute("SELECT retry_of FROM @history WHERE retry_of IS NOT NULL")
    assert sorted(str(link) for (link,) in links) == sorted(j.id for j in [*broken, *canceled])
    assert repeated.retry_of == broken[0].id
    assert fine.state == State.SUCCEEDED
    worker = hire()
    worker.work()

    second = app.bulk.retry(state="canceled", function=send)
    worker.work()
    assert second.result(0) == counts(2, 0)


@pytest.mark.spec("N14")
def test_dead_letters_only(app: Duly, send: Send, hire: Hire, clock: ManualClock):
    once = app.run(send, -1)
    dead = app.run(send.using(retry=Retry(attempts=2, delay=1, jitter=0)), -2)
    worker = hire()
    for _ in range(2):
        worker.work()
        clock.advance(10)
    assert (once.state, dead.state) == (State.FAILED, State.FAILED)

    assert app.bulk.retry(dead=True, dry_run=True) == BulkPreview(1, (dead.id,))
    bulk = app.bulk.retry(dead=True)
    worker.work()
    assert bulk.result(0) == counts(1)


@pytest.mark.spec("N14")
def test_what_retention_has_kept_is_run_again_too(
    app: Duly, send: Send, hire: Hire, clock: ManualClock, db: Database
):
    dead = [app.run(send.using(retry=Retry(attempts=1)), -n) for n in (1, 2, 3)]
    hire().work()
    clock.advance(timedelta(days=8).total_seconds())
    tidy(app)
    assert (db.count("@history"), db.count("@kept")) == (0, 3)
    bulk = app.bulk.retry(dead=True)
    hire().work()
    assert bulk.result(0) == counts(3)
    assert {app.job(job.id).state for job in dead} == {State.FAILED}


@pytest.mark.spec("N14")
def test_jobs_of_a_deleted_function_are_skipped(app: Duly, send: Send, hire: Hire):
    failed(app, send, hire, 2)
    app.functions.delete(send)
    bulk = app.bulk.retry(function="send")
    hire().work()
    assert bulk.result(0) == counts(2, 0)
    with pytest.raises(FunctionDeleted):
        app.run(send, 1)


@pytest.mark.spec("N14")
def test_jobs_that_are_run_again_have_their_limit(app: Duly, hire: Hire, db: Database):
    @app.action(limit=Limit("one", at_once=1))
    def limited(ctx: Ctx) -> None:
        raise ValueError

    jobs = [app.run(limited) for _ in range(2)]
    hire().work()
    worker = hire()
    bulk = app.bulk.retry(function=limited)
    worker.start_due()
    worker.wait_for(bulk)
    found = db.execute("SELECT limit_key FROM @jobs WHERE retry_of IS NOT NULL")
    assert len(found) == len(jobs)
    assert None not in {key for (key,) in found}


@pytest.mark.spec("N14")
def test_they_have_it_also_if_a_worker_runs_them_again_that_has_no_such_function(
    app: Duly, url: str, hire: Hire, clock: ManualClock, db: Database
):
    @app.action(limit=Limit(at_once=1), aliases=["old"])
    def limited(ctx: Ctx) -> None: ...

    keys = "SELECT DISTINCT limit_key FROM @jobs WHERE limit_key IS NOT NULL"
    jobs = [app.run_after(HOUR, limited) for _ in range(2)]
    db.execute("UPDATE @jobs SET function = 'old' WHERE id = ?", jobs[0].id)
    before = db.execute(keys)
    app.functions.publish()
    for job in jobs:
        job.cancel()
    bulk = app.bulk.retry(function=limited)
    with closing(Duly(url, clock=clock)) as elsewhere:
        worker = hire(elsewhere)
        worker.work()
        worker.stop()
    assert bulk.result(0) == counts(2)
    assert db.execute("SELECT DISTINCT limit_key FROM @jobs") == db.execute(keys) == before


@pytest.mark.spec("N14")
def test_a_page_is_bounded_by_its_bytes(app: Duly, hire: Hire):
    @app.action
    def store(ctx: Ctx, text: str) -> None: ...

    jobs = [app.run_after(HOUR, store, "x" * 1_000_000) for _ in range(12)]
    for job in jobs:
        job.cancel()
    bulk = app.bulk.retry(function=store)
    worker = hire()
    worker.start_due()
    worker.wait_for(bulk)
    assert bulk.result(0) == counts(12)
    assert [line.text.split(" jobs")[0] for line in bulk.logs()] == [
        "retry: 0 of 12",
        "retry: 8 of 12",
        "retry: 12 of 12",
    ]


# Reschedule


@pytest.mark.spec("N14", "R73")
@pytest.mark.usefixtures("pages_of_two")
def test_pending_jobs_are_due_at_another_time(
    app: Duly, send: Send, other: Any, hire: Hire, clock: ManualClock
):
    jobs = later(app, send, 3)
    expiring = app.run_after(HOUR, send.using(expires=60), 9)
    left = app.run_after(HOUR, other)
    scheduled = [job.scheduled_at for job in [*jobs, expiring]]
    tomorrow = datetime(2026, 1, 2, tzinfo=UTC)

    bulk = app.bulk.reschedule(run_at=tomorrow, owner="ada")
    worker = hire()
    worker.work()
    assert bulk.result(0) == counts(4)
    assert {job.run_at for job in [*jobs, expiring]} == {tomorrow}
    assert [job.scheduled_at for job in [*jobs, expiring]] == scheduled
    assert expiring.record.expires_at == expiring.record.run_at + 60_000
    assert left.run_at == left.scheduled_at

    soon = app.bulk.reschedule(run_after=5, function=send)
    worker.work()
    assert soon.result(0) == counts(4)
    clock.advance(6)
    worker.work()
    assert [job.result(0) for job in jobs] == [0, 1, 2]
    assert [job.scheduled_at for job in [*jobs, expiring]] == scheduled


@pytest.mark.spec("N14")
def test_what_runs_is_not_rescheduled(app: Duly, send: Send, hire: Hire):
    running = app.run(send, 1)
    hire().claim_only()
    waiting = later(app, send, 1)[0]
    before = running.run_at
    bulk = app.bulk.reschedule(run_after=2 * HOUR, function=send)
    hire().work()
    assert bulk.result(0) == counts(1)
    assert running.run_at == before
    assert waiting.run_at == waiting.scheduled_at + timedelta(hours=1)


@pytest.mark.spec("N14")
def test_a_claim_that_comes_first_wins(app: Duly, send: Send, hire: Hire):
    jobs = [app.run(send, n) for n in range(2)]
    first = hire(queues=["nothing else"])
    bulk = app.bulk.reschedule(run_after=HOUR, function=send)
    store: Any = app.store
    live_ids = store.live_ids
    thief = hire()

    def then_claim(*args: Any) -> Any:
        found = live_ids(*args)
        thief.claim_only()
        return found

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(store, "live_ids", then_claim)
        first.work()
    assert bulk.result(0) == counts(2, 0)
    assert {job.state for job in jobs} == {State.RUNNING}
    assert [job.run_at for job in jobs] == [job.scheduled_at for job in jobs]


@pytest.mark.spec("N14")
def test_a_job_that_waits_for_its_key_is_moved_and_asks_again(
    app: Duly, hire: Hire, clock: ManualClock
):
    @app.action(limit=Limit("one", at_once=1))
    def limited(ctx: Ctx) -> str:
        return "ran"

    first, second = app.run(limited), app.run(limited)
    hire().claim_only()
    hire().start_due()
    assert second.record.hold == "key"
    bulk = app.bulk.reschedule(run_after=HOUR, function=limited)
    hire().work()
    assert bulk.result(0) == counts(1)
    assert app.job(second.id).record.hold is None
    assert first.state == State.RUNNING


@pytest.mark.spec("N14")
def test_workers_of_this_process_are_woken_for_what_is_due_earlier(url: str):
    with closing(Duly(url)) as app:
        app.migrate()

        @app.action
        def send(ctx: Ctx) -> str:
            return "sent"

        jobs = [app.run_after(HOUR, send) for _ in range(3)]
        with app:
            assert app.bulk.reschedule(run_after=0, function=send).result(PATIENCE) == counts(3)
            assert [job.result(PATIENCE) for job in jobs] == ["sent"] * 3


# Which jobs


@pytest.mark.spec("N14")
def test_every_word_of_the_filter_counts(app: Duly, send: Send, other: Any, clock: ManualClock):
    mine = later(app, send, 2)
    mail = app.run_after(2 * HOUR, other)
    batch = app.batch([send.using(owner="bob").bind(1), other.bind()])
    members = {job.id for job in batch.jobs()}
    now = clock.now()

    def matched(**words: Any) -> set[str]:
        look = app.bulk.cancel(dry_run=True, **words)
        assert look.matched == len(look.sample)
        assert list(look.sample) == sorted(look.sample)
        return set(look.sample)

    (bobs,) = {job.id for job in batch.jobs() if job.record.owner == "bob"}
    ids = {job.id for job in mine}
    assert matched(function=send) == matched(function="send") == ids | {bobs}
    assert matched(queue="mail") == {mail.id} | members - {bobs}
    assert matched(owner="ada") == ids
    assert matched(batch=batch) == matched(batch=batch.id) == members
    assert matched(after=now + 1) == ids | {mail.id}
    assert matched(before=now + 1) == members
    assert matched(after=now + HOUR * 1000, before=now + HOUR * 1000 + 1, owner="ada") == ids
    assert matched(state="pending") == matched(everything=True) == ids | members | {mail.id}
    assert matched(state="running") == matched(function="nothing") == set()
    assert app.bulk.retry(everything=True, dry_run=True) == BulkPreview(0, ())
    assert app.bulk.reschedule(run_after=1, owner="ada", dry_run=True).matched == 2


@pytest.mark.spec("N14")
def test_a_look_changes_nothing_and_shows_the_oldest(app: Duly, send: Send, db: Database):
    jobs = later(app, send, 15)
    before = db.snapshot()
    look = app.bulk.cancel(function=send, dry_run=True)
    assert look == BulkPreview(15, tuple(job.id for job in jobs[:10]))
    assert db.snapshot() == before


@pytest.mark.spec("N14")
def test_a_function_is_found_under_its_old_names(app: Duly, hire: Hire, db: Database):
    @app.action(aliases=["old"])
    def new(ctx: Ctx) -> None: ...

    jobs = [app.run_after(HOUR, new) for _ in range(3)]
    db.execute("UPDATE @jobs SET function = 'old' WHERE id = ?", jobs[0].id)
    bulk = app.bulk.cancel(function=new)
    hire().work()
    assert bulk.result(0) == counts(3)


@pytest.mark.spec("N14")
@pytest.mark.usefixtures("pages_of_two")
def test_jobs_that_come_later_are_left_alone(app: Duly, send: Send, hire: Hire, clock: ManualClock):
    old = later(app, send, 3)
    bulk = app.bulk.cancel(everything=True)
    young = later(app, send, 1)[0]
    clock.advance(1)
    younger = later(app, send, 1)[0]
    hire().work()
    assert bulk.result(0) == counts(3)
    assert {job.state for job in old} == {State.CANCELED}
    assert (young.state, younger.state) == (State.PENDING, State.PENDING)


@pytest.mark.spec("N14")
def test_bulk_jobs_are_never_touched_by_each_other(app: Duly, send: Send, hire: Hire):
    ended = app.bulk.cancel(function=send)
    ended.cancel()
    waiting = app.bulk.reschedule(run_after=5, function=send)
    jobs = later(app, send, 1)
    cancel, retry = app.bulk.cancel(everything=True), app.bulk.retry(everything=True)
    assert app.bulk.cancel(everything=True, dry_run=True).sample == (jobs[0].id,)
    hire().work()
    assert cancel.result(0) == counts(1)
    assert waiting.state == State.SUCCEEDED
    assert set(retry.result(0).values()) <= {0, 1}
    assert not [job for job in app.jobs(function="duly.bulk") if job.retry_of]


@pytest.mark.parametrize("verb", ["cancel", "retry", "reschedule"])
def test_no_filter_is_refused_unless_everything_is_meant(app: Duly, verb: str, db: Database):
    when = {"run_after": 1} if verb == "reschedule" else {}
    act: Callable[..., Any] = getattr(app.bulk, verb)
    for dry_run in (False, True):
        with pytest.raises(InvalidOption, match="everything=True"):
            act(**when, dry_run=dry_run)
        with pytest.raises(InvalidOption, match="cannot be combined with a filter"):
            act(**when, everything=True, queue="mail", dry_run=dry_run)
    assert db.count("@jobs") == 0
    act(**when, everything=True)
    assert db.count("@jobs") == 1


@pytest.mark.parametrize(
    ("verb", "words", "error", "message"),
    [
        ("cancel", {"state": "failed"}, InvalidOption, "pending and running"),
        ("cancel", {"state": "gone"}, InvalidOption, "must be one of"),
        ("retry", {"state": "succeeded"}, InvalidOption, "failed and canceled"),
        ("cancel", {"owner": ""}, InvalidOption, "owner"),
        ("cancel", {"queue": 3}, InvalidOption, "queue"),
        ("cancel", {"function": 3}, InvalidOption, "function"),
        ("cancel", {"function": "duly.bulk"}, InvalidOption, "internal to duly"),
        ("cancel", {"batch": "x"}, InvalidOption, "batch"),
        ("cancel", {"owner": "ada", "by": "\n"}, InvalidOption, "by"),
        ("cancel", {"owner": "ada", "note": 3}, InvalidOption, "note"),
        ("cancel", {"after": datetime(2026, 1, 1)}, InvalidTime, "naive"),  # noqa: DTZ001
        ("cancel", {"colour": "red"}, TypeError, "colour"),
        ("reschedule", {"owner": "ada"}, InvalidOption, "run_at or run_after"),
        ("reschedule", {"owner": "a", "run_at": 1, "run_after": 1}, InvalidOption, "either"),
        ("reschedule", {"owner": "ada", "run_after": -1}, InvalidTime, "negative"),
        ("reschedule", {"owner": "ada", "run_at": 10**15}, InvalidTime, "five years"),
        ("reschedule", {"state": "pending", "run_after": 1}, TypeError, "state"),
    ],
)
def test_a_filter_that_makes_no_sense_is_refused_at_the_edge(
    app: Duly, db: Database, verb: str, words: Any, error: type[Exception], message: str
):
    with pytest.raises(error, match=message):
        getattr(app.bulk, verb)(**words)
    with pytest.raises(error, match=message):
        asyncio.run(getattr(app.aio.bulk, verb)(**words))
    assert db.count("@jobs") == 0


def test_inside_a_mutation_it_is_refused(app: Duly, send: Send):
    with app.transaction(), pytest.raises(UseTx):
        app.bulk.cancel(function=send)


# The function behind it


@pytest.mark.spec("N14")
def test_the_function_is_nobodys_business(app: Duly, send: Send, hire: Hire):
    worker = hire()
    assert list(app.functions) == ["send"]
    assert len(app.functions) == 1
    assert [info.name for info in app.functions.published()] == ["send"]
    assert [info.functions for info in app.workers()] == [("send",)]
    assert "duly.bulk" in worker.worker._functions
    with pytest.raises(UnknownFunction):
        app.function("duly.bulk")


@pytest.mark.parametrize("verb", ["pause", "resume", "deprecate", "delete", "restore"])
def test_it_has_no_status(app: Duly, verb: str):
    with pytest.raises(InvalidOption, match="internal to duly; cancel its jobs"):
        getattr(app.functions, verb)("duly.bulk")


def test_nobody_else_takes_such_a_name(app: Duly):
    group = Group("duly")

    @group.action
    def mine(ctx: Ctx) -> None: ...

    with pytest.raises(InvalidOption, match=r"start with 'duly\.' are reserved"):
        app.include(group)
    with pytest.raises(InvalidOption, match="are reserved"):

        @app.action(name="duly.bulk")
        def bulk(ctx: Ctx) -> None: ...

    with pytest.raises(InvalidOption, match="are reserved"):

        @app.mutation(aliases=["duly.bulk"])
        def more(tx: Tx) -> None: ...

    with pytest.raises(InvalidOption, match="are reserved"):

        @app.declare(name="duly.bulk", kind="action")
        def stub() -> None: ...

    assert app.functions == {}


@pytest.mark.spec("N14")
def test_whichever_queues_a_worker_serves_it_runs_bulk_jobs(app: Duly, send: Send, hire: Hire):
    """A paused queue, or one without workers, is often the reason for canceling its jobs."""
    jobs = later(app, send, 2)
    app.queues.pause("default")
    bulk = app.bulk.cancel(queue="default")
    assert "no worker is running" in app.why(bulk).text
    worker = hire(queues=["mail"])
    assert [reason.cause for reason in app.why(bulk).reasons] == ["about_to_start"]
    worker.work()
    assert bulk.result(0) == counts(2)
    assert {job.state for job in jobs} == {State.CANCELED}


@pytest.mark.spec("N14")
def test_a_worker_without_the_functions_runs_bulk_jobs(
    app: Duly, send: Send, url: str, hire: Hire, clock: ManualClock
):
    later(app, send, 2)
    bulk = app.bulk.cancel(function=send)
    tidy(app)
    with closing(Duly(url, clock=clock)) as elsewhere:
        worker = hire(elsewhere)
        worker.work()
        assert bulk.result(0) == counts(2)
        worker.stop()


@pytest.mark.spec("N14")
def test_awaited_it_is_the_same(app: Duly, send: Send, hire: Hire):
    jobs = later(app, send, 3)

    async def scenario() -> None:
        bulk = app.aio.bulk
        assert (await bulk.cancel(function=send, dry_run=True)).matched == 3
        moved = await bulk.reschedule(run_after=2 * HOUR, function=send)
        await asyncio.to_thread(worker.work)
        assert await moved.result(0) == counts(3)
        canceled = await bulk.cancel(function=send, state="pending")
        await asyncio.to_thread(worker.work)
        assert await canceled.result(0) == counts(3)
        assert (await bulk.retry(function=send, dry_run=True)).matched == 3
        repeated = await bulk.retry(owner="ada")
        await asyncio.to_thread(worker.work)
        assert await repeated.result(0) == counts(3)
        async with app.aio.transaction():
            with pytest.raises(UseTx):
                await bulk.cancel(function=send)

    worker = hire()
    asyncio.run(scenario())
    assert {job.state for job in jobs} == {State.CANCELED}


@pytest.mark.spec("N14")
def test_the_test_kit_runs_it(app: Duly, send: Send):
    with override(app):
        jobs = later(app, send, 3)
        bulk = app.bulk.reschedule(run_after=60, function=send)
        assert [job.id for job in drain(app)] == [bulk.id]
        assert bulk.result(0) == counts(3)
        advance(app, 61)
        assert [job.result(0) for job in jobs] == [0, 1, 2]


@pytest.mark.spec("N14")
def test_the_test_kit_runs_it_in_an_open_transaction(app: Duly, send: Send, db: Database):
    jobs = later(app, send, 2)
    bulk = app.bulk.cancel(function=send)
    handle = db.connect()
    handle.execute("BEGIN")
    (ran,) = drain(app, on=handle)
    assert (ran.id, ran.result(0)) == (bulk.id, counts(2))
    handle.execute("ROLLBACK")
    assert {job.state for job in [bulk, *jobs]} == {State.PENDING}


# What goes wrong


@pytest.mark.spec("N14")
@pytest.mark.usefixtures("pages_of_two")
def test_canceled_it_ends_between_two_pages(app: Duly, send: Send, hire: Hire):
    jobs = later(app, send, 8)
    bulk = app.bulk.cancel(function=send)
    passed = 0

    def cancel_after_the_second(point: str) -> None:
        nonlocal passed
        if point == "bulk.paged":
            passed += 1
            if passed == 2:
                bulk.cancel()

    with fault.inject(cancel_after_the_second):
        hire().work()
    assert [job.state for job in jobs] == ["canceled"] * 4 + ["pending"] * 4
    assert passed == 3, "the third page has found that it is canceled, and there is no fourth"
    with pytest.raises(JobCanceled):
        bulk.result(0)


@pytest.mark.spec("N14")
@pytest.mark.usefixtures("pages_of_two")
@pytest.mark.parametrize("point", ["bulk.changed", "bulk.paged"])
def test_an_attempt_that_fails_is_followed_by_one_that_goes_on(
    app: Duly, send: Send, hire: Hire, clock: ManualClock, point: str, db: Database
):
    failed(app, send, hire, 5)
    bulk = app.bulk.retry(function=send)
    passed = 0

    def fail_at_the_second(at: str) -> None:
        nonlocal passed
        if at == point:
            passed += 1
            if passed == 2:
                raise StoreUnavailable("no connection")

    worker = hire()
    with fault.inject(fail_at_the_second):
        worker.work()
    assert (bulk.state, bulk.attempt) == (State.PENDING, 1)
    done = 2 if point == "bulk.changed" else 4
    assert bulk.arguments["done"]["matched"] == done
    clock.advance(10)
    worker.work()

    assert bulk.result(0) == counts(5)
    assert len([job for job in app.jobs(function=send) if job.retry_of]) == 5
    assert bulk.logs()[-1].text == "retry: 5 of 5 jobs, 5 changed"


@pytest.mark.spec("N14")
@pytest.mark.usefixtures("pages_of_two")
def test_an_attempt_that_was_taken_for_dead_does_no_more_pages(
    app: Duly, send: Send, hire: Hire, clock: ManualClock
):
    jobs = later(app, send, 6)
    bulk = app.bulk.cancel(function=send)
    lost, observer = hire(), hire(queues=["nothing"])
    stale: list[bool] = []

    def be_rescued(point: str) -> None:
        if point == "bulk.paged" and not stale:
            stale.append(True)
            lost.fall_silent()
            rescue_the_dead(observer)

    with fault.inject(be_rescued):
        lost.start_due()
        lost.wait_for_bodies()
    assert bulk.state == State.PENDING
    assert [job.state for job in jobs] == ["canceled"] * 2 + ["pending"] * 4
    clock.advance(10)
    observer.work()
    assert bulk.result(0) == counts(6)
    # What it has to say is of no interest any more.
    lost.settle()


@pytest.mark.spec("N14")
def test_a_filter_that_no_index_serves_fails_and_says_so(
    app: Duly, send: Send, hire: Hire, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
):
    def too_broad(*args: Any, **more: Any) -> Any:
        raise QueryTooBroad("narrow the filter")

    later(app, send, 1)
    monkeypatch.setattr(app.store, "count", too_broad)
    with pytest.raises(QueryTooBroad):
        app.bulk.cancel(function=send, dry_run=True)
    uncounted = app.bulk.cancel(owner="nobody")
    hire().work()
    assert uncounted.result(0) == counts(0), "only its progress is unknown"
    monkeypatch.setattr(app.store, "live_ids", too_broad)
    bulk = app.bulk.cancel(function=send)
    hire().work()
    assert bulk.state == State.PENDING, "a stall looks the same, once"
    clock.advance(60)
    hire().work()
    with pytest.raises(JobFailed, match="narrow the filter"):
        bulk.result(0)
    assert bulk.attempt == 2


@pytest.mark.spec("N14")
@on_postgres
@pytest.mark.usefixtures("pages_of_two")
def test_a_bulk_job_goes_on_from_its_checkpoint_after_a_stall(
    app: Duly, url: str, send: Send, hire: Hire, clock: ManualClock
):
    """Its third page takes longer than a statement may, at first."""
    jobs = later(app, send, 6)
    bulk = app.bulk.cancel(function=send)
    store, worker = app.store, hire()
    assert isinstance(store, PostgresStore)
    store.sql[SHORT_QUERY] = store.sql[SHORT_QUERY].replace(b"10s", b"100ms")
    pages: list[str] = []
    with psycopg.connect(url) as blocker:

        def stall(point: str) -> None:
            if point == "bulk.paged":
                pages.append(point)
                if len(pages) == 2:
                    blocker.execute("LOCK TABLE duly.jobs IN ACCESS EXCLUSIVE MODE")

        with fault.inject(stall):
            worker.start_due()
            worker.wait_for_bodies()
            blocker.rollback()
            worker.settle()
            assert (bulk.state, bulk.attempt) == (State.PENDING, 1)
            assert [job.state for job in jobs] == ["canceled"] * 4 + ["pending"] * 2
            clock.advance(60)
            worker.work()
    assert bulk.result(0) == counts(6)
    assert (bulk.attempt, len(pages)) == (2, 3)


@pytest.mark.spec("N14")
@on_sqlite
def test_a_process_that_stood_still_has_not_searched_for_long(
    app: Duly, send: Send, monkeypatch: pytest.MonkeyPatch
):
    app.run_many(send.bind(n) for n in range(2_000))
    looks, jump = 0, 2

    def monotonic() -> float:
        nonlocal looks
        looks += 1
        return os_monotonic() + (60 if looks >= jump else 0)

    monkeypatch.setattr("duly.store.sqlite.session.os_monotonic", monotonic)
    assert len(app.jobs(function=send, limit=2_000)) == 2_000
    assert looks > jump, "it was looked at the clock after the jump"
    # A search that really takes so long is given up.
    looks, jump = 0, 10**9
    monkeypatch.setattr("duly.store.sqlite.session.FIND_SECONDS", -1.0)
    with pytest.raises(QueryTooBroad):
        app.jobs(function=send, limit=2_000)


@pytest.mark.spec("N14")
@pytest.mark.usefixtures("pages_of_two")
def test_a_bulk_job_that_was_canceled_goes_on_when_it_is_run_again(
    app: Duly, send: Send, hire: Hire
):
    jobs = later(app, send, 4)
    bulk = app.bulk.cancel(function=send)

    def cancel_it(point: str) -> None:
        if point == "bulk.paged":
            bulk.cancel()

    with fault.inject(cancel_it):
        hire().work()
    young = later(app, send, 1)[0]
    again = app.retry(bulk)
    hire().work()
    assert again.result(0) == counts(4)
    assert {job.state for job in jobs} == {State.CANCELED}
    assert young.state == State.PENDING


# SIGKILL

MANY = 1_200
"""Three pages."""


@pytest.fixture
def killable(url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Duly]:
    """An app whose jobs the killed process does not know, so that they wait."""
    monkeypatch.setattr("duly.calls.bulk.RETRY", Retry(attempts=25, delay=0, jitter=0))
    app = Duly(url)
    app.migrate()

    @app.action
    def parked(ctx: Ctx, n: int) -> None: ...

    yield app
    app.close()


def finish(app: Duly, bulk: Job[dict[str, int]]) -> dict[str, int]:
    """The outcome in a worker that is not killed, and that leaves the other jobs alone."""
    app.start(beat_every=0.02, queues=["nothing else"])
    try:
        return bulk.result(PATIENCE)
    finally:
        app.stop()


@pytest.mark.spec("N14")
@pytest.mark.parametrize("point", ["bulk.changed:2", "bulk.paged:2"])
@pytest.mark.parametrize("verb", ["cancel", "retry", "reschedule"])
def test_killed_in_the_middle_it_is_finished_by_another_process(
    killable: Duly, url: str, tmp_path: Path, verb: str, point: str
):
    app, parked = killable, killable.function("parked")
    app.run_many(parked.bind(n) for n in range(MANY))
    if verb == "retry":
        assert app.cancel_all(parked) == MANY
    when = {"run_after": HOUR} if verb == "reschedule" else {}
    bulk: Job[dict[str, int]] = getattr(app.bulk, verb)(function=parked, **when)

    run_until_killed(url, tmp_path / "marks", point)
    assert state_of(bulk) == State.RUNNING
    pages = 1 if point.startswith("bulk.changed") else 2
    assert bulk.arguments["done"]["matched"] == pages * 500

    assert finish(app, bulk) == counts(MANY)
    assert bulk.attempt == 2
    with closing(Database(url)) as db:
        if verb == "cancel":
            query = "SELECT DISTINCT canceled_by FROM @history WHERE function = 'parked'"
            assert db.execute(query) == [(f"job:{bulk.id}",)]
        elif verb == "retry":
            repeated = db.execute("SELECT retry_of FROM @jobs")
            assert len(repeated) == len(set(repeated)) == MANY
        else:
            due_at = bulk.arguments["order"]["run_at"]
            assert db.execute("SELECT DISTINCT run_at FROM @jobs") == [(due_at,)]
        assert db.count("@jobs") == (0 if verb == "cancel" else MANY)
