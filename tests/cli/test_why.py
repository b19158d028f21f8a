"""`duly why`: in words, why a job or a schedule has not run."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tests.cli.places import Place
from tests.schedules.support import tick_all

pytestmark = pytest.mark.spec("N6")
NOBODY = "01890000-0000-7000-8000-000000000000"


def touch(place: Place) -> Any:
    return place.app.functions.get("touch")


def test_why_a_job_has_not_run(place: Place) -> None:
    job = place.app.run_after(3600, touch(place), "x")
    place.app.queues.pause("default", by="ann", note="move")
    said = place.duly("why", job.id, "--display-tz", "Asia/Tokyo").out
    lines = said.splitlines()
    assert lines[0] == "touch has not run yet"
    assert "no worker is running" in lines[1]
    assert "it is due at" in lines[2]
    assert ", in 59m (" in lines[2]
    assert "Asia/Tokyo)" in lines[2]
    assert "queue 'default' is paused by ann (move)" in lines[3]
    told = place.duly("why", job.id, "--json").json
    assert (told["job_id"], told["reasons"][1]["cause"]) == (job.id, "not_due")
    narrow = place.duly("why", job.id, columns=40).plain
    assert all(len(line) <= 40 for line in narrow.splitlines())
    assert "…" not in narrow, "words are wrapped and not cut"


def test_why_a_schedule_has_not_run(place: Place) -> None:
    schedules = place.app.schedules
    made = schedules.create("hourly", touch(place).bind("x"), cron="0 * * * *")
    lines = place.duly("why", "hourly").out.splitlines()
    assert lines[0] == "hourly is waiting for its next tick"
    assert "it has not ticked yet" in lines[1]
    assert "its next tick is" in lines[2]
    assert ", in " in lines[2]

    place.app.functions.pause("touch", by="bob", note="flood")
    place.app.pause("fire", by="eve")
    said = place.duly("why", made.id).out
    assert said.startswith("hourly does not run\n")
    assert "everything is paused by eve (fire)" in said
    assert "its function touch is paused by bob (flood)" in said
    place.app.resume()
    place.app.functions.resume("touch")

    tomorrow = (datetime.now(UTC) + timedelta(days=1)).date()
    days = {str(tomorrow + timedelta(days=n)): "party" for n in range(-1, 2)}
    place.app.calendars.create("closed", "skip_dates", dates=days | {"2099-01-01": "far"})
    schedules.attach("hourly", "closed")
    said = place.duly("why", "hourly", columns=200).plain
    assert "would be skipped: " in said
    assert "is party in closed; the first that would be dispatched is" in said
    schedules.detach("hourly")

    schedules.disable("hourly", by="ann", note="holidays")
    told = place.duly("why", "hourly", "--json").json
    assert (told["key"], told["jobs"]) == ("hourly", [])
    assert told["reasons"][0]["text"] == "it is disabled by ann (holidays)"


def test_the_job_that_a_schedule_waits_for_is_explained_too(place: Place) -> None:
    place.app.schedules.create("hourly", touch(place).bind("x"), cron="0 0 29 2 *")
    table = "duly_schedules" if place.db.is_sqlite else "duly.schedules"
    past = place.app.core.now() - 600_000
    place.db.execute(f"UPDATE {table} SET due_at = {past}, next_tick_at = {past}")
    assert "s; start a ticker" in place.duly("why", "hourly").out
    tick_all(place.app)
    [job] = place.app.jobs()
    said = place.duly("why", "hourly").out
    assert f"was dispatched as job {job.id}, which is pending" in said
    assert f"would be skipped: job {job.id} is unfinished" in said
    assert f"job {job.id}: touch has not run yet\n•  no worker is running" in said


def test_what_is_neither_a_job_nor_a_schedule(place: Place) -> None:
    place.app.schedules.create("hourly", touch(place).bind("x"), every=3600)
    assert "did you mean 'hourly'?" in place.duly("why", "hourli", code=1).err
    assert "there is no job and no schedule" in place.duly("why", NOBODY, code=1).err
