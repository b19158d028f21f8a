"""What an app does with runs of workflows: find them, and decide their approvals."""

# Callers without a type checker may pass values that the types do not allow.
# pyright: reportUnnecessaryIsInstance=false

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from duly.calls.jobs import AsyncJob, Job, job_from
from duly.calls.verbs import Verbs, id_of
from duly.errors import ApprovalClosed, InvalidOption, JobNotFound
from duly.functions.checks import check_text
from duly.functions.function import Function
from duly.ids import is_id
from duly.model.audit import NewAuditEntry
from duly.model.keys import unfinished_key
from duly.model.schema import misfit
from duly.model.strict_json import fault
from duly.model.workflow import Decision, Request
from duly.runtime.transaction_guard import refuse_in_workflow, refuse_inside_mutation

if TYPE_CHECKING:
    from duly.core import Core


class WorkflowVerbs(Verbs):
    """Methods of the app about runs of workflows."""

    def find(self, workflow: Function[..., Any], key: str) -> Job[Any] | None:
        """Return the unfinished run with that key of `unique=Unique(…, "unfinished")`, or None."""
        refuse_in_workflow("find")
        record = self._core.ready().job_with_key(unfinished_key(workflow.name, key))
        if record is None:
            return None
        return job_from(self._core, self._core.redaction.shown(record), self._core.get)

    def approve(
        self,
        job: Job[Any] | AsyncJob[Any] | str,
        name: str = "approval",
        *,
        choice: str | None = None,
        data: Any = None,
        by: str | None = None,
    ) -> Decision:
        """Answer an approval of a run with one of its options; by default with the first.

        Raises ApprovalClosed if the run does not wait for it, and SelfApproval if `by` started the
        run and the approval has `self_approval=False`.
        """
        return decide(self._core, id_of(job), name, choice, data, by)

    def reject(
        self,
        job: Job[Any] | AsyncJob[Any] | str,
        name: str = "approval",
        *,
        data: Any = None,
        by: str | None = None,
    ) -> Decision:
        """Answer an approval of a run with its last option; see `approve`."""
        refuse_inside_mutation("reject")
        return reject(self._core, id_of(job), name, data, by)


def decide(
    core: Core,
    job_id: str,
    name: str,
    choice: str | None,
    data: Any,
    by: str | None,
    audit_entry: NewAuditEntry | None = None,
) -> Decision:
    """Answer an approval, and wake its run."""
    refuse_inside_mutation("approve")
    check_text("name", name)
    request = _request(core, job_id, name)
    options = request.options
    if choice is not None and choice not in options:
        raise InvalidOption("choice", f"must be one of {', '.join(options)}, not {choice!r}")
    if data is not None and (wrong := fault(data)):
        raise InvalidOption("data", wrong.reason)
    is_first = choice is None or choice == options[0]
    # Only an approval has to come with data.
    schema: object = request.schema
    if isinstance(schema, dict) and (is_first or data is not None):
        unfit = misfit(cast("dict[str, Any]", schema), data)
        if unfit is not None:
            raise InvalidOption("data" + unfit.path, unfit.reason)
    decision = core.ready().answer_approval(job_id, name, choice, data, by, core.now(), audit_entry)
    core.wake()
    return decision


def reject(
    core: Core,
    job_id: str,
    name: str,
    data: Any,
    by: str | None,
    audit_entry: NewAuditEntry | None = None,
) -> Decision:
    """Answer an approval with its last option, and wake its run."""
    options = _request(core, job_id, name).options
    if len(options) == 1:
        raise InvalidOption("name", f"approval {name!r} can only be answered with {options[0]!r}")
    return decide(core, job_id, name, options[-1], data, by, audit_entry)


def resume(core: Core, job_id: str, audit_entry: NewAuditEntry | None = None) -> bool:
    """Let a held run continue with any code; False if it is not held."""
    resumed = core.ready().resume_run(job_id, audit_entry)
    core.wake()
    return resumed


def _request(core: Core, job_id: str, name: str) -> Request:
    if not is_id(job_id):
        raise JobNotFound(job_id)
    store = core.ready()
    if store.get(job_id) is None:
        raise JobNotFound(job_id)
    request = store.request_of(job_id, name)
    if request is None:
        raise ApprovalClosed(job_id, name, "the workflow does not ask for it")
    return request
