"""Measures: how much waits where, counts that only grow, traces, and duly's own tables."""

from __future__ import annotations

from typing import Any

import msgspec

from duly.model.job import KeyedJob
from duly.model.measure import Count, Depth
from duly.testing.conformance.ground import NOW, SECOND, Ground, again, new_job, succeeded


class Measures(Ground):
    """What those who watch ask for."""

    def traced(self, parent: str, **fields: Any) -> KeyedJob:
        values: dict[str, Any] = msgspec.structs.asdict(new_job())
        values |= {"trace": parent, **fields}
        return KeyedJob(**values)

    def test_depths_are_counted_by_queue(self) -> None:
        self.enqueue_one(run_at=NOW - 3 * SECOND)
        self.enqueue_one(run_at=NOW - 2 * SECOND, priority=9)
        self.enqueue_one(run_at=NOW + SECOND)
        self.enqueue_one(run_at=NOW + SECOND, queue="later")
        assert list(self.store.depths(NOW)) == [
            Depth("default", 2, 1, 0, 0, NOW - 3 * SECOND),
            Depth("later", 0, 1, 0, 0, None),
        ]

    def test_what_runs_does_not_wait(self) -> None:
        claim = self.claim_new()
        (depth,) = self.store.depths(NOW)
        assert (depth.due, depth.later, depth.running, depth.held) == (0, 0, 1, 0)
        self.settle(succeeded(claim))
        assert list(self.store.depths(NOW)) == []

    def test_what_is_held_does_not_count_as_due(self) -> None:
        claim = self.claim_new()
        self.settle(again(claim, hold="signature"))
        (depth,) = self.store.depths(NOW)
        assert (depth.due, depth.running, depth.held, depth.due_since) == (0, 0, 1, None)

    def test_without_schedules_none_is_due(self) -> None:
        assert self.store.oldest_due() is None
        counts = self.store.schedule_counts()
        assert (counts.active, counts.parked, counts.inactive) == (0, 0, 0)

    def test_counts_only_grow(self) -> None:
        self.store.add_counts([])
        self.store.add_counts([Count("b", "{}", 2), Count("a", '{"x":"1"}', 1)])
        self.store.add_counts([Count("a", '{"x":"2"}', 5), Count("b", "{}", 40)])
        assert list(self.store.counts()) == [
            Count("a", '{"x":"1"}', 1),
            Count("a", '{"x":"2"}', 5),
            Count("b", "{}", 42),
        ]

    def test_a_job_carries_its_trace(self) -> None:
        traced, plain = self.traced("00-aa-bb-01"), new_job()
        assert self.store.enqueue([traced, plain]) == {}
        assert self.store.traces([traced.id, plain.id]) == {traced.id: "00-aa-bb-01"}

    def test_a_job_that_was_not_stored_leaves_no_trace(self) -> None:
        first = self.traced("00-aa-bb-01", unique_key="k")
        second = self.traced("00-cc-dd-01", unique_key="k")
        self.store.enqueue([first])
        assert self.store.enqueue([second]) == {second.id: first.id}
        assert self.store.traces([first.id, second.id]) == {first.id: "00-aa-bb-01"}

    def test_the_tables_are_shown_page_by_page(self) -> None:
        ids = sorted(self.enqueue_one() for _ in range(3))
        tables = {table.name: table.rows for table in self.store.system_tables()}
        assert tables["jobs"] == 3
        first = self.store.system_rows("jobs", None, 2)
        rest = self.store.system_rows("jobs", [first[-1]["id"]], 2)
        assert [row["id"] for row in (*first, *rest)] == ids
        assert not {"args", "error_message"} & set(first[0])
        assert list(self.store.system_rows("jobs", ["no id"], 2)) == []
