"""Progress and log lines of jobs, and the revision that orders two views of a job.

A *revision* is a number that increases with every visible change: it combines the token, which
changes with every state, and the number of progress reports of that attempt; the end sorts after
all of them. It also fences progress: reports of an earlier attempt have a smaller revision.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import msgspec

from duly.errors import InvalidOption
from duly.model.job import State

_REPORTS = 32
"""Bits of a revision that count the reports of one attempt; the last value means the end."""
_END = (1 << _REPORTS) - 1

MAX_LINES = 1_000
"""The maximum number of log lines kept for one attempt."""
MAX_ATTEMPTS = 10
"""The number of attempts of a job whose log lines are kept: the latest ones."""
MAX_LINE = 4_000
"""The maximum length of a log line, in characters."""
MAX_NOTE = 1_000
"""The maximum length of a note, in characters."""
_LINES_OF_AN_ATTEMPT = 1_024

LEVELS = ("debug", "info", "warning", "error", "critical")


class ProgressReport(NamedTuple):
    """The progress that an attempt reported, as it is stored."""

    job_id: str
    token: int
    revision: int
    value: float
    note: str | None
    updated_at: int


class LogEntry(NamedTuple):
    """A log line as it is stored."""

    job_id: str
    seq: int
    logged_at: int
    level: str
    line: str


class Look(msgspec.Struct, frozen=True):
    """The result of one read of a job: its state, and its latest progress."""

    job_id: str
    state: State
    token: int
    attempt: int
    value: float | None
    note: str | None
    reported: int | None
    """The revision of the progress; None if none was reported."""
    updated_at: int | None

    @property
    def revision(self) -> int:
        if self.state.is_terminal:
            return revision_of(self.token, _END)
        return max(revision_of(self.token), self.reported or 0)

    @property
    def has_progress(self) -> bool:
        """Whether the current or latest attempt has reported progress."""
        last_attempt = (self.token - 1) | 1
        return self.reported is not None and self.reported >> _REPORTS == last_attempt

    @property
    def progress(self) -> float | None:
        """The last report of that attempt, or 1 if it succeeded; None if it reported none."""
        if not self.has_progress:
            return None
        return 1.0 if self.state is State.SUCCEEDED else self.value


class Event(msgspec.Struct, frozen=True):
    """The state of a job, as a watcher receives it. A later event has a larger revision."""

    job_id: str
    state: State
    attempt: int
    progress: float | None
    """Of the latest attempt; None until it has reported progress, 1 once it has succeeded."""
    note: str | None
    revision: int


def event_of(look: Look) -> Event:
    note = look.note if look.has_progress else None
    return Event(look.job_id, look.state, look.attempt, look.progress, note, look.revision)


def revision_of(token: int, reports: int = 0) -> int:
    """The revision after that many reports of the attempt with this token."""
    return token << _REPORTS | min(reports, _END)


def seq_of(token: int, number: int) -> int:
    """The sequence number of an attempt's nth log line among all lines of its job."""
    return token * _LINES_OF_AN_ATTEMPT + number


def oldest_seq_for(seq: int) -> int:
    """The first sequence number that is kept together with this one; older lines are dropped."""
    token = seq // _LINES_OF_AN_ATTEMPT
    # Each attempt uses two tokens, the odd one while it runs.
    return seq_of(max(token - 2 * (MAX_ATTEMPTS - 1), 0), 0)


def check_progress(value: Any, note: Any) -> float:
    """The value in the form in which it is stored."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    # Values that are not numbers fail the comparison too.
    if not is_number or not 0 <= value <= 1:
        raise InvalidOption("progress", f"must be a number from 0 to 1, not {value!r}")
    if note is not None and not isinstance(note, str):
        raise InvalidOption("note", f"must be text, not {note!r}")
    return float(value)


def check_line(text: object, level: object) -> None:
    if not isinstance(text, str):
        raise InvalidOption("log", f"must be text, not {text!r}")
    if level not in LEVELS:
        raise InvalidOption("level", f"must be one of {', '.join(LEVELS)}, not {level!r}")
