"""Pins of packages: one version each, never a range."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from ticket_agent.peft.names import shown
from ticket_agent.peft.release.document_error import DocumentError

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["check_versions"]

MAX_PINS: Final = 64

_PACKAGE = re.compile(r"[a-z0-9]+(?:-[a-z0-9]+)*")
_VERSION = re.compile(
    r"[0-9]+(?:\.[0-9]+){0,5}(?:(?:a|b|rc|\.post|\.dev)[0-9]+)*(?:\+[a-z0-9]+(?:\.[a-z0-9]+)*)?"
)
_MAX_CHARACTERS: Final = 64


def check_versions(versions: Sequence[tuple[str, object]], required: Sequence[str]) -> None:
    """Hold that every required package has a pin, and that every pin is one version.

    Names are normalised ones: lowercase, with ``-``.

    Raises:
        DocumentError: a package without a pin, more than 64 pins, or a pin that fits several versions.
    """
    if len(versions) > MAX_PINS:
        raise DocumentError(f"versions has more than {MAX_PINS} packages", rule="pins")
    for name, version in versions:
        if len(name) > _MAX_CHARACTERS or _PACKAGE.fullmatch(name) is None:
            raise DocumentError(
                f"versions has {shown(name)}, which is not a package's name in lowercase with dashes",
                rule="pins",
            )
        if (
            not isinstance(version, str)
            or len(version) > _MAX_CHARACTERS
            or _VERSION.fullmatch(version) is None
        ):
            raise DocumentError(f"versions.{name} must be one exact version, like 4.56.2", rule="pins")
    if len({name for name, _ in versions}) != len(versions):
        raise DocumentError("versions names a package twice", rule="pins")
    pinned = {name for name, _ in versions}
    for name in required:
        if name not in pinned:
            raise DocumentError(f"versions has no pin for {name}, which the stack uses", rule="pins")
