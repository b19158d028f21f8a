"""Print the places in the code that name an option, and how many there are.

python tools/option_places.py debounce
python tools/option_places.py expires src/duly/functions src/duly/model

A place is a class, a function, or a module's code outside of both: code that has to change for the
option to exist there. Comments and docstrings are not places.
"""

import ast
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

DEFINITION = ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
PACKAGE = Path(__file__).resolve().parent.parent / "src" / "duly"


class Place(NamedTuple):
    file: Path
    line: int
    definition: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line} {self.definition}"


def places(option: str, *paths: Path) -> list[Place]:
    """Where the name occurs in these files and folders, or in the package if none is given."""
    files = [file for path in paths or (PACKAGE,) for file in _modules(path)]
    return [place for file in files for place in sorted(_in_module(option, file))]


def _modules(path: Path) -> Sequence[Path]:
    return sorted(path.rglob("*.py")) if path.is_dir() else [path]


def _in_module(option: str, file: Path) -> Iterator[Place]:
    text = file.read_text(encoding="utf-8")
    if option in text:
        module = ast.parse(text)
        lines = _lines(option, module, "a statement of the module")
        yield from (Place(file, line, name) for (_, name), line in lines.items())


def _lines(option: str, scope: ast.AST, name: str) -> dict[tuple[int, str], int]:
    """The first line of each definition that names it itself, without those nested inside."""
    found: dict[tuple[int, str], int] = {}
    inside = list(ast.iter_child_nodes(scope))
    for node in inside:
        if isinstance(node, DEFINITION):
            found |= _lines(option, node, node.name)
        else:
            inside += ast.iter_child_nodes(node)
            if _writes(node, option):
                line = getattr(node, "lineno", 0)
                key = (id(scope), name)
                found[key] = min(line, found.get(key, line))
    return found


def _writes(node: ast.AST, option: str) -> bool:
    match node:
        case ast.Name(id=name) | ast.Attribute(attr=name) | ast.arg(arg=name):
            return name == option
        case ast.keyword(arg=name) | ast.Constant(value=name):
            return name == option
        case _:
            return False


def main(arguments: Sequence[str]) -> int:
    option, *paths = arguments
    found = places(option, *map(Path, paths))
    print(*found, len(found), sep="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
