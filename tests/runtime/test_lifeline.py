"""A parent sees that a child is stuck."""

import os
from collections.abc import Callable, Iterator

import pytest

from duly.runtime import lifeline as module
from duly.runtime.lifeline import BODY_GRACE, NO_PROGRESS, Lifeline


class Hands:
    """The operating system's clock, in the test's hands."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def time(monkeypatch: pytest.MonkeyPatch) -> Hands:
    hands = Hands()
    monkeypatch.setattr(module, "os_monotonic", hands)
    return hands


@pytest.fixture
def ends(time: Hands) -> Iterator[tuple[Lifeline, Lifeline]]:
    """The parent's end and the child's end of one lifeline."""
    parent, file = Lifeline.create()
    child = Lifeline(file)
    os.close(file)
    yield parent, child
    parent.close()
    child.close()


def test_a_child_that_makes_progress_is_left_alone(
    ends: tuple[Lifeline, Lifeline], time: Hands
) -> None:
    parent, child = ends
    for _ in range(10):
        time.now += NO_PROGRESS - 1
        child.progress()
        assert parent.stuck() is None


class Slow:
    """A time that looks at the lifeline while it is written there."""

    def __init__(self, look: Callable[[], None]) -> None:
        self._look = look

    def __float__(self) -> float:
        self._look()
        return 1000.0


def test_a_parent_that_looks_while_a_time_is_written_sees_the_old_one(
    ends: tuple[Lifeline, Lifeline], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Zeroes in between would be a child without progress since the machine was started."""
    parent, child = ends
    seen: list[str | None] = []

    def look() -> None:
        monkeypatch.setattr(module, "os_monotonic", lambda: 1000.0)
        seen.append(parent.stuck())

    monkeypatch.setattr(module, "os_monotonic", lambda: Slow(look))
    child.progress()

    assert seen == [None]


def test_no_progress_for_a_minute_is_stuck(ends: tuple[Lifeline, Lifeline], time: Hands) -> None:
    parent, _ = ends
    time.now += NO_PROGRESS + 1

    assert parent.stuck() == "it has made no progress for 60 s"


def test_a_mutation_past_its_limit_is_stuck_even_though_the_child_goes_on(
    ends: tuple[Lifeline, Lifeline], time: Hands
) -> None:
    parent, child = ends
    child.body_began("a body", 5)
    time.now += 5 + BODY_GRACE - 0.1
    child.progress()
    assert parent.stuck() is None

    time.now += 0.2
    child.progress()
    assert parent.stuck() == "a mutation holds its transaction past its time limit"


def test_a_mutation_that_ended_holds_nothing(ends: tuple[Lifeline, Lifeline], time: Hands) -> None:
    parent, child = ends
    child.body_began("a body", 5)
    child.body_ended("a body")
    time.now += 30

    assert parent.stuck() is None


def test_one_of_several_mutations_past_its_limit_is_enough(
    ends: tuple[Lifeline, Lifeline], time: Hands
) -> None:
    parent, child = ends
    child.body_began("stuck", 5)
    time.now += 4
    child.body_began("quick", 5)
    child.body_ended("quick")
    time.now += 2 + BODY_GRACE

    assert parent.stuck() == "a mutation holds its transaction past its time limit"
