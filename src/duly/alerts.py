"""Telling somebody outside that a schedule is late: a POST, as a job that every worker can run."""

from __future__ import annotations

import re
from importlib import import_module
from importlib.util import find_spec
from typing import Any
from urllib.parse import urlsplit

from duly.context import Ctx
from duly.errors import InvalidOption, MissingExtra, NonRetryable
from duly.functions import Action, Options
from duly.model.retry import Retry

NAME = QUEUE = "duly.alert"
"""Every worker serves queues of duly's own, so a paused or busy one keeps no alert back."""
SECONDS = 10.0
RETRY = Retry(attempts=8, base=2, cap=600, jitter=1)
MAX_URL = 2_000
MAX_SHOWN = 200
NO_HOST = re.compile(r"""[\s<>"'{}|\\^`]""")


def is_address(alert: str) -> bool:
    """Whether an alert is an address, and not the name of a function."""
    return alert.startswith(("http://", "https://"))


def check_address(url: str) -> str:
    """The address, if something can be sent there."""
    if not _is_sound(url):
        raise InvalidOption(
            "alert", f"{url[:MAX_SHOWN]!r} is no address", "give a function, or https://host/path"
        )
    if urlsplit(url).password is not None:
        raise InvalidOption("alert", "an address with a password in it would be stored as it is")
    if find_spec("httpx2") is None:
        raise MissingExtra("http", "an alert that is sent to an address")
    return url


def _is_sound(url: str) -> bool:
    if not is_address(url) or len(url) > MAX_URL or not url.isprintable():
        return False
    try:
        parts = urlsplit(url)
        # Only asking for the port shows whether it can be one.
        return bool(parts.hostname) and parts.port != 0 and not NO_HOST.search(parts.netloc)
    except ValueError:
        return False


def alert_function() -> Action[[str, str, str], int]:
    """The function of duly's own that sends it; its result is the status of the answer."""

    def alert(ctx: Ctx, url: str, schedule_id: str, problem: str) -> int:
        http: Any = import_module("httpx2")
        said = {"schedule_id": schedule_id, "problem": problem, "alert_id": ctx.job_id}
        headers = {"Idempotency-Key": ctx.job_id}
        answer = http.post(url, json=said, headers=headers, timeout=SECONDS)
        status = int(answer.status_code)
        if 400 <= status < 500 and status not in (408, 425, 429):
            raise NonRetryable(f"the address answered {status}")
        if status >= 300:
            raise RuntimeError(f"the address answered {status}")
        return status

    return Action(alert, NAME, Options(queue=QUEUE, retry=RETRY, timeout=3 * SECONDS))
