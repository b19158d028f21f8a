"""Feeds bytes from a coverage-guided fuzzer to the code that reads text from outside.

    python -m torture.fuzz cron -atheris_runs=20000

A target may refuse the bytes with its documented errors, and with nothing else. The bytes must not
make the interpreter compile, import or start anything: its audit hook would detect that.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Callable
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from types import FunctionType
from typing import Any

from duly.errors import BadInput, SignatureMismatch
from duly.model import condition, schema, signature, strict_json, trigger
from duly.model import cron as cron_model
from duly.model.signature import Signature
from duly.model.trigger import next_fires
from duly.webhooks import sources
from duly.webhooks.sources import Atlassian, GitHub, Refused, Stripe

# By name: it has no types, and not every machine has it.
atheris: Any = import_module("atheris")
GUIDED = (condition, strict_json, schema, signature, trigger, cron_model, sources)
FORBIDDEN = ("exec", "compile", "import", "os.system", "os.exec", "subprocess.Popen")
NOW = 1_767_225_600_000
FACTS: dict[str, Any] = {"last": {"state": "failed", "result": [1, "a", None]}, "n": 3}
SOURCES = (
    (GitHub(secrets=["s"]), "x-hub-signature-256"),
    (Atlassian(secrets=["s"]), "x-hub-signature"),
    (Stripe(secrets=["s"]), "stripe-signature"),
)


def _call(name: str, times: int, more: dict[str, list[int]], when: float | None = None) -> None:
    """A call as a JSON body requests it."""


SIGNATURE = Signature(_call, "call", has_context=False)


def cron(data: bytes) -> None:
    with suppress(BadInput):
        fires = next_fires(data.decode("utf-8", "replace"), "Europe/Berlin", NOW, 3)
        assert fires == sorted(set(fires))
        assert all(at > NOW for at in fires)


def dsl(data: bytes) -> None:
    with suppress(BadInput, ValueError):
        parsed = condition.parse(json.loads(data.decode("utf-8", "replace")))
        explained = parsed.explain(FACTS)
        assert explained.passes == parsed.passes(FACTS)
        assert condition.parse(parsed.encode()).passes(FACTS) == explained.passes


def headers(data: bytes) -> None:
    value, _, body = data.partition(b"\n")
    for source, name in SOURCES:
        with suppress(Refused):
            source.verify([(name, value.decode("latin-1"))], body, [b"s"], NOW)
            raise AssertionError("only the holder of the secret can sign")


def body(data: bytes) -> None:
    with suppress(SignatureMismatch, BadInput):
        given = SIGNATURE.decode(data.decode("utf-8", "replace"))
        assert isinstance(given["name"], str)


TARGETS: dict[str, Callable[[bytes], None]] = {
    "cron": cron,
    "filter": dsl,
    "webhook": headers,
    "json": body,
}
SEEDS = {
    "cron": ["*/5 0-6 L,15W * 5#2", "0 30 2 * * MON-FRI", "@hourly", "H H * * ?"],
    "filter": ['{"/last/state": {"eq": "failed"}, "/n": {"gt": 2, "lt": 9}}'],
    "webhook": ["sha256=00\n{}", "t=1767225600,v1=00\n{}"],
    "json": ['{"name": "a", "times": 1, "when": 0.5, "more": {"k": [1]}}'],
}
_inside = False


def _watch(event: str, _: tuple[object, ...]) -> None:
    if _inside and event in FORBIDDEN:
        raise RuntimeError(f"the bytes caused {event}")


def guide() -> None:
    """Let the fuzzer see which lines of those modules run."""
    for module in GUIDED:
        owners = [each for each in vars(module).values() if isinstance(each, type)]
        for owner in (module, *owners):
            for function in list(vars(owner).values()):
                if isinstance(function, FunctionType) and function.__module__ == module.__name__:
                    atheris.instrument_func(function)


def main(arguments: list[str]) -> None:
    name = arguments.pop(1)
    target = TARGETS[name]
    guide()
    # Imports and compilation on first use are not caused by the input.
    for seed in SEEDS[name]:
        target(seed.encode())
    sys.addaudithook(_watch)

    def watched(data: bytes) -> None:
        global _inside
        _inside = True
        try:
            target(data)
        finally:
            _inside = False

    with tempfile.TemporaryDirectory(prefix="duly-fuzz-") as corpus:
        for number, seed in enumerate(SEEDS[name]):
            Path(corpus, str(number)).write_text(seed)
        atheris.Setup([*arguments, corpus], watched)
        atheris.Fuzz()


if __name__ == "__main__":
    main(sys.argv)
