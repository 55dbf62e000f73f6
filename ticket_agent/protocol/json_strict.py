"""JSON as the root reads it: one object, every member once, numbers that fit, nothing else.

The standard library's decoder is laxer than the root's in a dozen places. Each of them is closed here, so
that no line means one thing to the agent and another (or nothing) to the root.
"""

from __future__ import annotations

import json
import math
import re
from typing import TYPE_CHECKING, Any, TypeVar

from .errors import JsonError
from .tokens import U64_MAX

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["MAX_DEPTH", "count_outside_strings", "dumps", "parse_array", "parse_object", "sorted_members"]

MAX_DEPTH = 127
"""Deepest nesting of containers, the outermost included."""

I64_MIN = -(2**63)
MAX_DIGITS = 20
"""Digits of the largest u64. Longer ones are refused unconverted: conversion takes quadratic time."""

_BOM = b"\xef\xbb\xbf"
_STRING_PATTERN = rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"?'
"""A string; an unterminated one reaches to the end, which keeps the scan linear. Nothing is tried twice, so a
string of a million escapes takes no memory either."""
_STRING = re.compile(_STRING_PATTERN, re.DOTALL)
_BRACKET = re.compile(_STRING_PATTERN + rb"|[\[\]{}]", re.DOTALL)
"""A bracket, or a string, whose brackets do not count."""

T = TypeVar("T")


def parse_object(data: bytes, *, what: str, max_bytes: int) -> dict[str, Any]:
    """Decode one JSON object.

    Args:
        data: UTF-8 without a byte order mark; JSON blanks around the object are allowed.
        what: name of the line in error texts.
        max_bytes: longest ``data`` that is looked at.

    Raises:
        JsonError: anything but one object of strict JSON: repeated members at any depth, NaN and infinities,
            floats out of range, ``-0``, integers outside i64::MIN..=u64::MAX, lone surrogates, more than 127
            nested containers, trailing data, too many bytes.
    """
    value = _parse(data, what=what, max_bytes=max_bytes)
    if not isinstance(value, dict):
        raise JsonError(f"{what} must be a JSON object", code="json-not-object")
    return value


def parse_array(data: bytes, *, what: str, max_bytes: int) -> list[Any]:
    """Decode one JSON array; the same rules as for :func:`parse_object`.

    Raises:
        JsonError: anything but one array of strict JSON.
    """
    value = _parse(data, what=what, max_bytes=max_bytes)
    if not isinstance(value, list):
        raise JsonError(f"{what} must be a JSON array", code="json-not-array")
    return value


def _parse(data: bytes, *, what: str, max_bytes: int) -> Any:
    text = _decode(data, what, max_bytes)
    if _depth(data) > MAX_DEPTH:
        raise JsonError(f"{what} nests more than {MAX_DEPTH} containers", code="json-depth")
    try:
        value = _FAST.decode(text)
    except _Bad as bad:
        raise _located(text, what, bad) from None
    except json.JSONDecodeError as error:
        raise JsonError(
            f"{what} is not valid JSON at character {error.pos}: {error.msg}", code="json-syntax"
        ) from None
    if "\\u" in text:
        _refuse_surrogates(value, what)
    return value


def dumps(value: object) -> bytes:
    r"""Encode compactly as UTF-8, with the escapes that serde_json writes.

    Short forms ``\b \t \n \f \r``, other controls below U+0020 as lowercase ``\u00xx``, everything else raw.

    Raises:
        JsonError: a lone surrogate or a float that JSON cannot carry.
    """
    try:
        return _ENCODER.encode(value).encode("utf-8")
    except UnicodeEncodeError:
        raise JsonError("text with a lone surrogate cannot be sent as UTF-8", code="json-surrogate") from None
    except ValueError:
        raise JsonError("NaN and infinities have no JSON form", code="json-number") from None


def sorted_members(value: T) -> T:
    """Return ``value`` with the members of every object sorted by name; the order serde_json's maps have."""
    return _sorted(value)  # type: ignore[no-any-return]


def count_outside_strings(data: bytes, marks: bytes) -> int:
    """Count the bytes of JSON text that are one of ``marks`` and stand outside of its strings.

    It tells, in constant memory, how many containers or members decoding would build.
    """
    count = sum(data.count(mark) for mark in marks)
    for string in _STRING.finditer(data):
        text = string[0]
        count -= sum(text.count(mark) for mark in marks)
    return count


def _sorted(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _sorted(value[name]) for name in sorted(value)}
    if isinstance(value, list):
        return [_sorted(item) for item in value]
    return value


def _decode(data: bytes, what: str, max_bytes: int) -> str:
    if not isinstance(data, bytes):
        raise JsonError(f"{what} must be bytes, not {type(data).__name__}", code="json-not-bytes")
    if len(data) > max_bytes:
        raise JsonError(f"{what} takes {len(data)} bytes; the limit is {max_bytes}", code="json-too-long")
    if data.startswith(_BOM):
        raise JsonError(f"{what} starts with a byte order mark; send plain UTF-8", code="json-bom")
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise JsonError(f"{what} is not UTF-8 at byte {error.start}", code="json-not-utf8") from None


def _depth(data: bytes) -> int:
    """Bound the nesting before the decoder recurses into it; exact for valid JSON."""
    upper_bound = data.count(b"{") + data.count(b"[")
    if upper_bound <= MAX_DEPTH:
        return upper_bound
    depth = deepest = 0
    for token in _BRACKET.finditer(data):
        if token[0] in (b"[", b"{"):
            depth += 1
            deepest = max(deepest, depth)
        elif token[0] in (b"]", b"}"):
            depth -= 1
    return deepest


class _Bad(Exception):  # noqa: N818 - never leaves this module
    """A value that the decoder's hooks refuse; they know the value but not where it stands."""

    def __init__(self, code: str, why: str, name: str | None = None) -> None:
        super().__init__(why)
        self.code = code
        self.why = why
        self.name = name


def _members(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) != len(pairs):
        seen: set[str] = set()
        for name, _ in pairs:
            if name in seen:
                raise _Bad("json-repeated", "appears more than once", name)
            seen.add(name)
    return members


def _integer(digits: str) -> int:
    if digits == "-0":
        raise _Bad("json-number", "is -0; write 0")
    if len(digits) <= MAX_DIGITS:
        value = int(digits)
        if I64_MIN <= value <= U64_MAX:
            return value
    raise _Bad("json-number", "is an integer outside i64::MIN..=u64::MAX")


def _float(digits: str) -> float:
    value = float(digits)
    if not math.isfinite(value):
        raise _Bad("json-number", "is a number out of range")
    return value


def _constant(name: str) -> float:
    raise _Bad("json-number", f"is {name}, which is not JSON")


def _decoder(wrap: Callable[[Callable[[Any], Any]], Callable[[Any], Any]]) -> json.JSONDecoder:
    return json.JSONDecoder(
        object_pairs_hook=wrap(_members),
        parse_int=wrap(_integer),
        parse_float=wrap(_float),
        parse_constant=wrap(_constant),
    )


def _marking(hook: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def marked(argument: Any) -> Any:
        try:
            return hook(argument)
        except _Bad as bad:
            return bad

    return marked


_FAST = _decoder(lambda hook: hook)
_MARKING = _decoder(_marking)
"""Leaves the refusal in the place of the refused value, so that its path can be found."""

_ENCODER = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), allow_nan=False, check_circular=False)


def _located(text: str, what: str, bad: _Bad) -> JsonError:
    member = bad.name
    try:
        value = _MARKING.decode(text)
    except json.JSONDecodeError:
        # Broken further on as well: the first refusal stands, without its path.
        value = None
    for path, _, item in _walk(value):
        if isinstance(item, _Bad):
            bad, member = item, _joined(path, item.name)
            break
    subject = what if member is None else f"{what}: member {member}"
    return JsonError(f"{subject} {bad.why}", code=bad.code, member=member)


def _refuse_surrogates(value: object, what: str) -> None:
    for path, name, item in _walk(value):
        for text in (name, item):
            if isinstance(text, str) and not text.isascii() and _has_surrogate(text):
                raise JsonError(
                    f"{what}: member {path} holds a lone surrogate", code="json-surrogate", member=path
                )


def _has_surrogate(text: str) -> bool:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return True
    return False


def _walk(root: object) -> Iterator[tuple[str | None, str | None, object]]:
    """Yield (path, own name, value) of everything in the tree; a loop, because depth is the peer's choice."""
    todo: list[tuple[str | None, str | None, object]] = [(None, None, root)]
    while todo:
        path, name, value = todo.pop()
        yield path, name, value
        if isinstance(value, dict):
            todo.extend((_joined(path, key), key, item) for key, item in value.items())
        elif isinstance(value, list):
            todo.extend((_joined(path, str(index)), None, item) for index, item in enumerate(value))


def _joined(path: str | None, name: str | None) -> str | None:
    if path is None or name is None:
        return path if name is None else name
    return f"{path}.{name}"
