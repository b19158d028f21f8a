"""duly.contrib.django: Django's database is duly's, and neither gets in the other's way."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from datetime import timedelta
from typing import Any

import psycopg
import pytest

from duly import AsyncCtx, AsyncTx, Ctx, State, Tx
from duly.errors import InvalidOption, JobFailed, TransactionEnded, without_password
from tests.frameworks.django_processes import in_django
from tests.jobs.support import Undo, on_postgres, on_sqlite, undone

PATIENCE = 60.0


def vendor() -> str:
    from django.db import connection

    return str(connection.vendor)


# The caller's transaction ------------------------------------------------------------------------


@pytest.mark.spec("N5")
@in_django
def test_what_is_scheduled_in_an_atomic_block_commits_or_vanishes_with_it():
    from django.db import connection, transaction
    from shop.models import Product
    from shop.tasks import app, expire_order

    with transaction.atomic():
        kept = app.on(connection).run_after(60, expire_order, 1)
        Product.objects.filter(pk=1).update(stock=7)
    with undone(), transaction.atomic():
        app.on(connection).run_after(60, expire_order, 2)
        Product.objects.filter(pk=1).update(stock=8)
        raise Undo

    assert [job.id for job in app.jobs()] == [kept.id]
    assert Product.objects.get(pk=1).stock == 7


# The ORM in a mutation ---------------------------------------------------------------------------


@in_django
def test_what_the_orm_writes_commits_with_the_end_of_the_job():
    from django.db import connection
    from shop.models import Product

    from duly.contrib.django import app, atomic

    before = Product.objects.count()

    @app.mutation
    def add(tx: Tx, name: str, fails: bool) -> int:
        with atomic(tx):
            product = Product.objects.create(name=name, price="1.00", stock=1)
            tx.run_after(3600, add, "later", True)
        assert tx.execute("SELECT count(*) FROM shop_product").scalar() == before + 1
        if fails:
            raise Undo
        return int(product.pk)

    connection.close()
    with app:
        failed = app.run(add, "a", True)
        with pytest.raises(JobFailed, match="Undo"):
            failed.result(PATIENCE)
        assert Product.objects.count() == before
        done = app.run(add, "b", False)
        assert Product.objects.get(pk=done.result(PATIENCE)).name == "b"
    assert len(app.jobs(state=State.PENDING)) == 1


@in_django
def test_a_block_that_raises_is_undone_and_the_mutation_may_go_on():
    from shop.models import Product

    from duly.contrib.django import app, atomic

    @app.mutation
    def change(tx: Tx) -> list[int]:
        with undone(), atomic(tx):
            Product.objects.filter(pk=1).update(stock=1)
            raise Undo
        with atomic(tx):
            Product.objects.filter(pk=2).update(stock=2)
        with atomic(tx):
            return list(Product.objects.order_by("pk").values_list("stock", flat=True))

    with app:
        assert app.run(change).result(PATIENCE) == [100, 2]
    assert Product.objects.get(pk=1).stock == 100


@in_django
def test_djangos_blocks_inside_are_savepoints():
    from django.db import transaction
    from shop.models import Product

    from duly.contrib.django import app, atomic

    with app.transaction() as tx, atomic(tx):
        Product.objects.filter(pk=1).update(stock=1)
        with undone(), transaction.atomic():
            Product.objects.filter(pk=1).update(stock=2)
            raise Undo
        with transaction.atomic():
            Product.objects.filter(pk=2).update(stock=3)
        with pytest.raises(RuntimeError, match="durable"), transaction.atomic(durable=True):
            pass

    assert list(Product.objects.order_by("pk").values_list("stock", flat=True)) == [1, 3]


@in_django
def test_django_cannot_end_the_transaction():
    from django.db import close_old_connections, connection, connections, transaction
    from shop.models import Product

    from duly.contrib.django import app, atomic

    with undone(), app.transaction() as tx:
        with atomic(tx):
            Product.objects.filter(pk=1).update(stock=1)
            for end in (connection.commit, connection.rollback, transaction.commit):
                with pytest.raises(transaction.TransactionManagementError, match="forbidden"):
                    end()
            with pytest.raises(transaction.TransactionManagementError, match="forbidden"):
                transaction.set_autocommit(True)
            connection.close()
            close_old_connections()
            connections.close_all()
            assert Product.objects.get(pk=1).stock == 1
        raise Undo

    assert Product.objects.get(pk=1).stock == 100


@on_sqlite
@in_django
def test_a_rollback_that_the_orm_asks_for_fails_the_block():
    from django.db import transaction
    from shop.models import Product

    from duly.contrib.django import app, atomic

    with app.transaction() as tx:
        refused = pytest.raises(transaction.TransactionManagementError, match="rollback")
        with refused, atomic(tx):
            Product.objects.filter(pk=1).update(stock=1)
            with undone(), transaction.atomic(savepoint=False):
                raise Undo
        assert tx.execute("SELECT stock FROM shop_product WHERE id = 1").scalar() == 100


@on_sqlite
@in_django
def test_on_commit_is_refused_since_nobody_would_call_it():
    from django.db import transaction

    from duly.contrib.django import app, atomic

    with app.transaction() as tx, pytest.raises(InvalidOption, match=r"tx\.run"), atomic(tx):
        transaction.on_commit(lambda: None)


@in_django
def test_djangos_own_connection_is_back_after_the_block():
    from django.db import connection, connections
    from shop.models import Product

    from duly.contrib.django import app, atomic

    own = connections["default"]
    with app.transaction() as tx:
        with atomic(tx):
            lent = connections["default"]
            rest = Product.objects.iterator(chunk_size=1)
            next(rest)
        assert connections["default"] is own
        with pytest.raises(TransactionEnded, match="has ended"):
            lent.cursor()
    assert connection.in_atomic_block is False
    assert lent is not own
    assert Product.objects.count() == 2


@in_django
def test_foreign_keys_are_enforced():
    from shop.models import Order

    from duly.contrib.django import app, atomic

    @app.mutation
    def order_nothing(tx: Tx) -> None:
        with atomic(tx):
            Order.objects.create(product_id=999, email="a@example.org")

    with app:
        job = app.run(order_nothing)
        with pytest.raises(JobFailed, match=r"IntegrityError|ForeignKeyViolation"):
            job.result(PATIENCE)
    assert Order.objects.count() == 0


@in_django
def test_values_are_what_djangos_own_connection_gives():
    from django.db import connection
    from django.db.models import Max
    from django.db.models.functions import MD5, ExtractHour, TruncDay
    from shop.models import Order

    from duly.contrib.django import app, atomic

    if vendor() == "postgresql":
        # Django tells its own connections another zone than the server's.
        with connection.cursor() as cursor:
            name = connection.settings_dict["NAME"]
            cursor.execute(f"ALTER DATABASE {name} SET timezone TO 'Asia/Tokyo'")
        connection.close()
        app.close()
    order = Order.objects.create(product_id=1, email="a@example.org")
    Order.objects.filter(pk=order.pk).update(placed_at=order.placed_at - timedelta(days=3))

    def read() -> list[Any]:
        orders = Order.objects.filter(email__regex=r"^a@", product__price__gt="4.4")
        return [
            *orders.values_list(
                "placed_at",
                "product__price",
                TruncDay("placed_at"),
                ExtractHour("placed_at"),
                MD5("email"),
            ),
            orders.aggregate(Max("placed_at")),
            orders.get().placed_at.utcoffset(),
        ]

    with app.transaction() as tx:
        zone = "SELECT current_setting('TimeZone')"
        before = tx.execute(zone).scalar() if vendor() == "postgresql" else None
        with atomic(tx):
            inside = read()
    assert inside == read()
    if vendor() == "postgresql":
        with app.transaction() as tx:
            assert (before, tx.execute(zone).scalar()) == ("Asia/Tokyo", "Asia/Tokyo")


@on_postgres
@in_django
def test_types_that_the_project_registers_are_known():
    from django.db import connection
    from django.db.backends.signals import connection_created
    from psycopg.types.numeric import FloatLoader

    from duly.contrib.django import app, atomic

    def register(connection: Any, **_: object) -> None:
        connection.connection.adapters.register_loader("numeric", FloatLoader)

    def read() -> list[Any]:
        with connection.cursor() as cursor:
            cursor.execute("SELECT 1.5::numeric, '{}'::jsonb")
            return list(cursor.fetchone())

    connection.close()
    connection_created.connect(register)
    with app.transaction() as tx:
        with atomic(tx):
            assert [type(value) for value in read()] == [float, str]
        plain = tx.execute("SELECT 1.5::numeric, '{}'::jsonb").one()
    assert [type(value).__name__ for value in plain] == ["Decimal", "dict"]


@in_django
def test_a_conflict_that_django_reports_is_tried_again():
    from django.db import connection
    from shop.models import Product

    from duly.contrib.django import app, atomic

    attempts: list[int] = []

    @app.mutation
    def contended(tx: Tx) -> None:
        attempts.append(tx.attempt)
        with atomic(tx):
            Product.objects.filter(pk=1).update(stock=len(attempts))
            if len(attempts) == 1:
                meet_a_conflict(connection)

    with app:
        app.run(contended).result(PATIENCE)
    assert attempts == [1, 1]
    assert Product.objects.get(pk=1).stock == 2


def meet_a_conflict(connection: Any) -> None:
    if connection.vendor == "postgresql":
        with connection.cursor() as cursor:
            cursor.execute("DO $$ BEGIN RAISE EXCEPTION 'x' USING ERRCODE = '40001'; END $$")
    with (
        connection.wrap_database_errors,
        closing(sqlite3.connect("other.db", isolation_level=None)) as holder,
        closing(sqlite3.connect("other.db", isolation_level=None, timeout=0)) as waiter,
    ):
        holder.execute("BEGIN IMMEDIATE")
        waiter.execute("BEGIN IMMEDIATE")


@on_sqlite
@in_django
def test_a_tx_of_another_app_is_refused():
    from duly import Duly
    from duly.contrib.django import atomic

    other = Duly("sqlite:///:memory:")
    with (
        other.transaction() as tx,
        pytest.raises(InvalidOption, match=r"duly\.contrib\.django"),
        atomic(tx),
    ):
        pass
    other.close()


# Connections of the ORM --------------------------------------------------------------------------


@in_django
def test_no_function_leaves_a_connection_of_djangos_open():
    from asgiref.sync import sync_to_async
    from django.db import connections
    from shop.models import Product

    from duly.contrib.django import app, atomic

    used: list[Any] = []

    def read() -> int:
        count = int(Product.objects.count())
        used.append(connections["default"])
        assert used[-1].connection is not None
        return count

    @app.action
    def sync(ctx: Ctx) -> int:
        return read()

    @app.action
    async def awaited(ctx: AsyncCtx) -> int:
        count: int = await sync_to_async(read)()
        return count

    @app.mutation
    def changing(tx: Tx) -> int:
        return read()

    @app.mutation
    async def changing_async(tx: AsyncTx) -> int:
        with pytest.raises(InvalidOption, match="needs a sync mutation"), atomic(tx):  # type: ignore[arg-type]
            pass
        count: int = await sync_to_async(read)()
        return count

    with app:
        calls = [sync, awaited, changing, changing_async]
        assert [app.run(function).result(PATIENCE) for function in calls] == [2, 2, 2, 2]
    assert [connection.connection for connection in used] == [None, None, None, None]


@on_sqlite
@in_django
def test_a_connection_in_a_transaction_is_left_open():
    from django.db import connection, transaction
    from shop.models import Product

    from duly.contrib.django.project import close_old_connections

    with transaction.atomic():
        Product.objects.filter(pk=1).update(stock=1)
        close_old_connections()
        assert connection.connection is not None
    assert Product.objects.get(pk=1).stock == 1


# The project -------------------------------------------------------------------------------------


@on_sqlite
@in_django
def test_a_worker_finds_the_tasks_of_every_installed_app():
    import sys

    from duly.contrib.django import app

    assert "shop.tasks" not in sys.modules
    assert {"send_receipt", "expire_order"} <= app.core.runnables().keys()


@in_django
def test_django_neither_sees_nor_empties_dulys_tables():
    from io import StringIO

    from django.core.management import call_command
    from shop.models import Product
    from shop.tasks import app, expire_order

    job = app.run_after(60, expire_order, 1)
    call_command("makemigrations", "--check", verbosity=0)
    call_command("flush", "--no-input", verbosity=0)
    models = StringIO()
    call_command("inspectdb", stdout=models)

    assert Product.objects.count() == 0
    assert app.job(job.id).state == State.PENDING
    # On SQLite there is one place for all tables; PostgreSQL has a schema for duly's.
    assert ("duly_jobs" in models.getvalue()) == (vendor() == "sqlite")
    assert "shop_product" in models.getvalue()


@on_sqlite
@in_django
def test_call_command_returns_or_raises():
    from django.core.management import CommandError, call_command

    call_command("duly", "migrate", "--check")
    with pytest.raises(CommandError):
        call_command("duly", "no-such-command")


@in_django
def test_the_app_follows_the_database_when_a_test_runner_renames_it():
    from django.db import connection
    from shop.tasks import app, expire_order

    job = app.run_after(60, expire_order, 1)
    # PostgreSQL copies only what nobody uses.
    app.close()
    settings = connection.creation.get_test_db_clone_settings("1")
    connection.creation.clone_test_db("1", verbosity=0)
    own = dict(connection.settings_dict)
    connection.settings_dict.update(settings)
    connection.close()
    app.migrate()
    app.run_after(60, expire_order, 2)

    connection.settings_dict.update(own)
    connection.close()
    assert [found.id for found in app.jobs()] == [job.id]
    connection.creation.destroy_test_db(suffix="1", verbosity=0)


@on_sqlite
@in_django
def test_wrong_settings_say_what_is_wrong():
    from django.core.exceptions import ImproperlyConfigured
    from django.db import connections
    from django.test import override_settings

    from duly.contrib.django.project import make_app

    with override_settings(DULY={"SCHEME": "x"}), pytest.raises(ImproperlyConfigured) as unknown:
        make_app()
    assert "unknown SCHEME; use some of APPLY, AUTO_MIGRATE, CAPTURE_LOGS, CLOCK, " in str(unknown)
    with (
        override_settings(DULY={"DATABASE": "jobs"}),
        pytest.raises(ImproperlyConfigured, match="no 'jobs'"),
    ):
        make_app()
    for engine, name, why in [
        ("sqlite3", ":memory:", "in memory"),
        ("sqlite3", "file:memorydb_default?mode=memory&cache=shared", "in memory"),
        ("sqlite3", "file:shop.db?mode=rw", "URI"),
        ("dummy", "x", "SQLite and PostgreSQL"),
    ]:
        changed = {"ENGINE": f"django.db.backends.{engine}", "NAME": name}
        connections.settings["default"].update(changed)
        del connections["default"]
        with pytest.raises(InvalidOption, match=why):
            make_app().ready()


@on_sqlite
@in_django
def test_the_settings_are_the_options_of_the_app():
    from django.test import override_settings

    from duly.contrib.django.project import make_app

    given = {"NAME": "shop", "IMPORTS": ["shop.models"], "CONCURRENCY": 7, "THREADS": 3}
    with override_settings(DULY=given):
        made = make_app()
    assert made.name == "shop"
    assert (made.core.settings.concurrency, made.core.settings.threads) == (7, 3)
    assert made.core.runnables() is not None


@on_sqlite
@in_django
@pytest.mark.spec("N65")
def test_the_worker_lifespan_is_a_function_or_its_path():
    from contextlib import closing

    from django.test import override_settings

    from duly.contrib.django.project import make_app

    for lifespan in (closing, "contextlib.closing"):
        with override_settings(DULY={"WORKER_LIFESPAN": lifespan}):
            made = make_app()
        with made.core.lifespan.entered(lambda _: None):
            assert made.core.lifespan.state is made


@on_sqlite
@in_django
def test_a_mistake_in_the_settings_is_one_line():
    from contextlib import redirect_stderr
    from io import StringIO

    from django.core.management import CommandError, call_command
    from django.test import override_settings

    import duly.contrib.django
    from duly.contrib.django.management.commands.duly import Command

    for given, line in (
        ({"THREADS": "5"}, "DULY: threads: must be at least 1, not '5'"),
        ({"THREDS": 5}, "DULY: unknown THREDS; use some of APPLY, AUTO_MIGRATE, "),
        ({"DATABASE": "x"}, "DULY: DATABASES has no 'x'"),
    ):
        vars(duly.contrib.django).pop("app", None)
        said = StringIO()
        with override_settings(DULY=given):
            with redirect_stderr(said), pytest.raises(SystemExit) as ended:
                Command().run_from_argv(["manage.py", "duly", "doctor"])
            with pytest.raises(CommandError) as refused:
                call_command("duly", "doctor")
        assert ended.value.code == 2
        assert said.getvalue() == f"duly: {refused.value}\n"
        assert str(refused.value).startswith(line)


def test_a_postgresql_database_becomes_a_url(postgres_url: str):
    given = psycopg.conninfo.conninfo_to_dict(postgres_url)
    own = {"application_name": "a shop", "assume_role": "pg_monitor"}
    url = url_of(
        NAME=given["dbname"],
        USER=given["user"],
        PASSWORD=given["password"],
        HOST=given["host"],
        PORT=given["port"],
        OPTIONS={**own, "options": "-c geqo=off", "isolation_level": 4, "pool": True},
    )

    with psycopg.connect(url) as connection:
        row = connection.execute(
            "SELECT current_user, current_setting('application_name'), current_setting('geqo')"
        ).fetchone()
    assert row == ("pg_monitor", "a shop", "off")


def test_every_character_of_a_setting_arrives():
    odd = "a b@/:?&%\\é"
    settings = {"NAME": odd, "USER": odd, "PASSWORD": odd, "HOST": "/run/a b", "PORT": 5433}

    url = url_of(**settings)

    names = {"NAME": "dbname", "USER": "user", "PASSWORD": "password", "HOST": "host"}
    read = psycopg.conninfo.conninfo_to_dict(url)
    assert {setting: read[name] for setting, name in names.items()} | {"PORT": 5433} == settings
    assert read["port"] == "5433"


def test_the_password_of_a_url_stands_where_it_is_hidden():
    assert "secret" not in without_password(url_of(USER="me", PASSWORD="secret"))


def url_of(**settings: object) -> str:
    from duly.contrib.django.database import postgres_url

    empty = dict.fromkeys(["NAME", "USER", "PASSWORD", "HOST", "PORT"], "")
    return postgres_url({**empty, "OPTIONS": {}, **settings})
