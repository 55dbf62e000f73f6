"""The evaluation context: under which conditions a loss was measured, each condition by a digest.

Two evaluations can be compared when all eleven members are equal. None of them is taken from a document: each
is derived from the profile, and a document that says another one is refused.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Final

from ticket_agent.peft.release.canonical import digest_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ticket_agent.peft.release.stack import Device

__all__ = [
    "EvaluationContext",
    "parameters_digest",
    "preprocessing_digest",
    "resource_digest",
    "runtime_digest",
]

EVALUATOR: Final = "transformers.Trainer.evaluate"
COLLATOR: Final = "DataCollatorForLanguageModeling/mlm=false"


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationContext:
    """The eleven conditions; all but the four texts are SHA-256 digests."""

    dataset_sha256: str
    split: str
    preprocessing_sha256: str
    base_sha256: str
    tokenizer_sha256: str
    evaluator: str
    evaluator_version: str
    parameters_sha256: str
    seed_policy: str
    runtime_sha256: str
    resource_sha256: str

    def members(self) -> dict[str, str]:
        """The value as an object of JSON."""
        return asdict(self)

    @property
    def sha256(self) -> str:
        """Digest of the canonical bytes."""
        return digest_of(self.members())


def runtime_digest(versions: Mapping[str, str], device: Device) -> str:
    """What computes: packages, device, type of numbers, attention."""
    return digest_of(
        {
            "versions": dict(versions),
            "device": device.device,
            "dtype": device.dtype,
            "attention": device.attention,
        }
    )


def resource_digest(device: Device) -> str:
    """What it may use while it does."""
    return digest_of(
        {
            "device": device.device,
            "dtype": device.dtype,
            "threads": device.threads,
            "memory_fraction": device.memory_fraction,
        }
    )


def preprocessing_digest(max_length: int) -> str:
    """How rows become batches."""
    return digest_of({"max_length": max_length, "collator": COLLATOR})


def parameters_digest(*, batch_size: int, max_length: int, seed: int) -> str:
    """The numbers that the evaluation is started with."""
    return digest_of({"batch_size": batch_size, "max_length": max_length, "seed": seed})
