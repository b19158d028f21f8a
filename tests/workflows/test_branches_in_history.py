"""A gather that has not ended is part of the history, although only its branches are recorded."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from duly import Ctx, Duly, JobFailed, WorkflowCtx
from duly.testing import advance, drain

OTHERS: dict[str, Callable[[WorkflowCtx], object]] = {
    "another operation": lambda ctx: ctx.now(),
    "nothing": lambda ctx: None,
}


@pytest.mark.parametrize("other", OTHERS)
def test_other_code_in_place_of_a_gather_is_noticed(app: Duly, other: str) -> None:
    is_new = False

    @app.action
    def pick(ctx: Ctx) -> str:
        return "picked"

    @app.workflow
    def order(ctx: WorkflowCtx) -> str:
        if is_new:
            OTHERS[other](ctx)
        else:
            ctx.gather(pick.bind(), ctx.timer(3600))
        return "done"

    job = app.run(order)
    drain(app)
    is_new = True
    with pytest.raises(JobFailed, match="history has branches of a gather or first"):
        advance(app, 3600)
    record = job.record
    assert (record.state, record.hold) == ("pending", "history")

    is_new = False
    app.core.ready().resume_run(job.id)
    drain(app)
    assert job.result() == "done"
