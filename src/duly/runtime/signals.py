"""What does the user's signal hook say, and for how long is it waited for?

It is asked before the tick's transaction, for the schedules whose condition looks at it. It runs in
threads that nobody has to wait for: one that never returns delays its ticks, and not the end of the
process.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterable, Mapping
from typing import Any, Protocol

import msgspec

from duly.clock import os_monotonic
from duly.model import plain
from duly.model.decide import Signal, needs_signal
from duly.model.schedule import ScheduleRecord, plan_of

SIGNAL_SECONDS = 5.0
AT_ONCE = 8
MOST = 32
"""So many threads of a process may hang in the hook; then nobody is asked until one returns."""

LATE = Signal(error="the signal hook did not answer in time")

_seats = threading.Semaphore(MOST)


class AnswersSignals(Protocol):
    @property
    def signal_seconds(self) -> float: ...

    def signal(self, schedule: ScheduleRecord, /) -> Any: ...


def ask_for_signals(
    program: AnswersSignals, records: Iterable[ScheduleRecord]
) -> Mapping[str, Signal]:
    """What the hook says for those schedules whose condition looks at it."""
    wanted = [record for record in records if _needs_signal(record)]
    return _Round(program, wanted).answers() if wanted else {}


def _needs_signal(record: ScheduleRecord) -> bool:
    if record.condition is None:
        return False
    try:
        return needs_signal(plan_of(record))
    except Exception:  # whatever is wrong with it, it will be parked for
        return False


class _Round:
    """One question for each of some schedules."""

    def __init__(self, program: AnswersSignals, records: Iterable[ScheduleRecord]) -> None:
        self._program = program
        self._open = deque(records)
        self._all = [record.id for record in self._open]
        self._answers: dict[str, Signal] = {}
        self._change = threading.Condition()

    def answers(self) -> Mapping[str, Signal]:
        """Whoever has not answered in time is not waited for."""
        until = os_monotonic() + self._program.signal_seconds
        for _ in range(min(AT_ONCE, len(self._all))):
            if _seats.acquire(timeout=max(0.0, until - os_monotonic())):
                threading.Thread(target=self._ask, name="duly-signal", daemon=True).start()
        with self._change:
            self._change.wait_for(self._is_complete, max(0.0, until - os_monotonic()))
            self._open.clear()
            return {each: self._answers.get(each, LATE) for each in self._all}

    def _is_complete(self) -> bool:
        return len(self._answers) == len(self._all)

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
            return self._open.popleft() if self._open else None

    def _answer(self, record: ScheduleRecord) -> Signal:
        try:
            value = self._program.signal(record)
            if fault := plain.fault(value):
                where = f"{fault.path}: " if fault.path else ""
                return Signal(error=f"what the signal hook returned: {where}{fault.reason}"[:500])
            # A copy: the hook may go on to change what it has returned.
            return Signal(msgspec.json.decode(plain.encoded(value)))
        except BaseException as error:  # a hook may raise what it likes
            return Signal(error=f"the signal hook failed: {type(error).__name__}: {error}"[:500])
