"""The statements behind health and metrics; otherwise as in statements.py.

Each of them looks something up in an index, or counts up to a limit along one.
"""

from __future__ import annotations

from duly.model.measure import MOST
from duly.store.statements import both, each

OLDEST_DUE = both("SELECT due_at FROM @schedules WHERE due_at IS NOT NULL ORDER BY due_at LIMIT 1")


def _in_lane(when: str) -> str:
    # In the order of the index, for a plan must not read the table for it.
    return f"""(SELECT count(*) FROM (SELECT 1 FROM @jobs
        WHERE state = 'pending' AND hold IS NULL
            AND queue = :queue AND priority = :priority AND {when}
        ORDER BY run_at, id LIMIT :limit) lane)"""


COUNT_LANE = both(f"SELECT {_in_lane('run_at <= :now')}, {_in_lane('run_at > :now')}")
RUNNING_BY_QUEUE = both(
    f"""SELECT queue, count(*) FROM (SELECT queue FROM @jobs WHERE worker_id IS NOT NULL
        ORDER BY worker_id LIMIT {MOST}) running GROUP BY queue"""
)
HELD_BY_QUEUE = both(
    f"""SELECT queue, count(*) FROM (SELECT queue FROM @jobs WHERE hold IS NOT NULL
        ORDER BY hold, function, id LIMIT {MOST}) held GROUP BY queue"""
)

_NEXT_FUNCTION = "SELECT function FROM @jobs WHERE token % 2 = 0{} ORDER BY function LIMIT 1"
# From each name to the next one along the index, however many jobs have the same.
WAITING_FUNCTIONS = both(
    f"""WITH RECURSIVE names (function) AS (
            SELECT ({_NEXT_FUNCTION.format("")})
            UNION ALL
            SELECT ({_NEXT_FUNCTION.format(" AND function > names.function")})
            FROM names WHERE names.function IS NOT NULL)
        SELECT function FROM names WHERE function IS NOT NULL LIMIT :limit"""
)


def _schedules(where: str, order: str) -> str:
    return f"""(SELECT count(*) FROM
        (SELECT 1 FROM @schedules {where} ORDER BY {order} LIMIT {MOST}) found)"""


COUNT_SCHEDULES = both(
    f"""SELECT {_schedules("WHERE due_at IS NOT NULL", "due_at, id")},
        {_schedules("WHERE parked_at IS NOT NULL", "parked_at")}, {_schedules("", "id")}"""
)

# In one order, so that two who add to the same counts do not wait for each other.
ADD_COUNTS = each(
    sqlite="""INSERT INTO @counters (name, labels, value)
        SELECT json_extract(value, '$[0]'), json_extract(value, '$[1]'),
            json_extract(value, '$[2]')
        FROM json_each(:rows) WHERE true
        ON CONFLICT (name, labels) DO UPDATE SET value = value + excluded.value""",
    postgres="""INSERT INTO @counters AS c (name, labels, value)
        SELECT * FROM unnest(:names::text[], :labels::text[], :counts::int8[])
            AS f (name, labels, value)
        ORDER BY f.name COLLATE "C", f.labels COLLATE "C"
        ON CONFLICT (name, labels) DO UPDATE SET value = c.value + excluded.value""",
)
READ_COUNTS = both("SELECT name, labels, value FROM @counters ORDER BY name, labels LIMIT 100000")
