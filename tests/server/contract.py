"""What the server answers is what its OpenAPI document says, request by request."""

import re
from functools import cache
from typing import Any

from jsonschema import Draft202012Validator
from starlette.testclient import TestClient

PREFIX = "/api/v1"
_document: dict[str, Any] = {}


def document(client: TestClient) -> dict[str, Any]:
    """The document; it is the same for every app."""
    if not _document:
        _document.update(client.get(f"{PREFIX}/openapi.json").json())
    return _document


def check(client: TestClient, method: str, template: str, response: Any) -> None:
    """Fail unless the document allows this answer of the operation."""
    responses = _operation(client, method, template)["responses"]
    said = responses.get(str(response.status_code)) or responses.get("default")
    assert said is not None, f"{method} {template} says nothing of {response.status_code}"
    if response.status_code == 204:
        assert response.content == b""
        return
    kind = response.headers["content-type"].partition(";")[0]
    assert kind in said["content"], f"{method} {template}: {kind} is not documented"
    if kind == "application/json":
        status = str(response.status_code)
        status = status if status in responses else "default"
        _validator(method, template, status).validate(response.json())


def check_request(client: TestClient, method: str, template: str, json: Any) -> None:
    """Fail unless the document allows this body."""
    assert "requestBody" in _operation(client, method, template), f"{template} takes no body"
    _validator(method, template, None).validate(json)


def _operation(client: TestClient, method: str, template: str) -> dict[str, Any]:
    document(client)
    return _documented(method, template)


@cache
def _documented(method: str, template: str) -> dict[str, Any]:
    """The operation, whatever the document calls what stands in the path."""
    shape = _shape(template)
    for path, operations in _document["paths"].items():
        if _shape(path) == shape and method.lower() in operations:
            found: dict[str, Any] = operations[method.lower()]
            return found
    raise AssertionError(f"{method} {template} is not documented")


def _shape(template: str) -> str:
    return re.sub(r"{\w+}", "{}", template)


@cache
def _validator(method: str, template: str, status: str | None) -> Draft202012Validator:
    operation = _documented(method, template)
    part = operation["requestBody"] if status is None else operation["responses"][status]
    schema = part["content"]["application/json"]["schema"]
    return Draft202012Validator({**schema, "components": _document["components"]})


class Api:
    """A client of the API that checks every answer, and every body that was taken."""

    def __init__(self, client: TestClient, headers: dict[str, str] | None = None) -> None:
        self.client = client
        self.headers = headers or {}

    def __call__(
        self,
        method: str,
        template: str,
        json: Any = None,
        *,
        status: int = 200,
        key: str | None = None,
        params: dict[str, Any] | None = None,
        **path: str,
    ) -> Any:
        """The answer's body, if it has the expected status."""
        headers = self.headers | ({} if key is None else {"Idempotency-Key": key})
        response = self.client.request(
            method, PREFIX + template.format(**path), json=json, params=params, headers=headers
        )
        assert response.status_code == status, f"{response.status_code}: {response.text}"
        check(self.client, method, PREFIX + template, response)
        if json is not None and status < 300:
            check_request(self.client, method, PREFIX + template, json)
        is_json = response.headers.get("content-type") == "application/json"
        return response.json() if is_json and response.content else response.text

    def get(self, template: str, **given: Any) -> Any:
        return self("GET", template, **given)

    def post(self, template: str, json: Any = None, **given: Any) -> Any:
        return self("POST", template, json, **given)

    def put(self, template: str, json: Any = None, **given: Any) -> Any:
        return self("PUT", template, json, **given)

    def patch(self, template: str, json: Any = None, **given: Any) -> Any:
        return self("PATCH", template, json, **given)

    def delete(self, template: str, **given: Any) -> Any:
        return self("DELETE", template, **given)

    def error(self, method: str, template: str, json: Any = None, **given: Any) -> Any:
        """What the answer says of the error."""
        return self(method, template, json, **given)["error"]
