"""The database goes away under load and comes back: nobody is declared dead, nothing is lost."""

from __future__ import annotations

import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from duly import Duly, Job, State
from tests.cli.processes import Process, environment, wait_until
from tests.jobs.support import Database
from tests.torture.kill.proxy import Proxy
from tests.torture.kill.steady import make
from tests.torture.kill.trace import Trace

WORKERS = 2
BEATS = 30


class Site:
    """Workers, some of which reach the database through a proxy; the test enqueues directly."""

    def __init__(self, url: str, folder: Path, beat_every: float) -> None:
        self.proxy = Proxy(url)
        self.trace = Trace(folder)
        self.app: Duly = make(url, folder)
        self.app.migrate()
        with self.app.transaction() as tx:
            tx.execute("CREATE TABLE effects (job_id text)")
        self.db = Database(url)
        self._url = url
        self._beat_every = beat_every
        self._workers: list[Process] = []

    def start_worker(self, *, through_proxy: bool = True) -> None:
        url = self.proxy.url if through_proxy else self._url
        env = environment(url, KILL_FOLDER=str(self.trace.folder))
        command = [sys.executable, "-m", "tests.torture.kill.steady", str(self._beat_every)]
        self._workers.append(Process(command, env))
        wait_until(lambda: len(self.worker_ids()) == len(self._workers), "the worker works")

    def worker_ids(self) -> set[str]:
        return {str(i) for (i,) in self.db.execute("SELECT id FROM @workers")}

    def run(self, name: str, *args: Any) -> Job[Any]:
        return self.app.run(self.app.function(name), *args)

    def wait_beats(self, count: int) -> None:
        """Let so many beats pass, as the test's own clock counts them."""
        until = time.monotonic() + count * self._beat_every
        wait_until(lambda: time.monotonic() >= until, "time passes", count * self._beat_every + 5)

    def errors(self) -> str:
        return "\n".join(worker.errors() for worker in self._workers)

    def close(self) -> None:
        self.proxy.close()
        for worker in self._workers:
            worker.close()
        self.db.close()
        self.app.close()


class Load:
    """Enqueues in a thread until stopped."""

    def __init__(self, site: Site) -> None:
        self._site = site
        self._over = threading.Event()
        self.jobs: list[Job[Any]] = []
        self._thread = threading.Thread(target=self._enqueue, daemon=True)
        self._thread.start()

    def _enqueue(self) -> None:
        while not self._over.wait(0.01):
            self.jobs += [self._site.run("note"), self._site.run("touch")]

    def stop(self) -> list[Job[Any]]:
        self._over.set()
        self._thread.join()
        return self.jobs


@pytest.fixture
def site(postgres_url: str, tmp_path: Path, long_run: bool) -> Iterator[Site]:
    site = Site(postgres_url, tmp_path, beat_every=1.0 if long_run else 0.2)
    yield site
    site.close()


CUT = (Proxy.cut, Proxy.restore)
FREEZE = (Proxy.freeze, Proxy.thaw)
Switch = Callable[[Proxy], None]


@pytest.mark.spec("N33", "R82")
@pytest.mark.parametrize(("goes", "comes"), [CUT, FREEZE], ids=["cut", "frozen"])
def test_an_outage_kills_nobody_and_loses_nothing(site, goes, comes, long_run, report):
    for _ in range(WORKERS):
        site.start_worker()
    workers = site.worker_ids()
    load = Load(site)
    length = 30.0 if long_run else BEATS * 0.2
    lasting = [site.run("outlast", length * share) for share in (0.3, 0.9, 1.2) for _ in range(2)]
    started = {job.id for job in lasting}
    wait_until(lambda: started <= set(map(str, _starts(site))), "the long ones have begun")

    goes(site.proxy)
    site.wait_beats(BEATS)
    before = _done(site)
    comes(site.proxy)
    wait_until(lambda: _done(site) > before + 10, "work resumes", patience=30)
    jobs = load.stop() + lasting
    wait_until(lambda: site.db.count("@jobs") == 0, "every job has ended", patience=60)

    states = Counter((job.state, job.error.kind if job.error else None) for job in jobs)
    report(f"{length:g} s outage: {len(jobs)} jobs, {dict(states)}")
    assert states == {(State.SUCCEEDED, None): len(jobs)}, site.errors()
    assert site.worker_ids() == workers
    assert "declared dead" not in site.errors()
    notes = [job.id for job in jobs if job.function == "note"]
    effects = Counter(str(i) for (i,) in site.db.execute("SELECT job_id FROM effects"))
    assert effects == Counter(notes)
    assert Counter(_starts(site)) == Counter(job.id for job in jobs if job.function != "note")


def test_a_worker_that_alone_is_cut_off_is_replaced_and_comes_back_as_another(site):
    site.start_worker()
    (lonely,) = site.worker_ids()
    cut = site.run("outlast", 4.0)
    wait_until(lambda: cut.state == State.RUNNING, "it runs at the one who will be cut off")

    site.proxy.freeze()
    site.start_worker(through_proxy=False)
    wait_until(lambda: lonely not in site.worker_ids(), "the lonely one is declared dead")
    meanwhile = [site.run("note"), site.run("touch")]
    wait_until(lambda: all(job.state.is_terminal for job in meanwhile), "the other one works")
    assert (cut.state, cut.error.kind) == (State.FAILED, "worker_lost")
    site.proxy.thaw()
    wait_until(lambda: len(site.worker_ids()) == 2, "the lonely one is back under another id")
    wait_until(lambda: site.trace.lines("ends") == [[cut.id]], "the lost body has ended")
    wait_until(lambda: "dropped" in site.errors(), "its end was dropped")

    # Its late end changes nothing.
    assert (cut.state, cut.error.kind) == (State.FAILED, "worker_lost")
    assert {job.state for job in meanwhile} == {State.SUCCEEDED}
    assert Counter(_starts(site)) == Counter([cut.id, meanwhile[1].id])
    assert lonely not in site.worker_ids()


def _starts(site: Site) -> list[str]:
    return [job_id for (job_id,) in site.trace.lines("starts")]


def _done(site: Site) -> int:
    return site.db.count("@history")
