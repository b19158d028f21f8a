"""The test kit, as users' tests use it."""

import asyncio
from datetime import timedelta
from typing import Annotated

import pytest

import duly.testing as kit
from duly import AsyncCtx, Canceled, Ctx, Duly, ManualClock, Redact, Retry, State, SystemClock, Tx
from duly.errors import InvalidOption, JobFailed, StoreError
from tests.jobs.support import Database

shop = Duly("postgresql://nobody@127.0.0.1:1/production")
"""What the user's module makes: tests must never reach it."""

sent: list[str] = []


@shop.action(retry=Retry(attempts=3, base=60, jitter=0))
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


def test_a_job_that_schedules_itself_for_ever_is_noticed(
    app: Duly, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("duly.testing.kit.ENOUGH", 50)
    with kit.override(Duly("sqlite:///unused.db")) as fresh:

        @fresh.action
        def again(ctx: Ctx) -> None:
            ctx.run(again)

        fresh.run(again)
        with pytest.raises(InvalidOption, match="more are due"):
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
    with pytest.raises(Canceled):
        kit.ctx(app, canceled=True).check()


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


@pytest.mark.spec("N30")
def test_the_plugin_gives_each_test_a_store_of_its_own(
    pytester: pytest.Pytester, url: str, monkeypatch: pytest.MonkeyPatch
):
    pytester.makepyfile(shop=USERS_SHOP, test_shop=USERS_TESTS)
    pytester.makeini("[pytest]\nduly_app = shop:app\npythonpath = .\n")
    if url.startswith("postgres"):
        monkeypatch.setenv("DULY_TEST_URL", url)
    run = pytester.runpytest_subprocess("-q", "-n2")
    run.assert_outcomes(passed=4)
    if url.startswith("postgres"):
        left = Database(url)
        assert left.execute("SELECT 1 FROM pg_namespace WHERE nspname LIKE 'duly_test_%'") == []
        left.close()


def test_the_plugin_says_what_is_missing(pytester: pytest.Pytester):
    pytester.makepyfile("def test_it(duly_app): ...")
    run = pytester.runpytest_subprocess("-q", "-p", "no:xdist")
    run.stdout.fnmatch_lines(["*duly_app*module:app*"])
    assert run.ret != 0
