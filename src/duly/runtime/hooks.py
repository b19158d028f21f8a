"""Calls the hooks of jobs in their own thread, once an outcome is durable.

Nothing waits for a hook: calls are queued, and those that do not fit are dropped and counted in the
log. Without hooks there is no queue and no thread.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Iterable
from functools import partial
from typing import Protocol

from duly.clock import os_monotonic
from duly.errors import StoreError
from duly.model import attempt as model
from duly.model.attempt import AttemptInfo, Hook, Hooks
from duly.model.job import Claim, Finish, JobRecord, Kind, Lost, Settlement

log = logging.getLogger(__name__)

MAX_WAITING = 10_000
STOP_SECONDS = 5.0
"""How long a process that stops waits for its hooks."""
LINGER_SECONDS = 5.0
"""How long the thread waits for another call before it ends."""
WARN_EVERY = 10.0

Work = Callable[[], None]


class HasHooks(Protocol):
    @property
    def hooks(self) -> Hooks: ...


class ObservedAttempt(Protocol):
    """An attempt, as far as its hooks are concerned."""

    claim: Claim
    began_at: float | None
    ended_at: float | None

    @property
    def runnable(self) -> HasHooks: ...


class HookHost(Protocol):
    """The app, as far as its hooks need it."""

    @property
    def may_have_hooks(self) -> bool:
        """Whether any function has hooks, or modules that may declare some are not imported."""
        ...

    def hooks_of(self, function: str, /) -> Hooks:
        """The hooks of a function; imports modules."""
        ...

    def read_job(self, job_id: str, /) -> JobRecord | None: ...

    def monotonic(self) -> float: ...


class HookCalls:
    """The calls of hooks in one process."""

    def __init__(self, host: HookHost) -> None:
        self._host = host
        self.forget()

    def forget(self) -> None:
        """Forget the thread and its work: a forked child has neither."""
        self._waiting: deque[Work] = deque()
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._calling = False
        self._dropped = 0
        self._warn_at = 0.0

    # What has happened

    def now(self) -> float:
        return self._host.monotonic()

    def started(self, attempt: ObservedAttempt) -> None:
        """The body of an attempt is about to start."""
        self._tell(attempt.runnable.hooks, model.started(attempt.claim))

    def settled(self, attempt: ObservedAttempt, settlement: Settlement) -> None:
        """The outcome of an attempt is durable. No hook is called if it was given back."""
        claim = attempt.claim
        if claim.kind == Kind.WORKFLOW and not isinstance(settlement, Finish):
            # It waits, or continues elsewhere.
            return
        ran = attempt.began_at is not None
        if ran or isinstance(settlement, Finish) or model.is_retry(claim, settlement):
            info = model.settled(claim, claim.attempt, settlement, _duration(attempt))
            self._tell(attempt.runnable.hooks, info)

    def committed(self, attempt: ObservedAttempt) -> None:
        """A mutation has committed itself."""
        info = model.succeeded(attempt.claim, _duration(attempt))
        self._tell(attempt.runnable.hooks, info)

    def timed_out(self, ended: Iterable[tuple[Claim, Settlement]]) -> None:
        """A janitor has settled jobs whose workers did not."""
        for claim, settlement in ended if self._host.may_have_hooks else ():
            self._put(partial(self._look_up, claim, claim.attempt, settlement))

    def rescued(self, ended: Iterable[tuple[Lost, Settlement]]) -> None:
        """The jobs of a dead worker were settled here."""
        for lost, settlement in ended if self._host.may_have_hooks else ():
            if lost.kind == Kind.WORKFLOW and not isinstance(settlement, Finish):
                continue
            self._put(partial(self._look_up, None, lost.attempt, settlement))

    def _look_up(self, claim: Claim | None, attempt: int, settlement: Settlement) -> None:
        job = claim or self._host.read_job(settlement.id)
        if job is not None:
            hooks = self._host.hooks_of(job.function)
            self._call_all(hooks, model.settled(job, attempt, settlement))

    # Calling

    def _tell(self, hooks: Hooks, info: AttemptInfo) -> None:
        if info.state in hooks:
            self._put(partial(self._call_all, hooks, info))

    def _call_all(self, hooks: Hooks, info: AttemptInfo) -> None:
        for hook in hooks.get(info.state, ()):
            _call(hook, info)

    def _put(self, work: Work) -> None:
        with self._changed:
            if len(self._waiting) >= MAX_WAITING:
                self._drop(1)
                return
            self._waiting.append(work)
            if self._thread is None:
                self._start_thread()
            elif len(self._waiting) == 1:
                self._changed.notify_all()

    def _start_thread(self) -> None:
        thread = threading.Thread(target=self._work, name="duly-hooks", daemon=True)
        try:
            thread.start()
        except RuntimeError as error:
            log.error("cannot start the thread of hooks; trying again with the next: %s", error)
            return
        self._thread = thread

    def _work(self) -> None:
        while True:
            with self._changed:
                self._calling = False
                self._changed.notify_all()
                if not self._changed.wait_for(lambda: self._waiting, LINGER_SECONDS):
                    self._thread = None
                    return
                work = self._waiting.popleft()
                self._calling = True
            try:
                work()
            except StoreError as error:
                log.warning("a hook of a rescued job was not called: %s", error)
            except BaseException:
                # A dead thread would never call another hook.
                log.exception("the thread of hooks continues after an error")

    def _drop(self, calls: int) -> None:
        self._dropped += calls
        if os_monotonic() >= self._warn_at:
            self._warn_at = os_monotonic() + WARN_EVERY
            log.warning(
                "hooks are slower than jobs: %d calls of hooks dropped so far, because %d wait",
                self._dropped,
                MAX_WAITING,
            )

    def wait(self, seconds: float = STOP_SECONDS) -> None:
        """Wait until all hooks have been called: this process may end next."""
        with self._changed:
            if self._thread is None or self._thread is threading.current_thread():
                return
            idle = self._changed.wait_for(lambda: not self._waiting and not self._calling, seconds)
            if not idle:
                log.warning(
                    "the hooks did not end within %g s; calls that wait: %d",
                    seconds,
                    len(self._waiting),
                )


class HookCallsHere(HookCalls):
    """Calls hooks in the thread of a test, when it asks for that."""

    def _put(self, work: Work) -> None:
        self._waiting.append(work)

    def wait(self, seconds: float = STOP_SECONDS) -> None:
        while self._waiting:
            self._waiting.popleft()()


def _duration(attempt: ObservedAttempt) -> float | None:
    if attempt.began_at is None or attempt.ended_at is None:
        return None
    return attempt.ended_at - attempt.began_at


def _call(hook: Hook, info: AttemptInfo) -> None:
    try:
        hook(info)
    except (Exception, SystemExit):
        log.exception("a hook failed, which changes nothing about job %s", info.job_id)
