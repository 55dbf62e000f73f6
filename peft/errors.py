"""Everything that working on registry, export and adapter trees raises.

Each class has a stable ``code`` and its text is one printable line that says what was wrong and, where there
is something to do, what. A refusal never leaves a trace in the trees.
"""

from __future__ import annotations

from ticket_agent.protocol.errors import one_line

__all__ = [
    "AbsentError",
    "ArtifactRefusedError",
    "FileChangedError",
    "FileRefusedError",
    "LockHeldError",
    "NameRefusedError",
    "NameTakenError",
    "PeftError",
    "PeftIoError",
    "RegistryError",
    "RootRefusedError",
]


class PeftError(Exception):
    """Root of these errors."""

    code = "peft"

    def __init__(self, text: str) -> None:
        super().__init__(one_line(text))


class RootRefusedError(PeftError):
    """A configured root is not a directory that may be trusted; nothing below it was touched."""

    code = "peft-root"


class NameRefusedError(PeftError):
    """A name that must not become a directory entry."""

    code = "peft-name"


class FileRefusedError(PeftError):
    """A file or directory below a root that must not be used: a link, a device, too large, ..."""

    code = "peft-file"


class AbsentError(FileRefusedError):
    """What was to be opened, moved or removed is not there."""

    code = "peft-absent"


class FileChangedError(FileRefusedError):
    """Somebody changed or replaced a file while it was in use; a later try may find it at rest."""

    code = "peft-changed"


class NameTakenError(FileRefusedError):
    """The name for something new exists already; what is there stays untouched."""

    code = "peft-taken"


class ArtifactRefusedError(PeftError):
    """The content of an adapter, of its description or of an export is not acceptable."""

    code = "peft-artifact"


class RegistryError(PeftError):
    """The registry's own files contradict each other or the request."""

    code = "peft-registry"


class LockHeldError(PeftError):
    """Somebody else works on the same root; try again later.

    Attributes:
        pid: process id of the holder as the kernel reports it, or None when it does not.
        command: the holder's command name, or None.
    """

    code = "peft-locked"

    def __init__(self, root: str, *, pid: int | None, command: str | None) -> None:
        who = "another process" if pid is None else f"process {pid}"
        if command is not None:
            who += f" ({command})"
        super().__init__(f"{root} is in use by {who}; try again when it has finished")
        self.pid = pid
        self.command = command


class PeftIoError(PeftError):
    """The operating system failed; what was asked for may be possible later.

    Attributes:
        errno: the system's error number, or None.
        applied: the change is visible, but it is not known to be durable. False: nothing changed.
    """

    code = "peft-io"

    def __init__(self, doing: str, error: OSError, *, applied: bool = False) -> None:
        super().__init__(f"{doing} failed: {error.strerror or error}")
        self.errno = error.errno
        self.applied = applied
