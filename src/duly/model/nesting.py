"""Measures how deeply JSON text is nested, without parsing it: parsing could exhaust the stack."""

from __future__ import annotations

import re

MAX_DEPTH = 64

# The end of a string is optional: otherwise each quote of an unfinished one would be tried in turn.
_BRACKETS = re.compile(rb'"(?:[^"\\]++|\\.)*+"?|([\[{])|([\]}])', re.DOTALL)


def depth_of(text: bytes | bytearray, most: int = MAX_DEPTH) -> int:
    """The nesting depth of brackets outside of strings, counted up to one more than `most`."""
    if text.count(b"[") + text.count(b"{") <= most:
        return 0
    deepest = depth = 0
    for token in _BRACKETS.finditer(text):
        if token[1]:
            depth += 1
            deepest = max(deepest, depth)
            if deepest > most:
                break
        elif token[2]:
            depth -= 1
    return deepest
