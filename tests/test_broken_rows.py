"""One row that cannot be read blocks no other, and breaks no page."""

from collections.abc import Callable, Iterator

import pytest
from starlette.testclient import TestClient

from duly import Expect, ManualClock, doctor
from duly.server import make_asgi
from tests.copying.house import House, fill
from tests.jobs.support import ManualWorker, tidy

BROKEN = '{"'
SCHEDULE_PAGES = ("", "/ticks", "/preview", "/health", "/why", "/audit")


class Table:
    """What is stored as JSON or words in one table, and where its rows are shown."""

    def __init__(
        self,
        columns: str,
        *lists: str,
        pages: tuple[str, ...] = (),
        which: str = "",
        id: str = "id",
    ) -> None:
        self.columns = columns.split()
        self.lists = lists
        self.pages = pages
        self.which = which or f"{id} = (SELECT {id} FROM @ ORDER BY {id} LIMIT 1)"
        self.id = id


# `@` is the table, `{}` the id of the row. A command of the CLI asks the API.
TABLES = {
    "jobs": Table(
        *("args retry tags limits error_message", "/api/v1/jobs", "/jobs", "/queues", "/jobs.csv"),
        pages=("/api/v1/jobs/{}", "/api/v1/jobs/{}/why", "/jobs/{}"),
        which="id = (SELECT id FROM @ ORDER BY id DESC LIMIT 1)",
    ),
    "history": Table(
        *("args result retry tags", "/api/v1/jobs", "/jobs", "/jobs.csv", "/jobs?dead=1"),
        pages=("/api/v1/jobs/{}", "/api/v1/jobs/{}/why", "/jobs/{}"),
    ),
    "functions": Table(
        *("schema options seen alias_of", "/api/v1/functions", "/functions", "/functions.json"),
        *("/api/v1/queues", "/queues", "/api/v1/schedules", "/jobs"),
        pages=("/api/v1/functions/{}", "/functions/{}"),
        which="name = 'fail'",
        id="name",
    ),
    "workers": Table("queues functions", "/api/v1/workers", "/workers", "/api/v1/doctor", "/"),
    "schedules": Table(
        "args options trigger calendar condition rotation policies override declared expect alert"
        " late error",
        *("/api/v1/schedules", "/schedules", "/schedules.csv", "/api/v1/observe/schedules"),
        *("/api/v1/schedules/health", "/api/v1/schedules/plan", "/api/v1/forecast", "/"),
        pages=(
            *(f"/api/v1/schedules/{{}}{page}" for page in SCHEDULE_PAGES),
            *("/schedules/{}", "/schedules/{}/edit"),
        ),
        which="key = 'promised'",
    ),
    "ticks": Table(
        *("detail", "/", "/api/v1/system/ticks"),
        pages=("/api/v1/schedules/{}/ticks", "/api/v1/schedules/{}/why", "/schedules/{}"),
        id="schedule_id",
    ),
    "declarations": Table("seen", "/api/v1/schedules/plan", id="app"),
    "calendars": Table(
        *("definition", "/api/v1/calendars", "/calendars", "/api/v1/calendars/ending"),
        *("/api/v1/schedules", "/schedules"),
        pages=("/api/v1/calendars/{}", "/calendars/{}", "/api/v1/calendars/{}/changes"),
    ),
    "audit": Table("detail", "/api/v1/audit", "/audit", "/audit.json"),
    "tokens": Table("scopes", "/api/v1/tokens", "/tokens", pages=("/api/v1/tokens/{}",)),
    "inbox": Table(
        *("headers", "/api/v1/webhooks", "/webhooks"),
        pages=("/api/v1/webhooks/{}", "/webhooks/{}"),
    ),
    "endpoints": Table("headers retry", "/api/v1/endpoints", pages=("/api/v1/endpoints/{}",)),
    "gateways": Table(
        *("crons", "/api/v1/gateways", "/gateways", "/api/v1/observe/schedules", "/schedules"),
    ),
    "counters": Table("labels", "/metrics", id="labels"),
}


@pytest.fixture
def house(url: str) -> Iterator[House]:
    house = House(url, ManualClock())
    fill(house)
    app, db = house.app, house.db
    for key in ("promised", "good"):
        app.schedules.create(key, app.function("costly"), every=300, expect=Expect(every=600))
    app.run_after(86_400, app.function("note"), "a job that waits")
    db.execute(
        "DROP TRIGGER " + ("@history_final" if db.is_sqlite else "history_final ON @history")
    )
    worker = ManualWorker(app)
    yield house
    worker.stop()
    house.close()


@pytest.mark.long("postgres")
@pytest.mark.spec("N40")
def test_a_row_that_cannot_be_read_blocks_no_other_and_breaks_no_page(house: House) -> None:
    faults: list[str] = []
    asgi = make_asgi(house.app, auth="open", metrics_open=True)
    with TestClient(asgi, raise_server_exceptions=False) as client:
        for name, table in TABLES.items():
            for column in table.columns:
                ids, mend = break_a_row(house, name, table, column)
                pages = [*table.lists, *(page.format(id) for page in table.pages for id in ids)]
                found = [*pages_that_fail(client, pages), *passes_that_fail(house)]
                faults += [f"{name}.{column}: {fault}" for fault in found]
                mend()
    assert faults == []


def break_a_row(
    house: House, name: str, table: Table, column: str
) -> tuple[list[str], Callable[[], None]]:
    """The ids of the row and of some others, and how to mend it."""
    db, where = house.db, table.which.replace("@", f"@{name}")
    before = db.execute(f"SELECT {column}, {table.id} FROM @{name} WHERE {where}")
    assert before, f"there is no row in {name}"
    db.execute(f"UPDATE @{name} SET {column} = ? WHERE {where}", BROKEN)

    def mend() -> None:
        if name == "counters":  # it has been counted anew
            db.execute(f"DELETE FROM @{name} WHERE {column} = ?", BROKEN)
        db.execute(f"UPDATE @{name} SET {column} = ? WHERE {column} = ?", before[0][0], BROKEN)

    others = db.execute(f"SELECT DISTINCT {table.id} FROM @{name} ORDER BY 1 LIMIT 2")
    return list(dict.fromkeys(str(id) for id in [before[0][1], *(id for (id,) in others)])), mend


def pages_that_fail(client: TestClient, pages: list[str]) -> Iterator[str]:
    for page in pages:
        status = client.get(page).status_code
        if status >= 500:
            yield f"{page} answers {status}"


def passes_that_fail(house: House) -> Iterator[str]:
    """A ticker, a janitor, a worker, a check-up; other schedules, promises and jobs go on."""
    app, ticks = house.app, len(house.app.schedules.ticks("good"))
    checked = house.db.scalar("SELECT expect_at FROM @schedules WHERE key = 'good'")
    job = app.run(app.function("note"), "good")
    house.clock.advance(600)
    for act in (house.tick, lambda: tidy(app), house.work, lambda: doctor.examine(app.core)):
        try:
            act()
        except Exception as error:
            yield f"{act}: {error!r}"
    if len(app.schedules.ticks("good")) <= ticks:
        yield "no other schedule ticks"
    if house.db.scalar("SELECT expect_at FROM @schedules WHERE key = 'good'") == checked:
        yield "no other promise is checked"
    if job.state != "succeeded":
        yield f"another job is {job.state}"
