"""The page of a run: its steps, what it waits for, and answers in place."""

import re
from html import unescape
from typing import Annotated, Any

import pytest
from starlette.testclient import TestClient

from duly import Ctx, Duly, Redact, Retry, WorkflowCtx
from duly.server import make_asgi
from duly.testing import drain
from tests.server.conftest import Surfer
from tests.server.test_dashboard import HOSTILE

pytestmark = pytest.mark.spec("N94")


@pytest.fixture
def flow(shop: Duly) -> Duly:
    @shop.action
    def charge(ctx: Ctx, order: int, card: Annotated[str, Redact]) -> str:
        return f"paid {order}"

    @shop.action(retry=Retry(attempts=2, delay=3600))
    def flaky(ctx: Ctx) -> None:
        raise ValueError(HOSTILE)

    @shop.workflow
    def checkout(ctx: WorkflowCtx, order: int) -> Any:
        ctx.step(charge, order, "4242")
        ctx.gather(
            ctx.event("packed"),
            ctx.branch(WorkflowCtx.approval, HOSTILE, to="ann", options=("yes", "later", "no")),
            flaky.bind(),
        )

    @shop.workflow
    def asking(ctx: WorkflowCtx) -> Any:
        return [ctx.wait_for("packed"), ctx.approval("Ship it?").choice]

    @shop.workflow
    def typo(ctx: WorkflowCtx) -> None:
        raise KeyError("adress")

    return shop


@pytest.fixture
def operator(flow: Duly, surfer: Surfer) -> Surfer:
    surfer.log_in(flow.tokens.create("ann", ["operate", "enqueue"]).secret)
    return surfer


def start(app: Duly, name: str, *args: Any) -> str:
    job = app.run(app.function(name), *args)
    drain(app, raises=False)
    return job.id


def words(page: str) -> str:
    """What a person reads."""
    main = page.partition("<main")[2].partition("</main>")[0]
    return " ".join(unescape(re.sub(r"<[^>]+>", " ", main)).split())


def test_a_page_shows_steps_and_waits(flow: Duly, operator: Surfer):
    run = start(flow, "checkout", 7)
    page = operator.get(f"/jobs/{run}").text
    text = words(page)
    assert text.index("Waits for") < text.index("Steps") < text.index("Arguments")
    assert "event packed since now" in text
    assert "approval approval" in text
    assert "the next attempt of flaky : ValueError: " in text
    assert "charge action succeeded 1 now" in text
    assert '{"order": 7, "card": "***"}' in text
    assert '"paid 7"' in text
    assert "4242" not in page
    assert "<img src=x" not in page, "texts are escaped"
    assert "Why it is waiting no worker is running" in text
    assert 'class="state s-waiting"' in operator.get("/jobs").text
    new = flow.run_after(60, flow.function("asking"))
    assert 'class="state s-not_started"' in operator.get(f"/jobs/{new.id}").text


def test_events_and_approvals_are_answered_in_place(flow: Duly, operator: Surfer):
    run = start(flow, "asking")
    wrong = operator.done(f"/jobs/{run}/send?name=packed", payload="{", back=f"/jobs/{run}")
    assert "payload is not JSON" in wrong
    assert "Event packed sent" in operator.done(f"/jobs/{run}/send?name=packed", payload='{"a": 1}')
    assert "Event extra sent" in operator.done(f"/jobs/{run}/send", name="extra", payload="")
    drain(flow)
    page = operator.get(f"/jobs/{run}").text
    assert "Ship it?" in words(page)
    assert "Unread events extra" in words(page)
    answers = re.findall(r'<button name="choice" value="(\w+)"[^>]*?(formaction="[^"]+")?>', page)
    assert [value for value, _ in answers] == ["approve", "reject"]
    said = operator.done(f"/jobs/{run}/reject?name=approval", choice="reject", data="")
    assert "Answered with reject" in said
    late = operator.done(f"/jobs/{run}/approve?name=approval", back=f"/jobs/{run}")
    assert "by ann" in late or "answered with 'reject'" in unescape(late)
    drain(flow)
    assert flow.job(run).result() == [{"a": 1}, "reject"]
    assert flow.job(run).steps()[1].result["by"]
    done = operator.get(f"/jobs/{run}").text
    assert 'class="state s-succeeded"' in done
    assert "Send an event" not in words(done)


def test_a_held_run_shows_its_error_and_is_resumed(flow: Duly, operator: Surfer):
    run = start(flow, "typo")
    text = words(operator.get(f"/jobs/{run}").text)
    assert "held" in text
    assert "its code raised KeyError: 'adress'" in text
    assert "in typo" in text, "with its traceback"
    assert "The run continues" in operator.done(f"/jobs/{run}/resume")
    assert "The run is not held" in operator.done(f"/jobs/{run}/resume")


def test_long_runs_are_shown_page_by_page(flow: Duly, operator: Surfer):
    @flow.workflow
    def long(ctx: WorkflowCtx) -> None:
        for _ in range(102):
            ctx.now()

    run = start(flow, "long")
    page = operator.get(f"/jobs/{run}").text
    assert page.count("<tr id=") == 100
    more = unescape(re.findall(r'href="([^"]+)" rel="next">More steps', page)[0])
    rest = operator.get(more).text
    assert re.findall(r'class="strong">(now#\d+)', rest) == ["now#101", "now#102"]


def test_who_may_only_look_gets_no_forms(flow: Duly):
    run = start(flow, "asking")
    with TestClient(make_asgi(flow)) as client:
        reader = Surfer(client)
        reader.log_in(flow.tokens.create("r", ["read"]).secret)
        page = reader.get(f"/jobs/{run}").text
        assert "event packed" in words(page)
        assert f"/jobs/{run}/" not in page
        for path in ("send?name=packed", "approve?name=approval", "reject?name=approval", "resume"):
            assert reader.post(f"/jobs/{run}/{path}").status_code == 403
