"""Free-form arguments of the version-1 PEFT actions, checked and turned into what version 2 would say. Pure.

A ticket cannot choose where the agent works. A path in one is accepted when it says what the configuration
says anyway; every other one is refused.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from ticket_agent.peft.errors import NameRefusedError, PeftError
from ticket_agent.peft.names import check_component, shown

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from ticket_agent.peft.settings import PeftRoots
    from ticket_agent.protocol.spec import HostTicketSpec

__all__ = ["CompatArgsError", "CompatRequest", "translate"]


class CompatArgsError(PeftError):
    """The arguments of a version-1 PEFT ticket cannot be carried out; the text says which and why."""

    code = "peft-compat-args"


@dataclass(frozen=True, slots=True, kw_only=True)
class CompatRequest:
    """What a version-1 ticket asks for.

    Attributes:
        action: one of the four actions.
        subject: the job of an export, the model of an import or an activation; None for a rollback, which in
            version 1 returns to whatever was active before.
        adapter_ref: of an import, the directory below the adapter root; None otherwise.
        job_id: of an import, the exported job; None otherwise.
    """

    action: str
    subject: str | None
    adapter_ref: str | None = None
    job_id: str | None = None


def translate(spec: HostTicketSpec, roots: PeftRoots) -> CompatRequest:
    """Read the arguments of a version-1 ticket.

    Raises:
        CompatArgsError: an argument that is unknown, missing, said twice, of the wrong type, or a path that
            is not the configured one.
    """
    reader = _TRANSLATORS.get(spec.action)
    if reader is None:
        raise CompatArgsError(f"{spec.action} is no PEFT action of version 1")
    args = _Args(spec)
    request = reader(args, roots)
    args.none_left()
    return request


def _export(args: _Args, roots: PeftRoots) -> CompatRequest:
    args.root(roots.export, "export root", "out_dir", "out")
    return CompatRequest(action=args.action, subject=args.name("job_id", "job"))


def _import(args: _Args, roots: PeftRoots) -> CompatRequest:
    args.root(roots.registry, "registry root", "registry_root", "registry")
    args.root(roots.export, "export root", "export_root", "export")
    args.flag("publish")
    return CompatRequest(
        action=args.action,
        subject=args.name("model_id", "model"),
        adapter_ref=args.child(roots.adapter, "adapter root", "adapter_dir", "from"),
        job_id=args.name("job_id", "job"),
    )


def _activate(args: _Args, roots: PeftRoots) -> CompatRequest:
    args.root(roots.registry, "registry root", "registry_root", "registry")
    return CompatRequest(action=args.action, subject=args.name("model_id", "model"))


def _rollback(args: _Args, roots: PeftRoots) -> CompatRequest:
    args.root(roots.registry, "registry root", "registry_root", "registry")
    return CompatRequest(action=args.action, subject=None)


_TRANSLATORS: Final[Mapping[str, Callable[[_Args, PeftRoots], CompatRequest]]] = {
    "peft.export": _export,
    "peft.import": _import,
    "peft.activate": _activate,
    "peft.rollback": _rollback,
}


class _Args:
    """The members of ``args``; each that is asked for is known, and in the end none may be left."""

    def __init__(self, spec: HostTicketSpec) -> None:
        members = {} if spec.args is None else spec.args
        if not isinstance(members, dict):
            raise CompatArgsError(f"{spec.action} takes its args as an object")
        self.action: Final = spec.action
        self._members: Final[dict[str, Any]] = members
        self._known: set[str] = set()

    def name(self, *aliases: str) -> str:
        """An id."""
        name, value = self._required(*aliases)
        try:
            return check_component(value, what=f"args.{name}")
        except NameRefusedError as error:
            raise CompatArgsError(f"{self.action}: {error}") from error

    def root(self, configured: Path, label: str, *aliases: str) -> None:
        """A path that may be left out and can only be the configured one."""
        name, value = self._one_of(*aliases)
        if name is not None and (not value or Path(value) != configured):
            raise CompatArgsError(
                f"{self.action}: args.{name} is not this agent's {label}, which only its configuration names;"
                " leave it out"
            )

    def child(self, configured: Path, label: str, *aliases: str) -> str:
        """A directory right below the configured root, by its absolute path."""
        name, value = self._required(*aliases)
        path = Path(value)
        try:
            if path.parent == configured and not value.endswith(("/", "/.")):
                return check_component(path.name, what=f"args.{name}")
        except NameRefusedError as error:
            raise CompatArgsError(f"{self.action}: {error}") from error
        raise CompatArgsError(
            f"{self.action}: args.{name} is no directory right below this agent's {label},"
            " which only its configuration names"
        )

    def flag(self, name: str) -> None:
        """A switch that changes nothing: what a registry holds is published by the bridge, not by us."""
        self._known.add(name)
        if not isinstance(self._members.get(name, False), bool):
            raise CompatArgsError(f"{self.action}: args.{name} must be true or false")

    def none_left(self) -> None:
        """Refuse what nobody asked for: an argument that is passed over might have been a condition."""
        for name in self._members:
            if name not in self._known:
                raise CompatArgsError(f"{self.action}: args.{shown(name)} is not known")

    def _required(self, *aliases: str) -> tuple[str, str]:
        name, value = self._one_of(*aliases)
        if name is None or not value:
            raise CompatArgsError(f"{self.action} needs args.{aliases[0]}")
        return name, value

    def _one_of(self, *aliases: str) -> tuple[str | None, str]:
        """Name and value of the one alias that is there; a null is not."""
        self._known.update(aliases)
        found = [name for name in aliases if self._members.get(name) is not None]
        if len(found) > 1:
            raise CompatArgsError(
                f"{self.action}: args.{found[0]} and args.{found[1]} mean the same; give one"
            )
        if not found:
            return None, ""
        value = self._members[found[0]]
        if not isinstance(value, str):
            raise CompatArgsError(f"{self.action}: args.{found[0]} must be a string")
        return found[0], value.strip()
