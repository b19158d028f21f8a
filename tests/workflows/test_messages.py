"""Errors about events and approvals say what was probably meant, and what to write."""

import pytest

from duly import Duly, WorkflowCtx
from duly.errors import ApprovalClosed, InvalidOption, JobFailed
from duly.testing import drain


def test_an_unknown_event_is_refused_with_the_nearest_name(app: Duly):
    @app.workflow(events={"packed": int})
    def order(ctx: WorkflowCtx) -> int:
        return ctx.wait_for("packed", int)

    job = app.run(order)
    with pytest.raises(InvalidOption, match=r"no event 'pakced'; did you mean 'packed'\?$"):
        app.send(job, "pakced", 1)
    with pytest.raises(InvalidOption, match=r"no event 'x'$"):
        app.send(job, "x", 1)


def test_an_approval_that_was_answered_says_by_whom(app: Duly):
    @app.workflow
    def order(ctx: WorkflowCtx) -> bool:
        return ctx.approval("Send it?").approved

    job = app.run(order)
    drain(app)
    app.approve(job, by="ada")
    with pytest.raises(ApprovalClosed, match=r"answered with 'approve' by ada$"):
        app.approve(job)


def test_workflow_code_cannot_answer_an_approval(app: Duly):
    @app.workflow
    def order(ctx: WorkflowCtx) -> bool:
        return ctx.approval("Send it?").approved

    @app.workflow
    def hurry(ctx: WorkflowCtx, run: str) -> None:
        app.approve(run)

    job = app.run(order)
    drain(app)
    app.run(hurry, job.id)
    with pytest.raises(JobFailed, match="approve in a workflow's own code would happen again"):
        drain(app)
    assert job.state == "pending"
