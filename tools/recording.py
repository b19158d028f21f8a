"""Record what a command prints, and draw the recording as an SVG that plays it."""

from __future__ import annotations

import io
import math
import os
import re
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from rich._export_format import CONSOLE_SVG_FORMAT
from rich.console import Console
from rich.text import Text

from duly.cli.out import STATES

COLUMNS, ROWS = 106, 26
PAUSE = 6.0
"""How many seconds the last lines stay before the recording starts again."""
LINE_HEIGHT = 24.4
# A picture loads nothing: the viewer's own fonts are used.
FORMAT = re.sub(r"@font-face \{\{.*?\}\}\s*", "", CONSOLE_SVG_FORMAT, flags=re.DOTALL)


class Line(NamedTuple):
    at: float
    """Seconds since the start."""
    text: str


def record(command: Sequence[str], folder: Path) -> list[Line]:
    """The lines that a Python module prints when it is run with arguments, to its end."""
    env = {name: value for name, value in os.environ.items() if not name.startswith("DULY_")}
    start = time.monotonic()
    process = subprocess.Popen(
        [sys.executable, "-m", *command],
        cwd=folder,
        env=env | {"COLUMNS": str(COLUMNS), "PYTHONUNBUFFERED": "1"},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    with process:
        return [Line(time.monotonic() - start, text.rstrip()) for text in process.stdout]


def draw(lines: Sequence[Line], title: str, name: str) -> str:
    """An SVG that shows each line when it was printed, scrolls like a terminal, and repeats.

    Viewers who prefer reduced motion, and those without animation, see the last screen.
    """
    console = Console(record=True, width=COLUMNS, force_terminal=True, file=io.StringIO())
    shown_at: list[float] = []
    for line in lines:
        wrapped = _styled(line.text).wrap(console, COLUMNS)
        console.print(wrapped)
        shown_at += [line.at] * max(1, len(wrapped))
    svg = console.export_svg(title=title, code_format=FORMAT, unique_id=name)
    svg = _cut_to_window(svg, len(shown_at))
    return _animated(svg, name, shown_at)


def _styled(text: str) -> Text:
    if re.match(r"[A-Z]|duly |kill ", text):
        return Text(text, style="bold")
    styled = Text(text)
    for word, style in STATES.items():
        styled.highlight_regex(rf"(?<!/)\b{word}\b", style)
    return styled


def _cut_to_window(svg: str, rows: int) -> str:
    """A window of ROWS rows, however many lines there are."""
    less = max(0, rows - ROWS) * LINE_HEIGHT

    def shorter(match: re.Match[str]) -> str:
        return f"{match[1]}{float(match[2]) - less:.1f}{match[3]}"

    view_box = re.compile(r"(<svg [^>]*viewBox=\"0 0 \S+ )([\d.]+)(\")")
    terminal = re.compile(r"(<clipPath id=\"\w+-clip-terminal\">\s*<rect .*?height=\")([\d.]+)(\")")
    window = re.compile(r"(<rect fill=\"#292929\"[^>]*height=\")([\d.]+)(\")")
    for pattern in (view_box, terminal, window):
        svg, found = pattern.subn(shorter, svg, count=1)
        assert found, f"rich draws its window in another way: {pattern.pattern}"
    return svg


def _animated(svg: str, name: str, shown_at: Sequence[float]) -> str:
    length = shown_at[-1] + PAUSE
    last = max(0, len(shown_at) - ROWS)
    rules = [f".{name}-matrix {{ transform: translateY({-last * LINE_HEIGHT:.1f}px) }}"]
    moving, scrolls = [], ["0% { transform: none }"]
    played = f"{length:.1f}s step-end infinite"
    for row, at in enumerate(shown_at):
        percent = f"{math.floor(at / length * 10_000) / 100:g}%"
        frames = f"0% {{ opacity: 0 }} {percent} {{ opacity: 1 }}"
        moving.append(f"@keyframes {name}-{row} {{ {frames} }}")
        moving.append(f".{name}-l{row} {{ animation: {name}-{row} {played} }}")
        if row >= ROWS:
            up = -(row - ROWS + 1) * LINE_HEIGHT
            scrolls.append(f"{percent} {{ transform: translateY({up:.1f}px) }}")
    moving.append(f"@keyframes {name}-scroll {{ {' '.join(scrolls)} }}")
    moving.append(f".{name}-matrix {{ animation: {name}-scroll {played} }}")
    rules.append("@media (prefers-reduced-motion: no-preference) {\n" + "\n".join(moving) + "\n}")
    svg = re.sub(
        rf'<text class="([^"]*)"([^>]*)clip-path="url\(#{name}-line-(\d+)\)"',
        rf'<text class="\1 {name}-l\3"\2clip-path="url(#{name}-line-\3)"',
        svg,
    )
    return svg.replace("</style>", "\n".join(rules) + "\n    </style>", 1)
