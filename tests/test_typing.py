"""Type checkers see users' code as the documentation says.

The modules in tests/typing are written as users write them. A line that a checker must refuse ends
in `# error`; both checkers must report exactly those lines.
"""

import inspect
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple, get_overloads

import pytest

import duly

ROOT = Path(__file__).parent.parent
FOLDER = Path(__file__).parent / "typing"
MODULES = sorted(FOLDER.glob("*.py"))
PUBLIC: list[type] = [
    kind for name in duly.__all__ if isinstance(kind := getattr(duly, name), type)
]
MARK = re.compile(r"# error\b")


class Place(NamedTuple):
    file: str
    line: int


Found = dict[Place, list[str]]


def planted() -> set[Place]:
    return {
        Place(module.name, number)
        for module in MODULES
        for number, line in enumerate(module.read_text(encoding="utf-8").splitlines(), start=1)
        if MARK.search(line)
    }


@cache
def mypy() -> Found:
    """What mypy says about the modules; its notes and what it finds in duly itself left out."""
    # With the options of `make types`, whose cache is used.
    ended = run([sys.executable, "-m", "mypy", "--no-error-summary", *map(str, MODULES)])
    assert ended.returncode < 2, ended.stdout + ended.stderr
    found: Found = {}
    for file, line, message in re.findall(r"^(.+?):(\d+): error: (.+)$", ended.stdout, re.M):
        if Path(file).resolve().parent == FOLDER:
            found.setdefault(Place(Path(file).name, int(line)), []).append(message)
    return found


@cache
def pyright() -> Found:
    command = [sys.executable, "-m", "pyright", f"--project={FOLDER}", "--outputjson"]
    ended = run([*command, f"--pythonpath={sys.executable}"])
    found: Found = {}
    for entry in json.loads(ended.stdout)["generalDiagnostics"]:
        place = Place(Path(entry["file"]).name, entry["range"]["start"]["line"] + 1)
        found.setdefault(place, []).append(entry["message"])
    return found


@cache
def completeness() -> dict[str, Any]:
    """What pyright says about the types of everything that can be imported from duly."""
    command = [sys.executable, "-m", "pyright", "--verifytypes=duly", "--ignoreexternal"]
    ended = run([*command, "--outputjson"])
    report: dict[str, Any] = json.loads(ended.stdout)["typeCompleteness"]
    assert report["pyTypedPath"], "pyright did not find duly"
    return report


def run(command: list[str]) -> subprocess.CompletedProcess[str]:
    # --verifytypes looks for packages with the `python` in PATH, whatever else it is told.
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
    environment = os.environ | {"PATH": path, "PYRIGHT_PYTHON_IGNORE_WARNINGS": "1"}
    return subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )


@pytest.mark.parametrize("checker", [mypy, pyright], ids=["mypy", "pyright"])
def test_a_checker_refuses_exactly_the_marked_lines(checker: Any):
    found = checker()

    assert {place: found[place] for place in found.keys() - planted()} == {}, "not marked"
    assert planted() - found.keys() == set(), "marked, and not refused"


def test_every_module_has_planted_errors():
    assert {place.file for place in planted()} == {module.name for module in MODULES}


# Completeness ------------------------------------------------------------------------------------


# Django, whose classes these extend, has no types.
UNTYPED_BASES = "duly.contrib.django."


def test_nothing_in_duly_has_an_unknown_type():
    unknown = [
        symbol["name"]
        for symbol in completeness()["symbols"]
        if not symbol["isTypeKnown"] and not symbol["isTypeAmbiguous"]
    ]

    assert [name for name in unknown if not name.startswith(UNTYPED_BASES)] == []


def test_no_attribute_of_a_public_class_leaves_its_type_to_the_checker():
    missing = [
        symbol["name"]
        for symbol in completeness()["symbols"]
        if is_attribute_of_a_public_class(symbol["name"])
        and any("missing type annotation" in entry["message"] for entry in symbol["diagnostics"])
    ]

    assert missing == []


def is_attribute_of_a_public_class(name: str) -> bool:
    kind, _, attribute = name.rpartition(".")
    return kind in public_classes() and not attribute.startswith("_")


@cache
def public_classes() -> set[str]:
    bases = [base for kind in PUBLIC for base in kind.__mro__]
    return {f"{base.__module__}.{base.__qualname__}" for base in bases}


# Where nobody can know the type: values in the user's database, the driver's connection, jobs that
# were found by their id and functions that were found by their name.
MEANT = {
    "AsyncAction.__call__": "Coroutine[Any, Any, R_co]",
    "AsyncMutation.__call__": "Coroutine[Any, Any, R_co]",
    "AsyncPlainAction.__call__": "Coroutine[Any, Any, R_co]",
    "AsyncCtx.arguments": "Mapping[str, Any]",
    "AsyncCtx.state": "Any",
    "AsyncApp.function": "Function[..., Any]",
    "AsyncJob.arguments": "dict[str, Any]",
    "AsyncJob.children": "list[AsyncJob[Any]]",
    "AsyncTx.arguments": "Mapping[str, Any]",
    "AsyncTx.state": "Any",
    "AsyncVerbs.job": "AsyncJob[Any]",
    "AsyncVerbs.jobs": "list[AsyncJob[Any]]",
    "AsyncBatch.existing": "tuple[AsyncJob[Any], ...]",
    "AsyncBatch.jobs": "AsyncGenerator[AsyncJob[Any]]",
    "AsyncBatch.results": "AsyncGenerator[Any]",
    "Batch.existing": "tuple[Job[Any], ...]",
    "Batch.jobs": "Iterator[Job[Any]]",
    "Batch.results": "Iterator[Any]",
    "Calendar.encode": "dict[str, Any]",
    "Ctx.arguments": "Mapping[str, Any]",
    "Ctx.state": "Any",
    "Duly.dead": "list[Job[Any]]",
    "Duly.function": "Function[..., Any]",
    "Duly.retry": "Job[Any]",
    "Job.arguments": "dict[str, Any]",
    "Job.children": "list[Job[Any]]",
    "Rows.all": "list[tuple[Any, ...]]",
    "Rows.first": "tuple[Any, ...] | None",
    "Rows.one": "tuple[Any, ...]",
    "Rows.scalar": "Any",
    "Schedule.arguments": "dict[str, Any]",
    "Schedule.condition": "dict[str, Any] | None",
    "Schedule.rotation": "list[dict[str, Any]] | None",
    "Tick.detail": "dict[str, Any]",
    "Tick.job": "Job[Any] | None",
    "Tx.arguments": "Mapping[str, Any]",
    "Tx.state": "Any",
    "Tx.connection": "Any",
    "Verbs.job": "Job[Any]",
    "Verbs.jobs": "list[Job[Any]]",
}


def test_any_is_given_only_where_it_is_meant():
    assert dict(answers_with_any()) == MEANT


def answers_with_any() -> Iterator[tuple[str, str]]:
    """Each public function, method or property that gives Any, or something of Any."""
    for kind in PUBLIC:
        for name, member in inspect.getmembers(kind, callable_or_property):
            if not name.startswith("_") or name == "__call__":
                for function in functions_of(member):
                    given = str(inspect.get_annotations(function).get("return"))
                    if function.__module__.startswith("duly") and re.search(r"\bAny\b", given):
                        yield function.__qualname__, given


def callable_or_property(member: object) -> bool:
    return inspect.isfunction(member) or isinstance(member, property)


def functions_of(member: Any) -> list[Any]:
    if isinstance(member, property):
        return [member.fget]
    plain = inspect.unwrap(member)
    return [*get_overloads(plain)] or [plain]
