"""Runs a function in its own process, and stops it there.

The worker that claimed the job keeps it: its row, its fence, its heartbeats and its slot. A thread
of the worker starts the process, waits for it and passes on its answers; the process only runs the
body. It is started from the program's own code, and gets nothing but the id of the job: it reads
the rest from the store. Two pipes connect both. The worker writes one byte into the first when the
body has to stop; if that pipe closes, the worker is gone. The second carries the answers, as JSON.
"""

from __future__ import annotations

import asyncio
import ctypes
import logging
import math
import os
import select
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Generator, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from types import FrameType
from typing import Any, Protocol

import msgspec

from duly.clock import os_monotonic
from duly.errors import Canceled, InvalidOption, StoreError
from duly.model.job import (
    Claim,
    ErrorKind,
    Hold,
    JobRecord,
    NeverStarted,
    Outcome,
    Raised,
    State,
    Succeeded,
    SystemFailed,
)
from duly.model.text import storable
from duly.runtime.execute import Attempt, run_action, run_async_action
from duly.runtime.program import Program, Runnable
from duly.runtime.reports import Reports, captured_logging, context_of
from duly.store.table import Store

log = logging.getLogger(__name__)

KILL_AFTER = 5.0
"""Seconds between SIGTERM and SIGKILL, and for a process to end after its answer."""
LOOK_EVERY = 0.05
TASK_VARIABLE = "DULY_ISOLATED"
NEEDS_MODULE = (
    'isolate="process" needs an app that another process can import: '
    "assign it to a variable in a module or a script, and install duly[cli]"
)
_PR_SET_PDEATHSIG = 1


class Task(msgspec.Struct, frozen=True):
    """What the process has to know before it can read the store."""

    job_id: str
    token: int
    holds_key: bool
    level: int
    path: list[str]


class LogMessage(msgspec.Struct, frozen=True):
    """A log record of the process."""

    name: str
    level: int
    text: str
    logged_at: float
    traceback: str | None = None


class Answer(msgspec.Struct, frozen=True, omit_defaults=True):
    """A message from the process: the body starts, a log line, or how it ended."""

    began: bool = False
    line: LogMessage | None = None
    succeeded: Succeeded | None = None
    raised: Raised | None = None
    never: NeverStarted | None = None

    @property
    def outcome(self) -> Outcome | None:
        return self.succeeded or self.raised or self.never


# In the worker -----------------------------------------------------------------------------------


class Processes:
    """Runs attempts in their own processes. Without a `command` this is not possible."""

    def __init__(self, command: Callable[[], Sequence[str] | None]) -> None:
        self._find_command = command
        self._found: Sequence[str] | None = None
        self._running = 0
        self._ended = threading.Condition()

    @property
    def command(self) -> Sequence[str] | None:
        # Looked up again until it is found: a script names its app after creating it.
        if self._found is None:
            self._found = self._find_command()
        return self._found

    def run(self, attempt: Attempt) -> None:
        """Run an action to its end. Returns when its process is gone."""
        if attempt.resolved:
            return
        if self.command is None:
            attempt.resolve(NeverStarted(Hold.SIGNATURE, NEEDS_MODULE))
            return
        with self._counted():
            _run_in_child(self.command, attempt)

    @contextmanager
    def _counted(self) -> Generator[None]:
        with self._ended:
            self._running += 1
        try:
            yield
        finally:
            with self._ended:
                self._running -= 1
                self._ended.notify_all()

    def wait(self) -> None:
        """Wait until stopped processes have ended: this process may end next."""
        with self._ended:
            self._ended.wait_for(lambda: self._running <= 0, KILL_AFTER + 1)


def _run_in_child(command: Sequence[str], attempt: Attempt) -> None:
    try:
        child = Child(command, attempt)
    except Exception as error:
        attempt.resolve(SystemFailed(f"its process could not be started: {error}"))
        return
    try:
        child.look_after()
    except Exception:
        log.exception("ending the process of job %s after an internal error", attempt.claim.id)
        attempt.resolve(
            Raised(ErrorKind.WORKER_LOST, "its process was ended after an internal error")
        )
    finally:
        child.close()


class Child:
    """The process of one attempt. Only the thread that started it waits for it and ends it."""

    def __init__(self, command: Sequence[str], attempt: Attempt) -> None:
        self._attempt = attempt
        self._began = False
        self._notified = False
        self._kill_at: float | None = None
        self._unread = b""
        with ExitStack() as theirs, ExitStack() as ours:
            control, self._control = _pipe(theirs, ours)
            self._answers, answers = _pipe(ours, theirs)
            self._process = subprocess.Popen(
                [*command, "worker", "--isolated", str(control), str(answers)],
                pass_fds=(control, answers),
                stdin=subprocess.DEVNULL,
                env=os.environ | {TASK_VARIABLE: _task(attempt.claim)},
                # Ctrl-C is for the worker, which lets the body end; and everything that the body
                # starts can be killed with it.
                start_new_session=True,
            )
            self._files = ours.pop_all()
        os.set_blocking(self._answers, False)
        self._poller = select.poll()
        self._poller.register(self._answers, select.POLLIN)
        self._is_open = True

    def look_after(self) -> None:
        """Pass on its answers and stop it when requested, until it is gone."""
        while (code := self._process.poll()) is None:
            self._stop_if_told()
            self._listen()
        self._read()
        self._judge(code)

    def close(self) -> None:
        if self._process.poll() is None:
            self._kill()
            self._process.wait()
        self._files.close()

    # Stopping

    def _stop_if_told(self) -> None:
        if self._attempt.canceled and not self._notified:
            self._notified = True
            self._tell()
            self._give_time()
        if self._kill_at is not None and os_monotonic() >= self._kill_at:
            log.warning("killing the process of job %s", self._attempt.claim.id)
            self._kill()
            self._kill_at = math.inf

    def _tell(self) -> None:
        """The byte marks the signal as ours: anyone may send a SIGTERM to a whole group."""
        try:
            os.write(self._control, b"!")
        except BrokenPipeError:
            return
        self._process.terminate()

    def _give_time(self) -> None:
        if self._kill_at is None:
            self._kill_at = os_monotonic() + KILL_AFTER

    def _kill(self) -> None:
        # It leads its own group, and until it is waited for its process id cannot be reused.
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)

    # Listening

    def _listen(self) -> None:
        if not self._is_open:
            self._wait_for_the_end()
        elif self._poller.poll(LOOK_EVERY * 1000):
            self._read()

    def _wait_for_the_end(self) -> None:
        try:
            self._process.wait(LOOK_EVERY)
        except subprocess.TimeoutExpired:
            return

    def _read(self) -> None:
        """Read everything that has arrived, without waiting for more."""
        while self._is_open:
            try:
                data = os.read(self._answers, 1 << 16)
            except BlockingIOError:
                return
            self._is_open = bool(data)
            *lines, self._unread = (self._unread + data).split(b"\n")
            for line in lines:
                self._take(line)

    def _take(self, line: bytes) -> None:
        try:
            answer = msgspec.json.decode(line, type=Answer)
        except (msgspec.DecodeError, ValueError):
            # A process that is stopped while it writes leaves an incomplete line.
            log.debug("the process of job %s wrote an incomplete line", self._attempt.claim.id)
            return
        if answer.began:
            self._began = True
            self._attempt.body_starts()
        if answer.line is not None:
            self._log(answer.line)
        if answer.outcome is not None:
            self._give_time()
            if not self._attempt.resolve(answer.outcome):
                log.info("job %s ended too late; its outcome was dropped", self._attempt.claim.id)

    def _log(self, line: LogMessage) -> None:
        """Pass a record on to the handlers of this process, as if it had been created here."""
        logger = logging.getLogger(line.name)
        if logger.isEnabledFor(line.level):
            claim = self._attempt.claim
            record = logging.LogRecord(line.name, line.level, "", 0, line.text, None, None)
            record.created, record.msecs = line.logged_at, line.logged_at % 1 * 1000
            record.process = self._process.pid
            record.exc_text = line.traceback
            record.__dict__ |= {
                "job_id": claim.id,
                "function": claim.function,
                "attempt": claim.attempt,
            }
            logger.handle(record)

    def _judge(self, code: int) -> None:
        """The process is gone. If its body has reported an outcome, this one is dropped."""
        if self._attempt.resolved:
            return
        how = f"its process {_how_it_ended(code)}"
        if self._began:
            self._attempt.resolve(Raised(ErrorKind.WORKER_LOST, how))
        else:
            log.error("job %s: %s before its function started", self._attempt.claim.id, how)
            self._attempt.resolve(SystemFailed(f"{how} before the function started"))


def _pipe(reader: ExitStack, writer: ExitStack) -> tuple[int, int]:
    read, write = os.pipe()
    reader.callback(os.close, read)
    writer.callback(os.close, write)
    return read, write


def _task(claim: Claim) -> str:
    level = logging.getLogger().getEffectiveLevel()
    path = [str(folder) for folder in sys.path]
    task = Task(claim.id, claim.token, bool(claim.holds_key), level, path)
    return msgspec.json.encode(task).decode()


def _how_it_ended(code: int) -> str:
    if code >= 0:
        return f"ended with exit code {code}"
    try:
        return f"was ended by {signal.Signals(-code).name}"
    except ValueError:
        return f"was ended by signal {-code}"


# In the process ----------------------------------------------------------------------------------


class Ready(Program, Protocol):
    def ready(self) -> Store: ...


class Isolated:
    """The one job of this process. The body runs in its main thread."""

    def __init__(self, control: int, answers: int) -> None:
        self._control = control
        self._answers = answers
        self._writing = threading.Lock()
        self._attempt: Attempt | None = None
        self._stop: Callable[[], None] = sys.exit
        for file in (control, answers):
            os.set_inheritable(file, False)
        task = msgspec.json.decode(os.environ.pop(TASK_VARIABLE), type=Task)
        self._task = task
        # Modules that the worker could import can be imported here.
        sys.path += [folder for folder in task.path if folder not in sys.path]
        self._take_signals()
        self._end_with_the_worker()
        _Importing.now = True

    def run(self, program: Ready) -> None:
        """Run the job, if the worker still has it, and report how it ended."""
        _Importing.now = False
        store = program.ready()
        record = store.get(self._task.job_id)
        if record is None:
            self._refuse(f"its process did not find the job in {store.address().where}")
        elif (record.token, record.state) == (self._task.token, State.RUNNING):
            runnable = program.runnables(with_faulty=False).get(record.function)
            if runnable is None:
                self._refuse(f"{record.function} is not defined when its module is imported")
            else:
                self._run(program, _claim(record, self._task.holds_key), runnable)

    def _refuse(self, message: str) -> None:
        self._say(Answer(never=NeverStarted(Hold.SIGNATURE, message)))

    def _run(self, program: Ready, claim: Claim, runnable: Runnable) -> None:
        with _reports(program) as reports:
            attempt = self._attempt = Attempt(claim, runnable, self._ended, reports)
            self._log_to_the_worker()
            # The user's modules may have replaced them on import.
            self._take_signals()
            with (
                closing(asyncio.Runner()) as runner,
                program.lifespan.entered(runner.run),
            ):
                self._say(Answer(began=True))
                self._run_body(attempt, runner)
                attempt.end_report()
        if attempt.canceled:
            # Including anything that the body has started and not ended.
            os.killpg(0, signal.SIGKILL)

    def _run_body(self, attempt: Attempt, runner: asyncio.Runner) -> None:
        try:
            if attempt.runnable.is_async:
                runner.run(self._run_async(attempt), context=context_of(attempt))
            else:
                self._stop = _raise_canceled
                run_action(attempt)
        except Canceled:
            log.debug("stopped in duly's own code")
        finally:
            self._stop = _nothing

    async def _run_async(self, attempt: Attempt) -> None:
        loop, task = asyncio.get_running_loop(), asyncio.current_task()
        assert task is not None

        def cancel() -> None:
            if attempt.may_disturb():
                task.cancel()

        attempt.cancel_body = self._stop = lambda: _call_soon(loop, cancel)
        await run_async_action(attempt)
        self._stop = _nothing

    def _ended(self, attempt: Attempt, outcome: Outcome) -> None:
        self._stop = _nothing
        # Its last reports are stored before its outcome.
        assert attempt.reports is not None
        _flush(attempt.reports)
        match outcome:
            case Succeeded():
                self._say(Answer(succeeded=outcome))
            case Raised():
                self._say(Answer(raised=outcome))
            case SystemFailed(message):
                self._say(Answer(never=NeverStarted(message=message)))
            case _:
                assert isinstance(outcome, NeverStarted)
                self._say(Answer(never=outcome))

    def _say(self, answer: Answer) -> None:
        data = msgspec.json.encode(answer) + b"\n"
        with self._writing:
            while data:
                data = data[os.write(self._answers, data) :]

    # Stopping

    def _take_signals(self) -> None:
        signal.signal(signal.SIGTERM, self._terminated)
        signal.signal(signal.SIGINT, _not_for_us)

    def _terminated(self, number: int, frame: FrameType | None) -> None:
        """SIGTERM.

        If the worker has not announced it, it is the process's own affair: it drains.
        """
        announced = select.poll()
        announced.register(self._control, select.POLLIN)
        if announced.poll(0):
            if self._attempt is not None:
                self._attempt.canceled = True
            self._stop()

    def _end_with_the_worker(self) -> None:
        if sys.platform == "linux":
            # This also ends code that never lets another thread run. The pipe is for other systems,
            # and for a worker that was gone before this line.
            ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        threading.Thread(target=self._wait_for_the_worker, daemon=True).start()

    def _wait_for_the_worker(self) -> None:
        hung_up = select.poll()
        hung_up.register(self._control, 0)
        hung_up.poll()
        os.killpg(0, signal.SIGKILL)

    # Logging

    def _log_to_the_worker(self) -> None:
        root = logging.getLogger()
        root.handlers = [_Forward(self._say)]
        root.setLevel(self._task.level)


class _Importing:
    now = False


def refuse_while_importing() -> None:
    """A script that starts its app on import would start it again in this process."""
    if _Importing.now:
        raise InvalidOption(
            "isolate",
            "the process of a job imports this app's module, which starts the app; "
            'start it only below `if __name__ == "__main__":`',
        )


class _Forward(logging.Handler):
    """Sends records to the worker, whose handlers know where they belong."""

    def __init__(self, say: Callable[[Answer], None]) -> None:
        super().__init__()
        self._say = say
        self._formatter = logging.Formatter()

    def emit(self, record: logging.LogRecord) -> None:
        try:
            text = storable(record.getMessage())
            traceback = record.exc_info and self._formatter.formatException(record.exc_info)
            line = LogMessage(record.name, record.levelno, text, record.created, traceback or None)
            self._say(Answer(line=line))
        except Exception:
            self.handleError(record)


@contextmanager
def _reports(program: Ready) -> Generator[Reports]:
    """Sends the body's reports to the store from here."""
    reports = Reports(program.store, program.clock)
    reports.loop.start()
    with ExitStack() as capturing:
        if program.captures_logs:
            capturing.enter_context(captured_logging())
        yield reports
    reports.loop.stop()
    _flush(reports)


def _flush(reports: Reports) -> None:
    # The outcome of the job matters more than its reports.
    with suppress(StoreError):
        reports.flush()


def _claim(record: JobRecord, holds_key: bool = False) -> Claim:
    """The claim as far as it is stored; the rest matters only to the worker that has it."""
    known = msgspec.structs.asdict(record)
    claim = Claim(**{name: known[name] for name in Claim.__struct_fields__ if name in known})
    return msgspec.structs.replace(claim, holds_key=holds_key)


def _raise_canceled() -> None:
    raise Canceled("this job was canceled or timed out; its result is dropped")


def _call_soon(loop: asyncio.AbstractEventLoop, callback: Callable[[], Any]) -> None:
    loop.call_soon_threadsafe(callback)


def _nothing() -> None:
    """The body has ended."""


def _not_for_us(number: int, frame: FrameType | None) -> None:
    """Ctrl-C is for the worker."""
