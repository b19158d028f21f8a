"""Mutations: the lane in which a job and its writes commit together."""

from __future__ import annotations

import threading
from collections.abc import Generator
from contextlib import contextmanager

from duly.errors import TransactionEnded
from duly.model.job import Claim, Kind, State
from duly.store.base import Blame, MutationLane
from duly.testing.conformance.ground import NOW, Ground, again, new_job, refused


class Mutations(Ground):
    """begin → (enter → body → finish → leave | undo)* → commit | rollback."""

    @contextmanager
    def lane(self) -> Generator[MutationLane]:
        self.create_user_table()
        lane = self.store.mutation_lane()
        try:
            yield lane
        finally:
            lane.close()

    def running(self, count: int) -> list[Claim]:
        self.enqueue(count, kind=Kind.MUTATION)
        return self.claim(count)

    def test_the_bodys_writes_and_its_success_are_one_commit(self) -> None:
        [claim], child = self.running(1), new_job()
        with self.lane() as lane:
            lane.begin(False)
            lane.enter()
            lane.tx.execute("INSERT INTO notes VALUES (1)")
            lane.tx.insert_jobs([child])
            assert lane.finish(claim, '"ok"', NOW + 4) is True
            lane.leave()
            assert (self.state(claim.id), self.store.get(child.id)) == (State.RUNNING, None)
            lane.commit()
        record = self.get(claim.id)
        assert (record.state, record.result) == (State.SUCCEEDED, '"ok"')
        assert record.completed_at == NOW + 4
        assert self.user_rows() == [1]
        assert self.state(child.id) == State.PENDING

    def test_a_rolled_back_body_leaves_nothing_and_its_job_runs_on(self) -> None:
        [claim], child = self.running(1), new_job()
        with self.lane() as lane:
            lane.begin(False)
            lane.enter()
            lane.tx.execute("INSERT INTO notes VALUES (1)")
            lane.tx.insert_jobs([child])
            assert lane.finish(claim, None, NOW) is True
            lane.rollback()
        assert (self.state(claim.id), self.store.get(child.id)) == (State.RUNNING, None)
        assert self.user_rows() == []
        assert self.settle(again(claim)) == {claim.id}

    def test_a_body_whose_job_was_taken_away_cannot_finish(self) -> None:
        canceled, given_back = self.running(2)
        self.store.cancel(canceled.id, "operator", NOW)
        self.settle(again(given_back))
        with self.lane() as lane:
            for claim in (canceled, given_back):
                lane.begin(False)
                lane.enter()
                lane.tx.execute("INSERT INTO notes VALUES (1)")
                assert lane.finish(claim, None, NOW) is False
                lane.rollback()
        assert self.user_rows() == []
        assert self.state(canceled.id) == State.CANCELED
        assert self.state(given_back.id) == State.PENDING

    def test_members_of_a_shared_transaction_are_undone_alone(self) -> None:
        first, second, third = self.running(3)
        with self.lane() as lane:
            lane.begin(True)
            for claim, n in ((first, 1), (second, 2), (third, 3)):
                lane.enter()
                lane.tx.execute("INSERT INTO notes VALUES (?)", (n,))
                if claim is second:
                    assert lane.undo() is True
                else:
                    assert lane.finish(claim, None, NOW)
                    lane.leave()
            lane.commit()
        states = [self.state(claim.id) for claim in (first, second, third)]
        assert states == [State.SUCCEEDED, State.RUNNING, State.SUCCEEDED]
        assert self.user_rows() == [1, 3]

    def test_a_member_whose_job_was_taken_away_is_undone_alone_or_with_all(self) -> None:
        first, canceled = self.running(2)
        self.store.cancel(canceled.id, "somebody", NOW)
        with self.lane() as lane:
            lane.begin(True)
            for claim, n in ((first, 1), (canceled, 2)):
                lane.enter()
                lane.tx.execute("INSERT INTO notes VALUES (?)", (n,))
                if lane.finish(claim, None, NOW):
                    lane.leave()
                elif not lane.undo():
                    lane.rollback()
                    break
            else:
                self.commit_or_roll_back(lane)
        assert 2 not in self.user_rows()
        assert (self.state(first.id) == State.SUCCEEDED) == (self.user_rows() == [1])
        assert self.state(canceled.id) == State.CANCELED

    def commit_or_roll_back(self, lane: MutationLane) -> None:
        try:
            lane.commit()
        except TransactionEnded:
            lane.rollback()

    def test_a_failed_statement_of_one_member_leaves_the_others_alone(self) -> None:
        first, second = self.running(2)
        with self.lane() as lane:
            lane.begin(True)
            lane.enter()
            lane.tx.execute("INSERT INTO notes VALUES (1)")
            with refused():
                lane.tx.execute("INSERT INTO notes VALUES (1)")
            assert lane.undo() is True
            assert not lane.has_refused()
            lane.enter()
            lane.tx.execute("INSERT INTO notes VALUES (2)")
            assert lane.finish(second, None, NOW)
            lane.leave()
            lane.commit()
        assert (self.state(first.id), self.state(second.id)) == (State.RUNNING, State.SUCCEEDED)
        assert self.user_rows() == [2]

    def test_alone_in_its_transaction_a_member_cannot_be_undone(self) -> None:
        with self.lane() as lane:
            lane.begin(False)
            lane.enter()
            lane.tx.execute("INSERT INTO notes VALUES (1)")
            assert lane.undo() is False
            lane.rollback()
        assert self.user_rows() == []

    def test_a_body_that_ends_the_transaction_does_not_finish(self) -> None:
        [claim] = self.running(1)
        with self.lane() as lane:
            for ending in ("ROLLBACK", "COMMIT"):
                lane.begin(False)
                lane.enter()
                if self.ends(lane, ending):
                    with refused():
                        lane.tx.execute("INSERT INTO notes VALUES (1)")
                    with refused(TransactionEnded):
                        lane.finish(claim, None, NOW)
                lane.rollback()
                lane.renew()
        assert self.state(claim.id) == State.RUNNING
        assert self.user_rows() == []

    def ends(self, lane: MutationLane, statement: str) -> bool:
        """Whether the statement was accepted and has ended the transaction."""
        try:
            lane.tx.execute(statement)
        except Exception:
            return False
        return True

    def test_a_lane_is_used_again_and_again(self) -> None:
        claims = self.running(3)
        with self.lane() as lane:
            for n, claim in enumerate(claims):
                lane.begin(False)
                lane.enter()
                lane.tx.execute("INSERT INTO notes VALUES (?)", (n,))
                assert lane.finish(claim, None, NOW)
                lane.leave()
                lane.commit()
                lane.renew()
        assert self.user_rows() == [0, 1, 2]
        assert {self.state(claim.id) for claim in claims} == {State.SUCCEEDED}

    def test_a_statement_that_runs_too_long_is_stopped_from_outside(self) -> None:
        endless = (
            "WITH RECURSIVE c(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM c)"
            " SELECT max(n) FROM c WHERE n < 0"
        )
        over = threading.Event()
        with self.lane() as lane:
            lane.begin(False)
            lane.enter()

            def stop() -> None:
                while not over.wait(0.05):
                    lane.interrupt()

            thread = threading.Thread(target=stop)
            thread.start()
            try:
                with refused():
                    lane.tx.execute(endless)
            finally:
                over.set()
                thread.join()
            lane.rollback()
        self.enqueue()

    def test_a_bodys_own_error_is_no_fault_of_the_system(self) -> None:
        with self.lane() as lane:
            for error in (ValueError("x"), ZeroDivisionError()):
                assert lane.blame(error) == Blame.BODY
