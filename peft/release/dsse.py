"""An envelope around signed bytes: DSSE, with exactly one Ed25519 signature.

Pure: bytes in, a value out, and back. What is verified are the bytes that came in the envelope, never
something that was encoded again. An envelope has one written form (members sorted, no blanks, padded standard
base64), so that no byte of it can change unnoticed.
"""

from __future__ import annotations

import base64
import binascii
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from ticket_agent.peft.release.document_error import reading
from ticket_agent.peft.release.evidence_errors import SignatureRefusedError
from ticket_agent.peft.release.evidence_limits import (
    MAX_ENVELOPE_BYTES,
    MAX_LABEL_BYTES,
    MAX_STATEMENT_BYTES,
)
from ticket_agent.peft.release.keys import SIGNATURE_BYTES
from ticket_agent.peft.release.rules import array, digest_text, exact, refuse, text
from ticket_agent.peft.release.spelled import decode_spelled, spell

if TYPE_CHECKING:
    from ticket_agent.peft.release.keys import PrivateKey, PublicKey

__all__ = ["IN_TOTO", "Envelope", "pae", "parse_envelope", "sign", "verify"]

IN_TOTO: Final = "application/vnd.in-toto+json"
"""Payload type of an in-toto statement."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Envelope:
    """Bytes and one signature over them, not verified by being here.

    Attributes:
        payload: 1..=``MAX_STATEMENT_BYTES`` bytes.
        payload_type: what they are; it is signed too.
        keyid: SHA-256 of the raw public key.
        signature: 64 bytes.

    Raises:
        DocumentError: a value that no envelope can hold.
    """

    payload: bytes
    payload_type: str
    keyid: str
    signature: bytes

    def __post_init__(self) -> None:
        if not 1 <= len(self.payload) <= MAX_STATEMENT_BYTES:
            refuse("payload", f"1..={MAX_STATEMENT_BYTES} bytes; this one has {len(self.payload)}")
        text(self.payload_type, "payloadType", MAX_LABEL_BYTES)
        digest_text(self.keyid, "keyid")
        if len(self.signature) != SIGNATURE_BYTES:
            refuse("sig", f"{SIGNATURE_BYTES} bytes, not {len(self.signature)}")

    def encode(self) -> bytes:
        """The one written form; at most ``MAX_ENVELOPE_BYTES``."""
        signature = {"keyid": self.keyid, "sig": _base64(self.signature)}
        return spell(
            {
                "payload": _base64(self.payload),
                "payloadType": self.payload_type,
                "signatures": [signature],
            }
        )


def pae(payload_type: str, payload: bytes) -> bytes:
    """What is signed: type and payload, each with its length in bytes; neither can pass for the other."""
    kind = payload_type.encode()
    return b"DSSEv1 %d %b %d %b" % (len(kind), kind, len(payload), payload)


def sign(payload: bytes, *, payload_type: str, key: PrivateKey) -> Envelope:
    """Sign ``payload`` as what ``payload_type`` says it is."""
    signature = key.sign(pae(payload_type, payload))
    return Envelope(payload=payload, payload_type=payload_type, keyid=key.public.keyid, signature=signature)


def verify(envelope: Envelope, *, payload_type: str, key: PublicKey) -> bytes:
    """Return the payload if ``key`` signed it as ``payload_type``.

    Raises:
        SignatureRefusedError: of another type, signed by another key, or changed.
        CryptographyMissingError: nothing here can tell.
    """
    if envelope.payload_type != payload_type:
        raise SignatureRefusedError(f"the envelope holds {envelope.payload_type}, not {payload_type}")
    if envelope.keyid != key.keyid:
        raise SignatureRefusedError(f"the envelope is signed by key {envelope.keyid}, not by {key.keyid}")
    key.verify(envelope.signature, pae(payload_type, envelope.payload))
    return envelope.payload


def parse_envelope(data: bytes) -> Envelope:
    """Read an envelope.

    Raises:
        DocumentError: anything but the one spelling of an envelope with exactly one signature.
    """
    document = decode_spelled(data, what="envelope", max_bytes=MAX_ENVELOPE_BYTES)
    with reading("envelope"):
        exact(document, ("payload", "payloadType", "signatures"))
        (item,) = array(document["signatures"], "signatures", 1, 1)
        signature = exact(item, ("keyid", "sig"), "signatures.0")
        return Envelope(
            payload=_bytes(document["payload"], "payload"),
            payload_type=document["payloadType"],
            keyid=signature["keyid"],
            signature=_bytes(signature["sig"], "sig"),
        )


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode("ascii")


def _bytes(value: object, member: str) -> bytes:
    text_form = text(value, member, MAX_ENVELOPE_BYTES)
    try:
        data = base64.b64decode(text_form, validate=True)
    except (binascii.Error, ValueError):
        refuse(member, "standard base64 with padding")
    if _base64(data) != text_form:
        refuse(member, "base64 without bits that are left over")
    return data
