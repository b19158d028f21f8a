"""The published suite on every index of ours, and on one that somebody else might write."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from duly.index import PostgresScheduleIndex, ScheduleIndex, SqliteScheduleIndex
from duly.testing import ScheduleIndexConformance


@pytest.mark.spec("R198", "R199", "R200", "R201", "R203", "R204", "R208")
class TestSqlite(ScheduleIndexConformance):
    @pytest.fixture(autouse=True)
    def _place(self, tmp_path: Path) -> None:
        self.path = tmp_path / "index.db"

    def create_index(self) -> ScheduleIndex:
        return SqliteScheduleIndex(self.path)

    def cleanup(self, index: SqliteScheduleIndex) -> None:
        index.close()


@pytest.mark.spec("R198", "R199", "R200", "R201", "R203", "R204", "R208")
class TestPostgres(ScheduleIndexConformance):
    @pytest.fixture(autouse=True)
    def _place(self, postgres_url: str) -> None:
        self.url = postgres_url

    async def create_index(self) -> ScheduleIndex:
        return PostgresScheduleIndex(self.url)

    async def cleanup(self, index: PostgresScheduleIndex) -> None:
        index.close()


# What somebody else would write. It sees nothing of this project's tests.
THIRD_PARTY = """
import asyncio
from dataclasses import replace

from duly.errors import BadInput
from duly.index import next_fire_after
from duly.testing import ScheduleIndexConformance


class Memory:
    def __init__(self):
        self.rows = {}

    async def upsert(self, row):
        self.rows[row.user_id, row.key] = row

    async def remove(self, user_id, key):
        self.rows.pop((user_id, key), None)

    async def claim_due(self, now, limit=100):
        claimed = []
        for row in self.due(now, limit):
            try:
                moved = replace(row, next_fire_at=next_fire_after(row, now))
            except BadInput:
                continue
            if len(claimed) < limit:
                await self.pause()
                self.rows[row.user_id, row.key] = moved
                claimed.append(row)
        return claimed

    def due(self, now, limit):
        rows = [row for row in self.rows.values() if row.next_fire_at <= now]
        return sorted(rows, key=lambda row: row.next_fire_at)

    async def pause(self):
        pass


class Pages(Memory):
    def due(self, now, limit):
        return super().due(now, limit)[:limit]


class Races(Memory):
    async def pause(self):
        await asyncio.sleep(0)


class Repeats(Memory):
    async def claim_due(self, now, limit=100):
        return self.due(now, limit)[:limit]


cleaned = []
TestMemory = ScheduleIndexConformance(create_index=Memory, cleanup=cleaned.append)
TestPages = ScheduleIndexConformance(Pages, lambda index: None)
TestRaces = ScheduleIndexConformance(Races, lambda index: None)
TestRepeats = ScheduleIndexConformance(Repeats)


def test_cleaned():
    assert len(cleaned) > 20
"""


@pytest.fixture(scope="module")
def elsewhere(tmp_path_factory: pytest.TempPathFactory) -> str:
    """What pytest says of all of them, in a folder that knows nothing of this one."""
    folder = tmp_path_factory.mktemp("elsewhere")
    (folder / "test_mine.py").write_text(THIRD_PARTY)
    (folder / "pytest.ini").write_text("[pytest]\nfilterwarnings = error\n")
    source = str(Path(__file__).parents[2] / "src")
    run = subprocess.run(
        [sys.executable, "-m", "pytest", "-v", "-p", "no:cacheprovider"],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": source, "CI": ""},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert run.returncode == pytest.ExitCode.TESTS_FAILED, run.stdout
    return run.stdout


def outcomes(of: str, said: str) -> set[str]:
    return set(re.findall(rf"^test_mine.py::{of}\S* (?:<- \S+ )?([A-Z]+)", said, re.MULTILINE))


def test_a_third_party_runs_the_suite_on_an_index_of_its_own(elsewhere):
    assert outcomes("TestMemory::", elsewhere) == {"PASSED"}, elsewhere
    assert outcomes("test_cleaned", elsewhere) == {"PASSED"}, elsewhere


@pytest.mark.parametrize(
    ("index", "test"),
    [
        ("Pages", "test_more_bad_rows_than_the_limit_do_not_hide_a_good_one"),
        ("Races", "test_of_many_claims_at_once_each_row_goes_to_one"),
        ("Repeats", "test_a_second_claim_at_the_same_time_gets_nothing"),
    ],
)
def test_the_suite_finds_an_index_that_breaks_the_contract(elsewhere, index, test):
    assert outcomes(f"Test{index}::{test}", elsewhere) == {"FAILED"}, elsewhere
    # pytest explains the asserts of the suite as if they were the user's own.
    _, _, explained = elsewhere.partition(f"_ Test{index}.{test} _")
    explained, _, _ = explained.partition("\n____")
    assert re.search(r"^E {7,15}(AssertionError: )?assert ", explained, re.MULTILINE), elsewhere
