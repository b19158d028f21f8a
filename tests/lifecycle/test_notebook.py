"""A notebook in a real kernel: functions are defined, and defined again, while the worker runs."""

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from duly import Action, Ctx, Duly, fault
from duly.errors import StoreUnavailable
from tests.cli.processes import environment
from tests.jobs.support import PATIENCE, wait_until

# Runs the files it is given as the cells of a notebook; a cell that raises ends it.
NOTEBOOK = """
import sys
from pathlib import Path
import nbformat
from nbclient import NotebookClient

cells = [nbformat.v4.new_code_cell(Path(name).read_text()) for name in sys.argv[1:]]
NotebookClient(nbformat.v4.new_notebook(cells=cells), timeout=60).execute()
"""

MAKE = """
from duly import AsyncCtx, Ctx, Duly, Tx

app = Duly({url!r})
app.migrate()
with app.transaction() as tx:
    tx.execute("CREATE TABLE notes (text text)")


@app.action
def hello(ctx: Ctx, name: str) -> str:
    return f"hello, {{name}}"


app.start()
assert app.run(hello, "Ada").result(timeout=60) == "hello, Ada"
"""

DEFINE_AGAIN = """
@app.action
def hello(ctx: Ctx, name: str, mark: str = "!") -> str:
    return f"good evening, {name}{mark}"


assert app.run(hello, "Ada").result(timeout=60) == "good evening, Ada!"
assert app.run(hello, "Ada", mark="?").result(timeout=60) == "good evening, Ada?"
"""

DEFINE_LATER = """
@app.mutation
def note(tx: Tx, text: str) -> int:
    tx.execute("INSERT INTO notes (text) VALUES (?)", (text,))
    return tx.execute("SELECT count(*) FROM notes").scalar()


@app.action
async def twice(ctx: AsyncCtx, text: str) -> str:
    return text * 2


assert app.run(note, "first").result(timeout=60) == 1
# A notebook has a running event loop: what is awaited works in a cell.
job = await app.aio.run(twice, "ha")
assert await job.result(timeout=60) == "haha"
"""

FAIL_TO_DEFINE = """
@app.action
def unknown(ctx: Ctx, thing: "NoSuchType") -> None: ...


@app.action
def hello(ctx: Ctx, name: str) -> str:
    return f"good night, {name}"


assert app.run(hello, "Bob").result(timeout=60) == "good night, Bob"
"""

REPAIR = """
@app.action
def unknown(ctx: Ctx, thing: str) -> str:
    return thing


assert app.run(unknown, "known").result(timeout=60) == "known"
app.stop()
assert app.workers() == []
with app:
    assert app.run(hello, "again").result(timeout=60) == "good night, again"
app.close()
"""

CELLS = [MAKE, DEFINE_AGAIN, DEFINE_LATER, FAIL_TO_DEFINE, REPAIR]


def run_notebook(cells: list[str], folder: Path) -> None:
    files = [folder / f"{number}.py" for number in range(len(cells))]
    for file, cell in zip(files, cells, strict=True):
        file.write_text(cell, encoding="utf-8")
    names = "IPYTHONDIR JUPYTER_CONFIG_DIR JUPYTER_DATA_DIR JUPYTER_RUNTIME_DIR"
    places = {name: str(folder / name.lower()) for name in names.split()}
    ended = subprocess.run(
        [sys.executable, "-c", NOTEBOOK, *map(str, files)],
        env=environment(**places),
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr


@pytest.mark.parametrize("where", ["sqlite:///:memory:", "sqlite:///notebook.db"])
def test_what_a_cell_defines_is_what_runs(where: str, tmp_path: Path):
    run_notebook([CELLS[0].format(url=where), *CELLS[1:]], tmp_path)

    # A relative path starts where the notebook does.
    assert (tmp_path / "notebook.db").exists() == ("notebook" in where)


def test_a_job_runs_as_its_function_was_defined_when_it_was_enqueued(postgres_url: str):
    """Also when the worker was already on its way to claim."""
    app = Duly(postgres_url)
    app.migrate()

    def define(answer: str) -> Action[[], str]:
        @app.action
        def hello(ctx: Ctx) -> str:
            return answer

        return hello

    jobs = [app.run(define("old"))]

    def define_again(point: str) -> None:
        if point == "worker.claiming" and len(jobs) == 1:
            jobs.append(app.run(define("new")))

    with fault.inject(define_again), app:
        answers = [job.result(timeout=PATIENCE) for job in jobs]
    assert answers[1:] == ["new"]
    app.close()


def test_what_is_defined_during_an_outage_is_announced_after_it(
    url: str, monkeypatch: pytest.MonkeyPatch
):
    app = Duly(url)
    app.migrate()
    relist, refused = app.store.relist, list[str]()

    def refuse_once(worker_id: str, *lists: Sequence[str]) -> None:
        if not refused:
            refused.append(worker_id)
            raise StoreUnavailable("no connection")
        relist(worker_id, *lists)

    monkeypatch.setattr(app.store, "relist", refuse_once)
    with app:

        @app.action
        def later(ctx: Ctx) -> str:
            return "known"

        assert app.run(later).result(timeout=PATIENCE) == "known"
        (worker,) = app.workers()
        assert worker.functions == ("later",)
        assert refused == [worker.id]
    app.close()


def test_a_function_that_cannot_be_run_does_not_keep_a_worker_from_starting_anew(url: str):
    app = Duly(url)
    app.migrate()

    @app.action
    def hello(ctx: Ctx) -> str:
        return "hello"

    app.start(beat_every=0.02)

    @app.action
    def unknown(ctx: Ctx, thing: "NoSuchType") -> None:  # type: ignore[name-defined]  # noqa: F821
        raise NotImplementedError

    (before,) = app.workers()
    app.store.rescue(before.id, None, lambda job: pytest.fail("nothing ran"), 0)

    wait_until(lambda: [w.id for w in app.workers()] not in ([], [before.id]), "a new worker")
    assert app.run(hello).result(timeout=PATIENCE) == "hello"
    app.close()
