"""Words: the glossary defines each noun once, and code uses the words of the field."""

import ast
import io
import re
import tokenize
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "src" / "duly"
GLOSSARY = ROOT / "docs" / "glossary.md"

ENTRY = re.compile(r"^- \*\*(?P<noun>[^*]+)\*\*: (?P<meaning>.+(?:\n  .+)*)", re.MULTILINE)

NOUNS = """
    action, actor, alert, API token, app, approval, attempt, audit entry, backfill, batch, body,
    bridge, branch, budget, build, bulk change, calendar, call, catch-up, claim, clock,
    condition, context, cost, cron (of a gateway), dead letter, debounce, decision, declared
    calendar, declared function, declared schedule, delivery, dispatch, dispatch request,
    doctor, endpoint, engine, entity, event (of a workflow), expectation, expiry, feed, fire
    time, function, gateway, give-back, guard, handle, heartbeat, hold, hook, idempotency key,
    inbox event, janitor, job, kill switch, ledger, limit key, mutation, operator, orphan,
    outcome (of an attempt), overlap, owner, parent, parked schedule, preview, principal,
    priority, progress, published function, queue, redacted argument, record, rescue, retention,
    retry, rotation, run (of a schedule), run (of a workflow), schedule, schedule index, scope,
    secret reference, server, session, set, settlement, shift, signal, slot (of a limit), slot
    (of a schedule), slot (of a worker), source, status, step, store, supervisor, target, tick,
    ticker, token (of an attempt), trigger, unique key, verb, waiting line, webhook, worker,
    worker lifespan, workflow, wrapper
"""

# Participles and pronouns that stood for nouns. The second half are constants without a noun.
BANNED = set(
    """
    deed Deed told Told lent Lent Heard Happened Stored Settling Said Shown Wanted Found Which
    Running Reading Ticking Telling Asked Cannot Served Doorman Belief Borrowed
    FOR_GOOD AS_IT_IS NO_NOTE INSTEAD OWN FEW MUCH NAMED MOST LASTS NOBODY EVERYBODY OTHERWISE
    HANGS USUAL LONGEST SHORTEST NOT_NOW MAY_BE ENOUGH MANY SAID_IN_WORDS
    """.split()
)
BANNED_FORM = re.compile(r"_?MOST_[A-Z_]+")

# A module is called by its noun.
BANNED_MODULES = {
    "ahead", "borrow", "changing", "copying", "declared", "door", "ends", "found", "given",
    "known", "lend", "looking", "making", "patience", "reading", "registered", "removed", "running",
    "sending", "served", "ticking",
}  # fmt: skip


def entries(text: str) -> list[tuple[str, str]]:
    return [(entry["noun"], " ".join(entry["meaning"].split())) for entry in ENTRY.finditer(text)]


def heads(nouns: list[str]) -> list[str]:
    """The nouns that are defined more than once: twice the same, or with and without "(of a …)"."""
    bare = Counter(noun.partition(" (")[0].lower() for noun in nouns)
    plain = {noun.lower() for noun in nouns if " (" not in noun}
    whole = Counter(noun.lower() for noun in nouns)
    twice = {noun for noun, count in whole.items() if count > 1}
    return sorted(twice | {noun for noun in plain if bare[noun] > 1})


def sentences(meaning: str) -> int:
    prose = re.sub(r"`[^`]*`", "code", meaning)
    return len(re.findall(r"[.)](?= |$)", re.sub(r"\b(e\.g|i\.e)\.", "", prose)))


def banned_names(text: str) -> Iterator[tuple[int, str]]:
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.NAME and (
            token.string.lstrip("_") in BANNED or BANNED_FORM.fullmatch(token.string)
        ):
            yield token.start[0], token.string


def modules() -> list[Path]:
    found = sorted(PACKAGE.rglob("*.py"))
    assert len(found) > 100
    return found


def test_the_glossary_defines_each_noun_once() -> None:
    nouns = [noun for noun, _ in entries(GLOSSARY.read_text(encoding="utf-8"))]
    assert heads(nouns) == []
    assert set(nouns) == {noun.strip() for noun in " ".join(NOUNS.split()).split(",")}


def test_a_noun_that_is_defined_twice_is_noticed() -> None:
    assert heads(["job", "tick", "job"]) == ["job"]
    assert heads(["slot", "slot (of a limit)"]) == ["slot"]
    assert heads(["slot (of a schedule)", "slot (of a limit)"]) == []


def test_every_line_of_the_glossary_is_an_entry() -> None:
    text = GLOSSARY.read_text(encoding="utf-8")
    assert len(re.findall(r"^- ", text, re.MULTILINE)) == len(entries(text))


@pytest.mark.parametrize(
    ("noun", "meaning"),
    [pytest.param(*entry, id=entry[0]) for entry in entries(GLOSSARY.read_text(encoding="utf-8"))],
)
def test_a_meaning_is_one_to_three_sentences(noun: str, meaning: str) -> None:
    assert meaning.endswith((".", ".)"))
    assert 1 <= sentences(meaning) <= 3, f"{noun}: {sentences(meaning)} sentences"


@pytest.mark.parametrize("page", ["index.md", "concepts.md", "concepts/schedules.md"])
def test_the_glossary_is_linked(page: str) -> None:
    assert "glossary.md)" in (ROOT / "docs" / page).read_text(encoding="utf-8")


def test_code_uses_the_words_of_the_field() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{line} {name}"
        for path in modules()
        for line, name in banned_names(path.read_text(encoding="utf-8"))
    ]
    assert found == []


@pytest.mark.parametrize(
    "code",
    ["deed = 1", "def f(deed): ...", "x.told", "class Stored: ...", "FEW = 3", "_MOST_ROWS = 9"],
)
def test_a_banned_word_is_noticed(code: str) -> None:
    assert list(banned_names(code))


@pytest.mark.parametrize("code", ["indeed = 1", "# a deed", 'text = "told"', "MAX_ROWS = 9"])
def test_other_words_are_not(code: str) -> None:
    assert not list(banned_names(code))


def test_modules_are_named_by_nouns() -> None:
    assert [path for path in modules() if path.stem in BANNED_MODULES] == []


def test_a_module_states_what_it_does() -> None:
    docstrings = {
        path.relative_to(ROOT): ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
        for path in modules()
    }
    assert [str(path) for path, text in docstrings.items() if not text] == []
    first = {path: text.splitlines()[0] for path, text in docstrings.items()}
    assert [f"{path}: {line}" for path, line in first.items() if "?" in line] == []
