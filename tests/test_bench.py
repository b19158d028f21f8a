"""The benchmark runs and says something; how much, only a quiet machine can tell."""

import json
import math
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

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


def test_it_prints_every_row_with_its_ratio_and_the_bars(tmp_path: Path) -> None:
    report = run_bench(
        tmp_path, "--growth-rows", "2000", "--only", "e2e,growth", "--store", "sqlite"
    )

    ends = ratios(report["figures"], "of_raw")
    grown = ratios(report["growth"], "of_empty")
    assert (len(ends), len(grown)) == (3, BALLASTS)
    assert all(map(is_a_ratio, ends + grown))
    for row in ("async no-op actions", "sync no-op actions", "mutations", "paused queue"):
        assert row in report["printed"]
    assert report["printed"].count("the bar is 25%") == 2 * len(ends)
    assert report["printed"].count("the bar is 90%") == BALLASTS


@pytest.mark.postgres
def test_the_bare_statements_are_those_of_the_product_on_postgresql_too(tmp_path: Path) -> None:
    report = run_bench(tmp_path, "--only", "e2e", "--store", "postgres")

    assert all(map(is_a_ratio, ratios(report["figures"], "of_raw")))


def test_cron_is_measured_beside_croniter(tmp_path: Path) -> None:
    report = run_bench(tmp_path, "--only", "cron", "--store", "sqlite")

    assert [figure["side"] for figure in report["figures"]] == ["croniter", "duly"]
    assert report["printed"].count("the bar is 1000%") == 1


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
