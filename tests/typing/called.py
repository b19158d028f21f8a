"""Calling functions later: arguments are checked where the job is made, results have a type."""

from datetime import UTC, datetime, timedelta
from typing import Any, assert_type

from duly import AsyncCtx, Call, Ctx, Duly, Function, Job, JobFailure, Retry, Rows, State, Tx

app = Duly("sqlite:///:memory:")


@app.mutation
def move(tx: Tx, account: int, amount: float = 1.0) -> bool:
    return True


@app.action
def post(ctx: Ctx, url: str, *, tries: int = 1) -> bytes:
    return b""


@app.action
async def fetch(ctx: AsyncCtx, url: str) -> dict[str, int]:
    return {}


@app.mutation
def nothing(tx: Tx) -> None: ...


def enqueue() -> None:
    assert_type(app.run(move, 1), Job[bool])
    assert_type(app.run(move, 1, amount=2.5).result(), bool)
    assert_type(app.run(post, "https://example.org", tries=3), Job[bytes])
    assert_type(app.run(fetch, "https://example.org"), Job[dict[str, int]])
    assert_type(app.run(nothing), Job[None])
    assert_type(app.run_after(5, move, 1), Job[bool])
    assert_type(app.run_after(timedelta(days=1), move, account=1), Job[bool])
    assert_type(app.run_at(datetime.now(UTC), move, 1), Job[bool])
    assert_type(app.run_at(1_750_000_000_000, fetch, "x"), Job[dict[str, int]])
    assert_type(move.bind(1), Call[bool])
    assert_type(app.run_many(move.bind(n) for n in range(3)), list[Job[bool]])
    assert_type(app.run(move.using(priority=9, retry=Retry()), 1), Job[bool])
    assert_type(move.using(queue="slow").bind(1), Call[bool])
    assert_type(app.run(app.function("shop.move"), account=1), Job[Any])


def enqueue_wrongly(plain: Function[[int], str]) -> None:
    app.run(move)  # error
    app.run(move, "1")  # error
    app.run(move, 1, 2.0, 3)  # error
    app.run(move, 1, amounts=2.0)  # error
    app.run(move, 1, amount="2")  # error
    app.run(post, "https://example.org", 3)  # error
    app.run(nothing, 1)  # error
    app.run(enqueue)  # error
    app.run_after("5", move, 1)  # error
    app.run_after(5, move, "1")  # error
    app.run_after(move, 1)  # error
    app.run_at("tomorrow", move, 1)  # error
    app.run_at(datetime.now(UTC), move)  # error
    move.bind()  # error
    move.bind(1, "2")  # error
    app.run_many([move])  # error
    app.run_many(move.bind(1))  # error
    move.using(priorty=9)  # error
    move.using(priority="9")  # error
    app.run(move.using(priority=9))  # error
    app.run(plain, "text")  # error


def use_jobs(job: Job[bool], maybe: Job[int | None]) -> None:
    assert_type(job.id, str)
    assert_type(job.state, State)
    assert_type(job.error, JobFailure | None)
    assert_type(job.run_at, datetime)
    assert_type(job.completed_at, datetime | None)
    assert_type(job.result(timeout=1.5), bool)
    assert_type(job.cancel(), bool)
    assert_type(job.children(), list[Job[Any]])
    assert_type(app.job("id"), Job[Any])
    assert_type(app.jobs(state="failed", function=move, limit=5), list[Job[Any]])
    assert_type(app.cancel(job), bool)
    assert_type(app.cancel_all(move, before=datetime.now(UTC)), int)
    broader: Job[int] = job
    number: str = job.result()  # error
    later: int = maybe.result()  # error
    narrower: Job[bool] = maybe  # error
    job.state()  # error
    job.completed_at.isoformat()  # error
    app.jobs("failed")  # error
    app.cancel(5)  # error
    app.cancel_all("move", queues="slow")  # error
    del broader, number, later, narrower


async def await_what_is_sync(job: Job[bool]) -> None:
    await job  # error
    await job.result()  # error
    await app.run(move, 1)  # error


@app.mutation
def in_a_mutation(tx: Tx, account: int) -> int:
    rows = tx.execute("SELECT id FROM accounts WHERE id = ?", (account,))
    assert_type(rows, Rows)
    assert_type(tx.run(move, account), Job[bool])
    assert_type(tx.run_after(5, fetch, "x"), Job[dict[str, int]])
    assert_type(tx.job_id, str | None)
    with tx.savepoint():
        tx.run_many([move.bind(1)])
    tx.execute(1)  # error
    tx.run(move, "account")  # error
    tx.call(move, account)  # error
    return rows.rowcount


@app.action
def in_an_action(ctx: Ctx, account: int) -> bool:
    assert_type(ctx.call(move, account), bool)
    assert_type(ctx.run(post, "x"), Job[bytes])
    assert_type(ctx.job_id, str)
    ctx.call(move, "account")  # error
    ctx.call(post, "x")  # error
    ctx.call(move)  # error
    ctx.execute("SELECT 1")  # error
    return ctx.canceled


def in_a_transaction() -> None:
    with app.transaction() as tx:
        assert_type(tx, Tx)
        assert_type(move(tx, 1), bool)
        assert_type(tx.run(move, 1), Job[bool])
        tx.run(move)  # error
    with app as same:
        assert_type(same, Duly)
