"""The conformance suite: each test is a sentence of the contract in `duly.store.table`.

Run it on a store of your own with pytest:

    from duly.testing import StoreConformance

    class TestMyStore(StoreConformance):
        def make_store(self):
            store = MyStore(...)      # nothing in it
            store.migrate(now=0)
            return store

        def reopen(self, store):      # another handle on the same data, as another process has it
            return MyStore(...)

`make_empty_store` and `table` make a few more tests possible; what is not overridden is skipped.
The suite asks for no package but duly, takes all times as given, and closes every store it used.
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
    """The published suite: override `make_store`, and `reopen` if you can."""
