"""The documentation is true: its code runs, its links lead somewhere, its lists are complete."""

import inspect
import operator
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import click
import pytest

import duly
from duly import errors
from duly.app.queues import Queues
from duly.calls import context, verbs
from duly.cli.root import cli
from duly.endpoints import verbs as endpoints
from duly.functions import checks
from duly.gateway import crons
from duly.model import forecast, job, progress, signature
from duly.runtime import execute, isolate, janitor, lifeline, liveness, reports, worker
from duly.schedules import checks as schedule_checks
from duly.schedules import define, verbs_read
from duly.server.api import common, events
from duly.server.api import forecast as http_forecast
from duly.server.api import jobs as http_jobs
from duly.server.api import schedules as http_schedules
from duly.store import postgres, sqlite, turnstile
from duly.store.sqlite import session
from tools import docs

ROOT = Path(__file__).resolve().parents[2]
README = ROOT / "README.md"
GUIDE = ROOT / "src/duly/cli/assistants.md"
PAGES = [README, GUIDE, *sorted((ROOT / "docs").rglob("*.md"))]
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))

NOT_RUN = re.compile(r"<!-- not run: (.+) -->")


class Block(NamedTuple):
    line: int
    code: str
    not_run: str | None


def blocks(page: Path) -> Iterator[Block]:
    """The Python blocks of a page; a comment right before one says why it is not run."""
    lines = page.read_text(encoding="utf-8").splitlines()
    began: int | None = None
    for number, line in enumerate(lines, start=1):
        if began is None and line == "```python":
            began = number
        elif began is not None and line == "```":
            reason = NOT_RUN.fullmatch(lines[began - 2])
            code = "".join(f"{text}\n" for text in lines[began : number - 1])
            yield Block(began, code, reason[1] if reason else None)
            began = None
    assert began is None, f"{page}:{began}: the block has no end"


def as_script(page: Path) -> str:
    """The blocks of a page as one script, with the line numbers of the page."""
    script = ""
    for block in blocks(page):
        if block.not_run is None:
            script += "\n" * (block.line - script.count("\n")) + block.code
    return script


def name(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def run(command: list[str], folder: Path) -> subprocess.CompletedProcess[str]:
    environment = {k: v for k, v in os.environ.items() if not k.startswith("DULY_")}
    package = Path(duly.__file__).parent.parent
    return subprocess.run(
        [sys.executable, "-W", "error", *command],
        cwd=folder,
        env=environment | {"TMPDIR": str(folder), "PYTHONPATH": str(package)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.mark.parametrize("page", [page for page in PAGES if as_script(page)], ids=name)
def test_the_code_of_a_page_runs(page: Path, tmp_path: Path):
    # Not by the name of the page alone, which may be that of a library.
    script = tmp_path / f"page_{page.stem}.py"
    script.write_text(as_script(page), encoding="utf-8")

    ended = run([str(script)], tmp_path)

    assert ended.returncode == 0, f"{name(page)}, the line numbers are its own:\n{ended.stderr}"


def test_the_readme_runs_twice_from_any_directory(tmp_path: Path):
    script, folder = tmp_path / "first.py", tmp_path / "elsewhere"
    script.write_text(as_script(README), encoding="utf-8")
    folder.mkdir()

    for _ in range(2):
        ended = run([str(script)], folder)
        assert ended.returncode == 0, ended.stderr
        assert ended.stdout == "1 message deleted\n"

    assert (folder / "chat.db").exists()
    assert not (tmp_path / "chat.db").exists()


def test_what_is_not_run_says_why(record_property):
    left_out = [(page, block) for page in PAGES for block in blocks(page) if block.not_run]
    for page, block in left_out:
        record_property(f"{name(page)}:{block.line}", block.not_run)

    assert [name(page) for page, _ in left_out] == []


@pytest.mark.spec("N88")
@pytest.mark.parametrize("example", EXAMPLES, ids=name)
def test_an_example_runs_and_leaves_nothing_behind(example: Path, tmp_path: Path):
    ended = run([str(example)], tmp_path)

    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert list(tmp_path.iterdir()) == []


def test_every_example_is_in_the_index():
    index = (ROOT / "examples/README.md").read_text(encoding="utf-8")

    assert [example.name for example in EXAMPLES if f"]({example.name})" not in index] == []


def test_every_link_leads_somewhere():
    others = ("examples/README.md", "CONTRIBUTING.md", "SECURITY.md")
    pages = [*docs.find_pages(ROOT), *(docs.read_page(ROOT / other) for other in others)]

    assert list(docs.find_faults(ROOT, pages)) == []


def test_every_page_can_be_reached_from_the_readme():
    pages = {page.path.resolve(): page for page in docs.find_pages(ROOT)}
    reached: set[Path] = set()
    to_read = [README]
    while to_read:
        path = to_read.pop().resolve()
        if path in pages and path not in reached:
            reached.add(path)
            to_read += [path.parent / link.target.split("#")[0] for link in pages[path].links]

    assert [name(path) for path in pages if path not in reached] == []


# What the pages list -----------------------------------------------------------------------------


def words_in_code(page: str) -> set[str]:
    """Every word that stands between backquotes or in a fenced block of a page."""
    text = (ROOT / page).read_text(encoding="utf-8")
    code = re.findall(r"^```\w+\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    code += re.findall(r"`([^`\n]+)`", re.sub(r"^```.*?^```$", "", text, flags=re.M | re.S))
    return set(re.findall(r"\w+", " ".join(code)))


def public_names(kind: type) -> set[str]:
    """What a class offers, apart from what every string or exception does."""
    inherited = {name for base in (str, OSError) for name in dir(base)}
    own = set(dir(kind)) | set(inspect.get_annotations(kind))
    return {name for name in own - inherited if not name.startswith("_") and name.islower()}


def test_the_reference_has_every_public_name():
    assert set(duly.__all__) - words_in_code("docs/reference.md") == set()


CLASSES = [*(v for name in duly.__all__ if isinstance(v := getattr(duly, name), type)), Queues]


@pytest.mark.parametrize("kind", CLASSES, ids=[kind.__name__ for kind in CLASSES])
def test_the_reference_has_every_public_method(kind: type):
    missing = public_names(kind) - words_in_code("docs/reference.md")

    assert missing == set(), "describe them in docs/reference.md, or make them private"


def test_the_reference_has_every_command():
    reference = (ROOT / "docs/reference.md").read_text(encoding="utf-8")
    root = click.Context(cli)

    for name in cli.list_commands(root):
        rows = [row for row in reference.splitlines() if f"`duly {name}" in row]
        assert rows, name
        command = cli.get_command(root, name)
        parts = command.list_commands(root) if isinstance(command, click.Group) else []
        assert set(parts) - set(re.findall(r"[\w-]+", " ".join(rows))) == set(), name


def test_operations_lists_every_error():
    known = {
        name
        for name, value in vars(errors).items()
        if isinstance(value, type) and issubclass(value, duly.DulyError)
    }

    assert known - words_in_code("docs/operations.md") == set()


def test_the_state_diagram_has_exactly_the_legal_transitions():
    drawn = re.findall(
        r"^ +(\w+) --> (\w+)\b", (ROOT / "docs/concepts.md").read_text(encoding="utf-8"), re.M
    )

    assert {(duly.State(a), duly.State(b)) for a, b in drawn} == job.LEGAL


MIB = 1 << 20
LIMITS = [
    ("arguments of one job, as JSON | 8 MiB", signature.MAX_ARGS_BYTES == 8 * MIB),
    ("result of one job, as JSON | 8 MiB", signature.MAX_RESULT_BYTES == 8 * MIB),
    ("| 1,000 jobs and 8 MiB", context.MAX_JOBS_PER_MUTATION == 1_000),
    ("| 1,000 jobs and 8 MiB", context.MAX_BYTES_PER_MUTATION == 8 * MIB),
    ("at most five years", job.FIVE_YEARS_MS == 1826 * 86_400_000),
    ("5 s on SQLite", sqlite.SqliteStore.mutation_seconds == 5),
    ("60 s on PostgreSQL", postgres.PostgresStore.mutation_seconds == 60),
    ("200 printable characters", checks.MAX_NAME == 200),
    ("0 to 9", job.MAX_PRIORITY == 9),
    ("4,000 and 16,000", (execute.MESSAGE_LIMIT, execute.TRACEBACK_LIMIT) == (4_000, 16_000)),
    ("1,000 per attempt", (progress.MAX_LINES, progress.MAX_ATTEMPTS) == (1_000, 10)),
    ("4,000 characters each", progress.MAX_LINE == 4_000),
    (
        "1,000 characters, written at most four times a second",
        (progress.MAX_NOTE, reports.FLUSH_SECONDS) == (1_000, 0.25),
    ),
    ("10,000 jobs, 10 s", (verbs.MAX_LISTED, session.FIND_SECONDS) == (10_000, 10)),
    ("200 rows; 1,000 log lines", (common.MAX_PAGE, http_jobs.MAX_LINES) == (200, 1_000)),
    ("event stream (`?job=`) | 100 |", events.MAX_JOBS == 100),
    (
        "10,000 ticks, or 200 over HTTP",
        (verbs_read.MAX_PREVIEW, http_schedules.MAX_PREVIEW) == (10_000, 200),
    ),
    ("all be found within 5 s", schedule_checks.PREVIEW_SECONDS == 5),
    (
        "| 92 days; any number of ticks; jitter is applied to at most 1,000,000",
        (verbs_read.MAX_FORECAST_DAYS, forecast.MAX_DELAYED) == (92, 10**6),
    ),
    (
        "| 31 days; 1,000 events, 100,000 ticks",
        (http_forecast.FEED_DAYS, http_forecast.MAX_EVENTS, http_forecast.MAX_TICKS)
        == (31, 1_000, 100_000),
    ),
    ("note of a schedule | 2,000", define.MAX_NOTE == 2_000),
    ("| 1 ms to 600 s per attempt", (endpoints.MIN_TIMEOUT, endpoints.MAX_TIMEOUT) == (0.001, 600)),
    ("50 headers", endpoints.MAX_HEADERS == 50),
    ("1,000, with 16 KiB", (crons.MAX_CRONS, crons.MAX_PAYLOAD) == (1_000, 16 << 10)),
    ("10 s, then `StoreUnavailable`", turnstile.WAIT_SECONDS == 10),
    ("up to 100 waiting mutations", sqlite.SqliteStore.mutation_group == 100),
    ("about 10 ms", sqlite.SqliteStore.mutation_group_seconds == 0.010),
    ("not sent a heartbeat for 10 seconds", worker.SILENT_SECONDS == 10),
    ("8 successful heartbeats without seeing the counter change", liveness.ROUNDS_UNTIL_DEAD == 8),
    ("5 seconds after the limit", lifeline.BODY_GRACE == 5),
    ("SIGKILL 5 seconds later", isolate.KILL_AFTER == 5),
    ("that limit plus 30 seconds", janitor.TIMEOUT_GRACE == 30),
    ("stay for 7 days", janitor.RETENTION.days == 7),
    ("stay for 30 days", janitor.EXHAUSTED_RETENTION.days == 30),
]


@pytest.mark.parametrize(("promise", "kept"), LIMITS, ids=[promise for promise, _ in LIMITS])
def test_a_number_in_the_guarantees_is_the_codes(promise: str, kept: bool):
    text = (ROOT / "docs/guarantees.md").read_text(encoding="utf-8")

    assert promise in re.sub(r"\s+", " ", text)
    assert kept


def test_the_verbs_that_the_reference_gives_the_app_are_there():
    reference = (ROOT / "docs/reference.md").read_text(encoding="utf-8")
    table = reference.partition("Only on `app`:")[2].partition("###")[0]
    named = re.findall(r"^\| `([\w.]+)\(", table, re.MULTILINE)
    app = duly.Duly("sqlite:///:memory:")

    assert len(named) > 10
    for path in named:
        assert callable(operator.attrgetter(path)(app)), path
