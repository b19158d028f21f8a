"""`duly schedules`: manage schedules."""

from duly.cli.schedules import ahead, changing, declared, looking, parts
from duly.cli.schedules.group import schedules

__all__ = ["ahead", "changing", "declared", "looking", "parts", "schedules"]
