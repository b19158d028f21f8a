"""Jobs: the list with bulk changes, and one job with all its details."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, NamedTuple

from fastapi import APIRouter, Query, Request, Response

from duly.app import operations
from duly.errors import DulyError
from duly.model.function import is_reserved
from duly.model.job import JobRecord, State
from duly.model.redact import unmask
from duly.model.retry import Retry, decode_retry
from duly.model.workflow import Phase
from duly.server.answers import Refused
from duly.server.api import jobs as api
from duly.server.api.common import Page
from duly.server.auth import Caller, Operator
from duly.server.dashboard.exports import Format, export, pages
from duly.server.dashboard.forms import body_of
from duly.server.dashboard.pages import PageRoute, Sent, Viewer, Viewing, once, redirect, render
from duly.server.dashboard.times import SECOND
from duly.server.dashboard.views.runs import run_page

router = APIRouter(route_class=PageRoute)

PAGE = 50
FILE_PAGE = 200
MAX_SHOWN = 100_000
"""The most characters of arguments or a result on a page: browsers are slow with megabytes."""
MAX_BACKOFFS = 10
MAX_CHILDREN = 100
Text = Annotated[str, Query(max_length=500)]


class Filters(NamedTuple):
    """Which jobs the list shows; an empty value means any."""

    state: str = ""
    function: str = ""
    queue: str = ""
    owner: str = ""
    dead: bool = False

    def asked(self) -> dict[str, Any]:
        given = {name: value or None for name, value in self._asdict().items()}
        state = None if self.state == "" or self.dead else _state(self.state)
        return given | {"state": state, "dead": self.dead}


def _state(name: str) -> State:
    try:
        return State(name)
    except ValueError:
        known = ", ".join(State)
        raise Refused(422, "invalid", f"state: give one of {known}", field="state") from None


def _find(viewer: Viewer, filters: Filters, before: str | None, limit: int) -> Page[api.JobShape]:
    return api.find(viewer.app, viewer.who, before=before, limit=limit, **filters.asked())


@router.get("/jobs")
def jobs(
    viewer: Viewing,
    state: Text = "",
    function: Text = "",
    queue: Text = "",
    owner: Text = "",
    dead: bool = False,
    before: str | None = None,
) -> Response:
    filters = Filters(state, function, queue, owner, dead)
    page = _find(viewer, filters, before, PAGE)
    published = [info.name for info in viewer.app.functions.published()]
    return render(
        viewer,
        "jobs.html",
        page=page,
        phases=operations.phases(viewer.app, page.items),
        filters=filters,
        states=list(State),
        functions=sorted(name for name in published if not is_reserved(name)),
        filtered=any(filters),
        before=before,
    )


@router.get("/jobs.{format}")
def jobs_file(
    viewer: Viewing,
    format: Format,
    state: Text = "",
    function: Text = "",
    queue: Text = "",
    owner: Text = "",
    dead: bool = False,
) -> Response:
    """The same list as a file."""
    filters = Filters(state, function, queue, owner, dead)
    rows, complete = pages(lambda cursor: _find(viewer, filters, cursor, FILE_PAGE))
    return export(rows, "jobs", format, complete=complete)


@router.post("/jobs/bulk")
def bulk(request: Request, viewer: Viewing, who: Operator, form: Sent) -> Response:
    """Cancel or retry the selected jobs, or all that match."""
    verb = form.text("verb")
    if verb not in VERBS:
        raise Refused(422, "invalid", "choose an action")
    if form.given("all"):
        return _all_matching(request, viewer, form, verb)
    ids = form.all("id")
    if not ids:
        raise Refused(422, "invalid", "select at least one job, or all matching jobs")
    done, refused = 0, ""
    for job_id in ids:
        try:
            VERBS[verb](viewer, job_id)
            done += 1
        except (DulyError, Refused) as error:
            refused = refused or str(error)
    text = f"{done} {'job' if done == 1 else 'jobs'} {DONE[verb]}"
    if refused:
        text += f"; {len(ids) - done} failed: {refused}"
    return redirect(request, form.text("back"), text, "failed" if refused else "done")


Verb = Callable[[Viewer, str], object]
VERBS: dict[str, Verb] = {
    "cancel": lambda viewer, job_id: api.cancel(viewer.app, viewer.who, job_id),
    "retry": lambda viewer, job_id: api.retry(viewer.app, viewer.who, job_id),
}
DONE = {"cancel": "canceled", "retry": "retried"}


def _all_matching(request: Request, viewer: Viewer, form: Sent, verb: str) -> Response:
    """Start a job that does it; its page shows the progress."""
    dead = bool(form.given("dead"))
    given = {name: form.given(name) for name in ("state", "function", "queue", "owner")}
    if dead:
        given["state"] = None
    body = body_of(
        api.BulkBody,
        verb=verb,
        dead=dead and verb == "retry",
        **{name: value for name, value in given.items() if value is not None},
    )
    made = api.bulk(viewer.app, viewer.who, once(viewer), body)
    assert made.job is not None
    text = "This job makes the changes; its progress is shown below"
    return redirect(request, f"/jobs/{made.job.id}", text)


# Detail ------------------------------------------------------------------------------------------


class Moment(NamedTuple):
    """A point on a job's timeline."""

    name: str
    state: str
    at: int | None


class Backoff(NamedTuple):
    """A possible retry: how long after the attempt before it."""

    attempt: int
    after_ms: int


@router.get("/jobs/{job_id}")
def job(viewer: Viewing, job_id: str, after: str | None = None) -> Response:
    """`after`: the cursor of a run's steps."""
    return _job_page(viewer, job_id, steps_after=after)


def _job_page(
    viewer: Viewer,
    job_id: str,
    status: int = 200,
    steps_after: str | None = None,
    **again: Any,
) -> Response:
    found = api.visible(viewer.app, viewer.who, job_id)
    shape = api.get(viewer.app, viewer.who, job_id)
    lines = api.logs(viewer.app, viewer.who, job_id)
    children = api.children_of(viewer.app, viewer.who, job_id, MAX_CHILDREN + 1)
    finished = shape.state.is_terminal
    why = None if finished else api.why(viewer.app, viewer.who, job_id)
    run = run_page(viewer, shape, steps_after, why)
    return render(
        viewer,
        "job.html",
        status,
        job=shape,
        most_shown=MAX_SHOWN,
        finished=finished,
        logs=lines,
        children=children[:MAX_CHILDREN],
        more_children=len(children) > MAX_CHILDREN,
        why=why,
        run=run,
        # A run that waits is due only if nothing happens before.
        moments=_moments(shape, is_due=run is None or run.phase != Phase.WAITING),
        took=_took(shape, viewer.now),
        retry=_retry(found.record),
        backoffs=_backoffs(found.record),
        can_call=viewer.may("enqueue") and not is_reserved(shape.function),
        again={"error": None, "args": None, "run_after": ""} | again,
    )


@router.post("/jobs/{job_id}/cancel")
def cancel(request: Request, viewer: Viewing, who: Operator, job_id: str, form: Sent) -> Response:
    done = api.cancel(viewer.app, who, job_id)
    text = "Job canceled" if done.canceled else "The job had already finished"
    return redirect(request, f"/jobs/{job_id}", text, "done" if done.canceled else "failed")


@router.post("/jobs/{job_id}/retry")
def retry(request: Request, viewer: Viewing, who: Operator, job_id: str, form: Sent) -> Response:
    made = api.retry(viewer.app, who, job_id)
    return redirect(request, f"/jobs/{made.id}", "This job is the retry")


@router.post("/jobs/{job_id}/again")
def again(request: Request, viewer: Viewing, who: Caller, job_id: str, form: Sent) -> Response:
    """Call the same function with edited arguments."""
    before = api.get(viewer.app, who, job_id)
    try:
        body = body_of(
            api.NewJobBody,
            function=before.function,
            args=_unmasked(viewer, before, form.object("args") or {}),
            run_after=form.number("run_after"),
            owner=before.owner,
            options={"queue": before.queue, "priority": before.priority},
        )
        made = api.called(viewer.app, who, once(viewer), body)
    except (DulyError, Refused) as error:
        values = {"args": form.text("args"), "run_after": form.text("run_after")}
        return _job_page(viewer, job_id, 422, error=str(error), **values)
    return redirect(request, f"/jobs/{made.id}", "Job enqueued")


def _unmasked(viewer: Viewer, before: api.JobShape, given: dict[str, Any]) -> dict[str, Any]:
    """The arguments, with masks that were left in place replaced by that job's values."""
    record = operations.stored_job(viewer.app, before.id)
    if record is None:  # It was removed in the meantime, together with its arguments.
        return given
    function = api.callable_by_http(viewer.app, before.function)
    return unmask(given, function.signature.redacted, record.args)


def _moments(job: api.JobShape, *, is_due: bool) -> list[Moment]:
    found = [
        Moment("created", "pending", job.created_at_ms),
        Moment("due", "pending", job.run_at_ms if is_due else None),
        Moment("started", "running", job.started_at_ms),
        Moment(str(job.state), str(job.state), job.completed_at_ms),
    ]
    return [moment for moment in found if moment.at is not None]


def _took(job: api.JobShape, now: int) -> int | None:
    if job.started_at_ms is None:
        return None
    return max(0, (job.completed_at_ms or now) - job.started_at_ms)


def _retry(record: JobRecord) -> Retry | None:
    return decode_retry(record.retry)


def _backoffs(record: JobRecord) -> list[Backoff]:
    """The retries that may still follow, without jitter, which is not known yet."""
    policy = _retry(record)
    if policy is None or record.state.is_terminal:
        return []
    first = max(1, record.attempt)
    return [
        Backoff(attempt + 1, round(policy.delay_after(attempt, 0) * SECOND))
        for attempt in range(first, first + MAX_BACKOFFS)
        if policy.allows(attempt)
    ]
