"""The pure model of a gateway's crons: when they run next, and what the end of a run changes."""

import json
from datetime import UTC, datetime

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from duly import Cron, Every
from duly.clock import to_ms
from duly.errors import BadInput, InvalidTime
from duly.gateway.crons import (
    BACKOFF_MS,
    CronChanges,
    CronRecord,
    Mode,
    NewCron,
    NotRun,
    as_seen,
    backoff_ms,
    changed,
    finished,
    interrupted,
    may_run,
    new_cron,
    next_after,
    read_schedule,
    started,
    write_schedule,
)

NOW = to_ms(datetime(2026, 7, 1, 9, 0, tzinfo=UTC))
MINUTE = 60_000
EVERY_MINUTE = {"kind": "every", "every_ms": MINUTE}
ID = "0197c000-0000-7000-8000-000000000001"

schedules = st.one_of(
    st.builds(lambda ms: {"kind": "every", "every_ms": ms}, st.integers(1_000, 30 * 86_400_000)),
    st.builds(
        lambda minute, hour, tz: {"kind": "cron", "cron": f"{minute} {hour} * * *", "tz": tz},
        st.integers(0, 59),
        st.integers(0, 23),
        st.sampled_from(["UTC", "Europe/Istanbul", "America/New_York", "Australia/Lord_Howe"]),
    ),
)
instants = st.integers(NOW, NOW + 3 * 365 * 86_400_000)


def cron(schedule=EVERY_MINUTE, now=NOW, **fields) -> CronRecord:
    return new_cron(ID, NewCron(handler="probe", schedule=schedule, **fields), now)


# Schedules ---------------------------------------------------------------------------------------


@pytest.mark.spec("R44")
@pytest.mark.parametrize(
    ("schedule", "next_at"),
    [
        ({"kind": "at", "at": "2026-07-01T10:00:00Z"}, "2026-07-01T10:00:00"),
        ({"kind": "at", "at": "2026-07-01T12:00:00+03:00"}, "2026-07-01T09:00:00"),
        ({"kind": "every", "every_ms": 300_000}, "2026-07-01T09:05:00"),
        ({"kind": "cron", "cron": "0 9 * * *"}, "2026-07-02T09:00:00"),
        ({"kind": "cron", "cron": "30 12 * * *", "tz": "Europe/Istanbul"}, "2026-07-01T09:30:00"),
    ],
)
def test_a_schedule_is_a_moment_an_interval_or_an_expression(schedule, next_at):
    seen = as_seen(cron(schedule))

    assert seen.next_at == datetime.fromisoformat(next_at).replace(tzinfo=UTC)


@pytest.mark.spec("R19")
def test_the_zone_of_an_interval_has_no_effect_and_is_kept():
    tokyo = cron({"kind": "every", "every_ms": 300_000, "tz": "Asia/Tokyo"})
    assert (tokyo.next_at, as_seen(tokyo).tz) == (NOW + 5 * MINUTE, "Asia/Tokyo")

    due = NOW + 7 * MINUTE
    berlin = {"kind": "every", "every_ms": 300_000, "tz": "Europe/Berlin"}
    moved = changed(tokyo, CronChanges(schedule=berlin), due)
    assert (moved.next_at, as_seen(moved).tz) == (tokyo.next_at, "Europe/Berlin")
    assert moved.trigger.next_after(due) == NOW + 10 * MINUTE
    assert moved.revision == tokyo.revision

    daily = changed(moved, CronChanges(schedule={"kind": "cron", "cron": "0 9 * * *"}), NOW)
    assert as_seen(daily).tz == "Europe/Berlin"
    often = changed(daily, CronChanges(schedule={"kind": "every", "every_ms": 60_000}), NOW)
    assert as_seen(often).tz == "Europe/Berlin"
    again = changed(often, CronChanges(schedule={"kind": "cron", "cron": "0 9 * * *"}), NOW)
    assert again.schedule == daily.schedule


@pytest.mark.spec("R48")
@pytest.mark.parametrize("at", ["2026-07-01T10:00:00", "2026-07-01 10:00", "2026-07-01T10:00Z"])
def test_a_moment_without_a_zone_is_in_utc(at):
    assert cron({"kind": "at", "at": at}).next_at == NOW + 60 * MINUTE


@pytest.mark.spec("R44")
@pytest.mark.parametrize(
    ("schedule", "field"),
    [
        ({"kind": "often"}, "schedule.kind"),
        ({}, "schedule.kind"),
        ({"kind": "every"}, "schedule.every_ms"),
        ({"kind": "every", "every_ms": 60_000, "unit": "s"}, "schedule.unit"),
        ({"kind": "cron", "cron": "0 9 * * *", "every_ms": 1}, "schedule.every_ms"),
        ({"kind": "at", "at": "tomorrow"}, "schedule.at"),
        ({"kind": "at", "at": None}, "schedule.at"),
        ({"kind": "at", "at": "2026-07-01T08:59:59Z"}, "schedule.at"),
    ],
)
def test_a_schedule_that_makes_no_sense_is_refused_by_name(schedule, field):
    with pytest.raises(BadInput) as refused:
        cron(schedule)

    assert getattr(refused.value, "field", None) == field


@pytest.mark.parametrize(
    "schedule",
    [
        {"kind": "every", "every_ms": 999},
        {"kind": "every", "every_ms": "60000"},
        {"kind": "cron", "cron": "61 * * * *"},
        {"kind": "cron", "cron": "0 9 * * *", "tz": "Nowhere/Land"},
        {"kind": "cron", "cron": "0 9 * * *", "tz": ""},
        {"kind": "every", "every_ms": 60_000, "tz": ""},
        {"kind": "cron", "cron": 5},
        {"kind": "at", "at": "9999-12-31T23:59:59-12:00"},
        {"kind": "at", "at": 10**30},
        {"kind": "at", "at": True},
    ],
)
def test_values_that_no_schedule_can_have_are_refused(schedule):
    with pytest.raises(BadInput):
        cron(schedule)


@given(schedules)
def test_a_schedule_survives_the_way_over_the_bridge(schedule):
    trigger = read_schedule(schedule)

    assert (
        read_schedule(msgspec.json.decode(msgspec.json.encode(write_schedule(trigger)))) == trigger
    )
    assert read_schedule(trigger) is trigger


def test_what_falls_on_h_differs_by_cron_and_stays():
    first = new_cron(ID, NewCron(handler="p", schedule={"kind": "cron", "cron": "H * * * *"}), NOW)
    again = changed(first, CronChanges(schedule={"kind": "cron", "cron": "H * * * *"}), NOW + 1)

    assert isinstance(first.trigger, Cron)
    assert first.trigger.spread == ID
    assert again.next_at == first.next_at


# Changes -----------------------------------------------------------------------------------------

LATER = NOW + 30_000


@pytest.mark.spec("R45")
@pytest.mark.parametrize(
    "changes",
    [
        CronChanges(name="other"),
        CronChanges(handler="other"),
        CronChanges(payload={"url": "http://x"}),
        CronChanges(enabled=True),
        CronChanges(schedule=EVERY_MINUTE),
        CronChanges(),
    ],
)
def test_what_changes_nothing_about_time_leaves_the_next_run_alone(changes):
    before = replace(cron(), next_at=NOW + 5 * MINUTE, errors=3)

    after = changed(before, changes, LATER)

    assert after.next_at == NOW + 5 * MINUTE
    assert after.revision == before.revision


@pytest.mark.spec("R45")
def test_another_schedule_counts_from_now():
    after = changed(cron(), CronChanges(schedule={"kind": "every", "every_ms": 5_000}), LATER)

    assert after.next_at == LATER + 5_000


@pytest.mark.spec("R45")
def test_to_be_disabled_takes_the_next_run_away_and_to_be_enabled_counts_from_now():
    disabled = changed(cron(), CronChanges(enabled=False), LATER)
    enabled = changed(disabled, CronChanges(enabled=True), NOW + 90_000)

    assert disabled.next_at is None
    assert enabled.next_at == NOW + 120_000  # the interval keeps its beat


def test_a_moment_that_has_passed_cannot_be_enabled_again():
    once = cron({"kind": "at", "at": "2026-07-01T09:01:00Z"})
    over = finished(started(once, NOW + MINUTE), started(once, NOW + MINUTE), None, NOW + MINUTE)

    with pytest.raises(InvalidTime, match="is in the past"):
        changed(over, CronChanges(enabled=True), NOW + 2 * MINUTE)


@given(schedules, instants, st.booleans())
def test_a_change_recomputes_from_now_or_not_at_all(schedule, now, enabled):
    before = cron()

    after = changed(before, CronChanges(schedule=schedule, enabled=enabled), now)

    moved = (after.schedule, after.enabled) != (before.schedule, before.enabled)
    if not moved:
        assert after.next_at == before.next_at
    elif enabled:
        assert after.next_at == next_after(after.trigger, now)
    else:
        assert after.next_at is None


# Runs --------------------------------------------------------------------------------------------


@pytest.mark.spec("R46")
def test_who_may_run_when():
    waiting = cron()
    running = started(waiting, NOW)

    assert may_run(waiting, Mode.FORCE, NOW) is None
    assert may_run(waiting, Mode.DUE, NOW) is NotRun.NOT_DUE
    assert may_run(waiting, Mode.DUE, NOW + MINUTE) is None
    assert may_run(running, Mode.FORCE, NOW) is NotRun.ALREADY_RUNNING
    assert may_run(running, Mode.DUE, NOW) is NotRun.ALREADY_RUNNING
    assert may_run(cron(enabled=False), Mode.FORCE, NOW) is None
    assert may_run(cron(enabled=False), Mode.DUE, NOW) is NotRun.NOT_DUE


def run_once(record: CronRecord, began: int, error: str | None, ended: int) -> CronRecord:
    run = started(record, began)
    return replace(finished(run, run, error, ended), running_at=None)


@pytest.mark.spec("R49")
def test_errors_in_a_row_put_the_next_run_off_ever_longer():
    record, now = cron({"kind": "every", "every_ms": 1_000}), NOW
    rests = []
    for _ in range(7):
        now += 1_000
        record = run_once(record, now, "boom", now)
        assert record.next_at is not None
        rests.append(record.next_at - now)
        now = record.next_at

    assert rests == [30_000, 60_000, 300_000, 900_000, 3_600_000, 3_600_000, 3_600_000]
    assert (record.last_status, record.last_error, record.errors) == ("error", "boom", 7)


@pytest.mark.spec("R49")
def test_an_error_never_brings_the_next_run_forward():
    record = run_once(cron({"kind": "every", "every_ms": 2 * 3_600_000}), NOW, "boom", NOW)

    assert record.next_at == NOW + 2 * 3_600_000


@pytest.mark.spec("R49")
def test_success_resets_the_backoff():
    failed = run_once(run_once(cron(), NOW, "a", NOW), NOW, "b", NOW)
    fine = run_once(failed, NOW, None, NOW)
    again = run_once(fine, NOW, "c", NOW)

    assert (fine.errors, fine.last_status, fine.last_error) == (0, "ok", None)
    assert fine.next_at == NOW + MINUTE
    assert again.errors == 1


@given(schedules, instants, st.integers(0, 10**8), st.integers(0, 20))
def test_the_next_run_after_an_error_is_the_later_of_the_natural_one_and_the_rest(
    schedule, began, took, errors
):
    record = replace(cron(schedule), errors=errors)
    ended = began + took

    after = run_once(record, began, "boom", ended)

    natural = next_after(record.trigger, ended)
    assert natural is not None
    assert after.next_at == max(natural, ended + backoff_ms(errors + 1))
    assert backoff_ms(errors + 1) == BACKOFF_MS[min(errors, 4)]


@pytest.mark.spec("R48")
@pytest.mark.parametrize("error", [None, "boom"])
def test_a_single_moment_is_over_however_it_ended(error):
    once = cron({"kind": "at", "at": "2026-07-01T09:01:00"})

    over = run_once(once, NOW + MINUTE, error, NOW + MINUTE)

    assert (over.enabled, over.next_at) == (False, None)


@pytest.mark.spec("R48", "R50")
def test_a_single_moment_that_was_interrupted_is_over_too():
    over = interrupted(started(cron({"kind": "at", "at": NOW}), NOW), NOW + 1)

    assert (over.enabled, over.next_at, over.last_status) == (False, None, "interrupted")


def test_another_moment_given_while_it_runs_is_kept():
    run = started(cron({"kind": "at", "at": NOW}), NOW)
    moved = changed(run, CronChanges(schedule={"kind": "at", "at": NOW + MINUTE}), NOW + 1)

    after = finished(moved, run, None, NOW + 2)

    assert (after.enabled, after.next_at) == (True, NOW + MINUTE)


def test_to_be_disabled_while_it_runs_holds_after_the_run():
    run = started(cron(), NOW)
    disabled = changed(run, CronChanges(enabled=False), NOW + 1)

    assert finished(disabled, run, None, NOW + 2).next_at is None


@pytest.mark.spec("R50")
@given(schedules, instants, st.integers(0, 10**9))
def test_an_interrupted_run_is_not_made_up_for(schedule, began, down):
    record = interrupted(started(cron(schedule), began), began + down)

    assert record.running_at is None
    assert record.last_status == "interrupted"
    assert record.last_run_at == began
    assert record.next_at == next_after(record.trigger, began + down)


@given(st.integers(1_000, 10**7), st.lists(st.integers(0, 10**8), max_size=20))
def test_an_interval_never_drifts(every_ms, lates):
    record, now = cron({"kind": "every", "every_ms": every_ms}), NOW
    for late in lates:
        assert record.next_at is not None
        now = record.next_at + late
        record = run_once(record, now, None, now)
        assert isinstance(record.trigger, Every)
        assert record.next_at is not None
        assert (record.next_at - NOW) % every_ms == 0
        assert record.next_at > now


# What is refused ---------------------------------------------------------------------------------


@pytest.mark.spec("R44")
@pytest.mark.parametrize("kind", [NewCron, CronChanges])
def test_unknown_fields_are_refused(kind):
    text = b'{"handler": "probe", "schedule": {"kind": "at", "at": 0}, "retries": 3}'

    with pytest.raises(msgspec.ValidationError, match="retries"):
        msgspec.json.decode(text, type=kind)


@pytest.mark.parametrize(
    "fields",
    [
        {"name": ""},
        {"name": "x" * 201},
        {"name": "a\nb"},
        {"payload": {"text": "x" * 20_000}},
        {"payload": {"text": object()}},
        {"payload": {"deep": json.loads("[" * 64 + "]" * 64)}},
        {"payload": [1]},
        {"enabled": "yes"},
    ],
)
def test_what_cannot_be_stored_is_refused(fields):
    with pytest.raises(BadInput):
        cron(**fields)
