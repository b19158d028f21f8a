"""Two applications on one database: each runs its own functions, and calls those of the other."""

import os
import sys
from collections.abc import Iterator

import pytest

from duly import Ctx, Duly, State
from tests.cli.processes import Process, environment
from tests.jobs.support import PATIENCE, wait_until


@pytest.fixture
def shop(url: str) -> Iterator[Duly]:
    app = Duly(url, name="shop")
    app.migrate()

    @app.action
    def sell(ctx: Ctx, item: str) -> str:
        return f"shop {os.getpid()} sold {item}"

    yield app
    app.close()


@pytest.fixture
def mail(shop: Duly, url: str) -> Iterator[Duly]:
    app = Duly(url, name="mail")

    @app.action
    def send(ctx: Ctx, to: str) -> str:
        return f"mail {os.getpid()} to {to}"

    yield app
    app.close()


def test_in_one_process(shop: Duly, mail: Duly):
    @mail.declare(kind="action")
    def sell(item: str) -> str:
        raise NotImplementedError

    with mail:
        early = mail.run(sell, "a lamp")
        with shop:
            assert {worker.app for worker in shop.workers()} == {"mail", "shop"}
            assert early.result(timeout=PATIENCE) == f"shop {os.getpid()} sold a lamp"
            sent = [shop.run(shop.function("send"), to=f"{n}@example.org") for n in range(10)]
            sold = [mail.run(mail.function("sell"), item=f"lamp {n}") for n in range(10)]
            for n in range(10):
                assert sent[n].result(timeout=PATIENCE) == f"mail {os.getpid()} to {n}@example.org"
                assert sold[n].result(timeout=PATIENCE) == f"shop {os.getpid()} sold lamp {n}"

        assert [worker.app for worker in mail.workers()] == ["mail"]
        unsold = mail.run(sell, "another lamp")
        last = shop.run(shop.function("send"), to="last@example.org")
        assert last.result(timeout=PATIENCE) == f"mail {os.getpid()} to last@example.org"
        assert unsold.state == State.PENDING
        shop.close()
        assert mail.run(mail.function("send"), "after@example.org").result(timeout=PATIENCE)


MAIL = """
import os, sys
from duly import Ctx, Duly

app = Duly(sys.argv[1], name="mail")


@app.declare
def sell(item: str) -> str: ...


@app.action
def send(ctx: Ctx, to: str) -> str:
    return ctx.run(sell, "a stamp").result(timeout=60)


@app.action
def where(ctx: Ctx) -> int:
    return os.getpid()


with app:
    sys.stdin.readline()
"""


def names(app: Duly) -> set[str]:
    """What the workers of this database have published."""
    return {function.name for function in app.functions.published()}


def test_in_two_processes(shop: Duly, url: str):
    mail = Process([sys.executable, "-c", MAIL, url], environment())
    try:
        wait_until(lambda: "where" in names(shop), "the other process works")
        with shop:
            assert {worker.app for worker in shop.workers()} == {"mail", "shop"}
            sent = shop.run(shop.function("send"), to="ada@example.org")
            assert sent.result(timeout=PATIENCE) == f"shop {os.getpid()} sold a stamp"
            asked = [shop.run(shop.function("where")) for _ in range(5)]
            assert {job.result(timeout=PATIENCE) for job in asked} == {mail.pid}
        assert shop.run(shop.function("where")).result(timeout=PATIENCE) == mail.pid
    finally:
        mail.close()
