"""`duly dev`: run an app's worker, ticker and server locally, and restart them on code changes.

command      the command and its main loop
children     the child processes, which end when this process ends
code         watches the code for changes and tests whether it loads
view         the live view on a terminal, or lines
story        the scripted demo
"""

from duly.cli.dev.command import dev

__all__ = ["dev"]
