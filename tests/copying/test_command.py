"""`duly copy`, as it is typed and as the page about it says."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from duly import Duly, Tx
from duly.errors import StoreMoved
from tests.cli.processes import TOP
from tests.cli.terminal import Terminal

PAGE = TOP / "docs/how-to/outgrow-sqlite.md"


@pytest.fixture(scope="session")
def terminal() -> Iterator[Terminal]:
    terminal = Terminal()
    yield terminal
    terminal.close()


def make(url: str) -> Duly:
    app = Duly(url)

    @app.mutation
    def settle(tx: Tx, order: int) -> None: ...

    app.migrate()
    app.run_many(settle.bind(order) for order in range(30))
    return app


@pytest.fixture
def shop(sqlite_url: str) -> Iterator[Duly]:
    app = make(sqlite_url)
    yield app
    app.close()


@pytest.mark.spec("N17")
def test_the_command_says_what_it_does(terminal, shop, sqlite_url, postgres_url):
    password = re.search(r":(\w+)@", postgres_url)
    assert password is not None

    plan = terminal.run("copy", sqlite_url, postgres_url, "--dry-run")
    assert re.search(r"^jobs\s+30$", plan.out, re.M)
    assert re.search(r"30 rows from .*duly.db to test_\w+ on 127.0.0.1", plan.out)
    shop.run(shop.function("settle"), 30)

    # One more: who closed it.
    done = terminal.run("copy", sqlite_url, postgres_url, columns=100)
    assert "moved and verified 32 rows" in done.plain
    assert "100%" in done.plain
    again = terminal.run("copy", sqlite_url, postgres_url, "--json")
    assert again.json["already_done"]
    assert again.json["tables"]["jobs"] == 31
    other = f"{sqlite_url}.other"
    assert (
        "the copy would be refused"
        in terminal.run("copy", sqlite_url, other, "--dry-run", code=1).out
    )
    assert "was moved to" in terminal.run("copy", sqlite_url, other, code=1).err
    assert list(Path(sqlite_url.removeprefix("sqlite:///")).parent.glob("*.other*")) == []
    refused = terminal.run("copy", sqlite_url, postgres_url, "--abort", code=1)
    assert "this cannot be undone" in refused.err
    for ran in (plan, done, again, refused):
        assert password[1] not in ran.out + ran.err
    with pytest.raises(StoreMoved):
        shop.run(shop.function("settle"), 31)


def test_what_is_refused_changes_nothing(terminal, shop, sqlite_url, tmp_path):
    nowhere = terminal.run("copy", f"sqlite:///{tmp_path}/none.db", sqlite_url, code=1)
    assert "there is no database at" in nowhere.err
    assert not (tmp_path / "none.db").exists()
    same = terminal.run("copy", sqlite_url, sqlite_url, code=1)
    assert same.err == "duly: source and target are the same store\n"
    wrong = terminal.run("copy", sqlite_url, "mysql://shop", code=1)
    assert "is not a database URL" in wrong.err
    gone = terminal.run("copy", sqlite_url, "sqlite:///:memory:", code=1)
    assert "is lost when this command ends" in gone.err
    idle = terminal.run("copy", sqlite_url, f"sqlite:///{tmp_path}/new.db", "--abort")
    assert idle.out == "no copy was in progress\n"
    shop.run(shop.function("settle"), 30)


@pytest.mark.spec("N17")
def test_the_page_is_true(terminal, postgres_url, tmp_path):
    make(f"sqlite:///{tmp_path}/shop.db").close()
    text = PAGE.read_text(encoding="utf-8")
    look, move, give_up = (line.split()[1:] for line in re.findall(r"^duly copy .*$", text, re.M))
    here, there = "sqlite:///shop.db", "postgresql://shop@db/shop"
    for command in (look, give_up, move):
        assert command[1:3] == [here, there]
        terminal.run("copy", here, postgres_url, *command[3:], cwd=tmp_path)
    app = Duly(postgres_url)
    assert len(app.jobs(state="pending")) == 30
    app.close()
