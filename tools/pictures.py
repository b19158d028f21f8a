"""Draw the pictures of the documentation:  python -m tools.pictures [NAME ...]

They show the output of commands: a preview of the demo at a fixed time, which changes only when the
output does, and a recording of `duly dev`.
"""

import io
import sys
import tempfile
from datetime import UTC, datetime
from pathlib import Path

import msgspec
from rich.console import Console

from duly import ManualClock
from duly.cli import demo
from duly.cli.out import Out
from duly.cli.schedules.preview import foreseen
from duly.clock import to_ms
from duly.testing import override
from tools import recording
from tools.recording import FORMAT

IMAGES = Path(__file__).parent.parent / "docs" / "images"
NOW = datetime(2026, 6, 28, 12, tzinfo=UTC)
COLUMNS = 100
DEMO_SECONDS = 16


class Picture(Out):
    """Prints into a picture, as if on a terminal at that time."""

    def __init__(self) -> None:
        super().__init__(as_json=False, tz="Europe/Istanbul")
        self.console = Console(record=True, width=COLUMNS, force_terminal=True, file=io.StringIO())
        self.now_ms = to_ms(NOW)


def preview() -> str:
    """`duly schedules preview 'morning news'`"""
    out = Picture()
    with override(demo.app, clock=ManualClock(NOW)):
        demo.set_up()
        demo.app.schedules.apply()
        ticks = demo.app.schedules.preview("morning news", 8, tz=out.tz.key)
        found = [{**msgspec.to_builtins(tick), "due_at_ms": to_ms(tick.due)} for tick in ticks]
        out.print(foreseen(out, found))
    title = "duly schedules preview 'morning news'"
    return out.console.export_svg(title=title, code_format=FORMAT, unique_id="preview")


def dev() -> str:
    """`duly dev`, recorded while it runs."""
    with tempfile.TemporaryDirectory() as folder:
        command = ["duly", "dev", "--port", "8484", "--for", f"{DEMO_SECONDS}s"]
        lines = recording.record(command, Path(folder))
    shown = [line._replace(text=line.text.replace(folder, "~/demo")) for line in lines]
    return recording.draw(shown, "duly dev", "dev")


PICTURES = {"preview.svg": preview}
"""The same at every time, so a test compares them."""
RECORDINGS = {"dev.svg": dev}


def main(names: list[str]) -> None:
    IMAGES.mkdir(exist_ok=True)
    for name, draw in (PICTURES | RECORDINGS).items():
        if not names or name in names:
            (IMAGES / name).write_text(draw(), encoding="utf-8")
            print(f"docs/images/{name}")


if __name__ == "__main__":
    main(sys.argv[1:])
