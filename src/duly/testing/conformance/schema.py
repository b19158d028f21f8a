"""The schema: migrated, missing, or too new."""

from __future__ import annotations

from duly.errors import StoreError, StoreTooNew
from duly.model.job import State
from duly.testing.conformance.ground import NOW, Ground, refused


class Schema(Ground):
    def test_migrating_again_does_nothing(self) -> None:
        job_id = self.enqueue_one()
        assert list(self.store.migrate(NOW)) == []
        assert list(self.store.pending_migrations()) == []
        assert self.store.migration_script(NOW) == ""
        self.store.open(NOW)
        assert self.state(job_id) == State.PENDING

    def test_a_store_without_tables_is_refused(self) -> None:
        empty = self.make_empty_store()
        try:
            with refused(StoreError):
                empty.open(NOW)
            assert list(empty.pending_migrations())
            assert empty.migration_script(NOW)
        finally:
            empty.close()

    def test_a_store_that_needs_newer_code_is_refused(self) -> None:
        meta = self.table("meta")
        with self.store.transaction() as tx:
            tx.execute(f"UPDATE {meta} SET value = '999' WHERE key = 'min_code'")
        with refused(StoreTooNew):
            self.another_store()

    def test_a_closed_store_can_be_opened_again(self) -> None:
        store = self.another_store()
        job_id = self.enqueue_one()
        store.close()
        store.open(NOW)
        assert self.state(job_id, store) == State.PENDING
