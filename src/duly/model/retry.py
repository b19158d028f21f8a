"""Retry policies: when a failed attempt runs again."""

from __future__ import annotations

import msgspec

from duly.errors import InvalidOption

SYSTEM_BASE = 0.5
SYSTEM_CAP = 2 * 3600.0
CONFLICT_FLOOR = 0.1
CONFLICT_CAP = 60.0
MAX_DELAY = 1826 * 86_400.0


class Retry(msgspec.Struct, frozen=True, omit_defaults=True):
    """Run a failed attempt again: the delay after attempt n is base**n seconds plus jitter.

    `cap` is the longest delay, including jitter. Without a Retry, an action runs at most once.
    """

    attempts: int = 5
    base: float = 2.0
    cap: float = 3600.0
    jitter: float = 1.0

    def __post_init__(self) -> None:
        if type(self.attempts) is not int or self.attempts < 1:
            raise InvalidOption("retry", "attempts must be a whole number, at least 1")
        for seconds in (self.base, self.cap, self.jitter):
            if not 0 <= seconds <= MAX_DELAY:  # also refuses NaN, which fails every comparison
                raise InvalidOption("retry", "base, cap and jitter must be 0 s to five years")

    def allows(self, attempt: int) -> bool:
        """Whether another attempt may follow attempt number `attempt`."""
        return attempt < self.attempts

    def delay(self, attempt: int, chance: float) -> float:
        """Seconds to wait after attempt number `attempt`; `chance` is drawn from [0, 1)."""
        try:
            power = float(self.base) ** attempt
        except OverflowError:
            power = self.cap
        return min(power + self.jitter * chance, self.cap)

    def within(self, seconds: float) -> float:
        """The delay to use when the function itself has given one."""
        return min(max(seconds, 0.0), self.cap)


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
    """The stored policy; None, so no more attempts, if it cannot be read."""
    if text is None:
        return None
    try:
        return msgspec.json.decode(text, type=Retry)
    except (msgspec.MsgspecError, ValueError):
        # The failure must be recorded anyway, or its slot would never become free again.
        return None
