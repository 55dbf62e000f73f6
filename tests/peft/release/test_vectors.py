"""Every digest that is known from elsewhere, out of our own encoders."""

from __future__ import annotations

from typing import Any

import pytest
from release_support import profile
from vector_files import load

from ticket_agent.peft.release.bundle import adapter_identity
from ticket_agent.peft.release.canonical import digest, digest_of, encode
from ticket_agent.peft.release.context import (
    parameters_digest,
    preprocessing_digest,
    resource_digest,
    runtime_digest,
)
from ticket_agent.peft.release.derived_names import enrolment_key, unit_infix
from ticket_agent.peft.release.profile import ProfileSchema, capabilities
from ticket_agent.peft.release.qualified import QUALIFIED_STACK, QUALIFIED_VERSIONS
from ticket_agent.peft.release.request import encode_request, parse_request, policy_digest, request_digest
from ticket_agent.peft.release.stack import Device
from ticket_agent.protocol import correlation_digest

VECTORS: dict[str, dict[str, Any]] = {entry["name"]: entry for entry in load("release.json")}


def test_every_vector_has_a_source() -> None:
    assert all(entry["source"] for entry in VECTORS.values())


def test_the_request() -> None:
    vector = VECTORS["request"]
    data = vector["bytes"].encode()
    assert len(data) == vector["length"]
    request = parse_request(data)
    assert encode_request(request) == data
    assert request_digest(request) == digest(data) == vector["sha256"]


def test_the_policy_alone() -> None:
    policy = parse_request(VECTORS["request"]["bytes"].encode()).evaluation_policy
    assert policy_digest(policy) == VECTORS["policy"]["sha256"] == digest(VECTORS["policy"]["bytes"].encode())


def _digests() -> dict[str, str]:
    runtime, resource, parameters = VECTORS["runtime"], VECTORS["resource"], VECTORS["parameters"]
    adapter, enrolment, current = (
        VECTORS[name] for name in ("adapter_identity", "enrolment_key", "current_suffix")
    )
    return {
        "runtime": runtime_digest(runtime["versions"], Device(**runtime["device"])),
        "resource": resource_digest(Device(**resource["device"])),
        "preprocessing": preprocessing_digest(VECTORS["preprocessing"]["max_length"]),
        "parameters": parameters_digest(
            **{name: parameters[name] for name in ("batch_size", "max_length", "seed")}
        ),
        "capabilities": digest_of(capabilities(QUALIFIED_STACK)),
        "adapter_identity": adapter_identity(adapter["config_sha256"], adapter["weights_sha256"]),
        "enrolment_key": enrolment_key(enrolment["ticket_id"], enrolment["idempotency_key"]),
        "current_suffix": correlation_digest(current["ticket_id"], current["idempotency_key"]),
    }


@pytest.mark.parametrize("name", sorted(VECTORS.keys() - {"request", "policy", "unit_infix"}))
def test_digests(name: str) -> None:
    assert _digests()[name] == VECTORS[name]["sha256"]


def test_the_length_of_the_capabilities() -> None:
    assert len(encode(capabilities(QUALIFIED_STACK))) == VECTORS["capabilities"]["length"]


def test_the_unit_infix() -> None:
    assert unit_infix(VECTORS["unit_infix"]["ticket_id"]) == VECTORS["unit_infix"]["infix"]


@pytest.mark.parametrize("schema", [ProfileSchema.V1, ProfileSchema.V2])
def test_the_qualified_profile_derives_the_reference_digests(schema: ProfileSchema) -> None:
    context = profile(schema).context
    assert context.runtime_sha256 == VECTORS["runtime"]["sha256"]
    assert context.resource_sha256 == VECTORS["resource"]["sha256"]


def test_our_own_schema_can_say_the_qualified_stack() -> None:
    context = profile(ProfileSchema.OURS, stack=QUALIFIED_STACK).context
    assert context == profile(ProfileSchema.V2).context
    assert dict(QUALIFIED_VERSIONS) == VECTORS["runtime"]["versions"]
