"""What a control phase is told, in ``in/control.json`` of its job directory."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from ticket_agent.peft.release.canonical import decode_object, encode
from ticket_agent.peft.release.document_error import reading
from ticket_agent.peft.release.evidence_limits import MAX_IDENTITY_BYTES
from ticket_agent.peft.release.phases import Phase
from ticket_agent.peft.release.release_config import ReleaseConfig
from ticket_agent.peft.release.rules import (
    array,
    check_operation_id,
    choice,
    digest_text,
    exact,
    field_names,
    integer,
    number,
    refuse,
    text,
)
from ticket_agent.peft.release.server_record import check_launch_id
from ticket_agent.protocol.tokens import U64_MAX

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["CONTROL_FILE", "CONTROL_PHASES", "ControlFacts", "Timing"]

CONTROL_FILE: Final = "control.json"
CONTROL_PHASES: Final = (Phase.STAGE, Phase.LOAD, Phase.CANARY, Phase.PROMOTE, Phase.ROLLBACK)
MAX_CONTROL_BYTES: Final = 32 * 1024

_SCHEMA: Final = "ticket-agent-control-job/v1"
_MAX_PATH: Final = 4096
_LEAST_S: Final = 0.001
_MAX_S: Final = 86_400.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """How long looks go on, in seconds; as in :class:`ReleaseConfig`, to the millisecond."""

    ready_s: float
    settle_s: float
    drain_s: float
    gone_s: float
    soak_s: float
    soak_pause_s: float

    def __post_init__(self) -> None:
        for name in field_names(type(self)):
            value = number(getattr(self, name), name)
            if not (0.0 if name == "soak_s" else _LEAST_S) <= value <= _MAX_S:
                refuse(name, f"at most {_MAX_S:.0f} seconds and above 0")

    @classmethod
    def of(cls, config: ReleaseConfig) -> Timing:
        """That of a host."""

        def seconds(name: str) -> float:
            value = round(float(getattr(config, name)), 3)
            return value if name == "soak_s" and value == 0 else max(value, _LEAST_S)

        return cls(**{name: seconds(name) for name in field_names(cls)})

    def members(self) -> dict[str, float]:
        """The value as an object of JSON."""
        return {name: getattr(self, name) for name in field_names(type(self))}


@dataclass(frozen=True, slots=True, kw_only=True)
class ControlFacts:
    """What the agent says about one control phase.

    Attributes:
        operation_id: the release's.
        request_sha256: digest of its request, which is in the root's store.
        phase: which one.
        native_identity: which process this is, as its launcher names it; 1..=256 bytes.
        root: the private root.
        recovery: the ticket of the attempt to recover; None for the release itself.
        candidate: launch id of the candidate's server; None before it was to be started.
        incumbent: launch id of the server that answers now, or of the one that was started in its place for
            a rollback; None where nothing was ever served.
        candidate_sha256: identity of the adapter that was compared; None where none was.
        candidate_bundle_sha256: what ``stage`` made of it; None before.
        evaluate_out: directory with ``behaviour.json``; None where nothing was evaluated.
        behaviour_sha256: digest of that file.
        expires_unix_ms: when the ticket expires; no effect begins then or later.
        python: interpreter of the servers.
        ports: that servers may have.
        token_file: holds the token of the servers.
        timing: how long to wait for what.

    Raises:
        DocumentError: a value that no job has.
        InstanceRefusedError: a launch id that no server has.
    """

    operation_id: str
    request_sha256: str
    phase: Phase
    native_identity: str
    root: str
    recovery: str | None
    candidate: str | None
    incumbent: str | None
    candidate_sha256: str | None
    candidate_bundle_sha256: str | None
    evaluate_out: str | None
    behaviour_sha256: str | None
    expires_unix_ms: int
    python: str
    ports: tuple[int, ...]
    token_file: str
    timing: Timing

    def __post_init__(self) -> None:
        check_operation_id(self.operation_id)
        digest_text(self.request_sha256, "request_sha256")
        choice(self.phase, "phase", CONTROL_PHASES)
        text(self.native_identity, "native_identity", MAX_IDENTITY_BYTES)
        if self.recovery is not None:
            check_operation_id(self.recovery, "recovery")
        for name in ("candidate", "incumbent"):
            launch_id = getattr(self, name)
            if launch_id is not None:
                check_launch_id(text(launch_id, name, 128))
        for name in ("candidate_sha256", "candidate_bundle_sha256", "behaviour_sha256"):
            if getattr(self, name) is not None:
                digest_text(getattr(self, name), name)
        for name in ("root", "python", "token_file", "evaluate_out"):
            path = getattr(self, name)
            if path is not None and not text(path, name, _MAX_PATH, ascii_only=False).startswith("/"):
                refuse(name, "an absolute path")
        if (self.evaluate_out is None) != (self.behaviour_sha256 is None):
            refuse("behaviour_sha256", "given if and only if evaluate_out is")
        integer(self.expires_unix_ms, "expires_unix_ms", 1, U64_MAX)
        array(self.ports, "ports", 1, 64)

    @classmethod
    def of(cls, config: ReleaseConfig, **members: Any) -> ControlFacts:
        """The facts of a phase on a host; ``members`` are those that its configuration does not say."""
        return cls(
            root=str(config.root),
            python=str(config.python),
            ports=config.ports,
            token_file=str(config.token_file),
            timing=Timing.of(config),
            **members,
        )

    @property
    def config(self) -> ReleaseConfig:
        """As much of the host's configuration as a control phase needs.

        Raises:
            ReleaseConfigError: no host has it.
        """
        return ReleaseConfig(
            root=Path(self.root),
            python=Path(self.python),
            ports=self.ports,
            token_file=Path(self.token_file),
            ready_s=self.timing.ready_s,
            settle_s=self.timing.settle_s,
            drain_s=self.timing.drain_s,
            gone_s=self.timing.gone_s,
            soak_s=self.timing.soak_s,
            soak_pause_s=self.timing.soak_pause_s,
        )

    def encode(self) -> bytes:
        """The canonical form."""
        members: dict[str, Any] = {name: getattr(self, name) for name in field_names(type(self))}
        members |= {"phase": self.phase.value, "timing": self.timing.members(), "ports": list(self.ports)}
        return encode(members | {"schema": _SCHEMA})

    @classmethod
    def parse(cls, data: bytes) -> ControlFacts:
        """Read the canonical form.

        Raises:
            DocumentError, InstanceRefusedError: anything else.
        """
        document = decode_object(data, what=CONTROL_FILE, max_bytes=MAX_CONTROL_BYTES)
        with reading(CONTROL_FILE):
            members: dict[str, Any] = dict(exact(document, ("schema", *field_names(cls))))
            choice(members.pop("schema"), "schema", (_SCHEMA,), code="release-schema")
            phases = [phase.value for phase in CONTROL_PHASES]
            members["phase"] = Phase(choice(members["phase"], "phase", phases))
            members["ports"] = array(members["ports"], "ports", 1, 64)
            timing: Mapping[str, Any] = exact(members["timing"], field_names(Timing), "timing")
            members["timing"] = Timing(**timing)
            return cls(**members)
