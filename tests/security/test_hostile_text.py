"""Whatever people and webhooks write, no element and no attribute of a page comes of it."""

import json
import re
from collections.abc import Iterable, Iterator
from contextlib import closing
from html.parser import HTMLParser
from typing import Any
from urllib.parse import quote

from starlette.testclient import TestClient

from duly import Ctx, Duly
from duly.server import make_asgi
from duly.webhooks import Bearer
from tests.jobs.support import Hire, on_sqlite

# Every one holds this word, so that it is known to have reached the page.
MARK = "xq7"
CORPUS = [
    "<script>xq7()</script>",
    "<SCRIPT SRC=//xq7.example/x.js></SCRIPT>",
    "<scr<script>ipt>xq7()</scr</script>ipt>",
    "</script><script>xq7()</script>",
    "</title><script>xq7()</script>",
    "</textarea><script>xq7()</script>",
    "</option></select><img src=x onerror=xq7()>",
    "</pre></code></td></table><xq7>",
    "</time><xq7 onclick=xq7()>",
    "-->]]><xq7><!--",
    "<!--xq7",
    "<![CDATA[<xq7>]]>",
    "<?xq7 ?>",
    "<img src=x onerror=xq7()>",
    "<img/src='x'/onerror=xq7()>",
    "<svg onload=xq7()>",
    "<svg><script>xq7()</script></svg>",
    "<svg><a xlink:href='javascript:xq7()'><rect/></a></svg>",
    "<math><mi//xlink:href='data:x,<script>xq7</script>'>",
    "<iframe srcdoc='<script>xq7()</script>'>",
    "<a href='javascript:xq7()'>x</a>",
    "<form action='//xq7.example'><button>",
    "<base href='//xq7.example/'>",
    "<meta http-equiv=refresh content='0;url=//xq7.example'>",
    "<link rel=stylesheet href=//xq7.example>",
    "<style>*{background:url(//xq7.example)}</style>",
    "<div hx-get='//xq7.example' hx-trigger=load>",
    "<details open ontoggle=xq7()>",
    '" autofocus onfocus="xq7()',
    '"><xq7 x="',
    "' onmouseover='xq7()",
    "'><xq7 x='",
    "` onmouseover=xq7() `",
    " onmouseover=xq7() x=",
    "javascript:xq7()",
    "JaVaScRiPt:xq7()//",
    "data:text/html,<script>xq7()</script>",
    "//xq7.example/",
    "&lt;xq7&gt;&#60;xq7&#62;",
    "&quot; onfocus=&quot;xq7()",
    "{{ xq7 * 7 }}{% raw %}${xq7}#{xq7}<%= xq7 %>",
    "\\u003cxq7\\u003e\\x3cxq7\\x3e",
    "%3Cxq7%3E%22%3E%3Cxq7%3E",
    "\ufe64xq7\ufe65 \uff1cxq7\uff1e",
    "+ADw-xq7+AD4-",
]
LOADING = {"href", "src", "action", "formaction", "xlink:href", "hx-get", "hx-post", "poster"}
LEADS_AWAY = re.compile(r"^(?://|/\\|(?!https?:)[a-z][a-z0-9+.-]*:)", re.IGNORECASE)

# Those that lead somewhere have to begin a text; four others at a time share one.
ALONE = [text for text in CORPUS if LEADS_AWAY.match(text)]
OTHERS = [text for text in CORPUS if text not in ALONE]
TEXTS = ALONE + [" ".join(OTHERS[n : n + 4]) for n in range(0, len(OTHERS), 4)]

Shape = tuple[str, tuple[str, ...]]


class Shapes(HTMLParser):
    """The elements of a page, each with the names of its attributes, and where they lead."""

    def __init__(self, page: str) -> None:
        super().__init__(convert_charrefs=True)
        self.shapes: set[Shape] = set()
        self.leading: set[str] = set()
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.shapes.add((tag, tuple(sorted(name for name, _ in attrs))))
        self.leading |= {value or "" for name, value in attrs if name in LOADING}

    def handle_comment(self, data: str) -> None:
        self.shapes.add(("<!--", (data,) if MARK in data else ()))

    def handle_pi(self, data: str) -> None:
        self.shapes.add(("<?", ()))

    def unknown_decl(self, data: str) -> None:
        self.shapes.add(("<![", ()))


def fill(shop: Duly, hire: Hire, texts: list[str]) -> list[str]:
    """Put each text into everything that has room for one; the pages that show it."""

    @shop.action
    def takes(ctx: Ctx, event_id: str) -> None: ...

    @shop.action(name="fails")
    def fails(ctx: Ctx, text: str) -> None:
        ctx.log(text)
        ctx.progress(0.5, text)
        raise ValueError(text)

    @shop.action(name="says")
    def says(ctx: Ctx, given: dict[str, str]) -> dict[str, str]:
        return given

    paths: list[str] = []
    for n, text in enumerate(texts):
        shop.action(name=text, queue=text)(lambda_of(text))
        shop.webhook(f"hook{n}", source=Bearer(secrets=["s"]), process=takes, owner=text)
    shop.functions.publish()
    for n, text in enumerate(texts):
        paths += [*things(shop, n, text, fails, says), *asked(text)]
    hire(shop).work()
    shop.pause(texts[0], by=texts[0])
    return [*paths, *LISTS]


def lambda_of(text: str) -> Any:
    def odd(ctx: Ctx, value: str = text) -> None: ...

    return odd


LISTS = (
    *("/", "/schedules", "/jobs", "/webhooks", "/functions", "/calendars", "/queues", "/workers"),
    *("/gateways", "/audit", "/tokens"),
)


def things(shop: Duly, n: int, text: str, fails: Any, says: Any) -> Iterator[str]:
    calendar = shop.calendars.of(text).create(
        text, "skip_dates", dates={"2026-12-24": text}, by=text
    )
    schedule = shop.schedules.of(text).create(
        text,
        fails.bind(text),
        every=3600,
        calendar=text,
        note=text,
        condition={"/last_24h_stats/failed": {"neq": text}},
        rotation=[{"text": text}, {"text": "other"}],
        by=text,
    )
    shop.schedules.disable(schedule.id, note=text, by=text)
    failed = shop.run(fails.using(tags=[text], owner=text), text)
    said = shop.run(says, {text: text})
    body = json.dumps({text: text, "type": text}).encode()
    headers = [("authorization", "Bearer s"), ("x-odd", text), ("user-agent", text)]
    event = shop.webhooks.receive(f"hook{n}", headers, body)
    shop.tokens.create(text, ["read"], owner=text, by=text)
    shop.endpoints.create(text, f"https://8.8.8.8/{quote(text)}", owner=text, by=text)
    shop.queues.pause(text, note=text, by=text)
    gateway = shop.gateways.add(text, f"http://127.0.0.1:1/{quote(text)}", owner=text, by=text)
    shop.functions.pause(text, note=text, by=text)
    yield f"/calendars/{calendar.id}?year=2026"
    yield f"/schedules/{schedule.id}"
    yield f"/schedules/{schedule.id}/edit"
    yield f"/jobs/{failed.id}"
    yield f"/jobs/{said.id}"
    yield f"/webhooks/{event.event_id}"
    yield f"/functions/{quote(text, safe='')}"
    if n == 0:  # it is asked each time, and its errors are the same
        yield f"/gateways/{gateway.id}"


def asked(text: str) -> Iterator[str]:
    """Pages that repeat what they were asked for."""
    word = quote(text, safe="")
    yield f"/schedules?search={word}&function={word}"
    yield f"/jobs?function={word}&queue={word}&owner={word}"
    yield f"/functions?search={word}"
    yield f"/audit?actor={word}&action={word}&target={word}"
    yield f"/jobs/{word.replace('%2F', '')}"
    yield f"/login?next={word}"


def pages_of(app: Duly, paths: Iterable[str]) -> Iterator[tuple[str, str]]:
    with TestClient(make_asgi(app, auth="open")) as client:
        for path in paths:
            answer = client.get(path, headers={"Accept": "text/html"})
            assert answer.headers["content-type"].startswith("text/html"), path
            assert answer.status_code in (200, 404, 422), path
            yield path, answer.text


def strange(page: str, known: set[Shape]) -> set[object]:
    """What a page has that is not known from pages with plain words."""
    found = Shapes(page)
    away = {place for place in found.leading if LEADS_AWAY.match(place.strip())}
    return {*(found.shapes - known), *away}


@on_sqlite
def test_no_element_and_no_attribute_comes_of_hostile_text(shop, hire, tmp_path):
    with closing(Duly(f"sqlite:///{tmp_path}/plain.db", clock=shop.clock)) as plain:
        plain.migrate()
        paths = fill(plain, hire, ["plain words", "other words"])
        known = set[Shape]().union(*(Shapes(page).shapes for _, page in pages_of(plain, paths)))
    known.add(("a", ("href", "rel")))  # to the next page, which few words do not fill
    missing: set[str] = set()
    for path, page in pages_of(shop, fill(shop, hire, TEXTS)):
        assert strange(page, known) == set(), path
        if MARK not in page:
            missing.add(path.partition("?")[0])
    # The texts were really there to be shown.
    assert missing <= {"/", "/workers", "/login"}
    for planted in PLANTED:
        assert strange(planted, known), planted


PLANTED = [
    "<xq7>",
    '<a href="/" onclick="xq7()">',
    '<a href="javascript:xq7()">',
    '<a href=" JavaScript:xq7()">',
    '<a href="//xq7.example/">',
    "<script>xq7()</script>",
    '<p style="x">',
    "<!--xq7-->",
    "<?xq7 ?>",
]
