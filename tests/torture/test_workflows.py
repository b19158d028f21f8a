"""Real workers run workflows while they are killed, and while their code is broken."""

from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

from torture.measures.workflows import Scene


def test_runs_survive_kills_and_broken_code(
    url: str, tmp_path: Path, long_run: bool, report: Callable[[str], None]
) -> None:
    with ExitStack() as stack:
        scene = Scene(stack, url, tmp_path, seed=1)
        scene.kill_for(60 if long_run else 2)
        scene.deploy(1_000 if long_run else 20)
        report(f"{scene.orders} runs, {scene.fleet.kills} kills, {scene.held} held")
        assert scene.wrong() == []
