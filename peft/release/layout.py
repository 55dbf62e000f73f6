"""Where the things of one release stand below the private root.

```
<root>/journal/                    the journal of the phases
<root>/servers/<launch id>...      model servers, see ``server_room``
<root>/operations/<operation id>/
  begun.json                       under which ticket it began, and how its phases are confined
  <phase>/in/ <phase>/out/         the job directory of a phase; ``out/<phase>.json`` is its observation
  <phase>.run/                     run directory of its process
  release.json                     how the release ended; written once
  bundle.tar card.md               what was made of that
  recovery-<ticket id>/            an attempt to recover it later, with the same files
```
"""

from __future__ import annotations

import hashlib
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Final

from ticket_agent.peft.release.canonical import decode_object, encode
from ticket_agent.peft.release.document_error import reading
from ticket_agent.peft.release.release_record import Authority
from ticket_agent.peft.release.rules import (
    check_operation_id,
    choice,
    digest_text,
    exact,
    field_names,
    integer,
)
from ticket_agent.peft.release.statement import LauncherFacts
from ticket_agent.protocol.tokens import U64_MAX

if TYPE_CHECKING:
    from pathlib import Path

    from ticket_agent.peft.release.phases import Phase

__all__ = [
    "BEGUN_FILE",
    "BUNDLE_FILE",
    "CARD_FILE",
    "END_FILE",
    "JOURNAL",
    "MAX_BEGUN_BYTES",
    "RECOVERY_PREFIX",
    "SERVERS",
    "Begun",
    "OperationFiles",
]

JOURNAL: Final = "journal"
SERVERS: Final = "servers"
BEGUN_FILE: Final = "begun.json"
END_FILE: Final = "release.json"
BUNDLE_FILE: Final = "bundle.tar"
CARD_FILE: Final = "card.md"
RECOVERY_PREFIX: Final = "recovery-"
MAX_BEGUN_BYTES: Final = 8192

_SCHEMA: Final = "ticket-agent-release-begun/v1"
_ID_DIGITS: Final = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class Begun:
    """What was settled when a release, or an attempt to recover it, began.

    Attributes:
        operation_id: the release's.
        request_sha256: digest of its request.
        authority: the ticket.
        expires_unix_ms: when the ticket expires.
        provider_graph_sha256: digest of what this agent can do.
        launcher: how its phases are confined.
        began_unix_ms: when, by the host's clock.

    Raises:
        DocumentError: a value that none has.
    """

    operation_id: str
    request_sha256: str
    authority: Authority
    expires_unix_ms: int
    provider_graph_sha256: str
    launcher: LauncherFacts
    began_unix_ms: int

    def __post_init__(self) -> None:
        check_operation_id(self.operation_id)
        digest_text(self.request_sha256, "request_sha256")
        integer(self.expires_unix_ms, "expires_unix_ms", 1, U64_MAX)
        digest_text(self.provider_graph_sha256, "provider_graph_sha256")
        integer(self.began_unix_ms, "began_unix_ms", 0, U64_MAX)

    def encode(self) -> bytes:
        """The canonical form."""
        members: dict[str, Any] = {name: getattr(self, name) for name in field_names(type(self))}
        members |= {"authority": asdict(self.authority), "launcher": self.launcher.members()}
        return encode(members | {"schema": _SCHEMA})

    @classmethod
    def parse(cls, data: bytes) -> Begun:
        """Read the canonical form.

        Raises:
            DocumentError: anything else.
        """
        document = decode_object(data, what=BEGUN_FILE, max_bytes=MAX_BEGUN_BYTES)
        with reading(BEGUN_FILE):
            exact(document, ("schema", *field_names(cls)))
            choice(document.pop("schema"), "schema", (_SCHEMA,), code="release-schema")
            document["authority"] = Authority.of_members(document["authority"])
            document["launcher"] = LauncherFacts.of_members(document["launcher"])
            return cls(**document)


@dataclass(frozen=True, slots=True, kw_only=True)
class OperationFiles:
    """The places of one release, or of one attempt to recover it. Values only: nothing is touched.

    Attributes:
        root: the private root.
        operation_id: the release.
        recovery: the ticket of the attempt; None for the release itself.
    """

    root: Path
    operation_id: str
    recovery: str | None = None

    def __post_init__(self) -> None:
        check_operation_id(self.operation_id)
        if self.recovery is not None:
            check_operation_id(self.recovery, "recovery ticket id")

    @property
    def path(self) -> Path:
        """The directory."""
        own = self.root / "operations" / self.operation_id
        return own if self.recovery is None else own / f"{RECOVERY_PREFIX}{self.recovery}"

    def job(self, phase: Phase) -> Path:
        """Job directory of a phase."""
        return self.path / phase.value

    def run(self, phase: Phase) -> Path:
        """Run directory of a phase's process."""
        return self.path / f"{phase.value}.run"

    def observation(self, phase: Phase) -> Path:
        """The observation of a phase."""
        return self.job(phase) / "out" / f"{phase.value}.json"

    def launch_id(self, what: str) -> str:
        """Name of a launch for this operation: of a phase, or of a server."""
        if self.recovery is None:
            return f"{self.operation_id}.{what}"
        ticket = hashlib.sha256(self.recovery.encode("ascii")).hexdigest()[:_ID_DIGITS]
        return f"{self.operation_id}.{ticket}.{what}"
