"""`duly copy`: move a store to another database."""

from __future__ import annotations

import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress

import click
import msgspec

from duly.cli.command import EXIT_ERROR, Command
from duly.cli.out import Column, Out
from duly.cli.root import Root
from duly.clock import SystemClock
from duly.errors import InvalidURL, StoreError
from duly.runtime.copy_store import (
    WAIT_SECONDS,
    CopyPlan,
    CopyProgress,
    CopyReport,
    copy_store,
    give_up_copy,
    plan_copy,
)
from duly.store.connect import make_store
from duly.store.copy_mark import Stage
from duly.store.table import Store

WORDS = {"wait": "waiting for running jobs", "copy": "copying", "verify": "verifying"}
COLUMNS = (Column("table", "table"), Column("rows", "rows", right=True))


@click.command(cls=Command)
@click.argument("source", metavar="SRC")
@click.argument("target", metavar="DST")
@click.option(
    "--dry-run", is_flag=True, help="Show what would be copied, without changing anything."
)
@click.option(
    "--wait",
    type=click.FloatRange(min=0),
    default=WAIT_SECONDS,
    show_default=True,
    metavar="SECONDS",
    help="How long to wait for running jobs; after that SRC is reopened unchanged.",
)
@click.option("--abort", is_flag=True, help="Abandon a copy: reopen SRC and empty DST.")
@click.option(
    "--schema", default="duly", show_default=True, help="PostgreSQL schema for duly's tables."
)
@click.pass_obj
def copy(
    root: Root, source: str, target: str, dry_run: bool, wait: float, abort: bool, schema: str
) -> None:
    """Move a store to another database and verify the copy.

    SRC and DST are database URLs; DST must not contain duly data yet. SRC is closed permanently:
    processes that still write to it get an error with the new address. Your own tables are not
    copied. Run the command again to continue an interrupted copy.

    \b
    duly copy sqlite:///shop.db postgresql://shop@db/shop --dry-run
    duly copy sqlite:///shop.db postgresql://shop@db/shop --wait 60
    duly copy sqlite:///shop.db postgresql://shop@db/shop --abort
    """
    clock = SystemClock()
    with _store(source, clock, schema) as src, _store(target, clock, schema) as dst:
        if abort:
            reopened = give_up_copy(src, dst, clock)
            said = "the source is open again" if reopened else "no copy was in progress"
            root.out.show({"reopened": reopened}, lambda: root.out.cell(said))
        elif dry_run:
            _show_plan(root.out, plan_copy(src, dst, clock))
        else:
            with _noting_if_closed(src, root.out), _progress(root.out) as tell:
                report = copy_store(src, dst, clock, wait=wait, tell=tell)
            _show_report(root.out, report)


@contextmanager
def _store(url: str, clock: SystemClock, schema: str) -> Generator[Store]:
    if url.endswith(":memory:"):
        raise InvalidURL("a :memory: database is lost when this command ends; name a file")
    store = make_store(url, clock, schema, pooler=False, synchronous="FULL")
    try:
        yield store
    finally:
        store.close()


@contextmanager
def _noting_if_closed(source: Store, out: Out) -> Generator[None]:
    """When the copy is interrupted, say if that leaves the source closed."""
    try:
        yield
    except BaseException:
        with suppress(StoreError):
            mark = source.copy_end().mark()
            if mark is not None and mark.stage in (Stage.DRAINING, Stage.CLOSED):
                out.note(
                    "the source is closed: run this again to continue, or with --abort to reopen it"
                )
        raise


@contextmanager
def _progress(out: Out) -> Generator[Callable[[CopyProgress], None]]:
    """A progress bar on a terminal; otherwise a line for each step."""
    begun: set[str] = set()
    with out.progress("duly copy") as advance:

        def tell(progress: CopyProgress) -> None:
            word = WORDS[progress.step]
            if sys.stderr.isatty():
                total = None if progress.step == "wait" else progress.total
                advance(progress.done, total, f"{word} {progress.table}")
            elif progress.step not in begun:
                begun.add(progress.step)
                out.note(f"{word}: {progress.total:,} {_noun(progress.step)}")

        yield tell


def _noun(step: str) -> str:
    return "jobs" if step == "wait" else "rows"


def _show_plan(out: Out, plan: CopyPlan) -> None:
    if out.as_json:
        out.data(msgspec.to_builtins(plan))
        if plan.refused:
            raise SystemExit(EXIT_ERROR)
        return
    rows = [{"table": name, "rows": f"{count:,}"} for name, count in plan.tables.items() if count]
    out.table(rows, COLUMNS, empty="there is nothing to copy")
    out.say(f"{sum(plan.tables.values()):,} rows from {plan.source} to {plan.target}")
    if plan.running:
        out.say(f"{plan.running} running jobs would be waited for")
    if plan.resumes:
        out.say("the source is closed for an unfinished copy")
    if plan.refused:
        out.say(f"the copy would be refused: {plan.refused}")
        raise SystemExit(EXIT_ERROR)


def _show_report(out: Out, report: CopyReport) -> None:
    total = sum(report.tables.values())
    done = "already moved" if report.already_done else f"moved and verified {total:,} rows"
    out.show(
        {**msgspec.to_builtins(report), "rows": total},
        lambda: out.cell(f"{done}: {report.source} -> {report.target}"),
    )
    out.note("the source is closed permanently; start workers and servers with the new URL")
