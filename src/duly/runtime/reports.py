"""Collects progress and log lines of running jobs and writes them to the store.

Bodies only put them into memory. They are written for all jobs of a process at once, a few times a
second, and always before a job's outcome, so that its last report is never lost. The log lines of a
mutation wait until it ends: if it succeeds, they are part of its transaction.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import traceback
from collections.abc import Callable, Collection, Generator, Iterable, Sequence
from contextvars import Context, ContextVar, copy_context
from typing import Any, NamedTuple, Protocol

from duly.clock import Clock
from duly.model.job import Claim, Kind
from duly.model.progress import (
    LEVELS,
    MAX_LINE,
    MAX_LINES,
    MAX_NOTE,
    LogEntry,
    ProgressReport,
    revision_of,
    seq_of,
)
from duly.model.text import storable
from duly.runtime.loop import Loop
from duly.runtime.outbox import OUTAGE
from duly.store.table import Store

log = logging.getLogger(__name__)

FLUSH_SECONDS = 0.25
IDLE_SECONDS = 60.0
LINES_AT_ONCE = 2_000

Scrub = Callable[[str, str], str]


class Report:
    """The reports of one attempt, until they are written."""

    __slots__ = (
        "_scrub",
        "claim",
        "dropped",
        "ended",
        "line_count",
        "lines",
        "progress",
        "updates",
    )

    def __init__(self, claim: Claim, scrub: Scrub) -> None:
        self.claim = claim
        self._scrub = scrub
        self.progress: tuple[int, float, str | None, int] | None = None
        self.updates = 0
        self.lines: list[LogEntry] = []
        self.line_count = 0
        self.dropped = 0
        self.ended = False

    @property
    def is_mutation(self) -> bool:
        return self.claim.kind == Kind.MUTATION

    def set_progress(self, value: float, note: str | None, now: int) -> None:
        self.updates += 1
        self.progress = (self.updates, value, note, now)

    def say(self, level: str, text: str, now: int) -> None:
        if self.line_count < MAX_LINES:
            self._add(level, self._for_people(text, MAX_LINE), now)
        else:
            self.dropped += 1

    def end(self, now: int) -> None:
        """Ignore later reports, and count the lines that did not fit."""
        if not self.ended:
            self.ended = True
            if self.dropped:
                self._add("warning", f"{self.dropped:,} more lines were not stored", now)

    def _add(self, level: str, text: str, now: int) -> None:
        self.line_count += 1
        seq = seq_of(self.claim.token, self.line_count)
        self.lines.append(LogEntry(self.claim.id, seq, now, level, text))

    def stored_progress(self) -> ProgressReport | None:
        if self.progress is None:
            return None
        number, value, note, at = self.progress
        shown = None if note is None else self._for_people(note, MAX_NOTE)
        claim = self.claim
        return ProgressReport(
            claim.id, claim.token, revision_of(claim.token, number), value, shown, at
        )

    def _for_people(self, text: str, limit: int) -> str:
        # Redacted first: a secret that was cut in two would not be found.
        return storable(self._scrub(text, self.claim.args), limit)


class _Part(NamedTuple):
    """The part of a report that one flush writes."""

    report: Report
    progress: ProgressReport | None
    updates: int
    lines: list[LogEntry]


class Reports:
    """The reports of the jobs of one process, until they are written."""

    def __init__(self, store: Store, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        # Finalizers that the garbage collector calls may log, in the middle of any line of a body.
        self._guard = threading.RLock()
        self._flushing = threading.Lock()
        self._waiting: dict[Report, None] = {}
        self._flushed_at = -FLUSH_SECONDS
        self.loop = Loop("reports", self.one_pass, clock)

    # In a body

    def progress(self, report: Report, value: float, note: str | None) -> None:
        now = self._clock.now()
        with self._guard:
            if not report.ended:
                report.set_progress(value, note, now)
                self._wait_for(report)

    def say(self, report: Report, level: str, text: str) -> None:
        now = self._clock.now()
        with self._guard:
            if not report.ended:
                report.say(level, text, now)
                if not report.is_mutation:
                    self._wait_for(report)

    def end(self, report: Report) -> None:
        """The attempt has ended, or was taken away: later reports are ignored."""
        with self._guard:
            report.end(self._clock.now())
            if report.lines:
                self._wait_for(report)

    def take_lines(self, report: Report) -> list[LogEntry]:
        """The lines of a mutation that has succeeded, for its own transaction."""
        with self._guard:
            report.end(self._clock.now())
            return report.lines

    def _wait_for(self, report: Report) -> None:
        # Only the first one wakes the loop: the others are written with it.
        first = not self._waiting
        self._waiting[report] = None
        if first:
            self.loop.wake()

    # Writing

    def one_pass(self) -> float:
        if not self._waiting:
            return IDLE_SECONDS
        too_early = self._flushed_at + FLUSH_SECONDS - self._clock.monotonic()
        if too_early > 0:
            return too_early
        try:
            self.flush()
        except OUTAGE as error:
            log.warning("progress and log lines cannot be stored now: %s", error)
        self._flushed_at = self._clock.monotonic()
        return FLUSH_SECONDS

    def flush(self, job_ids: Collection[str] | None = None) -> None:
        """Write the reports so far, of all jobs or of these. Costs nothing if there are none.

        Raises only if the store is unavailable; then nothing is lost.
        """
        # Returns only once they are written, so it waits for a flush in another thread.
        if not self._waiting:
            return
        with self._flushing:
            more = True
            while more:
                parts, more = self._take(job_ids)
                self._write(parts)
                self._forget(parts)

    def _take(self, job_ids: Collection[str] | None) -> tuple[list[_Part], bool]:
        parts: list[_Part] = []
        room = LINES_AT_ONCE
        with self._guard:
            for report in self._waiting:
                if job_ids is None or report.claim.id in job_ids:
                    lines = report.lines[:room]
                    room -= len(lines)
                    parts.append(_Part(report, report.stored_progress(), report.updates, lines))
        return parts, room <= 0

    def _write(self, parts: Sequence[_Part]) -> None:
        progress = [part.progress for part in parts if part.progress is not None]
        lines = [line for part in parts for line in part.lines]
        if not progress and not lines:
            return
        workflows = {
            part.report.claim.id for part in parts if part.report.claim.kind == Kind.WORKFLOW
        }
        try:
            self._store.report(progress, lines, workflows)
        except OUTAGE:
            raise
        except Exception as error:
            # Not worth delaying the job's outcome, which must be stored next.
            reason = str(error).partition("\n")[0]
            log.error("progress and log lines could not be stored: %s", reason)

    def _forget(self, parts: Iterable[_Part]) -> None:
        with self._guard:
            for report, _, updates, lines in parts:
                del report.lines[: len(lines)]
                if report.updates == updates:
                    report.progress = None
                if report.progress is None and not report.lines:
                    self._waiting.pop(report, None)


# What is logged inside a body --------------------------------------------------------------------


class LogSink(Protocol):
    def say(self, level: str, text: str, /) -> None: ...


_speaker: ContextVar[LogSink | None] = ContextVar("duly_speaker", default=None)


def context_of(speaker: LogSink) -> Context:
    """An empty context, except for the job that its log lines belong to.

    Nothing of the enqueuer's identity reaches the job.
    """
    context = Context()
    context.run(_speaker.set, speaker)
    return context


def speak_for(speaker: LogSink) -> Context:
    """Log lines of this context belong to this job from now on.

    Return the context, to compare with.
    """
    _speaker.set(speaker)
    return copy_context()


def current_speaker() -> LogSink | None:
    """The attempt whose body runs this code, if any."""
    return _speaker.get()


def current_job() -> str | None:
    """The job whose body runs this code, if any."""
    claim = getattr(_speaker.get(), "claim", None)
    return claim.id if isinstance(claim, Claim) else None


class _Factory:
    """Creates log records like the previous factory, and lets jobs store them as log lines.

    A handler would have to be attached to a logger, which changes what the program prints:
    `basicConfig` would do nothing any more, and records without a handler would no longer be
    printed.
    """

    def __init__(self, before: Callable[..., logging.LogRecord]) -> None:
        self.before = before

    def __call__(self, *args: Any, **kwargs: Any) -> logging.LogRecord:
        record = self.before(*args, **kwargs)
        if _capture.factory is self:
            speaker = _speaker.get()
            if speaker is not None and _is_the_users(record):
                # If something is wrong with a record, `logging` itself reports it.
                with contextlib.suppress(Exception):
                    speaker.say(_level(record), _text(record))
        return record


class _Capture:
    """The factory of this process, as long as a worker uses it."""

    def __init__(self) -> None:
        self.factory: _Factory | None = None
        self._users = 0
        self._guard = threading.Lock()

    def join(self) -> None:
        with self._guard:
            self._users += 1
            # If other code has wrapped ours since, it may be gone together with the wrapper.
            current = logging.getLogRecordFactory()
            if current is not self.factory:
                self.factory = _Factory(current)
                logging.setLogRecordFactory(self.factory)

    def leave(self) -> None:
        with self._guard:
            self._users -= 1
            if self._users:
                return
            factory, self.factory = self.factory, None
            # If other code has wrapped it, it stays and does nothing.
            if factory is not None and logging.getLogRecordFactory() is factory:
                logging.setLogRecordFactory(factory.before)


_capture = _Capture()


@contextlib.contextmanager
def captured_logging() -> Generator[None]:
    """Store `logging` records made in the body of a job as log lines of that job."""
    _capture.join()
    try:
        yield
    finally:
        _capture.leave()


def _is_the_users(record: logging.LogRecord) -> bool:
    # `makeLogRecord` creates one without a name, to fill it with a record from elsewhere.
    return bool(record.name) and record.name.partition(".")[0] != "duly"


def _level(record: logging.LogRecord) -> str:
    name = record.levelname.lower()
    return name if name in LEVELS else LEVELS[min(max(record.levelno // 10 - 1, 0), 4)]


def _text(record: logging.LogRecord) -> str:
    text = record.getMessage()
    if record.exc_info and record.exc_info[1] is not None:
        text += "\n" + "".join(traceback.format_exception(record.exc_info[1])).rstrip()
    return text
