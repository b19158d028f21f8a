"""Every SQL statement of duly, once, under one name.

A statement is one text for both databases where that serves, two where one would be slow or wrong.
`@jobs`, `@history` … stand for the tables, `@id`, `@state` … for a job's columns as they are read
(ids as text); parameters are `:name`. No statement reads a clock but SERVER_TIME.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Any, Literal

from duly.model.function import RESERVED
from duly.model.job import DEFAULT_QUEUE, LEFT_OUT, JobFilter, JobRecord, NewJob, State, TrackedJob
from duly.store.placeholders import Style, named_to_psycopg, named_to_style

Dialect = Literal["sqlite", "postgres"]
Table = Literal["jobs", "history", "kept"]
"""Where jobs stand."""

HISTORY_BUCKETS = 16
DAY_MS = 86_400_000
LISTED_BYTES = 8_192
"""Longer arguments and results are left out of lists."""


class Statement:
    """One statement in both dialects."""

    __slots__ = ("postgres", "sqlite")

    def __init__(self, sqlite: str, postgres: str) -> None:
        self.sqlite = sqlite
        self.postgres = postgres


def both(sql: str) -> Statement:
    return Statement(sql, sql)


def each(*, sqlite: str, postgres: str) -> Statement:
    return Statement(sqlite, postgres)


def words_for(dialect: Dialect, schema: str = "duly") -> dict[str, str]:
    """What the words behind an @ stand for."""
    prefix = "duly_" if dialect == "sqlite" else f"{schema}."
    tables = "jobs history kept workers queues functions meta migrations".split()
    tables += "keys slots starts progress logs".split()
    tables += "schedules ticks calendars costs days audit declarations".split()
    tables += "tokens requests inbox endpoints gateways counters traces".split()
    columns = {column: _read_as(column, dialect) for column in _RECORD_COLUMNS}
    short = {f"short_{name}": _short(name, dialect) for name in ("args", "result")}
    # SQLite would read a long result to reach the arguments behind it, so they are kept before it.
    before = f"coalesce(short_args, {short['short_args']})"
    short["final_args"] = before if dialect == "sqlite" else short["short_args"]
    return {table: prefix + table for table in tables} | columns | short | {"schema": schema}


def _read_as(column: str, dialect: Dialect) -> str:
    if dialect == "sqlite":
        # Behind a + a column has no declared type, so no converter of a user's applies to it.
        return f"+{column}"
    return f"{column}::text" if column in _IDS else column


def _short(column: str, dialect: Dialect) -> str:
    """A column that may be long, as lists have it: what is longer is not even loaded."""
    size = f"{column}_bytes" if dialect == "sqlite" else f"octet_length({column})"
    return f"CASE WHEN {size} > {LISTED_BYTES} THEN '{LEFT_OUT}' ELSE {column} END"


def render(sql: str, dialect: Dialect, words: dict[str, str]) -> str:
    """The text that the driver gets."""
    text = re.sub(r"@(\w+)", lambda match: words[match[1]], sql)
    return text if dialect == "sqlite" else named_to_psycopg(text)


@lru_cache(maxsize=1024)
def render_for(
    statement: Statement | str, dialect: Dialect, schema: str, style: Style
) -> tuple[str, tuple[str, ...] | None]:
    """The text for another driver, and the order of its parameters unless they go by name."""
    text = statement if isinstance(statement, str) else getattr(statement, dialect)
    words = words_for(dialect, schema)
    return named_to_style(re.sub(r"@(\w+)", lambda match: words[match[1]], text), style)


@lru_cache(maxsize=16)
def compile_all(dialect: Dialect, schema: str = "duly") -> dict[Statement, str]:
    """Every statement of this module, ready for the driver."""
    words = words_for(dialect, schema)
    return {s: render(getattr(s, dialect), dialect, words) for _, s in named_statements()}


def named_statements() -> Iterator[tuple[str, Statement]]:
    """Every statement with its name."""
    from duly.store import (
        access_statements,
        copy_statements,
        endpoint_statements,
        feed_statements,
        gateway_statements,
        inbox_statements,
        measure_statements,
        schedule_statements,
        view_statements,
    )

    modules = (
        schedule_statements,
        access_statements,
        endpoint_statements,
        inbox_statements,
        gateway_statements,
        feed_statements,
        measure_statements,
        copy_statements,
        view_statements,
    )
    for names in (globals(), *map(vars, modules)):
        yield from ((name, s) for name, s in names.items() if isinstance(s, Statement))


# Columns -----------------------------------------------------------------------------------------

_IDS = "id parent_id worker_id retry_of hook_id batch_id".split()
_TIMES = "created_at scheduled_at run_at expires_at timeout_ms".split()
_TYPES: dict[str, str] = {"priority": "int2"}
_TYPES.update((name, "uuid") for name in _IDS)
_TYPES.update((name, "int8") for name in _TIMES)


class Fields:
    """The columns of an insert."""

    def __init__(self, names: Sequence[str]) -> None:
        self.columns = ", ".join(names)
        self.values = ", ".join(["?"] * len(names))
        self.named = ", ".join(f":{name}" for name in names)
        self.arrays = ", ".join(f":{name}::{_TYPES.get(name, 'text')}[]" for name in names)


_NEW = Fields(NewJob.__struct_fields__)
_TRACKED = Fields(TrackedJob.__struct_fields__)
# What of it a finished job has too.
FINAL_FIELDS = (*NewJob.__struct_fields__, "trigger", "actor", "retry_of", "batch_id")
_CANCELED = Fields(FINAL_FIELDS)

_RECORD_COLUMNS = JobRecord.__struct_fields__


def _record(*absent: str) -> str:
    return ", ".join("NULL" if c in absent else f"@{c}" for c in _RECORD_COLUMNS)


_LIVE_RECORD = _record("completed_at", "result", "canceled_by")
_FINAL_RECORD = _record("hold")
_LIVE_LISTED = _LIVE_RECORD.replace("@args", "@short_args")
_FINAL_LISTED = _FINAL_RECORD.replace("@args", "@final_args").replace("@result", "@short_result")

# What a job takes along, unchanged, when it moves to history.
_MOVED = """id, function, kind, queue, priority, token, attempt, crashes, system_retries,
    created_at, scheduled_at, run_at, started_at, expires_at, timeout_ms, retry, args, parent_id,
    owner, tags, worker_id, trigger, actor, retry_of, batch_id"""

_FINAL = f"""{_MOVED}, state, completed_at, result, error_kind, error_message, error_traceback,
    canceled_by, exhausted"""

_BUCKET = f"((:now::int8 / {DAY_MS}) % {HISTORY_BUCKETS})::int2"

_CLAIMED = """@id, token, attempt, crashes, system_retries, function, kind, queue, priority,
    run_at, timeout_ms, retry, args, lock_retries, pending_key IS NOT NULL"""

_CLAIMABLE = "state = 'pending' AND hold IS NULL"
_IN_TIME = "(expires_at IS NULL OR expires_at > :now OR attempt > 0)"

_TO_RUNNING = """UPDATE @jobs SET state = 'running', token = token + 1, attempt = attempt + 1,
    worker_id = :worker, started_at = :now, deadline_at = :now + timeout_ms"""

# Schema ------------------------------------------------------------------------------------------

CREATE_META = both("CREATE TABLE IF NOT EXISTS @meta (key text PRIMARY KEY, value text NOT NULL)")
READ_META = both("SELECT key, value FROM @meta")
WRITE_META = both(
    "INSERT INTO @meta (key, value) VALUES (:key, :value)"
    " ON CONFLICT (key) DO UPDATE SET value = excluded.value"
)
# Looked for before it is read: on PostgreSQL a failing statement would end the user's transaction.
HAS_META = each(
    sqlite="SELECT 1 FROM main.sqlite_master WHERE type = 'table' AND name = '@meta'",
    postgres="SELECT 1 WHERE to_regclass('@meta') IS NOT NULL",
)
READ_STORE_ID = each(
    sqlite="SELECT +value FROM main.@meta WHERE key = 'store_id'",
    postgres="SELECT value FROM @meta WHERE key = 'store_id'",
)
DATABASE_NAME = each(
    sqlite="SELECT +file FROM pragma_database_list WHERE name = 'main'",
    postgres="SELECT current_database()::text",
)
CREATE_MIGRATIONS = both(
    "CREATE TABLE IF NOT EXISTS @migrations (version integer PRIMARY KEY, name text NOT NULL,"
    " checksum text NOT NULL, applied_at bigint NOT NULL)"
)
READ_MIGRATIONS = both("SELECT version, checksum FROM @migrations ORDER BY version")
WRITE_MIGRATION = both(
    "INSERT INTO @migrations (version, name, checksum, applied_at)"
    " VALUES (:version, :name, :checksum, :now)"
)

# Enqueue -----------------------------------------------------------------------------------------


def _insert(fields: Fields) -> Statement:
    into = f"INSERT INTO @jobs ({fields.columns})"
    return each(
        sqlite=f"{into} VALUES ({fields.values})",
        postgres=f"{into} SELECT * FROM unnest({fields.arrays})",
    )


INSERT_JOBS = _insert(_NEW)
INSERT_TRACKED = _insert(_TRACKED)
_NOTIFY = "SELECT pg_notify('duly', '')"
# The same, and wake whoever waits for jobs when they are committed (PostgreSQL only).
INSERT_JOBS_AND_NOTIFY = both(f"WITH stored AS ({INSERT_JOBS.postgres}) {_NOTIFY}")
INSERT_TRACKED_AND_NOTIFY = both(f"WITH stored AS ({INSERT_TRACKED.postgres}) {_NOTIFY}")

# Repeats an insert whose answer was lost (PostgreSQL only). Jobs that arrived after all are left
# alone, also those that have finished since. That is looked up after the insert, which waits for
# whoever is just moving them: a look before it could miss both rows.
INSERT_JOBS_ONCE = both(
    f"INSERT INTO @jobs ({_TRACKED.columns}) SELECT * FROM unnest({_TRACKED.arrays})"
    " ON CONFLICT (id) DO NOTHING"
)
FORGET_REPEATED = both(
    """DELETE FROM @jobs again WHERE id = ANY(:ids::uuid[])
        AND EXISTS (SELECT 1 FROM @history done
            WHERE done.id = again.id AND done.id = ANY(:ids::uuid[]))"""
)

# The child of a parent that is gone: stored, so that its id means something, and never run.
INSERT_CANCELED = each(
    sqlite=f"""INSERT INTO @history ({_CANCELED.columns}, state, token, attempt, crashes,
            system_retries, completed_at, canceled_by)
        VALUES ({_CANCELED.values}, 'canceled', 0, 0, 0, 0, ?, ?)""",
    postgres=f"""INSERT INTO @history ({_CANCELED.columns}, state, token, attempt, crashes,
            system_retries, completed_at, canceled_by, bucket)
        SELECT *, 'canceled', 0, 0, 0, 0, :now::int8, :by::text, {_BUCKET}
        FROM unnest({_CANCELED.arrays})""",
)

LOCK_PARENT = each(
    sqlite="SELECT 1 FROM @jobs WHERE id = :id AND token = :token",
    postgres="SELECT 1 FROM @jobs WHERE id = :id AND token = :token FOR SHARE",
)

# Claim -------------------------------------------------------------------------------------------

# The lanes (queue and priority) that hold claimable jobs, each with its earliest due time: one
# index probe a lane, however many jobs stand in it.
LANES = each(
    # Two probes: SQLite would answer (queue, priority) > (…) by stepping through the whole lane.
    sqlite=f"""SELECT * FROM (
            SELECT queue, priority, run_at FROM @jobs
            WHERE {_CLAIMABLE} AND queue = :queue AND priority > :priority
            ORDER BY priority, run_at LIMIT 1)
        UNION ALL SELECT * FROM (
            SELECT queue, priority, run_at FROM @jobs
            WHERE {_CLAIMABLE} AND queue > :queue
            ORDER BY queue, priority, run_at LIMIT 1)
        LIMIT 1""",
    postgres=f"""WITH RECURSIVE lanes AS (
            (SELECT queue, priority, run_at FROM @jobs WHERE {_CLAIMABLE}
             ORDER BY queue, priority, run_at LIMIT 1)
            UNION ALL
            SELECT n.queue, n.priority, n.run_at FROM lanes l CROSS JOIN LATERAL (
                SELECT queue, priority, run_at FROM @jobs
                WHERE {_CLAIMABLE} AND (queue, priority) > (l.queue, l.priority)
                ORDER BY queue, priority, run_at LIMIT 1) n
        ) SELECT queue, priority, run_at,
            -- Ordered, for an EXISTS may rather read the table than an index that is nearly empty.
            (SELECT limit_key FROM @jobs WHERE {_CLAIMABLE} AND limit_key IS NOT NULL
             ORDER BY limit_key, queue, function, run_at LIMIT 1) IS NOT NULL
            OR EXISTS (SELECT 1 FROM @queues WHERE at_once IS NOT NULL)
        FROM lanes""",
)

QUEUE_RULES = both(
    "SELECT name, paused_at, at_once FROM @queues"
    " WHERE paused_at IS NOT NULL OR at_once IS NOT NULL"
)


def _sqlite_level(level: int) -> str:
    return f"""SELECT * FROM (
        SELECT id, args_bytes, function, limit_key, limits FROM @jobs
        WHERE queue = :queue AND priority = {level} AND {_CLAIMABLE} AND run_at <= :now
            AND function IN (SELECT value FROM json_each(:functions))
            AND {_IN_TIME}
        ORDER BY run_at, id LIMIT :limit)"""


def _postgres_pick(columns: str, plain: str, open_queue: str) -> str:
    return f"""SELECT {columns} FROM (
            SELECT *, sum(size) OVER (ROWS UNBOUNDED PRECEDING) AS total FROM (
                SELECT due.*
                FROM unnest(:queues::text[], :levels::int2[], :floors::int8[])
                    AS lane (queue, level, floor)
                CROSS JOIN LATERAL (
                    SELECT id, octet_length(args) AS size{plain and ", " + plain}
                    FROM @jobs
                    WHERE queue = lane.queue AND priority = lane.level AND {_CLAIMABLE}
                        AND run_at <= :now AND run_at >= lane.floor
                        AND function = ANY(:functions::text[])
                        AND function <> ALL(ARRAY(
                            SELECT name FROM @functions WHERE status IN ('paused', 'deleted')))
                        AND {_IN_TIME}
                        {"" if plain else "AND limit_key IS NULL"}
                    ORDER BY run_at, id LIMIT :limit
                    FOR UPDATE SKIP LOCKED
                ) due
                WHERE lane.queue <> ALL(ARRAY(SELECT name FROM @queues WHERE {open_queue}))
                    AND (SELECT count(*) FROM @queues
                        WHERE name = '*' AND paused_at IS NOT NULL) = 0
                LIMIT :limit
            ) picked
        ) bounded WHERE total = size OR total <= :bytes"""


# SQLite picks the due jobs of a queue, highest priority first, and CLAIM takes them in the same
# transaction. PostgreSQL does both in one statement, and passes over what a limit may keep back.
# There the lanes must come in the given order without a sort, which would read and lock them all:
# so a lane is joined with nothing but its own jobs (an anti-join with @queues may hash the lanes).
PICK = each(
    sqlite=" UNION ALL ".join(_sqlite_level(level) for level in range(9, -1, -1)) + " LIMIT :limit",
    postgres=_postgres_pick("id", "", "paused_at IS NOT NULL OR at_once IS NOT NULL"),
)

CLAIM = each(
    sqlite=f"""{_TO_RUNNING} WHERE id IN (SELECT value FROM json_each(:ids))
        RETURNING {_CLAIMED}""",
    postgres=f"{_TO_RUNNING} WHERE id = ANY(ARRAY({PICK.postgres})) RETURNING {_CLAIMED}",
)

# The same with jobs under limits (PostgreSQL only): what was picked is claimed when it may start.
PICK_LIMITED = both(
    _postgres_pick(
        "id::text, queue, function, limit_key, limits, priority, run_at",
        "queue, function, limit_key, limits, priority, run_at",
        "paused_at IS NOT NULL",
    )
)
# Also those that have waited for a key and get its slot without being freed before.
CLAIM_PICKED = each(
    sqlite=f"""{_TO_RUNNING}, hold = nullif(hold, 'key')
        WHERE id IN (SELECT value FROM json_each(:ids)) RETURNING {_CLAIMED}""",
    postgres=f"""{_TO_RUNNING}, hold = nullif(hold, 'key')
        WHERE id = ANY(:ids::uuid[]) RETURNING {_CLAIMED}""",
)

# A claimed job has its key until its body starts: one that is given back unstarted still has it.
START_BODY = both(
    "UPDATE @jobs SET pending_key = NULL WHERE id = :id AND token = :token RETURNING @id"
)

_DUE_ALONE = f"""hold = 'alone' AND state = 'pending' AND run_at <= :now AND {_IN_TIME}
    AND NOT EXISTS (SELECT 1 FROM @queues WHERE name IN (queue, '*') AND paused_at IS NOT NULL)
    AND NOT EXISTS (SELECT 1 FROM @functions
        WHERE name = function AND status IN ('paused', 'deleted'))"""

PICK_ALONE = each(
    sqlite=f"""SELECT id, queue, function, limit_key, limits FROM @jobs
        WHERE id = :id AND {_DUE_ALONE}
            AND function IN (SELECT value FROM json_each(:functions))""",
    postgres=f"""SELECT @id, queue, function, limit_key, limits FROM @jobs
        WHERE id = :id AND {_DUE_ALONE} AND function = ANY(:functions::text[]) FOR UPDATE""",
)

_OUR_QUEUE = f"substr(queue, 1, {len(RESERVED)}) = '{RESERVED}'"

DUE_ALONE = each(
    sqlite=f"""SELECT @id FROM @jobs WHERE {_DUE_ALONE}
        AND function IN (SELECT value FROM json_each(:functions))
        AND (:queues IS NULL OR queue IN (SELECT value FROM json_each(:queues)) OR {_OUR_QUEUE})
        LIMIT 10""",
    postgres=f"""SELECT @id FROM @jobs WHERE {_DUE_ALONE} AND function = ANY(:functions::text[])
        AND (:queues::text[] IS NULL OR queue = ANY(:queues::text[]) OR {_OUR_QUEUE})
        LIMIT 10""",
)

# Finish ------------------------------------------------------------------------------------------

# Nobody waits long for the row of one job to write down the ends of others. Not a statement of its
# own: that would be one more round trip for each batch.
LOCK_WAIT = "200ms"
_WAIT_SHORTLY = """(SELECT set_config('lock_timeout',
                coalesce(:lock_wait::text, current_setting('lock_timeout')), true)) IS NOT NULL"""

# The fence is id and token, the token being odd only while running. Adding the state makes the
# batched form quadratic under PostgreSQL's generic plan.
FINISH = each(
    sqlite=f"""INSERT INTO @history ({_FINAL})
        SELECT {_MOVED}, ?, ?, ?, ?, ?, ?, NULL, ? FROM @jobs WHERE id = ? AND token = ?""",
    postgres=f"""WITH gone AS (
            DELETE FROM @jobs j
            USING unnest(:ids::uuid[], :tokens::int4[], :states::text[], :results::text[],
                :error_kinds::text[], :error_messages::text[], :error_tracebacks::text[],
                :exhausteds::bool[])
                AS f (id, token, state, result, error_kind, error_message, error_traceback,
                    exhausted)
            WHERE j.id = f.id AND j.token = f.token AND j.id = ANY(:ids::uuid[])
                AND {_WAIT_SHORTLY}
            RETURNING {", ".join("j." + c.strip() for c in _MOVED.split(","))},
                f.state, f.result, f.error_kind, f.error_message, f.error_traceback, f.exhausted
        )
        INSERT INTO @history ({_FINAL}, bucket)
        SELECT {_MOVED}, state, :now::int8, result, error_kind, error_message, error_traceback,
            NULL, exhausted, {_BUCKET}
        FROM gone RETURNING @id""",
)

# One mutation, in its own transaction; `xid` shows that the body has not ended and begun another.
FINISH_MUTATION = both(
    f"""WITH gone AS (
            DELETE FROM @jobs WHERE id = :id AND token = :token
                AND pg_current_xact_id()::text = :xid
            RETURNING {_MOVED}
        )
        INSERT INTO @history ({_FINAL}, bucket)
        SELECT {_MOVED}, 'succeeded', :now::int8, :result::text, NULL, NULL, NULL, NULL, false,
            {_BUCKET}
        FROM gone RETURNING 1"""
)

FORGET_FINISHED = both("DELETE FROM @jobs WHERE id = ? AND token = ?")

AGAIN = each(
    sqlite="""UPDATE @jobs SET state = 'pending', token = token + 1, worker_id = NULL,
            started_at = NULL, deadline_at = NULL, run_at = :run_at, attempt = :attempt,
            crashes = :crashes, system_retries = :system_retries,
            lock_retries = lock_retries + :lock_failures, hold = :hold,
            error_kind = :error_kind, error_message = :error_message,
            error_traceback = :error_traceback
        WHERE id = :id AND token = :token""",
    postgres=f"""UPDATE @jobs j SET state = 'pending', token = j.token + 1, worker_id = NULL,
            started_at = NULL, deadline_at = NULL, run_at = f.run_at, attempt = f.attempt,
            crashes = f.crashes, system_retries = f.system_retries,
            lock_retries = j.lock_retries + f.lock_failures, hold = f.hold,
            error_kind = f.error_kind, error_message = f.error_message,
            error_traceback = f.error_traceback
        FROM unnest(:ids::uuid[], :tokens::int4[], :run_ats::int8[], :attempts::int4[],
            :crashes::int4[], :system_retries::int4[], :holds::text[], :error_kinds::text[],
            :error_messages::text[], :error_tracebacks::text[], :lock_failures::int4[])
            AS f (id, token, run_at, attempt, crashes, system_retries, hold, error_kind,
                error_message, error_traceback, lock_failures)
        WHERE j.id = f.id AND j.token = f.token AND j.id = ANY(:ids::uuid[])
            AND {_WAIT_SHORTLY}
        RETURNING j.id::text""",
)

# The rows that somebody else's transaction holds; all others are locked from now on.
LOCKED_IDS = both(
    """WITH free AS (
            SELECT id FROM @jobs WHERE id = ANY(:ids::uuid[]) ORDER BY id FOR UPDATE SKIP LOCKED
        )
        SELECT @id FROM @jobs WHERE id = ANY(:ids::uuid[]) AND id NOT IN (SELECT id FROM free)"""
)

# Cancel, expiry ----------------------------------------------------------------------------------

LIVE_IDS = each(
    sqlite="SELECT @id FROM @jobs WHERE id IN (SELECT value FROM json_each(:ids))",
    postgres="SELECT @id FROM @jobs WHERE id = ANY(:ids::uuid[]) ORDER BY id FOR UPDATE",
)

# The same for those that must not have started meanwhile.
PENDING_IDS = each(
    sqlite=f"{LIVE_IDS.sqlite} AND state = 'pending'",
    postgres="""SELECT @id FROM @jobs WHERE id = ANY(:ids::uuid[]) AND state = 'pending'
        ORDER BY id FOR UPDATE""",
)

# The isolation level of a user's transaction (PostgreSQL only), and whether a cancel in it has to
# see what others commit meanwhile: the children of a job that has run, other members of its batch.
# A row that changes after this look cannot be locked any more above READ COMMITTED.
CANCEL_NEEDS = both(
    """SELECT current_setting('transaction_isolation'), EXISTS (SELECT 1 FROM @jobs
        WHERE id = :id AND (token > 0 OR batch_id IS NOT NULL))"""
)

CHILD_IDS = each(
    sqlite="SELECT @id FROM @jobs WHERE parent_id IN (SELECT value FROM json_each(:ids))",
    postgres="SELECT @id FROM @jobs WHERE parent_id = ANY(:ids::uuid[]) ORDER BY id FOR UPDATE",
)

EXPIRED_IDS = each(
    sqlite="""SELECT id FROM @jobs WHERE state = 'pending' AND expires_at <= :now
        AND attempt = 0 LIMIT 500""",
    # The order is the index's: in any other, a prepared plan would rather read all jobs by id.
    postgres="""SELECT @id FROM @jobs WHERE state = 'pending' AND expires_at <= :now
        AND attempt = 0
        ORDER BY expires_at LIMIT 500 FOR UPDATE SKIP LOCKED""",
)

# Moves live rows that the same transaction has locked.
MOVE_CANCELED = each(
    sqlite=f"""INSERT INTO @history ({_FINAL})
        SELECT {_MOVED}, 'canceled', :now, NULL, :error_kind, :error_message, NULL,
            CASE WHEN :from_parent THEN 'parent:' || parent_id ELSE :by END, 0
        FROM @jobs WHERE id IN (SELECT value FROM json_each(:ids))""",
    postgres=f"""WITH gone AS (
            DELETE FROM @jobs WHERE id = ANY(:ids::uuid[]) RETURNING {_MOVED}
        )
        INSERT INTO @history ({_FINAL}, bucket)
        SELECT {_MOVED}, 'canceled', :now::int8, NULL, :error_kind::text, :error_message::text,
            NULL, CASE WHEN :from_parent::bool THEN 'parent:' || parent_id ELSE :by::text END,
            false, {_BUCKET}
        FROM gone""",
)

FORGET_CANCELED = both("DELETE FROM @jobs WHERE id IN (SELECT value FROM json_each(:ids))")

# Rescue, time-out --------------------------------------------------------------------------------

_LOST = "@id, token, kind, attempt, crashes, system_retries, run_at, retry"

# As a range: where all that runs is one worker's, SQLite 3.46 would rather read the whole index.
_HELD_BY_WORKER = "worker_id BETWEEN :worker AND :worker"
RUNNING_OF = each(
    sqlite=f"SELECT {_LOST} FROM @jobs WHERE {_HELD_BY_WORKER}",
    postgres=f"SELECT {_LOST} FROM @jobs WHERE worker_id = :worker ORDER BY id FOR UPDATE",
)

_LATE = _CLAIMED.replace("args", "@short_args")
_OVERDUE = f"SELECT {_LATE} FROM @jobs WHERE deadline_at <= :before AND state = 'running'"
OVERDUE = each(
    sqlite=f"{_OVERDUE} LIMIT 500", postgres=f"{_OVERDUE} ORDER BY deadline_at LIMIT 500"
)

# Workers -----------------------------------------------------------------------------------------

INSERT_WORKER = both(
    "INSERT INTO @workers (id, app, host, pid, queues, functions, slots, alone, started_at)"
    " VALUES (:id, :app, :host, :pid, :queues, :functions, :slots, :alone, :now)"
)
DELETE_WORKER = both("DELETE FROM @workers WHERE id = :id")
BEAT = both("UPDATE @workers SET beat = beat + 1 WHERE id = ANY(:ids::uuid[]) RETURNING @id")
WORKERS = both(
    "SELECT @id, app, host, pid, queues, functions, slots, alone, beat, started_at FROM @workers"
    " ORDER BY id"
)
BEATS = both("SELECT @id, beat FROM @workers")
LOCK_WORKER = each(
    sqlite="SELECT beat FROM @workers WHERE id = :id",
    postgres="SELECT beat FROM @workers WHERE id = :id FOR UPDATE",
)
HOLDINGS = each(
    sqlite=f"SELECT id, token FROM @jobs WHERE {_HELD_BY_WORKER}",
    postgres="SELECT id::text, token FROM @jobs WHERE worker_id = :worker",
)
KNOWN_FUNCTIONS = both("SELECT functions FROM @workers")
RELIST_WORKER = both("UPDATE @workers SET functions = :functions WHERE id = :id")

# Holds -------------------------------------------------------------------------------------------

# Only the head of a lane is looked at: what stands behind known jobs costs nothing yet.
UNKNOWN_AT_HEAD = each(
    sqlite=f"""SELECT id, function FROM (
            SELECT id, function FROM @jobs
            WHERE queue = :queue AND priority = :priority AND {_CLAIMABLE} AND run_at <= :now
            ORDER BY run_at, id LIMIT 1000)
        WHERE function NOT IN (SELECT value FROM json_each(:functions))""",
    postgres=f"""SELECT id::text, function FROM (
            SELECT id, function FROM @jobs
            WHERE queue = :queue AND priority = :priority AND {_CLAIMABLE} AND run_at <= :now
            ORDER BY run_at, id LIMIT 1000) head
        WHERE NOT function = ANY(:functions::text[])""",
)
SET_HOLD = each(
    sqlite=f"""UPDATE @jobs SET hold = :hold
        WHERE id IN (SELECT value FROM json_each(:ids)) AND {_CLAIMABLE}""",
    # Claimable in other words: a plan must find the jobs by id, not among all claimable ones.
    postgres="""UPDATE @jobs SET hold = :hold
        WHERE id = ANY(:ids::uuid[]) AND state = 'pending' AND coalesce(hold, '') = ''""",
)
HELD_IDS = each(
    sqlite="""SELECT id FROM @jobs WHERE hold = :hold
        AND function IN (SELECT value FROM json_each(:functions)) LIMIT 1000""",
    postgres="""SELECT t.id::text FROM @jobs t
        WHERE hold = :hold AND function = ANY(:functions::text[])
        ORDER BY function, t.id LIMIT 1000 FOR UPDATE SKIP LOCKED""",
)
CLEAR_HOLD = each(
    sqlite="UPDATE @jobs SET hold = NULL WHERE id IN (SELECT value FROM json_each(:ids))",
    postgres="UPDATE @jobs SET hold = NULL WHERE id = ANY(:ids::uuid[])",
)
HELD = both(
    "SELECT hold, function, count(*), min(run_at) FROM"
    " (SELECT hold, function, run_at FROM @jobs WHERE hold IS NOT NULL LIMIT 10000) held"
    " GROUP BY hold, function ORDER BY hold, function"
)

# Queues ------------------------------------------------------------------------------------------

PAUSE_QUEUE = both(
    "INSERT INTO @queues (name, paused_at, paused_by, note) VALUES (:name, :now, :by, :note)"
    " ON CONFLICT (name) DO UPDATE SET paused_at = :now, paused_by = :by, note = :note"
)
RESUME_QUEUE = both(
    "UPDATE @queues SET paused_at = NULL, paused_by = NULL, note = NULL WHERE name = :name"
)
LIMIT_QUEUE = both(
    "INSERT INTO @queues (name, at_once) VALUES (:name, :at_once)"
    " ON CONFLICT (name) DO UPDATE SET at_once = excluded.at_once"
)
QUEUES = both("SELECT name, paused_at, paused_by, note FROM @queues ORDER BY name")

# Functions ---------------------------------------------------------------------------------------

_INFO = """name, kind, app, schema, options, internal, alias_of, published_at,
    status, status_by, status_note, status_at"""


# A new alias takes the status of its function; a row that is there keeps its own. Only by force
# does what was replaced before come back, or one app overwrite another's.
PUBLISH = both(
    """INSERT INTO @functions AS f
            (name, kind, app, schema, options, internal, alias_of, seen, published_at, status)
        VALUES (:name, :kind, :app, :schema, :options, :internal, :alias_of, :digest, :now,
            coalesce((SELECT status FROM @functions WHERE name = :alias_of), 'active'))
        ON CONFLICT (name) DO UPDATE SET kind = excluded.kind, app = excluded.app,
            schema = excluded.schema, options = excluded.options, internal = excluded.internal,
            alias_of = excluded.alias_of, published_at = excluded.published_at,
            seen = CASE WHEN f.seen LIKE '%' || excluded.seen || '%' THEN f.seen
                ELSE f.seen || ' ' || excluded.seen END
        WHERE f.app = excluded.app AND f.seen NOT LIKE '%' || excluded.seen || '%' OR :force"""
)
FUNCTIONS = both(f"SELECT {_INFO} FROM @functions ORDER BY name")
FUNCTION = both(f"SELECT {_INFO} FROM @functions WHERE name = :name")
STATUSES = both("SELECT name, status FROM @functions WHERE status <> 'active'")
CLOSED_FUNCTIONS = both("SELECT name FROM @functions WHERE status IN ('paused', 'deleted')")

_SET_STATUS = """UPDATE @functions SET status = :status, status_by = :by, status_note = :note,
        status_at = :now WHERE (name = :name OR alias_of = :name) AND"""

# The status is compared where it is changed: what was read before may have changed meanwhile.
SET_STATUS = each(
    sqlite=f"{_SET_STATUS} status IN (SELECT value FROM json_each(:allowed)) RETURNING name",
    postgres=f"{_SET_STATUS} status = ANY(:allowed::text[]) RETURNING name",
)
# Nobody restores a function while its jobs are being canceled.
LOCK_STATUSES = each(sqlite=STATUSES.sqlite, postgres=f"{STATUSES.postgres} FOR SHARE")

# Reading -----------------------------------------------------------------------------------------

GET_LIVE = both(f"SELECT {_LIVE_RECORD} FROM @jobs WHERE id = :id")
GET_HISTORY = both(f"SELECT {_FINAL_RECORD} FROM @history WHERE id = :id")
GET_KEPT = both(f"SELECT {_FINAL_RECORD} FROM @kept WHERE id = :id")

_CONDITIONS = {
    "state": "state = :state",
    "function": "function = :function",
    "queue": "queue = :queue",
    "owner": "owner = :owner",
    "parent_id": "parent_id = :parent_id",
    "run_after": "run_at >= :run_after",
    "run_before": "run_at < :run_before",
    "before_id": "id < :before_id",
    "batch_id": "batch_id = :batch_id",
    "exhausted": "exhausted",
}


# Said so that the indexes may be used that leave most jobs out.
_OTHER_QUEUE = f"queue <> '{DEFAULT_QUEUE}'"
_UNSUCCESSFUL = f"length(state) < {len(State.SUCCEEDED)}"


def list_jobs(filter: JobFilter, table: Table) -> str:
    """The statement that lists one table's jobs, newest first; only what is asked for is in it."""
    record = _LIVE_LISTED if table == "jobs" else _FINAL_LISTED
    # Qualified, because on PostgreSQL a bare id would be the selected text, which no index orders.
    return f"SELECT {record} FROM @{table} t{_where(filter)} ORDER BY t.id DESC LIMIT :limit"


def live_matching(filter: JobFilter) -> str:
    """The statement that finds live jobs for a bulk verb, in id order, a page at a time."""
    where = _where(filter)
    glue = " AND" if where else " WHERE"
    return f"SELECT @id FROM @jobs t{where}{glue} id > :after_id ORDER BY t.id LIMIT :limit"


def _where(filter: JobFilter, *more: str) -> str:
    terms = [term for field, term in _CONDITIONS.items() if getattr(filter, field) is not None]
    if filter.queue not in (None, DEFAULT_QUEUE):
        terms.append(_OTHER_QUEUE)
    elif filter.state in (State.FAILED, State.CANCELED) and not (filter.function or filter.owner):
        terms.append(_UNSUCCESSFUL)
    terms += more
    return " WHERE " + " AND ".join(terms) if terms else ""


# In the order in which a job goes: whoever reads one after the other misses none on the move.
FINISHED: tuple[Table, ...] = ("history", "kept")


def tables_for(filter: JobFilter) -> tuple[Table, ...]:
    """Where such jobs can stand."""
    if filter.exhausted:
        return FINISHED
    if filter.state is None:
        return ("jobs", *FINISHED)
    return FINISHED if filter.state.is_terminal else ("jobs",)


def parameters_of(filter: JobFilter) -> dict[str, Any]:
    """The parameters that a filter's statement takes."""
    given = {field: getattr(filter, field) for field in _CONDITIONS}
    return {field: value for field, value in given.items() if value is not None} | {
        "limit": filter.limit
    }


# Bulk jobs ---------------------------------------------------------------------------------------

# Not with LIKE, which does not tell capitals from small letters on SQLite.
_NOT_OURS = f"substr(function, 1, {len(RESERVED)}) <> '{RESERVED}'"
_BEYOND = "id > :after_id"


def live_page(filter: JobFilter) -> str:
    """The statement that finds live jobs for a bulk job, oldest first."""
    return f"SELECT @id FROM @jobs t{_where(filter, _NOT_OURS, _BEYOND)} ORDER BY t.id LIMIT :limit"


def finished_page(filter: JobFilter, table: Table) -> str:
    """The same among finished jobs, with what lists have of them."""
    where = _where(filter, _NOT_OURS, _BEYOND)
    return f"SELECT {_FINAL_LISTED} FROM @{table} t{where} ORDER BY t.id LIMIT :limit"


def count_jobs(filter: JobFilter, table: Table) -> str:
    """The statement that counts what such pages would give."""
    return f"SELECT count(*) FROM @{table} t{_where(filter, _NOT_OURS)}"


# While a bulk job runs, its arguments say how far it is: the next attempt begins there.
CHECKPOINT = both("UPDATE @jobs SET args = :args WHERE id = :id AND token = :token")

_ASK_ANEW = "hold = CASE WHEN hold = 'key' THEN NULL ELSE hold END"

# Pending jobs that the same transaction has locked. The time that each had between being due and
# expiring stays as long; whoever waits for a key asks for it anew when due.
RESCHEDULE = each(
    sqlite=f"""UPDATE @jobs SET run_at = :run_at, expires_at = expires_at + :run_at - run_at,
            {_ASK_ANEW} WHERE id IN (SELECT value FROM json_each(:ids))""",
    postgres=f"""UPDATE @jobs SET run_at = :run_at::int8,
            expires_at = expires_at + :run_at::int8 - run_at, {_ASK_ANEW}
        WHERE id = ANY(:ids::uuid[])""",
)

# Batches, replays --------------------------------------------------------------------------------

# One statement, and so one moment: a member on the move is counted once.
BATCH_COUNTS = both(
    "SELECT state, count(*) FROM ("
    "SELECT state FROM @jobs WHERE batch_id = :id"
    " UNION ALL SELECT state FROM @history WHERE batch_id = :id"
    " UNION ALL SELECT state FROM @kept WHERE batch_id = :id) members GROUP BY state"
)


def _hooks(place: str) -> str:
    return f"""SELECT t.function, @id, t.batch_id IS NULL
            AND (SELECT 1 FROM @jobs m WHERE m.batch_id = t.id
                ORDER BY m.batch_id LIMIT 1) IS NULL
            AND (SELECT 1 FROM @jobs m WHERE m.hook_id = t.id
                ORDER BY m.hook_id LIMIT 1) IS NULL
        FROM @jobs t WHERE t.hold = 'batch' AND {place}
        ORDER BY t.hold, t.function, t.id LIMIT 100"""


# Some of the jobs that wait for the end of others, and whether none of those is there any more. The
# hook of a batch has the batch's id; webhooks that wait in a line belong to a batch, and are no
# hooks. Two probes on SQLite, for the reason that LANES has.
HOOKS = each(
    sqlite=f"""SELECT * FROM ({_hooks("t.function = :function AND t.id > :id")})
        UNION ALL SELECT * FROM ({_hooks("t.function > :function")}) LIMIT 100""",
    postgres=_hooks("(t.function, t.id) > (:function, :id)"),
)
FREE_HOOKS = each(
    sqlite="""UPDATE @jobs SET hold = NULL
        WHERE id IN (SELECT value FROM json_each(:ids)) AND hold = 'batch' RETURNING 1""",
    postgres="""UPDATE @jobs SET hold = NULL
        WHERE id = ANY(:ids::uuid[]) AND hold = 'batch' RETURNING 1""",
)
TAKE_KEY = both(
    "INSERT INTO @keys (scope, key, job_id, expires_at) VALUES (:scope, :key, :job_id, :expires_at)"
    " ON CONFLICT (scope, key) DO NOTHING RETURNING key"
)
KEYS_TAKEN = each(
    sqlite="""SELECT key FROM @keys WHERE scope = :scope
        AND key IN (SELECT value FROM json_each(:keys))""",
    postgres="SELECT key FROM @keys WHERE scope = :scope AND key = ANY(:keys::text[])",
)
HOLDER_OF_KEY = each(
    sqlite="SELECT job_id FROM @keys WHERE scope = :scope AND key = :key",
    postgres="SELECT job_id::text FROM @keys WHERE scope = :scope AND key = :key",
)
IS_KEPT = both("SELECT 1 FROM @keys WHERE scope = :scope AND key = :key AND expires_at > :now")

# The key that a job waits for, and those that run under it.
KEY_OF = both("SELECT limit_key, limits FROM @jobs WHERE id = :id AND limit_key IS NOT NULL")
KEY_HOLDERS = each(
    sqlite="SELECT DISTINCT +job_id FROM @slots WHERE key = :key LIMIT 100",
    postgres="SELECT DISTINCT job_id::text FROM @slots WHERE key = :key LIMIT 100",
)

# Retention ---------------------------------------------------------------------------------------

# Finished jobs leave history in the order in which they came. Two kinds move to @kept instead: the
# newest finished job of a function, and exhausted jobs younger than their own limit.
# So few at once on SQLite that whoever claims meanwhile waits a millisecond.
OLDEST_AT_ONCE = 30
OLDEST_FINISHED = each(
    sqlite=f"""SELECT seq, id, function, exhausted, completed_at FROM @history NOT INDEXED
        ORDER BY seq LIMIT {OLDEST_AT_ONCE}""",
    postgres="SELECT 1 FROM @history WHERE bucket = :bucket LIMIT 1",
)
# Nobody cleaned up for so long that the bucket is in use again: what is old stands at its start.
LEFT_BEHIND = both(
    "SELECT 1 FROM @history WHERE bucket = :bucket AND ctid < '(8,1)' AND completed_at < :cutoff"
    " LIMIT 1"
)
# The newest one is the one that was created last, as conditions of schedules see it. Its state is
# said so that the index leads to it.
_ENDED = "state IN ('succeeded', 'failed', 'canceled')"
NEWER_FINISHED = both(
    f"SELECT 1 FROM @history WHERE function = :function AND {_ENDED} AND id > :id LIMIT 1"
)
KEEP = each(
    sqlite=f"""INSERT INTO @kept ({_FINAL}) SELECT {_FINAL} FROM @history
        WHERE id IN (SELECT value FROM json_each(:ids))""",
    postgres=f"""INSERT INTO @kept ({_FINAL})
        SELECT {_FINAL} FROM @history newest WHERE bucket = :bucket AND id IN (
            -- Ids are in order as texts too, and to sort a day would take a file.
            SELECT max(id::text COLLATE "C")::uuid FROM @history
            WHERE bucket = :bucket AND completed_at < :cutoff GROUP BY function)
        AND NOT EXISTS (SELECT 1 FROM @history later
            WHERE later.function = newest.function AND later.{_ENDED} AND later.id > newest.id)
        UNION
        SELECT {_FINAL} FROM @history
        WHERE bucket = :bucket AND exhausted AND completed_at < :cutoff
            AND completed_at >= :exhausted_after
        ON CONFLICT (id) DO NOTHING""",
)
DELETE_FINISHED = each(
    sqlite="DELETE FROM @history WHERE id IN (SELECT value FROM json_each(:ids))",
    postgres="DELETE FROM @history WHERE bucket = :bucket AND completed_at < :cutoff",
)
# A clock that was ahead has filled the bucket of a day that is still to come.
FINISHED_LATER = both(
    "SELECT 1 FROM @history WHERE bucket = :bucket AND completed_at >= :cutoff LIMIT 1"
)
# One janitor at a time: what two of them count would be counted twice.
TAKE_BUCKET = both("SELECT pg_try_advisory_xact_lock(hashtext('@schema.history'), :bucket::int4)")
TRUNCATE_BUCKET = "TRUNCATE @schema.history_{bucket:02d}"
DROP_KEPT = each(
    sqlite=f"""DELETE FROM @kept WHERE (exhausted = 0 OR completed_at < :exhausted_after)
        AND (EXISTS (SELECT 1 FROM @history h WHERE h.function = duly_kept.function
                AND h.{_ENDED} AND h.id > duly_kept.id)
            OR EXISTS (SELECT 1 FROM @kept k WHERE k.function = duly_kept.function
                AND k.{_ENDED} AND k.id > duly_kept.id))
        RETURNING id""",
    postgres=f"""DELETE FROM @kept o WHERE (NOT exhausted OR completed_at < :exhausted_after)
        AND (EXISTS (SELECT 1 FROM @history h WHERE h.function = o.function
                AND h.{_ENDED} AND h.id > o.id)
            OR EXISTS (SELECT 1 FROM @kept k WHERE k.function = o.function
                AND k.{_ENDED} AND k.id > o.id))
        RETURNING id::text""",
)

# Progress and log lines --------------------------------------------------------------------------

# Only the attempt that runs is heard, and of two reports the later one stays.
REPORT = each(
    sqlite="""INSERT INTO @progress (job_id, value, note, revision, updated_at)
        SELECT f.id, f.value, f.note, f.revision, f.updated_at
        FROM (SELECT ? AS id, ? AS token, ? AS revision, ? AS value, ? AS note, ? AS updated_at) f
        WHERE EXISTS (SELECT 1 FROM @jobs WHERE id = f.id AND token = f.token)
        ON CONFLICT (job_id) DO UPDATE SET value = excluded.value, note = excluded.note,
            revision = excluded.revision, updated_at = excluded.updated_at
        WHERE excluded.revision > @progress.revision""",
    postgres="""INSERT INTO @progress AS p (job_id, value, note, revision, updated_at)
        SELECT f.id, f.value, f.note, f.revision, f.updated_at
        FROM unnest(:job_id::uuid[], :token::int4[], :revision::int8[], :value::float8[],
            :note::text[], :updated_at::int8[]) AS f (id, token, revision, value, note, updated_at)
        CROSS JOIN LATERAL (SELECT 1 FROM @jobs WHERE id = f.id AND token = f.token LIMIT 1) runs
        ORDER BY f.id
        ON CONFLICT (job_id) DO UPDATE SET value = excluded.value, note = excluded.note,
            revision = excluded.revision, updated_at = excluded.updated_at
        WHERE excluded.revision > p.revision""",
)
# A line that arrived although the answer was lost is not stored twice.
WRITE_LOGS = each(
    sqlite="""INSERT INTO @logs (job_id, seq, logged_at, level, line) VALUES (?, ?, ?, ?, ?)
        ON CONFLICT DO NOTHING""",
    postgres="""INSERT INTO @logs (job_id, seq, logged_at, level, line)
        SELECT * FROM unnest(:job_id::uuid[], :seq::int8[], :logged_at::int8[], :level::text[],
            :line::text[])
        ON CONFLICT DO NOTHING""",
)
FORGET_LOGS = both("DELETE FROM @logs WHERE job_id = :job_id AND seq < :seq")
READ_LOGS = each(
    sqlite="""SELECT +seq, +logged_at, +level, +line FROM @logs
        WHERE job_id = :job_id AND seq > :after ORDER BY seq""",
    postgres="""SELECT seq, logged_at, level, line FROM @logs
        WHERE job_id = :job_id AND seq > :after ORDER BY seq""",
)


_LOOK = "state, token, attempt, value, note, p.revision, updated_at"


def _look_sqlite(table: str) -> str:
    columns = "+" + _LOOK.replace(", ", ", +")
    return f"""SELECT +t.id, {columns} FROM {table} t LEFT JOIN @progress p ON p.job_id = t.id
        WHERE t.id IN (SELECT value FROM json_each(:ids))"""


# One job after the other, for a plan that was made while a table was empty would rather read all of
# it, also when it has grown.
def _look_postgres(table: str) -> str:
    return f"""SELECT w.id::text, {_LOOK}
        FROM unnest(:ids::uuid[]) AS w (id)
        CROSS JOIN LATERAL (SELECT state, token, attempt FROM {table} WHERE id = w.id LIMIT 1) t
        LEFT JOIN LATERAL (SELECT value, note, revision, updated_at FROM @progress
            WHERE job_id = w.id LIMIT 1) p ON true"""


def _look(*tables: str) -> Statement:
    """Where jobs of these tables stand, and what they said last."""
    return each(
        sqlite=" UNION ALL ".join(map(_look_sqlite, tables)),
        postgres=" UNION ALL ".join(map(_look_postgres, tables)),
    )


LOOK_LIVE = _look("@jobs")
LOOK_ENDED = _look("@history", "@kept")

# They go with their job.
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


def _forget_with_bucket(table: str) -> str:
    return f"""DELETE FROM {table} o USING @history h
        WHERE h.bucket = :bucket AND h.completed_at < :cutoff AND h.id = o.job_id
            AND NOT EXISTS (SELECT 1 FROM @kept k WHERE k.id = o.job_id)"""


FORGET_PROGRESS_IN = both(_forget_with_bucket("@progress"))
FORGET_LOGS_IN = both(_forget_with_bucket("@logs"))
FORGET_TRACES_IN = both(_forget_with_bucket("@traces"))

# Traces ------------------------------------------------------------------------------------------

INSERT_TRACES = each(
    sqlite="INSERT INTO @traces (job_id, parent) VALUES (?, ?) ON CONFLICT DO NOTHING",
    postgres="""INSERT INTO @traces (job_id, parent)
        SELECT * FROM unnest(:job_id::uuid[], :parent::text[]) ON CONFLICT DO NOTHING""",
)
TRACES_OF = each(
    sqlite="""SELECT +job_id, +parent FROM @traces
        WHERE job_id IN (SELECT value FROM json_each(:ids))""",
    postgres="SELECT job_id::text, parent FROM @traces WHERE job_id = ANY(:ids::uuid[])",
)

# Keys --------------------------------------------------------------------------------------------

# A job that is stored only if nobody holds its keys. Somebody who has not committed is waited for.
INSERT_KEYED = both(
    f"""INSERT INTO @jobs ({_TRACKED.columns}) VALUES ({_TRACKED.named})
        ON CONFLICT DO NOTHING RETURNING 1"""
)
# Who holds them; the job itself, if it was stored and only the answer got lost.
KEY_HOLDER = both(
    """SELECT @id FROM @jobs WHERE id = :id
        UNION ALL SELECT @id FROM @jobs WHERE unique_key = :unique_key
        UNION ALL SELECT @id FROM @jobs WHERE pending_key = :pending_key LIMIT 1"""
)
# It has not started, or it would not have the key any more; a later call decides when it will. If
# a worker has claimed it, the call takes it back: the worker finds another token when it wants to
# start the body.
_IF_CLAIMED = "CASE state WHEN 'running' THEN 1 ELSE 0 END"
DEBOUNCE = both(
    f"""UPDATE @jobs SET args = :args, run_at = :run_at, expires_at = :expires_at,
            hold = CASE WHEN hold = 'key' THEN NULL ELSE hold END, state = 'pending',
            token = token + {_IF_CLAIMED}, attempt = attempt - {_IF_CLAIMED}, worker_id = NULL,
            started_at = NULL, deadline_at = NULL
        WHERE pending_key = :pending_key RETURNING @id"""
)
KEEP_KEY = both(
    """INSERT INTO @keys AS k (scope, key, job_id, expires_at)
        VALUES (:scope, :key, :job_id, :expires_at)
        ON CONFLICT (scope, key) DO UPDATE
            SET job_id = excluded.job_id, expires_at = excluded.expires_at
            WHERE k.expires_at <= :now RETURNING 1"""
)
PASS_KEY = both(
    """UPDATE @keys SET job_id = :holder
        WHERE scope = :scope AND key = :key AND job_id = :job_id"""
)
FORGET_KEYS = each(
    sqlite="""DELETE FROM @keys WHERE rowid IN
        (SELECT rowid FROM @keys WHERE expires_at <= :now LIMIT 1000) RETURNING 1""",
    postgres="""DELETE FROM @keys WHERE ctid = ANY(ARRAY(
        SELECT ctid FROM @keys WHERE expires_at <= :now LIMIT 1000 FOR UPDATE SKIP LOCKED))
        RETURNING 1""",
)

# Limits ------------------------------------------------------------------------------------------

# Whoever looks at what a key leaves, to start a job or to let it wait, or changes it, holds this
# until the transaction ends (SQLite has one writer anyway). Otherwise a job could begin to wait
# just after the one that should have freed it had looked.
LOCK_KEYS = both(
    "SELECT pg_advisory_xact_lock(hashtextextended('@schema ' || key, 0))::text"
    " FROM unnest(:keys::text[]) AS wanted (key)"
)
# What is taken of keys: slots, and starts that count for a rate. What started further ahead than
# clocks differ was noted by one that was wrong, and would count for as long as that was ahead.
TAKEN = each(
    sqlite="""SELECT +key, slot, NULL FROM @slots WHERE key IN (SELECT value FROM json_each(:keys))
        UNION ALL SELECT +key, NULL, started_at FROM @starts
        WHERE key IN (SELECT value FROM json_each(:keys)) AND expires_at > :now
            AND started_at <= :now + 60000""",
    postgres="""SELECT key, slot, NULL::int8 FROM @slots WHERE key = ANY(:keys::text[])
        UNION ALL SELECT key, NULL, started_at FROM @starts
        WHERE key = ANY(:keys::text[]) AND expires_at > :now AND started_at <= :now + 60000""",
)
TAKE_SLOTS = each(
    sqlite="INSERT INTO @slots (key, slot, job_id, token, worker_id) VALUES (?, ?, ?, ?, ?)",
    postgres="""INSERT INTO @slots (key, slot, job_id, token, worker_id)
        SELECT * FROM unnest(:key::text[], :slot::int4[], :job_id::uuid[], :token::int4[],
            :worker_id::uuid[])""",
)
NOTE_STARTS = each(
    sqlite="""INSERT INTO @starts (key, started_at, job_id, token, expires_at)
        VALUES (?, ?, ?, ?, ?)""",
    postgres="""INSERT INTO @starts (key, started_at, job_id, token, expires_at)
        SELECT * FROM unnest(:key::text[], :started_at::int8[], :job_id::uuid[], :token::int4[],
            :expires_at::int8[])""",
)
FORGET_STARTS = each(
    sqlite="""DELETE FROM @starts WHERE rowid IN
        (SELECT rowid FROM @starts WHERE expires_at <= :now LIMIT 1000) RETURNING 1""",
    postgres="""DELETE FROM @starts WHERE ctid = ANY(ARRAY(
        SELECT ctid FROM @starts WHERE expires_at <= :now LIMIT 1000 FOR UPDATE SKIP LOCKED))
        RETURNING 1""",
)
FREE_SLOTS = each(
    sqlite="""DELETE FROM @slots WHERE (job_id, token) IN (SELECT json_extract(value, '$[0]'),
        json_extract(value, '$[1]') FROM json_each(:ended)) RETURNING key""",
    postgres="""DELETE FROM @slots s
        USING unnest(:job_ids::uuid[], :tokens::int4[]) AS ended (id, token)
        WHERE s.job_id = ended.id AND s.token = ended.token RETURNING key""",
)
FREE_SLOTS_OF = both("DELETE FROM @slots WHERE worker_id = :worker RETURNING key")
SLOTS_OF = each(
    sqlite="SELECT +job_id, token FROM @slots WHERE worker_id = :worker",
    postgres="SELECT job_id::text, token FROM @slots WHERE worker_id = :worker",
)
# Whatever else of the same line is due: a million jobs do not have to be tried.
_LIKE_IT = f"""limit_key = :key AND queue = :queue AND function = :function AND {_CLAIMABLE}
            AND run_at <= :now"""
HOLD_LINE = each(
    sqlite=f"""UPDATE @jobs SET hold = 'key' WHERE id IN (SELECT id FROM @jobs
        WHERE {_LIKE_IT} LIMIT 10000)""",
    postgres=f"""UPDATE @jobs SET hold = 'key' WHERE id = ANY(ARRAY(SELECT id FROM @jobs
        WHERE {_LIKE_IT}
        ORDER BY limit_key, queue, function, run_at LIMIT 10000 FOR UPDATE SKIP LOCKED))""",
)
DELAY = both("UPDATE @jobs SET run_at = :run_at WHERE id = :id")
# As in the index of those that wait; see the migration that makes it.
_HELD_FOR_KEY = "limit_key IS NOT NULL AND (hold = 'key') IS TRUE"
_WAITS = f"limit_key = :key AND {_HELD_FOR_KEY}"
# By when it was first due, so that an attempt that is run again keeps its turn.
_TURN = "priority DESC, scheduled_at, id"
_LINE = "queue, function, limits"
_IN_LINE_ORDER = f"ORDER BY limit_key, {_LINE}"
# Whether nobody may start what stands in a line, and when the first like it is due that is free.
_ABOUT_LINE = f"""EXISTS (SELECT 1 FROM @queues
            WHERE name IN (l.queue, '*') AND paused_at IS NOT NULL)
        OR EXISTS (SELECT 1 FROM @functions
            WHERE name = l.function AND status IN ('paused', 'deleted')),
        (SELECT run_at FROM @jobs WHERE limit_key = :key AND limit_key IS NOT NULL AND {_CLAIMABLE}
            AND queue = l.queue AND function = l.function
         ORDER BY limit_key, queue, function, run_at LIMIT 1)"""


def _sqlite_line(after: str) -> str:
    return f"""SELECT * FROM (SELECT {_LINE} FROM @jobs INDEXED BY duly_jobs_limit
        WHERE {_WAITS} AND {after} {_IN_LINE_ORDER} LIMIT 1)"""


# The lines in which jobs wait for a key, one index probe each, however many stand in them.
LINES = each(
    # One after the other, and in steps: see LANES.
    sqlite=f"""SELECT +l.queue, +l.function, +l.limits, {_ABOUT_LINE} FROM (
            {_sqlite_line("queue = :queue AND function = :function AND limits > :limits")}
            UNION ALL {_sqlite_line("queue = :queue AND function > :function")}
            UNION ALL {_sqlite_line("queue > :queue")} LIMIT 1) l""",
    postgres=f"""WITH RECURSIVE lines AS (
            (SELECT {_LINE} FROM @jobs WHERE {_WAITS} {_IN_LINE_ORDER} LIMIT 1)
            UNION ALL
            SELECT n.* FROM lines l CROSS JOIN LATERAL (
                SELECT {_LINE} FROM @jobs
                WHERE {_WAITS} AND ({_LINE}) > (l.queue, l.function, l.limits)
                {_IN_LINE_ORDER} LIMIT 1) n
        ) SELECT l.queue, l.function, l.limits, {_ABOUT_LINE} FROM lines l""",
)
# The first of each line. (Many lines at a time on PostgreSQL.) If the clock has stepped back since
# it was held, a job may not be due.
WAITERS = each(
    sqlite=f"""SELECT id, queue, function, limit_key, limits, priority, scheduled_at,
            args_bytes
        FROM @jobs INDEXED BY duly_jobs_limit
        WHERE {_WAITS} AND queue = :queue AND function = :function AND limits = :limits
            AND run_at <= :now AND {_IN_TIME}
        {_IN_LINE_ORDER}, {_TURN} LIMIT :limit""",
    postgres=f"""SELECT w.id::text, w.queue, w.function, limit_key, w.limits, priority,
            scheduled_at, size
        FROM unnest(:queues::text[], :functions::text[], :limits::text[])
            AS l (queue, function, limits)
        CROSS JOIN LATERAL (
            SELECT id, {_LINE}, limit_key, priority, scheduled_at, octet_length(args) AS size
            FROM @jobs
            WHERE {_WAITS} AND queue = l.queue AND function = l.function AND limits = l.limits
                AND run_at <= :now AND {_IN_TIME}
            {_IN_LINE_ORDER}, {_TURN} LIMIT :limit FOR UPDATE SKIP LOCKED) w""",
)
# The same for whoever only looks.
SEE_WAITERS = each(
    sqlite=WAITERS.sqlite, postgres=WAITERS.postgres.replace(" FOR UPDATE SKIP LOCKED", "")
)
ADMIT = each(
    sqlite="""UPDATE @jobs SET hold = NULL, run_at = max(run_at, :run_at)
        WHERE id IN (SELECT value FROM json_each(:ids))""",
    postgres="""UPDATE @jobs SET hold = NULL, run_at = greatest(run_at, :run_at)
        WHERE id = ANY(:ids::uuid[])""",
)


def _awaited_keys(jobs: str) -> str:
    after = f"SELECT min(limit_key) FROM {jobs} WHERE {_HELD_FOR_KEY}"
    return f"""WITH RECURSIVE awaited (key) AS (
            {after} AND limit_key > :after
            UNION ALL
            SELECT ({after} AND limit_key > awaited.key) FROM awaited WHERE awaited.key IS NOT NULL
        ) SELECT key FROM awaited WHERE key IS NOT NULL LIMIT 100"""


# Keys that somebody waits for, one index probe each; SQLite would rather read all that is held.
AWAITED_KEYS = each(
    sqlite=_awaited_keys("@jobs INDEXED BY duly_jobs_limit"), postgres=_awaited_keys("@jobs")
)

# SQLite only -------------------------------------------------------------------------------------

JOURNAL_MODE = both("PRAGMA journal_mode")

# PostgreSQL only ---------------------------------------------------------------------------------

SERVER_TIME = both("SELECT extract(epoch FROM clock_timestamp())::float8")

# For how long somebody has been writing whose writes nobody sees yet, in milliseconds.
LONGEST_WRITE = each(
    sqlite="SELECT 0",
    postgres="""SELECT coalesce(max(extract(epoch FROM clock_timestamp() - xact_start)), 0)::float8
            * 1000
        FROM pg_stat_activity
        WHERE datname = current_database() AND backend_xid IS NOT NULL""",
)
# For how long a transaction of anybody is open whom this role may look at, in milliseconds.
SERVER_STATE = each(
    sqlite="SELECT 0",
    postgres="""SELECT (extract(epoch FROM max(clock_timestamp() - xact_start) FILTER (
                WHERE datname = current_database() AND pid <> pg_backend_pid())) * 1000)::int8,
            count(*), current_setting('max_connections')::int8,
            (SELECT min(setting::int8) FROM pg_settings WHERE setting <> '0' AND name IN
                ('idle_in_transaction_session_timeout', 'transaction_timeout'))
        FROM pg_stat_activity WHERE backend_type = 'client backend'""",
)
# Each statement has to see what was committed before it, whatever the database's own default is.
BEGIN = b"BEGIN ISOLATION LEVEL READ COMMITTED"
# Here no statement sees what was committed since the first one of its transaction.
SNAPSHOT_LEVELS = ("repeatable read", "serializable")
# What statements have that are in no transaction.
DEFAULTS = both(
    "SELECT current_setting('synchronous_commit'), current_setting('default_transaction_isolation')"
)
# What the database, the role or the URL says; duly may have changed it for the session.
DEFAULT_ISOLATION = both(
    "SELECT reset_val FROM pg_settings WHERE name = 'default_transaction_isolation'"
)
CURRENT_XID = both("SELECT pg_current_xact_id()::text")
NOTIFY = both(_NOTIFY)
LISTEN = both("LISTEN duly")
LOCK_MIGRATIONS = both("SELECT pg_advisory_xact_lock(hashtext('duly.migrate'))")
CREATE_SCHEMA = both("CREATE SCHEMA IF NOT EXISTS @schema")
NO_NESTED_LOOPS = both("SET LOCAL enable_nestloop = off")
SHORT_LOCK_WAIT = both(f"SET LOCAL lock_timeout = '{LOCK_WAIT}'")
# A list is planned for the very values it asks for: most filters are met by few rows or by most.
SHORT_QUERY = both(
    """SELECT set_config('statement_timeout', '10s', true),
        set_config('plan_cache_mode', 'force_custom_plan', true)"""
)
