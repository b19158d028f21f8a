"""Functions: published, paused and deleted, and the jobs that wait for them."""

from __future__ import annotations

from functools import partial
from typing import Any

from duly.model.function import FunctionInfo, Published, Status
from duly.model.job import Hold, Kind, State
from duly.testing.conformance.ground import NOW, Ground, again, at_the_same_time


def published(name: str = "send", **fields: Any) -> Published:
    """A function as a worker publishes it."""
    values: dict[str, Any] = {
        "name": name,
        "kind": Kind.ACTION,
        "app": "shop",
        "schema": "{}",
        "options": "{}",
        "internal": False,
        "alias_of": None,
    }
    return Published(**values | fields)


class Functions(Ground):
    def set_status(self, name: str, status: Status) -> None:
        how: Any = {"by": "ada", "note": "why", "now": NOW + 1}
        assert self.store.set_status(name, status, tuple(Status), **how)

    def function(self, name: str) -> FunctionInfo:
        info = self.store.function(name)
        assert info is not None
        return info

    def test_what_is_published_can_be_read_by_everybody(self) -> None:
        self.store.publish([published("b", internal=True), published("a", schema='{"x":1}')], NOW)
        other = self.another_store()
        assert [info.name for info in other.functions()] == ["a", "b"]
        info = other.function("b")
        assert info is not None
        assert (info.kind, info.app, info.internal) == ("action", "shop", True)
        assert (info.status, info.published_at) == (Status.ACTIVE, NOW)
        assert self.function("a").schema == '{"x":1}'
        assert other.function("c") is None

    def test_publishing_again_changes_the_description_and_not_the_status(self) -> None:
        self.store.publish([published()], NOW)
        self.set_status("send", Status.DELETED)
        self.store.publish([published(schema='{"new":1}')], NOW + 2)
        info = self.function("send")
        assert (info.schema, info.published_at) == ('{"new":1}', NOW + 2)
        assert (info.status, info.status_by, info.status_note) == (Status.DELETED, "ada", "why")
        assert info.status_at == NOW + 1

    def test_what_was_replaced_does_not_come_back_by_itself(self) -> None:
        old, new = published(), published(schema='{"new":1}')
        for description in (old, new, old):
            self.store.publish([description], NOW)
        assert self.function("send").schema == '{"new":1}'
        self.store.publish([old], NOW, force=True)
        assert self.function("send").schema == "{}"

    def test_what_another_app_has_published_is_left_alone(self) -> None:
        self.store.publish([published()], NOW)
        other = published(app="other", schema='{"other":1}')
        self.store.publish([other], NOW)
        assert (self.function("send").app, self.function("send").schema) == ("shop", "{}")
        self.store.publish([other], NOW, force=True)
        assert (self.function("send").app, self.function("send").schema) == ("other", '{"other":1}')

    def test_a_status_is_changed_only_from_an_allowed_one(self) -> None:
        self.store.publish([published()], NOW)
        self.set_status("send", Status.DELETED)
        how: Any = {"by": None, "note": None, "now": NOW}
        assert not self.store.set_status("send", Status.PAUSED, (Status.ACTIVE,), **how)
        assert self.function("send").status == Status.DELETED
        assert not self.store.set_status("nobody", Status.PAUSED, (Status.ACTIVE,), **how)

    def test_an_alias_follows_the_status_of_its_function(self) -> None:
        self.store.publish([published()], NOW)
        self.set_status("send", Status.PAUSED)
        self.store.publish([published("old", alias_of="send"), published()], NOW)
        assert self.store.statuses() == {"send": Status.PAUSED, "old": Status.PAUSED}
        self.set_status("send", Status.ACTIVE)
        assert self.store.statuses() == {}

    def test_workers_that_publish_at_the_same_time_do_not_disturb_each_other(self) -> None:
        functions = [published(f"f{n}") for n in range(20)]
        stores = [self.store, self.another_store(), self.another_store()]
        orders = [functions, functions[::-1], functions[10:] + functions[:10]]
        at_the_same_time(
            [partial(s.publish, order, NOW) for s, order in zip(stores, orders, strict=True)]
        )
        assert len(self.store.functions()) == 20

    def test_no_job_of_a_paused_or_deleted_function_is_claimed(self) -> None:
        self.store.publish([published(name) for name in ("a", "b", "c", "d")], NOW)
        jobs = {name: self.enqueue_one(function=name) for name in ("a", "b", "c", "d")}
        self.set_status("a", Status.PAUSED)
        self.set_status("b", Status.DELETED)
        self.set_status("c", Status.DEPRECATED)
        claimed = self.claim_ids(functions=["a", "b", "c", "d"])
        assert sorted(claimed) == sorted([jobs["c"], jobs["d"]])
        self.set_status("a", Status.ACTIVE)
        assert self.claim_ids(functions=["a", "b", "c", "d"]) == [jobs["a"]]

    def test_a_job_that_runs_alone_waits_for_its_function_too(self) -> None:
        held = self.claim_new()
        self.settle(again(held, hold=Hold.ALONE))
        self.store.publish([published()], NOW)
        self.set_status("send", Status.PAUSED)
        alone = self.register("send", alone=True)
        assert list(self.store.due_alone(["send"], None, NOW)) == []
        assert self.store.claim_alone(held.id, alone, ["send"], NOW) is None
        self.set_status("send", Status.ACTIVE)
        assert list(self.store.due_alone(["send"], None, NOW)) == [held.id]

    def test_due_jobs_of_a_paused_function_are_held_and_freed(self) -> None:
        self.register("send", "keep")
        self.store.publish([published(), published("keep")], NOW)
        waiting, later = self.enqueue(2), self.enqueue_one(run_at=NOW + 1)
        beside = self.enqueue_one(function="keep")
        self.set_status("send", Status.PAUSED)
        assert self.store.hold_unknown(NOW) == 2
        assert {self.get(job_id).hold for job_id in waiting} == {Hold.PAUSED}
        assert (self.get(later).hold, self.get(beside).hold) == (None, None)
        assert self.store.release_known() == 0
        self.set_status("send", Status.ACTIVE)
        assert self.store.release_known() == 2
        assert {self.get(job_id).hold for job_id in waiting} == {None}

    def test_a_due_job_of_a_deleted_function_is_canceled(self) -> None:
        self.register("send")
        self.store.publish([published()], NOW)
        late = self.enqueue_one()
        self.set_status("send", Status.DELETED)
        assert self.store.hold_unknown(NOW) == 1
        record = self.get(late)
        assert (record.state, record.canceled_by) == (State.CANCELED, "operator")

    def test_a_worker_that_learns_a_function_frees_its_jobs(self) -> None:
        worker = self.register("send")
        unknown = self.enqueue_one(function="new")
        assert self.store.hold_unknown(NOW) == 1
        self.store.relist(worker, ["send", "new"], ["new"])
        assert self.get(unknown).hold is None
        [info] = self.store.workers()
        assert sorted(info.functions) == ["new", "send"]
        assert info.threaded == ("new",)
