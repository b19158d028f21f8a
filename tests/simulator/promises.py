"""Checks the guarantees of limits, keys, debounce and hooks.

What a call asked for stands in the tags of its job ("limit:one", "pending:a"), which the product
only carries along: none of this believes the columns and tables that are under test.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import msgspec

from duly import Limit, Unique
from duly.functions.function import Call, Function
from tests.simulator.functions import HOOKS
from tests.simulator.log import Change, Story, Violation, short

LIMITS = {
    "one": Limit("one", at_once=1),
    "two": Limit("two", at_once=2),
    "rate": Limit("rate", rate=2, per=3),
    "both": Limit("both", at_once=1, rate=3, per=10),
}
NARROW = "narrow"
"""A queue that runs one job at a time, in some worlds."""

PERIODS = {"period": 20.0, "once": 86_400.0}
UNIQUES = {
    "pending": Unique("a"),
    "unfinished": Unique("a", scope="unfinished"),
    "period": Unique("a", period=PERIODS["period"]),
}
ONE_JOB = ("pending", "debounce", "unfinished", *PERIODS)

Jobs = Mapping[str, Story]


@dataclass(frozen=True)
class Wish:
    """A call as a caller makes it, and what it asks for."""

    function: Function[..., Any]
    args: tuple[Any, ...]
    debounce_ms: int = 0

    @property
    def call(self) -> Call[Any]:
        return self.function.bind(*self.args)

    @property
    def labels(self) -> tuple[str, ...]:
        return self.function.options.tags

    @property
    def is_keyed(self) -> bool:
        """Whether another job may stand for it."""
        return any(_word(label) in ONE_JOB for label in self.labels)

    @property
    def has_hook(self) -> bool:
        return self.function.options.on_complete is not None

    def __str__(self) -> str:
        hook = ["hook"] if self.has_hook else []
        words = ", ".join([*map(repr, self.args), *self.labels, *hook])
        return f"{self.function.name}({words})"


def _word(label: str) -> str:
    return label.partition(":")[0]


def _convict(invariant: str, story: Story, words: str) -> None:
    raise Violation(invariant, f"#{story.number} {words} {short(story.now)}")


# Limits --------------------------------------------------------------------------------------


class Start(NamedTuple):
    """When a job started, by the clock of its worker and in truth."""

    told: int
    true: float


class Limits:
    """Counts the bodies that really live, and when the jobs of a key started."""

    def __init__(self, jobs: Jobs, true_time: Callable[[], float]) -> None:
        self._jobs = jobs
        self._true_time = true_time
        self._alive: dict[tuple[str, int], str] = {}
        self._disowned: set[str] = set()
        self.queues: dict[str, int] = {}
        self.one_by_one: dict[str, str] = {}
        """The schedule of each job that must not run beside another one of it."""
        self._starts: dict[str, list[Start]] = {}

    def begins(self, job_id: str, token: int, worker_id: str) -> None:
        """A body starts."""
        self._alive[job_id, token] = worker_id
        story = self._jobs[job_id]
        for name, most in self._most_at_once(job_id).items():
            alive = [other for other, _ in self._counted() if name in self._most_at_once(other)]
            if worker_id not in self._disowned and len(alive) > most:
                numbers = ", ".join(f"#{self._jobs[other].number}" for other in alive)
                _convict("limits at once", story, f"runs under {name} beside {numbers}")

    def _most_at_once(self, job_id: str) -> dict[str, int]:
        now = self._jobs[job_id].now
        counted = {name: limit.at_once for name, limit in _limits(now) if limit.at_once}
        if now.queue in self.queues:
            counted[f"queue {now.queue}"] = self.queues[now.queue]
        if job_id in self.one_by_one:
            counted[f"schedule {self.one_by_one[job_id]}"] = 1
        return counted

    def _counted(self) -> Iterator[tuple[str, int]]:
        for body, worker_id in self._alive.items():
            if worker_id not in self._disowned:
                yield body

    def check(self, slots: Collection[tuple[str, int]]) -> None:
        """Every live attempt under a limit has a slot: (job id, token)."""
        for job_id, token in self._counted():
            if self._most_at_once(job_id) and (job_id, token) not in slots:
                _convict("the living have slots", self._jobs[job_id], f"has none for {token}")

    def ends(self, job_id: str, token: int) -> None:
        self._alive.pop((job_id, token), None)

    def die(self, worker_ids: Iterable[str]) -> None:
        """Whatever ran there runs no more."""
        gone = set(worker_ids)
        self._alive = {body: w for body, w in self._alive.items() if w not in gone}

    def disown(self, worker_id: str) -> None:
        """A live worker was taken for dead: what happens there is not counted."""
        self._disowned.add(worker_id)

    def claimed(self, new: Change) -> None:
        """A job has started. Both times count: a claim may have waited long for its turn."""
        for name, limit in _limits(new):
            if limit.rate is None or limit.per is None:
                continue
            starts = self._starts.setdefault(name, [])
            starts.append(Start(new.started_at or 0, self._true_time()))
            starts.sort()
            for first in range(len(starts) - limit.rate):
                window = starts[first : first + limit.rate + 1]
                if _span([s.told for s in window]) < limit.per * 1000 and (
                    _span([s.true for s in window]) < limit.per
                ):
                    _convict("rates", self._jobs[new.id], f"starts too early under {name}")

    def forget_starts(self) -> None:
        """The clocks disagree: it is undefined what a window is."""
        self._starts.clear()


def _span(times: list[Any]) -> Any:
    return max(times) - min(times)


def _limits(change: Change) -> Iterator[tuple[str, Limit]]:
    for label in change.labels:
        word, _, name = label.partition(":")
        if word == "limit":
            yield name, LIMITS[name]


# Keys ----------------------------------------------------------------------------------------


class Keys:
    """At most one job for a key, for as long as its scope lasts."""

    def __init__(self, jobs: Jobs, true_time: Callable[[], float]) -> None:
        self._jobs = jobs
        self._true_time = true_time
        self._born: dict[tuple[str, str], list[tuple[str, float]]] = {}
        self._at_odds: set[str] = set()
        """Jobs that were there when the clocks disagreed."""

    def born(self, new: Change) -> None:
        for label in new.labels:
            others = self._born.setdefault((new.function, label), [])
            for other_id, at in others:
                if self._excludes(label, self._jobs[other_id], at, new):
                    other = f"#{self._jobs[other_id].number}"
                    _convict("one job for a key", self._jobs[new.id], f"is {label}, as is {other}")
            others.append((new.id, self._true_time()))

    def _excludes(self, label: str, other: Story, at: float, new: Change) -> bool:
        word = _word(label)
        if word in ("pending", "debounce"):
            return other.live and other.begun is None
        if word == "unfinished":
            return other.live
        # A call that a later one has overtaken is none that comes within its period.
        since = new.created_at - other.now.created_at
        return (
            word in PERIODS
            and other.now.id not in self._at_odds
            and 0 <= since < PERIODS[word] * 1000
            and self._true_time() - at < PERIODS[word]
        )

    def answered(self, wish: Wish, job_id: str, since: int) -> None:
        """A caller was given this job: it is one of the key that was asked for."""
        story = self._jobs[job_id]
        began_before = story.begun is not None and story.begun < since
        if began_before and _words(wish) and _words(wish) <= {"pending", "debounce"}:
            _convict("a body that runs answers no call", story, f"is the answer to {wish}")
        asked = {label for label in wish.labels if _word(label) in ONE_JOB}
        same = story.now.function == wish.function.name
        if not same or (asked and not any(_stands_for(story, label) for label in asked)):
            _convict("one job for a key", story, f"is the answer to {wish}")
        # A key that led nowhere else leads to this job from now on, as if it had been born with it.
        for label in asked.difference(story.now.labels):
            if _word(label) == "once":
                others = self._born.setdefault((story.now.function, label), [])
                others.append((job_id, self._true_time()))

    def forget_periods(self) -> None:
        """The clocks disagree: it is undefined what a period is."""
        self._at_odds.update(self._jobs)


def _words(wish: Wish) -> set[str]:
    return {_word(label) for label in wish.labels if _word(label) in ONE_JOB}


def _stands_for(story: Story, label: str) -> bool:
    """A call merged by one of its keys gives the job the other, even if the answer was lost."""
    labels = story.now.labels
    merged = _word(label) == "once" and any(_word(own) in UNIQUES for own in labels)
    return merged or label in labels


# Hooks ---------------------------------------------------------------------------------------


class Hooks:
    """A hook for each job or batch that asked for one, after all the jobs it waits for."""

    def __init__(self, jobs: Jobs) -> None:
        self._jobs = jobs
        self._hooks: dict[str, list[str]] = {}
        self._members: dict[str, list[str]] = {}

    def born(self, new: Change) -> None:
        if new.batch_id is not None:
            self._members.setdefault(new.batch_id, []).append(new.id)
        if new.function in HOOKS:
            hooks = self._hooks.setdefault(_target(new), [])
            hooks.append(new.id)
            if len(hooks) > 1:
                _convict("one hook each", self._jobs[new.id], "comes after another")

    def claimed(self, new: Change) -> None:
        if new.function in HOOKS:
            target = _target(new)
            awaited = self._members.get(target, []) if target == new.id else [target]
            if living := [self._jobs[n].number for n in awaited if self._jobs[n].live]:
                _convict("hooks come last", self._jobs[new.id], f"starts before #{living[0]} ends")

    def check(self, story: Story) -> None:
        """Committed; so are those it waits for."""
        if story.now.function in HOOKS and _target(story.now) not in self._jobs:
            _convict("one hook each", story, "waits for nobody")

    def answered(self, wish: Wish, job_id: str) -> None:
        """A caller was told that this job was stored for it."""
        if wish.has_hook and not self._hooks.get(job_id):
            _convict("one hook each", self._jobs[job_id], "has none")

    def batched(self, batch_id: str, wishes: list[Wish]) -> None:
        """A caller was told that this batch is stored."""
        hook, members = self._jobs[batch_id], self._members.get(batch_id, [])
        fewest = sum(not wish.is_keyed for wish in wishes)
        if not fewest <= len(members) <= len(wishes):
            _convict("batches are complete", hook, f"has {len(members)} of {len(wishes)}")


def _target(hook: Change) -> str:
    (target,) = msgspec.json.decode(hook.args, type=dict[str, str]).values()
    return target
