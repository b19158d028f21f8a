"""Draw the pictures of the documentation anew:  tools/pictures.py

They are what the commands print, on the demo and at a fixed time, so that they change only when
what is printed does.
"""

import io
import re
from datetime import UTC, datetime
from pathlib import Path

import msgspec
from rich._export_format import CONSOLE_SVG_FORMAT
from rich.console import Console

from duly import ManualClock
from duly.cli import demo
from duly.cli.out import Out
from duly.cli.schedules.preview import foreseen
from duly.clock import to_ms
from duly.testing import override

IMAGES = Path(__file__).parent.parent / "docs" / "images"
NOW = datetime(2026, 6, 28, 12, tzinfo=UTC)
COLUMNS = 100
# A picture fetches nothing: fonts are those of whoever looks.
FORMAT = re.sub(r"@font-face \{\{.*?\}\}\s*", "", CONSOLE_SVG_FORMAT, flags=re.DOTALL)


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


PICTURES = {"preview.svg": preview}


def main() -> None:
    IMAGES.mkdir(exist_ok=True)
    for name, draw in PICTURES.items():
        (IMAGES / name).write_text(draw(), encoding="utf-8")
        print(f"docs/images/{name}")


if __name__ == "__main__":
    main()
