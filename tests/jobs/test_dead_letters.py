"""Jobs that have used up their attempts: listed, and run again on request."""

import asyncio

import pytest

from duly import Ctx, Duly, Function, JobNotFound, Limit, ManualClock, Retry, State
from duly.errors import FunctionDeleted, InvalidOption
from tests.jobs.support import Database, Hire

TWICE = Retry(attempts=2, delay=1, jitter=0)
broken = True


@pytest.fixture
def send(app: Duly) -> Function[[str], str]:
    global broken
    broken = True

    @app.action(retry=TWICE, queue="mail", priority=7, tags=["x"], owner="ada")
    def send(ctx: Ctx, to: str) -> str:
        if broken:
            raise ConnectionError(f"cannot reach {to}")
        return f"sent to {to}"

    return send


def exhaust(app: Duly, hire: Hire, clock: ManualClock) -> None:
    worker = hire()
    for _ in range(3):
        worker.work()
        clock.advance(60)
    worker.stop()


@pytest.mark.spec("R180", "N10")
def test_what_has_used_up_its_attempts_is_listed_with_its_last_error(
    app: Duly, send, hire: Hire, clock: ManualClock
):
    @app.action
    def once(ctx: Ctx) -> None:
        raise ValueError("not a dead letter: it asked for no retries")

    app.run(once)
    jobs = [app.run(send, name) for name in ("ada", "bob")]
    exhaust(app, hire, clock)
    assert [job.id for job in app.dead()] == [jobs[1].id, jobs[0].id]
    assert [job.id for job in app.dead(limit=1)] == [jobs[1].id]
    assert [job.id for job in app.dead(before=jobs[1].id)] == [jobs[0].id]
    assert app.dead(once) == app.dead(queue="other") == []
    error = app.dead(send)[0].error
    assert error is not None
    assert "cannot reach bob (after 2 attempts)" in error.message


@pytest.mark.spec("R180", "N10")
def test_a_dead_letter_is_run_again_as_a_new_job_that_links_to_it(
    app: Duly, send, hire: Hire, clock: ManualClock
):
    global broken
    dead = app.run(send, "ada")
    exhaust(app, hire, clock)
    broken = False
    new = app.retry(dead)
    assert (new.retry_of, new.attempt, new.state) == (dead.id, 0, State.PENDING)
    record = new.record
    assert (record.queue, record.priority, record.owner, record.tags) == (
        "mail",
        7,
        "ada",
        '["x"]',
    )
    assert app.retry(dead) == new, "asked twice, it is run again once"
    hire().work()
    assert new.result(0) == "sent to ada"
    assert dead.state == State.FAILED
    assert app.retry(dead.id) == new


@pytest.mark.spec("N10")
def test_all_that_match_are_run_again_after_a_look(
    app: Duly, send, hire: Hire, clock: ManualClock, db: Database
):
    global broken
    jobs = [app.run(send, str(n)) for n in range(5)]
    exhaust(app, hire, clock)
    broken = False
    app.retry(jobs[0])
    before = db.count("@jobs")
    look = app.retry_dead(send, dry_run=True)
    assert set(look.jobs) == {job.id for job in jobs[1:]}
    assert look.repeated == (jobs[0].id,)
    assert db.count("@jobs") == before, "a look changes nothing"
    assert set(app.retry_dead(send).jobs) == set(look.jobs)
    assert app.retry_dead(send).jobs == ()
    hire().work()
    assert len(app.jobs(state="succeeded")) == 5


@pytest.mark.spec("N10")
def test_pages_of_dead_letters_are_run_again(
    app: Duly, send, hire: Hire, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("duly.calls.replay.PAGE", 3)
    app.run_many(send.bind(str(n)) for n in range(8))
    exhaust(app, hire, clock)
    assert len(app.retry_dead().jobs) == 8


def test_what_cannot_be_run_again_is_refused(app: Duly, send, hire: Hire, clock: ManualClock):
    waiting = app.run_after(3600, send, "later")
    with pytest.raises(InvalidOption, match="is pending"):
        app.retry(waiting)
    with pytest.raises(JobNotFound):
        app.retry("00000000-0000-7000-8000-000000000000")
    dead = app.run(send, "ada")
    exhaust(app, hire, clock)
    app.functions.delete(send)
    with pytest.raises(FunctionDeleted):
        app.retry(dead)
    assert list(app.retry_dead(dry_run=True).refused) == [dead.id]


@pytest.mark.spec("N10", "N14")
def test_one_that_has_no_key_for_a_new_limit_does_not_keep_the_others(
    app: Duly, url: str, send, hire: Hire, clock: ManualClock
):
    global broken
    jobs = {name: app.run(send, name) for name in ("ada", "", "x", "bob")}
    exhaust(app, hire, clock)
    broken = False
    changed = Duly(url, clock=clock)

    def first_of_two(to: str) -> str:
        return to[:0] if to == "x" else to[0] + to[1]

    @changed.action(name="send", queue="mail", limit=Limit(key=first_of_two, at_once=1))
    def send_slowly(ctx: Ctx, to: str) -> str:
        return f"sent to {to}"

    look = changed.retry_dead(dry_run=True)
    assert set(look.jobs) == {jobs["ada"].id, jobs["bob"].id}
    assert look.refused == {
        jobs[""].id: "its limit key could not be computed: IndexError",
        jobs["x"].id: "limit: a key must be 1 to 200 printable characters: ''",
    }
    bulk = changed.bulk.retry(dead=True)
    hire(changed).work()
    assert bulk.result(0) == {"matched": 4, "changed": 2, "skipped": 2}
    assert set(changed.retry_dead().repeated) == set(look.jobs)
    changed.close()


@pytest.mark.spec("N10")
def test_dead_letters_are_found_under_the_old_names_of_their_function(
    app: Duly, url: str, send, hire: Hire, clock: ManualClock
):
    old = [app.run(send, name) for name in ("ada", "bob")]
    exhaust(app, hire, clock)
    renamed = Duly(url, clock=clock)

    @renamed.action(name="post", aliases=["send"], retry=TWICE)
    def post(ctx: Ctx, to: str) -> None:
        raise ConnectionError

    new = renamed.run(post, "eve")
    ids = [new.id, old[1].id, old[0].id]
    assert [job.id for job in renamed.jobs(function=post)] == ids
    assert [job.id for job in renamed.jobs(function=post, limit=2)] == ids[:2]
    assert [job.id for job in renamed.jobs(function=post, before=ids[1])] == ids[2:]
    with renamed.transaction() as tx:
        assert [job.id for job in tx.jobs(function="send")] == ids
    assert [job.id for job in asyncio.run(renamed.aio.jobs(function=post))] == ids
    assert [job.id for job in renamed.dead(post)] == ids[1:]
    assert set(renamed.retry_dead(post, dry_run=True).jobs) == set(ids[1:])
    renamed.close()


def test_a_canceled_job_can_be_run_again(app: Duly, send, hire: Hire):
    global broken
    broken = False
    job = app.run(send, "ada")
    job.cancel()
    again = app.retry(job)
    hire().work()
    assert again.result(0) == "sent to ada"
