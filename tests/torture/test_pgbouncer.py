"""Everything works through a real PgBouncer in transaction mode.

Runs with `--long` only, and needs Debian's `pgbouncer`; see conftest.py.
"""

import os
import pwd
import shutil
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from urllib.parse import urlsplit

import psycopg
import pytest

from duly import AsyncCtx, Ctx, Duly, Limit, Tx
from duly.errors import JobFailed
from tests.jobs.support import wait_until

# Each transaction goes to whichever server is next: what one left in a session hits another.
# There are fewer servers than a process has mutations at a time: a transaction that needed another
# one would wait for ever.
SETTINGS = """
[databases]
* = host={host} port={port} user={user} password={password}
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {listen}
unix_socket_dir =
auth_type = any
pool_mode = transaction
default_pool_size = 4
server_round_robin = 1
max_client_conn = 200
ignore_startup_parameters = extra_float_digits
"""


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def answers(url: str) -> bool:
    try:
        psycopg.connect(url, connect_timeout=1).close()
    except psycopg.OperationalError:
        return False
    return True


@pytest.fixture
def pooled(postgres_url: str, tmp_path: Path) -> Iterator[str]:
    """The URL of the test's database behind a PgBouncer."""
    program = shutil.which("pgbouncer", path=f"{os.environ.get('PATH', '')}:/usr/sbin")
    if program is None:
        pytest.skip("there is no pgbouncer")
    server, listen = urlsplit(postgres_url), free_port()
    settings = tmp_path / "pgbouncer.ini"
    settings.touch(mode=0o600)
    settings.write_text(
        SETTINGS.format(
            host=server.hostname,
            port=server.port,
            user=server.username,
            password=server.password,
            listen=listen,
        )
    )
    # It does not run as root; the settings are read before it becomes somebody else.
    account = ["-u", pwd.getpwnam("nobody").pw_name] if os.geteuid() == 0 else []
    with open(tmp_path / "pgbouncer.log", "w") as log:
        process = subprocess.Popen([program, *account, settings], stdout=log, stderr=log)
    url = f"postgresql://anybody@127.0.0.1:{listen}{server.path}"
    try:
        wait_until(lambda: process.poll() is not None or answers(url), "PgBouncer")
        assert process.poll() is None, (tmp_path / "pgbouncer.log").read_text()
        yield url
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(20)


@pytest.fixture
def app(pooled: str) -> Iterator[Duly]:
    with closing(Duly(pooled, pooler=True, auto_migrate=True)) as app:
        with app.transaction() as tx:
            tx.execute("CREATE TABLE notes (text text)")
        yield app


def test_without_the_option_a_prepared_statement_meets_another_server(pooled):
    """Shows that the pooler in front is one that session state does not survive."""

    def ask_in_turns() -> None:
        with (
            psycopg.connect(pooled, autocommit=True, prepare_threshold=0) as one,
            psycopg.connect(pooled, autocommit=True, prepare_threshold=0) as other,
        ):
            for _ in range(20):
                one.execute("SELECT %s::int", (1,))
                other.execute("SELECT %s::int", (1,))

    with pytest.raises(psycopg.errors.Error, match="prepared statement"):
        ask_in_turns()


def test_all_of_it_works_through_a_pooler_in_transaction_mode(app, pooled, report):
    @app.mutation
    def note(tx: Tx, text: str) -> int:
        tx.execute("INSERT INTO notes (text) VALUES (?)", (text,))
        tx.run(shout, text)
        return int(tx.execute("SELECT count(*) FROM notes").scalar())

    @app.mutation(group=True)
    def append(tx: Tx, text: str) -> None:
        tx.execute("SET LOCAL statement_timeout = '30s'")
        tx.execute("INSERT INTO notes (text) VALUES (?)", (text,))

    @app.mutation(timeout=0.5)
    def sleepy(tx: Tx) -> None:
        tx.execute("SELECT pg_sleep(30)")

    @app.mutation
    def breaks(tx: Tx) -> None:
        tx.execute("INSERT INTO notes (text) VALUES ('never')")
        raise ValueError("on purpose")

    @app.action
    def shout(ctx: Ctx, text: str) -> str:
        return text.upper()

    @app.action(limit=Limit("door", at_once=1))
    async def through(ctx: AsyncCtx, n: int) -> int:
        await ctx.progress(0.5, "half")
        return n

    @app.action
    def waits(ctx: Ctx) -> None:
        started.set()
        while True:
            ctx.progress(0.5)  # raises when it is canceled
            time.sleep(0.01)

    app.schedule("often", shout.bind("tick"), every=1)
    started = threading.Event()
    began = time.monotonic()
    with app:
        with ThreadPoolExecutor(32) as callers:
            jobs = list(callers.map(lambda n: app.run(note, f"n{n}"), range(200)))
        jobs += app.run_many(append.bind(f"a{n}") for n in range(200))
        jobs += [app.run(through, n) for n in range(20)]
        for job in jobs:
            job.result(timeout=60)
        for job in jobs[:200]:
            (child,) = job.children()
            assert child.result(timeout=60).startswith("N")

        states = [seen.state for seen in app.run(through, 1).watch()]
        assert states[-1] == "succeeded"

        running = app.run(waits)
        assert started.wait(20)
        assert running.cancel()
        assert running.state == "canceled"

        with pytest.raises(JobFailed, match="time"):
            app.run(sleepy).result(timeout=60)
        with pytest.raises(JobFailed, match="on purpose"):
            app.run(breaks).result(timeout=60)

        wait_until(lambda: len(app.schedules.ticks("often")) >= 2, "two ticks")

        with psycopg.connect(pooled) as own, own.transaction():
            mine = app.on(own).run(shout, "mine")
        assert app.job(mine.id).result(timeout=60) == "MINE"
    with app.transaction() as tx:
        found = tx.execute("SELECT count(*), count(DISTINCT text) FROM notes").one()
        assert tuple(found) == (400, 400)
    report(f"{len(jobs)} jobs through PgBouncer in {time.monotonic() - began:.1f} s")
