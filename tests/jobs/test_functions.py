"""Functions: which can be called, and what happens to the jobs of removed ones."""

from typing import Any

import pytest

from duly import AsyncCtx, Ctx, Duly, ManualClock, State, Tx
from duly.errors import FunctionConflict, InvalidFunction, InvalidOption, UnknownFunction
from tests.jobs.support import Database, Hire, tidy


@pytest.mark.spec("R69")
def test_a_function_of_another_app_is_refused(app: Duly, db: Database):
    other = Duly("sqlite:///:memory:")

    @other.action
    def send(ctx: Ctx) -> None: ...

    @app.action
    def sent(ctx: Ctx) -> None: ...

    for schedule in (
        lambda: app.run(send),
        lambda: app.run_after(1, send),
        lambda: app.run_many([send.bind()]),
    ):
        with pytest.raises(UnknownFunction, match="did you mean 'sent'") as refused:
            schedule()
        assert refused.value.name == "send"
    with pytest.raises(UnknownFunction), app.transaction() as tx:
        tx.run(send)
    other.close()

    assert db.count("@jobs") == 0


@pytest.mark.spec("R69")
def test_another_apps_function_of_the_same_name_is_refused_with_a_reason(app: Duly):
    other = Duly("sqlite:///:memory:")

    @other.action(name="send")
    def theirs(ctx: Ctx, to: str) -> None: ...

    @app.action(name="send")
    def ours(ctx: Ctx) -> None: ...

    with pytest.raises(UnknownFunction, match="another function is registered as 'send'"):
        app.run(theirs, "bob")
    other.close()


@pytest.mark.spec("R69")
def test_what_is_no_function_of_dulys_is_refused(app: Duly, db: Database):
    def plain(ctx: Ctx) -> None: ...

    for callable_ in (plain, lambda: None, "send", None, print, Duly):
        with pytest.raises(InvalidFunction):
            app.run(callable_)  # type: ignore[arg-type]

    assert db.count("@jobs") == 0


@pytest.mark.spec("R69")
def test_a_name_that_nobody_registered_is_unknown(app: Duly):
    @app.action
    def send(ctx: Ctx) -> None: ...

    assert app.function("send") is send
    with pytest.raises(UnknownFunction, match="no function is registered as 'sned'; did you mean"):
        app.function("sned")
    with pytest.raises(LookupError, match="'wait'; import its module, or start"):
        app.function("wait")
    with pytest.raises(LookupError):
        app.function("")


@pytest.mark.spec("R70")
def test_an_internal_function_is_marked_and_can_be_scheduled_by_code(app: Duly, hire: Hire):
    @app.action(internal=True)
    def inside(ctx: Ctx) -> str:
        return "from code"

    @app.mutation
    def outside(tx: Tx) -> None: ...

    job = app.run(inside)
    hire().work()

    assert job.result(0) == "from code"
    assert app.function("inside").internal is True
    assert inside.using(priority=9).internal is True
    assert app.function("outside").internal is False


@pytest.mark.spec("R69")
def test_a_function_that_no_worker_knows_any_more_parks_its_jobs(
    app: Duly, url: str, clock: ManualClock, hire: Hire
):
    @app.action
    def old(ctx: Ctx) -> str:
        return "revived"

    due = [app.run(old) for _ in range(3)]
    later = app.run_after(3600, old)
    newer = Duly(url, clock=clock)

    @newer.action
    def current(ctx: Ctx) -> str:
        return "ran"

    worker = hire(newer)
    tidy(newer)
    known = newer.run(current)
    worker.work()
    assert known.result(0) == "ran"
    assert [job.state for job in due] == [State.PENDING] * 3
    assert [job.record.hold for job in due] == ["function"] * 3
    assert later.record.hold is None
    (held,) = newer.held()
    assert (held.hold, held.function, held.count) == ("function", "old", 3)
    assert held.oldest_run_at == due[0].record.run_at

    # A month later nothing was dropped, and a worker that knows the function starts.
    clock.advance(30 * 86_400)
    worker.work()
    tidy(newer)
    assert newer.held()[0].count == 4
    hire(app).work()
    assert [job.result(0) for job in [*due, later]] == ["revived"] * 4
    assert newer.held() == []
    worker.stop()
    newer.close()


@pytest.mark.spec("R69")
def test_parked_jobs_do_not_stand_in_the_way_of_others(
    app: Duly, url: str, clock: ManualClock, hire: Hire
):
    @app.action
    def old(ctx: Ctx) -> None: ...

    @app.action
    def kept(ctx: Ctx) -> str:
        return "ran"

    app.run_many(old.using(priority=9).bind() for _ in range(50))
    job = app.run(kept)
    newer = Duly(url, clock=clock)

    @newer.action(name="kept")
    def still_here(ctx: Ctx) -> str:
        return "ran"

    worker = hire(newer, concurrency=2)
    worker.work()
    assert job.result(0) == "ran"
    tidy(newer)
    assert newer.held()[0].count == 50
    worker.stop()
    newer.close()


@pytest.mark.spec("R69")
def test_a_parked_job_can_be_canceled(app: Duly):
    @app.action
    def old(ctx: Ctx) -> None: ...

    job = app.run(old)
    tidy(app)
    assert job.record.hold == "function"

    assert job.cancel() is True
    assert app.held() == []


@pytest.mark.spec("R69")
def test_a_job_that_no_longer_fits_its_function_is_parked_and_revived(
    app: Duly, url: str, clock: ManualClock, hire: Hire
):
    @app.mutation
    def save(tx: Tx, name: str) -> str:
        return name

    @app.action
    def send(ctx: Ctx, name: str) -> str:
        return name

    @app.action
    async def post(ctx: AsyncCtx, name: str) -> str:
        return name

    jobs = [app.run(function, "ada") for function in (save, send, post)]
    changed = Duly(url, clock=clock)

    @changed.mutation(name="save")
    def save_by_number(tx: Tx, number: int) -> int:
        return number

    @changed.action(name="send")
    def send_by_number(ctx: Ctx, number: int) -> int:
        return number

    @changed.action(name="post")
    async def post_by_number(ctx: AsyncCtx, number: int) -> int:
        return number

    worker = hire(changed)
    worker.work()
    for job in jobs:
        record = job.record
        assert (record.state, record.hold, record.attempt) == ("pending", "signature", 0)
        assert job.error is not None
        assert "stored argument 'number' no longer fits: missing" in job.error.message
    assert [(held.hold, held.function, held.count) for held in changed.held()] == [
        ("signature", "post", 1),
        ("signature", "save", 1),
        ("signature", "send", 1),
    ]
    hire(app).work()
    assert [job.result(0) for job in jobs] == ["ada"] * 3
    worker.stop()
    changed.close()


# What can be decorated


def test_the_same_place_may_define_a_function_again_and_another_may_not(app: Duly):
    def define(answer: int) -> Any:
        @app.action
        def act(ctx: Ctx) -> int:
            return answer

        return act

    define(1)
    second = define(2)
    assert app.function("act") is second
    with pytest.raises(FunctionConflict, match=r"defined twice: .*test_functions.py:\d+ and "):

        @app.action(name="act")
        def another(ctx: Ctx) -> None: ...


@pytest.mark.parametrize("name", ["", "x" * 201, "a\nb", "nul\0", 5])
def test_a_name_is_printable_text(app: Duly, name: Any):
    with pytest.raises(InvalidOption, match="name"):

        @app.action(name=name)
        def act(ctx: Ctx) -> None: ...


def test_only_ordinary_functions_with_their_own_context_can_be_decorated(app: Duly):
    async def coroutine(tx: Tx) -> None: ...

    def generator(ctx: Ctx) -> Any:
        yield 1

    def wrong_context(tx: Tx) -> None: ...

    def unannotated(ctx) -> None: ...

    def positional(ctx: Ctx, *args: int) -> None: ...

    no_actions: list[Any] = [generator, wrong_context, unannotated, positional]
    for body in no_actions:
        with pytest.raises(InvalidFunction):
            app.action(body)
    no_mutations: list[Any] = [coroutine, lambda tx: None, print, type, 5]
    for body in no_mutations:
        with pytest.raises(InvalidFunction):
            app.mutation(body)
    assert app.functions == {}
