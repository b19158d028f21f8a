"""The benchmark runs and says something; how much, only a quiet machine can tell."""

import json
import math
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from bench import dashboard
from bench.databases import PostgresDatabase

TOP = Path(__file__).parent.parent
BALLASTS = 5


def run_bench(folder: Path, *options: str) -> dict[str, Any]:
    """Run it as `make bench` does; what it printed and what it wrote."""
    written = folder / "figures.json"
    done = subprocess.run(
        [sys.executable, "bench/run.py", "--quick", "--json", str(written), *options],
        cwd=TOP,
        env=os.environ | {"PYTHONPATH": f"{TOP}{os.pathsep}{TOP / 'src'}"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return {"printed": done.stdout, **json.loads(written.read_text())}


def ratios(rows: list[dict[str, Any]], field: str) -> list[float]:
    return [row[field] for row in rows if row.get("side", "duly") == "duly"]


def is_a_ratio(value: float | None) -> bool:
    return value is not None and math.isfinite(value) and value > 0


@pytest.mark.postgres
@pytest.mark.parametrize("store", ["sqlite", "postgres"])
def test_it_prints_every_row_with_its_ratio_and_the_bars(
    tmp_path: Path, store: str, long_run: bool
) -> None:
    # What grows takes as long as all the rest.
    growth = ["growth"] if long_run else []
    options = ["--growth-rows", "2000", "--only", ",".join(["e2e", *growth])]
    report = run_bench(tmp_path, *options, "--store", store)

    ends = ratios(report["figures"], "of_raw")
    grown = ratios(report["growth"], "of_empty") if long_run else []
    assert (len(ends), len(grown)) == (3, BALLASTS * long_run)
    assert all(map(is_a_ratio, ends + grown))
    for row in ("async no-op actions", "sync no-op actions", "mutations"):
        assert row in report["printed"]
    assert report["printed"].count("the bar is 25%") == 2 * len(ends)
    assert report["printed"].count("the bar is 90%") == len(grown)


def test_cron_is_measured_beside_croniter(tmp_path: Path) -> None:
    report = run_bench(tmp_path, "--only", "cron", "--store", "sqlite")

    assert [figure["side"] for figure in report["figures"]] == ["croniter", "duly"]
    assert report["printed"].count("the bar is 1000%") == 1


@pytest.mark.postgres
def test_pages_of_the_dashboard_are_measured(
    postgres_url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    database = PostgresDatabase(postgres_url)
    database.prepare()
    asked = dashboard.pages()[::10]
    with dashboard.loaded(database, jobs=500, schedules=10) as app:
        results = dashboard.measure(app, asked, rounds=1, asked=1)
    assert [result.page for result in results] == asked
    assert {result.status for result in results} == {200}
    dashboard.show([*results, results[0]._replace(p95=dashboard.BAR_MS + 1)])
    assert capsys.readouterr().out.count("MISSED (200)") >= 1


def test_a_part_that_does_not_exist_is_refused() -> None:
    done = subprocess.run(
        [sys.executable, "bench/run.py", "--only", "e2e,speed"],
        cwd=TOP,
        env=os.environ | {"PYTHONPATH": f"{TOP}{os.pathsep}{TOP / 'src'}"},
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 2
    assert "no such part: speed" in done.stderr
