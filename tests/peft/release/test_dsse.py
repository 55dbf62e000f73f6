"""Envelopes: one written form, exactly one signature, and no byte that can change unnoticed."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from key_files import OTHER_SEED, Ed25519PublicKey, key

from ticket_agent.peft.errors import PeftError
from ticket_agent.peft.release.document_error import DocumentError
from ticket_agent.peft.release.dsse import IN_TOTO, Envelope, pae, parse_envelope, sign, verify
from ticket_agent.peft.release.evidence_errors import SignatureRefusedError
from ticket_agent.peft.release.evidence_limits import MAX_ENVELOPE_BYTES, MAX_STATEMENT_BYTES

PAYLOAD = b'{"_type":"https://in-toto.io/Statement/v1"}'
SIGNED = sign(PAYLOAD, payload_type=IN_TOTO, key=key())


def encoded(**changes: Any) -> bytes:
    document = json.loads(SIGNED.encode()) | changes
    return json.dumps(document, sort_keys=True, separators=(",", ":")).encode()


def test_the_authenticated_form_is_the_published_one() -> None:
    # The example of the DSSE specification.
    expected = b"DSSEv1 29 http://example.com/HelloWorld 11 hello world"
    assert pae("http://example.com/HelloWorld", b"hello world") == expected
    assert pae("", b"") == b"DSSEv1 0  0 "
    assert pae("é", b"\x00") == b"DSSEv1 2 \xc3\xa9 1 \x00"


@given(st.text(max_size=8), st.binary(max_size=16), st.text(max_size=8), st.binary(max_size=16))
def test_no_two_contents_share_an_authenticated_form(
    kind: str, payload: bytes, other: str, content: bytes
) -> None:
    assert (pae(kind, payload) == pae(other, content)) == ((kind, payload) == (other, content))


def test_what_was_signed_comes_back() -> None:
    assert verify(parse_envelope(SIGNED.encode()), payload_type=IN_TOTO, key=key().public) == PAYLOAD
    assert encoded() == SIGNED.encode()


def test_an_independent_implementation_takes_the_envelope() -> None:
    document = json.loads(SIGNED.encode())
    (signature,) = document["signatures"]
    payload = base64.b64decode(document["payload"])
    message = f"DSSEv1 {len(IN_TOTO)} {IN_TOTO} {len(payload)} ".encode() + payload
    Ed25519PublicKey.from_public_bytes(key().public.raw).verify(base64.b64decode(signature["sig"]), message)


@given(st.binary(min_size=1, max_size=400))
def test_encoding_and_parsing_are_inverse(payload: bytes) -> None:
    envelope = sign(payload, payload_type=IN_TOTO, key=key())
    assert parse_envelope(envelope.encode()) == envelope


def test_the_largest_payload_fits_an_envelope() -> None:
    largest = sign(b"x" * MAX_STATEMENT_BYTES, payload_type=IN_TOTO, key=key())
    assert len(largest.encode()) <= MAX_ENVELOPE_BYTES
    assert parse_envelope(largest.encode()) == largest
    with pytest.raises(DocumentError, match=f"1..={MAX_STATEMENT_BYTES}"):
        sign(b"x" * (MAX_STATEMENT_BYTES + 1), payload_type=IN_TOTO, key=key())


ONE = json.loads(SIGNED.encode())["signatures"][0]
BAD = {
    "no signature": ({"signatures": []}, "1..=1 items"),
    "two signatures": ({"signatures": [ONE, ONE]}, "1..=1 items"),
    "signature is no object": ({"signatures": ["x"]}, "signatures.0 must be an object"),
    "signature has more": ({"signatures": [{**ONE, "cert": "x"}]}, "unknown member signatures.0.cert"),
    "keyid in capitals": ({"signatures": [{**ONE, "keyid": ONE["keyid"].upper()}]}, "keyid"),
    "no keyid": ({"signatures": [{"sig": ONE["sig"]}]}, "no member signatures.0.keyid"),
    "short signature": ({"signatures": [{**ONE, "sig": "AAAA"}]}, "64 bytes, not 3"),
    "unknown member": ({"extra": 1}, "unknown member extra"),
    "empty payload": ({"payload": ""}, "payload must be"),
    "payload is no text": ({"payload": 1}, "payload must be"),
    "payload with a line break": ({"payload": "AAAA\nAAAA"}, "printable"),
    "payload with a blank": ({"payload": "AAAA AAAA"}, "payload must be standard base64"),
    "unpadded payload": ({"payload": "AAA"}, "payload must be standard base64"),
    "url-safe payload": ({"payload": "-_-_"}, "payload must be standard base64"),
    "left-over bits": ({"payload": "AB=="}, "left over"),
    "more after the padding": ({"payload": "AA==AAAA"}, "payload"),
    "type is no text": ({"payloadType": 3}, "payloadType"),
    "no type": ({"payloadType": None}, "payloadType"),
}


@pytest.mark.parametrize(("changes", "words"), BAD.values(), ids=BAD)
def test_anything_else_is_refused(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(DocumentError, match=words):
        parse_envelope(encoded(**changes))


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"[]",
        b"null",
        b"\xff",
        SIGNED.encode() + b"\n",
        b" " + SIGNED.encode(),
        SIGNED.encode().replace(b'"payload"', b'"p\\u0061yload"'),
        SIGNED.encode()[:-1] + b',"payload":"AAAA"}',
        json.dumps(json.loads(SIGNED.encode()), indent=1).encode(),
        b" " * (MAX_ENVELOPE_BYTES + 1),
    ],
    ids=range(10),
)
def test_another_form_of_the_same_is_refused(data: bytes) -> None:
    with pytest.raises(DocumentError):
        parse_envelope(data)


def test_the_signature_covers_the_type() -> None:
    retyped = Envelope(
        payload=PAYLOAD, payload_type="text/plain", keyid=SIGNED.keyid, signature=SIGNED.signature
    )
    with pytest.raises(SignatureRefusedError, match="text/plain"):
        verify(retyped, payload_type=IN_TOTO, key=key().public)
    with pytest.raises(SignatureRefusedError, match="not that of key"):
        verify(retyped, payload_type="text/plain", key=key().public)


def test_another_key_is_named() -> None:
    with pytest.raises(SignatureRefusedError, match=f"by key {key().public.keyid}, not by"):
        verify(SIGNED, payload_type=IN_TOTO, key=key(OTHER_SEED).public)


def test_every_changed_bit_is_noticed() -> None:
    data = SIGNED.encode()
    for index in range(len(data)):
        for bit in range(8):
            changed = bytearray(data)
            changed[index] ^= 1 << bit
            with pytest.raises(PeftError):
                verify(parse_envelope(bytes(changed)), payload_type=IN_TOTO, key=key().public)
