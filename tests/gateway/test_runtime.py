"""A gateway's runtime on a real file, on a clock that stands still."""

import asyncio
import contextlib
import threading
from collections.abc import Iterator
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from duly import ManualClock, every
from duly.errors import (
    BadInput,
    CronExists,
    CronNotFound,
    InvalidFunction,
    InvalidOption,
    StoreFull,
    StoreTooNew,
    StoreUnavailable,
)
from duly.gateway import Gateway, GatewayCron
from duly.gateway import statements as sql
from duly.runtime.loop import AFTER_ERROR
from tests.gateway.test_rest import Api
from tests.jobs.support import PATIENCE, wait_until

MINUTE = every(minutes=1)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(datetime(2026, 7, 1, 9, 0, tzinfo=UTC))


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "crons.db"


class Probe:
    """A handler that a test lets end when it likes, and which can fail."""

    def __init__(self) -> None:
        self.calls: list[dict[str, object]] = []
        self.goes_on = threading.Event()
        self.goes_on.set()
        self.fails = False
        self.at_once = self.most_at_once = 0

    def __call__(self, **payload: object) -> None:
        self.at_once += 1
        self.most_at_once = max(self.at_once, self.most_at_once)
        self.calls.append(payload)
        assert self.goes_on.wait(PATIENCE)
        self.at_once -= 1
        if self.fails:
            raise ValueError("no capacity")


@pytest.fixture
def probe() -> Iterator[Probe]:
    probe = Probe()
    yield probe
    probe.goes_on.set()


@pytest.fixture
def gateway(file: Path, clock: ManualClock, probe: Probe) -> Iterator[Gateway]:
    gateway = Gateway(file, {"probe": probe}, clock=clock, name="edge").open()
    yield gateway
    probe.goes_on.set()
    gateway.stop()


def idle(gateway: Gateway, cron: GatewayCron) -> GatewayCron:
    """The cron when it does not run any more."""
    wait_until(lambda: gateway.cron_get(cron.id).running_at is None, "the end of the run")
    return gateway.cron_get(cron.id)


def pass_and_wait(gateway: Gateway, cron: GatewayCron) -> GatewayCron:
    gateway.one_pass()
    return idle(gateway, cron)


# The verbs ---------------------------------------------------------------------------------------


@pytest.mark.spec("R43")
def test_the_list_hides_what_is_disabled_unless_asked(gateway):
    shown = gateway.cron_add("probe", MINUTE, name="shown")
    hidden = gateway.cron_add("probe", MINUTE, name="hidden", enabled=False)

    assert gateway.cron_list().crons == (shown,)
    assert gateway.cron_list(disabled=True).crons == (shown, hidden)


@pytest.mark.spec("R43")
@pytest.mark.parametrize("limit", [0, 201, -1, "10", True, None])
def test_the_list_has_a_limit_of_1_to_200(gateway, limit):
    with pytest.raises(InvalidOption, match="limit"):
        gateway.cron_list(limit=limit)


@pytest.mark.spec("R43")
def test_the_list_comes_in_pages(gateway):
    made = [gateway.cron_add("probe", MINUTE, name=f"c{n}") for n in range(5)]

    first = gateway.cron_list(limit=2)
    second = gateway.cron_list(limit=2, after=first.after)
    third = gateway.cron_list(limit=200, after=second.after)

    assert [*first.crons, *second.crons, *third.crons] == made
    assert third.after is None


def test_names_are_unique(gateway):
    gateway.cron_add("probe", MINUTE)
    other = gateway.cron_add("probe", MINUTE, name="other")

    with pytest.raises(CronExists):
        gateway.cron_add("probe", MINUTE)
    with pytest.raises(CronExists):
        gateway.cron_update(other.id, name="probe")
    assert gateway.cron_get(other.id) == other


@pytest.mark.parametrize("handler", ["prob", "", "x" * 300])
def test_a_cron_needs_a_handler_that_there_is(gateway, handler):
    with pytest.raises(BadInput):
        gateway.cron_add(handler, MINUTE)
    assert gateway.cron_list(disabled=True).crons == ()


def test_the_nearest_handler_is_suggested(gateway):
    with pytest.raises(InvalidOption, match="did you mean 'probe'"):
        gateway.cron_add("prob", MINUTE)


def test_a_payload_must_fit_its_handler(file, clock):
    gateway = Gateway(file, {"clear": lambda cache, force=False: None}, clock=clock).open()

    with pytest.raises(InvalidOption, match="payload"):
        gateway.cron_add("clear", MINUTE, payload={"cash": "hot"})
    made = gateway.cron_add("clear", MINUTE, payload={"cache": "hot"})
    with pytest.raises(InvalidOption, match="payload"):
        gateway.cron_update(made.id, payload={})
    gateway.stop()


@pytest.mark.spec("R45")
def test_only_a_change_of_time_moves_the_next_run(gateway, clock):
    made = gateway.cron_add("probe", MINUTE)
    clock.advance(90)

    renamed = gateway.cron_update(made.id, name="other", payload={"n": 1})
    moved = gateway.cron_update(made.id, schedule=every(minutes=5))

    assert renamed.next_at == made.next_at
    assert moved.next_at == datetime(2026, 7, 1, 9, 6, 30, tzinfo=UTC)
    assert gateway.cron_update(made.id, enabled=False).next_at is None


@pytest.mark.spec("R47")
def test_to_remove_what_is_not_there_is_no_error(gateway):
    made = gateway.cron_add("probe", MINUTE)

    assert gateway.cron_remove(made.id).removed is True
    assert gateway.cron_remove(made.id).removed is False
    assert gateway.cron_remove("nonsense").removed is False


def test_other_verbs_say_that_there_is_no_such_cron(gateway):
    for verb in (gateway.cron_get, gateway.cron_run, gateway.cron_update):
        with pytest.raises(CronNotFound):
            verb("nobody")


# Runs --------------------------------------------------------------------------------------------


def test_what_is_due_runs_with_its_payload_and_not_before(gateway, clock, probe):
    made = gateway.cron_add("probe", MINUTE, payload={"url": "http://a"})
    delay = gateway.one_pass()
    assert (delay, probe.calls) == (60.0, [])

    clock.advance(delay)
    after = pass_and_wait(gateway, made)

    assert probe.calls == [{"url": "http://a"}]
    assert after.last_status == "ok"
    assert after.last_run_at == datetime(2026, 7, 1, 9, 1, tzinfo=UTC)
    assert after.next_at == datetime(2026, 7, 1, 9, 2, tzinfo=UTC)


@pytest.mark.spec("R46")
def test_force_runs_and_due_may_answer_not_due_and_running_is_said(gateway, clock, probe):
    made = gateway.cron_add("probe", MINUTE)
    assert gateway.cron_run(made.id, "due") == gateway.cron_run(made.id, mode="due")
    assert gateway.cron_run(made.id, "due").reason == "not-due"
    assert probe.calls == []

    probe.goes_on.clear()
    assert gateway.cron_run(made.id).ran is True
    assert gateway.cron_run(made.id).reason == "already-running"
    assert gateway.cron_run(made.id, "due").reason == "already-running"
    probe.goes_on.set()
    idle(gateway, made)

    clock.advance(60)
    assert gateway.cron_run(made.id, "due").ran is True
    with pytest.raises(InvalidOption, match="mode"):
        gateway.cron_run(made.id, "often")


def test_a_disabled_cron_can_be_forced_and_stays_disabled(gateway, probe):
    made = gateway.cron_add("probe", MINUTE, enabled=False)

    assert gateway.cron_run(made.id).ran is True
    after = idle(gateway, made)

    assert (after.enabled, after.next_at, after.last_status) == (False, None, "ok")


def test_many_who_force_at_once_get_one_run(gateway, probe):
    made = gateway.cron_add("probe", MINUTE)
    probe.goes_on.clear()
    answers = []
    threads = [
        threading.Thread(target=lambda: answers.append(gateway.cron_run(made.id).ran))
        for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)

    assert sorted(answers) == [False] * 7 + [True]
    assert probe.most_at_once <= 1


def test_a_run_longer_than_its_interval_is_not_overtaken(gateway, clock, probe):
    made = gateway.cron_add("probe", every(seconds=1))
    probe.goes_on.clear()
    clock.advance(1)
    gateway.one_pass()
    for _ in range(5):
        clock.advance(1)
        gateway.one_pass()
    probe.goes_on.set()
    after = idle(gateway, made)

    assert len(probe.calls) == 1
    assert after.next_at == datetime(2026, 7, 1, 9, 0, 7, tzinfo=UTC)


@pytest.mark.spec("R49")
def test_errors_put_the_next_run_off_and_success_resets(gateway, clock, probe):
    made = gateway.cron_add("probe", every(seconds=10))
    probe.fails = True
    clock.advance(10)
    failed = pass_and_wait(gateway, made)
    assert failed.last_error == "ValueError: no capacity"
    assert failed.next_at == datetime(2026, 7, 1, 9, 0, 40, tzinfo=UTC)

    clock.advance(20)
    gateway.one_pass()
    assert len(probe.calls) == 1
    clock.advance(10)
    failed = pass_and_wait(gateway, made)
    assert failed.consecutive_errors == 2
    assert failed.next_at == datetime(2026, 7, 1, 9, 1, 40, tzinfo=UTC)

    probe.fails = False
    clock.advance(60)
    fine = pass_and_wait(gateway, made)
    assert (fine.consecutive_errors, fine.last_error) == (0, None)
    assert fine.next_at == datetime(2026, 7, 1, 9, 1, 50, tzinfo=UTC)


@pytest.mark.spec("R48")
@pytest.mark.parametrize("fails", [False, True])
def test_a_single_moment_runs_once_and_is_disabled(gateway, clock, probe, fails):
    made = gateway.cron_add("probe", {"kind": "at", "at": "2026-07-01T09:00:30"})
    probe.fails = fails
    clock.advance(30)
    over = pass_and_wait(gateway, made)
    clock.advance(7200)
    gateway.one_pass()

    assert (over.enabled, over.next_at) == (False, None)
    assert len(probe.calls) == 1
    assert gateway.cron_list().crons == ()


def test_async_handlers_run_too(file, clock):
    gateway = Gateway(file, clock=clock).open()
    ran = []

    @gateway.handler("refresh")
    async def refresh(models: list[str]) -> None:
        await asyncio.sleep(0)
        ran.extend(models)

    made = gateway.cron_add("refresh", MINUTE, payload={"models": ["a", "b"]})
    gateway.cron_run(made.id)

    assert idle(gateway, made).last_status == "ok"
    assert ran == ["a", "b"]
    gateway.stop()


def test_an_async_run_that_takes_too_long_is_canceled(file, clock):
    gateway = Gateway(file, clock=clock).open()
    canceled = threading.Event()
    started = threading.Event()

    @gateway.handler("hang", timeout=5)
    async def hang() -> None:
        started.set()
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            canceled.set()
            raise

    made = gateway.cron_add("hang", MINUTE)
    gateway.cron_run(made.id)
    assert started.wait(PATIENCE)
    clock.advance(5)
    gateway.one_pass()

    assert canceled.wait(PATIENCE)
    after = idle(gateway, made)
    assert (after.last_status, after.consecutive_errors) == ("error", 1)
    assert after.last_error == "TimeoutError: took longer than 5 s"
    gateway.stop()


@contextlib.contextmanager
def full_disk(gateway: Gateway, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[bool]]:
    """Nothing can be written; each time that somebody tries is noted."""
    tried: list[bool] = []

    def fail(*_: object) -> None:
        tried.append(True)
        raise StoreFull("the disk is full")

    with monkeypatch.context() as patched:
        patched.setattr(gateway._store, "edit", fail)
        patched.setattr(gateway._store, "rest", fail)
        yield tried


def test_an_end_that_could_not_be_written_is_written_later(gateway, clock, probe, monkeypatch):
    made = gateway.cron_add("probe", MINUTE)
    probe.goes_on.clear()
    gateway.cron_run(made.id)
    with full_disk(gateway, monkeypatch) as tried:
        clock.advance(2)
        probe.goes_on.set()
        wait_until(lambda: tried)
        assert gateway.one_pass() == AFTER_ERROR
    assert gateway.cron_run(made.id).reason == "already-running"
    clock.advance(7)
    gateway.one_pass()

    after = gateway.cron_get(made.id)
    assert (after.last_status, after.last_duration_ms, after.running_at) == ("ok", 2000, None)
    assert gateway.cron_run(made.id).ran


def test_a_run_that_takes_too_long_is_canceled_whatever_can_be_written(file, clock, monkeypatch):
    gateway = Gateway(file, clock=clock).open()
    canceled, started = threading.Event(), threading.Event()

    @gateway.handler("hang", timeout=5)
    async def hang() -> None:
        started.set()
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            canceled.set()
            raise

    made = gateway.cron_add("hang", MINUTE)
    gateway.cron_run(made.id)
    assert started.wait(PATIENCE)
    clock.advance(5)
    with full_disk(gateway, monkeypatch):
        gateway.one_pass()
        assert canceled.wait(PATIENCE)
    gateway.stop()
    gateway.open()

    after = gateway.cron_get(made.id)
    assert after.last_error == "TimeoutError: took longer than 5 s", "written before it stopped"
    assert after.running_at is None
    gateway.stop()


def test_a_sync_run_that_takes_too_long_is_an_error_and_is_not_overtaken(gateway, clock, probe):
    made = gateway.cron_add("probe", MINUTE)
    probe.goes_on.clear()
    gateway.cron_run(made.id)
    clock.advance(61)
    gateway.one_pass()
    late = gateway.cron_get(made.id)
    assert late.last_status == "error"
    assert late.running_at is not None

    clock.advance(3600)
    gateway.one_pass()
    assert gateway.cron_run(made.id).reason == "already-running"
    probe.goes_on.set()
    assert idle(gateway, made).consecutive_errors == 1
    assert probe.most_at_once == 1


def _has_called(probe: Probe, times: int) -> bool:
    return len(probe.calls) == times


def test_runs_that_do_not_end_leave_room_for_others_up_to_a_limit(
    gateway, clock, probe, monkeypatch, caplog
):
    monkeypatch.setattr("duly.gateway.runtime.AT_ONCE", 2)
    monkeypatch.setattr("duly.gateway.runtime.MAX_RUNS", 4)
    crons = [gateway.cron_add("probe", MINUTE, name=f"hangs {n}") for n in range(5)]
    probe.goes_on.clear()
    for so_far in (2, 4):
        clock.advance(61)
        gateway.one_pass()
        # Those that hang have only just begun, or lost their places.
        wait_until(partial(_has_called, probe, so_far))
    assert not gateway.is_stuck

    clock.advance(61)
    delay = gateway.one_pass()
    assert gateway.is_stuck
    assert "do not end" in caplog.text
    assert delay > 0
    assert Api(gateway)("GET", "/healthz").status_code == 503
    clock.advance(61)
    gateway.one_pass()
    assert len(probe.calls) == 4

    probe.goes_on.set()
    for cron in crons:
        idle(gateway, cron)
    assert not gateway.is_stuck
    clock.advance(61)
    gateway.one_pass()
    wait_until(lambda: len(probe.calls) > 4)


def test_a_handler_that_is_gone_is_an_error_of_its_cron(file, clock, probe):
    first = Gateway(file, {"probe": probe, "gone": probe}, clock=clock).open()
    orphan = first.cron_add("gone", every(seconds=1))
    first.cron_add("probe", every(seconds=1))
    first.stop()
    second = Gateway(file, {"probe": probe}, clock=clock).open()
    clock.advance(1)
    second.one_pass()

    after = idle(second, orphan)
    wait_until(lambda: probe.calls)
    assert after.last_status == "error"
    assert "no handler 'gone'" in (after.last_error or "")
    assert after.next_at == datetime(2026, 7, 1, 9, 0, 31, tzinfo=UTC)
    second.stop()


def test_a_cron_removed_while_it_runs_stays_removed(gateway, probe):
    made = gateway.cron_add("probe", MINUTE)
    probe.goes_on.clear()
    gateway.cron_run(made.id)
    gateway.cron_remove(made.id)
    probe.goes_on.set()
    wait_until(lambda: probe.at_once == 0)

    assert gateway.cron_list(disabled=True).crons == ()


def test_the_loop_runs_what_becomes_due(gateway, clock, probe):
    gateway.start()
    gateway.cron_add("probe", MINUTE)
    clock.advance(60)

    wait_until(lambda: len(probe.calls) == 1)
    gateway.stop()


# Stops and starts --------------------------------------------------------------------------------


def test_what_was_due_while_it_was_down_runs_once(file, clock, probe):
    with contextlib.closing(_Stops(Gateway(file, {"probe": probe}, clock=clock).open())) as first:
        made = first.gateway.cron_add("probe", MINUTE)
    clock.advance(3600)
    second = Gateway(file, {"probe": probe}, clock=clock).open()

    after = pass_and_wait(second, made)
    second.one_pass()

    assert len(probe.calls) == 1
    assert after.next_at == datetime(2026, 7, 1, 10, 1, tzinfo=UTC)
    second.stop()


class _Stops:
    def __init__(self, gateway: Gateway) -> None:
        self.gateway = gateway

    def close(self) -> None:
        self.gateway.stop()


@pytest.mark.spec("R50")
def test_a_run_that_outlives_its_gateway_is_interrupted_and_not_repeated(file, clock, probe):
    first = Gateway(file, {"probe": probe}, clock=clock).open()
    made = first.cron_add("probe", MINUTE)
    probe.goes_on.clear()
    clock.advance(60)
    first.one_pass()
    wait_until(lambda: probe.calls)
    first.stop(drain=0)
    clock.advance(5)

    second = Gateway(file, {"probe": probe}, clock=clock).open()
    second.one_pass()

    after = second.cron_get(made.id)
    assert (after.running_at, after.last_status) == (None, "interrupted")
    assert after.next_at == datetime(2026, 7, 1, 9, 2, tzinfo=UTC)
    assert len(probe.calls) == 1
    second.stop()


def test_a_store_has_one_gateway_at_a_time(gateway, file, clock):
    with pytest.raises(StoreUnavailable, match="another process"):
        Gateway(file, clock=clock).open()


def test_a_store_of_newer_code_is_left_alone(file, clock):
    import sqlite3

    connection = sqlite3.connect(file)
    connection.execute("PRAGMA user_version = 99")
    connection.close()

    with pytest.raises(StoreTooNew):
        Gateway(file, clock=clock).open()


def test_declared_crons_are_made_once_and_stay_as_they_were_changed(file, clock, probe):
    def make() -> Gateway:
        gateway = Gateway(file, {"probe": probe}, clock=clock)
        gateway.declare("probe", MINUTE, payload={"n": 1})
        return gateway.open()

    first = make()
    [made] = first.cron_list().crons
    first.cron_update(made.id, schedule=every(minutes=7))
    first.stop()
    second = make()

    assert [cron.schedule["every_ms"] for cron in second.cron_list().crons] == [420_000]
    second.stop()


def test_a_memory_gateway_needs_no_file(clock, probe):
    with Gateway("sqlite:///:memory:", {"probe": probe}, clock=clock) as gateway:
        made = gateway.cron_add("probe", MINUTE)
        gateway.cron_run(made.id)
        assert idle(gateway, made).last_status == "ok"


@pytest.mark.parametrize("timeout", [0, -1, 10**9, True])
def test_a_time_limit_must_be_one(gateway, timeout):
    with pytest.raises(InvalidOption, match="timeout"):
        gateway.handler("x", timeout=timeout)(print)


def test_a_handler_is_defined_once(gateway):
    with pytest.raises(InvalidFunction, match="twice"):
        gateway.handler("probe")(print)


def test_a_secret_is_a_reference(file):
    with pytest.raises(InvalidOption) as refused:
        Gateway(file, secret="hunter2")

    assert "hunter2" not in str(refused.value)


def test_ctrl_c_while_a_transaction_begins_leaves_none_open(gateway, monkeypatch):
    """A signal that comes while BEGIN waits for the file is raised when it has it."""
    connection = gateway._store._connection

    class Interrupted:
        in_transaction = property(lambda self: connection.in_transaction)

        def execute(self, text: str, *given: Any) -> Any:
            done = connection.execute(text, *given)
            if text == sql.BEGIN:
                raise KeyboardInterrupt
            return done

    with monkeypatch.context() as patched:
        patched.setattr(gateway._store, "_connection", Interrupted())
        with pytest.raises(KeyboardInterrupt):
            gateway.cron_add("probe", MINUTE)

    assert gateway.cron_add("probe", MINUTE).name == "probe"
