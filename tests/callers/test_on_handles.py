"""`app.on(handle)` is atomic with whatever else happens in the handle's transaction."""

import threading
from collections.abc import Iterator

import psycopg
import pytest

from duly import Duly, State
from duly.errors import JobNotFound, NotCommittedYet, NotInTransaction
from tests.callers.handles import Caller, OwnTransaction, record_of
from tests.jobs.support import Database, on_postgres, wait_until

pytestmark = pytest.mark.spec("N5")


def test_what_is_rolled_back_leaves_nothing(app: Duly, caller: Caller, db: Database, hello):
    caller.execute("INSERT INTO notes VALUES ('mine')")
    caller.on(app).run(hello, "world")
    caller.rollback()

    assert (app.jobs(), db.notes()) == ([], [])


def test_what_is_committed_leaves_one_job_which_runs(
    app: Duly, caller: Caller, db: Database, hello, hire
):
    caller.execute("INSERT INTO notes VALUES ('mine')")
    made = caller.on(app).run(hello, "world")
    assert (app.jobs(), db.notes()) == ([], [])
    caller.commit()

    hire().work()

    assert (app.job(made.id).result(), db.notes()) == ("hello, world", ["mine"])
    assert (len(app.jobs()), app.job(made.id).parent_id) == (1, None)


def test_the_verbs_see_what_is_not_committed(app: Duly, caller: Caller, clock, hello):
    on = caller.on(app)
    first = on.run(hello, "a")
    later = on.run_after(60, hello, "b")
    at = on.run_at(clock.now() + 5_000, hello, "c")
    many = on.run_many(hello.bind(name) for name in "de")

    assert {job.id for job in on.jobs()} == {job.id for job in (first, later, at, *many)}
    assert on.cancel(first) is True
    assert on.cancel(first.id) is False
    assert [job.id for job in on.jobs(state=State.CANCELED)] == [first.id]
    assert record_of(caller, on.job(first.id)).canceled_by == "operator"
    assert record_of(caller, on.job(later.id)).state == State.PENDING
    assert record_of(caller, on.job(later.id)).run_at == clock.now() + 60_000
    assert app.jobs() == []

    caller.commit()

    assert len(app.jobs()) == 5
    assert app.job(first.id).state == State.CANCELED
    assert app.job(at.id).record.run_at == clock.now() + 5_000


def test_canceling_takes_descendants_along_and_can_be_rolled_back(
    app: Duly, caller: Caller, db: Database, hello
):
    parent, child = (app.run_after(60, hello, name) for name in ("parent", "child"))
    db.execute("UPDATE @jobs SET parent_id = ? WHERE id = ?", parent.id, child.id)

    on = caller.on(app)
    assert on.cancel(parent) is True
    assert record_of(caller, on.job(child.id)).canceled_by == f"parent:{parent.id}"
    caller.rollback()
    assert (parent.state, child.state) == (State.PENDING, State.PENDING)

    caller.on(app).cancel(parent)
    caller.commit()
    assert (parent.state, child.state) == (State.CANCELED, State.CANCELED)


def test_a_job_that_is_not_there_is_not_found(app: Duly, caller: Caller):
    with pytest.raises(JobNotFound):
        caller.on(app).job("01900000-0000-7000-8000-000000000000")
    with pytest.raises(JobNotFound):
        caller.on(app).cancel("no id at all")


def test_with_a_savepoint_only_its_jobs_vanish(app: Duly, caller: Caller, hello):
    kept = caller.on(app).run(hello, "kept")
    with caller.undone_savepoint():
        caller.on(app).run(hello, "undone")
    also = caller.on(app).run(hello, "also kept")
    caller.commit()

    assert {job.id for job in app.jobs()} == {kept.id, also.id}


def test_a_job_cannot_be_read_before_its_commit(app: Duly, caller: Caller, hello):
    caller.execute("INSERT INTO notes VALUES ('the write lock is held')")
    on = caller.on(app)
    job = on.run(hello, "world")
    seen = on.job(job.id)

    with pytest.raises(NotCommittedYet, match="not committed yet, or was rolled back"):
        record_of(caller, job)
    if not isinstance(caller, OwnTransaction):  # there, UseTx and WouldWaitForItself come first
        for early in (job, seen):
            with pytest.raises(LookupError):
                caller.wait(early.result())
            with pytest.raises(NotCommittedYet):
                caller.wait(early.cancel())

    caller.commit()

    assert record_of(caller, job).state == State.PENDING
    assert record_of(caller, seen).state == State.PENDING


@pytest.mark.spec("N21")
def test_a_batch_is_not_done_before_its_commit_nor_when_it_is_rolled_back(
    app: Duly, caller: Caller, hello
):
    lost = caller.on(app).batch([hello.bind("world")])
    caller.rollback()
    empty = caller.on(app).batch([])
    batch = caller.on(app).batch([hello.bind("a"), hello.bind("b")])

    for unseen in (lost, batch):
        with pytest.raises(NotCommittedYet, match=f"batch {unseen.id} is not committed yet"):
            caller.wait(unseen.progress())
    if not isinstance(caller, OwnTransaction):  # there, UseTx comes first
        with pytest.raises(NotCommittedYet):
            caller.wait(batch.cancel())
    assert caller.wait(empty.progress()).done

    caller.commit()

    assert caller.wait(batch.progress()).pending == 2
    assert caller.wait(batch.cancel()) == 2
    with pytest.raises(NotCommittedYet):
        caller.wait(lost.cancel())


def test_a_job_that_was_rolled_back_is_never_there(app: Duly, caller: Caller, hello):
    job = caller.on(app).run(hello, "world")
    seen = caller.on(app).job(job.id)
    assert record_of(caller, seen).state == State.PENDING
    caller.rollback()

    for gone in (job, seen):
        with pytest.raises(NotCommittedYet):
            record_of(caller, gone)


def test_in_autocommit_nothing_is_written(app: Duly, caller: Caller, hello):
    if isinstance(caller, OwnTransaction):
        return
    caller.connect_in_autocommit()

    with pytest.raises(NotInTransaction, match="autocommit mode and outside a transaction"):
        caller.on(app).run(hello, "world")
    with pytest.raises(NotInTransaction):
        caller.on(app).jobs()
    assert app.jobs() == []


# Waking ------------------------------------------------------------------------------------------


@pytest.fixture
def bell(app: Duly) -> Iterator[threading.Event]:
    """What a sleeping worker listens to."""
    bell, stop = threading.Event(), threading.Event()
    watcher = threading.Thread(target=app.ready().watch, args=(bell, stop))
    watcher.start()
    wait_until(bell.is_set, "the watcher listens")
    bell.clear()
    yield bell
    stop.set()
    app.core.wake()  # it would look up only when its half second is over
    watcher.join()


def test_the_commit_wakes_the_workers(app: Duly, caller: Caller, hello, bell: threading.Event):
    caller.on(app).run(hello, "world")
    assert not bell.is_set()
    caller.commit()

    wait_until(bell.is_set, "the bell")


@on_postgres
def test_one_transaction_notifies_once(app: Duly, url: str, hello):
    with (
        psycopg.connect(url) as connection,
        psycopg.connect(url, autocommit=True) as listener,
    ):
        listener.execute("LISTEN duly")
        for name in "abc":
            app.on(connection).run(hello, name)
        app.on(connection, notify=False).run(hello, "d")
        connection.commit()
        app.on(connection).run_after(3600, hello, "nobody needs to wake up for it")
        connection.commit()
        app.on(connection, notify=False).run(hello, "they will look by themselves")
        connection.commit()
        app.on(connection).run(hello, "never")
        connection.rollback()
        listener.execute("NOTIFY duly, 'the end'")

        heard = [notice.payload for notice in listener.notifies(timeout=20, stop_after=2)]

    assert heard == ["", "the end"]
