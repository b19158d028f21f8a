"""A handle's transaction may be REPEATABLE READ or SERIALIZABLE: it reads an old snapshot.

A verb works all the same, fails as any statement may at that level, or is refused with nothing
written.
"""

from typing import Any

import psycopg
import pytest

from duly import Action, Ctx, Duly, ManualClock, State, Unique
from duly.errors import IsolationTooHigh
from tests.callers.handles import ON_POSTGRES, Caller, OwnTransaction, Psycopg, record_of
from tests.jobs.support import Database, Gate, Hire
from tests.levels import STRICTER

pytestmark = pytest.mark.spec("N39")

LEVELS = {level: f"postgres_{level.replace(' ', '_')}" for level in STRICTER}


def on_strict_database(
    kinds: list[type[Caller]], level: str, *marks: pytest.MarkDecorator
) -> list[Any]:
    marks = (pytest.mark.postgres, *marks)
    return [
        pytest.param(LEVELS[level], kind, id=f"{LEVELS[level]}-{kind.__name__}", marks=marks)
        for kind in kinds
    ]


HANDLES = [kind for kind in ON_POSTGRES if kind is not OwnTransaction]
every_handle = pytest.mark.parametrize(
    ("url", "caller"),
    [
        *on_strict_database(HANDLES, "repeatable read"),
        *on_strict_database([Psycopg], "serializable"),
        *on_strict_database(HANDLES[1:], "serializable", pytest.mark.long),
    ],
    indirect=True,
)
at_both_levels = pytest.mark.parametrize(
    ("url", "caller"),
    [
        *on_strict_database([Psycopg], "repeatable read"),
        *on_strict_database([Psycopg], "serializable"),
    ],
    indirect=True,
)


def look(caller: Caller) -> None:
    """From now on the transaction sees nothing that others commit."""
    caller.execute("SELECT 1 FROM duly.jobs LIMIT 1")


@pytest.fixture
def done(app: Duly) -> Action[[str], None]:
    @app.action
    def done(ctx: Ctx, batch_id: str) -> None: ...

    return done


@every_handle
def test_each_verb_works_or_is_refused(
    app: Duly, caller: Caller, hello, done, hire: Hire, clock: ManualClock, db: Database
):
    pending, ended = app.run(hello, "pending"), app.run(hello, "ended")
    member = next(app.batch([hello.bind("member")], on_complete=done).jobs())
    unique = hello.using(unique=Unique("u"))
    debounced = hello.using(debounce=60)
    holder, window = app.run(unique, "holder"), app.run(debounced, "first")
    app.queues.pause("default")
    look(caller)
    before = db.snapshot()
    on = caller.on(app)

    with pytest.raises(IsolationTooHigh, match=r"REPEATABLE READ|SERIALIZABLE"):
        on.cancel(member)
    assert db.snapshot() == before
    made = [on.run(hello, "a"), on.run_after(1, hello, "b"), on.run_at(clock.now(), hello, "c")]
    made += on.run_many(hello.bind(name) for name in "de")
    assert on.cancel(pending)
    assert on.cancel(made[0])
    assert on.run(unique, "again").id == holder.id
    assert on.run(debounced, "last").id == window.id
    keyed = on.run(hello.using(idempotency_key="i"), "keyed")
    assert on.run(hello.using(idempotency_key="i"), "keyed").id == keyed.id
    assert record_of(caller, on.job(ended.id)).state == State.PENDING
    assert {job.id for job in on.jobs(state=State.CANCELED)} == {pending.id, made[0].id}
    batch = on.batch([hello.bind("f"), hello.bind("g")], on_complete=done)
    caller.commit()

    app.queues.resume("default")
    worker = hire()
    worker.work()
    clock.advance(60)
    worker.work()
    assert {app.job(job.id).result() for job in made[1:]} == {f"hello, {name}" for name in "bcde"}
    assert app.job(window.id).result() == "hello, last"
    assert app.job(member.id).state == app.job(batch.id).state == State.SUCCEEDED
    assert app.job(pending.id).state == State.CANCELED


@at_both_levels
@pytest.mark.parametrize("level", ["READ COMMITTED", "READ UNCOMMITTED"])
def test_a_transaction_that_says_read_committed_may_cancel_anything(
    app: Duly, caller: Caller, hello, done, hire: Hire, level: str
):
    batch = app.batch([hello.bind("a"), hello.using(queue="later").bind("b")], on_complete=done)
    app.queues.pause("later")
    caller.execute(f"SET TRANSACTION ISOLATION LEVEL {level}")
    look(caller)
    worker = hire()
    worker.work()
    [second] = batch.jobs(State.PENDING)

    assert caller.on(app).cancel(second)
    caller.commit()
    worker.work()

    assert app.job(batch.id).state == State.SUCCEEDED


@at_both_levels
def test_a_job_that_has_started_is_not_canceled_for_it_may_have_children_unseen(
    app: Duly, caller: Caller, hello, hire: Hire
):
    gate = Gate()

    @app.action
    def parent(ctx: Ctx) -> None:
        gate.pass_through()
        ctx.run(hello, "child")

    job = app.run(parent)
    worker = hire()
    worker.start_due()
    gate.wait_for_one()
    look(caller)
    gate.open()
    worker.wait_for_bodies()

    with pytest.raises(IsolationTooHigh):
        caller.on(app).cancel(job)
    caller.commit()
    worker.work()

    assert job.state == State.SUCCEEDED
    assert [child.state for child in app.jobs(function=hello)] == [State.SUCCEEDED]


@at_both_levels
def test_a_job_that_starts_after_the_snapshot_is_not_canceled(
    app: Duly, caller: Caller, hello, hire: Hire
):
    job = app.run(hello, "world")
    look(caller)
    hire().work()

    with pytest.raises(psycopg.errors.SerializationFailure):
        caller.on(app).cancel(job)
    caller.rollback()

    assert job.state == State.SUCCEEDED


KEYED: dict[str, dict[str, Any]] = {
    "pending": {"unique": Unique("k")},
    "unfinished": {"unique": Unique("k", scope="unfinished")},
    "period": {"unique": Unique("k", period=60)},
    "idempotency": {"idempotency_key": "k"},
    "debounce": {"debounce": 60},
}


@at_both_levels
@pytest.mark.parametrize("key", KEYED)
def test_a_key_that_was_taken_after_the_snapshot_fails_the_transaction(
    app: Duly, caller: Caller, hello, key: str
):
    call = hello.using(**KEYED[key])
    look(caller)
    holder = app.run(call, "holder")

    with pytest.raises(psycopg.errors.SerializationFailure):
        caller.on(app).run(call, "again")
    caller.rollback()
    again = caller.on(app).run(call, "again")
    caller.commit()

    assert again.id == holder.id
    assert len(app.jobs()) == 1


@at_both_levels
def test_a_key_that_was_given_up_after_the_snapshot_is_free(
    app: Duly, caller: Caller, hello, hire: Hire
):
    call = hello.using(unique=Unique("k", scope="unfinished"))
    first = app.run(call, "first")
    look(caller)
    hire().work()

    second = caller.on(app).run(call, "second")
    caller.commit()

    assert not second.existed
    assert {job.id for job in app.jobs()} == {first.id, second.id}
