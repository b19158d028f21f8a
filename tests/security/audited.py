"""A process that is fed with hostile data and convicts whatever would run it.

    python -m tests.security.audited FOLDER

First everything happens once with plain data, so that whatever is loaded late is loaded. Then the
same with hostile data, while Python's audit hook watches. At last offenders are planted: each has
to be convicted. Prints what was found as JSON.
"""

import base64
import importlib
import itertools
import json
import os
import pickle
import subprocess
import sys
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
from starlette.testclient import TestClient

from duly import Ctx, Duly, ManualClock
from duly.server import make_asgi
from duly.webhooks import Bearer
from tests.jobs.support import Database, ManualWorker, tidy
from tests.schedules.support import tick_all

# Modules of the standard library that nothing else loads.
UNUSED = ("antigravity", "this", "turtledemo")
PICKLED = pickle.dumps(Counter()).decode("latin-1")
HOSTILE = [
    "os:system",
    "antigravity:geohash",
    "this",
    "turtledemo.clock",
    "__import__('antigravity')",
    "!!python/object/apply:os.system ['true']",
    "{{ cycler.__init__.__globals__.os.system('true') }}",
    "{0.__class__.__init__.__globals__}",
    "$(true) `true`; true",
    base64.b64encode(PICKLED.encode("latin-1")).decode(),
]
OBJECTS = [
    {"py/object": "antigravity.X", "__class__": "this", "__reduce__": ["os.system", ["true"]]},
    {"kind": "antigravity:X", "type": "this", "cron": "__import__('this')"},
    [["os.system", "true"], {"$ref": "antigravity.json"}],
    PICKLED,
]
ALWAYS = {"pickle.find_class", "os.system", "os.exec", "os.posix_spawn", "subprocess.Popen"}


class Watch:
    """What happened that must not; an audit hook cannot be removed, so it is armed and disarmed."""

    def __init__(self) -> None:
        self.found: list[str] | None = None
        sys.addaudithook(self._hook)
        sys.meta_path.insert(0, self)

    def _hook(self, event: str, args: tuple[Any, ...]) -> None:
        if self.found is not None and (event in ALWAYS or self._is_odd(event, args)):
            self.found.append(f"{event} {str(args[:2])[:200]}")

    def _is_odd(self, event: str, args: tuple[Any, ...]) -> bool:
        if event == "compile":
            # Tracebacks parse the lines that they show; to run what was parsed is an exec.
            return args[1] != "<unknown>" and not os.path.exists(os.fsdecode(args[1] or ""))
        return event == "exec" and not os.path.exists(args[0].co_filename) and not _frozen(args[0])

    def find_spec(self, name: str, *_: Any) -> None:
        """Be asked first about every module: `import_module` raises no audit event."""
        if self.found is not None and name.partition(".")[0] in UNUSED:
            self.found.append(f"import {name}")

    def during(self, what: Any, *args: Any) -> list[str]:
        self.found = []
        try:
            what(*args)
            return self.found
        finally:
            self.found = None


def _frozen(code: Any) -> bool:
    return str(code.co_filename).startswith("<frozen ")


def make_app(folder: Path) -> Duly:
    app = Duly(f"sqlite:///{folder}/shop.db", clock=ManualClock())

    @app.action
    def echo(ctx: Ctx, value: Any = None) -> Any:
        ctx.log(str(value))
        return value

    @app.action
    def fails(ctx: Ctx, value: Any = None) -> None:
        raise ValueError(str(value))

    @app.action
    def takes(ctx: Ctx, event_id: str) -> None: ...

    @app.action
    def offends(ctx: Ctx, name: str) -> None:
        OFFENCES[name]()

    app.webhook("in", source=Bearer(secrets=["s"]), process=takes)
    app.migrate()
    app.functions.publish()
    return app


OFFENCES: dict[str, Any] = {
    "pickle": lambda: pickle.loads(PICKLED.encode("latin-1")),
    "eval": lambda: eval("1 + 1"),
    "exec": lambda: exec("x = 1"),
    "import": lambda: importlib.import_module("turtledemo.x"),
    "system": lambda: os.system("true"),
    "Popen": lambda: subprocess.run(["true"], check=True),
}


class Feeder:
    """Puts values wherever there is room for them, and lets everything happen to them."""

    def __init__(self, app: Duly, folder: Path) -> None:
        self.app = app
        self.db = Database(f"sqlite:///{folder}/shop.db")
        self.worker = ManualWorker(app)
        self.client = TestClient(make_asgi(app, auth="open"), raise_server_exceptions=False)
        self.answers: Counter[int] = Counter()
        self._keys = itertools.count()

    def feed_hostile(self) -> None:
        self.feed(HOSTILE, OBJECTS)
        self.give(HOSTILE, OBJECTS)
        self.rewrite()
        self._let_happen(HOSTILE)

    def feed(self, words: list[str], values: list[Any]) -> None:
        self.give(words, values)
        self._let_happen(words)

    def give(self, words: list[str], values: list[Any]) -> None:
        for word, value in zip(words, itertools.cycle(values), strict=False):
            self._give(word, value)

    def _let_happen(self, words: list[str]) -> None:
        self.app.clock.advance(7200)  # type: ignore[attr-defined]
        tick_all(self.app)
        self.worker.work()
        tidy(self.app)
        self._look(words)

    def _give(self, word: str, value: Any) -> None:
        app, key = self.app, str(next(self._keys))
        for function in (app.function("echo"), app.function("fails")):
            for given in (word, value):
                app.run(function.using(tags=[word[:20]], owner=word), given)
        app.schedules.create(key, app.function("echo").bind(word), every=3600, note=word)
        body = json.dumps({"type": word, word: value}).encode()
        app.webhooks.receive("in", [("authorization", "Bearer s"), ("x-odd", word)], body)
        post = self._post
        post(f"/hooks/{word}", value)
        for path in ("jobs", "schedules", "calendars", "endpoints", "gateways", "tokens"):
            post(f"/api/v1/{path}", {"function": word, "name": word, "key": word, "args": value})
            post(f"/api/v1/{path}", value)
        schedule = {"function": "echo", "args": {"value": value}, "key": f"{key}-api"}
        for odd in ({"cron": word}, {"every": 3600, "condition": value, "rotation": [value]}):
            post("/api/v1/schedules", schedule | odd)

    def rewrite(self) -> None:
        """Change rows as somebody who may write to the database could; each text in its own row."""
        texts = [*HOSTILE[:2], *map(json.dumps, OBJECTS)]
        for table, columns in COLUMNS.items():
            places = [(column, text) for column in columns for text in texts]
            ids = [id_ for (id_,) in self.db.execute(f"SELECT id FROM @{table} ORDER BY id")]
            for (column, text), id_ in zip(places, itertools.cycle(ids), strict=False):
                self.db.execute(f"UPDATE @{table} SET {column} = ? WHERE id = ?", text, id_)

    def _look(self, words: list[str]) -> None:
        for path in PAGES:
            self._get(path)
        for table, place in (
            ("jobs", "jobs"),
            ("history", "jobs"),
            ("schedules", "schedules"),
            ("inbox", "webhooks"),
        ):
            for (id_,) in self.db.execute(f"SELECT id FROM @{table} ORDER BY id DESC LIMIT 12"):
                self._get(f"/{place}/{id_}")
                self._get(f"/api/v1/{place}/{id_}")
        for word in words:
            self._get(f"/functions/{word}")
            self._get(f"/api/v1/functions/{word}")

    def _get(self, path: str) -> None:
        self.answers[self.client.get(path).status_code] += 1

    def _post(self, path: str, body: Any) -> None:
        self.answers[self.client.post(path, json=body).status_code] += 1

    def offend(self, name: str) -> None:
        self.app.run(self.app.function("offends"), name)
        self.worker.work()

    def close(self) -> None:
        self.worker.stop()
        self.db.close()
        self.app.close()


COLUMNS = {
    "jobs": ("function", "args", "retry", "limits", "tags", "trigger"),
    "schedules": (
        *("trigger", "condition", "rotation", "policies", "options", "args", "override"),
        *("calendar", "declared", "expect", "alert", "function"),
    ),
    "inbox": ("headers", "type", "webhook"),
}
PAGES = (
    *("/", "/schedules", "/jobs", "/webhooks", "/functions", "/calendars", "/queues", "/workers"),
    *("/gateways", "/audit", "/tokens", "/api/v1/jobs", "/api/v1/schedules", "/api/v1/functions"),
)


def resolve_annotations() -> None:
    """Of everything that can be stored: msgspec evaluates them when it first meets a type."""
    pending = [msgspec.Struct]
    while pending:
        kind = pending.pop()
        pending += kind.__subclasses__()
        with suppress(TypeError, msgspec.MsgspecError, NameError):
            msgspec.json.decode(b"{}", type=kind)


def main(folder: Path) -> None:
    watch, feeder = Watch(), Feeder(make_app(folder), folder)
    feeder.feed(["plain"], ["plain", {"a": 1}])
    resolve_annotations()
    feeder.answers.clear()
    hostile = watch.during(feeder.feed_hostile)
    planted = {name: watch.during(feeder.offend, name) for name in OFFENCES}
    feeder.close()
    found = {"hostile": hostile, "planted": planted, "answers": feeder.answers}
    sys.stdout.write(json.dumps(found) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
