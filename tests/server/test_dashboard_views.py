"""The dashboard beyond schedules and jobs: what each view shows to whom, and what it refuses."""

import csv
import io
import json
import re
from typing import Annotated, Any, Literal

import pytest
from fastapi import FastAPI
from starlette.testclient import TestClient

from duly import Ctx, Duly, Redact
from duly.server import make_asgi
from duly.webhooks import GitHub
from tests.jobs.support import on_sqlite
from tests.server.conftest import Surfer
from tests.server.hooked import SECRET, send
from tests.server.test_dashboard import HOSTILE

PATHS = (
    *("/functions", "/functions/greet", "/calendars", "/webhooks", "/queues", "/workers"),
    *("/gateways", "/audit", "/tokens"),
)


@pytest.fixture
def admin(shop: Duly, surfer: Surfer) -> Surfer:
    surfer.log_in(shop.tokens.create("root", ["admin"]).secret)
    return surfer


def links(page: str) -> list[str]:
    navigation = page.partition("<nav")[2].partition("</nav>")[0]
    return re.findall(r'href="([^"]+)"', navigation)


def alerts(page: str) -> list[str]:
    return re.findall(r'role="alert">(?:<svg.*?</svg>)?\s*([^<]*)', page)


# Who sees what -----------------------------------------------------------------------------------


@on_sqlite
def test_the_navigation_leads_only_where_one_may_go(shop, surfer):
    everything = ["/", "/schedules", "/jobs", "/webhooks", "/functions", "/calendars", "/queues"]
    everything += ["/workers", "/gateways", "/audit", "/tokens"]
    hidden: dict[tuple[str, str | None], set[str]] = {
        ("admin", None): set(),
        ("operate", None): {"/tokens"},
        ("read", None): {"/tokens", "/audit"},
        ("admin", "eve"): {"/workers", "/audit"},
        ("read", "eve"): {"/workers", "/audit", "/tokens"},
    }
    for (scope, owner), unseen in hidden.items():
        surfer.client.cookies.clear()
        surfer.log_in(shop.tokens.create("x", [scope], owner=owner).secret)
        shown = links(surfer.get("/functions").text)
        assert shown == [path for path in everything if path not in unseen]
        for path in everything:
            assert (surfer.get(path).status_code == 200) == (path not in unseen), path


@on_sqlite
def test_who_may_only_look_is_shown_no_actions(shop, surfer):
    calendar = shop.calendars.create("plant", "skip_dates", dates=["2026-12-24"])
    gateway = shop.gateways.add("edge", "http://127.0.0.1:1")
    surfer.log_in(shop.tokens.create("r", ["read"]).secret)
    own = (f"/calendars/{calendar.id}", f"/gateways/{gateway.id}")
    for path in (*PATHS[:-2], *own):
        page = surfer.get(path).text
        forms = set(re.findall(r'<form method="post" action="([^"]+)"', page))
        assert forms <= {"/preferences", "/logout", "/jobs/bulk"}, path
        assert 'name="verb"' not in page


@on_sqlite
def test_an_owner_sees_only_what_is_theirs(shop, surfer):
    for owner in ("ann", "eve"):
        shop.calendars.of(owner).create(f"plant of {owner}", "skip_dates", dates=["2026-12-24"])
        shop.tokens.create(f"token of {owner}", ["read"], owner=owner)
        shop.gateways.add(f"edge of {owner}", "http://127.0.0.1:1", owner=owner)
    shop.pause("moving", by="root")
    surfer.log_in(shop.tokens.create("hers", ["admin"], owner="eve").secret)
    for path, word in (("/calendars", "plant"), ("/tokens", "token"), ("/gateways", "edge")):
        for page in (surfer.get(path).text, surfer.get(f"{path}.json").text):
            assert f"{word} of eve" in page
            assert f"{word} of ann" not in page
    queues = surfer.get("/queues").text
    assert "Everything is paused" in queues
    assert "Resume everything" not in queues
    assert ">Due<" not in queues
    assert ">p95<" not in surfer.get("/functions").text
    for path in ("/kill-switch/resume", "/queues/default/pause", "/functions/greet/status"):
        assert surfer.post(path, verb="pause").status_code == 403
    assert surfer.post("/gateways", name="x", url="http://127.0.0.1:1").status_code in (403, 422)
    assert shop.paused is not None
    assert len(shop.gateways.list()) == 2
    # What she makes is hers, and she can make nothing for others.
    assert surfer.post("/tokens", name="new", scope="read").status_code == 201
    assert shop.tokens.list()[-1].owner == "eve"
    assert surfer.post("/tokens", name="x", scope="read", owner="ann").status_code == 422
    surfer.post("/calendars", how="empty", name="hers too")
    assert shop.calendars.of("eve").get("hers too").owner == "eve"


# What it shows -----------------------------------------------------------------------------------


@on_sqlite
def test_hostile_text_is_text(shop, admin):
    @shop.action(name=HOSTILE, queue=HOSTILE)
    def odd(ctx: Ctx, text: Literal["<script>alert(1)</script>"], event_id: str = "") -> None: ...

    @shop.action
    def on_github(ctx: Ctx, event_id: str) -> None: ...

    shop.functions.publish()
    shop.functions.pause(HOSTILE, note=HOSTILE, by=HOSTILE)
    shop.webhook("github", source=GitHub(secrets=[SECRET]), process=on_github, owner=HOSTILE)
    event = send(shop, json.dumps({HOSTILE: HOSTILE}).encode(), HOSTILE, HOSTILE).event_id
    calendar = shop.calendars.create(HOSTILE, "skip_dates", dates={"2026-12-24": HOSTILE})
    shop.tokens.create(HOSTILE, ["read"], owner=HOSTILE, by=HOSTILE)
    shop.queues.pause(HOSTILE, note=HOSTILE, by=HOSTILE)
    gateway = shop.gateways.add(HOSTILE, "http://127.0.0.1:1/", owner=HOSTILE, by=HOSTILE)
    shop.pause(HOSTILE, by=HOSTILE)
    for path in (
        *("/functions", f"/functions?search={HOSTILE}", f"/functions/{HOSTILE}", "/calendars"),
        *(f"/calendars/{calendar.id}?year=2026", "/webhooks", f"/webhooks?webhook={HOSTILE}"),
        *(f"/webhooks/{event}", "/queues", "/gateways", f"/gateways/{gateway.id}", "/audit"),
        *(f"/audit?actor={HOSTILE}&action={HOSTILE}&target={HOSTILE}", "/tokens"),
    ):
        answer = admin.client.get(path)
        assert answer.status_code == 200, path
        assert "<script>alert" not in answer.text
        assert "&lt;script&gt;alert(1)" in answer.text, path
        assert not re.search(r"\son[a-z]+=", re.sub(r"&[^;]+;", "", answer.text)), path
        assert " style=" not in answer.text


def test_a_form_is_made_of_the_type_hints(shop, admin):
    @shop.action
    def pay(
        ctx: Ctx,
        card: Annotated[str, Redact],
        amount: float,
        currency: Literal["EUR", "USD"] = "EUR",
        test: bool = False,
        lines: list[dict[str, int]] | None = None,
    ) -> None: ...

    shop.functions.publish()
    page = admin.get("/functions/pay").text
    assert "pay(card: hidden, amount: number, " in page
    assert re.search(r'name="arg.card"[^>]*type="password"', page)
    assert '<option value="&#34;USD&#34;"' in page
    assert '<textarea id="arg-5" name="arg.lines"' in page

    def run(**args: str) -> Any:
        return admin.post("/functions/pay/run", **{f"arg.{k}": v for k, v in args.items()})

    assert alerts(run(amount="much").text) == ["a value is required", "give a number"]
    wrong = run(card='"4111"', amount="1e400")
    assert alerts(wrong.text) == ["inf is not a JSON number"]
    assert "4111" not in wrong.text, "a secret is not shown again"
    assert "Expected `int`" in run(card='"4111"', amount="1", lines='[{"a": "b"}]').text
    assert run(card='"4111"', amount="1.5", currency='"CHF"').status_code == 422
    made = run(card='"4111"', amount="1.5", currency='"USD"', test="true", lines='[{"a": 1}]')
    job = shop.job(made.headers["location"].rpartition("/")[2])
    args = json.loads(shop.store.get(job.id).args)
    assert args == {
        "card": "4111",
        "amount": 1.5,
        "currency": "USD",
        "test": True,
        "lines": [{"a": 1}],
    }
    shop.functions.deprecate("pay")
    assert "run-form" not in admin.get("/functions/pay").text
    assert "deprecated" in run(card='"4111"', amount="1").text
    assert admin.get("/functions/secretly").status_code == 200
    assert "run-form" not in admin.get("/functions/secretly").text, "it is internal"
    assert admin.post("/functions/secretly/run").status_code == 422


def test_a_function_says_how_it_does(shop, admin, clock, hire):
    @shop.action
    def works(ctx: Ctx, seconds: int) -> None:
        clock.advance(seconds)
        if seconds == 3:
            raise ValueError("three")

    shop.functions.publish()
    worker = hire(shop)
    for seconds in (1, 2, 3, 4):
        shop.run(works, seconds)
        worker.work()
    page = admin.get("/functions/works").text
    assert re.search(r"<strong>2\.0 s</strong><small>p50", page)
    assert re.search(r"<strong>4\.0 s</strong><small>p95", page)
    assert "1 of the last 4 runs" in page
    assert "25 %" in admin.get("/functions?search=WORKS").text


# Calendars ---------------------------------------------------------------------------------------


@on_sqlite
def test_a_form_with_a_file_is_checked_as_any_other(shop, admin):
    fields = {"how": "ical", "name": "plant"}
    text = (
        "BEGIN:VCALENDAR\r\nVERSION:2.0\r\nBEGIN:VEVENT\r\nUID:1\r\nDTSTART;VALUE=DATE:20261224\r\n"
    )
    file = ("plant.ics", text + "SUMMARY:Noël\r\nEND:VEVENT\r\nEND:VCALENDAR\r\n")
    client: TestClient = admin.client
    assert client.post("/calendars", data=fields, files={"file": file}).status_code == 403
    fields["csrf"] = client.cookies["duly_csrf"]
    odd = {"Content-Type": "multipart/form-data"}
    assert client.post("/calendars", content=b"x", headers=odd).status_code == 400
    many = {f"f{n}": "" for n in range(2_001)}
    answer = client.post("/calendars", data=fields | many, files={"file": file})
    assert answer.status_code == 413
    answer = client.post("/calendars", data=fields, files={"file": file}, follow_redirects=False)
    assert answer.status_code == 303
    (label,) = shop.calendars.get("plant").dates.values()
    assert label == "Noël"


@on_sqlite
def test_a_declared_calendar_says_so(shop, admin):
    shop.calendar("closed", dates=["2030-12-24"])
    for said in ("declared in code", "no longer declared in code"):
        shop.schedules.apply()
        page = admin.get(f"/calendars/{shop.calendars.get('closed').id}").text
        assert f"This calendar is {said}. " in page
        assert f"<small>{said}</small>" in admin.get("/calendars").text
        shop.core.declared_calendars.clear()


@on_sqlite
def test_a_draft_of_a_calendar_goes_from_year_to_year(shop, admin):
    calendar = shop.calendars.create("plant", "skip_dates", dates={"2025-05-01": "May"})
    path = f"/calendars/{calendar.id}/edit"

    def send_it(page: str, do: str, *days: str) -> str:
        hidden = dict(re.findall(r'<input type="hidden" name="(\w+)" value="([^"]*)">', page))
        fields = {name: value.replace("&#34;", '"') for name, value in hidden.items()}
        answer = admin.client.post(path, data=fields | {"do": do, "day": list(days)})
        assert answer.status_code == 200
        return str(answer.text)

    page = send_it(admin.get(f"/calendars/{calendar.id}?year=2026").text, "year:2025", "2026-01-02")
    assert re.search(r'value="2025-05-01" checked', page)
    page = send_it(page, "year:2026")
    assert re.search(r'value="2026-01-02" checked', page), "what was marked is not lost"
    assert "1 day added or renamed, 1 removed" in page
    assert shop.calendars.get("plant").version == 1
    send_it(page, "save", "2026-01-02", "2026-01-03")
    assert [str(day) for day in shop.calendars.get("plant").dates] == ["2026-01-02", "2026-01-03"]
    for odd in (
        {"year": "x"},
        {"day": "2026-02-30"},
        {"pending": "[1]"},
        {"pending": '{"add": 1}'},
    ):
        answer = admin.post(path, do="save", version="2", **odd)
        assert answer.status_code == 422, odd
        assert alerts(answer.text)
    assert admin.post(path, do="preview", year="99999").status_code == 200
    assert admin.post(path, do="year:odd").status_code == 200
    many = {"how": "holidays", "name": "x", "country": "DE", "tz": "UTC", "years": "1-99999999999"}
    assert "100 years" in admin.post("/calendars", **many).text
    assert admin.post("/calendars/us-federal-holidays/edit", do="save").status_code in (403, 422)


# The rest ----------------------------------------------------------------------------------------


@on_sqlite
def test_the_secret_of_a_token_is_in_one_answer_only(shop, admin):
    answer = admin.post("/tokens", name="ci", scope="enqueue")
    assert answer.status_code == 201
    secret = re.findall(r'value="(duly_[^"]+)"', answer.text)[0]
    assert answer.headers["cache-control"] == "no-store"
    assert secret not in str(answer.headers)
    assert shop.tokens.check(secret) is not None
    for path in ("/tokens", "/tokens.json", "/tokens.csv", "/audit"):
        assert secret not in admin.get(path).text
    assert "scopes" in alerts(admin.post("/tokens", name="none").text)[0]
    odd = admin.post("/tokens", name="odd", scope="read", tz="Nowhere/Land")
    assert "Nowhere/Land" in alerts(odd.text)[0]
    admin.post("/tokens", name="abroad", scope="read", tz="Asia/Tokyo")
    assert "times in Asia/Tokyo" in admin.get("/tokens").text
    assert "odd" not in [token.name for token in shop.tokens.list()]


@on_sqlite
def test_loading_the_page_of_a_new_token_again_makes_no_other(shop, admin):
    once = re.findall(r'name="once" value="([^"]+)"', admin.get("/tokens").text)[0]
    form = {"name": "ci", "scope": "read", "once": once}
    assert admin.post("/tokens", **form | {"scope": "odd"}).status_code == 422
    assert admin.post("/tokens", **form).status_code == 201
    assert "its secret was shown when it was created" in admin.done("/tokens", **form)
    assert [token.name for token in shop.tokens.list()].count("ci") == 1
    assert f'value="{once}"' not in admin.get("/tokens").text


@on_sqlite
def test_a_time_with_an_offset_is_meant_so(shop, admin):
    for name, at in {"here": "2030-01-01T12:00:00", "there": "2030-01-01T12:00:00+05:00"}.items():
        admin.post("/tokens?tz=Europe/Berlin", name=name, scope="read", expires_at=at)
    expires = {token.name: token.expires for token in shop.tokens.list()}
    assert str(expires["here"]) == "2030-01-01 11:00:00+00:00"
    assert str(expires["there"]) == "2030-01-01 07:00:00+00:00"


@on_sqlite
def test_the_audit_log_has_filters_and_pages(shop, admin):
    for n in range(60):
        shop.queues.pause("slow", by="ann" if n % 2 else "bob", note=str(n))
    first = admin.get("/audit?action=queue").text
    following = re.search(r'href="([^"]+)" rel="next"', first)
    assert following is not None
    second = admin.get(following[1].replace("&amp;", "&")).text
    notes = re.findall(r"&#34;note&#34;: &#34;(\d+)&#34;", first + second)
    assert notes == [str(n) for n in reversed(range(60))]
    rows = list(csv.DictReader(io.StringIO(admin.get("/audit.csv?actor=ann").text)))
    assert {row["actor"] for row in rows} == {"ann"}
    assert len(rows) == 30
    assert admin.get("/audit?before=odd").status_code == 422


def test_actions_are_found_by_how_they_begin(shop):
    shop.queues.pause("slow", by="ann")
    shop.queues.resume("slow", by="bob")
    shop.ready().audit("queue-like", "queue:slow", None, None, shop.clock.now())
    shop.tokens.create("ci", ["read"])

    def found(**which: str) -> list[str]:
        page = shop.ready().audit_page(which.pop("target", None), None, 10, **which)
        return [entry.action for entry in page]

    assert found() == ["token.create", "queue-like", "queue.resume", "queue.pause"]
    assert found(action="queue") == ["queue.resume", "queue.pause"]
    assert found(action="queue.pause") == found(actor="ann") == ["queue.pause"]
    assert found(action="queue", actor="bob", target="queue:slow") == ["queue.resume"]
    for nothing in ("que", "queue.", "queue.pauses", "", "Queue", "queue%"):
        assert found(action=nothing) == [], nothing


@on_sqlite
def test_what_is_asked_for_wrongly_is_refused(shop, admin):
    for path in ("/functions?status=odd", "/webhooks?state=odd", "/calendars/plant?year=1"):
        assert admin.get(path).status_code == 422
    for path in ("/functions/none", "/functions/duly.bulk", "/calendars/none", "/webhooks/none"):
        assert admin.get(path).status_code == 404
    assert admin.get("/gateways/none").status_code == 404
    assert admin.post("/calendars", how="empty", name="").status_code == 422
    assert admin.post("/functions/greet/status", verb="odd").status_code == 422


@on_sqlite
def test_all_of_it_works_where_it_is_mounted(shop):
    host = FastAPI()
    host.mount("/ops", make_asgi(shop, auth="open"))
    calendar = shop.calendars.create("plant", "skip_dates")
    with TestClient(host) as client:
        for path in (*PATHS, f"/calendars/{calendar.id}"):
            page = client.get(f"/ops{path}").text
            for address in re.findall(r'(?:href|src|action|hx-get|hx-post)="(/[^"]*)"', page):
                assert address.startswith("/ops/"), (path, address)


@on_sqlite
def test_two_of_them_on_one_host_know_their_own_visitors(shop):
    """The browser sends what one has set at `/` to the other too, wherever that is mounted."""
    prefix, encoded = "/zwei ü", "/zwei%20%C3%BC"
    host = FastAPI()
    host.mount(prefix, make_asgi(shop))
    host.mount("/", make_asgi(shop))
    secret = shop.tokens.create("op", ["operate"]).secret
    with TestClient(host) as client:

        def log_in(root: str) -> None:
            csrf = re.findall(r'name="csrf" value="([^"]+)"', client.get(f"{root}/login").text)[0]
            form = {"csrf": csrf, "token": secret, "next": "/jobs"}
            answer = client.post(f"{root}/login", data=form, follow_redirects=False)
            assert (answer.status_code, answer.headers["location"]) == (303, f"{root}/jobs")
            assert f"Path={root or '/'};" in answer.headers["set-cookie"]

        log_in("")
        elsewhere = client.get(f"{encoded}/jobs", follow_redirects=False)
        assert elsewhere.status_code == 303, "a session here is none there"
        log_in(encoded)
        page = client.get(f"{encoded}/jobs").text
        csrf = re.findall(r'name="csrf" value="([^"]+)"', page)[0]
        assert client.post(f"{encoded}/logout", data={"csrf": csrf}).url.path.endswith("/login")
        assert client.get(f"{encoded}/jobs", follow_redirects=False).status_code == 303
        assert client.get("/jobs", follow_redirects=False).status_code == 200


@on_sqlite
def test_a_person_is_told_on_a_page_what_no_page_takes(shop):
    person = {"Accept": "text/html,application/xhtml+xml"}
    with TestClient(make_asgi(shop, auth="open")) as client:
        client.cookies.set("duly_csrf", "mine")
        for method, path, body, status in (
            ("GET", "/no/such/page", b"", 404),
            ("PUT", "/jobs", b"", 405),
            ("POST", "/jobs/bulk", b"x" * (1 << 20) + b"x", 413),
        ):
            page = client.request(method, path, content=body, headers=person)
            assert (page.status_code, "set-cookie" in page.headers) == (status, False)
            assert page.headers["content-type"].startswith("text/html"), path
            assert "Go to the overview" in page.text
            assert "default-src 'none'" in page.headers["content-security-policy"]
            answer = client.request(method, path, content=body)
            assert answer.status_code == status
            assert set(answer.json()) == {"error"}
        assert client.put("/jobs", headers=person).headers["allow"] == "GET"
        assert client.get("/api/v1/none", headers=person).json()["error"]["code"] == "not_found"
    with TestClient(make_asgi(shop, only=["api"], auth="open")) as client:
        assert client.get("/jobs", headers=person).json()["error"]["code"] == "not_found"
