"""The options of a schedule, each described once.

Request bodies, responses, the dashboard's forms and the command line are generated from this table,
and the policies use it for their checks. To add an option, add a row here, a line to
`ScheduleOptions` for type checkers, a field to `Policies` where it is stored, and its meaning to
`decide`.

The options that set when a schedule runs (cron, every, at and their zone) can be written in
several ways and are not in the table.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any, Literal, NamedTuple

from duly.errors import InvalidOption
from duly.model.durations import UNITS_MS

DAY_MS = UNITS_MS["d"]
LONGEST_MS = 366 * DAY_MS
DEFAULT_CATCH_UP = 10
MAX_CATCH_UP = 1_000
MAX_REMAINING = 1_000_000_000


class Overlap(StrEnum):
    """What happens to a tick while a job of its schedule is unfinished."""

    SKIP = "skip"
    ALLOW = "allow"
    BUFFER_ONE = "buffer_one"
    BUFFER_ALL = "buffer_all"
    CANCEL_OTHER = "cancel_other"


Shift = Literal["next", "previous", "nearest"]
SHIFTS = ("next", "previous", "nearest")
FirstRun = Literal["check", "pass", "fail"]
FIRST_RUNS = ("check", "pass", "fail")


class Kind(StrEnum):
    """The type of an option's values."""

    NAME = "name"
    TEXT = "text"
    CHOICE = "choice"
    WHOLE = "whole"
    NUMBER = "number"
    LENGTH = "length"
    """Given and shown in seconds, stored in milliseconds."""
    INSTANT = "instant"
    """Stored in milliseconds since 1970."""
    OBJECT = "object"
    LIST = "list"
    """A list of JSON objects."""
    RECORD = "record"
    """A struct of several `parts`."""


JSON = (Kind.OBJECT, Kind.LIST, Kind.RECORD)


class Option(NamedTuple):
    """One option, or one part of a record."""

    name: str
    kind: Kind
    label: str
    """The label in the dashboard."""
    help: str = ""
    group: Literal["When", "Unless", "With", "How"] = "How"
    """The group of the form in which it appears."""
    usual: Any = None
    """The default; an option with a default cannot be cleared."""
    choices: type[StrEnum] | tuple[str, ...] = ()
    least: int = 1
    most: int = LONGEST_MS
    parts: tuple[Option, ...] = ()

    @property
    def flag(self) -> str:
        """The name of its option on the command line."""
        return self.name.removesuffix("_at").replace("_", "-")

    def check(self, value: Any) -> None:
        """Refuse a stored value that is not valid for the option."""
        if self.kind is Kind.CHOICE and value not in tuple(self.choices):
            raise InvalidOption(
                self.name, f"must be one of {', '.join(self.choices)}, not {value!r}"
            )
        if self.kind is Kind.WHOLE and (
            type(value) is not int or not self.least <= value <= self.most
        ):
            limits = f"{self.least} to {self.most:,}"
            raise InvalidOption(self.name, f"must be {limits}, not {value!r}")
        if self.kind is Kind.LENGTH and not is_number(value, self.least, self.most):
            limits = f"at least {self.least} ms and at most {self.most / 1000:g} s"
            raise InvalidOption(self.name, f"must be {limits}")

    def shown(self, stored: Any) -> Any:
        """The stored value in the unit that users see."""
        if self.kind is Kind.LENGTH:
            return stored / 1000 if stored else None
        return stored


def is_number(value: object, low: float, high: float) -> bool:
    """Whether the value is a number in this range."""
    return isinstance(value, int | float) and not isinstance(value, bool) and low <= value <= high


OPTIONS = (
    Option(
        "calendar",
        Kind.NAME,
        "Calendar",
        "Run only on dates that this calendar (name or id) allows.",
        "Unless",
    ),
    Option(
        "shift",
        Kind.CHOICE,
        "Move to another day",
        "Where to move a tick on a date that the calendar forbids.",
        "Unless",
        choices=SHIFTS,
    ),
    Option(
        "condition",
        Kind.OBJECT,
        "Condition",
        "Run a tick only if these checks pass.",
        "Unless",
    ),
    Option(
        "first_run",
        Kind.CHOICE,
        "Condition without a previous run",
        "How checks of the previous run behave before the first run: check (they find no value), "
        "pass or fail.",
        "Unless",
        usual="check",
        choices=FIRST_RUNS,
    ),
    Option(
        "rotation",
        Kind.LIST,
        "Rotation",
        "A list of arguments that successive dispatches use in turn.",
        "With",
    ),
    Option(
        "overlap",
        Kind.CHOICE,
        "If the last run has not ended",
        "What happens to a tick while a job of the schedule is unfinished.",
        "Unless",
        usual=Overlap.SKIP,
        choices=Overlap,
    ),
    Option(
        "catch_up",
        Kind.WHOLE,
        "Catch-up limit",
        "Maximum number of overdue ticks to run.",
        usual=DEFAULT_CATCH_UP,
        least=0,
        most=MAX_CATCH_UP,
    ),
    Option(
        "catch_up_window",
        Kind.LENGTH,
        "Catch-up window",
        "Maximum age of an overdue tick that still runs.",
    ),
    Option(
        "jitter",
        Kind.LENGTH,
        "Jitter",
        "The maximum random delay of a tick; the same tick always has the same delay.",
        least=0,
        most=DAY_MS,
    ),
    Option(
        "budget",
        Kind.RECORD,
        "Budget",
        'The maximum number of runs, or cost, in any `per` seconds: {"runs": 5, "per": 86400}.',
        "Unless",
        parts=(
            Option("runs", Kind.WHOLE, "Budget: runs"),
            Option("cost", Kind.NUMBER, "Budget: cost"),
            Option("per", Kind.LENGTH, "Budget: window"),
        ),
    ),
    Option("start_at", Kind.INSTANT, "From", "No tick before this time.", "When"),
    Option("end_at", Kind.INSTANT, "Until", "No tick after this time.", "When"),
    Option(
        "remaining",
        Kind.WHOLE,
        "Remaining dispatches",
        "End after this many dispatches.",
        "When",
        most=MAX_REMAINING,
    ),
    Option(
        "expect",
        Kind.RECORD,
        "Expectation",
        'When runs must have succeeded: {"by": "07:00"}, {"within": 900} or {"every": 86400}.',
        parts=(
            Option("by", Kind.NAME, "Expectation: success by", "A time of day such as 07:00."),
            Option("within", Kind.LENGTH, "Expectation: success within"),
            Option("every", Kind.LENGTH, "Expectation: success every"),
        ),
    ),
    Option(
        "alert",
        Kind.NAME,
        "Alert",
        "The function to call, or the address to POST to, when the schedule is late.",
    ),
    Option("note", Kind.TEXT, "Note", "A note for other operators."),
)
BY_NAME = {option.name: option for option in OPTIONS}
