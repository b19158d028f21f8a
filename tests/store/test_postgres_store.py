"""What the PostgreSQL store does when the server refuses or makes it wait."""

import threading
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from duly.clock import os_monotonic
from duly.errors import StoreError, StoreUnavailable
from duly.ids import new_id
from duly.model.job import JobFilter
from duly.store.base import WorkerInfo
from duly.store.postgres import PostgresStore
from duly.store.postgres.errors import Conflict
from duly.testing.conformance.ground import new_job
from tests.jobs.support import wait_until

NOW = 1_767_225_600_000
PATIENCE = 30.0

pytestmark = pytest.mark.postgres


@pytest.fixture
def store(migrated_postgres: str) -> Iterator[PostgresStore]:
    store = PostgresStore(migrated_postgres + "?options=-c%20lock_timeout%3D10ms")
    store.open(NOW)
    yield store
    store.close()


class Impatient(threading.Event):
    """An event that no thread waits for."""

    def wait(self, timeout: float | None = None) -> bool:
        return self.is_set()


def test_who_listens_goes_on_after_any_error(
    store: PostgresStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    bell, stop = threading.Event(), Impatient()
    failures = iter([StoreError("permission denied"), Conflict(), StoreUnavailable("gone")])
    connect = store.connect

    def fail_first() -> Any:
        for failure in failures:
            raise failure
        return connect()

    monkeypatch.setattr(store, "connect", fail_first)
    watcher = threading.Thread(target=store.watch, args=(bell, stop))
    watcher.start()
    try:
        assert bell.wait(PATIENCE), "nobody listens any more"
    finally:
        stop.set()
        watcher.join(PATIENCE)


def test_workers_are_told_when_no_thread_can_be_started(
    store: PostgresStore, migrated_postgres: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While the interpreter shuts down, threads that it waits for may still call functions."""
    with psycopg.connect(migrated_postgres, autocommit=True) as listening:
        listening.execute("LISTEN duly")

        def refuse(thread: threading.Thread) -> None:
            raise RuntimeError("can't create new thread at interpreter shutdown")

        monkeypatch.setattr(threading.Thread, "start", refuse)
        store.ring()
        store.close()
        assert list(listening.notifies(timeout=PATIENCE, stop_after=1))


def test_a_lone_insert_tells_workers_itself_and_others_leave_it_to_the_bell(
    store: PostgresStore, migrated_postgres: str
) -> None:
    store.ring()
    bell = store._bell
    assert bell is not None
    rung = threading.Event()
    with psycopg.connect(migrated_postgres, autocommit=True) as listener:
        wait_until(bell.is_quiet, "the bell is quiet")
        bell._notify = rung.set
        bell._rung_at = 0.0
        listener.execute("LISTEN duly")

        def heard() -> int:
            return len(list(listener.notifies(timeout=0.1)))

        store.enqueue([new_job()])
        assert (heard(), rung.is_set()) == (0, False)
        store.enqueue([new_job()], ring=True)
        wait_until(heard, "somebody is told")
        assert not rung.is_set()
        assert heard() == 0

        bell._rung_at = os_monotonic() + PATIENCE
        store.enqueue([new_job()], ring=True)
        assert rung.wait(PATIENCE)
        assert heard() == 0
    assert len(store.find(JobFilter())) == 3


def test_an_insert_that_is_repeated_tells_workers_too(
    store: PostgresStore, migrated_postgres: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.ring()
    bell = store._bell
    assert bell is not None
    wait_until(bell.is_quiet, "the bell is quiet")
    bell._rung_at = 0.0

    def lose(_: object) -> None:
        raise StoreUnavailable("the connection is gone")

    monkeypatch.setattr(store, "write_one", lose)
    with psycopg.connect(migrated_postgres, autocommit=True) as listener:
        listener.execute("LISTEN duly")
        store.enqueue([new_job()], ring=True)
        wait_until(lambda: list(listener.notifies(timeout=0.1)), "somebody is told")
    assert len(store.find(JobFilter())) == 1


def test_a_beat_that_met_a_lock_is_an_outage(store: PostgresStore, migrated_postgres: str) -> None:
    """Code that sends heartbeats for others expects only duly's errors and must survive them."""
    worker = WorkerInfo(new_id(NOW), "shop", "here", 1, None, (), 1, False, 0, NOW)
    store.register(worker, NOW)
    with psycopg.connect(migrated_postgres) as other:
        other.execute("SELECT 1 FROM duly.workers FOR UPDATE")
        with pytest.raises(StoreUnavailable):
            store.beat([worker.id])
    assert store.beat([worker.id]) == {worker.id}
