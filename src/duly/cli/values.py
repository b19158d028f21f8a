"""Function arguments on the command line: `name=text` and `name:=json`."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import click
import msgspec

_PAIR = re.compile(r"([^=:\s][^=:]*)(:?=)(.*)", re.DOTALL)


class Pair(click.ParamType[tuple[str, Any]]):
    """`name=text` or `name:=json`."""

    name = "pair"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, Any]:
        if not isinstance(value, str):
            pair: tuple[str, Any] = value
            return pair
        match = _PAIR.fullmatch(value)
        if not value.isascii() and any("\ud800" <= each <= "\udfff" for each in value):
            self.fail(f"{value!r} is not valid UTF-8", param, ctx)
        if match is None:
            self.fail(f"{value!r} is not an argument; write name=text or name:=json", param, ctx)
        name, sign, text = match.groups()
        if sign == "=":
            return name, text
        return name, read_json(text, name, param, ctx)


class Json(click.ParamType[Any]):
    """JSON, or @FILE to read it from a file."""

    name = "json"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if not isinstance(value, str):
            return value
        if value.startswith("@"):
            with click.open_file(value[1:]) as file:
                value = file.read()
        return read_json(value, "this", param, ctx)


def read_json(
    text: str, name: str, param: click.Parameter | None, ctx: click.Context | None
) -> Any:
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError) as error:
        hint = " quote a string, as in name:='\"text\"'" if text.isalpha() else ""
        raise click.BadParameter(
            f"{name} is not valid JSON: {error};{hint or f' got {text!r}'}", ctx, param
        ) from error


def together(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    """The arguments as one object, without duplicate names."""
    arguments: dict[str, Any] = {}
    for name, value in pairs:
        if name in arguments:
            raise click.BadParameter(f"{name!r} is given twice")
        arguments[name] = value
    return arguments
