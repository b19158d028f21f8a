"""Threads for the bodies of actions: as many as there are bodies, whoever wakes first."""

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from duly.runtime.teams import ThreadTeam
from tests.jobs.support import PATIENCE, wait_until

Body = Callable[[], object]


class Team(ThreadTeam):
    """Its attempts are plain bodies."""

    def __init__(self, most: int) -> None:
        self.ended: list[Any] = []
        super().__init__(most, 0, self.ended.append, lambda body: body())  # type: ignore[operator]

    def start(self, body: Body) -> None:
        self.start_many([body])  # type: ignore[list-item]


@pytest.fixture
def team() -> Iterator[Team]:
    team = Team(most=2)
    yield team
    team.stop()


def test_a_body_waits_for_no_thread_that_was_just_given_another() -> None:
    """One thread is idle when two bodies come one right after the other."""
    for _ in range(20):
        team = Team(most=2)
        team.start(lambda: None)
        wait_until(lambda: len(team.ended) == 1, "there is a thread")  # noqa: B023
        go_on, began = threading.Event(), threading.Event()
        team.start(lambda: go_on.wait(PATIENCE))  # noqa: B023
        team.start(began.set)
        began_beside_it = began.wait(PATIENCE / 10)
        go_on.set()
        team.stop()
        assert began_beside_it


def test_where_no_thread_can_be_started_bodies_wait_for_one(
    team: Team, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", refuse)
        team.start(lambda: None)
    assert "cannot start another thread; 1 actions share 0: can't start new thread" in caplog.text
    assert team.ended == []

    team.start(lambda: None)
    wait_until(lambda: len(team.ended) == 2, "both have ended")


def test_what_was_taken_back_counts_no_more(team: Team) -> None:
    go_on, began = threading.Event(), threading.Semaphore(0)

    def wait() -> None:
        began.release()
        go_on.wait(PATIENCE)

    for _ in range(2):
        team.start(wait)
        assert began.acquire(timeout=PATIENCE)
    team.start(wait)

    assert len(team.take_back()) == 1
    go_on.set()
    wait_until(lambda: len(team.ended) == 2, "both have ended")
    assert team.take_back() == []


def test_a_thread_outlives_what_goes_wrong_with_an_attempt(
    team: Team, caplog: pytest.LogCaptureFixture
) -> None:
    def fail() -> None:
        raise SystemExit(1)

    for _ in range(3):
        team.start(fail)
    team.start(lambda: None)

    wait_until(lambda: len(team.ended) == 4, "all have ended")
    assert "a thread continues" in caplog.text
