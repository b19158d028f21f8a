from __future__ import annotations

import os
import threading
import uuid
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from duly.ids import _source, is_id, new_id, new_ids

NOW = 1_790_000_000_000


@pytest.fixture(scope="module", autouse=True)
def _from_the_beginning() -> Iterator[None]:
    """Ids never go back, so the far future that is used here must not reach other tests."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_source, "_last", 0)
        yield


@given(st.lists(st.integers(0, 1 << 44), min_size=2, max_size=50))
def test_ids_increase_whatever_the_clock_does(clock: list[int]) -> None:
    ids = [new_id(now) for now in clock]

    assert ids == sorted(set(ids))


@given(st.lists(st.tuples(st.integers(0, 1 << 44), st.integers(0, 20)), max_size=20))
def test_bulk_ids_and_single_ids_share_one_order(calls: list[tuple[int, int]]) -> None:
    ids = [id_ for now, n in calls for id_ in (*new_ids(now, n), new_id(now))]

    assert ids == sorted(set(ids))


def test_an_id_is_a_version_7_uuid_with_its_time() -> None:
    # Later than any id that another test has made, so the time is not carried on from there.
    later = 1 << 45
    parsed = uuid.UUID(new_id(later))

    assert parsed.version == 7
    assert parsed.variant == uuid.RFC_4122
    assert parsed.int >> 80 == later


def test_a_full_counter_carries_into_the_time() -> None:
    ids = new_ids(NOW, 3 * 4096)

    assert len(ids) == 3 * 4096
    assert ids == sorted(set(ids))
    assert all(uuid.UUID(id_).version == 7 for id_ in ids)
    assert uuid.UUID(ids[-1]).int >> 80 > uuid.UUID(ids[0]).int >> 80


def test_threads_never_get_the_same_time_and_counter() -> None:
    made: list[list[str]] = []

    def make() -> None:
        made.append([new_id(NOW) for _ in range(2_000)])

    threads = [threading.Thread(target=make) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert all(ids == sorted(ids) for ids in made)
    assert len({id_[:18] for ids in made for id_ in ids}) == 8_000


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this platform")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_forked_child_makes_other_ids_than_its_parent() -> None:
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(writer, new_id(NOW).encode())
        os._exit(0)
    os.waitpid(child, 0)

    assert os.read(reader, 100).decode()[19:] != new_id(NOW)[19:]
    os.close(reader)
    os.close(writer)


def test_what_was_made_is_an_id() -> None:
    assert is_id(new_id(NOW))
    assert is_id("01890a5d-ac96-774b-bcce-b302099a8057")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "01890a5d",
        "01890A5D-AC96-774B-BCCE-B302099A8057",
        "01890a5dac96774bbcceb302099a8057",
        "{01890a5d-ac96-774b-bcce-b302099a8057}",
        "01890a5d-ac96-774b-bcce-b302099a8057\n",
        "01890a5d-ac96-774b-bcce-b302099a805g",
        "01890a5d-ac96-774b-bcce-b302099a80٥7",
    ],
)
def test_anything_but_the_canonical_form_is_no_id(text: str) -> None:
    assert not is_id(text)
