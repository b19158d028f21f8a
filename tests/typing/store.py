"""The lines of the table of verbs take what the verbs take, and give what they give."""

from typing import assert_type

from duly.model.job import JobRecord
from duly.model.schedule import TickFilter
from duly.store.base import ClaimRequest
from duly.store.table import Store


def use(store: Store) -> None:
    assert_type(store.get("id"), JobRecord | None)
    assert_type(store.cancel("id", "operator", 5), bool | None)
    assert_type(store.is_scheduled(["send"]), bool)
    assert_type(store.expire(5), int)
    store.audit_of("queue:mail")
    store.audit_of("queue:mail", limit=5)
    store.due_schedules(5, 10, zone_data="2026a")
    store.get()  # error
    store.get(5)  # error
    store.cancel("id", "operator")  # error
    store.cancel("id", "operator", now="5")  # error
    store.audit_of("queue:mail", most=5)  # error
    store.due_schedules(5, 10)  # error
    store.due_schedules(5, 10, "2026a")  # error
    store.ticks("id", TickFilter(limit="5"))  # error
    store.expire(now="5")  # error
    store.exchange([], ClaimRequest("id", ("default",), ("send",), 1))  # error
    store.get_all()  # error
    store.get(store.expire(5))  # error
