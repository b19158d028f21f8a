"""What the database itself says of a history: every change of a job, in the order of commits.

Triggers write each change of a job into `sim_log`, in the transaction that makes it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple

import msgspec

from duly.model.job import State

_COLUMNS = """id function kind queue state token attempt scheduled_at run_at started_at expires_at
    completed_at parent_id worker_id retry timeout_ms error_kind error_message canceled_by
    exhausted created_at args tags batch_id""".split()
_ONLY_FINISHED = {"completed_at", "canceled_by", "exhausted"}


def _trigger(table: str, event: str, op: str) -> str:
    row = "OLD" if event == "DELETE" else "NEW"
    absent = _ONLY_FINISHED if table == "duly_jobs" else set()
    values = ", ".join("NULL" if c in absent else f"{row}.{c}" for c in _COLUMNS)
    return f"""CREATE TRIGGER sim_{table}_{event} AFTER {event} ON {table} BEGIN
        INSERT INTO sim_log (op, {", ".join(_COLUMNS)}) VALUES ('{op}', {values}); END;"""


SCHEMA = f"""
CREATE TABLE sim_log (seq integer PRIMARY KEY, op text, {", ".join(_COLUMNS)});
CREATE TABLE sim_fuse (id integer PRIMARY KEY);
INSERT INTO sim_fuse VALUES (1);
{_trigger("duly_jobs", "INSERT", "insert")}
{_trigger("duly_jobs", "UPDATE", "update")}
{_trigger("duly_jobs", "DELETE", "delete")}
{_trigger("duly_history", "INSERT", "finish")}
{_trigger("duly_history", "UPDATE", "overwrite")}
{_trigger("duly_history", "DELETE", "retire")}
{_trigger("duly_kept", "INSERT", "keep")}
{_trigger("duly_kept", "UPDATE", "overwrite")}
{_trigger("duly_kept", "DELETE", "drop")}
CREATE TRIGGER sim_paused AFTER INSERT ON duly_queues WHEN NEW.paused_at IS NOT NULL BEGIN
    INSERT INTO sim_log (op, id) VALUES ('pause', NEW.name); END;
CREATE TRIGGER sim_paused_again AFTER UPDATE ON duly_queues
    WHEN OLD.paused_at IS NULL AND NEW.paused_at IS NOT NULL BEGIN
    INSERT INTO sim_log (op, id) VALUES ('pause', NEW.name); END;
CREATE TRIGGER sim_resumed AFTER UPDATE ON duly_queues
    WHEN OLD.paused_at IS NOT NULL AND NEW.paused_at IS NULL BEGIN
    INSERT INTO sim_log (op, id) VALUES ('resume', OLD.name); END;

CREATE TRIGGER sim_left AFTER DELETE ON duly_workers BEGIN
    INSERT INTO sim_log (op, id) VALUES ('leave', OLD.id); END;

CREATE TABLE effects (job_id text, note text);
CREATE TRIGGER sim_effect AFTER INSERT ON effects WHEN NEW.job_id IS NOT NULL BEGIN
    INSERT INTO sim_log (op, id) VALUES ('effect', NEW.job_id); END;
CREATE TABLE parents (id integer PRIMARY KEY);
CREATE TABLE orphans (parent integer REFERENCES parents (id) DEFERRABLE INITIALLY DEFERRED);
"""


class Violation(BaseException):
    """An invariant was broken.

    No Exception, so that the code under test lets it pass; some of it catches even this, so the
    first one is remembered.
    """

    first: ClassVar[Violation | None] = None

    def __init__(self, invariant: str, message: str) -> None:
        self.invariant = invariant
        Violation.first = Violation.first or self
        super().__init__(f"{invariant}: {message}")

    @classmethod
    def forget(cls) -> None:
        cls.first = None


class Change(NamedTuple):
    """One row of the log."""

    seq: int
    op: str
    id: str
    function: str
    kind: str
    queue: str
    state: str
    token: int
    attempt: int
    scheduled_at: int
    run_at: int
    started_at: int | None
    expires_at: int | None
    completed_at: int | None
    parent_id: str | None
    worker_id: str | None
    retry: str | None
    timeout_ms: int | None
    error_kind: str | None
    error_message: str | None
    canceled_by: str | None
    exhausted: int | None
    created_at: int
    args: str
    tags: str | None
    batch_id: str | None

    @property
    def labels(self) -> list[str]:
        """What the call asked for, in the words of `promises`."""
        return [] if self.tags is None else msgspec.json.decode(self.tags, type=list[str])


@dataclass
class Story:
    """All that is known of one job."""

    number: int
    now: Change
    live: bool = True
    place: str = "jobs"
    claims: dict[int, str | None] = field(default_factory=dict)
    ends: dict[int, int] = field(default_factory=dict)
    starts: list[int] = field(default_factory=list)
    given_back: set[int] = field(default_factory=set)
    begun: int | None = None
    """The last change before a body of it started, or was about to."""
    effects: int = 0
    parent_token: int | None = None

    @property
    def canceled(self) -> bool:
        """Canceled by a caller, not by expiry."""
        return self.now.state == State.CANCELED and self.now.error_kind is None


def short(change: Change) -> str:
    shown: dict[str, Any] = {
        "function": change.function,
        "state": change.state,
        "token": change.token,
        "attempt": change.attempt,
        "error": change.error_kind,
        "message": change.error_message,
    }
    return " ".join(f"{name}={value}" for name, value in shown.items() if value is not None)
