"""What operators decide about a function, and what that does to its jobs."""

import warnings

import pytest

from duly import Ctx, Duly, FunctionStatus, ManualClock, State, Tx
from duly.errors import FunctionDeleted, UnknownFunction, UseTx, WrongStatus
from duly.model.job import JobFilter
from duly.store.jobs import cancel
from duly.store.jobs.holds import hold_stuck, stuck_at_heads
from duly.store.jobs.listing import live_matching
from tests.jobs.support import Database, Hire, tidy


@pytest.fixture
def other(url: str, app: Duly, clock: ManualClock):
    """Another process of the same app, with nothing in its memory."""
    service = Duly(url, clock=clock)
    yield service
    service.close()


@pytest.fixture
def send(app: Duly):
    @app.action
    def send(ctx: Ctx, to: str = "ada") -> str:
        return to

    return send


@pytest.mark.spec("N27")
def test_a_paused_function_accepts_calls_and_starts_none(app: Duly, send, hire: Hire):
    @app.action
    def beside(ctx: Ctx) -> None: ...

    worker = hire()
    before = app.run(send)
    app.functions.pause(send, by="ada", note="mail is down")
    after = app.run(send)
    alongside = app.run(beside)
    worker.work()
    assert (before.state, after.state) == (State.PENDING, State.PENDING)
    assert alongside.state == State.SUCCEEDED
    info = app.functions.info("send")
    assert (info.status, info.status_by, info.status_note) == ("paused", "ada", "mail is down")

    app.functions.resume("send")
    worker.work()
    assert (before.result(0), after.result(0)) == ("ada", "ada")


@pytest.mark.spec("N27")
def test_jobs_of_a_paused_function_are_held_out_of_the_way_and_freed(app: Duly, send, hire: Hire):
    worker = hire()
    app.functions.pause(send)
    jobs = app.run_many(send.bind(str(n)) for n in range(3))
    tidy(app)
    assert [(held.hold, held.function, held.count) for held in app.held()] == [
        ("paused", "send", 3)
    ]
    app.functions.resume(send)
    assert app.held() == []
    worker.work()
    assert [job.result(0) for job in jobs] == ["0", "1", "2"]


@pytest.mark.spec("N27")
def test_a_hold_that_lost_the_race_with_the_resume_is_freed_by_the_janitor(
    app: Duly, send, hire: Hire, db: Database
):
    worker = hire()
    job = app.run(send)
    db.execute("UPDATE @jobs SET hold = 'paused'")  # a janitor that had read the old status
    tidy(app)
    worker.work()
    assert job.result(0) == "ada"


@pytest.mark.spec("N27")
def test_the_pause_of_a_running_job_lets_it_end(app: Duly, hire: Hire):
    @app.action
    def pause_myself(ctx: Ctx) -> str:
        app.functions.pause("pause_myself")
        return "done"

    job = app.run(pause_myself)
    hire().work()
    assert job.result(0) == "done"
    assert app.functions.status("pause_myself") == FunctionStatus.PAUSED


@pytest.mark.spec("N27")
def test_a_deprecated_function_warns_and_finishes_what_waits(app: Duly, send, hire: Hire):
    waiting = app.run(send)
    app.functions.deprecate(send)
    with pytest.warns(DeprecationWarning, match="'send' is deprecated") as caught:
        called = app.run(send)
    assert caught[0].filename == __file__, "the warning points at the caller"
    hire().work()
    assert (waiting.result(0), called.result(0)) == ("ada", "ada")


@pytest.mark.spec("N27")
def test_a_deleted_function_cancels_what_waits_and_takes_nothing_more(
    app: Duly, other: Duly, send, hire: Hire, db: Database
):
    worker = hire()
    due, later = app.run(send), app.run_after(3600, send)
    assert app.functions.delete(send, by="ada") == 2
    assert {due.state, later.state} == {State.CANCELED}
    assert due.canceled_by == "operator"
    for service in (app, other):
        with pytest.raises(FunctionDeleted, match="an operator can restore it"):
            service.run(service.function("send"))

    def call_it_in_a_transaction() -> None:
        with app.transaction() as tx:
            tx.execute("INSERT INTO notes VALUES ('x')")
            tx.run(send)

    with pytest.raises(FunctionDeleted):
        call_it_in_a_transaction()
    assert (db.count("@jobs"), db.notes()) == (0, [])

    hire().stop()  # a deploy that still has the code does not revive it
    assert app.functions.status(send) == FunctionStatus.DELETED
    app.functions.restore(send)
    job = app.run(send)
    worker.work()
    assert job.result(0) == "ada"


@pytest.mark.spec("N27")
def test_a_call_that_slipped_past_the_deletion_never_runs(
    app: Duly, other: Duly, send, hire: Hire, monkeypatch: pytest.MonkeyPatch
):
    worker = hire()
    send_there = other.action(send.body)
    other.ready()
    other.core.functions.refresh()
    app.functions.delete(send)
    monkeypatch.setattr(other.core.functions, "is_fresh", lambda: True)  # has not heard of it yet
    job = other.run(send_there)
    worker.work()
    assert job.state == State.PENDING
    tidy(app)
    assert (job.state, job.canceled_by) == (State.CANCELED, "operator")


@pytest.mark.spec("N27")
def test_another_process_hears_of_a_deletion_within_a_second(app: Duly, other: Duly, send):
    send_there = other.action(send.body)
    other.run(send_there)
    app.functions.delete(send)
    other.core.functions._fresh_until = 0.0  # a second later
    with pytest.raises(FunctionDeleted):
        other.run(send_there)


def test_a_transaction_asks_for_no_status_on_another_connection(
    app: Duly, other: Duly, send, hire: Hire, monkeypatch: pytest.MonkeyPatch
):
    """Behind a pooler whose servers are all in such transactions it would wait for ever."""

    @app.mutation
    def call(tx: Tx) -> None:
        app.core.functions._fresh_until = 1e-9  # as if the body had run for long
        with monkeypatch.context() as inside:
            inside.setattr(app.store, "statuses", unwanted)
            tx.run(send)

    def unwanted() -> None:
        raise AssertionError("asked on another connection")

    job, worker = app.run(call), hire()
    worker.work()
    assert job.state is State.SUCCEEDED
    other.functions.delete("send")
    app.core.functions._fresh_until = 1e-9
    with pytest.raises(FunctionDeleted), app.transaction() as tx:
        tx.run(send)


def test_the_status_of_an_alias_is_that_of_the_function(app: Duly, hire: Hire):
    @app.action(aliases=["old"])
    def new(ctx: Ctx) -> None: ...

    worker = hire()
    app.functions.pause("old")
    assert app.functions.status("new") == app.functions.status("old") == FunctionStatus.PAUSED
    jobs = [app.run(app.function("old")), app.run(app.function("new"))]
    worker.work()
    assert {job.state for job in jobs} == {State.PENDING}
    app.functions.resume("new")
    worker.work()
    assert {job.state for job in jobs} == {State.SUCCEEDED}


@pytest.mark.spec("N27")
def test_deleting_a_function_cancels_what_waits_under_its_old_names(app: Duly, hire: Hire):
    @app.action(aliases=["old"])
    def new(ctx: Ctx) -> None: ...

    @app.action(name="oldest")
    def other(ctx: Ctx) -> None: ...

    hire()
    under_old_name = app.run(new)
    beside = app.run(other)
    with app.transaction() as tx:
        table = "duly_jobs" if app.store.mutations_share else "duly.jobs"
        tx.execute(f"UPDATE {table} SET function = 'old' WHERE id = ?", (under_old_name.id,))
    assert app.functions.delete(new) == 1
    assert (under_old_name.state, beside.state) == (State.CANCELED, State.PENDING)


@pytest.mark.spec("N27")
def test_a_pause_that_lost_the_race_with_a_deletion_does_not_undo_it(
    app: Duly, other: Duly, send, monkeypatch: pytest.MonkeyPatch
):
    app.functions.info(send)
    read = other.store.function

    def read_then_lose(name: str):
        info = read(name)
        monkeypatch.undo()
        app.functions.delete(send)
        return info

    monkeypatch.setattr(other.store, "function", read_then_lose)
    with pytest.raises(WrongStatus, match="is deleted"):
        other.functions.pause("send")
    assert app.functions.status(send) == FunctionStatus.DELETED


@pytest.mark.spec("N27")
def test_a_job_that_has_just_started_is_not_canceled_by_the_deletion(
    app: Duly, send, hire: Hire, monkeypatch: pytest.MonkeyPatch
):
    """It was pending when the page was read, and running when it was locked."""
    worker = hire()
    job = app.run(send)
    worker.claim_only()
    waiting = JobFilter(function="send", state=State.PENDING)
    monkeypatch.setattr(cancel, "live_matching", lambda _: live_matching(JobFilter()))
    assert app.ready().cancel_matching(waiting, "operator", app.clock.now()) == 0
    assert job.state == State.RUNNING


@pytest.mark.spec("N27")
def test_the_janitor_looks_again_before_it_cancels(
    app: Duly, send, hire: Hire, monkeypatch: pytest.MonkeyPatch
):
    hire()
    app.functions.delete(send)
    monkeypatch.setattr(app.core.functions, "is_fresh", lambda: True)
    app.core.functions._statuses = {}
    job = app.run(send)
    stuck = app.ready().read(lambda s: stuck_at_heads(s, app.clock.now()))
    assert [found for found, _ in stuck] == [job.id]
    app.functions.restore(send)
    assert app.ready().write(lambda s: hold_stuck(s, stuck, app.clock.now())) == 0
    assert job.state == State.PENDING


def test_an_old_name_can_be_given_a_status_before_anything_was_published(app: Duly):
    @app.action(aliases=["old"])
    def new(ctx: Ctx) -> None: ...

    app.functions.pause("old")
    assert app.functions.status(new) == FunctionStatus.PAUSED


def test_a_name_that_went_and_came_back_is_found(app: Duly, other: Duly, hire: Hire, url: str):
    @app.action(name="send")
    def first(ctx: Ctx) -> None: ...

    @other.action(name="deliver", aliases=["send"])
    def second(ctx: Ctx) -> None: ...

    third = Duly(url, clock=app.clock)

    @third.action(name="send", aliases=["deliver"])
    def again(ctx: Ctx) -> None: ...

    for service in (app, other, third):
        hire(service).stop()
    assert third.functions.info("deliver").name == "send"
    assert other.functions.info("send").name == "deliver"
    third.close()


def test_publishing_by_force_again_and_again_leaves_nothing_behind(app: Duly, send, db: Database):
    for _ in range(3):
        app.functions.publish()
    assert len(db.scalar("SELECT seen FROM @functions")) == 16


@pytest.mark.parametrize(
    ("first", "second"),
    [("delete", "pause"), ("delete", "resume"), ("delete", "deprecate"), ("deprecate", "pause")],
)
def test_a_change_that_would_undo_another_is_refused(app: Duly, send, first, second):
    getattr(app.functions, first)(send)
    with pytest.raises(WrongStatus, match="restore it"):
        getattr(app.functions, second)(send)
    app.functions.restore(send)
    assert app.functions.status(send) == FunctionStatus.ACTIVE


def test_the_status_of_an_unknown_function_cannot_be_set(app: Duly):
    for verb in ("pause", "resume", "deprecate", "delete", "restore", "info", "status"):
        with pytest.raises(UnknownFunction, match="nobody"):
            getattr(app.functions, verb)("nobody")


def test_a_mutation_cannot_change_a_status(app: Duly, hire: Hire):
    @app.mutation
    def meddle(tx: Tx) -> None:
        app.functions.pause("meddle")

    job = app.run(meddle)
    hire().work()
    assert job.error is not None
    assert UseTx.__name__ in job.error.message


def test_publishing_tells_everybody_what_there_is(app: Duly, other: Duly, hire: Hire):
    @app.mutation(internal=True, queue="q", aliases=["pay_old"])
    def pay(tx: Tx, amount: int) -> None: ...

    hire()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        published = other.functions.published()
    assert [(f.name, f.kind, f.internal, f.alias_of) for f in published] == [
        ("pay", "mutation", True, None),
        ("pay_old", "mutation", True, "pay"),
    ]
    assert '"amount":{"type":"integer"}' in published[0].schema
