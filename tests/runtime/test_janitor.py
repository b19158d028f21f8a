"""What a janitor asks of the store, and when."""

from collections.abc import Iterator
from typing import Any

import pytest

from duly import Ctx, Duly, ManualClock
from duly.runtime.janitor import Janitor
from tests.jobs.support import Database, on_sqlite


@pytest.fixture
def app(url: str) -> Iterator[Duly]:
    app = Duly(url, auto_migrate=True)
    yield app
    app.close()


def test_a_pass_that_finds_nothing_begins_no_transaction(
    app: Duly, monkeypatch: pytest.MonkeyPatch
) -> None:
    store: Any = app.ready()
    janitor = Janitor(store, app.clock)
    while janitor.one_pass() == 0:
        pass

    writes: list[object] = []
    monkeypatch.setattr(store, "write", writes.append)
    janitor.one_pass()

    assert writes == []


@pytest.mark.spec("N38")
@on_sqlite
def test_hooks_that_are_stuck_are_looked_for_once_a_minute_and_then_to_the_end(url: str) -> None:
    clock = ManualClock()
    app, db = Duly(url, auto_migrate=True, clock=clock), Database(url)

    @app.action
    def done(ctx: Ctx) -> None: ...

    def held() -> int:
        return db.count("@jobs WHERE hold = 'batch'")

    app.run_many([done.bind()] * 150)
    get_stuck = "UPDATE @jobs SET hold = 'batch'"
    db.execute(get_stuck)
    janitor = Janitor(app.ready(), clock)
    janitor.one_pass()
    assert held() == 50
    janitor.one_pass()
    assert held() == 0

    db.execute(get_stuck)
    clock.advance(59)
    janitor.one_pass()
    assert held() == 150
    clock.advance(1)
    janitor.one_pass()
    assert held() == 50
    db.close()
    app.close()
