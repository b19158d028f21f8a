"""Test tools for workflows: answer what a run waits for, and look at what it has done."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import msgspec

from duly.app import Duly
from duly.calls.jobs import Job
from duly.calls.verbs import id_of
from duly.errors import JobNotFound
from duly.functions.function import Call, Function
from duly.model.job import Suspended
from duly.model.workflow import (
    Decision,
    Step,
    StepKind,
    StepState,
    decode_waits,
    labels,
    mention,
)
from duly.runtime.execute import Unwound
from duly.store.workflows import RunState
from duly.testing.kit import Made, drain
from duly.workflows.bound import BoundWorkflow
from duly.workflows.run import Run

MAX_STEPS = 10_000


def deliver(app: Duly, job: Job[Any] | str, name: str, payload: Any = None) -> list[Job[Any]]:
    """Send an event that the run waits for, and run what becomes due; returns the jobs that ran.

    Fails if the run does not wait for it: a test that sends another event would prove nothing.
    """
    _assert_waits(app, job, StepKind.EVENT, name)
    app.send(job, name, payload)
    return drain(app)


def approve(
    app: Duly,
    job: Job[Any] | str,
    name: str = "approval",
    *,
    choice: str | None = None,
    data: Any = None,
    by: str | None = None,
) -> Decision:
    """Answer an approval that the run waits for, and run what becomes due."""
    _assert_waits(app, job, StepKind.APPROVAL, name)
    decision = app.approve(job, name, choice=choice, data=data, by=by)
    drain(app)
    return decision


def assert_steps(
    app: Duly, job: Job[Any] | str, *expected: str | Function[..., Any] | Call[Any]
) -> None:
    """Assert which steps the run has finished, in order.

    A step is given as its label (`"charge"`, `"charge#2"`), as the function, or as a bound call,
    whose arguments must be the same.
    """
    done = [
        step for step in _steps(app, job) if step.state == StepState.SUCCEEDED and _is_call(step)
    ]
    found = labels(done)
    shown = [f"{found[step.place]}({_inside(step.args)})" for step in done]
    fits = len(done) == len(expected) and all(
        _fits(step, found[step.place], each) for step, each in zip(done, expected, strict=True)
    )
    if not fits:
        wanted = [_described(each) for each in expected]
        raise AssertionError(f"expected the steps {wanted}, found {shown}")


def _is_call(step: Step) -> bool:
    return step.kind in (StepKind.MUTATION, StepKind.ACTION, StepKind.JOB)


def _fits(step: Step, label: str, expected: str | Function[..., Any] | Call[Any]) -> bool:
    if isinstance(expected, str):
        return expected == label
    if isinstance(expected, Call):
        return (expected.function.name, expected.args) == (step.name, step.args)
    return expected.name == step.name


def _described(expected: str | Function[..., Any] | Call[Any]) -> str:
    if isinstance(expected, Call):
        return f"{expected.function.name}({_inside(expected.args)})"
    return expected if isinstance(expected, str) else expected.name


def _inside(args: str | None) -> str:
    return (args or "{}")[1:-1]


def _steps(app: Duly, job: Job[Any] | str) -> Sequence[Step]:
    return app.ready().steps_of(id_of(job), MAX_STEPS)


def _assert_waits(app: Duly, job: Job[Any] | str, kind: StepKind, name: str) -> None:
    drain(app)
    text, _ = app.ready().waits_of(id_of(job))
    if mention(kind, name) not in (text or ""):
        waits = [f"{wait.kind} {wait.name}".strip() for wait in decode_waits(text).waits]
        raise AssertionError(
            f"the workflow does not wait for {kind} {name!r}; it waits for "
            f"{', '.join(waits) or 'nothing'}"
        )


# Histories ---------------------------------------------------------------------------------------


class History(msgspec.Struct, frozen=True):
    """What a run has recorded, to be replayed against code: plain data that can be kept in a file
    with `msgspec.json`.
    """

    job_id: str
    function: str
    args: str
    begun_at: int
    steps: tuple[Step, ...]


def history(app: Duly, job: Job[Any] | str) -> History:
    """Return what a run has recorded so far. Redacted arguments are part of it."""
    store, job_id = app.ready(), id_of(job)
    record = store.get(job_id)
    if record is None:
        raise JobNotFound(job_id)
    steps = tuple(store.steps_of(job_id, MAX_STEPS))
    begun_at = record.started_at or min((step.started_at for step in steps), default=record.run_at)
    return History(job_id, record.function, record.args, begun_at, steps)


def replay(app: Duly, history: History) -> None:
    """Run a workflow's code against a history, up to its end, without any effect.

    Raises AssertionError if the code does something else than the history says.
    """
    core = app.core
    function = core.functions.callable_now(history.function)
    arguments = function.signature.decode(history.args)
    running = Made(core, 1, False, id=history.job_id, function=history.function, args=history.args)
    state = RunState(0, None, history.begun_at, None, history.steps, ())
    run = Run(core, function, running, state, replays=True)
    bound = BoundWorkflow(core, function)
    try:
        if function.is_async:
            asyncio.run(bound.replay_async(run, arguments))
        else:
            bound.replay(run, arguments)
    except Unwound as end:
        outcome = end.outcome
    else:
        return
    if isinstance(outcome, Suspended) and outcome.hold is not None:
        raise AssertionError(outcome.traceback or outcome.message)
