"""Measures: queue depths, counters, traces, and duly's own tables."""

from __future__ import annotations

from typing import Any

import msgspec

from duly.model.job import Claim, Finish, KeyedJob, State, TrackedJob, finished
from duly.model.measure import Count, Depth
from duly.testing.conformance.ground import NOW, SECOND, Ground, again, new_job, succeeded


def failed(claim: Claim) -> Finish:
    return finished(claim, State.FAILED)


class Measures(Ground):
    """The reads of monitoring tools."""

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

    def test_the_functions_that_jobs_wait_for(self) -> None:
        assert list(self.store.waiting_functions()) == []
        self.enqueue(3, function="send", run_at=NOW + SECOND)
        self.enqueue(2, function="gone")
        assert list(self.store.waiting_functions()) == ["gone", "send"]
        self.register("send")
        self.store.hold_unknown(NOW)
        assert list(self.store.waiting_functions()) == ["gone", "send"]

    def test_what_runs_waits_for_nobody(self) -> None:
        self.claim_new(function="send")
        assert list(self.store.waiting_functions()) == []

    def test_a_store_names_its_database(self) -> None:
        engine = self.store.database()
        assert engine.name
        assert engine.version

    def test_a_store_says_which_zone_data_is_required(self) -> None:
        assert self.store.required_zone_data() == ""
        self.store.take_zone_data("2026a")
        assert self.store.required_zone_data() == "2026a"

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

    def test_recent_runs_are_those_of_schedules(self) -> None:
        schedule = "11111111-1111-7111-8111-111111111111"
        runs: list[str] = []
        for _ in range(3):
            values = msgspec.structs.asdict(new_job())
            self.store.enqueue([TrackedJob(**values, trigger="schedule", actor=schedule)])
            (claim,) = self.claim()
            self.settle(succeeded(claim))
            runs.append(claim.id)
        self.settle(succeeded(self.claim_new()))
        found = self.store.recent_runs([schedule, runs[0]], 2)
        assert {key: [run.job_id for run in its] for key, its in found.items()} == {
            schedule: sorted(runs, reverse=True)[:2]
        }
        assert self.store.recent_runs([], 2) == {}

    def test_the_runs_of_a_function_are_the_newest_of_both_outcomes(self) -> None:
        ended: list[tuple[str, str]] = []
        for end in (succeeded, failed, succeeded, succeeded):
            claim = self.claim_new()
            self.settle(end(claim))
            ended.append((claim.id, str(end(claim).state)))
        function = new_job().function
        found = self.store.function_runs([function, "other"], 3)
        assert {key: [(run.job_id, run.state) for run in its] for key, its in found.items()} == {
            function: sorted(ended, reverse=True)[:3]
        }
        assert self.store.function_runs([], 3) == {}

    def test_the_audit_log_is_filtered(self) -> None:
        for action, actor in (("queue.pause", "ann"), ("queue.resume", "bob"), ("queues.x", None)):
            self.store.audit(action, "queue:a", actor, None, NOW)

        def actions(**filters: Any) -> list[str]:
            return [entry.action for entry in self.store.audit_page(None, None, 10, **filters)]

        assert sorted(actions(action="queue")) == ["queue.pause", "queue.resume"]
        assert actions(action="queue.resume") == ["queue.resume"]
        assert actions(actor="ann") == ["queue.pause"]
        assert actions(actor="ann", action="queues") == []

    def test_what_has_ended_is_counted_by_the_step(self) -> None:
        self.settle(succeeded(self.claim_new()))
        self.settle(failed(self.claim_new(owner="ann")))
        found = self.store.throughput(0, SECOND, None)
        assert sorted((each.at, each.state, each.jobs) for each in found) == [
            (NOW, "failed", 1),
            (NOW, "succeeded", 1),
        ]
        assert [each.state for each in self.store.throughput(0, SECOND, "ann")] == ["failed"]

    def test_a_tally_counts_what_operators_look_for(self) -> None:
        self.claim_new()
        self.claim_new(owner="ann")
        self.settle(failed(self.claim_new(owner="ann")))
        everybody = self.store.tally(NOW, NOW - 60 * SECOND, 0, None)
        assert (everybody.running, everybody.due_soon, everybody.overdue) == (2, 0, 0)
        hers = self.store.tally(NOW, NOW - 60 * SECOND, 0, "ann")
        assert (hers.running, hers.failed) == (1, 1)
