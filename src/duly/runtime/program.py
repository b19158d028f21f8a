"""The protocol of an application as the runtime needs it, and nothing more."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

from duly.clock import Clock
from duly.model.function import Published
from duly.model.job import Claim, Kind, NewJob
from duly.model.schedule import ScheduleRecord
from duly.runtime.counts import Counts
from duly.store.base import StoreTx
from duly.store.schedules.ledger import TickJobOrder
from duly.store.table import Store

Scrub = Callable[[str, str], str]
"""Takes what nobody is shown out of a text, given the arguments of the call."""


class RunningAttempt(Protocol):
    """An attempt as the function's context sees it."""

    claim: Claim
    canceled: bool
    """Whether the job was taken away: its result will be dropped."""
    scheduled: bool
    """Whether the body has scheduled jobs, so that workers must be woken after the commit."""
    failed_calls: set[tuple[Scrub, str]]
    """Calls made by the body, with their arguments, whose errors may hold redacted values."""

    def undisturbed(self) -> AbstractContextManager[None]:
        """While an async body is inside, its task is not canceled; it is afterwards."""
        ...

    def progress(self, value: float, note: str | None, /) -> None:
        """The body says how far it is."""
        ...

    def say(self, level: str, text: str, /) -> None:
        """The body has a line for its log."""
        ...


class Runnable(Protocol):
    """A registered function, ready to be called with stored arguments."""

    @property
    def name(self) -> str: ...

    @property
    def kind(self) -> Kind: ...

    @property
    def is_async(self) -> bool: ...

    @property
    def isolated(self) -> bool:
        """Run in a process of its own."""
        ...

    @property
    def alone(self) -> bool:
        """Never share a transaction."""
        ...

    @property
    def group(self) -> bool:
        """Share one also where that has to be asked for."""
        ...

    def decode(self, args: str, /) -> Mapping[str, Any]:
        """The call's arguments; SignatureMismatch when they no longer fit."""
        ...

    def encode_result(self, value: object, /) -> str | None:
        """The stored form; UnstorableResult when there is none."""
        ...

    def may_retry(self, error: BaseException, /) -> bool:
        """Whether another attempt may help, if the policy allows one."""
        ...

    def scrub(self, text: str, args: str, /) -> str:
        """A text for people, without the arguments that nobody is shown."""
        ...

    def start(self, running: RunningAttempt, /) -> bool:
        """The body starts now, and its job's key is free; False if the job was taken away."""
        ...

    def start_async(self, running: RunningAttempt, /) -> Awaitable[bool]:
        """The same, off the event loop."""
        ...

    def prepare(self) -> None:
        """Ask the store for what the body may need, before its transaction begins."""
        ...

    def call_mutation(
        self, running: RunningAttempt, tx: StoreTx, arguments: Mapping[str, Any], shared: bool
    ) -> object: ...

    def call_action(self, running: RunningAttempt, arguments: Mapping[str, Any]) -> object: ...

    def call_async(
        self, running: RunningAttempt, arguments: Mapping[str, Any]
    ) -> Awaitable[object]: ...


class Program(Protocol):
    """The application: its functions, its store, its clock."""

    @property
    def name(self) -> str: ...

    @property
    def revision(self) -> int:
        """Grows whenever a function is defined."""
        ...

    @property
    def captures_logs(self) -> bool:
        """Whether what `logging` records in a body becomes a log line of its job."""
        ...

    @property
    def counts(self) -> Counts:
        """Where everything that happens is counted."""
        ...

    @property
    def clock(self) -> Clock: ...

    @property
    def store(self) -> Store: ...

    def runnables(self, *, with_faulty: bool = True) -> Mapping[str, Runnable]:
        """Every function by name, type hints resolved.

        One whose hints cannot be raises InvalidFunction, or is left out.
        """
        ...

    def command(self) -> Sequence[str] | None:
        """How another process runs the command line bound to this app; None if it cannot."""
        ...

    def jobs_of_tick(self, order: TickJobOrder, now: int, /) -> Sequence[NewJob]:
        """The job that a tick calls for, first, and those that wait for its end."""
        ...

    def alert_jobs(self, schedule: ScheduleRecord, problem: str, now: int, /) -> Sequence[NewJob]:
        """The jobs that tell of a promise that a schedule has broken."""
        ...

    @property
    def signal_seconds(self) -> float:
        """How long its answer is waited for."""
        ...

    def signal(self, schedule: ScheduleRecord, /) -> Any:
        """What the user's hook says for the condition of a schedule; None without one."""
        ...

    @property
    def signals_for(self) -> str | None:
        """Without a hook, the one app that none means null for; None with one."""
        ...

    def knows(self, function: str, /) -> bool:
        """Whether a function and its hook are registered here, or described by who has them."""
        ...

    def apply_declared(self) -> None:
        """Bring the schedules that this app declares into the store, if they are new."""
        ...

    def published(self) -> Sequence[Published]:
        """Every function that is not faulty, as it is described to everybody."""
        ...
