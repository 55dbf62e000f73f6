"""Which model is active: the pointer ``active`` and the state ``active_state.toml``, which move together.

The pointer is what everybody follows, so writing it is the commit point; the state adds which model was
active before. The state is written first. A commit that was interrupted in between therefore shows the new
state and the old pointer, and what was on disk before it, together with what was to be there after it, tells
that from everything else. So an interrupted commit is finished from its record and never left to people.

Where the two files differ and there is no record of ours, another tool was interrupted: what counts is the
pointer.
"""

from __future__ import annotations

import stat
import tomllib
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Final

from ticket_agent.peft.errors import NameRefusedError, RegistryError
from ticket_agent.peft.limits import MAX_POINTER_BYTES, MAX_STATE_BYTES
from ticket_agent.peft.names import check_component, is_partial, shown
from ticket_agent.peft.opened import Kind
from ticket_agent.protocol.text import trim

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ticket_agent.peft.directory import Directory

__all__ = [
    "POINTER_FILE",
    "STATE_FILE",
    "Control",
    "Found",
    "Progress",
    "commit",
    "decide",
    "parse_pointer",
    "parse_state",
    "read_control",
    "read_optional",
    "remove_unfinished",
    "render_pointer",
    "render_state",
    "roll_forward",
    "set_back",
]

POINTER_FILE: Final = "active"
STATE_FILE: Final = "active_state.toml"

_STATE_MEMBERS: Final = ("current", "previous")


@dataclass(frozen=True, slots=True, kw_only=True)
class Control:
    """What the two files say. An absent file, an empty one and an empty id all mean «no model».

    Attributes:
        pointer: the model that is active, or None.
        current: the model that is active according to the state, or None.
        previous: the model that was active before, or None.

    Raises:
        NameRefusedError: an id that no model can have.
    """

    pointer: str | None = None
    current: str | None = None
    previous: str | None = None

    def __post_init__(self) -> None:
        for name in ("pointer", "current", "previous"):
            value = getattr(self, name)
            if value is not None:
                check_component(value, what=f"the {name} model")

    @property
    def consistent(self) -> bool:
        """Both files agree, or there is no state yet."""
        return self.pointer == self.current or (self.current is None and self.previous is None)

    @property
    def models(self) -> frozenset[str]:
        """Every model that one of the files names."""
        return frozenset(name for name in (self.pointer, self.current, self.previous) if name is not None)

    def __str__(self) -> str:
        pointer, current, previous = (name or "none" for name in (self.pointer, self.current, self.previous))
        return f"{POINTER_FILE}={pointer} current={current} previous={previous}"

    def to_members(self) -> dict[str, str | None]:
        """The value as members of a JSON object."""
        return {"pointer": self.pointer, "current": self.current, "previous": self.previous}

    @classmethod
    def from_members(cls, members: Mapping[str, object]) -> Control:
        """The value of :meth:`to_members`.

        Raises:
            RegistryError: anything else.
        """
        if members.keys() != {"pointer", "current", "previous"}:
            raise RegistryError("a control record has exactly pointer, current and previous")
        values = {name: _id_or_none(value, f"the {name} model") for name, value in members.items()}
        return cls(**values)


class Progress(StrEnum):
    """How far a commit got."""

    NOT_APPLIED = "not-applied"
    HALF = "half"
    APPLIED = "applied"
    FOREIGN = "foreign"


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """How far a commit was found to have got.

    Attributes:
        progress: ``HALF`` if the state was written and the pointer was not.
        control: what was on disk.
        detail: one line for people.
    """

    progress: Progress
    control: Control
    detail: str


def decide(before: Control, after: Control, found: Control) -> Found:
    """Tell how far the commit from ``before`` to ``after`` got, from what is on disk. Pure.

    Where ``before`` and a half commit look the same (the state said already what it was to say), the commit
    is not applied: the pointer, which alone commits, did not move.
    """
    if found == after:
        return Found(progress=Progress.APPLIED, control=found, detail=f"the registry shows {found}")
    if found == before:
        return Found(progress=Progress.NOT_APPLIED, control=found, detail=f"the registry still shows {found}")
    half = Control(pointer=before.pointer, current=after.current, previous=after.previous)
    if found == half:
        return Found(progress=Progress.HALF, control=found, detail=f"interrupted before the pointer: {found}")
    detail = f"the registry was changed by somebody else: {found}, neither {before} nor {after}"
    return Found(progress=Progress.FOREIGN, control=found, detail=detail)


def read_control(registry: Directory) -> Control:
    """Read both files.

    Raises:
        RegistryError: a file does not hold what it has to; the line says which and what to do.
        FileRefusedError: a file is a link, a directory, too large, or has a second name.
        PeftIoError: the system failed.
    """
    pointer = parse_pointer(read_optional(registry, POINTER_FILE, MAX_POINTER_BYTES))
    current, previous = parse_state(read_optional(registry, STATE_FILE, MAX_STATE_BYTES))
    return Control(pointer=pointer, current=current, previous=previous)


def read_optional(registry: Directory, name: str, limit: int) -> bytes:
    """Return the content of a control file; nothing when it is absent or empty.

    Raises:
        FileRefusedError: it is a link, a directory, larger than ``limit``, or has a second name.
        PeftIoError: the system failed.
    """
    status = registry.status(name)
    # A power cut can leave an empty file where a tool did not sync; everybody reads it as «none».
    if status is None or (stat.S_ISREG(status.st_mode) and status.st_size == 0):
        return b""
    return registry.read_file(name, max_bytes=limit)


def commit(registry: Directory, before: Control, after: Control) -> None:
    """Let both files say ``after``: first the state, then the pointer. The registry's lock must be held.

    Args:
        registry: the registry's root.
        before: what the files must say now.
        after: what they say when this returns; pointer and state must agree and name a model.

    Raises:
        RegistryError: the files do not say ``before``, or ``after`` is no goal. Nothing was changed.
        PeftError: something failed; how far it got is told by :func:`roll_forward`.
    """
    if after.pointer is None or after.pointer != after.current:
        raise RegistryError(f"{after} is no state to commit: pointer and state must name one model")
    found = read_control(registry)
    if found != before:
        raise RegistryError(f"the registry was changed by somebody else: {found} instead of {before}")
    registry.write_file(STATE_FILE, render_state(after))
    registry.write_file(POINTER_FILE, render_pointer(after.pointer))


def roll_forward(registry: Directory, before: Control, after: Control) -> Found:
    """Tell how far a commit got, and finish it if it is half done. The registry's lock must be held.

    Returns:
        What was found. After ``HALF`` the registry says ``after``, as it does after ``APPLIED``, and durably
        so; nothing was changed in any other case.

    Raises:
        PeftError: a file cannot be read, or the pointer cannot be written; asking again is safe.
    """
    found = decide(before, after, read_control(registry))
    if found.progress in (Progress.APPLIED, Progress.HALF) and after.pointer is not None:
        # Where it is there already, whoever put it there may have died before the directory was synced, or
        # the sync may have failed, which a second one would not tell. So it is written anew.
        registry.write_file(POINTER_FILE, render_pointer(after.pointer))
    return found


def set_back(registry: Directory, before: Control, after: Control) -> None:
    """Take back a half commit: let the state say again what it said. The registry's lock must be held.

    Raises:
        RegistryError: the commit is not half done. Nothing was changed.
        PeftError: the file cannot be written; asking again is safe.
    """
    found = decide(before, after, read_control(registry))
    if found.progress is not Progress.HALF:
        raise RegistryError(f"there is no half commit to take back; {found.detail}")
    if before.current is None and before.previous is None:
        registry.unlink(STATE_FILE)
        registry.sync()
    else:
        registry.write_file(STATE_FILE, render_state(before))


def remove_unfinished(registry: Directory) -> None:
    """Remove what a killed writer left of the two files. The registry's lock must be held.

    Whoever gives such names takes the lock before, so that none of them is being written.

    Raises:
        PeftError: the registry cannot be listed, or a file cannot be removed.
    """
    for name in registry.names():
        # As in `.active.<process>.<number>.partial`.
        ours = is_partial(name) and name.rsplit(".", 3)[0] in (f".{POINTER_FILE}", f".{STATE_FILE}")
        if ours and registry.kind(name) is Kind.FILE:
            registry.unlink(name)


def render_pointer(model: str) -> bytes:
    """The content of ``active``."""
    return f"{model}\n".encode("ascii")


def render_state(control: Control) -> bytes:
    """The content of ``active_state.toml``; without a previous model the member is left out."""
    # Ids need no escaping, and the published Python client takes these lines apart without a TOML parser.
    lines = [
        f'{name} = "{value}"\n'
        for name, value in (("current", control.current), ("previous", control.previous))
        if value is not None
    ]
    return "".join(lines).encode("ascii")


def parse_pointer(data: bytes) -> str | None:
    """Return the model of a pointer: its first line that is not blank, without the blanks around it.

    Raises:
        RegistryError: not UTF-8, or no id.
    """
    advice = "activate a model after removing the file"
    try:
        lines = data.decode("utf-8").splitlines()
    except UnicodeDecodeError:
        raise RegistryError(f"{POINTER_FILE} is not UTF-8 text; {advice}") from None
    first = next((line for line in map(trim, lines) if line), "")
    try:
        return _id_or_none(first, f"the model in {POINTER_FILE}")
    except RegistryError as error:
        raise RegistryError(f"{error}; {advice}") from None


def parse_state(data: bytes) -> tuple[str | None, str | None]:
    """Return the current and the previous model of a state; an empty file is no state.

    Raises:
        RegistryError: not TOML, an unknown or a missing member, or no id.
    """
    try:
        return _state(data)
    except RegistryError as error:
        raise RegistryError(f"{STATE_FILE} {error}; without the file the pointer alone counts") from None


def _state(data: bytes) -> tuple[str | None, str | None]:
    try:
        document = tomllib.loads(data.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise RegistryError(f"is not valid TOML: {error}") from None
    for name in document:
        if name not in _STATE_MEMBERS:
            raise RegistryError(f"has an unknown member {shown(name)}")
    if document and "current" not in document:
        raise RegistryError("does not say which model is current")
    current, previous = (
        _id_or_none(document.get(name, ""), f"cannot be used: {name}") for name in _STATE_MEMBERS
    )
    return current, previous


def _id_or_none(value: object, what: str) -> str | None:
    if value is None or value == "":
        return None
    try:
        return check_component(value, what=what)
    except NameRefusedError as error:
        raise RegistryError(str(error)) from None
