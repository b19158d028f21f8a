"""The awaited twins of sync classes: which verbs they have, what these say, where they are done."""

import asyncio
import inspect
import threading
from collections.abc import Iterator
from typing import Final

import pytest

from duly import AsyncCalendars, AsyncSchedules, Calendars, Duly, Schedules
from duly.calls.twins import Twin, awaited
from duly.core import Core
from duly.gateway import AsyncBridgeClient, AsyncGateways, BridgeClient, Gateways
from duly.index import Records, ScheduleCollection
from duly.observe.view import AsyncObserve, Observe

# What gives no answer of the store, and what only HTTP requests need.
NOT_AWAITED = {"of", "under", "find_cron"}


@pytest.mark.parametrize(
    ("sync", "twin"),
    [
        (Schedules, AsyncSchedules),
        (Calendars, AsyncCalendars),
        (Gateways, AsyncGateways),
        (Observe, AsyncObserve),
        (BridgeClient, AsyncBridgeClient),
        (Records, ScheduleCollection),
    ],
)
def test_every_verb_can_be_awaited(sync: type, twin: type):
    members = inspect.getmembers(sync, inspect.isfunction)
    verbs = [name for name, _ in members if name[0] != "_" and name not in NOT_AWAITED]
    for name in verbs:
        one, other = getattr(sync, name), getattr(twin, name)
        assert inspect.iscoroutinefunction(other), name
        assert inspect.signature(other) == inspect.signature(one)
        assert (other.__name__, inspect.getdoc(other)) == (name, inspect.getdoc(one))
    assert verbs


@pytest.fixture
def core() -> Iterator[Core]:
    app = Duly("sqlite:///:memory:")
    yield app.core
    app.close()


class Place:
    def read(self) -> str:
        return threading.current_thread().name

    def write(self, name: str, *, times: int = 1) -> str:
        return f"{name * times} in {self.read()}"


class Elsewhere(Place):
    def read(self) -> str:
        return f"elsewhere, {super().read()}"


class AsyncPlace(Twin[Place]):
    read: Final = awaited(Place.read, reads=True)
    write: Final = awaited(Place.write)


def test_reads_do_not_wait_behind_writes(core: Core):
    place = AsyncPlace(core, Place())

    assert asyncio.run(place.read()).startswith("duly-read")
    assert asyncio.run(place.write("x", times=2)).startswith("xx in duly-call")


def test_what_a_subclass_does_is_what_is_awaited(core: Core):
    assert asyncio.run(AsyncPlace(core, Elsewhere()).read()).startswith("elsewhere, duly-read")


def test_a_wrong_call_is_refused_by_the_name_of_the_verb(core: Core):
    with pytest.raises(TypeError, match=r"Place\.write\(\) missing 1 required .* 'name'"):
        asyncio.run(AsyncPlace(core, Place()).write())  # type: ignore[call-arg]
