"""The protocol of an application, as far as the runtime needs it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol, TypeVar

from duly.clock import Clock
from duly.model.attempt import Hooks
from duly.model.function import Published
from duly.model.job import Claim, Kind, NewJob
from duly.model.schedule import ScheduleRecord
from duly.runtime.counts import Counts
from duly.runtime.home import Home
from duly.runtime.hooks import HookCalls
from duly.runtime.lifespan import Lifespan
from duly.store.base import StoreTx
from duly.store.schedules.ledger import TickJobOrder
from duly.store.table import Store

T = TypeVar("T")

Scrub = Callable[[str, str], str]
"""Removes redacted values from a text, given the arguments of the call."""


class RunningLimit(Protocol):
    """The time limit of a step."""

    is_over: bool

    def end(self) -> None:
        """From here on nothing is interrupted."""
        ...


class RunningAttempt(Protocol):
    """An attempt as the function's context sees it."""

    claim: Claim
    context: object
    """The function's context, once its body has started."""
    canceled: bool
    """Whether the job was taken away: its result will be dropped."""
    stopping: bool
    """Whether the worker stops."""
    is_silent: Callable[[], bool] | None
    """Whether the worker may look dead to others, and must start nothing."""
    is_quiet: Callable[[], bool] | None
    """Whether log lines are dropped: a workflow repeats what it has done before."""
    scheduled: bool
    """Whether the body has scheduled jobs, so that workers must be woken after the commit."""
    failed_calls: set[tuple[Scrub, str]]
    """Calls that failed in the body, with their arguments: their errors may contain redacted
    values."""

    def undisturbed(self) -> AbstractContextManager[None]:
        """Within this block an async body's task is not canceled, but afterwards."""
        ...

    def on_loop(self, body: Coroutine[Any, Any, T], home: Home, /) -> T:
        """Run a mutation's coroutine on an event loop, and what it gives to `home` here."""
        ...

    def limit_step(self, seconds: float, stop: Callable[[], None], /) -> RunningLimit:
        """Call `stop`, repeatedly, once a step has run for `seconds`."""
        ...

    def progress(self, value: float, note: str | None, /) -> None:
        """Report the body's progress."""
        ...

    def say(self, level: str, text: str, /) -> None:
        """Add a line to the job's log."""
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
        """Run in its own process."""
        ...

    @property
    def alone(self) -> bool:
        """Never share a transaction."""
        ...

    @property
    def group(self) -> bool:
        """Share a transaction even if that is not the default."""
        ...

    @property
    def hooks(self) -> Hooks:
        """The hooks that are called for its attempts."""
        ...

    def decode(self, args: str, /) -> Mapping[str, Any]:
        """The call's arguments. Raises SignatureMismatch if they no longer fit."""
        ...

    def encode_result(self, value: object, /) -> str | None:
        """The stored form. Raises UnstorableResult if there is none."""
        ...

    def may_retry(self, error: BaseException, /) -> bool:
        """Whether another attempt may help, if the policy allows one."""
        ...

    def scrub(self, text: str, args: str, /) -> str:
        """A text for people, without redacted arguments."""
        ...

    def start(self, running: RunningAttempt, /) -> bool:
        """Called when the body starts, and its job's key is free.

        False if the job was taken away.
        """
        ...

    def start_async(self, running: RunningAttempt, /) -> Awaitable[bool]:
        """The same, off the event loop."""
        ...

    def prepare(self) -> None:
        """Read what the body may need from the store, before its transaction begins."""
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
        """Increases whenever a function is defined."""
        ...

    @property
    def build(self) -> str:
        """Identifies the code: a run that one build cannot continue waits for another."""
        ...

    @property
    def captures_logs(self) -> bool:
        """Whether `logging` records of a body become log lines of its job."""
        ...

    @property
    def counts(self) -> Counts:
        """The counters of this process."""
        ...

    @property
    def hook_calls(self) -> HookCalls:
        """How this process calls hooks."""
        ...

    @property
    def lifespan(self) -> Lifespan:
        """What the bodies of this process share."""
        ...

    @property
    def clock(self) -> Clock: ...

    @property
    def store(self) -> Store: ...

    def runnables(self, *, with_faulty: bool = True) -> Mapping[str, Runnable]:
        """Every function by name, with type hints resolved.

        A function whose hints cannot be resolved raises InvalidFunction, or is left out.
        """
        ...

    def command(self) -> Sequence[str] | None:
        """How another process can run the CLI bound to this app; None if it cannot."""
        ...

    def jobs_of_tick(self, order: TickJobOrder, now: int, /) -> Sequence[NewJob]:
        """The job of a tick, followed by the hooks that wait for it."""
        ...

    def alert_jobs(self, schedule: ScheduleRecord, problem: str, now: int, /) -> Sequence[NewJob]:
        """The alert jobs for a schedule with a missed expectation."""
        ...

    @property
    def signal_seconds(self) -> float:
        """How long to wait for an answer of the signal hook."""
        ...

    def signal(self, schedule: ScheduleRecord, /) -> Any:
        """The signal hook's answer for a schedule's condition; None without a hook."""
        ...

    @property
    def signals_for(self) -> str | None:
        """Without a hook, the app whose schedules get null as their signal; None with a hook."""
        ...

    def knows(self, function: str, /) -> bool:
        """Whether a function and its hook are registered here, or published by another process."""
        ...

    def apply_declared(self) -> bool:
        """Apply the set that this app declares to the store, if it is new or not complete.

        Returns whether something had to be left out.
        """
        ...

    def published(self) -> Sequence[Published]:
        """The descriptions of all functions that are not faulty."""
        ...
