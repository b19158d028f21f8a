"""The promised figures, and whether a run meets them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from bench import cases, claims, cron, crowd, limited, process, schedules, server, workflows
from bench.figures import DULY, Figure, best, limit_of
from bench.growth import Growth

SQLITE, POSTGRES, ANY = "SQLite", "PostgreSQL", "any store"
LEAST_WHEN_GROWN = 0.90

# The fastest setting, as a share of the bare database in the same run.
OF_RAW = {
    (POSTGRES, cases.ASYNC): 0.50,
    (POSTGRES, cases.MUTATIONS): 0.60,
    (SQLITE, cases.ASYNC): 0.40,
    (SQLITE, cases.MUTATIONS): 0.40,
    (POSTGRES, cases.SINGLE): 0.80,
    (SQLITE, cases.IN_BULK): 0.50,
    (POSTGRES, cases.IN_BULK): 0.50,
    # At most 2.5 times as long.
    (SQLITE, schedules.ROW): 0.40,
    (POSTGRES, schedules.ROW): 0.40,
    (SQLITE, crowd.TALKING): 0.80,
    (POSTGRES, crowd.TALKING): 0.80,
    (POSTGRES, workflows.MANY): 0.40,
    (POSTGRES, workflows.MANY_RETRIED): 0.40,
    (SQLITE, workflows.BESIDE_SLEEPING): 0.95,
    (POSTGRES, workflows.BESIDE_SLEEPING): 0.95,
}
# Multiples of another row.
OF_ROW = (
    (SQLITE, cases.SYNC, cases.ASYNC, 0.40),
    (POSTGRES, cases.SYNC, cases.ASYNC, 0.40),
    (SQLITE, cases.CROWD, cases.SINGLE, 8.0),
    (POSTGRES, cases.CROWD, cases.SINGLE, 8.0),
    (POSTGRES, cases.GROUPED, cases.MUTATIONS, 2.0),
    # At most 1.3 times as long.
    (POSTGRES, workflows.ONE, workflows.LONE, 1 / 1.3),
)
# Multiples of another system, whatever its setting.
OF_PEER = (
    (POSTGRES, cases.ASYNC, cases.ASYNC, "graphile-worker", 1.0),
    (POSTGRES, cases.ASYNC, cases.ASYNC, "pgqueuer", 2.0),
    (SQLITE, cases.ASYNC, cases.SYNC, "huey", 3.0),
    (ANY, cron.ROW, cron.ROW, cron.CRONITER, 15.0),
    (ANY, cron.FIRST, cron.FIRST, cron.CRONITER, 5.0),
    (POSTGRES, workflows.ONE, workflows.ONE, "absurd", 1.5),
    (POSTGRES, workflows.MANY, workflows.MANY, "absurd", 8.0),
    (POSTGRES, workflows.MANY, workflows.MANY, "dbos", 20.0),
    (POSTGRES, workflows.MANY_SYNC, workflows.MANY, "absurd", 4.0),
)
LEAST_OF_DEFAULTS = 2.0
"""At default settings, as a multiple of the best default of any peer."""
# Multiples of the undisturbed time.
TIMES_CALM = {
    (SQLITE, claims.RETAINED): 2.0,
    (POSTGRES, claims.RETAINED): 2.0,
    (SQLITE, claims.BESIDE_LONG): 1.5,
    (POSTGRES, claims.BESIDE_LONG): 1.5,
    (SQLITE, claims.LISTED_LONG): 1.5,
    (POSTGRES, claims.LISTED_LONG): 1.5,
    (SQLITE, limited.BESIDE): 3.0,
    (POSTGRES, limited.BESIDE): 3.0,
    (SQLITE, workflows.WAKE): 2.5,
    (POSTGRES, workflows.WAKE): 2.5,
    (SQLITE, workflows.MEMORY_BESIDE): 1.05,
    (POSTGRES, workflows.MEMORY_BESIDE): 1.05,
}
# For one key, each claim has to be durable before the next body starts.
AT_LEAST = {(SQLITE, limited.ROW): 500.0, (POSTGRES, limited.ROW): 500.0}
AT_MOST = {
    (SQLITE, f"{cases.PICKUP_HERE}, p50"): 1.0,
    (SQLITE, f"{cases.PICKUP_RUN}, p99"): 6.0,
    (SQLITE, f"{cases.PICKUP_ON}, p99"): 6.0,
    (SQLITE, schedules.EMPTY): 1.0,
    (POSTGRES, schedules.EMPTY): 1.0,
    (SQLITE, crowd.LONE): 15.0,
    (SQLITE, crowd.PLAIN): 50.0,
    (POSTGRES, claims.HELD): 50.0,
    (SQLITE, process.IDLE): 60.0,
    (POSTGRES, process.IDLE): 60.0,
    (SQLITE, process.GROWN): 3.0,
    (POSTGRES, process.GROWN): 3.0,
    (ANY, process.IMPORT): 100.0,
    (ANY, process.HELP): 250.0,
    (ANY, server.ANSWER): 15.0,
    (ANY, server.GATEWAY_ANSWER): 15.0,
}
PICKUPS = tuple(
    f"{row}, {cut}" for row in (cases.PICKUP_RUN, cases.PICKUP_ON) for cut in ("p50", "p99")
)


@dataclass(frozen=True)
class Bar:
    """A promise, and what this run measured."""

    promise: str
    measured: float
    bar: float
    unit: str = "×"
    at_most: bool = False

    @property
    def passed(self) -> bool:
        return self.measured <= self.bar if self.at_most else self.measured >= self.bar

    def __str__(self) -> str:
        verdict = "pass" if self.passed else "FAIL"
        bound = "at most" if self.at_most else "at least"
        measured, bar = self._show(self.measured), self._show(self.bar)
        return f"{verdict}  {self.promise}: {measured}, {bound} {bar}"

    def _show(self, value: float) -> str:
        return f"{value:.0%}" if self.unit == "%" else f"{value:.3g} {self.unit}"


def bars(figures: Sequence[Figure], growths: Sequence[Growth]) -> list[Bar]:
    """The bars for which both sides were measured."""
    found: list[Bar] = []
    for ask in (_of_raw, _of_row, _of_peer, _of_defaults, _of_pickups, _times_calm, _absolute):
        found += ask(figures)
    for growth in growths:
        promise = f"{growth.store}, {growth.rows:,} {growth.ballast}: of the empty store"
        found.append(Bar(promise, growth.ratio, LEAST_WHEN_GROWN, "%"))
    return found


def ratio_of(figure: Figure, figures: Sequence[Figure]) -> float | None:
    """The share of the raw limit; for times, the multiple of the limit."""
    limit = limit_of(figure, figures)
    return None if limit is None else figure.value / limit.value


def _of_raw(figures: Sequence[Figure]) -> Iterator[Bar]:
    for (store, row), least in OF_RAW.items():
        mine = _best(figures, store, row)
        limit = None if mine is None else limit_of(mine, figures)
        if mine is not None and limit is not None:
            what = f"{store}, {row} ({mine.setting}): of {limit.side}"
            yield Bar(what, mine.value / limit.value, least, "%")


def _of_row(figures: Sequence[Figure]) -> Iterator[Bar]:
    for store, row, other, least in OF_ROW:
        mine, theirs = _best(figures, store, row), _best(figures, store, other)
        if mine is not None and theirs is not None:
            yield Bar(f"{store}, {row}: of {other}", mine.value / theirs.value, least)


def _of_peer(figures: Sequence[Figure]) -> Iterator[Bar]:
    for store, row, other, peer, least in OF_PEER:
        mine = _best(figures, store, row)
        peers = [figure for figure in figures if figure.side.startswith(peer)]
        theirs = _best(peers, store, other, lambda _: True)
        if mine is not None and theirs is not None:
            what = f"{store}, {row}: of {theirs.side} ({theirs.setting})"
            yield Bar(what, mine.value / theirs.value, least)


def _of_defaults(figures: Sequence[Figure]) -> Iterator[Bar]:
    mine = _best(figures, POSTGRES, cases.ASYNC, lambda f: f.side == DULY and f.default)
    theirs = _best(figures, POSTGRES, cases.ASYNC, lambda f: f.side != DULY and f.default)
    if mine is not None and theirs is not None:
        what = f"{POSTGRES}, {cases.ASYNC}, defaults: of {theirs.side}"
        yield Bar(what, mine.value / theirs.value, LEAST_OF_DEFAULTS)


def _of_pickups(figures: Sequence[Figure]) -> Iterator[Bar]:
    """No later than the best peer, which is measured from the call of its verb."""
    for row in PICKUPS:
        mine = _best(figures, POSTGRES, row)
        base = row.replace(cases.PICKUP_ON, cases.PICKUP_RUN)
        theirs = _best(figures, POSTGRES, base, lambda f: f.side not in (DULY, "raw"))
        if mine is not None and theirs is not None:
            what = f"{POSTGRES}, {row}: of {theirs.side}"
            yield Bar(what, mine.value / theirs.value, 1.0, at_most=True)


def _times_calm(figures: Sequence[Figure]) -> Iterator[Bar]:
    for (store, row), most in TIMES_CALM.items():
        mine = _best(figures, store, row)
        ratio = None if mine is None else ratio_of(mine, figures)
        if ratio is not None:
            yield Bar(f"{store}, {row}: of calm", ratio, most, at_most=True)


def _absolute(figures: Sequence[Figure]) -> Iterator[Bar]:
    for bound, at_most in ((AT_LEAST, False), (AT_MOST, True)):
        for (store, row), value in bound.items():
            mine = _best(figures, store, row)
            if mine is not None:
                yield Bar(f"{store}, {row}", mine.value, value, mine.unit, at_most=at_most)


def _best(
    figures: Sequence[Figure],
    store: str,
    row: str,
    which: Callable[[Figure], bool] = lambda figure: figure.side == DULY,
) -> Figure | None:
    found = [f for f in figures if (f.store, f.row) == (store, row) and which(f)]
    return best(found) if found else None
