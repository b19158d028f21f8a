"""Tokens, and requests that may be repeated, in the store."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from duly.ids import FIRST_ID, is_id
from duly.model.access import RequestClaim, TokenRecord
from duly.store import access_statements as sql
from duly.store.schedules.audit import AuditEntry, audit
from duly.store.steps import Row

if TYPE_CHECKING:
    from duly.store.session import Session


def add_token(session: Session, record: TokenRecord, by: str | None, now: int) -> bool:
    """Store a token, audited; False if there is one of that id."""
    if not session.run(sql.INSERT_TOKEN, msgspec.structs.asdict(record)):
        return False
    detail = {"name": record.name, "scopes": record.scopes, "owner": record.owner}
    audit(session, "token.create", f"token:{record.id}", by, detail, now)
    return True


def revoke_token(session: Session, token_id: str, by: str | None, now: int) -> bool:
    """Let nobody use it any more, audited; False if that was so already."""
    if not is_id(token_id):
        return False
    if not session.run(sql.REVOKE_TOKEN, {"id": token_id, "by": by, "now": now}):
        return False
    audit(session, "token.revoke", f"token:{token_id}", by, None, now)
    return True


def get_token(session: Session, token_id: str) -> TokenRecord | None:
    if not is_id(token_id):
        return None
    return _one(session.run(sql.GET_TOKEN, {"id": token_id}))


def token_by_digest(session: Session, digest: str) -> TokenRecord | None:
    return _one(session.run(sql.TOKEN_BY_DIGEST, {"digest": digest}))


def tokens(
    session: Session, owner: str | None, after: str | None = None, limit: int = 100
) -> list[TokenRecord]:
    """A page of them, oldest first; of all owners if it is None."""
    if after is not None and not is_id(after):
        return []
    given = {"owner": owner, "after": after or FIRST_ID, "limit": limit}
    return [TokenRecord(*row) for row in session.run(sql.TOKENS, given)]


def has_tokens(session: Session, now: int) -> bool:
    """Whether anybody could use one."""
    return bool(session.run(sql.HAS_TOKENS, {"now": now}))


def use_token(session: Session, token_id: str, now: int) -> None:
    """Note when it was used last."""
    session.run(sql.USE_TOKEN, {"id": token_id, "now": now})


def claim_request(session: Session, claim: RequestClaim) -> RequestClaim:
    """What is known of the first request of this actor under this key: this one, if none."""
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
    """Remember that what the request makes was made."""
    given = msgspec.structs.asdict(claim)
    given.pop("done")
    session.run(sql.REQUEST_DONE, given)


def give_up_request(session: Session, claim: RequestClaim) -> None:
    """Let the key be used for another request, unless this one was done."""
    given = {"actor": claim.actor, "key": claim.key, "target": claim.target}
    session.run(sql.GIVE_UP_REQUEST, given)


def forget_requests(session: Session, now: int) -> int:
    """Forget up to 1,000 requests that nobody may repeat any more; how many."""
    return len(session.run(sql.FORGET_REQUESTS, {"now": now}))


def audit_page(
    session: Session,
    target: str | None,
    before: str | None,
    limit: int,
    *,
    actor: str | None = None,
    action: str | None = None,
) -> list[AuditEntry]:
    """What was done to anything, or to one thing, before an entry; newest first.

    `action`: one, or the first words of some: schedule stands for schedule.create too.
    QueryTooBroad if too many others were done or did something.
    """
    if before is not None and not is_id(before):
        return []
    asked = {"target": target, "before": before, "actor": actor, "action": action}
    given: dict[str, Any] = {name: value for name, value in asked.items() if value is not None}
    statement = sql.audit_page(given)
    text = statement.sqlite if session.dialect == "sqlite" else statement.postgres
    return [AuditEntry(*row) for row in session.run_text(text, given | {"limit": limit})]


def _one(rows: list[Row]) -> TokenRecord | None:
    return TokenRecord(*rows[0]) if rows else None
