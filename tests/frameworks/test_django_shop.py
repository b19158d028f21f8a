"""examples/django_shop as a user runs it: each command a process, on both databases."""

from __future__ import annotations

import json
import re
import signal
import socket
import sys
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from urllib.error import HTTPError, URLError
from urllib.parse import urlencode
from urllib.request import urlopen

import pytest

from duly import Duly, Job, State
from tests.cli.processes import TOP, Process, wait_until
from tests.frameworks.django_processes import PROJECT, manage, run, run_well, shop_environment
from tests.jobs.support import on_sqlite


class Shop:
    """The shop's database, its server and its workers."""

    def __init__(self, url: str, folder: Path, stack: ExitStack) -> None:
        self.folder = folder
        self.sent = folder / "sent"
        self._stack = stack
        self.env = shop_environment(url, folder, SHOP_PAY_WITHIN="1")
        where = f"sqlite:///{folder}/shop.db" if url.startswith("sqlite") else url
        self.app = stack.enter_context(closing(Duly(where)))

    def prepare(self) -> None:
        for command in (["migrate"], ["duly", "migrate"], ["loaddata", "products"]):
            self.manage(*command)

    def manage(self, *arguments: str) -> str:
        # Not in the project's folder: manage.py is found by its path.
        return run_well(manage(*arguments), self.env, self.folder)

    def start(self, *arguments: str) -> Process:
        return self._start(manage(*arguments), self.folder)

    def _start(self, command: list[str], folder: Path) -> Process:
        process = Process(command, self.env, cwd=folder)
        self._stack.callback(process.close)
        return process

    def serve(self, *, asgi: bool = False) -> None:
        with closing(socket.create_server(("127.0.0.1", 0))) as free:
            port = free.getsockname()[1]
        if asgi:
            command = [sys.executable, "-m", "uvicorn", "project.asgi:application"]
            server = self._start([*command, f"--port={port}"], PROJECT)
        else:
            server = self.start("runserver", "--noreload", f"127.0.0.1:{port}")
        self.address = f"http://127.0.0.1:{port}"
        wait_until(self.answers, f"the server answers\n{server.errors()}")

    def answers(self) -> bool:
        try:
            return self.post("/", {}) == 404
        except URLError:
            return False

    def post(self, path: str, fields: dict[str, str]) -> int:
        try:
            with urlopen(self.address + path, urlencode(fields).encode(), timeout=20) as answer:
                self.answer = json.load(answer)
                return int(answer.status)
        except HTTPError as error:
            with error:
                return error.code

    def order(self, product: str) -> int:
        return self.post("/orders", {"product": product, "email": "a@example.org"})

    def jobs(self, function: str) -> list[Job[None]]:
        return self.app.jobs(function=function)

    def scalar(self, query: str) -> object:
        with self.app.transaction() as tx:
            return tx.execute(query).scalar()

    def mails(self) -> list[str]:
        # Django gives two of the same second one file, if it likes.
        texts = [file.read_text() for file in self.sent.iterdir()]
        return [mail for text in texts for mail in text.split("-" * 79) if mail.strip()]


@pytest.fixture
def new_shop(url: str, tmp_path: Path) -> Iterator[Shop]:
    """On an empty database."""
    with ExitStack() as stack:
        yield Shop(url, tmp_path, stack)


@pytest.fixture
def shop(shop_url: str, tmp_path: Path) -> Iterator[Shop]:
    """With every table made."""
    with ExitStack() as stack:
        yield Shop(shop_url, tmp_path, stack)


@pytest.mark.long("postgres")
def test_orders_receipts_and_their_end(new_shop: Shop):
    shop = new_shop
    shop.prepare()
    # Where mails are stored there is a file: the first attempt fails.
    shop.sent.touch()
    shop.serve()
    worker = shop.start("duly", "--log-level", "info", "worker", "--processes", "2")

    assert shop.order("tea") == 201
    (receipt,) = shop.jobs("send_receipt")
    wait_until(lambda: receipt.attempt == 2, f"it is tried again\n{worker.errors()}")
    shop.sent.unlink()
    assert receipt.result(20) is None
    assert [mail.count("You ordered: tea, 4.50 EUR.") for mail in shop.mails()] == [1]

    (end,) = shop.jobs("expire_order")
    assert end.result(20) is True
    assert shop.scalar("SELECT state FROM shop_order") == "expired"
    assert shop.scalar("SELECT stock FROM shop_product WHERE name = 'tea'") == 100

    assert shop.order("last cup") == 201
    paid = shop.answer["order"]
    assert shop.post(f"/orders/{paid}/pay", {}) == 200
    assert shop.order("last cup") == 409
    wait_until(lambda: not shop.app.jobs(state=State.PENDING), "every order has ended")
    assert len(shop.jobs("send_receipt")) == len(shop.jobs("expire_order")) == 2
    assert shop.scalar(f"SELECT state FROM shop_order WHERE id = {paid}") == "paid"
    assert shop.scalar("SELECT count(*) FROM shop_order") == 2

    worker.signal(signal.SIGTERM)
    assert worker.wait() == 0
    assert len(shop.mails()) == 2


@on_sqlite
@pytest.mark.spec("N59")
def test_an_asgi_server_serves_the_dashboard_beside_the_shop(shop: Shop):
    shop.serve(asgi=True)
    with urlopen(f"{shop.address}/ops/jobs", timeout=20) as answer:
        assert answer.url == f"{shop.address}/admin/login/?next=/ops/jobs"
        assert b"csrfmiddlewaretoken" in answer.read()
    with urlopen(f"{shop.address}/ops/healthz", timeout=20) as answer:
        assert json.load(answer) == {"ok": True}
    assert shop.order("tea") == 201


@pytest.mark.spec("N88")
def test_its_own_tests_pass_also_on_copies_of_the_database(url: str, tmp_path: Path):
    env = shop_environment(url, tmp_path)

    for parallel in ("1", "2"):
        ended = run(manage("test", "shop", "--parallel", parallel), env, PROJECT)
        assert ended.returncode == 0, ended.stderr
        assert "Ran 6 tests" in ended.stderr


@on_sqlite
def test_options_of_django_and_of_duly_go_to_their_owners(shop: Shop, tmp_path: Path):
    more = "--settings=project.settings", f"--pythonpath={PROJECT}"

    assert "nothing to do" in shop.manage("duly", "migrate", *more)
    plan = shop.manage("duly", "schedules", "plan", *more)
    assert plan.splitlines()[:2] == ["+ report", "+ forget expired orders"]
    assert "Usage: manage.py duly worker" in shop.manage("duly", "worker", "--help")
    unknown = run(manage("duly", "--nonsense"), shop.env, tmp_path)
    assert (unknown.returncode, "No such option" in unknown.stderr) == (2, True)


LOGGING_SETTINGS = """
from project.settings import *

FILE = {"class": "logging.FileHandler", "filename": "own.log"}
LOGGING = {
    "version": 1,
    "handlers": {"file": FILE},
    "root": {"handlers": ["file"]},
    "loggers": {"duly": {"level": "INFO"}},
}
"""


@on_sqlite
def test_the_processes_of_a_worker_have_the_settings_that_it_was_given(shop: Shop):
    (shop.folder / "more").mkdir()
    (shop.folder / "more" / "logs.py").write_text(LOGGING_SETTINGS)

    worker = shop.start("duly", "worker", "--settings=logs", f"--pythonpath={shop.folder / 'more'}")
    wait_until(shop.app.workers, f"the worker works\n{worker.errors()}")
    worker.signal(signal.SIGTERM)

    assert worker.wait() == 0
    assert "stops claiming jobs" in (shop.folder / "own.log").read_text()


def test_the_documentation_shows_this_project():
    page = (TOP / "docs/how-to/django.md").read_text(encoding="utf-8")
    shown = re.findall(r"^```py\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    code = [file.read_text(encoding="utf-8") for file in PROJECT.rglob("*.py")]

    assert len(shown) >= 7
    assert [block for block in shown if not any(block in text for text in code)] == []
