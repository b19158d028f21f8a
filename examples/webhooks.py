"""Eight webhooks: each request is verified, stored with its job and answered immediately.

Run it with: python examples/webhooks.py

Serve them with `uvicorn`, or mount `routes(app)` in your own application.
"""

import base64
import hashlib
import hmac
import json
import os
import shutil
import tempfile
from typing import Any

from starlette.applications import Starlette
from starlette.testclient import TestClient

from duly import Ctx, Duly, Tx
from duly.server.hooks import routes
from duly.webhooks import Atlassian, Bearer, GitHub, Stripe, Svix

FOLDER = tempfile.mkdtemp()
app = Duly(f"sqlite:///{FOLDER}/factory.db")
SECRETS = {name: f"secret of {name}" for name in ("GITHUB", "JIRA", "CONFLUENCE", "STRIPE")}
SECRETS["CLERK"] = "whsec_" + base64.b64encode(b"secret of clerk, 24 long").decode()
SECRETS["SANDBOX"] = "secret-of-the-sandbox"
# In production, secrets come from the environment or from files.
os.environ.update({f"{name}_WEBHOOK_SECRET": secret for name, secret in SECRETS.items()})


@app.mutation
def note(tx: Tx, event_id: str) -> None:
    """Record the event, exactly once."""
    event = app.webhooks.get(event_id)
    tx.execute("INSERT INTO activity VALUES (?, ?)", (event.webhook, event.type))


@app.action
def review(ctx: Ctx, event_id: str) -> None:
    """Call other services; up to five attempts."""
    event = app.webhooks.get(event_id)
    print(f"reviewing pull request {event.payload()['number']}")
    ctx.run(note, event_id)


@app.action
def complete(ctx: Ctx, event_id: str) -> None:
    print(f"session {app.webhooks.get(event_id).entity} is complete")
    ctx.run(note, event_id)


app.webhook(
    "clerk-users",
    source=Svix(secrets=["env:CLERK_WEBHOOK_SECRET"]),
    process=note,
    path="/clerk-users-webhook",
    entity="/data/id",
)
app.webhook(
    "github",
    source=GitHub(secrets=["env:GITHUB_WEBHOOK_SECRET"]),
    process=note,
    routes={"pull_request": review},
    filter={"push", "pull_request", "issues", "pull_request_review", "deployment"},
    path="/api/webhooks/github",
    entity="/repository/id",
)
app.webhook(
    "jira",
    source=Atlassian(secrets=["env:JIRA_WEBHOOK_SECRET"]),
    process=note,
    path="/api/webhooks/jira",
    entity="/issue/key",
)
app.webhook(
    "confluence",
    source=Atlassian(secrets=["env:CONFLUENCE_WEBHOOK_SECRET"]),
    process=note,
    path="/api/webhooks/confluence",
    entity="/page/id",
)
app.webhook(
    "stripe",
    source=Stripe(secrets=["env:STRIPE_WEBHOOK_SECRET"]),
    process=note,
    path="/api/webhooks/stripe",
    filter=lambda event: (event.type or "").startswith(("invoice.", "customer.subscription.")),
)
SANDBOX = Bearer(secrets=["env:SANDBOX_WEBHOOK_SECRET"], delivery_header="X-Event-Id")
app.webhook(
    "sandbox-events",
    source=SANDBOX,
    process=note,
    path="/api/sandbox/hook-events",
    entity="/session",
)
app.webhook(
    "sandbox-completion",
    source=SANDBOX,
    process=complete,
    path="/api/sandbox/completion",
    entity="/session",
)
app.webhook("sandbox-telemetry", source=SANDBOX, process=note, path="/api/sandbox/tail-telemetry")

web = Starlette(routes=routes(app))


# Requests of the senders -------------------------------------------------------------------------


def sha256(name: str, message: bytes) -> bytes:
    return hmac.new(SECRETS[name].encode(), message, hashlib.sha256).digest()


def from_github(body: bytes, kind: str) -> dict[str, str]:
    signature = f"sha256={sha256('GITHUB', body).hex()}"
    return {
        "X-Hub-Signature-256": signature,
        "X-GitHub-Event": kind,
        "X-GitHub-Delivery": hashlib.md5(body).hexdigest(),
    }


def from_atlassian(name: str, body: bytes) -> dict[str, str]:
    return {"X-Hub-Signature": f"sha256={sha256(name, body).hex()}"}


def from_stripe(body: bytes, at: int) -> dict[str, str]:
    return {"Stripe-Signature": f"t={at},v1={sha256('STRIPE', f'{at}.'.encode() + body).hex()}"}


def from_clerk(body: bytes, at: int) -> dict[str, str]:
    key = base64.b64decode(SECRETS["CLERK"].removeprefix("whsec_"))
    signed = hmac.new(key, f"msg_1.{at}.".encode() + body, hashlib.sha256).digest()
    signature = f"v1,{base64.b64encode(signed).decode()}"
    return {"svix-id": "msg_1", "svix-timestamp": str(at), "svix-signature": signature}


def from_sandbox(event_id: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {SECRETS['SANDBOX']}", "X-Event-Id": event_id}


def requests(at: int) -> list[tuple[str, bytes, dict[str, str]]]:
    """One request for each webhook, and one that is filtered out."""

    def text(**fields: Any) -> bytes:
        return json.dumps(fields).encode()

    pull, star = text(number=7, repository={"id": 1}), text(repository={"id": 1})
    jira = text(webhookEvent="jira:issue_created", issue={"key": "F-1"})
    page = text(event="page_updated", page={"id": 9})
    invoice = text(id="evt_1", type="invoice.paid")
    user = text(type="user.created", data={"id": "user_1"})
    session = text(session="s-1", type="session")
    return [
        ("/clerk-users-webhook", user, from_clerk(user, at)),
        ("/api/webhooks/github", pull, from_github(pull, "pull_request")),
        ("/api/webhooks/github", star, from_github(star, "star")),
        ("/api/webhooks/jira", jira, from_atlassian("JIRA", jira)),
        ("/api/webhooks/confluence", page, from_atlassian("CONFLUENCE", page)),
        ("/api/webhooks/stripe", invoice, from_stripe(invoice, at)),
        ("/api/sandbox/hook-events", session, from_sandbox("e-1")),
        ("/api/sandbox/completion", session, from_sandbox("e-2")),
        ("/api/sandbox/tail-telemetry", session, from_sandbox("e-3")),
    ]


def activity() -> list[tuple[str, str | None]]:
    with app.transaction() as tx:
        return [(name, kind) for name, kind in tx.execute("SELECT * FROM activity ORDER BY 1")]


def main() -> None:
    app.migrate()
    with app.transaction() as tx:
        tx.execute("CREATE TABLE activity (webhook TEXT, kind TEXT)")
    sent = requests(app.clock.now() // 1000)
    with TestClient(web) as client:
        for path, body, headers in sent:
            assert client.post(path, content=body).status_code == 401
            answer = client.post(path, content=body, headers=headers)
            assert answer.status_code == 200
            print(f"{path}: {answer.json()['outcome']}")
            # The sender did not get the response and sends the request again.
            again = client.post(path, content=body, headers=headers)
            assert (again.status_code, again.json()["outcome"]) == (200, "duplicate")
    with app:
        for event in app.webhooks.list():
            if event.job_id is not None:
                app.job(event.job_id).result(timeout=20)
        for job in app.jobs(function=note):
            job.result(timeout=20)
    states = [str(event.state) for event in app.webhooks.list()]
    print(f"{states.count('processed')} processed, {states.count('filtered')} filtered")
    assert (states.count("processed"), states.count("filtered")) == (8, 1)
    assert len(activity()) == 8
    app.close()
    shutil.rmtree(FOLDER)


if __name__ == "__main__":
    main()
