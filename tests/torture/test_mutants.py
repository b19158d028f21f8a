"""Each guard of the protocol, taken away, must be missed: a mutant that survives fails the test."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from typing import TypeVar

import pytest

from duly import Ctx, Duly, ManualClock, State, fault
from duly.errors import StoreError, StoreUnavailable
from duly.functions.new_job import new_job
from duly.runtime.ticker import Ticker
from duly.store.jobs.enqueue import insert_jobs
from duly.store.postgres import PostgresSession, PostgresStore
from duly.store.schedules.due import LOCK_DUE, PEEK_DUE
from tests.jobs.support import ManualWorker
from tests.simulator.clock_mutants import CLOCK_MUTANTS
from tests.simulator.mutants import MUTANTS, Mutant, try_out
from tests.simulator.tick_mutants import TICK_MUTANTS
from tests.simulator.workflow_mutants import WORKFLOW_MUTANTS

T = TypeVar("T")


EVERY = MUTANTS + TICK_MUTANTS + CLOCK_MUTANTS + WORKFLOW_MUTANTS


@pytest.mark.parametrize("mutant", EVERY, ids=lambda mutant: mutant.name)
def test_a_mutant_is_convicted(mutant: Mutant, report: Callable[[str], None]) -> None:
    verdict = mutant.convict()
    assert verdict is not None, f"nobody notices {mutant.name}"
    report(f"{verdict.where}, {verdict.violation.invariant}")


@pytest.mark.parametrize("mutant", [m for m in EVERY if m.probe], ids=lambda mutant: mutant.name)
def test_without_the_mutant_its_probe_is_refused(mutant: Mutant) -> None:
    assert mutant.probe is not None
    assert try_out(mutant.probe) is None


# On PostgreSQL an enqueue whose answer was lost is repeated -------------------------------------


class ForgetfulStore(PostgresStore):
    """Loses the answer of its first insert; meanwhile the job has run and ended."""

    def __init__(self, url: str, meanwhile: Callable[[], None]) -> None:
        super().__init__(url)
        self._meanwhile: Callable[[], None] | None = meanwhile

    def write_one(self, work: Callable[[PostgresSession], T]) -> T:
        answer = super().write_one(work)
        if self._meanwhile is not None:
            meanwhile, self._meanwhile = self._meanwhile, None
            meanwhile()
            raise StoreUnavailable("the answer was lost")
        return answer


def state_after_a_lost_answer(url: str) -> State:
    app = Duly(url, clock=ManualClock())

    @app.action
    def poke(ctx: Ctx) -> None:
        """Nothing to do."""

    app.migrate()
    worker = ManualWorker(app)
    store = ForgetfulStore(url, worker.work)
    job = new_job(poke.bind(), app.clock.now(), app.clock.now(), None)
    store.enqueue([job])
    state = app.job(job.id).state
    store.close()
    worker.stop()
    app.close()
    return state


def test_a_repeated_enqueue_does_not_revive_a_finished_job(postgres_url: str) -> None:
    assert state_after_a_lost_answer(postgres_url) == State.SUCCEEDED


def test_an_enqueue_that_is_repeated_blindly_is_convicted(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(PostgresSession, "insert_jobs_once", insert_jobs)
    assert state_after_a_lost_answer(postgres_url) == State.PENDING


# On PostgreSQL a tick locks what it decides ------------------------------------------------------


def disabled_while_it_is_ticked(url: str, *, locks: bool) -> tuple[bool, int]:
    """A schedule is disabled between a ticker's decision and its writing.

    Whether the operator was told so before the tick was written, and how many jobs there are then.
    """
    app, other = (Duly(url, clock=ManualClock()) for _ in range(2))

    @app.action
    def poke(ctx: Ctx) -> None:
        """Nothing to do."""

    app.migrate()
    app.schedules.create("s", poke, every=timedelta(hours=1), fire_at_once=True)
    store = app.store
    assert isinstance(store, PostgresStore)
    if not locks:
        store.sql[LOCK_DUE] = store.sql[PEEK_DUE]
    operator = threading.Thread(target=other.schedules.disable, args=("s",))
    overtaken: list[bool] = []

    def disable(point: str) -> None:
        if point == "ticker.decided":
            operator.start()
            operator.join(1)
            overtaken.append(not operator.is_alive())

    with fault.inject(disable), suppress(StoreError):
        Ticker(app.core).one_pass()
    operator.join()
    jobs = len(app.jobs())
    assert app.schedules.get("s").record.enabled is False
    app.close()
    other.close()
    return overtaken[0], jobs


@pytest.mark.spec("R29")
def test_a_disable_waits_for_the_tick_that_has_begun(postgres_url: str) -> None:
    assert disabled_while_it_is_ticked(postgres_url, locks=True) == (False, 1)


def test_a_tick_without_a_lock_is_convicted(postgres_url: str) -> None:
    told, _ = disabled_while_it_is_ticked(postgres_url, locks=False)
    assert told
