"""`app.queues`: pause, resume and limit queues."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from duly.core import Core
from duly.functions.checks import check_queue
from duly.model.keys import check_at_once
from duly.model.queue import QueuePause
from duly.runtime.transaction_guard import refuse_inside_mutation


class Queues:
    """Queues by name: pause and limit them. A paused queue starts no jobs, and loses none."""

    def __init__(self, core: Core) -> None:
        self._core = core

    def pause(self, name: str, *, by: str | None = None, note: str | None = None) -> None:
        """Start no more jobs of this queue; running ones continue."""
        refuse_inside_mutation("queues.pause")
        check_queue(name)
        self._core.ready().pause_queue(name, by, note, self._core.clock.now())

    def resume(self, name: str, *, by: str | None = None) -> None:
        """Start jobs of this queue again."""
        refuse_inside_mutation("queues.resume")
        check_queue(name)
        self._core.ready().resume_queue(name, by, self._core.now())
        self._core.wake()

    def limit(self, name: str, at_once: int | None, *, by: str | None = None) -> None:
        """Run at most `at_once` jobs of this queue at once, across all workers; None: no limit."""
        refuse_inside_mutation("queues.limit")
        check_queue(name)
        if at_once is not None:
            check_at_once("at_once", at_once)
        self._core.ready().limit_queue(name, at_once, by, self._core.now())
        self._core.wake()

    def limits(self) -> Mapping[str, int]:
        """The queues that have a limit, and how many of their jobs may run at once."""
        return self._core.ready().queue_limits()

    def paused(self) -> Sequence[QueuePause]:
        """The queues that are paused, by whom and why."""
        return self._core.ready().paused_queues()
