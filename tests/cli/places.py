"""The same commands everywhere: on an app's own database of either kind, and on a server."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from duly import Duly
from tests.cli.shop import make
from tests.cli.terminal import Ran, Started, Terminal
from tests.jobs.support import Database

APP = "tests.cli.shop:app"


class Place:
    """Where commands are tried: `duly(…)` runs one there; `app` prepares and checks."""

    def __init__(self, terminal: Terminal, url: str, folder: Path) -> None:
        self._terminal = terminal
        self.folder = folder
        self.app: Duly = make(url, folder)
        self.app.migrate()
        self.app.ready().publish(self.app.core.functions.published(), self.app.core.now())
        self.db = Database(url)
        self.at_home = {"DULY_APP": APP, "DULY_DATABASE_URL": url, "SHOP_FOLDER": str(folder)}
        self.env: Mapping[str, str] = self.at_home
        self._started: list[Started] = []

    def duly(self, *arguments: str, **how: Any) -> Ran:
        """Run a command; see `Terminal.run`."""
        env = {**self.env, **how.pop("env", {})}
        return self._terminal.run(*arguments, **how, env=env)

    def start(self, *arguments: str, **how: Any) -> Started:
        env = {**self.env, **how.pop("env", {})}
        started = self._terminal.start(*arguments, **how, env=env)
        self._started.append(started)
        return started

    def move_to_a_server(self) -> None:
        """From now on the commands go to a server, with a token."""
        token = self.app.tokens.create("operator", ["admin", "operate", "enqueue", "read"])
        server = self.start("serve", "--port", "0", "--json")
        server.until("\n")
        self.env = {"DULY_URL": json.loads(server.seen)["url"], "DULY_TOKEN": token.secret}

    def close(self) -> None:
        for started in self._started:
            started.end()
        self.db.close()
        self.app.close()
