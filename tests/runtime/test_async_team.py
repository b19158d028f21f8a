"""Async bodies on one loop: those that never wait share a task, but nothing else."""

import asyncio
import threading
from collections.abc import Awaitable, Callable, Iterator, Mapping, MutableMapping
from contextvars import ContextVar
from typing import Any
from weakref import WeakKeyDictionary

import pytest

from duly.errors import Canceled
from duly.model.job import Claim, Outcome, Raised, Succeeded
from duly.runtime.execute import Attempt
from duly.runtime.home import Home
from duly.runtime.reports import current_job
from duly.runtime.teams import AsyncTeam
from tests.jobs.support import PATIENCE, wait_until

Body = Callable[[], Awaitable[object]]

who: ContextVar[str] = ContextVar("who", default="nobody")


class Runnable:
    """A function without arguments."""

    def __init__(self, body: Body) -> None:
        self.body = body

    def decode(self, args: str) -> Mapping[str, Any]:
        return {}

    def encode_result(self, value: object) -> str | None:
        return str(value)

    def may_retry(self, error: BaseException) -> bool:
        return False

    def scrub(self, text: str, args: str) -> str:
        return text

    def call_async(self, running: Attempt, arguments: Mapping[str, Any]) -> Awaitable[object]:
        return self.body()


class Team(AsyncTeam):
    """Its attempts are those of plain bodies, and what came of them is kept."""

    def __init__(self) -> None:
        self.ended: list[Attempt] = []
        self.outcomes: dict[Attempt, Outcome] = {}
        self.made = 0
        super().__init__(self.ended.append)

    def attempt(self, body: Body) -> Attempt:
        self.made += 1
        name, function = f"job {self.made}", getattr(body, "__name__", "body")
        claim = Claim(name, 1, 1, 0, 0, function, "action", "default", 5, 0, None, None, "{}")
        runnable: Any = Runnable(body)
        return Attempt(claim, runnable, self.outcomes.__setitem__)

    def run(self, *bodies: Body) -> list[Outcome]:
        """What came of bodies that were started together."""
        attempts = [self.attempt(body) for body in bodies]
        self.start_many(attempts)
        wait_until(lambda: all(a in self.ended for a in attempts), "all of them have ended")
        return [self.outcomes[attempt] for attempt in attempts]

    def results(self, *bodies: Body) -> list[str | None]:
        outcomes = self.run(*bodies)
        assert all(isinstance(outcome, Succeeded) for outcome in outcomes), outcomes
        return [outcome.result for outcome in outcomes if isinstance(outcome, Succeeded)]


@pytest.fixture
def team() -> Iterator[Team]:
    team = Team()
    yield team
    team.stop()


async def return_task() -> int:
    return id(asyncio.current_task())


async def return_task_later() -> int:
    await asyncio.sleep(0)
    return id(asyncio.current_task())


async def return_who() -> str:
    return who.get()


def test_bodies_that_never_wait_share_a_task(team: Team) -> None:
    assert len(set(team.results(*[return_task for _ in range(5)]))) == 1


def test_a_body_that_has_waited_keeps_its_task_to_itself(team: Team) -> None:
    tasks: list[asyncio.Task[Any]] = []

    async def keep_task() -> None:
        await asyncio.sleep(0)
        task = asyncio.current_task()
        assert task is not None
        tasks.append(task)

    async def compare() -> bool:
        return asyncio.current_task() in tasks

    assert team.results(keep_task, compare, compare)[1:] == ["False", "False"]
    assert team.results(compare) == ["False"]


def test_bodies_that_wait_do_so_beside_each_other(team: Team) -> None:
    there: list[int] = []
    all_there = asyncio.Event()

    async def meet() -> None:
        there.append(1)
        if len(there) == 50:
            all_there.set()
        await all_there.wait()

    assert team.results(*[meet for _ in range(50)]) == [None] * 50


def test_bodies_that_come_while_others_wait_are_run(team: Team) -> None:
    go_on = asyncio.Event()

    async def wait() -> None:
        await go_on.wait()

    async def let_go_on() -> None:
        go_on.set()

    waiting = team.attempt(wait)
    team.start_many([waiting])
    assert len(team.results(return_task, return_task_later, let_go_on)) == 3
    wait_until(lambda: waiting in team.ended, "the one that waited has ended")


def test_bodies_of_a_function_that_waits_begin_in_the_same_round(team: Team) -> None:
    """On a loop that has much to do a round is long."""
    rounds: list[int] = [0]
    began: list[int] = []
    everybody = asyncio.Event()

    def count() -> None:
        rounds[0] += 1
        if not everybody.is_set():
            asyncio.get_running_loop().call_soon(count)

    async def meet() -> None:
        if not began:
            count()
        began.append(rounds[0])
        if len(began) == 50:
            everybody.set()
        await everybody.wait()

    team.run(*[meet for _ in range(50)])
    assert max(began) <= 3


def kept_in(tasks: MutableMapping[Any, Body]) -> Body:
    async def keep_task() -> None:
        task = asyncio.current_task()
        tasks[task] = keep_task

    return keep_task


@pytest.mark.parametrize("tasks", [{}, WeakKeyDictionary()], ids=["dict", "weak"])
def test_what_is_kept_under_a_task_is_not_found_by_the_next_body(
    team: Team, tasks: MutableMapping[Any, Body]
) -> None:
    async def find() -> bool:
        return asyncio.current_task() in tasks

    keep = kept_in(tasks)
    assert team.results(find, keep, find, keep, find)[::2] == ["False"] * 3


def test_the_name_that_a_body_gives_its_task_is_not_for_the_next(team: Team) -> None:
    def task() -> asyncio.Task[Any]:
        task = asyncio.current_task()
        assert task is not None
        return task

    async def look() -> bool:
        return task().get_name() == "mine"

    async def name() -> None:
        task().set_name("mine")

    assert team.results(look, name, look)[::2] == ["False"] * 2


def test_a_cancel_that_was_taken_back_is_not_for_the_next_body(team: Team) -> None:
    async def cancel_and_not() -> None:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        task.uncancel()

    team.results(cancel_and_not, return_task_later, cancel_and_not, return_task_later)


def test_a_task_that_is_to_be_canceled_later_is_not_for_the_next_body(team: Team) -> None:
    async def cancel_later() -> None:
        task = asyncio.current_task()
        assert task is not None
        asyncio.get_running_loop().call_later(0.001, task.cancel)

    async def wait() -> None:
        await asyncio.sleep(0.05)

    team.results(cancel_later, wait, cancel_later, wait)


def test_a_factory_that_begins_tasks_at_once_is_no_obstacle(team: Team) -> None:
    """As bodies can choose one from Python 3.12 on."""

    async def choose() -> None:
        def begin(loop: Any, coroutine: Any, **_: Any) -> Any:
            coroutine.close()
            raise AssertionError("it is not asked")

        asyncio.get_running_loop().set_task_factory(begin)

    assert len(team.results(choose, return_task, return_task_later, return_task_later)) == 4


def test_who_was_handed_over_while_the_loop_was_blocked_ends_when_the_team_stops(
    team: Team,
) -> None:
    began, go_on = threading.Event(), threading.Event()

    async def block() -> None:
        began.set()
        go_on.wait(PATIENCE)

    team.start_many([team.attempt(block), team.attempt(return_task)])
    assert began.wait(PATIENCE)
    team.start_many([team.attempt(return_task)])
    threading.Timer(0.05, go_on.set).start()
    team.stop()
    wait_until(lambda: len(team.ended) == 3, "all have ended")


def test_what_a_body_sets_is_not_seen_by_the_next(team: Team) -> None:
    async def set_who() -> None:
        who.set("somebody")

    async def set_who_late() -> None:
        await asyncio.sleep(0)
        who.set("somebody else")

    bodies = [return_who, set_who, return_who, set_who_late, return_who]
    assert team.results(*bodies)[::2] == ["nobody"] * 3
    assert team.results(return_who) == ["nobody"]


def test_a_body_that_stops_its_own_task_stops_no_other(team: Team) -> None:
    async def stop_itself() -> None:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()

    assert team.results(stop_itself, return_task, return_task_later)[0] is None


def test_what_is_logged_belongs_to_the_body_that_says_it(team: Team) -> None:
    async def now() -> str | None:
        return current_job()

    async def later() -> str | None:
        await asyncio.sleep(0)
        return current_job()

    async def by_its_child() -> str | None:
        return await asyncio.create_task(later())

    attempts = [team.attempt(body) for body in (now, later, now, by_its_child, later)]
    team.start_many(attempts)
    wait_until(lambda: len(team.ended) == len(attempts), "all of them have ended")
    assert [team.outcomes[a] for a in attempts] == [Succeeded(a.claim.id) for a in attempts]


def test_one_that_is_canceled_while_it_waits_is_the_only_one(team: Team) -> None:
    waiting = threading.Semaphore(0)
    stopped: list[str] = []
    go_on = asyncio.Event()

    def wait_as(name: str) -> Body:
        async def wait() -> None:
            waiting.release()
            try:
                await go_on.wait()
            except asyncio.CancelledError:
                stopped.append(name)
                raise

        return wait

    attempts = [team.attempt(wait_as(name)) for name in "abc"]
    team.start_many(attempts)
    for _ in attempts:
        assert waiting.acquire(timeout=PATIENCE)
    attempts[1].take_away(stops=True)
    wait_until(lambda: attempts[1] in team.ended, "the canceled one has ended")

    async def let_go_on() -> None:
        go_on.set()

    team.run(let_go_on)
    wait_until(lambda: len(team.ended) == 4, "all of them have ended")
    assert stopped == ["b"]
    assert attempts[1] not in team.outcomes


def test_a_cancel_that_comes_after_the_end_hits_nobody(team: Team) -> None:
    """It was asked for while the body ran, and reaches the loop when the task is another's."""
    began, go_on = threading.Event(), threading.Event()

    async def block() -> None:
        began.set()
        go_on.wait(PATIENCE)

    blocking = team.attempt(block)
    behind = team.attempt(return_task_later)
    team.start_many([blocking, behind])
    assert began.wait(PATIENCE)
    blocking.take_away(stops=True)
    go_on.set()
    wait_until(lambda: len(team.ended) == 2, "both have ended")
    assert isinstance(team.outcomes[behind], Succeeded)


def test_one_that_is_canceled_before_its_turn_never_begins(team: Team) -> None:
    began, go_on = threading.Event(), threading.Event()
    ran: list[str] = []

    async def block() -> None:
        began.set()
        go_on.wait(PATIENCE)

    async def run() -> None:
        ran.append("behind")

    attempts = [team.attempt(block), team.attempt(run)]
    team.start_many(attempts)
    assert began.wait(PATIENCE)
    attempts[1].take_away(stops=True)
    go_on.set()
    wait_until(lambda: len(team.ended) == 2, "both have ended")
    assert ran == []


def test_an_error_ends_only_its_own_body(team: Team) -> None:
    async def fail() -> None:
        raise ValueError("no")

    async def leave() -> None:
        raise SystemExit(1)

    async def stop() -> None:
        raise asyncio.CancelledError

    outcomes = team.run(fail, leave, stop, return_task)
    assert [type(outcome) for outcome in outcomes] == [Raised, Raised, Raised, Succeeded]


def test_the_queue_goes_on_when_an_end_cannot_be_handed_in(
    team: Team, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(attempt: Attempt, outcome: Outcome) -> None:
        raise RuntimeError("not now")

    broken = team.attempt(return_task)
    monkeypatch.setattr(broken, "_resolve", refuse)
    behind = team.attempt(return_task)
    team.start_many([broken, behind])
    wait_until(lambda: len(team.ended) == 2, "both have ended")
    assert isinstance(team.outcomes[behind], Succeeded)


# Async mutations ---------------------------------------------------------------------------------


def test_a_mutation_that_was_canceled_just_before_it_began_is_canceled(team: Team):
    async def body() -> None:
        await asyncio.sleep(PATIENCE)

    attempt = team.attempt(body)
    attempt.canceled = True
    with pytest.raises(asyncio.CancelledError):
        team.serve(attempt, body(), Home())


def test_a_team_that_has_stopped_runs_no_mutation(team: Team):
    async def body() -> None: ...

    assert team.serve(team.attempt(body), body(), Home()) is None
    team.stop()
    with pytest.raises(Canceled, match="the worker has stopped"):
        team.serve(team.attempt(body), body(), Home())


def test_what_a_mutation_submits_runs_in_the_thread_that_waits_for_it(team: Team):
    home = Home()

    async def body() -> list[int]:
        idents = [asyncio.wrap_future(home.submit(threading.get_ident)) for _ in range(3)]
        return [threading.get_ident(), *await asyncio.gather(*idents)]

    loops, *idents = team.serve(team.attempt(body), body(), home)

    assert idents == [threading.get_ident()] * 3
    assert loops != threading.get_ident()
