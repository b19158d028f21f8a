"""duly.contrib.django.asgi: the dashboard for users who are logged in to Django."""

from __future__ import annotations

import importlib
import re
from typing import Any

import pytest
from starlette.testclient import TestClient

from duly import State
from duly.errors import InvalidOption
from duly.server import Principal, Scope
from tests.cli.processes import TOP
from tests.frameworks.django_processes import in_django
from tests.jobs.support import on_sqlite

ADA, BOB = {"username": "ada", "password": "tea"}, {"username": "bob", "password": "tea"}
LOGIN = "/admin/login/"


def add_users() -> None:
    from django.contrib.auth.models import User

    User.objects.create_user(**ADA, is_staff=True)
    User.objects.create_user(**BOB)


def site() -> Any:
    return importlib.import_module("project.asgi").application


def browser(application: Any = None, **options: Any) -> TestClient:
    served = application or site()
    return TestClient(served, "http://localhost", follow_redirects=False, **options)


def log_in(client: TestClient, user: dict[str, str], page: str = LOGIN) -> Any:
    """Fill in the form of Django's own login page."""
    form = client.get(page)
    assert form.status_code == 200, form.text
    csrf = re.findall(r'name="csrfmiddlewaretoken" value="([^"]+)"', form.text)[0]
    return client.post(page, data={**user, "csrfmiddlewaretoken": csrf})


def log_in_without_staff(client: TestClient) -> None:
    """The admin's login page is only for staff."""
    from django.test import Client

    other = Client()
    assert other.login(**BOB)
    client.cookies["sessionid"] = other.cookies["sessionid"].value


# Who gets in -------------------------------------------------------------------------------------


@pytest.mark.spec("N59")
@in_django
def test_staff_log_in_with_django_and_come_back_to_the_page():
    from shop.tasks import app, expire_order

    add_users()
    job = app.run_after(60, expire_order, 1)
    client = browser()
    asked = client.get(f"/ops/jobs/{job.id}?tz=UTC")
    assert asked.status_code == 303
    assert asked.headers["location"] == f"{LOGIN}?next=/ops/jobs/{job.id}%3Ftz%3DUTC"
    assert client.get("/ops/api/v1/jobs").status_code == 401

    came = log_in(client, ADA, asked.headers["location"])
    assert (came.status_code, came.headers["location"]) == (302, f"/ops/jobs/{job.id}?tz=UTC")
    page = client.get(came.headers["location"])
    assert (page.status_code, "ada" in page.text, "Log out" in page.text) == (200, True, False)
    csrf = re.findall(r'name="csrf" value="([^"]+)"', page.text)[0]
    done = client.post(f"/ops/jobs/{job.id}/cancel", data={"csrf": csrf})
    assert done.headers["location"] == f"/ops/jobs/{job.id}"
    assert app.job(job.id).state == State.CANCELED
    entry = client.get("/ops/api/v1/audit").json()["items"][0]
    assert (entry["action"], entry["actor"]) == ("job.cancel", "ada")
    assert client.get("/ops/tokens").status_code == 200, "staff may do everything"

    del client.cookies["sessionid"]
    assert client.get("/ops/jobs").status_code == 303


@pytest.mark.spec("N59")
@on_sqlite
@in_django
def test_a_user_who_is_not_staff_is_refused_without_a_redirect():
    add_users()
    client = browser()
    log_in_without_staff(client)

    for path in ("/ops/", "/ops/jobs", "/ops/tokens", "/ops/api/v1/jobs"):
        refused = client.get(path)
        assert (refused.status_code, "ada" in refused.text) == (403, False), path


@pytest.mark.spec("N59")
@on_sqlite
@in_django
def test_a_session_that_django_no_longer_accepts_opens_nothing():
    from django.contrib.auth.models import User
    from django.contrib.sessions.models import Session

    add_users()
    ada, client = User.objects.get(username="ada"), browser()

    def enters() -> bool:
        return client.get("/ops/jobs").status_code == 200

    log_in(client, ADA)
    assert enters()
    ada.set_password("coffee")
    ada.save()
    assert not enters()
    log_in(client, {**ADA, "password": "coffee"})
    assert enters()
    ada.is_active = False
    ada.save()
    assert not enters()
    ada.is_active = True
    ada.save()
    assert enters()
    Session.objects.all().delete()
    assert not enters()
    for key in ("", "short", "x" * 32, "%00", "="):
        client.cookies.clear()
        assert client.get("/ops/jobs", headers={"Cookie": f"sessionid={key}"}).status_code == 303


@pytest.mark.spec("N59")
@on_sqlite
@in_django
def test_looking_up_a_user_leaves_the_session_as_it_is():
    from django.test import override_settings

    add_users()
    client = browser()
    log_in(client, ADA)
    key = client.cookies["sessionid"]
    # Django itself gives such a session a new key, in a cookie that duly does not send.
    with override_settings(SECRET_KEY="new", SECRET_KEY_FALLBACKS=["only an example"]):
        for _ in range(2):
            assert client.get("/ops/jobs").status_code == 200
        assert client.cookies["sessionid"] == key
        assert client.get("/admin/").status_code == 200


@pytest.mark.spec("N59")
@on_sqlite
@in_django
def test_any_session_engine_will_do():
    from django.core.asgi import get_asgi_application
    from django.test import override_settings

    from duly.contrib.django import asgi

    add_users()
    for engine in ("cache", "cached_db", "file", "signed_cookies"):
        with override_settings(SESSION_ENGINE=f"django.contrib.sessions.backends.{engine}"):
            client = browser(asgi(get_asgi_application()))
            assert client.get("/ops/jobs").status_code == 303, engine
            log_in(client, ADA)
            assert client.get("/ops/jobs").status_code == 200, engine
            client.cookies.clear()
            client.cookies["sessionid"] = "x" * 32
            assert client.get("/ops/jobs").status_code == 303


@pytest.mark.spec("N59")
@on_sqlite
@in_django
def test_the_documented_function_says_what_each_user_may_do():
    from django.contrib.auth.models import Permission, User
    from django.core.asgi import get_asgi_application

    from duly.contrib.django import asgi

    page = (TOP / "docs/how-to/django.md").read_text(encoding="utf-8")
    (code,) = re.findall(r"^```text\n(from duly\.server.*?)^```$", page, re.M | re.S)
    names: dict[str, Any] = {"get_asgi_application": get_asgi_application, "asgi": asgi}
    exec(code, names)

    add_users()
    client = browser(names["application"])
    log_in_without_staff(client)
    assert client.get("/ops/jobs").status_code == 403
    may_change = Permission.objects.get(codename="change_order")
    User.objects.get(username="bob").user_permissions.add(may_change)
    assert client.get("/ops/jobs").status_code == 200
    assert client.get("/ops/tokens").status_code == 403


@on_sqlite
@in_django
def test_whoever_holds_a_token_needs_no_user():
    from duly.contrib.django import app

    secret = app.tokens.create("ci", ["read"]).secret
    headers = {"Authorization": f"Bearer {secret}"}
    assert browser().get("/ops/api/v1/jobs", headers=headers).status_code == 200


# The rest of the site ----------------------------------------------------------------------------


@pytest.mark.spec("N59")
@on_sqlite
@in_django
def test_django_answers_everywhere_else():
    application = site()
    for root in ("", "/site"):
        client = browser(application, root_path=root)
        redirected = client.get(f"{root}/ops")
        assert (redirected.status_code, redirected.headers["location"]) == (307, f"{root}/ops/")
        assert client.get(f"{root}/ops/healthz").json() == {"ok": True}
        document = client.get(f"{root}/ops/api/v1/openapi.json").json()
        assert document["servers"] == [{"url": f"{root}/ops"}]
        elsewhere = client.get(f"{root}/opsx")
        assert (elsewhere.status_code, "x-frame-options" in elsewhere.headers) == (404, False)
        assert client.post(f"{root}/orders/7/pay").json() == {"paid": False}
        assert client.get(f"{root}/admin/").headers["location"].startswith(f"{root}{LOGIN}?next=")


@on_sqlite
@in_django
def test_a_lookup_leaves_no_connection_of_djangos_open():
    from django.db.backends.signals import connection_created

    add_users()
    client, used = browser(), []
    log_in(client, ADA)

    def note(connection: Any, **_: object) -> None:
        used.append(connection)

    connection_created.connect(note)
    assert client.get("/ops/jobs").status_code == 200
    assert [connection.connection for connection in used] == [None]


# Configuration -----------------------------------------------------------------------------------


@pytest.mark.spec("N59")
@on_sqlite
@in_django
def test_the_login_page_is_the_one_in_the_settings_or_another():
    from django.core.asgi import get_asgi_application
    from django.test import override_settings
    from django.urls import reverse_lazy

    from duly.contrib.django import asgi

    django = get_asgi_application()
    for setting, given, expected in [
        ("/accounts/login/", None, "/accounts/login/?next=/ops/jobs"),
        ("/log-in?by=mail", None, "/log-in?by=mail&next=/ops/jobs"),
        (reverse_lazy("admin:login"), None, "/admin/login/?next=/ops/jobs"),
        ("/accounts/login/", "admin:login", "/admin/login/?next=/ops/jobs"),
        ("/accounts/login/", "https://sso.example/", "https://sso.example/?next=/ops/jobs"),
    ]:
        with override_settings(LOGIN_URL=setting):
            application = asgi(django, login_url=given)
        assert browser(application).get("/ops/jobs").headers["location"] == expected


@on_sqlite
@in_django
def test_the_options_of_the_server_apply():
    from django.core.asgi import get_asgi_application

    from duly.contrib.django import asgi

    application = asgi(get_asgi_application(), prefix="/a/b", only=["api"], hosts=["ops.example"])
    assert browser(application).get("/a/b/api/v1/jobs").status_code == 421
    ours = {"Host": "ops.example"}
    assert browser(application).get("/a/b/api/v1/jobs", headers=ours).status_code == 401
    assert browser(application).get("/a/b/jobs", headers=ours).status_code == 404


@pytest.mark.spec("N59")
@on_sqlite
@in_django
def test_a_wrong_configuration_is_refused():
    from django.apps import apps
    from django.core.asgi import get_asgi_application
    from django.core.exceptions import ImproperlyConfigured
    from django.test import modify_settings

    from duly.contrib.django import asgi

    django = get_asgi_application()
    for prefix in ("", "/", "ops", "/ops/"):
        with pytest.raises(InvalidOption, match="prefix: give a path such as /ops"):
            asgi(django, prefix=prefix)
    with pytest.raises(InvalidOption, match="login: give a path"):
        asgi(django, login_url="http://elsewhere.example/")
    with (
        modify_settings(INSTALLED_APPS={"remove": ["django.contrib.auth", "django.contrib.admin"]}),
        pytest.raises(ImproperlyConfigured, match=r"django\.contrib\.auth"),
    ):
        asgi(django)
    assert apps.is_installed("django.contrib.auth")


def test_an_access_function_gives_a_principal():
    from duly.contrib.django.server import staff

    class User:
        is_staff = True

        def get_username(self) -> str:
            return "ada"

    assert staff(User()) == Principal("ada", frozenset({Scope.ADMIN}))
