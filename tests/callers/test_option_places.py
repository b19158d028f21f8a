"""How many places does a new option of jobs touch? At most five, each seen to be enough.

A dummy option is written into a copy of the package, and used there: by a decorator and `using`,
published, in the body of a request, by a schedule.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from duly.functions.options import CallOptions, JobOptions, Options
from duly.model.function import PublishedOptions
from tools import option_places
from tools.option_places import PACKAGE, places

MOST_PLACES = 5
PLUMBING = [
    PACKAGE / "calls" / "registry.py",
    PACKAGE / "functions" / "options.py",
    PACKAGE / "functions" / "published.py",
    PACKAGE / "model" / "function.py",
]
"""What hands options on, whatever they mean."""

# The option `label` becomes a tag of the job: file, line, and what is written instead of it.
EDITS = [
    (
        "functions/options.py",
        "    debounce: Delay | None\n",
        "    debounce: Delay | None\n    label: str | None\n",
    ),
    (
        "functions/options.py",
        "    idempotency_key: Annotated[str | None, Form(check_key, fixed=True)] = None\n",
        "    idempotency_key: Annotated[str | None, Form(check_key, fixed=True)] = None\n"
        "    label: Annotated[str | None, TEXT] = None\n",
    ),
    (
        "model/function.py",
        "    debounce: int | None = None\n",
        "    debounce: int | None = None\n    label: str | None = None\n",
    ),
    (
        "functions/new_job.py",
        "        tags=msgspec.json.encode(options.tags).decode() if options.tags else None,\n",
        "        tags=msgspec.json.encode((*options.tags, options.label)).decode(),\n",
    ),
    (
        "server/api/jobs.py",
        "    tags: list[str] | None = None\n",
        "    tags: list[str] | None = None\n    label: str | None = None\n",
    ),
]

SCRIPT = """
import json
import sys
import warnings
from pathlib import Path

warnings.simplefilter("ignore")
import duly
assert Path(duly.__file__).is_relative_to(sys.argv[1]), duly.__file__
from duly import Ctx, Duly
from duly.clock import ManualClock
from duly.errors import InvalidOption
from duly.server import Principal, Scope
from fastapi.testclient import TestClient

app = Duly(f"sqlite:///{sys.argv[1]}/t.db", clock=ManualClock())
app.migrate()

@app.action(label="decorated", tags=["a"])
def greet(ctx: Ctx, name: str) -> str:
    return name

def tags(job_id):
    return json.loads(app.job(job_id).record.tags)

assert tags(app.run(greet, "x").id) == ["a", "decorated"]
assert tags(app.run(greet.using(label="used"), "x").id) == ["a", "used"]

for give in (app.action, greet.using):
    try:
        give(label="")
    except InvalidOption as error:
        assert error.option == "label", error
    else:
        raise AssertionError("an empty label was taken")

app.schedules.create("s", greet.using(label="scheduled").bind("x"), every=3600)
assert tags(app.schedules.run("s").job_id) == ["a", "scheduled"]

(published,) = greet.published("app")
assert '"label":"decorated"' in published.options, published.options
app.core.ready().publish([published], app.core.now())
elsewhere = Duly(f"sqlite:///{sys.argv[1]}/t.db", clock=ManualClock())
job = elsewhere.run(elsewhere.function("greet"), name="x")
assert tags(job.id) == ["a", "decorated"]

principal = Principal("ada", frozenset({Scope.ENQUEUE, Scope.READ}))
with TestClient(app.asgi(auth=lambda request: principal), base_url="http://127.0.0.1") as client:
    body = {"function": "greet", "args": {"name": "x"}, "options": {"label": "asked"}}
    answer = client.post("/api/v1/jobs", json=body)
    assert answer.json().get("tags") == ["a", "asked"], answer.text
    document = client.get("/api/v1/openapi.json").json()["components"]["schemas"]
    assert "label" in document["JobOptions"]["properties"]
print("ok")
"""


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """The package with the dummy option."""
    package = tmp_path / "duly"
    shutil.copytree(PACKAGE, package, ignore=shutil.ignore_patterns("__pycache__"))
    for file, line, instead in EDITS:
        path = package / file
        source = path.read_text(encoding="utf-8")
        assert source.count(line) == 1, f"{file}: {line}"
        path.write_text(source.replace(line, instead), encoding="utf-8")
    return package


def test_a_new_option_works_everywhere_with_five_places_touched(copy: Path):
    before, after = ({(p.file.name, p.definition) for p in found} for found in of_label(copy))
    assert len(after - before) == len(EDITS) <= MOST_PLACES

    environment = os.environ | {"PYTHONPATH": str(copy.parent), "PYTHONDONTWRITEBYTECODE": "1"}
    ended = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(copy.parent)],
        env=environment,
        cwd=copy.parent,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (ended.returncode, ended.stdout) == (0, "ok\n"), ended.stderr


def of_label(copy: Path) -> tuple[list[option_places.Place], list[option_places.Place]]:
    return places("label"), places("label", copy)


@pytest.mark.parametrize("option", sorted(CallOptions.__annotations__))
def test_what_hands_an_option_on_names_it_at_most_five_times(option: str):
    found = places(option, *PLUMBING)

    assert len(found) <= MOST_PLACES, "\n".join(map(str, found))


def test_what_callers_may_give_is_what_jobs_have():
    assert set(Options.__struct_fields__) == set(CallOptions.__annotations__)
    assert set(PublishedOptions.__struct_fields__) == set(JobOptions.__annotations__)


def test_the_tool_prints_each_place_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    (tmp_path / "shelf.py").write_text(
        '''"""Says depth."""
WORDS = ("depth", "width")

class Shelf:
    depth: int = 0  # depth
    def deeper(self):
        return self.depth + 1

def make(*, depth):
    return Shelf(depth=depth)

def other():
    """The depth."""
    return "the depth"
'''
    )

    assert option_places.main(["depth", str(tmp_path)]) == 0
    assert [line.rpartition("/")[2] for line in capsys.readouterr().out.splitlines()] == [
        "shelf.py:2 a statement of the module",
        "shelf.py:5 Shelf",
        "shelf.py:7 deeper",
        "shelf.py:9 make",
        "4",
    ]
