"""docs/architecture.md is a true map: its tree, its levels, and its walks, which are run."""

import re

import pytest

from duly.runtime.ticker import Ticker
from duly.store.sqlite.store import SqliteStore
from tests.test_layers import LEVELS
from tools import walks
from tools.walks import EVERY_WRITE, NO_WORDS, PAGE, SOURCE, WALKS, Hop, Leg

TEXT = PAGE.read_text(encoding="utf-8")
TICK = next(walk for walk in WALKS if walk.heading == "Where a tick is decided")


@pytest.mark.parametrize("walk", [EVERY_WRITE, *WALKS], ids=lambda walk: walk.heading)
def test_a_walk_is_as_the_page_lists_it(walk):
    now = walks.items(walks.legs_of(walk), walks.words_on(TEXT))

    assert walks.listed(TEXT, walk.heading) == now, "run `make walks ARGS=--write`"


def test_every_hop_has_words():
    assert [hop for hop, words in walks.words_on(TEXT).items() if words == NO_WORDS] == []


def test_the_page_has_six_walks_and_no_other():
    headings = re.findall(r"^### \d\. (.+)$", TEXT, re.MULTILINE)

    assert headings == [walk.heading for walk in WALKS]
    assert len(WALKS) == 6


def hops_of_tick():
    return [hop.place for leg in walks.legs_of(TICK) for hop in leg.hops]


def test_a_hop_that_gets_another_name_is_noticed(monkeypatch):
    before = hops_of_tick()
    renamed = Ticker._tick.__code__.replace(co_name="_go", co_qualname="Ticker._go")
    monkeypatch.setattr(Ticker._tick, "__code__", renamed)

    assert hops_of_tick() == [
        hop.replace("ticker.py: Ticker._tick", "ticker.py: Ticker._go") for hop in before
    ]


def test_a_new_hop_is_noticed(monkeypatch):
    before = hops_of_tick()
    made = {"tick": Ticker._tick}
    source = "def detour(*args): return tick(*args)"
    exec(compile(source, str(SOURCE / "runtime/ticker.py"), "exec"), made)
    monkeypatch.setattr(Ticker, "_tick", made["detour"])

    place = before.index("runtime/ticker.py: Ticker._tick")
    assert hops_of_tick() == [*before[:place], "runtime/ticker.py: detour", *before[place:]]


def test_a_hop_that_is_gone_is_noticed(monkeypatch):
    before = hops_of_tick()
    monkeypatch.setattr(SqliteStore, "write", lambda store, work: store._group.write(work))

    assert hops_of_tick() == [hop for hop in before if not hop.endswith("SqliteStore.write")]


SMALL = """\
# Page

### 1. Home

By foot.

1. `a.py: leave`: close the door
2. `b.py: ride` (from outside): take the bus
    - on time

The end.
"""


def test_a_list_is_rewritten_and_words_stay():
    ticker = "runtime/ticker.py: Ticker"
    legs = [
        Leg([Hop("b.py: ride", None), Hop(f"{ticker}.one_pass", "b.py: ride")], "late"),
        Leg([Hop(f"{ticker}._revive", "b.py: ride")], "at home"),
    ]

    written = walks.rewritten(SMALL, {"Home": legs})

    one, two = (walks.first_sentence(f"{ticker}.{name}") for name in ("one_pass", "_revive"))
    assert two == (Ticker._revive.__doc__ or "").splitlines()[0].rstrip(".")
    assert (
        written
        == f"""\
# Page

### 1. Home

By foot.

1. `b.py: ride`: take the bus
2. `{ticker}.one_pass`: {one}
    - late
3. `{ticker}._revive` (from 1): {two}
    - at home

The end.
"""
    )
    with pytest.raises(LookupError, match="Away"):
        walks.rewritten(SMALL, {"Away": legs})


# The tree ----------------------------------------------------------------------------------------


def tree() -> list[tuple[str, str]]:
    """Level and name of each entry, as the page lists them."""
    block = TEXT.partition("```text\nsrc/duly/\n")[2].partition("```")[0]
    return re.findall(r"^( *\d*) +(\S+) +\S.*$", block, re.MULTILINE)


def test_the_tree_has_every_entry_of_the_package():
    entries = [each for each in SOURCE.iterdir() if each.name != "__pycache__"]

    names = {f"{each.name}/" if each.is_dir() else each.name for each in entries}
    assert sorted(name for _, name in tree()) == sorted(names)


def test_the_levels_are_those_that_are_enforced():
    levels: list[set[str]] = []
    for number, name in tree():
        if number.strip():
            levels.append(set())
            assert int(number) == len(levels)
        if name != "py.typed":
            levels[-1].add(name.removesuffix("/").removesuffix(".py"))

    assert levels == LEVELS
