from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING, Any

import pytest
from release_support import base_state, policy, promoted, request, sha

from ticket_agent.peft.release.deployment import encode_deployment, parse_deployment
from ticket_agent.peft.release.document_error import DocumentError
from ticket_agent.peft.release.request import (
    Direction,
    EvaluationPolicy,
    Metric,
    encode_request,
    parse_request,
)

if TYPE_CHECKING:
    from collections.abc import Callable

GOOD = encode_request(request())


def changed(change: Callable[[dict[str, Any]], object]) -> bytes:
    """The good request after ``change``, in the spelling that it would have."""
    document = json.loads(GOOD)
    change(document)
    return json.dumps(document, separators=(",", ":"), ensure_ascii=False).encode()


def put(path: str, value: object) -> Callable[[dict[str, Any]], object]:
    *way, last = path.split(".")

    def change(document: dict[str, Any]) -> None:
        for name in way:
            document = document[name]
        document[last] = value

    return change


def drop(path: str) -> Callable[[dict[str, Any]], object]:
    *way, last = path.split(".")

    def change(document: dict[str, Any]) -> None:
        for name in way:
            document = document[name]
        del document[last]

    return change


LOSS = "evaluation_policy.metrics.eval_loss"

ACCEPTED = [
    (put("entry", "train"), "train"),
    (put("operation_id", "A_b-9" + "x" * 59), "64 characters"),
    (put("operation_id", "_"), "one character"),
    (put("evaluation_policy.minimum_samples", 1_000_000), "samples"),
    (put("evaluation_policy.maximum_age_ms", 3_600_000), "age"),
    (put(f"{LOSS}.absolute_bound", -4.5), "negative bound"),
    (put(f"{LOSS}.absolute_bound", 0.0001), "small bound"),
    (put(f"{LOSS}.direction", "higher"), "higher"),
    (
        put(
            "evaluation_policy.metrics",
            {f"m{n:02}": json.loads(GOOD)["evaluation_policy"]["metrics"]["eval_loss"] for n in range(16)},
        ),
        "16 metrics",
    ),
    (put("baseline.healthy", False), "unhealthy: whether that may be is the comparison's question"),
    (put("baseline", promoted(base_state(), sha("a")).members()), "an adapter"),
]


@pytest.mark.parametrize("change", [case[0] for case in ACCEPTED], ids=[case[1] for case in ACCEPTED])
def test_accepted(change: Callable[[dict[str, Any]], object]) -> None:
    data = changed(change)
    assert encode_request(parse_request(data)) == data


REFUSED = [
    (put("schema", "cohesix-peft-release/v2"), "release-schema", "schema must be"),
    (put("entry", "export"), "release-schema", '"import" or "train"'),
    (put("entry", ["import"]), "release-schema", "entry"),
    (put("profile_sha256", "AA" * 32), "release-artifact-identity", "profile_sha256"),
    (put("profile_sha256", "aa" * 31), "release-artifact-identity", "profile_sha256"),
    (put("input_sha256", None), "release-artifact-identity", "input_sha256"),
    (put("operation_id", "release.one"), "release-operation-id", "without a leading -"),
    (put("operation_id", "-release"), "release-operation-id", "operation_id"),
    (put("operation_id", "x" * 65), "release-operation-id", "operation_id"),
    (put("operation_id", ""), "release-operation-id", "operation_id"),
    (put("operation_id", "a\n"), "release-operation-id", "operation_id"),
    (put("operation_id", "ä"), "release-operation-id", "operation_id"),
    (put("operation_id", 7), "release-operation-id", "operation_id"),
    (put("model_id", "a/b"), "release-model-id", "model_id"),
    (put("model_id", ".."), "release-model-id", "model_id"),
    (put("model_id", "a:b"), "release-model-id", "model_id"),
    (put("model_id", None), "release-model-id", "model_id"),
    (put("extra", 1), "member-unknown", "unknown member extra"),
    (put("baseline.extra", 1), "member-unknown", "unknown member extra"),
    (put(f"{LOSS}.extra", 1), "member-unknown", "unknown member extra"),
    (put("evaluation_policy.extra", 1), "member-unknown", "unknown member extra"),
    (drop("baseline"), "member-missing", "no member baseline"),
    (drop(f"{LOSS}.direction"), "member-missing", "no member direction"),
    (put("baseline", []), "release-document", "baseline: the document must be an object"),
    (put("evaluation_policy.minimum_samples", 0), "evaluation-bounds", "1..=1000000"),
    (put("evaluation_policy.minimum_samples", 1_000_001), "evaluation-bounds", "1..=1000000"),
    (put("evaluation_policy.minimum_samples", True), "evaluation-bounds", "minimum_samples"),
    (put("evaluation_policy.minimum_samples", 16.0), "evaluation-bounds", "minimum_samples"),
    (put("evaluation_policy.maximum_age_ms", 0), "evaluation-bounds", "maximum_age_ms"),
    (put("evaluation_policy.maximum_age_ms", 3_600_001), "evaluation-bounds", "maximum_age_ms"),
    (put("evaluation_policy.metrics", {}), "evaluation-bounds", "1..=16 metrics"),
    (put("evaluation_policy.metrics", []), "release-document", "metrics must be an object"),
    (put(f"{LOSS}.absolute_bound", 4), "metric-bound", "like 4.0"),
    (put(f"{LOSS}.absolute_bound", "4.0"), "metric-bound", "absolute_bound"),
    (put(f"{LOSS}.absolute_bound", 1e-5), "metric-bound", "not every program prints alike"),
    (put(f"{LOSS}.absolute_bound", 1e16), "metric-bound", "not every program prints alike"),
    (put(f"{LOSS}.maximum_regression", -0.5), "metric-bound", "at least 0.0"),
    (put(f"{LOSS}.maximum_regression", -0.0), "metric-bound", "-0.0"),
    (put(f"{LOSS}.direction", "down"), "metric-bound", '"lower" or "higher"'),
    (put("baseline.generation", 1), "base-generation", "must be 0"),
    (put("baseline.generation", -1), "base-generation", "generation"),
    (put("baseline.generation", 2**64), "json-number", "outside"),
    (put("baseline.adapter_sha256", "44" * 32), "incumbent-adapter", "must be the same"),
    (put("baseline.healthy", 1), "release-document", "true or false"),
    (put("baseline.runtime_sha256", "66"), "release-artifact-identity", "runtime_sha256"),
]


@pytest.mark.parametrize(
    ("change", "rule", "words"), REFUSED, ids=[f"{n}-{c[2]}" for n, c in enumerate(REFUSED)]
)
def test_refused(change: Callable[[dict[str, Any]], object], rule: str, words: str) -> None:
    with pytest.raises(DocumentError) as caught:
        parse_request(changed(change))
    assert caught.value.rule == rule
    assert words in str(caught.value)
    assert str(caught.value).startswith(("release request: ", "release request "))


def test_a_long_metric_name() -> None:
    item = json.loads(GOOD)["evaluation_policy"]["metrics"]["eval_loss"]
    parse_request(changed(put("evaluation_policy.metrics", {"x" * 64: item})))
    for name in ("x" * 65, "", "a\x07", "ü"):
        with pytest.raises(DocumentError, match="name"):
            parse_request(changed(put("evaluation_policy.metrics", {name: item})))


OTHER_BYTES = {
    "newline": GOOD + b"\n",
    "blank": GOOD.replace(b":", b": ", 1),
    "order": GOOD.replace(b'"entry":"import",', b"").replace(b'"model_id"', b'"entry":"import","model_id"'),
    "sorted": json.dumps(json.loads(GOOD), sort_keys=True, separators=(",", ":")).encode(),
    "zeros": GOOD.replace(b"4.0", b"4.00"),
    "exponent": GOOD.replace(b"4.0", b"4e0"),
    "escape": GOOD.replace(b"adapter-one", b"\\u0061dapter-one"),
    "metrics out of order": GOOD.replace(
        b'"metrics":{', b'"metrics":{"z":{"direction":"lower","absolute_bound":4.0,"maximum_regression":0.0},'
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", OTHER_BYTES)
def test_one_value_has_one_spelling(name: str) -> None:
    with pytest.raises(DocumentError, match="not spelled in its one form from byte") as caught:
        parse_request(OTHER_BYTES[name])
    assert caught.value.rule == "release-input-binding"


def test_the_size_is_bounded() -> None:
    with pytest.raises(DocumentError, match="the limit is 8192"):
        parse_request(GOOD + b" " * 8192)


@pytest.mark.parametrize("bad", [math.nan, math.inf, 1, 1e-7])
def test_values_are_checked_however_they_are_made(bad: float) -> None:
    with pytest.raises(DocumentError):
        Metric(name="x", direction=Direction.LOWER, absolute_bound=bad, maximum_regression=0.0)


def test_a_policy_sorts_its_metrics() -> None:
    metrics = [
        Metric(name=name, direction=Direction.LOWER, absolute_bound=1.0, maximum_regression=0.0)
        for name in ("b", "a")
    ]
    made = EvaluationPolicy(minimum_samples=1, maximum_age_ms=1, metrics=tuple(metrics))
    assert [metric.name for metric in made.metrics] == ["a", "b"]
    with pytest.raises(DocumentError, match="different names"):
        EvaluationPolicy(minimum_samples=1, maximum_age_ms=1, metrics=(metrics[0], metrics[0]))


def test_seventeen_metrics_are_too_many() -> None:
    metric = policy().metrics[0]
    metrics = tuple(
        Metric(
            name=f"m{n}",
            direction=metric.direction,
            absolute_bound=metric.absolute_bound,
            maximum_regression=metric.maximum_regression,
        )
        for n in range(17)
    )
    with pytest.raises(DocumentError, match=r"1\.\.=16"):
        EvaluationPolicy(minimum_samples=1, maximum_age_ms=1, metrics=metrics)


def test_accepted_json_is_canonical() -> None:
    state = promoted(base_state(), sha("adapter"))
    data = encode_deployment(state)
    assert parse_deployment(data) == state
    assert list(json.loads(data)) == sorted(json.loads(data))
    for bad in (data + b"\n", b"{}", b"", data.replace(b'"generation":1', b'"generation":-1')):
        with pytest.raises(DocumentError, match=r"^accepted\.json"):
            parse_deployment(bad)
