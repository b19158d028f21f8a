"""Long arguments and results cost only callers that ask for them: no list or claim reads them."""

import os
import sqlite3
from pathlib import Path
from typing import Any

import psycopg
import pytest

from duly.model.job import LEFT_OUT, Claim, JobFilter
from duly.store import statements as sql
from duly.store.base import ClaimRequest, WorkerInfo
from duly.store.jobs.claim import PICK
from duly.store.jobs.listing import list_jobs
from duly.store.postgres import PostgresStore
from duly.store.sqlite import SqliteStore
from duly.testing.conformance.ground import NO_JOB_ID, NOW, new_job, succeeded

PAGE = 4096
LONG = f'{{"text":"{"x" * (50 * PAGE)}"}}'


def fill(store: Any, long: str) -> dict[str, tuple[str, str | None]]:
    """Jobs with long values, and what lists show of them, by id."""
    store.migrate(NOW)
    store.register(WorkerInfo(NO_JOB_ID, "app", "host", 1, None, ("send",), 10, False, 0, NOW), NOW)
    listed: dict[str, tuple[str, str | None]] = {}
    for args, result in ((long, "7"), ("{}", long), (long, long)):
        job = new_job(args=args)
        store.enqueue([job])
        (claim,) = claimed(store)
        store.exchange([succeeded(claim, result)], None, NOW)
        listed[job.id] = (_short(args), _short(result))
    live = [new_job(args=long, run_at=NOW + n) for n in (0, 1)]
    store.enqueue(live)
    return listed | {job.id: (LEFT_OUT, None) for job in live}


def _short(text: str) -> str:
    return LEFT_OUT if len(text) > sql.LISTED_BYTES else text


def claimed(store: Any, limit: int = 10) -> list[Claim]:
    request = ClaimRequest(NO_JOB_ID, ("default",), ("send",), limit)
    return list(store.exchange([], request, NOW)[1])


@pytest.mark.spec("N47")
def test_on_sqlite_no_page_of_what_is_long_is_read_in_vain(tmp_path: Path):
    file = tmp_path / "duly.db"
    store = SqliteStore(file)
    listed = fill(store, LONG)
    store.close()
    destroyed = destroy_pages_of(file)
    assert destroyed >= 50 * 6 - 12

    store = SqliteStore(file)
    store.open(NOW)
    small = new_job(priority=9)
    store.enqueue([small])
    found = {job.id: (job.args, job.result) for job in store.find(JobFilter())}
    assert found == listed | {small.id: ("{}", None)}
    finished = store.finished(JobFilter(), NO_JOB_ID)
    assert {job.id: (job.args, job.result) for job in finished}.items() <= listed.items()
    picked = store.read(lambda s: s._pick(["default"], s.array(["send"]), 10, NOW + 1))
    assert [job.id for job in picked] == [small.id, *list(listed)[-2:]]
    assert [claim.id for claim in claimed(store, limit=1)] == [small.id]
    with pytest.raises(Exception, match="malformed"):
        store.get(next(iter(listed)))
    store.close()


def destroy_pages_of(file: Path) -> int:
    """Overwrite the pages that hold only a piece of a long text; return how many there were."""
    with sqlite3.connect(file) as connection:
        assert connection.execute("PRAGMA page_size").fetchone() == (PAGE,)
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    connection.close()
    pages = file.read_bytes()
    whole = [pages[start : start + PAGE] for start in range(0, len(pages), PAGE)]
    is_text = [page[4:] == b"x" * (PAGE - 4) for page in whole]
    kept = (b"\0" * PAGE if gone else page for page, gone in zip(whole, is_text, strict=True))
    file.write_bytes(b"".join(kept))
    return sum(is_text)


@pytest.mark.new_database
@pytest.mark.spec("N47")
def test_on_postgres_no_page_of_what_is_long_is_read_in_vain(postgres_url: str):
    store = PostgresStore(postgres_url)
    # A value that can be compressed is short.
    long = f'{{"text":"{os.urandom(1 << 20).hex()}"}}'
    listed = fill(store, long)
    assert {job.id: (job.args, job.result) for job in store.find(JobFilter())} == listed
    store.close()

    read = "SELECT sum(length(page::text)) FROM ({}) page"
    where: dict[str, Any] = {"limit": 100}
    lanes = {"queues": ["default"], "levels": [5], "floors": [0], "functions": ["send"]}
    pick = where | lanes | {"now": NOW + 1, "bytes": 1}
    with psycopg.connect(postgres_url) as connection:
        # Once it has statistics, a few jobs are found by a scan, over whatever pages there are.
        connection.execute("SET enable_seqscan = off")
        for table in ("jobs", "history"):
            text = read.format(list_jobs(JobFilter(), table))
            assert blocks(connection, text, where) < 100
        assert blocks(connection, PICK.postgres, pick) < 100
        whole = "SELECT sum(length(args)) FROM @jobs"
        assert blocks(connection, whole, {}) > 2 * (2 << 20) // 8192


def blocks(connection: psycopg.Connection, text: str, parameters: dict[str, Any]) -> int:
    """How many pages the statement reads.

    The least of three runs: pages of the system catalogs are counted too, and the server reads
    hundreds of them again whenever other databases have made it drop its caches.
    """
    explain = "EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) " + text
    statement = sql.render(explain, "postgres", sql.words_for("postgres")).encode()

    def once() -> int:
        row = connection.execute(statement, parameters).fetchone()
        assert row is not None
        plan = row[0][0]["Plan"]
        count: int = plan["Shared Hit Blocks"] + plan["Shared Read Blocks"]
        return count

    return min(once() for _ in range(3))
