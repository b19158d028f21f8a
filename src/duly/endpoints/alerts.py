"""Sends the alert of a late schedule: a POST, as a job that every worker can run."""

from __future__ import annotations

import msgspec

from duly.calls.context import Ctx
from duly.calls.kinds import Action
from duly.errors import AddressRefused, InvalidOption, NonRetryable
from duly.functions.options import Options
from duly.model.retry import Retry
from duly.runtime.outbound import Client, parse_url

NAME = QUEUE = "duly.alert"
"""Every worker serves duly's own queues, so no paused or busy queue holds up an alert."""
TIMEOUT_SECONDS = 10.0
RETRY = Retry(attempts=8, cap=600)


def is_address(alert: str) -> bool:
    """Whether an alert is a URL rather than the name of a function."""
    return alert.startswith(("http://", "https://"))


def check_address(url: str) -> str:
    """The URL, if it is one to which a request can be sent."""
    try:
        parse_url(url)
    except AddressRefused as error:
        raise InvalidOption("alert", str(error), "or give a function") from None
    return url


def alert_function(client: Client) -> Action[[str, str, str], int]:
    """duly's own function that sends the alert; its result is the status of the response."""

    def alert(ctx: Ctx, url: str, schedule_id: str, problem: str) -> int:
        said = {"schedule_id": schedule_id, "problem": problem, "alert_id": ctx.job_id}
        headers = {"Idempotency-Key": ctx.job_id}
        body = msgspec.json.encode(said)
        status = client.post(url, body, headers, seconds=TIMEOUT_SECONDS).status
        if 400 <= status < 500 and status not in (408, 425, 429):
            raise NonRetryable(f"the address responded with status {status}")
        if status >= 300:
            raise RuntimeError(f"the address responded with status {status}")
        return status

    return Action(alert, NAME, Options(queue=QUEUE, retry=RETRY, timeout=3 * TIMEOUT_SECONDS))
