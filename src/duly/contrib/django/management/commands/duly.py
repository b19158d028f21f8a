"""`manage.py duly …`: duly's own command line, bound to the project's app."""

# Django has no type hints.
# pyright: reportMissingTypeStubs=false

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from django.core.exceptions import ImproperlyConfigured
from django.core.management.base import CommandError

from duly.errors import DulyError

if TYPE_CHECKING:  # Django has no type hints.
    BaseCommand = object
else:
    from django.core.management.base import BaseCommand

EXIT_USAGE = 2


class Command(BaseCommand):
    """Passes all arguments to duly's command line."""

    help: str = "Run duly's command line: migrate, worker and others; see `manage.py duly --help`."

    def run_from_argv(self, argv: list[str]) -> None:
        try:
            app = app_of_settings()
        except CommandError as error:
            sys.stderr.write(f"duly: {error}\n")
            sys.exit(error.returncode)
        # Django's parser would interpret some duly options.
        djangos, dulys = divided(argv[2:])
        script = Path(argv[0])
        # `python -m django` finds the project in the current folder; its own script would not.
        manage = ["-m", "django"] if script.name == "__main__.py" else [str(script.absolute())]
        app.manage = [*manage, "duly", *djangos]
        app.main(dulys, program=f"{script.name} duly")

    def add_arguments(self, parser: Any) -> None:
        parser.add_argument("args", nargs=argparse.REMAINDER, help="arguments for duly")

    def handle(self, *args: str, **options: Any) -> None:
        """For call_command, which returns instead of ending the process."""
        app = app_of_settings()
        try:
            app.main(args, program="duly")
        except SystemExit as end:
            if end.code:
                raise CommandError(f"duly exited with {end.code}") from None


def app_of_settings() -> Any:
    """The project's app; CommandError if `settings.DULY` has a mistake."""
    try:
        from duly.contrib.django import app
    except ImproperlyConfigured as error:
        raise CommandError(str(error), returncode=EXIT_USAGE) from None
    except DulyError as error:
        raise CommandError(f"DULY: {error}", returncode=EXIT_USAGE) from None
    return app


def divided(args: list[str]) -> tuple[list[str], list[str]]:
    """The options that Django has already read, wherever they were; and the arguments for duly."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--settings")
    parser.add_argument("--pythonpath")
    known, dulys = parser.parse_known_args(args)
    djangos = {name: value for name, value in vars(known).items() if value is not None}
    return [f"--{name}={value}" for name, value in djangos.items()], dulys
