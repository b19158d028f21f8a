"""The examples of docs/how-to/transactions.md that need PostgreSQL; the page runs the others."""

import asyncio
import runpy
from pathlib import Path
from typing import Any

import pytest

from duly import Duly
from duly.testing import override
from tests.docs.test_code_blocks import ROOT, as_script
from tests.jobs.support import Database, on_postgres

PAGE = ROOT / "docs/how-to/transactions.md"


@pytest.fixture
def page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What the page defines before it comes to SQLAlchemy."""
    script = tmp_path / "page.py"
    script.write_text(as_script(PAGE).partition("class Base")[0], encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    return runpy.run_path(str(script))


@on_postgres
@pytest.mark.spec("N5")
def test_the_examples_for_postgresql_run(app: Duly, url: str, db: Database, page: dict[str, Any]):
    db.execute("CREATE TABLE users (email text PRIMARY KEY)")
    page["app"].close()
    with override(page["app"], url=url):
        page["with_psycopg"](url, "ada@example.org")
        asyncio.run(page["with_asyncpg"](url, "bob@example.org"))

    assert db.count("users") == 2
    assert len(app.jobs(function="send_welcome")) == 2
