"""The judge of published schemas agrees with those who wrote them."""

import datetime as dt
import decimal
import enum
import uuid
from typing import Annotated, Any, Literal

import msgspec
import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st

from duly.model.schema import Misfit, misfit


class Item(msgspec.Struct, forbid_unknown_fields=True):
    price: float
    tags: list[str] = []
    parts: list["Item"] = []


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


TYPES: list[Any] = [
    int,
    float,
    str,
    bool,
    None,
    int | None,
    list[int],
    dict[str, int],
    tuple[int, str],
    list[tuple[int, ...]],
    Colour,
    Literal["a", 1],
    Item,
    list[Item] | None,
    Annotated[int, msgspec.Meta(ge=2, lt=9)],
    Annotated[str, msgspec.Meta(min_length=2, max_length=3)],
    Annotated[list[int], msgspec.Meta(min_length=1, max_length=2)],
    Annotated[str, msgspec.Meta(pattern="^a+$")],
    uuid.UUID,
    dt.date,
    decimal.Decimal,
    decimal.Decimal | None,
]

leaves = (
    st.none()
    | st.booleans()
    | st.integers(-3, 12)
    | st.floats(-3, 12, allow_nan=False).map(lambda f: round(f, 2))
    | st.sampled_from(
        ["", "a", "aa", "aaaa", "red", "x", "2026-11-15", "2026-13-01", str(uuid.UUID(int=7))]
    )
)
values = st.recursive(
    leaves,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["price", "tags", "parts", "z"]), inner, max_size=3)
    ),
    max_leaves=6,
)


def fits(kind: Any, value: object) -> bool:
    try:
        msgspec.json.decode(msgspec.json.encode(value), type=kind)
    except msgspec.ValidationError:
        return False
    return True


@given(st.sampled_from(TYPES), values)
def test_it_judges_as_msgspec_does(kind: Any, value: object):
    schema = msgspec.json.schema(kind)
    assert (misfit(schema, value) is None) == fits(kind, value), (schema, value)


class Order(pydantic.BaseModel):
    number: int = pydantic.Field(gt=0)
    mail: str | None = None


@pytest.mark.parametrize(
    ("value", "fault"),
    [
        ({"number": 1}, None),
        ({"number": 1, "mail": None}, None),
        ({"number": 0}, Misfit(".number", "expected more than 0")),
        ({"mail": "a"}, Misfit(".number", "missing")),
        ({"number": 1, "mail": 2}, Misfit(".mail", "expected string or null, got integer")),
        ([], Misfit("", "expected object, got array")),
    ],
)
def test_it_judges_what_pydantic_writes(value: object, fault: Misfit | None):
    assert misfit(Order.model_json_schema(), value) == fault


@pytest.mark.parametrize(
    ("schema", "value", "fault"),
    [
        ({"items": {"type": "integer"}}, [1, "x"], Misfit("[1]", "expected integer, got string")),
        ({"const": True}, 1, Misfit("", "expected True")),
        ({"enum": [1]}, True, Misfit("", "expected one of 1")),
        ({"multipleOf": 3}, 4, Misfit("", "expected a multiple of 3")),
        ({"type": "integer"}, 4.0, Misfit("", "expected integer, got number")),
        ({"enum": [1]}, 1.0, Misfit("", "expected one of 1")),
        ({"type": "string", "format": "decimal"}, 1.5, None),
        ({"type": "string", "format": "decimal"}, 3, None),
        (
            {"type": "string", "format": "decimal"},
            True,
            Misfit("", "expected string or number, got boolean"),
        ),
        ({"multipleOf": 0.1}, 0.3, None),
        ({"multipleOf": 0.1}, 10**400, None),
        ({"multipleOf": 0.1}, 0.35, Misfit("", "expected a multiple of 0.1")),
        ({"pattern": r"^\p{L}+$"}, "7", None),
        ({"allOf": [{"minimum": 3}, {"maximum": 5}]}, 6, Misfit("", "expected at most 5")),
        ({"$ref": "#/nowhere"}, 6, None),
        ({"unheardOf": 1}, 6, None),
        (False, 1, Misfit("", "not allowed")),
        (True, 1, None),
    ],
)
def test_each_keyword(schema: Any, value: object, fault: Misfit | None):
    assert misfit(schema, value) == fault


def test_a_schema_that_contains_itself_ends():
    endless = {"$ref": "#"}
    assert misfit(endless, 1) == Misfit("", "nested too deeply")


@pytest.mark.parametrize("depth", [60, 110, 400])
def test_a_value_may_be_as_deep_as_it_likes(depth: int):
    tree: dict[str, Any] = {"price": 1}
    for _ in range(depth):
        tree = {"price": 1, "parts": [tree]}
    assert misfit(msgspec.json.schema(Item), tree) is None
