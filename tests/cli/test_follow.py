"""Following a job while its server goes away, comes back, or ends its streams early."""

from __future__ import annotations

import json
from collections.abc import Callable, Generator, Mapping
from typing import Any

import pytest

from duly.cli.api import BASE, Api, ApiError, Reply
from duly.cli.follow import follow
from duly.cli.jobs import logs
from duly.cli.out import Out
from duly.cli.root import Root

AWAY = ApiError("cannot reach it")


class Timed(Api):
    """A server that answers by what time it is; only pauses let time pass."""

    where = "the server"

    def __init__(self, monkeypatch: pytest.MonkeyPatch, answer: Callable[[str, float], Any]):
        self.now = 0.0
        self.requests = 0
        self._answer = answer
        for module in ("follow", "jobs"):
            monkeypatch.setattr(f"duly.cli.{module}.os_sleep", self._sleep)
        monkeypatch.setattr("duly.cli.follow.os_monotonic", lambda: self.now)

    def _sleep(self, seconds: float) -> None:
        self.now += seconds

    def send(self, method: str, target: str, headers: Mapping[str, str], body: bytes) -> Reply:
        self.requests += 1
        return Reply(200, json.dumps(self._answer(target.removeprefix(BASE), self.now)).encode())

    def stream(self, target: str) -> Generator[bytes]:
        self.requests += 1
        yield from self._answer(target.removeprefix(BASE), self.now)


def following(api: Api) -> dict[str, Any]:
    return follow(api, Out(as_json=True, tz=None), "x", "title")


def test_a_server_that_is_restarted_is_waited_for(monkeypatch: pytest.MonkeyPatch):
    def answer(target: str, now: float) -> Any:
        if 5 <= now < 50:
            raise ApiError("bad gateway", status=502) if now < 20 else AWAY
        if target.startswith("/events"):
            return []
        return {"state": "succeeded" if now > 100 else "running"}

    api = Timed(monkeypatch, answer)
    assert following(api)["state"] == "succeeded"
    assert 100 < api.now < 103
    assert api.requests <= 2 * (api.now + 1), "a stream that ends early is not asked for at once"


@pytest.mark.parametrize(("error", "after"), [(AWAY, 60), (ApiError("not yours", status=403), 0)])
def test_one_that_stays_away_or_refuses_is_not(
    monkeypatch: pytest.MonkeyPatch, error: ApiError, after: float
):
    def answer(target: str, now: float) -> Any:
        if now >= 500:
            raise error
        return [] if target.startswith("/events") else {"state": "running"}

    api = Timed(monkeypatch, answer)
    with pytest.raises(ApiError, match=str(error)):
        following(api)
    assert api.now == 500 + after


def test_lines_are_shown_within_a_second(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    shown: dict[float, str] = {}
    job_id = "01900000-0000-7000-8000-000000000000"

    def answer(target: str, now: float) -> Any:
        shown[now] = shown.get(now, "") + capsys.readouterr().out
        if 2 < now < 6:
            raise AWAY
        if "/logs" not in target:
            return {"id": job_id, "state": "succeeded" if now >= 9 else "running"}
        after = int(target.partition("after=")[2])
        lines = [{"seq": n, "text": f"line {n}"} for n in range(after + 1, int(now) + 1)]
        return {"items": lines, "next": None}

    root = Root(None, None, None, None)
    root.out = Out(as_json=True, tz=None)
    root.api = Timed(monkeypatch, answer)
    logs.main([job_id, "--follow"], obj=root, standalone_mode=False)
    texts = [json.loads(line)["text"] for line in "".join(shown.values()).splitlines()]
    texts += [json.loads(line)["text"] for line in capsys.readouterr().out.splitlines()]
    assert texts == [f"line {n}" for n in range(1, 10)]
    assert "line 1" in shown[2]
