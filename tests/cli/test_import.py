"""`duly import`: shown first, written with --yes, and the same again changes nothing."""

from __future__ import annotations

import json
from pathlib import Path

from tests.cli.places import Place

CRONTAB = """\
MAILTO=me@example.com
30 2 * * * /usr/bin/backup.sh --full
0 9 * * 7 report
@reboot /usr/bin/start
"""


def keys(place: Place) -> dict[str, str]:
    return {each.key: each.function for each in place.app.schedules.list()}


def test_a_crontab(place: Place) -> None:
    file = place.folder / "cron.txt"
    file.write_text(CRONTAB)
    zone = ("--tz", "Europe/Istanbul", "--display-tz", "Europe/Istanbul")
    take = ("import", "crontab", str(file), *zone)
    to = ("--function", "run_command", "--map", "^report$=tidy")

    wrong = place.duly(*take, code=2)
    assert "--function" in wrong.err
    nowhere = place.duly(*take, "--function", "run_comand", code=1)
    assert "run_comand" in nowhere.out
    assert (
        place.duly(*take, "--function", "note", code=1).out.count("has no parameter `command`") == 2
    )

    shown = place.duly(*take, *to, code=1, columns=80).plain
    assert "new       crontab:usr-bin-backup.sh-full-" in shown
    assert 'run_command {"command": "/usr/bin/backup.sh --full"}' in shown
    assert "At 02:30 (Europe/Istanbul)" in shown
    assert "At 09:00, only on Sunday (Europe/Istanbul)" in shown
    assert "02:30:00 +03" in shown
    assert "cannot    line 4" in shown
    assert "at system start" in shown
    assert "MAILTO (line 1)" in shown
    assert "2 new, 1 cannot: nothing was written; give --yes to write" in shown
    assert keys(place) == {}

    file.write_text(CRONTAB.replace("@reboot", "#"))
    assert "2 new: 2 written" in place.duly(*take, *to, "--yes").out
    stored = keys(place)
    assert sorted(stored.values()) == ["run_command", "tidy"]
    [backup] = [each for each in place.app.schedules.list() if each.function == "run_command"]
    assert backup.arguments == {"command": "/usr/bin/backup.sh --full"}

    again = place.duly(*take, *to, "--yes")
    assert "2 unchanged: nothing to write" in again.out

    file.write_text(CRONTAB.replace("@reboot", "#").replace("30 2", "45 3"))
    changed = place.duly(*take, *to, "--yes", "--json").json
    assert changed["written"] == 1
    [entry] = [each for each in changed["entries"] if each["kind"] == "change"]
    assert entry["changed"] == {"cron": {"before": "30 2 * * *", "after": "45 3 * * *"}}
    assert keys(place) == stored
    assert place.app.schedules.get(entry["key"]).trigger.expression == "45 3 * * *"  # type: ignore[union-attr]


BEAT = {
    "beat_schedule": {
        "mail": {"task": "shop.tasks.touch", "schedule": {"minute": 0, "hour": 9}, "args": ["a"]},
        "poll": {"task": "polling", "schedule": 3600, "kwargs": {"text": "b"}},
        "lost": {"task": "shop.tasks.tuch", "schedule": 3600},
    },
    "timezone": "Asia/Tokyo",
}
MODULE = """
from datetime import timedelta
from types import SimpleNamespace as Like

every = Like(interval=timedelta(hours=1), start_date=None, end_date=None)
good = Like(id="tidy", name="tidy", func_ref="jobs:touch", args=["x"], kwargs={}, trigger=every)
bad = Like(id="bad", name="bad", func_ref="jobs:touch", args=[object()], kwargs={}, trigger=every)
more = Like(id="more", name="m", func_ref="jobs:touch", args=["x", 2], kwargs={}, trigger=every)
scheduler = Like(get_jobs=lambda: [good, bad, more])
"""


def test_celery_and_apscheduler(place: Place) -> None:
    beat = place.folder / "beat.json"
    beat.write_text(json.dumps(BEAT))
    take = ("import", "celery-beat", str(beat), "--map", "^polling$=touch", "--json")
    left = place.duly(*take, "--yes", code=1)
    answer = json.loads(left.out)
    assert answer["written"] == 2
    by_key = {each["key"]: each for each in answer["entries"]}
    assert by_key["beat:mail"]["description"] == "At 09:00 (Asia/Tokyo)"
    assert by_key["beat:mail"]["args"] == {"text": "a"}
    assert by_key["beat:poll"]["args"] == {"text": "b"}
    assert "did you mean 'touch'?" in by_key["beat:lost"]["reason"]
    again = json.loads(place.duly(*take, "--yes", code=1).out)
    assert again["written"] == 0

    # The queue alone is a change too.
    beat.write_text(beat.read_text().replace('["a"]', '["a"], "options": {"queue": "mail"}'))
    moved = json.loads(place.duly(*take, "--yes", code=1).out)
    assert [each["key"] for each in moved["entries"] if each["kind"] == "change"] == ["beat:mail"]
    assert json.loads(place.duly(*take, "--yes", code=1).out)["written"] == 0

    (place.folder / "their_jobs.py").write_text(MODULE)
    there: Path = place.folder
    jobs = ("import", "apscheduler", f"{there}/their_jobs.py:scheduler", "--prefix", "ap:")
    shown = place.duly(*jobs, "--yes", code=1).out
    assert "Every hour" in shown
    assert "argument text cannot be written as JSON" in shown
    assert "takes fewer arguments" in shown
    assert place.app.schedules.get("ap:tidy").arguments == {"text": "x"}
    pickles = place.duly("import", "apscheduler", "sqlite:///jobs.db", code=2)
    assert "pickles" in pickles.err
    assert (
        "no 'nothing'"
        in place.duly("import", "apscheduler", f"{there}/their_jobs.py:nothing", code=2).err
    )
    assert (
        "no beat_schedule"
        in place.duly("import", "celery-beat", f"{there}/their_jobs.py:good", code=2).err
    )


def test_what_code_declares_is_left_alone(place: Place) -> None:
    place.app.schedule("crontab:x-3c7e9b", place.app.function("touch").bind("a"), every=3600)
    place.app.schedules.apply()
    file = place.folder / "cron.txt"
    file.write_text("0 1 * * * x\n")
    shown = place.duly("import", "crontab", str(file), "--function", "run_command", "--yes", code=1)
    assert "declared in code" in shown.out
