"""Follows a job until it ends, and shows its progress."""

from __future__ import annotations

from typing import Any

from duly.cli.api import Api, ApiError
from duly.cli.out import Out
from duly.clock import os_monotonic, os_sleep

FINAL = frozenset({"succeeded", "failed", "canceled"})
PAUSE_SECONDS = 1.0
PATIENCE_SECONDS = 60.0
PASSING = frozenset({0, 502, 503, 504})
"""No response at all, or a proxy's response while the server restarts."""


class Patience:
    """Tolerates a server that is away for a while; the job is safe in the database."""

    def __init__(self) -> None:
        self._silent_since: float | None = None

    def heard(self) -> None:
        self._silent_since = None

    def bear(self, error: ApiError) -> None:
        """Raise the error if it is not transient, or if the server has been silent for too long."""
        now = os_monotonic()
        if self._silent_since is None:
            self._silent_since = now
        if error.status not in PASSING or now - self._silent_since >= PATIENCE_SECONDS:
            raise error


def follow(api: Api, out: Out, job_id: str, title: str, *, lines: bool = False) -> dict[str, Any]:
    """The job after it has ended. With `lines`, print every event as a line of JSON."""
    patience = Patience()
    with out.progress(title) as advance:
        while True:
            try:
                for event in api.events(job=job_id):
                    patience.heard()
                    if event.name != "job":
                        continue
                    if lines:
                        out.line(event.data)
                    said: dict[str, Any] = event.data["progress"] or {}
                    word = said.get("note") or event.data["state"]
                    advance(round(said.get("value", 0) * 100), 100, word)
            except ApiError as error:
                patience.bear(error)
            try:
                job: dict[str, Any] = api.get("/jobs/{}", job_id)
                patience.heard()
                if job["state"] in FINAL:
                    return job
            except ApiError as error:
                patience.bear(error)
            # Pause between streams, in case each one ends immediately.
            os_sleep(PAUSE_SECONDS)
