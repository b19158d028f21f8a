"""The statements about schedules, their ticks and calendars; otherwise as in statements.py."""

from __future__ import annotations

from duly.model.schedule import ScheduleRecord, TickKind, TickRecord
from duly.store.statements import DAY_MS, Statement, both, each

# Columns -----------------------------------------------------------------------------------------

_FIELDS = ScheduleRecord.__struct_fields__
_READ = each(
    sqlite=", ".join(f"s.{name}" for name in _FIELDS),
    postgres=", ".join(
        f"s.{name}::text" if name in ("id", "last_job_id") else f"s.{name}" for name in _FIELDS
    ),
)
_TICK_FIELDS = TickRecord.__struct_fields__
_TICK_TYPES = {"schedule_id": "uuid", "job_id": "uuid", "rotation_index": "int4"} | {
    "kind": "text",
    "outcome": "text",
    "reason": "text",
    "detail": "text",
    "dst_adjusted": "bool",
}
_TICK_COLUMNS = ", ".join(_TICK_FIELDS)
_TICK_PLACES = ", ".join(f"json_extract(value, '$[{n}]')" for n in range(len(_TICK_FIELDS)))
_TICK_ARRAYS = ", ".join(f":{name}::{_TICK_TYPES.get(name, 'int8')}[]" for name in _TICK_FIELDS)
_TICK_READ = each(
    sqlite=_TICK_COLUMNS,
    postgres=", ".join(
        f"{name}::text" if name in ("schedule_id", "job_id") else name for name in _TICK_FIELDS
    ),
)


def _of_schedules(columns: str, rest: str, *, sqlite_rest: str | None = None) -> Statement:
    return each(
        sqlite=f"SELECT {columns or _READ.sqlite} FROM @schedules s {sqlite_rest or rest}",
        postgres=f"SELECT {columns or _READ.postgres} FROM @schedules s {rest}",
    )


# The tick ----------------------------------------------------------------------------------------

# Zoned ones are left to those whose zone data is as new as that which computed them.
_FLOOR = "coalesce((SELECT value FROM @meta WHERE key = 'zone_data'), '')"
# And so are those of other apps to whoever has their signal hook; also a condition that looks at
# everything looks at the signal.
_ASKS = """(condition LIKE '%signal_rpc_result%' OR condition LIKE '%"":%')"""
_KNOWS_ZONES = each(
    sqlite=f"(NOT zoned OR :zone_data >= {_FLOOR})",
    postgres=f'(NOT zoned OR :zone_data::text COLLATE "C" >= {_FLOOR})',
)
_MAY_JUDGE = each(
    sqlite=f"""{_KNOWS_ZONES.sqlite}
        AND (:signals_for IS NULL OR app IN ('', :signals_for) OR {_ASKS} IS NOT TRUE)""",
    postgres=f"""{_KNOWS_ZONES.postgres}
        AND (:signals_for::text IS NULL OR app IN ('', :signals_for::text)
            OR {_ASKS} IS NOT TRUE)""",
)
_IN_ORDER = "ORDER BY due_at, s.id LIMIT :limit"
_DUE = each(
    sqlite=f"WHERE due_at <= :now AND {_MAY_JUDGE.sqlite} {_IN_ORDER}",
    postgres=f"WHERE due_at <= :now AND {_MAY_JUDGE.postgres} {_IN_ORDER}",
)

PEEK_DUE = _of_schedules("", _DUE.postgres, sqlite_rest=_DUE.sqlite)
LOCK_DUE = _of_schedules("", f"{_DUE.postgres} FOR UPDATE SKIP LOCKED", sqlite_rest=_DUE.sqlite)
# The same for a single one that is tried by itself.
_ONE_DUE = "WHERE s.id = :id AND due_at <= :now AND"
LOCK_ONE_DUE = _of_schedules(
    "",
    f"{_ONE_DUE} {_MAY_JUDGE.postgres} FOR UPDATE SKIP LOCKED",
    sqlite_rest=f"{_ONE_DUE} {_MAY_JUDGE.sqlite}",
)
_NEXT = "SELECT due_at FROM @schedules WHERE due_at IS NOT NULL AND"
NEXT_DUE = each(
    sqlite=f"{_NEXT} {_MAY_JUDGE.sqlite} ORDER BY due_at LIMIT 1",
    postgres=f"{_NEXT} {_MAY_JUDGE.postgres} ORDER BY due_at LIMIT 1",
)

INSERT_TICKS = each(
    sqlite=f"""INSERT INTO @ticks ({_TICK_COLUMNS})
        SELECT {_TICK_PLACES}
        FROM json_each(:rows) WHERE true
        ON CONFLICT DO NOTHING RETURNING schedule_id, kind, tick_at""",
    postgres=f"""INSERT INTO @ticks ({_TICK_COLUMNS}) SELECT * FROM unnest({_TICK_ARRAYS})
        ON CONFLICT DO NOTHING RETURNING schedule_id::text, kind, tick_at""",
)
# The job of a tick is one that was there before, for its function says that there is only one.
POINT_TICK = both(
    """UPDATE @ticks SET job_id = :job_id
        WHERE schedule_id = :schedule_id AND kind = :kind AND tick_at = :tick_at"""
)

ADVANCE = each(
    sqlite="""UPDATE @schedules SET next_tick_at = :next_tick_at, due_at = :due_at,
            rotation_index = :rotation_index, remaining = :remaining,
            last_tick_at = max(coalesce(:last_tick_at, last_tick_at),
                coalesce(last_tick_at, :last_tick_at)),
            last_dispatch_at = :last_dispatch_at,
            last_job_id = coalesce(:last_job_id, last_job_id),
            override = CASE WHEN :keep_override THEN override END
        WHERE id = :id""",
    postgres="""UPDATE @schedules s SET next_tick_at = f.next_tick_at, due_at = f.due_at,
            rotation_index = f.rotation_index, remaining = f.remaining,
            last_tick_at = greatest(f.last_tick_at, s.last_tick_at),
            last_dispatch_at = f.last_dispatch_at,
            last_job_id = coalesce(f.last_job_id, s.last_job_id),
            override = CASE WHEN f.keep_override THEN s.override END
        FROM unnest(:id::uuid[], :next_tick_at::int8[], :due_at::int8[], :rotation_index::int4[],
            :remaining::int4[], :last_tick_at::int8[], :last_dispatch_at::int8[],
            :last_job_id::uuid[], :keep_override::bool[])
            AS f (id, next_tick_at, due_at, rotation_index, remaining, last_tick_at,
                last_dispatch_at, last_job_id, keep_override)
        WHERE s.id = f.id AND s.id = ANY(:id::uuid[])""",
)
# Whoever has changed it meanwhile may have mended it.
PARK = both(
    """UPDATE @schedules SET parked_tick = coalesce(next_tick_at, parked_tick),
            next_tick_at = NULL, due_at = NULL, error = :error, parked_at = :now
        WHERE id = :id AND (due_at <= :now OR parked_at IS NOT NULL)"""
)

_PARKED = "parked_at IS NOT NULL AND enabled AND error LIKE 'UnknownFunction:%'"
# SQLite would rather look at every schedule, in the order of its functions or ids.
_AMONG_PARKED = "INDEXED BY duly_schedules_parked"
_MISSING = f"WHERE {_PARKED} LIMIT 1000"
MISSING_FUNCTIONS = each(
    sqlite=f"SELECT DISTINCT function FROM @schedules {_AMONG_PARKED} {_MISSING}",
    postgres=f"SELECT DISTINCT function FROM @schedules {_MISSING}",
)
LOCK_PARKED = _of_schedules(
    "",
    f"""WHERE {_PARKED} AND function = ANY(:functions::text[]) ORDER BY s.id LIMIT 100
        FOR UPDATE SKIP LOCKED""",
    sqlite_rest=f"""{_AMONG_PARKED} WHERE {_PARKED}
        AND function IN (SELECT value FROM json_each(:functions)) ORDER BY s.id LIMIT 100""",
)
REVIVE = both(
    """UPDATE @schedules SET next_tick_at = :next_tick_at, due_at = :due_at,
        override = :override, error = NULL, parked_at = NULL, parked_tick = NULL WHERE id = :id"""
)

# Zone data ---------------------------------------------------------------------------------------

# Only ever to a later version.
RAISE_META = each(
    sqlite="""INSERT INTO @meta AS m (key, value) VALUES (:key, :value)
        ON CONFLICT (key) DO UPDATE SET value = excluded.value WHERE m.value < excluded.value""",
    postgres="""INSERT INTO @meta AS m (key, value) VALUES (:key, :value)
        ON CONFLICT (key) DO UPDATE SET value = excluded.value
        WHERE m.value COLLATE "C" < excluded.value""",
)
HOLD_META = each(
    sqlite="SELECT value FROM @meta WHERE key = :key",
    postgres="SELECT value FROM @meta WHERE key = :key FOR SHARE",
)
_ZONED = "zoned AND (next_tick_at IS NOT NULL OR enabled AND error LIKE 'UnknownZone:%')"
LOCK_ZONED = _of_schedules(
    "",
    f"WHERE {_ZONED} AND s.id > :after::uuid ORDER BY s.id LIMIT 100 FOR UPDATE",
    sqlite_rest=f"WHERE {_ZONED} AND s.id > :after ORDER BY s.id LIMIT 100",
)
MOVE_TICK = both(
    """UPDATE @schedules SET next_tick_at = :next_tick_at, due_at = :due_at, override = :override
        WHERE id = :id"""
)

# Schedules that somebody has moved on, or woken, at a time that is still to come: that clock was
# ahead, or this one is behind.
_AHEAD = """enabled AND parked_at IS NULL AND coalesce(remaining, 1) > 0 AND (awake_at > :now
    OR last_tick_at > :now AND EXISTS (SELECT 1 FROM @ticks t
        WHERE t.schedule_id = s.id AND t.tick_at > :now AND t.decided_at > :now))"""
AHEAD = each(
    sqlite=f"SELECT id FROM @schedules s WHERE {_KNOWS_ZONES.sqlite} AND {_AHEAD}",
    postgres=f"SELECT id::text FROM @schedules s WHERE {_KNOWS_ZONES.postgres} AND {_AHEAD}",
)
LOCK_AHEAD = _of_schedules(
    "",
    f"WHERE s.id = ANY(:ids::uuid[]) AND {_AHEAD} ORDER BY s.id FOR UPDATE",
    sqlite_rest=f"WHERE s.id IN (SELECT value FROM json_each(:ids)) AND {_AHEAD} ORDER BY s.id",
)

# What a run beside the trigger leaves behind; if it was the last one, nothing is to come.
NOTE_RUN = both(
    """UPDATE @schedules SET rotation_index = :rotation_index, remaining = :remaining,
            last_dispatch_at = :last_dispatch_at, last_job_id = :last_job_id,
            filled_until = :filled_until,
            next_tick_at = CASE WHEN :over THEN NULL ELSE next_tick_at END,
            due_at = CASE WHEN :over THEN NULL ELSE due_at END
        WHERE id = :id"""
)

# Facts -------------------------------------------------------------------------------------------


def _one_job(state: str, schedule: str, column: str) -> str:
    return f"""(SELECT {column} FROM @jobs WHERE trigger = 'schedule' AND actor = {schedule}
        AND state = '{state}' ORDER BY actor, state, @jobs.id LIMIT 1)"""


IN_FLIGHT = each(
    sqlite=f"""SELECT value, {_one_job("pending", "value", "id")},
        {_one_job("running", "value", "id")} FROM json_each(:ids)""",
    postgres=f"""SELECT s.id, {_one_job("pending", "s.id", "id::text")},
        {_one_job("running", "s.id", "id::text")} FROM unnest(:ids::text[]) AS s (id)""",
)
JOBS_OF = each(
    sqlite="SELECT id FROM @jobs WHERE trigger = 'schedule' AND actor = :id",
    postgres="SELECT id::text FROM @jobs WHERE trigger = 'schedule' AND actor = :id",
)
# What was dispatched within the window of a budget: never more than the budget allows.
DISPATCHED = each(
    sqlite="""SELECT t.schedule_id, t.tick_at FROM json_each(:rows) s
        JOIN @ticks t ON t.schedule_id = json_extract(s.value, '$[0]')
            AND t.tick_at > json_extract(s.value, '$[1]')
        WHERE t.outcome = 'dispatched' AND t.kind IN ('slot', 'manual')""",
    postgres="""SELECT t.schedule_id::text, t.tick_at
        FROM unnest(:ids::uuid[], :since::int8[]) AS s (id, since)
        CROSS JOIN LATERAL (SELECT schedule_id, tick_at FROM @ticks
            WHERE schedule_id = s.id AND kind IN ('slot', 'manual') AND tick_at > s.since
                AND outcome = 'dispatched') t""",
)
COSTS = each(
    sqlite="""SELECT c.schedule_id, c.tick_at, c.amount FROM json_each(:rows) s
        JOIN @costs c ON c.schedule_id = json_extract(s.value, '$[0]')
            AND c.tick_at > json_extract(s.value, '$[1]')""",
    postgres="""SELECT c.schedule_id::text, c.tick_at, c.amount
        FROM unnest(:ids::uuid[], :since::int8[]) AS s (id, since)
        CROSS JOIN LATERAL (SELECT schedule_id, tick_at, amount FROM @costs
            WHERE schedule_id = s.id AND tick_at > s.since) c""",
)


def _cost(schedule: str) -> str:
    """What an attempt has cost so far; nothing if its job is of no schedule.

    A body that was canceled or timed out goes on spending until it has ended.
    """
    found = " UNION ALL ".join(
        f"SELECT {schedule}, scheduled_at, id FROM {table} WHERE id = :id AND trigger = 'schedule'"
        for table in ("@jobs", "@history")
    )
    return f"""INSERT INTO @costs (schedule_id, tick_at, job_id, token, amount)
        SELECT f.*, :token, :amount FROM ({found}) f WHERE true
        ON CONFLICT (schedule_id, tick_at, job_id, token) DO UPDATE SET amount = excluded.amount"""


SET_COST = each(sqlite=_cost("actor"), postgres=_cost("actor::uuid"))
# Where a row of a run can stand: at this instant, or at the first one after it that is free.
FREE_INSTANT = both(
    """SELECT min(t.tick_at) + 1 FROM @ticks t
        WHERE t.schedule_id = :id AND t.kind = 'manual' AND t.tick_at >= :now
        AND EXISTS (SELECT 1 FROM @ticks taken WHERE taken.schedule_id = :id
            AND taken.kind = 'manual' AND taken.tick_at = :now)
        AND NOT EXISTS (SELECT 1 FROM @ticks behind WHERE behind.schedule_id = :id
            AND behind.kind = 'manual' AND behind.tick_at = t.tick_at + 1)"""
)
TAKEN_SLOTS = both(
    """SELECT tick_at FROM @ticks WHERE schedule_id = :id AND kind = 'slot'
        AND tick_at BETWEEN :since AND :until"""
)
# Days of which ticks are gone: whether a slot was dispatched then, nobody can tell any more.
FORGOTTEN = both("SELECT max(day) FROM @days WHERE schedule_id = :id AND dispatched + skipped > 0")
ATTACHED = each(
    sqlite="""SELECT id, definition FROM @calendars
        WHERE id IN (SELECT value FROM json_each(:ids))""",
    postgres="SELECT id::text, definition FROM @calendars WHERE id = ANY(:ids::uuid[])",
)

COUNTED = 10_000


def _newest(table: str, function: str) -> str:
    return " UNION ALL ".join(
        f"""SELECT * FROM (SELECT id, state, result FROM {table}
            WHERE function = {function} AND state = '{state}' ORDER BY {table}.id DESC LIMIT 1)
            {state}"""
        for state in ("succeeded", "failed", "canceled")
    )


def _latest(function: str) -> str:
    """The finished job of a function that was created last; retention keeps it for ever."""
    return f"""SELECT state, result, newest.id FROM ({_newest("@history", function)}
        UNION ALL {_newest("@kept", function)}) newest ORDER BY id DESC LIMIT 1"""


LATEST_FINISHED = both(_latest(":function"))
# A function was renamed: its jobs may be stored under each of its names.
NAMES_OF = both(
    """SELECT name FROM @functions WHERE name <> :function AND (alias_of = :function
        OR coalesce(alias_of, name) = (SELECT alias_of FROM @functions WHERE name = :function))"""
)


def _count(table: str, where: str) -> str:
    return f"""(SELECT count(*) FROM (SELECT 1 FROM {table} WHERE function = :function
        AND created_at > :since AND {where} LIMIT {COUNTED}) counted)"""


# An id holds the time at which its job was created, or a later one: it bounds the search, and the
# time itself decides. Those that wait are read in the order of their index, or PostgreSQL may look
# them all up first; the few that run are found by their workers, or SQLite may read all that wait.
LAST_DAY = both(
    f"""SELECT {_count("@history", "state = 'succeeded' AND id >= :since_id")},
        {_count("@history", "state = 'failed' AND id >= :since_id")},
        {_count("@history", "state = 'canceled' AND id >= :since_id")},
        {_count("@jobs", "token % 2 = 0 AND id >= :since_id ORDER BY id")},
        {_count("@jobs", "worker_id IS NOT NULL")}"""
)

# The kill switch ---------------------------------------------------------------------------------

EVERYTHING = "*"
KILL_SWITCH = both(
    "SELECT paused_by, paused_at, note FROM @queues WHERE name = '*' AND paused_at IS NOT NULL"
)

# Expectations ------------------------------------------------------------------------------------

_TO_CHECK = "WHERE expect_at <= :now ORDER BY expect_at LIMIT :limit"
LOCK_EXPECTING = _of_schedules("", f"{_TO_CHECK} FOR UPDATE SKIP LOCKED", sqlite_rest=_TO_CHECK)
NEXT_CHECK = both(
    "SELECT expect_at FROM @schedules WHERE expect_at IS NOT NULL ORDER BY expect_at LIMIT 1"
)
CHECKED = both(
    """UPDATE @schedules SET expect_at = :expect_at, expect_tick = :expect_tick,
            last_success_at = :last_success_at, late = :late
        WHERE id = :id"""
)
# An id holds the time at which its job was created, or a later one.
_OWN_SUCCESSES = """scheduled_at, completed_at FROM @history
        WHERE trigger = 'schedule' AND actor = :id AND id >= :since_id AND state = 'succeeded'
        ORDER BY @history.id DESC LIMIT 10000"""
SUCCESSES = each(
    sqlite=f"SELECT id, {_OWN_SUCCESSES}", postgres=f"SELECT id::text, {_OWN_SUCCESSES}"
)
# What the jobs of ticks came to, whoever made them: when they succeeded; empty if they may still.
SUCCESSES_AMONG = each(
    sqlite="""SELECT id, completed_at FROM @history
        WHERE id IN (SELECT value FROM json_each(:ids)) AND state = 'succeeded'
        UNION ALL SELECT id, NULL FROM @jobs WHERE id IN (SELECT value FROM json_each(:ids))""",
    postgres="""SELECT id::text, completed_at FROM @history
        WHERE id = ANY(:ids::uuid[]) AND state = 'succeeded'
        UNION ALL SELECT id::text, NULL FROM @jobs WHERE id = ANY(:ids::uuid[])""",
)

# Schedules as data -------------------------------------------------------------------------------

_VALUES = ", ".join(f":{name}" for name in _FIELDS)
INSERT_SCHEDULE = both(
    f"INSERT INTO @schedules ({', '.join(_FIELDS)}) VALUES ({_VALUES})"
    " ON CONFLICT DO NOTHING RETURNING 1"
)
REPLACE_SCHEDULE = both(
    f"""UPDATE @schedules SET {", ".join(f"{name} = :{name}" for name in _FIELDS[1:])}
        WHERE id = :id RETURNING 1"""
)
DELETE_SCHEDULE = both("DELETE FROM @schedules WHERE id = :id RETURNING 1")
DELETE_SCHEDULES_OF = each(
    sqlite=f"""DELETE FROM @schedules
        WHERE function IN (SELECT value FROM json_each(:functions))
        RETURNING {", ".join(_FIELDS)}""",
    postgres=f"""DELETE FROM @schedules s
        WHERE function = ANY(:functions::text[]) RETURNING {_READ.postgres}""",
)
GET_SCHEDULE = _of_schedules("", "WHERE s.id = :id")
LOCK_SCHEDULE = _of_schedules("", "WHERE s.id = :id FOR UPDATE", sqlite_rest="WHERE s.id = :id")
FIND_SCHEDULE = _of_schedules("", "WHERE app = :app AND owner = :owner AND key = :key")
IS_SCHEDULED = each(
    sqlite="""SELECT 1 FROM @schedules
        WHERE function IN (SELECT value FROM json_each(:functions)) LIMIT 1""",
    postgres="SELECT 1 FROM @schedules WHERE function = ANY(:functions::text[]) LIMIT 1",
)
# From one function to the next, however many schedules each has.
SCHEDULED_FUNCTIONS = both(
    """WITH RECURSIVE found (function) AS (
            SELECT min(function) FROM @schedules
            UNION ALL
            SELECT (SELECT min(function) FROM @schedules WHERE function > found.function)
            FROM found WHERE found.function IS NOT NULL)
        SELECT function FROM found WHERE function IS NOT NULL"""
)

# Schedules that code declares ---------------------------------------------------------------------

# Whoever applies a set holds the row of its app until the transaction ends.
LOCK_DECLARATIONS = both(
    """INSERT INTO @declarations AS d (app, seen) VALUES (:app, '')
        ON CONFLICT (app) DO UPDATE SET seen = d.seen RETURNING seen"""
)
DECLARATIONS = both("SELECT seen FROM @declarations WHERE app = :app")
NOTE_DECLARATIONS = both("UPDATE @declarations SET seen = :seen WHERE app = :app")
_DECLARED = "WHERE app = :app ORDER BY s.id"
DECLARED = _of_schedules("", _DECLARED)
LOCK_DECLARED = _of_schedules("", f"{_DECLARED} FOR UPDATE", sqlite_rest=_DECLARED)

_SCHEDULE_TERMS = {
    "app": "app = :app",
    "owner": "owner = :owner",
    "function": "function = :function",
    "enabled": "enabled = :enabled",
    "calendar": "calendar = :calendar",
    "after_id": "s.id > :after_id",
    "due_before": "due_at < :due_before",
}
_STATUS_TERMS = {
    "enabled": "due_at IS NOT NULL",
    "disabled": "NOT enabled AND orphaned_at IS NULL",
    "parked": "parked_at IS NOT NULL AND enabled AND orphaned_at IS NULL",
    "orphaned": "orphaned_at IS NOT NULL",
    "ended": "enabled AND next_tick_at IS NULL AND parked_at IS NULL AND orphaned_at IS NULL",
    "late": "expect_at IS NOT NULL AND late IS NOT NULL",
}
_SEARCHED = each(
    sqlite="(instr(lower(key), :search) > 0 OR instr(lower(function), :search) > 0)",
    postgres="(strpos(lower(key), :search) > 0 OR strpos(lower(function), :search) > 0)",
)


def list_schedules(given: dict[str, object]) -> Statement:
    """The statement that lists schedules; only what is asked for is in it.

    Oldest first; those that are due by a time in the order in which they are.
    """
    terms = [term for name, term in _SCHEDULE_TERMS.items() if name in given]
    if "parked" in given:
        terms.append("parked_at IS NOT NULL" if given["parked"] else "parked_at IS NULL")
    if "status" in given:
        terms.append(_STATUS_TERMS[str(given["status"])])
    order = "s.id"
    if "due_before" in given:
        order = "due_at, s.id"
        if "after_due" in given:
            terms.remove(_SCHEDULE_TERMS["after_id"])
            terms.append("(due_at, s.id) > (:after_due, :after_id)")
    searched = "search" in given

    def rest(term: str) -> str:
        all_terms = [*terms, term] if searched else terms
        where = "WHERE " + " AND ".join(all_terms) if all_terms else ""
        return f"{where} ORDER BY {order} LIMIT :limit"

    return _of_schedules("", rest(_SEARCHED.postgres), sqlite_rest=rest(_SEARCHED.sqlite))


# Calendars ---------------------------------------------------------------------------------------

_CALENDAR = each(
    sqlite="id, owner, name, definition, version, created_at, updated_at",
    postgres="id::text, owner, name, definition, version, created_at, updated_at",
)


def _of_calendars(rest: str, *, sqlite_rest: str | None = None) -> Statement:
    return each(
        sqlite=f"SELECT {_CALENDAR.sqlite} FROM @calendars c {sqlite_rest or rest}",
        postgres=f"SELECT {_CALENDAR.postgres} FROM @calendars c {rest}",
    )


INSERT_CALENDAR = both(
    """INSERT INTO @calendars (id, owner, name, definition, version, created_at, updated_at)
        VALUES (:id, :owner, :name, :definition, :version, :created_at, :updated_at)
        ON CONFLICT DO NOTHING RETURNING 1"""
)
REPLACE_CALENDAR = both(
    """UPDATE @calendars SET owner = :owner, name = :name, definition = :definition,
            version = :version, created_at = :created_at, updated_at = :updated_at
        WHERE id = :id"""
)
DELETE_CALENDAR = both("DELETE FROM @calendars WHERE id = :id")
GET_CALENDAR = _of_calendars("WHERE c.id = :id")
LOCK_CALENDAR = _of_calendars("WHERE c.id = :id FOR UPDATE", sqlite_rest="WHERE c.id = :id")
CALENDAR_NAMED = _of_calendars("WHERE owner = :owner AND name = :name")
# A calendar that a schedule is about to use: it is neither changed nor removed until then.
HOLD_CALENDAR = each(
    sqlite="SELECT 1 FROM @calendars WHERE id = :id",
    postgres="SELECT 1 FROM @calendars WHERE id = :id FOR SHARE",
)
CALENDARS = each(
    sqlite=f"""SELECT {_CALENDAR.sqlite} FROM @calendars c
        WHERE (:owner IS NULL OR owner = :owner) AND id > :after ORDER BY c.id LIMIT :limit""",
    postgres=f"""SELECT {_CALENDAR.postgres} FROM @calendars c
        WHERE (:owner::text IS NULL OR owner = :owner) AND c.id > :after::uuid
        ORDER BY c.id LIMIT :limit""",
)
IN_USE = both("SELECT DISTINCT calendar FROM @schedules WHERE calendar IS NOT NULL")
_ATTACHED_TO = "WHERE calendar = :calendar AND s.id > :after ORDER BY s.id LIMIT 100"
LOCK_ATTACHED = _of_schedules(
    "", _ATTACHED_TO.replace(":after", ":after::uuid") + " FOR UPDATE", sqlite_rest=_ATTACHED_TO
)
DETACH_ALL = both(
    """UPDATE @schedules SET calendar = NULL, version = version + 1, updated_at = :now
        WHERE calendar = :id RETURNING 1"""
)
MOVE_DUE = both("UPDATE @schedules SET due_at = :due_at WHERE id = :id AND due_at IS NOT NULL")

# The ledger --------------------------------------------------------------------------------------


def list_ticks(given: dict[str, object]) -> Statement:
    """The statement that lists the ticks of a schedule, newest first.

    The newest ones of each kind, which stand together in the ledger, and of these the newest.
    """
    terms = {
        "before": "AND tick_at < :before",
        "after": "AND tick_at >= :after",
        "outcome": "AND outcome = :outcome",
        "reason": "AND reason = :reason",
    }
    where = " ".join(term for name, term in terms.items() if name in given)

    def newest(columns: str) -> str:
        kinds = " UNION ALL ".join(
            f"""SELECT * FROM (SELECT {columns} FROM @ticks
                WHERE schedule_id = :id AND kind = '{kind}' {where}
                ORDER BY tick_at DESC LIMIT :limit) {kind}"""
            for kind in TickKind
        )
        return f"{kinds} ORDER BY tick_at DESC, kind LIMIT :limit"

    return each(sqlite=newest(_TICK_READ.sqlite), postgres=newest(_TICK_READ.postgres))


# Retention walks from schedule to schedule, one index probe each. One that still exists keeps its
# newest hundred, of either kind.


def _in_ledger(columns: str, first: str, following: str) -> str:
    return f"""WITH RECURSIVE listed (id, n) AS (
            SELECT ({first}), 1
            UNION ALL
            SELECT ({following}), n + 1 FROM listed WHERE listed.id IS NOT NULL AND n < 200
        ) SELECT {columns} FROM listed LEFT JOIN @schedules s ON s.id = listed.id
        WHERE listed.id IS NOT NULL ORDER BY listed.id"""


IN_LEDGER = each(
    sqlite=_in_ledger(
        "listed.id, s.policies",
        "SELECT min(schedule_id) FROM @ticks WHERE schedule_id > :after",
        "SELECT min(schedule_id) FROM @ticks WHERE schedule_id > listed.id",
    ),
    postgres=_in_ledger(
        "listed.id::text, s.policies",
        "SELECT schedule_id FROM @ticks WHERE schedule_id > :after ORDER BY schedule_id LIMIT 1",
        "SELECT schedule_id FROM @ticks WHERE schedule_id > listed.id ORDER BY schedule_id LIMIT 1",
    ),
)
HUNDREDTH = both(
    """SELECT tick_at FROM @ticks WHERE schedule_id = :id AND kind = :kind
        ORDER BY tick_at DESC LIMIT 1 OFFSET 99"""
)
# Where a batch ends, if there are more than fit into one.
END_OF_BATCH = both(
    """SELECT tick_at FROM @ticks WHERE schedule_id = :id AND kind = :kind AND tick_at < :before
        ORDER BY tick_at LIMIT 1 OFFSET :most"""
)
HAS_OLD = both(
    """SELECT 1 FROM @ticks WHERE schedule_id = :id AND kind = :kind AND tick_at < :before
        LIMIT 1"""
)
HAS_OLD_COSTS = both("SELECT 1 FROM @costs WHERE schedule_id = :id AND tick_at < :before LIMIT 1")
_OLD = "schedule_id = :id AND kind = :kind AND tick_at < :before"


def _roll_up_ticks(source: str) -> str:
    return f"""INSERT INTO @days AS d (schedule_id, day, dispatched, skipped, missed)
        SELECT schedule_id, tick_at / {DAY_MS},
            sum(CASE WHEN outcome = 'dispatched' THEN 1 ELSE 0 END),
            sum(CASE WHEN outcome = 'skipped' THEN 1 ELSE 0 END),
            sum(CASE WHEN outcome = 'missed' THEN count ELSE 0 END)
        FROM {source} GROUP BY schedule_id, tick_at / {DAY_MS}
        ON CONFLICT (schedule_id, day) DO UPDATE SET
            dispatched = d.dispatched + excluded.dispatched,
            skipped = d.skipped + excluded.skipped, missed = d.missed + excluded.missed"""


ROLL_UP_TICKS = both(_roll_up_ticks(f"@ticks WHERE {_OLD}"))
# In PostgreSQL another janitor may be at the same ticks: what is counted is what is removed.
FORGET_TICKS = each(
    sqlite=f"DELETE FROM @ticks WHERE {_OLD} RETURNING 1",
    postgres=f"""WITH gone AS (DELETE FROM @ticks WHERE {_OLD} RETURNING *),
        counted AS ({_roll_up_ticks("gone")})
        SELECT 1 FROM gone""",
)
FORGET_COSTS = both("DELETE FROM @costs WHERE schedule_id = :id AND tick_at < :before")

# The jobs of a schedule leave history: how they ended is added to the day of their tick.


def _roll_up_jobs(schedule: str, which: str) -> str:
    def ended(state: str) -> str:
        return f"sum(CASE WHEN state = '{state}' THEN 1 ELSE 0 END)"

    return f"""INSERT INTO @days AS d (schedule_id, day, succeeded, failed, canceled)
        SELECT {schedule}, scheduled_at / {DAY_MS},
            {ended("succeeded")}, {ended("failed")}, {ended("canceled")}
        FROM @history WHERE {which} AND trigger = 'schedule'
        GROUP BY actor, scheduled_at / {DAY_MS}
        ON CONFLICT (schedule_id, day) DO UPDATE SET
            succeeded = d.succeeded + excluded.succeeded, failed = d.failed + excluded.failed,
            canceled = d.canceled + excluded.canceled"""


ROLL_UP_JOBS = each(
    sqlite=_roll_up_jobs("actor", "id IN (SELECT value FROM json_each(:ids))"),
    postgres=_roll_up_jobs(
        "actor::uuid",
        "bucket = :bucket AND completed_at < :cutoff AND actor ~ '^[0-9a-f-]{36}$'",
    ),
)
DAYS_OF = both(
    """SELECT day, dispatched, skipped, missed, succeeded, failed, canceled FROM @days
        WHERE schedule_id = :id ORDER BY day"""
)

# Audit -------------------------------------------------------------------------------------------

AUDIT = both(
    "INSERT INTO @audit (id, at, actor, action, target, detail)"
    " VALUES (:id, :at, :actor, :action, :target, :detail)"
)
AUDIT_DETAIL = both("SELECT detail FROM @audit WHERE id = :id")
AUDIT_OF = each(
    sqlite="""SELECT id, at, actor, action, target, detail FROM @audit
        WHERE target = :target ORDER BY id DESC LIMIT :limit""",
    postgres="""SELECT id::text, at, actor, action, target, detail FROM @audit
        WHERE target = :target ORDER BY audit.id DESC LIMIT :limit""",
)
# As many as one looks at to find some of them.
AUDITED_SLOTS = both(
    """SELECT at, detail FROM @audit WHERE target = :target AND action = 'schedule_slot_exists'
        ORDER BY id DESC LIMIT 1000"""
)
