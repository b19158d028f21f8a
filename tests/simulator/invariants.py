"""The invariants of every history.

The ledger replays the log that the database writes: it sees what was committed, in order, and
nothing else.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from pathlib import Path

from duly.model.job import LEGAL, Claim, ErrorKind, Kind, State
from duly.model.retry import decode_retry
from tests.simulator.functions import DEBOUNCED, MUTATIONS, ends_of
from tests.simulator.log import Change, Story, Violation, short
from tests.simulator.promises import Hooks, Keys, Limits, Wish

RETENTION_MS = 600_000
EXHAUSTED_MS = 1_800_000


class Ledger:
    """Replays the log and convicts the first change that must not be."""

    def __init__(
        self,
        path: Path,
        latest_ever: Callable[[], int],
        true_time: Callable[[], float] = lambda: 0.0,
        clocks_agree: Callable[[], bool] = lambda: True,
    ) -> None:
        self._latest_ever = latest_ever
        self._clocks_agree = clocks_agree
        self.db = sqlite3.connect(path, isolation_level=None, timeout=0)
        self.jobs: dict[str, Story] = {}
        self.order: list[str] = []
        self.paused: set[str] = set()
        self.never: set[str] = set()
        self.excused: set[str] = set()
        self.witnessed: set[str] = set()
        """Workers for one job that were seen to die by what its body did."""
        self.asked_to_cancel: set[str] = set()
        """Jobs, batches and functions."""
        self.may_leave: set[str] = set()
        self.stopping: set[str] = set()
        self.declared_dead: set[str] = set()
        self.limits = Limits(self.jobs, true_time)
        self.keys = Keys(self.jobs, true_time)
        self.hooks = Hooks(self.jobs)
        self._seen = 0

    def close(self) -> None:
        self.db.close()

    def name(self, job_id: str | None) -> str:
        """A short name for messages: #1, #2, …"""
        story = self.jobs.get(job_id or "")
        return f"#{story.number}" if story else str(job_id)

    def is_running(self, claim: Claim) -> bool:
        """Whether the committed row carries the claim's token."""
        query = "SELECT 1 FROM duly_jobs WHERE id = ? AND token = ?"
        return bool(self.db.execute(query, (claim.id, claim.token)).fetchall())

    # What the simulation reports ------------------------------------------------------------

    def acknowledged(self, job_id: str) -> None:
        """A caller was told that this job is stored."""
        self.sync()
        if job_id not in self.jobs:
            raise Violation("acknowledged jobs exist", f"{job_id} is nowhere")

    def answered(self, wish: Wish, job_id: str, existed: bool, called_at: int, since: int) -> None:
        """A caller was given this job; `since` is the last change before the call."""
        self.acknowledged(job_id)
        self.keys.answered(wish, job_id, since)
        if not existed:
            self.hooks.answered(wish, job_id)
        if wish.debounce_ms:
            self._check_debounced(wish, job_id, called_at + wish.debounce_ms, since)

    def _check_debounced(self, wish: Wish, job_id: str, run_at: int, since: int) -> None:
        query = """SELECT 1 FROM sim_log WHERE seq > ? AND id = ? AND op IN ('insert', 'update')
            AND state = 'pending' AND args = ? AND run_at >= ?"""
        where = (since, job_id, wish.call.args, run_at)
        if not self.db.execute(query, where).fetchall():
            name = self.name(job_id)
            raise Violation("the last call counts", f"{name} knows nothing of {wish} at {run_at}")

    def batched(self, batch_id: str, wishes: list[Wish]) -> None:
        """A caller was told that this batch, with its hook, is stored."""
        self.acknowledged(batch_id)
        self.hooks.batched(batch_id, wishes)

    def limit_queue(self, name: str, at_once: int) -> None:
        """An operator has limited a queue, before anything else happens."""
        self.db.execute("INSERT INTO duly_queues (name, at_once) VALUES (?, ?)", (name, at_once))
        self.limits.queues[name] = at_once

    def clocks_disagree(self) -> None:
        """From here on, what was measured before means nothing."""
        self.sync()
        self.limits.forget_starts()
        self.keys.forget_periods()

    def rolled_back(self, job_id: str) -> None:
        """The transaction that held this job was undone."""
        self.never.add(job_id)

    def started(self, claim: Claim, worker_ids: set[str]) -> None:
        """A body begins. Its claim must be durable, and an action's attempt begins once."""
        self.sync()
        story = self.jobs.get(claim.id)
        worker_id = story.claims.get(claim.token) if story else None
        if story is None or worker_id is None or worker_id not in worker_ids:
            name = self.name(claim.id)
            raise Violation(
                "durable claim before start", f"{name} starts without token {claim.token}"
            )
        if claim.args != story.now.args:
            raise Violation("the stored arguments", f"#{story.number} gets {claim.args}")
        self._begins(story)
        # A body may begin just when a stop gives up on it: that costs no attempt either.
        if story.now.kind == Kind.ACTION and claim.token not in story.given_back:
            self._count_start(story, claim.attempt)
        self.limits.begins(claim.id, claim.token, worker_id)

    def _count_start(self, story: Story, attempt: int) -> None:
        retry = decode_retry(story.now.retry)
        starts = len(story.starts)
        allowed = not starts or (retry is not None and retry.allows(starts))
        if attempt in story.starts or not allowed:
            invariant = "at most once" if retry is None else "retry policy"
            raise Violation(
                invariant, f"#{story.number} starts as attempt {attempt} after {story.starts}"
            )
        story.starts.append(attempt)

    def settled(self, job_id: str, tokens: set[int], since: int) -> None:
        """A worker was told that it has ended its claim: that very claim must have ended now."""
        story = self.jobs[job_id]
        if all(story.ends.get(token, 0) <= since for token in tokens):
            raise Violation("the fence", f"#{story.number} is settled by {tokens}, not its own")

    def scheduled(self, child_id: str, token: int) -> None:
        """An action has a child: its row carried the token then, or the child is canceled."""
        self.acknowledged(child_id)
        child = self.jobs[child_id]
        if child.parent_token != token and not child.canceled:
            raise Violation(
                "children of the taken away",
                f"#{child.number} was stored for token {token}, its parent had"
                f" {child.parent_token}",
            )

    # Replay ---------------------------------------------------------------------------------

    def sync(self) -> int:
        """Take in what was committed since; the last change of all."""
        rows = self.db.execute("SELECT * FROM sim_log WHERE seq > ? ORDER BY seq", (self._seen,))
        touched: dict[str, None] = {}
        for row in rows.fetchall():
            change = Change(*row)
            self._seen = change.seq
            getattr(self, f"_{change.op}")(change)
            touched[change.id] = None
        for job_id in touched:
            if job_id in self.jobs:
                self._check_effects(self.jobs[job_id])
                self.hooks.check(self.jobs[job_id])
        return self._seen

    def _insert(self, new: Change) -> None:
        self._expect(new.id not in self.never, "rolled back", new, "appears after all")
        self._expect(new.id not in self.jobs, "one row a job", new, "comes back to life")
        self._expect(new.state == State.PENDING and new.token == 0, "legal transitions", new)
        story = self._begin(new)
        if not self._clocks_agree():
            self.keys.forget_periods()
        self.keys.born(new)
        parent = self.jobs.get(new.parent_id or "")
        if parent is not None:
            story.parent_token = parent.now.token if parent.live else None
            self._expect(
                not parent.canceled, "children of the canceled", new, "is born to a canceled parent"
            )

    def _begin(self, new: Change) -> Story:
        self.jobs[new.id] = story = Story(len(self.jobs) + 1, new)
        self.order.append(new.id)
        self.hooks.born(new)
        return story

    def _update(self, new: Change) -> None:
        story = self._live(new)
        old = story.now
        self._check_constants(old, new)
        if new.state == old.state:
            self._expect(new.token == old.token, "tokens", new)
            if new.state == State.RUNNING:
                # Its key is given up. Its body starts next, unless its process dies.
                self._begins(story)
        else:
            self._expect((old.state, new.state) in LEGAL, "legal transitions", new)
            self._expect(new.token == old.token + 1, "tokens", new, f"had token {old.token}")
        self._expect((new.token % 2 == 1) == (new.state == State.RUNNING), "parity", new)
        if (old.state, new.state) == (State.PENDING, State.RUNNING):
            self._check_claim(old, new)
            story.claims[new.token] = new.worker_id
            self.hooks.claimed(new)
            if self._clocks_agree():
                self.limits.claimed(new)
        if new.state == State.PENDING:
            story.ends[old.token] = new.seq
            self._uncount_start(story, old, new)
        story.now = new

    def _begins(self, story: Story) -> None:
        if story.begun is None:
            story.begun = self._seen

    def _has_begun(self, change: Change) -> bool:
        return self.jobs[change.id].begun is not None

    def _uncount_start(self, story: Story, old: Change, new: Change) -> None:
        """What a stop has cut short costs no attempt, if it may run again at all."""
        given_back = new.attempt < old.attempt and old.worker_id in self.stopping
        if not given_back or new.retry is None:
            return
        story.given_back.add(old.token)
        if old.attempt in story.starts:
            story.starts.remove(old.attempt)

    def _check_claim(self, old: Change, new: Change) -> None:
        started_at = new.started_at or 0
        self._expect(started_at >= old.run_at, "not before it is due", new)
        self._expect(started_at <= self._latest_ever(), "nobody is ahead of time", new)
        in_time = new.expires_at is None or started_at < new.expires_at
        self._expect(in_time or old.attempt > 0, "no first start after expiry", new)
        self._expect(new.queue not in self.paused, "paused queues start nothing", new)
        self._expect("*" not in self.paused, "the kill switch starts nothing", new)
        self._expect(new.attempt == old.attempt + 1, "attempts", new, f"after {old.attempt}")
        parent = self.jobs.get(new.parent_id or "")
        self._expect(
            parent is None or not parent.canceled, "children of the canceled", new, "is claimed"
        )

    def _finish(self, new: Change) -> None:
        story = self.jobs.get(new.id)
        if story is None:
            self._expect(
                new.state == State.CANCELED and new.token == 0, "legal transitions", new, "is new"
            )
            story = self._begin(new)
            story.live = False
        else:
            self._expect(story.place == "jobs", "one row a job", new, "finishes twice")
            self._expect((story.now.state, new.state) in LEGAL, "legal transitions", new)
            self._expect(new.token == story.now.token, "tokens", new)
            self._check_constants(story.now, new)
        self._expect(new.completed_at is not None, "completed_at", new)
        self._check_end(new)
        story.ends[new.token] = new.seq
        story.place, story.now = "history", new

    def _check_end(self, new: Change) -> None:
        end = new.state if new.error_kind is None else f"{new.state}:{new.error_kind}"
        excused = new.id in self.excused and end == "failed:user"
        self._expect(
            excused or end in ends_of(new.function, new.timeout_ms), "right end", new, f"is {end}"
        )
        if new.state == State.FAILED:
            self._expect(bool(new.error_message), "failed says why", new)
        if new.error_kind == ErrorKind.EXPIRED:
            self._expect(new.attempt == 0, "only what never started expires", new)
            in_time = new.expires_at is None or self._latest_ever() < new.expires_at
            self._expect(not in_time, "only what is late expires", new)
        elif new.state == State.CANCELED:
            self._expect(self._was_asked_for(new), "cancels are asked for", new, "was not")
        if new.error_kind == ErrorKind.WORKER_LOST:
            self._check_lost(new)
        if new.error_kind == ErrorKind.CRASH_LOOP:
            workers = self.jobs[new.id].claims.values()
            seen = sum(worker_id in self.witnessed for worker_id in workers)
            self._expect(seen >= 2, "bystanders are not convicted", new, f"was seen {seen} times")

    def _was_asked_for(self, new: Change) -> bool:
        """By a client, by the code of a job that does such things, or because its parent was.

        The child of an action that was taken away is canceled when it is stored. What a schedule
        cancels because it overlaps, the almanac sees.
        """
        who, _, job_id = (new.canceled_by or "").partition(":")
        if who == "job":
            return self.jobs[job_id].now.function == "meddle"
        if who == "schedule":
            return True
        if who == "parent":
            return self.jobs[job_id].canceled or not self.jobs[new.id].live
        return who == "operator" and not self.asked_to_cancel.isdisjoint(
            {new.id, new.function, new.batch_id or ""}
        )

    def _check_lost(self, new: Change) -> None:
        """The worker is gone, or told to go, and no attempt is left."""
        gone = new.worker_id in self.may_leave | self.stopping
        self._expect(gone, "only the dead lose their jobs", new)
        retry = decode_retry(new.retry)
        is_over = retry is None or not retry.allows(new.attempt)
        self._expect(is_over, "retry policy", new, "was given up too early")

    def _delete(self, old: Change) -> None:
        story = self._live(old)
        self._expect(story.place == "history", "nothing is lost", old, "vanishes")
        story.live = False

    def _overwrite(self, new: Change) -> None:
        self._expect(False, "history is final", new)

    def _retire(self, old: Change) -> None:
        story = self.jobs[old.id]
        if story.place == "history":
            story.place = "gone"
        completed_at, now = old.completed_at or 0, self._latest_ever()
        self._expect(completed_at < now - RETENTION_MS, "retention", old, "is removed too early")
        still_wanted = old.exhausted and completed_at >= now - EXHAUSTED_MS
        self._expect(story.place == "kept" or not still_wanted, "retention", old, "was exhausted")

    def _keep(self, new: Change) -> None:
        self.jobs[new.id].place = "kept"

    def _drop(self, old: Change) -> None:
        self.jobs[old.id].place = "gone"

    def _pause(self, row: Change) -> None:
        self.paused.add(row.id)

    def _resume(self, row: Change) -> None:
        self.paused.discard(row.id)

    def _leave(self, row: Change) -> None:
        if row.id not in self.may_leave:
            raise Violation("the living are not rescued", f"worker {row.id} was alive")
        if row.id in self.declared_dead:
            self.limits.disown(row.id)

    def _effect(self, row: Change) -> None:
        self.jobs[row.id].effects += 1

    def _check_constants(self, old: Change, new: Change) -> None:
        columns = ["function", "kind", "queue", "scheduled_at", "parent_id", "tags", "batch_id"]
        # Until its body starts, a call may take it back from whoever has claimed it.
        if new.function not in DEBOUNCED or self._has_begun(new) or new.state != State.PENDING:
            columns += ["expires_at", "args"]
        for column in columns:
            self._expect(
                getattr(old, column) == getattr(new, column), f"{column} never changes", new
            )

    def _check_effects(self, story: Story) -> None:
        succeeded = story.now.state == State.SUCCEEDED
        wanted = 1 if succeeded and story.now.function in MUTATIONS else 0
        self._expect(
            story.effects == wanted, "exactly one effect", story.now, f"has {story.effects}"
        )
        self._expect(
            not (story.live and story.place != "jobs"), "one row a job", story.now, "is in both"
        )

    def _live(self, change: Change) -> Story:
        story = self.jobs[change.id]
        self._expect(story.live, "terminal states are final", change)
        return story

    def _expect(self, holds: bool, invariant: str, change: Change, words: str = "") -> None:
        if not holds:
            raise Violation(invariant, f"{self.name(change.id)} {words} {short(change)}")

    # The state after each step --------------------------------------------------------------

    def check_state(self) -> None:
        """What no single change shows."""
        self.sync()
        self._none(
            "running needs a worker row",
            "SELECT id FROM duly_jobs WHERE state = 'running'"
            " AND worker_id NOT IN (SELECT id FROM duly_workers)",
        )
        self._none(
            "children of the canceled",
            "SELECT j.id FROM duly_jobs j JOIN duly_history h ON h.id = j.parent_id"
            " WHERE h.state = 'canceled' AND h.error_kind IS NULL",
        )
        self._none(
            "hooks wait for somebody",
            "SELECT id FROM duly_jobs h WHERE hold = 'batch'"
            " AND NOT EXISTS (SELECT 1 FROM duly_jobs WHERE hook_id = h.id OR batch_id = h.id)",
        )
        self._none(
            "slots have a worker",
            "SELECT job_id FROM duly_slots WHERE worker_id NOT IN (SELECT id FROM duly_workers)",
        )
        self._none(
            "one job has a slot",
            "SELECT job_id FROM duly_slots GROUP BY key, slot HAVING count(*) > 1",
        )
        self.limits.check(set(self.db.execute("SELECT job_id, token FROM duly_slots")))
        for (job_id,) in self.db.execute("SELECT job_id FROM duly_keys"):
            if job_id not in self.jobs:
                raise Violation("keys belong to jobs", f"{job_id} is nowhere")

    def check_end(self) -> None:
        """Only jobs that are held permanently are left, and the tables are what the log says."""
        self.check_state()
        held = "hold = 'signature' AND function = 'picky'"
        self._none("liveness", f"SELECT id FROM duly_jobs WHERE NOT ({held}) OR hold IS NULL")
        self._none("no slot is left", "SELECT job_id FROM duly_slots")
        for table in ("jobs", "history", "kept"):
            stored = {row[0] for row in self.db.execute(f"SELECT id FROM duly_{table}")}
            told = {job_id for job_id, story in self.jobs.items() if story.place == table}
            if stored != told:
                raise Violation("the log is the truth", f"{table} differs: {stored ^ told}")
        self._check_newest_kept()

    def _check_newest_kept(self) -> None:
        finished = {s.now.function for s in self.jobs.values() if s.place != "jobs"}
        present = {s.now.function for s in self.jobs.values() if s.place in ("history", "kept")}
        if finished - present:
            raise Violation("retention", f"no finished job is left of {finished - present}")

    def _none(self, invariant: str, query: str) -> None:
        found = [self.name(row[0]) for row in self.db.execute(query)]
        if found:
            raise Violation(invariant, ", ".join(found))
