"""Which version-1 tickets go on to another hive, and the exact line that goes (host tickets: federation)."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TYPE_CHECKING

from .members import DEFAULT_MAX_LINE_BYTES, MAX_RELAY_HOP
from .tokens import MAX_TOKEN_BYTES

if TYPE_CHECKING:
    from collections.abc import Collection

    from .spec import HostTicketSpec

__all__ = ["Relayed", "Skip", "correlation_of", "judge", "relayed"]


class Skip(StrEnum):
    """Why a ticket is not relayed from here."""

    VERSION_2 = "version-2"
    """Receipts belong to one hive; version 2 is never relayed."""
    LOCAL = "local"
    """It names no target, or this hive."""
    FOREIGN_SOURCE = "foreign-source"
    """Another hive is its source: it was relayed once, and is never relayed again."""
    ACTION = "action"
    """The federation's action list does not name it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Relayed:
    """A ticket as it goes to its target.

    Attributes:
        spec: the request with both hives, its hop counted up and its correlation id.
        line: the exact bytes for the target's ``spec``: compact, members in wire order, nothing that is
            absent, everything but ASCII escaped because consoles carry ASCII only.
        problem: why it can never be sent, in words; None if it can.
    """

    spec: HostTicketSpec
    line: str
    problem: str | None = None


def judge(spec: HostTicketSpec, *, local_hive: str, actions: Collection[str]) -> Skip | None:
    """Tell why a request in the callers' log is not relayed from here; None if it is."""
    if spec.version != 1:
        return Skip.VERSION_2
    if spec.target_hive is None or spec.target_hive == local_hive:
        return Skip.LOCAL
    if spec.source_hive not in (None, local_hive):
        return Skip.FOREIGN_SOURCE
    if spec.action not in actions:
        return Skip.ACTION
    return None


def relayed(
    spec: HostTicketSpec, *, local_hive: str, max_line_bytes: int = DEFAULT_MAX_LINE_BYTES
) -> Relayed:
    """Return the ticket as it goes to its target; the same request always gives the same bytes.

    Args:
        spec: a request for which :func:`judge` returned None.
        local_hive: name of this hive.
        max_line_bytes: longest line that the target takes.
    """
    hop = (spec.relay_hop or 0) + 1
    if hop > MAX_RELAY_HOP:
        why = f"it was relayed {spec.relay_hop} times, and at most {MAX_RELAY_HOP} are allowed"
        return Relayed(spec=spec, line="", problem=why)
    going = replace(
        spec, source_hive=local_hive, relay_hop=hop, relay_correlation_id=correlation_of(spec, local_hive)
    )
    line = _ascii(going)
    problem = None
    if len(line) > max_line_bytes:
        problem = f"its line for the target has {len(line)} bytes, and the target takes {max_line_bytes}"
    return Relayed(spec=going, line=line, problem=problem)


def correlation_of(spec: HostTicketSpec, local_hive: str) -> str:
    """``id:idempotency_key:source:target``; its digest where that is longer than a name may be."""
    text = f"{spec.id}:{spec.idempotency_key}:{local_hive}:{spec.target_hive}"
    if len(text) <= MAX_TOKEN_BYTES:
        return text
    return f"sha256:{hashlib.sha256(text.encode('ascii')).hexdigest()}"


def _ascii(spec: HostTicketSpec) -> str:
    """The canonical line; what is not printable ASCII can only stand in its strings and is escaped there."""
    text = spec.encode().decode("utf-8")
    return "".join(char if " " <= char <= "~" else _escaped(char) for char in text)


def _escaped(char: str) -> str:
    units = char.encode("utf-16-be")
    return "".join(f"\\u{units[at] << 8 | units[at + 1]:04x}" for at in range(0, len(units), 2))
