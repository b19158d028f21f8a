"""Transactions outside any job."""

from __future__ import annotations

from duly.model.job import JobFilter, State
from duly.testing.conformance.ground import NO_JOB_ID, NOW, Ground, new_job, refused


class Transactions(Ground):
    def test_what_is_done_in_a_transaction_happens_together(self) -> None:
        self.create_user_table()
        job, doomed = new_job(), self.enqueue_one()
        with self.store.transaction() as tx:
            tx.execute("INSERT INTO notes VALUES (?)", (1,))
            tx.insert_jobs([job])
            assert tx.cancel(doomed, "code", NOW) is True
        assert self.user_rows() == [1]
        assert self.state(job.id) == State.PENDING
        assert self.state(doomed) == State.CANCELED

    def test_a_transaction_that_raises_leaves_nothing_behind(self) -> None:
        self.create_user_table()
        job, spared = new_job(), self.enqueue_one()
        with refused(ZeroDivisionError), self.store.transaction() as tx:
            tx.execute("INSERT INTO notes VALUES (1)")
            tx.insert_jobs([job])
            tx.cancel(spared, "code", NOW)
            raise ZeroDivisionError
        assert self.user_rows() == []
        assert self.store.get(job.id) is None
        assert self.state(spared) == State.PENDING

    def test_a_savepoint_that_raises_takes_only_its_own_work_back(self) -> None:
        self.create_user_table()
        kept, dropped, last = new_job(), new_job(), new_job()
        with self.store.transaction() as tx:
            tx.insert_jobs([kept])
            with refused(ZeroDivisionError), tx.savepoint():
                tx.insert_jobs([dropped])
                with tx.savepoint():
                    tx.execute("INSERT INTO notes VALUES (1)")
                raise ZeroDivisionError
            with refused(), tx.savepoint():
                tx.execute("SELECT * FROM no_such_table")
            with tx.savepoint():
                tx.insert_jobs([last])
        assert self.user_rows() == []
        assert self.store.get(dropped.id) is None
        assert (self.state(kept.id), self.state(last.id)) == (State.PENDING, State.PENDING)

    def test_a_transaction_sees_its_own_work_and_nobody_else_does(self) -> None:
        other = self.another_store()
        job, old = new_job(function="keep"), self.enqueue_one()
        with self.store.transaction() as tx:
            tx.insert_jobs([job])
            tx.cancel(old, "code", NOW)
            seen, gone = tx.get(job.id), tx.get(old)
            assert seen is not None
            assert seen.state == State.PENDING
            assert gone is not None
            assert gone.state == State.CANCELED
            assert [found.id for found in tx.find(JobFilter(function="keep"))] == [job.id]
            assert other.get(job.id) is None
            assert self.state(old, other) == State.PENDING
        assert self.state(job.id, other) == State.PENDING

    def test_a_refused_job_undoes_the_whole_transaction(self) -> None:
        stored, new = self.enqueue_one(), new_job()
        with refused(), self.store.transaction() as tx:
            tx.insert_jobs([new])
            tx.insert_jobs([new_job(id=stored)])
        assert self.store.get(new.id) is None

    def test_statements_take_question_marks_and_answer_rows(self) -> None:
        self.create_user_table()
        with self.store.transaction() as tx:
            assert tx.execute("INSERT INTO notes VALUES (?), (?)", (1, 2)).rowcount == 2
            rows = tx.execute("SELECT n, '?' FROM notes WHERE n > ? ORDER BY n", (0,))
            assert rows.all() == [(1, "?"), (2, "?")]
            assert tx.execute("SELECT count(*) FROM notes").scalar() == 2
            assert tx.execute("SELECT n FROM notes WHERE n > 9").first() is None
            with refused(LookupError):
                tx.execute("SELECT n FROM notes").one()

    def test_a_running_job_is_locked_by_its_token(self) -> None:
        claim = self.claim_new()
        with self.store.transaction() as tx:
            assert tx.lock_running(claim.id, claim.token) is True
            assert tx.lock_running(claim.id, claim.token + 1) is False
            assert tx.lock_running(NO_JOB_ID, 1) is False

    def test_a_transaction_cannot_be_ended_from_inside(self) -> None:
        job = new_job()
        with refused(), self.store.transaction() as tx:
            tx.execute("ROLLBACK")
            tx.insert_jobs([job])
        assert self.store.get(job.id) is None
        self.enqueue()
