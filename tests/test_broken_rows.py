"""One row that cannot be read blocks no other, and breaks no page."""

from collections.abc import Callable, Iterable, Iterator, Mapping

import pytest
from starlette.testclient import TestClient

from duly import Ctx, Expect, ManualClock
from duly.observe import doctor
from duly.server import make_asgi
from tests.copying.house import House, fill
from tests.jobs.support import ManualWorker, on_sqlite, tidy

BROKEN = '{"'
FAR = 2**63 - 1
LARGE = 2**31 - 1
JOB_PAGES = ("/api/v1/jobs/{}", "/api/v1/jobs/{}/why", "/api/v1/jobs/{}/logs", "/jobs/{}")
JOB_TIMES = "created_at scheduled_at run_at started_at"
SCHEDULE_PAGES = (
    *(f"/api/v1/schedules/{{}}{page}" for page in ("", "/ticks", "/preview", "/health", "/why")),
    *("/api/v1/schedules/{}/audit", "/schedules/{}", "/schedules/{}/edit"),
)


class Table:
    """What is stored as JSON, words, times and counts in one table, and where its rows are shown.

    Left out is what a constraint or a type of the schema guards, and text that anything may be.
    """

    def __init__(
        self,
        columns: str,
        *lists: str,
        times: str = "",
        counts: str = "",
        pages: tuple[str, ...] = (),
        which: str = "",
        key: str = "id",
    ) -> None:
        self.columns = columns.split()
        self.times = times.split()
        self.counts = counts.split()
        self.lists = lists
        self.pages = pages
        self.key = key.split()
        which = which or f"{self.key[0]} IS NOT NULL"
        by = ", ".join(self.key)
        self.which = f"({by}) = (SELECT {by} FROM @ WHERE {which} ORDER BY {by} LIMIT 1)"

    def broken(self, column: str) -> dict[str, object]:
        return {column: BROKEN.encode() if column == "body" else BROKEN}

    def far(self, sign: int) -> dict[str, object]:
        return {
            **dict.fromkeys(self.times, sign * FAR),
            **dict.fromkeys(self.counts, sign * LARGE),
        }


# `@` is the table, `{}` the id of the row. Slots hold but keys, ids and small numbers.
TABLES = {
    "keys": Table("", times="expires_at", key="scope key"),
    "starts": Table("", times="started_at expires_at", key="key started_at job_id token"),
    "requests": Table("fingerprint", times="expires_at", key="actor key"),
    "traces": Table("parent", pages=JOB_PAGES, key="job_id"),
    "progress": Table(
        *("note", "/api/v1/jobs"),
        times="updated_at revision",
        counts="value",
        pages=JOB_PAGES,
        key="job_id",
    ),
    "logs": Table("level line", times="logged_at", pages=JOB_PAGES, key="job_id seq"),
    "queues": Table(
        *("note", "/api/v1/queues", "/queues"), times="paused_at", counts="at_once", key="name"
    ),
    "jobs": Table(
        *("args retry tags limits error_message error_kind trigger", "/api/v1/jobs", "/jobs"),
        *("/queues", "/jobs.csv"),
        times=f"{JOB_TIMES} deadline_at timeout_ms",
        pages=JOB_PAGES,
        which="id = (SELECT id FROM @ ORDER BY id DESC LIMIT 1)",
    ),
    "functions": Table(
        *(
            "kind schema options seen alias_of",
            "/api/v1/functions",
            "/functions",
            "/functions.json",
        ),
        *("/api/v1/queues", "/queues", "/api/v1/schedules", "/jobs"),
        times="published_at status_at",
        pages=("/api/v1/functions/{}", "/functions/{}"),
        which="name = 'fail'",
        key="name",
    ),
    "workers": Table(
        *("queues functions", "/api/v1/workers", "/workers", "/api/v1/doctor", "/"),
        times="started_at",
    ),
    "schedules": Table(
        "args options trigger calendar condition rotation policies override declared expect alert"
        " late error",
        *("/api/v1/schedules", "/schedules", "/schedules.csv", "/api/v1/observe/schedules"),
        *("/api/v1/schedules/health", "/api/v1/schedules/plan", "/api/v1/forecast", "/"),
        times="start_at end_at awake_at filled_until last_tick_at last_dispatch_at parked_at"
        " orphaned_at expect_tick last_success_at created_at updated_at",
        pages=SCHEDULE_PAGES,
        which="key = 'promised'",
    ),
    "ticks": Table(
        *("detail", "/", "/api/v1/system/ticks"),
        times="due_at decided_at first_at count",
        pages=("/api/v1/schedules/{}/ticks", "/api/v1/schedules/{}/why", "/schedules/{}"),
        key="schedule_id kind tick_at",
    ),
    "declarations": Table("seen", "/api/v1/schedules/plan", key="app"),
    "calendars": Table(
        *("definition", "/api/v1/calendars", "/calendars", "/api/v1/calendars/ending"),
        *("/api/v1/schedules", "/schedules"),
        times="created_at updated_at",
        pages=("/api/v1/calendars/{}", "/calendars/{}", "/api/v1/calendars/{}/changes"),
    ),
    "costs": Table(
        "",
        "/schedules",
        counts="amount",
        pages=SCHEDULE_PAGES,
        key="schedule_id tick_at job_id token",
    ),
    "days": Table(
        "",
        counts="day dispatched skipped missed succeeded failed canceled",
        pages=SCHEDULE_PAGES,
        key="schedule_id day",
    ),
    "audit": Table("detail", "/api/v1/audit", "/audit", "/audit.json", times="at"),
    "tokens": Table(
        *("scopes tz", "/api/v1/tokens", "/tokens"),
        times="created_at expires_at last_used_at revoked_at",
        pages=("/api/v1/tokens/{}",),
    ),
    "inbox": Table(
        *("headers body", "/api/v1/webhooks", "/webhooks"),
        times="received_at",
        pages=("/api/v1/webhooks/{}", "/webhooks/{}"),
    ),
    "endpoints": Table(
        *("url headers retry", "/api/v1/endpoints"),
        times="timeout_ms created_at updated_at",
        pages=("/api/v1/endpoints/{}",),
    ),
    "gateways": Table(
        *("crons", "/api/v1/gateways", "/gateways", "/api/v1/observe/schedules", "/schedules"),
        times="created_at updated_at seen_at stale_since",
    ),
    "counters": Table("labels", "/metrics", times="value", key="name labels"),
    "history": Table(
        *("args result retry tags kind trigger error_kind", "/api/v1/jobs", "/jobs"),
        *("/jobs.csv?function=costly", "/jobs?dead=1", "/api/v1/forecast"),
        times=f"{JOB_TIMES} completed_at",
        pages=JOB_PAGES,
        which="id = (SELECT id FROM @ WHERE function = 'costly' ORDER BY id DESC LIMIT 1)",
    ),
    "kept": Table(
        *("args result retry tags kind trigger state", "/api/v1/jobs?function=once", "/jobs"),
        *("/api/v1/webhooks", "/webhooks"),
        times=f"{JOB_TIMES} completed_at",
        pages=JOB_PAGES,
        which="function = 'once'",
    ),
}


@pytest.fixture
def house(url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[House]:
    # No worker beats here: there is nothing to wait for.
    monkeypatch.setattr(doctor.silent_workers, "__defaults__", (0.0,))
    house = House(url, ManualClock())
    app, db, call = house.app, house.db, house.app.function

    @app.action
    def once(ctx: Ctx) -> dict[str, int]:
        return {"n": 1}

    app.run(once)
    house.work()
    fill(house)
    for key, bound in (("promised", call("costly")), ("good", call("note").bind("good"))):
        app.schedules.create(key, bound, every=300, expect=Expect(every=600))
    # Never: but whatever ran last is looked at.
    never = {"/prior_run_result/n": {"eq": 0}}
    for name in ("costly", "once"):
        app.schedules.create(f"asks of {name}", call(name), every=300, condition=never)
    app.run_after(86_400, call("note"), "a job that waits")
    db.execute("UPDATE @inbox SET job_id = (SELECT id FROM @kept WHERE function = 'once')")
    db.execute(f"UPDATE @starts SET expires_at = expires_at + {30 * 86_400_000}")
    for table in ("history", "kept"):
        final = f"{table}_final"
        db.execute("DROP TRIGGER " + (f"@{final}" if db.is_sqlite else f"{final} ON @{table}"))
    worker = ManualWorker(app)
    yield house
    worker.stop()
    house.close()


@pytest.mark.long("postgres")
@pytest.mark.spec("N40")
def test_a_row_that_cannot_be_read_blocks_no_other_and_breaks_no_page(house: House) -> None:
    """Each word alone; of the numbers all at once."""
    asgi = make_asgi(house.app, auth="open", metrics_open=True)
    with TestClient(asgi, raise_server_exceptions=False) as client:
        faults = [
            f"{name}.{column}: {fault}"
            for name, table in TABLES.items()
            for column in table.columns
            for fault in faults_with(house, client, {name: table.broken(column)})
        ]
        for sign in (1, -1):
            numbers = {name: table.far(sign) for name, table in TABLES.items() if table.far(sign)}
            faults += [f"{sign * FAR}: {fault}" for fault in faults_with(house, client, numbers)]
    assert faults == []


@on_sqlite
@pytest.mark.spec("N40")
def test_the_command_line_shows_what_the_api_answers(
    house: House, capsys: pytest.CaptureFixture[str]
) -> None:
    far = {"trigger": BROKEN, "args": BROKEN, "created_at": -FAR}
    (*_, job), _ = break_a_row(house, "jobs", TABLES["jobs"], far | {"run_at": FAR})
    break_a_row(house, "schedules", TABLES["schedules"], far)
    assert house.app.job(job).trigger == "manual"
    for kind, name in (("jobs", job), ("schedules", "promised")):
        for words in ([kind, "list"], [kind, "show", name]):
            with pytest.raises(SystemExit) as end:
                house.app.main(words)
            shown = capsys.readouterr()
            assert (end.value.code, name[:8] in shown.out) == (0, True), f"{words}: {shown}"


def faults_with(
    house: House, client: TestClient, values: Mapping[str, Mapping[str, object]]
) -> list[str]:
    """What goes wrong while a row of each of these tables has these values."""
    pages: dict[str, None] = {}
    mends: list[Callable[[], None]] = []
    for name, broken in values.items():
        table = TABLES[name]
        ids, mend = break_a_row(house, name, table, broken)
        pages |= dict.fromkeys([*table.lists, *(p.format(id) for p in table.pages for id in ids)])
        mends.append(mend)
    found = [*pages_that_fail(client, pages), *passes_that_fail(house)]
    for mend in mends:
        mend()
    return found


def break_a_row(
    house: House, name: str, table: Table, values: Mapping[str, object]
) -> tuple[list[str], Callable[[], None]]:
    """The ids of the row and of the first, and how to mend it."""
    db, where = house.db, table.which.replace("@", f"@{name}")
    keys, columns = ", ".join(table.key), ", ".join(values)
    before = db.execute(f"SELECT {columns}, {keys} FROM @{name} WHERE {where}")
    assert before, f"there is no row in {name}"
    row = dict(zip([*values, *table.key], before[0], strict=True))
    to = ", ".join(f"{column} = ?" for column in values)
    db.execute(f"UPDATE @{name} SET {to} WHERE {where}", *values.values())
    marks = ", ".join("?" for _ in table.key)
    mended = [row[column] for column in values]
    broken = [{**row, **values}[column] for column in table.key]

    def mend() -> None:
        if name == "counters":  # it has been counted anew
            db.execute(f"DELETE FROM @{name} WHERE labels = ?", BROKEN)
        db.execute(f"UPDATE @{name} SET {to} WHERE ({keys}) = ({marks})", *mended, *broken)

    ids = [row[table.key[0]], db.scalar(f"SELECT {table.key[0]} FROM @{name} ORDER BY 1 LIMIT 1")]
    return sorted(set(map(str, ids))), mend


def pages_that_fail(client: TestClient, pages: Iterable[str]) -> Iterator[str]:
    for page in pages:
        status = client.get(page).status_code
        if status >= 500:
            yield f"{page} answers {status}"


def passes_that_fail(house: House) -> Iterator[str]:
    """A ticker, a janitor, a worker, a check-up; other schedules, promises and jobs go on."""
    app = house.app
    good = "SELECT last_tick_at, expect_at FROM @schedules WHERE key = 'good'"
    asks = "SELECT last_tick_at FROM @schedules WHERE key LIKE 'asks%' ORDER BY key"
    ((ticked, checked),) = house.db.execute(good)
    asked = house.db.execute(asks)
    job = app.run(app.function("note"), "good")
    house.clock.advance(600)
    for act in (house.tick, lambda: tidy(app), house.work, lambda: doctor.examine(app.core)):
        try:
            act()
        except Exception as error:
            yield f"{act}: {error!r}"
    ((ticks, checks),) = house.db.execute(good)
    if ticks == ticked:
        yield "no other schedule ticks"
    for before, after in zip(asked, house.db.execute(asks), strict=True):
        if before == after:
            yield "no schedule ticks that asks for the last job"
    if checks == checked:
        yield "no other promise is checked"
    if job.state != "succeeded":
        yield f"another job is {job.state}"
