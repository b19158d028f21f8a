"""List wording that docs/voice.md rejects:  python -m tools.voice [PATH ...]

Reads the prose of Markdown pages and the comments in their code blocks, the strings, docstrings and
comments of Python modules, and the text of templates and scripts. Other code, and inline code, is
left out.
"""

from __future__ import annotations

import ast
import io
import re
import sys
import tokenize
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
PLACES = (
    "README.md",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "SECURITY.md",
    "docs",
    "examples",
    "src/duly",
)
SUFFIXES = {".md", ".py", ".html", ".js", ".txt", ".sql"}


class Rule(NamedTuple):
    name: str
    pattern: re.Pattern[str]
    better: str


class Hit(NamedTuple):
    path: Path
    line: int
    words: str
    rule: Rule

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.words!r}; {self.rule.better}"


def _rule(name: str, pattern: str, better: str) -> Rule:
    return Rule(name, re.compile(pattern, re.IGNORECASE), better)


HANDLES = r"(sqlite3|psycopg|asyncpg|SQLAlchemy|Django|Flask|FastAPI|Starlette)"
RULES = (
    _rule(
        "is no",
        r"(?<!there )\b(?:is|are|was|were) no (?!longer\b|more\b|later\b|older\b|less\b|fewer\b"
        r"|earlier\b|worse\b|way\b|need\b|different\b)",
        'write "is not a"',
    ),
    _rule("also when", r"\balso (?:when|if|where|while|after|during)\b", 'write "even when"'),
    _rule("for ever", r"\bfor ever\b", 'write "forever"'),
    _rule("lest", r"\blest\b", 'write "so that … does not"'),
    _rule(
        "else",
        r"(?<!nothing )(?<!anything )(?<!something )(?<!everything )(?<!what )(?<!someone )"
        r"(?<!anyone )(?<!everyone )(?<!where )(?<!somewhere )(?<!anywhere )(?<!or )"
        r"\b(?-i:[Ee]lse)\b",
        'write "otherwise"',
    ),
    _rule(
        "of duly's",
        r"(?<!all )(?<!one )(?<!each )(?<!any )\bof duly's\b",
        'noun + noun: "duly\'s tables"',
    ),
    _rule(
        "a connection of sqlite3",
        rf"(?<!place )\bof {HANDLES}(?!'s)\b",
        'noun + noun: "a sqlite3 …"',
    ),
    _rule(
        "of its own",
        r"\bof (?:its|their|your|our|my|his|her|one's) own\b",
        '"its own …" before the noun',
    ),
    _rule(
        "who for a process",
        r"\b(?:whoever|whomever|nobody|somebody|everybody|whosoever)\b",
        'name the process or person: "no worker", "any process"',
    ),
    _rule(
        "clause without a noun",
        r"\bwhat (?:is due|comes\b|stands|became|has become|becomes of|came of|it comes to"
        r"|lies\b|they come to|will come)",
        'give the clause a noun: "jobs that are due"',
    ),
    _rule(
        "odd noun or verb",
        r"\b(?:deeds?|lent|beats for|beats every|proofs? of life"
        r"|prove[sd]? (?:its|their) (?:own )?life|in earnest|anew|without a word|then and there"
        r"|for good|again and again)\b",
        "use the word of the field: audit entry, heartbeat, permanently, again",
    ),
    _rule("time-out", r"\btime-outs?\b|\btimes? out of\b", 'write "timeout"'),
    _rule(
        "so many",
        r"\b(?:at most|for|after|up to|every|within|in) so (?:many|long|much|few)\b",
        "say the number or name the option",
    ),
    _rule("goes on", r"\b(?:go|goes|going|went|gone) on\b(?! strike)", 'write "continues"'),
    _rule("is to be", r"\b(?:is|are|was|were) to be\b", 'write "must be" or "will be"'),
    _rule("due since", r"\b(?:is|are|has been|have been)? ?due since\b", '"overdue for …"'),
    _rule("as things stand", r"\bas (?:things|it) stands?\b|\bas they stand\b", '"currently"'),
    _rule("usual", r"\(usual\)|\bthe usual value\b", 'write "default"'),
    _rule("beside", r"\bbeside\b", '"next to", "alongside", "compared with"'),
    _rule("unless … says otherwise", r"\bsays? otherwise\b", 'write "default: …"'),
    _rule("whose it is", r"\bwhose (?:it is|they are)\b", "say whose"),
    _rule("is well", r"\b(?:is|are) (?:not )?well\b(?!-| )", '"healthy"'),
    _rule(
        "ticks without an object",
        r"\b(?:who|nobody|it|never) ticks\b|\bis ticked\b|\b(?:schedules|tickers) tick\b"
        r"|\b(?:a|each|every|this) (?:schedule|ticker) ticks\b",
        'a schedule runs; a ticker "processes ticks"',
    ),
    _rule("lies", r"\blies (?:in|at|before|after|ahead|beside|too)\b", '"is in"'),
    _rule("death", r"\bdeaths?\b", 'a worker crashes, or dies: "a worker crash"'),
    _rule(
        "told",
        r"\b(?:is|are|was|were|been?|being) told\b(?! to\b)",
        'name the call or the value: "hooks are called with …"',
    ),
    _rule("also in", r", also (?:in|on|of|with|for|from|those|the|an?)\b", '"and also", "even"'),
    _rule("says of", r"\bsa(?:ys?|id) of\b", '"says why", "records for each …"'),
    _rule("cut off", r"\bcuts? (?:it |them |this )?off\b", 'write "interrupt"'),
    _rule(
        "costs no", r"\bcosts? (?:no\b(?!thing)|nobody\b)", '"does not count as", "does not slow"'
    ),
    _rule("written down", r"\bwritten down\b", 'write "recorded"'),
    _rule("there already", r"\b(?:is|are) there already\b", 'write "already exists"'),
    _rule(
        "nothing of it",
        r"\bnothing of (?:it|them)\b|\bcatch(?:es)? nothing\b",
        "negate the verb",
    ),
    _rule("convict", r"\bconvict(?:s|ed)?\b|\boffenders?\b", "violations are detected"),
    _rule("begun", r"\bbegun\b|\bbegan\b", 'write "started"'),
)

INLINE_CODE = re.compile(r"(`+)(?!`).+?(?<!`)\1(?!`)", re.DOTALL)
FENCE = re.compile(r"^ {0,3}(`{3,}|~{3,}).*?^ {0,3}\1`*\s*$", re.MULTILINE | re.DOTALL)
REMARK = re.compile(r"(?:^|(?<=\s))# +(\S.*)$", re.MULTILINE)
LINK_TARGET = re.compile(r"(?<=\])\([^)\s]*\)")
JINJA = re.compile(r"\{[{%#].*?[}%#]\}", re.DOTALL)
QUOTED = re.compile(r"\"([^\"]*)\"|'([^']*)'")
TAG = re.compile(r"<(?:script|style)\b.*?</(?:script|style)>|<[^>]*>", re.DOTALL)
ATTRIBUTE = re.compile(r"\b(?:title|placeholder|aria-label|alt)=\"([^\"]*)\"")


def _blank(match: re.Match[str]) -> str:
    """The same lines, with nothing on them."""
    return re.sub(r"[^\n]", "\0", match[0])


def _markdown(text: str) -> Iterator[tuple[int, str]]:
    for block in FENCE.finditer(text):
        for match in REMARK.finditer(block[0]):
            yield text.count("\n", 0, block.start() + match.start()) + 1, match[1]
    for pattern in (FENCE, INLINE_CODE, LINK_TARGET):
        text = pattern.sub(_blank, text)
    yield 1, text


def _python(text: str) -> Iterator[tuple[int, str]]:
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.JoinedStr):
            parts = [part.value if isinstance(part, ast.Constant) else "\0" for part in node.values]
            yield node.lineno, INLINE_CODE.sub(_blank, "".join(map(str, parts)))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and " " in node.value:
            yield node.lineno, INLINE_CODE.sub(_blank, node.value)


def _template(text: str) -> Iterator[tuple[int, str]]:
    for block in JINJA.finditer(text):
        for match in QUOTED.finditer(block[0]):
            yield text.count("\n", 0, block.start() + match.start()) + 1, match[1] or match[2] or ""
    text = JINJA.sub(_blank, text)
    for match in ATTRIBUTE.finditer(text):
        yield text.count("\n", 0, match.start()) + 1, match[1]
    yield 1, TAG.sub(_blank, text)


def _script(text: str) -> Iterator[tuple[int, str]]:
    for number, line in enumerate(text.splitlines(), start=1):
        for match in re.finditer(r"\"([^\"]* [^\"]*)\"|'([^']* [^']*)'|`([^`]* [^`]*)`", line):
            yield number, match[1] or match[2] or match[3]


def comments(text: str) -> Iterator[tuple[int, str]]:
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string


def prose(path: Path) -> Iterator[tuple[int, str]]:
    """The pieces of text of a file, each with the number of its first line."""
    text = path.read_text(encoding="utf-8")
    read = {".py": _python, ".html": _template, ".js": _script}.get(path.suffix, _markdown)
    yield from read(text)
    if path.suffix == ".py":
        yield from comments(text)


def hits(path: Path) -> Iterator[Hit]:
    seen = set()
    for first, text in prose(path):
        flat = text.replace("\n", " ")
        for rule in RULES:
            for match in rule.pattern.finditer(flat):
                line = first + text.count("\n", 0, match.start())
                around = flat[max(0, match.start() - 25) : match.end() + 25]
                if (line, match.start(), rule.name) not in seen:
                    seen.add((line, match.start(), rule.name))
                    yield Hit(path, line, " ".join(around.replace("\0", " ").split()), rule)


def files(paths: Iterable[Path]) -> Iterator[Path]:
    for path in paths:
        if not path.exists():
            raise SystemExit(f"{path} does not exist")
        found = sorted(path.rglob("*")) if path.is_dir() else [path]
        yield from (
            each
            for each in found
            if each.suffix in SUFFIXES and "vendor" not in each.parts and each.is_file()
        )


def main(arguments: list[str]) -> int:
    given = [Path(each) for each in arguments]
    found = [
        hit for path in files(given or [ROOT / place for place in PLACES]) for hit in hits(path)
    ]
    print(*found, sep="\n")
    print(f"{len(found)} hits", file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
