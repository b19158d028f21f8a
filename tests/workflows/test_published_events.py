"""What a workflow declares to read is refused at the sender, wherever its code is."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from duly import Duly, WorkflowCtx
from duly.errors import InvalidArgument, InvalidOption
from duly.testing import drain

pytestmark = pytest.mark.spec("N113")


class Parcel(msgspec.Struct):
    tracking: str
    weight: int = 1


@pytest.fixture
def sender(app: Duly, url: str) -> Duly:
    """An app that has none of the code."""
    return Duly(url, clock=app.clock, name="sender")


def test_an_event_that_is_not_declared_is_refused_at_the_sender(app: Duly, sender: Duly):
    @app.workflow(events={"packed": Parcel})
    def order(ctx: WorkflowCtx) -> str:
        parcel = ctx.wait_for("packed")
        return f"{parcel.tracking} {parcel.weight}"

    job = app.run(order)
    drain(app)
    for where in (app, sender):
        with pytest.raises(InvalidOption, match="reads no event 'pakced'; did you mean 'packed'"):
            where.send(job.id, "pakced", {"tracking": "x"})
        with pytest.raises(InvalidArgument, match="tracking"):
            where.send(job.id, "packed", {"tracking": 7})
        with pytest.raises(InvalidArgument, match="tracking"):
            asyncio.run(where.aio.send(job.id, "packed", {"tracking": 7}))
    assert app.ready().events_of(job.id, 10) == []
    sender.send(job.id, "packed", {"tracking": "t1"})
    drain(app)
    assert job.result() == "t1 1"
    sender.close()
