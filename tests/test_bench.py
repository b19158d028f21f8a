"""The benchmark runs and says something; how much, only a quiet machine can tell."""

import json
import math
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from bench import cases, claims, dashboard, server
from bench.bars import bars
from bench.databases import PostgresDatabase
from bench.figures import Figure

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


@pytest.mark.long("postgres")
@pytest.mark.postgres
@pytest.mark.parametrize("store", ["sqlite", "postgres"])
def test_it_prints_every_row_with_its_ratio_and_the_bars(
    tmp_path: Path, store: str, long_run: bool
) -> None:
    # All the rest takes as long as the other tests together; these use statements of duly itself.
    options = [] if long_run else ["--only", "e2e,schedules"]
    report = run_bench(tmp_path, *options, "--store", store)

    ends = [figure for figure in report["figures"] if figure["row"].startswith("end to end")]
    beside_raw = [figure for figure in ends if not figure["row"].endswith("group=True")]
    grown = ratios(report["growth"], "of_empty")
    assert (len(ratios(beside_raw, "of_raw")), len(grown)) == (3, BALLASTS * long_run)
    assert all(map(is_a_ratio, ratios(beside_raw, "of_raw") + grown))
    for row in ("async no-op actions", "sync no-op actions", "mutations"):
        assert row in report["printed"]
    promises = [bar["promise"] for bar in report["bars"]]
    assert all(report["printed"].count(promise) == 1 for promise in promises)
    assert len(promises) >= (20 if long_run else 3)


def test_cron_is_measured_beside_croniter(tmp_path: Path) -> None:
    report = run_bench(tmp_path, "--only", "cron")

    assert [figure["side"] for figure in report["figures"]] == ["croniter", "duly"] * 2
    assert [bar["bar"] for bar in report["bars"]] == [15, 5]


def test_servers_are_measured_over_a_real_socket(tmp_path: Path) -> None:
    report = run_bench(tmp_path, "--only", "server", "--rounds", "1")

    assert [figure["row"] for figure in report["figures"]] == [server.ANSWER, server.GATEWAY_ANSWER]
    assert [bar["bar"] for bar in report["bars"]] == [15, 15]


def figure(side: str, row: str, value: float, unit: str = "jobs/s") -> Figure:
    return Figure("PostgreSQL", row, side, "a setting", unit, samples=[value])


def test_a_bar_is_kept_or_missed_on_its_own_side() -> None:
    figures = [
        figure("raw", cases.ASYNC, 100),
        figure("duly", cases.ASYNC, 49),
        figure("duly", claims.HELD, 51, "ms"),
        figure("calm", claims.RETAINED, 2, "ms"),
        figure("duly", claims.RETAINED, 4, "ms"),
        figure("pgqueuer 1", cases.ASYNC, 20),
    ]

    assert [str(bar) for bar in bars(figures, [])] == [
        f"FAIL  PostgreSQL, {cases.ASYNC} (a setting): of raw: 49%, at least 50%",
        f"pass  PostgreSQL, {cases.ASYNC}: of pgqueuer 1 (a setting): 2.45 ×, at least 2 ×",
        f"pass  PostgreSQL, {claims.RETAINED}: of calm: 2 ×, at most 2 ×",
        f"FAIL  PostgreSQL, {claims.HELD}: 51 ms, at most 50 ms",
    ]


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
