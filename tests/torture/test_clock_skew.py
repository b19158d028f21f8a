"""Wrong clocks: nothing fires early, nobody else's job is timed out, nothing runs twice."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator

import pytest

from duly import Ctx, Duly, State, SystemClock
from duly.runtime.janitor import Janitor
from duly.runtime.ticker import Ticker
from tests.cli.processes import wait_until

HOUR = 3600.0
HALF_AN_HOUR = HOUR / 2
DAY = 24 * HOUR
Make = Callable[[float], "Machine"]


class Machine:
    """A process whose wall clock is wrong by so many seconds, and what it has run."""

    def __init__(self, url: str, wrong_by: float) -> None:
        self.wrong_by = wrong_by
        self.app = Duly(url, clock=SystemClock(wall=lambda: time.time() + self.wrong_by))
        self.ran: list[str] = []
        self.let_go = False

        @self.app.action
        def touch(ctx: Ctx, text: str) -> None:
            self.ran.append(text)

        @self.app.action(timeout=60)
        def linger(ctx: Ctx) -> None:
            wait_until(lambda: self.let_go, "the action may end")

        self.touch, self.linger = touch, linger

    def tidy(self) -> None:
        """What its janitor does, after the first look at the database."""
        Janitor(self.app.ready(), self.app.clock).one_pass()


@pytest.fixture
def machine(request: pytest.FixtureRequest) -> Iterator[Make]:
    """Make machines on the test's database, each with a clock of its own."""
    url = request.getfixturevalue("url" if "url" in request.fixturenames else "postgres_url")
    made: list[Machine] = []

    def make(wrong_by: float) -> Machine:
        made.append(Machine(url, wrong_by))
        return made[-1]

    app = Duly(url)
    app.migrate()
    app.close()
    yield make
    for one in made:
        one.let_go = True
        one.app.close()


@pytest.mark.spec("N37")
def test_a_worker_an_hour_ahead_fires_nothing_early(machine, postgres_url):
    right, ahead = machine(0), machine(HOUR)
    early = right.app.run_after(HALF_AN_HOUR, right.touch, "early")
    with ahead.app:
        right.app.run(right.touch, "due").result(timeout=60)
        ahead.app.run(ahead.touch, "its own").result(timeout=60)
        ahead.tidy()
    assert ahead.ran == ["due", "its own"]
    assert early.state == State.PENDING


@pytest.mark.spec("N37")
def test_the_janitor_of_a_machine_an_hour_ahead_times_out_nobody(machine, postgres_url):
    right, ahead = machine(0), machine(HOUR)
    with right.app:
        running = right.app.run(right.linger)
        wait_until(lambda: running.state == State.RUNNING, "the job runs")
        waiting = right.app.run_after(60, right.touch.using(expires=60), "waiting")
        ahead.tidy()
        assert (running.state, waiting.state) == (State.RUNNING, State.PENDING)
        right.let_go = True
        running.result(timeout=60)


@pytest.mark.spec("N37")
@pytest.mark.parametrize("wrong_by", [HOUR, -HOUR])
def test_the_first_job_of_a_machine_with_a_wrong_clock_is_due_in_time(
    machine, postgres_url, wrong_by
):
    wrong = machine(wrong_by)
    job = wrong.app.run_after(60, wrong.touch, "first")
    assert abs(job.created_at.timestamp() - time.time()) < 30
    assert abs(job.run_at.timestamp() - time.time() - 60) < 30


@pytest.mark.spec("R218")
def test_a_clock_that_steps_back_runs_nothing_twice_and_still_runs_what_is_due(machine, url):
    here = machine(0)
    with here.app:
        here.app.run(here.touch, "before").result(timeout=60)
        here.wrong_by = -HOUR
        here.app.run(here.touch, "after").result(timeout=60)
        here.app.run_after(0.2, here.touch, "later").result(timeout=60)
        here.wrong_by = 0
        here.app.run(here.touch, "at the end").result(timeout=60)
    assert here.ran == ["before", "after", "later", "at the end"]


@pytest.mark.spec("R218")
@pytest.mark.parametrize("step", [HOUR, DAY, -HOUR, -DAY])
def test_a_step_of_the_clock_runs_what_is_due_once_and_what_is_not_only_on_sqlite(
    machine, url, step
):
    """PostgreSQL's clock is the truth; on SQLite a later time makes due, and catch_up is obeyed."""
    here = machine(0)
    tick = Ticker(here.app.core).one_pass
    here.app.schedules.create("often", here.touch.bind("tick"), every=300, catch_up=3)
    with here.app:
        here.app.run(here.touch, "now").result(timeout=60)
    waiting = here.app.run_after(HALF_AN_HOUR, here.touch, "waiting")
    here.wrong_by = step
    for _ in range(2):
        tick()
    outcomes = Counter(tick.outcome for tick in here.app.schedules.ticks("often"))
    is_due = step > 0 and url.startswith("sqlite")
    assert outcomes == ({"missed": 1, "dispatched": 3} if is_due else {})
    with here.app:
        here.app.run(here.touch, "then").result(timeout=60)
        if is_due:
            waiting.result(timeout=60)
            wait_until(lambda: here.ran.count("tick") == 3, "what was caught up has run")
    assert Counter(here.ran) == Counter(["now", "then"] + ["waiting", *["tick"] * 3] * is_due)


# The clock by itself


class Times:
    """A wall and a monotonic clock that a test moves."""

    def __init__(self) -> None:
        self.wall = 1_000_000.0
        self.monotonic = 50.0
        self.clock = SystemClock(lambda: self.wall, lambda: self.monotonic)

    def pass_seconds(self, seconds: float) -> None:
        self.wall += seconds
        self.monotonic += seconds


@pytest.mark.spec("R218")
def test_a_step_back_slows_the_clock_down_and_never_turns_it_back():
    times = Times()
    before = times.clock.now()
    times.wall -= HOUR
    assert times.clock.now() == before
    times.pass_seconds(10)
    assert times.clock.now() == before + 5_000
    times.pass_seconds(2 * HOUR)
    assert times.clock.now() == int(times.wall * 1000)


def test_a_slow_clock_is_not_stopped_by_those_who_ask_often():
    times = Times()
    before = times.clock.now()
    times.wall -= HOUR
    for _ in range(1000):
        times.pass_seconds(0.0001)
        times.clock.now()
    assert times.clock.now() == pytest.approx(before + 50, abs=1)


def test_the_first_answer_of_the_server_replaces_a_wrong_clock():
    times = Times()
    times.clock.now()
    times.clock.follow_server(times.wall - HOUR, times.monotonic, times.monotonic)
    assert times.clock.now() == int((times.wall - HOUR) * 1000)


@pytest.mark.spec("R218")
def test_a_later_answer_of_the_server_does_not_turn_the_clock_back():
    times = Times()
    times.clock.follow_server(times.wall, times.monotonic, times.monotonic)
    before = times.clock.now()
    times.clock.follow_server(times.wall - 5, times.monotonic, times.monotonic)
    assert times.clock.now() == before


@pytest.mark.parametrize(
    ("held", "late"), [("question", (0, 0, 0)), ("answer", (4, 0, 0))], ids=["question", "answer"]
)
def test_a_question_or_an_answer_that_was_held_up_never_puts_the_clock_ahead(
    held: str, late: tuple[int, ...]
):
    """The first one is all that is known; a later one is not believed."""
    times = Times()
    for seconds, expected in zip((4, 0, 4), late, strict=True):
        asked_at = times.monotonic
        times.pass_seconds(seconds if held == "question" else 0)
        answer = times.wall
        times.pass_seconds(seconds if held == "answer" else 0)
        times.clock.follow_server(answer, asked_at, times.monotonic)
        assert times.wall - times.clock.now() / 1000 == expected
