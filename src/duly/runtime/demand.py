"""Tracks the due jobs that a worker has last seen, and decides what it requests next."""

from __future__ import annotations

from collections.abc import Sequence

from duly.clock import Clock
from duly.model.job import Claim, serves
from duly.store.base import ClaimRequest, Lane
from duly.store.table import Store

POLL_SECONDS = 1.0
OVERTAKE_SECONDS = 0.1
# Stepping over 100,000 waiting jobs takes about 30 ms. So it takes up to 1/20 of the time.
REST_FACTOR = 20


class Demand:
    """The lanes of the queues that a worker serves, and how far its claims have come in them."""

    def __init__(self, store: Store, clock: Clock, queues: tuple[str, ...] | None) -> None:
        self._store = store
        self._clock = clock
        self._queues = queues
        self.backlog = False
        """Whether the last claim got as many jobs as it requested."""
        self._lanes: Sequence[Lane] = ()
        self._lanes_at = -POLL_SECONDS
        self._pass_at = 0
        # Where the last claim of a lane ended; see `request`.
        self._floors: dict[tuple[str, int], int] = {}
        self._rotation = 0
        self._notified = False
        self._must_look = False
        self._recent: list[str] = []
        self._has_freed = False
        self.guessed = False
        """Whether this pass requests jobs without having checked which queues have any."""

    def begin_pass(self, notified: bool) -> None:
        """Start a pass, perhaps because of new jobs. Jobs count as due as of now."""
        self._pass_at = self._clock.now()
        self._notified = notified
        self.guessed = False

    def request(
        self,
        worker_id: str,
        functions: tuple[str, ...],
        room: int,
        freed: tuple[tuple[str, int], ...] = (),
    ) -> ClaimRequest | None:
        """The next request; None if no lane has due jobs, and no slot was freed."""
        queues = self._guess() or self._due_queues()
        if not queues and not freed:
            return None
        if queues and self._has_freed and not self._store.finishes_with_claim:
            # Freeing slots needs a separate transaction here: due jobs must not wait for it every
            # time.
            freed = ()
        self._has_freed = bool(freed)
        self._rotation += 1
        start = self._rotation % max(1, len(queues))
        rotated = tuple(queues[start:] + queues[:start])
        # With a backlog, a lane is read from where the last claim ended. This avoids stepping over
        # rows that others have claimed and that a held snapshot keeps from being vacuumed. Once a
        # second, and whenever there is no backlog, it is read from its start.
        floors = self._floors if self.backlog else {}
        limited = any(lane.limited for lane in self._lanes)
        return ClaimRequest(
            worker_id, rotated, functions, room, floors, limited, freed, self._queues
        )

    def _guess(self) -> list[str]:
        """The queues of the latest claims: new jobs are usually there too, and checking takes
        longer.

        After a wrong guess, queues are checked first until something was claimed again.
        """
        if not self._notified or self.backlog or self._must_poll():
            return []
        queues, self._recent = self._recent, []
        self.guessed = self._must_look = bool(queues)
        return queues

    def _must_poll(self) -> bool:
        return self._clock.monotonic() - self._lanes_at >= POLL_SECONDS

    def _due_queues(self) -> list[str]:
        if self._must_look or not self.backlog or self._must_poll():
            self._must_look = False
            self._lanes_at = self._clock.monotonic()
            self._lanes = self._store.lanes()
            self._floors = {}
        queues = {lane.queue for lane in self._lanes if lane.run_at <= self._pass_at}
        due = sorted(queue for queue in queues if serves(self._queues, queue))
        self.backlog = self.backlog and bool(due)
        return due

    def ended(self, request: ClaimRequest, claims: Sequence[Claim]) -> None:
        """The claims that the request has led to."""
        self.backlog = len(claims) >= request.limit

    def note(self, claims: Sequence[Claim]) -> None:
        # Jobs under limits are claimed only after checking.
        self._recent = sorted({claim.queue for claim in claims if not claim.holds_slot})
        for claim in claims:
            self._floors[claim.queue, claim.priority] = claim.run_at

    def until_due(self) -> float:
        """Seconds until a job may be due, as far as the lanes show."""
        # Jobs that became due during this pass are claimed in the next one.
        future = [lane.run_at for lane in self._lanes if lane.run_at > self._pass_at]
        until_due = (min(future) - self._clock.now()) / 1000 if future else POLL_SECONDS
        return min(until_due, POLL_SECONDS)

    def until_ready(self) -> float:
        """Seconds until it is worth asking; 0 if it is worth it now."""
        return 0 if self.backlog else self.until_due()


class Overtaking(Demand):
    """Claims that step over jobs that cannot start now: those that need a thread, or all others.

    They take longer the more of these there are, so they are made only if there may be any, and
    rest after one that found nothing.
    """

    def __init__(self, store: Store, clock: Clock, queues: tuple[str, ...] | None) -> None:
        super().__init__(store, clock, queues)
        self._began_at = 0.0
        self._rests_until = 0.0
        self._polls_at = 0.0
        self._news = False

    def begin_pass(self, notified: bool) -> None:
        # Without a guess: there are due jobs in the lanes, and most of them cannot start.
        super().begin_pass(notified=False)
        self._news = self._news or notified
        self._began_at = self._clock.monotonic()

    def until_ready(self) -> float:
        """See Demand."""
        if self.backlog:
            return 0
        ready_at = self._rests_until if self._news else max(self._rests_until, self._polls_at)
        return max(0, ready_at - self._clock.monotonic())

    def request(
        self,
        worker_id: str,
        functions: tuple[str, ...],
        room: int,
        freed: tuple[tuple[str, int], ...] = (),
    ) -> ClaimRequest | None:
        """See Demand."""
        self._news = False
        request = super().request(worker_id, functions, room, freed)
        if request is None:
            self._polls_at = self._began_at + self.until_due()
        return request

    def ended(self, request: ClaimRequest, claims: Sequence[Claim]) -> None:
        """Ask again immediately if something was found."""
        self.backlog = bool(claims)
        if not claims:
            now = self._clock.monotonic()
            self._rests_until = now + REST_FACTOR * (now - self._began_at)
            self._polls_at = now + OVERTAKE_SECONDS
