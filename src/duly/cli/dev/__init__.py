"""`duly dev`: run an app's worker, ticker and server locally, and restart them on code changes.

command      the command, and the loop that looks after everything
children     the processes, none of which outlives this one
code         watches the code for changes, and tests whether it loads
view         what happens, on a terminal or as lines
story        what the demo shows
"""

from duly.cli.dev.command import dev

__all__ = ["dev"]
