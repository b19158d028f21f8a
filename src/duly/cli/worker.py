"""`duly worker`: run jobs until stopped.

The command is a small supervisor: it starts the worker processes, sends heartbeats for them, kills
the ones that are stuck and replaces the ones that die.
"""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from types import FrameType
from typing import Any

import click

from duly.cli.command import EXIT_USAGE, Command, fail
from duly.cli.root import Root
from duly.cli.wait import wait_for_database, wait_option
from duly.clock import os_sleep
from duly.observe.connections import warn_about_pools, warn_about_server
from duly.runtime.collector import look_less_often
from duly.runtime.isolate import Isolated
from duly.runtime.lifeline import Lifeline
from duly.runtime.service import Service, run_alone
from duly.runtime.supervisor import Supervisor
from duly.runtime.worker import CONCURRENCY, DRAIN_SECONDS, THREADS

log = logging.getLogger(__name__)

LOOK_EVERY = 0.05


@click.command(cls=Command)
@click.option(
    "--processes", type=click.IntRange(1, 256), default=1, help="Number of worker processes."
)
@click.option(
    "--concurrency",
    type=click.IntRange(1, 100_000),
    show_default=f"the app's setting, or {CONCURRENCY}",
    help="Concurrent jobs in each process, apart from sync actions.",
)
@click.option(
    "--threads",
    type=click.IntRange(1, 100_000),
    show_default=f"the app's setting, or {THREADS}",
    help="Concurrent sync actions in each process.",
)
@click.option("--queue", "queues", multiple=True, help="Serve only this queue; repeatable.")
@click.option(
    "--drain",
    type=click.FloatRange(0),
    default=DRAIN_SECONDS,
    show_default=True,
    help="Seconds for running jobs to finish after SIGTERM.",
)
@wait_option
@click.option("--no-ticker", is_flag=True, help="Leave schedules to other processes.")
@click.option("--with-parent", is_flag=True, hidden=True)
@click.option("--child", "lifeline", type=int, hidden=True)
@click.option("--alone", "alone", hidden=True)
@click.option("--isolated", "pipes", type=int, nargs=2, hidden=True)
@click.pass_obj
def worker(
    root: Root,
    processes: int,
    concurrency: int | None,
    threads: int | None,
    queues: tuple[str, ...],
    drain: float,
    wait: float,
    no_ticker: bool,
    with_parent: bool,
    lifeline: int | None,
    alone: str | None,
    pipes: tuple[int, int] | None,
) -> None:
    """Run jobs and schedules until Ctrl-C.

    After Ctrl-C or SIGTERM no new jobs start, and running jobs get --drain seconds to finish.

    \b
    duly --app shop.tasks:app worker --processes 2
    duly --app shop.tasks:app worker --queue mail --concurrency 20
    """
    if pipes is not None:
        # Before the app is loaded, which may have to be stopped, or to use the worker's folder.
        isolated = Isolated(*pipes)
        isolated.run(root.app.core)
        root.app.close()
        return
    app = root.app
    own = None if lifeline is None else Lifeline(lifeline)
    if alone is not None:
        stop = Stop()
        on_signals(stop.ask)
        wait_for_database(app, wait, lambda: stop.asked, own.progress if own else lambda: None)
        if not stop.asked:
            run_alone(app.core, alone, own, lambda: stop.asked, drain)
    elif own is not None:
        _work(root, concurrency, threads, queues, drain, wait, own, ticker=not no_ticker)
    else:
        wait_for_database(app, wait)
        duly = app.command()
        if duly is None:
            fail("the app must be in a module or script that can be imported", EXIT_USAGE)
        command = _child_command(duly, concurrency, threads, queues, drain, wait)
        if no_ticker:
            command.append("--no-ticker")
        most = _threads(root, concurrency, threads)
        _supervise(root, processes, most, drain, command, with_parent=with_parent)


def _threads(root: Root, concurrency: int | None, threads: int | None) -> int:
    """How many threads a worker process will have."""
    own = root.app.core.settings
    slots = concurrency or own.concurrency or CONCURRENCY
    return min(slots, threads or own.threads or THREADS)


def _child_command(
    duly: list[str],
    concurrency: int | None,
    threads: int | None,
    queues: tuple[str, ...],
    drain: float,
    wait: float,
) -> list[str]:
    options = [f"--queue={queue}" for queue in queues]
    options += [f"--concurrency={concurrency}"] if concurrency else []
    options += [f"--threads={threads}"] if threads else []
    return [
        *(*duly, *log_options(), "worker"),
        *(f"--drain={drain}", f"--wait={wait}", *options),
    ]


def log_options() -> list[str]:
    """Pass the root's own options on to the children."""
    params = click.get_current_context().find_root().params
    options = [f"--{name.replace('_', '-')}={params[name]}" for name in ("log_format", "log_level")]
    return [*options, "--debug"] if params["debug"] else options


def _supervise(
    root: Root,
    processes: int,
    threads: int,
    drain: float,
    command: list[str],
    *,
    with_parent: bool,
) -> None:
    def spawn(file: int) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [*command, f"--child={file}"], pass_fds=[file], stdin=subprocess.PIPE
        )

    supervisor = Supervisor(root.app.core, spawn, processes, drain)
    on_signals(supervisor.stop)
    if with_parent:
        end_with_parent(supervisor.stop)
    greet(
        root,
        f"duly worker: {processes} process(es) of {root.app.name!r}; Ctrl-C stops",
        {"app": root.app.name, "processes": processes, "pid": os.getpid()},
    )
    warn_about_server(root.app.core, threads, processes)
    supervisor.run()


def greet(root: Root, message: str, facts: Mapping[str, Any]) -> None:
    """Report the start: with --json as a line of JSON on stdout, otherwise on stderr.

    With --log-format json, stderr gets only JSON.
    """
    if root.out.as_json:
        root.out.line(facts)
    elif click.get_current_context().find_root().params["log_format"] == "text":
        click.echo(message, err=True)
    else:
        log.info("%s", message)


def _work(
    root: Root,
    concurrency: int | None,
    threads: int | None,
    queues: tuple[str, ...],
    drain: float,
    wait: float,
    lifeline: Lifeline,
    *,
    ticker: bool,
) -> None:
    """Run a child process until its parent stops it or is gone."""
    stop = Stop()
    on_signals(stop.ask)
    end_with_parent(stop.ask)
    look_less_often()
    started: list[Service] = []

    def start() -> None:
        # A service that could not start is not used again.
        service = root.app.service(
            concurrency=concurrency,
            threads=threads,
            queues=queues or None,
            drain=drain,
            lifeline=lifeline,
            ticker=ticker,
        )
        service.start()
        started.append(service)

    # Waiting must not look like being stuck.
    wait_for_database(root.app, wait, lambda: stop.asked, lifeline.progress, start)
    if not started:
        return
    [service] = started
    warn_about_pools(service.worker.max_threads)
    stop.wait()
    service.stop(drain)
    root.app.close()


class Stop:
    """Whether a stop was requested.

    A plain flag that is polled. A signal handler interrupts other code, so it must not take a lock
    (an Event would deadlock), and two simultaneous signals can leave the main thread waiting for a
    lock without having run a handler.
    """

    asked = False

    def ask(self) -> None:
        self.asked = True

    def wait(self) -> None:
        while not self.asked:
            os_sleep(LOOK_EVERY)


def end_with_parent(stop: Callable[[], None]) -> None:
    """Stop when the parent is gone, which closes the pipe on stdin."""

    def wait() -> None:
        # Not through sys.stdin: a thread that is blocked in its buffer makes the interpreter abort
        # at shutdown.
        os.read(sys.stdin.fileno(), 1)
        stop()

    threading.Thread(target=wait, daemon=True).start()


def on_signals(stop: Callable[[], None]) -> None:
    def handler(number: int, frame: FrameType | None) -> None:
        stop()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, handler)
