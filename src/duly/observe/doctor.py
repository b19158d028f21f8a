"""`duly doctor`: finds problems and suggests what to do about them.

First all signs are read from the system; then functions of plain values judge them.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterator, Mapping, Sequence
from enum import StrEnum
from importlib.util import find_spec
from shlex import quote
from typing import NamedTuple

import msgspec

from duly import zones
from duly.calendars import Calendars
from duly.clock import SystemClock, from_ms, os_monotonic, os_sleep
from duly.core import Core
from duly.errors import DulyError, StoreError, StoreUnavailable
from duly.model.durations import length_in_words
from duly.model.function import FunctionInfo, Status, is_reserved
from duly.model.job import Hold, JobFilter
from duly.model.measure import CAP as COUNTED
from duly.model.queue import QueuePause
from duly.model.schedule import ScheduleFilter
from duly.nearest import did_you_mean
from duly.observe.connections import (
    POOL_HINT,
    SERVER_HINT,
    ClientPool,
    client_pools,
    pool_problems,
    server_problem,
)
from duly.observe.health import LATE_MS, HealthReport, look
from duly.schedules.define import known_calendars
from duly.store.base import DatabaseInfo, HeldJobs, WorkerInfo
from duly.store.declarations import LeftOut
from duly.store.statements import SNAPSHOT_LEVELS
from duly.store.table import Store

MAX_READ = 100
"""No list is read further than this."""
MAX_NAMED = 5
"""No more than this many objects are named in one finding."""
HEARTBEAT_PATIENCE = 3.0
"""A worker without a heartbeat for this long is gone; workers send one every second."""
CLOCK_MS = 2_000
LONG_TRANSACTION_MS = 600_000
MUTATION_MS = 60_000
WORKER_CONNECTIONS = 17
"""8 for mutations, one that listens, one for each of its 8 loops."""
CONNECTIONS_WARNING_SHARE = 0.9
OLD_ZONES_DAYS = 730
EXTRAS: dict[str, tuple[str, ...]] = {
    "cli": ("click", "rich"),
    "postgres": ("psycopg", "psycopg_pool"),
    "http": ("httpx2",),
    "server": ("fastapi", "uvicorn", "jinja2"),
    "holidays": ("holidays",),
}


class Level(StrEnum):
    """How serious a finding is."""

    OK = "ok"
    NOTE = "note"
    """Nothing is broken, but worth knowing."""
    WRONG = "wrong"


class Finding(msgspec.Struct, frozen=True):
    """The result of one check, and what to do about it."""

    check: str
    level: Level
    text: str
    hint: str | None = None


class Diagnosis(msgspec.Struct, frozen=True):
    """The findings of all checks; `healthy` if nothing is wrong."""

    healthy: bool
    findings: tuple[Finding, ...]


class Parked(NamedTuple):
    key: str
    why: str


class Ending(NamedTuple):
    calendar: str
    last_date: dt.date
    used_by: tuple[str, ...]


class Signs(msgspec.Struct, frozen=True):
    """What is known about a database that answers."""

    now: int
    where: str
    engine: DatabaseInfo
    ahead_ms: int | None
    """How far this machine's clock is ahead of the database's."""
    health: HealthReport
    workers: Sequence[WorkerInfo]
    silent: frozenset[str]
    """The workers that are no longer alive."""
    waiting: frozenset[str]
    """The functions that pending jobs call."""
    scheduled: frozenset[str]
    functions: Sequence[FunctionInfo]
    held: Sequence[HeldJobs]
    kill_switch: QueuePause | None
    paused_queues: Sequence[QueuePause]
    parked: Sequence[Parked]
    ending: Sequence[Ending]
    left_out: Mapping[str, LeftOut]
    """What could not be applied of the newest set of each app."""
    calendars: Sequence[str]
    """The known calendars, if a schedule could not be applied."""
    dead: int
    zone_data: str
    required_zone_data: str
    missing_extras: tuple[str, ...]
    pools: Sequence[ClientPool]
    sends: bool
    """Whether there are endpoints or gateways."""


def examine(core: Core) -> Diagnosis:
    """Look for problems. Takes a few seconds at most, and changes nothing."""
    try:
        pending = core.ready().pending_migrations()
        findings = (_not_migrated(pending),) if pending else tuple(judge(read(core)))
    except StoreError as error:
        findings = (_no_database(error),)
    except DulyError as error:
        findings = (Finding("database", Level.WRONG, str(error), getattr(error, "hint", None)),)
    return Diagnosis(all(each.level != Level.WRONG for each in findings), findings)


def _not_migrated(pending: Sequence[tuple[str, str]]) -> Finding:
    text = f"migrations are pending: {', '.join(name for name, _ in pending)}"
    return Finding("database", Level.WRONG, text, "run `duly migrate`")


def _no_database(error: StoreError) -> Finding:
    hint = "check that it is running, and that DULY_DATABASE_URL or the app's URL points to it"
    silent = isinstance(error, StoreUnavailable)
    return Finding("database", Level.WRONG, str(error), hint if silent else None)


# Reading ------------------------------------------------------------------------------------------


def read(core: Core) -> Signs:
    """Read everything that the checks need."""
    store = core.ready()
    workers = store.workers()
    left_out = store.left_out()
    return Signs(
        now=core.now(),
        where=store.address().where,
        engine=store.database(),
        ahead_ms=_ahead(core),
        health=look(core),
        workers=workers,
        silent=silent_workers(store, workers),
        waiting=frozenset(store.waiting_functions()),
        scheduled=frozenset(store.scheduled_functions()),
        functions=store.functions(),
        held=store.held(),
        kill_switch=store.kill_switch(),
        paused_queues=[each for each in store.paused_queues() if each.name != "*"],
        parked=_parked_in(store),
        ending=_ending_in(core),
        left_out=left_out,
        calendars=known_calendars(core, "") if left_out else (),
        dead=len(store.find(JobFilter(exhausted=True, limit=MAX_READ))),
        zone_data=zones.version(),
        required_zone_data=store.required_zone_data(),
        missing_extras=tuple(name for name, modules in EXTRAS.items() if not _are_here(modules)),
        pools=client_pools(),
        sends=bool(store.endpoints(None, None, 1) or store.gateways(None, None, 1)),
    )


def _parked_in(store: Store) -> list[Parked]:
    found = store.schedules(ScheduleFilter(parked=True, limit=MAX_READ))
    return [Parked(each.key, each.error or "it could not be processed") for each in found]


def _ending_in(core: Core) -> list[Ending]:
    return [
        Ending(each.calendar.name, each.last_date, tuple(used.key for used in each.schedules))
        for each in Calendars(core).ending()
    ]


def _ahead(core: Core) -> int | None:
    ahead = core.clock.ahead_of_server() if isinstance(core.clock, SystemClock) else None
    return None if ahead is None else round(ahead * 1000)


def _are_here(modules: Sequence[str]) -> bool:
    return all(find_spec(module) is not None for module in modules)


def silent_workers(
    store: Store, workers: Sequence[WorkerInfo], patience: float = HEARTBEAT_PATIENCE
) -> frozenset[str]:
    """The workers that are gone: their process is, or they send no heartbeat while we wait."""
    verdicts = {worker.id: store.is_dead(worker.id) for worker in workers}
    gone = {worker_id for worker_id, dead in verdicts.items() if dead}
    unsure = {worker_id for worker_id, dead in verdicts.items() if dead is None}
    before = store.beats() if unsure else {}
    give_up_at = os_monotonic() + patience
    while unsure and os_monotonic() < give_up_at:
        os_sleep(0.1)
        beats = store.beats()
        # A worker that left in the meantime has deregistered itself.
        unsure = {each for each in unsure if each in beats and beats[each] == before.get(each)}
    return frozenset(gone | unsure)


# Judging ------------------------------------------------------------------------------------------


def judge(signs: Signs) -> Iterator[Finding]:
    """The findings of all checks, most serious causes first."""
    for check in CHECKS:
        yield from check(signs)


def _ok(check: str, text: str) -> Finding:
    return Finding(check, Level.OK, text)


def _note(check: str, text: str, hint: str | None = None) -> Finding:
    return Finding(check, Level.NOTE, text, hint)


def _wrong(check: str, text: str, hint: str | None = None) -> Finding:
    return Finding(check, Level.WRONG, text, hint)


def _database(signs: Signs) -> Iterator[Finding]:
    name = f"{signs.engine.name} {signs.engine.version}"
    yield _ok("database", f"{name}, {signs.where}, migrated")


def _engine(signs: Signs) -> Iterator[Finding]:
    engine = signs.engine
    if engine.network_file_system is not None:
        yield _wrong(
            "database",
            f"the file is on {engine.network_file_system}, where SQLite's locks cannot be trusted",
            "move it to a local disk, or use PostgreSQL: `duly copy`",
        )
    if engine.journal_mode not in (None, "wal"):
        yield _wrong(
            "database",
            f"SQLite's journal mode is {engine.journal_mode}, in which readers block writers",
            "another program turned WAL off; `duly migrate` turns it on again",
        )
    if engine.name == "SQLite" and has_wal_reset_bug(engine.version):
        yield _note(
            "database",
            f"SQLite {engine.version} can, very rarely, damage the file when its WAL is reset",
            "fixed in 3.51.3, 3.50.7 and 3.44.6",
        )
    if (engine.longest_transaction_ms or 0) > LONG_TRANSACTION_MS:
        minutes = (engine.longest_transaction_ms or 0) // 60_000
        yield _note(
            "database",
            f"a transaction has been open for {minutes} minutes; dead rows pile up meanwhile",
            "find it in pg_stat_activity: ORDER BY xact_start",
        )
    if engine.isolation in SNAPSHOT_LEVELS:
        yield _note(
            "database",
            f"the default isolation level is {engine.isolation.upper()}; duly's own transactions, "
            "including mutations, are READ COMMITTED",
            "in your transactions, app.on(…) does not cancel started jobs and jobs in a batch",
        )
    if (engine.transaction_timeout_ms or MUTATION_MS) < MUTATION_MS:
        yield _note(
            "database",
            f"PostgreSQL ends a transaction after {engine.transaction_timeout_ms} ms; a mutation "
            "that takes longer is repeated forever",
            "set idle_in_transaction_session_timeout and transaction_timeout to more than 60 s, "
            "or to 0, for duly's role",
        )


def _connections(signs: Signs) -> Iterator[Finding]:
    engine = signs.engine
    if engine.connections is None or not engine.max_connections:
        return
    text = (
        f"{engine.connections} of {engine.max_connections} in use; a process uses at most "
        f"{engine.pool} for its callers, and a worker {WORKER_CONNECTIONS} more"
    )
    if engine.connections > CONNECTIONS_WARNING_SHARE * engine.max_connections:
        hint = "raise max_connections, lower Duly(pool=…), or use a pooler"
        yield _note("connections", text, hint)
    elif problem := server_problem([w.threads or w.slots for w in _alive(signs)], engine):
        yield _note("connections", problem, SERVER_HINT)
    else:
        yield _ok("connections", text)


def _pools(signs: Signs) -> Iterator[Finding]:
    threads = max((worker.threads or worker.slots for worker in _alive(signs)), default=0)
    for problem in pool_problems(threads, signs.pools)[:MAX_NAMED]:
        yield _note("connections", problem, POOL_HINT)


def _alive(signs: Signs) -> list[WorkerInfo]:
    return [worker for worker in signs.workers if worker.id not in signs.silent]


def has_wal_reset_bug(version: str) -> bool:
    """Whether this SQLite version is older than the fixed releases of its branch."""
    number = tuple(int(part) for part in version.split("."))
    if number >= (3, 51):
        return number < (3, 51, 3)
    return not (number >= (3, 50, 7) or (3, 44, 6) <= number < (3, 45))


def _clock(signs: Signs) -> Iterator[Finding]:
    if signs.ahead_ms is None:
        return
    seconds = signs.ahead_ms / 1000
    said = f"{abs(seconds):.1f} s {'ahead of' if seconds > 0 else 'behind'} the database's"
    if abs(signs.ahead_ms) <= CLOCK_MS:
        yield _ok("clock", f"this machine's clock is {said}")
    else:
        yield _note(
            "clock",
            f"this machine's clock is {said}; duly uses the database's",
            "synchronize both with a time server",
        )


def _workers(signs: Signs) -> Iterator[Finding]:
    alive = _alive(signs)
    gone = len(signs.workers) - len(alive)
    if not alive:
        yield _wrong("workers", "no worker is running", "start one: `duly worker`")
    else:
        slots = _count(sum(worker.slots for worker in alive), "slot")
        threads = _count(sum(worker.threads for worker in alive), "thread")
        yield _ok("workers", f"{_count(len(alive), 'worker')} with {slots} and {threads}")
    if gone:
        yield _note(
            "workers",
            f"{_count(gone, 'worker')} died without shutting down",
            "other workers take over within seconds" if alive else "the next worker takes over",
        )


def _ticker(signs: Signs) -> Iterator[Finding]:
    lag = signs.health.evaluator_lag_ms
    if lag > LATE_MS:
        yield _wrong(
            "ticker",
            f"schedules have been overdue for {length_in_words(lag)}: no ticker is running",
            "start `duly worker` (without --no-ticker) or `duly ticker`",
        )
    else:
        yield _ok("ticker", "no schedule is overdue")
    if signs.required_zone_data > signs.zone_data:
        yield _note(
            "ticker",
            f"this process has zone data {signs.zone_data}, others have {signs.required_zone_data};"
            " it leaves schedules with time zones to them",
            "pip install -U tzdata",
        )


def _unknown_functions(signs: Signs) -> Iterator[Finding]:
    """Jobs and schedules that wait for code: nothing is lost, but they do not run."""
    alive = [worker for worker in signs.workers if worker.id not in signs.silent]
    known = {name for worker in alive for name in worker.functions}
    if not alive:
        # Without workers, only functions that no worker ever had are unknown.
        known = {function.name for function in signs.functions}
    called = {name for name in signs.waiting | signs.scheduled if not is_reserved(name)}
    unknown = sorted(called - known)
    hint = "deploy a worker that has it; if it was renamed, add its old name to aliases=[…]"
    for name in unknown[:MAX_NAMED]:
        who = _those({"jobs": name in signs.waiting, "schedules": name in signs.scheduled})
        yield _wrong("functions", f"no worker has {name!r}, which {who} call", hint)
    if len(unknown) > MAX_NAMED:
        yield _wrong(
            "functions", f"and {len(unknown) - MAX_NAMED} others: {_named(unknown[MAX_NAMED:])}"
        )
    if not unknown:
        yield _ok("functions", "workers have all functions that jobs and schedules call")
    for held in signs.held:
        if held.hold == Hold.SIGNATURE:
            yield _wrong(
                "functions",
                f"the stored arguments of {_count(held.count, 'job')} no longer fit "
                f"{held.function!r}",
                "deploy a version that accepts them, or cancel the jobs: `duly jobs cancel`",
            )


def _crashing(signs: Signs) -> Iterator[Finding]:
    """Jobs that may bring down a whole container each time are never proven to be the cause."""
    for held in signs.held:
        if held.hold == Hold.ALONE:
            yield _note(
                "jobs",
                f"{_count(held.count, 'job')} of {held.function!r} crashed two workers each;"
                " the next attempt runs in a separate process",
                "`duly why JOB` shows how the last one ended; if the kernel kills workers for their"
                " memory, give them more, or cancel the job: `duly jobs cancel`",
            )


def _those(which: dict[str, bool]) -> str:
    return " and ".join(name for name, is_so in which.items() if is_so)


def _overdue(signs: Signs) -> Iterator[Finding]:
    late = [queue for queue in signs.health.queues if not queue.paused and queue.lag_ms > LATE_MS]
    if signs.kill_switch is not None or not late:
        yield _ok("jobs", "no job is overdue")
        return
    for queue in late[:MAX_NAMED]:
        yield _wrong(
            "jobs",
            f"queue {queue.name!r}: {_at_least(queue.due, 'job', COUNTED)} due, the oldest for"
            f" {length_in_words(queue.lag_ms)}",
            _why_late(signs, queue.name),
        )


def _why_late(signs: Signs, queue: str) -> str:
    alive = [worker for worker in signs.workers if worker.id not in signs.silent]
    if not alive:
        return "start a worker: `duly worker`"
    if not any(worker.queues is None or queue in worker.queues for worker in alive):
        return f"no worker serves it: `duly worker --queue {quote(queue)}`"
    return "the workers cannot keep up: start more, or raise --threads or --concurrency"


def _paused(signs: Signs) -> Iterator[Finding]:
    if signs.kill_switch is not None:
        by = _by(signs.kill_switch.paused_by, signs.kill_switch.note)
        yield _note("paused", f"everything is paused{by}", "`duly resume` resumes it")
    for queue in signs.paused_queues[:MAX_READ]:
        by = _by(queue.paused_by, queue.note)
        resume = f"`duly queues resume {quote(queue.name)}`"
        yield _note("paused", f"queue {queue.name!r} is paused{by}", resume)
    for function in signs.functions:
        if function.status == Status.PAUSED and function.alias_of is None:
            by = _by(function.status_by, function.status_note)
            resume = f"`duly functions resume {quote(function.name)}`"
            yield _note("paused", f"function {function.name!r} is paused{by}", resume)


def _by(who: str | None, note: str | None) -> str:
    return (f" by {who}" if who else "") + (f": {note}" if note else "")


def _parked(signs: Signs) -> Iterator[Finding]:
    for each in signs.parked[:MAX_NAMED]:
        yield _wrong(
            "schedules",
            f"{each.key!r} is parked: {each.why.splitlines()[0]}",
            "fix it with `duly schedules update`; a worker that can process it resumes it",
        )
    if len(signs.parked) > MAX_NAMED:
        most = _at_least(len(signs.parked), "schedule", MAX_READ)
        yield _wrong("schedules", f"{most} are parked in all", "see `duly schedules list`")
    if not signs.parked:
        yield _ok("schedules", "none is parked")


def _left_out(signs: Signs) -> Iterator[Finding]:
    for each in signs.left_out.values():
        for key, calendar in list(each.schedules.items())[:MAX_NAMED]:
            yield _wrong(
                "schedules",
                f"{key!r} was not applied: there is no calendar {calendar!r}",
                did_you_mean(calendar, signs.calendars)
                or "declare it with app.calendar(…), or create it with `duly calendars create`",
            )
        for name, reason in list(each.calendars.items())[:MAX_NAMED]:
            text, _, hint = reason.partition("; ")
            yield _wrong("calendars", f"{name!r} was not applied: {text}", hint or None)


def _calendars(signs: Signs) -> Iterator[Finding]:
    today = from_ms(signs.now).date()
    for each in signs.ending:
        used = _named(each.used_by)
        hint = f"add dates: `duly calendars update {quote(each.calendar)} --add …`"
        if each.last_date < today:
            text = f"{each.calendar!r} ended on {each.last_date}; used by {used}"
            yield _wrong("calendars", text, hint)
        else:
            text = f"{each.calendar!r} ends on {each.last_date}; used by {used}"
            yield _note("calendars", text, hint)


def _dead_letters(signs: Signs) -> Iterator[Finding]:
    if signs.dead:
        yield _note(
            "dead jobs",
            f"{_at_least(signs.dead, 'job', MAX_READ)} used up their attempts",
            "list them with `duly jobs dead`, retry them with `duly jobs retry --dead`",
        )


def _zone_data(signs: Signs) -> Iterator[Finding]:
    year = signs.zone_data[:4]
    age = from_ms(signs.now).date() - dt.date(int(year), 1, 1) if year.isdigit() else None
    if age is not None and age.days <= OLD_ZONES_DAYS:
        yield _ok("zones", f"zone data {signs.zone_data}")
    else:
        said = signs.zone_data or "of unknown age"
        yield _note("zones", f"zone data {said} may be out of date", "pip install -U tzdata")


def _extras(signs: Signs) -> Iterator[Finding]:
    if signs.sends and "http" in signs.missing_extras:
        yield _wrong(
            "extras",
            "there are endpoints or gateways, but the extra that sends requests is not installed",
            'pip install "duly[http]"',
        )
    if signs.missing_extras:
        names = ", ".join(signs.missing_extras)
        yield _note("extras", f"not installed: {names}", f'pip install "duly[{names}]" if needed')


CHECKS: tuple[Callable[[Signs], Iterator[Finding]], ...] = (
    _database,
    _engine,
    _connections,
    _pools,
    _clock,
    _workers,
    _ticker,
    _unknown_functions,
    _overdue,
    _crashing,
    _parked,
    _left_out,
    _calendars,
    _paused,
    _dead_letters,
    _zone_data,
    _extras,
)


# Words --------------------------------------------------------------------------------------------


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def _at_least(number: int, noun: str, limit: int) -> str:
    """A number that was counted up to a limit."""
    return f"{number:,} or more {noun}s" if number >= limit else _count(number, noun)


def _named(names: Sequence[str]) -> str:
    more = f" and {len(names) - MAX_NAMED} more" if len(names) > MAX_NAMED else ""
    return ", ".join(map(repr, names[:MAX_NAMED])) + more
