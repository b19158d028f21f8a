"""Run the walks of docs/architecture.md and print their hops:  tools/walks.py [--write]

A walk has milestones: a statement runs, a function is entered, the user's code is called. Its hops
are duly's functions on the call stack at each milestone, the outermost first, each of them once.
`(from 4)` names the caller of a hop, if it is not the one before. Functions without a name are left
out; hops that are part of every write are listed once for all walks.

`--write` updates the lists on the page. Existing hops keep their description; new ones get the
first sentence of their docstring.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import hmac
import io
import os
import re
import sqlite3
import sys
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from types import CodeType, FrameType, GeneratorType
from typing import Any, NamedTuple
from unittest import mock

from starlette.testclient import TestClient

import duly
from duly import Duly, ManualClock, Tx
from duly.cli import main as run_command
from duly.model.access import Principal, Scope
from duly.webhooks import HMAC

SOURCE = Path(duly.__file__).parent
PAGE = Path(__file__).resolve().parent.parent / "docs" / "architecture.md"
PATIENCE = 30.0
TRIES = 20
NO_WORDS = "?"
WRITE = "store/sqlite/store.py: SqliteStore.write"
SHARED = "store/sqlite/commits.py: together"
"""On the stack when a write shares its transaction with others, possibly in another's thread."""

HEADING = re.compile(r"#+ (?:\d+\. )?(.+)")
ITEM = re.compile(r"\d+\. |    - ")
HOP = re.compile(r"\d+\. `([^`]+)`(?: \(from \w+\))?: (.+)")


@dataclass(frozen=True)
class Walk:
    """What to run, and which milestones to wait for."""

    heading: str
    play: Callable[[Recorder, Duly], None]
    milestones: Mapping[str, str]
    """How its event starts, and how the page describes it."""
    since: str | None = None
    """The first hop to list, if it is not the outermost."""


class Hop(NamedTuple):
    """A function, and the hop that calls it; None if a thread or a library does."""

    place: str
    caller: str | None


class Leg(NamedTuple):
    """The new hops on the way to a milestone."""

    hops: Sequence[Hop]
    milestone: str


class Recorder:
    """Waits for the milestones, in order, and records the stack at each."""

    def __init__(self, events: Iterable[str]) -> None:
        self._events = list(events)
        self._functions = set(re.findall(r"(\w+)\(\)$", "\n".join(self._events), re.MULTILINE))
        self._lock = threading.RLock()
        self._listens = False
        self._thread: int | None = None
        self._complete = threading.Event()
        self.stacks: list[list[str]] = []

    @contextlib.contextmanager
    def listening(self) -> Iterator[None]:
        """Record, including this thread, until the last milestone is reached."""
        self._listens = True
        sys.setprofile(self._profile)
        try:
            yield
        finally:
            sys.setprofile(None)
        if not self._complete.wait(PATIENCE):
            missing = self._events[len(self.stacks)]
            raise RuntimeError(f"the walk never reached {missing!r}; change its milestones here")

    def see(self, event: str, frame: FrameType | None = None) -> None:
        """An event happens, in that frame or where this is called."""
        with self._lock:
            if not self._listens or self._complete.is_set():
                return
            if not event.startswith(self._events[len(self.stacks)]):
                return
            # Other threads commit too.
            thread = threading.get_ident()
            if event.startswith("COMMIT") and self._thread not in (None, thread):
                return
            self._thread = thread
            self.stacks.append(_stack(frame or sys._getframe(1)))
            if len(self.stacks) == len(self._events):
                self._complete.set()

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        """Record the activity of connections and threads that are created in this block."""
        connect = sqlite3.connect

        def traced(*args: Any, **kwargs: Any) -> sqlite3.Connection:
            connection: sqlite3.Connection = connect(*args, **kwargs)
            connection.set_trace_callback(self._trace)
            return connection

        threading.setprofile(self._profile)
        try:
            with mock.patch.object(sqlite3, "connect", traced):
                yield
        finally:
            threading.setprofile(None)

    def _trace(self, statement: str) -> None:
        self.see(" ".join(statement.split()), sys._getframe(1))

    def _profile(self, frame: FrameType, event: str, _: object) -> None:
        if event == "call" and frame.f_code.co_name in self._functions:
            self.see(f"{_place(frame.f_code)}()", frame)


def _stack(frame: FrameType | None) -> list[str]:
    """duly's functions on the stack, the outermost first."""
    found: list[str] = []
    while frame is not None:
        if frame.f_code.co_filename.startswith(str(SOURCE)):
            codes = [frame.f_code, *_suspended(frame)]
            found += [_place(code) for code in reversed(codes)]
        frame = frame.f_back
    return [place for place in reversed(found) if not place.endswith(">")]


def _suspended(frame: FrameType) -> Iterator[CodeType]:
    """The verb that is written as steps: its generator waits while its statement runs."""
    if _place(frame.f_code) == "store/steps.py: drive":
        steps = frame.f_locals["steps"]
        while isinstance(steps, GeneratorType):
            yield steps.gi_code
            steps = steps.gi_yieldfrom


def _place(code: CodeType) -> str:
    path = Path(code.co_filename)
    inside = path.is_relative_to(SOURCE)
    file = path.relative_to(SOURCE).as_posix() if inside else "/".join(path.parts[-2:])
    return f"{file}: {code.co_qualname.replace('<locals>.', '')}"


# What is played ----------------------------------------------------------------------------------


def shop(recorder: Recorder, folder: Path) -> Duly:
    clock = ManualClock(datetime(2026, 6, 28, 8, 59, tzinfo=UTC))
    app = Duly(f"sqlite:///{folder / 'shop.db'}", clock=clock)

    @app.mutation
    def restock(tx: Tx) -> None:
        recorder.see("the body")

    @app.mutation
    def ordered(tx: Tx, event_id: str) -> None: ...

    app.migrate()
    app.ready()
    return app


def write(recorder: Recorder, app: Duly) -> None:
    with recorder.listening():
        app.pause()


def work(recorder: Recorder, app: Duly) -> None:
    app.run(app.function("restock"))
    with recorder.listening():
        app.start(ticker=False)


def tick(recorder: Recorder, app: Duly) -> None:
    app.schedules.create("news", app.function("restock"), cron="0 9 * * *")
    assert isinstance(app.clock, ManualClock)
    app.clock.advance(60)
    with recorder.listening():
        app.start()


def create(recorder: Recorder, app: Duly) -> None:
    async def auth(request: object) -> Principal:
        recorder.see("auth")
        return Principal("ada", frozenset(Scope))

    body = {"key": "news", "function": "restock", "cron": "0 9 * * *"}
    with (
        TestClient(seen(recorder, app.asgi(auth=auth, only=["api"]))) as client,
        recorder.listening(),
    ):
        client.post("/api/v1/schedules", json=body)


def preview(recorder: Recorder, app: Duly) -> None:
    app.schedules.create("news", app.function("restock"), cron="0 9 * * *")

    class Terminal(io.StringIO):
        def write(self, text: str) -> int:
            recorder.see("print")
            return super().write(text)

    with (
        recorder.listening(),
        contextlib.redirect_stdout(Terminal()),
        contextlib.suppress(SystemExit),
    ):
        run_command(app, ["schedules", "preview", "news"])


def receive(recorder: Recorder, app: Duly) -> None:
    secret = "a secret of at least 24 characters"
    source = HMAC(header="X-Signature", secrets=["env:SHOP_SECRET"])
    app.webhook("shop", source=source, process=app.function("ordered"))
    signature = hmac.new(secret.encode(), b"{}", "sha256").hexdigest()
    with (
        mock.patch.dict(os.environ, SHOP_SECRET=secret),
        TestClient(seen(recorder, app.asgi(auth="open", only=["hooks"]))) as client,
        recorder.listening(),
    ):
        client.post("/hooks/shop", content=b"{}", headers={"X-Signature": signature})


def seen(recorder: Recorder, asgi: Any) -> Any:
    """The same ASGI application, with its responses recorded."""

    async def application(scope: Any, receive: Any, send: Any) -> None:
        async def answer(message: Any) -> None:
            recorder.see(message["type"])
            await send(message)

        await asgi(scope, receive, answer)

    return application


READ = "everything that the guards look at is read"
DECIDED = "the tick is decided"
DURABLE = "`COMMIT` makes it durable"
SENT = "the response is sent"
EVERY_WRITE = Walk(
    "Every write",
    write,
    {
        "store/turnstile.py: Turnstile.enter()": "this process waits for its turn to write",
        "BEGIN IMMEDIATE": "`BEGIN IMMEDIATE`",
        "INSERT INTO duly_queues": "the verb's statements run",
        "COMMIT": "`COMMIT`",
    },
    since=WRITE,
)
WALKS = [
    Walk(
        "Where a job is claimed",
        work,
        {
            "store/jobs/run.py: lanes()": "the queues that have due jobs are read",
            "SELECT * FROM ( SELECT id": "the due jobs are picked",
            "UPDATE duly_jobs SET state = 'running'": "the `UPDATE` claims them",
            "COMMIT": DURABLE,
        },
    ),
    Walk(
        "Where a mutation commits",
        work,
        {
            "runtime/teams.py: MutationTeam.start_many()": "the job waits for a mutation thread",
            "the body": "your function runs",
            "INSERT INTO duly_history": "`INSERT INTO duly_history` records the outcome",
            "COMMIT": "`COMMIT` makes your function's writes and the outcome durable",
        },
    ),
    Walk(
        "Where a tick is decided",
        tick,
        {
            "SELECT value, (SELECT id FROM duly_jobs": READ,
            "model/decide.py: decide()": DECIDED,
            "functions/new_job.py: new_jobs()": "its job is built",
            "INSERT INTO duly_ticks": "`INSERT INTO duly_ticks` records the decision",
            "INSERT INTO duly_jobs": "`INSERT INTO duly_jobs`",
            "UPDATE duly_schedules SET next_tick_at": "the schedule moves on to its next tick",
            "COMMIT": DURABLE,
        },
    ),
    Walk(
        "`POST /api/v1/schedules`",
        create,
        {
            "auth": "your `auth` function says who is asking",
            "server/api/schedules.py: _asked_for()": "the body becomes a call and options",
            "schedules/define.py: define()": "the options are checked",
            "schedules/rows.py: new_record()": "the row is built",
            "INSERT INTO duly_schedules": "`INSERT INTO duly_schedules`",
            "COMMIT": DURABLE,
            "http.response.start": SENT,
        },
    ),
    Walk(
        "`duly schedules preview`",
        preview,
        {
            "SELECT s.id, s.app": "the schedule is found",
            "SELECT value, (SELECT id FROM duly_jobs": READ,
            "model/decide.py: decide()": DECIDED,
            "print": "the ticks are printed",
        },
    ),
    Walk(
        "Where a webhook becomes a job",
        receive,
        {
            "futures/thread.py: ThreadPoolExecutor.submit()": "the rest happens in a thread",
            "webhooks/sources.py: Source.verify()": "the signature is checked",
            "functions/new_job.py: new_jobs()": "the job is built",
            "INSERT INTO duly_inbox": "`INSERT INTO duly_inbox`",
            "INSERT INTO duly_jobs": "`INSERT INTO duly_jobs`",
            "COMMIT": DURABLE,
            "http.response.start": SENT,
        },
    ),
]


def legs_of(walk: Walk) -> list[Leg]:
    """Run the walk."""
    left_out = set[str]() if walk is EVERY_WRITE else every_write()
    known: set[str] = set()
    legs: list[Leg] = []
    for words, stack in zip(walk.milestones.values(), _stacks(walk), strict=True):
        caller: str | None = None
        hops: list[Hop] = []
        for place in stack[stack.index(walk.since) if walk.since else 0 :]:
            if place in left_out:
                continue
            if place not in known:
                known.add(place)
                hops.append(Hop(place, caller))
            caller = place
        legs.append(Leg(hops, words))
    return legs


def run_all() -> dict[str, list[Leg]]:
    """Every walk, by its heading."""
    return {walk.heading: legs_of(walk) for walk in (EVERY_WRITE, *WALKS)}


@cache
def every_write() -> set[str]:
    """The hops that are listed once, except the first, which stands for them."""
    return {hop.place for leg in legs_of(EVERY_WRITE) for hop in leg.hops} - {WRITE}


def _stacks(walk: Walk) -> list[list[str]]:
    for _ in range(TRIES):
        recorder = Recorder(walk.milestones)
        with tempfile.TemporaryDirectory() as folder, recorder.watching():
            app = shop(recorder, Path(folder))
            try:
                walk.play(recorder, app)
            finally:
                app.stop()
                app.close()
        if not any(SHARED in stack for stack in recorder.stacks):
            return recorder.stacks
    raise RuntimeError(f"{TRIES} times the write shared its transaction with others")


# The page ----------------------------------------------------------------------------------------


def listed(page: str, heading: str) -> list[str]:
    """The list that the page has under a heading."""
    return [line for under, line in _lines(page) if under == heading and ITEM.match(line)]


def items(legs: Sequence[Leg], words: Mapping[str, str]) -> list[str]:
    """The same list, as it should be."""
    lines: list[str] = []
    numbers: dict[str | None, int] = {}
    before: str | None = None
    for leg in legs:
        for number, (place, caller) in enumerate(leg.hops, start=len(numbers) + 1):
            numbers[place] = number
            by = "" if caller == before else f" (from {numbers.get(caller, 'outside')})"
            lines.append(f"{number}. `{place}`{by}: {words.get(place) or first_sentence(place)}")
            before = place
        lines.append(f"    - {leg.milestone}")
    return lines


def words_on(page: str) -> dict[str, str]:
    """The page's description of each hop."""
    return {found[1]: found[2] for line in page.splitlines() if (found := HOP.fullmatch(line))}


def rewritten(page: str, walks: Mapping[str, Sequence[Leg]]) -> str:
    """The page with these lists, by heading."""
    words, due = words_on(page), dict(walks)
    lines: list[str] = []
    for heading, line in _lines(page):
        if heading not in walks or not ITEM.match(line):
            lines.append(line)
        elif heading in due:
            lines += items(due.pop(heading), words)
    if due:
        raise LookupError(f"{PAGE.name} has no list under {', '.join(due)}")
    return "\n".join([*lines, ""])


def _lines(page: str) -> Iterator[tuple[str, str]]:
    """Each line and the heading above it."""
    heading = ""
    for line in page.splitlines():
        if found := HEADING.fullmatch(line):
            heading = found[1]
        yield heading, line


def first_sentence(hop: str) -> str:
    """The first sentence of a function's docstring."""
    file, _, name = hop.partition(": ")
    node: Any = ast.parse((SOURCE / file).read_text(encoding="utf-8"))
    for part in name.split("."):
        node = next(each for each in ast.walk(node) if getattr(each, "name", None) == part)
    docstring = ast.get_docstring(node) or NO_WORDS
    return docstring.splitlines()[0].split(". ")[0].rstrip(".")


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Run the walks of docs/architecture.md.")
    parser.add_argument("--write", action="store_true", help="Update the lists on the page.")
    write = parser.parse_args(arguments).write
    page = PAGE.read_text(encoding="utf-8")
    words = words_on(page)
    walks = run_all()
    for heading, legs in walks.items():
        print(f"\n{heading}", *items(legs, words), sep="\n")
    print(*counts(walks), sep="\n")
    if write:
        page = rewritten(page, walks)
        PAGE.write_text(page, encoding="utf-8")
    wordless = [hop for hop, words in words_on(page).items() if words == NO_WORDS]
    for hop in wordless:
        print(f"{PAGE.name}: describe in a few words what {hop} does", file=sys.stderr)
    return 1 if wordless else 0


def counts(walks: Mapping[str, Sequence[Leg]]) -> Iterator[str]:
    """How many hops each walk has, and in how many files."""
    for heading, legs in walks.items():
        hops = {hop.place for leg in legs for hop in leg.hops}
        common = every_write() - hops if WRITE in hops else set[str]()
        files = {place.partition(": ")[0] for place in hops | common}
        more = f" and the {len(common)} of every write" if common else ""
        yield f"{heading}: {len(hops)} hops{more}, {len(files)} files"


if __name__ == "__main__":
    sys.exit(main())
