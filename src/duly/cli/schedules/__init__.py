"""`duly schedules`: manage schedules."""

from duly.cli.schedules import change, declarations, parts, preview, show
from duly.cli.schedules.group import schedules

__all__ = ["change", "declarations", "parts", "preview", "schedules", "show"]
