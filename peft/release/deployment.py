"""What is deployed: the value that a release starts from, and that ``accepted.json`` holds."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Final

from ticket_agent.peft.release.canonical import decode_object, encode
from ticket_agent.peft.release.document_error import DocumentError, reading
from ticket_agent.peft.release.rules import digest_text, exact, field_names, flag, integer
from ticket_agent.protocol.tokens import U64_MAX

__all__ = ["MAX_STATE_BYTES", "DeploymentState", "encode_deployment", "parse_deployment"]

MAX_STATE_BYTES: Final = 8192
"""Of ``accepted.json``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeploymentState:
    """One generation of the deployment. The order of the fields is that of the request's bytes.

    Attributes:
        generation: 0 for the base model, one more with each promotion.
        adapter_sha256: identity of the served adapter; None when the base model is served without one, which
            is only so in generation 0.
        served_artifact_sha256: what is served: the adapter's identity, or the base model's.
        runtime_sha256: digest of the runtime that serves it.
        healthy: its canary passed.
        rollback_verified: it is known how to come back to it.

    Raises:
        DocumentError: a value that no deployment has.
    """

    generation: int
    adapter_sha256: str | None
    served_artifact_sha256: str
    runtime_sha256: str
    healthy: bool
    rollback_verified: bool

    def __post_init__(self) -> None:
        integer(self.generation, "generation", 0, U64_MAX, code="base-generation")
        digest_text(self.served_artifact_sha256, "served_artifact_sha256")
        digest_text(self.runtime_sha256, "runtime_sha256")
        flag(self.healthy, "healthy")
        flag(self.rollback_verified, "rollback_verified")
        if self.adapter_sha256 is None:
            if self.generation != 0:
                raise DocumentError(
                    "generation must be 0 where adapter_sha256 is null: only the base model has no adapter",
                    rule="base-generation",
                )
        elif digest_text(self.adapter_sha256, "adapter_sha256") != self.served_artifact_sha256:
            raise DocumentError(
                "adapter_sha256 and served_artifact_sha256 must be the same: the adapter is what is served",
                rule="incumbent-adapter",
            )

    def members(self) -> dict[str, Any]:
        """The value as an object of JSON, in the order of the request's bytes."""
        return asdict(self)

    @classmethod
    def of_members(cls, value: object) -> DeploymentState:
        """The value of :meth:`members`.

        Raises:
            DocumentError: anything else.
        """
        return cls(**exact(value, field_names(cls)))


def parse_deployment(data: bytes, *, what: str = "accepted.json") -> DeploymentState:
    """Read a canonical deployment state.

    Raises:
        DocumentError: anything else, or a value that no deployment has.
    """
    document = decode_object(data, what=what, max_bytes=MAX_STATE_BYTES)
    with reading(what):
        return DeploymentState.of_members(document)


def encode_deployment(state: DeploymentState) -> bytes:
    """Write the canonical bytes of a deployment state."""
    return encode(state.members())
