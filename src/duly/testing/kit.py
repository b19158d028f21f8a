"""Test tools for an application: another store, another clock, and jobs that run on demand."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Generator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from typing import Any, NoReturn, ParamSpec, Self, TypeVar

from duly import zones
from duly.app import Duly
from duly.calls.context import AsyncCtx, Ctx, Tx
from duly.calls.current import IsCurrent
from duly.calls.jobs import Job, job_from
from duly.calls.verbs import name_of_function
from duly.clock import Clock, ManualClock, from_ms
from duly.core import Core
from duly.errors import InvalidOption, JobFailed
from duly.functions.function import Call, Function
from duly.functions.times import Delay, Instant, after, at, seconds_of
from duly.ids import new_id
from duly.model.job import (
    DEFAULT_PRIORITY,
    DEFAULT_QUEUE,
    Claim,
    Hold,
    JobFilter,
    JobRecord,
    Kind,
    NewJob,
    State,
)
from duly.model.redact import mask
from duly.runtime.home import Home
from duly.runtime.janitor import Janitor
from duly.runtime.program import Scrub
from duly.runtime.ticker import Ticker
from duly.runtime.transaction_guard import refuse_inside_mutation
from duly.store.connect import make_store
from duly.testing.inline import InlineWorker
from duly.testing.inside import InsideJob, inside, pending_inside

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")

PRIVATE = "sqlite:///:memory:"
NOT_GIVEN: Any = object()
WRONG_DATABASE_HINT = (
    "this is the test store of override(): pass it the URL of the handle's database or, with the "
    "fixture duly_app on PostgreSQL, set DULY_TEST_URL or duly_test_url"
)
MAX_DRAINED = 10_000
MAX_ENQUEUED = 10_000
"""If draining runs more jobs than this, one probably enqueues itself forever."""


# Another store and clock -------------------------------------------------------------------------


@contextmanager
def override(
    app: Duly,
    url: str = PRIVATE,
    *,
    clock: Clock | None = None,
    schema: str = "duly",
    state: Any = NOT_GIVEN,
) -> Generator[Duly]:
    """Use another database and another clock for the app, until the end of the block.

    Default: a private SQLite file that is removed afterwards, and a ManualClock that stands still.
    `state`: what `ctx.state` is, instead of entering the app's `worker_lifespan`.
    """
    core = app.core
    if core.service is not None:
        raise InvalidOption("override", "stop the app first")
    clock = clock or ManualClock()
    store = make_store(url, clock, schema, False, "FULL")
    store.wrong_database_hint = WRONG_DATABASE_HINT
    before = core.exchange(store, clock)
    # All of them, in reverse order, even if one fails.
    with ExitStack() as ending:
        ending.callback(lambda: core.exchange(*before))
        ending.callback(lambda: core.close())
        ending.callback(lambda: app.stop())
        app.migrate()
        ending.enter_context(_checking_results(core))
        ending.enter_context(_with_state(core, state))
        yield app


def _with_state(core: Core, state: Any) -> AbstractContextManager[None]:
    return nullcontext() if state is NOT_GIVEN else core.lifespan.given(state)


def clock_of(app: Duly) -> ManualClock:
    """Return the clock of an app under test."""
    if not isinstance(app.clock, ManualClock):
        raise InvalidOption("clock", "the app uses real time; use override(app) first")
    return app.clock


# Running jobs on demand --------------------------------------------------------------------------


def drain(
    app: Duly, *, on: Any = None, raises: bool = True, paranoid: bool = False
) -> list[Job[Any]]:
    """Run all due jobs in this thread, and the jobs that they make due; returns the jobs, in order.

    Due schedules become jobs first, but not inside a handle's transaction. If a job has failed
    permanently, or a workflow is held because of a mistake in its code, JobFailed is raised after
    all of them have run, unless `raises` is False. `on`: a handle with an open transaction, as for
    `app.on`; everything happens inside it. `paranoid`: workflows start again from the top after
    each operation, and must then call the same steps with the same arguments.
    """
    if on is None:
        with _paranoid(app.core, paranoid), _worker(app) as worker:
            ran = _tick_and_run(app, worker, Ticker(app.core))
    else:
        with inside(app.core, on) as home, _worker(app, home) as worker:
            ran = _run_due(app, worker)
    if raises:
        _raise_first_failure(ran)
    return _jobs(app, ran, on)


@contextmanager
def _paranoid(core: Core, paranoid: bool) -> Generator[None]:
    before, core.paranoid = core.paranoid, paranoid or core.paranoid
    try:
        yield
    finally:
        core.paranoid = before


@contextmanager
def _checking_results(core: Core) -> Generator[None]:
    """Warn of results that do not match the return annotation of their function."""
    before, core.checks_results = core.checks_results, True
    try:
        yield
    finally:
        core.checks_results = before


@contextmanager
def _worker(app: Duly, home: Home | None = None) -> Generator[InlineWorker]:
    if home is None:
        refuse_inside_mutation("drain")
    worker = InlineWorker(app.core, home)
    try:
        with _checking_results(app.core), app.core.lifespan.entered(worker.run_on_loop):
            yield worker
    finally:
        worker.close()


def _run_due(app: Duly, worker: InlineWorker) -> list[JobRecord]:
    """The jobs that ran, each once, as they are when nothing is due any more."""
    ran: dict[str, None] = {}
    for _ in range(MAX_ENQUEUED + 1):
        job_id = worker.run_next()
        if job_id is None:
            found = [app.core.get(job_id) for job_id in ran]
            return [record for record in found if record is not None]
        ran[job_id] = None
    raise InvalidOption(
        "drain", f"more than {MAX_ENQUEUED:,} jobs were due; does one enqueue itself?"
    )


def _raise_first_failure(records: Sequence[JobRecord]) -> None:
    for record in records:
        if record.state == State.FAILED:
            message = record.error_message or ""
            raise JobFailed(record.id, record.error_kind or "user", message, record.error_traceback)
        if record.hold in (Hold.ERROR, Hold.HISTORY):
            raise JobFailed(record.id, "held", record.error_message or "", record.error_traceback)


def _jobs(app: Duly, records: Sequence[JobRecord], on: Any = None) -> list[Job[Any]]:
    if on is None:
        return [job_from(app.core, record, app.core.get) for record in records]
    return [InsideJob(app.core, record, on) for record in records]


def advance(app: Duly, delay: Delay, *, raises: bool = True) -> list[Job[Any]]:
    """Advance the app's ManualClock; everything that becomes due runs at its own instant.

    This includes schedules, retries, expiry, time limits and retention. Returns the jobs that ran,
    in order.
    """
    clock = clock_of(app)
    target = clock.now() + round(seconds_of("delay", delay) * 1000)
    ticker = Ticker(app.core)
    with _worker(app) as worker:
        ran = _tidy_and_run(app, worker, ticker)
        while (following := _next_due(app)) is not None and following <= target:
            clock.advance((following - clock.now()) / 1000)
            ran += _tidy_and_run(app, worker, ticker)
        clock.advance((target - clock.now()) / 1000)
        ran += _tidy_and_run(app, worker, ticker)
    # Retention may have removed a job; if a job ran repeatedly, its last state counts.
    latest = {record.id: record for record in ran}
    ran = [latest[record.id] for record in ran]
    if raises:
        _raise_first_failure(ran)
    return _jobs(app, ran)


def _tidy_and_run(app: Duly, worker: InlineWorker, ticker: Ticker) -> list[JobRecord]:
    # First: a job that cannot start must not hide those behind it.
    _tidy(app)
    return _tick_and_run(app, worker, ticker)


def _tick_and_run(app: Duly, worker: InlineWorker, ticker: Ticker) -> list[JobRecord]:
    """Repeat until nothing is due: a job may also make a schedule due."""
    ran: list[JobRecord] = []
    app.ready()
    while True:
        while ticker.one_pass() == 0:
            pass
        more = _run_due(app, worker)
        if not more:
            return ran
        ran += more


def _next_due(app: Duly) -> int | None:
    now, store = app.clock.now(), app.ready()
    times = [lane.run_at for lane in store.lanes()]
    tick_at = store.next_due(zone_data=zones.version(), signals_for=app.core.signals_for)
    times += [tick_at or now, store.next_check() or now]
    return min((at for at in times if at > now), default=None)


def _tidy(app: Duly) -> None:
    core = app.core
    janitor = Janitor(
        app.ready(),
        app.clock,
        **core.settings.keep,
        functions=lambda: tuple(core.functions.registered),
        build=lambda: core.build,
    )
    while janitor.one_pass() == 0:
        pass


# Enqueued jobs -----------------------------------------------------------------------------------


def enqueued(
    app: Duly, function: Function[..., Any] | str | None = None, *, on: Any = None
) -> list[Job[Any]]:
    """Return the jobs that have not run yet, in the order in which they are due."""
    shown = [app.core.redaction.shown(record) for record in _pending(app, function, on)]
    return _jobs(app, shown, on)


def _pending(app: Duly, function: Function[..., Any] | str | None, on: Any) -> list[JobRecord]:
    filter = JobFilter(state=State.PENDING, function=name_of_function(function), limit=MAX_DRAINED)
    if on is None:
        found: Sequence[JobRecord] = app.ready().find(filter)
    else:
        found = pending_inside(app.core, on, filter)
    return sorted(found, key=lambda record: (record.run_at, record.id))


def assert_enqueued(
    app: Duly,
    what: Function[..., Any] | Call[Any],
    *,
    on: Any = None,
    at: Instant | None = None,
    after: Delay | None = None,
    queue: str | None = None,
) -> Job[Any]:
    """Assert that exactly one such job is pending: `send`, with any arguments, or
    `send.bind("ada")`.

    Returns the job. `at`, `after`: its due time, or its delay from now. `on`: look inside the
    handle's transaction.
    """
    wanted = _ExpectedCall(app, what, at, after, queue)
    candidates = _pending(app, wanted.function, on)
    found = [record for record in candidates if wanted.fits(record)]
    if len(found) != 1:
        shown = [app.core.redaction.shown(record) for record in candidates]
        raise AssertionError(f"expected one job {wanted}, found {len(found)}{_listed(shown)}")
    return _jobs(app, [app.core.redaction.shown(found[0])], on)[0]


def assert_not_enqueued(
    app: Duly, what: Function[..., Any] | Call[Any] | None = None, *, on: Any = None
) -> None:
    """Assert that no such job is pending; without `what`, none at all."""
    wanted = None if what is None else _ExpectedCall(app, what, None, None, None)
    candidates = _pending(app, None if wanted is None else wanted.function, on)
    found = [record for record in candidates if wanted is None or wanted.fits(record)]
    if found:
        shown = [app.core.redaction.shown(record) for record in found]
        raise AssertionError(f"expected no job {wanted or ''}, found {len(found)}{_listed(shown)}")


class _ExpectedCall:
    def __init__(
        self,
        app: Duly,
        what: Function[..., Any] | Call[Any],
        at_: Instant | None,
        after_: Delay | None,
        queue: str | None,
    ) -> None:
        self.function = what.function if isinstance(what, Call) else what
        self._args = what.args if isinstance(what, Call) else None
        now = app.clock.now()
        self._due = at(at_, now) if at_ is not None else None
        if after_ is not None:
            self._due = after(after_, now)
        self._queue = queue

    def __str__(self) -> str:
        args = "…" if self._args is None else mask(self._args, self.function.signature.redacted)
        due = "" if self._due is None else f" due at {from_ms(self._due).isoformat()}"
        queue = "" if self._queue is None else f" in queue {self._queue!r}"
        return f"{self.function.name}({args}){due}{queue}"

    def fits(self, record: JobRecord) -> bool:
        return (
            record.function == self.function.name
            and self._args in (None, record.args)
            and self._due in (None, record.scheduled_at)
            and self._queue in (None, record.queue)
        )


def _listed(records: Sequence[JobRecord]) -> str:
    lines = [
        f"\n  {r.function}({r.args}) due at {from_ms(r.scheduled_at).isoformat()} in {r.queue!r}"
        for r in records
    ]
    return "".join(lines[:20]) + ("\n  …" if len(lines) > 20 else "")


# Handmade contexts -------------------------------------------------------------------------------


class Made:
    """An attempt that no worker runs."""

    def __init__(
        self,
        core: Core,
        attempt: int,
        canceled: bool,
        *,
        id: str | None = None,
        function: str = "test",
        args: str = "{}",
    ) -> None:
        now = core.clock.now()
        self.claim = Claim(
            id=id or new_id(now),
            token=1,
            attempt=attempt,
            crashes=0,
            system_retries=0,
            function=function,
            kind=Kind.ACTION,
            queue=DEFAULT_QUEUE,
            priority=DEFAULT_PRIORITY,
            run_at=now,
            timeout_ms=None,
            retry=None,
            args=args,
        )
        self.context: object = None
        self.canceled = canceled
        self.stopping = False
        self.is_silent: Callable[[], bool] | None = None
        self.is_quiet: Callable[[], bool] | None = None
        self.scheduled = False
        self.failed_calls: set[tuple[Scrub, str]] = set()

    def undisturbed(self) -> AbstractContextManager[None]:
        return nullcontext()

    def on_loop(self, body: Coroutine[Any, Any, T], home: Home) -> NoReturn:
        raise NotImplementedError("no mutation runs in this attempt")

    def limit_step(self, seconds: float, stop: Callable[[], None]) -> NoReturn:
        raise NotImplementedError("no workflow runs in this attempt")

    def progress(self, value: float, note: str | None) -> None:
        """Does nothing: there is no job."""

    def say(self, level: str, text: str) -> None: ...


class ManualCtx(Ctx):
    """A `Ctx` without a job; inside `with ctx(app):`, `duly.current()` returns it."""

    def __init__(self, core: Core, running: Made, state: Any = NOT_GIVEN) -> None:
        super().__init__(core, running)
        self._state = state

    @property
    def state(self) -> Any:
        return super().state if self._state is NOT_GIVEN else self._state

    def __enter__(self) -> Self:
        self._current = IsCurrent(self)
        self._current.__enter__()
        return self

    def __exit__(self, *exception: Any) -> None:
        self._current.__exit__(*exception)

    def _fence(self) -> None:
        """Does not exist: there is no job."""

    @contextmanager
    def _calling(
        self, mutation: Function[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> Generator[Mapping[str, Any]]:
        with (
            _with_state(self._core, self._state),
            super()._calling(mutation, args, kwargs) as arguments,
        ):
            yield arguments

    def _insert(self, jobs: Sequence[NewJob]) -> Mapping[str, str]:
        return super()._insert(jobs) if self.canceled else self._core.insert(jobs)

    def _parent_id(self) -> str | None:
        return None


class ManualAsyncCtx(AsyncCtx):
    """An `AsyncCtx` without a job; inside `with async_ctx(app):`, `duly.current()` returns it."""

    def __init__(self, core: Core, running: Made, state: Any = NOT_GIVEN) -> None:
        super().__init__(core, running)
        self._sync = ManualCtx(core, running, state)

    def __enter__(self) -> Self:
        self._current = IsCurrent(self)
        self._current.__enter__()
        return self

    def __exit__(self, *exception: Any) -> None:
        self._current.__exit__(*exception)

    def _parent_id(self) -> str | None:
        return None


def ctx(
    app: Duly, *, attempt: int = 1, canceled: bool = False, state: Any = NOT_GIVEN
) -> ManualCtx:
    """Return a context to call a sync action directly: `send(ctx(app), "ada")`.

    Jobs that it enqueues are stored in the app's store, without a parent. Inside `with ctx(app):`,
    `duly.current()` returns it. `state`: its `ctx.state`.
    """
    return ManualCtx(app.core, Made(app.core, attempt, canceled), state)


def async_ctx(
    app: Duly, *, attempt: int = 1, canceled: bool = False, state: Any = NOT_GIVEN
) -> ManualAsyncCtx:
    """Return a context to call an async action: `await send(async_ctx(app), "ada")`.

    Inside `with async_ctx(app):`, `duly.current()` returns it. `state`: its `ctx.state`.
    """
    return ManualAsyncCtx(app.core, Made(app.core, attempt, canceled), state)


@contextmanager
def tx(app: Duly, *, state: Any = NOT_GIVEN) -> Generator[Tx]:
    """Open a transaction to call a mutation directly; it is rolled back at the end of the block.

    `state`: its `tx.state`.
    """
    try:
        with (
            _with_state(app.core, state),
            app.transaction() as opened,
            IsCurrent(opened),
        ):
            yield opened
            raise _RollBack
    except _RollBack:
        pass


class _RollBack(Exception):
    """Ends a transaction without committing it."""
