"""Retry policies: when a failed attempt runs again."""

# Callers without a type checker may pass values that the types do not allow.
# pyright: reportUnnecessaryIsInstance=false

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from datetime import timedelta
from typing import Any, TypeGuard

import msgspec
from msgspec.structs import force_setattr

from duly.errors import InvalidOption

SYSTEM_BASE = 0.5
SYSTEM_CAP = 2 * 3600.0
CONFLICT_FLOOR = 0.1
CONFLICT_CAP = 60.0
ATTEMPTS = 5
FACTOR = 2.0
MAX_DELAY = 1826 * 86_400.0
MAX_FACTOR = 1000
MAX_LISTED = 100

_is_percentage = re.compile(r"[0-9]{1,3}(\.[0-9]{1,3})?%").fullmatch


Delay = float | timedelta


class Retry(msgspec.Struct, frozen=True, omit_defaults=True):
    """Retry a failed attempt after `delay` seconds; each further delay is `factor` times longer.

    `Retry(5, delay=10)` waits 10, 20, 40 and 80 s, `Retry(5, delay=30, factor=1)` always 30 s, and
    `Retry(delay=[1, 10, 60])` exactly these, which makes 4 attempts. `attempts` includes the first
    attempt. Up to `jitter` is added at random: seconds, or a percentage of the delay ("20%"). No
    delay is longer than `cap`, including jitter. Times are in seconds or timedeltas.

    Without a Retry, an action runs at most once.
    """

    attempts: int | None = None
    """Maximum number of attempts; default: 5, or the number of listed delays plus one."""
    delay: Delay | Sequence[Delay] = 2.0
    factor: float = FACTOR
    cap: Delay = 3600.0
    jitter: Delay | str = 1.0

    def __post_init__(self) -> None:
        cap = _seconds("cap", self.cap)
        delay = (
            _listed(self.delay, self.factor)
            if isinstance(self.delay, Sequence) and not isinstance(self.delay, str | bytes)
            else _seconds("delay", self.delay)
        )
        longest = max(delay) if isinstance(delay, tuple) else delay
        if longest > cap:
            raise InvalidOption(
                "retry",
                f"delay {longest:g} s is longer than cap {cap:g} s, the longest delay allowed",
                f"give cap={longest:g}",
            )
        if not _is_number(self.factor) or not 1 <= self.factor <= MAX_FACTOR:
            raise InvalidOption("retry", f"factor must be 1 to {MAX_FACTOR}, not {self.factor!r}")
        force_setattr(self, "delay", delay)
        force_setattr(self, "factor", float(self.factor))
        force_setattr(self, "cap", cap)
        force_setattr(self, "jitter", _jitter(self.jitter))
        force_setattr(self, "attempts", _attempts(self.attempts, delay))

    def allows(self, attempt: int) -> bool:
        """Whether another attempt may follow attempt number `attempt`."""
        return self.attempts is not None and attempt < self.attempts

    def delay_after(self, attempt: int, chance: float) -> float:
        """Seconds to wait after attempt number `attempt`; `chance` is drawn from [0, 1)."""
        cap = _seconds("cap", self.cap)
        delay = min(self._without_jitter(attempt), cap)
        if isinstance(self.jitter, str):
            jitter = delay * _fraction(self.jitter)
        else:
            jitter = _seconds("jitter", self.jitter)
        return min(delay + jitter * chance, cap)

    def within(self, seconds: float) -> float:
        """The delay to use when the function itself has given one."""
        return min(max(seconds, 0.0), _seconds("cap", self.cap))

    def _without_jitter(self, attempt: int) -> float:
        if isinstance(self.delay, Sequence):
            return _seconds("delay", self.delay[min(attempt, len(self.delay)) - 1])
        delay = _seconds("delay", self.delay)
        try:
            return delay * self.factor ** (attempt - 1)
        except OverflowError:
            return math.inf if delay else 0.0


def _is_number(value: object) -> TypeGuard[int | float]:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _seconds(name: str, length: object) -> float:
    seconds = length.total_seconds() if isinstance(length, timedelta) else length
    # The comparison also refuses NaN.
    if not _is_number(seconds) or not 0 <= seconds <= MAX_DELAY:
        raise InvalidOption("retry", f"{name} must be 0 s to five years, not {length!r}")
    return float(seconds)


def _listed(delays: Sequence[Delay], factor: float) -> tuple[float, ...]:
    if not 1 <= len(delays) <= MAX_LISTED:
        raise InvalidOption("retry", f"a list must have 1 to {MAX_LISTED} delays")
    if factor != FACTOR:
        raise InvalidOption("retry", "give either a list of delays or a factor, not both")
    return tuple(_seconds("delay", delay) for delay in delays)


def _attempts(given: object, delay: float | tuple[float, ...]) -> int:
    implied = len(delay) + 1 if isinstance(delay, tuple) else None
    if given is None:
        return implied or ATTEMPTS
    if type(given) is not int or given < 1:
        raise InvalidOption("retry", f"attempts must be a whole number from 1, not {given!r}")
    if implied is not None and given != implied:
        raise InvalidOption(
            "retry",
            f"{implied - 1} delays make {implied} attempts, not {given}",
            "leave out attempts",
        )
    return given


def _jitter(jitter: object) -> float | str:
    if not isinstance(jitter, str):
        return _seconds("jitter", jitter)
    if not _is_percentage(jitter) or _fraction(jitter) > 1:
        raise InvalidOption(
            "retry", f'jitter must be seconds or a percentage like "20%", at most 100%: {jitter!r}'
        )
    return jitter


def _fraction(percentage: str) -> float:
    return float(percentage.removesuffix("%")) / 100


def system_delay(retries: int, chance: float) -> float:
    """Seconds before a mutation runs again after an error that was not its own: full jitter."""
    return chance * min(SYSTEM_BASE * 2.0 ** min(retries, 32), SYSTEM_CAP)


def conflict_delay(retries: int, chance: float) -> float:
    """Seconds before a mutation runs again after a conflict with another transaction."""
    ceiling = min(CONFLICT_FLOOR * 2.0 ** min(retries, 32), CONFLICT_CAP)
    return CONFLICT_FLOOR + chance * (ceiling - CONFLICT_FLOOR)


def encode_retry(retry: Retry | None) -> str | None:
    """The policy in the form in which it is stored with a job."""
    return None if retry is None else msgspec.json.encode(retry).decode()


def decode_retry(text: str | None) -> Retry | None:
    """The stored policy; None, so no more attempts, if it cannot be read.

    Fields that this code does not know are ignored.
    """
    if text is None:
        return None
    try:
        stored = msgspec.json.decode(text, type=dict[str, Any])
        return Retry(**{name: stored[name] for name in Retry.__struct_fields__ if name in stored})
    except (msgspec.MsgspecError, ValueError):
        # The failure must be recorded anyway, or its slot would never become free again.
        return None
