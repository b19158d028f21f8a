"""Endpoints: addresses that jobs POST to, as rows."""

from __future__ import annotations

from typing import Any

import msgspec

from duly.errors import EndpointExists
from duly.ids import new_id
from duly.model.endpoint import EndpointRecord
from duly.testing.conformance.ground import NO_JOB_ID, NOW, Ground, at_the_same_time, refused


def endpoint(name: str = "billing", **fields: Any) -> EndpointRecord:
    """An endpoint, except for the given fields."""
    values: dict[str, Any] = {
        "id": new_id(NOW),
        "owner": "",
        "name": name,
        "url": "https://billing.example/",
        "secret": "env:BILLING",
        "headers": '{"X-A":"1"}',
        "timeout_ms": 10_000,
        "retry": None,
        "version": 1,
        "created_at": NOW,
        "updated_at": NOW,
    }
    return EndpointRecord(**values | fields)


class Endpoints(Ground):
    def test_an_endpoint_is_read_as_it_was_stored(self) -> None:
        record = endpoint(retry='{"attempts":3}')
        assert self.store.add_endpoint(record, "ada", NOW)
        other = self.another_store()
        assert other.endpoint(record.id) == record
        assert other.endpoint_named("", "billing") == record
        assert other.endpoint_named("eve", "billing") is None
        assert other.endpoint(NO_JOB_ID) is None
        assert other.endpoint("nonsense") is None
        [entry] = other.audit_of(f"endpoint:{record.id}")
        assert (entry.actor, entry.action) == ("ada", "endpoint.create")

    def test_a_name_belongs_to_one_endpoint_of_an_owner(self) -> None:
        first, same = endpoint(), endpoint()
        assert self.store.add_endpoint(first, None, NOW)
        assert not self.store.add_endpoint(same, None, NOW)
        assert self.store.add_endpoint(endpoint(owner="ada"), None, NOW)
        assert list(self.store.audit_of(f"endpoint:{same.id}")) == []

    def test_of_many_who_want_a_name_one_gets_it(self) -> None:
        def add() -> bool:
            return self.store.add_endpoint(endpoint(), None, NOW)

        assert list(self.store.endpoints(None)) == []
        assert sum(at_the_same_time([add] * 4)) == 1

    def test_a_change_counts_up_the_version_and_is_audited(self) -> None:
        record = endpoint()
        self.store.add_endpoint(record, None, NOW)

        def change(before: EndpointRecord) -> EndpointRecord:
            return msgspec.structs.replace(before, url="https://other.example/", name="other")

        after = self.store.edit_endpoint(record.id, change, "eve", NOW + 1)
        assert after is not None
        assert (after.url, after.version, after.updated_at) == (
            "https://other.example/",
            2,
            NOW + 1,
        )
        assert self.store.endpoint_named("", "other") == after
        assert self.store.endpoint_named("", "billing") is None
        assert self.store.edit_endpoint(record.id, lambda same: same, None, NOW + 2) == after
        assert self.store.edit_endpoint(NO_JOB_ID, change, None, NOW) is None
        assert [entry.action for entry in self.store.audit_of(f"endpoint:{record.id}")] == [
            "endpoint.update",
            "endpoint.create",
        ]

    def test_a_change_to_a_name_that_is_taken_changes_nothing(self) -> None:
        first, second = endpoint(), endpoint("other")
        for record in (first, second):
            self.store.add_endpoint(record, None, NOW)
        with refused(EndpointExists):
            self.store.edit_endpoint(
                second.id, lambda r: msgspec.structs.replace(r, name="billing"), None, NOW
            )
        assert self.store.endpoint(second.id) == second

    def test_what_is_removed_is_gone_and_audited(self) -> None:
        record = endpoint()
        self.store.add_endpoint(record, None, NOW)
        assert self.store.remove_endpoint(record.id, "bob", NOW + 1)
        assert not self.store.remove_endpoint(record.id, "bob", NOW + 1)
        assert not self.store.remove_endpoint("nonsense", "bob", NOW + 1)
        assert self.store.endpoint(record.id) is None
        actions = [entry.action for entry in self.store.audit_of(f"endpoint:{record.id}")]
        assert actions == ["endpoint.remove", "endpoint.create"]

    def test_they_are_listed_page_by_page_and_by_owner(self) -> None:
        records = [endpoint("a"), endpoint("b", owner="ada"), endpoint("c")]
        records.sort(key=lambda record: record.id)
        for record in records:
            self.store.add_endpoint(record, None, NOW)
        assert list(self.store.endpoints(None)) == records
        assert list(self.store.endpoints(None, records[0].id, 1)) == records[1:2]
        assert [record.name for record in self.store.endpoints("ada")] == ["b"]
        assert list(self.store.endpoints(None, "nonsense")) == []
