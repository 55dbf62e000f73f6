"""The release request: what one ticket asks for, named in it by the digest of these bytes."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from ticket_agent.peft.errors import NameRefusedError
from ticket_agent.peft.names import check_model_id
from ticket_agent.peft.release.canonical import (
    decode_ordered,
    digest,
    encode_ordered,
    require_spelling,
)
from ticket_agent.peft.release.deployment import DeploymentState
from ticket_agent.peft.release.document_error import DocumentError, reading
from ticket_agent.peft.release.rules import (
    check_operation_id,
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

__all__ = [
    "MAX_REQUEST_BYTES",
    "REQUEST_SCHEMA",
    "DeploymentState",
    "Direction",
    "Entry",
    "EvaluationPolicy",
    "Metric",
    "ReleaseRequest",
    "encode_request",
    "parse_policy",
    "parse_request",
    "policy_digest",
    "request_digest",
]

REQUEST_SCHEMA: Final = "cohesix-peft-release/v1"
MAX_REQUEST_BYTES: Final = 8192
MAX_SAMPLES: Final = 1_000_000
MAX_AGE_MS: Final = 3_600_000
MAX_METRICS: Final = 16
MAX_METRIC_NAME: Final = 64

_BOUNDS: Final = "evaluation-bounds"
_METRIC: Final = "metric-bound"


class Entry(StrEnum):
    """Where the candidate comes from."""

    IMPORT = "import"
    TRAIN = "train"


class Direction(StrEnum):
    """Which values of a metric are the better ones."""

    LOWER = "lower"
    HIGHER = "higher"


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """What one metric of the candidate must keep.

    Attributes:
        name: 1..=64 printable ASCII characters.
        direction: which values are better.
        absolute_bound: the worst value that is accepted.
        maximum_regression: how much worse than the incumbent's it may be; at least 0.

    Raises:
        DocumentError: a value that no policy has.
    """

    name: str
    direction: Direction
    absolute_bound: float
    maximum_regression: float

    def __post_init__(self) -> None:
        text(self.name, "a metric's name", MAX_METRIC_NAME)
        if not isinstance(self.direction, Direction):
            refuse("direction", '"lower" or "higher"', code=_METRIC)
        number(self.absolute_bound, "absolute_bound", code=_METRIC)
        if number(self.maximum_regression, "maximum_regression", code=_METRIC) < 0:
            refuse("maximum_regression", "at least 0.0", code=_METRIC)


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationPolicy:
    """What an evaluation must show before a candidate may be served.

    Attributes:
        minimum_samples: rows that must have been evaluated, 1..=1000000.
        maximum_age_ms: an evaluation of this age is too old, 1..=3600000 milliseconds.
        metrics: 1..=16, each name once; kept sorted by name.

    Raises:
        DocumentError: a value that no policy has.
    """

    minimum_samples: int
    maximum_age_ms: int
    metrics: tuple[Metric, ...]

    def __post_init__(self) -> None:
        integer(self.minimum_samples, "minimum_samples", 1, MAX_SAMPLES, code=_BOUNDS)
        integer(self.maximum_age_ms, "maximum_age_ms", 1, MAX_AGE_MS, code=_BOUNDS)
        if not 1 <= len(self.metrics) <= MAX_METRICS:
            refuse("metrics", f"1..={MAX_METRICS} metrics", code=_BOUNDS)
        if len({metric.name for metric in self.metrics}) != len(self.metrics):
            refuse("metrics", "metrics of different names", code=_BOUNDS)
        object.__setattr__(self, "metrics", tuple(sorted(self.metrics, key=lambda metric: metric.name)))

    def members(self) -> dict[str, Any]:
        """The value as an object of JSON, in the order of the request's bytes."""
        metrics = {
            metric.name: {
                "direction": metric.direction.value,
                "absolute_bound": metric.absolute_bound,
                "maximum_regression": metric.maximum_regression,
            }
            for metric in self.metrics
        }
        return {
            "minimum_samples": self.minimum_samples,
            "maximum_age_ms": self.maximum_age_ms,
            "metrics": metrics,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class ReleaseRequest:
    """One release. The order of the fields is that of the bytes.

    Attributes:
        operation_id: 1..=64 ASCII letters, digits, ``_`` or ``-``, without a leading ``-``.
        model_id: what the model is called in the registry, and the ticket's ``subject_ref``.
        entry: whether the candidate is imported or trained.
        profile_sha256: digest of the profile.
        input_sha256: digest of the input document.
        evaluation_policy: what the candidate must keep.
        baseline: what must be deployed when the release starts and, if it does not succeed, when it ends.

    Raises:
        DocumentError: a value that no request has.
    """

    operation_id: str
    model_id: str
    entry: Entry
    profile_sha256: str
    input_sha256: str
    evaluation_policy: EvaluationPolicy
    baseline: DeploymentState

    def __post_init__(self) -> None:
        check_operation_id(self.operation_id)
        try:
            check_model_id(self.model_id, what="model_id")
        except NameRefusedError as error:
            raise DocumentError(str(error), rule="release-model-id") from None
        if not isinstance(self.entry, Entry):
            refuse("entry", '"import" or "train"', code="release-schema")
        digest_text(self.profile_sha256, "profile_sha256")
        digest_text(self.input_sha256, "input_sha256")

    def members(self) -> dict[str, Any]:
        """The value as an object of JSON, in the order of the bytes."""
        return {
            "schema": REQUEST_SCHEMA,
            "operation_id": self.operation_id,
            "model_id": self.model_id,
            "entry": self.entry.value,
            "profile_sha256": self.profile_sha256,
            "input_sha256": self.input_sha256,
            "evaluation_policy": self.evaluation_policy.members(),
            "baseline": self.baseline.members(),
        }


def parse_request(data: bytes) -> ReleaseRequest:
    """Read a request.

    Raises:
        DocumentError: more than 8192 bytes, not one strict JSON object, unknown or missing members, a value
            out of bounds, or bytes that differ from what :func:`encode_request` writes for their value.
    """
    with reading("release request"):
        document = exact(
            decode_ordered(data, max_bytes=MAX_REQUEST_BYTES), ("schema", *field_names(ReleaseRequest))
        )
        choice(document["schema"], "schema", (REQUEST_SCHEMA,), code="release-schema")
        choice(document["entry"], "entry", [entry.value for entry in Entry], code="release-schema")
        policy = parse_policy(document["evaluation_policy"])
        with reading("baseline"):
            baseline = DeploymentState.of_members(document["baseline"])
        request = ReleaseRequest(
            operation_id=document["operation_id"],
            model_id=document["model_id"],
            entry=Entry(document["entry"]),
            profile_sha256=document["profile_sha256"],
            input_sha256=document["input_sha256"],
            evaluation_policy=policy,
            baseline=baseline,
        )
        require_spelling(data, encode_request(request))
    return request


def encode_request(request: ReleaseRequest) -> bytes:
    """Write a request, without a newline at the end.

    Raises:
        DocumentError: it would have more than 8192 bytes.
    """
    data = encode_ordered(request.members())
    if len(data) > MAX_REQUEST_BYTES:
        raise DocumentError(
            f"release request takes {len(data)} bytes; the limit is {MAX_REQUEST_BYTES}", rule="json-too-long"
        )
    return data


def request_digest(request: ReleaseRequest) -> str:
    """The SHA-256 that a ticket names the request by."""
    return digest(encode_request(request))


def policy_digest(policy: EvaluationPolicy) -> str:
    """SHA-256 of a policy as it stands in the request's bytes."""
    return digest(encode_ordered(policy.members()))


def parse_policy(value: object) -> EvaluationPolicy:
    """Make a policy of an object of JSON, whatever the order of its members.

    Raises:
        DocumentError: unknown or missing members, or a value out of bounds.
    """
    with reading("evaluation_policy"):
        document = exact(value, field_names(EvaluationPolicy))
        return EvaluationPolicy(
            minimum_samples=document["minimum_samples"],
            maximum_age_ms=document["maximum_age_ms"],
            metrics=tuple(
                _metric(name, item) for name, item in sorted_names(document["metrics"], "metrics").items()
            ),
        )


def _metric(name: str, value: object) -> Metric:
    with reading("metrics"):
        text(name, "a metric's name", MAX_METRIC_NAME)
    with reading(f"metric {name}"):
        document = exact(value, field_names(Metric)[1:])
        choice(document["direction"], "direction", [way.value for way in Direction], code=_METRIC)
        return Metric(
            name=name,
            direction=Direction(document["direction"]),
            absolute_bound=document["absolute_bound"],
            maximum_regression=document["maximum_regression"],
        )
