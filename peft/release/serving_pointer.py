"""The pointer that says which instance answers for a deployment: the one file that a switch changes.

Whoever asks the model reads it before each request, or when one is refused. It moves by compare and set.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Final

from ticket_agent.peft.errors import AbsentError, PeftError
from ticket_agent.peft.release.canonical import decode_object, encode
from ticket_agent.peft.release.document_error import reading
from ticket_agent.peft.release.loopback import check_port
from ticket_agent.peft.release.replaced import read_replaced
from ticket_agent.peft.release.rules import choice, digest_text, exact, field_names, integer, text
from ticket_agent.protocol.tokens import U64_MAX

if TYPE_CHECKING:
    from ticket_agent.peft.directory import Directory
    from ticket_agent.peft.release.guard import Guard
    from ticket_agent.peft.release.serving import Instance

__all__ = ["POINTER_FILE", "PointerConflictError", "PointerFile", "ServingPointer"]

POINTER_FILE: Final = "serving.json"
MAX_POINTER_BYTES: Final = 2048

_SCHEMA: Final = "ticket-agent-serving/v1"
_MAX_NAME_BYTES: Final = 192


class PointerConflictError(PeftError):
    """The pointer names neither of the two instances of this switch; nothing was changed."""

    code = "serving-pointer"


@dataclass(frozen=True, slots=True, kw_only=True)
class ServingPointer:
    """Where to ask, and for what.

    Attributes:
        name: of the served model.
        port: on the loopback interface.
        generation: of the deployment.
        artifact_sha256: what is served.

    Raises:
        DocumentError, InstanceRefusedError: a value that no instance has.
    """

    name: str
    port: int
    generation: int
    artifact_sha256: str

    def __post_init__(self) -> None:
        text(self.name, "name", _MAX_NAME_BYTES)
        check_port(self.port)
        integer(self.generation, "generation", 0, U64_MAX)
        digest_text(self.artifact_sha256, "artifact_sha256")

    @classmethod
    def of(cls, instance: Instance) -> ServingPointer:
        """The pointer to an instance."""
        return cls(
            name=instance.name,
            port=instance.port,
            generation=instance.generation,
            artifact_sha256=instance.artifact_sha256,
        )

    def encode(self) -> bytes:
        """The canonical bytes."""
        return encode({"schema": _SCHEMA} | asdict(self))

    @classmethod
    def parse(cls, data: bytes) -> ServingPointer:
        """Read what :meth:`encode` wrote.

        Raises:
            DocumentError, InstanceRefusedError: anything else.
        """
        document = decode_object(data, what=POINTER_FILE, max_bytes=MAX_POINTER_BYTES)
        with reading(POINTER_FILE):
            members: dict[str, Any] = dict(exact(document, ("schema", *field_names(cls))))
            choice(members.pop("schema"), "schema", [_SCHEMA])
            return cls(**members)


class PointerFile:
    """The pointer of one root. Whoever moves it holds the root's lock."""

    def __init__(self, root: Directory, guard: Guard) -> None:
        self._root = root
        self._guard = guard

    def read(self) -> ServingPointer | None:
        """Read it; None where nothing was ever served.

        Raises:
            DocumentError: it is damaged; whom to ask is not known.
            FileChangedError: it is replaced faster than it can be read.
            PeftIoError: the system failed.
        """
        try:
            data = read_replaced(self._root, POINTER_FILE, max_bytes=MAX_POINTER_BYTES)
        except AbsentError:
            return None
        return ServingPointer.parse(data)

    def move(self, expected: ServingPointer | None, wanted: ServingPointer) -> bool:
        """Let it name ``wanted`` if it names ``expected``; safe to repeat.

        Returns:
            False: it named ``wanted`` already.

        Raises:
            PointerConflictError: it names something else.
            PeftIoError, RootPoisonedError: the system failed; what it names has to be read again.
        """
        with self._guard.changing():
            found = self.read()
            if found == wanted:
                # Whoever moved it may have died before the directory was synced.
                self._root.sync()
                return False
            if found != expected:
                named = "nothing" if found is None else found.name
                raise PointerConflictError(
                    f"{POINTER_FILE} names {named}, which this switch does not go by;"
                    f" it is not moved to {wanted.name}"
                )
            self._root.write_file(POINTER_FILE, wanted.encode())
            return True
