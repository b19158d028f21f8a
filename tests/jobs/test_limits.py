"""Size limits: of one job, and of the jobs that one mutation enqueues."""

from typing import Any

import pytest

from duly import Ctx, Duly, Retry, State, Tx
from duly.calls.context import MAX_BYTES_PER_MUTATION, MAX_JOBS_PER_MUTATION
from duly.errors import ArgumentsTooLarge, TooManyJobs
from duly.model.job import LEFT_OUT, JobFilter
from tests.jobs.support import Database, Hire, Undo, undone

MIB8 = 8 * 1024 * 1024
EMPTY = len('{"text":""}')


@pytest.fixture
def note(app: Duly) -> Any:
    @app.action
    def note(ctx: Ctx, text: str) -> int:
        return len(text)

    return note


@pytest.mark.spec("R65")
def test_a_mutation_may_schedule_a_thousand_jobs(app: Duly, db: Database, note: Any, hire: Hire):
    @app.mutation
    def plan(tx: Tx, one_by_one: int, many: int) -> None:
        for _ in range(one_by_one):
            tx.run_after(60, note, "x")
        tx.run_many(note.bind("x") for _ in range(many))

    job = app.run(plan, 3, 997)
    hire(concurrency=500).work()

    assert job.state == State.SUCCEEDED
    assert len(app.jobs(function=note, limit=2000)) == MAX_JOBS_PER_MUTATION == 1000


@pytest.mark.spec("R65")
@pytest.mark.parametrize("swallow", [False, True])
def test_the_next_job_fails_the_mutation_even_if_it_swallows_the_error(
    app: Duly, db: Database, note: Any, hire: Hire, swallow: bool
):
    @app.mutation
    def plan(tx: Tx) -> None:
        tx.execute("INSERT INTO notes VALUES ('written')")
        tx.run_many(note.bind("x") for _ in range(1000))
        try:
            tx.run(note, "one too many")
        except TooManyJobs:
            if not swallow:
                raise

    job = app.run(plan)
    hire().work()

    assert job.state == State.FAILED
    assert job.error is not None
    assert job.error.message == "TooManyJobs: a mutation can enqueue at most 1,000 jobs"
    assert db.count("@jobs") == 0
    assert db.notes() == []


@pytest.mark.spec("R65")
def test_a_bulk_call_that_passes_the_limit_schedules_nothing(app: Duly, db: Database, note: Any):
    with pytest.raises(TooManyJobs), app.transaction() as tx:
        tx.run_many(note.bind("x") for _ in range(1001))

    assert db.count("@jobs") == 0


@pytest.mark.spec("R65")
def test_jobs_of_a_rolled_back_savepoint_do_not_count(app: Duly, db: Database, note: Any):
    with app.transaction() as tx:
        for _ in range(3):
            with undone(), tx.savepoint():
                tx.run_many(note.bind("x") for _ in range(600))
                raise Undo
        tx.run_many(note.bind("x") for _ in range(1000))

    assert db.count("@jobs") == 1000


def _fill(tx: Tx, note: Any, total: int) -> None:
    """Schedule jobs whose arguments have this many bytes in total."""
    while total:
        size = min(total, 1 << 20)
        tx.run_after(60, note, "x" * (size - EMPTY))
        total -= size


@pytest.mark.spec("R66")
def test_the_arguments_of_a_mutations_jobs_have_a_limit_together(
    app: Duly, db: Database, note: Any, hire: Hire
):
    @app.mutation
    def plan(tx: Tx, total: int) -> None:
        tx.execute("INSERT INTO notes VALUES (?)", (str(total),))
        _fill(tx, note, total)

    at_the_limit = app.run(plan, MAX_BYTES_PER_MUTATION)
    worker = hire()
    worker.work()
    assert at_the_limit.state == State.SUCCEEDED
    assert db.scalar("SELECT sum(length(args)) FROM @jobs") == MAX_BYTES_PER_MUTATION

    one_over = app.run(plan, MAX_BYTES_PER_MUTATION + EMPTY)
    worker.work()
    assert one_over.state == State.FAILED
    assert one_over.error is not None
    assert one_over.error.message.startswith(
        "TooManyJobs: a mutation can enqueue at most 8,388,608 bytes"
    )
    assert db.notes() == [str(MAX_BYTES_PER_MUTATION)]
    assert db.count("@jobs") == 8


@pytest.mark.spec("R66")
def test_one_byte_over_the_total_is_over(app: Duly, db: Database, note: Any):
    with app.transaction() as tx:
        _fill(tx, note, MAX_BYTES_PER_MUTATION - EMPTY - 1)
        tx.run_after(60, note, "x")
    with pytest.raises(TooManyJobs), app.transaction() as tx:  # noqa: PT012
        _fill(tx, note, MAX_BYTES_PER_MUTATION - EMPTY - 1)
        tx.run_after(60, note, "ü")

    assert db.count("@jobs") == 9


@pytest.mark.spec("R66")
def test_one_job_has_a_limit_of_its_own(app: Duly, db: Database, hire: Hire):
    @app.action
    def echo(ctx: Ctx, text: str) -> str:
        return text[:1] + "x" * (MIB8 - 3)

    largest = "x" * (MIB8 - EMPTY)
    # Bytes count, not characters: ü is two.
    widest = "ü" * ((MIB8 - EMPTY) // 2)
    with app.transaction() as tx:
        at_the_limit = tx.run(echo, largest)
    one_over = app.run(echo, "ü")
    assert app.run_after(60, echo, widest).arguments == {"text": widest}
    for text in (largest + "x", widest + "ü"):
        with pytest.raises(ArgumentsTooLarge, match="the limit is 8,388,608;") as refused:
            app.run(echo, text)
        assert (refused.value.function, refused.value.limit) == ("echo", MIB8)
        assert MIB8 < refused.value.size <= MIB8 + 2
        with pytest.raises(ArgumentsTooLarge), app.transaction() as tx:  # noqa: PT012
            tx.run(echo, "x")
            tx.run(echo, text)
    hire().work()

    assert app.job(at_the_limit.id).result(0) == "x" * (MIB8 - 2)
    assert one_over.error is not None
    assert one_over.error.kind == "unstorable_result"
    assert "8,388,609 bytes, the limit is 8,388,608" in one_over.error.message
    assert (db.count("@jobs"), db.count("@history")) == (1, 2)


def test_a_list_leaves_out_what_is_long_until_it_is_asked_for(app: Duly, hire: Hire):
    @app.action(retry=Retry(attempts=1))
    def echo(ctx: Ctx, text: str) -> str:
        if text.startswith("bad"):
            raise ValueError(text[:3])
        return text

    long, bad = "x" * 10_000, "bad" * 4_000
    app.run(echo, long)
    app.run(echo, bad)
    hire().work()
    waits = app.run_after(60, echo, long)

    found = {job.id: job for job in app.jobs()}
    assert [job.args for job in app.store.find(JobFilter())] == [LEFT_OUT] * 3
    assert [found[waits.id].arguments] == [{"text": long}]
    (ended,) = app.jobs(state="succeeded")
    assert (ended.arguments, ended.result(0)) == ({"text": long}, long)
    (dead,) = app.dead()
    assert dead.arguments == {"text": bad}


@pytest.mark.parametrize("verb", ["retry_dead", "bulk"])
def test_what_is_long_is_run_again_as_it_was(app: Duly, hire: Hire, verb: str, monkeypatch: Any):
    monkeypatch.setattr("duly.calls.replay.CLAIM_BYTES", 50_000)
    seen: list[str] = []

    @app.action(retry=Retry(attempts=1))
    def fail(ctx: Ctx, text: str) -> None:
        seen.append(text)
        raise ValueError("no")

    texts = [str(n) * 20_000 for n in range(5)] + ["short"]
    for text in texts:
        app.run(fail, text)
    hire().work()
    if verb == "retry_dead":
        assert len(app.retry_dead(fail).jobs) == len(texts)
    else:
        app.bulk.retry(dead=True)
        hire(queues=["nothing else"]).work()
    hire().work()

    assert sorted(seen) == sorted(texts * 2)


@pytest.mark.spec("R67")
def test_an_action_may_schedule_any_number(app: Duly, db: Database, note: Any, hire: Hire):
    @app.action
    def plan(ctx: Ctx) -> int:
        one_by_one = [ctx.run_after(60, note, "x") for _ in range(20)]
        many = ctx.run_many(note.bind("x") for _ in range(1500))
        large = ctx.run_many(note.bind("x" * 500_000) for _ in range(20))
        return len(one_by_one) + len(many) + len(large)

    job = app.run(plan)
    worker = hire()
    app.queues.pause("default")
    worker.start_due()
    app.queues.resume("default")
    worker.start_due()
    app.queues.pause("default")
    worker.work()

    assert job.result(0) == 1520 + 20
    assert db.count("@jobs") == 1540


@pytest.mark.spec("R67")
def test_the_app_itself_may_schedule_any_number(app: Duly, db: Database, note: Any):
    app.run_many(note.bind("x") for _ in range(1001))
    app.run_many(note.bind("x" * 1_000_000) for _ in range(9))

    assert db.count("@jobs") == 1010
