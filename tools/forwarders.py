"""Print the async methods that only pass their arguments on to sync code, and how many there are.

Each could be a line of `awaited(…)`; see src/duly/calls/twins.py.
"""

import ast
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

PACKAGE = Path(__file__).resolve().parent.parent / "src" / "duly"
WAYS = {"call", "read", "look", "ask", "_call", "_do"}
"""Functions that run sync code elsewhere, and are awaited."""
DECIDES = ast.If | ast.IfExp | ast.For | ast.While | ast.Try


def forwarders(source: str) -> Iterator[tuple[int, str]]:
    """The line and name of each."""
    for kind in ast.walk(ast.parse(source)):
        if isinstance(kind, ast.ClassDef):
            for method in kind.body:
                if isinstance(method, ast.AsyncFunctionDef) and _only_hands_on(method):
                    yield method.lineno, f"{kind.name}.{method.name}"


def _only_hands_on(method: ast.AsyncFunctionDef) -> bool:
    """Whether it awaits one of these, decides nothing, and uses each of its parameters once."""
    nodes = [node for statement in method.body for node in ast.walk(statement)]
    waits = [node.value for node in nodes if isinstance(node, ast.Await)]
    if len(waits) != 1 or not _is_way(waits[0]) or _is_super(waits[0]):
        return False
    names = [node.id for node in nodes if isinstance(node, ast.Name)]
    given = [node.arg for node in ast.walk(method.args) if isinstance(node, ast.arg)]
    used_once = all(names.count(name) == 1 for name in given[1:])
    return used_once and not any(isinstance(node, DECIDES) for node in nodes)


def _is_way(waited: ast.expr) -> bool:
    call = waited.func if isinstance(waited, ast.Call) else None
    return isinstance(call, ast.Attribute) and call.attr in WAYS


def _is_super(waited: ast.expr) -> bool:
    return ast.unparse(waited).startswith("super()")


def find(folder: Path) -> list[str]:
    """All of them in a folder, each with its place."""
    return [
        f"{path.relative_to(folder)}:{line} {name}"
        for path in sorted(folder.rglob("*.py"))
        for line, name in forwarders(path.read_text(encoding="utf-8"))
    ]


def main(arguments: Sequence[str]) -> int:
    found = find(Path(arguments[0]) if arguments else PACKAGE)
    print(*found, len(found), sep="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
