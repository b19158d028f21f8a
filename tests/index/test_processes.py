"""Many processes on one index: each row is claimed once, and a crash leaves it due."""

import os
import subprocess
import sys
from contextlib import closing

import pytest

from duly.index import SyncScheduleIndex
from duly.testing.index_conformance import HOUR, NOW, row
from tests.index.support import Place

PATIENCE = 60.0
PROCESSES, ROWS = 8, 1_000

# Each makes the table, or finds it made, while the others do too.
CLAIM_ALL = """
import sys
from duly.index import PostgresScheduleIndex, SqliteScheduleIndex, SyncScheduleIndex

print("ready", flush=True)
sys.stdin.readline()
kind = SqliteScheduleIndex if sys.argv[1] == "sqlite" else PostgresScheduleIndex
index = kind(sys.argv[2])
print("open", flush=True)
sys.stdin.readline()

def claim():
    claimed = SyncScheduleIndex(index).claim_due(int(sys.argv[3]), 7)
    print(*(row.key for row in claimed), flush=True)
    return claimed

if claim():
    sys.stdin.readline()
while claim():
    pass
index.close()
"""


def start(place: Place, **environment: str) -> "subprocess.Popen[str]":
    kind = "sqlite" if place.is_sqlite else "postgres"
    return subprocess.Popen(
        [sys.executable, "-c", CLAIM_ALL, kind, place.address, str(NOW)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, **environment},
    )


def tell(process: "subprocess.Popen[str]") -> None:
    assert process.stdin is not None
    process.stdin.write("go\n")
    process.stdin.flush()


def hear(process: "subprocess.Popen[str]") -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


@pytest.mark.spec("R205", "R212")
def test_eight_processes_claim_a_thousand_rows_each_exactly_once(place):
    processes = [start(place) for _ in range(PROCESSES)]
    try:
        assert [hear(process) for process in processes] == ["ready"] * PROCESSES
        for process in processes:
            tell(process)
        assert [hear(process) for process in processes] == ["open"] * PROCESSES
        keys = place.insert_due(ROWS)
        for process in processes:
            tell(process)
        # Nobody can take everything before the others have begun.
        outputs = [hear(process) for process in processes]
        for process in processes:
            tell(process)
        outputs += [process.communicate(timeout=PATIENCE)[0] for process in processes]
        assert [process.returncode for process in processes] == [0] * PROCESSES
    finally:
        for process in processes:
            process.kill()
            process.communicate()
    claimed = [key for output in outputs for key in output.split()]
    assert len(claimed) == ROWS
    assert sorted(claimed) == keys
    assert all(outputs[:PROCESSES])
    assert set(place.times().values()) == {NOW + HOUR}


@pytest.mark.spec("R207")
def test_a_process_that_is_killed_inside_a_claim_leaves_everything_due(place, index):
    keys = place.insert_due(10)
    process = start(place, DULY_FAULT="index.advanced:1")
    tell(process)
    tell(process)
    output = process.communicate(timeout=PATIENCE)[0]
    assert process.returncode == -9
    assert output.split() == ["ready", "open"]
    assert set(place.times().values()) == {NOW}
    assert [r.key for r in SyncScheduleIndex(index).claim_due(NOW)] == keys


def test_an_index_goes_on_in_a_forked_process(place, index):
    blocking = SyncScheduleIndex(index)
    blocking.upsert(row("first"))
    idle = index.database._idle
    connection = idle.take()
    idle.give_back(connection)
    program = os.fork()
    if program == 0:
        code = 1
        try:
            blocking.upsert(row("second"))
            # Two processes on one connection would spoil each other's transactions.
            code = 0 if idle.take() is not connection else 2
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(program, 0)[1]) == 0
    blocking.upsert(row("third"))
    with closing(place.connect()):
        assert sorted(place.times()) == ["first", "second", "third"]
