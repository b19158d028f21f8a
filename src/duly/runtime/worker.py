"""The worker: claims due jobs and hands them out to run.

One pass settles ended attempts and claims jobs that can start now, in one transaction if that is
faster on the store. A claim is durable before any body starts, and a job that cannot start is not
claimed.
"""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import threading
from collections.abc import Mapping, Sequence

from duly import fault
from duly.clock import os_monotonic, os_sleep
from duly.errors import InvalidFunction, InvalidOption, StoreError
from duly.ids import new_id
from duly.model.job import (
    Claim,
    Hold,
    Interrupted,
    Kind,
    NeverStarted,
    Outcome,
    State,
    SystemFailed,
    again,
)
from duly.runtime import tracing
from duly.runtime.demand import Demand, Overtaking
from duly.runtime.execute import Attempt, MutationRunner, run_action
from duly.runtime.isolate import NEEDS_MODULE, Processes
from duly.runtime.lifeline import Lifeline
from duly.runtime.loop import Bells, Loop
from duly.runtime.outbox import OUTAGE
from duly.runtime.outcomes import AFTER_OUTAGE, Outcomes, log_change
from duly.runtime.program import Program, Runnable
from duly.runtime.reports import Reports, captured_logging
from duly.runtime.slots import Slots
from duly.runtime.teams import AsyncTeam, MutationTeam, Team, ThreadTeam
from duly.runtime.watchdog import Watchdog
from duly.store.base import ClaimRequest, RowsLocked, WorkerInfo

log = logging.getLogger(__name__)

CONCURRENCY = 100
THREADS = 10
DRAIN_SECONDS = 30.0
SILENT_SECONDS = 10.0
INTERRUPTED_SECONDS = 1.0
HEAD_START = 0.0002
# The janitor counts a job's time from its claim. Waiting mutations are given back long before it
# would time them out.
LONGEST_WAIT = 15.0


class Worker:
    """Runs jobs of one application in this process."""

    def __init__(
        self,
        program: Program,
        *,
        concurrency: int = CONCURRENCY,
        threads: int = THREADS,
        queues: Sequence[str] | None = None,
        lifeline: Lifeline | None = None,
        alone: str | None = None,
        also_wake: Sequence[threading.Event] = (),
    ) -> None:
        if concurrency < 1:
            raise InvalidOption("concurrency", "must be at least 1")
        if threads < 1:
            raise InvalidOption("threads", "must be at least 1")
        self.program = program
        self.store = program.store
        self.clock = program.clock
        self.concurrency = concurrency
        self.max_threads = min(threads, concurrency)
        self.queues = None if queues is None else tuple(queues)
        self._alone = alone
        self._lifeline = lifeline
        self.id = new_id(self.clock.now())
        self._revision = -1
        self._runnables: dict[str, Runnable] = {}
        self._functions: tuple[str, ...] = ()
        self._threaded: tuple[str, ...] = ()
        self._threadless: tuple[str, ...] = ()
        # Held from the claim until the outcome is durable; busy only while the body runs.
        self._held: dict[str, Attempt] = {}
        self._busy = 0
        self._over = False
        self._guard = threading.Lock()
        self._claiming = threading.Lock()
        self._quiet = threading.Condition(self._guard)
        self._reports = Reports(self.store, self.clock)
        self._outcomes = Outcomes(
            self.store, self.clock, self._held, self._reports, program.counts, self._look_again
        )
        self._lifespan = contextlib.ExitStack()
        self._while_running = contextlib.ExitStack()
        self._stopping = False
        self._demand = Demand(self.store, self.clock, self.queues)
        self._with_threads = Overtaking(self.store, self.clock, self.queues)
        self._without_threads = Overtaking(self.store, self.clock, self.queues)
        self._asked = self._demand
        self.last_beat = self.clock.monotonic()
        self.loop = Loop("claim", self._pass_and_yield, self.clock)
        self._slots = Slots(self.store, self.clock, self.loop.wake)
        self._finish_loop = Loop("finish", self.finish_pass, self.clock)
        self._watch_loop = Loop("watchdog", self._watch_pass, self.clock)
        self._watchdog = Watchdog(self.clock, self._watch_loop.wake)
        self._async = AsyncTeam(self._body_ended)
        ahead = concurrency - self.max_threads
        self._threads = ThreadTeam(self.max_threads, ahead, self._body_ended, self._run_in_thread)
        self._processes = Processes(program.command)
        self._mutations = MutationTeam(
            self.store,
            self._make_runner,
            self._body_ended,
            self._forget,
        )
        self.notified = threading.Event()
        """Set when new jobs were announced."""
        self._stop_watching = threading.Event()
        self._also_wake = tuple(also_wake)

    # Life

    def register(self, *, with_faulty: bool = True) -> None:
        """Announce this worker. It can claim jobs from now on."""
        revision = self.program.revision
        self._take_functions(self._known(with_faulty=with_faulty))
        info = WorkerInfo(
            id=self.id,
            app=self.program.name,
            host=socket.gethostname(),
            pid=os.getpid(),
            queues=self.queues,
            functions=self._functions,
            slots=self.concurrency,
            threads=self.max_threads,
            threaded=self._threaded,
            alone=self._alone is not None,
            beat=0,
            started_at=self.clock.now(),
        )
        if self._lifeline:
            self._lifeline.worker_is(self.id)
        # A process that sees the worker must find its functions.
        self._publish()
        self.store.register(info, self.clock.now())
        self._revision = revision
        self.last_beat = self.clock.monotonic()

    def _known(self, *, with_faulty: bool = True) -> dict[str, Runnable]:
        """The functions that can run here. Without the faulty ones, this cannot raise."""
        known = dict(self.program.runnables(with_faulty=with_faulty))
        isolated = [name for name, runnable in known.items() if runnable.isolated]
        if not isolated or self._processes.command is not None:
            return known
        if with_faulty:
            raise InvalidFunction(f"{', '.join(isolated)}: {NEEDS_MODULE}")
        return {name: runnable for name, runnable in known.items() if not runnable.isolated}

    def _take_functions(self, runnables: Mapping[str, Runnable]) -> None:
        self._runnables = dict(runnables)
        self._functions = tuple(sorted(runnables))
        self._threaded = tuple(n for n in self._functions if _needs_thread(runnables[n]))
        self._threadless = tuple(n for n in self._functions if not _needs_thread(runnables[n]))

    def _publish(self) -> None:
        # A process for a single job does not serve others, and must not end before it has run.
        if self._alone is None:
            self.store.publish(self.program.published(), self.clock.now())

    def _look_for_functions(self) -> None:
        """Functions may be defined, or defined again, while the worker runs: in a notebook."""
        revision = self.program.revision
        if revision == self._revision:
            return
        try:
            self._take_functions(self._known())
        except InvalidFunction as error:
            log.error("%s; the worker continues without functions that cannot be run", error)
            self._take_functions(self._known(with_faulty=False))
        self.store.relist(self.id, self._functions, self._threaded)
        self._publish()
        # Only now: whatever an outage has interrupted is done again.
        self._revision = revision

    def _newest(self) -> Mapping[str, Runnable]:
        """The functions as they are now.

        A function may have been defined again after the pass had started, and the claimed job
        enqueued after that.
        """
        if self.program.revision != self._revision:
            self._runnables |= self._known(with_faulty=False)
        return self._runnables

    def start(self) -> None:
        self._enter_lifespan()
        try:
            self.register()
        except BaseException:
            self._exit_lifespan()
            self._async.stop()
            raise
        if self.program.captures_logs:
            self._while_running.enter_context(captured_logging())
        self.loop.start()
        self._watch_loop.start()
        self._reports.loop.start()
        if not self.store.finishes_with_claim:
            self._finish_loop.start()
        notified = () if self.store.tells_changes else (self.notified,)
        watcher = threading.Thread(
            target=self.store.watch,
            args=(Bells(*notified, self.loop.bell, *self._also_wake), self._stop_watching),
            name="duly-watch",
            daemon=True,
        )
        watcher.start()

    def _enter_lifespan(self) -> None:
        """If this fails, the worker does not start."""
        alive = self._lifeline.kept_alive() if self._lifeline else contextlib.nullcontext()
        try:
            with alive:
                self._lifespan.enter_context(self.program.lifespan.entered(self._async.call))
        except BaseException:
            self._async.stop()
            raise

    def _exit_lifespan(self) -> None:
        try:
            self._lifespan.close()
        except Exception:
            log.exception("worker_lifespan failed when it was exited; the worker stops anyway")

    def stop(self, drain: float = DRAIN_SECONDS) -> None:
        """Stop claiming, let running jobs end, and give back claims that never started."""
        self._stopping = True
        for attempt in list(self._held.values()):
            attempt.stopping = True
        self._give_back_queued()
        log.info(
            "worker %s stops claiming jobs; waiting for %d to finish", self.id, len(self._held)
        )
        # A claim in progress may have brought more.
        with self._claiming:
            self._give_back_queued()
        self._give_back_waiting()
        self._wait_until_quiet(drain)
        self._interrupt_the_rest()
        self._flush()
        self._processes.wait()
        if self.program.lifespan.is_entered:
            # Bodies that were interrupted still use what it has opened.
            self._wait_until_quiet(INTERRUPTED_SECONDS)
        self._exit_lifespan()
        self._end_threads()
        self._deregister()
        self.program.hook_calls.wait()

    def _give_back_queued(self) -> None:
        self._give_back([*self._mutations.take_back(), *self._threads.take_back()])

    def _give_back(self, attempts: Sequence[Attempt]) -> None:
        """Return claims whose bodies have not started."""
        for attempt in attempts:
            attempt.resolve(NeverStarted())
            self._body_ended(attempt)

    def _give_back_waiting(self) -> None:
        """Return mutations of a group that have not started.

        If one starts now, the fence decides.
        """
        for attempt in self._waiting():
            attempt.give_back()

    def _give_back_late(self) -> None:
        """Return mutations that have waited here so long that the janitor might time them out."""
        before = self.clock.monotonic() - LONGEST_WAIT
        for attempt in self._waiting():
            if attempt.claim.timeout_ms is not None and attempt.started < before:
                attempt.give_back()

    def _waiting(self) -> list[Attempt]:
        """Mutations whose bodies are not running: not yet, or no longer."""
        held = list(self._held.values())
        return [a for a in held if a.claim.kind == Kind.MUTATION and a.deadline is None]

    def _wait_until_quiet(self, seconds: float) -> None:
        with self._quiet:
            self._quiet.wait_for(lambda: self._busy <= 0, seconds)

    def _interrupt_the_rest(self) -> None:
        """Interrupt everything that is still running."""
        for attempt in list(self._held.values()):
            attempt.resolve(Interrupted())
            attempt.take_away(stops=True)

    def _flush(self) -> None:
        until = os_monotonic() + 10
        while self._held and os_monotonic() < until:
            self.loop.wake()
            self._finish_loop.wake()
            os_sleep(0.005)
        with contextlib.suppress(StoreError):
            self._slots.release_ended()

    def _end_threads(self) -> None:
        self._stop_watching.set()
        loops = (self.loop, self._finish_loop, self._watch_loop, self._reports.loop)
        for loop in loops:
            loop.stop()
        for loop in loops:
            loop.join(5)
        self._mutations.stop()
        self._threads.stop()
        # Async mutations need the loop to end.
        self._mutations.join(1)
        self._async.stop()
        self._while_running.close()
        with contextlib.suppress(StoreError):
            self._reports.flush()

    def _deregister(self) -> None:
        # A claim whose answer was lost would keep the row, and be rescued as if it had started.
        with contextlib.suppress(StoreError):
            self.reconcile()
        self._over = True
        with contextlib.suppress(StoreError):
            self._slots.release_ended()
        if living := self._slots.counted_bodies():
            # A body that did not stop still counts, until it has ended or this process is dead.
            log.warning("worker %s keeps its row: %d functions are still running", self.id, living)
            return
        try:
            self.store.deregister(self.id, self.clock.now())
        except StoreError as error:
            log.warning("worker %s keeps its row until it is rescued: %s", self.id, error)

    @property
    def functions(self) -> tuple[str, ...]:
        """The functions that can run here."""
        return self._functions

    @property
    def idle(self) -> bool:
        """Whether nothing is claimed and nothing waits to be settled."""
        return not self._held and not self._outcomes and not self._slots.are_to_be_freed

    # One pass

    def one_pass(self) -> float:
        """Settle, claim, start. Return the delay until there may be something to do."""
        if self._lifeline:
            self._lifeline.progress()
        if self._threads.until_stuck() == 0:
            self._give_back(self._threads.take_back())
        with self._claiming:
            request = self._request()
            batch = self._outcomes.take() if self.store.finishes_with_claim else []
            if not batch and request is None:
                return self._delay(())
            try:
                with self._outcomes.writing(batch):
                    settled, claims = self.store.exchange(batch, request, self.clock.now())
            except OUTAGE as error:
                self._slots.doubt()
                log.warning("the store is not available: %s", error)
                return AFTER_OUTAGE
            except Exception:
                self._slots.doubt()
                if not batch:
                    raise
                return self._outcomes.write_in_halves(batch)
            with self._slots.doubted_if_it_fails():
                fault.point("worker.claimed")
                if request is not None:
                    self._slots.are_free(request.freed)
                self._outcomes.note(batch, settled)
                self._start(claims)
        if self._demand.guessed and not claims:
            return self.one_pass()
        if request is not None:
            self._asked.ended(request, claims)
            if self._slots.are_to_be_freed:
                return 0
        return self._delay(claims)

    def _pass_and_yield(self) -> float:
        """Without a backlog, let bodies that were just handed over start before the next pass."""
        delay = self.one_pass()
        if delay == 0 and not self._asked.backlog:
            os_sleep(HEAD_START)
        return delay

    def finish_pass(self) -> float:
        """Settle ended attempts, in parallel with claims."""
        self._outcomes.bring_back()
        held_back = self._too_many_wait()
        batch = self._outcomes.take()
        if held_back:
            # There may be no running body left that would wake the claim loop.
            self.loop.wake()
        try:
            delay = self._outcomes.write(batch)
        except OUTAGE as error:
            log.warning("the store is not available: %s", error)
            return AFTER_OUTAGE
        return delay

    def _request(self) -> ClaimRequest | None:
        """The next request: due jobs in served queues, as many as can start now."""
        self._look_for_functions()
        if notified := self.notified.is_set():
            self.notified.clear()
        for demand in (self._demand, self._without_threads, self._with_threads):
            demand.begin_pass(notified)
        self._asked, functions, limit = self._next_claim()
        if limit <= 0 or self._stopping or self._alone or self._is_silent():
            # Other workers may start the waiting jobs.
            self._slots.release_ended()
            return None
        return self._asked.request(self.id, functions, limit, self._slots.ended())

    def _next_claim(self) -> tuple[Demand, tuple[str, ...], int]:
        """Which functions to ask for, and how many jobs; none while it is not worth it.

        A claim does not know whether it will get jobs that need a thread. So it asks for as many as
        can start in any case; if it gets them all, the next one asks for those of which more can
        start, and steps over the others.
        """
        room, threads = self._room(), self._free_threads()
        if not self._threaded:
            return self._demand, self._functions, room
        if not self._threadless:
            return self._demand, self._functions, threads
        some = min(room, threads)
        if room > threads:
            side, functions, limit = self._without_threads, self._threadless, room
        else:
            side, functions, limit = self._with_threads, self._threaded, threads
        got_all = self._asked is self._demand and self._demand.backlog
        if limit > some and (some <= 0 or got_all):
            if side.until_ready() <= 0:
                return side, functions, limit
            if some <= 0:
                return side, functions, 0
        return self._demand, self._functions, some

    def _free_threads(self) -> int:
        return 0 if self._too_many_wait() else self._threads.free

    def _room(self) -> int:
        """How many jobs that need no thread can start."""
        if self._too_many_wait():
            return 0
        room = self.concurrency - self._busy + self._threads.busy
        # Mutations wait here for a connection; claiming more of them would starve other workers.
        waiting = self._mutations.waiting()
        return min(room, self.store.mutation_backlog - waiting) if waiting else room

    def _too_many_wait(self) -> bool:
        """Whether too many outcomes are unwritten, and must be written before the next claim."""
        return len(self._outcomes) > 2 * self.concurrency

    def heartbeat_succeeded(self) -> None:
        """A heartbeat has succeeded: a worker that was silent may claim again immediately."""
        was_silent = self._is_silent()
        self.last_beat = self.clock.monotonic()
        if was_silent:
            self.loop.wake()

    def _is_silent(self) -> bool:
        """A worker without heartbeats may already look dead to others, and must start nothing."""
        return self.clock.monotonic() - self.last_beat > SILENT_SECONDS

    def _delay(self, claims: Sequence[Claim]) -> float:
        until_claim = self._until_claim(claims)
        until_stuck = self._threads.until_stuck()
        return until_claim if until_stuck is None else min(until_claim, until_stuck)

    def _until_claim(self, claims: Sequence[Claim]) -> float:
        if self.store.finishes_with_claim and self._outcomes:
            return 0
        demand, _, limit = self._next_claim()
        # After these claims, a lane may contain due jobs that it did not show.
        if claims and limit > 0:
            return 0
        if self._stopping or self._is_silent() or (limit <= 0 and demand is self._demand):
            return self._demand.until_due()
        # Meanwhile a body that ends wakes the loop too.
        return demand.until_ready()

    # Starting

    def _start(self, claims: Sequence[Claim]) -> None:
        if not claims:
            return
        runnables = self._runnables_of(claims)
        attempts = [
            Attempt(claim, runnable, self._resolved, self._reports, self.program.hook_calls)
            for claim, runnable in zip(claims, runnables, strict=True)
        ]
        started = self.clock.monotonic()
        for attempt in attempts:
            attempt.started = started
            attempt.stopping, attempt.is_silent = self._stopping, self._is_silent
        self._tell_replaced(claims)
        with self._guard:
            self._busy += len(attempts)
            for attempt in attempts:
                self._held[attempt.claim.id] = attempt
            self._slots.hold(claims)
        self._asked.note(claims)
        if log.isEnabledFor(logging.INFO):
            for attempt in attempts:
                log_change(attempt.claim.id, attempt, State.RUNNING)
        self._hand_out(attempts)

    def _runnables_of(self, claims: Sequence[Claim]) -> list[Runnable]:
        newest = self._newest()
        if not tracing.is_on():
            return [newest[claim.function] for claim in claims]
        parents: Mapping[str, str] = {}
        # The jobs are claimed and must start, without their traces if necessary.
        with contextlib.suppress(StoreError):
            parents = self.store.traces([claim.id for claim in claims])
        return tracing.traced(claims, newest, parents)

    def _tell_replaced(self, claims: Sequence[Claim]) -> None:
        """Notify the old attempts of jobs that were taken away and are now claimed here again."""
        for claim in claims:
            if (older := self._held.get(claim.id)) is not None:
                self._tell(older)

    def _hand_out(self, attempts: Sequence[Attempt]) -> None:
        attempts = self._without_changed_kinds(attempts)
        mutations = [a for a in attempts if a.runnable.kind == Kind.MUTATION]
        actions = [a for a in attempts if a.runnable.kind != Kind.MUTATION]
        for attempt in actions:
            if attempt.claim.kind == Kind.WORKFLOW:
                attempt.watch = self._watchdog
            if attempt.claim.timeout_ms is not None:
                self._watchdog.watch(attempt, self._time_left(attempt.claim))
        threads = [a for a in actions if _needs_thread(a.runnable)]
        coroutines = [a for a in actions if not _needs_thread(a.runnable)]
        self._hand_over(
            [(self._async, coroutines), (self._threads, threads), (self._mutations, mutations)]
        )

    def _time_left(self, claim: Claim) -> float:
        """The time limit of a workflow counts from its first claim."""
        assert claim.timeout_ms is not None
        used = 0 if claim.begun_at is None else self.clock.now() - claim.begun_at
        return max(0, claim.timeout_ms - used) / 1000

    def _hand_over(self, shares: list[tuple[Team, list[Attempt]]]) -> None:
        """Give each team its share.

        Jobs that cannot be handed over are retried with growing delays.
        """
        try:
            while shares:
                team, share = shares[0]
                if share:
                    team.start_many(share)
                del shares[0]
        except Exception as error:
            for _, share in shares:
                for attempt in share:
                    attempt.resolve(SystemFailed(f"could not be started: {error}"))
                    self._body_ended(attempt)
            raise

    def _run_in_thread(self, attempt: Attempt) -> None:
        run = self._processes.run if attempt.runnable.isolated else run_action
        run(attempt)

    def _without_changed_kinds(self, attempts: Sequence[Attempt]) -> list[Attempt]:
        """Hold jobs that were stored as the other kind, which makes other promises."""
        for attempt in [a for a in attempts if a.claim.kind != a.runnable.kind]:
            kinds = f"stored as {attempt.claim.kind}, now {attempt.runnable.kind}"
            attempt.resolve(NeverStarted(Hold.SIGNATURE, kinds))
            self._body_ended(attempt)
        return [a for a in attempts if a.claim.kind == a.runnable.kind]

    def _make_runner(self) -> MutationRunner:
        return MutationRunner(
            self.store,
            self.store.mutation_lane(),
            self.clock,
            self._watch_mutation,
            self._release_mutation,
            self._async.serve,
        )

    def _watch_mutation(self, attempt: Attempt, seconds: float) -> None:
        self._watchdog.watch(attempt, seconds)
        if self._lifeline:
            self._lifeline.body_began(attempt, seconds)

    def _release_mutation(self, attempt: Attempt) -> None:
        self._watchdog.release(attempt)
        if self._lifeline:
            self._lifeline.body_ended(attempt)

    def _watch_pass(self) -> float:
        return self._watchdog.one_pass()

    def _look_again(self) -> None:
        """There may be a due job, or one that is due before the next poll."""
        self.notified.set()
        self.loop.wake()

    # Ending

    def _body_ended(self, attempt: Attempt) -> None:
        """The body has really ended: there is room for another."""
        attempt.end_report()
        self._watchdog.release(attempt)
        with self._quiet:
            self._busy -= 1
            self._slots.body_ended(attempt.claim)
            if self._busy <= 0:
                self._quiet.notify_all()
        self.loop.wake()
        if attempt.claim.holds_slot and self._over:
            self._release_late()

    def _release_late(self) -> None:
        """The worker stopped without this body, which has now ended."""
        with contextlib.suppress(StoreError):
            self._slots.release_ended()
        with contextlib.suppress(StoreError):
            if not self._slots.counted_bodies():
                self.store.deregister(self.id, self.clock.now())

    def _resolved(self, attempt: Attempt, outcome: Outcome) -> None:
        """The first outcome of an attempt: decide what it means and post it."""
        self._outcomes.post(attempt.claim, outcome)
        (self.loop if self.store.finishes_with_claim else self._finish_loop).wake()

    def _forget(self, attempt: Attempt, committed: bool) -> None:
        """Forget a mutation that has settled itself, or was taken away."""
        attempt.take_away()
        self._outcomes.note_mutation(attempt, committed)
        if committed and attempt.scheduled:
            self.store.ring()

    # Heartbeats

    def reconcile(self) -> None:
        """Compare with the rows that have this worker's id.

        A row that is unknown here is a claim whose answer was lost: it is given back. A job without
        its row was taken away: its body is notified.
        """
        if not self._claiming.acquire(timeout=1):
            return
        try:
            # In this order: a job that ends in between is known here and no longer stored, never
            # the other way round.
            known = dict(self._held)
            stored = self.store.holdings(self.id)
            self._slots.give_back_unknown(self.id)
        finally:
            self._claiming.release()
        self._give_back_late()
        self._give_back_unknown({i: t for i, t in stored.items() if i not in known})
        for job_id, attempt in known.items():
            if stored.get(job_id) != attempt.claim.token and job_id in self._held:
                self._tell(attempt)

    def _tell(self, attempt: Attempt, *, stops: bool = False) -> None:
        if not attempt.resolved:
            log.info("job %s was taken away from this worker", attempt.claim.id)
            attempt.take_away(stops=stops)
            self._outcomes.forget(attempt)

    def _give_back_unknown(self, unknown: dict[str, int]) -> None:
        if not unknown:
            return
        jobs = {job_id: self.store.get(job_id) for job_id in unknown}
        agains = [
            again(job, token=unknown[job.id], hold=job.hold, begun=False)
            for job in jobs.values()
            if job is not None
        ]
        try:
            returned, _ = self.store.exchange(agains, None, self.clock.now())
        except RowsLocked as error:
            returned = error.settled  # the next heartbeat sees the others again
        if returned:
            log.warning(
                "gave back %d claimed jobs: the response to the claim had been lost", len(returned)
            )

    def was_declared_dead(self) -> None:
        """This worker's row is gone: drop everything that it held and start again as a new worker.

        Not if it is stopping: then it may have just removed the row itself.
        """
        with self._claiming:
            if self._stopping:
                return
            log.error(
                "worker %s was declared dead while it was alive; it starts again as a new worker",
                self.id,
            )
            for attempt in list(self._held.values()):
                self._tell(attempt, stops=True)
            self._slots.forget()
            self.store.deregister(self.id, self.clock.now())
            self.id = new_id(self.clock.now())
            self.register(with_faulty=False)

    # One job in its own process

    def claim_alone(self, job_id: str) -> None:
        """Claim and start one job that crashed its workers. This process runs nothing else."""
        with self._claiming, self._slots.doubted_if_it_fails():
            now = self.clock.now()
            claim = self.store.claim_alone(job_id, self.id, self._functions, now)
            if claim is not None:
                self._start([claim])


def _needs_thread(runnable: Runnable) -> bool:
    """Sync actions, and isolated ones, whose threads wait for their processes."""
    return runnable.kind != Kind.MUTATION and (not runnable.is_async or runnable.isolated)
