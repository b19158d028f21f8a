"""Runs one attempt and turns how it ended into an outcome.

An action runs outside any transaction. Mutations run inside one that also contains the fenced
finish; on SQLite several share it, each in a savepoint.
"""

from __future__ import annotations

import logging
import math
import threading
import traceback
from collections.abc import Callable, Coroutine, Generator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Protocol, TypeVar

import msgspec

from duly import errors, fault
from duly.clock import Clock
from duly.model.job import (
    Claim,
    Conflicted,
    ErrorKind,
    Hold,
    Kind,
    LockRefused,
    NeverStarted,
    Outcome,
    Raised,
    State,
    Succeeded,
    SystemFailed,
)
from duly.model.progress import LogEntry
from duly.model.text import storable
from duly.runtime.home import Home
from duly.runtime.hooks import HookCalls
from duly.runtime.program import Runnable, Scrub
from duly.runtime.reports import Report, Reports, context_of
from duly.store.base import Blame, MutationLane, NeedsAlone, causes
from duly.store.table import Store

log = logging.getLogger(__name__)

T = TypeVar("T")

MESSAGE_LIMIT = 4_000
TRACEBACK_LIMIT = 16_000


class Committed(msgspec.Struct, frozen=True):
    """A mutation's effects and its success are durable; nothing is left to settle."""


class TakenAway(msgspec.Struct, frozen=True):
    """The fence did not match: the job was canceled, timed out or rescued meanwhile."""


MutationEnd = Outcome | Committed | TakenAway
Resolve = Callable[["Attempt", Outcome], None]
OnLoop = Callable[["Attempt", Coroutine[Any, Any, Any], Home], Any]
"""Runs a mutation's coroutine on an event loop, while this thread does the work of `Home`."""


class Unwound(BaseException):
    """Ends the body of a workflow; whatever it returns or raises after that does not count.

    Not an Exception, so that code that catches everything does not swallow it.
    """

    def __init__(self, outcome: Outcome | None) -> None:
        self.outcome = outcome
        super().__init__()


class StepLimit:
    """The time limit of a mutation that is a step of a workflow."""

    def __init__(self, claim: Claim, stop: Callable[[], None], watch: Watch | None) -> None:
        # The watchdog insists, as for any mutation: an interrupt between two statements is lost.
        self.claim = msgspec.structs.replace(claim, kind=Kind.MUTATION)
        self.deadline: float | None = None
        self.is_over = False
        self._stop = stop
        self._watch = watch
        self._active = threading.Lock()

    def begin(self, seconds: float) -> None:
        """Count the time from now; in tests nothing watches it."""
        if self._watch is not None and math.isfinite(seconds):
            self._watch.watch(self, seconds)

    def time_out(self) -> None:
        """The time is over: the statement that runs fails."""
        with self._active:
            if self.deadline is not None:
                self.is_over = True
                self._stop()

    def end(self) -> None:
        """From here on nothing is interrupted."""
        with self._active:
            self.deadline = None
        if self._watch is not None:
            self._watch.release(self)


class Watch(Protocol):
    """The watchdog, as far as steps need it."""

    def watch(self, limit: StepLimit, seconds: float, /) -> None: ...

    def release(self, limit: StepLimit, /) -> None: ...


class Attempt:
    """One execution of a job in this process. The first outcome counts, later ones are dropped."""

    __slots__ = (
        "_guard",
        "_inside",
        "_postponed",
        "_resolve",
        "began_at",
        "begun",
        "cancel_body",
        "canceled",
        "claim",
        "context",
        "deadline",
        "ended_at",
        "failed_calls",
        "hooks",
        "is_quiet",
        "is_silent",
        "loop",
        "report",
        "reports",
        "resolved",
        "runnable",
        "scheduled",
        "started",
        "stopping",
        "timed_out",
        "watch",
    )

    def __init__(
        self,
        claim: Claim,
        runnable: Runnable,
        resolve: Resolve,
        reports: Reports | None = None,
        hooks: HookCalls | None = None,
    ) -> None:
        self.claim = claim
        self.context: object = None
        self.runnable = runnable
        self._resolve = resolve
        self.reports = reports
        self.report: Report | None = None
        self.hooks = hooks if hooks is not None and runnable.hooks else None
        """None if there are no hooks to call."""
        self.began_at: float | None = None
        self.ended_at: float | None = None
        # See Reports: a body may be interrupted by its own reports.
        self._guard = threading.RLock()
        self.scheduled = False
        self.begun = False
        """Whether the body is about to start, or has started: the claim cannot be given back."""
        self.started = 0.0
        self.resolved = False
        self.canceled = False
        self.stopping = False
        """Whether the worker stops: a workflow then continues elsewhere."""
        self.is_silent: Callable[[], bool] | None = None
        """Whether the worker may look dead to others: a workflow then does not begin a step."""
        self.is_quiet: Callable[[], bool] | None = None
        """Whether log lines are dropped: a workflow repeats what it has done before."""
        self.timed_out = False
        self.deadline: float | None = None
        self.failed_calls: set[tuple[Scrub, str]] = set()
        self.cancel_body: Callable[[], None] | None = None
        self.loop: OnLoop | None = None
        self.watch: Watch | None = None
        """How a step of a workflow gets a time limit; None in tests."""
        self._inside = 0
        self._postponed = False

    def resolve(self, outcome: Outcome) -> bool:
        """Set the outcome. Return False if there is one already."""
        with self._guard:
            first, self.resolved = not self.resolved, True
        if first:
            if self.ended_at is None:
                self.body_ends()
            self.end_report()
            self._resolve(self, outcome)
        return first

    @contextmanager
    def undisturbed(self) -> Generator[None]:
        """Within this block an async body's task is not canceled, but afterwards."""
        self._inside += 1
        try:
            yield
        finally:
            self._inside -= 1
            if self._postponed and self.cancel_body is not None:
                self._postponed = False
                self.cancel_body()

    def may_disturb(self) -> bool:
        """Whether the task can be canceled now. Otherwise `cancel_body` is called again later."""
        self._postponed = self._inside > 0
        return not self._postponed

    def begin(self) -> bool:
        """Called when the body is about to start.

        Return False if the attempt already has an outcome.
        """
        with self._guard:
            self.begun = not self.resolved
            return self.begun

    def body_starts(self) -> None:
        """Tell the hooks, once for each attempt, that the body starts."""
        if self.hooks is not None:
            # A workflow that continues has started already.
            if self.began_at is None and self.claim.begun_at is None:
                self.hooks.started(self)
            self.began_at, self.ended_at = self.hooks.now(), None

    def body_ends(self) -> None:
        """Take the time for the hooks."""
        if self.hooks is not None:
            self.ended_at = self.hooks.now()

    def give_back(self) -> None:
        """Return the claim, unless its body is about to start."""
        with self._guard:
            if not self.begun:
                self.resolve(NeverStarted())

    def on_loop(self, body: Coroutine[Any, Any, T], home: Home) -> T:
        """Run a mutation's coroutine to its end."""
        assert self.loop is not None
        value: T = self.loop(self, body, home)
        return value

    def limit_step(self, seconds: float, stop: Callable[[], None]) -> StepLimit:
        """Call `stop`, repeatedly, once a step has run for `seconds`."""
        limit = StepLimit(self.claim, stop, self.watch)
        limit.begin(seconds)
        return limit

    def progress(self, value: float, note: str | None) -> None:
        """Report the body's progress."""
        if self.reports is not None:
            self.reports.progress(self._own_report(), value, note)

    def say(self, level: str, text: str) -> None:
        """Add a line to the job's log."""
        if self.reports is not None and not (self.is_quiet and self.is_quiet()):
            self.reports.say(self._own_report(), level, text)

    def _own_report(self) -> Report:
        with self._guard:
            # Most jobs report nothing, and need none.
            if self.report is None:
                self.report = Report(self.claim, self.runnable.scrub)
            return self.report

    def end_report(self) -> None:
        """Ignore later reports of the body."""
        if self.reports is not None and self.report is not None:
            self.reports.end(self.report)

    def lines_to_commit(self) -> list[LogEntry]:
        """The log lines of a mutation, to be stored in its own transaction."""
        if self.reports is None or self.report is None:
            return []
        return self.reports.take_lines(self.report)

    def take_away(self, *, stops: bool = False) -> None:
        """The row is gone: tell the body, and drop whatever it returns.

        An action continues, unless its worker stops or it has its own process.
        """
        with self._guard:
            self.resolved = True
        self.canceled = True
        if stops or self.claim.kind == Kind.MUTATION or self.runnable.isolated:
            self._stop_body()

    def time_out(self) -> None:
        """The time limit has passed.

        An action fails now; a mutation fails when its body has stopped.
        """
        self.timed_out = True
        self.canceled = True
        if self.claim.kind != Kind.MUTATION:
            self.resolve(timeout_outcome(self.claim))
        self._stop_body()

    def _stop_body(self) -> None:
        # The body may end meanwhile, and clear it.
        if (cancel := self.cancel_body) is not None:
            cancel()


# Actions -----------------------------------------------------------------------------------------


def run_action(attempt: Attempt) -> None:
    """Run a sync action to its end in this thread."""
    runnable = attempt.runnable
    arguments = _arguments_of_action(attempt)
    if arguments is None or (attempt.claim.holds_key and not _start(attempt)):
        return
    attempt.body_starts()
    fault.point("action.starting")
    outcome: Outcome | None
    try:
        value = context_of(attempt).run(runnable.call_action, attempt, arguments)
        outcome = _success(attempt, value)
    except Unwound as end:
        outcome = end.outcome
    except errors.Canceled as error:
        outcome = None if attempt.canceled else failure(attempt, error)
    except BaseException as error:
        outcome = failure(attempt, error)
    fault.point("action.returned")
    _hand_in(attempt, outcome)


async def run_async_action(attempt: Attempt) -> None:
    """Run an async action to its end in the current task."""
    runnable = attempt.runnable
    arguments = _arguments_of_action(attempt)
    if arguments is None or (attempt.claim.holds_key and not await _start_async(attempt)):
        return
    attempt.body_starts()
    fault.point("action.starting")
    outcome: Outcome | None
    try:
        outcome = _success(attempt, await runnable.call_async(attempt, arguments))
    except Unwound as end:
        outcome = end.outcome
    except errors.Canceled as error:
        outcome = None if attempt.canceled else failure(attempt, error)
    except BaseException as error:
        outcome = failure(attempt, error)
    fault.point("action.returned")
    _hand_in(attempt, outcome)


def _arguments_of_action(attempt: Attempt) -> Mapping[str, Any] | None:
    if attempt.resolved:
        return None
    arguments = _arguments(attempt)
    if isinstance(arguments, NeverStarted):
        attempt.resolve(arguments)
        return None
    return arguments


def _arguments(attempt: Attempt) -> Mapping[str, Any] | NeverStarted:
    """The decoded arguments. A job whose arguments do not fit the code is held, not failed."""
    try:
        return attempt.runnable.decode(attempt.claim.args)
    except errors.SignatureMismatch as error:
        return NeverStarted(Hold.SIGNATURE, storable(str(error), MESSAGE_LIMIT))


def _start(attempt: Attempt) -> bool:
    """Release the key of an action's job, just before its body. False if it must not start."""
    try:
        return _may_start(attempt, attempt.begin() and attempt.runnable.start(attempt))
    except errors.StoreError as error:
        return _could_not_start(attempt, error)


async def _start_async(attempt: Attempt) -> bool:
    try:
        return _may_start(attempt, attempt.begin() and await attempt.runnable.start_async(attempt))
    except errors.StoreError as error:
        return _could_not_start(attempt, error)


def _may_start(attempt: Attempt, started: bool) -> bool:
    if not started:
        # Canceled, or moved by a later call: the fence refuses this outcome.
        attempt.resolve(NeverStarted())
    return started and not attempt.resolved


def _could_not_start(attempt: Attempt, error: errors.StoreError) -> bool:
    attempt.resolve(SystemFailed(f"could not be started: {error}"))
    return False


def _success(attempt: Attempt, value: object) -> Outcome:
    try:
        return Succeeded(None if value is None else attempt.runnable.encode_result(value))
    except errors.UnstorableResult as error:
        return _unstorable(attempt, error)


def _unstorable(attempt: Attempt, error: errors.UnstorableResult) -> Raised:
    message = _for_people(attempt, str(error))
    return Raised(ErrorKind.UNSTORABLE_RESULT, storable(message, MESSAGE_LIMIT))


def _hand_in(attempt: Attempt, outcome: Outcome | None) -> None:
    # The context refers to the attempt, too: without this, only the garbage collector frees them.
    attempt.context = None
    if outcome is None or not attempt.resolve(outcome):
        log.info("job %s ended too late; its outcome was dropped", attempt.claim.id)


# Mutations ---------------------------------------------------------------------------------------


class MutationRunner:
    """Runs mutation bodies on one connection; used by one thread."""

    def __init__(
        self,
        store: Store,
        lane: MutationLane,
        clock: Clock,
        watch: Callable[[Attempt, float], None],
        release: Callable[[Attempt], None],
        loop: OnLoop,
    ) -> None:
        self._store = store
        self._lane = lane
        self._loop = loop
        self._clock = clock
        self._watch = watch
        self._release = release
        self._active = threading.Lock()
        self._alone: set[str] = set()
        self._in_body = False

    def run(self, attempts: Sequence[Attempt]) -> list[tuple[Attempt, MutationEnd]]:
        """Run all of them, sharing transactions where that is safe."""
        ends = self._give_up_keys([a for a in attempts if a.claim.holds_key and not a.begun])
        sharing = [a for a in attempts if a not in ends and not self._must_be_alone(a)]
        while len(sharing) > 1:
            shared, reached = self._run_shared(sharing)
            ends |= shared
            sharing = sharing[reached:]
        return [(a, ends[a] if a in ends else self._run_alone(a)) for a in attempts]

    def close(self) -> None:
        """Let go of the connection."""
        self._lane.close()

    def _give_up_keys(self, attempts: Sequence[Attempt]) -> dict[Attempt, MutationEnd]:
        """Release keys before the transaction begins, so that no call waits for its end.

        Attempts that must not start get their outcome here.
        """
        ends: dict[Attempt, MutationEnd] = {}
        for attempt in attempts:
            arguments = _arguments(attempt)
            if isinstance(arguments, NeverStarted):
                ends[attempt] = arguments
            elif not attempt.begin():
                ends[attempt] = TakenAway()
        starting = {a.claim.id: a for a in attempts if a not in ends}
        if not starting:
            return ends
        try:
            started = self._store.start_bodies([(i, a.claim.token) for i, a in starting.items()])
        except errors.StoreError as error:
            failed = SystemFailed(f"could not be started: {error}")
            return ends | dict.fromkeys(starting.values(), failed)
        return ends | {a: TakenAway() for i, a in starting.items() if i not in started}

    def _must_be_alone(self, attempt: Attempt) -> bool:
        runnable = attempt.runnable
        may_share = self._store.mutations_share or runnable.group
        return runnable.alone or not may_share or runnable.name in self._alone

    # Several in one transaction

    def _run_shared(self, attempts: Sequence[Attempt]) -> tuple[dict[Attempt, MutationEnd], int]:
        """Return how each ended, and how many were reached before the group was full.

        Those reached without an outcome have left no trace and must run alone. Only a member's own
        exception counts here, and only once the commit has succeeded: any other error may have been
        caused by another member.
        """
        ends: dict[Attempt, MutationEnd] = {}
        reached = 0
        until = self._clock.monotonic() + self._store.mutation_group_seconds
        try:
            attempts[0].runnable.prepare()
            self._lane.begin(True)
            for attempt in attempts:
                reached += 1
                end = self._member(attempt)
                if end is not None:
                    ends[attempt] = end
                if self._clock.monotonic() > until:
                    break
            self._lane.commit()
        except Exception as error:
            # Not its message: databases repeat values in it.
            name = type(error).__name__
            log.debug("a shared transaction failed; running its members one by one: %s", name)
            self._roll_back_whatever_is_left()
            return {}, max(reached, 1)
        fault.point("mutation.committed")
        return ends, reached

    def _member(self, attempt: Attempt) -> MutationEnd | None:
        self._lane.enter()
        try:
            end = self._body_and_finish(attempt, shared=True)
        except NeedsAlone:
            self._alone.add(attempt.runnable.name)
            self._undo_or_break()
            return None
        except BaseException as error:  # SystemExit too: a body must not end the worker's thread.
            # Run alone, it is clear whose failure it is.
            if self._lane.blame(error) != Blame.BODY or isinstance(error, errors.TransactionEnded):
                raise
            was_refused = self._was_refused(error)
            self._undo_or_break()
            return None if was_refused else self._judge(attempt, error)
        if isinstance(end, Committed):
            self._lane.leave()
        else:
            self._undo_or_break()
        return end

    def _was_refused(self, error: BaseException) -> bool:
        """The database may accept alone what it refuses here: a name in use, a mode that is still
        set.

        The body may have raised its own error because of the refusal. Must be called before `undo`.
        """
        return self._lane.has_refused() or any(map(self._lane.is_refusal, causes(error)))

    def _undo_or_break(self) -> None:
        if not self._lane.undo():
            raise errors.TransactionEnded("a member ended the transaction of the group")

    # One by itself

    def _run_alone(self, attempt: Attempt) -> MutationEnd:
        committing = self._in_body = False
        try:
            attempt.runnable.prepare()
            self._lane.begin(False)
            end = self._body_and_finish(attempt, shared=False)
            if not isinstance(end, Committed):
                self._lane.rollback()
                return end
            committing = True
            self._lane.commit()
        except BaseException as error:
            return self._failed_alone(attempt, error, committing)
        fault.point("mutation.committed")
        return end

    def _failed_alone(
        self, attempt: Attempt, error: BaseException, committing: bool
    ) -> MutationEnd:
        blame = self._lane.blame(error)
        self._roll_back_whatever_is_left()
        match blame:
            case Blame.DATABASE if committing and self._was_committed(attempt.claim):
                return Committed()
            case Blame.DATABASE:
                return SystemFailed(describe(attempt, error))
            case Blame.CONFLICT:
                return Conflicted(describe(attempt, error))
            case Blame.LOCK if not self._in_body:
                return Conflicted(describe(attempt, error))
            case Blame.LOCK | Blame.BODY:
                end = self._judge(attempt, error)
                if blame == Blame.LOCK and isinstance(end, Raised) and end.kind == ErrorKind.USER:
                    return LockRefused(end)
                return end

    def _roll_back_whatever_is_left(self) -> None:
        try:
            self._lane.rollback()
        except Exception as error:
            name = type(error).__name__
            log.debug("rollback failed; opening a new connection: %s", name)
        self._lane.renew()

    def _was_committed(self, claim: Claim) -> bool:
        """The COMMIT's answer was lost, so check."""
        job = self._store.get(claim.id)
        return job is not None and job.state == State.SUCCEEDED and job.token == claim.token

    # The body

    def _body_and_finish(self, attempt: Attempt, *, shared: bool) -> MutationEnd:
        fault.point("mutation.began")
        if attempt.resolved:
            return TakenAway()
        arguments = _arguments(attempt)
        if isinstance(arguments, NeverStarted):
            return arguments
        # If it ran before, in a transaction that was rolled back, nothing of that run is left.
        attempt.report = None
        self._watch(attempt, self._seconds(attempt.claim))
        attempt.cancel_body = self._interrupter(attempt)
        attempt.loop = self._loop
        self._in_body = True
        attempt.body_starts()
        try:
            value = context_of(attempt).run(
                attempt.runnable.call_mutation, attempt, self._lane.tx, arguments, shared
            )
        finally:
            # From here on the body must not be interrupted: the next statement could belong to
            # another member.
            with self._active:
                attempt.cancel_body = None
            attempt.context = None
            attempt.body_ends()
            self._release(attempt)
            # Its time is over, however much the others of its group still need.
            attempt.deadline = None
        self._in_body = False
        fault.point("mutation.body_done")
        if attempt.timed_out:
            return timeout_outcome(attempt.claim, self._store.mutation_seconds)
        if attempt.resolved:
            return TakenAway()
        result = None if value is None else attempt.runnable.encode_result(value)
        if lines := attempt.lines_to_commit():
            self._lane.log(lines)
        if not self._lane.finish(attempt.claim, result, self._clock.now()):
            return TakenAway()
        fault.point("mutation.finished")
        return Committed()

    def _seconds(self, claim: Claim) -> float:
        limit = self._store.mutation_seconds
        return limit if claim.timeout_ms is None else min(limit, claim.timeout_ms / 1000)

    def _interrupter(self, attempt: Attempt) -> Callable[[], None]:
        def interrupt() -> None:
            with self._active:
                if attempt.cancel_body is not None:
                    self._lane.interrupt()

        return interrupt

    def _judge(self, attempt: Attempt, error: BaseException) -> MutationEnd:
        if attempt.timed_out:
            return timeout_outcome(attempt.claim, self._store.mutation_seconds)
        if attempt.resolved:
            return TakenAway()
        if isinstance(error, errors.UnstorableResult):
            return _unstorable(attempt, error)
        return failure(attempt, error)


# Words -------------------------------------------------------------------------------------------


def failure(attempt: Attempt, error: BaseException) -> Raised:
    """The function's own exception as an outcome, however oddly that exception behaves."""
    try:
        return _failure(attempt, error)
    except Exception:
        log.exception("the exception of job %s cannot be shown in full", attempt.claim.id)
        return Raised(ErrorKind.USER, describe(attempt, error))


def _failure(attempt: Attempt, error: BaseException) -> Raised:
    text = _for_people(attempt, "".join(traceback.format_exception(error)))
    return Raised(
        ErrorKind.USER,
        describe(attempt, error),
        storable(text[-TRACEBACK_LIMIT:], TRACEBACK_LIMIT),
        final=not attempt.runnable.may_retry(error),
        after=error.seconds if isinstance(error, errors.RetryAfter) else None,
    )


def _for_people(attempt: Attempt, text: str) -> str:
    for scrub, args in [(attempt.runnable.scrub, attempt.claim.args), *attempt.failed_calls]:
        text = scrub(text, args)
    return text


def timeout_outcome(claim: Claim, longest: float = math.inf) -> Raised:
    """`longest` is the limit of the store, which applies even if a longer one was requested."""
    asked = math.inf if claim.timeout_ms is None else claim.timeout_ms / 1000
    return Raised(ErrorKind.TIMEOUT, f"{claim.function} ran longer than {min(asked, longest):g} s")


def describe(attempt: Attempt, error: BaseException) -> str:
    try:
        text = _for_people(attempt, str(error))
    except Exception:
        text = "(its message cannot be shown)"
    name = type(error).__name__
    return storable(f"{name}: {text}" if text else name, MESSAGE_LIMIT)
