"""Clocks of real processes that are wrong for seconds, and once long enough to be accepted."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack
from datetime import timedelta
from pathlib import Path
from random import Random

from duly import Ctx, Duly, Job, State
from duly.clock import from_ms
from tests.cli.processes import Process, duly, environment, wait_until
from tests.torture.kill.trace import Trace
from torture.load.scene import scratch_folder
from torture.measures.base import HOUR, NAMES, Share, say
from torture.measures.points import database
from torture.table import Row, at_most, none_of

APP = "torture.load.glitched:app"
DAY = 86_400.0
BY = (7, 60, 3_600, DAY, 3 * 365 * DAY)
LONGEST = 20.0
WITHIN = 60.0
SLACK = 5.0
"""Workers start, look every second, and share the machine."""


def run(share: Share) -> Iterator[Row]:
    each = max(20.0, share.seconds / len(share.stores))
    is_long = share.whole >= HOUR / 2
    for store in share.stores:
        with ExitStack() as stack:
            scene = Scene(stack, store, share.seed)
            scene.glitch_for(each)
            wrong = scene.wrong()
            say(*wrong, *([share.replay("glitches", store)] if wrong else []))
            words = (
                "clocks wrong for up to 20 s: jobs early, late or expired, ticks moved or missing"
            )
            tried = f"{scene.glitches} glitches, {len(scene.due)} jobs"
            yield none_of(f"{NAMES[store]}: {words}", tried, len(wrong))
            if is_long:
                words = (
                    "time until schedules are right after a wrong day was accepted and corrected"
                )
                seconds = scene.believe_a_day()
                yield at_most(f"{NAMES[store]}: {words}", "1", seconds, WITHIN + SLACK, " s")


class Scene:
    """Two workers with clocks that can be set wrong, and a client whose clock is right."""

    def __init__(self, stack: ExitStack, store: str, seed: int) -> None:
        self._rng = Random(seed)
        folder = stack.enter_context(scratch_folder())
        url = stack.enter_context(database(store, folder))
        self._trace = Trace(folder)
        self._files = [Path(folder, f"glitch{number}") for number in range(2)]
        self.glitches = 0
        self.due: dict[str, float] = {}
        self._never: list[Job[None]] = []
        self.app = app = Duly(url, min_interval=timedelta(seconds=1))
        stack.callback(app.close)
        app.migrate()

        @app.action
        def touch(ctx: Ctx) -> None: ...

        @app.action
        def tick(ctx: Ctx) -> None: ...

        self._touch = touch
        env = environment(url, TORTURE_FOLDER=str(folder))
        command = duly("--app", APP, "worker", "--concurrency=4")
        for file in self._files:
            stack.callback(Process(command, env | {"GLITCH": str(file)}).close)
        app.schedules.create("often", tick, every=2, overlap="allow", catch_up=10)
        app.run(touch).result(timeout=60)
        wait_until(lambda: len(self._ticks()) > 1, "the schedule ticks")
        wait_until(lambda: len(list(app.workers())) >= 2, "both workers run")

    def glitch_for(self, seconds: float) -> None:
        """Set clocks wrong, one or all of them, while jobs arrive and become due."""
        over_at = time.monotonic() + seconds
        self.app.queues.pause("paused")
        for hours in (1, 6, 30):
            self._never.append(self.app.run_after(hours * 3_600, self._touch))
            expiring = self._touch.using(expires=hours * 3_600, queue="paused")
            self._never.append(self.app.run(expiring))
        while (left := over_at - time.monotonic()) > 0:
            files = self._rng.choice((self._files, self._files[:1], self._files[1:]))
            self._put(files, self._rng.choice(BY) * self._rng.choice((1, 1, -1)))
            lasting = self._rng.choice((0.5, 1.0, 3.0, LONGEST))
            self._enqueue_for(min(left, lasting, seconds / 5))
            self._put(self._files, 0)
            self._enqueue_for(self._rng.choice((0.2, 0.5, 1.0)))

    def _put(self, files: list[Path], by: float) -> None:
        self.glitches += by != 0
        for file in files:
            new = file.with_suffix(".new")
            new.write_text(str(by))
            new.replace(file)

    def _enqueue_for(self, seconds: float) -> None:
        over_at = time.monotonic() + seconds
        while time.monotonic() < over_at:
            after = self._rng.choice((0, 0, 1, 2))
            job = self.app.run_after(after, self._touch)
            self.due[job.id] = job.run_at.timestamp()
            time.sleep(0.1)

    def _ticks(self) -> list[float]:
        """The dispatched slots of the schedule, oldest first."""
        ticks = self.app.schedules.ticks("often", limit=10_000)
        return sorted(tick.at.timestamp() for tick in ticks if tick.outcome == "dispatched")

    def wrong(self) -> list[str]:
        """What a temporarily wrong clock has broken."""
        now = time.time()
        wait_until(lambda: len(self._starts()) >= len(self.due), "what was due has run")
        found = [f"{job.id} is {job.state}" for job in self._never if job.state != State.PENDING]
        starts = self._starts()
        for job_id, at in starts:
            late = at - self.due[job_id]
            if not 0 <= late <= SLACK:
                found.append(f"{job_id} started {late:+.1f} s from when it was due")
        if len({job_id for job_id, _ in starts}) < len(starts):
            found.append(f"{len(starts)} starts of {len(self.due)} jobs")
        return found + self._wrong_ticks(now)

    def _starts(self) -> list[tuple[str, float]]:
        rows = self._trace.lines("touched")
        return [(job_id, float(at)) for job_id, at in rows if job_id in self.due]

    def _wrong_ticks(self, now: float) -> list[str]:
        ticks = self._ticks()
        first, last = ticks[0], now - SLACK
        owed = {first + 2 * n for n in range(int((last - first) // 2) + 1)}
        found = [f"no tick at {at}" for at in sorted(owed - {*ticks})]
        found += [f"a tick at {at - now:.1f} s from now" for at in ticks if at > now + 2 * SLACK]
        next_in = self._next_tick() - time.time()
        return found + ([f"the next tick is in {next_in:.1f} s"] if next_in > SLACK else [])

    def _next_tick(self) -> float:
        due_at = self.app.schedules.get("often").record.due_at
        assert due_at is not None
        return from_ms(due_at).timestamp()

    def believe_a_day(self) -> float:
        """Set all clocks a day ahead until that is accepted, then right again.

        Returns how long it then takes until the schedule ticks on time.
        """
        self._put(self._files, DAY)
        wait_until(lambda: self._next_tick() > time.time() + DAY / 2, "it is believed", 2 * WITHIN)
        self._put(self._files, 0)
        began = time.monotonic()
        wait_until(lambda: self._next_tick() < time.time() + SLACK, "it is withdrawn", 2 * WITHIN)
        before = time.time()
        wait_until(lambda: any(before < at < before + WITHIN for at in self._ticks()), "it ticks")
        return time.monotonic() - began
