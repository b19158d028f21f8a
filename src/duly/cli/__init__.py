"""The command line: one file per command group."""

from __future__ import annotations

import signal
import sys
from importlib.util import find_spec
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from duly.app import Duly

EXIT_INTERRUPTED = 130
"""As a shell says it of a process that Ctrl-C has ended."""


def main(
    obj: Duly | None = None, args: Sequence[str] | None = None, program: str | None = None
) -> None:
    """Run the command line; `app.main()` binds it to an app.

    This module imports next to nothing: Ctrl-C while the others are loaded is handled here.
    """
    try:
        _need_the_extra()
        from duly.cli.root import cli

        cli(args=args, prog_name=program, obj=obj)
    except KeyboardInterrupt:
        sys.stderr.write("duly: interrupted\n")
        sys.exit(EXIT_INTERRUPTED)
    finally:
        if obj is None and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            # All that is left is the end of Python, which would show a traceback.
            signal.signal(signal.SIGINT, signal.SIG_DFL)


def _need_the_extra() -> None:
    if any(find_spec(name) is None for name in ("click", "rich")):
        sys.stderr.write("duly: duly[cli] is missing; type: pip install 'duly[cli]'\n")
        sys.exit(1)
