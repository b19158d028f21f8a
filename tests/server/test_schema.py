"""The OpenAPI document is true: random requests, good and bad, never meet an error of the server.

Some 1,500 requests over both stores in the normal run, many more in `make torture`.
"""

import pytest

from duly import Duly
from tests.server.random_requests import ask_everything, furnish

REQUESTS = 700
"""On each store."""


def test_random_requests_meet_no_error_of_the_server(
    app: Duly, long_run: bool, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("KNOCK", "secret")
    app.dispatch.secrets = ["env:KNOCK"]
    specimens = furnish(app)
    assert ask_everything(app, specimens, REQUESTS * (20 if long_run else 1)) >= REQUESTS
