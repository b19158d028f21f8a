"""Nothing is lost, doubled or blamed on a body when the server is strict or connections are few."""

from __future__ import annotations

import pytest

from torture.measures.strained import SCENES, Scene


@pytest.mark.postgres
@pytest.mark.parametrize("scene", SCENES.values(), ids=SCENES)
def test_a_strained_database_loses_nothing(scene: Scene, report) -> None:
    played = scene.play(3, 1)
    report(f"{scene.words}: {played.jobs} jobs, {played.kills} kills")
    assert played.violations == 0, "\n".join([str(played.verdict), *played.evidence])
    assert played.jobs >= 50
