"""What the janitor of an idle process asks of the store."""

from collections.abc import Iterator
from typing import Any

import pytest

from duly import Duly
from duly.runtime.janitor import Janitor


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
    monkeypatch.setattr(store, "_write", writes.append)
    janitor.one_pass()

    assert writes == []
