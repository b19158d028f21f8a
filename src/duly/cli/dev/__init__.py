"""`duly dev`: worker, ticker and server of an app on this machine, started again when it changes.

command      the command, and the loop that looks after everything
children     the processes, none of which outlives this one
code         has the code changed, and can it be loaded?
view         what happens, on a terminal or as lines
story        what the demo shows
"""

from duly.cli.dev.command import dev

__all__ = ["dev"]
