"""Where is the app?"""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
import tomllib
from pathlib import Path
from types import ModuleType

from duly.app import Duly
from duly.errors import InvalidOption
from duly.gateway import Gateway

HINT = (
    "give --app module:name, set DULY_APP, or put `app = ...` under [tool.duly] in pyproject.toml"
)


def find_app(path: str | None) -> Duly:
    """The app named on the command line, else the one that the project names."""
    path = path or _from_pyproject()
    if not path:
        raise InvalidOption("--app", f"no app is named; {HINT}")
    module_name, attribute = _split(path, "app")
    app = getattr(_load(module_name), attribute, None)
    if not isinstance(app, Duly):
        raise InvalidOption("--app", f"{module_name} has no duly app called {attribute!r}")
    app.found_at = f"{module_name}:{attribute}"
    return app


def find_gateway(path: str) -> Gateway:
    """The gateway named on the command line."""
    module_name, attribute = _split(path, "gateway")
    gateway = getattr(
        _load(module_name, "MODULE:GATEWAY", "name it as module:gateway"), attribute, None
    )
    if not isinstance(gateway, Gateway):
        reason = f"{module_name} has no gateway called {attribute!r}"
        raise InvalidOption("MODULE:GATEWAY", reason)
    return gateway


def _split(path: str, default: str) -> tuple[str, str]:
    module_name, _, attribute = path.rpartition(":")
    return (module_name, attribute) if module_name else (path, default)


def _from_pyproject() -> str | None:
    file = Path("pyproject.toml")
    if not file.is_file():
        return None
    tool = tomllib.loads(file.read_text()).get("tool", {})
    app = tool.get("duly", {}).get("app")
    return app if isinstance(app, str) else None


def _load(name: str, option: str = "--app", hint: str = HINT) -> ModuleType:
    if name.endswith(".py"):
        return _load_file(Path(name), option)
    # As `python -m` does, so that the project in the current folder is found.
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not name.startswith(error.name):
            raise
        raise InvalidOption(option, f"there is no module {name!r} here; {hint}") from error


def _load_file(file: Path, option: str) -> ModuleType:
    """A script, loaded under a name of its own: its `if __name__ == "__main__"` does not run."""
    if not file.is_file():
        raise InvalidOption(option, f"there is no file {file}")
    sys.path.insert(0, str(file.resolve().parent))
    spec = importlib.util.spec_from_file_location(file.stem, file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[file.stem] = module
    spec.loader.exec_module(module)
    return module
