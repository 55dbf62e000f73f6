"""What changed between two observations of a pair. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from ticket_agent.protocol.errors import JsonError
from ticket_agent.protocol.json_strict import dumps, parse_array, parse_object
from ticket_agent.protocol.snapshot import MAX_BOUNDS

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ticket_agent.protocol.snapshot import UnavailableReason

    from .observation import HostObservation

__all__ = [
    "EntryChange",
    "MemberChange",
    "SnapshotChange",
    "Step",
    "changes_between",
]


class Step(StrEnum):
    """How the sequence went on from one observation to the next."""

    SAME = "same"
    FORWARD = "forward"
    RESTARTED = "restarted"
    """Back, or in another epoch: the receiver started anew."""
    REWRITTEN = "rewritten"
    """The same number with other bytes, which one receiver never takes: there are two publishers, or two
    receivers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberChange:
    """One member of a JSON object, or one place of a JSON array, as ``[3]``.

    Attributes:
        name: the member's, or the index.
        before: compact JSON; None if it is new.
        after: compact JSON; None if it is gone.
    """

    name: str
    before: str | None
    after: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class EntryChange:
    """One entry that is new, gone or different.

    Attributes:
        path: of the entry.
        before: its value; None if it is new.
        after: its value; None if it is gone.
        members: what differs inside, when both values are JSON objects or both arrays; otherwise, and when
            only the order of members differs, nothing.
    """

    path: str
    before: str | None
    after: str | None
    members: tuple[MemberChange, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotChange:
    """The difference of two observations.

    Attributes:
        step: how the sequence went on.
        between: how many numbers the source used in between. A source's providers share one count: these
            belong to other providers, were skipped by the publisher, or are records nobody read here.
        reason_before: why there was no state, or None.
        reason_after: why there is none, or None.
        entries: what differs, in ascending order of paths.
    """

    step: Step
    between: int
    reason_before: UnavailableReason | None
    reason_after: UnavailableReason | None
    entries: tuple[EntryChange, ...]

    @property
    def availability_changed(self) -> bool:
        """Whether the state became known or unknown, or is unknown for another reason."""
        return self.reason_before is not self.reason_after


def changes_between(before: HostObservation, after: HostObservation) -> SnapshotChange:
    """Compare two observations.

    Raises:
        ValueError: they are of different pairs.
    """
    if before.pair != after.pair:
        raise ValueError(f"{before.pair} and {after.pair} cannot be compared; take two of one pair")
    step = _step(before, after)
    return SnapshotChange(
        step=step,
        between=after.sequence - before.sequence - 1 if step is Step.FORWARD else 0,
        reason_before=before.reason,
        reason_after=after.reason,
        entries=tuple(_entries(before, after)),
    )


def _step(before: HostObservation, after: HostObservation) -> Step:
    if before.epoch != after.epoch or after.sequence < before.sequence:
        return Step.RESTARTED
    if after.sequence > before.sequence:
        return Step.FORWARD
    return Step.SAME if before.sha256 == after.sha256 else Step.REWRITTEN


def _entries(before: HostObservation, after: HostObservation) -> Iterable[EntryChange]:
    old = {entry.path: entry.value for entry in before.entries}
    new = {entry.path: entry.value for entry in after.entries}
    for path in sorted({*old, *new}):
        was, now = old.get(path), new.get(path)
        if was != now:
            yield EntryChange(path=path, before=was, after=now, members=tuple(_inside(was, now)))


def _inside(before: str | None, after: str | None) -> Iterable[MemberChange]:
    if before is None or after is None:
        return
    old, new = _members(before), _members(after)
    if old is None or new is None or old[0] is not new[0]:
        return
    was, now = old[1], new[1]
    for name in [*was, *(name for name in now if name not in was)]:
        if was.get(name) != now.get(name):
            yield MemberChange(name=name, before=was.get(name), after=now.get(name))


def _members(value: str) -> tuple[type, dict[str, str]] | None:
    """Members of an object or places of an array, as JSON texts: to Python, 1 and true are equal."""
    try:
        parsed = _parsed(value)
        if isinstance(parsed, dict):
            return dict, {name: _text(item) for name, item in parsed.items()}
        return list, {f"[{index}]": _text(item) for index, item in enumerate(parsed)}
    except JsonError:
        return None


def _parsed(value: str) -> dict[str, Any] | list[Any]:
    data = value.encode("utf-8")
    if data.startswith(b"["):
        return parse_array(data, what="value", max_bytes=MAX_BOUNDS.max_value_bytes)
    return parse_object(data, what="value", max_bytes=MAX_BOUNDS.max_value_bytes)


def _text(value: object) -> str:
    return dumps(value).decode("utf-8")
