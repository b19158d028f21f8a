"""The test kit, as users' tests use it."""

import asyncio
import signal
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
from pydantic import BaseModel

import duly.testing as kit
from duly import AsyncCtx, Canceled, Ctx, Duly, ManualClock, Redact, Retry, State, SystemClock, Tx
from duly.errors import InvalidOption, JobFailed, StoreError, UseTx
from duly.store.table import Store
from duly.testing.kit import PRIVATE, clock_of
from tests.jobs.support import Database

shop = Duly("postgresql://nobody@127.0.0.1:1/production")
"""What the user's module makes: tests must never reach it."""

sent: list[str] = []


@shop.action(retry=Retry(attempts=3, delay=60, jitter=0))
def send(ctx: Ctx, to: str) -> str:
    sent.append(to)
    if to == "nobody":
        raise ValueError("no such person")
    return f"sent to {to}"


@shop.action
async def ring(ctx: AsyncCtx, times: int = 1) -> int:
    await ctx.run(send, "bell")
    return times


@shop.mutation
def order(tx: Tx, name: str) -> int:
    number: int = tx.execute("INSERT INTO orders (name) VALUES (?) RETURNING id", (name,)).scalar()
    tx.run_after(3600, send, name)
    return number


@shop.action
def log_in(ctx: Ctx, token: Annotated[str, Redact]) -> None: ...


@pytest.fixture
def app():
    sent.clear()
    with kit.override(shop) as app:
        with app.transaction() as tx:
            tx.execute("CREATE TABLE orders (id integer PRIMARY KEY, name text)")
        yield app


# override


@pytest.mark.spec("N30")
def test_override_gives_the_app_a_store_and_a_clock_of_its_own(app: Duly):
    assert app is shop
    assert isinstance(app.clock, ManualClock)
    job = app.run(send, "ada")
    assert job.state == State.PENDING


@pytest.mark.spec("N30")
def test_override_ends_with_its_block():
    with kit.override(shop):
        shop.run(send, "ada")
    assert isinstance(shop.clock, SystemClock)
    with pytest.raises(StoreError):
        shop.run(send, "ada")
    with kit.override(shop):
        assert shop.jobs() == []


def test_override_takes_a_file_a_server_and_a_clock(url: str):
    clock = ManualClock()
    with kit.override(shop, url, clock=clock, schema="duly_of_tests"):
        assert shop.clock is clock
        shop.run(send, "ada")
        assert [job.function for job in kit.drain(shop)] == ["send"]


@pytest.mark.parametrize("part", ["app.stop", "core.close"])
def test_override_ends_even_if_something_fails_at_its_end(
    part: str, monkeypatch: pytest.MonkeyPatch
):
    before = shop.store

    def fail() -> None:
        raise RuntimeError(part)

    def use() -> None:
        with kit.override(shop):
            used.append(shop.store)
            patch.setattr(owner, name, fail)

    used: list[Store] = []
    owner, name = (shop, "stop") if part == "app.stop" else (shop.core, "close")
    with monkeypatch.context() as patch, pytest.raises(RuntimeError, match=part):
        use()
    used[0].close()
    assert shop.store is before


def test_two_apps_are_overridden_side_by_side(tmp_path: Path):
    other = Duly(f"sqlite:///{tmp_path}/missing/other.db")

    @other.action
    def greet(ctx: Ctx) -> str:
        shop.run(send, "from greet")
        return "hello"

    with kit.override(shop), kit.override(other):
        other.run(greet)
        assert [job.result(0) for job in kit.drain(other)] == ["hello"]
        assert [job.arguments for job in kit.drain(shop)] == [{"to": "from greet"}]
        with kit.override(shop):
            assert shop.jobs() == []
        assert len(shop.jobs()) == 1
    assert list(tmp_path.iterdir()) == []


def test_an_app_that_runs_cannot_be_overridden(sqlite_url: str):
    running = Duly(sqlite_url)
    running.migrate()
    with (
        running,
        pytest.raises(InvalidOption, match="stop the app first"),
        kit.override(running),
    ):
        pass
    running.close()


def test_a_worker_can_run_on_the_overridden_store(app: Duly):
    with app:
        assert app.run(send, "ada").result(20) == "sent to ada"


# drain


@pytest.mark.spec("N30")
def test_drain_runs_what_is_due_and_what_that_makes_due(app: Duly):
    first = app.run(ring, 2)
    later = app.run_after(60, send, "later")
    ran = kit.drain(app)
    assert [job.function for job in ran] == ["ring", "send"]
    assert (first.result(0), sent) == (2, ["bell"])
    assert later.state == State.PENDING
    assert kit.drain(app) == []
    assert list(app.workers()) == [], "it leaves no worker behind"


def test_drain_runs_mutations_in_their_transaction(app: Duly):
    job = app.run(order, "ada")
    kit.drain(app)
    assert job.result(0) == 1
    kit.assert_enqueued(app, send.bind("ada"), after=3600)


def test_a_failure_is_raised_when_everything_has_run(app: Duly):
    failing = app.run(send.using(retry=None), "nobody")
    app.run(send, "ada")
    with pytest.raises(JobFailed, match="no such person") as failure:
        kit.drain(app)
    assert sent == ["nobody", "ada"]
    assert "raise ValueError" in str(failure.value.traceback)
    assert failing.state == State.FAILED
    app.run(send.using(retry=None), "nobody")
    assert [job.state for job in kit.drain(app, raises=False)] == [State.FAILED]


def test_drain_works_inside_an_async_test(app: Duly):
    app.run(ring, 3)

    async def test() -> None:
        assert [job.result(0) for job in kit.drain(app)] == [3, "sent to bell"]

    asyncio.run(test())


def test_jobs_run_by_priority_then_by_time_then_by_age(app: Duly):
    app.run(send.using(queue="z"), "first")
    app.run(send.using(queue="a"), "second")
    app.run(send.using(queue="m", priority=9), "urgent")
    app.run(send.using(queue="z", priority=7), "soon")
    clock_of(app).advance(1)
    app.run(send.using(queue="a"), "last")
    ran = kit.drain(app)
    assert sent == ["urgent", "soon", "first", "second", "last"]
    assert [job.arguments["to"] for job in ran] == sent
    assert {job.attempt for job in ran} == {1}


class Outcome(BaseException):
    """As pytest's own are."""


@pytest.mark.parametrize("error", [KeyboardInterrupt, Outcome, pytest.skip.Exception])
@pytest.mark.parametrize("kind", ["action", "async action", "mutation"])
def test_what_must_end_the_test_ends_it(error: type[BaseException], kind: str):
    with kit.override(Duly("sqlite:///unused.db")) as fresh:
        if kind == "mutation":

            @fresh.mutation
            def stop(tx: Tx) -> None:
                tx.run(other)
                raise error("now")
        elif kind == "action":

            @fresh.action
            def stop(ctx: Ctx) -> None:
                raise error("now")
        else:

            @fresh.action
            async def stop(ctx: AsyncCtx) -> None:
                raise error("now")

        @fresh.action
        def other(ctx: Ctx) -> None: ...

        job, waiting = fresh.run(stop), fresh.run(other)
        with pytest.raises(error, match="now"):
            kit.drain(fresh, raises=False)
        assert (job.state, waiting.state) == (State.FAILED, State.PENDING)
        assert len(fresh.jobs()) == 2
        assert list(fresh.workers()) == []


@pytest.mark.parametrize("error", [SystemExit, asyncio.CancelledError])
def test_what_fails_on_a_worker_fails_here(error: type[BaseException]):
    with kit.override(Duly("sqlite:///unused.db")) as fresh:

        @fresh.action
        def stop(ctx: Ctx) -> None:
            raise error

        @fresh.action
        async def stop_softly(ctx: AsyncCtx) -> None:
            raise error

        fresh.run(stop)
        fresh.run(stop_softly)
        states = [job.state for job in kit.drain(fresh, raises=False)]
        assert states == [State.FAILED, State.FAILED]


@pytest.fixture
def ctrl_c() -> Iterator[None]:
    """As in a shell's foreground: who is started in the background ignores it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def test_ctrl_c_ends_an_async_action_and_the_drain(app: Duly, ctrl_c: None):
    with kit.override(Duly("sqlite:///unused.db")) as fresh:

        @fresh.action
        async def wait(ctx: AsyncCtx) -> None:
            signal.raise_signal(signal.SIGINT)
            await asyncio.Event().wait()

        @fresh.action
        async def give_up(ctx: AsyncCtx) -> None:
            task = asyncio.current_task()
            assert task is not None
            task.cancel()
            await asyncio.Event().wait()

        gone = fresh.run(give_up)
        kit.drain(fresh, raises=False)
        assert gone.state == State.FAILED
        job = fresh.run(wait)
        with pytest.raises(KeyboardInterrupt):
            kit.drain(fresh, raises=False)
        assert job.state == State.FAILED


def test_what_was_interrupted_outside_a_body_ends_as_after_a_crash(
    app: Duly, monkeypatch: pytest.MonkeyPatch
):
    def interrupted(attempt: object) -> None:
        raise KeyboardInterrupt

    job = app.run(send.using(retry=None), "ada")
    with monkeypatch.context() as patch:
        patch.setattr("duly.testing.inline.run_action", interrupted)
        with pytest.raises(KeyboardInterrupt):
            kit.drain(app)
    assert (job.state, job.record.error_kind) == (State.FAILED, "worker_lost")
    assert list(app.workers()) == []


@pytest.mark.parametrize("verb", [kit.drain, lambda app: kit.advance(app, 1)])
def test_nothing_is_run_inside_an_open_transaction(app: Duly, verb: Callable[[Duly], object]):
    with app.transaction() as tx:
        job = tx.run(send, "ada")
        with pytest.raises(UseTx):
            verb(app)
    assert [ran.id for ran in kit.drain(app)] == [job.id]


def test_what_nobody_may_start_is_left_alone(app: Duly):
    elsewhere = app.declare(kind="action")(not_here)
    waiting = app.run(elsewhere)
    app.queues.pause("mail")
    paused = app.run(send.using(queue="mail"), "ada")
    assert kit.drain(app) == kit.advance(app, 60) == []
    assert (waiting.state, paused.state) == (State.PENDING, State.PENDING)
    assert [held.function for held in app.held()] == ["not_here"]
    app.queues.resume("mail")
    assert kit.drain(app) == [paused]


def not_here() -> None: ...


def test_a_function_that_is_resumed_runs_again(app: Duly):
    app.functions.publish()
    app.functions.pause(send)
    job = app.run(send, "ada")
    assert kit.advance(app, 60) == []
    app.functions.resume(send)
    assert kit.drain(app) == [job]


def test_a_job_that_schedules_itself_for_ever_is_noticed(
    app: Duly, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("duly.testing.kit.MAX_ENQUEUED", 50)
    with kit.override(Duly("sqlite:///unused.db")) as fresh:

        @fresh.action
        def again(ctx: Ctx) -> None:
            ctx.run(again)

        @fresh.action
        def once(ctx: Ctx) -> None: ...

        fresh.run_many(once.bind() for _ in range(50))
        assert len(kit.drain(fresh)) == 50, "as many as may be"
        fresh.run(again)
        with pytest.raises(InvalidOption, match="enqueue itself"):
            kit.drain(fresh)


# advance


@pytest.mark.spec("N4", "N30")
def test_advance_runs_each_job_at_its_own_instant(app: Duly):
    seen = []
    with kit.override(Duly("sqlite:///unused.db")) as fresh:
        start = fresh.clock.now()

        @fresh.action
        def tick(ctx: Ctx, left: int) -> None:
            seen.append(fresh.clock.now() - start)
            if left:
                ctx.run_after(10, tick, left - 1)

        fresh.run_after(5, tick, 3)
        ran = kit.advance(fresh, timedelta(seconds=30))
        assert (seen, len(ran)) == ([5_000, 15_000, 25_000], 3)
        assert fresh.clock.now() - start == 30_000


@pytest.mark.spec("N4")
def test_advance_moves_retries(app: Duly):
    job = app.run(send, "nobody")
    kit.advance(app, 59, raises=False)
    assert (job.attempt, job.state) == (1, State.PENDING)
    kit.advance(app, 1, raises=False)
    assert job.attempt == 2
    with pytest.raises(JobFailed):
        kit.advance(app, 3600)
    assert (job.attempt, job.state) == (3, State.FAILED)


@pytest.mark.spec("N4")
def test_advance_past_retention_shows_what_became_of_the_jobs(app: Duly):
    failing = app.run(send, "nobody")
    with pytest.raises(JobFailed, match="no such person"):
        kit.advance(app, timedelta(days=60))
    assert sent == ["nobody"] * 3
    app.run(send, "nobody")
    app.run(send, "nobody")
    ran = kit.advance(app, timedelta(days=60), raises=False)
    assert [job.state for job in ran] == [State.FAILED] * 6
    assert [job.id for job in app.jobs() if job.id == failing.id] == []


@pytest.mark.spec("N4")
def test_a_job_that_nobody_may_start_hides_none_behind_it(app: Duly):
    app.run(app.declare(kind="action")(not_here))
    start = app.clock.now()
    app.run_after(10, send, "ada")
    [job] = kit.advance(app, 60)
    assert job.record.started_at == start + 10_000


@pytest.mark.spec("N4")
def test_advance_moves_expiry_and_retention(app: Duly):
    app.queues.pause("mail")
    job = app.run(send.using(queue="mail", expires=60), "ada")
    kit.advance(app, 61)
    assert (job.state, job.record.error_kind) == (State.CANCELED, "expired")
    done = app.run(send, "ada")
    kit.drain(app)
    app.run(send, "bob")
    kit.advance(app, timedelta(days=9))
    assert [found.id for found in app.jobs() if found.id == done.id] == []


def test_advance_needs_a_clock_that_it_can_move(sqlite_url: str):
    real = Duly(sqlite_url)
    with pytest.raises(InvalidOption, match="override"):
        kit.advance(real, 1)


# What was scheduled


@pytest.mark.spec("N30")
def test_assert_enqueued_finds_the_one_job(app: Duly):
    job = app.run_after(60, send.using(queue="mail"), "ada")
    app.run(send, "bob")
    assert kit.assert_enqueued(app, send.bind("ada")) == job
    assert kit.assert_enqueued(app, send.bind(to="ada"), after=60, queue="mail") == job
    assert kit.assert_enqueued(app, send.bind("ada"), at=job.scheduled_at) == job
    assert [found.arguments for found in kit.enqueued(app)] == [{"to": "bob"}, {"to": "ada"}]
    kit.assert_not_enqueued(app, ring)
    kit.assert_not_enqueued(app, send.bind("eve"))


@pytest.mark.spec("N30")
def test_what_is_not_there_is_said_with_what_is(app: Duly):
    app.run(send, "bob")
    app.run(log_in, "swordfish")
    for what, how in (
        (send.bind("ada"), {}),
        (send.bind("bob"), {"after": 60}),
        (send.bind("bob"), {"queue": "mail"}),
        (ring, {}),
    ):
        with pytest.raises(AssertionError, match=r"expected one job .*, found 0") as failure:
            kit.assert_enqueued(app, what, **how)
        if what is not ring:
            assert 'send({"to":"bob"})' in str(failure.value)
    app.run(send, "bob")
    with pytest.raises(AssertionError, match="found 2"):
        kit.assert_enqueued(app, send)
    with pytest.raises(AssertionError, match="expected no job send"):
        kit.assert_not_enqueued(app, send)
    with pytest.raises(AssertionError, match="expected no job") as failure:
        kit.assert_not_enqueued(app)
    assert "swordfish" not in str(failure.value)
    with pytest.raises(AssertionError) as failure:
        kit.assert_enqueued(app, log_in.bind("salmon"))
    assert "salmon" not in str(failure.value)
    kit.assert_enqueued(app, log_in.bind("swordfish"))


# Contexts


@pytest.mark.spec("N30")
def test_functions_can_be_called_with_made_contexts(app: Duly):
    assert send(kit.ctx(app), "ada") == "sent to ada"
    assert asyncio.run(ring(kit.async_ctx(app), 5)) == 5
    job = kit.assert_enqueued(app, send.bind("bell"))
    assert job.parent_id is None
    assert kit.ctx(app, attempt=3).attempt == 3
    canceled = kit.ctx(app, canceled=True)
    with pytest.raises(Canceled):
        canceled.check()
    assert canceled.run(send, "late").state == State.CANCELED


@pytest.mark.spec("N30")
def test_a_made_transaction_leaves_nothing(app: Duly):
    with kit.tx(app) as tx:
        assert order(tx, "ada") == 1
        assert tx.execute("SELECT count(*) FROM orders").scalar() == 1
        assert [job.function for job in tx.jobs()] == ["send"]
    kit.assert_not_enqueued(app)
    with pytest.raises(ZeroDivisionError), kit.tx(app) as tx:
        raise ZeroDivisionError
    assert kit.ctx(app).call(order, "bob") == 1


# The plugin

pytest_plugins = ["pytester"]

USERS_SHOP = """
from duly import Ctx, Duly
app = Duly("postgresql://nobody@127.0.0.1:1/production")

@app.action
def send(ctx: Ctx, to: str) -> str:
    return to
"""

USERS_TESTS = """
import pytest
from duly.testing import assert_enqueued, drain, advance
from shop import app, send

@pytest.mark.parametrize("n", range(4))
def test_alone_in_its_store(duly_app, n):
    assert duly_app is app
    assert app.jobs() == []
    app.run_after(60, send, str(n))
    assert_enqueued(app, send.bind(str(n)), after=60)
    assert [job.result(0) for job in advance(app, 60)] == [str(n)]
"""


@pytest.mark.long("postgres")
@pytest.mark.spec("N30")
def test_the_plugin_gives_each_test_a_store_of_its_own(
    pytester: pytest.Pytester, url: str, monkeypatch: pytest.MonkeyPatch
):
    pytester.makepyfile(shop=USERS_SHOP, test_shop=USERS_TESTS)
    pytester.makeini("[pytest]\nduly_app = shop:app\npythonpath = .\n")
    if url.startswith("postgres"):
        monkeypatch.setenv("DULY_TEST_URL", url)
        run = pytester.runpytest_subprocess("-q", "-n2")
    else:
        monkeypatch.setenv("DULY_TEST_URL", PRIVATE)
        run = pytester.runpytest_subprocess("-q")
    run.assert_outcomes(passed=4)
    if url.startswith("postgres"):
        left = Database(url)
        assert left.execute("SELECT 1 FROM pg_namespace WHERE nspname LIKE 'duly_test_%'") == []
        left.close()


@pytest.mark.spec("N60")
def test_the_test_database_may_be_in_the_configuration(
    pytester: pytest.Pytester, postgres_url: str, monkeypatch: pytest.MonkeyPatch
):
    elsewhere = "postgresql://nobody@127.0.0.1:1/nowhere"
    tests = f"""
        def test_where(duly_app, duly_test_url):
            assert duly_test_url == {postgres_url!r}
            assert duly_app.store.address().dialect == "postgres"
    """
    pytester.makepyfile(shop=USERS_SHOP, test_shop=tests)
    for configured, environment in [(postgres_url, None), (elsewhere, postgres_url)]:
        pytester.makeini(
            f"[pytest]\nduly_app = shop:app\npythonpath = .\nduly_test_url = {configured}\n"
        )
        monkeypatch.delenv("DULY_TEST_URL", raising=False)
        if environment:
            monkeypatch.setenv("DULY_TEST_URL", environment)
        pytester.runpytest_subprocess("-q").assert_outcomes(passed=1)


@pytest.mark.spec("N60")
def test_an_app_on_postgresql_is_not_tested_on_sqlite_by_chance(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.delenv("DULY_TEST_URL", raising=False)
    pytester.makepyfile(shop=USERS_SHOP, test_it="def test_it(duly_app): ...")
    pytester.makeini("[pytest]\nduly_app = shop:app\npythonpath = .\n")
    run = pytester.runpytest_inprocess("-q", "-p", "no:xdist")
    run.assert_outcomes(errors=1)
    run.stdout.fnmatch_lines(["*is on PostgreSQL: set DULY_TEST_URL, or duly_test_url in*"])


def test_another_test_database_is_refused(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
):
    pytester.makepyfile(shop=USERS_SHOP, test_it="def test_it(duly_app): ...")
    pytester.makeini("[pytest]\nduly_app = shop:app\npythonpath = .\n")
    for url in ("sqlite:///test.db", "mysql://u:secret@localhost/test"):
        monkeypatch.setenv("DULY_TEST_URL", url)
        run = pytester.runpytest_inprocess("-q", "-p", "no:xdist")
        run.assert_outcomes(errors=1)
        run.stdout.fnmatch_lines(["*must be postgresql://* or sqlite:///:memory:, not *"])
        run.stdout.no_fnmatch_line("*secret*")


def test_the_plugin_says_what_is_missing(pytester: pytest.Pytester):
    pytester.makepyfile("def test_it(duly_app): ...")
    run = pytester.runpytest_inprocess("-q", "-p", "no:xdist")
    run.stdout.fnmatch_lines(["*duly_app*module:app*"])
    assert run.ret != 0


@pytest.mark.parametrize(
    ("named", "says"),
    [
        ("missing:app", "missing cannot be imported: ModuleNotFoundError"),
        ("broken:app", "broken cannot be imported: ZeroDivisionError: division by zero"),
        ("shop:ap", "shop has no 'ap'"),
        ("shop:send", "shop:send is not a duly app"),
    ],
)
def test_the_plugin_says_why_there_is_no_app(pytester: pytest.Pytester, named: str, says: str):
    pytester.makepyfile(shop=USERS_SHOP, broken="1 / 0", test_it="def test_it(duly_app): ...")
    pytester.makeini(f"[pytest]\nduly_app = {named}\npythonpath = .\n")
    run = pytester.runpytest_inprocess("-q", "-p", "no:xdist")
    run.stdout.fnmatch_lines([f"*duly_app: {says}*"])
    run.assert_outcomes(errors=1)


# Results


class Receipt(BaseModel):
    number: int


def returning(app: Duly) -> dict[str, Any]:
    """Functions whose annotations say something else than they return, and one that is right."""

    @app.action
    def wrong(ctx: Ctx) -> str:
        return 7  # type: ignore[return-value]

    @app.action
    async def wrong_async(ctx: AsyncCtx) -> int:
        return "seven"  # type: ignore[return-value]

    @app.mutation
    def nothing(tx: Tx) -> str:
        return None  # type: ignore[return-value]

    @app.action
    def wrong_model(ctx: Ctx) -> Receipt:
        return {"number": "many"}  # type: ignore[return-value]

    @app.action
    def right(ctx: Ctx) -> tuple[Receipt, timedelta, int | None]:
        return Receipt(number=1), timedelta(seconds=1), None

    @app.action
    def silent(ctx: Ctx): ...

    @app.action
    def private(ctx: Ctx, token: Annotated[str, Redact]) -> Annotated[Literal["ok"], "note"]:
        return token  # type: ignore[return-value]

    return locals()


def warned(caplog: pytest.LogCaptureFixture) -> list[str]:
    return sorted(
        record.getMessage().partition(":")[0]
        for record in caplog.records
        if "does not match the return annotation" in record.getMessage()
    )


@pytest.mark.spec("N52")
def test_a_result_that_does_not_match_its_annotation_is_warned_of(
    url: str, caplog: pytest.LogCaptureFixture
):
    made = Duly("sqlite:///unused.db")
    functions = returning(made)
    with kit.override(made, url) as app:
        jobs = [app.run(functions[name]) for name in ("wrong", "wrong_async", "nothing")]
        app.run(functions["wrong_model"])
        app.run(functions["right"])
        app.run(functions["silent"])
        app.run(functions["private"], "s3cret")
        kit.drain(app)
        assert [job.state for job in jobs] == [State.SUCCEEDED] * 3, "it is only a warning"
    assert warned(caplog) == ["nothing", "private", "wrong", "wrong_async", "wrong_model"]
    assert "wrong: the result does not match the return annotation: Expected `str`" in caplog.text
    assert "s3cret" not in caplog.text


@pytest.mark.spec("N52")
def test_a_worker_within_override_warns_too(caplog: pytest.LogCaptureFixture):
    made = Duly("sqlite:///unused.db")
    functions = returning(made)
    with kit.override(made, clock=SystemClock()) as app, app:
        app.run(functions["wrong_async"]).result(timeout=30)
    assert warned(caplog) == ["wrong_async"]


@pytest.mark.spec("N52")
def test_a_worker_in_production_checks_no_result(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    app = Duly(f"sqlite:///{tmp_path}/shop.db")
    functions = returning(app)
    app.migrate()
    app.run(functions["wrong"])
    kit.drain(app)
    assert warned(caplog) == ["wrong"]
    caplog.clear()
    with app:
        jobs = [app.run(functions[name]) for name in ("wrong", "wrong_async", "nothing")]
        assert [job.result(timeout=30) for job in jobs] == [7, "seven", None]
    app.close()
    assert warned(caplog) == []
