"""Whatever proves who somebody is, is compared in a time that says nothing about it.

Measured times are noise on a busy machine; so this looks at how it is done: every comparison goes
through `is_same` of endpoints/secrets.py, which compares digests of one length, and the secret of
a token is looked up by its digest.
"""

import hmac
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from starlette.testclient import TestClient

import duly
from duly import Ctx
from duly.endpoints import secrets
from duly.gateway import Gateway
from duly.server import make_asgi
from duly.webhooks import HMAC, Atlassian, Bearer, GitHub, StandardWebhooks, Stripe, Svix
from tests.jobs.support import on_sqlite

PACKAGE = Path(duly.__file__).parent
SECRET = "c2VjcmV0LWNhbmFyeQ=="  # standard webhooks have base64
AT = "1767225600"
SOURCES = {
    "github": (GitHub(secrets=[SECRET]), {"X-Hub-Signature-256": "sha256={}"}),
    "atlassian": (Atlassian(secrets=[SECRET]), {"X-Hub-Signature": "sha256={}"}),
    "stripe": (Stripe(secrets=[SECRET]), {"Stripe-Signature": f"t={AT},v1={{}}"}),
    "standard": (
        StandardWebhooks(secrets=[SECRET]),
        {"webhook-id": "1", "webhook-timestamp": AT, "webhook-signature": "v1,{}"},
    ),
    "svix": (
        Svix(secrets=[SECRET]),
        {"svix-id": "1", "svix-timestamp": AT, "svix-signature": "v1,{}"},
    ),
    "hmac": (HMAC(header="X-Signature", secrets=[SECRET]), {"X-Signature": "{}"}),
    "bearer": (Bearer(secrets=[SECRET]), {"Authorization": "Bearer {}"}),
}


class Compared:
    """The lengths of what hmac.compare_digest was given."""

    def __init__(self) -> None:
        self.lengths: list[tuple[int, int]] = []

    def __call__(self, one: bytes, other: bytes) -> bool:
        self.lengths.append((len(one), len(other)))
        return self._real(one, other)

    _real = staticmethod(hmac.compare_digest)

    def count(self, ask: Callable[[], Any]) -> int:
        """How many comparisons that took, each of two digests."""
        self.lengths.clear()
        ask()
        assert set(self.lengths) <= {(32, 32)}
        return len(self.lengths)


@on_sqlite
@pytest.mark.spec("R185")
def test_every_secret_is_compared_by_digests_of_one_length(shop, tmp_path, monkeypatch):
    @shop.action
    def takes(ctx: Ctx, event_id: str) -> None: ...

    for name, (source, _) in SOURCES.items():
        shop.webhook(name, source=source, process=takes)
    monkeypatch.setenv("DISPATCH_SECRET", SECRET)
    shop.functions.publish()
    gateway = Gateway(tmp_path / "crons.db", {"probe": print}, secret="env:DISPATCH_SECRET").open()
    shop.dispatch.secrets = ["env:DISPATCH_SECRET"]
    compared = Compared()
    with (
        patch("hmac.compare_digest", compared),
        TestClient(make_asgi(shop)) as client,
        TestClient(gateway.asgi()) as bridge,
    ):
        for shown in ("", "x", SECRET[:-1] + "x", "x" * 999):
            bearer = {"Authorization": f"Bearer {shown}"}
            for name, (_, headers) in SOURCES.items():
                given = {header: value.format(shown) for header, value in headers.items()}
                asked = compared.count(
                    lambda: client.post(f"/hooks/{name}", headers=given, content=b"{}")  # noqa: B023
                )
                assert asked == 1 or not shown, name
            assert compared.count(lambda: bridge.get("/cron", headers=bearer)) == 1  # noqa: B023
            dispatched = compared.count(
                lambda: client.post("/api/v1/dispatch/greet", headers=bearer, json={})  # noqa: B023
            )
            assert dispatched == 1
        client.get("/login")
        for shown in ("", "x", "x" * 999):
            form = {"csrf": shown, "token": "duly_x"}
            assert compared.count(lambda: client.post("/login", data=form)) == 1  # noqa: B023
    gateway.stop()


@on_sqlite
def test_the_secret_of_a_token_is_not_stored_and_looked_up_by_its_digest(shop, db):
    made = shop.tokens.create("test", ["read"])
    (row,) = db.execute("SELECT * FROM @tokens")
    assert not any(made.secret.removeprefix("duly_") in str(value) for value in row)
    with patch("duly.app.tokens.digest_of", return_value="another") as digest:
        assert shop.tokens.check(made.secret) is None
    digest.assert_called_once_with(made.secret)


SECRETIVE = re.compile(r"secret|signature|digest_of|csrf|password|hexdigest")
# None is about what a caller shows.
HARMLESS = {
    "if cookie_of(request, CSRF) != csrf:",
    "if cookie_of(viewer.request, CSRF) != viewer.csrf:",
    'shown = secret.strip() if kind.lower() == "bearer" else ""',
}


def comparisons(text: str) -> set[str]:
    """Lines that compare what sounds like a secret in the language's own way."""
    lines = {line.strip() for line in text.splitlines() if "==" in line or "!=" in line}
    return {line for line in lines if SECRETIVE.search(line)}


def test_no_code_compares_a_secret_by_itself():
    files = [path for path in PACKAGE.rglob("*.py") if path != Path(secrets.__file__)]
    texts = {path: path.read_text() for path in files}
    assert [path for path, text in texts.items() if "compare_digest" in text] == []
    assert set[str]().union(*map(comparisons, texts.values())) == HARMLESS
    assert comparisons("if given == self._secret: pass")
