"""A database that is read-only for a while: `python -m torture.load.barred FILE file|folder`.

A process that has it open continues under load. Another opens it meanwhile: its requests must be
refused with StoreReadOnly, and work as soon as the permissions are back.
"""

import os
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from duly.errors import StoreError, StoreReadOnly
from tests.rights import obey_modes
from torture.load.app import app, note, trace
from torture.load.starved import enqueue

REFUSALS = 5
BETWEEN = 0.2
MORE = 20
PATIENCE = 30.0


def work_until_told() -> None:
    app.start(concurrency=4)
    while not trace.lines("over"):
        with suppress(StoreError):
            enqueue()
    app.stop()
    app.close()


def bar(file: Path, what: str) -> None:
    if what == "file":
        file.chmod(0o400)
    else:
        file.with_name(f"{file.name}-duly").chmod(0o500)
        file.parent.chmod(0o500)


def allow(file: Path) -> None:
    file.parent.chmod(0o700)
    file.with_name(f"{file.name}-duly").chmod(0o700)
    file.chmod(0o600)


# A read-only folder does not prevent access to files that already exist.
VERBS: dict[str, Callable[[], object]] = {
    "file": lambda: app.run(note),
    "folder": lambda: app.start(concurrency=4),
}


def is_refused(what: str) -> bool:
    try:
        VERBS[what]()
    except StoreReadOnly:
        return True
    return False


def main(file: Path, what: str) -> int:
    obey_modes()
    other = os.fork()
    if other == 0:
        work_until_told()
        os._exit(0)
    give_up_at = time.monotonic() + PATIENCE
    while not trace.lines("acknowledged") and time.monotonic() < give_up_at:
        time.sleep(0.01)
    bar(file, what)
    refused = 0
    for _ in range(REFUSALS):
        refused += is_refused(what)
        time.sleep(BETWEEN)
    allow(file)
    app.start(concurrency=4)
    for _ in range(MORE):
        enqueue()
    app.stop()
    app.close()
    trace.append("over")
    _, status = os.waitpid(other, 0)
    if refused < REFUSALS:
        print(f"{REFUSALS - refused} writes were not refused", file=sys.stderr)  # noqa: T201
    return int(refused < REFUSALS or os.waitstatus_to_exitcode(status) != 0)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), sys.argv[2]))
