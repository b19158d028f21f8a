"""A server that ends idle connections and slow transactions, and processes short of connections."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from torture.measures.base import Share, say
from torture.measures.levels import LEAST, STALE, Played, play
from torture.table import Row, none_of


class Scene(NamedTuple):
    words: str
    settings: Mapping[str, str]
    client: str
    env: Mapping[str, str]

    def play(self, seconds: float, seed: int, server: str | None = None) -> Played:
        return play(self.settings, seconds, seed, self.client, self.env, server=server)


# Half of the mutations do nothing for longer than allowed. They run again until one is quick.
ENDED = {
    "idle_in_transaction_session_timeout": "50ms",
    "idle_session_timeout": "1500ms",
    "transaction_timeout": "2s",
}
SCENES = {
    "timeouts": Scene(
        "a server that ends transactions idle for 50 ms and connections idle for 1.5 s",
        ENDED,
        STALE,
        {"TORTURE_DAWDLES": "0.1"},
    ),
    "pool": Scene(
        "12 threads of a process that share two connections",
        {},
        "torture.load.crowded",
        {"TORTURE_POOL": "2"},
    ),
}


def run(share: Share) -> Iterator[Row]:
    if "postgres" not in share.stores:
        return
    for scene in SCENES.values():
        played = scene.play(max(LEAST, share.seconds / len(SCENES)), share.seed)
        if played.violations:
            say(played.verdict, played.ticks, *played.evidence)
            say(share.replay("strained", "postgres", share.seconds))
        tried = f"{played.jobs:,} jobs, {played.kills} kills"
        yield none_of(f"PostgreSQL: {scene.words}, under load", tried, played.violations)
