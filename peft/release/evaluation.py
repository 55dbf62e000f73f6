"""What an evaluation says: its context, its metrics, and the loss of every row."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from ticket_agent.peft.release.canonical import decode_object, digest, encode
from ticket_agent.peft.release.context import EvaluationContext
from ticket_agent.peft.release.document_error import reading
from ticket_agent.peft.release.evidence_limits import (
    MAX_EVALUATION_BYTES,
    MAX_LABEL_BYTES,
    MAX_METRICS,
    MAX_REPORT_BYTES,
    MAX_ROWS,
)
from ticket_agent.peft.release.rules import (
    array,
    choice,
    digest_text,
    exact,
    field_names,
    integer,
    number,
    refuse,
    sorted_names,
    text,
)
from ticket_agent.peft.release.spelled import decode_spelled, finite_floats, spell
from ticket_agent.protocol.tokens import U32_MAX, U64_MAX

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = [
    "EVALUATION_SCHEMA",
    "MAX_LOSS",
    "REPORT_SCHEMA",
    "Evaluation",
    "RowLosses",
    "parse_evaluation",
    "parse_row_losses",
]

EVALUATION_SCHEMA: Final = "cohesix-native-evaluation/v1"
REPORT_SCHEMA: Final = "ticket-agent-row-losses/v1"
MAX_METRIC_NAME: Final = 64
MAX_LOSS: Final = 1e6
"""Of one row. A mean over more than a model's vocabulary could cost is no loss of a language model."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """One artifact on the held-out rows.

    Attributes:
        artifact_sha256: the adapter's identity, or the base model's.
        context: what it was evaluated on and with.
        samples: rows.
        completed_unix_ms: when it ended, by the host's clock.
        metrics: 1..=16 by name; not to be changed.
        native_report_sha256: the document that has the loss of every row.

    Raises:
        DocumentError: a value that no evaluation has.
    """

    artifact_sha256: str
    context: EvaluationContext
    samples: int
    completed_unix_ms: int
    metrics: Mapping[str, float]
    native_report_sha256: str

    def __post_init__(self) -> None:
        digest_text(self.artifact_sha256, "artifact_sha256")
        _check_context(self.context)
        integer(self.samples, "samples", 0, U32_MAX)
        integer(self.completed_unix_ms, "completed_unix_ms", 0, U64_MAX)
        if not 1 <= len(self.metrics) <= MAX_METRICS:
            refuse("metrics", f"1..={MAX_METRICS} metrics")
        for name, value in self.metrics.items():
            text(name, "a metric's name", MAX_METRIC_NAME)
            number(value, f"metrics.{name}")
        digest_text(self.native_report_sha256, "native_report_sha256")
        object.__setattr__(self, "metrics", MappingProxyType(dict(sorted(self.metrics.items()))))

    def members(self) -> dict[str, Any]:
        """The value as an object of JSON."""
        return {
            "schema": EVALUATION_SCHEMA,
            "artifact_sha256": self.artifact_sha256,
            "context": self.context.members(),
            "samples": self.samples,
            "completed_unix_ms": self.completed_unix_ms,
            "metrics": dict(self.metrics),
            "native_report_sha256": self.native_report_sha256,
        }

    @classmethod
    def of_members(cls, value: object, what: str = "evaluation") -> Evaluation:
        """The value of :meth:`members`.

        Raises:
            DocumentError: anything else.
        """
        with reading(what):
            document = dict(exact(value, ("schema", *field_names(cls))))
            choice(document.pop("schema"), "schema", (EVALUATION_SCHEMA,))
            context = exact(document["context"], field_names(EvaluationContext), "context")
            document["context"] = EvaluationContext(**context)
            sorted_names(document["metrics"], "metrics")
            return cls(**document)

    def encode(self) -> bytes:
        """The canonical form."""
        return encode(self.members())

    @property
    def sha256(self) -> str:
        """Digest of the canonical form."""
        return digest(self.encode())


@dataclass(frozen=True, slots=True, kw_only=True)
class RowLosses:
    """The loss of each held-out row, in the order of evaluation.

    Attributes:
        artifact_sha256: what was evaluated.
        rows: SHA-256 of each row's text; 1..=256 different ones.
        losses: mean loss per token of each row, 0..=``MAX_LOSS``, in nats.

    Raises:
        DocumentError: a value that no such report has.
    """

    artifact_sha256: str
    rows: tuple[str, ...]
    losses: tuple[float, ...]

    def __post_init__(self) -> None:
        digest_text(self.artifact_sha256, "artifact_sha256")
        check_rows(self.rows)
        finite_floats(list(self.losses), "losses", count=len(self.rows), low=0.0, high=MAX_LOSS)

    def members(self) -> dict[str, Any]:
        """The value as an object of JSON."""
        return {"schema": REPORT_SCHEMA, **asdict(self), "rows": list(self.rows), "losses": list(self.losses)}

    def encode(self) -> bytes:
        """The report's bytes; at most ``MAX_REPORT_BYTES``."""
        return spell(self.members())

    @property
    def sha256(self) -> str:
        """Digest of the report's bytes."""
        return digest(self.encode())


def _check_context(context: EvaluationContext) -> None:
    for name in field_names(EvaluationContext):
        if name.endswith("_sha256"):
            digest_text(getattr(context, name), f"context.{name}")
        else:
            text(getattr(context, name), f"context.{name}", MAX_LABEL_BYTES)


def check_rows(rows: tuple[str, ...]) -> None:
    """Refuse rows that are not 1..=``MAX_ROWS`` different digests.

    Raises:
        DocumentError: they are not.
    """
    array(list(rows), "rows", 1, MAX_ROWS)
    for row in rows:
        digest_text(row, "rows")
    if len(set(rows)) != len(rows):
        refuse("rows", "different rows")


def parse_evaluation(data: bytes) -> Evaluation:
    """Read an evaluation.

    Raises:
        DocumentError: anything but the canonical form of one.
    """
    return Evaluation.of_members(decode_object(data, what="evaluation", max_bytes=MAX_EVALUATION_BYTES))


def parse_row_losses(data: bytes) -> RowLosses:
    """Read a report of the losses of rows.

    Raises:
        DocumentError: anything but the one spelling of a report.
    """
    document = decode_spelled(data, what="row losses", max_bytes=MAX_REPORT_BYTES)
    with reading("row losses"):
        exact(document, ("schema", *field_names(RowLosses)))
        choice(document["schema"], "schema", (REPORT_SCHEMA,))
        return RowLosses(
            artifact_sha256=document["artifact_sha256"],
            rows=tuple(array(document["rows"], "rows", 1, MAX_ROWS)),
            losses=tuple(array(document["losses"], "losses", 1, MAX_ROWS)),
        )
