"""Decides the outcome of each attempt and writes it to the store.

The first outcome of an attempt is settled and queued here. A pass writes everything that is queued,
and forgets only what is durable or was refused by the fence.
"""

from __future__ import annotations

import logging
import random
from collections import Counter
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager

from duly.clock import Clock
from duly.model.job import (
    Again,
    Claim,
    ErrorKind,
    Finish,
    Outcome,
    Raised,
    Settlement,
    State,
    Succeeded,
    finished,
    settle,
    settle_success,
)
from duly.runtime.counts import Counts
from duly.runtime.demand import POLL_SECONDS
from duly.runtime.execute import Attempt
from duly.runtime.outbox import OUTAGE, Outbox
from duly.runtime.reports import Reports
from duly.store.base import RowsLocked
from duly.store.table import Store

log = logging.getLogger(__name__)

AFTER_OUTAGE = 0.25
AFTER_LOCK = 1.0
UNCLEAR = "its outcome could not be processed"
TOO_LATE = "it ended too late, and its outcome was dropped"


class Outcomes:
    """The outcomes of one worker's attempts, until they are stored."""

    def __init__(
        self,
        store: Store,
        clock: Clock,
        held: dict[str, Attempt],
        reports: Reports,
        counts: Counts,
        look_again: Callable[[], None],
    ) -> None:
        """`look_again` is called when a job was returned that is due before the next poll."""
        self._look_again = look_again
        self._store = store
        self._clock = clock
        self._held = held
        self._reports = reports
        self._counts = counts
        self._outbox = Outbox()

    def __len__(self) -> int:
        return len(self._outbox)

    # Decided

    def post(self, claim: Claim, outcome: Outcome) -> None:
        """Decide what the first outcome of an attempt means, and queue it for writing."""
        self._outbox.put(self._settlement(claim, outcome))

    def _settlement(self, claim: Claim, outcome: Outcome) -> Settlement:
        if isinstance(outcome, Succeeded):
            return settle_success(claim, outcome)
        try:
            return settle(claim, outcome, self._clock.now(), random.random())
        except Exception:
            # Nothing would ever process this outcome again.
            log.exception("the outcome of job %s could not be processed; the job fails", claim.id)
            known = outcome if isinstance(outcome, Raised) else Raised(ErrorKind.USER, UNCLEAR)
            return finished(
                claim,
                State.FAILED,
                error_kind=known.kind,
                error_message=known.message,
                error_traceback=known.traceback,
            )

    # Written

    def take(self) -> list[Settlement]:
        """The next batch to be written."""
        return self._outbox.take()

    def bring_back(self) -> None:
        """Try outcomes again that waited for rows which others had locked."""
        self._outbox.bring_back(self._clock.monotonic())

    def write(self, batch: Sequence[Settlement]) -> float:
        """Write a batch by itself. Return the delay until there may be another.

        An outage is raised, after the batch was put back.
        """
        if not batch:
            return POLL_SECONDS
        try:
            with self.writing(batch):
                settled, _ = self._store.exchange(batch, None, self._clock.now())
        except RowsLocked as error:
            self._note_unlocked(batch, error)
        except OUTAGE:
            raise
        except Exception:
            return self.write_in_halves(batch)
        else:
            self.note(batch, settled)
        return 0 if self else POLL_SECONDS

    @contextmanager
    def writing(self, batch: Sequence[Settlement]) -> Generator[None]:
        """Wraps the exchange that writes a batch.

        After an outage the batch is put back. After any other error the caller has to write it, in
        halves.
        """
        try:
            if batch:
                # Reports have to be stored before the outcome is.
                self._reports.flush({settlement.id for settlement in batch})
            yield
        except OUTAGE:
            self._outbox.put_back(batch)
            raise

    def write_in_halves(self, batch: Sequence[Settlement]) -> float:
        """Write a batch that failed as a whole. Return the delay until there may be another."""

        def write_part(part: Sequence[Settlement]) -> set[str]:
            try:
                settled, _ = self._store.exchange(part, None, self._clock.now())
            except RowsLocked as error:
                self._note_unlocked(part, error)
                return error.settled
            self.note(part, settled)
            return settled

        self._outbox.store(batch, write_part)
        return AFTER_OUTAGE if self else 0

    # Noted

    def note(self, batch: Sequence[Settlement], settled: set[str]) -> None:
        """A batch was written: forget all of it, and count the attempts that were settled."""
        ran: Counter[tuple[str, str, float]] = Counter()
        if any(isinstance(each, Again) and self._is_due_soon(each) for each in batch):
            self._look_again()
        for settlement in batch:
            attempt = self._held.get(settlement.id)
            if attempt is not None and attempt.claim.token == settlement.token:
                self.forget(attempt)
                if settlement.id in settled:
                    if outcome := _outcome(attempt, settlement):
                        ran[attempt.claim.function, outcome, attempt.started] += 1
                    if attempt.hooks is not None:
                        attempt.hooks.settled(attempt, settlement)
            if log.isEnabledFor(logging.INFO):
                word = _word(settlement) if settlement.id in settled else TOO_LATE
                log_change(settlement.id, attempt, word)
        self._count(ran)

    def _is_due_soon(self, again: Again) -> bool:
        # A workflow may have got an event since it looked.
        return again.begun or again.run_at < self._clock.now() + POLL_SECONDS * 1000

    def _note_unlocked(self, batch: Sequence[Settlement], error: RowsLocked) -> None:
        """Rows that others have locked are settled later, so that nothing waits for them."""
        log.info("%s; trying again", error)
        self.note([s for s in batch if s.id not in error.locked], error.settled)
        locked = [s for s in batch if s.id in error.locked]
        self._outbox.put_aside(locked, self._clock.monotonic() + AFTER_LOCK)

    def note_mutation(self, attempt: Attempt, committed: bool) -> None:
        """A mutation has settled itself, in its own transaction, or was taken away."""
        self.forget(attempt)
        if committed:
            # Its log lines were part of its transaction.
            attempt.report = None
            self._count({(attempt.claim.function, State.SUCCEEDED, attempt.started): 1})
            if attempt.hooks is not None:
                attempt.hooks.committed(attempt)
        if log.isEnabledFor(logging.INFO):
            log_change(attempt.claim.id, attempt, State.SUCCEEDED if committed else TOO_LATE)

    def forget(self, attempt: Attempt) -> None:
        """No longer held here, unless it is a later attempt of the same job."""
        if self._held.get(attempt.claim.id) is attempt:
            del self._held[attempt.claim.id]

    def _count(self, ran: Mapping[tuple[str, str, float], int]) -> None:
        """Count ended attempts by function, start time and outcome."""
        now = self._clock.monotonic()
        for (function, outcome, started), times in ran.items():
            self._counts.ran(function, outcome, now - started, times)


def _outcome(attempt: Attempt, settlement: Settlement) -> str | None:
    """The outcome as metrics count it; None if the attempt has not run."""
    if isinstance(settlement, Finish):
        return settlement.state
    claim = attempt.claim
    failed = settlement.attempt == claim.attempt or settlement.system_retries > claim.system_retries
    return "retried" if failed else None


def _word(settlement: Settlement) -> str:
    return settlement.state if isinstance(settlement, Finish) else State.PENDING


def log_change(job_id: str, attempt: Attempt | None, word: str) -> None:
    """Log one record for a change of state, without the arguments."""
    function = attempt.claim.function if attempt else "?"
    number = attempt.claim.attempt if attempt else 0
    about = {"job_id": job_id, "function": function, "attempt": number}
    log.info("job %s (%s, attempt %d): %s", job_id, function, number, word, extra=about)
