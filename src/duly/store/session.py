"""A session: one connection inside one transaction."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, cast

from duly.model.job import (
    Claim,
    Finish,
    NewJob,
    Settlement,
)
from duly.store import steps
from duly.store.base import (
    ClaimRequest,
)
from duly.store.statements import Dialect, Statement
from duly.store.steps import Ask, Row, drive


class Session(ABC):
    """Runs duly's statements. The caller that opened it commits or rolls back."""

    dialect: Dialect

    @abstractmethod
    def run(self, statement: Statement, parameters: Mapping[str, Any] = {}) -> list[Row]: ...

    @abstractmethod
    def run_text(self, text: str, parameters: Mapping[str, Any]) -> list[Row]:
        """Run a text that was composed, rather than a statement."""

    @abstractmethod
    def insert_canceled(self, jobs: Sequence[NewJob], by: str, now: int) -> None: ...

    @abstractmethod
    def settle(self, settlements: Sequence[Settlement], now: int) -> set[str]: ...

    @abstractmethod
    def lanes(self) -> list[Row]: ...

    @abstractmethod
    def claim(self, request: ClaimRequest, now: int) -> list[Claim]: ...

    def answer(self, ask: Ask) -> list[Row]:
        """Run one statement of a verb that is written as steps, for `drive`."""
        parameters = cast(Mapping[str, Any], ask.parameters)
        if isinstance(ask.statement, str):
            return self.run_text(ask.statement, parameters)
        return self.run(ask.statement, parameters)

    def cancel_children_of(
        self, finishes: Iterable[Finish], settled: Collection[str], now: int
    ) -> None:
        """Cancel the unfinished jobs that failed workflows have enqueued."""
        failed = [finish.id for finish in finishes if finish.cancels and finish.id in settled]
        if failed:
            drive(steps.cancel_children(self.dialect, failed, now), self.answer)

    def ids(self, statement: Statement, parameters: Mapping[str, Any]) -> list[str]:
        """The first column of the rows."""
        return [row[0] for row in self.run(statement, parameters)]

    def array(self, values: Iterable[str]) -> Any:
        """Many strings as one parameter."""
        return steps.array(self.dialect, values)
