"""Which request an operation id was prepared for: one small file in the operation's directory."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Final

from ticket_agent.peft.errors import AbsentError
from ticket_agent.peft.release.canonical import decode_object, encode
from ticket_agent.peft.release.document_error import reading
from ticket_agent.peft.release.markers import MAX_MARKER_BYTES
from ticket_agent.peft.release.rules import check_operation_id, choice, digest_text, exact, field_names, text

if TYPE_CHECKING:
    from ticket_agent.peft.release.private_root import PrivateRoot

__all__ = ["PREPARED_FILE", "Preparation", "find_preparation"]

PREPARED_FILE: Final = "prepared.json"
MAX_MODEL_BYTES: Final = 128
_SCHEMA: Final = "ticket-agent-release-prepared/v1"


@dataclass(frozen=True, slots=True, kw_only=True)
class Preparation:
    """A release that was prepared.

    Attributes:
        operation_id: its id, which no other release can have.
        request_sha256: its request.
        model_id: the model that it is of.
    """

    operation_id: str
    request_sha256: str
    model_id: str

    def __post_init__(self) -> None:
        check_operation_id(self.operation_id)
        digest_text(self.request_sha256, "request_sha256")
        text(self.model_id, "model_id", MAX_MODEL_BYTES)

    def encode(self) -> bytes:
        """The canonical bytes."""
        return encode(asdict(self) | {"schema": _SCHEMA})

    @classmethod
    def parse(cls, data: bytes) -> Preparation:
        """Read what :meth:`encode` wrote.

        Raises:
            DocumentError: anything else.
        """
        document = decode_object(data, what=PREPARED_FILE, max_bytes=MAX_MARKER_BYTES)
        with reading(PREPARED_FILE):
            exact(document, ("schema", *field_names(cls)))
            choice(document.pop("schema"), "schema", (_SCHEMA,), code="release-schema")
            return cls(**document)


def find_preparation(root: PrivateRoot, operation_id: str) -> Preparation | None:
    """What an operation was prepared for; None where it was not prepared here.

    Raises:
        DocumentError: no operation has this id, or the file is damaged.
        FileRefusedError: what is there is no directory or no plain file.
        PeftIoError: the system failed.
    """
    try:
        with root.operation(operation_id) as directory:
            return Preparation.parse(directory.read_file(PREPARED_FILE, max_bytes=MAX_MARKER_BYTES))
    except AbsentError:
        return None
