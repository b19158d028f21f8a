"""Print what can be counted about the code:  python -m tools.counts"""

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

from tools import forwarders, walks

ROOT = Path(__file__).resolve().parent.parent


def figures(root: Path) -> Iterator[str]:
    """Figures read from the files, without running anything."""
    package = root / "src" / "duly"
    entries = [entry for entry in package.iterdir() if entry.name != "__pycache__"]
    yield f"src/duly: {len(entries)} entries"
    yield f"store/engine.py: {abstract_methods(package / 'store/engine.py')} abstract methods"
    yield f"awaited methods that only forward: {len(forwarders.find(package))}"
    for folder in ("src", "tests"):
        yield f"{folder}: {_lines(root / folder):,} lines of Python"


def abstract_methods(file: Path) -> int:
    tree = ast.parse(file.read_text(encoding="utf-8"))
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
    decorators = [ast.unparse(each) for node in functions for each in node.decorator_list]
    return decorators.count("abstractmethod")


def _lines(folder: Path) -> int:
    return sum(len(path.read_text(encoding="utf-8").splitlines()) for path in folder.rglob("*.py"))


def main() -> int:
    print(*figures(ROOT), *walks.counts(walks.run_all()), sep="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
