"""The statements about tokens, and about requests that may be repeated; as in statements.py."""

from __future__ import annotations

from collections.abc import Collection

from duly.model.access import TokenRecord
from duly.store.statements import Dialect, Statement, both, each

_FIELDS = TokenRecord.__struct_fields__
_COLUMNS = ", ".join(_FIELDS)
_VALUES = ", ".join(f":{name}" for name in _FIELDS)
_READ = ", ".join("id::text" if name == "id" else name for name in _FIELDS)

INSERT_TOKEN = both(
    f"INSERT INTO @tokens ({_COLUMNS}) VALUES ({_VALUES}) ON CONFLICT DO NOTHING RETURNING 1"
)
GET_TOKEN = each(
    sqlite=f"SELECT {_COLUMNS} FROM @tokens WHERE id = :id",
    postgres=f"SELECT {_READ} FROM @tokens WHERE id = :id",
)
TOKEN_BY_DIGEST = each(
    sqlite=f"SELECT {_COLUMNS} FROM @tokens WHERE digest = :digest",
    postgres=f"SELECT {_READ} FROM @tokens WHERE digest = :digest",
)
TOKENS = each(
    sqlite=f"""SELECT {_COLUMNS} FROM @tokens WHERE id > :after
        AND (:owner IS NULL OR owner = :owner) ORDER BY id LIMIT :limit""",
    postgres=f"""SELECT {_READ} FROM @tokens WHERE id > :after::uuid
        AND (:owner::text IS NULL OR owner = :owner) ORDER BY tokens.id LIMIT :limit""",
)
REVOKE_TOKEN = both(
    """UPDATE @tokens SET revoked_at = :now, revoked_by = :by
        WHERE id = :id AND revoked_at IS NULL RETURNING 1"""
)
USE_TOKEN = both(
    """UPDATE @tokens SET last_used_at = :now
        WHERE id = :id AND (last_used_at IS NULL OR last_used_at < :now)"""
)
HAS_TOKENS = both(
    """SELECT 1 FROM @tokens WHERE revoked_at IS NULL
        AND (expires_at IS NULL OR expires_at > :now) LIMIT 1"""
)

CLAIM_REQUEST = both(
    """INSERT INTO @requests (actor, key, fingerprint, target, expires_at)
        VALUES (:actor, :key, :fingerprint, :target, :expires_at)
        ON CONFLICT (actor, key) DO NOTHING RETURNING 1"""
)
REQUEST = each(
    sqlite="""SELECT actor, key, fingerprint, target, expires_at, done FROM @requests
        WHERE actor = :actor AND key = :key""",
    postgres="""SELECT actor, key, fingerprint, target::text, expires_at, done FROM @requests
        WHERE actor = :actor AND key = :key""",
)
# It may have been given up meanwhile, by another that was refused.
REQUEST_DONE = both(
    """INSERT INTO @requests AS r (actor, key, fingerprint, target, expires_at, done)
        VALUES (:actor, :key, :fingerprint, :target, :expires_at, true)
        ON CONFLICT (actor, key) DO UPDATE SET done = true WHERE r.target = excluded.target"""
)
GIVE_UP_REQUEST = both(
    """DELETE FROM @requests
        WHERE actor = :actor AND key = :key AND target = :target AND NOT done"""
)
FORGET_REQUESTS = each(
    sqlite="""DELETE FROM @requests WHERE (actor, key) IN
        (SELECT actor, key FROM @requests WHERE expires_at <= :now LIMIT 1000) RETURNING 1""",
    postgres="""DELETE FROM @requests WHERE (actor, key) IN
        (SELECT actor, key FROM @requests WHERE expires_at <= :now LIMIT 1000
            FOR UPDATE SKIP LOCKED) RETURNING 1""",
)

# An action, or all that begin with it: schedule stands for schedule.create too.
_OF_ACTION = {
    "sqlite": "substr(action || '.', 1, length(:action) + 1) = :action || '.'",
    # Between these lie all of them, and a few others.
    "postgres": """action COLLATE "C" >= :action AND action COLLATE "C" < :action::text || '/'
            AND starts_with(action || '.', :action::text || '.')""",
}


def audit_page(given: Collection[str]) -> Statement:
    """The statement that lists the audit log, newest first; only what is asked for is in it."""

    def text(dialect: Dialect) -> str:
        terms = {
            "target": "target = :target",
            "actor": "actor = :actor",
            "action": _OF_ACTION[dialect],
            "before": "a.id < :before",
        }
        chosen = [term for name, term in terms.items() if name in given]
        where = f"WHERE {' AND '.join(chosen)}" if chosen else ""
        read = "id" if dialect == "sqlite" else "id::text"
        return f"""SELECT {read}, at, actor, action, target, detail FROM @audit a {where}
            ORDER BY a.id DESC LIMIT :limit"""

    return each(sqlite=text("sqlite"), postgres=text("postgres"))
