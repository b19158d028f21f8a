"""The API for workflows: what a run has done, what it waits for, and answers to it."""

from collections.abc import Callable
from typing import Any

import pytest
from starlette.testclient import TestClient

from duly import Ctx, Duly, ManualClock, WorkflowCtx
from duly.testing import advance, drain
from tests.jobs.support import tidy
from tests.server.contract import Api

NOBODY = "01890000-0000-7000-8000-000000000000"


@pytest.fixture
def api(client: TestClient) -> Api:
    return Api(client)


@pytest.fixture
def flow(shop: Duly) -> Duly:
    """The shop with workflows."""

    @shop.action
    def charge(ctx: Ctx, order: int, note: str = "") -> str:
        return f"p{order}{note}"

    @shop.workflow
    def checkout(ctx: WorkflowCtx, order: int) -> Any:
        ctx.step(charge, order)
        packed = ctx.wait_for("packed", timeout=3600)
        decision = ctx.approval("Release it?", to="ann", options=("yes", "later", "no"))
        ctx.step(charge, order, "x" * 9_000)
        return [packed, decision.choice, decision.data, decision.by]

    @shop.workflow(internal=True)
    def hidden(ctx: WorkflowCtx) -> None:
        ctx.wait_for("go")

    @shop.workflow
    def typo(ctx: WorkflowCtx) -> None:
        raise KeyError("adress")

    shop.functions.publish()
    return shop


def start(app: Duly, name: str, *args: Any, owner: str | None = None) -> str:
    job = app.run(app.function(name).using(owner=owner), *args)
    drain(app, raises=False)
    return job.id


@pytest.mark.spec("N91")
def test_a_run_is_seen_from_its_start_to_its_end(api: Api, flow: Duly, clock: ManualClock):
    asleep = flow.run_after(60, flow.function("checkout"), 8)
    run = start(flow, "checkout", 7)
    shown = api.get("/workflows/{id}", id=run)
    [wait] = shown["waits"]
    assert (shown["phase"], shown["state"], shown["kind"]) == ("waiting", "pending", "workflow")
    assert (wait["kind"], wait["name"], wait["step"]) == ("event", "packed", "packed")
    assert wait["until_ms"] - wait["since_ms"] == 3_600_000

    listed = api.get("/workflows")["items"]
    assert [(each["id"], each["phase"]) for each in listed] == [
        (run, "waiting"),
        (asleep.id, "not_started"),
    ]
    assert [each["name"] for each in listed[0]["waits"]] == ["packed"]

    sent = api.post(
        "/workflows/{id}/events", {"name": "packed", "payload": [1]}, id=run, status=201
    )
    drain(flow)
    [event] = api.get("/workflows/{id}/events", id=run)["items"]
    assert event == sent | {"payload": [1], "sent_by": "local", "step": "packed", "is_read": True}
    [asked] = api.get("/workflows/{id}", id=run)["waits"]
    assert (asked["text"], asked["to"], asked["options"]) == (
        "Release it?",
        "ann",
        ["yes", "later", "no"],
    )
    body = {"choice": "later", "data": {"days": 2}}
    answer = api.post("/workflows/{id}/approve", body, id=run)
    assert answer == {"approved": False, "choice": "later", "data": {"days": 2}, "by": "local"}
    assert api.post("/workflows/{id}/approve", body, id=run) == answer, "it may be repeated"
    assert api.post("/workflows/{id}/reject", id=run, status=409)["error"]["code"] == (
        "approval_closed"
    )
    drain(flow)
    done = api.get("/workflows/{id}", id=run)
    assert (done["phase"], done["waits"]) == ("succeeded", [])
    assert done["result"] == [[1], "later", {"days": 2}, "local"]

    steps = api.get("/workflows/{id}/steps", id=run)["items"]
    assert [step["label"] for step in steps] == ["charge", "packed", "approval", "charge#2"]
    assert [step["attempt"] for step in steps] == [1, 1, 1, 1]
    assert steps[0]["args"] == {"order": 7}
    assert "…" in steps[3]["args"], "long values are not in lists"
    assert "…" in steps[3]["result"]
    whole = api.get("/workflows/{id}/steps/{step}", id=run, step="charge%232")
    assert whole["result"] == "p7" + "x" * 9_000
    assert api.get("/workflows/{id}/steps/{step}", id=run, step=whole["id"]) == whole
    api.get("/workflows/{id}/steps/{step}", id=run, step="charge%233", status=404)

    first = api.get("/workflows/{id}/steps", id=run, params={"limit": 3})
    rest = api.get("/workflows/{id}/steps", id=run, params={"after": first["next"]})
    assert first["items"] + rest["items"] == steps
    actions = [entry.action for entry in flow.ready().audit_of(f"job:{run}")]
    assert actions == ["workflow.approve", "workflow.send"]


@pytest.mark.spec("N91")
def test_runs_are_listed_by_how_far_they_are(api: Api, flow: Duly):
    held = start(flow, "typo")
    done = start(flow, "checkout", 2)
    flow.cancel(done)
    waiting = start(flow, "checkout", 1)
    waits_too = start(flow, "hidden")
    new = flow.run_after(60, flow.function("checkout"), 8).id

    def listed(**which: Any) -> list[str]:
        return [each["id"] for each in api.get("/workflows", params=which)["items"]]

    assert listed() == [new, waits_too, waiting, done, held]
    assert listed(phase="not_started") == [new]
    assert listed(phase="waiting") == [waits_too, waiting]
    assert listed(phase="waiting", function="checkout") == [waiting]
    assert listed(phase="held") == [held]
    assert listed(phase="running") == []
    assert listed(phase="canceled") == [done]
    assert listed(function="greet") == []
    assert listed(before=waiting) == [done, held]
    page = api.get("/workflows", params={"limit": 2})
    assert (len(page["items"]), page["next"]) == (2, waits_too)
    api.get("/workflows", params={"phase": "begun"}, status=422)

    flow.functions.pause("hidden")
    flow.send(waits_too, "go")
    drain(flow, raises=False)
    tidy(flow)
    paused = flow.job(waits_too)
    assert paused.record.hold == "paused"
    assert listed(phase="held") == [held], "an operator holds it, and not its code"
    assert listed(phase="waiting") == [waits_too, waiting]
    assert "its function is paused" in flow.why(paused).text


@pytest.mark.spec("N91")
def test_a_repeated_event_is_answered_with_the_first(api: Api, flow: Duly):
    run = start(flow, "checkout", 7)
    body = {"name": "packed", "payload": 1, "once": "k"}
    first = api.post("/workflows/{id}/events", body, id=run, status=201)
    again = body | {"payload": 2}
    assert api.post("/workflows/{id}/events", again, id=run, status=200) == first
    keyed = {"name": "other"}
    second = api.post("/workflows/{id}/events", keyed, id=run, status=201, key="q")
    assert api.post("/workflows/{id}/events", keyed, id=run, status=200, key="q") == second
    refused = api.post("/workflows/{id}/events", body, id=run, status=422, key="q")
    assert refused["error"]["code"] == "idempotency_mismatch"
    [packed, other] = api.get("/workflows/{id}/events", id=run)["items"]
    assert (packed["payload"], other["name"], other["is_read"]) == (1, "other", False)
    unread = api.get("/workflows/{id}/events", id=run, params={"unread": True})["items"]
    assert unread == [packed, other]
    drain(flow)
    unread = api.get("/workflows/{id}/events", id=run, params={"unread": True})["items"]
    assert [event["name"] for event in unread] == ["other"]
    [packed, other] = api.get("/workflows/{id}/events", id=run)["items"]
    assert (packed["is_read"], packed["step"]) == (True, "packed")
    page = api.get("/workflows/{id}/events", id=run, params={"limit": 1})
    rest = api.get("/workflows/{id}/events", id=run, params={"after": page["next"]})
    assert [page["items"], rest["items"]] == [[packed], [other]]
    flow.cancel(run)
    assert api.post("/workflows/{id}/events", again, id=run, status=200) == first
    ended = api.post("/workflows/{id}/events", {"name": "new"}, id=run, status=409)
    assert ended["error"]["code"] == "workflow_ended"


@pytest.mark.spec("N91")
def test_a_held_run_is_explained_and_resumed(api: Api, flow: Duly):
    run = start(flow, "typo")
    assert api.get("/workflows/{id}", id=run)["phase"] == "held"
    [reason] = [
        each
        for each in api.get("/jobs/{id}/why", id=run)["reasons"]
        if each["cause"] == "code_raised"
    ]
    assert "KeyError: 'adress'" in reason["text"]
    assert "in typo" in reason["traceback"]
    assert api.post("/workflows/{id}/resume", id=run) == {"resumed": True}
    assert api.post("/workflows/{id}/resume", id=run) == {"resumed": False}
    assert api.get("/workflows/{id}", id=run)["phase"] == "waiting"
    drain(flow, raises=False)
    assert api.get("/workflows/{id}", id=run)["phase"] == "held"


@pytest.mark.spec("N91")
@pytest.mark.parametrize(
    ("path", "body", "status", "code"),
    [
        ("approve", {"choice": "perhaps"}, 422, "invalid_option"),
        ("approve", {"name": "other"}, 409, "approval_closed"),
        ("reject", {"choice": "no"}, 422, "invalid"),
        ("events", {"name": ""}, 422, "invalid"),
        ("events", {"payload": 1}, 422, "invalid"),
        ("events", {"name": "x", "once": ""}, 422, "invalid_option"),
    ],
)
def test_wrong_answers_are_refused(
    api: Api, flow: Duly, path: str, body: Any, status: int, code: str
):
    run = start(flow, "checkout", 1)
    flow.send(run, "packed")
    drain(flow)
    refused = api.post("/workflows/{id}/" + path, body, id=run, status=status)
    assert refused["error"]["code"] == code


@pytest.mark.spec("N91")
def test_jobs_that_are_not_workflows_are_not_found(api: Api, flow: Duly):
    job = flow.run(flow.function("greet"), "ann").id
    for path in ("", "/steps", "/steps/{step}", "/events"):
        for run, code in ((job, "not_a_workflow"), (NOBODY, "job_not_found")):
            refused = api.get("/workflows/{id}" + path, id=run, step="x", status=404)
            assert refused["error"]["code"] == code
    for path, body in (
        ("events", {"name": "x"}),
        ("approve", {}),
        ("reject", {}),
        ("resume", None),
    ):
        api.post("/workflows/{id}/" + path, body, id=job, status=404)


@pytest.mark.spec("N91")
def test_scopes_and_owners_hold_for_runs_as_for_jobs(
    guarded: TestClient, flow: Duly, bearer: Callable[..., dict[str, Any]]
):
    run, anna = start(flow, "checkout", 1), start(flow, "checkout", 2, owner="anna")
    hidden = start(flow, "hidden")
    reader, sender = Api(guarded, bearer("read")), Api(guarded, bearer("enqueue"))
    operator = Api(guarded, bearer("operate"))
    hers = Api(guarded, bearer("operate", "enqueue", owner="anna"))
    event = {"name": "packed"}

    reader.get("/workflows/{id}/steps", id=run)
    reader.post("/workflows/{id}/events", event, id=run, status=403)
    sender.get("/workflows/{id}", id=run, status=403)
    sender.post("/workflows/{id}/approve", id=run, status=403)
    sender.post("/workflows/{id}/resume", id=run, status=403)
    sender.post("/workflows/{id}/events", event, id=run, status=201)
    sender.post("/workflows/{id}/events", {"name": "go"}, id=hidden, status=404)
    operator.post("/workflows/{id}/events", {"name": "go"}, id=hidden, status=201)

    assert [each["id"] for each in hers.get("/workflows")["items"]] == [anna]
    for path in ("", "/steps", "/events"):
        hers.get("/workflows/{id}" + path, id=run, status=404)
    hers.post("/workflows/{id}/events", event, id=run, status=404)
    hers.post("/workflows/{id}/approve", id=run, status=404)
    hers.post("/workflows/{id}/events", event, id=anna, status=201)
    advance(flow, 1)
    hers.post("/workflows/{id}/approve", id=anna)


@pytest.mark.spec("N91")
def test_who_started_a_run_may_be_kept_from_approving_it(api: Api, flow: Duly):
    @flow.workflow
    def vacation(ctx: WorkflowCtx) -> bool:
        return bool(ctx.approval("May I?", self_approval=False))

    job = api.post("/jobs", {"function": "vacation"}, status=201)["id"]
    drain(flow)
    refused = api.post("/workflows/{id}/approve", id=job, status=403)
    assert refused["error"]["code"] == "self_approval"
    flow.approve(job, by="ann")
    drain(flow)
    assert flow.job(job).result() is True
