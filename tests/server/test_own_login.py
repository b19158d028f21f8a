"""The server in an application that logs its users in itself."""

from collections.abc import Iterator
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Mount, Route
from starlette.testclient import TestClient

from duly import Duly
from duly.errors import InvalidOption
from duly.model.access import Scope
from duly.server import Principal, make_asgi
from duly.server.auth import SESSION
from tests.jobs.support import on_sqlite

LOGIN = "/accounts/login/?next={next}"
SCOPES = {"ada": frozenset({Scope.OPERATE}), "eve": frozenset[Scope]()}


def who(request: Request) -> Principal | None:
    user = request.cookies.get("user")
    return None if user is None else Principal(user, SCOPES[user])


def log_in(request: Request) -> Response:
    answer = RedirectResponse(request.query_params["next"], 302)
    answer.set_cookie("user", request.query_params.get("user", "ada"))
    return answer


def hosting(app: Duly, prefix: str, **options: Any) -> Starlette:
    inner = make_asgi(app, auth=who, **options)
    return Starlette(routes=[Route("/accounts/login/", log_in), Mount(prefix, inner)])


@pytest.fixture
def browser(shop: Duly) -> Iterator[TestClient]:
    """A browser without a session, which follows no redirects."""
    host = hosting(shop, "/ops", login=LOGIN)
    with TestClient(host, headers={"Accept": "text/html"}, follow_redirects=False) as client:
        yield client


# Without a session -------------------------------------------------------------------------------


@pytest.mark.spec("N58")
@pytest.mark.parametrize(
    ("page", "next"),
    [
        ("/ops/", "/ops/"),
        ("/ops/jobs", "/ops/jobs"),
        ("/ops/jobs?state=failed&dead=1", "/ops/jobs%3Fstate%3Dfailed%26dead%3D1"),
        ("/ops/jobs?tag=a&tag=b", "/ops/jobs%3Ftag%3Da%26tag%3Db"),
        ("/ops/jobs?q=%26user%3Deve%23", "/ops/jobs%3Fq%3D%2526user%253Deve%2523"),
        ("/ops/jobs/%C3%A9%25%5C", "/ops/jobs/%25C3%25A9%2525%255C"),
    ],
)
def test_the_applications_login_leads_back_to_the_page(browser, page, next):
    asked = browser.get(page)
    assert (asked.status_code, asked.headers["location"]) == (303, f"/accounts/login/?next={next}")
    back = browser.get(asked.headers["location"])
    assert back.headers["location"] == page
    assert browser.get(page).status_code in (200, 404)


@on_sqlite
@pytest.mark.spec("N58")
def test_an_action_without_a_session_leads_to_the_overview(shop, browser):
    browser.cookies["user"] = "ada"
    browser.get("/ops/jobs")
    csrf = next(value for name, value in browser.cookies.items() if "csrf" in name)
    del browser.cookies["user"]
    job = shop.run(shop.function("greet"), "ann")
    answer = browser.post(f"/ops/jobs/{job.id}/cancel", data={"csrf": csrf})
    assert answer.headers["location"] == "/accounts/login/?next=/ops/"
    assert shop.job(job.id).state == "pending"


@on_sqlite
@pytest.mark.spec("N58")
def test_scripts_are_told_where_to_log_in(browser):
    for header in ("HX-Request", "X-Duly-Live"):
        answer = browser.get("/ops/jobs?dead=1", headers={header: "1"})
        assert (answer.status_code, answer.text) == (401, "")
        assert answer.headers["hx-redirect"] == "/accounts/login/?next=/ops/jobs%3Fdead%3D1"


@on_sqlite
@pytest.mark.spec("N58")
def test_clients_of_the_api_get_json_and_no_redirect(shop, browser):
    for path in ("/ops/api/v1/jobs", "/ops/live", "/ops/metrics"):
        refused = browser.get(path)
        assert (refused.status_code, refused.json()["error"]["code"]) == (401, "unauthorized")
    browser.cookies["user"] = "eve"
    refused = browser.get("/ops/api/v1/jobs")
    assert (refused.status_code, refused.json()["error"]["code"]) == (403, "forbidden")


@on_sqlite
@pytest.mark.spec("N58")
def test_no_path_leads_to_another_site(shop):
    host = hosting(shop, "/{tenant:path}", login=LOGIN)
    client = TestClient(host, follow_redirects=False)
    for path, next in [("/a/jobs", "/a/jobs"), ("//evil.example/jobs", "/")]:
        answer = client.get(f"http://testserver{path}")
        assert answer.headers["location"] == f"/accounts/login/?next={next}"


@on_sqlite
@pytest.mark.spec("N58")
def test_the_login_may_be_on_another_site(shop):
    login = "https://sso.example/start?rd=https%3A%2F%2Fops.example{next}"
    client = TestClient(hosting(shop, "/ops", login=login), follow_redirects=False)
    answer = client.get("/ops/jobs?dead=1")
    expected = "https://sso.example/start?rd=https%3A%2F%2Fops.example/ops/jobs%3Fdead%3D1"
    assert answer.headers["location"] == expected


# With a session ----------------------------------------------------------------------------------


@pytest.mark.spec("N58")
def test_a_user_who_may_do_nothing_is_refused_and_not_led_to_the_login(browser):
    browser.cookies["user"] = "eve"
    refused = browser.get("/ops/jobs")
    assert (refused.status_code, "Not allowed" in refused.text) == (403, True)
    for header in ("HX-Request", "X-Duly-Live"):
        assert browser.get("/ops/jobs", headers={header: "1"}).status_code == 403


@on_sqlite
def test_only_who_logged_in_with_a_token_can_log_out_here(shop, browser):
    browser.cookies["user"] = "ada"
    assert "Log out" not in browser.get("/ops/jobs").text
    del browser.cookies["user"]

    form = browser.get("/ops/login?next=/jobs")
    csrf = next(value for name, value in browser.cookies.items() if "csrf" in name)
    secret = shop.tokens.create("ops", ["read"]).secret
    assert form.status_code == 200, "a token still works"
    browser.post("/ops/login", data={"token": secret, "csrf": csrf, "next": "/jobs"})
    assert "Log out" in browser.get("/ops/jobs").text
    answer = browser.post("/ops/logout", data={"csrf": csrf})
    assert answer.headers["location"] == "/ops/login"
    assert not any(name.startswith(SESSION) for name in browser.cookies)


# Bad templates -----------------------------------------------------------------------------------


@on_sqlite
@pytest.mark.spec("N58")
@pytest.mark.parametrize(
    "login",
    [
        *("", "login", "login/?next={next}", "?next={next}", "javascript:alert(1)"),
        *("//evil.example/?next={next}", "/\\evil.example", "http://sso.example/?rd={next}"),
        *("https://", "https:///login", "ftp://sso.example/"),
        *("/log in", "/login\n", "/login\t", "/é", 7, b"/login"),
    ],
)
def test_what_is_no_login_page_is_refused(shop, login):
    with pytest.raises(InvalidOption, match=r"^login: give a path such as /login\?next={next}"):
        shop.asgi(auth=who, login=login)


@on_sqlite
@pytest.mark.spec("N58")
@pytest.mark.parametrize(
    "login",
    [
        *("/login?to={path}", "/login?next={next", "/login?next=next}", "/login?next={}"),
        *("/{next}", "/login/{next}?x=1", "https://{next}", "https://sso.example/{next}"),
        *("/login?next={next!r}", "/login?next={next:>9}", "/login?next={{next}}"),
    ],
)
def test_an_unknown_or_misplaced_placeholder_is_refused(shop, login):
    with pytest.raises(InvalidOption, match=r"login: .*{next}"):
        shop.asgi(auth=who, login=login)


@on_sqlite
@pytest.mark.spec("N58")
@pytest.mark.parametrize("auth", ["tokens", "open"])
def test_a_login_page_needs_a_function_that_knows_its_users(shop, auth):
    with pytest.raises(InvalidOption, match="login: also give auth="):
        shop.asgi(auth=auth, login=LOGIN)
