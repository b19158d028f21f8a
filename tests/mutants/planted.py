"""Faults for the tests to notice: one change of one line each, in modules that no simulator sees.

The simulator's mutants take away guards of the protocol. These stand beside it: access, webhooks,
endpoints, gateways, calendars, conditions, zones, redaction, the index, the feed.
"""

from __future__ import annotations

from typing import NamedTuple


class Planted(NamedTuple):
    """What would be wrong, where, and the tests that must notice."""

    fault: str
    file: str
    old: str
    new: str
    tests: str

    def __str__(self) -> str:
        return self.fault.replace(" ", "-")


PLANTED = [
    Planted(
        "a skip_dates calendar allows its dates and nothing else",
        "model/calendar.py",
        "allowed = listed == (self.kind is CalendarKind.ONLY_DATES)",
        "allowed = listed == (self.kind is CalendarKind.SKIP_DATES)",
        "tests/model/test_calendar.py",
    ),
    Planted(
        "a calendar reads its dates in UTC",
        "model/calendar.py",
        "days = (second + zone(self.tz).offset(second)) // DAY",
        "days = second // DAY",
        "tests/model/test_calendar.py",
    ),
    Planted(
        "one check that holds is enough for a condition",
        "model/condition.py",
        "return all(rule.check(context).passes for rule in self.rules)",
        "return any(rule.check(context).passes for rule in self.rules)",
        "tests/model/test_condition.py",
    ),
    Planted(
        "a rotation stays at its last entry",
        "model/rotation.py",
        "position = index % len(self.entries)",
        "position = min(index, len(self.entries) - 1)",
        "tests/model/test_rotation.py",
    ),
    Planted(
        "a secret is scrubbed only as it was given",
        "model/redact.py",
        "return text, repr(text)[1:-1], _json(text)",
        "return (text,)",
        "tests/callers/test_redaction.py",
    ),
    Planted(
        "older zone data wins",
        "zones.py",
        "self.sources.sort(key=lambda source: source.version, reverse=True)",
        "self.sources.sort(key=lambda source: source.version)",
        "tests/model/test_zones.py",
    ),
    Planted(
        "a revoked token lets in",
        "app/tokens.py",
        "if record is None or not record.is_live(now):",
        "if record is None:",
        "tests/server/test_access.py",
    ),
    Planted(
        "every token has every scope",
        "server/api/operation.py",
        "if not principal.may(scope):",
        "if principal is None:",
        "tests/server/test_access.py",
    ),
    Planted(
        "a token sees what another owner has",
        "server/api/common.py",
        'return principal.owner is not None and (owner or "") != principal.owner',
        "return False",
        "tests/server/test_access.py tests/server/test_jobs_api.py",
    ),
    Planted(
        "the owner of a token does not keep it from what is everybody's",
        "server/api/operation.py",
        "if principal.owner is not None:\n        raise Refused(403",
        "if principal.owner == '':\n        raise Refused(403",
        "tests/server/test_access.py tests/server/test_gateways.py",
    ),
    Planted(
        "pages of other sites may send forms",
        "server/guard.py",
        'return site not in ("same-origin", "none")',
        'return site not in ("same-origin", "none", "cross-site")',
        "tests/server/test_guard.py",
    ),
    Planted(
        "any prefix of a secret is the secret",
        "endpoints/secrets.py",
        "first, second = hashlib.sha256(one).digest(), hashlib.sha256(other).digest()",
        "first, second = one[: len(other)], other",
        "tests/security tests/server/test_dispatch.py tests/server/test_webhook_sources.py",
    ),
    Planted(
        "a signature of Stripe is good for ever",
        "webhooks/sources.py",
        "_check_time(times[0], now_ms)\n        return Delivery(None, None, times[0].decode())",
        "return Delivery(None, None, times[0].decode())",
        "tests/server/test_webhook_sources.py",
    ),
    Planted(
        "of a header that came twice the first counts",
        "webhooks/sources.py",
        "if len(found) > 1:",
        "if len(found) > 2:",
        "tests/server/test_webhook_sources.py tests/server/test_webhooks.py",
    ),
    Planted(
        "an internal function can be dispatched",
        "endpoints/dispatch.py",
        "if function.internal or (info is not None and info.internal):",
        "if function.internal and info is None:",
        "tests/server/test_dispatch.py",
    ),
    Planted(
        "an endpoint that says too many requests is not asked again",
        "endpoints/post.py",
        "if status < 500 and status not in RETRY_STATUSES:",
        "if status < 500:",
        "tests/server/test_endpoints.py",
    ),
    Planted(
        "relays of 6to4 are public",
        "runtime/outbound/rules.py",
        '"192.0.2.0/24", "192.88.99.0/24", "192.168.0.0/16"',
        '"192.0.2.0/24", "192.168.0.0/16"',
        "tests/server/test_outbound.py",
    ),
    Planted(
        "NAT64 hides private addresses",
        "runtime/outbound/rules.py",
        "return is_public(IPv4Address(int(address) & 0xFFFF_FFFF))",
        "return True",
        "tests/server/test_outbound.py",
    ),
    Planted(
        "a claim of the index does not advance its rows",
        "index/claims.py",
        "tx.advance([_move(row, fires_at) for row, fires_at in claimed])",
        "[_move(row, fires_at) for row, fires_at in claimed]",
        "tests/index/test_index.py",
    ),
    Planted(
        "a canceled claim of the index is kept",
        "index/claims.py",
        "if unwanted is not None and unwanted.is_set():",
        "if unwanted is None:",
        "tests/index",
    ),
    Planted(
        "a gateway forgets which crons were running when it was killed",
        "gateway/runtime.py",
        "self._store.edit(stale.id, lambda cron: interrupted(cron, self.clock.now()))",
        "self._store.edit(stale.id, lambda cron: cron)",
        "tests/gateway",
    ),
    Planted(
        "a follower is told again what it was shown",
        "runtime/feed.py",
        "if key in self._shown:",
        "if key in ():",
        "tests/server/test_events.py",
    ),
    Planted(
        "full-width formulas are left as they are",
        "server/dashboard/exports.py",
        '"＝", "＋", "－", "＠")',
        ")",
        "tests/server/test_dashboard.py",
    ),
]
