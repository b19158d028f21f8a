"""Under load, kills and an isolation level that is stricter than duly's own, no hook is lost."""

from __future__ import annotations

import pytest

from torture.measures.levels import play

LEVELS = ["repeatable read", pytest.param("serializable", marks=pytest.mark.long)]


@pytest.mark.spec("N38", "N39")
@pytest.mark.parametrize("level", LEVELS)
def test_a_stricter_database_loses_nothing(level, postgres_server, report):
    played = play({"default_transaction_isolation": level}, 4, 1, server=postgres_server)
    report(f"{level}: {played.jobs} jobs, {played.hooks} hooks, {played.kills} kills")
    assert played.violations == 0, "\n".join([str(played.verdict), *played.evidence])
    assert played.hooks >= 20
