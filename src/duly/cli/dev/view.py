"""The output of `duly dev`: a live view on a terminal, plain lines otherwise."""

from __future__ import annotations

import os
from collections import Counter, deque
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from duly.app import Duly
from duly.cli import when
from duly.cli.dev.children import Line
from duly.cli.out import Column, Out, safe
from duly.clock import os_monotonic
from duly.errors import DulyError
from duly.model.job import State
from duly.model.news import AuditNews, Gap, JobNews, News, TickNews
from duly.observe.health import HealthReport
from duly.runtime.feed import Follower
from duly.schedules import Schedule

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.live import Live
    from rich.text import Text

READ_EVERY = 1.0
DRAW_EVERY = 0.2
MAX_RUNNING = 6
MAX_TICKS = 5
MAX_EVENTS = 8
MAX_LINES = 20
"""How many events are printed at a time; the rest are only counted."""


class EventLine(NamedTuple):
    """One event, for people."""

    at_ms: int
    what: str
    outcome: str
    why: str


def event_line(news: News, now_ms: int) -> EventLine | None:
    """A line for finished jobs, further attempts, ticks and operator actions."""
    match news:
        case JobNews(state=State.PENDING) if news.attempt:
            return EventLine(now_ms, news.function, "pending", f"after attempt {news.attempt}")
        case JobNews() if news.state.is_terminal:
            again = f"at attempt {news.attempt}" if news.attempt > 1 else ""
            return EventLine(news.at, news.function, str(news.state), again)
        case TickNews():
            return EventLine(news.at, news.key or "a schedule", news.outcome, news.reason or "")
        case AuditNews() if news.actor:
            return EventLine(news.at, news.target, news.action, f"by {news.actor}")
        case _:
            return None


class DatabaseState(NamedTuple):
    """The state of the database at one time."""

    health: HealthReport
    schedules: Sequence[Schedule]


class View:
    """Collects events since the start and shows them."""

    def __init__(self, app: Duly, out: Out, title: str) -> None:
        self._app, self._out, self._title = app, out, title
        self._ended: Counter[State] = Counter()
        self._running: dict[str, JobNews] = {}
        self._events: deque[EventLine] = deque(maxlen=MAX_EVENTS)
        self._standing: DatabaseState | None = None
        self._read_at = self._draw_at = 0.0
        self._follower: Follower | None = None
        self._live: Live | None = None

    @contextmanager
    def shown(self) -> Generator[None]:
        """Follow events, on a terminal with a live view."""
        with ExitStack() as stack:
            feed = self._app.core.feed
            self._follower = stack.enter_context(feed.following(lambda _: True, None, lambda: None))
            if self._out.is_terminal and not self._out.as_json:
                from rich.live import Live

                self._live = Live(console=self._out.console, auto_refresh=False)
                stack.enter_context(self._live)
            try:
                yield
            finally:
                self.update(now=True)
                self._live = None

    # Permanent lines -----------------------------------------------------------------------------

    def begin(self, url: str, where: str) -> None:
        facts = {"url": url, "database": where, "pid": os.getpid()}
        said = f"duly dev: {url} on {where}; Ctrl-C stops"
        self.show(facts, lambda: self._out.styled(said, "bold"))

    def say(self, text: str, style: str = "bold") -> None:
        self.show({"message": text}, lambda: self._out.styled(text, style))

    def show(self, value: Mapping[str, Any], render: Callable[[], RenderableType]) -> None:
        """Print a value: as a line of JSON, or as `render` shows it to people."""
        if self._out.as_json:
            self._out.line(value)
        else:
            self._print(render())

    def _print(self, shown: RenderableType) -> None:
        # Leave breaking long lines to the terminal.
        self._out.console.print(shown, soft_wrap=True)
        self._out.console.file.flush()

    def heard(self, line: Line) -> None:
        """Show a line that a process printed."""
        said = f"{line.who} | {line.text}"
        self.show({"process": line.who, "line": line.text}, lambda: self._out.styled(said, "dim"))

    # Updates -------------------------------------------------------------------------------------

    def update(self, *, now: bool = False) -> None:
        """Read new events and show them."""
        new = self._take()
        if self._live is None:
            self._print_events(new)
            return
        if now or os_monotonic() >= self._read_at:
            self._read_at = os_monotonic() + READ_EVERY
            self._standing = self._read()
        if now or os_monotonic() >= self._draw_at:
            self._draw_at = os_monotonic() + DRAW_EVERY
            self._live.update(self._picture(), refresh=True)

    def _take(self) -> list[EventLine]:
        assert self._follower is not None
        found: list[EventLine] = []
        for item in self._follower.take().items:
            if isinstance(item.news, Gap):
                self._running.clear()
                continue
            if isinstance(item.news, JobNews):
                self._count(item.news)
            if event := event_line(item.news, self._app.clock.now()):
                found.append(event)
        self._events.extend(found)
        return found

    def _count(self, news: JobNews) -> None:
        if news.state is State.RUNNING:
            self._running[news.id] = news
            return
        self._running.pop(news.id, None)
        if news.state.is_terminal:
            self._ended[news.state] += 1

    def _read(self) -> DatabaseState | None:
        try:
            return DatabaseState(self._app.health(), self._app.schedules.list(enabled=True))
        except DulyError:
            return None

    def _print_events(self, new: Sequence[EventLine]) -> None:
        for event in new[:MAX_LINES]:
            self.show(event._asdict(), partial(self._line, event))
        if len(new) > MAX_LINES:
            self.say(f"… and {len(new) - MAX_LINES} more", "dim")

    def _line(self, event: EventLine) -> Text:
        text = self._out.styled(f"{self._out.at(event.at_ms)}  {event.what} ", "")
        text.append_text(self._out.cell(event.outcome))
        return text.append(f" {safe(event.why)}".rstrip(), style="dim")

    # The live view -------------------------------------------------------------------------------

    def _picture(self) -> RenderableType:
        from rich.console import Group
        from rich.rule import Rule

        parts: list[RenderableType] = [Rule(self._title, style="dim"), self._counts()]
        if self._running:
            parts.append(self._bars())
        if self._standing is not None and self._standing.schedules:
            parts.append(self._ticks(self._standing.schedules))
        parts += [self._line(event) for event in self._events]
        return Group(*parts)

    def _counts(self) -> Text:
        from rich.text import Text

        if self._standing is None:
            return self._out.styled("the database cannot be read", "red")
        health = self._standing.health
        waiting = sum(queue.due + queue.held for queue in health.queues)
        later = sum(queue.later for queue in health.queues)
        shown = [
            (waiting, "waiting", "cyan"),
            (later, "later", "cyan"),
            (len(self._running), "running", "blue"),
            *((self._ended[state], str(state), COLOURS[state]) for state in COLOURS),
        ]
        text = Text(no_wrap=True, overflow="ellipsis")
        for number, word, style in shown:
            text.append(f"{number} ", style="bold").append(f"{word}  ", style=style)
        for warning in health.warnings:
            text.append(f"\n{safe(warning)}", style="yellow")
        return text

    def _bars(self) -> RenderableType:
        from rich.progress_bar import ProgressBar
        from rich.table import Table

        table = Table.grid(padding=(0, 1), expand=True)
        table.add_column(no_wrap=True, ratio=2, overflow="ellipsis")
        table.add_column(ratio=3)
        table.add_column(no_wrap=True, ratio=2, overflow="ellipsis")
        for news in list(self._running.values())[:MAX_RUNNING]:
            again = f", try {news.attempt}" if news.attempt > 1 else ""
            bar = ProgressBar(total=1, completed=news.value or 0)
            table.add_row(self._out.cell(f"{news.function}{again}"), bar, safe(news.note or ""))
        return table

    def _ticks(self, schedules: Sequence[Schedule]) -> RenderableType:
        coming = [each for each in schedules if each.record.due_at is not None]
        coming.sort(key=lambda each: each.record.due_at or 0)
        now_ms = self._app.clock.now()
        rows = [
            {
                "key": each.key,
                "next": when.relative(each.record.due_at or 0, now_ms),
                "at": self._out.at(each.record.due_at),
            }
            for each in coming[:MAX_TICKS]
        ]
        columns = [
            Column("next ticks", "key", flexible=True),
            Column("", "next", right=True),
            Column("", "at", right=True),
        ]
        return self._out.grid(rows, columns)


COLOURS = {State.SUCCEEDED: "green", State.FAILED: "red", State.CANCELED: "yellow"}
