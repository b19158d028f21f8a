"""Progress and log lines of jobs, and the revision that orders two views of a job.

A *revision* is one number that grows with whatever a watcher is shown: the token, which moves on
with every change of state, then the count of progress reports of that attempt; the end comes after
all of them. It also fences progress: what an earlier attempt says has a smaller revision.
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
"""Log lines that are kept of one attempt."""
MAX_ATTEMPTS = 10
"""Attempts of one job whose log lines are kept: the last ones."""
MAX_LINE = 4_000
"""Characters of one log line."""
MAX_NOTE = 1_000
"""Characters of a note."""
_LINES_OF_AN_ATTEMPT = 1_024

LEVELS = ("debug", "info", "warning", "error", "critical")


class ProgressReport(NamedTuple):
    """What an attempt says of its progress, as it is stored."""

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
    """What one look at a job has shown: where it stands, and the last that it said of itself."""

    job_id: str
    state: State
    token: int
    attempt: int
    value: float | None
    note: str | None
    reported: int | None
    """The revision of the progress; None if it never said anything."""
    updated_at: int | None

    @property
    def revision(self) -> int:
        if self.state.is_terminal:
            return revision_of(self.token, _END)
        return max(revision_of(self.token), self.reported or 0)

    @property
    def has_progress(self) -> bool:
        """Whether the attempt that runs, or ran last, has said how far it is."""
        last_attempt = (self.token - 1) | 1
        return self.reported is not None and self.reported >> _REPORTS == last_attempt


class Event(msgspec.Struct, frozen=True):
    """Where a job stands, as a watcher is shown it. A later one has a larger revision."""

    job_id: str
    state: State
    attempt: int
    progress: float | None
    """Of the attempt that runs, or ran last; None until that has said something."""
    note: str | None
    revision: int


def event_of(look: Look) -> Event:
    value, note = (look.value, look.note) if look.has_progress else (None, None)
    return Event(look.job_id, look.state, look.attempt, value, note, look.revision)


def revision_of(token: int, reports: int = 0) -> int:
    """The revision after so many reports of the attempt with this token."""
    return token << _REPORTS | min(reports, _END)


def seq_of(token: int, number: int) -> int:
    """The place of an attempt's nth log line among all lines of its job."""
    return token * _LINES_OF_AN_ATTEMPT + number


def oldest_seq_for(seq: int) -> int:
    """Where the lines begin that are kept beside this one; older ones are dropped."""
    token = seq // _LINES_OF_AN_ATTEMPT
    # A token is odd while running: there are two of them to an attempt.
    return seq_of(max(token - 2 * (MAX_ATTEMPTS - 1), 0), 0)


def check_progress(value: Any, note: Any) -> float:
    """The value as it is stored."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    # What is no number is not between two others either.
    if not is_number or not 0 <= value <= 1:
        raise InvalidOption("progress", f"must be a number from 0 to 1, not {value!r}")
    if note is not None and not isinstance(note, str):
        raise InvalidOption("note", f"must be text, not {note!r}")
    return float(value)


def check_line(text: object, level: object) -> None:
    if not isinstance(text, str):
        raise InvalidOption("log", f"takes text, not {text!r}")
    if level not in LEVELS:
        raise InvalidOption("level", f"{level!r} is none of {', '.join(LEVELS)}")
