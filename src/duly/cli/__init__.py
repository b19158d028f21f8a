"""The command line: one file per command group."""

from duly.cli.root import main

__all__ = ["main"]
