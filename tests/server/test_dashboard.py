"""The dashboard as a browser without JavaScript sees it: who may do what, and what is refused."""

import csv
import html
import io
import json
import re
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Annotated, Any

import pytest
from fastapi import FastAPI
from fastapi.routing import APIRoute
from starlette.requests import Request
from starlette.testclient import TestClient

from duly import AnyOf, Cron, Ctx, Duly, Redact, Rule
from duly.clock import from_ms
from duly.model.access import Scope
from duly.model.trigger import encode
from duly.server import Principal, dashboard, make_asgi
from duly.server.auth import SESSION, _scopes  # pyright: ignore[reportPrivateUsage]
from duly.server.dashboard.exports import export
from duly.webhooks import Bearer
from tests.jobs.support import on_sqlite
from tests.schedules.support import tick_all
from tests.server.conftest import Surfer

HOSTILE = "<script>alert(1)</script>\"'&{{7*7}}"
ROUTES = [
    route for part in dashboard.PARTS for route in part.router.routes if isinstance(route, APIRoute)
]
OPEN = {"/static/{name:path}", "/login", "/logout", "/preferences"}
ASKED = [route for route in ROUTES if route.path not in OPEN]


def methods(route: APIRoute) -> set[str]:
    return route.methods or set()


def scope_of(route: APIRoute) -> str:
    """The scope that a route needs: of several that are asked for, the one that allows most."""
    found = [str(scope) for scope in _scopes(route.dependant)]
    return next((scope for scope in ("admin", "operate", "enqueue", "read") if scope in found), "")


@pytest.fixture
def operator(shop: Duly, surfer: Surfer) -> Surfer:
    surfer.log_in(shop.tokens.create("op", ["operate"]).secret)
    return surfer


@pytest.fixture
def ids(shop: Duly) -> dict[str, str]:
    """Things of ann's, by the names that paths have for them."""

    @shop.action
    def take(ctx: Ctx, event_id: str) -> None: ...

    shop.webhook("in", source=Bearer(secrets=["s3cret"]), process=take, owner="ann")
    shop.functions.publish()
    greet = shop.function("greet")
    event = shop.webhooks.receive("in", [("authorization", "Bearer s3cret")], b"{}")
    schedule = shop.schedules.of("ann").create("hourly", greet.bind("ann"), every=3600)
    calendar = shop.calendars.of("ann").create("closed", "skip_dates", dates=["2026-12-24"])
    return {
        "schedule_id": schedule.id,
        "job_id": shop.run(greet.using(owner="ann"), "ann").id,
        "calendar_id": calendar.id,
        "gateway_id": shop.gateways.of("ann").add("edge", "http://127.0.0.1:9/").id,
        "cron_id": "none",
        "event_id": event.event_id or "",
        "token_id": shop.tokens.create("hers", ["read"], owner="ann").token.id,
        "name": "greet",
        "format": "csv",
        "verb": "disable",
    }


FORMS = {
    "/schedules/bulk": {"verb": "disable"},
    "/jobs/bulk": {"verb": "cancel"},
    "/schedules/{schedule_id}/backfill": {
        "start": "2025-12-31T00:00:00",
        "end": "2025-12-31T00:30:00",
    },
}


def ask(surfer: Surfer, route: APIRoute, ids: dict[str, str]) -> Any:
    path = re.sub(r"{(\w+)(:path)?}", lambda found: ids[found[1]], route.path)
    if "GET" in methods(route):
        return surfer.get(path)
    chosen = {"id": ids["job_id" if "jobs" in path else "schedule_id"]}
    return surfer.post(path, **FORMS.get(route.path, {}), **chosen)


# Who may do what ---------------------------------------------------------------------------------


def test_every_route_says_which_scope_it_needs():
    assert {route.path for route in ROUTES if not scope_of(route)} == OPEN
    writing = [route for route in ASKED if "POST" in methods(route)]
    assert {scope_of(route) for route in writing} == {"admin", "operate", "enqueue"}


@on_sqlite
def test_nobody_gets_in_without_a_token(surfer, ids):
    for route in ASKED:
        answer = ask(surfer, route, ids)
        if route.path == "/live":
            assert answer.status_code == 401
        else:
            assert answer.status_code == 303, route
            assert answer.headers["location"].startswith("/login")


@on_sqlite
@pytest.mark.parametrize("scope", list(Scope))
def test_a_scope_allows_what_it_says(shop, surfer, ids, scope):
    surfer.log_in(shop.tokens.create("x", [scope]).secret)
    holder = Principal("x", frozenset({scope}))
    for route in ASKED:
        if route.path == "/live":
            continue  # a stream; the events have tests of their own
        # A page, also one that an action leads to, is only for those who may read.
        may = holder.may(Scope(scope_of(route))) and holder.may(Scope.READ)
        answer = ask(surfer, route, ids)
        assert (answer.status_code != 403) == may, (route, answer.text)
        assert answer.status_code != 500, route


@on_sqlite
def test_an_owner_finds_nothing_of_others(shop, surfer, ids):
    surfer.log_in(shop.tokens.create("eve", ["admin"], owner="eve").secret)
    for route in ASKED:
        if "_id}" in route.path:
            # Some look at the form before they look for the thing.
            assert ask(surfer, route, ids).status_code in (403, 404, 422), route
    assert shop.schedules.get(ids["schedule_id"]).enabled
    assert shop.job(ids["job_id"]).state == "pending"
    assert shop.calendars.get(ids["calendar_id"])
    assert shop.tokens.list(limit=10)[0].revoked is None


def test_lists_show_an_owner_only_their_own(shop, surfer, ids):
    greet = shop.function("greet")
    hers = shop.schedules.of("eve").create("of eve", greet.bind("eve"), every=3600)
    surfer.log_in(shop.tokens.create("eve", ["operate"], owner="eve").secret)
    overview, schedules = surfer.get("/").text, surfer.get("/schedules").text
    for page in (overview, schedules):
        assert "of eve" in page
        assert "hourly" not in page
    assert ids["job_id"] not in surfer.get("/jobs").text
    assert "hourly" not in surfer.get("/schedules.csv").text
    page = surfer.done("/schedules/bulk", verb="disable", id=ids["schedule_id"], back="/schedules")
    assert "no schedule" in page
    assert shop.schedules.get(ids["schedule_id"]).enabled
    assert "Ticker lag" not in overview, "that is everybody's"
    surfer.done("/schedules/bulk", verb="disable", id=hers.id, back="/schedules")
    assert not shop.schedules.get(hers.id).enabled


def test_who_may_only_look_is_shown_no_actions(shop, surfer, ids):
    surfer.log_in(shop.tokens.create("r", ["read"]).secret)
    job, schedule = f"/jobs/{ids['job_id']}", f"/schedules/{ids['schedule_id']}"
    for path in ("/schedules", "/jobs", schedule, job):
        page = surfer.get(path).text
        actions = set(re.findall(r'<form method="post" action="([^"]+)"', page))
        assert {action for action in actions if action not in ("/preferences", "/logout")} <= {
            "/schedules/bulk",
            "/jobs/bulk",
        }
        assert 'name="verb"' not in page
        assert "Changes</h2>" not in page


def test_read_only_is_for_everybody(shop, ids):
    with TestClient(make_asgi(shop, auth="open", read_only=True)) as client:
        surfer = Surfer(client)
        assert 'name="verb"' not in surfer.get("/jobs").text
        assert surfer.post(f"/jobs/{ids['job_id']}/cancel").status_code == 403
        assert client.post(f"/api/v1/jobs/{ids['job_id']}/cancel").status_code == 403
        assert client.get("/api/v1/jobs").status_code == 200
    assert shop.job(ids["job_id"]).state == "pending"


# Logging in --------------------------------------------------------------------------------------


def test_a_token_opens_a_session_and_revoking_it_ends_that(shop, surfer):
    made = shop.tokens.create("ops", ["read"])
    asked = surfer.get("/jobs?state=failed")
    assert asked.headers["location"] == "/login?next=%2Fjobs%3Fstate%3Dfailed"
    answer = surfer.log_in(made.secret)
    assert (answer.status_code, answer.headers["location"]) == (303, "/schedules")
    cookie = next(c for c in answer.headers.get_list("set-cookie") if c.startswith(SESSION))
    assert "HttpOnly" in cookie
    assert "SameSite=lax" in cookie
    assert surfer.get("/jobs").status_code == 200
    assert surfer.client.get("/api/v1/jobs").status_code == 200, "the same session"
    shop.tokens.revoke(made.token.id)
    assert surfer.get("/jobs").status_code == 303


def test_logging_out_ends_the_session(shop, operator):
    assert operator.get("/jobs").status_code == 200
    operator.post("/logout")
    assert SESSION not in operator.client.cookies
    assert operator.get("/jobs").status_code == 303


def test_a_wrong_token_is_refused_on_the_page(surfer):
    answer = surfer.log_in("duly_wrong")
    assert answer.status_code == 401
    assert "This token is not valid" in answer.text
    assert SESSION not in surfer.client.cookies


@pytest.mark.parametrize("next", ["//evil.example", "https://evil.example", "/\\evil.example", ""])
def test_nobody_is_led_elsewhere(shop, surfer, next):
    secret = shop.tokens.create("ops", ["read"]).secret
    assert surfer.post("/login", token=secret, next=next).headers["location"] == "/"


def test_the_application_around_may_say_who_it_is(shop, ids):
    def who(request: Request) -> Principal | None:
        user = request.cookies.get("user")
        return None if user is None else Principal(user, frozenset({Scope.OPERATE}))

    host = FastAPI()
    host.mount("/ops", make_asgi(shop, auth=who))
    with TestClient(host, cookies={"user": "ada"}) as client:
        page = client.get("/ops/jobs")
        assert page.status_code == 200
        addresses = re.findall(r'(?:href|src|action|hx-get)="(/[^"]*)"', page.text)
        assert addresses
        assert all(address.startswith("/ops/") for address in addresses)
        assert client.get(addresses[0]).status_code == 200
        form = {"csrf": re.findall(r'name="csrf" value="([^"]+)"', page.text)[0]}
        done = client.post(f"/ops/jobs/{ids['job_id']}/cancel", data=form, follow_redirects=False)
        assert done.headers["location"] == f"/ops/jobs/{ids['job_id']}"
        entry = shop.store.audit_of(f"job:{ids['job_id']}")[0]
        assert (entry.action, entry.actor) == ("job.cancel", "ada")


# Forms -------------------------------------------------------------------------------------------


def test_a_form_of_another_page_does_nothing(shop, operator, ids):
    path = f"/jobs/{ids['job_id']}/cancel"
    send: Callable[..., Any] = operator.client.post
    assert send(path, data={"other": "x"}).status_code == 403
    assert send(path, data={"csrf": "x"}).status_code == 403
    right = {"csrf": operator.client.cookies["duly_csrf"]}
    foreign = {"Origin": "https://evil.example"}
    assert send(path, data=right, headers=foreign).status_code == 403
    assert send(path, json=right).status_code == 415
    assert shop.job(ids["job_id"]).state == "pending"
    operator.post(path)
    assert shop.job(ids["job_id"]).state == "canceled"


def test_pages_are_strict_about_what_they_load(operator):
    for path in ("/", "/schedules", "/jobs", "/login", "/jobs/none"):
        answer = operator.get(path)
        policy = answer.headers["content-security-policy"]
        assert "default-src 'none'; script-src 'self'; style-src 'self';" in policy
        assert "unsafe" not in policy
        assert " style=" not in answer.text
        assert "<style" not in answer.text
        assert not re.search(r"<script(?! src=)", answer.text)
        assert not re.search(r"\son[a-z]+=", answer.text)


def test_what_pages_load_may_be_kept(operator):
    page = operator.get("/").text
    for address in re.findall(r'(?:href|src)="(/static/[^"]+)"', page):
        answer = operator.get(address)
        assert answer.status_code == 200
        assert "immutable" in answer.headers["cache-control"]
    assert operator.get("/static/../pages.py").status_code == 404
    assert operator.get("/static/vendor/README.md").status_code == 404


# What pages show ---------------------------------------------------------------------------------


def test_hostile_text_is_text(shop, operator):
    @shop.action
    def fails(ctx: Ctx, text: str) -> None:
        raise ValueError(text)

    shop.functions.publish()
    calendar = shop.calendars.create(HOSTILE, "skip_dates", dates=["2026-12-24"])
    schedule = shop.schedules.create(
        HOSTILE,
        fails.bind(HOSTILE),
        every=3600,
        calendar=calendar.name,
        note=HOSTILE,
        condition={"/last_24h_stats/failed": {"neq": HOSTILE}},
        by=HOSTILE,
    )
    shop.schedules.disable(schedule.id, note=HOSTILE, by=HOSTILE)
    job = shop.run(fails.using(queue=HOSTILE, tags=[HOSTILE], owner=HOSTILE), HOSTILE)
    shop.pause(HOSTILE, by=HOSTILE)
    for path in (
        "/",
        "/schedules",
        f"/schedules?search={HOSTILE}&function={HOSTILE}",
        f"/schedules/{schedule.id}",
        f"/schedules/{schedule.id}?condition={HOSTILE}",
        f"/schedules/{schedule.id}/edit",
        "/jobs",
        f"/jobs?function={HOSTILE}&queue={HOSTILE}&owner={HOSTILE}",
        f"/jobs/{job.id}",
        f"/jobs/{HOSTILE.replace('/', '')}",
        f"/login?next={HOSTILE}",
    ):
        page = operator.client.get(path).text
        assert "<script>alert" not in page
        assert "49" not in re.findall(r"&amp;(49)", page)
        assert "&lt;script&gt;alert(1)" in page or path == "/"


def test_what_is_redacted_stays_so(shop, operator):
    @shop.action
    def pay(ctx: Ctx, card: Annotated[str, Redact], amount: int) -> None: ...

    shop.functions.publish()
    job = shop.run(pay, "4111-1111", 5)
    schedule = shop.schedules.create("pay", pay.bind("4111-1111", 5), every=3600)
    for path in (f"/jobs/{job.id}", f"/schedules/{schedule.id}", f"/schedules/{schedule.id}/edit"):
        page = operator.get(path).text
        assert "4111" not in page
        assert "***" in page


def fields_of(page: str) -> dict[str, str]:
    """What the form of a page that edits something would send, unchanged."""
    body = page[page.index('id="edit"') :].partition("</form>")[0]
    fields = dict(re.findall(r'<input[^>]*name="(\w+)"[^>]*value="([^"]*)"', body))
    areas = re.findall(r'<textarea[^>]*name="(\w+)"[^>]*>([^<]*)<', body)
    fields |= {name: html.unescape(text) for name, text in areas}
    for name, options in re.findall(r'<select[^>]*name="(\w+)"[^>]*>(.*?)</select>', body, re.S):
        fields |= dict.fromkeys([name], *re.findall(r'value="(\w*)" selected', options))
    return fields


def test_what_is_redacted_stays_what_it_was_when_something_else_is_edited(shop, operator, surfer):
    @shop.action
    def pay(ctx: Ctx, card: Annotated[str, Redact], amount: int) -> None: ...

    shop.functions.publish()
    turns = [{"card": "4111", "amount": 1}, {"card": "4222", "amount": 2}]
    made = shop.schedules.create("pay", pay.bind("4000", 5), every=3600, rotation=turns)
    path = f"/schedules/{made.id}/edit"
    form = fields_of(operator.get(path).text)
    args = json.loads(form["args"]) | {"amount": 6}
    turned = json.dumps(json.loads(form["rotation"])[::-1])
    form |= {"args": json.dumps(args), "rotation": turned, "do": "save"}

    assert operator.post(path, **form).status_code == 303
    record = shop.store.schedule(made.id)
    assert json.loads(record.args) == {"card": "4000", "amount": 6}
    assert json.loads(record.rotation) == turns[::-1]

    surfer.log_in(shop.tokens.create("caller", ["read", "enqueue"]).secret)
    job = shop.run(pay, "4000", 5)
    again = surfer.post(f"/jobs/{job.id}/again", args='{"card": "***", "amount": 7}')
    assert again.status_code == 303, again.text
    stored = shop.store.get(again.headers["location"].rpartition("/")[2])
    assert json.loads(stored.args) == {"card": "4000", "amount": 7}


def test_the_times_of_a_form_are_those_of_its_page(shop, operator, clock):
    end = from_ms(clock.now() + 3 * 86_400_000)
    made = shop.schedules.create("ends", shop.function("greet").bind("x"), every=600, end_at=end)
    path = f"/schedules/{made.id}/edit"
    form = fields_of(operator.get(f"{path}?tz=Asia/Tokyo").text)
    operator.get("/jobs?tz=UTC")  # in another tab

    assert operator.post(path, **form | {"note": "soon", "do": "save"}).status_code == 303
    changed = shop.schedules.get(made.id)
    assert (changed.note, changed.end_at) == ("soon", end)


@pytest.mark.spec("N79", "N80")
def test_a_rule_and_several_triggers_are_edited_as_text(shop, operator):
    call = shop.function("greet").bind("x")
    rule = Rule("FREQ=WEEKLY;BYDAY=MO", "2026-07-06T09:00", "Asia/Tokyo")
    made = shop.schedules.create("pay", call, trigger=rule)
    assert "FREQ=WEEKLY;BYDAY=MO" in operator.get(f"/schedules/{made.id}").text
    assert "Every week on Monday at 09:00" in operator.get("/schedules").text
    path = f"/schedules/{made.id}/edit"
    form = fields_of(operator.get(path).text)
    assert (form["kind"], json.loads(form["trigger"])) == ("trigger", encode(rule))
    # Only a note: the trigger stays as it is.
    assert operator.post(path, **form | {"note": "n", "do": "save"}).status_code == 303
    assert shop.schedules.get("pay").trigger == rule
    several = AnyOf(rule, Cron("0 9 * * *", spread="pay"))
    form = fields_of(operator.get(path).text) | {"trigger": json.dumps(encode(several))}
    previewed = operator.post(path, **form, do="preview").text
    assert "Changed: trigger" in previewed
    assert 'class="added"' in previewed
    assert operator.post(path, **form | {"do": "save"}).status_code == 303
    assert shop.schedules.get("pay").trigger == several
    form = fields_of(operator.get(path).text) | {"trigger": '{"kind": "rule"}', "do": "save"}
    assert "rule: a trigger of kind rule needs it" in operator.post(path, **form).text
    form |= {"kind": "cron", "cron": "0 10 * * *", "tz": "UTC"}
    assert operator.post(path, **form).status_code == 303
    assert shop.schedules.get("pay").trigger.expression == "0 10 * * *"


@pytest.mark.spec("R19")
def test_a_form_that_makes_an_interval_of_a_cron_keeps_the_zone(shop, operator):
    call = shop.function("greet").bind("x")
    made = shop.schedules.create("nine", call, cron="0 9 * * *", tz="Asia/Tokyo")
    path = f"/schedules/{made.id}/edit"
    for changes in ({"kind": "every", "every": "1h30m"}, {"kind": "cron", "cron": "0 10 * * *"}):
        form = fields_of(operator.get(path).text) | changes | {"do": "save"}
        assert operator.post(path, **form).status_code == 303
        assert shop.schedules.get("nine").tz == "Asia/Tokyo"
    assert shop.schedules.get("nine").trigger.expression == "0 10 * * *"


def test_the_zone_of_a_token_holds_until_another_is_chosen(shop, surfer):
    surfer.log_in(shop.tokens.create("ops", ["read"], tz="Asia/Tokyo").secret)
    page = surfer.get("/jobs").text
    assert 'value="Asia/Tokyo"' in page
    assert "data-has-zone" in page, "the browser's own is not taken instead"
    assert 'value="Europe/Berlin"' in surfer.get("/jobs?tz=Europe/Berlin").text
    assert 'value="Europe/Berlin"' in surfer.get("/jobs").text


def test_times_are_in_the_zone_of_whoever_looks(shop, operator, ids):
    page = operator.get("/schedules?tz=Asia/Tokyo").text
    assert "(Asia/Tokyo)" in page
    assert 'value="Asia/Tokyo"' in page
    assert "(Asia/Tokyo)" in operator.get("/jobs").text, "it is remembered"
    operator.post("/preferences", tz="Europe/Berlin", back="/jobs")
    assert "(Europe/Berlin)" in operator.get("/jobs").text
    assert "no time zone" in operator.done("/preferences", tz="Nowhere/Land", back="/jobs").lower()
    assert 'data-theme="dark"' in operator.done("/preferences", theme="dark", back="/jobs")
    assert "each day in UTC" in operator.get(f"/schedules/{ids['schedule_id']}").text


def test_lists_come_as_files(shop, operator, ids):
    shop.run(shop.function("greet"), "=1+1")
    shop.schedules.create("=cmd()", shop.function("greet").bind("x"), every=3600)
    rows = list(csv.DictReader(io.StringIO(operator.get("/schedules.csv").text)))
    assert [row["key"] for row in rows] == ["hourly", "'=cmd()"]
    jobs = operator.get("/jobs.json?function=greet").json()
    assert {job["args"]["name"] for job in jobs} == {"ann", "=1+1"}
    assert operator.get("/jobs.xml").status_code == 422
    assert operator.get("/jobs.csv?state=failed").text.strip() == ""


@pytest.mark.parametrize(
    "text",
    ["=1", " =1", "\t\n @x", "+1", "\r", "\u00a0-2", "\nx", "＝1+1", "＋1", " －1", "＠SUM(1)"],
)
def test_no_cell_is_a_formula(text):
    file = export([{"cell": text}, {"cell": "1-2"}], "x", "csv", complete=True).body
    rows = csv.DictReader(io.StringIO(bytes(file).decode(), newline=""))
    assert [row["cell"] for row in rows] == [f"'{text}", "1-2"]


def test_no_cell_of_a_spreadsheet_that_separates_by_semicolon_is_a_formula():
    file = export([{"cell": "a;=1+1"}], "x", "csv", complete=True).body
    rows = csv.reader(io.StringIO(bytes(file).decode(), newline=""), delimiter=";")
    assert list(rows) == [["cell"], ["a;=1+1"]]


@on_sqlite
def test_what_is_long_is_in_no_list_and_a_file_has_its_limits(shop, operator, monkeypatch):
    long, short = (
        shop.run(shop.function("greet"), "x" * 9_000),
        shop.run(shop.function("greet"), "x"),
    )
    listed = {job["id"]: job["args"] for job in operator.get("/jobs.json").json()}
    assert listed == {long.id: {"…": "too long to be listed"}, short.id: {"name": "x"}}
    assert "x" * 9_000 in operator.get(f"/jobs/{long.id}").text
    longest = shop.run(shop.function("greet"), "x" * 1_000_000)
    page = operator.get(f"/jobs/{longest.id}").text
    assert "The first 100,000 of 1,000,016 characters" in page
    assert ("x" * 90_000 in page, "<textarea" in page, len(page) < 150_000) == (True, False, True)
    longest.cancel()
    monkeypatch.setattr("duly.server.dashboard.views.jobs.FILE_PAGE", 1)
    assert operator.get("/jobs.csv").headers["x-duly-complete"] == "true"
    monkeypatch.setattr("duly.server.dashboard.exports.MAX_BYTES", 100)
    cut = operator.get("/jobs.json")
    assert (len(cut.json()), cut.headers["x-duly-complete"]) == (1, "false")


@pytest.mark.spec("R66")
@on_sqlite
def test_a_result_of_eight_mebibytes_is_served_whole_and_shown_in_part(shop, operator, hire):
    name = "x" * (4 * 1024 * 1024 - len("hello, ") - 1)
    job = shop.run(shop.function("greet"), name, times=2)
    hire().work()
    assert len(shop.store.get(job.id).result) == 8 * 1024 * 1024
    with TestClient(make_asgi(shop, auth="open")) as client:
        assert client.get(f"/api/v1/jobs/{job.id}").json()["result"] == f"hello, {name}" * 2
        (listed,) = client.get("/api/v1/jobs").json()["items"]
        assert listed["result"] == {"…": "too long to be listed"}
    page = operator.get(f"/jobs/{job.id}").text
    assert "The first 100,000 of 8,388,608 characters" in page
    assert ("hello, x" in page, len(page) < 300_000) == (True, True)


@pytest.mark.spec("N51")
def test_the_bar_of_a_job_that_succeeded_is_full(shop, operator, hire):
    @shop.action
    def count(ctx: Ctx) -> None:
        ctx.progress(0.5, "half")

    job = shop.run(count)
    hire().work()
    page = operator.get(f"/jobs/{job.id}").text
    assert '<progress max="1" value="1.0"' in page
    assert "100 % · half" in page


def test_a_list_reads_no_job_twice(shop, operator, monkeypatch):
    for _ in range(3):
        shop.run(shop.function("greet"), "ann")
    monkeypatch.setattr(type(shop.core), "get", None)
    assert len(operator.get("/jobs.json").json()) == 3
    assert operator.get("/jobs").text.count('id="row-') == 3


def test_a_page_that_asks_for_itself_leaves_the_message_for_whoever_reads(shop, operator, ids):
    operator.post(f"/jobs/{ids['job_id']}/cancel")
    live = operator.get("/jobs", headers={"X-Duly-Live": "1"})
    assert "Job canceled" not in live.text
    assert "Job canceled" in operator.get("/jobs").text
    assert "Job canceled" not in operator.get("/jobs").text


def test_what_a_page_asks_while_somebody_types_saves_nothing(shop, operator, ids):
    schedule = shop.schedules.get(ids["schedule_id"])
    path = f"/schedules/{schedule.id}/edit"
    fields = {"kind": "every", "every": "2h", "overlap": "skip", "catch_up": "10", "do": "save"}
    fields |= {"args": '{"name": "ann"}', "version": str(schedule.version)}
    # The button has the focus, and so htmx sends its name.
    operator.client.headers["HX-Request"] = "true"
    assert operator.post(path, **fields).status_code == 200
    assert shop.schedules.get(schedule.id).version == schedule.version
    del operator.client.headers["HX-Request"]
    assert operator.post(path, **fields).status_code == 303
    assert shop.schedules.get(schedule.id).trigger.milliseconds == 7_200_000


def test_filters_and_pages_of_schedules(shop, operator, clock):
    greet = shop.function("greet")
    for n in range(60):
        shop.schedules.create(f"key {n:02d}", greet.bind("x"), every=3600 * (1 + n % 3))
    shop.schedules.disable("key 07")

    def keys(path: str) -> list[str]:
        page = operator.get(path).text
        return re.findall(r'<a class="strong"[^>]*>(key \d+)</a>', page)

    first = operator.get("/schedules").text
    following = re.search(r'href="([^"]+)" rel="next"', first)
    assert following is not None
    seen = keys("/schedules") + keys(following[1].replace("&amp;", "&"))
    assert seen == [f"key {n:02d}" for n in range(60)]
    assert keys("/schedules?search=KEY+1") == [f"key {n}" for n in range(10, 20)]
    assert keys("/schedules?status=disabled") == ["key 07"]
    assert keys("/schedules?status=enabled&search=key+07") == []
    clock.advance(1)
    due = keys("/schedules?due=1")
    assert len(due) == 20
    assert operator.get("/schedules?status=odd").status_code == 422
    assert operator.get("/schedules?after=odd").status_code == 422


def test_a_skip_is_explained_in_words_before_and_after(shop, operator, clock):
    tomorrow = clock.now() // 86_400_000 + 1
    day = datetime.fromtimestamp(tomorrow * 86_400, UTC).date().isoformat()
    shop.calendars.create("plant", "skip_dates", dates={day: "Founders' day", "2031-12-24": ""})
    bound = shop.function("greet").bind("x")
    schedule = shop.schedules.create("k", bound, cron="0 12 * * *", calendar="plant")
    told = f"{day} is Founders&#39; day in plant"

    page = operator.get(f"/schedules/{schedule.id}").text
    assert page.count(f'<td data-label="Detail">{told}') == 1
    clock.advance(2 * 86_400)
    tick_all(shop)
    assert told in operator.get(f"/schedules/{schedule.id}").text.partition('id="ledger-list"')[2]


# What nobody should send -------------------------------------------------------------------------


def multipart(*parts: bytes) -> dict[str, Any]:
    body = b"".join(b"--x\r\n" + part + b"\r\n" for part in parts) + b"--x--\r\n"
    return {"content": body, "headers": {"content-type": "multipart/form-data; boundary=x"}}


def named(name: str, content: bytes) -> bytes:
    return b'Content-Disposition: form-data; name="%s"\r\n\r\n%s' % (name.encode(), content)


def test_a_form_with_files_is_read_as_any_other(shop, surfer):
    surfer.client.get("/login")
    csrf = surfer.client.cookies["duly_csrf"].encode()
    secret = shop.tokens.create("ada", ["read"]).secret.encode()
    sent = multipart(
        named("csrf", csrf),
        b'content-disposition: form-data; name="next"; filename="name.txt"\r\n'
        b"Content-Type: text/plain\r\n\r\n/jobs",
        named("token", secret),
    )
    answer = surfer.client.post("/login", **sent, follow_redirects=False)
    assert (answer.status_code, answer.headers["location"]) == (303, "/jobs")


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (multipart(b"Content-Disposition: form-data; " + b"a=b;" * 200_000), 400),
        (multipart(*[b"\r\n"] * 100_000), 413),
        (multipart(b"no header at all"), 400),
        ({"content": b"x", "headers": {"content-type": "multipart/form-data"}}, 400),
    ],
    ids=["a long header", "many parts", "no name", "no boundary"],
)
def test_a_form_that_is_none_is_refused_at_once(surfer, sent, status):
    began = time.process_time()
    assert surfer.client.post("/login", **sent).status_code == status
    assert time.process_time() - began < 2, "whoever is not known costs next to nothing"


@pytest.mark.parametrize(
    ("column", "text"),
    [
        ("policies", '{"overlap": "future"}'),
        ("override", '{"new": 1}'),
        ("trigger", "null"),
    ],
)
def test_a_schedule_that_cannot_be_read_hides_no_other(shop, operator, ids, db, column, text):
    db.execute(f"UPDATE @schedules SET {column} = ?", text)
    for path in ("/", "/schedules", "/schedules.csv", f"/schedules/{ids['schedule_id']}"):
        assert operator.get(path).status_code == 200, path
    for path in ("/api/v1/schedules", "/api/v1/observe/schedules"):
        assert operator.get(path).status_code == 200, path


def test_what_does_not_fit_is_said(shop, operator, ids):
    long = operator.done(f"/schedules/{ids['schedule_id']}/disable", note="x" * 2_001, back="/jobs")
    assert "note: String should have at most 2000 characters" in long
    far = f"{'9' * 23}.{ids['schedule_id']}"
    assert operator.get(f"/schedules?due=1&after={far}").status_code == 422


def test_who_may_only_look_sends_no_webhook_either(shop, ids):
    looking = TestClient(make_asgi(shop, read_only=True))
    sent = looking.post("/hooks/in", headers={"authorization": "Bearer s3cret"}, content=b"{}")
    assert sent.status_code == 404
    assert looking.post("/api/v1/dispatch/greet", json={}).status_code in (404, 405)
