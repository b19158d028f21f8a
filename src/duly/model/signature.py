"""Encodes a job's arguments for the store, and checks that they fit the function.

Arguments are stored as one JSON object with the parameter names as keys. It has what the caller
gave, without defaults, so changing a default also affects waiting jobs. Before the text is stored
it is read back against the annotations: a job that could not run is refused when it is enqueued.
Parameters without an annotation get plain JSON data.
"""

from __future__ import annotations

import dataclasses
import inspect
import math
import re
import sys
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import datetime
from functools import cache, cached_property
from typing import Any, cast

import msgspec
from msgspec import UNSET

from duly.errors import (
    ArgumentsTooLarge,
    InvalidArgument,
    InvalidFunction,
    SignatureMismatch,
    UnstorableResult,
)
from duly.model.redact import contains_mark, is_redacted, redacted_in, scrub
from duly.model.schema import misfit

MAX_ARGS_BYTES = 8 << 20
MAX_RESULT_BYTES = 8 << 20
DOES_NOT_FIT = "does not fit"
"""The only reason given for a redacted argument."""


class Signature:
    """The parameters of one function, without the context.

    Annotations are resolved at first use, since they may name classes that are defined later.
    """

    def __init__(
        self, function: Callable[..., object], name: str, *, has_context: bool = True
    ) -> None:
        self.name = name
        self._function = function
        parameters = _parameters(function, name, has_context)
        self._names = tuple(parameter.name for parameter in parameters)
        self._positional = tuple(p.name for p in parameters if p.kind is not p.KEYWORD_ONLY)
        self._optional = tuple(p.name for p in parameters if p.default is not p.empty)

    def resolve(self) -> None:
        """Resolve the annotations now, so that errors in them appear before any job runs."""
        _ = self._decoder, self._result_decoder

    def is_sound(self) -> bool:
        """Whether the annotations can be resolved."""
        try:
            self.resolve()
        except InvalidFunction:
            return False
        return True

    # Arguments -----------------------------------------------------------------------------------

    def encode(self, args: tuple[object, ...], kwargs: Mapping[str, object]) -> str:
        """Encode the arguments of one call as JSON text that is known to match the function.

        Raises InvalidArgument, which names the argument, or ArgumentsTooLarge.
        """
        decoder = self._decoder
        given = self._bind(args, kwargs)
        try:
            data = _encode(given)
        except Exception as error:
            raise self._unencodable(given, error) from self._cause(error)
        if len(data) > MAX_ARGS_BYTES:
            raise ArgumentsTooLarge(self.name, len(data), MAX_ARGS_BYTES)
        maybe_naive = _time_without_zone(data)
        if maybe_naive or b"null" in data or _MASK in data:
            self._refuse_lossy(given)
        try:
            values = decoder.decode(data)
        except Exception as error:
            raise InvalidArgument(self.name, *self._misfit(data, error)) from self._cause(error)
        if maybe_naive:
            # A string given for a datetime has only become one now.
            self._refuse_lossy(msgspec.structs.asdict(values))
        return data.decode()

    def _bind(self, args: tuple[object, ...], kwargs: Mapping[str, object]) -> dict[str, object]:
        """The arguments by name, in the order of the signature."""
        given = dict(zip(self._positional, args, strict=False))
        if len(given) < len(args):
            raise self._too_many(args)
        if not kwargs:
            return given
        for name in kwargs:
            if name in given:
                raise InvalidArgument(self.name, name, "given twice")
            if name not in self._names:
                raise InvalidArgument(self.name, name, self._unexpected())
        given.update(kwargs)
        # A call always has the same text, whatever the order of its keywords.
        return {name: given[name] for name in self._names if name in given}

    def decode(self, text: str) -> dict[str, object]:
        """Decode the keyword arguments of a call; SignatureMismatch if they no longer match."""
        decoder = self._decoder
        try:
            values = msgspec.structs.asdict(decoder.decode(text))
        except Exception as error:
            argument, reason = self._misfit(text, error)
            raise SignatureMismatch(
                f"{self.name}(): stored argument {argument!r} no longer fits: {reason}"
            ) from self._cause(error)
        for name in self._optional:
            if values[name] is UNSET:
                del values[name]
        return values

    @cached_property
    def redacted(self) -> frozenset[str]:
        """The redacted arguments."""
        return frozenset(name for name in self._names if is_redacted(self._hint(name)))

    def scrub(self, text: str, args: str) -> str:
        """A text about a call, with the values of redacted arguments masked."""
        return scrub(text, self._secrets(args)) if self.redacted else text

    def _secrets(self, args: str) -> Iterator[object]:
        """Everything inside the redacted arguments, as stored and as passed to the function."""
        stored = msgspec.json.decode(args, type=dict[str, Any])
        try:
            given = self.decode(args)
        except SignatureMismatch:
            given = stored
        for name in self.redacted & stored.keys():
            # A stored key may be a field name; in the decoded value it is data.
            yield from _parts(stored[name], keys=False)
            yield from _parts(given[name], keys=True)

    def json_schema(self) -> dict[str, Any]:
        """The JSON Schema of the arguments; a type without a schema accepts anything."""
        hints = {name: self._hint(name) for name in self._names if name not in self.redacted}
        described = {name: hint for name, hint in hints.items() if _has_schema(hint)}
        parts, definitions = _schemas(described.values())
        properties = dict.fromkeys(self._names, _ANYTHING)
        properties |= dict(zip(described, parts, strict=True))
        # No details of a redacted argument: a schema includes the defaults of its fields.
        properties |= {name: {"writeOnly": True} for name in self.redacted}
        schema: dict[str, Any] = {
            "title": self.name,
            "type": "object",
            "properties": properties,
            "required": [name for name in self._names if name not in self._optional],
            "additionalProperties": False,
        }
        return {**schema, "$defs": definitions} if definitions else schema

    @cached_property
    def schema_text(self) -> str:
        """The schema as JSON text, computed once."""
        return msgspec.json.encode(self.json_schema()).decode()

    # Results -------------------------------------------------------------------------------------

    def encode_result(self, value: object) -> str | None:
        """Encode a function's result as JSON text; None stays None."""
        if value is None:
            return None
        try:
            data = _encode(value)
        except Exception as error:
            path, reason = _unencodable(value, error)
            raise self._unstorable(reason + _at("result", path)) from error
        if len(data) > MAX_RESULT_BYTES:
            raise self._unstorable(f"{len(data):,} bytes, the limit is {MAX_RESULT_BYTES:,}")
        if b"null" in data and (found := _find(value, _not_finite)):
            raise self._unstorable(found[1] + _at("result", found[0]))
        return data.decode()

    def decode_result(self, text: str | None) -> Any:
        """The result in the annotated return type, or as plain JSON data if that has changed."""
        if text is None:
            return None
        decoder = self._result_decoder
        try:
            return decoder.decode(text)
        except Exception:
            return msgspec.json.decode(text)

    def result_fault(self, value: object) -> str | None:
        """How a result does not match the return annotation, after it was stored and read."""
        try:
            self._result_decoder.decode(self.encode_result(value) or "null")
        except msgspec.ValidationError as error:
            return str(error)
        except Exception:
            return None  # It cannot be stored, which fails the job, or cannot be checked.
        return None

    # Annotations ---------------------------------------------------------------------------------

    @cached_property
    def _hints(self) -> dict[str, Any]:
        try:
            hints = typing.get_type_hints(self._function, include_extras=True)
        except (AttributeError, NameError, SyntaxError, TypeError) as error:
            raise InvalidFunction(
                f"{self.name}(): an annotation cannot be resolved: {error}; "
                "import the name in the module itself, not only for type checkers"
            ) from error
        self._refuse_lost_marks(hints)
        return hints

    def _refuse_lost_marks(self, hints: Mapping[str, Any]) -> None:
        """Refuse a Redact that would hide nothing."""
        for name in self._names:
            hint = hints.get(name)
            if contains_mark(hint) and not is_redacted(hint):
                raise InvalidFunction(
                    f"{self.name}(): parameter {name!r}: Redact hides a whole argument, not a part "
                    "of one; write Annotated[..., Redact] around its type"
                )
        if contains_mark(hints.get("return")):
            raise InvalidFunction(f"{self.name}(): Redact is for arguments; results are shown")

    def _hint(self, name: str) -> Any:
        return self._hints.get(name, Any)

    @cached_property
    def _struct(self) -> type[msgspec.Struct]:
        fields = [
            # An omitted argument stays UNSET, so that the function's own default applies.
            (name, self._hint(name), UNSET) if name in self._optional else (name, self._hint(name))
            for name in self._names
        ]
        return msgspec.defstruct(self.name, fields, forbid_unknown_fields=True, kw_only=True)

    @cached_property
    def _decoder(self) -> msgspec.json.Decoder[Any]:
        try:
            return msgspec.json.Decoder(self._struct, dec_hook=_dec_hook)
        except (AttributeError, NameError, SyntaxError, TypeError) as error:
            name, reason = self._unusable_annotation(error)
            raise InvalidFunction(f"{self.name}(): parameter {name!r}: {reason}") from error

    @cached_property
    def _result_decoder(self) -> msgspec.json.Decoder[Any]:
        try:
            return msgspec.json.Decoder(self._hint("return"), dec_hook=_dec_hook)
        except (AttributeError, NameError, SyntaxError, TypeError):
            return msgspec.json.Decoder()

    def _unusable_annotation(self, error: Exception) -> tuple[str, str]:
        for name in self._names:
            try:
                msgspec.json.Decoder(self._hint(name))
            except Exception as reason:
                return name, str(reason)
        return self._names[0], str(error)

    # Errors --------------------------------------------------------------------------------------

    def _too_many(self, args: tuple[object, ...]) -> InvalidArgument:
        position = len(self._positional) + 1
        reason = f"{len(args)} positional arguments given, at most {position - 1} are accepted"
        return InvalidArgument(self.name, f"#{position}", reason)

    def _unexpected(self) -> str:
        return f"unexpected; the parameters are: {', '.join(self._names) or 'none'}"

    def _unencodable(self, given: dict[str, object], error: Exception) -> InvalidArgument:
        for name, value in given.items():
            if failure := _failure(value):
                path, reason = _unencodable(value, failure)
                return InvalidArgument(
                    self.name, name, self._for_people(name, reason + _at(name, path))
                )
        return InvalidArgument(self.name, "*", self._for_people("*", str(error)))

    def _refuse_lossy(self, values: dict[str, object]) -> None:
        for name, value in values.items():
            if found := _find(value, _lossy):
                path, reason = found
                # A path contains keys.
                place = "" if name in self.redacted else _at(name, path)
                raise InvalidArgument(self.name, name, reason + place)

    def _misfit(self, data: bytes | str, error: Exception) -> tuple[str, str]:
        """The argument that does not match, and the reason."""
        try:
            given = msgspec.json.decode(data, type=dict[str, msgspec.Raw])
        except Exception:
            return "*", self._for_people("*", str(error))
        for name in self._names:
            if name not in self._optional and name not in given:
                return name, "missing"
        for name, value in given.items():
            if name not in self._names:
                return name, self._unexpected()
            if reason := self._misfit_of(name, value):
                return name, self._for_people(name, reason)
        return "*", self._for_people("*", str(error))

    def _misfit_of(self, name: str, value: msgspec.Raw) -> str | None:
        try:
            msgspec.json.decode(value, type=self._hint(name), dec_hook=_dec_hook)
        except Exception as error:
            # msgspec appends the path inside: - at `$[2].price`
            return str(error).replace("`$", f"`{name}")
        return None

    def _for_people(self, name: str, reason: str) -> str:
        """Why an argument, or "*" for any of them, is refused, without redacted values."""
        # Some reasons repeat the value, as for enumerations. A path contains keys.
        hidden = self.redacted if name == "*" else self.redacted & {name}
        return DOES_NOT_FIT if hidden else reason

    def _cause(self, error: Exception) -> Exception | None:
        """The cause of a refusal; none if it could repeat a redacted value."""
        return None if self.redacted else error

    def _unstorable(self, reason: str) -> UnstorableResult:
        return UnstorableResult(f"{self.name}(): the result cannot be stored: {reason}")


class PublishedSignature(Signature):
    """The parameters of a function whose code is elsewhere, from its published schema."""

    def __init__(self, name: str, schema: Mapping[str, Any]) -> None:
        self.name = name
        self._schema = schema
        self._names = tuple(schema.get("properties", ()))
        self._positional = ()
        required = schema.get("required", ())
        self._optional = tuple(name for name in self._names if name not in required)
        self.redacted = redacted_in(schema)
        self._hints = {}

    def encode(self, args: tuple[object, ...], kwargs: Mapping[str, object]) -> str:
        text = super().encode(args, kwargs)
        check_against(self.name, self._schema, text)
        return text

    def json_schema(self) -> dict[str, Any]:
        return dict(self._schema)


def check_against(name: str, schema: Mapping[str, Any], args: str) -> None:
    """Refuse arguments that do not match a published schema."""
    given = msgspec.json.decode(args, type=dict[str, Any])
    found = misfit(schema, given)
    if found is not None:
        argument, _, rest = found.path.lstrip(".").partition(".")
        argument, bracket, inside = argument.partition("[")
        if argument in given and argument in redacted_in(schema):
            raise InvalidArgument(name, argument, DOES_NOT_FIT)
        path = bracket + inside + ("." + rest if rest else "")
        raise InvalidArgument(name, argument, found.reason + _at(argument, path))


def _parameters(
    function: Callable[..., object], name: str, has_context: bool
) -> list[inspect.Parameter]:
    """The parameters after the context; each can be passed by name."""
    every = list(_signature(function).parameters.values())
    parameters = every[1:] if has_context else every
    for parameter in every:
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            raise InvalidFunction(
                f"{name}(): {parameter} cannot be stored by name; "
                "take a list or a dict as one parameter"
            )
    for parameter in parameters:
        if parameter.kind is parameter.POSITIONAL_ONLY:
            raise InvalidFunction(
                f"{name}(): parameter {parameter.name!r} is positional-only, but arguments are "
                "passed by name; put the / right after the context"
            )
        if parameter.name.startswith("__"):
            # Python mangles such a name when it becomes an attribute, as it does here.
            raise InvalidFunction(
                f"{name}(): parameter {parameter.name!r} cannot be stored by name; "
                "use at most one leading underscore"
            )
    return parameters


def _signature(function: Callable[..., object]) -> inspect.Signature:
    if sys.version_info >= (3, 14):
        from annotationlib import Format

        # Annotations are evaluated on access, and may refer to names that do not exist yet.
        return inspect.signature(function, annotation_format=Format.STRING)
    return inspect.signature(function)


# Inspecting values ---------------------------------------------------------------------------

# Hints in the JSON that information may have been lost: NaN is written as null, a naive datetime is
# a time that ends without a zone, pydantic masks secrets. Only then are the values inspected.
_time_without_zone = re.compile(rb':\d\d:\d\d(?:\.\d+)?"').search
_MASK = b"**********"


def _not_finite(value: object) -> str | None:
    if isinstance(value, float) and not math.isfinite(value):
        return f"{value} is not a JSON number"
    return None


def _lossy(value: object) -> str | None:
    if isinstance(value, datetime) and value.utcoffset() is None:
        return "naive datetime; attach a zone"
    if hasattr(value, "get_secret_value"):
        return "pydantic masks a secret in JSON; pass it as a string"
    return _not_finite(value)


_LEAVES = (str, int, float, bytes, type(None))


def _find(value: object, fault: Callable[[object], str | None]) -> tuple[str, str] | None:
    """The path and the fault of the first faulty value inside `value`."""
    stack = [("", value)]
    seen: dict[int, object] = {}
    while stack:
        path, value = stack.pop()
        if reason := fault(value):
            return path, reason
        if not isinstance(value, _LEAVES) and id(value) not in seen:
            seen[id(value)] = value
            stack.extend([(path + step, child) for step, child in _children(value)][::-1])
    return None


def _unencodable(value: object, error: Exception) -> tuple[str, str]:
    """The path of the innermost value that cannot be encoded, and the reason."""
    path = ""
    seen: dict[int, object] = {}
    while not isinstance(error, RecursionError) and id(value) not in seen:
        seen[id(value)] = value
        inner = _first_failing(value)
        if inner is None:
            return path, _why(value, error)
        step, value, error = inner
        path += step
    return path, "contains itself or is nested too deeply"


def _why(value: object, error: Exception) -> str:
    return "a key must be a string or number" if isinstance(value, dict) else str(error)


def _first_failing(value: object) -> tuple[str, object, Exception] | None:
    for step, child in _children(value):
        if error := _failure(child):
            return step, child, error
    return None


def _failure(value: object) -> Exception | None:
    try:
        _encode(value)
    except Exception as error:
        return error
    return None


def _children(value: object) -> Iterator[tuple[str, object]]:
    """The parts of a value, each with the step that leads to it."""
    if isinstance(value, dict):
        for key, item in cast(dict[object, object], value).items():
            if not isinstance(key, float):  # NaN as a key is the string "nan", so nothing is lost
                yield f"[{key!r} as key]", key
            yield f"[{key!r}]", item
    elif isinstance(value, (list, tuple, set, frozenset)):
        for index, item in enumerate(cast(Iterable[object], value)):
            yield f"[{index}]", item
    else:
        for name in _field_names(value):
            yield f".{name}", getattr(value, name, None)


def _parts(value: object, *, keys: bool) -> Iterator[object]:
    """A value and everything that it contains."""
    stack = [value]
    while stack:
        value = stack.pop()
        yield value
        if isinstance(value, dict):
            items = cast(dict[object, object], value)
            stack += [*items.values(), *(items if keys else ())]
        elif not isinstance(value, _LEAVES):
            stack += [child for _, child in _children(value)]


def _field_names(value: object) -> Iterable[str]:
    if isinstance(value, msgspec.Struct):
        return value.__struct_fields__
    if dataclasses.is_dataclass(value):
        return [field.name for field in dataclasses.fields(value)]
    if _is_model(type(value)):
        return [*vars(value), *(getattr(value, "__pydantic_extra__", None) or ())]
    return [field.name for field in getattr(type(value), "__attrs_attrs__", ())]


def _at(name: str, path: str) -> str:
    return f" - at `{name}{path}`" if path else ""


# Types that msgspec does not support --------------------------------------------------------------


def _is_model(kind: object) -> bool:
    """Whether this is a pydantic model; if so, pydantic has been imported."""
    pydantic = sys.modules.get("pydantic")
    return pydantic is not None and isinstance(kind, type) and issubclass(kind, pydantic.BaseModel)


@cache
def _by_name() -> dict[str, bool]:
    """Models are stored by field name; pydantic 2.11 and later reads that despite aliases."""
    parameters = inspect.signature(sys.modules["pydantic"].BaseModel.model_validate_json).parameters
    return {"by_name": True, "by_alias": True} if "by_name" in parameters else {}


# msgspec supports these types themselves, but not their subclasses.
_PLAIN: tuple[tuple[type, Callable[[Any], object]], ...] = (
    (str, str.__str__),
    (int, int.__int__),
    (float, float.__float__),
)


def _enc_hook(value: Any) -> object:
    if _is_model(value.__class__):
        return value.model_dump(mode="json", round_trip=True, by_alias=False)
    for kind, plain in _PLAIN:
        if isinstance(value, kind):
            return plain(value)
    raise NotImplementedError(
        f"{type(value).__name__} cannot be stored as JSON; "
        "pass plain data, a dataclass, a msgspec Struct or a pydantic model"
    )


def _dec_hook(kind: Any, data: Any) -> object:
    if not _is_model(kind):
        raise TypeError(f"{kind} cannot be read from JSON; annotate plain data or a dataclass")
    try:
        # As JSON, since only then do strict models accept a string for a date.
        return kind.model_validate_json(_encode(data), **_by_name())
    except Exception as error:
        raise ValueError(_first_line(error)) from error


def _first_line(error: Any) -> str:
    """What a model says about its first faulty field."""
    if not hasattr(error, "errors"):
        return f"{type(error).__name__}: {error}"
    first = error.errors()[0]
    path = ".".join(str(step) for step in first["loc"])
    return f"{path}: {first['msg']}" if path else str(first["msg"])


# Schemas -----------------------------------------------------------------------------------------

_ANYTHING: dict[str, Any] = {}


def _schemas(hints: Iterable[Any]) -> tuple[tuple[dict[str, Any], ...], dict[str, Any]]:
    """The schema of each type, and the definitions that they refer to."""
    return msgspec.json.schema_components(
        hints, schema_hook=_schema_hook, ref_template="#/$defs/{name}"
    )


def _has_schema(hint: Any) -> bool:
    """A class has no schema if the default of a field cannot be written as JSON."""
    try:
        msgspec.json.encode(_schemas([hint]))
    except Exception:
        return False
    return True


def _schema_hook(kind: Any) -> dict[str, Any]:
    if not _is_model(kind):
        return {"type": "object"}
    # Models are stored by field name; a caller without the class may use the aliases.
    by_name, by_alias = (_model_schema(kind, by_alias=choice) for choice in (False, True))
    return by_name if by_name == by_alias else {"anyOf": [by_name, by_alias]}


def _model_schema(kind: Any, *, by_alias: bool) -> dict[str, Any]:
    try:
        schema: dict[str, Any] = kind.model_json_schema(by_alias=by_alias)
    except Exception:
        return _ANYTHING
    if "$defs" not in schema:
        return schema
    # A model's references start at its own root, which is no longer the root here.
    own = schema["$defs"][schema["$ref"].rpartition("/")[2]] if "$ref" in schema else schema
    return {"type": own["type"]} if "type" in own else _ANYTHING


_encode = msgspec.json.Encoder(enc_hook=_enc_hook).encode
