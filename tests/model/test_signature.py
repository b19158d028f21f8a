from __future__ import annotations

import enum
import functools
import json
import math
import subprocess
import sys
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple, TypedDict
from zoneinfo import ZoneInfo

import attrs
import msgspec
import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st

from duly.errors import (
    ArgumentsTooLarge,
    InvalidArgument,
    InvalidFunction,
    SignatureMismatch,
    UnstorableResult,
)
from duly.model.signature import MAX_ARGS_BYTES, MAX_RESULT_BYTES, Signature

if TYPE_CHECKING:
    from fractions import Fraction

NAIVE = datetime(2026, 1, 2, 3, 4, 5)  # noqa: DTZ001
AWARE = NAIVE.replace(tzinfo=UTC)
NAN = math.nan


class Color(enum.Enum):
    RED = "red"


@dataclass
class Line:
    price: float
    tags: set[str] = field(default_factory=set)


class Point(msgspec.Struct, frozen=True):
    x: float
    y: float = 0.0


class Pair(NamedTuple):
    left: int
    right: str


class Options(TypedDict, total=False):
    depth: int


@attrs.define
class Weight:
    grams: float


class Order(pydantic.BaseModel):
    price: float
    due: datetime | None = None
    children: list[Order] = []


class Shipping(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(strict=True, extra="forbid")

    zip_code: str = pydantic.Field(alias="zipCode")
    day: date = pydantic.Field(serialization_alias="shippingDay")

    @pydantic.computed_field  # type: ignore[prop-decorator]
    @property
    def label(self) -> str:
        return f"{self.zip_code} {self.day}"


class Login(pydantic.BaseModel):
    password: pydantic.SecretStr


class Picky(pydantic.BaseModel):
    n: int

    @pydantic.field_validator("n")
    @classmethod
    def check(cls, n: int) -> int:
        return 1 // n


class Text(str):
    def __str__(self) -> str:
        return "not this"


def sign(function: Callable[..., object]) -> Signature:
    return Signature(function, function.__name__)


def send(ctx: object, to: int, body: str = "hi") -> str:
    return f"{to}{body}"


def order(ctx: object, items: list[Line], note: str | None = None, *, at: datetime = AWARE) -> None:
    pass


def anything(ctx: object, value) -> None:
    pass


def buy(ctx: object, order: Order, shipping: Shipping | None = None) -> Order:
    return order


def refusal(signature: Signature, *args: object, **kwargs: object) -> InvalidArgument:
    with pytest.raises(InvalidArgument) as caught:
        signature.encode(args, kwargs)
    assert caught.value.function == signature.name
    return caught.value


def round_trip(function: Callable[..., object], *args: object, **kwargs: object) -> dict[str, Any]:
    signature = sign(function)
    return signature.decode(signature.encode(args, kwargs))


# What is stored ----------------------------------------------------------------------------------


def test_arguments_are_stored_by_name_and_defaults_are_not() -> None:
    assert sign(send).encode((7,), {}) == '{"to":7}'
    assert sign(send).encode((7, "hi"), {}) == '{"to":7,"body":"hi"}'


def test_a_function_without_parameters_stores_an_empty_object() -> None:
    def nothing(ctx: object) -> None:
        pass

    assert sign(nothing).encode((), {}) == "{}"
    assert sign(nothing).decode("{}") == {}


def test_one_call_has_one_text_however_it_is_written() -> None:
    signature = sign(send)

    texts = {
        signature.encode((7, "x"), {}),
        signature.encode((7,), {"body": "x"}),
        signature.encode((), {"body": "x", "to": 7}),
    }

    assert texts == {'{"to":7,"body":"x"}'}


def test_omitted_arguments_stay_omitted_so_that_defaults_apply() -> None:
    assert sign(send).decode('{"to":7}') == {"to": 7}


def test_none_given_for_an_optional_argument_is_kept() -> None:
    assert round_trip(order, [], None) == {"items": [], "note": None}


def test_a_decorated_function_has_the_signature_of_what_it_wraps() -> None:
    @functools.wraps(send)
    def wrapper(*args: object, **kwargs: object) -> object:
        return send(*args, **kwargs)  # type: ignore[arg-type]

    assert refusal(Signature(wrapper, "send"), "x").argument == "to"


def test_text_outside_ascii_is_stored_as_it_is() -> None:
    assert sign(send).encode((1, "žluť\x00😀"), {}) == '{"to":1,"body":"žluť\\u0000😀"}'


# Types -------------------------------------------------------------------------------------------


def rich(
    ctx: object,
    line: Line,
    point: Point,
    pair: Pair,
    weight: Weight,
    options: Options,
    color: Color,
    choice: Literal["a", "b"],
    marked: Annotated[str, "a mark"],
    key: uuid.UUID,
    amount: Decimal,
    at: datetime,
    day: date,
    length: timedelta,
    data: bytes,
    numbers: tuple[int, ...],
    names: frozenset[str],
    points: dict[str, list[Point]],
    maybe: int | None,
    free: Any,
) -> None:
    pass


text = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
finite = st.floats(allow_nan=False, allow_infinity=False)
points = st.builds(Point, finite, finite)
plain = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**200), 2**200) | finite | text,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(text, inner, max_size=3),
    max_leaves=10,
)


@given(
    st.fixed_dictionaries(
        {
            "line": st.builds(Line, finite, st.sets(text)),
            "point": points,
            "pair": st.builds(Pair, st.integers(), text),
            "weight": st.builds(Weight, finite),
            "options": st.fixed_dictionaries({}, optional={"depth": st.integers()}),
            "color": st.sampled_from(Color),
            "choice": st.sampled_from(["a", "b"]),
            "marked": text,
            "key": st.uuids(),
            "amount": st.decimals(allow_nan=False),
            "at": st.datetimes(timezones=st.just(UTC)),
            "day": st.dates(),
            "length": st.timedeltas(timedelta(-10_000), timedelta(10_000)),
            "data": st.binary(max_size=20),
            "numbers": st.lists(st.integers()).map(tuple),
            "names": st.frozensets(text),
            "points": st.dictionaries(text, st.lists(points)),
            "maybe": st.none() | st.integers(),
            "free": plain,
        }
    )
)
def test_every_supported_type_comes_back_as_it_went_in(arguments: dict[str, Any]) -> None:
    signature = sign(rich)

    stored = signature.encode((), arguments)

    assert signature.decode(stored) == arguments
    json.loads(stored, parse_constant=pytest.fail)


def test_pydantic_models_come_back_as_models_whatever_their_aliases() -> None:
    given = Order(price=1.5, due=AWARE, children=[Order(price=2)])
    shipping = Shipping(zipCode="1234", day=date(2026, 1, 2))

    assert round_trip(buy, given, shipping) == {"order": given, "shipping": shipping}
    assert round_trip(buy, given, {"zipCode": "1", "day": "2026-01-02"})["shipping"].zip_code == "1"


def test_pydantic_is_not_imported_for_functions_that_do_not_use_it() -> None:
    code = (
        "import sys; from duly.model.signature import Signature\n"
        "def f(ctx, a: int): pass\n"
        "Signature(f, 'f').encode((1,), {})\n"
        "sys.exit('pydantic' in sys.modules)"
    )

    subprocess.run([sys.executable, "-c", code], check=True)


def test_subclasses_of_plain_types_are_stored_as_what_they_hold() -> None:
    class Count(int):
        pass

    class Share(float):
        pass

    given = [Text("this"), Count(3), Share(0.5)]

    assert sign(anything).encode((given,), {}) == '{"value":["this",3,0.5]}'


@pytest.mark.parametrize("number", [2**63, -(2**64), 10**400])
def test_integers_beyond_64_bits_come_back_exactly(number: int) -> None:
    assert round_trip(send, number) == {"to": number}
    assert round_trip(anything, number) == {"value": number}


# What is refused ---------------------------------------------------------------------------------


def test_a_missing_argument_is_named() -> None:
    assert (refusal(sign(send)).argument, refusal(sign(send)).reason) == ("to", "missing")


def test_an_unexpected_argument_is_named_with_the_known_ones() -> None:
    error = refusal(sign(send), 1, boddy="x")

    assert error.argument == "boddy"
    assert "to, body" in error.reason


def test_an_argument_given_twice_is_named() -> None:
    assert refusal(sign(send), 1, to=2).argument == "to"


def test_too_many_positional_arguments_are_counted() -> None:
    assert "3 positional arguments given, at most 2" in refusal(sign(send), 1, "a", "b").reason


def test_a_keyword_only_argument_cannot_be_positional() -> None:
    assert "at most 2" in refusal(sign(order), [], None, AWARE).reason


@pytest.mark.spec("R68")
def test_a_wrong_type_is_named_with_the_path_to_it() -> None:
    error = refusal(sign(order), [Line(1), Line(2), {"price": "3"}])

    assert error.argument == "items"
    assert error.reason == "Expected `float`, got `str` - at `items[2].price`"


@pytest.mark.spec("R68")
@pytest.mark.parametrize(
    "value",
    [object(), 1j, len, lambda: None, Color, {(1, 2): 3}, {None: 1}, {b"\xff": object()}, ...],
    ids=lambda value: type(value).__name__,
)
def test_what_is_no_json_is_refused_when_scheduled(value: object) -> None:
    assert refusal(sign(anything), [value]).argument == "value"


@pytest.mark.spec("R68")
def test_what_is_no_json_is_named_with_the_path_to_it() -> None:
    lines: list[Any] = [Line(1), Line(2, {object()})]  # type: ignore[arg-type]

    assert refusal(sign(order), lines).reason.endswith("- at `items[1].tags[0]`")
    assert refusal(sign(anything), {"a": [{(1, 2): 3}]}).reason == (
        "a key must be a string or number - at `value['a'][0]`"
    )


@pytest.mark.spec("R68")
def test_a_value_that_contains_itself_is_refused() -> None:
    loop: list[object] = []
    loop.append(loop)
    order = Order(price=1)
    order.children.append(order)

    assert "contains itself" in refusal(sign(anything), loop).reason
    assert "contains itself" in refusal(sign(anything), order).reason


def test_a_field_that_a_model_leaves_out_may_refer_back() -> None:
    class Node(pydantic.BaseModel):
        name: str | None = None
        owner: Any = pydantic.Field(default=None, exclude=True)

    node = Node()
    node.owner = [node]

    assert round_trip(anything, node) == {"value": {"name": None}}


@pytest.mark.spec("R68")
@pytest.mark.parametrize(
    ("value", "path"),
    [
        (NAN, ""),
        (math.inf, ""),
        ([0, -math.inf], "[1]"),
        ({"a": {"b": NAN}}, "['a']['b']"),
        ((1, (2, NAN)), "[1][1]"),
        (Line(NAN), ".price"),
        (Point(1, NAN), ".y"),
        (Weight(NAN), ".grams"),
        (Order(price=1, children=[Order(price=NAN)]), ".children[0].price"),
    ],
)
def test_nan_and_infinity_are_refused_wherever_they_hide(value: object, path: str) -> None:
    error = refusal(sign(anything), value)

    assert "is not a JSON number" in error.reason
    assert error.reason.endswith(f"`value{path}`" if path else "number")


def test_none_and_the_word_null_are_no_nan() -> None:
    assert round_trip(anything, [None, "null", 1.5]) == {"value": [None, "null", 1.5]}


@pytest.mark.parametrize(
    "value",
    [
        NAIVE,
        NAIVE.replace(microsecond=7),
        [NAIVE],
        {"at": NAIVE},
        {NAIVE: 1},
        Order(price=1, due=NAIVE),
    ],
    ids=repr,
)
def test_naive_datetimes_are_refused_wherever_they_hide(value: object) -> None:
    assert refusal(sign(anything), value).reason.startswith("naive datetime; attach a zone")


@pytest.mark.parametrize("written", ["2026-01-02T03:04:05", "2026-01-02 03:04:05.5"])
def test_a_string_that_would_become_a_naive_datetime_is_refused(written: str) -> None:
    assert refusal(sign(order), [], at=written).argument == "at"
    assert round_trip(anything, written) == {"value": written}


def test_the_zone_of_an_aware_datetime_is_kept() -> None:
    at = datetime(2026, 7, 1, 9, tzinfo=ZoneInfo("Europe/Istanbul"))

    stored = round_trip(order, [], at=at)["at"]

    assert stored == at
    assert stored.utcoffset() == timedelta(hours=3)


def test_strings_with_lone_surrogates_are_refused() -> None:
    assert refusal(sign(send), 1, "\ud800").argument == "body"
    assert refusal(sign(anything), {"\ud800": 1}).argument == "value"


def test_integers_with_more_digits_than_python_reads_are_refused() -> None:
    assert refusal(sign(send), 10**5000).argument == "to"


def test_a_boolean_is_no_integer() -> None:
    assert refusal(sign(send), True).argument == "to"


def test_a_model_that_refuses_its_data_names_the_field() -> None:
    error = refusal(sign(buy), {"price": 1, "children": [{"price": "x"}]})

    assert error.argument == "order"
    assert error.reason.startswith("children.0.price: ")


def test_a_validator_that_breaks_is_an_invalid_argument() -> None:
    def pick(ctx: object, many: list[Picky]) -> None:
        pass

    assert "ZeroDivisionError" in refusal(sign(pick), [{"n": 1}, {"n": 0}]).reason


def test_a_secret_is_not_stored_masked() -> None:
    login = Login(password=pydantic.SecretStr("hunter2"))

    assert "masks a secret" in refusal(sign(anything), [login]).reason


def test_arguments_at_the_limit_pass_and_one_byte_more_does_not() -> None:
    signature = sign(send)
    room = MAX_ARGS_BYTES - len(signature.encode((1, ""), {}))

    assert len(signature.encode((1, "x" * room), {})) == MAX_ARGS_BYTES
    with pytest.raises(ArgumentsTooLarge) as caught:
        signature.encode((1, "x" * (room + 1)), {})
    assert caught.value.size == MAX_ARGS_BYTES + 1


def test_the_limit_counts_bytes_not_characters() -> None:
    with pytest.raises(ArgumentsTooLarge):
        sign(send).encode((1, "é" * (MAX_ARGS_BYTES // 2)), {})


# Reading what was stored by other code -----------------------------------------------------------


@pytest.mark.parametrize(
    ("stored", "argument"),
    [
        ("{}", "'to'"),
        ('{"to":"7"}', "'to'"),
        ('{"to":7,"cc":8}', "'cc'"),
        ('{"to":7,"body":null}', "'body'"),
        ("[]", "send()"),
        ('{"to"', "send()"),
    ],
)
def test_a_stored_call_that_no_longer_fits_says_where(stored: str, argument: str) -> None:
    with pytest.raises(SignatureMismatch, match=r"^send\(\)") as caught:
        sign(send).decode(stored)
    assert argument in str(caught.value)


# Functions that cannot be stored -----------------------------------------------------------------


def test_variable_parameters_are_refused_with_a_hint() -> None:
    def many(ctx: object, *items: int) -> None:
        pass

    def named(ctx: object, **items: int) -> None:
        pass

    for function in (many, named):
        with pytest.raises(InvalidFunction, match="take a list or a dict"):
            sign(function)


def test_only_the_context_may_be_positional_only() -> None:
    def fine(ctx: object, /, a: int) -> None:
        pass

    def wrong(ctx: object, a: int, /) -> None:
        pass

    assert round_trip(fine, 1) == {"a": 1}
    with pytest.raises(InvalidFunction, match="'a' is positional-only"):
        sign(wrong)


def test_a_parameter_that_has_no_name_of_its_own_is_refused_where_it_is_declared() -> None:
    def fine(ctx: object, _a: int) -> None:
        pass

    def wrong(ctx: object, __a: int) -> None:
        pass

    assert round_trip(fine, 1) == {"_a": 1}
    with pytest.raises(InvalidFunction, match="'__a' cannot be stored by name"):
        sign(wrong)


def test_an_annotation_that_cannot_be_resolved_is_named_at_first_use() -> None:
    def halve(ctx: object, n: Fraction) -> None:
        pass

    signature = sign(halve)

    for use in (
        signature.resolve,
        lambda: signature.encode((1,), {}),
        lambda: signature.decode(""),
    ):
        with pytest.raises(InvalidFunction, match=r"halve\(\).*'Fraction' is not defined"):
            use()


def test_an_annotation_that_json_cannot_tell_apart_names_the_parameter() -> None:
    def confuse(ctx: object, a: int, b: list[int] | set[int]) -> None:
        pass

    with pytest.raises(InvalidFunction, match=r"confuse\(\): parameter 'b'"):
        sign(confuse).resolve()


# Results -----------------------------------------------------------------------------------------


def test_no_result_is_stored_for_none() -> None:
    assert sign(send).encode_result(None) is None
    assert sign(send).decode_result(None) is None


def test_results_come_back_as_the_return_annotation_says() -> None:
    signature = sign(buy)
    result = Order(price=1, due=NAIVE)

    assert signature.decode_result(signature.encode_result(result)) == result


def test_a_result_that_no_longer_fits_the_annotation_is_plain_data() -> None:
    assert sign(buy).decode_result('{"cost":1}') == {"cost": 1}


def test_a_return_annotation_that_json_does_not_know_gives_plain_data() -> None:
    def confuse(ctx: object) -> list[int] | set[int]:
        return []

    signature = sign(confuse)
    signature.resolve()

    assert signature.decode_result("[1]") == [1]


@pytest.mark.parametrize(
    ("result", "message"),
    [
        ({"a": [NAN]}, "nan is not a JSON number - at `result['a'][0]`"),
        ([Line(math.inf)], "inf is not a JSON number - at `result[0].price`"),
        ([1, object()], "object cannot be stored as JSON"),
        ("\ud800", "surrogates"),
        ("x" * MAX_RESULT_BYTES, "8,388,610 bytes, the limit is 8,388,608"),
    ],
    ids=["nan", "infinity", "object", "surrogate", "size"],
)
def test_a_result_that_is_no_strict_json_is_refused(result: object, message: str) -> None:
    with pytest.raises(UnstorableResult) as caught:
        sign(send).encode_result(result)
    assert message in str(caught.value)


@given(plain)
def test_plain_results_come_back_as_they_were(result: Any) -> None:
    def give(ctx: object) -> Any:
        return result

    signature = sign(give)

    assert signature.decode_result(signature.encode_result(result)) == result


# The schema --------------------------------------------------------------------------------------


def test_the_schema_lists_the_parameters_and_which_are_required() -> None:
    assert sign(send).json_schema() == {
        "title": "send",
        "type": "object",
        "properties": {"to": {"type": "integer"}, "body": {"type": "string"}},
        "required": ["to"],
        "additionalProperties": False,
    }


def test_the_schema_defines_the_classes_it_refers_to() -> None:
    schema = sign(order).json_schema()

    assert schema["properties"]["items"] == {"type": "array", "items": {"$ref": "#/$defs/Line"}}
    assert schema["$defs"]["Line"]["properties"]["price"] == {"type": "number"}


def test_the_schema_of_a_model_is_its_own_where_it_stands_alone() -> None:
    properties = sign(buy).json_schema()["properties"]

    assert properties["order"] == {"type": "object"}
    by_name, by_alias = properties["shipping"]["anyOf"][0]["anyOf"]
    assert "zip_code" in by_name["properties"]
    assert "zipCode" in by_alias["properties"]


def test_the_schema_of_an_unknown_class_is_any_object() -> None:
    def odd(ctx: object, thing: Exception) -> None:
        pass

    assert sign(odd).json_schema()["properties"] == {"thing": {"type": "object"}}
