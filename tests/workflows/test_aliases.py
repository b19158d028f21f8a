"""A function that was renamed finds the records that it made under its old name."""

from __future__ import annotations

import pytest

from duly import Ctx, Duly, WorkflowCtx
from duly.testing import advance, drain

pytestmark = pytest.mark.spec("N114")


def test_a_step_whose_function_was_renamed_fits_its_record(app: Duly, url: str):
    done: list[str] = []

    def define(app: Duly, name: str, aliases: tuple[str, ...] = ()) -> None:
        @app.action(name=name, aliases=aliases)
        def charge(ctx: Ctx, order: int) -> str:
            done.append(name)
            return f"p{order}"

        @app.action(name=f"{name}_far", aliases=[f"{alias}_far" for alias in aliases], queue="far")
        def far(ctx: Ctx, order: int) -> str:
            done.append(f"{name}_far")
            return f"f{order}"

        @app.workflow
        def buy(ctx: WorkflowCtx) -> str:
            near, away = ctx.step(charge, 1), ctx.step(far, 1)
            ctx.sleep(60)
            return f"{near} {away} {ctx.step(charge, 2)}"

    define(app, "charge")
    job = app.run(app.functions["buy"])
    drain(app)
    later = Duly(url, clock=app.clock)
    define(later, "pay", ("charge",))
    advance(later, 60)
    assert later.job(job.id).result() == "p1 f1 p2"
    assert done == ["charge", "charge_far", "pay"]
    later.close()
