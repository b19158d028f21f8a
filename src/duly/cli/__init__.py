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
"""The exit code that shells use for a process interrupted by Ctrl-C."""


def main(
    obj: Duly | None = None, args: Sequence[str] | None = None, program: str | None = None
) -> None:
    """Run the command line; `app.main()` binds it to an app.

    This module imports almost nothing, so that Ctrl-C is handled even while the others load.
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
            # Only Python's shutdown is left, and it would print a traceback.
            signal.signal(signal.SIGINT, signal.SIG_DFL)


def _need_the_extra() -> None:
    if any(find_spec(name) is None for name in ("click", "rich")):
        sys.stderr.write("duly: the command line needs an extra; run: pip install 'duly[cli]'\n")
        sys.exit(1)
