"""The verbs of a transaction that user code works in."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence

from duly.model.job import JobFilter, JobRecord, NewJob
from duly.model.workflow import NewEvent, Put
from duly.store import workflows
from duly.store.jobs import cancel, enqueue, read
from duly.store.session import Session


class OpenTx(ABC):
    """The verbs of StoreTx that both databases implement the same way."""

    @property
    @abstractmethod
    def _open(self) -> Session:
        """Raise if user code has ended the transaction."""

    def insert_jobs(self, jobs: Sequence[NewJob]) -> Mapping[str, str]:
        return enqueue.insert_jobs(self._open, jobs)

    def get(self, job_id: str) -> JobRecord | None:
        return read.get(self._open, job_id)

    def find(self, filter: JobFilter) -> Sequence[JobRecord]:
        return read.find(self._open, filter)

    def cancel(self, job_id: str, by: str, now: int) -> bool | None:
        return cancel.cancel(self._open, job_id, by, now)

    def lock_running(self, job_id: str, token: int) -> bool:
        return enqueue.lock_running(self._open, job_id, token)

    def put_steps(self, puts: Sequence[Put]) -> bool:
        return workflows.put_steps_locked(self._open, puts)

    def send(self, event: NewEvent, now: int) -> None:
        workflows.send_event(self._open, event, now)
