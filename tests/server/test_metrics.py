"""/metrics: what Prometheus reads, added up over all processes."""

import re
import threading
from collections.abc import Iterator
from datetime import timedelta
from typing import NamedTuple

import pytest
from starlette.testclient import TestClient

from duly import Ctx, Duly, Retry, Tx
from duly.errors import StoreUnavailable
from duly.model.measure import RESCUED, Count
from duly.observe.metrics import metrics_text
from duly.runtime.counts import MAX_NAMES, Counts, CountsLoop
from duly.runtime.ticker import Ticker
from duly.server import make_asgi
from tests.jobs.support import rescue_the_dead, wait_until

HOUR = timedelta(hours=1)

# A strict parser ---------------------------------------------------------------------------------

NAME = r"[a-zA-Z_:][a-zA-Z0-9_:]*"
LABEL = r'([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\\n]|\\\\|\\"|\\n)*)"'
SAMPLE = re.compile(rf"({NAME})(?:\{{({LABEL}(?:,{LABEL})*)\}})? (-?[0-9.e+-]+)")
UNESCAPED = {"\\\\": "\\", '\\"': '"', "\\n": "\n"}


class Sample(NamedTuple):
    name: str
    labels: frozenset[tuple[str, str]]
    value: float


def parse(text: str) -> Iterator[Sample]:
    """Every sample; fails on whatever is not of the format."""
    assert text.endswith("\n")
    family, kind, seen = "", "", set()
    for line in text[:-1].split("\n"):
        if line.startswith("# HELP "):
            family = line.split(" ", 3)[2]
            assert family not in seen, f"{family} twice"
            seen.add(family)
            continue
        if line.startswith("# TYPE "):
            _, _, name, kind = line.split(" ")
            assert name == family
            assert kind in ("gauge", "counter", "histogram")
            continue
        match = SAMPLE.fullmatch(line)
        assert match, f"no sample: {line!r}"
        endings = ("_bucket", "_sum", "_count") if kind == "histogram" else ("",)
        assert match[1] in {family + ending for ending in endings}, line
        assert kind != "counter" or family.endswith("_total"), family
        pairs = re.findall(LABEL, match[2] or "")
        labels = [
            (label, re.sub(r'\\[\\"n]', lambda found: UNESCAPED[found[0]], value))
            for label, value in pairs
        ]
        assert len(dict(labels)) == len(labels), line
        yield Sample(match[1], frozenset(labels), float(match[match.lastindex or 0]))


def read(app: Duly) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    samples = list(parse(metrics_text(app.core)))
    found = {(sample.name, sample.labels): sample.value for sample in samples}
    assert len(found) == len(samples), "a sample twice"
    return found


def value(app: Duly, name: str, **labels: str) -> float | None:
    return read(app).get((name, frozenset(labels.items())))


# Gauges ------------------------------------------------------------------------------------------


@pytest.mark.spec("R95")
def test_the_lag_grows_while_a_worker_is_behind(shop, clock, hire):
    client = TestClient(make_asgi(shop, auth="open"))
    for _ in range(3):
        shop.run(shop.functions["greet"], "ada")
    lags = []
    for _ in range(3):
        clock.advance(10)
        text = client.get("/metrics").text
        (lag,) = [s.value for s in parse(text) if s.name == "duly_queue_lag_seconds"]
        lags.append(lag)
    assert lags == [10, 20, 30]
    assert value(shop, "duly_worker_lag_seconds") == 30
    assert value(shop, "duly_queue_depth", queue="default", state="due") == 3
    hire().work()
    assert value(shop, "duly_worker_lag_seconds") == 0
    assert value(shop, "duly_queue_depth", queue="default", state="due") in (None, 0)


def test_schedules_and_workers_are_counted(shop, clock, hire):
    schedules = shop.schedules
    for key in ("a", "b"):
        schedules.create(key, shop.functions["greet"].bind("ada"), every=HOUR)
    schedules.disable("b")
    hire()
    clock.advance(3600 + 7)
    assert value(shop, "duly_schedules", status="active") == 1
    assert value(shop, "duly_schedules", status="inactive") == 1
    assert value(shop, "duly_workers") == 1
    assert value(shop, "duly_evaluator_lag_seconds") == 7
    assert value(shop, "duly_up") == 1


def test_what_runs_and_what_is_held_is_counted(shop, clock, hire):
    started, go_on = threading.Event(), threading.Event()

    @shop.action
    def wait(ctx: Ctx) -> None:
        started.set()
        go_on.wait(20)

    worker = hire()
    shop.run(wait)
    worker.start_due()
    assert started.wait(20)
    assert value(shop, "duly_queue_depth", queue="default", state="running") == 1
    go_on.set()
    worker.work()
    assert value(shop, "duly_queue_depth", queue="default", state="running") in (None, 0)


# Counters ----------------------------------------------------------------------------------------


def test_durations_are_a_histogram(shop, clock, hire):
    greet = shop.functions["greet"]
    worker = hire()

    @shop.action
    def slowly(ctx: Ctx, seconds: int) -> None:
        clock.advance(seconds)

    shop.run(slowly, 2)
    worker.work()
    shop.run(slowly, 40)
    worker.work()
    shop.run(greet, "ada")
    worker.work()
    name = "duly_job_duration_seconds"
    ended = {"function": "slowly", "outcome": "succeeded"}
    buckets = {
        le: value(shop, f"{name}_bucket", **ended, le=le)
        for le in ("0.005", "1", "2.5", "30", "60", "1800", "+Inf")
    }
    assert buckets == {"0.005": 0, "1": 0, "2.5": 1, "30": 1, "60": 2, "1800": 2, "+Inf": 2}
    assert value(shop, f"{name}_sum", **ended) == 42
    assert value(shop, f"{name}_count", **ended) == 2
    greeted = {"function": "greet", "outcome": "succeeded"}
    assert value(shop, f"{name}_count", **greeted) == 1

    shop.run_many(greet.bind("ada") for _ in range(3))
    worker.start_due()
    worker.wait_for_bodies()
    clock.advance(3)
    worker.settle()
    assert value(shop, f"{name}_count", **greeted) == 4
    assert value(shop, f"{name}_sum", **greeted) == 9


def test_ends_are_counted_by_function_and_state(shop, clock, hire):
    @shop.action(retry=Retry(attempts=2))
    def fails(ctx: Ctx) -> None:
        raise ValueError("no")

    @shop.mutation
    def breaks(tx: Tx) -> None:
        raise ValueError("no")

    shop.run(fails)
    shop.run(breaks)
    shop.run(shop.functions["note"], "a")
    shop.run(shop.functions["note"], "b")
    worker = hire()
    worker.work()
    clock.advance(3600)
    worker.work()
    total, spent = "duly_jobs_finished_total", "duly_job_duration_seconds_count"
    assert value(shop, total, function="note", state="succeeded") == 2
    assert value(shop, total, function="fails", state="failed") == 1
    assert value(shop, spent, function="fails", outcome="retried") == 1
    assert value(shop, total, function="breaks", state="failed") == 1
    assert value(shop, total, function="fails", state="retried") is None


def test_a_claim_that_is_given_back_is_no_end(shop, hire, db):
    job = shop.run(shop.functions["greet"], "ada")
    db.execute("UPDATE @jobs SET args = '{}' WHERE id = ?", job.id)
    hire().work()
    assert shop.job(job.id).state == "pending"
    assert not [key for key in read(shop) if key[0].startswith("duly_job_duration_seconds_")]


def test_jobs_of_dead_workers_are_counted(shop, hire):
    dead, alive = hire(), hire()
    shop.run(shop.functions["note"], "a")
    dead.claim_only()
    dead.die()
    rescue_the_dead(alive)
    assert value(shop, RESCUED) == 1


def test_ticks_are_counted_by_decision(shop, clock):
    shop.schedules.create("runs", shop.functions["greet"].bind("ada"), every=HOUR)
    ticker = Ticker(shop.core)
    clock.advance(3600)
    ticker.one_pass()
    assert value(shop, "duly_ticks_total", outcome="dispatched", reason="") == 1
    shop.pause()
    clock.advance(3600)
    ticker.one_pass()
    assert value(shop, "duly_ticks_total", outcome="skipped", reason="kill_switch") == 1
    assert value(shop, "duly_ticks_total", outcome="dispatched", reason="") == 1


def test_counts_survive_restarts_and_two_workers_add_up(shop, clock, hire, url):
    note = shop.functions["note"]
    other = Duly(url, clock=clock)

    @other.mutation(name="note")
    def note_there(tx: Tx, text: str) -> None:
        tx.execute("INSERT INTO notes (text) VALUES (?)", (text,))

    for text in "ab":
        shop.run(note, text)
    hire().work()
    assert value(shop, "duly_jobs_finished_total", function="note", state="succeeded") == 2
    for text in "cde":
        shop.run(note, text)
    hire(other).work()
    other.close()
    assert value(shop, "duly_jobs_finished_total", function="note", state="succeeded") == 5


def test_a_service_tells_what_it_counted_before_it_has_stopped(url, db):
    app = Duly(url)

    @app.action
    def quick(ctx: Ctx) -> None: ...

    with app:
        job = app.run(quick)
        wait_until(lambda: app.job(job.id).state == "succeeded", "the job")
    counted = {count.name: count.value for count in app.store.counts()}
    assert counted["duly_job_duration_seconds"] == 1
    app.close()


def test_counts_of_many_threads_are_all_there(shop):
    def add(counts: Counts) -> None:
        for _ in range(1_000):
            counts.ran("f", "succeeded", 0.001)

    threads = [threading.Thread(target=add, args=(shop.core.counts,)) for _ in range(8)]
    for thread in threads:
        thread.start()
    telling = CountsLoop(shop.core.counts, shop.store, shop.clock)
    while any(thread.is_alive() for thread in threads):
        telling.one_pass()
    telling.one_pass()
    assert sum(c.value for c in shop.store.counts() if c.name.endswith("seconds")) == 8_000


def test_what_cannot_be_stored_now_is_stored_later(shop, monkeypatch):
    counts = shop.core.counts
    counts.ran("f", "succeeded", 0.001)
    with monkeypatch.context() as away:

        def refuse(rows: list[Count]) -> None:
            raise StoreUnavailable("away")

        away.setattr(shop.store, "add_counts", refuse)
        assert CountsLoop(counts, shop.store, shop.clock).one_pass() > 0
        counts.ran("f", "succeeded", 0.001)
    assert value(shop, "duly_jobs_finished_total", function="f", state="succeeded") == 2


def test_labels_are_bounded_and_escaped(shop):
    odd = 'a"b\\c\nd'
    counts = shop.core.counts
    counts.ran(odd, "succeeded", 0.1)
    for number in range(MAX_NAMES + 50):
        counts.ran(f"f{number}", "failed", 0.1)
    assert value(shop, "duly_jobs_finished_total", function=odd, state="succeeded") == 1
    assert value(shop, "duly_jobs_finished_total", function="other", state="failed") == 51
    functions = {dict(labels).get("function") for _, labels in read(shop)} - {None}
    assert len(functions) == MAX_NAMES + 1


def test_what_another_version_counts_is_left_alone(shop):
    shop.store.add_counts([Count("duly_of_tomorrow", "{}", 1), Count(RESCUED, "{}", 3)])
    assert value(shop, RESCUED) == 3
    assert value(shop, "duly_of_tomorrow") is None


# Who may read them -------------------------------------------------------------------------------


def test_metrics_need_the_scope_read(guarded, bearer):
    assert guarded.get("/metrics").status_code == 401
    assert guarded.get("/metrics", headers=bearer("enqueue")).status_code == 403
    assert guarded.get("/metrics", headers=bearer("read", owner="anna")).status_code == 403
    answer = guarded.get("/metrics", headers=bearer("read"))
    assert answer.status_code == 200
    assert answer.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    assert list(parse(answer.text))


def test_metrics_can_be_open_on_a_bind_of_their_own(shop):
    client = TestClient(make_asgi(shop, only={"health"}, metrics_open=True))
    assert client.get("/metrics").status_code == 200


def test_without_a_database_metrics_say_just_that(tmp_path):
    app = Duly(f"sqlite:///{tmp_path / 'new.db'}", auto_migrate=False)
    assert list(parse(metrics_text(app.core))) == [Sample("duly_up", frozenset(), 0)]
    app.close()
