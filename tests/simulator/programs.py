"""Workflows that run whatever program a seed draws, and what each operation may come to.

A program is a list of operations, each a list that begins with its kind. Steps tell the world when
their bodies begin; the workflow tells it what each operation returned. So the world knows what ran
how often, and whether the code is told the same each time it runs again.
"""

from __future__ import annotations

import random
from collections.abc import Generator, Sequence
from typing import TYPE_CHECKING, Any, cast

from duly import (
    AsyncCtx,
    AsyncTx,
    AsyncWorkflowCtx,
    Ctx,
    Duly,
    Fail,
    Retry,
    StepFailed,
    Tx,
    WaitTimeout,
    WorkflowCtx,
    WorkflowEnded,
)
from duly.errors import JobNotFound
from duly.workflows.run import Suspension
from tests.simulator import functions
from tests.simulator.functions import acting

if TYPE_CHECKING:
    from tests.simulator.process import Process
    from tests.simulator.records import Book
    from tests.simulator.workflows import WorkflowWorld

Op = list[Any]
Value = Any

SOON = Retry(attempts=3, delay=0, jitter=0)
LATER = Retry(attempts=3, delay=20, jitter=0)
ELSEWHERE = "slow"
EVENTS = ("packed", "paid")

app = Duly("sqlite:////nowhere/duly.db")
# What a run enqueues are jobs like all others.
app.core.functions.registered |= {
    name: function
    for name, function in functions.app.functions.items()
    if name in ("write", "poke")
}


# Steps -------------------------------------------------------------------------------------------


def begins(ctx: Ctx | AsyncCtx, tag: str) -> None:
    process, claim = acting[-1], ctx._running.claim
    if ctx.job_id == claim.id:
        process.started(claim)
    book: Book = cast("WorkflowWorld", process.world).book
    book.begins(tag, ctx.function, ctx.job_id, ctx.attempt, claim)


def effect(tx: Tx) -> None:
    tx.execute("INSERT INTO effects (job_id) VALUES (?)", (tx.job_id,))


@app.mutation
def credit(tx: Tx, tag: str) -> list[Value]:
    effect(tx)
    return ["credit", tag, tx.attempt]


@app.mutation
async def credit_async(tx: AsyncTx, tag: str) -> list[Value]:
    await tx.execute("INSERT INTO effects (job_id) VALUES (?)", (tx.job_id,))
    return ["credit_async", tag, tx.attempt]


@app.mutation
def refuse(tx: Tx, tag: str) -> None:
    effect(tx)
    raise ValueError("refused as planned")


@app.mutation(retry=SOON)
def credit_again(tx: Tx, tag: str) -> list[Value]:
    effect(tx)
    if tx.attempt == 1:
        raise ValueError("the first time")
    return ["credit_again", tag, tx.attempt]


@app.mutation
def tell_oneself(tx: Tx, tag: str, run: str, name: str) -> list[Value]:
    """Send an event to the run, and enqueue a job, with the effect."""
    effect(tx)
    number = acting[-1].world.next_number()
    tx.send(run, name, number)
    tx.run(app.functions["write"])
    return ["tell_oneself", tag, tx.attempt]


@app.action
def charge(ctx: Ctx, tag: str) -> list[Value]:
    begins(ctx, tag)
    return ["charge", tag, ctx.attempt]


@app.action
def kill(ctx: Ctx, tag: str) -> None:
    """Takes its process along."""
    begins(ctx, tag)
    acting[-1].drop_dead()


@app.action(retry=SOON)
def ask(ctx: Ctx, tag: str) -> list[Value]:
    begins(ctx, tag)
    if ctx.attempt == 1:
        raise ValueError("the first time")
    return ["ask", tag, ctx.attempt]


@app.action(retry=LATER)
def insist(ctx: Ctx, tag: str) -> list[Value]:
    begins(ctx, tag)
    raise ValueError("each time")


@app.action
async def charge_async(ctx: AsyncCtx, tag: str) -> list[Value]:
    begins(ctx, tag)
    return ["charge_async", tag, ctx.attempt]


STEPS = ("credit", "credit", "refuse", "credit_again", "charge", "charge", "ask", "insist", "kill")
MUTATIONS = ("credit", "credit_async", "refuse", "credit_again", "tell_oneself")
FAIL_BY_THEMSELVES = ("refuse", "insist")
SECOND_ATTEMPT = ("credit_again", "ask")
AT_MOST_ONCE = ("charge", "charge_async", "kill")


# Workflows ---------------------------------------------------------------------------------------


@app.workflow
def flow(ctx: WorkflowCtx, program: list[Op], tag: str) -> list[Value]:
    play = Play(ctx)
    with play:
        value: list[Value] = _drive(play.all(ctx, program, ""))
        play.ends(value)
    return value


@app.workflow
async def flow_async(ctx: AsyncWorkflowCtx, program: list[Op], tag: str) -> list[Value]:
    play = Play(ctx)
    with play:
        value: list[Value] = await _drive_async(play.all(ctx, program, ""))
        play.ends(value)
    return value


WORKFLOWS = ("flow", "flow_async")


def _drive(script: Generator[Any, Any, Value]) -> Value:
    answer: Any = None
    try:
        while True:
            answer = script.send(answer)
    except StopIteration as end:
        return end.value


async def _drive_async(script: Generator[Any, Any, Value]) -> Value:
    answer: Any = None
    error: Exception | None = None
    try:
        while True:
            asked = script.send(answer) if error is None else script.throw(error)
            answer = error = None
            try:
                answer = await asked
            except Exception as raised:
                error = raised
    except StopIteration as end:
        return end.value


class Play:
    """One run of the code of a workflow, from the top until it ends or waits."""

    def __init__(self, ctx: WorkflowCtx | AsyncWorkflowCtx) -> None:
        self.run = ctx.job_id
        self.claim = ctx._run.running.claim
        self.is_async = isinstance(ctx, AsyncWorkflowCtx)
        self.process: Process = acting[-1]
        self.passed: set[str] = set()
        self.process.started(self.claim)
        self.book.plays(self.claim, self.process.build, ctx._run.begun_at)

    @property
    def book(self) -> Book:
        return cast("WorkflowWorld", self.process.world).book

    def __enter__(self) -> None:
        """The code begins."""

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is Suspension and not self.process.faults.dead:
            self.book.suspends(self.claim, self.passed)

    def ends(self, value: Value) -> None:
        self.book.returns(self.claim, value)

    def all(self, ctx: Any, program: Sequence[Op], where: str) -> Generator[Any, Any, Value]:
        values = []
        for number, op in enumerate(program):
            path = f"{where}{number}"
            value = yield from self.one(ctx, op, path)
            self.passed.add(path)
            self.book.observes(self.claim, path, op, value)
            values.append(value)
        return values

    def branch(self, ctx: Any, op: Op, path: str) -> Any:
        if self.is_async:

            async def code_async(inner: AsyncWorkflowCtx) -> Value:
                return await _drive_async(self.all(inner, [op], f"{path}."))

            return ctx.branch(code_async)

        def code(inner: WorkflowCtx) -> Value:
            return _drive(self.all(inner, [op], f"{path}."))

        return ctx.branch(code)

    def one(self, ctx: Any, op: Op, path: str) -> Generator[Any, Any, Value]:
        """Do it, and say how it went."""
        try:
            return (yield from self._do(ctx, op, f"{self.run} {path}", path))
        except StepFailed as error:
            return ["failed", error.kind]
        except WaitTimeout:
            return ["timed out"]
        except WorkflowEnded:
            return ["ended"]
        except JobNotFound:
            if op[0] != "send":
                raise
            return ["not found"]

    def _do(self, ctx: Any, op: Op, tag: str, path: str) -> Generator[Any, Any, Value]:
        known = app.functions
        match op:
            case ["step", name]:
                return (yield ctx.step(known[name], tag))
            case ["tell_oneself", name]:
                return (yield ctx.step(known["tell_oneself"], tag, self.run, name))
            case ["job step", name]:
                return (yield ctx.step(known[name].using(queue=ELSEWHERE), tag))
            case ["child", name, program]:
                return (yield ctx.step(known[name], program, tag))
            case ["sleep", seconds]:
                return (yield ctx.sleep(seconds))
            case ["event", name, timeout]:
                return (yield ctx.wait_for(name, int, timeout=timeout))
            case ["approval", timeout]:
                name = f"approval {path}"
                decision = yield ctx.approval("Go on?", name=name, timeout=timeout)
                return [decision.approved, decision.timed_out]
            case ["job", name, timeout]:
                job = yield ctx.run(known[name], tag)
                return (yield ctx.wait(job, timeout=timeout))
            case ["canceled job"]:
                job = yield ctx.run_after(3_600, known["credit"], tag)
                return (yield ctx.cancel(job))
            case ["send", run, name]:
                number = self.process.world.next_number()
                return (yield ctx.send(run, name, number, once=f"{self.run} {path}"))
            case ["now"]:
                return (yield ctx.now()).isoformat()
            case ["chance"]:
                return [str(ctx.uuid()), ctx.random().random()]
            case ["gather", limit, *ops]:
                items = [self._item(ctx, each, f"{path}/{n}") for n, each in enumerate(ops)]
                found = yield ctx.gather(*items, limit=limit, errors="return")
                return [_plain(value) for value in found]
            case ["first", *ops]:
                items = [self._item(ctx, each, f"{path}/{n}") for n, each in enumerate(ops)]
                index, value = yield ctx.first(*items)
                return [index, value]
            case ["bug"]:
                yield from self._bug(ctx)
                return None
            case ["fail"]:
                self.book.may_fail.add(self.run)
                raise Fail("as planned")
        raise AssertionError(op)

    def _item(self, ctx: Any, op: Op, path: str) -> Any:
        match op:
            case ["timer", seconds]:
                return ctx.timer(seconds)
            case ["bare event", name]:
                return ctx.event(name, int)
            case ["bare step", name]:
                return app.functions[name].bind(f"{self.run} {path}")
        return self.branch(ctx, op, path)

    def _bug(self, ctx: Any) -> Generator[Any, Any, None]:
        """The code of the older build cannot go on here."""
        if self.process.build == OLD:
            if ctx.replaying:
                # Nothing has this name: the history does not fit.
                yield ctx.approval("?", name="not in the history")
            raise LookupError("a mistake in the workflow")


OLD, NEW = "old", "new"


def _plain(value: Value) -> Value:
    if isinstance(value, StepFailed):
        return ["failed", value.kind]
    return value


# What is drawn -----------------------------------------------------------------------------------


def draw(rng: random.Random, is_async: bool, depth: int = 0) -> list[Op]:
    """A program."""
    return [draw_op(rng, is_async, depth) for _ in range(rng.choice((1, 2, 3, 5)))]


def draw_op(rng: random.Random, is_async: bool, depth: int) -> Op:
    kinds: dict[str, float] = {
        "step": 10, "tell_oneself": 2, "job step": 1, "sleep": 3, "event": 3, "approval": 2,
        "job": 2, "canceled job": 0.7, "now": 1, "chance": 1, "bug": 1.5,
    }  # fmt: skip
    if depth < 2:
        kinds |= {"gather": 2.5, "first": 2.5}
    if depth == 0:
        kinds |= {"child": 0.7, "fail": 0.2, "die often": 0.4}
    (kind,) = rng.choices(list(kinds), list(kinds.values()))
    match kind:
        case "step":
            return ["step", _draw_step(rng, is_async and depth == 0)]
        case "tell_oneself":
            return [kind, rng.choice(EVENTS)]
        case "job step":
            return [kind, rng.choice(("credit", "charge"))]
        case "child":
            return [kind, rng.choice(WORKFLOWS), [draw_op(rng, is_async, 2)]]
        case "sleep":
            return [kind, rng.choice((0, 1, 30, 400))]
        case "event":
            return [kind, rng.choice(EVENTS), rng.choice((None, 2, 30))]
        case "approval":
            return [kind, rng.choice((None, 2, 30))]
        case "job":
            return [kind, rng.choice(("credit", "charge")), rng.choice((None, 30))]
        case "gather":
            ops = [_draw_item(rng, is_async, depth) for _ in range(rng.choice((2, 3)))]
            return [kind, rng.choice((None, None, 1)), *ops]
        case "first":
            ops = [_draw_item(rng, is_async, depth) for _ in range(rng.choice((2, 3)))]
            return [kind, *ops]
        case "die often":
            return ["gather", None, *[["bare step", "kill"]] * 5]
    return [kind]


def _draw_step(rng: random.Random, is_async: bool) -> str:
    own = ("credit_async", "charge_async") if is_async else ()
    name: str = rng.choice((*STEPS, *own))
    return name


def _draw_item(rng: random.Random, is_async: bool, depth: int) -> Op:
    chance = rng.random()
    if chance < 0.2:
        return ["timer", rng.choice((1, 2, 30))]
    if chance < 0.45:
        return ["bare event", rng.choice(EVENTS)]
    if chance < 0.6:
        return ["bare step", _draw_step(rng, False)]
    return draw_op(rng, is_async, depth + 1)
