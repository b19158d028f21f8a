"""Tokens, and requests that may be repeated, in the store."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from duly.ids import FIRST_ID
from duly.model.access import RequestClaim, TokenRecord
from duly.store import access_statements as sql
from duly.store.schedules.audit import AuditEntry, audit
from duly.store.steps import Row

if TYPE_CHECKING:
    from duly.store.session import Session


def add_token(session: Session, record: TokenRecord, by: str | None, now: int) -> bool:
    if not session.run(sql.INSERT_TOKEN, msgspec.structs.asdict(record)):
        return False
    detail = {"name": record.name, "scopes": record.scopes, "owner": record.owner}
    audit(session, "token.create", f"token:{record.id}", by, detail, now)
    return True


def revoke_token(session: Session, token_id: str, by: str | None, now: int) -> bool:
    if not session.run(sql.REVOKE_TOKEN, {"id": token_id, "by": by, "now": now}):
        return False
    audit(session, "token.revoke", f"token:{token_id}", by, None, now)
    return True


def get_token(session: Session, token_id: str) -> TokenRecord | None:
    return _one(session.run(sql.GET_TOKEN, {"id": token_id}))


def token_by_digest(session: Session, digest: str) -> TokenRecord | None:
    return _one(session.run(sql.TOKEN_BY_DIGEST, {"digest": digest}))


def tokens(session: Session, owner: str | None, after: str, limit: int) -> list[TokenRecord]:
    given = {"owner": owner, "after": after or FIRST_ID, "limit": limit}
    return [TokenRecord(*row) for row in session.run(sql.TOKENS, given)]


def claim_request(session: Session, claim: RequestClaim) -> RequestClaim:
    """The claim of the first request under this key: this one, if there is none."""
    given = msgspec.structs.asdict(claim)
    given.pop("done")
    while not session.run(sql.CLAIM_REQUEST, given):
        rows = session.run(sql.REQUEST, {"actor": claim.actor, "key": claim.key})
        if rows:
            actor, key, fingerprint, target, expires_at, done = rows[0]
            return RequestClaim(actor, key, fingerprint, target, expires_at, bool(done))
        # It was given up in between.
    return claim


def request_done(session: Session, claim: RequestClaim) -> None:
    given = msgspec.structs.asdict(claim)
    given.pop("done")
    session.run(sql.REQUEST_DONE, given)


def give_up_request(session: Session, claim: RequestClaim) -> None:
    given = {"actor": claim.actor, "key": claim.key, "target": claim.target}
    session.run(sql.GIVE_UP_REQUEST, given)


def audit_page(
    session: Session,
    target: str | None,
    before: str | None,
    limit: int,
    actor: str | None,
    action: str | None,
) -> list[AuditEntry]:
    asked = {"target": target, "before": before, "actor": actor, "action": action}
    given: dict[str, Any] = {name: value for name, value in asked.items() if value is not None}
    statement = sql.audit_page(given)
    text = statement.sqlite if session.dialect == "sqlite" else statement.postgres
    return [AuditEntry(*row) for row in session.run_text(text, given | {"limit": limit})]


def _one(rows: list[Row]) -> TokenRecord | None:
    return TokenRecord(*rows[0]) if rows else None
