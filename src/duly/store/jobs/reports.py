"""Stores the progress and log lines of jobs."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from duly.model.progress import LogEntry, ProgressReport, oldest_seq_for
from duly.store import steps
from duly.store.engine import Engine
from duly.store.session import Session
from duly.store.statements import (
    both,
    each,
)

FORGET_LOGS = both("DELETE FROM @logs WHERE job_id = :job_id AND seq < :seq")
# They are deleted with their job.
FORGET_PROGRESS_OF = each(
    sqlite="DELETE FROM @progress WHERE job_id IN (SELECT value FROM json_each(:ids))",
    postgres="DELETE FROM @progress WHERE job_id = ANY(:ids::uuid[])",
)
FORGET_LOGS_OF = each(
    sqlite="DELETE FROM @logs WHERE job_id IN (SELECT value FROM json_each(:ids))",
    postgres="DELETE FROM @logs WHERE job_id = ANY(:ids::uuid[])",
)
FORGET_TRACES_OF = each(
    sqlite="DELETE FROM @traces WHERE job_id IN (SELECT value FROM json_each(:ids))",
    postgres="DELETE FROM @traces WHERE job_id = ANY(:ids::uuid[])",
)


FORGET_STEPS_OF = each(
    sqlite="DELETE FROM @steps WHERE job_id IN (SELECT value FROM json_each(:ids))",
    postgres="DELETE FROM @steps WHERE job_id = ANY(:ids::uuid[])",
)
FORGET_EVENTS_OF = each(
    sqlite="DELETE FROM @events WHERE job_id IN (SELECT value FROM json_each(:ids))",
    postgres="DELETE FROM @events WHERE job_id = ANY(:ids::uuid[])",
)


def report(
    store: Engine,
    progress: Sequence[ProgressReport],
    lines: Sequence[LogEntry],
    workflows: Collection[str] = (),
) -> None:
    """Store the reports of attempts. Storing them again changes nothing.

    Progress is stored only while its attempt runs, and only if no newer value is stored. Of
    `workflows`, which are claimed many times, the lines of all claims are kept.
    """
    write = store.write if progress and lines else store.write_one
    write(lambda session: write_reports(session, progress, lines, workflows))


def write_reports(
    session: Session,
    progress: Sequence[ProgressReport],
    lines: Sequence[LogEntry],
    workflows: Collection[str] = (),
) -> None:
    steps.drive(steps.report(session.dialect, progress, lines), session.answer)
    for job_id, oldest in _oldest_lines(lines).items():
        if job_id not in workflows:
            session.run(FORGET_LOGS, {"job_id": job_id, "seq": oldest})


def forget_reports(session: Session, job_ids: Sequence[str]) -> None:
    """Delete the reports of jobs that are gone."""
    if job_ids:
        which = {"ids": session.array(job_ids)}
        session.run(FORGET_PROGRESS_OF, which)
        session.run(FORGET_LOGS_OF, which)
        session.run(FORGET_TRACES_OF, which)
        session.run(FORGET_STEPS_OF, which)
        session.run(FORGET_EVENTS_OF, which)


def _oldest_lines(lines: Iterable[LogEntry]) -> dict[str, int]:
    """The first log line to keep, for each of those jobs that have older ones."""
    oldest = {entry.job_id: oldest_seq_for(entry.seq) for entry in lines}
    return {job_id: seq for job_id, seq in oldest.items() if seq > 0}
