"""Who vouches for inputs: both versions, all must verify, and each member counts."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from key_files import OTHER_SEED, key
from release_support import profile

from ticket_agent.peft.release.attestation import (
    Attestation,
    SourceClaim,
    attest,
    parse_attestation,
    trusted_keys,
    verify_attestations,
)
from ticket_agent.peft.release.canonical import encode
from ticket_agent.peft.release.document_error import DocumentError
from ticket_agent.peft.release.evidence_errors import AttestationError, KeyFileError

TRAINED = SourceClaim(
    source_sha256="01" * 32,
    base_sha256="02" * 32,
    tokenizer_sha256="03" * 32,
    dataset_sha256="04" * 32,
    adapter_bundle_sha256=None,
    license_refs=("apache-2.0",),
)
IMPORTED = replace(TRAINED, dataset_sha256=None, adapter_bundle_sha256="05" * 32, imported=True)
CLAIMS = {"training": TRAINED, "import": IMPORTED}
WHO = "local-reference-source"
KEYS = {WHO: key().public}
OTHERS = {"another": key(OTHER_SEED).public}


def signed(claim: SourceClaim, **changes: Any) -> Attestation:
    return replace(attest(claim, key_id=WHO, key=key()), **changes)


@pytest.mark.parametrize("claim", CLAIMS.values(), ids=CLAIMS)
def test_what_is_vouched_for_is_accepted(claim: SourceClaim) -> None:
    attestation = signed(claim)
    (found,) = verify_attestations([attestation.encode()], keys=KEYS | OTHERS, expected=claim)
    assert found == attestation == parse_attestation(attestation.encode())


def test_the_payloads_are_the_published_ones() -> None:
    assert TRAINED.members() == {
        "schema": "cohesix-peft-source-attestation/v1",
        "source_sha256": "01" * 32,
        "base_sha256": "02" * 32,
        "tokenizer_sha256": "03" * 32,
        "dataset_sha256": "04" * 32,
        "adapter_bundle_sha256": None,
        "permitted_use": "training-and-private-inference",
        "license_refs": ["apache-2.0"],
    }
    assert IMPORTED.members() == TRAINED.members() | {
        "schema": "cohesix-peft-source-attestation/v2",
        "dataset_sha256": None,
        "adapter_bundle_sha256": "05" * 32,
        "training_provenance": "unknown",
    }


CHANGED: dict[str, Any] = {
    "source_sha256": "ee" * 32,
    "base_sha256": "ee" * 32,
    "tokenizer_sha256": "ee" * 32,
    "dataset_sha256": "ee" * 32,
    "adapter_bundle_sha256": "ee" * 32,
    "license_refs": ("mit",),
}


@pytest.mark.parametrize(("name", "value"), CHANGED.items())
def test_a_claim_about_other_inputs_is_refused(name: str, value: Any) -> None:
    with pytest.raises(AttestationError, match=f"{name} is not that of the inputs"):
        verify_attestations([signed(TRAINED).encode()], keys=KEYS, expected=replace(TRAINED, **{name: value}))


@pytest.mark.parametrize("license_refs", [(), ("mit", "mit"), ("",), ("x" * 257,), ("a\nb",), ("m",) * 9])
def test_a_claim_names_one_to_eight_different_licences(license_refs: tuple[str, ...]) -> None:
    with pytest.raises(DocumentError, match="license_refs"):
        replace(TRAINED, license_refs=license_refs)


@pytest.mark.parametrize(
    "changes",
    [{"imported": True}, {"dataset_sha256": None}, {"adapter_bundle_sha256": "ee"}, {"source_sha256": "ee"}],
)
def test_a_claim_that_nobody_can_make_is_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(DocumentError, match="sha256 must be"):
        replace(TRAINED, **changes)


def test_an_import_needs_the_adapter_that_is_imported() -> None:
    for other in (None, "ee" * 32):
        claim = replace(IMPORTED, adapter_bundle_sha256=other)
        with pytest.raises(AttestationError, match="adapter_bundle_sha256"):
            verify_attestations([signed(claim).encode()], keys=KEYS, expected=IMPORTED)


@pytest.mark.parametrize(("ours", "theirs"), [(TRAINED, IMPORTED), (IMPORTED, TRAINED)])
def test_one_version_does_not_stand_for_the_other(ours: SourceClaim, theirs: SourceClaim) -> None:
    with pytest.raises(AttestationError, match="schema is not that"):
        verify_attestations([signed(theirs).encode()], keys=KEYS, expected=ours)


def test_all_must_verify() -> None:
    good = signed(TRAINED).encode()
    other = attest(TRAINED, key_id="another", key=key(OTHER_SEED)).encode()
    assert len(verify_attestations([good, other], keys=KEYS | OTHERS, expected=TRAINED)) == 2
    with pytest.raises(AttestationError, match="another: the profile does not trust"):
        verify_attestations([good, other], keys=KEYS, expected=TRAINED)
    bad = signed(TRAINED, signature=bytes(64)).encode()
    with pytest.raises(AttestationError, match="signature is not that of key"):
        verify_attestations([good, bad], keys=KEYS, expected=TRAINED)
    forged = attest(TRAINED, key_id=WHO, key=key(OTHER_SEED)).encode()
    with pytest.raises(AttestationError, match="signature is not that of key"):
        verify_attestations([forged], keys=KEYS, expected=TRAINED)


@pytest.mark.parametrize("count", [0, 5])
def test_one_to_four_are_needed(count: int) -> None:
    with pytest.raises(AttestationError, match=f"there are {count}"):
        verify_attestations([signed(TRAINED).encode()] * count, keys=KEYS, expected=TRAINED)


@pytest.mark.parametrize("count", [0, 5])
def test_a_profile_has_one_to_four_keys(count: int) -> None:
    keys = {f"key {index}": key().public for index in range(count)}
    with pytest.raises(AttestationError, match="attestation keys"):
        verify_attestations([signed(TRAINED).encode()], keys=keys, expected=TRAINED)


PAYLOAD: dict[str, Any] = {
    "schema": "cohesix-peft-source-attestation/v3",
    "source_sha256": "01",
    "base_sha256": None,
    "tokenizer_sha256": 3,
    "dataset_sha256": None,
    "adapter_bundle_sha256": "",
    "permitted_use": "anything",
    "license_refs": [],
    "training_provenance": "unknown",
    "extra": 1,
}


@pytest.mark.parametrize(("name", "value"), PAYLOAD.items())
def test_other_payloads_are_refused(name: str, value: object) -> None:
    document = json.loads(signed(TRAINED).encode())
    document["payload"][name] = value
    with pytest.raises(DocumentError):
        parse_attestation(encode(document))


@pytest.mark.parametrize("provenance", ["known", None, ""])
def test_where_an_import_was_trained_is_unknown(provenance: object) -> None:
    document = json.loads(signed(IMPORTED).encode())
    document["payload"]["training_provenance"] = provenance
    with pytest.raises(DocumentError, match="training_provenance"):
        parse_attestation(encode(document))


@pytest.mark.parametrize("key_id", ["", "k" * 65, "a\nb", "\u00e9", None])
def test_a_keys_name_is_short_and_printable(key_id: object) -> None:
    document = json.loads(signed(TRAINED).encode()) | {"key_id": key_id}
    with pytest.raises(DocumentError, match="key_id"):
        parse_attestation(encode(document))


@pytest.mark.parametrize("signature", ["", "00", "AA" * 64, "0x" * 64, "00" * 63 + "0g", "00" * 65, None])
def test_other_signatures_are_refused(signature: object) -> None:
    document = json.loads(signed(TRAINED).encode()) | {"signature": signature}
    with pytest.raises(DocumentError):
        parse_attestation(encode(document))


def test_every_changed_bit_is_noticed() -> None:
    data = signed(TRAINED).encode()
    for index in range(len(data)):
        changed = bytearray(data)
        changed[index] ^= 1 << (index % 8)
        with pytest.raises((AttestationError, DocumentError)):
            verify_attestations([bytes(changed)], keys=KEYS, expected=TRAINED)


def test_the_keys_of_a_profile_are_those_that_are_trusted() -> None:
    public = key().public
    trusting = profile(attestation_keys=((WHO, public.raw.hex()),))
    assert trusted_keys(trusting) == KEYS
    verify_attestations([signed(TRAINED).encode()], keys=trusted_keys(trusting), expected=TRAINED)


def test_a_profile_cannot_trust_a_key_that_anybody_signs_with() -> None:
    with pytest.raises(KeyFileError):
        trusted_keys(profile(attestation_keys=((WHO, "00" * 32),)))
