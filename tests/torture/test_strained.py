"""Nothing is lost, doubled or blamed on a body when the server is strict or connections are few."""

from __future__ import annotations

import pytest

from torture.measures.strained import SCENES, Scene


@pytest.mark.parametrize("scene", SCENES.values(), ids=SCENES)
def test_a_strained_database_loses_nothing(scene: Scene, postgres_server: str, report) -> None:
    played = scene.play(3, 1, postgres_server)
    report(f"{scene.words}: {played.jobs} jobs, {played.kills} kills")
    assert played.violations == 0, "\n".join([str(played.verdict), *played.evidence])
    assert played.jobs >= 50
