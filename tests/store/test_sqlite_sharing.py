"""One SQLite file, many users: threads, processes, forks, and the user's own connections."""

import _weakrefset
import contextlib
import fcntl
import itertools
import os
import signal
import sqlite3
import sys
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from duly.errors import StoreError, StoreUnavailable
from duly.model.job import JobFilter
from duly.store import turnstile
from duly.store.commit import GroupCommit, Ticket
from duly.store.sqlite import SqliteStore
from duly.store.sqlite.commits import together
from duly.store.turnstile import Turnstile
from duly.testing.conformance.ground import NOW, at_the_same_time, new_job
from tests.jobs.support import wait_until
from tests.store.processes import hear, running, say, start

PATIENCE = 60.0

# A worker with an endless backlog: it settles and claims without a pause.
HOT = """
import threading
from duly.ids import new_id, new_ids
from duly.model.job import NewJob, finished
from duly.store.base import ClaimRequest, WorkerInfo

store = open_store(sys.argv[1])
store.open(NOW)
worker = new_id(NOW)
store.register(WorkerInfo(worker, "a", "h", 1, None, ("send",), 1, False, 0, NOW), NOW)
blank = (None, None, None, "{}", None, None, None)


def fill():
    store.enqueue([
        NewJob(job_id, "send", "action", "default", 5, NOW, NOW, NOW, *blank)
        for job_id in new_ids(NOW, 1000)
    ])


fill()
over = threading.Event()
ready()
threading.Thread(target=lambda: (sys.stdin.readline(), over.set()), daemon=True).start()
done, count = [], 0
while not over.is_set():
    request = ClaimRequest(worker, ("default",), ("send",), 200)
    settled, claims = store.exchange(done, request, NOW)
    count += len(settled)
    done = [finished(claim, "succeeded") for claim in claims]
    if len(claims) < 200:
        fill()
print(count, flush=True)
"""


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SqliteStore]:
    store = SqliteStore(tmp_path / "duly.db")
    store.migrate(NOW)
    store.open(NOW)
    yield store
    store.close()


def test_who_watches_the_file_goes_on_after_an_error(
    store: SqliteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    bell, stop, failed = threading.Event(), threading.Event(), threading.Event()
    connect = store.connect

    def fail_once() -> Any:
        monkeypatch.setattr(store, "connect", connect)
        failed.set()
        raise sqlite3.OperationalError("disk I/O error")

    monkeypatch.setattr(store, "connect", fail_once)
    watcher = threading.Thread(target=store.watch, args=(bell, stop))
    watcher.start()
    try:
        assert failed.wait(PATIENCE)
        assert bell.wait(PATIENCE), "nobody watches any more"
    finally:
        stop.set()
        watcher.join(PATIENCE)


def url(store: SqliteStore) -> str:
    return f"sqlite:///{store.path}"


# Alongside a busy writer


def until(seconds: float, turns: int = 0) -> Iterator[float]:
    """When each turn of a loop started, until the time is up and enough turns were taken."""
    began = time.monotonic()
    while time.monotonic() < began + seconds or (turns > 0 and time.monotonic() < began + PATIENCE):
        yield time.monotonic()
        turns -= 1


@pytest.mark.spec("N31")
def test_lone_writers_are_served_beside_a_full_backlog_in_another_process(store, long_run):
    with store.transaction() as tx:
        tx.execute("CREATE TABLE mine (n)")
    # A caller that is not served keeps waiting until it gives up.
    seconds = 60 if long_run else 2
    lone: list[float] = []
    plain: list[float] = []

    def enqueue_now_and_then() -> None:
        for began in until(seconds):
            store.enqueue([new_job(function="other")])
            lone.append(time.monotonic() - began)
            time.sleep(0.02)

    def write_with_a_plain_connection() -> None:
        own = sqlite3.connect(store.path)
        for began in until(seconds, turns=4):
            own.execute("INSERT INTO mine VALUES (1)")
            own.commit()
            plain.append(time.monotonic() - began)
            time.sleep(0.02)
        own.close()

    hot = start(HOT, url(store))
    with running([hot]):
        # An error in either, such as "database is locked", ends the test.
        writers = [enqueue_now_and_then, write_with_a_plain_connection]
        at_the_same_time(writers, seconds + PATIENCE)
        say(hot, "stop")
        finished = int(hear(hot))
    assert finished > 200 * seconds
    assert len(store.find(JobFilter(function="other", limit=10_000))) == len(lone)
    # The user's connection gives up after 5 s; duly's own after 10.
    assert max(lone) < 5
    assert max(plain) < 5
    assert len(plain) > 3


@pytest.mark.spec("N31")
def test_a_writer_that_is_killed_in_its_turn_holds_nobody_up(store):
    holder = start(
        "store = open_store(sys.argv[1])\nwith store.turnstile:\n    ready()", url(store)
    )
    assert hear(holder) == "ready"
    waiting = threading.Thread(target=store.enqueue, args=([new_job()],))
    waiting.start()
    waiting.join(0.2)
    assert waiting.is_alive()
    holder.send_signal(signal.SIGKILL)
    holder.communicate()
    waiting.join(PATIENCE)
    assert not waiting.is_alive()


# The turnstile, with its own clock


class Time:
    """A clock that only `sleep` advances."""

    def __init__(self) -> None:
        self.ns = 10**12
        self.slept: list[float] = []

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.ns += round(seconds * 1e9)


@pytest.fixture
def still_time(monkeypatch: pytest.MonkeyPatch) -> Time:
    clock = Time()
    monkeypatch.setattr(turnstile, "os_monotonic_ns", lambda: clock.ns)
    monkeypatch.setattr(turnstile, "os_sleep", clock.sleep)
    return clock


def written(log: Path, at: int) -> Path:
    log.write_text("written")
    os.utime(log, ns=(at, at))
    return log


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """What SQLite writes ahead."""
    return written(tmp_path / "log", 1)


@pytest.fixture
def three(tmp_path: Path, log: Path) -> Iterator[list[Turnstile]]:
    """The turnstiles of three processes."""
    turnstiles = [Turnstile(tmp_path, log) for _ in range(3)]
    yield turnstiles
    for each in turnstiles:
        each.close()


@pytest.fixture
def two(three: list[Turnstile]) -> list[Turnstile]:
    return three[:2]


def write_for(clock: Time, turn: Turnstile, ms: int) -> None:
    with turn:
        clock.ns += ms * 1_000_000


@pytest.mark.spec("N31")
def test_a_writer_without_a_break_pauses_every_ten_milliseconds(still_time, two):
    for _ in range(50):
        write_for(still_time, two[0], 4)
    assert still_time.slept == [0.001] * 16


@pytest.mark.spec("N31")
def test_writers_that_fill_the_time_leave_a_gap_that_no_poll_can_miss(still_time, two):
    """SQLite's busy handler looks every 100 ms at the latest, and gives up after 5 s."""
    gaps: list[int] = []
    for turn in itertools.islice(itertools.cycle(two), 2000):
        before = still_time.ns
        with turn:
            if still_time.ns - before > 100_000_000:
                gaps.append(before)
            still_time.ns += 4_000_000
    assert len(gaps) >= 3
    assert all(b - a < 3_000_000_000 for a, b in itertools.pairwise(gaps))


@pytest.mark.spec("N31")
def test_a_lone_writer_passes_while_the_others_leave_a_gap(still_time, two):
    hot, lone = two
    write_for(still_time, lone, 1)
    still_time.ns += 1_000_000_000
    began = still_time.ns
    while still_time.ns <= began + turnstile.GAP_EVERY_NS:
        write_for(still_time, hot, 4)
    still_time.slept.clear()
    write_for(still_time, lone, 1)
    assert sum(still_time.slept) <= 0.001
    write_for(still_time, hot, 4)
    assert sum(still_time.slept) > 0.1


@pytest.mark.spec("N31")
def test_writers_that_fill_the_time_leave_room_while_strangers_write(still_time, three, log):
    *hot, lone = three
    for turn in hot * 5:
        write_for(still_time, turn, 4)
    still_time.slept.clear()

    written(log, 2)
    write_for(still_time, lone, 1)
    assert still_time.slept == []
    for turn in hot:
        write_for(still_time, turn, 4)
    assert still_time.slept == [0.0015, 0.006]

    still_time.slept.clear()
    still_time.ns += turnstile.OUTSIDE_WRITER_NS
    for turn in hot:
        write_for(still_time, turn, 4)
    assert still_time.slept == []


def test_who_has_waited_for_a_stranger_does_not_make_room_for_as_long(still_time, two, log):
    for number in range(10):
        with two[0]:
            still_time.ns += 100_000_000
            two[0].begun()
            still_time.ns += 1_000_000
        written(log, 2 + number)
    assert sum(still_time.slept) < 0.1


def test_an_older_duly_that_writes_is_no_stranger(still_time, two, log):
    for number in range(10):
        write_for(still_time, two[0], 4)
        with two[1]:
            stamps = two[1]._stamps()
            still_time.ns += 4_000_000
            written(log, 2 + number)
        # It knows nothing of the log.
        left = two[1]._stamps()
        two[1]._stamp(stamps._replace(released_at=left.released_at))
    assert sum(still_time.slept) < 0.05


def test_only_who_writes_past_the_turnstile_is_a_stranger(store):
    other = SqliteStore(store.path)
    other.open(NOW)

    def seen() -> int:
        with store.transaction() as tx:
            tx.insert_jobs([new_job()])
        store.enqueue([new_job()])
        at: int = store.turnstile._stamps().stranger_at
        return at

    assert seen() == 0
    other.enqueue([new_job()])
    assert seen() == 0
    other.close()
    with contextlib.closing(sqlite3.connect(store.path)) as plain:
        plain.execute("CREATE TABLE theirs (n)")
        plain.commit()
    assert seen() > 0


def test_a_break_makes_the_count_start_anew(still_time, two):
    for _ in range(100):
        write_for(still_time, two[0], 100)
        still_time.ns += 200_000_000
    assert still_time.slept == []


def test_stamps_from_before_a_restart_of_the_machine_are_no_obstacle(still_time, two):
    for _ in range(400):
        write_for(still_time, two[0], 10)
    still_time.ns = 1_000_000
    still_time.slept.clear()
    for _ in range(50):
        write_for(still_time, two[0], 4)
    assert len(still_time.slept) > 10
    assert sum(still_time.slept) < 0.1


def test_waiting_for_a_turn_has_an_end(two, monkeypatch):
    monkeypatch.setattr(turnstile, "WAIT_SECONDS", 0.1)
    with two[0]:
        with pytest.raises(StoreUnavailable, match="locked by another writer"), two[1]:
            pass
        with pytest.raises(StoreUnavailable, match="locked by another writer"), two[0]:
            pass
    for each in two:
        with each:
            pass


def test_an_interrupted_wait_leaves_the_turnstile_usable(two, monkeypatch):
    def interrupt(seconds: float) -> None:
        raise KeyboardInterrupt

    with two[0], monkeypatch.context() as patch:
        patch.setattr(turnstile, "os_sleep", interrupt)
        with pytest.raises(KeyboardInterrupt), two[1]:
            pass
    for each in two:
        with each:
            pass


# Forks, in separate processes because pytest has threads.

FORK = """
import os, subprocess
from duly.ids import new_id
from duly.model.job import JobFilter, NewJob

blank = (None, None, None, "{}", None, None, None)


def enqueue():
    job_id = new_id(NOW)
    store.enqueue([NewJob(job_id, "send", "action", "default", 5, NOW, NOW, NOW, *blank)])
    return job_id


def in_child(work):
    pid = os.fork()
    if pid == 0:
        try:
            work()
            os._exit(0)
        except BaseException:
            import traceback
            traceback.print_exc()
            os._exit(1)
    return pid


def succeeds(pid):
    return os.waitpid(pid, 0)[1] == 0


store = open_store(sys.argv[1])
store.open(NOW)
with store.transaction() as tx:
    tx.execute("CREATE TABLE mine (n)")
before = enqueue()
"""

WRITE_ON_BOTH_SIDES = """
def child():
    assert store.get(before) is not None
    for _ in range(20):
        enqueue()
    with store.transaction() as tx:
        tx.execute("INSERT INTO mine VALUES (1)")
    lane = store.mutation_lane()
    lane.begin(False)
    lane.tx.execute("INSERT INTO mine VALUES (2)")
    lane.commit()


children = [in_child(child) for _ in range(3)]
for _ in range(20):
    enqueue()
assert all([succeeds(pid) for pid in children])
assert len(store.find(JobFilter(limit=1000))) == 1 + 4 * 20
print("good")
"""

# The last process that closes a database deletes its log. A child whose locks were only inherited
# would not count, and lose what it writes afterwards.
OUTLIVE_THE_PARENT = """
closed, close = os.pipe()


def visit(statement):
    program = (
        "import contextlib, sqlite3, sys\\n"
        "with contextlib.closing(sqlite3.connect(sys.argv[1])) as own:\\n"
        "    print(own.execute(sys.argv[2]).fetchone()[0])"
    )
    command = [sys.executable, "-c", program, str(store.path), statement]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def child():
    enqueue()
    os.read(closed, 1)
    assert visit("SELECT count(*) FROM duly_jobs") == "2"
    enqueue()
    assert visit("SELECT count(*) FROM duly_jobs") == "3"


pid = in_child(child)
store.close()
os.write(close, b"x")
assert succeeds(pid)
assert visit("PRAGMA integrity_check") == "ok"
assert len(store.find(JobFilter(limit=1000))) == 3
print("good")
"""

FORK_WHILE_IN_USE = """
import threading
from duly.errors import StoreError

opened, leave = threading.Event(), threading.Event()


def hold():
    with store.transaction():
        opened.set()
        leave.wait()


holder = threading.Thread(target=hold)
holder.start()
opened.wait()


def child():
    try:
        enqueue()
    except StoreError as error:
        assert "fork" in str(error), error
    else:
        raise AssertionError("wrote without locks")


assert succeeds(in_child(child))
leave.set()
holder.join()
enqueue()
assert succeeds(in_child(enqueue))
print("good")
"""

FORK_BESIDE_WRITERS = """
import threading

over = threading.Event()


def keep_writing():
    while not over.is_set():
        enqueue()
        store.find(JobFilter(limit=5))


threads = [threading.Thread(target=keep_writing) for _ in range(3)]
bell, stop = threading.Event(), threading.Event()
threads.append(threading.Thread(target=store.watch, args=(bell, over)))
for thread in threads:
    thread.start()
assert all([succeeds(in_child(enqueue)) for _ in range(10)])
over.set()
for thread in threads:
    thread.join()
print("good")
"""

FORGET_THE_WORKER = """
from duly.store.base import WorkerInfo

worker = new_id(NOW)
store.register(WorkerInfo(worker, "a", "h", 1, None, ("send",), 1, False, 0, NOW), NOW)
started, start = os.pipe()
if os.fork() == 0:
    # Standing for a child that a job has started: it outlives the worker.
    print(worker, os.getpid(), flush=True)
    os.write(start, b"x")
    sys.stdin.readline()
    os._exit(0)
os.read(started, 1)
os.kill(os.getpid(), 9)
"""


@pytest.mark.parametrize(
    "source",
    [WRITE_ON_BOTH_SIDES, OUTLIVE_THE_PARENT, FORK_WHILE_IN_USE, FORK_BESIDE_WRITERS],
    ids=["both sides write", "outlive the parent", "while in use", "beside writers"],
)
def test_a_forked_process_connects_by_itself(store, source):
    # An open connection here would keep the log from being deleted there.
    store.close()
    process = start(FORK + source, url(store))
    output, _ = process.communicate(timeout=PATIENCE)
    assert (output, process.returncode) == ("good\n", 0)
    assert store.find(JobFilter(limit=1))


def test_a_child_does_not_keep_a_dead_worker_alive(store):
    process = start(FORK + FORGET_THE_WORKER, url(store))
    worker, child = hear(process).split()
    process.wait(PATIENCE)
    try:
        # The child lets go of the lock as its first act, which may come after the parent's end.
        wait_until(lambda: store.is_dead(worker), "the worker is dead")
        os.kill(int(child), 0)
        store.enqueue([new_job()])
    finally:
        say(process, "end")
        process.communicate()


# Ctrl-C

# A caller that waits for the user's lock here soon gives up.
IMPATIENT = """
from duly.store import turnstile
from duly.store.sqlite import store as connecting

connecting.PATIENCE = turnstile.PATIENCE = 1.0
"""

INTERRUPTED = """
def mutate():
    lane.begin(False)
    lane.tx.execute("INSERT INTO mine VALUES (1)")
    lane.commit()


lane = store.mutation_lane()
ready()
for work in (enqueue, enqueue, mutate, mutate):
    for _ in range(2):
        ready()
        try:
            work()
            print("written", flush=True)
        except BaseException as error:
            print(type(error).__name__, flush=True)
"""


def has_its_turn(store: SqliteStore) -> bool:
    with (store.folder / "write").open() as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return False
        except BlockingIOError:
            return True


def test_ctrl_c_while_a_transaction_waits_to_begin_harms_no_later_write(store):
    writer = start(IMPATIENT + FORK + INTERRUPTED, url(store))
    own = sqlite3.connect(store.path, isolation_level=None)
    with running([writer]), contextlib.closing(own):
        for begins in (False, True, False, True):
            assert hear(writer) == "ready"
            own.execute("BEGIN IMMEDIATE")
            say(writer, "write")
            wait_until(lambda: has_its_turn(store), "the writer waits")
            writer.send_signal(signal.SIGINT)
            if begins:
                own.execute("ROLLBACK")
            assert hear(writer) == "KeyboardInterrupt"
            if not begins:
                own.execute("ROLLBACK")
            store.enqueue([new_job()])
            assert hear(writer) == "ready"
            say(writer, "write")
            assert hear(writer) == "written"


class CtrlC:
    """Interrupts the thread that enters it at the n-th place where Python might.

    Python looks for signals where a function begins, and after what is written in C was called.
    """

    def __init__(self, place: int) -> None:
        self._left = place
        self.came = False

    def __enter__(self) -> None:
        sys.setprofile(self._look)

    def __exit__(self, *exception: object) -> None:
        sys.setprofile(None)

    def _look(self, frame: FrameType, event: str, called: Any) -> None:
        if event == "c_return" and self._takes_a_lock(frame, called):
            return
        if event not in ("call", "c_return") or frame.f_code.co_filename == _weakrefset.__file__:
            # A thread that is gone leaves a set; Python drops whatever is raised there.
            return
        self._left -= 1
        if self._left < 0:
            sys.setprofile(None)
            self.came = True
            raise KeyboardInterrupt

    def _takes_a_lock(self, frame: FrameType, called: Any) -> bool:
        """If it is interrupted just after that, there is no way to tell whether the lock is held.

        Python does not interrupt there when `with` takes it; 3.14 does, which is a fault of its.
        """
        by_with = sys.version_info >= (3, 14) and called.__name__ == "__enter__"
        return by_with or frame.f_code is turnstile._lock.__code__


def every_place() -> Iterator[CtrlC]:
    """Once for each place, until the work is done before it is reached."""
    for place in itertools.count():
        ctrl_c = CtrlC(place)
        yield ctrl_c
        if not ctrl_c.came:
            assert place > 20
            return


def succeeds(call: Callable[[], object]) -> bool:
    """Asked of another thread: what hangs fails the test, not the run."""
    done: list[object] = []
    in_background(lambda: done.append(call())).join(PATIENCE)
    return bool(done)


@pytest.mark.parametrize("lane", [False, True], ids=["a shared commit", "a mutation"])
def test_ctrl_c_at_any_place_of_a_write_harms_no_later_one(tmp_path, monkeypatch, lane):
    monkeypatch.setattr(turnstile, "WAIT_SECONDS", 0.5)
    with contextlib.ExitStack() as open_stores:
        here, elsewhere = stores = [SqliteStore(tmp_path / "x", synchronous="OFF") for _ in "12"]
        for each in stores:
            open_stores.callback(each.close)
            each.migrate(NOW)

        def write() -> None:
            if lane:
                with here.transaction():
                    pass
            else:
                here.enqueue([])

        for ctrl_c in every_place():
            with contextlib.suppress(KeyboardInterrupt), ctrl_c:
                write()
            assert succeeds(partial(elsewhere.enqueue, []))
            assert succeeds(write)


class Queue:
    """One caller commits until it is let go. The next then leads two, and the last leads itself."""

    def __init__(self, ctrl_c: CtrlC) -> None:
        self._ctrl_c = ctrl_c
        self._free = threading.Event()
        self.group: GroupCommit[str] = GroupCommit(self._commit, most=3)
        self.committed: list[str] = []
        self.answered: list[str] = []
        self._threads = [in_background(self._write, "first")]
        wait_for(lambda: self.group._busy)
        for name in ("interrupted", "follows", "follows too", "leads next"):
            self._line_up(name)

    def _commit(self, tickets: list[Ticket[str]]) -> None:
        if tickets[0].work == "first":
            assert self._free.wait(PATIENCE)
        for ticket in tickets:
            ticket.value = ticket.work
        self.committed += [ticket.work for ticket in tickets]

    def _line_up(self, name: str) -> None:
        before = len(self.group._waiting)
        thread = in_background(self._write, name)
        wait_for(lambda: len(self.group._waiting) > before or not thread.is_alive())
        self._threads.append(thread)

    def _write(self, name: str) -> None:
        with self._ctrl_c if name == "interrupted" else contextlib.nullcontext():
            answer = self.group.write(name)
        self.answered.append(answer)

    def go_on(self) -> None:
        self._free.set()
        for thread in self._threads:
            thread.join(PATIENCE)
            assert not thread.is_alive()


def test_ctrl_c_at_any_place_of_a_shared_commit_leaves_nobody_waiting():
    for ctrl_c in every_place():
        queue = Queue(ctrl_c)
        queue.go_on()
        assert {"first", "leads next"} <= set(queue.answered) <= set(queue.committed)
        assert queue.group.write("later") == "later"


# Shared commits


class Log:
    """A commit that can be held up; remembers its batches."""

    def __init__(self) -> None:
        self.batches: list[list[Any]] = []
        self.free = threading.Event()
        self.free.set()
        self.inside = 0

    def __call__(self, tickets: list[Ticket[Any]]) -> None:
        self.inside += 1
        assert self.inside == 1, "two batches at the same time"
        self.batches.append([ticket.work for ticket in tickets])
        assert self.free.wait(PATIENCE)
        for ticket in tickets:
            if isinstance(ticket.work, BaseException):
                ticket.error = ticket.work
            ticket.value = ticket.work
        self.inside -= 1


def in_background(call: Any, *arguments: Any) -> threading.Thread:
    def run() -> None:
        with contextlib.suppress(BaseException):
            call(*arguments)

    # A thread that hangs fails the test, not the run.
    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    return thread


def wait_for(condition: Any) -> None:
    give_up_at = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < give_up_at
        time.sleep(0.001)


def test_a_lone_caller_writes_at_once_in_its_own_thread():
    threads: list[int] = []
    group: GroupCommit[int] = GroupCommit(lambda tickets: threads.append(threading.get_ident()))
    group.write(1)
    assert threads == [threading.get_ident()]


def test_callers_that_wait_at_the_same_moment_share_one_commit():
    log = Log()
    group: GroupCommit[Any] = GroupCommit(log)
    log.free.clear()
    threads = [in_background(group.write, 0)]
    wait_for(lambda: log.batches)
    threads += [in_background(group.write, n) for n in range(1, 6)]
    wait_for(lambda: len(group._waiting) == 5)
    log.free.set()
    for thread in threads:
        thread.join(PATIENCE)
    assert [sorted(batch) for batch in log.batches] == [[0], [1, 2, 3, 4, 5]]


def test_leadership_is_handed_over_among_many_threads():
    log = Log()
    group: GroupCommit[Any] = GroupCommit(log, most=10)

    def write_many(thread: int) -> list[Any]:
        return [group.write((thread, n)) for n in range(50)]

    answers = at_the_same_time([partial(write_many, thread) for thread in range(32)])
    assert answers == [[(thread, n) for n in range(50)] for thread in range(32)]
    assert max(len(batch) for batch in log.batches) <= 10
    written = sorted(work for batch in log.batches for work in batch)
    assert written == [(thread, n) for thread in range(32) for n in range(50)]


def test_an_error_of_one_does_not_reach_the_others():
    group: GroupCommit[Any] = GroupCommit(Log())

    def write(n: int) -> Any:
        try:
            return group.write(ZeroDivisionError(n) if n % 5 == 0 else n)
        except ZeroDivisionError as error:
            return -error.args[0]

    answers = at_the_same_time([partial(write, n) for n in range(1, 33)])
    assert answers == [-n if n % 5 == 0 else n for n in range(1, 33)]


def test_an_interrupted_leader_tells_the_others_that_nothing_is_certain():
    free, batches = threading.Event(), []

    def commit(tickets: list[Ticket[Any]]) -> None:
        batches.append(len(tickets))
        assert free.wait(PATIENCE)
        if len(tickets) > 1:
            raise KeyboardInterrupt

    group: GroupCommit[Any] = GroupCommit(commit)
    first = in_background(group.write, 0)
    wait_for(lambda: batches)
    answers: list[BaseException] = []

    def write() -> None:
        try:
            group.write(1)
        except BaseException as error:
            answers.append(error)

    threads = [in_background(write) for _ in range(3)]
    wait_for(lambda: len(group._waiting) == 3)
    free.set()
    for thread in [first, *threads]:
        thread.join(PATIENCE)
    assert sorted(type(answer).__name__ for answer in answers) == [
        "KeyboardInterrupt",
        "StoreUnavailable",
        "StoreUnavailable",
    ]
    group.write(2)


@pytest.mark.parametrize("leads", [False, True], ids=["in the queue", "when it should lead"])
def test_a_caller_that_is_interrupted_while_it_waits_does_not_stop_the_others(monkeypatch, leads):
    log = Log()
    group: GroupCommit[Any] = GroupCommit(log)
    log.free.clear()
    first = in_background(group.write, "first")
    wait_for(lambda: log.batches)
    wait = Ticket.wait

    def interrupted(ticket: Ticket[Any]) -> None:
        if ticket.work == "interrupted":
            if leads:
                log.free.set()
                wait_for(lambda: ticket.leads)
            raise KeyboardInterrupt
        wait(ticket)

    monkeypatch.setattr(Ticket, "wait", interrupted)
    second = in_background(group.write, "interrupted")
    if not leads:
        second.join(PATIENCE)
    third = in_background(group.write, "third")
    log.free.set()
    for thread in (first, second, third):
        thread.join(PATIENCE)
        assert not thread.is_alive()
    assert ["third"] in log.batches
    assert group.write("last") == "last"


def grouped(store: SqliteStore, works: list[Any]) -> list[Any]:
    """Do all of them in one shared commit; the answers, or the errors."""
    held, begun = threading.Event(), threading.Event()

    def hold(session: Any) -> None:
        begun.set()
        held.wait(PATIENCE)

    def write(work: Any) -> Any:
        try:
            return store.write(work)
        except Exception as error:
            return error

    answers: list[Any] = [None] * len(works)

    def run(place: int) -> None:
        answers[place] = write(works[place])

    first = in_background(store.write, hold)
    assert begun.wait(PATIENCE)
    threads = [in_background(run, place) for place in range(len(works))]
    wait_for(lambda: len(store._group._waiting) == len(works))
    held.set()
    for thread in [first, *threads]:
        thread.join(PATIENCE)
    return answers


def insert(n: int) -> Any:
    def work(session: Any) -> int:
        session.raw.execute("INSERT INTO mine VALUES (?)", [n])
        return n

    return work


def mine(store: SqliteStore) -> list[int]:
    with store.transaction() as tx:
        return [row[0] for row in tx.execute("SELECT n FROM mine ORDER BY n")]


def test_a_refused_write_is_left_out_of_a_shared_commit(store):
    with store.transaction() as tx:
        tx.execute("CREATE TABLE mine (n UNIQUE)")
    answers = grouped(store, [insert(1), insert(2), insert(3)])
    assert answers == [1, 2, 3]
    answers = grouped(store, [insert(4), insert(2), insert(5)])
    assert (answers[0], answers[2]) == (4, 5)
    assert isinstance(answers[1], StoreError)
    assert mine(store) == [1, 2, 3, 4, 5]


def test_a_shared_commit_that_fails_is_repeated_one_by_one(store):
    with store.transaction() as tx:
        tx.execute("CREATE TABLE parent (n PRIMARY KEY)")
        tx.execute("CREATE TABLE mine (n REFERENCES parent DEFERRABLE INITIALLY DEFERRED)")
        tx.execute("INSERT INTO parent VALUES (1), (2), (4)")
    store.enqueue([])
    store._writer.raw.execute("PRAGMA foreign_keys = ON")
    # Only the commit finds out that 3 has no parent.
    answers = grouped(store, [insert(1), insert(2), insert(3), insert(4)])
    assert (answers[0], answers[1], answers[3]) == (1, 2, 4)
    assert isinstance(answers[2], StoreError)
    assert mine(store) == [1, 2, 4]


def test_a_write_that_ends_the_shared_transaction_harms_no_other(store):
    with store.transaction() as tx:
        tx.execute("CREATE TABLE mine (n UNIQUE)")
        tx.execute("INSERT INTO mine VALUES (2)")

    def roll_back(session: Any) -> None:
        session.raw.execute("INSERT OR ROLLBACK INTO mine VALUES (2)")

    answers = grouped(store, [insert(1), roll_back, insert(3)])
    assert (answers[0], answers[2]) == (1, 3)
    assert isinstance(answers[1], StoreError)
    assert mine(store) == [1, 2, 3]


def test_a_shared_commit_that_cannot_begin_is_not_repeated(store):
    """Each repetition would wait as long."""
    store.enqueue([])
    store._writer.raw.execute("PRAGMA busy_timeout = 0")
    with contextlib.closing(sqlite3.connect(store.path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(sqlite3.OperationalError, match="locked"):
            together(store._writer, [Ticket(insert(1)), Ticket(insert(2))], lambda: None)


def test_a_transaction_that_cannot_begin_leaves_no_connection_behind(store):
    with store.transaction():
        pass
    [body] = store._idle_bodies
    body.raw.execute("PRAGMA busy_timeout = 0")
    with contextlib.closing(sqlite3.connect(store.path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(StoreUnavailable), store.transaction():
            pass
    with pytest.raises(sqlite3.ProgrammingError, match="closed"):
        body.raw.execute("SELECT 1")
    with store.transaction() as tx:
        assert list(tx.execute("SELECT 1")) == [(1,)]
