"""duly.contrib.alembic: autogenerate neither sees nor drops what is duly's."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import alembic.command
import pytest
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.migration import MigrationContext
from sqlalchemy import Column, Engine, Index, Integer, MetaData, Table, create_engine, inspect

from duly import Duly
from duly.contrib.alembic import include_name, include_object

ENV = """
from alembic import context
from sqlalchemy import create_engine
from duly.contrib.alembic import include_name, include_object
from tests.frameworks.test_alembic import shop

engine = create_engine(context.config.get_main_option("sqlalchemy.url"))
with engine.connect() as connection:
    context.configure(
        connection=connection,
        target_metadata=shop(),
        include_schemas=True,
        include_object=include_object,
        include_name=include_name,
    )
    with context.begin_transaction():
        context.run_migrations()
engine.dispose()
"""

TEMPLATE = """
revision = ${repr(up_revision)}
down_revision = ${repr(down_revision)}

from alembic import op
import sqlalchemy as sa

def upgrade():
    ${upgrades if upgrades else "pass"}

def downgrade():
    ${downgrades if downgrades else "pass"}
"""


def shop() -> MetaData:
    """A table of the user's, and one that looks like duly's."""
    metadata = MetaData()
    Table("orders", metadata, Column("id", Integer, primary_key=True))
    noted = Table("duly_noted", metadata, Column("id", Integer, primary_key=True))
    Index("duly_index", noted.c.id)
    return metadata


@pytest.fixture
def engine(url: str) -> Iterator[Engine]:
    app = Duly(url)
    app.migrate()
    app.close()
    engine = create_engine(url.replace("postgresql://", "postgresql+psycopg://"))
    yield engine
    engine.dispose()


def differences(engine: Engine, metadata: MetaData, **options: Any) -> set[tuple[str, str]]:
    """What autogenerate would do, and to which table or index."""
    with engine.connect() as connection:
        context = MigrationContext.configure(connection, opts={"include_schemas": True, **options})
        found = compare_metadata(context, metadata)
    return {(verb, str(thing.name)) for verb, thing, *_ in found}


def removed_without(engine: Engine) -> set[str]:
    return {name for verb, name in differences(engine, shop()) if verb == "remove_table"}


NEW = {("add_table", "orders"), ("add_table", "duly_noted"), ("add_index", "duly_index")}


def test_without_it_autogenerate_would_drop_dulys_tables(engine: Engine):
    prefix = "duly_" if engine.dialect.name == "sqlite" else ""

    assert {f"{prefix}jobs", f"{prefix}history", f"{prefix}workers"} <= removed_without(engine)


def test_nothing_of_dulys_is_compared(engine: Engine):
    metadata = shop()

    assert differences(engine, metadata, include_object=include_object) == NEW
    both = {"include_object": include_object, "include_name": include_name}
    assert differences(engine, metadata, **both) == NEW
    metadata.create_all(engine)
    assert differences(engine, metadata, **both) == set()


def test_tables_of_the_users_own_are_still_dropped(engine: Engine):
    shop().create_all(engine)

    found = differences(engine, MetaData(), include_object=include_object)

    # What begins as duly's tables do on SQLite, and is not declared, is left alone.
    assert ("remove_table", "orders") in found
    assert not any(name == "duly_jobs" for _, name in found)


def test_it_goes_together_with_conditions_of_the_users_own(engine: Engine):
    def mine(*args: Any) -> bool:
        return include_object(*args) and args[1] != "orders"

    assert differences(engine, shop(), include_object=mine) == NEW - {("add_table", "orders")}


@pytest.mark.parametrize("hook", [include_object, include_name])
def test_the_schema_may_have_another_name(postgres_url: str, hook: Callable[..., bool]):
    app = Duly(postgres_url, schema="jobs")
    app.migrate()
    app.close()
    engine = create_engine(postgres_url.replace("postgresql://", "postgresql+psycopg://"))

    option = {hook.__name__: functools.partial(hook, schema="jobs")}

    assert differences(engine, shop(), **option) == NEW
    engine.dispose()


def test_revisions_are_generated_and_applied_around_dulys_tables(engine: Engine, tmp_path: Path):
    scripts = tmp_path / "scripts"
    (scripts / "versions").mkdir(parents=True)
    (scripts / "env.py").write_text(ENV)
    (scripts / "script.py.mako").write_text(TEMPLATE)
    config = Config()
    config.set_main_option("script_location", str(scripts))
    config.set_main_option("path_separator", "os")
    address = engine.url.render_as_string(hide_password=False)
    config.set_main_option("sqlalchemy.url", address.replace("%", "%%"))

    alembic.command.revision(config, autogenerate=True)
    alembic.command.upgrade(config, "head")
    alembic.command.check(config)

    (revision,) = (scripts / "versions").glob("*.py")
    text = revision.read_text()
    assert "create_table('orders'" in text
    assert "drop_table('jobs'" not in text
    assert "duly_jobs" not in text
    assert {"orders", "duly_noted", "alembic_version"} <= set(inspect(engine).get_table_names())
    app = Duly(str(address).replace("postgresql+psycopg://", "postgresql://"))
    assert app.jobs() == []
    app.close()
