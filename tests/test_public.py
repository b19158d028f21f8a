"""The public names are few, sorted, all there, and loaded when they are needed."""

import ast
import json
import subprocess
import sys
from pathlib import Path

import duly
from duly.app import public
from tests.cli.processes import environment

# What `import duly`, and what `duly --help`, must not load.
HEAVY = "asyncio concurrent email http importlib.resources logging msgspec sqlite3 ssl subprocess"
HEAVIER = f"{HEAVY} click fastapi rich zoneinfo duly.app duly.errors"
LOADED = """
import json, sys
import duly
loaded = [sorted(sys.modules)]
from duly.cli import main
try:
    main(args=["--help"], program="duly")
except SystemExit:
    loaded.append(sorted(sys.modules))
from duly import Duly
print("LOADED", json.dumps([*loaded, sorted({*duly.__all__} - {*dir(duly)})]))
"""


def test_the_public_names_are_sorted_and_exist() -> None:
    assert duly.__all__ == sorted(duly.__all__)
    assert [name for name in duly.__all__ if not hasattr(duly, name)] == []
    assert set(duly.__all__) <= set(dir(duly))
    assert not hasattr(duly, "nonsense")


def test_everything_public_in_the_package_is_announced_or_a_module() -> None:
    assert hasattr(duly, "Duly")
    found = {name for name, value in vars(duly).items() if not name.startswith("_")}
    modules = {name for name in found if type(getattr(duly, name)).__name__ == "module"}
    # It is True for type checkers alone.
    assert found - modules - {"TYPE_CHECKING"} == set(duly.__all__)


def test_type_checkers_are_told_the_same_names() -> None:
    """They read public.py, where a name that is imported `as` itself is an exported one."""
    tree = ast.parse(Path(public.__file__).read_text(encoding="utf-8"))
    told: set[str] = set()
    for node in tree.body:
        if isinstance(node, ast.ImportFrom):
            told |= {name.name for name in node.names if name.asname == name.name}
        elif isinstance(node, ast.Assign):
            told |= {target.id for target in node.targets if isinstance(target, ast.Name)}

    assert told == set(duly.__all__)


def test_neither_the_import_nor_the_help_loads_what_is_heavy() -> None:
    ended = subprocess.run(
        [sys.executable, "-c", LOADED],
        env=environment(),
        capture_output=True,
        text=True,
        check=True,
    )
    imported, helped, missing = json.loads(ended.stdout.partition("LOADED")[2])

    assert set(HEAVIER.split()) & set(imported) == set()
    assert {*HEAVY.split(), "fastapi", "rich", "duly.app"} & set(helped) == set()
    assert missing == []
