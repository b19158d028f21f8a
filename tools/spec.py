"""List the lines of docs/spec.md that no test proves.

A test proves a line by `@pytest.mark.spec("R37")`, on itself, on its class, in `pytestmark`, or
in the `marks` of a `pytest.param`. A test marked skip or xfail proves nothing. (One marked skipif
does: CI refuses a run in which it was skipped.)

    tools/spec.py                  list the unproven lines, exit 0
    tools/spec.py R53-R94,N14      the same for some lines, exit 1 if any is unproven

A marker that names no line of the specification is an error in both cases.
"""

import argparse
import ast
import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple, TypeGuard

ROOT = Path(__file__).resolve().parent.parent
TEST_FOLDERS = ("tests", "src/duly/testing")
WIDTH = 110

LINE = re.compile(r"^- \*\*([RN]\d+)\*\* (.+)$", re.MULTILINE)
SCOPE_PART = re.compile(r"([RN])(\d+)(?:-\1(\d+))?")
TestFunction = ast.FunctionDef | ast.AsyncFunctionDef


class SpecError(Exception):
    """The specification, a marker or the scope is wrong; the message says where."""


class Mark(NamedTuple):
    """One `pytest.mark.spec(...)` that counts."""

    line: str
    place: str


def read_lines(text: str) -> dict[str, str]:
    """The specification's lines by id, in order."""
    lines: dict[str, str] = {}
    for line, words in LINE.findall(text):
        if line in lines:
            raise SpecError(f"docs/spec.md has two lines {line}")
        lines[line] = words
    return lines


def read_scope(scope: str, lines: Sequence[str]) -> list[str]:
    """The lines that a scope such as `R53-R68,N14` names."""
    chosen: set[str] = set()
    for part in scope.split(","):
        chosen |= _read_scope_part(part.strip(), lines)
    return [line for line in lines if line in chosen]


def _read_scope_part(part: str, lines: Sequence[str]) -> set[str]:
    match = SCOPE_PART.fullmatch(part)
    if match is None:
        raise SpecError(f"scope {part!r}: write R53, R53-R68 or a list like R53-R68,N14")
    letter, first, last = match[1], int(match[2]), int(match[3] or match[2])
    unknown = [line for line in (f"{letter}{first}", f"{letter}{last}") if line not in lines]
    if unknown or last < first:
        raise SpecError(f"scope {part!r}: no such lines in docs/spec.md")
    return {line for line in lines if line[0] == letter and first <= int(line[1:]) <= last}


def read_marks(source: str, path: str) -> Iterator[Mark]:
    """The marks in one file of tests that count as proofs."""
    module = ast.parse(source, path)
    yield from _marks_in(module, path)
    yield from _marks_in_shared_params(module, path)


def _marks_in(scope: ast.Module | ast.ClassDef, path: str) -> Iterator[Mark]:
    common = list(_markers(scope))
    if _is_off(common):
        return
    if _has_tests(scope):
        yield from _as_marks(common, path)
    for node in scope.body:
        if isinstance(node, ast.ClassDef):
            yield from _marks_in(node, path)
        elif _is_test(node) and not _is_off(own := list(_markers(node))):
            yield from _as_marks(own, path)
            yield from _marks_in_params(node.decorator_list, path)


def _markers(node: ast.AST) -> Iterator[ast.expr]:
    """The expressions that mark a module, a class or a function."""
    if isinstance(node, ast.ClassDef | TestFunction):
        yield from node.decorator_list
    if isinstance(node, ast.ClassDef | ast.Module):
        for statement in node.body:
            if isinstance(statement, ast.Assign | ast.AnnAssign) and statement.value is not None:
                targets = (
                    statement.targets if isinstance(statement, ast.Assign) else [statement.target]
                )
                if any(isinstance(to, ast.Name) and to.id == "pytestmark" for to in targets):
                    yield from _each(statement.value)


def _marks_in_params(nodes: Sequence[ast.AST], path: str) -> Iterator[Mark]:
    for node in nodes:
        for call in ast.walk(node):
            if isinstance(call, ast.Call) and _ends_with(call.func, "param"):
                marks = [
                    each
                    for keyword in call.keywords
                    if keyword.arg == "marks"
                    for each in _each(keyword.value)
                ]
                if not _is_off(marks):
                    yield from _as_marks(marks, path)


def _marks_in_shared_params(module: ast.Module, path: str) -> Iterator[Mark]:
    """Marks of params that several tests share: `CASES = [pytest.param(...), ...]`."""
    if not _is_off(list(_markers(module))) and _has_tests(module):
        assigned = [node for node in module.body if isinstance(node, ast.Assign | ast.AnnAssign)]
        yield from _marks_in_params(assigned, path)


def _each(value: ast.expr) -> Sequence[ast.expr]:
    return value.elts if isinstance(value, ast.List | ast.Tuple) else [value]


def _is_test(node: ast.AST) -> TypeGuard[TestFunction]:
    return isinstance(node, TestFunction) and node.name.startswith("test")


def _has_tests(scope: ast.Module | ast.ClassDef) -> bool:
    """Whether a mark on the scope reaches a test; a subclass inherits those of its base."""
    if isinstance(scope, ast.ClassDef) and scope.bases:
        return True
    return any(
        _is_test(node) or (isinstance(node, ast.ClassDef) and _has_tests(node))
        for node in scope.body
        if not _is_off(list(_markers(node)))
    )


def _is_off(markers: Sequence[ast.expr]) -> bool:
    return any(_mark_name(marker) in {"skip", "xfail"} for marker in markers)


def _mark_name(marker: ast.expr) -> str | None:
    """`skip` for `pytest.mark.skip` and for `pytest.mark.skip(reason=...)`."""
    named = marker.func if isinstance(marker, ast.Call) else marker
    if isinstance(named, ast.Attribute) and _ends_with(named.value, "mark"):
        return named.attr
    return None


def _ends_with(node: ast.expr, name: str) -> bool:
    return (isinstance(node, ast.Attribute) and node.attr == name) or (
        isinstance(node, ast.Name) and node.id == name
    )


def _as_marks(markers: Sequence[ast.expr], path: str) -> Iterator[Mark]:
    for marker in markers:
        if _mark_name(marker) == "spec":
            yield from _read_mark(marker, f"{path}:{marker.lineno}")


def _read_mark(marker: ast.expr, place: str) -> Iterator[Mark]:
    if not isinstance(marker, ast.Call) or not marker.args or marker.keywords:
        raise SpecError(f'{place}: name the lines, as in pytest.mark.spec("R37")')
    for argument in marker.args:
        if not isinstance(argument, ast.Constant) or not isinstance(argument.value, str):
            raise SpecError(f"{place}: the lines of a spec marker are string constants")
        yield Mark(argument.value, place)


def collect(root: Path) -> list[Mark]:
    """Every mark below a project's folders of tests."""
    return [
        mark
        for folder in TEST_FOLDERS
        for path in sorted((root / folder).rglob("*.py"))
        for mark in read_marks(path.read_text(encoding="utf-8"), str(path.relative_to(root)))
    ]


def report(root: Path, scope: str | None) -> int:
    lines = read_lines((root / "docs/spec.md").read_text(encoding="utf-8"))
    chosen = read_scope(scope, list(lines)) if scope else list(lines)
    marks = collect(root)
    faults = [f"{place}: docs/spec.md has no {line}" for line, place in marks if line not in lines]
    if faults:
        raise SpecError("\n".join(faults))
    proven = {mark.line for mark in marks}
    unproven = [line for line in chosen if line not in proven]
    for line in unproven:
        print(_shortened(f"{line:<5}{lines[line]}"))
    print(f"{len(chosen) - len(unproven)} of {len(chosen)} lines proven, {len(unproven)} unproven")
    return 1 if scope and unproven else 0


def _shortened(text: str) -> str:
    return text if len(text) <= WIDTH else f"{text[: WIDTH - 1]}…"


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description="List the lines of docs/spec.md that no test proves."
    )
    parser.add_argument("scope", nargs="?", help="Lines that must be proven, e.g. R53-R94,N14.")
    parser.add_argument("--root", type=Path, default=ROOT, help="The project's root folder.")
    options = parser.parse_args(arguments)
    try:
        return report(options.root, options.scope)
    except SpecError as error:
        print(error, file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
