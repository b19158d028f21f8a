"""`app.why(job_id)`: gathers the facts about a job and explains why it has not run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from duly.calls.runs import open_waits_of, phase
from duly.errors import JobNotFound
from duly.model.job import Hold, JobFilter, JobRecord, State
from duly.model.stored_values import read
from duly.model.why import Facts, Pause, Reason, Server, reasons, sentence
from duly.model.workflow import Phase

if TYPE_CHECKING:
    from duly.core import Core

MAX_IN_THE_WAY = 100


class Why(msgspec.Struct, frozen=True):
    """Why a job has not run yet: the reasons in order, and a sentence."""

    job_id: str
    reasons: tuple[Reason, ...]
    text: str

    def __str__(self) -> str:
        return self.text


def explain(core: Core, job_id: str) -> Why:
    """Explain why a job has not run."""
    record = core.ready().get(job_id)
    if record is None:
        raise JobNotFound(job_id)
    found = reasons(_facts(core, record), core.now())
    has_started = phase(core, record) == Phase.WAITING
    return Why(job_id, tuple(found), sentence(record, found, has_started=has_started))


def _facts(core: Core, record: JobRecord) -> Facts:
    store = core.ready()
    pauses = {pause.name: Pause(pause.paused_by, pause.note) for pause in store.paused_queues()}
    workers = tuple(
        Server(w.queues, w.functions, w.slots, w.threads, w.threaded)
        for w in store.workers()
        if not w.alone
    )
    slots = max(1, sum(worker.slots + worker.threads for worker in workers))
    threaded = {name for worker in workers for name in worker.threaded}
    killed = store.kill_switch()
    running = store.find(JobFilter(state=State.RUNNING, limit=slots))
    return Facts(
        job=record,
        function=store.function(record.function),
        queue_pause=pauses.get(record.queue),
        workers=workers,
        running=len(running),
        running_threaded=sum(job.function in threaded for job in running),
        in_the_way=tuple(_in_the_way(core, record)),
        key=store.key_wait(record.id, core.now()) if record.hold == Hold.KEY else None,
        kill_switch=None if killed is None else Pause(killed.paused_by, killed.note),
        waits=tuple(open_waits_of(core, record)),
    )


def _in_the_way(core: Core, record: JobRecord) -> list[str]:
    store = core.ready()
    if record.hold != Hold.BATCH:
        return []
    if record.batch_id is not None:
        line = store.find(JobFilter(batch_id=record.batch_id, before_id=record.id))
        return [job.id for job in line if not job.state.is_terminal][:MAX_IN_THE_WAY]
    arguments = read(record.args, dict[str, Any], {})
    if "job_id" in arguments:
        return [arguments["job_id"]]
    members = [
        JobFilter(batch_id=record.id, state=state) for state in (State.RUNNING, State.PENDING)
    ]
    found = [job.id for filter in members for job in store.find(filter)]
    return found[:MAX_IN_THE_WAY]
