"""Identifies the code of an app: a run that one build cannot continue waits for another."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Iterable
from pathlib import Path

from duly.functions.function import Function

LENGTH = 12


def build_of(functions: Iterable[Function[..., object]]) -> str:
    """A hash of the modules that define these functions, and of the packages that they are in.

    The whole package, since what changes is often a helper and not the function itself.
    """
    modules = {function.body.__module__ for function in functions}
    packages = {name.partition(".")[0] for name in modules if "." in name}
    names = sorted(
        name for name in list(sys.modules) if name in modules or name.partition(".")[0] in packages
    )
    digest = hashlib.sha256()
    for name in names:
        digest.update(name.encode())
        digest.update(_source(name))
    return digest.hexdigest()[:LENGTH]


def _source(module: str) -> bytes:
    file = getattr(sys.modules.get(module), "__file__", None)
    try:
        return Path(file).read_bytes() if file else b""
    except OSError:
        return b""
