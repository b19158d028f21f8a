"""Each guard of the protocol, taken away, must be missed: a mutant that survives fails the test."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import pytest

from duly import Ctx, Duly, ManualClock, State
from duly.errors import StoreUnavailable
from duly.functions import new_job
from duly.store.postgres import PostgresSession, PostgresStore
from tests.jobs.support import ManualWorker
from tests.simulator.mutants import MUTANTS, Mutant, try_out

T = TypeVar("T")


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_mutant_is_convicted(mutant: Mutant, report: Callable[[str], None]) -> None:
    verdict = mutant.convict()
    assert verdict is not None, f"nobody notices {mutant.name}"
    report(f"{verdict.where}, {verdict.violation.invariant}")


@pytest.mark.parametrize("mutant", [m for m in MUTANTS if m.probe], ids=lambda mutant: mutant.name)
def test_without_the_mutant_its_probe_is_refused(mutant: Mutant) -> None:
    assert mutant.probe is not None
    assert try_out(mutant.probe) is None


# On PostgreSQL an enqueue whose answer was lost is repeated -------------------------------------


class ForgetfulStore(PostgresStore):
    """Loses the answer of its first insert; meanwhile the job has run and ended."""

    def __init__(self, url: str, meanwhile: Callable[[], None]) -> None:
        super().__init__(url)
        self._meanwhile: Callable[[], None] | None = meanwhile

    def _single(self, work: Callable[[PostgresSession], T]) -> T:
        answer = super()._single(work)
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
    monkeypatch.setattr(PostgresSession, "insert_jobs_once", PostgresSession.insert_jobs)
    assert state_after_a_lost_answer(postgres_url) == State.PENDING
