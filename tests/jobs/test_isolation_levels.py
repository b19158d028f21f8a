"""A database, a role or a transaction of the user's may be stricter than READ COMMITTED.

duly's own transactions are READ COMMITTED whatever the default is. tests/callers has the handles.
"""

from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from duly import Ctx, Duly, Limit, ManualClock, Retry, State, Tx, Unique, fault
from duly.errors import StoreReadOnly
from duly.ids import new_id
from duly.observe.doctor import Level, examine
from duly.store.base import ClaimRequest, WorkerInfo
from duly.store.postgres import PostgresStore
from tests.jobs.support import Database, Hire, on_postgres, rescue_the_dead, tidy
from tests.levels import STRICTER
from tests.schedules.support import tick_all

at_stricter_levels = pytest.mark.parametrize(
    "url",
    [
        pytest.param(f"postgres_{level.replace(' ', '_')}", marks=pytest.mark.postgres)
        for level in STRICTER
    ],
    indirect=True,
)
on_repeatable_read = pytest.mark.parametrize(
    "url",
    [pytest.param("postgres_repeatable_read", marks=pytest.mark.postgres)],
    indirect=True,
)

# Refuses what is written to any of duly's tables under another level.
GUARD = """
    CREATE FUNCTION refuse_level() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
        IF current_setting('transaction_isolation') <> 'read committed' THEN
            RAISE EXCEPTION '% of % is %', TG_OP, TG_TABLE_NAME,
                current_setting('transaction_isolation');
        END IF;
        RETURN NULL;
    END $$;
    DO $$ DECLARE place text; BEGIN
        FOR place IN SELECT oid::regclass::text FROM pg_class
            WHERE relnamespace = 'duly'::regnamespace AND relkind IN ('r', 'p')
        LOOP EXECUTE 'CREATE TRIGGER level BEFORE INSERT OR UPDATE OR DELETE ON ' || place
            || ' FOR EACH STATEMENT EXECUTE FUNCTION refuse_level()'; END LOOP;
    END $$"""


@pytest.fixture
def guard(db: Database) -> Iterator[None]:
    db.execute(GUARD)
    with pytest.raises(psycopg.errors.RaiseException, match="INSERT of queues is"):
        db.execute("INSERT INTO @queues (name) VALUES ('q')")
    yield
    db.execute("DROP FUNCTION refuse_level CASCADE")


@at_stricter_levels
@pytest.mark.spec("N38")
@pytest.mark.usefixtures("guard")
@pytest.mark.parametrize("pooler", [False, True], ids=["direct", "pooler"])
def test_whatever_duly_writes_is_read_committed(
    url: str, clock: ManualClock, hire: Hire, pooler: bool, caplog: pytest.LogCaptureFixture
):
    app = Duly(url, clock=clock, pooler=pooler)
    levels: set[object] = set()

    @app.mutation
    def change(tx: Tx) -> None:
        levels.add(tx.execute("SHOW transaction_isolation").scalar())
        tx.run(look)

    @app.mutation(group=True)
    def share(tx: Tx) -> None:
        levels.add(tx.execute("SHOW transaction_isolation").scalar())

    @app.action(retry=Retry(attempts=3))
    def look(ctx: Ctx) -> None:
        ctx.progress(0.5)
        ctx.log("looking")
        if ctx.attempt == 1:
            raise ValueError

    @app.action(retry=Retry(attempts=2))
    def spawn(ctx: Ctx) -> None:
        ctx.run(look)

    @app.action
    def done(ctx: Ctx, batch_id: str) -> None: ...

    limited = look.using(limit=Limit("k", at_once=1, rate=1, per=1))
    unique = look.using(unique=Unique("u"))
    app.schedules.create("often", change.bind(), every=300)
    app.batch([change.bind(), share.bind(), share.bind(), spawn.bind()], on_complete=done)
    app.run_many([limited.bind(), limited.bind(), unique.bind(), unique.bind()])
    app.run(look)
    assert app.cancel(app.run_after(5, look))
    with app.transaction() as tx:
        levels.add(tx.execute("SHOW transaction_isolation").scalar())
        tx.run(look)
    app.queues.pause("later")

    lost, worker = hire(app), hire(app)
    lost.claim_only()
    lost.die()
    rescue_the_dead(worker)
    for _ in range(4):
        clock.advance(301)
        tick_all(app)
        tidy(app)
        worker.work()

    assert not app.jobs(state=State.RUNNING) + app.jobs(state=State.FAILED)
    assert [job.state for job in app.jobs(function=done)] == [State.SUCCEEDED]
    assert levels == {"read committed"}
    assert [record.name for record in caplog.records] == [
        "duly.runtime.heartbeat"
    ]  # of the lost one
    worker.stop()
    app.close()


@on_repeatable_read
@pytest.mark.spec("N38", "N22")
def test_a_claim_sees_the_starts_that_others_commit_before_it_has_the_lock(
    app: Duly, db: Database, url: str
):
    """The two pick from different queues, so that no row says that they met."""

    @app.action(limit=Limit("k", rate=1, per=60))
    def start(ctx: Ctx) -> None: ...

    app.run_many([start.using(queue=queue).bind() for queue in ("a", "b")])
    stores = {queue: PostgresStore(url) for queue in ("a", "b")}
    claimed: dict[str, int] = {}

    def claim(queue: str) -> None:
        store, worker_id, now = stores[queue], new_id(app.clock.now()), app.clock.now()
        info = WorkerInfo(worker_id, "app", "host", 1, None, (start.name,), 1, False, 0, now)
        store.register(info, now)
        request = ClaimRequest(worker_id, (queue,), (start.name,), 1, limited=True)
        claimed[queue] = len(store.exchange([], request, now)[1])

    def meanwhile(point: str) -> None:
        if point == "worker.claiming" and "b" not in claimed:
            claimed["b"] = 0
            claim("b")

    with fault.inject(meanwhile):
        claim("a")

    assert claimed == {"a": 0, "b": 1}
    for store in stores.values():
        store.close()


@on_repeatable_read
@pytest.mark.spec("N38")
def test_a_body_cannot_change_the_level_of_its_transaction(app: Duly):
    with (
        pytest.raises(psycopg.errors.ActiveSqlTransaction),
        app.transaction() as tx,
    ):
        tx.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")


@at_stricter_levels
@pytest.mark.spec("N38", "N21")
def test_the_janitor_frees_a_hook_that_is_stuck(
    app: Duly, hire: Hire, db: Database, caplog: pytest.LogCaptureFixture
):
    called: list[str] = []

    @app.action
    def done(ctx: Ctx, batch_id: str) -> None:
        called.append(batch_id)

    @app.action
    def work(ctx: Ctx) -> None: ...

    batch = app.batch([work.bind(), work.using(queue="later").bind()], on_complete=done)
    waiting = app.batch([work.using(queue="later").bind()], on_complete=done)
    app.queues.pause("later")
    stale = db.connect()
    stale.execute("BEGIN")
    stale.execute("SELECT 1 FROM duly.jobs LIMIT 1")
    worker = hire()
    worker.work()
    # What a cancel did before duly said which level it needs.
    stale.execute("DELETE FROM duly.jobs WHERE batch_id = %s AND queue = 'later'", [batch.id])
    stale.execute("COMMIT")
    assert batch.progress().total == 1
    worker.work()
    assert called == []

    tidy(app)
    worker.work()

    assert called == [batch.id]
    assert app.job(waiting.id).state == State.PENDING
    assert "released 1 on_complete jobs that waited although their jobs had ended" in caplog.text


@on_repeatable_read
def test_a_look_that_lost_against_another_transaction_is_repeated(app: Duly):
    """Behind a pooler it may have any level, and so may fail to be serialized."""
    store: Any = app.ready()
    lost = [psycopg.errors.SerializationFailure()]

    def ask(session: Any) -> int:
        if lost:
            raise lost.pop()
        return 1

    assert store.read(ask) == 1


@at_stricter_levels
@pytest.mark.spec("N38")
def test_the_doctor_tells_the_level_of_the_database(app: Duly, request: pytest.FixtureRequest):
    level = request.node.callspec.params["url"].removeprefix("postgres_").replace("_", " ")
    notes = [each.text for each in examine(app.core).findings if each.level == Level.NOTE]
    assert any(f"the default isolation level is {level.upper()};" in note for note in notes)


@on_postgres
@pytest.mark.new_database
def test_a_database_that_is_read_only_by_default_stays_so(app: Duly, db: Database, url: str):
    """A host turns it on when the disk is full: duly does not write all the same."""

    @app.action
    def work(ctx: Ctx) -> None: ...

    app.close()
    name = url.rpartition("/")[2]
    db.execute(f"ALTER DATABASE {name} SET default_transaction_read_only = on")
    with pytest.raises(StoreReadOnly, match="is default_transaction_read_only on"):
        app.run(work)
