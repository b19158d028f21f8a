"""Gateways: their address, and their last answer or failure."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from duly.ids import new_id
from duly.model.gateway import GatewayRecord
from duly.testing.conformance.ground import NO_JOB_ID, NOW, Ground


def new_gateway(**fields: Any) -> GatewayRecord:
    values: dict[str, Any] = {
        "id": new_id(NOW),
        "owner": "",
        "name": "edge",
        "url": "http://127.0.0.1:8700",
        "secret": "env:EDGE",
        "version": 1,
        "created_at": NOW,
        "updated_at": NOW,
    }
    return GatewayRecord(**values | fields)


class Gateways(Ground):
    """Registered, found, updated and removed."""

    def test_a_gateway_is_found_by_id_and_by_name_of_its_owner(self) -> None:
        mine, hers = new_gateway(), new_gateway(owner="anna")
        assert self.store.add_gateway(mine, "ops", NOW)
        assert self.store.add_gateway(hers, None, NOW)

        assert self.store.gateway(mine.id) == mine
        assert self.store.gateway_named("anna", "edge") == hers
        assert self.store.gateway_named("bob", "edge") is None
        assert self.store.gateway(NO_JOB_ID) is None
        assert self.store.gateway("nonsense") is None

    def test_an_owner_has_one_gateway_of_a_name(self) -> None:
        first = new_gateway()
        self.store.add_gateway(first, None, NOW)

        assert not self.store.add_gateway(new_gateway(url="http://other"), None, NOW)
        assert self.store.gateway_named("", "edge") == first

    def test_gateways_come_in_pages_oldest_first(self) -> None:
        made = [new_gateway(name=f"g{n}", owner="anna" if n % 2 else "") for n in range(5)]
        for gateway in made:
            self.store.add_gateway(gateway, None, NOW)

        assert list(self.store.gateways(None, None, 3)) == made[:3]
        assert list(self.store.gateways(None, made[2].id, 3)) == made[3:]
        assert list(self.store.gateways("anna")) == made[1::2]
        assert list(self.store.gateways(None, "nonsense")) == []

    def test_what_was_heard_is_kept_unless_something_later_was(self) -> None:
        gateway = new_gateway()
        self.store.add_gateway(gateway, None, NOW)
        heard = replace(gateway, crons="[]", seen_at=NOW + 10)
        self.store.note_gateway(heard)
        assert self.store.gateway(gateway.id) == heard

        self.store.note_gateway(replace(gateway, crons="[1]", seen_at=NOW + 5))
        assert self.store.gateway(gateway.id) == heard

        stale = replace(heard, error="no answer", stale_since=NOW + 20)
        self.store.note_gateway(stale)
        assert self.store.gateway(gateway.id) == stale

    def test_a_gateway_is_forgotten_once(self) -> None:
        gateway = new_gateway()
        self.store.add_gateway(gateway, None, NOW)

        assert self.store.remove_gateway(gateway.id, "ops", NOW)
        assert not self.store.remove_gateway(gateway.id, "ops", NOW)
        assert not self.store.remove_gateway("nonsense", "ops", NOW)
        assert self.store.gateway(gateway.id) is None

    def test_it_is_written_down_who_did_that(self) -> None:
        gateway = new_gateway()
        self.store.add_gateway(gateway, "anna", NOW)
        self.store.remove_gateway(gateway.id, "bob", NOW)

        trail = self.store.audit_of(f"gateway:{gateway.id}")
        assert [(entry.actor, entry.action) for entry in trail] == [
            ("bob", "gateway.remove"),
            ("anna", "gateway.create"),
        ]
