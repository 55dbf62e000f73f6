"""What is noted down of a model server before it is started, so that any later process finds it again."""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Final

from ticket_agent.peft.names import shown
from ticket_agent.peft.release.canonical import decode_object, encode
from ticket_agent.peft.release.document_error import reading
from ticket_agent.peft.release.rules import choice, exact, field_names, integer, sorted_names, text
from ticket_agent.peft.release.serving import Backend, Instance, backend_for
from ticket_agent.peft.release.serving_errors import InstanceRefusedError
from ticket_agent.peft.release.stack import Caps, Device
from ticket_agent.protocol.tokens import U64_MAX

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["ENDING_SUFFIX", "RECORD_SUFFIX", "RUN_SUFFIX", "ServerRecord", "check_launch_id"]

RECORD_SUFFIX: Final = ".json"
RUN_SUFFIX: Final = ".run"
ENDING_SUFFIX: Final = ".ending"
MAX_RECORD_BYTES: Final = 16 * 1024

_SCHEMA: Final = "ticket-agent-server/v1"
_LAUNCH_ID: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,119}")
_MAX_PATH: Final = 4096
_MAX_VERSIONS: Final = 8


def check_launch_id(launch_id: str) -> str:
    """Return the launch id of a server: 1 to 120 of ``A-Za-z0-9_.-``.

    Raises:
        InstanceRefusedError: it is another one, or its files would have the names of another one's.
    """
    if _LAUNCH_ID.fullmatch(launch_id) is None or launch_id.endswith(
        (RECORD_SUFFIX, RUN_SUFFIX, ENDING_SUFFIX)
    ):
        raise InstanceRefusedError(
            f"launch id {shown(launch_id)} of a server must be 1 to 120 of A-Za-z0-9_.- and not end in"
            f" {RECORD_SUFFIX}, {RUN_SUFFIX} or {ENDING_SUFFIX}"
        )
    return launch_id


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerRecord:
    """An instance without its token, and how it was started.

    Attributes:
        launch_id: of the launch.
        model_id, generation, artifact_sha256, bundle, base, rank, port, device: as of the instance.
        kind, versions, python: of its backend.
        caps: what it may use.
        began_unix_ms: when it was noted down, by the host's clock.

    Raises:
        DocumentError, InstanceRefusedError: a value that no server has.
    """

    launch_id: str
    model_id: str
    generation: int
    artifact_sha256: str
    bundle: str
    base: str
    rank: int | None
    port: int
    device: Device
    kind: str
    versions: Mapping[str, str]
    python: str
    caps: Caps
    began_unix_ms: int

    def __post_init__(self) -> None:
        check_launch_id(self.launch_id)
        for name in ("bundle", "base", "python"):
            text(getattr(self, name), name, _MAX_PATH, ascii_only=False)
        if self.rank is not None:
            integer(self.rank, "rank", 1, 256)
        for name, version in sorted_names(self.versions, "versions").items():
            text(version, f"versions.{name}", 128)
        integer(len(self.versions), "number of versions", 0, _MAX_VERSIONS)
        integer(self.began_unix_ms, "began_unix_ms", 0, U64_MAX)

    @classmethod
    def of(
        cls, launch_id: str, instance: Instance, backend: Backend, *, caps: Caps, now_unix_ms: int
    ) -> ServerRecord:
        """The record of an instance that is about to be started."""
        return cls(
            launch_id=launch_id,
            model_id=instance.model_id,
            generation=instance.generation,
            artifact_sha256=instance.artifact_sha256,
            bundle=instance.bundle,
            base=instance.base,
            rank=instance.rank,
            port=instance.port,
            device=instance.device,
            kind=backend.kind,
            versions=dict(backend.versions),
            python=backend.python,
            caps=caps,
            began_unix_ms=now_unix_ms,
        )

    def instance(self, *, run_dir: str, token: str) -> Instance:
        """The instance.

        Raises:
            PeftError: no instance has these values.
        """
        return Instance(
            model_id=self.model_id,
            generation=self.generation,
            artifact_sha256=self.artifact_sha256,
            bundle=self.bundle,
            base=self.base,
            rank=self.rank,
            run_dir=run_dir,
            port=self.port,
            token=token,
            device=self.device,
        )

    @property
    def backend(self) -> Backend:
        """How it was started, and how it is asked.

        Raises:
            InstanceRefusedError: no backend is like that.
        """
        return backend_for(self.kind, self.versions, python=self.python)

    def encode(self) -> bytes:
        """The canonical bytes."""
        members = {name: getattr(self, name) for name in field_names(type(self))}
        members |= {"device": asdict(self.device), "caps": asdict(self.caps)}
        return encode(members | {"schema": _SCHEMA})

    @classmethod
    def parse(cls, data: bytes, *, what: str) -> ServerRecord:
        """Read what :meth:`encode` wrote.

        Raises:
            DocumentError, InstanceRefusedError: anything else; the line begins with ``what``.
        """
        document = decode_object(data, what=what, max_bytes=MAX_RECORD_BYTES)
        with reading(what):
            members: dict[str, Any] = dict(exact(document, ("schema", *field_names(cls))))
            choice(members.pop("schema"), "schema", (_SCHEMA,), code="release-schema")
            members["device"] = Device(**exact(members["device"], field_names(Device), "device"))
            members["caps"] = Caps(**exact(members["caps"], field_names(Caps), "caps"))
            return cls(**members)
