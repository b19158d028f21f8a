"""Every SQLite connection is closed by the code that opened it, never by the garbage collector.

Since Python 3.13 that is a ResourceWarning, which users see.
"""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.jobs.support import PATIENCE

WATCHED = """
import atexit, gc, os, sqlite3, sys

connect = sqlite3.connect
opened = []

def watched(*args, **options):
    opened.append(connect(*args, **options))
    return opened[-1]

def is_open(connection):
    try:
        return connection.total_changes >= 0
    except sqlite3.ProgrammingError:
        return False

@atexit.register  # the first of all: it is called last
def count():
    print(len(opened) > 0, sum(map(is_open, opened)), flush=True)

sqlite3.connect = watched
"""

OPENED = """
from duly import Ctx, Duly
from duly.gateway import Gateway
from duly.index import SqliteScheduleIndex

app = Duly(f"sqlite:///{sys.argv[1]}/app.db")

@app.action
def hello(ctx: Ctx) -> None: ...

app.migrate()
app.run(hello)
with app.transaction() as tx:
    tx.execute("SELECT 1")
assert len(app.jobs()) == 1
index = SqliteScheduleIndex(f"{sys.argv[1]}/index.db")
gateway = Gateway(f"{sys.argv[1]}/crons.db", {"hello": lambda: None}).open()
"""

FORKED = """
gateway.stop()
child = os.fork()
if child == 0:
    app.run(hello)
    sys.exit()
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
"""
NO_DATABASE = """
from duly import Duly
from duly.errors import StoreError

with open(f"{sys.argv[1]}/app.db", "w") as file:
    file.write("no database " * 100)
app = Duly(f"sqlite:///{sys.argv[1]}/app.db")
for use in (app.jobs, app.migrate):
    try:
        use()
    except StoreError:
        continue
    raise AssertionError
count()
os._exit(0)
"""


def run(program: str, folder: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-X", "dev", "-c", WATCHED + program, str(folder)]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert ran.returncode == 0, ran.stderr
    return ran


@pytest.mark.parametrize(
    "program",
    [
        OPENED + "sys.exit()",
        OPENED + "del app, hello, tx, index, gateway; gc.collect(); count(); os._exit(0)",
        OPENED + FORKED,
        NO_DATABASE,
    ],
    ids=["exit", "collected", "forked", "no database"],
)
def test_no_connection_is_left_to_the_garbage_collector(tmp_path: Path, program: str):
    ran = run(program, tmp_path)
    assert set(ran.stdout.splitlines()) == {"True 0"}
    assert ran.stderr == ""


def test_an_app_can_be_used_after_its_connections_were_closed_at_exit(tmp_path: Path):
    before = "atexit.register(lambda: (app.run(hello), print(len(app.jobs()))))\n"
    assert run(before + OPENED, tmp_path).stdout.startswith("2\n")
