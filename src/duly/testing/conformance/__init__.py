"""The store conformance suite: each test is one rule of the contract in `duly.store.table`.

Run it on your own store with pytest:

    from duly.testing import StoreConformance

    class TestMyStore(StoreConformance):
        def make_store(self):
            store = MyStore(...)      # empty
            store.migrate(now=0)
            return store

        def reopen(self, store):      # another Store for the same database, as in another process
            return MyStore(...)

`make_empty_store` and `table` make a few more tests possible; tests that need a method that is not
overridden are skipped. The suite needs no package other than duly, passes all times explicitly, and
closes every store that it used.
"""

from __future__ import annotations

from duly.testing.conformance.bulk import Bulk
from duly.testing.conformance.cancel import Canceling
from duly.testing.conformance.claim import Claiming
from duly.testing.conformance.endpoints import Endpoints
from duly.testing.conformance.enqueue import Enqueuing
from duly.testing.conformance.functions import Functions
from duly.testing.conformance.gateways import Gateways
from duly.testing.conformance.keys import Keys
from duly.testing.conformance.measures import Measures
from duly.testing.conformance.mutations import Mutations
from duly.testing.conformance.reads import Reads
from duly.testing.conformance.reports import Reports
from duly.testing.conformance.requests import Requests
from duly.testing.conformance.schema import Schema
from duly.testing.conformance.settle import Guards, Settlements
from duly.testing.conformance.transactions import Transactions
from duly.testing.conformance.upkeep import Retention, Upkeep
from duly.testing.conformance.waking import Waking
from duly.testing.conformance.webhooks import Webhooks
from duly.testing.conformance.workers import Workers

__all__ = ["StoreConformance"]


class StoreConformance(
    Enqueuing,
    Keys,
    Claiming,
    Settlements,
    Guards,
    Canceling,
    Transactions,
    Mutations,
    Workers,
    Upkeep,
    Functions,
    Retention,
    Reads,
    Reports,
    Bulk,
    Measures,
    Endpoints,
    Webhooks,
    Waking,
    Gateways,
    Requests,
    Schema,
):
    """The conformance suite for stores: override `make_store`, and `reopen` if possible."""
