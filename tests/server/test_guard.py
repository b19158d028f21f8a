"""What every request has to pass, what every answer carries, and the same under any prefix."""

import asyncio
import hashlib
import hmac
import json
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pytest
from fastapi import FastAPI
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.routing import Mount
from starlette.testclient import TestClient

from duly import Ctx, Duly, Job, Tx
from duly.endpoints.dispatch import MAX_BODY as MAX_CALL
from duly.model.nesting import MAX_DEPTH
from duly.server import Principal, Scope, make_asgi
from duly.server.guard import HEADERS, MAX_BODY
from duly.webhooks import GitHub
from tests.server.contract import Api

JOBS = "/api/v1/jobs"
EXPLAIN = "/api/v1/conditions/explain"
JSON = {"Content-Type": "application/json"}
GREET = {"function": "greet", "args": {"name": "ada"}}


def refusal(answer: Any, status: int) -> str:
    """The code of an error in the one shape."""
    assert answer.status_code == status, f"{answer.status_code}: {answer.text}"
    error = answer.json()["error"]
    assert set(error) == {"code", "message", "field", "hint"}
    return str(error["code"])


def ids(jobs: Sequence[Job[Any]]) -> list[str]:
    return [job.id for job in jobs]


@pytest.fixture(scope="module")
def house() -> Iterator[Duly]:
    """An app on one store, for what never reaches it."""
    app = Duly("sqlite:///:memory:")

    @app.action
    def greet(ctx: Ctx, name: str) -> str:
        return f"hello, {name}"

    @app.action
    def process(ctx: Ctx, event_id: str) -> None: ...

    app.webhook("slow", source=GitHub(secrets=["s"]), process=process)
    app.functions.publish()
    yield app
    app.close()


@pytest.fixture(scope="module")
def door(house: Duly) -> TestClient:
    """A client of a server that lets everybody in."""
    return TestClient(make_asgi(house, auth="open"))


def ask(
    asgi: Any,
    path: str,
    chunks: list[bytes],
    headers: Mapping[str, str],
    *,
    never_ends: bool = False,
) -> tuple[int, dict[str, Any], int]:
    """POST as a server hands it on: the status, the answer, and how many chunks were taken."""
    raw = [(name.lower().encode(), value.encode("latin-1")) for name, value in headers.items()]
    scope = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": "POST",
        "scheme": "http",
        "path": path,
        "raw_path": path.encode(),
        "query_string": b"",
        "root_path": "",
        "headers": [(b"host", b"testserver"), *raw],
        "client": ("127.0.0.1", 1),
        "server": ("127.0.0.1", 80),
    }
    said: list[Any] = []
    taken = 0

    async def receive() -> dict[str, Any]:
        nonlocal taken
        if taken == len(chunks):
            if never_ends:
                await asyncio.Event().wait()
            return {"type": "http.disconnect"}
        taken += 1
        more = never_ends or taken < len(chunks)
        return {"type": "http.request", "body": chunks[taken - 1], "more_body": more}

    async def send(message: Any) -> None:
        said.append(message)

    asyncio.run(asgi(scope, receive, send))
    body = b"".join(message.get("body", b"") for message in said)
    return said[0]["status"], json.loads(body), taken


# Hosts -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("ops.example", 200),
        ("OPS.Example", 200),
        ("ops.example:8484", 200),
        ("[::1]", 200),
        ("[::1]:8484", 200),
        ("[2001:DB8::7]:1", 200),
        ("127.0.0.1:8484", 200),
        ("evil.example", 421),
        ("ops.example.evil.example", 421),
        ("evil.ops.example", 421),
        ("ops.example@evil.example", 421),
        ("[::2]", 421),
        ("[::1].evil.example", 421),
        ("[::1]evil.example:80", 421),
        ("ops.example:80:80", 421),
        ("127.0.0.1.evil.example", 421),
        ("", 421),
    ],
)
def test_it_answers_only_for_the_hosts_it_is_given(house, host, status):
    hosts = ["Ops.example", "[::1]", "2001:db8::7", "127.0.0.1:9999"]
    door = TestClient(make_asgi(house, auth="open", hosts=hosts))
    answer = door.get("/healthz", headers={"Host": host})
    assert answer.status_code == status
    if status == 421:
        assert refusal(answer, 421) == "wrong_host"


def test_without_a_list_it_answers_for_any_host(door):
    assert door.get("/healthz", headers={"Host": "any.example"}).status_code == 200


def test_a_foreign_host_reaches_neither_hooks_nor_the_api(house):
    door, before = TestClient(make_asgi(house, auth="open", hosts=["localhost"])), house.jobs()
    assert refusal(door.post(JOBS, json=GREET), 421) == "wrong_host"
    assert refusal(door.post("/hooks/github", content=b"{}"), 421) == "wrong_host"
    assert ids(house.jobs()) == ids(before)


# Cross-site writes -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "headers",
    [
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
        {"Sec-Fetch-Site": "nonsense"},
        {"Sec-Fetch-Site": "cross-site", "Origin": "http://testserver"},
        {"Origin": "https://evil.example"},
        {"Origin": "null"},
        {"Origin": "http://testserver.evil.example"},
        {"Origin": "http://testserver:8080"},
        {"Origin": ""},
    ],
)
@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH", "DELETE"])
def test_a_page_of_another_site_changes_nothing(door, house, method, headers):
    before = house.jobs()
    answer = door.request(method, JOBS, json=GREET, headers=headers)
    assert refusal(answer, 403) == "cross_site"
    assert ids(house.jobs()) == ids(before)


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"Sec-Fetch-Site": "same-origin"},
        {"Sec-Fetch-Site": "none"},
        {"Sec-Fetch-Site": "same-origin", "Origin": "http://testserver"},
        {"Origin": "http://testserver"},
        {"Origin": "HTTP://TESTSERVER"},
    ],
)
def test_a_page_of_its_own_and_other_programs_may_write(door, headers):
    assert door.post(JOBS, json=GREET, headers=headers).status_code == 201


def test_reading_is_open_to_links_from_anywhere(door):
    assert door.get(JOBS, headers={"Sec-Fetch-Site": "cross-site"}).status_code == 200


# Headers -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("method", "path", "status", "more"),
    [
        ("GET", JOBS, 200, {}),
        ("POST", JOBS, 201, {"json": GREET}),
        ("GET", f"{JOBS}/nothing", 404, {}),
        ("GET", "/nowhere", 404, {}),
        ("PUT", JOBS, 405, {}),
        ("POST", JOBS, 422, {"json": {}}),
        ("POST", JOBS, 400, {"content": b"{", "headers": {"Content-Type": "application/json"}}),
        ("POST", JOBS, 403, {"headers": {"Origin": "null"}}),
        ("POST", JOBS, 413, {"content": b" " * (MAX_CALL + 1)}),
        ("POST", "/hooks/none", 404, {"content": b"{}"}),
        ("POST", "/api/v1/dispatch/greet", 503, {"content": b"{}"}),
        ("GET", "/healthz", 200, {}),
        ("GET", "/readyz", 200, {}),
        ("GET", "/metrics", 200, {}),
        ("GET", "/api/v1/openapi.json", 200, {}),
        ("GET", "/api/v1/forecast.ics", 200, {}),
    ],
)
def test_every_answer_has_the_security_headers(door, method, path, status, more):
    answer = door.request(method, path, **more)
    assert answer.status_code == status, answer.text
    assert {name: answer.headers.get(name) for name in HEADERS} == HEADERS


def test_a_stream_has_them_too(client, shop, hire):
    job = shop.run(shop.function("greet"), "ada")
    hire().work()
    answer = client.get("/api/v1/events", params={"job": job.id})
    assert answer.headers["content-type"].startswith("text/event-stream")
    assert {name: answer.headers.get(name) for name in HEADERS} == HEADERS


def test_what_breaks_says_so_in_the_one_shape_and_nothing_of_why(house):
    def breaks(request: Request) -> Principal:
        raise RuntimeError("canary-of-the-host")

    door = TestClient(make_asgi(house, auth=breaks), raise_server_exceptions=False)
    answer = door.get(JOBS)
    assert refusal(answer, 500) == "internal"
    assert "canary" not in answer.text
    assert {name: answer.headers.get(name) for name in HEADERS} == HEADERS


# Bodies ------------------------------------------------------------------------------------------


def body_of(size: int, value: object) -> bytes:
    body = json.dumps(value).encode()
    return body + b" " * (size - len(body))


def test_a_body_has_at_most_one_mebibyte_and_nine_where_it_holds_arguments(door, house):
    before = house.jobs()
    most = 8 * 1024 * 1024
    assert (MAX_BODY, MAX_CALL) == (1024 * 1024, 9 * 1024 * 1024)
    condition = {"condition": {"/signal_rpc_result": {"lt": 3}}, "context": {}}
    for path, size, value, status in (
        (EXPLAIN, MAX_BODY, condition, 200),
        (JOBS, MAX_CALL, {"function": "greet", "args": {"name": "x" * (most - 11)}}, 201),
    ):
        answer = door.post(path, content=body_of(size, value), headers=JSON)
        assert answer.status_code == status, answer.text
        answer = door.post(path, content=body_of(size + 1, value), headers=JSON)
        assert refusal(answer, 413) == "too_large"
    value = {"function": "greet", "args": {"name": "x" * (most - 10)}}
    answer = door.post(JOBS, content=body_of(0, value), headers=JSON)
    assert refusal(answer, 422) == "arguments_too_large"
    assert "8,388,609 bytes as JSON, but the limit is 8,388,608" in answer.text
    (made,) = (job for job in house.jobs() if job.id not in ids(before))
    assert len(made.record.args) == most
    listed = door.get(JOBS).json()["items"]
    assert listed[0]["args"] == {"…": "too long to be listed"}


@pytest.mark.parametrize("declared", [None, "0", "12", str(MAX_BODY), "²", "-1", "x"])
def test_a_body_is_counted_whatever_its_length_was_said_to_be(house, declared):
    headers = {"Content-Type": "application/json"}
    headers |= {} if declared is None else {"Content-Length": declared}
    chunks = [b" " * 65_536] * 100
    status, answer, taken = ask(make_asgi(house, auth="open"), EXPLAIN, chunks, headers)
    assert (status, answer["error"]["code"]) == (413, "too_large")
    assert taken == 17, "and no further than that"


@pytest.mark.parametrize("declared", [str(MAX_BODY + 1), "9" * 5_000])
def test_what_is_said_to_be_too_large_is_not_even_read(house, declared):
    headers = {"Content-Length": declared}
    status, answer, taken = ask(make_asgi(house, auth="open"), EXPLAIN, [b"{}"], headers)
    assert (status, answer["error"]["code"], taken) == (413, "too_large", 0)


def test_a_body_that_never_ends_is_no_request(house):
    headers = {"Content-Type": "application/json", "Content-Length": "500"}
    asgi, before = make_asgi(house, auth="open"), house.jobs()
    status, answer, _ = ask(asgi, JOBS, [], headers)
    assert (status, answer["error"]["code"]) == (400, "disconnected")
    assert ids(house.jobs()) == ids(before)


def test_a_body_may_come_in_parts(house):
    content = json.dumps(GREET).encode()
    chunks = [content[:5], b"", content[5:9], content[9:]]
    asgi = make_asgi(house, auth="open")
    status, answer, _ = ask(asgi, JOBS, chunks, {"Content-Type": "application/json"})
    assert (status, answer["function"]) == (201, "greet")


def explain(door: TestClient, context: str, kind: str = "application/json") -> Any:
    body = f'{{"condition": {{"/signal_rpc_result": {{"lt": 3}}}}, "context": {{"a": {context}}}}}'
    return door.post(EXPLAIN, content=body.encode(), headers={"Content-Type": kind})


def nested(depth: int, opened: str = "[", closed: str = "]") -> str:
    """So deep, where two levels are around it already."""
    return opened * (depth - 2) + closed * (depth - 2)


def test_json_is_nested_at_most_64_deep(door):
    assert MAX_DEPTH == 64
    assert explain(door, nested(64)).status_code == 200
    assert refusal(explain(door, nested(65)), 400) == "too_deep"
    objects = '{"a":' * 63 + "1" + "}" * 63
    assert refusal(explain(door, objects), 400) == "too_deep"
    assert refusal(explain(door, nested(200_000)), 400) == "too_deep"


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-32", "utf-32-be", "latin-1"])
def test_json_is_utf_8(door, encoding):
    """Python would read it in any of these, and no depth is seen in them."""
    body = json.dumps({"condition": "é", "context": "[" * 100}, ensure_ascii=False)
    answer = door.post("/api/v1/conditions/explain", content=body.encode(encoding))
    assert refusal(answer, 400) == "bad_request"


def test_a_byte_order_mark_of_utf_8_is_no_harm(door):
    body = json.dumps(GREET | {"run_after": 3600}).encode("utf-8-sig")
    answer = door.post(JOBS, content=body, headers={"Content-Type": "application/json"})
    assert answer.status_code == 201


def test_a_body_that_does_not_come_is_not_waited_for(house, monkeypatch):
    for place in ("guard", "hooks"):
        monkeypatch.setattr(f"duly.server.{place}.READ_SECONDS", 0.05)
    asgi = make_asgi(house, auth="open")
    for path in (JOBS, "/hooks/slow"):
        status, answer, _ = ask(asgi, path, [b"{"], {}, never_ends=True)
        assert (status, answer["error"]["code"]) == (408, "too_slow")


@pytest.mark.parametrize("kind", ["Application/JSON", "application/vnd.x+JSON", "text/plain", ""])
def test_how_the_body_is_called_does_not_matter_for_its_depth(door, kind):
    assert refusal(explain(door, nested(65), kind), 400) == "too_deep"


@pytest.mark.parametrize(
    "context",
    [
        json.dumps("[" * 1_000),
        json.dumps('"' + "{[" * 1_000 + '\\"'),
        json.dumps(["\\", "[" * 500, "\\\\", "{" * 500]),
        json.dumps([[] for _ in range(1_000)]),
        json.dumps({str(n): {"[": n} for n in range(1_000)}),
    ],
)
def test_brackets_in_strings_and_beside_each_other_are_not_deep(door, context):
    assert explain(door, context).status_code == 200


@pytest.mark.parametrize("text", [rb"\"", b'"', rb"\\", rb'"\x', b'"]['], ids=str)
def test_looking_at_the_depth_takes_no_longer_than_reading(door, text):
    hostile = b"[]" * 100 + b'"'
    # For each string to the end of the text, this would take ten seconds; of MAX_BODY, an hour.
    hostile += text * ((64 * 1024 - len(hostile)) // len(text))
    began = time.process_time()
    answer = door.post(JOBS, content=hostile, headers={"Content-Type": "application/json"})
    assert answer.status_code in (400, 422)
    assert time.process_time() - began < 2


# Addresses ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "path", ["/api/v1/jobs/a%00b", "/%00", "/api/v1/jobs?function=a%00", "/hooks/a%00"]
)
@pytest.mark.parametrize("method", ["GET", "POST"])
def test_an_address_holds_no_nul(door, method, path):
    assert refusal(door.request(method, path), 400) == "bad_request"


@pytest.mark.parametrize(
    "path",
    ["/nowhere", "/api", "/api/v1", "/api/v1/", "/api/v2/jobs", "/docs", "/api/v1/jobs/"],
)
@pytest.mark.parametrize("method", ["GET", "POST", "DELETE"])
def test_unknown_paths_are_told_in_the_one_shape(door, method, path):
    assert refusal(door.request(method, path), 404) == "not_found"


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("DELETE", JOBS),
        ("PUT", "/api/v1/tokens"),
        ("GET", "/hooks/github"),
        ("GET", "/api/v1/dispatch/greet"),
        ("POST", "/healthz"),
        ("POST", "/api/v1/events"),
        ("TRACE", JOBS),
        ("NONSENSE", JOBS),
    ],
)
def test_a_method_that_is_not_there_is_told_in_the_one_shape(door, method, path):
    answer = door.request(method, path)
    assert refusal(answer, 405) == "method_not_allowed"
    assert answer.headers["allow"]


# Numbers -----------------------------------------------------------------------------------------

EXACT = 2**53 - 1


def test_integers_that_javascript_cannot_hold_are_text(shop, client, hire):
    @shop.action
    def echo(ctx: Ctx, what: Any) -> Any:
        return what

    shop.functions.publish()
    numbers = [EXACT, EXACT + 1, EXACT + 2, -EXACT, -EXACT - 1, 2**63, 2**80, True, 1.5]
    given = {"flat": EXACT + 2, "deep": [{"x": numbers}], "text": str(2**60)}
    api = Api(client)
    job = api.post("/jobs", {"function": "echo", "args": {"what": given}}, status=201)
    hire().work()
    job = api.get("/jobs/{id}", id=job["id"])

    told = [
        *(EXACT, str(EXACT + 1), str(EXACT + 2), -EXACT, str(-EXACT - 1)),
        *(str(2**63), str(2**80), True, 1.5),
    ]
    expected = {"flat": str(EXACT + 2), "deep": [{"x": told}], "text": str(2**60)}
    assert job["args"] == {"what": expected}
    assert job["result"] == expected
    assert shop.job(job["id"]).result() == given, "stored as they were given"


# Mounted -----------------------------------------------------------------------------------------


def in_fastapi(app: Duly, asgi: Any, prefix: str) -> Any:
    web = FastAPI(lifespan=app.lifespan)
    web.mount(prefix, asgi)

    @web.get("/")
    def home() -> str:
        return "home"

    return web


def in_starlette(app: Duly, asgi: Any, prefix: str) -> Any:
    return Starlette(routes=[Mount(prefix, asgi)], lifespan=app.lifespan)


def twice(app: Duly, asgi: Any, prefix: str) -> Any:
    """Mounted in what is itself mounted."""
    outer, _, inner = prefix.lstrip("/").partition("/")
    middle = Starlette(routes=[Mount(f"/{inner}", asgi)])
    return Starlette(routes=[Mount(f"/{outer}", middle)], lifespan=app.lifespan)


def who(request: Request) -> Principal | None:
    name = request.headers.get("x-user")
    return None if name is None else Principal(name, frozenset([Scope.ENQUEUE, Scope.READ]))


@pytest.fixture(params=[in_fastapi, in_starlette, twice], ids=lambda way: way.__name__)
def mounted(request, app: Duly) -> Iterator[TestClient]:
    @app.action
    def greet(ctx: Ctx, name: str) -> str:
        return f"hello, {name}"

    @app.mutation
    def process(tx: Tx, event_id: str) -> None:
        tx.execute("INSERT INTO notes VALUES (?)", (event_id,))

    source = GitHub(secrets=["hush"])
    app.webhook("github", source=source, process=process, max_bytes=3 * MAX_BODY)
    app.webhook("own", source=source, process=process, path="/from/github", max_bytes=10)
    asgi = app.asgi(auth=who)
    with TestClient(request.param(app, asgi, "/my/ops"), headers={"X-User": "ada"}) as client:
        yield client


def signed(body: bytes, delivery: str) -> dict[str, str]:
    digest = hmac.new(b"hush", body, hashlib.sha256).hexdigest()
    return {
        "X-Hub-Signature-256": f"sha256={digest}",
        "X-GitHub-Delivery": delivery,
        "X-GitHub-Event": "push",
        "X-User": "",
    }


def test_the_api_works_under_a_prefix_with_the_hosts_own_users(mounted, app):
    made = mounted.post("/my/ops/api/v1/jobs", json=GREET)
    assert made.status_code == 201
    assert made.json()["actor"] == "ada"
    assert app.job(made.json()["id"]).result(timeout=60) == "hello, ada"
    assert mounted.get("/my/ops/healthz").json() == {"ok": True}
    assert refusal(mounted.get("/my/ops/api/v1/tokens"), 403) == "forbidden"
    assert refusal(mounted.get("/my/ops/api/v1/nothing"), 404) == "not_found"
    del mounted.headers["X-User"]
    assert refusal(mounted.get("/my/ops/api/v1/jobs"), 401) == "unauthorized"
    token = app.tokens.create("ci", ["read"]).secret
    held = {"Authorization": f"Bearer {token}"}
    assert mounted.get("/my/ops/api/v1/jobs", headers=held).status_code == 200


def test_the_openapi_document_leads_to_addresses_that_work(mounted):
    document = mounted.get("/my/ops/api/v1/openapi.json").json()
    (server,) = document["servers"]
    for path in ("/api/v1/jobs", "/api/v1/functions", "/readyz"):
        assert path in document["paths"]
        assert mounted.get(server["url"] + path).status_code == 200


def test_hooks_under_a_prefix_have_their_own_limits(mounted, app):
    large = json.dumps({"text": "x" * (2 * MAX_BODY)}).encode()
    taken = mounted.post("/my/ops/hooks/github", content=large, headers=signed(large, "d1"))
    assert taken.json()["outcome"] == "stored", taken.text
    larger = b"x" * (3 * MAX_BODY + 1)
    answer = mounted.post("/my/ops/hooks/github", content=larger, headers=signed(larger, "d2"))
    assert refusal(answer, 413) == "too_large"

    fits, too_large = b'{"a": 1}', b'{"abc": 10}'
    answer = mounted.post("/my/ops/from/github", content=fits, headers=signed(fits, "d3"))
    assert answer.status_code == 200, answer.text
    answer = mounted.post("/my/ops/from/github", content=too_large, headers=signed(too_large, "d4"))
    assert refusal(answer, 413) == "too_large"


def test_events_under_a_prefix_end_with_the_job(mounted):
    job = mounted.post("/my/ops/api/v1/jobs", json=GREET).json()
    text = mounted.get("/my/ops/api/v1/events", params={"job": job["id"]}).text
    assert '"state": "succeeded"' in text
    assert text.rstrip().endswith("event: end\ndata: {}")


def test_the_rest_of_the_host_is_left_alone(app):
    web = in_fastapi(app, app.asgi(hosts=["ops.example"]), "/ops")
    client = TestClient(web)
    assert client.get("/").json() == "home"
    assert "x-frame-options" not in client.get("/").headers
    assert refusal(client.get("/ops/healthz"), 421) == "wrong_host"


def test_two_apps_in_one_host_answer_each_for_itself(house):
    other = Duly("sqlite:///:memory:")

    @other.mutation
    def process(tx: Tx, event_id: str) -> None: ...

    source = GitHub(secrets=["hush"])
    other.webhook("own", source=source, process=process, path="/from/github")
    other.functions.publish()
    places = [Mount("/ours", make_asgi(house, auth="open")), Mount("/theirs", make_asgi(other))]
    client = TestClient(Starlette(routes=places))
    held = {"Authorization": f"Bearer {other.tokens.create('ci', ['read']).secret}"}

    made = client.post(f"/ours{JOBS}", json=GREET).json()
    assert made["id"] in [job["id"] for job in client.get(f"/ours{JOBS}").json()["items"]]
    assert refusal(client.get(f"/theirs{JOBS}"), 401) == "unauthorized"
    assert client.get(f"/theirs{JOBS}", headers=held).json()["items"] == []

    sent = signed(b"{}", "d1")
    assert client.post("/theirs/from/github", content=b"{}", headers=sent).status_code == 200
    assert client.get("/theirs/from/github").status_code == 405
    assert refusal(client.post("/ours/from/github", content=b"{}"), 404) == "not_found"

    for place in ("/ours", "/theirs", "/ours"):
        document = client.get(f"{place}/api/v1/openapi.json").json()
        assert document["servers"] == [{"url": place}]
    other.close()
