"""Only their owner may read the files that duly makes, whatever the umask."""

import os
import stat
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from duly import Ctx, Duly, ManualClock
from duly.gateway import Gateway
from duly.index import SqliteScheduleIndex
from duly.runtime.copy_store import copy_store


@pytest.fixture(autouse=True)
def open_umask() -> Iterator[None]:
    before = os.umask(0)
    yield
    os.umask(before)


def modes(folder: Path) -> dict[str, str]:
    """Files, and folders with a slash, with their modes."""
    return {
        path.relative_to(folder).as_posix() + "/" * path.is_dir(): oct(
            stat.S_IMODE(path.stat().st_mode)
        )
        for path in folder.rglob("*")
    }


def check(folder: Path, *expected: str) -> None:
    found = modes(folder)
    assert set(expected) <= found.keys()
    for name, mode in found.items():
        assert mode == ("0o700" if name.endswith("/") else "0o600"), name


def test_a_database_under_work_and_its_locks(tmp_path):
    with closing(Duly(f"sqlite:///{tmp_path}/shop.db")) as app:
        app.migrate()

        @app.action
        def greet(ctx: Ctx) -> str:
            return "hello"

        with app:
            assert app.run(greet).result(timeout=60) == "hello"
            check(tmp_path, "shop.db", "shop.db-wal", "shop.db-shm", "shop.db-duly/")
            names = modes(tmp_path)
            locks = [name for name in names if name.startswith("shop.db-duly/")]
            assert {"shop.db-duly/next", "shop.db-duly/write"} < set(locks)
            assert len(locks) > 3, "the worker's proof of life too"


def test_a_gateways_crons(tmp_path):
    gateway = Gateway(tmp_path / "crons.db", {"probe": print}).open()
    check(tmp_path, "crons.db", "crons.db-wal", "crons.db-shm", "crons.db.lock")
    gateway.stop()


def test_a_schedule_index(tmp_path):
    index = SqliteScheduleIndex(str(tmp_path / "index.db"))
    check(tmp_path, "index.db")
    index.close()


def test_a_copy(tmp_path):
    clock = ManualClock()
    with (
        closing(Duly(f"sqlite:///{tmp_path}/old.db", clock=clock)) as old,
        closing(Duly(f"sqlite:///{tmp_path}/new.db", clock=clock)) as new,
    ):
        old.migrate()
        copy_store(old.store, new.store, clock)
        check(tmp_path, "old.db", "new.db")


def test_a_gateways_file_that_exists_keeps_its_mode(tmp_path):
    file = tmp_path / "crons.db"
    file.touch(mode=0o640)
    gateway = Gateway(file, {"probe": print}).open()
    assert modes(tmp_path)["crons.db"] == "0o640"
    gateway.stop()
