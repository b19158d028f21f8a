"""The texts are written as docs/voice.md asks: no wording that it rejects, exceptions explained."""

from pathlib import Path

import pytest

from tools import voice

# Wording that a rule rejects and that is right where it stands: file, a part of the text, reason.
ALLOWED: dict[tuple[str, str], str] = {
    ("src/duly/store/jobs/finish.py", "begun"): "a parameter and a column of SQL",
    ("src/duly/store/jobs/listing.py", "begun"): "a parameter of SQL",
    ("docs/voice.md", "also when"): "quoted as what not to write",
    ("docs/voice.md", "for ever"): "quoted as what not to write",
    ("docs/voice.md", "else"): "quoted as what not to write",
}

# A sentence for each rule, as it should not be, and a better one.
SENTENCES = {
    "is no": ("'t.db' is no database URL", "'t.db' is not a database URL"),
    "also when": (
        "it is stored, also when no worker runs",
        "it is stored even when no worker runs",
    ),
    "for ever": ("it may run for ever", "it can run forever"),
    "lest": ("it waits, lest it blocks others", "it waits so that it does not block others"),
    "else": ("the option, else the variable", "the option, otherwise the variable"),
    "of duly's": ("tables of duly's are moved", "duly's tables are moved"),
    "a connection of sqlite3": ("on a connection of sqlite3", "on a sqlite3 connection"),
    "of its own": ("it has a thread of its own", "it has its own thread"),
    "who for a process": ("whoever claims it first runs it", "the worker that claims it runs it"),
    "clause without a noun": ("it runs what is due", "it runs jobs that are due"),
    "odd noun or verb": ("the worker beats for its children", "the worker sends heartbeats"),
    "time-out": ("a time-out ends it", "a timeout ends it"),
    "so many": ("it waits at most so long", "it waits for at most `timeout`"),
    "goes on": ("the ticker goes on", "the ticker continues"),
    "is to be": ("what is to be printed", "what will be printed"),
    "due since": ("schedules are due since 1 minute", "schedules have been overdue for 1 minute"),
    "as things stand": ("what comes next, as things stand", "the upcoming runs"),
    "usual": ("skip (usual)", "skip (default)"),
    "beside": ("it runs beside every worker", "it runs in every worker"),
    "unless … says otherwise": ("5 unless the app says otherwise", "default: 5"),
    "whose it is": ("Whose it is, or they are.", "Only this owner's schedules."),
    "is well": ("if the database is well", "if the database is healthy"),
    "ticks without an object": ("it is due, and nobody ticks it", "no ticker processes it"),
    "lies": ("an instant that lies in the past", "an instant in the past"),
    "death": ("it survives the death of its worker", "it survives a worker crash"),
    "told": ("hooks are told about every attempt", "hooks are called after every attempt"),
    "also in": ("it is valid, also in a test", "it is valid, even in a test"),
    "says of": ("it says of every tick why it did not run", "it says why a tick did not run"),
    "cut off": ("a shutdown cut it off", "a shutdown interrupted it"),
    "costs no": ("a shutdown costs no attempt", "a shutdown does not count as an attempt"),
    "written down": ("every tick is written down", "every tick is recorded"),
    "there already": ("tasks.py is there already", "tasks.py already exists"),
    "nothing of it": ("all of it happens or nothing of it", "either everything commits or nothing"),
    "convict": ("planted offenders are convicted", "deliberate violations are detected"),
    "begun": ("the attempt has begun", "the attempt has started"),
}


def rejected() -> list[voice.Hit]:
    places = [voice.ROOT / place for place in voice.PLACES]
    return [hit for path in voice.files(places) for hit in voice.hits(path)]


def is_allowed(hit: voice.Hit, file: str, part: str) -> bool:
    return hit.path.relative_to(voice.ROOT).as_posix() == file and part in hit.words


def test_no_text_has_wording_that_the_voice_rejects():
    hits = [hit for hit in rejected() if not any(is_allowed(hit, *each) for each in ALLOWED)]

    assert list(map(str, hits)) == []


def test_every_exception_is_needed():
    hits = rejected()

    unused = [each for each in ALLOWED if not any(is_allowed(hit, *each) for hit in hits)]
    assert unused == []


@pytest.mark.parametrize("rule", voice.RULES, ids=lambda rule: rule.name)
def test_a_rule_notices_what_it_is_for(rule: voice.Rule, tmp_path: Path):
    wrong, right = SENTENCES[rule.name]

    def names(text: str, suffix: str) -> set[str]:
        page = tmp_path / f"page{suffix}"
        page.write_text(text, encoding="utf-8")
        return {hit.rule.name for hit in voice.hits(page)}

    assert rule.name in names(f"# Page\n\n{wrong}.\n", ".md")
    assert rule.name in names(f"```python\nx = 1  # Sorry: {wrong}\n```\n", ".md")
    assert rule.name in names(f'MESSAGE = "Sorry: {wrong}"\n', ".py")
    assert rule.name in names(f'def f(n: int) -> str:\n    return f"No {{n}}: {wrong}"\n', ".py")
    assert rule.name in names(f'"""Sorry: {wrong}."""\n', ".py")
    assert rule.name in names(f"x = 1  # Sorry: {wrong}\n", ".py")
    assert rule.name in names(f"<p>Sorry: {wrong}.</p>\n", ".html")
    assert rule.name in names(f'<button title="Sorry: {wrong}">x</button>\n', ".html")
    label = wrong.replace("'t.db'", "It")
    assert rule.name in names(f'{{{{ field("Sorry: {label}", name) }}}}\n', ".html")
    assert rule.name in names(f'const text = "Sorry: {label}"\n', ".js")
    assert rule.name not in names(f"# Page\n\n{right}.\n", ".md")


def test_code_is_not_prose(tmp_path: Path):
    page = tmp_path / "page.md"
    page.write_text("`else` is a keyword.\n\n```python\nif x: ...\nelse: ...\n```\n")

    assert list(voice.hits(page)) == []
