"""`manage.py duly …`: duly's own command line, bound to the project's app."""

# Django comes without types.
# pyright: reportMissingTypeStubs=false

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from django.core.management.base import CommandError

if TYPE_CHECKING:  # Django comes without types.
    BaseCommand = object
else:
    from django.core.management.base import BaseCommand


class Command(BaseCommand):
    """Hands everything on."""

    help: str = (
        "Run duly's command line: migrate, worker and the rest; see `manage.py duly --help`."
    )

    def run_from_argv(self, argv: list[str]) -> None:
        from duly.contrib.django import app

        # Django's parser would claim options that are duly's.
        djangos, dulys = divided(argv[2:])
        script = Path(argv[0])
        # `python -m django` finds the project in the current folder, its own script would not.
        manage = ["-m", "django"] if script.name == "__main__.py" else [str(script.absolute())]
        app.manage = [*manage, "duly", *djangos]
        app.main(dulys, program=f"{script.name} duly")

    def add_arguments(self, parser: Any) -> None:
        parser.add_argument("args", nargs=argparse.REMAINDER, help="what duly is given")

    def handle(self, *args: str, **options: Any) -> None:
        """For call_command, which returns instead of ending the process."""
        from duly.contrib.django import app

        try:
            app.main(args, program="duly")
        except SystemExit as end:
            if end.code:
                raise CommandError(f"duly ended with {end.code}") from None


def divided(args: list[str]) -> tuple[list[str], list[str]]:
    """What Django has read already, wherever it stood; and what is for duly."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--settings")
    parser.add_argument("--pythonpath")
    known, dulys = parser.parse_known_args(args)
    djangos = {name: value for name, value in vars(known).items() if value is not None}
    return [f"--{name}={value}" for name, value in djangos.items()], dulys
