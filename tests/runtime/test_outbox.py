"""Every end reaches the store, whatever happens on the way."""

import sqlite3
from collections.abc import Sequence

import pytest

from duly.errors import QueryTooBroad, StoreError, StoreUnavailable
from duly.model.job import ErrorKind, Finish, Settlement, State
from duly.runtime.outbox import Outbox


def finish(name: str) -> Finish:
    return Finish(id=name, token=1, state=State.SUCCEEDED, result='"fine"')


class Picky:
    """A store that refuses one row, and counts what it is asked."""

    def __init__(self, refuses: str, error: StoreError | None = None) -> None:
        self.refuses = refuses
        self.error = error
        self.stored: list[Settlement] = []
        self.calls = 0

    def write(self, part: Sequence[Settlement]) -> set[str]:
        self.calls += 1
        if any(s.id == self.refuses and s.state == State.SUCCEEDED for s in part):  # type: ignore[union-attr]
            if self.error is not None:
                raise self.error
            raise StoreError("this row cannot be stored") from sqlite3.IntegrityError()
        self.stored += part
        return {s.id for s in part}


def test_one_row_that_cannot_be_stored_travels_alone() -> None:
    store = Picky(refuses="job 37")
    batch = [finish(f"job {n}") for n in range(100)]

    settled = Outbox().store(batch, store.write)

    assert settled == {s.id for s in batch}
    bad = [s for s in store.stored if s.id == "job 37"]
    assert [(s.state, s.error_kind) for s in bad] == [  # type: ignore[union-attr]
        (State.FAILED, ErrorKind.UNSTORABLE_RESULT)
    ]
    assert store.calls < 30, "the others must not travel one by one"


def test_a_store_that_goes_away_loses_nothing() -> None:
    outbox = Outbox()
    batch = [finish(f"job {n}") for n in range(8)]
    written: list[Settlement] = []

    def write(part: Sequence[Settlement]) -> set[str]:
        if len(part) == 8:
            raise StoreError("split me")
        if written:
            raise StoreUnavailable("gone")
        written.extend(part)
        return {s.id for s in part}

    settled = outbox.store(batch, write)

    waiting = outbox.take()
    assert settled == {s.id for s in written}
    assert sorted(s.id for s in [*written, *waiting]) == sorted(s.id for s in batch)


def test_what_is_put_back_comes_first_and_in_order() -> None:
    outbox = Outbox()
    outbox.put(finish("c"))
    outbox.put_back([finish("a"), finish("b")])

    assert [s.id for s in outbox.take()] == ["a", "b", "c"]


def test_a_row_that_not_even_its_failure_can_store_is_given_up() -> None:
    def write(part: Sequence[Settlement]) -> set[str]:
        raise StoreError("nothing works") from sqlite3.IntegrityError()

    outbox = Outbox()
    assert outbox.store([finish("a")], write) == set()
    assert len(outbox) == 0


@pytest.mark.parametrize("error", [QueryTooBroad("timeout"), StoreError("?"), RuntimeError("?")])
def test_trouble_that_is_no_rows_fault_falsifies_no_end(error: Exception) -> None:
    outbox = Outbox()
    batch = [finish(f"job {n}") for n in range(100)]
    calls: list[int] = []

    def write(part: Sequence[Settlement]) -> set[str]:
        calls.append(len(part))
        raise error

    for _ in range(5):
        assert outbox.store(outbox.take() or batch, write) == set()

    assert len(calls) < 50, "the others need not be tried one by one"
    assert sorted(s.id for s in outbox.take()) == sorted(s.id for s in batch)


def test_a_row_with_unknown_trouble_waits_behind_the_others() -> None:
    outbox = Outbox()
    batch = [finish(f"job {n}") for n in range(8)]
    store = Picky(refuses="job 0", error=StoreError("?"))

    settled = outbox.store(batch, store.write) | outbox.store(outbox.take(), store.write)

    assert settled == {f"job {n}" for n in range(1, 8)}
    assert outbox.take() == [finish("job 0")]
