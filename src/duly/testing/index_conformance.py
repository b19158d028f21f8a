"""The index conformance suite: each test is one rule of `duly.index.ScheduleIndex`.

Run it on your own index with pytest:

    from duly.testing import ScheduleIndexConformance

    TestMyIndex = ScheduleIndexConformance(create_index=MyIndex, cleanup=MyIndex.close)

or a subclass that overrides `create_index` and `cleanup`; both may be async. Each test gets an
empty index. The suite needs no package other than duly, and passes all times explicitly.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar, cast

from duly.index import IndexRow, ScheduleIndex, next_fire_after

NOW = 1_767_225_600_000
"""2026-01-01T00:00:00Z, a Thursday."""
MINUTE = 60_000
HOUR = 60 * MINUTE
DAY = 24 * HOUR
CLAIMERS = 8
ROWS = 1_000

T = TypeVar("T")


def row(key: str = "digest", next_fire_at: int = NOW, **fields: Any) -> IndexRow:
    """A row that is due at NOW, except for the given fields."""
    values: dict[str, Any] = {"user_id": "anna", "cron": "0 * * * *", "timezone": None, **fields}
    return IndexRow(key=key, next_fire_at=next_fire_at, **values)


class _CalledForAClass(type):
    """Called with an index factory, returns a test class; called without, an instance."""

    def __call__(cls, *given: Any, **named: Any) -> Any:
        if not given and not named:
            return super().__call__()
        return cls._on(*given, **named)

    def _on(
        cls,
        create_index: Callable[[], Any],
        cleanup: Callable[[Any], object] = lambda _: None,
    ) -> type:
        methods = {
            "create_index": staticmethod(create_index),
            "cleanup": staticmethod(cleanup),
            "__module__": getattr(create_index, "__module__", __name__),
        }
        return type(cls)("TestScheduleIndex", (cls,), methods)


class ScheduleIndexConformance(metaclass=_CalledForAClass):
    """The contract of a schedule index, as tests."""

    # To override

    def create_index(self) -> ScheduleIndex | Awaitable[ScheduleIndex]:
        """An empty index."""
        raise NotImplementedError("override create_index()")

    def cleanup(self, index: Any) -> object:
        """Close the index and remove its data."""

    # Helpers

    def _run(self, test: Callable[[ScheduleIndex], Coroutine[Any, Any, None]]) -> None:
        async def run() -> None:
            index = cast(ScheduleIndex, await _awaited(self.create_index()))
            try:
                await test(index)
            finally:
                await _awaited(self.cleanup(index))

        asyncio.run(run())

    # upsert

    def test_a_row_is_claimed_as_it_was_given(self) -> None:
        async def test(index: ScheduleIndex) -> None:
            given = row(
                user_id="zoë 🌍", key="a/b:'\"%;", cron="30 9 * * 1-5", timezone="Asia/Tokyo"
            )
            await index.upsert(given)
            assert list(await index.claim_due(NOW)) == [given]

        self._run(test)

    def test_a_second_upsert_replaces_the_row(self) -> None:
        async def test(index: ScheduleIndex) -> None:
            await index.upsert(row(cron="5 * * * *", timezone="Asia/Tokyo"))
            latest = row(next_fire_at=NOW - 1, cron="7 * * * *")
            await index.upsert(latest)
            assert list(await index.claim_due(NOW)) == [latest]
            assert list(await index.claim_due(NOW + 6 * MINUTE)) == []
            assert [r.next_fire_at for r in await index.claim_due(NOW + 7 * MINUTE)] == [
                NOW + 7 * MINUTE
            ]

        self._run(test)

    def test_an_upsert_can_make_a_claimed_row_due_again(self) -> None:
        async def test(index: ScheduleIndex) -> None:
            for _ in range(2):
                await index.upsert(row())
                assert list(await index.claim_due(NOW)) == [row()]

        self._run(test)

    def test_users_have_keys_of_their_own(self) -> None:
        async def test(index: ScheduleIndex) -> None:
            await index.upsert(row(user_id="anna"))
            await index.upsert(row(user_id="bert"))
            await index.remove("anna", "digest")
            assert list(await index.claim_due(NOW)) == [row(user_id="bert")]

        self._run(test)

    # claim_due

    def test_nothing_is_due_in_an_empty_index(self) -> None:
        async def test(index: ScheduleIndex) -> None:
            assert list(await index.claim_due(NOW)) == []

        self._run(test)

    def test_a_row_is_due_at_its_time_and_not_before(self) -> None:
        async def test(index: ScheduleIndex) -> None:
            await index.upsert(row())
            assert list(await index.claim_due(NOW - 1)) == []
            assert list(await index.claim_due(NOW)) == [row()]

        self._run(test)

    def test_a_second_claim_at_the_same_time_gets_nothing(self) -> None:
        async def test(index: ScheduleIndex) -> None:
            await index.upsert(row())
            assert list(await index.claim_due(NOW)) == [row()]
            assert list(await index.claim_due(NOW)) == []

        self._run(test)

    def test_a_claimed_row_carries_the_time_before_it_was_advanced(self) -> None:
        async def test(index: ScheduleIndex) -> None:
            await index.upsert(row(next_fire_at=NOW - 3 * MINUTE))
            assert [r.next_fire_at for r in await index.claim_due(NOW)] == [NOW - 3 * MINUTE]

        self._run(test)

    def test_the_new_time_is_the_first_after_the_given_now(self) -> None:
        """Not after the row's own time, and not after the wall clock's."""

        async def test(index: ScheduleIndex) -> None:
            for now in (NOW + 90 * MINUTE, NOW + 40_000 * DAY):
                await index.upsert(row(cron="*/20 * * * *"))
                assert len(await index.claim_due(now)) == 1
                after = next_fire_after(row(cron="*/20 * * * *"), now)
                assert now < after <= now + 20 * MINUTE
                assert list(await index.claim_due(after - 1)) == []
                assert [r.next_fire_at for r in await index.claim_due(after)] == [after]

        self._run(test)

    def test_a_row_that_was_due_many_times_is_claimed_once(self) -> None:
        async def test(index: ScheduleIndex) -> None:
            late = row(next_fire_at=NOW - DAY, cron="* * * * *")
            await index.upsert(late)
            assert list(await index.claim_due(NOW)) == [late]
            assert list(await index.claim_due(NOW)) == []

        self._run(test)

    def test_the_zone_of_a_row_decides_when_it_is_due_next(self) -> None:
        async def test(index: ScheduleIndex) -> None:
            await index.upsert(row("here", cron="0 9 * * *"))
            await index.upsert(row("there", cron="0 9 * * *", timezone="Asia/Tokyo"))
            assert len(await index.claim_due(NOW)) == 2
            assert [r.key for r in await index.claim_due(NOW + 9 * HOUR)] == ["here"]
            assert [r.key for r in await index.claim_due(NOW + DAY)] == ["there"]

        self._run(test)

    def test_the_longest_due_are_claimed_first(self) -> None:
        async def test(index: ScheduleIndex) -> None:
            for minutes in (3, 1, 5, 2, 4):
                await index.upsert(row(str(minutes), NOW - minutes * MINUTE))
            claimed = [r.key for r in await index.claim_due(NOW, 3)]
            assert claimed == ["5", "4", "3"]

        self._run(test)

    def test_a_claim_takes_no_more_than_its_limit(self) -> None:
        async def test(index: ScheduleIndex) -> None:
            for number in range(5):
                await index.upsert(row(str(number)))
            claims = [await index.claim_due(NOW, 2) for _ in range(4)]
            assert [len(claim) for claim in claims] == [2, 2, 1, 0]
            assert len({r.key for claim in claims for r in claim}) == 5

        self._run(test)

    def test_the_limit_is_a_hundred_unless_it_is_given(self) -> None:
        async def test(index: ScheduleIndex) -> None:
            for number in range(101):
                await index.upsert(row(str(number)))
            assert [len(await index.claim_due(NOW)) for _ in range(3)] == [100, 1, 0]

        self._run(test)

    # Bad rows

    def test_a_row_with_a_bad_expression_is_passed_over(self) -> None:
        async def test(index: ScheduleIndex) -> None:
            for number, cron in enumerate(("nonsense", "", "61 * * * *", "0 0 30 2 *")):
                await index.upsert(row(f"bad {number}", NOW - MINUTE, cron=cron))
            await index.upsert(row("good"))
            assert [r.key for r in await index.claim_due(NOW)] == ["good"]
            assert list(await index.claim_due(NOW)) == []

        self._run(test)

    def test_a_row_with_a_bad_zone_is_passed_over(self) -> None:
        async def test(index: ScheduleIndex) -> None:
            await index.upsert(row("bad", NOW - MINUTE, timezone="Mars/Olympus"))
            await index.upsert(row("good"))
            assert [r.key for r in await index.claim_due(NOW)] == ["good"]

        self._run(test)

    def test_more_bad_rows_than_the_limit_do_not_hide_a_good_one(self) -> None:
        async def test(index: ScheduleIndex) -> None:
            for number in range(12):
                await index.upsert(row(f"bad {number}", NOW - MINUTE, cron="nonsense"))
            for number in range(3):
                await index.upsert(row(f"good {number}"))
            claims = [await index.claim_due(NOW, 2) for _ in range(3)]
            assert [[r.key for r in claim] for claim in claims] == [
                ["good 0", "good 1"],
                ["good 2"],
                [],
            ]

        self._run(test)

    def test_a_corrected_row_is_claimed(self) -> None:
        async def test(index: ScheduleIndex) -> None:
            await index.upsert(row(cron="nonsense"))
            assert list(await index.claim_due(NOW)) == []
            await index.upsert(row())
            assert list(await index.claim_due(NOW)) == [row()]

        self._run(test)

    # remove

    def test_a_removed_row_is_not_claimed(self) -> None:
        async def test(index: ScheduleIndex) -> None:
            await index.upsert(row("gone"))
            await index.upsert(row("kept"))
            await index.remove("anna", "gone")
            assert [r.key for r in await index.claim_due(NOW)] == ["kept"]

        self._run(test)

    def test_a_row_that_does_not_exist_can_be_removed(self) -> None:
        async def test(index: ScheduleIndex) -> None:
            await index.remove("anna", "digest")
            await index.upsert(row())
            await index.remove("anna", "other")
            assert list(await index.claim_due(NOW)) == [row()]

        self._run(test)

    # Many at once

    def test_of_many_claims_at_once_each_row_goes_to_one(self) -> None:
        async def test(index: ScheduleIndex) -> None:
            keys = [f"{number:03}" for number in range(200)]
            await asyncio.gather(*(index.upsert(row(key)) for key in keys))
            claimed = await asyncio.gather(*(_claim_all(index, 7) for _ in range(CLAIMERS)))
            assert sorted(r.key for some in claimed for r in some) == keys

        self._run(test)

    def test_upserts_of_one_row_at_once_leave_one_row(self) -> None:
        async def test(index: ScheduleIndex) -> None:
            given = [row(next_fire_at=NOW - number) for number in range(20)]
            await asyncio.gather(*(index.upsert(one) for one in given))
            [claimed] = await index.claim_due(NOW)
            assert claimed in given
            assert list(await index.claim_due(NOW)) == []

        self._run(test)

    def test_claims_between_upserts_return_each_row_once_for_each_time(self) -> None:
        async def test(index: ScheduleIndex) -> None:
            given = [row(str(number), NOW - number) for number in range(40)]

            async def write() -> None:
                for one in given:
                    await index.upsert(one)

            async def claim() -> list[IndexRow]:
                found: list[IndexRow] = []
                while not writing.done():
                    found += await index.claim_due(NOW, 3)
                    # An index that never waits must not prevent the other tasks from running.
                    await asyncio.sleep(0)
                return found + await _claim_all(index, 3)

            writing = asyncio.ensure_future(write())
            claimed = await asyncio.gather(*(claim() for _ in range(3)))
            everything = [r for some in claimed for r in some]
            assert sorted(everything, key=lambda r: -r.next_fire_at) == given

        self._run(test)


async def _claim_all(index: ScheduleIndex, limit: int) -> list[IndexRow]:
    """Claim until nothing is left: rows that another claim holds at that moment may be skipped."""
    claimed: list[IndexRow] = []
    for _ in range(ROWS):
        some = await index.claim_due(NOW, limit)
        if not some:
            return claimed
        claimed += some
    raise AssertionError("the claims do not come to an end")


async def _awaited(value: Any) -> Any:
    return await value if inspect.isawaitable(value) else value
