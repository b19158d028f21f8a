"""Code shared by all pages: the viewer, the time zone, rendering and error pages."""

from __future__ import annotations

import base64
import json
import secrets
from collections.abc import Callable, Coroutine, Mapping
from functools import partial
from typing import Annotated, Any, NamedTuple
from urllib.parse import quote, urlencode
from zoneinfo import ZoneInfo

from fastapi import Depends, Request
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup
from starlette.exceptions import HTTPException
from starlette.responses import HTMLResponse, RedirectResponse, Response

import duly
from duly.app import Duly
from duly.clock import from_ms
from duly.errors import DulyError
from duly.model.access import Principal, Scope
from duly.model.why_schedule import in_words
from duly.server.answers import Refused, readable, status_of
from duly.server.api.repeatable import MAX_KEY, Repeatable
from duly.server.auth import (
    NEXT,
    SESSION,
    App,
    Reader,
    authenticator_of,
    cookie_name,
    cookie_of,
)
from duly.server.dashboard import static, svg, times
from duly.server.dashboard.forms import CSRF, Form, read_form
from duly.server.guard import SAFE
from duly.server.state import root_of
from duly.zones import zone

TZ, THEME, FLASH = "duly_tz", "duly_theme", "duly_flash"
THEMES = ("auto", "light", "dark")
YEAR_SECONDS = 31_536_000
MAX_FLASH = 600
LIVE = "x-duly-live"
"""The header that a page sends when it fetches itself again to show changes."""

HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; "
    "img-src 'self' data:; connect-src 'self'; form-action 'self'; base-uri 'none'; "
    "frame-ancestors 'none'",
    # Without an origin, a form would be treated as one from another site.
    "Referrer-Policy": "same-origin",
}


class Entry(NamedTuple):
    """A link in the navigation."""

    name: str
    path: str
    group: str
    scope: str = "read"
    for_owners: bool = True
    """Whether a viewer who is limited to one owner has anything to see there."""


NAVIGATION = [
    Entry("Overview", "/", "Observe"),
    Entry("Schedules", "/schedules", "Observe"),
    Entry("Jobs", "/jobs", "Observe"),
    Entry("Webhooks", "/webhooks", "Observe"),
    Entry("Functions", "/functions", "Operate"),
    Entry("Calendars", "/calendars", "Operate"),
    Entry("Queues", "/queues", "Operate"),
    Entry("Workers", "/workers", "Operate", for_owners=False),
    Entry("Gateways", "/gateways", "Operate"),
    Entry("Audit log", "/audit", "Govern", "operate", for_owners=False),
    Entry("Tokens", "/tokens", "Govern", "admin"),
]
"""In display order. A new view needs an entry here."""


# The viewer --------------------------------------------------------------------------------------


class Viewer:
    """The principal who requests a page, and their preferences."""

    def __init__(self, request: Request, app: Duly, who: Principal) -> None:
        self.request, self.app, self.who = request, app, who
        self.root = root_of(request)
        self.now = app.clock.now()
        self.zone = _zone_of(request, who)
        self.csrf = cookie_of(request, CSRF) or secrets.token_urlsafe(24)

    @property
    def tz(self) -> str:
        return self.zone.key

    @property
    def offset(self) -> str:
        return times.offset(from_ms(self.now).astimezone(self.zone))

    @property
    def cookies(self) -> dict[str, str]:
        """The names and the path of the cookies that the page's scripts write."""
        names = {"tz": TZ, "theme": THEME}
        return {
            **{what: cookie_name(self.request, name) for what, name in names.items()},
            "path": _cookie_path(self.request),
        }

    @property
    def theme(self) -> str:
        chosen = cookie_of(self.request, THEME)
        return chosen if chosen in THEMES else "auto"

    @property
    def path(self) -> str:
        """The path of this page, without the prefix under which the dashboard is mounted."""
        return str(self.request.scope["path"]).removeprefix(self.root) or "/"

    @property
    def here(self) -> str:
        """The path with its query; actions redirect back to it."""
        query = self.request.url.query
        return f"{self.path}?{query}" if query else self.path

    @property
    def is_live(self) -> bool:
        """Whether the page is fetching itself again."""
        return LIVE in self.request.headers

    def asked_to(self, form: Form) -> str:
        """The value of the button that was pressed; "" if there was none.

        While a form is being filled in, the page requests a preview of the changes, and htmx sends
        along whichever button has the focus.
        """
        return "" if "hx-request" in self.request.headers else form.text("do")

    @property
    def can_log_out(self) -> bool:
        """Whether the session is duly's own; the application ends its own sessions."""
        return bool(cookie_of(self.request, SESSION))

    def may(self, scope: str) -> bool:
        return self.who.may(Scope(scope))

    @property
    def navigation(self) -> dict[str, list[Entry]]:
        """The links that this viewer may see, by group."""
        groups: dict[str, list[Entry]] = {}
        for entry in NAVIGATION:
            if self.may(entry.scope) and (entry.for_owners or self.who.owner is None):
                groups.setdefault(entry.group, []).append(entry)
        return groups

    def url(self, path: str, **query: object) -> str:
        """A URL in the dashboard; parameters that are None or empty are left out."""
        return self.root + address(path, query)

    def with_query(self, **changes: object) -> str:
        """This page with other filters; None removes a filter."""
        query: dict[str, object] = dict(self.request.query_params)
        return self.root + address(self.path, query | changes)

    def as_file(self, path: str, format: str) -> str:
        """The URL that downloads the whole list behind this page as a file."""
        query: dict[str, object] = dict(self.request.query_params)
        return self.root + address(f"{path}.{format}", query | {"after": None, "before": None})

    def time(self, ms: int | None, *, exact: bool = False) -> Markup:
        return times.element(ms, self.now, self.zone, exact=exact)

    def in_zone(self, ms: int, name: str) -> str:
        """The date and time of day in a zone, with the year unless it is the current one."""
        local = from_ms(ms).astimezone(zone(name).info)
        year = "" if local.year == from_ms(self.now).astimezone(self.zone).year else " %Y"
        return f"{local:%a} {local.day} " + local.strftime(f"%b{year}, %H:%M:%S")


def address(path: str, query: Mapping[str, object]) -> str:
    given = {name: value for name, value in query.items() if value not in (None, "", False)}
    words = {name: "1" if value is True else value for name, value in given.items()}
    return quote(path, safe="/") + (f"?{urlencode(words)}" if words else "")


def _zone_of(request: Request, who: Principal) -> ZoneInfo:
    # Times in a form are in the zone of the page that showed it, even if another was chosen since.
    form: Form | None = getattr(request.state, "form", None)
    shown_in = None if form is None else form.given("shown_in")
    for name in (shown_in, request.query_params.get("tz"), cookie_of(request, TZ), who.tz):
        if name:
            try:
                return zone(name).info
            except DulyError:
                continue
    return zone("UTC").info


def _viewer(request: Request, app: App, who: Reader) -> Viewer:
    return Viewer(request, app, who)


def _form(request: Request) -> Form:
    form: Form = request.state.form
    return form


Viewing = Annotated[Viewer, Depends(_viewer)]
Sent = Annotated[Form, Depends(_form)]


# Rendering ---------------------------------------------------------------------------------------


def _json(value: Any) -> str:
    return json.dumps(readable(value), indent=2, ensure_ascii=False)


def _compact(value: Any) -> str:
    return json.dumps(readable(value), ensure_ascii=False)


def _amount(number: int, most: int = 10_000) -> str:
    """A count; one that reached the limit `most` is shown as such."""
    return f"{most:,}+" if number >= most else f"{number:,}"


def _words(name: str) -> str:
    """target_paused → target paused."""
    return name.replace("_", " ")


def _why(reason: str, detail: dict[str, Any] | None) -> str:
    """Why a tick was skipped, as a sentence."""
    return in_words(reason, detail or {})


PAGES = Environment(
    loader=PackageLoader(__package__ or "", "templates"),
    autoescape=True,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)
FILTERS: dict[str, Callable[..., str]] = {
    "json": _json,
    "compact": _compact,
    "amount": _amount,
    "words": _words,
    "why": _why,
    "duration": times.duration,
    "distance": times.distance,
}
PAGES.filters.update(FILTERS)  # pyright: ignore[reportUnknownMemberType]
# Macros see these globals, but not a page's own values.
GLOBALS: dict[str, Any] = {"duly_version": duly.__version__, "mark": svg.mark}
PAGES.globals.update(GLOBALS)  # pyright: ignore[reportUnknownMemberType]


def render(viewer: Viewer, template: str, status: int = 200, /, **values: Any) -> Response:
    """Render a page with the values that every page needs."""
    flash = None if viewer.is_live else _flash_of(viewer.request)
    text = PAGES.get_template(template).render(
        viewer=viewer,
        time=viewer.time,
        url=viewer.url,
        root=viewer.root,
        flash=flash,
        asset=partial(static.address, viewer.root),
        **values,
    )
    answer = HTMLResponse(text, status, HEADERS)
    if cookie_of(viewer.request, CSRF) != viewer.csrf:
        set_cookie(viewer.request, answer, CSRF, viewer.csrf, strict=True)
    if viewer.request.query_params.get("tz") == viewer.tz:
        set_cookie(viewer.request, answer, TZ, viewer.tz, seconds=YEAR_SECONDS, readable=True)
    if flash is not None:
        forget_cookie(viewer.request, answer, FLASH)
    return answer


def render_bare(
    request: Request, template: str, status: int = 200, /, **values: Any
) -> HTMLResponse:
    """Render a page that needs no login."""
    root = root_of(request)
    csrf = cookie_of(request, CSRF) or secrets.token_urlsafe(24)
    theme = cookie_of(request, THEME)
    text = PAGES.get_template(template).render(
        root=root,
        csrf=csrf,
        theme=theme if theme in THEMES else "auto",
        asset=partial(static.address, root),
        **values,
    )
    answer = HTMLResponse(text, status, HEADERS)
    if cookie_of(request, CSRF) != csrf:
        set_cookie(request, answer, CSRF, csrf, strict=True)
    return answer


def set_cookie(
    request: Request,
    answer: Response,
    name: str,
    value: str,
    *,
    seconds: int | None = None,
    strict: bool = False,
    readable: bool = False,
) -> None:
    """`readable`: the page's scripts can read it."""
    answer.set_cookie(
        cookie_name(request, name),
        value,
        max_age=seconds,
        path=_cookie_path(request),
        httponly=not readable,
        samesite="strict" if strict else "lax",
        secure=_is_encrypted(request),
    )


def forget_cookie(request: Request, answer: Response, name: str) -> None:
    answer.delete_cookie(cookie_name(request, name), path=_cookie_path(request))


def _cookie_path(request: Request) -> str:
    """The mount path, quoted as in a browser's requests: a header may hold only such text."""
    return quote(root_of(request), safe="/") or "/"


def _is_encrypted(request: Request) -> bool:
    # A client that lies here only keeps its own cookie from being sent.
    said = request.headers.get("x-forwarded-proto", "")
    return request.url.scheme == "https" or said.startswith("https")


# Redirects and messages --------------------------------------------------------------------------


def redirect(request: Request, path: str, text: str | None = None, kind: str = "done") -> Response:
    """Redirect to a page, which shows the message."""
    answer = RedirectResponse(root_of(request) + _own_path(path), 303)
    if text is not None:
        said = json.dumps({"kind": kind, "text": text[:MAX_FLASH]}).encode()
        set_cookie(request, answer, FLASH, base64.urlsafe_b64encode(said).decode(), seconds=60)
    return answer


def _own_path(path: str) -> str:
    """A path in the dashboard, never the URL of another site."""
    is_own = path.startswith("/") and not path.startswith("//") and "\\" not in path
    return path if is_own and path.isprintable() else "/"


def _flash_of(request: Request) -> dict[str, str] | None:
    try:
        said = json.loads(base64.urlsafe_b64decode(cookie_of(request, FLASH)))
        return {"kind": str(said["kind"]), "text": str(said["text"])}
    except (KeyError, ValueError, TypeError):
        return None


def once(viewer: Viewer, key: str | None = None) -> Repeatable:
    """For routes whose requests may be repeated: a form needs a key from its page for that."""
    path = f"{viewer.request.method} {viewer.path}"
    return Repeatable(viewer.app, path, key and key[:MAX_KEY])


# Errors ------------------------------------------------------------------------------------------


class PageRoute(APIRoute):
    """A page route: forms are read and checked, and errors are shown on a page."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()

        async def shown(request: Request) -> Response:
            try:
                if request.method not in SAFE:
                    request.state.form = await read_form(request)
                return await handle(request)
            except (Refused, DulyError, RequestValidationError, HTTPException) as error:
                return _refusal(request, error)

        return shown


def _refusal(
    request: Request, error: Refused | DulyError | RequestValidationError | HTTPException
) -> Response:
    status, text, hint = said_of(error)
    if status == 401:
        return _to_login(request)
    form: Form | None = getattr(request.state, "form", None)
    back = None if form is None else form.given("back")
    if back is not None and status != 403:
        return redirect(request, back, f"{text}. {hint}" if hint else text, "failed")
    return _error_page(request, status, text, hint)


def _to_login(request: Request) -> Response:
    where = _login_url(request)
    if LIVE in request.headers or "hx-request" in request.headers:
        # A script would follow a redirect by itself, and show the login page inside this one.
        return Response(status_code=401, headers={"HX-Redirect": where})
    return RedirectResponse(where, 303)


def _login_url(request: Request) -> str:
    """The login page, which leads back to the page that was requested."""
    page = "/"
    if request.method in SAFE:
        query = urlencode(request.query_params.multi_items())
        page = quote(_path_of(request), safe="/") + (f"?{query}" if query else "")
    root, login = quote(root_of(request), safe="/"), authenticator_of(request).login
    if login is None:
        return root + address("/login", {"next": page})
    return login.replace(NEXT, quote(_own_path(root + page), safe="/"))


def page_for(request: Request, status: int, text: str) -> Response | None:
    """The error page for a browser request that no page handled; None for other clients."""
    is_person = "text/html" in request.headers.get("accept", "")
    if not is_person or _path_of(request).startswith("/api/"):
        return None
    return _error_page(request, status, text)


def _error_page(request: Request, status: int, text: str, hint: str | None = None) -> Response:
    """An error page that sets no cookies, because the request is not authenticated."""
    root, theme = root_of(request), cookie_of(request, THEME)
    shown = PAGES.get_template("error.html").render(
        root=root,
        theme=theme if theme in THEMES else "auto",
        asset=partial(static.address, root),
        status=status,
        text=text,
        hint=hint,
    )
    return HTMLResponse(shown, status, HEADERS)


def said_of(
    error: Refused | DulyError | RequestValidationError | HTTPException,
) -> tuple[int, str, str | None]:
    """The status, the message and the hint."""
    if isinstance(error, Refused):
        return error.status, error.body.message, error.body.hint
    if isinstance(error, RequestValidationError):
        first = error.errors()[0]
        return 422, f"{first['loc'][-1]}: {first['msg']}", None
    if isinstance(error, HTTPException):
        return error.status_code, str(error.detail), None
    return status_of(error), str(error), getattr(error, "hint", None) or None


def _path_of(request: Request) -> str:
    return str(request.scope["path"]).removeprefix(root_of(request)) or "/"
