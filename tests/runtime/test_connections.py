"""Warnings about threads for which there are too few database connections."""

import logging
import sys
from types import ModuleType, SimpleNamespace

import pytest
import sqlalchemy as sa

from duly import Duly
from duly.observe.connections import (
    ClientPool,
    client_pools,
    pool_problems,
    server_problem,
    warn_about_server,
)
from duly.store.base import DatabaseInfo

SERVER = DatabaseInfo(
    "PostgreSQL", "18", connections=85, max_connections=100, reserved_connections=3
)


def load(lazy: object) -> type:
    raise AssertionError("it was loaded")


Lazy = type("Lazy", (), {"__class__": property(load)})
"""As Django's settings: an object that is there, and loads what it is when it is asked."""


@pytest.mark.spec("N49")
def test_a_server_without_enough_free_connections_is_told_in_numbers() -> None:
    assert server_problem([10] * 4, SERVER) == (
        "10 threads × 4 processes may open 40 connections; the server has 12 of 100 left"
    )
    assert server_problem([10, 5], SERVER) == (
        "15 threads of 2 processes may open 15 connections; the server has 12 of 100 left"
    )
    assert server_problem([12], SERVER) is None
    assert server_problem([13], SERVER) == (
        "13 threads × 1 process may open 13 connections; the server has 12 of 100 left"
    )
    assert server_problem([100], DatabaseInfo("SQLite", "3.51.3")) is None


@pytest.mark.spec("N49")
def test_an_engine_with_fewer_connections_than_threads_is_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    module = ModuleType("shop_db")
    engine = sa.create_engine("sqlite:///shop.db", pool_size=2, max_overflow=3)
    unlimited = sa.create_engine("sqlite:///shop.db", pool_size=2, max_overflow=-1)
    unpooled = sa.create_engine("sqlite:///shop.db", poolclass=sa.pool.NullPool)
    vars(module).update(
        lazy=Lazy(), engine=engine, same=engine, unlimited=unlimited, unpooled=unpooled
    )
    monkeypatch.setitem(sys.modules, "shop_db", module)

    pools = [pool for pool in client_pools() if pool.name.startswith("shop_db.")]
    settings = "pool_size 2 + max_overflow 3"
    assert pools == [ClientPool("shop_db.same", 5, settings, "pool_timeout")]
    assert pool_problems(5, pools) == []
    [problem] = pool_problems(10, pools)
    assert "10 threads share the 5 connections of shop_db.same" in problem
    assert "pool_size 2 + max_overflow 3" in problem


@pytest.mark.spec("N49")
def test_a_pool_of_django_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[object] = [{"max_size": 9}, {"min_size": 2}, {"min_size": 2, "max_size": None}]
    given += [True, {}, False, None]
    databases = {f"db{number}": {"OPTIONS": {"pool": pool}} for number, pool in enumerate(given)}
    conf = ModuleType("django.conf")
    vars(conf)["settings"] = SimpleNamespace(configured=True, DATABASES={"one": {}, **databases})
    monkeypatch.setitem(sys.modules, "django.conf", conf)

    pools = [pool for pool in client_pools() if pool.name.startswith("DATABASES")]
    assert [(pool.name[-5:-2], pool.connections) for pool in pools] == [
        ("db0", 9),
        ("db1", 2),
        ("db2", 2),
        ("db3", 4),
    ]
    [problem] = pool_problems(9, pools[2:3])
    assert "9 threads share the 2 connections of DATABASES['db2'] (max_size 2)" in problem


@pytest.mark.spec("N49")
def test_a_worker_that_starts_warns_of_its_engines(
    url: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    module = ModuleType("shop_db")
    vars(module)["engine"] = sa.create_engine("sqlite:///shop.db", pool_size=1, max_overflow=0)
    monkeypatch.setitem(sys.modules, "shop_db", module)
    app = Duly(url, threads=4)
    app.migrate()
    with caplog.at_level(logging.WARNING), app:
        pass
    app.close()
    assert "4 threads share the only connection of shop_db.engine" in caplog.text


@pytest.mark.postgres
@pytest.mark.parametrize("url", ["postgres"], indirect=True)
def test_a_real_server_is_compared(url: str, caplog: pytest.LogCaptureFixture) -> None:
    app = Duly(url)
    app.migrate()
    warn_about_server(app.core, 1, 1)
    assert caplog.text == ""
    warn_about_server(app.core, 100, 50)
    assert "100 threads × 50 processes may open 5000 connections; the server has" in caplog.text
    app.close()
