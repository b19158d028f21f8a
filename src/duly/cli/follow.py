"""Follow a job to its end, with its progress."""

from __future__ import annotations

from typing import Any

from duly.cli.api import Api, ApiError
from duly.cli.out import Out

FINAL = frozenset({"succeeded", "failed", "canceled"})
MOST_TRIES = 10


def follow(api: Api, out: Out, job_id: str, title: str, *, lines: bool = False) -> dict[str, Any]:
    """The job when it has ended. `lines`: every event is printed as a line of JSON."""
    tries = 0
    with out.progress(title) as advance:
        while True:
            try:
                for event in api.events(job=job_id):
                    tries = 0
                    if event.name != "job":
                        continue
                    if lines:
                        out.line(event.data)
                    said: dict[str, Any] = event.data["progress"] or {}
                    word = said.get("note") or event.data["state"]
                    advance(round(said.get("value", 0) * 100), 100, word)
            except ApiError as error:
                # A connection may break; what became of the job is in the database.
                tries += 1
                if error.status or tries >= MOST_TRIES:
                    raise
            job: dict[str, Any] = api.get("/jobs/{}", job_id)
            if job["state"] in FINAL:
                return job
