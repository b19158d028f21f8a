"""Decides which workers are dead by counting rounds, never by comparing clocks."""

from __future__ import annotations

from collections.abc import Mapping

ROUNDS_UNTIL_DEAD = 8


class LivenessRounds:
    """Counts, for every worker, the rounds in which its heartbeat counter did not change.

    A round counts only if the observer's own heartbeat succeeded in it. Any failed heartbeat resets
    every count, so an outage of the database, or a pause of the observer itself, makes no worker
    look dead.
    """

    def __init__(self) -> None:
        self._seen: dict[str, int] = {}
        self._still: dict[str, int] = {}

    def reset(self) -> None:
        self._still.clear()

    def round(self, beats: Mapping[str, int]) -> list[tuple[str, int]]:
        """Take part in one round.

        Return the workers that are dead now, each with its last heartbeat.
        """
        for worker_id, beat in beats.items():
            stood_still = self._seen.get(worker_id) == beat
            self._still[worker_id] = self._still.get(worker_id, 0) + 1 if stood_still else 0
        self._seen = dict(beats)
        self._still = {w: rounds for w, rounds in self._still.items() if w in beats}
        return [(w, beats[w]) for w, n in self._still.items() if n >= ROUNDS_UNTIL_DEAD]
