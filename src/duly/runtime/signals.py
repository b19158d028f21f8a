"""Calls the user's signal hook, with a time limit.

It is called before the tick's transaction, for the schedules whose condition looks at it. It runs
in daemon threads: a call that never returns delays its ticks, but not the end of the process.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Iterable, Mapping
from typing import Any, Protocol

import msgspec

from duly.clock import os_monotonic
from duly.model import strict_json
from duly.model.decide import Signal, needs_signal
from duly.model.schedule import Plan, ScheduleRecord, plan_of
from duly.model.stored_values import attempt
from duly.model.text import storable

log = logging.getLogger(__name__)

SIGNAL_SECONDS = 5.0
MAX_CALLS_AT_ONCE = 8
MAX_THREADS = 32
"""How many threads of a process may hang in the hook. After that it is not called until one
returns."""

LATE_SIGNAL = Signal(error="the signal hook did not return in time")

_seats = threading.Semaphore(MAX_THREADS)


class AnswersSignals(Protocol):
    @property
    def signal_seconds(self) -> float: ...

    def signal(self, schedule: ScheduleRecord, /) -> Any: ...


def ask_for_signals(
    program: AnswersSignals, records: Iterable[ScheduleRecord]
) -> Mapping[str, Signal]:
    """The hook's answers for those schedules whose condition looks at the signal.

    Schedules that are left out were not asked about, and may be in the next round.
    """
    wanted = [record for record in records if _needs_signal(record)]
    return _Round(program, wanted).answers() if wanted else {}


def ask_for_signal(program: AnswersSignals, plan: Plan) -> Mapping[str, Signal]:
    """The same for a single schedule, which must be answered now.

    The condition of the plan decides, which may be another one than the stored one.
    """
    if not needs_signal(plan):
        return {}
    return {plan.id: LATE_SIGNAL, **_Round(program, [plan.record]).answers()}


def _needs_signal(record: ScheduleRecord) -> bool:
    if record.condition is None:
        return False
    # A condition that cannot be parsed will park its schedule.
    return attempt(lambda: needs_signal(plan_of(record)), False)


class _Round:
    """One call of the hook for each of some schedules."""

    def __init__(self, program: AnswersSignals, records: Iterable[ScheduleRecord]) -> None:
        self._program = program
        self._open = deque(records)
        self._all = [record.id for record in self._open]
        self._asked: dict[str, float] = {}
        """When to stop waiting for each call that has started."""
        self._answers: dict[str, Signal] = {}
        self._change = threading.Condition()

    def answers(self) -> Mapping[str, Signal]:
        """Start calls for a while, and give each its own time to answer.

        As long as the hook answers, schedules for which there was no time are left out: those
        before them are decided now, so that their turn comes. If it does not answer, they count as
        late too.
        """
        until = os_monotonic() + self._program.signal_seconds
        if not self._start_asking(until):
            return {}
        with self._change:
            self._change.wait_for(self._is_complete, max(0.0, until - os_monotonic()))
            self._open.clear()
            until = max(self._asked.values(), default=until)
            self._change.wait_for(self._is_over, max(0.0, until - os_monotonic()))
            late = self._asked if self._answers else self._all
            return dict.fromkeys(late, LATE_SIGNAL) | self._answers

    def _start_asking(self, until: float) -> bool:
        """Start the threads that call the hook. Return False if none can be started."""
        for started in range(min(MAX_CALLS_AT_ONCE, len(self._all))):
            if not _seats.acquire(timeout=max(0.0, until - os_monotonic())):
                break
            try:
                threading.Thread(target=self._ask, name="duly-signal", daemon=True).start()
            except RuntimeError as error:
                _seats.release()
                log.warning("cannot start another thread to call the signal hook: %s", error)
                return started > 0
        return True

    def _is_complete(self) -> bool:
        return len(self._answers) == len(self._all)

    def _is_over(self) -> bool:
        now = os_monotonic()
        return all(each in self._answers or until <= now for each, until in self._asked.items())

    def _ask(self) -> None:
        try:
            while record := self._take():
                answer = self._answer(record)
                with self._change:
                    self._answers[record.id] = answer
                    self._change.notify()
        finally:
            _seats.release()

    def _take(self) -> ScheduleRecord | None:
        with self._change:
            if not self._open:
                return None
            record = self._open.popleft()
            self._asked[record.id] = os_monotonic() + self._program.signal_seconds
            return record

    def _answer(self, record: ScheduleRecord) -> Signal:
        try:
            value = self._program.signal(record)
            if fault := strict_json.fault(value):
                where = f"{fault.path}: " if fault.path else ""
                return _failed(f"the signal hook returned an invalid value: {where}{fault.reason}")
            # A copy, because the hook may later change what it has returned.
            return Signal(msgspec.json.decode(strict_json.encoded(value)))
        except BaseException as error:  # a hook may raise what it likes
            return _failed(f"the signal hook failed: {type(error).__name__}: {error}")


def _failed(why: str) -> Signal:
    return Signal(error=storable(why, 500))
