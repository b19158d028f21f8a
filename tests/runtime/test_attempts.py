"""One attempt, and those who end it from outside while it ends by itself."""

from collections.abc import Callable
from typing import Any

from duly.model.job import Claim
from duly.runtime.execute import Attempt


class Fleeting(Attempt):
    """Its body ends just when somebody has looked whether it can be canceled."""

    looks: list[Callable[[], None]]

    @property
    def cancel_body(self) -> Callable[[], None] | None:
        return self.looks.pop() if self.looks else None

    @cancel_body.setter
    def cancel_body(self, _: object) -> None:
        self.looks = []


def test_a_body_that_ends_while_it_is_canceled_hurts_nobody() -> None:
    runnable: Any = None
    claim = Claim("id", 1, 1, 0, 0, "f", "action", "default", 5, 0, None, None, "{}")
    attempt = Fleeting(claim, runnable, lambda *_: None)
    told: list[str] = []
    attempt.looks = [lambda: told.append("told")]

    attempt.take_away(stops=True)

    assert attempt.canceled
    assert told == ["told"]
