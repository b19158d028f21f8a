"""`duly doctor`: what is wrong, and what to do."""

import json
from datetime import date
from pathlib import Path

import pytest
from msgspec.structs import replace

from duly import Ctx, Duly, Retry
from duly.clock import SystemClock
from duly.ids import new_id
from duly.model.function import FunctionInfo, Status
from duly.model.queue import QueuePause
from duly.observe.connections import ClientPool
from duly.observe.doctor import Ending, Level, Parked, Signs, examine, has_wal_reset_bug, judge
from duly.observe.health import HealthReport, QueueHealth
from duly.store.base import DatabaseInfo, HeldJobs, WorkerInfo
from duly.store.sqlite.mounts import network_among
from tests.cli.places import Place
from tests.cli.terminal import Ran, Terminal
from tests.jobs.support import wait_until

NOW = 1_777_626_000_000  # 2026-05-01
QUEUE = QueueHealth("default", False, 0, 0, 0, 0, 0, False)
WORKER = WorkerInfo("w1", "default", "host", 1, None, ("send",), 8, False, 1, NOW)
SEND = FunctionInfo(
    *("send", "action", "default", "{}", "{}", False, None, NOW, Status.ACTIVE, None, None, None)
)
WELL = Signs(
    now=NOW,
    where="shop on db",
    engine=DatabaseInfo(
        *("PostgreSQL", "17.2"),
        longest_transaction_ms=5,
        isolation="read committed",
        pool=20,
        connections=30,
        max_connections=100,
    ),
    ahead_ms=12,
    health=HealthReport(True, True, queues=(QUEUE,)),
    workers=[WORKER],
    silent=frozenset(),
    waiting=frozenset({"send", "duly.post"}),
    scheduled=frozenset({"send"}),
    functions=[SEND],
    held=[],
    kill_switch=None,
    paused_queues=[],
    parked=[],
    left_out={},
    calendars=(),
    ending=[],
    dead=0,
    zone_data="2026a",
    required_zone_data="2025b",
    missing_extras=(),
    pools=(),
    sends=True,
)
LATE = replace(QUEUE, lag_ms=180_000, due=7)
POOL = ClientPool("shop.engine", 5, "pool_size 2 + max_overflow 3", "pool_timeout")
SQLITE = DatabaseInfo("SQLite", "3.51.3", "wal")


def told(signs: Signs) -> list[str]:
    """What is not as it should be, with what to do."""
    return [
        f"{each.level} {each.check}: {each.text} → {each.hint}"
        for each in judge(signs)
        if each.level != Level.OK
    ]


def test_where_all_is_well_nothing_is_told() -> None:
    assert told(WELL) == []
    assert told(replace(WELL, engine=SQLITE, ahead_ms=None)) == []


@pytest.mark.parametrize(
    ("changes", "level", "words"),
    [
        ({"engine": replace(SQLITE, network_file_system="nfs4")}, "wrong", "database nfs4 copy"),
        ({"engine": replace(SQLITE, journal_mode="delete")}, "wrong", "delete migrate"),
        ({"engine": replace(SQLITE, version="3.40.1")}, "note", "3.40.1 3.51.3"),
        (
            {"engine": replace(WELL.engine, longest_transaction_ms=3_600_000)},
            "note",
            "60 minutes pg_stat_activity",
        ),
        (
            {"engine": replace(WELL.engine, isolation="repeatable read")},
            "note",
            "REPEATABLE READ mutations COMMITTED app.on",
        ),
        (
            {"engine": replace(WELL.engine, connections=95)},
            "note",
            "connections 95 of 100 at most 20 worker 17 more Duly(pool=…)",
        ),
        (
            {"workers": [replace(WORKER, threads=10), replace(WORKER, id="w2", threads=61)]},
            "note",
            "connections 71 threads of 2 processes 71 connections 70 of 100 --threads",
        ),
        (
            {"workers": [replace(WORKER, threads=6)], "pools": [POOL]},
            "note",
            "connections 6 threads 5 shop.engine pool_size 2 max_overflow 3 --threads",
        ),
        (
            {"engine": replace(WELL.engine, transaction_timeout_ms=30_000)},
            "note",
            "30000 ms transaction_timeout",
        ),
        ({"ahead_ms": -90_000}, "note", "90.0 behind time server"),
        ({"workers": [], "waiting": frozenset()}, "wrong", "no worker is running `duly worker`"),
        (
            {"health": HealthReport(True, True, evaluator_lag_ms=7_200_000)},
            "wrong",
            "ticker 2 hours `duly ticker`",
        ),
        ({"required_zone_data": "2026c"}, "note", "2026a 2026c tzdata"),
        (
            {"held": [HeldJobs("signature", "send", 3, NOW)]},
            "wrong",
            "3 jobs 'send' arguments cancel",
        ),
        ({"held": [HeldJobs("alone", "send", 3, NOW)]}, "note", "3 jobs 'send' process why cancel"),
        (
            {"health": HealthReport(True, True, queues=(LATE,))},
            "wrong",
            "'default' 7 jobs 3 minutes cannot keep up",
        ),
        (
            {
                "health": HealthReport(True, True, queues=(LATE,)),
                "workers": [replace(WORKER, queues=("mail",))],
            },
            "wrong",
            "`duly worker --queue default`",
        ),
        ({"parked": [Parked("daily", "no zone\nmore")]}, "wrong", "'daily' no zone update"),
        (
            {"ending": [Ending("closed", date(2026, 5, 9), ("daily",))]},
            "note",
            "'closed' ends 2026-05-09 'daily' --add",
        ),
        ({"ending": [Ending("closed", date(2026, 4, 1), ("daily",))]}, "wrong", "ended on"),
        ({"kill_switch": QueuePause("*", NOW, "ann", "fire")}, "note", "ann: fire `duly resume`"),
        ({"paused_queues": [QueuePause("mail", NOW, None, None)]}, "note", "queues resume mail"),
        ({"functions": [replace(SEND, status=Status.PAUSED)]}, "note", "functions resume send"),
        ({"dead": 100}, "note", "100 or more jobs retry --dead"),
        ({"zone_data": "2023c", "required_zone_data": ""}, "note", "2023c tzdata"),
        ({"missing_extras": ("holidays",)}, "note", 'holidays "duly[holidays]"'),
    ],
)
def test_each_check_says_what_to_do(changes: dict[str, object], level: str, words: str) -> None:
    [said] = told(replace(WELL, **changes))
    assert said.startswith(level)
    assert all(word in said for word in words.split()), said
    assert not said.endswith("None")


def test_endpoints_without_what_sends_to_them_are_wrong() -> None:
    said = told(replace(WELL, missing_extras=("http",)))
    assert [line.split()[0] for line in said] == ["wrong", "note"]


def test_a_pause_is_no_delay() -> None:
    late = replace(WELL, health=HealthReport(True, True, queues=(LATE,)))
    assert len(told(replace(late, kill_switch=QueuePause("*", NOW, None, None)))) == 1
    paused = HealthReport(True, True, queues=(replace(LATE, paused=True),))
    assert told(replace(WELL, health=paused)) == []


def test_what_a_dead_worker_knew_is_unknown() -> None:
    other = replace(WORKER, id="w2", functions=("other",))
    said = told(replace(WELL, workers=[WORKER, other], silent=frozenset({"w1"})))
    assert [line.partition(" →")[0] for line in said] == [
        "note workers: 1 worker died without shutting down",
        "wrong functions: no worker has 'send', which jobs and schedules call",
    ]
    nobody = told(replace(WELL, workers=[WORKER], silent=frozenset({"w1"})))
    assert not any("functions" in line for line in nobody)


def test_of_many_unknown_functions_some_are_named() -> None:
    waiting = frozenset(f"f{number}" for number in range(9))
    said = told(replace(WELL, waiting=waiting))
    assert len(said) == 6
    assert "4 others: 'f5', 'f6', 'f7', 'f8'" in said[-1]


def test_mended_versions_of_sqlite_are_known() -> None:
    broken = ["3.40.1", "3.44.5", "3.45.0", "3.50.6", "3.51.0", "3.51.2"]
    mended = ["3.44.6", "3.44.9", "3.50.7", "3.51.3", "3.52.0", "4.0.0"]
    assert [has_wal_reset_bug(version) for version in broken] == [True] * 6
    assert [has_wal_reset_bug(version) for version in mended] == [False] * 6


def test_a_clock_knows_how_far_it_is_ahead_of_the_server() -> None:
    clock = SystemClock(wall=lambda: 1_000.0, monotonic=lambda: 50.0)
    assert clock.ahead_of_server() is None
    clock.follow_server(997.0, 49.0, 50.0)
    assert clock.ahead_of_server() == 3.0


def test_a_network_file_system_is_seen() -> None:
    mounts = (
        "22 1 8:1 / / rw - ext4 /dev/sda1 rw\n"
        "30 22 0:40 / /mnt/our\\040share rw shared:1 - nfs4 nas:/x rw\n"
        "31 30 8:2 / /mnt/our\\040share/local rw - xfs /dev/sdb1 rw\n"
        "nonsense\n"
    )
    assert network_among(mounts, Path("/mnt/our share/shop.db")) == "nfs4"
    assert network_among(mounts, Path("/mnt/our share/local/shop.db")) is None
    assert network_among(mounts, Path("/mnt/our sharex/shop.db")) is None


# On real databases --------------------------------------------------------------------------------


def wrong_in(ran: Ran) -> dict[str, str]:
    """What is wrong, by the name of its check."""
    findings = json.loads(ran.out)["findings"]
    return {each["check"]: each["text"] for each in findings if each["level"] == "wrong"}


@pytest.mark.spec("N8")
def test_the_doctor_finds_what_is_wrong(place: Place) -> None:
    app = place.app
    other = Duly(place.at_home["DULY_DATABASE_URL"])

    @other.action
    def gone(ctx: Ctx) -> None: ...

    @app.action(retry=Retry(attempts=1))
    def doomed(ctx: Ctx) -> None:
        raise ValueError("never")

    # A worker that is gone without a word: no process has this number, and none beats for it.
    place.db.execute(
        "INSERT INTO @workers (id, app, host, pid, functions, slots, started_at)"
        " VALUES (?, 'default', 'far', 999999999, '[]', 8, 0)",
        (ghost := new_id(app.core.now())),
    )
    alone = place.duly("doctor", "--json", code=1)
    assert wrong_in(alone) == {"workers": "no worker is running"}
    assert "1 worker died without shutting down" in alone.out
    place.db.execute("DELETE FROM @workers WHERE id = ?", ghost)

    with app:
        wait_until(lambda: app.workers())
        well = place.duly("doctor", columns=80)
        assert "no problems found" in well.plain
        assert max(map(len, well.plain.splitlines())) <= 80
        job = other.run(gone)
        other.schedules.create("daily", gone.bind(), cron="0 9 * * *")
        app.run(doomed)
        wait_until(lambda: app.dead())
        app.queues.pause("mail", note="full")
        found = place.duly("doctor", "--json", code=1)
        assert wrong_in(found) == {
            "functions": "no worker has 'gone', which jobs and schedules call"
        }
        assert "1 job used up" in found.out
        assert "queue 'mail' is paused: full" in found.out
        shown = place.duly("doctor", columns=40, code=1).plain
        assert "aliases" in shown
        assert max(map(len, shown.splitlines())) <= 40
    assert (job.state, len(other.schedules.list())) == ("pending", 1)
    other.close()


def test_a_database_that_is_not_there_is_a_finding(terminal: Terminal, tmp_path: Path) -> None:
    home = {"DULY_APP": "tests.cli.shop:app", "SHOP_FOLDER": str(tmp_path)}

    def doctor(url: str) -> str:
        ran = terminal.run("doctor", "--json", env={**home, "DULY_DATABASE_URL": url}, code=1)
        assert "Traceback" not in ran.err
        return wrong_in(ran)["database"]

    assert "duly migrate" in doctor(f"sqlite:///{tmp_path}/none.db")
    assert "cannot connect" in doctor("postgresql://127.0.0.1:1/none")
    away = {"DULY_URL": "http://127.0.0.1:1", "DULY_TOKEN": "duly_x"}
    assert "cannot reach" in terminal.run("doctor", env=away, code=1).err


def test_tables_that_are_missing_are_a_finding(url: str) -> None:
    app = Duly(url)
    if url.startswith("postgres"):
        found = examine(app.core)
        assert not found.healthy
        assert "duly migrate" in f"{found.findings[0].text} {found.findings[0].hint}"
    app.close()
