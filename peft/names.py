"""Which names may become directory entries.

There are two rules. An *id* (of a model, a job, an adapter) comes from a ticket or from a file and is held
to the narrow rule of the protocol. An *entry* is any single directory entry, as a listing returns it; it only
has to be one, so that foreign files can be looked at, named and removed.
"""

from __future__ import annotations

import os
import re
from collections import defaultdict
from secrets import token_hex
from typing import TYPE_CHECKING, Final

from ticket_agent.peft.errors import NameRefusedError
from ticket_agent.peft.limits import MAX_COMPONENT_BYTES, MAX_ENTRY_BYTES, MAX_SHOWN
from ticket_agent.protocol.errors import printable
from ticket_agent.protocol.tokens import is_token

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = [
    "EXPORT_STAGING",
    "IMPORT_STAGING",
    "PARTIAL_SUFFIX",
    "RESERVED_PREFIX",
    "case_twins",
    "check_component",
    "check_entry",
    "check_model_id",
    "is_partial",
    "is_reserved",
    "is_staging",
    "new_staging_name",
    "shown",
]

RESERVED_PREFIX: Final = ".cohesix-"
"""Names with this beginning are locks and unfinished work in every tool that shares the roots."""
IMPORT_STAGING: Final = ".cohesix-import-"
EXPORT_STAGING: Final = ".cohesix-export-"
PARTIAL_SUFFIX: Final = ".partial"
"""End of a temporary's name: ``.<name>.<pid>.<number>.partial``."""

_PARTIAL = re.compile(r"\..+\.[0-9]+\.[0-9]+" + re.escape(PARTIAL_SUFFIX), re.DOTALL)
_STAGING = re.compile(f"(?:{re.escape(IMPORT_STAGING)}|{re.escape(EXPORT_STAGING)})[0-9a-f]{{16}}")


def check_component(value: object, *, what: str) -> str:
    """Return ``value`` if it may name a directory of a root; ``what`` names it in the error.

    An id is 1..=128 ASCII letters, digits or ``. - _ :``, does not start with ``-``, is neither ``.`` nor
    ``..``, and does not look like a lock or unfinished work (``.cohesix-`` in any case).

    Raises:
        NameRefusedError: it may not.
    """
    if not isinstance(value, str) or not is_token(value, max_bytes=MAX_COMPONENT_BYTES):
        raise NameRefusedError(
            f"{what} must be 1..={MAX_COMPONENT_BYTES} ASCII letters, digits or . - _ : without a leading -"
        )
    if value in (".", ".."):
        raise NameRefusedError(f"{what} must not be {value}, which names a place and not an entry")
    if is_reserved(value):
        raise NameRefusedError(f"{what} must not start with {RESERVED_PREFIX}, which is kept for locks")
    return value


def check_model_id(value: object, *, what: str) -> str:
    """Return ``value`` if it may name a model: an id without ``:``.

    Readers of the registry skip a model with a colon in its name, and refuse the whole registry for one in
    the name of a base model.

    Raises:
        NameRefusedError: it may not.
    """
    model = check_component(value, what=what)
    if ":" in model:
        raise NameRefusedError(f"{what} must not contain a colon: readers of the registry do not accept it")
    return model


def check_entry(name: object) -> str:
    """Return ``name`` if it is one directory entry.

    Undecodable bytes may be in it as surrogate escapes, the way a listing returns them.

    Raises:
        NameRefusedError: it is empty, ``.`` or ``..``, a path, has a NUL, or more than 255 bytes.
    """
    if not isinstance(name, str) or name in ("", ".", ".."):
        raise NameRefusedError(f"{_quoted(name)} is not the name of a directory entry")
    if "/" in name or "\0" in name:
        raise NameRefusedError(f"{_quoted(name)} is not one entry: it contains a slash or a NUL")
    try:
        length = len(os.fsencode(name))
    except UnicodeEncodeError:
        raise NameRefusedError(f"{_quoted(name)} cannot be the name of a directory entry") from None
    if length > MAX_ENTRY_BYTES:
        raise NameRefusedError(f"a name of {length} bytes is longer than {MAX_ENTRY_BYTES}")
    return name


def shown(name: str, limit: int = MAX_SHOWN) -> str:
    """Return ``name`` for an error line: printable, and at most ``limit`` characters, cut in the middle.

    The ends stay, because that is where names differ.
    """
    if len(name) > 2 * limit:
        name = name[:limit] + name[-limit:]
    line = printable(name)
    if len(line) <= limit:
        return line
    half = (limit - 1) // 2
    return f"{line[: limit - 1 - half]}…{line[-half:]}"


def _quoted(name: object) -> str:
    return f"'{shown(name)}'" if isinstance(name, str) else f"a {type(name).__name__}"


def is_reserved(name: str) -> bool:
    """Tell whether scanners of a root pass over ``name``."""
    return name.lower().startswith(RESERVED_PREFIX)


def is_staging(name: str) -> bool:
    """Tell whether ``name`` is that of an import or export that has not been published."""
    return _STAGING.fullmatch(name) is not None


def new_staging_name(prefix: str) -> str:
    """Return a name that was never used: ``prefix`` and 16 hexadecimal digits."""
    return prefix + token_hex(8)


def is_partial(name: str) -> bool:
    """Tell whether ``name`` is that of a file whose writing was not finished, by us or by another tool."""
    return _PARTIAL.fullmatch(name) is not None


def case_twins(names: Iterable[str]) -> list[tuple[str, ...]]:
    """Return the groups of names that are one name where upper and lower case are not told apart."""
    groups: defaultdict[str, list[str]] = defaultdict(list)
    for name in names:
        groups[name.casefold()].append(name)
    return sorted(tuple(sorted(group)) for group in groups.values() if len(group) > 1)
