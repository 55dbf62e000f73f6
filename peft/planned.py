"""Reading a journaled plan back: every member is there and of its type, or the plan is not one of ours."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from ticket_agent.peft.errors import PeftError
from ticket_agent.peft.manifest import Artifact
from ticket_agent.peft.names import is_staging
from ticket_agent.protocol.tokens import SHA256_PATTERN

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ticket_agent.journal.outcome import JsonValue

__all__ = ["PlannedError", "artifact", "count", "member", "optional_sha256", "planned", "staging", "text"]

_SHA256: Final = re.compile(SHA256_PATTERN)


class PlannedError(PeftError):
    """A plan that this action did not write, or wrote for roots that are not configured any more."""

    code = "peft-plan"


def text(members: Mapping[str, JsonValue], name: str) -> str:
    """A string that is not empty."""
    value = members.get(name)
    if not isinstance(value, str) or not value:
        raise _refused(name, "a text")
    return value


def count(members: Mapping[str, JsonValue], name: str) -> int:
    """An integer of at least 0."""
    value = members.get(name)
    if type(value) is not int or value < 0:
        raise _refused(name, "a number")
    return value


def member(members: Mapping[str, JsonValue], name: str) -> Mapping[str, JsonValue]:
    """An object."""
    value = members.get(name)
    if not isinstance(value, dict):
        raise _refused(name, "an object")
    return value


def optional_sha256(members: Mapping[str, JsonValue], name: str) -> str | None:
    """A digest, or None for null. An absent member is refused."""
    value = members.get(name, 0)
    if value is None:
        return None
    if not isinstance(value, str) or _SHA256.fullmatch(value) is None:
        raise _refused(name, "a SHA-256")
    return value


def artifact(members: Mapping[str, JsonValue], name: str) -> Artifact:
    """What :func:`planned` wrote."""
    told = member(members, name)
    sha256 = optional_sha256(told, "sha256")
    if sha256 is None:
        raise _refused(f"{name}.sha256", "a SHA-256")
    return Artifact(sha256=sha256, bytes=count(told, "bytes"))


def planned(value: Artifact) -> dict[str, JsonValue]:
    """An artifact as a member of a plan."""
    return {"sha256": value.sha256, "bytes": value.bytes}


def staging(members: Mapping[str, JsonValue]) -> str:
    """The name of a staging directory. Whatever has that name may be removed, so nothing else is accepted."""
    name = text(members, "staging")
    if not is_staging(name):
        raise _refused("staging", "the name of a staging directory")
    return name


def _refused(name: str, what: str) -> PlannedError:
    return PlannedError(f"the plan is not one of this action: {name} is not {what}")
