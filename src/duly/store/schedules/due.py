"""Finds due schedules that a ticker may decide."""

from __future__ import annotations

from duly.model.schedule import ScheduleRecord
from duly.store.schedules.rows import of_schedules, schedule_of
from duly.store.session import Session
from duly.store.statements import each

# Zoned schedules are left to tickers with zone data at least as new as that used to compute them.
_FLOOR = "coalesce((SELECT value FROM @meta WHERE key = 'zone_data'), '')"
# Schedules of other apps that need a signal are left to tickers with their signal hook. A condition
# on the whole document also looks at the signal.
_ASKS = """(condition LIKE '%signal_rpc_result%' OR condition LIKE '%"":%')"""
KNOWS_ZONES = each(
    sqlite=f"(NOT zoned OR :zone_data >= {_FLOOR})",
    postgres=f'(NOT zoned OR :zone_data::text COLLATE "C" >= {_FLOOR})',
)
_MAY_JUDGE = each(
    sqlite=f"""{KNOWS_ZONES.sqlite}
        AND (:signals_for IS NULL OR app IN ('', :signals_for) OR {_ASKS} IS NOT TRUE)""",
    postgres=f"""{KNOWS_ZONES.postgres}
        AND (:signals_for::text IS NULL OR app IN ('', :signals_for::text)
            OR {_ASKS} IS NOT TRUE)""",
)
_IN_ORDER = "ORDER BY due_at, s.id LIMIT :limit"
_DUE = each(
    sqlite=f"WHERE due_at <= :now AND {_MAY_JUDGE.sqlite} {_IN_ORDER}",
    postgres=f"WHERE due_at <= :now AND {_MAY_JUDGE.postgres} {_IN_ORDER}",
)
PEEK_DUE = of_schedules("", _DUE.postgres, sqlite_rest=_DUE.sqlite)
LOCK_DUE = of_schedules("", f"{_DUE.postgres} FOR UPDATE SKIP LOCKED", sqlite_rest=_DUE.sqlite)
# The same for a single schedule that is retried by itself.
_ONE_DUE = "WHERE s.id = :id AND due_at <= :now AND"
LOCK_ONE_DUE = of_schedules(
    "",
    f"{_ONE_DUE} {_MAY_JUDGE.postgres} FOR UPDATE SKIP LOCKED",
    sqlite_rest=f"{_ONE_DUE} {_MAY_JUDGE.sqlite}",
)
_NEXT = "SELECT due_at FROM @schedules WHERE due_at IS NOT NULL AND"
NEXT_DUE = each(
    sqlite=f"{_NEXT} {_MAY_JUDGE.sqlite} ORDER BY due_at LIMIT 1",
    postgres=f"{_NEXT} {_MAY_JUDGE.postgres} ORDER BY due_at LIMIT 1",
)


def due_schedules(
    session: Session, now: int, limit: int, *, zone_data: str, signals_for: str | None = None
) -> list[ScheduleRecord]:
    """The schedules that are due, oldest first.

    Zoned ones only if this zone data is at least as new as the version that `take_zone_data`
    recorded. With `signals_for`, schedules of other apps that need a signal are left to those apps.
    """
    where = {"now": now, "limit": limit, "zone_data": zone_data, "signals_for": signals_for}
    return [schedule_of(row) for row in session.run(PEEK_DUE, where)]


def next_due(session: Session, *, zone_data: str, signals_for: str | None = None) -> int | None:
    """When the next schedule is due that a ticker with this zone data may process."""
    rows = session.run(NEXT_DUE, {"zone_data": zone_data, "signals_for": signals_for})
    return rows[0][0] if rows else None
