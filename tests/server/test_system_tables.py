"""duly's own tables over HTTP: everybody who may read sees them, and nobody writes to them."""

import json
from datetime import timedelta
from typing import Annotated, Any

import pytest
from starlette.testclient import TestClient

from duly import Ctx, Duly, Redact, State
from duly.model.system import TABLES

CANARY = "canary-9b1f"


def page(client: TestClient, table: str, **asked: Any) -> Any:
    answer = client.get(f"/api/v1/system/{table}", params=asked)
    assert answer.status_code == 200, answer.text
    return answer.json()


def everything(client: TestClient, table: str, limit: int) -> list[dict[str, Any]]:
    found, after = [], None
    while True:
        asked = {"limit": limit} if after is None else {"limit": limit, "after": after}
        part = page(client, table, **asked)
        found += part["items"]
        after = part["next"]
        if after is None:
            return found


@pytest.mark.spec("R98")
def test_the_tables_are_listed_and_so_are_their_rows(client, shop, hire):
    for name in "abcde":
        shop.run(shop.functions["greet"], name)
    tables = {table["name"]: table for table in client.get("/api/v1/system").json()}
    assert set(tables) == set(TABLES)
    assert (tables["jobs"]["rows"], tables["jobs"]["capped"]) == (5, False)
    jobs = everything(client, "jobs", 2)
    assert [job["id"] for job in jobs] == sorted(job.id for job in shop.jobs())
    assert {job["state"] for job in jobs} == {State.PENDING}
    hire().work()
    assert page(client, "jobs")["items"] == []
    assert len(everything(client, "history", 2)) == 5


@pytest.mark.spec("R98")
@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH", "DELETE"])
@pytest.mark.parametrize("path", ["", "/jobs", "/tokens"])
def test_writes_are_rejected(client, shop, method, path):
    job = shop.run(shop.functions["greet"], "ada")
    answer = client.request(method, f"/api/v1/system{path}", json={"id": job.id})
    assert answer.status_code == 405
    assert answer.json()["error"]["code"] == "method_not_allowed"
    assert len(shop.jobs()) == 1


def test_every_table_of_the_schema_is_listed_and_can_be_read(client, db):
    if db.is_sqlite:
        found = db.execute(
            "SELECT substr(name, 6) FROM sqlite_master WHERE type = 'table' AND name LIKE 'duly_%'"
        )
    else:
        found = db.execute(
            "SELECT relname FROM pg_class WHERE relnamespace = 'duly'::regnamespace"
            " AND relkind IN ('r', 'p') AND NOT relispartition"
        )
    assert {name for (name,) in found} == set(TABLES)
    for table in TABLES:
        page(client, table)


def fill(shop: Duly, hire: Any) -> None:
    @shop.action
    def whisper(ctx: Ctx, open: str, hidden: Annotated[str, Redact]) -> str:
        ctx.log(f"logged {CANARY}")
        ctx.progress(0.5, f"noted {CANARY}")
        return f"result {CANARY}"

    @shop.action
    def fail(ctx: Ctx, text: str) -> None:
        raise ValueError(text)

    shop.run(whisper, CANARY, CANARY)
    shop.run(fail, CANARY)
    hire().work()
    shop.run(whisper, CANARY, CANARY)
    shop.schedules.create("daily", whisper.bind(CANARY, CANARY), every=timedelta(days=1))
    shop.tokens.create("ci", ["read"])
    shop.pause(f"note {CANARY}")


def test_what_users_have_written_is_not_shown(client, shop, hire, db):
    fill(shop, hire)
    shown = json.dumps([everything(client, table, 200) for table in TABLES])
    assert "whisper" in shown
    assert CANARY not in shown
    for (digest,) in db.execute("SELECT digest FROM @tokens"):
        assert digest not in shown


@pytest.mark.parametrize("table", sorted(TABLES))
def test_pages_are_whole_whatever_their_size(client, shop, hire, table):
    fill(shop, hire)
    for number in range(3):
        shop.run(shop.functions["greet"].using(idempotency_key=f"k{number}"), "ada")
    shop.core.tell_counts()
    whole = page(client, table)["items"]
    assert everything(client, table, 1) == whole
    keys = [[row[column] for column in TABLES[table].key] for row in whole]
    assert len({json.dumps(key) for key in keys}) == len(keys)


@pytest.mark.parametrize(
    "after",
    ["", "x", "{}", "[]", "[1]", '["x"]', '["a", "b"]', "[null]", "[" * 5_000, '["\\ud800"]'],
)
def test_a_page_that_was_never_offered_is_refused(client, after):
    answer = client.get("/api/v1/system/jobs", params={"after": after})
    assert (answer.status_code, answer.json()["error"]["field"]) == (422, "after")
    answer = client.get("/api/v1/system/logs", params={"after": f'["{"0" * 8}", {2**70}]'})
    assert answer.status_code == 422


def test_odd_text_in_a_key_is_an_odd_place_to_go_on_from(client):
    for text in ("a\0b", "\ud800"):
        answer = client.get("/api/v1/system/meta", params={"after": json.dumps([text])})
        assert answer.status_code == 422
    assert page(client, "meta", after=json.dumps(["\uffff"]))["items"] == []


def test_other_tables_are_not_there(client):
    for name in ("notes", "sqlite_master", "duly_jobs", "jobs;", "all_jobs"):
        answer = client.get(f"/api/v1/system/{name}")
        assert (answer.status_code, answer.json()["error"]["code"]) == (404, "table_not_found")


def test_who_may_look(guarded, bearer):
    def status(path: str, *scopes: str, owner: str | None = None) -> Any:
        return guarded.get(
            f"/api/v1/system{path}", headers=bearer(*scopes, owner=owner)
        ).status_code

    assert guarded.get("/api/v1/system").status_code == 401
    assert status("", "enqueue") == 403
    assert status("", "read") == status("/jobs", "read") == 200
    assert status("", "read", owner="anna") == status("/jobs", "read", owner="anna") == 403
    assert (status("/tokens", "read"), status("/tokens", "admin")) == (403, 200)
    assert (status("/audit", "read"), status("/audit", "operate")) == (403, 200)
