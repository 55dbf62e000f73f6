"""The directory of native evidence: private, with one file per document, named ``<sha256>.json``."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final, Self

from ticket_agent.peft.errors import AbsentError, PeftError
from ticket_agent.peft.names import is_partial
from ticket_agent.peft.release.canonical import digest
from ticket_agent.peft.release.evidence_errors import EvidenceStoreError
from ticket_agent.peft.release.evidence_limits import MAX_EVIDENCE_BYTES, MAX_EVIDENCE_OBJECTS
from ticket_agent.peft.release.rules import digest_text
from ticket_agent.peft.roots import open_root

if TYPE_CHECKING:
    from pathlib import Path

    from ticket_agent.peft.directory import Directory

__all__ = ["EvidenceStore"]

_SUFFIX: Final = ".json"
_NAME: Final = re.compile(r"[0-9a-f]{64}\.json")


class EvidenceStore:
    """The open directory; use it in a ``with`` statement.

    Storing the same again changes nothing. A file that does not hold what its name says is never replaced:
    somebody has to look at it.
    """

    def __init__(self, directory: Directory) -> None:
        self._directory: Final = directory

    @classmethod
    def open(cls, path: Path, *, owner_uid: int, create: bool) -> Self:
        """Open the directory, which nobody but ``owner_uid`` may be able to look into.

        Raises:
            RootRefusedError: it, or a directory on the way to it, is not acceptable, or it does not exist.
            PeftIoError: the system failed.
        """
        return cls(open_root(path, label="evidence root", owner_uid=owner_uid, create=create, private=True))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._directory.close()

    def store(self, data: bytes) -> str:
        """Durably keep a document; returns its digest.

        Raises:
            EvidenceStoreError: it has 0 or more than ``MAX_EVIDENCE_BYTES`` bytes, the directory is full, or
                the file with this digest is damaged.
            PeftError: the directory cannot be used.
        """
        if not 1 <= len(data) <= MAX_EVIDENCE_BYTES:
            raise EvidenceStoreError(
                f"evidence has 1..={MAX_EVIDENCE_BYTES} bytes; this document has {len(data)}"
            )
        sha256 = digest(data)
        if self._present(sha256):
            # The process that wrote it may have died before the name was durable.
            self._directory.sync()
            return sha256
        stored = sum(_NAME.fullmatch(name) is not None for name in self._directory.names())
        if stored >= MAX_EVIDENCE_OBJECTS:
            raise EvidenceStoreError(
                f"{self._directory.label} holds {stored} documents, which is the limit; archive old ones"
            )
        self._directory.write_file(sha256 + _SUFFIX, data)
        return sha256

    def load(self, sha256: str) -> bytes:
        """Return the document with this digest.

        Raises:
            AbsentError: there is none.
            EvidenceStoreError: the file is damaged.
            PeftError: it cannot be read.
        """
        name = digest_text(sha256, "evidence") + _SUFFIX
        try:
            data = self._directory.read_file(name, max_bytes=MAX_EVIDENCE_BYTES)
        except AbsentError:
            raise
        except PeftError as error:
            raise EvidenceStoreError(f"{error}; it is left as it is, look who changed it") from error
        if digest(data) != sha256:
            raise EvidenceStoreError(
                f"{self._directory.path(name)} does not hold what its name says; it is left as it is,"
                " look who changed it"
            )
        return data

    def digests(self) -> list[str]:
        """Digests of all documents, sorted; nothing is read."""
        names = self._directory.names()
        return [name.removesuffix(_SUFFIX) for name in names if _NAME.fullmatch(name)]

    def foreign(self) -> list[str]:
        """Names that do not belong here; what an interrupted write left is not among them."""
        return [
            name for name in self._directory.names() if not _NAME.fullmatch(name) and not is_partial(name)
        ]

    def _present(self, sha256: str) -> bool:
        try:
            self.load(sha256)
        except AbsentError:
            return False
        return True
