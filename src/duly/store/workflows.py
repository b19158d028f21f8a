"""The records of workflows: what each run has done, the events sent to it, and what it watches.

A record is written only while its run is claimed under the writer's token. Two workers can never
both record at one place: the second one gets nothing, unwinds, and reads what is there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from duly.errors import (
    ApprovalClosed,
    CannotCancelSelf,
    JobNotFound,
    NotAWorkflow,
    SelfApproval,
    TooManyEvents,
    WorkflowEnded,
)
from duly.model.audit import NewAuditEntry
from duly.model.job import LEFT_OUT, JobRecord, Kind, NewJob
from duly.model.stored_values import read
from duly.model.workflow import (
    ANY_REQUEST,
    LARGE_RESULT,
    MAX_UNREAD_EVENTS,
    Decision,
    Event,
    Fence,
    NewEvent,
    Place,
    Progressed,
    Put,
    Request,
    SentEvent,
    Step,
    StepKind,
    StepState,
    decode_waits,
    mention,
    reading_key,
)
from duly.store import steps
from duly.store.engine import Engine
from duly.store.jobs.enqueue import insert_jobs
from duly.store.schedules.audit import write_entry
from duly.store.session import Session
from duly.store.statements import LISTED_BYTES, Dialect, Statement, both, each
from duly.store.steps import NOTIFY, Ask, Steps

_STEP = "scope, pos, kind, name, state, token, attempt, started_at, ended_at, due_at"
_WRITTEN = f"job_id, {_STEP}, args, result, error"
_LISTED_ARGS = f"CASE WHEN length(args) > {LISTED_BYTES} THEN '{LEFT_OUT}' ELSE args END"
_TEXTS = ":kind::text, :name::text, :state::text"
_FENCE = "EXISTS (SELECT 1 FROM @jobs WHERE id = :job_id AND token = :token)"
READ_RUN = both(
    "SELECT mail, limits, started_at, waits FROM @jobs WHERE id = :id AND token = :token"
)
READ_STEPS = each(
    sqlite=f"""SELECT {_STEP}, NULL,
            CASE WHEN result_bytes > {LARGE_RESULT} THEN NULL ELSE result END, error,
            CASE WHEN result_bytes > {LARGE_RESULT} THEN result_bytes END
        FROM @steps WHERE job_id = :id""",
    postgres=f"""SELECT {_STEP}, NULL,
            CASE WHEN octet_length(result) > {LARGE_RESULT} THEN NULL ELSE result END, error,
            CASE WHEN octet_length(result) > {LARGE_RESULT} THEN octet_length(result) END
        FROM @steps WHERE job_id = :id""",
)
# With what people want to see.
LIST_STEPS = both(
    f"SELECT {_STEP}, args, result, error, NULL FROM @steps WHERE job_id = :id LIMIT :limit"
)
OPEN_STEPS = both(
    f"""SELECT {_STEP}, args, result, error, NULL FROM @steps
        WHERE job_id = :id AND state IN ('waiting', 'retrying')"""
)
# All that is needed to put steps in order and to name them.
READ_PLACES = both(
    """SELECT scope, pos, kind, name, state, token, attempt, started_at, NULL, NULL, NULL, NULL,
            NULL, NULL
        FROM @steps WHERE job_id = :id"""
)
# Long values are left out, as in lists of jobs.
STEPS_AT = each(
    sqlite=f"""SELECT {_STEP}, {_LISTED_ARGS},
            CASE WHEN result_bytes > {LISTED_BYTES} THEN '{LEFT_OUT}' ELSE result END, error, NULL
        FROM @steps WHERE job_id = :id AND (scope, pos) IN
            (SELECT value ->> 0, value ->> 1 FROM json_each(:places))""",
    postgres=f"""SELECT {_STEP}, {_LISTED_ARGS},
            CASE WHEN octet_length(result) > {LISTED_BYTES} THEN '{LEFT_OUT}' ELSE result END,
            error, NULL
        FROM @steps WHERE job_id = :id AND (scope, pos) IN
            (SELECT value ->> 0, (value ->> 1)::int4 FROM json_array_elements(:places::json))""",
)
STEP_AT = both(
    f"""SELECT {_STEP}, args, result, error, NULL FROM @steps
        WHERE job_id = :id AND scope = :scope AND pos = :pos"""
)
READ_RESULT = both("SELECT result FROM @steps WHERE job_id = :id AND scope = :scope AND pos = :pos")
UNREAD_EVENTS = both(
    "SELECT seq, name, sent_at FROM @events WHERE job_id = :id AND taken_by IS NULL ORDER BY seq"
)
LIST_EVENTS = both(
    f"""SELECT seq, name,
            CASE WHEN length(payload) > {LISTED_BYTES} THEN '{LEFT_OUT}' ELSE payload END,
            once, sent_at, sent_by, taken_by
        FROM @events WHERE job_id = :id AND seq > :after AND (:every OR taken_by IS NULL)
        ORDER BY seq LIMIT :limit"""
)
READ_EVENT = both(
    """SELECT seq, name, payload, once, sent_at, sent_by, taken_by FROM @events
        WHERE job_id = :id AND seq = :seq"""
)
# Locks the run against its end, but not against other changes: an open transaction that has sent it
# an event does not hold up its steps.
LOCK_RUN = each(
    sqlite="SELECT 1 FROM @jobs WHERE id = :job_id AND token = :token",
    postgres="SELECT 1 FROM @jobs WHERE id = :job_id AND token = :token FOR KEY SHARE",
)
ADD_STEP = each(
    sqlite=f"""INSERT INTO @steps ({_WRITTEN})
        SELECT :job_id, :scope, :pos, :kind, :name, :state, :token, :attempt, :started_at,
            :ended_at, :due_at, :args, :result, :error
        WHERE {_FENCE} ON CONFLICT DO NOTHING RETURNING 1""",
    postgres=f"""INSERT INTO @steps ({_WRITTEN})
        SELECT :job_id::uuid, :scope::text, :pos::int4, {_TEXTS}, :token::int4, :attempt::int4,
            :started_at::int8, :ended_at::int8, :due_at::int8, :args::text, :result::text,
            :error::text
        WHERE {_FENCE} ON CONFLICT DO NOTHING RETURNING 1""",
)
CHANGE_STEP = both(
    f"""UPDATE @steps SET state = :state, token = :token, attempt = :attempt, ended_at = :ended_at,
            due_at = :due_at, result = :result, error = :error
        WHERE job_id = :job_id AND scope = :scope AND pos = :pos AND state = :was AND {_FENCE}
        RETURNING 1"""
)
# Records of several runs in one statement; each is fenced by its own run (PostgreSQL only).
# One JSON text, which the server and Python handle faster than an array for each column, and no
# join with the records: a plan made when there were few of them would read all of them. A record to
# be changed exists, so its kind is not inserted, but says in which state it must be; no kind is the
# name of a state.
PUT_STEPS = both(
    f"""INSERT INTO @steps AS s ({_WRITTEN})
        SELECT f.job_id, f.scope, f.pos, coalesce(f.was, f.kind), f.name, f.state, f.token,
            f.attempt, f.started_at, f.ended_at, f.due_at, f.args, f.result, f.error
        FROM json_to_recordset(:puts::json) AS f (job_id uuid, token int4, scope text, pos int4,
            kind text, name text, state text, attempt int4, started_at int8, ended_at int8,
            due_at int8, args text, result text, error text, was text)
        WHERE f.token = (SELECT j.token FROM @jobs j WHERE j.id = f.job_id)
        ON CONFLICT (job_id, scope, pos) DO UPDATE SET state = excluded.state,
            token = excluded.token, attempt = excluded.attempt, ended_at = excluded.ended_at,
            due_at = excluded.due_at, result = excluded.result, error = excluded.error
        WHERE s.state = excluded.kind
        RETURNING job_id::text, scope, pos"""
)
TAKE_EVENT = both(
    """UPDATE @events SET taken_by = :place
        WHERE job_id = :job_id AND seq = :seq AND taken_by IS NULL RETURNING payload"""
)
# Whatever the state of the run: a running one learns from its mail, before it waits, that there is
# more to read.
DELIVER = each(
    sqlite="""UPDATE @jobs SET mail = mail + 1,
            run_at = CASE WHEN state = 'pending' AND instr(coalesce(waits, ''), :mention) > 0
                THEN min(run_at, :now) ELSE run_at END
        WHERE id = :id AND kind = 'workflow' RETURNING mail, actor""",
    postgres="""UPDATE @jobs SET mail = mail + 1,
            run_at = CASE WHEN state = 'pending'
                    AND strpos(coalesce(waits, ''), :mention::text) > 0
                THEN least(run_at, :now::int8) ELSE run_at END
        WHERE id = :id AND kind = 'workflow' RETURNING mail, actor""",
)
SENT_ONCE = both("SELECT seq FROM @events WHERE job_id = :id AND once = :once")
COUNT_UNREAD = both("SELECT count(*) FROM @events WHERE job_id = :id AND taken_by IS NULL")
ADD_EVENT = both(
    """INSERT INTO @events (job_id, seq, name, payload, once, sent_at, sent_by)
        VALUES (:id, :seq, :name, :payload, :once, :now, :sent_by)"""
)
WATCH = both("UPDATE @jobs SET watched = :true WHERE id = :id RETURNING 1")
ADD_WATCH = both(
    """INSERT INTO @watches (job_id, watcher_id) VALUES (:id, :watcher) ON CONFLICT DO NOTHING"""
)
OPEN_APPROVAL = each(
    sqlite="""SELECT scope, pos, state, args, result, ended_at FROM @steps
        WHERE job_id = :id AND kind = 'approval' AND name = :name""",
    postgres="""SELECT scope, pos, state, args, result, ended_at FROM @steps
        WHERE job_id = :id AND kind = 'approval' AND name = :name FOR UPDATE""",
)
APPROVALS = both("SELECT name FROM @steps WHERE job_id = :id AND kind = 'approval' LIMIT 100")
ANSWER = both(
    """UPDATE @steps SET state = 'succeeded', result = :result, ended_at = :now
        WHERE job_id = :id AND scope = :scope AND pos = :pos AND state = 'waiting' RETURNING 1"""
)
READ_WAITS = both("SELECT waits, begun_at FROM @jobs WHERE id = :id")
PROGRESSED = each(
    sqlite="""SELECT id, begun_at, waits FROM @jobs
        WHERE id IN (SELECT value FROM json_each(:ids)) AND kind = 'workflow'""",
    postgres="""SELECT id::text, begun_at, waits FROM @jobs
        WHERE id = ANY(:ids::uuid[]) AND kind = 'workflow'""",
)
# Which waits for other code, or for an operator.
HELD_RUNS = each(
    sqlite="""SELECT id FROM @jobs WHERE hold = :hold
        AND function IN (SELECT value FROM json_each(:functions))
        AND instr(coalesce(waits, ''), :build) = 0 LIMIT 1000""",
    postgres="""SELECT t.id::text FROM @jobs t WHERE hold = :hold
        AND function = ANY(:functions::text[]) AND strpos(coalesce(waits, ''), :build::text) = 0
        ORDER BY function, t.id LIMIT 1000 FOR UPDATE SKIP LOCKED""",
)
RELEASE = both(
    """UPDATE @jobs SET hold = NULL WHERE id = :id AND hold IN ('error', 'history') RETURNING 1"""
)
RESUME = both(
    """UPDATE @jobs SET hold = NULL, waits = NULL
        WHERE id = :id AND hold IN ('error', 'history') RETURNING 1"""
)


FIRST_TOKEN = 1
"""Of a run that is claimed for the first time."""


class RunState(msgspec.Struct, frozen=True):
    """What a run needs to continue."""

    mail: int
    limits: str | None
    begun_at: int
    """When the run started, in its first claim."""
    waits: str | None
    steps: Sequence[Step]
    events: Sequence[Event]


NO_DECISION = Decision(approved=False)


# Reading -----------------------------------------------------------------------------------------


def load(session: Session, fence: Fence) -> RunState | None:
    """Everything that a run has recorded and not read; None if it was taken away.

    The mail is read first: an event that arrives later wakes the run again.
    """
    rows = session.run(READ_RUN, {"id": fence[0], "token": fence[1]})
    if not rows:
        return None
    which = {"id": fence[0]}
    mail, limits, begun_at, waits = rows[0]
    has_run, has_mail = fence[1] > FIRST_TOKEN, mail > 0
    recorded = [_step(row) for row in session.run(READ_STEPS, which)] if has_run else []
    events = [Event(*row) for row in session.run(UNREAD_EVENTS, which)] if has_mail else []
    return RunState(mail, limits, begun_at, waits, recorded, events)


def result_of(session: Session, job_id: str, step: Step) -> str | None:
    """A result that was too long to be read along."""
    rows = session.run(READ_RESULT, {"id": job_id, "scope": step.scope, "pos": step.pos})
    return rows[0][0] if rows else None


def steps_of(session: Session, job_id: str, limit: int) -> list[Step]:
    """The steps of a run, in the order in which people read them."""
    rows = session.run(LIST_STEPS, {"id": job_id, "limit": limit})
    return sorted(map(_step, rows), key=reading_key)


def places_of(session: Session, job_id: str) -> list[Step]:
    """The same, without arguments, results, errors and ends."""
    return sorted(map(_step, session.run(READ_PLACES, {"id": job_id})), key=reading_key)


def steps_at(session: Session, job_id: str, places: Sequence[tuple[str, int]]) -> list[Step]:
    """The steps at these places, in reading order; long values are left out."""
    which = {"id": job_id, "places": msgspec.json.encode(places).decode()}
    return sorted(map(_step, session.run(STEPS_AT, which)), key=reading_key)


def step_at(session: Session, job_id: str, scope: str, pos: int) -> Step | None:
    rows = session.run(STEP_AT, {"id": job_id, "scope": scope, "pos": pos})
    return _step(rows[0]) if rows else None


def open_steps(session: Session, job_id: str) -> list[Step]:
    """The steps for which a run may wait."""
    return sorted(map(_step, session.run(OPEN_STEPS, {"id": job_id})), key=reading_key)


def events_of(
    session: Session, job_id: str, limit: int, after: int = 0, *, unread: bool = False
) -> list[SentEvent]:
    """The next events of a run, in order; long payloads are left out."""
    which = {"id": job_id, "after": after, "limit": limit, "every": not unread}
    return [SentEvent(*row) for row in session.run(LIST_EVENTS, which)]


def waits_of(session: Session, job_id: str) -> tuple[str | None, int | None]:
    """The column `waits` of a live run, and when it started."""
    rows = session.run(READ_WAITS, {"id": job_id})
    return rows[0] if rows else (None, None)


def progressed(session: Session, job_ids: Sequence[str]) -> dict[str, Progressed]:
    """How far live runs are, by their ids."""
    rows = session.run(PROGRESSED, {"ids": session.array(job_ids)}) if job_ids else ()
    return {row[0]: Progressed(row[1], decode_waits(row[2])) for row in rows}


def _step(row: Sequence[Any]) -> Step:
    return Step(**dict(zip(Step.__struct_fields__, row, strict=True)))


# Recording ---------------------------------------------------------------------------------------


def add_step(session: Session, fence: Fence, step: Step) -> bool:
    """Record what was done at a place. False if the run was taken away, or the place is taken."""
    return put_step(session, fence, step, None)


def put_step(session: Session, fence: Fence, step: Step, was: str | None) -> bool:
    """Add a record, or change the one that is there, if it is as it was."""
    return bool(session.run(*put_one(Put(fence, step, was))))


def put_one(put: Put) -> tuple[Statement, dict[str, Any]]:
    """The statement for one record, and its parameters."""
    values = _values(put.fence, put.step)
    if put.was is None:
        return ADD_STEP, values
    for name in ("kind", "name", "started_at", "args"):
        del values[name]
    values["was"] = put.was
    return CHANGE_STEP, values


def put_steps_locked(session: Session, puts: Sequence[Put]) -> bool:
    """The same in a transaction with other effects, which must not commit if the run has ended."""
    return _lock(session, puts[0].fence) and all(put_step(session, *put) for put in puts)


def put_steps(session: Session, puts: Sequence[Put]) -> set[Place]:
    """Add or change records of any runs. Return the places of those that were accepted."""
    if session.dialect == "sqlite":
        return {put.where for put in puts if put_step(session, *put)}
    rows = session.run(PUT_STEPS, put_parameters(puts))
    return {(job_id, scope, pos) for job_id, scope, pos in rows}


def put_parameters(puts: Sequence[Put]) -> dict[str, Any]:
    """The parameters of one statement for many records."""
    rows = [_values(put.fence, put.step) | {"was": put.was} for put in puts]
    return {"puts": msgspec.json.encode(rows).decode()}


def take_event(
    session: Session, fence: Fence, step: Step, was: str | None, seq: int
) -> tuple[bool, str | None]:
    """Give an event to the wait at a place, with its record. Return its payload."""
    if not _lock(session, fence):
        return False, None
    place = f"{step.scope}/{step.pos}"
    rows = session.run(TAKE_EVENT, {"job_id": fence[0], "seq": seq, "place": place})
    if not rows:
        return False, None
    payload = rows[0][0]
    taken = msgspec.structs.replace(step, result=payload)
    if not put_step(session, fence, taken, was):
        raise _Refused
    return True, payload


def enqueue(
    session: Session,
    fence: Fence,
    jobs: Sequence[NewJob],
    step_of: Callable[[Mapping[str, str]], Step],
) -> Step | None:
    """Insert jobs of a run with their record. None if the run was taken away."""
    if not _lock(session, fence):
        return None
    step = step_of(insert_jobs(session, jobs))
    if not add_step(session, fence, step):
        raise _Refused
    return step


def cancel(
    session: Session, fence: Fence, job_id: str, by: str, now: int, step_of: Callable[[Any], Step]
) -> Step | None:
    """Cancel a job for a run, with its record."""
    if not _lock(session, fence):
        return None
    step = step_of(steps.drive(steps.cancel(session.dialect, job_id, by, now), session.answer))
    if not _lock(session, fence):
        # It was a descendant of that job.
        raise CannotCancelSelf
    if not add_step(session, fence, step):
        raise _Refused
    return step


def send_recorded(session: Session, fence: Fence, event: NewEvent, step: Step, now: int) -> bool:
    """Send an event from a run, with its record."""
    if not _lock(session, fence):
        return False
    steps.drive(send(session.dialect, event, now), session.answer)
    if not add_step(session, fence, step):
        raise _Refused
    return True


def watch(session: Session, job_id: str, watcher_id: str) -> bool:
    """Wake a run when this job has ended. False if it has."""
    if not session.run(WATCH, {"id": job_id, "true": True}):
        return False
    session.run(ADD_WATCH, {"id": job_id, "watcher": watcher_id})
    return True


class _Refused(Exception):
    """Rolls back the transaction: the run was taken away meanwhile."""


REFUSED = _Refused


def _lock(session: Session, fence: Fence) -> bool:
    return bool(session.run(LOCK_RUN, {"job_id": fence[0], "token": fence[1]}))


def _values(fence: Fence, step: Step) -> dict[str, Any]:
    values = msgspec.structs.asdict(step)
    del values["result_bytes"]
    values["job_id"], values["token"] = fence
    return values


# Sending -----------------------------------------------------------------------------------------


def send(
    dialect: Dialect, event: NewEvent, now: int, *, notify: bool = False
) -> Steps[tuple[int, bool]]:
    """Send an event to a run, in any transaction. Return its `seq`, and whether it is new.

    A repeated `once` changes nothing: the event is the first one.
    """
    which = {"id": event.job_id}
    once = which | {"once": event.once}
    rows = yield Ask(DELIVER, which | {"mention": mention(StepKind.EVENT, event.name), "now": now})
    # Only now, under the lock of the run's row.
    if event.once is not None and (first := (yield Ask(SENT_ONCE, once))):
        return first[0][0], False
    if not rows:
        _refuse(event.job_id, (yield from steps.get(event.job_id)))
    [(unread,)] = yield Ask(COUNT_UNREAD, which)
    if unread >= MAX_UNREAD_EVENTS:
        raise TooManyEvents(event.job_id, MAX_UNREAD_EVENTS)
    values = event._asdict() | {"seq": rows[0][0], "now": now}
    values["id"] = values.pop("job_id")
    yield Ask(ADD_EVENT, values)
    if notify and dialect == "postgres":
        yield Ask(NOTIFY)
    return rows[0][0], True


def _refuse(job_id: str, job: JobRecord | None) -> None:
    if job is None:
        raise JobNotFound(job_id)
    if job.kind != Kind.WORKFLOW:
        raise NotAWorkflow(job_id, job.function)
    raise WorkflowEnded(job_id, job.state)


def send_event(
    session: Session, event: NewEvent, now: int, audit_entry: NewAuditEntry | None = None
) -> tuple[SentEvent, bool]:
    """Send an event; the audit entry is written if it is new. Return it, and whether it is."""
    seq, is_new = steps.drive(send(session.dialect, event, now), session.answer)
    if is_new:
        write_entry(session, audit_entry)
    rows = session.run(READ_EVENT, {"id": event.job_id, "seq": seq})
    return SentEvent(*rows[0]), is_new


def answer(
    session: Session,
    job_id: str,
    name: str,
    choice: str | None,
    data: Any,
    by: str | None,
    now: int,
    audit_entry: NewAuditEntry | None = None,
) -> Decision:
    """Answer an approval that a run waits for. `choice`: None approves.

    The same answer again, by the same person, changes nothing.
    """
    news = {"id": job_id, "mention": mention(StepKind.APPROVAL, name), "now": now}
    delivered = session.run(DELIVER, news)
    rows = session.run(OPEN_APPROVAL, {"id": job_id, "name": name})
    if not rows:
        if not delivered:
            _refuse(job_id, steps.drive(steps.get(job_id), session.answer))
        others = session.ids(APPROVALS, {"id": job_id})
        raise ApprovalClosed(job_id, name, "the workflow does not ask for it", others)
    scope, pos, state, args, result, ended_at = rows[0]
    request = read(args or "", Request, ANY_REQUEST)
    chosen = request.options[0] if choice is None else choice
    decision = Decision(chosen == request.options[0], chosen, data, by)
    if state != StepState.WAITING or not delivered:
        if by is not None and read(result or "", Decision, NO_DECISION) == decision:
            return decision
        raise ApprovalClosed(job_id, name, _how(state, result, ended_at))
    if not request.self_approval and by is not None and by == delivered[0][1]:
        raise SelfApproval(job_id, name, by)
    encoded = msgspec.json.encode(decision).decode()
    where = {"id": job_id, "scope": scope, "pos": pos, "result": encoded, "now": now}
    session.run(ANSWER, where)
    write_entry(session, audit_entry)
    return decision


def request_of(session: Session, job_id: str, name: str) -> Request | None:
    """What an approval asks for."""
    rows = session.run(OPEN_APPROVAL, {"id": job_id, "name": name})
    return read(rows[0][3] or "", Request, ANY_REQUEST) if rows else None


def _how(state: str, result: str | None, ended_at: int | None) -> str:
    decision = read(result or "", Decision, NO_DECISION)
    if decision.timed_out:
        return "it has timed out"
    if state == StepState.TIMED_OUT:
        return "something else that the workflow waited for has happened first"
    if decision.choice is None:
        return "the workflow has ended"
    by = f" by {decision.by}" if decision.by else ""
    return f"it was answered with {decision.choice!r}{by}"


# Held runs ---------------------------------------------------------------------------------------


def release_held(store: Engine, functions: Sequence[str], build: str) -> int:
    """Let this build try the runs that other builds could not continue. Return how many."""

    def held(session: Session) -> list[str]:
        which = {
            "functions": session.array(functions),
            "build": msgspec.json.encode(build).decode(),
        }
        return [
            job_id
            for hold in ("error", "history")
            for job_id in session.ids(HELD_RUNS, which | {"hold": hold})
        ]

    def release(session: Session) -> int:
        return sum(len(session.run(RELEASE, {"id": job_id})) for job_id in held(session))

    # Every process checks this each second, and usually finds nothing.
    return store.write(release) if store.read(held) else 0


def resume(session: Session, job_id: str, audit_entry: NewAuditEntry | None = None) -> bool:
    """Let a held run try again, with any code."""
    if not session.run(RESUME, {"id": job_id}):
        return False
    write_entry(session, audit_entry)
    return True
