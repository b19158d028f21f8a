"""The app that the tests of the command line run; its functions leave marks in a folder.

A body that has to wait does so until the test puts a file into the folder.
"""

import gc
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from duly import AttemptInfo, Ctx, Duly, Tx, WorkflowCtx
from tests.torture.kill.trace import Trace

PATIENCE = 60.0


def make(url: str | None, folder: Path) -> Duly:
    """The same app for the processes and for the test that enqueues."""
    trace = Trace(folder)

    def lifespan(app: Duly) -> Iterator[int]:
        if (folder / "broken").exists():
            raise ConnectionError("no answer")
        trace.append("lifespan", "entered", os.getpid())
        yield os.getpid()
        trace.append("lifespan", "exited", os.getpid())

    app = Duly(url, worker_lifespan=lifespan)

    def wait_for(file: str) -> None:
        give_up_at = time.monotonic() + PATIENCE
        while not (trace.folder / file).exists() and time.monotonic() < give_up_at:
            time.sleep(0.005)

    @app.mutation
    def note(tx: Tx, text: str) -> None:
        tx.execute("INSERT INTO notes (text) VALUES (?)", (text,))

    @app.mutation(alone=True)
    def note_when(tx: Tx, text: str, file: str) -> None:
        trace.append("started", text)
        wait_for(file)
        tx.execute("INSERT INTO notes (text) VALUES (?)", (text,))

    @app.action
    def touch(ctx: Ctx, text: str) -> str:
        trace.append("started", text, time.monotonic_ns(), os.getpid())
        return text

    @app.action
    def touch_when(ctx: Ctx, text: str, file: str) -> str:
        trace.append("started", text, time.monotonic_ns(), os.getpid())
        wait_for(file)
        return text

    @app.action
    def fail(ctx: Ctx, text: str) -> None:
        raise ValueError("always")

    @app.workflow
    def checkout(ctx: WorkflowCtx, order: str) -> list[Any]:
        note = ctx.step(touch, order)
        packed = ctx.wait_for("packed", timeout=86_400)
        decision = ctx.approval("Release it?", to="ann", options=("yes", "later", "no"))
        return [note, packed, decision.choice, decision.data, decision.by]

    @app.workflow
    def typo(ctx: WorkflowCtx) -> None:
        raise KeyError("adress")

    @app.action
    def run_command(ctx: Ctx, command: str) -> str:
        return command

    @app.action
    def tidy(ctx: Ctx) -> None: ...

    @app.action
    def look_at_collector(ctx: Ctx) -> list[int]:
        return [gc.get_threshold()[0], gc.get_freeze_count()]

    @app.on_failure
    def note_failure(info: AttemptInfo) -> None:
        kind = info.error.kind if info.error else None
        trace.append("failures", info.job_id, kind, os.getpid())

    # One a line: a key and a cron expression.
    declared = folder / "schedules"
    for line in declared.read_text().splitlines() if declared.exists() else ():
        key, _, cron = line.partition(" ")
        app.schedule(key, touch.bind("declared"), cron=cron)
    # One a line: a name and a day.
    days = folder / "calendars"
    for line in days.read_text().splitlines() if days.exists() else ():
        name, _, day = line.partition(" ")
        app.calendar(name, dates=[day])

    return app


if "SHOP_FOLDER" in os.environ:
    app = make(None, Path(os.environ["SHOP_FOLDER"]))
