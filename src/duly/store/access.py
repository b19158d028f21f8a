"""API tokens and idempotent requests in the store."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, Any

import msgspec

from duly.ids import FIRST_ID, is_id
from duly.model.access import RequestClaim, TokenRecord
from duly.model.audit import AuditEntry
from duly.store.schedules.audit import audit
from duly.store.statements import Dialect, Statement, both, each
from duly.store.steps import Row

if TYPE_CHECKING:
    from duly.store.session import Session

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
# The request may have been given up in the meantime, by another call that was refused.
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

# An action, or every action in a group: `schedule` also matches `schedule.create`.
_OF_ACTION = {
    "sqlite": "substr(action || '.', 1, length(:action) + 1) = :action || '.'",
    # This range holds all of them, and a few others.
    "postgres": """action COLLATE "C" >= :action AND action COLLATE "C" < :action::text || '/'
            AND starts_with(action || '.', :action::text || '.')""",
}


def _audit_text(given: Collection[str]) -> Statement:
    """The statement that lists the audit log, newest first, with only the requested conditions."""

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


def add_token(session: Session, record: TokenRecord, by: str | None, now: int) -> bool:
    """Store a token, audited. Return False if a token with that id exists."""
    if not session.run(INSERT_TOKEN, msgspec.structs.asdict(record)):
        return False
    detail = {"name": record.name, "scopes": record.scopes, "owner": record.owner}
    audit(session, "token.create", f"token:{record.id}", by, detail, now)
    return True


def revoke_token(session: Session, token_id: str, by: str | None, now: int) -> bool:
    """Revoke a token, audited. Return False if it was already revoked."""
    if not is_id(token_id):
        return False
    if not session.run(REVOKE_TOKEN, {"id": token_id, "by": by, "now": now}):
        return False
    audit(session, "token.revoke", f"token:{token_id}", by, None, now)
    return True


def get_token(session: Session, token_id: str) -> TokenRecord | None:
    if not is_id(token_id):
        return None
    return _one(session.run(GET_TOKEN, {"id": token_id}))


def token_by_digest(session: Session, digest: str) -> TokenRecord | None:
    return _one(session.run(TOKEN_BY_DIGEST, {"digest": digest}))


def tokens(
    session: Session, owner: str | None, after: str | None = None, limit: int = 100
) -> list[TokenRecord]:
    """A page of tokens, oldest first; of every owner if `owner` is None."""
    if after is not None and not is_id(after):
        return []
    given = {"owner": owner, "after": after or FIRST_ID, "limit": limit}
    return [TokenRecord(*row) for row in session.run(TOKENS, given)]


def has_tokens(session: Session, now: int) -> bool:
    """Whether there is any usable token."""
    return bool(session.run(HAS_TOKENS, {"now": now}))


def use_token(session: Session, token_id: str, now: int) -> None:
    """Record when a token was last used."""
    session.run(USE_TOKEN, {"id": token_id, "now": now})


def claim_request(session: Session, claim: RequestClaim) -> RequestClaim:
    """The first request of this actor under this key. This one if there was none."""
    given = msgspec.structs.asdict(claim)
    given.pop("done")
    while not session.run(CLAIM_REQUEST, given):
        rows = session.run(REQUEST, {"actor": claim.actor, "key": claim.key})
        if rows:
            actor, key, fingerprint, target, expires_at, done = rows[0]
            return RequestClaim(actor, key, fingerprint, target, expires_at, bool(done))
        # It was given up in between.
    return claim


def request_done(session: Session, claim: RequestClaim) -> None:
    """Record what the request created."""
    given = msgspec.structs.asdict(claim)
    given.pop("done")
    session.run(REQUEST_DONE, given)


def give_up_request(session: Session, claim: RequestClaim) -> None:
    """Free the key for another request, unless this one completed."""
    given = {"actor": claim.actor, "key": claim.key, "target": claim.target}
    session.run(GIVE_UP_REQUEST, given)


def forget_requests(session: Session, now: int) -> int:
    """Delete up to 1,000 requests whose time for repeating is over. Return how many."""
    return len(session.run(FORGET_REQUESTS, {"now": now}))


def audit_page(
    session: Session,
    target: str | None,
    before: str | None,
    limit: int,
    *,
    actor: str | None = None,
    action: str | None = None,
) -> list[AuditEntry]:
    """Audit entries before a given one, newest first; of everything, or of one target.

    `action`: an action, or the first words of several: `schedule` also matches `schedule.create`.
    Raises QueryTooBroad if too many entries have other targets or actors.
    """
    if before is not None and not is_id(before):
        return []
    asked = {"target": target, "before": before, "actor": actor, "action": action}
    given: dict[str, Any] = {name: value for name, value in asked.items() if value is not None}
    statement = _audit_text(given)
    text = statement.sqlite if session.dialect == "sqlite" else statement.postgres
    return [AuditEntry(*row) for row in session.run_text(text, given | {"limit": limit})]


def _one(rows: list[Row]) -> TokenRecord | None:
    return TokenRecord(*rows[0]) if rows else None
