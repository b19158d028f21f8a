"""Finds the app or gateway that a command works on."""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
import tomllib
import traceback
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import msgspec

from duly.app import Duly
from duly.errors import DulyError, InvalidOption
from duly.gateway import Gateway
from duly.nearest import did_you_mean

HINT = (
    "give --app module:name, set DULY_APP, or add `app = ...` under [tool.duly] in pyproject.toml"
)


def find_app(path: str | None) -> Duly:
    """The app given on the command line, or the one that pyproject.toml names."""
    path = named(path)
    if not path:
        raise InvalidOption("--app", f"no app is given; {HINT}")
    module_name, attribute = _split(path, "app")
    module = _load(module_name)
    app = getattr(module, attribute, None)
    if not isinstance(app, Duly):
        reason = f"{module_name} has no duly app called {attribute!r}"
        apps = [name for name, value in vars(module).items() if isinstance(value, Duly)]
        near = did_you_mean(attribute, apps)
        raise InvalidOption("--app", f"{reason}; {near}" if near else reason)
    app.found_at = f"{module_name}:{attribute}"
    return app


def named(path: str | None) -> str | None:
    """Where the app is, according to the command line or pyproject.toml."""
    return path or _from_pyproject().app


def set_up(path: str | None) -> None:
    """Call the function that pyproject.toml names as `set_up` of its app, for `duly dev`."""
    ours = _Ours() if path else _from_pyproject()
    if ours.set_up is None:
        return
    function = find_object(ours.set_up, "set_up")
    with _loading(ours.set_up):
        function()


def find_gateway(path: str) -> Gateway:
    """The gateway given on the command line."""
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


def find_object(path: str, option: str) -> Any:
    """An object in one of the user's modules, or a part of one: `module:name.part`."""
    module_name, attribute = _split(path, "")
    if not attribute:
        raise InvalidOption(option, f"{path!r} does not name an object; write module:name")
    found: Any = _load(module_name, option, "name it as module:name")
    for part in attribute.split("."):
        if not hasattr(found, part):
            raise InvalidOption(option, f"{module_name} has no {attribute!r}")
        found = getattr(found, part)
    return found


def _from_pyproject() -> _Ours:
    file = Path("pyproject.toml")
    if not file.is_file():
        return _Ours()
    try:
        project = tomllib.loads(file.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, OSError) as error:
        raise LoadFailed(f"cannot read {file}: {error}; fix it, or give --app") from error
    try:
        return msgspec.convert(project, _Project).tool.duly
    except msgspec.ValidationError as error:
        said = str(error).replace("`$.", "`")
        raise LoadFailed(f'{file}: {said}; write app = "module:name" under [tool.duly]') from error


class _Ours(msgspec.Struct):
    app: str | None = None
    set_up: str | None = None


class _Tools(msgspec.Struct):
    duly: _Ours = msgspec.field(default_factory=_Ours)


class _Project(msgspec.Struct):
    """The part of pyproject.toml that duly reads."""

    tool: _Tools = msgspec.field(default_factory=_Tools)


# Importing ---------------------------------------------------------------------------------------


class LoadFailed(DulyError):
    """The user's code or pyproject.toml cannot be loaded; the message says where."""


def _load(name: str, option: str = "--app", hint: str = HINT) -> ModuleType:
    if name.endswith(".py"):
        return _load_file(Path(name), option)
    # As `python -m` does, so that modules in the current folder are found.
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        with _loading(name):
            return importlib.import_module(name)
    except LoadFailed as error:
        if not _is_absent(name, error.__cause__):
            raise
        raise InvalidOption(option, f"there is no module {name!r} here; {hint}") from error


def _is_absent(name: str, error: BaseException | None) -> bool:
    """Whether the module itself is missing, as opposed to one that it imports."""
    if isinstance(error, ModuleNotFoundError):
        return error.name is not None and f"{name}.".startswith(f"{error.name}.")
    return isinstance(error, TypeError | ValueError) and line_of(error) is None


def _load_file(file: Path, option: str) -> ModuleType:
    """Load a script under its file name, so that `if __name__ == "__main__"` does not run."""
    if not file.is_file():
        raise InvalidOption(option, f"there is no file {file}")
    loaded = sys.modules.get(file.stem)
    if loaded is not None and loaded.__file__ and Path(loaded.__file__).resolve() == file.resolve():
        return loaded
    sys.path.insert(0, str(file.resolve().parent))
    spec = importlib.util.spec_from_file_location(file.stem, file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[file.stem] = module
    with _loading(str(file)):
        spec.loader.exec_module(module)
    return module


@contextmanager
def _loading(name: str) -> Generator[None]:
    """Turn an error in the user's code into one line that says where it is."""
    try:
        yield
    except (Exception, SystemExit) as error:
        raise _load_failed(name, error) from error


def _load_failed(name: str, error: BaseException) -> LoadFailed:
    where = line_of(error) or name
    if isinstance(error, SystemExit):
        return LoadFailed(f"{where} exits when it is imported")
    return LoadFailed(f"{where}: {described(error)}")


def described(error: BaseException) -> str:
    """The type of an error and the first line of its message."""
    said = error.msg if isinstance(error, SyntaxError) else str(error)
    first = said.strip().split("\n")[0]
    kind = type(error).__name__
    return f"{kind}: {first}" if first else kind


def line_of(error: BaseException) -> str | None:
    """The last line of the user's code in the traceback, as file:line."""
    if isinstance(error, SyntaxError) and error.filename and not error.filename.startswith("<"):
        return f"{_shown(error.filename)}:{error.lineno}"
    lines = [
        f"{_shown(frame.filename)}:{frame.lineno}"
        for frame in traceback.extract_tb(error.__traceback__)
        if _is_users(frame.filename)
    ]
    return lines[-1] if lines else None


def _is_users(file: str) -> bool:
    if file.startswith("<") or "site-packages" in file:
        return False
    not_theirs = (Path(__file__).parents[1], Path(os.__file__).parent)
    return not any(Path(file).is_relative_to(folder) for folder in not_theirs)


def _shown(file: str) -> str:
    here = Path.cwd()
    return str(Path(file).relative_to(here)) if Path(file).is_relative_to(here) else file
