"""What a service without the code may call, and what its workers can read."""

from dataclasses import dataclass
from typing import Annotated, Any

import pydantic
import pytest

from duly import Ctx, Duly, ManualClock, Redact
from duly.errors import InvalidArgument
from tests.jobs.support import Database, Hire


@pytest.fixture
def other(url: str, app: Duly, clock: ManualClock):
    """Another service on the same database, without the code of the first."""
    service = Duly(url, name="other", clock=clock)
    yield service
    service.close()


@pytest.mark.spec("R69")
def test_what_a_call_by_name_stores_can_be_read_by_the_worker(
    app: Duly, other: Duly, hire: Hire, db: Database
):
    @app.action
    def count(ctx: Ctx, number: int) -> int:
        return number

    worker = hire()
    with pytest.raises(InvalidArgument, match="expected integer, got number"):
        other.run(other.function("count"), number=3.0)
    assert db.count("@jobs") == 0
    job = other.run(other.function("count"), number=3)
    worker.work()
    assert job.result(0) == 3


class Address(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="forbid", serialize_by_alias=True)

    zip_code: str = pydantic.Field(
        validation_alias="zipCode", serialization_alias="ZIP", pattern=r"^[\p{L}0-9]+$"
    )


NOT_GIVEN = object()


@dataclass
class Options:
    limit: Any = NOT_GIVEN


@pytest.mark.spec("R69")
@pytest.mark.parametrize("form", ["zip_code", "zipCode"])
def test_a_call_by_name_fits_a_model_by_its_fields_and_by_their_aliases(
    app: Duly, other: Duly, hire: Hire, form: str
):
    @app.action
    def send(ctx: Ctx, to: Address) -> str:
        return to.zip_code

    worker = hire()
    job = other.run(other.function("send"), to={form: "1234AB"})
    with pytest.raises(InvalidArgument, match="to"):
        other.run(other.function("send"), to={"zip": "1234AB"})
    declared = other.declare(name="send")(stub_of_send)
    second = other.run(declared, Address.model_validate({"zipCode": "5678CD"}))
    worker.work()
    assert (job.result(0), second.result(0)) == ("1234AB", "5678CD")


def stub_of_send(to: Address) -> str:
    raise NotImplementedError


@pytest.mark.spec("R69")
def test_a_class_that_has_no_schema_does_not_stop_the_worker(app: Duly, other: Duly, hire: Hire):
    @app.action
    def search(ctx: Ctx, text: str, options: Options, token: Annotated[str, Redact]) -> str:
        return text

    worker = hire()
    schema = search.signature.json_schema()
    assert schema["properties"]["options"] == {}
    assert schema["properties"]["token"] == {"writeOnly": True}
    with pytest.raises(InvalidArgument, match="expected string, got integer"):
        other.run(other.function("search"), text=7, options={}, token="swordfish")
    with pytest.raises(InvalidArgument, match="missing"):
        other.run(other.function("search"), text="a", token="swordfish")
    job = other.run(other.function("search"), text="a", options={}, token="swordfish")
    worker.work()
    assert job.result(0) == "a"
