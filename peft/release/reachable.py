"""Which objects of a store are still named by something. Reads only.

A document is taken to name every digest that stands in it, whatever member that is in. So nothing that a
document needs can be overlooked, also not by kinds of documents that did not exist when this was written; at
worst, too much is kept.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from ticket_agent.peft.release.canonical import MAX_JSON_BYTES
from ticket_agent.peft.release.checkpoint import parse_checkpoint
from ticket_agent.peft.release.document_error import DocumentError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from ticket_agent.peft.release.cas import ObjectStore

__all__ = ["checkpoint_sources", "digests_in", "reachable"]

_DIGEST: Final = re.compile(rb"(?<![0-9a-f])[0-9a-f]{64}(?![0-9a-f])")
_DOCUMENT: Final = (b"{", b"[")


def digests_in(data: bytes) -> set[str]:
    """All digests that stand in a document."""
    return {found.decode("ascii") for found in _DIGEST.findall(data)}


def reachable(objects: ObjectStore, sizes: Mapping[str, int], roots: Iterable[str]) -> set[str]:
    """All objects that the roots name, directly or through documents.

    Args:
        objects: the store.
        sizes: all objects that are there, with their sizes.
        roots: digests to begin with; those of no object do no harm.

    Raises:
        ObjectCorruptError: an object that is named is damaged, so what it names is not known.
        PeftError: an object cannot be read.
    """
    found: set[str] = set()
    left = set(roots)
    while left:
        name = left.pop()
        if name in found or name not in sizes:
            continue
        found.add(name)
        if sizes[name] <= MAX_JSON_BYTES:
            data = objects.load(name)
            if data.startswith(_DOCUMENT):
                left |= digests_in(data)
    return found


def checkpoint_sources(objects: ObjectStore, sizes: Mapping[str, int], names: Iterable[str]) -> set[str]:
    """The operations that published a checkpoint which is among the objects ``names``.

    Raises:
        PeftError: an object cannot be read.
    """
    found = set()
    for name in names:
        if sizes[name] > MAX_JSON_BYTES:
            continue
        try:
            found.add(parse_checkpoint(objects.load(name)).source_operation)
        except DocumentError:
            continue
    return found
