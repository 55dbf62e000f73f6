"""Who vouches for the inputs of a release: signed statements about their digests.

There are two versions. The first is about data to train on; the second about an adapter that was trained
elsewhere, where nobody can say on what. The signature is over the payload's canonical form.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from ticket_agent.peft.release.canonical import decode_object, digest, encode
from ticket_agent.peft.release.document_error import reading
from ticket_agent.peft.release.evidence_errors import AttestationError, SignatureRefusedError
from ticket_agent.peft.release.evidence_limits import MAX_ATTESTATION_BYTES
from ticket_agent.peft.release.keys import SIGNATURE_BYTES, PublicKey
from ticket_agent.peft.release.profile import (
    MAX_ATTESTATIONS,
    MAX_KEY_ID_BYTES,
    MAX_LICENSES,
    check_licenses,
)
from ticket_agent.peft.release.rules import array, choice, digest_text, exact, refuse, text

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ticket_agent.peft.release.keys import PrivateKey
    from ticket_agent.peft.release.profile import Profile

__all__ = [
    "Attestation",
    "SourceClaim",
    "attest",
    "parse_attestation",
    "trusted_keys",
    "verify_attestations",
]

_SCHEMAS: Final = {
    "cohesix-peft-source-attestation/v1": False,
    "cohesix-peft-source-attestation/v2": True,
}
"""Schemas, and whether they are of the version for imports."""
_USE: Final = "training-and-private-inference"
_UNKNOWN: Final = "unknown"


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceClaim:
    """What is vouched for.

    Attributes:
        source_sha256: digest of the description of where it all comes from.
        base_sha256: digest of the base model.
        tokenizer_sha256: digest of the tokenizer's files.
        dataset_sha256: digest of the training data; None in the version for imports.
        adapter_bundle_sha256: the imported adapter's bundle, or None.
        license_refs: licences, 1..=8 of 1..=256 bytes.
        imported: the version for imports.

    Raises:
        DocumentError: a value that no claim has.
    """

    source_sha256: str
    base_sha256: str
    tokenizer_sha256: str
    dataset_sha256: str | None
    adapter_bundle_sha256: str | None
    license_refs: tuple[str, ...]
    imported: bool = False

    def __post_init__(self) -> None:
        for name in ("source_sha256", "base_sha256", "tokenizer_sha256"):
            digest_text(getattr(self, name), name)
        for name in ("dataset_sha256", "adapter_bundle_sha256"):
            if getattr(self, name) is not None:
                digest_text(getattr(self, name), name)
        check_licenses(self.license_refs)
        if self.imported is not (self.dataset_sha256 is None):
            refuse("dataset_sha256", "null in the version for imports, and a digest in the other one")

    def members(self) -> dict[str, Any]:
        """The payload as an object of JSON."""
        schema = next(schema for schema, imported in _SCHEMAS.items() if imported is self.imported)
        payload: dict[str, Any] = {
            "schema": schema,
            "source_sha256": self.source_sha256,
            "base_sha256": self.base_sha256,
            "tokenizer_sha256": self.tokenizer_sha256,
            "dataset_sha256": self.dataset_sha256,
            "adapter_bundle_sha256": self.adapter_bundle_sha256,
            "permitted_use": _USE,
            "license_refs": list(self.license_refs),
        }
        if self.imported:
            payload["training_provenance"] = _UNKNOWN
        return payload

    @classmethod
    def of_members(cls, value: object) -> SourceClaim:
        """The value of :meth:`members`.

        Raises:
            DocumentError: anything else.
        """
        imported = isinstance(value, dict) and "training_provenance" in value
        names = [name for name in cls.__slots__ if name != "imported"]
        provenance = ("training_provenance",) if imported else ()
        document = exact(value, ("schema", *names, "permitted_use", *provenance))
        wanted = [schema for schema, for_import in _SCHEMAS.items() if for_import is imported]
        choice(document["schema"], "schema", wanted)
        choice(document["permitted_use"], "permitted_use", (_USE,))
        if imported:
            choice(document["training_provenance"], "training_provenance", (_UNKNOWN,))
        values = {name: document[name] for name in names}
        values["license_refs"] = tuple(array(document["license_refs"], "license_refs", 1, MAX_LICENSES))
        return cls(**values, imported=imported)


@dataclass(frozen=True, slots=True, kw_only=True)
class Attestation:
    """A claim and one signature over it, not verified by being here.

    Attributes:
        claim: what is vouched for.
        key_id: what the profile calls the key; 1..=64 printable ASCII characters.
        signature: 64 bytes.

    Raises:
        DocumentError: a value that no attestation has.
    """

    claim: SourceClaim
    key_id: str
    signature: bytes

    def __post_init__(self) -> None:
        text(self.key_id, "key_id", MAX_KEY_ID_BYTES)
        if len(self.signature) != SIGNATURE_BYTES:
            refuse("signature", f"{2 * SIGNATURE_BYTES} lowercase hexadecimal digits")

    def encode(self) -> bytes:
        """The canonical form."""
        return encode(
            {
                "payload": self.claim.members(),
                "key_id": self.key_id,
                "signature": self.signature.hex(),
            }
        )

    @property
    def sha256(self) -> str:
        """Digest of the canonical form."""
        return digest(self.encode())

    def verify(self, key: PublicKey) -> None:
        """Return if ``key`` signed the claim.

        Raises:
            AttestationError: it did not.
            CryptographyMissingError: nothing here can tell.
        """
        try:
            key.verify(self.signature, encode(self.claim.members()))
        except SignatureRefusedError as error:
            raise AttestationError(f"attestation by {self.key_id}: {error}") from error


def attest(claim: SourceClaim, *, key_id: str, key: PrivateKey) -> Attestation:
    """Vouch for inputs."""
    return Attestation(claim=claim, key_id=key_id, signature=key.sign(encode(claim.members())))


def parse_attestation(data: bytes) -> Attestation:
    """Read an attestation.

    Raises:
        DocumentError: anything but the canonical form of one.
    """
    document = decode_object(data, what="attestation", max_bytes=MAX_ATTESTATION_BYTES)
    with reading("attestation"):
        exact(document, ("payload", "key_id", "signature"))
        signature = text(document["signature"], "signature", 2 * SIGNATURE_BYTES)
        try:
            raw = bytes.fromhex(signature)
        except ValueError:
            raw = b""
        if raw.hex() != signature:
            refuse("signature", f"{2 * SIGNATURE_BYTES} lowercase hexadecimal digits")
        with reading("payload"):
            claim = SourceClaim.of_members(document["payload"])
        return Attestation(claim=claim, key_id=document["key_id"], signature=raw)


def trusted_keys(profile: Profile) -> dict[str, PublicKey]:
    """The keys that a profile trusts, by the name it gives them.

    Raises:
        KeyFileError: one of them is no key that anybody signs with.
    """
    return {name: PublicKey(bytes.fromhex(raw)) for name, raw in profile.attestation_keys}


def verify_attestations(
    records: Sequence[bytes], *, keys: Mapping[str, PublicKey], expected: SourceClaim
) -> tuple[Attestation, ...]:
    """Return the attestations if every one of them vouches for exactly the inputs.

    Args:
        records: 1..=4 attestations as they are stored.
        keys: 1..=4 keys that the profile trusts, by the name it gives them.
        expected: the inputs as they are, told by whoever looked at them.

    Raises:
        AttestationError: none, too many, an unknown key, another claim, or a signature that is not the key's.
        DocumentError: a record is no attestation.
        CryptographyMissingError: nothing here can tell.
    """
    if not 1 <= len(records) <= MAX_ATTESTATIONS:
        raise AttestationError(f"inputs need 1..={MAX_ATTESTATIONS} attestations; there are {len(records)}")
    if not 1 <= len(keys) <= MAX_ATTESTATIONS:
        raise AttestationError(f"a profile has 1..={MAX_ATTESTATIONS} attestation keys, not {len(keys)}")
    found = tuple(parse_attestation(record) for record in records)
    for attestation in found:
        _require_claim(attestation, expected)
        if attestation.key_id not in keys:
            raise AttestationError(
                f"attestation by {attestation.key_id}: the profile does not trust this key"
            )
        attestation.verify(keys[attestation.key_id])
    return found


def _require_claim(attestation: Attestation, expected: SourceClaim) -> None:
    claimed, wanted = attestation.claim.members(), expected.members()
    for name in {**wanted, **claimed}:
        if claimed.get(name) != wanted.get(name):
            raise AttestationError(
                f"attestation by {attestation.key_id}: {name} is not that of the inputs; attest them anew"
            )
