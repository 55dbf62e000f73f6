"""Where in the admission stream we stand: the gap rule and the hive epoch, decided from evidence alone.

Root numbers admissions in memory and keeps only the newest of them. So three things can have happened between
two looks at ``spec.snapshot``: it grew, some of it was evicted unseen, or the hive rebooted and everything
started anew. :func:`classify` tells which, and says on what evidence. It does no I/O.

The rules, in the order in which they are tried:

1. Our last consumed line is still retained, at the place where we left it: the stream grew.
2. Any of the hive's logs is shorter than we remember, our line stands at another place, another line stands
   at its place, or a retained sequence is not above what we consumed: root restarted, a new epoch.
3. Our line is the very last that was evicted, as a whole or but for its end: nothing between it and the first
   retained line can be missing.
4. A hive without retention offsets never drops lines: our line missing there is a new epoch too.
5. Everything else is possible loss. It is held until an operator acknowledges the range.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = ["Consumed", "Standing", "StreamView", "Verdict", "classify", "line_digest", "line_offsets"]


class Verdict(StrEnum):
    """What happened to the stream since the last look."""

    FIRST_CONTACT = "first-contact"
    GREW = "grew"
    NEW_EPOCH = "new-epoch"
    POSSIBLE_LOSS = "possible-loss"


@dataclass(frozen=True, slots=True, kw_only=True)
class Consumed:
    """The last admission that became a record of ours.

    Attributes:
        sequence: its admission sequence, at least 1.
        sha256: digest of its exact line.
        offset: where the line began, in bytes since the hive booted; None when the hive offers no offsets.
        length: bytes of the line including its newline.
    """

    sequence: int
    sha256: str
    offset: int | None
    length: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamView:
    """One consistent look at ``spec.snapshot``.

    Attributes:
        lines: the retained lines, oldest first.
        sequences: admission sequence of each line; None where the line is malformed.
        base: offset of the first retained byte; None when the hive offers no offsets.
        ends: end offset of every log; empty when the hive offers no offsets.
        digests: by what each line is recognised; :func:`line_digest` of the lines if left out.
    """

    lines: Sequence[str]
    sequences: Sequence[int | None]
    base: int | None
    ends: Mapping[str, int]
    digests: Sequence[str] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """The verdict, the index of the first line that was not consumed yet, and the evidence in words.

    ``first`` and ``through`` name the range that may be lost (only for :attr:`Verdict.POSSIBLE_LOSS`);
    ``refetch`` tells whether root could settle it by showing the range once more.
    """

    verdict: Verdict
    start: int
    evidence: str
    first: int = 0
    through: int = 0
    refetch: bool = True


def line_digest(line: str) -> str:
    """Digest by which a consumed line is recognised."""
    return hashlib.sha256(line.encode("utf-8")).hexdigest()


def line_offsets(view: StreamView) -> list[int | None]:
    """Offset of each line of the view; all None without retention offsets."""
    if view.base is None:
        return [None] * len(view.lines)
    offsets: list[int | None] = []
    position = view.base
    for line in view.lines:
        offsets.append(position)
        position += len(line.encode("utf-8")) + 1
    return offsets


def classify(consumed: Consumed | None, ends: Mapping[str, int], view: StreamView) -> Standing:
    """Decide what happened between the last look and ``view``.

    Args:
        consumed: the last admission of the current epoch that became a record; None before the first.
        ends: for every log of the hive, the highest end offset ever seen in the current epoch.
        view: what the hive shows now.
    """
    went_back = _log_that_went_back(ends, view)
    if went_back is not None:
        return _new_epoch(went_back)
    if consumed is None:
        return Standing(
            verdict=Verdict.FIRST_CONTACT,
            start=int(bool(view.base) and _torn(view)),
            evidence="nothing was consumed in this epoch yet",
        )
    index = _find(consumed, view)
    if index is not None:
        return _found(consumed, view, index)
    return _gone(consumed, view)


def _log_that_went_back(ends: Mapping[str, int], view: StreamView) -> str | None:
    for leaf, end in sorted(ends.items()):
        now = view.ends.get(leaf)
        if now is not None and now < end:
            return f"the log `{leaf}` ends at offset {now}, it once ended at {end}"
    return None


def _torn(view: StreamView) -> bool:
    """Whether the first retained line is the rest of one whose beginning was evicted."""
    if not view.lines or view.sequences[0] is not None:
        return False
    # A whole line that makes no sense is another thing: it is held.
    return not view.lines[0].startswith("{")


def _find(consumed: Consumed, view: StreamView) -> int | None:
    for index, sequence in enumerate(view.sequences):
        if sequence != consumed.sequence:
            continue
        digest = view.digests[index] if view.digests is not None else line_digest(view.lines[index])
        if digest == consumed.sha256:
            return index
    return None


def _found(consumed: Consumed, view: StreamView, index: int) -> Standing:
    offset = line_offsets(view)[index]
    if offset is not None and consumed.offset is not None and offset != consumed.offset:
        return _new_epoch(
            f"admission {consumed.sequence} stands at offset {offset}, it once stood at {consumed.offset}"
        )
    return Standing(
        verdict=Verdict.GREW, start=index + 1, evidence=f"admission {consumed.sequence} is still retained"
    )


def _gone(consumed: Consumed, view: StreamView) -> Standing:
    for sequence in view.sequences:
        if sequence is not None and sequence <= consumed.sequence:
            return _new_epoch(f"sequence {sequence} is retained although {consumed.sequence} was consumed")
    if view.base is None:
        if consumed.offset is None:
            return _new_epoch(f"this hive drops no lines, yet admission {consumed.sequence} is gone")
        return _possible_loss(consumed, view, "the hive no longer offers retention offsets")
    if consumed.offset is None:
        return _possible_loss(
            consumed, view, f"admission {consumed.sequence} is gone and its offset is not known"
        )
    if view.base <= consumed.offset:
        return _new_epoch(
            f"offset {consumed.offset} is retained but does not hold admission {consumed.sequence}"
        )
    end = consumed.offset + consumed.length
    if view.base == end:
        return Standing(
            verdict=Verdict.GREW,
            start=0,
            evidence=f"admission {consumed.sequence} was the last one evicted (offset {end})",
        )
    if view.base < end and _torn(view) and view.base + len(view.lines[0].encode("utf-8")) + 1 == end:
        return Standing(
            verdict=Verdict.GREW,
            start=1,
            evidence=f"the end of admission {consumed.sequence} is retained first (offset {view.base})",
        )
    if view.base < end:
        text = (
            f"offset {view.base} lies within admission {consumed.sequence}, and its end does not stand there"
        )
        return _possible_loss(consumed, view, text)
    return _possible_loss(
        consumed, view, f"{view.base - end} bytes after admission {consumed.sequence} were evicted"
    )


def _new_epoch(evidence: str) -> Standing:
    return Standing(verdict=Verdict.NEW_EPOCH, start=0, evidence=evidence)


def _possible_loss(consumed: Consumed, view: StreamView, evidence: str) -> Standing:
    known = [sequence for sequence in view.sequences if sequence is not None]
    first = consumed.sequence + 1
    through = max(known[0] - 1, first) if known else first
    return Standing(
        verdict=Verdict.POSSIBLE_LOSS,
        start=0,
        evidence=f"{evidence}; either admissions were lost or the hive rebooted and moved past that offset",
        first=first,
        through=through,
    )
