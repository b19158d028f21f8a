"""Watches an app's code for changes, and tests whether the new code loads.

New code is first loaded in a separate process: if a saved file has an error, the processes that run
the last good code keep running.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, NamedTuple

from duly.app import Duly
from duly.cli.command import as_typed
from duly.clock import os_monotonic
from duly.errors import DulyError

LOOK_EVERY = 0.3
INSTALLED = {"site-packages", "dist-packages"}
LOADED = "duly-dev-loaded: "
"""Marks the result among the output of imported modules."""

Stamps = Mapping[Path, tuple[int, int]]


# In the trial process ----------------------------------------------------------------------------


class Loaded(NamedTuple):
    """The result of loading an app: the folders of its modules, and a warning."""

    folders: list[str]
    warning: str | None


def load(app: Duly) -> Loaded:
    """Import all modules of an app and apply what it declares.

    A worker does not apply a set that was replaced before, but during development an edit is often
    undone.
    """
    app.core.import_modules()
    app.core.runnables()
    warning = None
    core = app.core
    if core.settings.apply == "start" and (core.declarations or core.declared_calendars):
        try:
            # A worker logs what is left out.
            app.schedules.apply()
        except DulyError as error:
            warning = as_typed(f"the declared schedules were not applied: {error}")
    return Loaded(sorted({str(file.parent) for file in _own_files()}), warning)


def _own_files() -> Iterable[Path]:
    """The files of the user's modules: not Python's, not installed and not duly's."""
    not_ours = (Path(sys.base_prefix) / "lib", Path(__file__).parents[2])
    for module in list(sys.modules.values()):
        name = getattr(module, "__file__", None)
        if name and not INSTALLED & set(Path(name).parts):
            file = Path(name).resolve()
            if not any(file.is_relative_to(folder) for folder in not_ours):
                yield file


# In `duly dev` -----------------------------------------------------------------------------------


class Failure(NamedTuple):
    """Why the code cannot be loaded."""

    why: str


class Trial:
    """An attempt to load the code in a separate process."""

    def __init__(self, command: Sequence[str]) -> None:
        with ExitStack() as files:
            # Not pipes: the output is read only at the end, and a module that prints more than a
            # pipe holds would block forever.
            self._out, self._err = (files.enter_context(TemporaryFile()) for _ in range(2))
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=self._out,
                stderr=self._err,
                process_group=0,
            )
            self._files = files.pop_all()

    @property
    def has_ended(self) -> bool:
        return self._process.poll() is not None

    def close(self) -> tuple[int, str, str]:
        """Its exit code, stdout and stderr; it is killed if it is still running."""
        if not self.has_ended:
            self._process.kill()
        self._process.communicate()
        with self._files:
            return self._process.returncode, _read(self._out), _read(self._err)


def _read(file: IO[bytes]) -> str:
    file.seek(0)
    return file.read().decode(errors="replace")


class Code:
    """The files of an app, and the last attempt to load them."""

    def __init__(self, command: Sequence[str], folders: Sequence[str]) -> None:
        self._command = [*command, "dev", "--load"]
        self._folders = folders
        self._stamps = _stamps(folders)
        self._settled = True
        self._look_at = 0.0
        self._trial: Trial | None = None

    def look(self) -> Loaded | Failure | None:
        """The result of loading the code, once it has changed and the attempt has ended."""
        if self._trial is not None:
            return self._end(self._trial) if self._trial.has_ended else None
        if os_monotonic() < self._look_at:
            return None
        self._look_at = os_monotonic() + LOOK_EVERY
        stamps = _stamps(self._folders)
        if stamps != self._stamps:
            # Wait until it settles: an editor may still be writing.
            self._stamps, self._settled = stamps, False
        elif not self._settled:
            self._begin()
        return None

    def close(self) -> None:
        if self._trial is not None:
            self._trial.close()

    def _begin(self) -> None:
        self._settled = True
        self._trial = Trial(self._command)

    def _end(self, trial: Trial) -> Loaded | Failure:
        self._trial = None
        code, out, err = trial.close()
        answers = [line for line in out.splitlines() if line.startswith(LOADED)]
        if code or not answers:
            return Failure(err.strip().removeprefix("duly: ") or f"exit code {code}")
        loaded = Loaded(**json.loads(answers[0].removeprefix(LOADED)))
        if loaded.folders != self._folders:
            self._folders, self._stamps = loaded.folders, _stamps(loaded.folders)
        return loaded


def _stamps(folders: Iterable[str]) -> Stamps:
    """Modification times of all Python files in some folders, imported or not."""
    found: dict[Path, tuple[int, int]] = {}
    for folder in folders:
        for file in Path(folder).glob("*.py"):
            try:
                stat = file.stat()
            except FileNotFoundError:
                continue
            found[file] = (stat.st_mtime_ns, stat.st_size)
    return found
