"""Wrong clocks: nothing fires early, nobody else's job is timed out, nothing runs twice.

A clock that is wrong for a moment is not believed; one that stays wrong is, until it is right.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator

import pytest

from duly import Ctx, Duly, State, SystemClock
from duly.clock import from_ms
from duly.model.schedule import Override, plan_of
from duly.runtime.janitor import Janitor
from duly.runtime.ticker import Ticker
from duly.store.postgres import PostgresStore
from duly.store.postgres.store import SERVER_TIME
from tests.cli.processes import wait_until
from tests.jobs.support import ManualWorker

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


# Steps of the clock that an app follows: the machine's on SQLite, the server's on PostgreSQL


class Stepped:
    """An app in virtual time: what it follows can be wrong, and a worker steps when told to."""

    def __init__(self, url: str) -> None:
        self.times = Times()
        self.app = app = Duly(url, clock=self.times.clock)
        self.store = app.store
        self._tell_server()
        app.migrate()
        self.ran: list[str] = []

        @app.action
        def touch(ctx: Ctx, text: str) -> None:
            self.ran.append(text)

        self.touch = touch
        self.worker = ManualWorker(app)
        self.janitor = Janitor(app.ready(), app.clock)
        self.ticker = Ticker(app.core)

    def _tell_server(self) -> None:
        if isinstance(self.store, PostgresStore):
            self.store.sql[SERVER_TIME] = f"SELECT {self.times.wall}::float8".encode()

    def step(self, seconds: float) -> None:
        """The clock that is followed steps; the work of a second is done."""
        self.times.wall += seconds
        self.live(1)

    def live(self, seconds: int) -> None:
        """Each second all loops of a worker process have their turn."""
        for _ in range(seconds):
            self._tell_server()
            self.worker.beat()
            self.janitor.one_pass()
            while self.ticker.one_pass() == 0:
                pass
            self.worker.work()
            self.times.pass_seconds(1)

    def wait(self, seconds: int) -> None:
        """The same in fewer, longer steps."""
        for _ in range(seconds // 10):
            self.times.pass_seconds(9)
            self.live(1)

    def outcomes(self, key: str) -> Counter[str]:
        return Counter(tick.outcome for tick in self.app.schedules.ticks(key))

    def next_in(self, key: str) -> float | None:
        """After how many seconds a schedule ticks."""
        due_at = self.app.schedules.get(key).record.due_at
        return None if due_at is None else (due_at - self.app.clock.now()) / 1000

    def is_ahead_by(self) -> float:
        """Of the truth as it would be if nothing had stepped."""
        return self.app.clock.now() / 1000 - self.times.monotonic - Times.BEGIN


@pytest.fixture
def stepped(url: str) -> Iterator[Stepped]:
    made = Stepped(url)
    yield made
    made.worker.stop()
    made.app.close()


YEAR = 365 * DAY


@pytest.mark.spec("N41")
def test_a_clock_that_is_wrong_for_seconds_leaves_no_trace(stepped):
    app, touch = stepped.app, stepped.touch
    app.schedules.create("often", touch.bind("tick"), every=1_000, catch_up=10)
    stepped.live(1)
    later = app.run_after(DAY / 4, touch, "later")
    fading = app.run_after(HOUR, touch.using(expires=HOUR), "fading")
    for step, seconds in zip(
        (7, DAY, 3 * YEAR, -7, -DAY, -3 * YEAR), (27, 1, 26, 1, 27, 5), strict=True
    ):
        stepped.step(step)
        stepped.live(seconds)
        due = app.run_after(1, touch, "due")
        stepped.live(1)
        assert due.state == State.PENDING
        stepped.live(1)
        assert due.state == State.SUCCEEDED, "it was due by the old clock"
        stepped.step(-step)
        assert stepped.is_ahead_by() == pytest.approx(0, abs=0.001)
    assert (later.state, fading.state) == (State.PENDING, State.PENDING)
    assert stepped.outcomes("often") == {}
    in_two_hours = app.run_after(2 * HOUR, touch, "in two hours")
    assert in_two_hours.run_at.timestamp() == pytest.approx(stepped.times.wall + 2 * HOUR)


@pytest.mark.spec("N41")
def test_a_step_that_lasts_is_believed_and_if_it_is_withdrawn_schedules_are_aimed_anew(stepped):
    app, touch, step = stepped.app, stepped.touch, YEAR
    app.schedules.create("often", touch.bind("tick"), every=300, catch_up=3)
    app.schedules.create("daily", touch.bind("daily"), cron="0 12 * * *")
    app.schedules.create("once", touch.bind("once"), at=from_ms(app.clock.now() + 7_200_000))
    stopped = app.schedules.create("off", touch.bind("off"), every=300, enabled=False)
    later = app.run_after(DAY / 4, touch, "later")
    stepped.step(step)
    stepped.live(28)
    assert later.state == State.PENDING
    stepped.live(3)
    assert later.state == State.SUCCEEDED
    assert stepped.is_ahead_by() == pytest.approx(step)
    assert stepped.outcomes("often") == {"missed": 1, "dispatched": 3}
    app.schedules.create("made then", touch.bind("new"), cron="0 13 * * *")
    told = len(stepped.ran)

    stepped.step(-step)
    stepped.live(31)
    assert stepped.is_ahead_by() == pytest.approx(0, abs=0.001)
    ahead = {one.key: stepped.next_in(one.key) for one in app.schedules.list()}
    assert 0 < ahead["often"] <= 300
    assert 0 < ahead["daily"] <= DAY
    assert 0 < ahead["made then"] <= DAY
    assert ahead["once"] is None, "it has been dispatched, and its slot is taken"
    assert ahead["off"] is None
    assert app.schedules.get("off").record == stopped.record
    stepped.wait(1_200)
    assert stepped.ran[told:] == ["tick"] * 4
    often = app.schedules.get("often").id
    assert app.ready().audit_of(f"schedule:{often}")[0].action == "schedule.re_aim"


@pytest.mark.spec("N41")
def test_slots_that_a_clock_ahead_has_taken_are_not_dispatched_again(stepped):
    app, touch = stepped.app, stepped.touch
    app.schedules.create("often", touch.bind("tick"), every=300, catch_up=1000)
    stepped.step(1500)
    stepped.live(31)
    assert stepped.outcomes("often") == {"dispatched": 5}
    stepped.step(-1500)
    stepped.live(31)
    stepped.wait(3_000)
    ticks = app.schedules.ticks("often")
    assert stepped.outcomes("often") == {"dispatched": len(ticks)}
    assert len({tick.at for tick in ticks}) == len(ticks) == len(stepped.ran) >= 9


@pytest.mark.spec("N41")
def test_a_restart_of_everything_aims_schedules_at_what_is_to_come(stepped):
    """All that had seen the wrong time are gone. A skip of the next tick holds for the next one."""
    app, touch = stepped.app, stepped.touch
    app.schedules.create("often", touch.bind("tick"), every=300, catch_up=0)
    app.schedules.create("moved", touch.bind("moved"), every=300, catch_up=0)
    stepped.step(DAY)
    stepped.live(31)
    app.schedules.skip_next("often")
    app.schedules.move_next("moved", from_ms(app.clock.now() + 299_000))
    stepped.times.wall -= DAY
    stepped.times.clock = SystemClock(lambda: stepped.times.wall, lambda: stepped.times.monotonic)
    app.core.clock = stepped.times.clock
    Ticker(app.core).one_pass()
    assert 0 < stepped.next_in("often") <= 300
    assert 0 < stepped.next_in("moved") <= 300
    often = app.schedules.get("often").record
    assert plan_of(often).override == Override(often.next_tick_at)


@pytest.mark.spec("N41")
def test_a_tick_that_an_operator_has_hurried_is_no_sign_of_a_wrong_clock(stepped):
    app, touch = stepped.app, stepped.touch
    app.schedules.create("daily", touch.bind("tick"), every=DAY)
    stepped.live(1)
    app.schedules.move_next("daily", from_ms(app.clock.now()))
    stepped.live(1)
    standing = app.schedules.get("daily").record
    Ticker(app.core).one_pass()
    assert stepped.outcomes("daily") == {"dispatched": 1}
    assert app.schedules.get("daily").record == standing


# The clock by itself


class Times:
    """A wall and a monotonic clock that a test moves."""

    BEGIN = 1_767_225_600.0

    def __init__(self, *, server: bool = False) -> None:
        self.wall = self.BEGIN + 50.0
        self.monotonic = 50.0
        self.has_server = server
        self.clock = SystemClock(self._own_wall, lambda: self.monotonic)

    def _own_wall(self) -> float:
        return self.wall - HOUR if self.has_server else self.wall

    def pass_seconds(self, seconds: float) -> None:
        self.wall += seconds
        self.monotonic += seconds

    def look(self) -> float:
        """What the clock says, in seconds since the test began; a server is asked before that."""
        if self.has_server:
            self.clock.follow_server(self.wall, self.monotonic, self.monotonic)
        return round(self.clock.now() / 1000 - self.BEGIN - 50, 3)

    def look_for(self, seconds: int) -> list[float]:
        looked = []
        for _ in range(seconds):
            self.pass_seconds(1)
            looked.append(self.look())
        return looked


@pytest.fixture(params=["machine", "server"])
def times(request: pytest.FixtureRequest) -> Times:
    times = Times(server=request.param == "server")
    assert times.look() == 0
    return times


@pytest.mark.spec("N41")
@pytest.mark.parametrize("step", [5.1, DAY, 30 * 365 * DAY, -5.1, -DAY, -30 * 365 * DAY])
def test_a_step_is_believed_when_it_has_lasted_thirty_seconds(times, step):
    times.wall += step
    assert times.look() == 0
    assert times.look_for(29) == list(range(1, 30))
    times.pass_seconds(1)
    # A small one back is caught up with at half the pace; the clock goes back by a large one.
    assert times.look() == pytest.approx(29.5 if step == -5.1 else 30 + step)
    times.look_for(11)
    times.pass_seconds(1)
    assert times.look() == pytest.approx(42 + step)


@pytest.mark.spec("N41")
def test_a_step_that_is_withdrawn_is_over_within_a_minute(times):
    times.wall += DAY
    times.look_for(31)
    times.wall -= DAY
    assert times.look() == 31 + DAY
    assert times.look_for(60)[30:] == list(range(62, 92))


@pytest.mark.spec("N41")
def test_a_clock_that_flaps_is_not_believed(times):
    for _ in range(20):
        times.wall += DAY
        times.look_for(10)
        times.wall -= DAY
        times.look_for(10)
    assert times.look() == 400


@pytest.mark.spec("N41")
def test_the_time_of_a_second_step_begins_anew(times):
    times.wall += DAY
    times.look_for(20)
    times.wall += DAY
    assert times.look_for(30)[-1] == 50
    times.pass_seconds(1)
    assert times.look() == 51 + 2 * DAY


@pytest.mark.spec("N41")
def test_a_clock_that_runs_away_is_not_followed_and_one_that_drifts_is(times):
    for _ in range(100):
        times.pass_seconds(1)
        times.wall += 1
        assert times.look() <= times.monotonic - 50 + 5
    run_away = times.look()
    times.wall -= 100
    assert times.look() >= run_away - 0.01
    times.look_for(60)
    for _ in range(600):
        times.pass_seconds(1)
        times.wall += 0.1
        times.look()
    assert times.look() == pytest.approx(times.wall - times.BEGIN - 50, abs=0.01)


@pytest.mark.spec("R218")
def test_a_small_step_back_slows_the_clock_down_and_never_turns_it_back(times):
    times.wall -= 4
    assert times.look() == 0
    times.pass_seconds(2)
    assert times.look() == 1
    times.pass_seconds(10)
    assert times.look() == 8


def test_a_slow_clock_is_not_stopped_by_those_who_ask_often():
    times = Times()
    before = times.clock.now()
    times.wall -= 4
    for _ in range(1000):
        times.pass_seconds(0.0001)
        times.clock.now()
    assert times.clock.now() == pytest.approx(before + 50, abs=1)


@pytest.mark.spec("N41")
def test_an_answer_of_the_server_that_took_long_says_little_of_a_step():
    times = Times(server=True)
    times.look()
    times.wall += DAY
    for _ in range(4):
        times.look()
        asked_at = times.monotonic
        times.pass_seconds(10)
        # Neither does it begin the time anew, nor is it taken for another step.
        times.clock.follow_server(times.wall - 9, asked_at, times.monotonic)
    assert times.look() == 40 + DAY


def test_the_first_answer_of_the_server_replaces_a_wrong_clock():
    times = Times()
    times.clock.now()
    times.clock.follow_server(times.wall - HOUR, times.monotonic, times.monotonic)
    assert times.clock.now() == int((times.wall - HOUR) * 1000)


def test_a_process_without_a_worker_asks_the_server_again(postgres_url):
    times = Times()
    app = Duly(postgres_url, clock=times.clock)
    store = app.store
    assert isinstance(store, PostgresStore)
    for seconds in (0, 1, 1, 31):
        times.pass_seconds(seconds)
        times.wall += 8 if seconds == 1 else 0
        store.sql[SERVER_TIME] = f"SELECT {times.wall}::float8".encode()
        if seconds == 0:
            app.migrate()
        app.jobs()
    assert times.clock.now() == int(times.wall * 1000) - 16_000
    times.pass_seconds(31)
    store.sql[SERVER_TIME] = f"SELECT {times.wall}::float8".encode()
    app.jobs()
    assert times.clock.now() == int(times.wall * 1000)
    app.close()


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
