"""Key files: what is taken, what is refused, and that nobody can sign with a point of small order."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from key_files import OTHER_SEED, SEED, Ed25519PublicKey, curve_pem, key, private_pem, public_pem, write
from peft_support import needs_root

from ticket_agent.peft.release.evidence_errors import KeyFileError, SignatureRefusedError
from ticket_agent.peft.release.keys import _P, _Y8, PrivateKey, PublicKey, read_private_key, read_public_key

if TYPE_CHECKING:
    from pathlib import Path


def test_the_vector_of_the_standard() -> None:
    # RFC 8032, section 7.1, test 2.
    secret = bytes.fromhex("4ccd089b28ff96da9db6c346ec114e0f5b8a319f35aba624da8cf6ed4fb8a6fb")
    signature = bytes.fromhex(
        "92a009a9f0d4cab8720e820b5f642540a2b27b5416503f8fb3762223ebdb69da"
        "085ac1e43e15996e458f3613d0f11d8c387b2eaeb4302aeeb00d291612bb0c00"
    )
    made = PrivateKey.of(secret)
    assert made.public.raw.hex() == "3d4017c3e843895a92b70aa74d1b7ebc9c982ccf2ec4968cc0cd55f12af4660c"
    assert made.sign(b"\x72") == signature
    made.public.verify(signature, b"\x72")


@pytest.mark.parametrize("content", [SEED, private_pem()], ids=["raw", "pem"])
@pytest.mark.parametrize("mode", [0o600, 0o400])
def test_private_keys_are_read(tmp_path: Path, content: bytes, mode: int) -> None:
    read = read_private_key(write(tmp_path / "key", content, mode=mode))
    assert read.public == key().public
    assert SEED.hex() not in repr(read)


@pytest.mark.parametrize("content", [key().public.raw, public_pem()], ids=["raw", "pem"])
def test_public_keys_are_read_whoever_can_read_them(tmp_path: Path, content: bytes) -> None:
    write(tmp_path / "key", content, mode=0o644)
    (tmp_path / "link").symlink_to("key")
    assert read_public_key(tmp_path / "key") == read_public_key(tmp_path / "link") == key().public


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o610, 0o601, 0o620, 0o602, 0o644, 0o677])
def test_a_private_key_that_others_can_use_is_refused(tmp_path: Path, mode: int) -> None:
    path = write(tmp_path / "key", SEED, mode=mode)
    with pytest.raises(KeyFileError, match=f"mode {mode:04o}.*chmod go="):
        read_private_key(path)


@needs_root
def test_a_private_key_of_somebody_else_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "key", SEED)
    os.chown(path, 4321, -1)
    with pytest.raises(KeyFileError, match="belongs to user 4321"):
        read_private_key(path)


BAD_PRIVATE = {
    "empty": b"",
    "31 bytes": SEED[:-1],
    "33 bytes": SEED + b"\n",
    "hex": SEED.hex().encode(),
    "public": public_pem(),
    "encrypted": private_pem(password=b"secret"),
    "another curve": curve_pem(public=False),
    "cut": private_pem()[:-40],
    "too large": private_pem() + b" " * 4096,
}


@pytest.mark.parametrize("content", BAD_PRIVATE.values(), ids=BAD_PRIVATE)
def test_what_is_no_private_key_is_refused_without_quoting_it(tmp_path: Path, content: bytes) -> None:
    path = write(tmp_path / "key", content)
    with pytest.raises(KeyFileError) as refused:
        read_private_key(path)
    assert str(refused.value).startswith(f"key file {path} ")
    assert SEED.hex() not in str(refused.value)


BAD_PUBLIC = {
    "empty": b"",
    "private": private_pem(),
    "another curve": curve_pem(public=True),
    "words": b"key",
    "not a point's only encoding": (_P + 3).to_bytes(32, "little"),
}


@pytest.mark.parametrize("content", BAD_PUBLIC.values(), ids=BAD_PUBLIC)
def test_what_is_no_public_key_is_refused(tmp_path: Path, content: bytes) -> None:
    with pytest.raises(KeyFileError):
        read_public_key(write(tmp_path / "key", content))


def test_a_private_key_given_as_the_public_one_is_named(tmp_path: Path) -> None:
    path = write(tmp_path / "key", private_pem())
    with pytest.raises(KeyFileError, match="give the public one"):
        read_public_key(path)


@pytest.mark.parametrize("made", ["link", "fifo", "directory", "absent", "twice"])
def test_a_private_key_is_a_file_of_its_own(tmp_path: Path, made: str) -> None:
    path = tmp_path / "key"
    target = write(tmp_path / "target", SEED)
    if made == "link":
        path.symlink_to(target)
    elif made == "fifo":
        os.mkfifo(path, 0o600)
    elif made == "directory":
        path.mkdir(mode=0o700)
    elif made == "twice":
        path.hardlink_to(target)
    with pytest.raises(KeyFileError):
        read_private_key(path)


SMALL = [0, 1, _P - 1, _Y8, _P - _Y8]


def test_the_two_points_of_order_eight_are_negatives() -> None:
    # On the curve -x^2 + y^2 = 1 + d x^2 y^2, doubling one of them gives y = 0: 2y^2 = 1 + d x^2 y^2 + ... .
    d = -121665 * pow(121666, -1, _P) % _P
    x2 = (_Y8 * _Y8 - 1) * pow(d * _Y8 * _Y8 + 1, -1, _P) % _P
    # The doubled point's y has y^2 + x^2 in its numerator.
    assert (_Y8 * _Y8 + x2) % _P == 0


@pytest.mark.parametrize("sign", [0, 1 << 255], ids=["plus", "minus"])
@pytest.mark.parametrize("y", SMALL)
def test_a_key_that_anybody_can_sign_with_is_refused(y: int, sign: int) -> None:
    with pytest.raises(KeyFileError, match="no Ed25519 public key that anybody signs with"):
        PublicKey((y | sign).to_bytes(32, "little"))


def test_without_that_refusal_a_made_up_signature_would_count() -> None:
    identity = (1).to_bytes(32, "little")
    Ed25519PublicKey.from_public_bytes(identity).verify(identity + bytes(32), b"anything")


@pytest.mark.parametrize("signature", [b"", bytes(64), bytes(63), b"\xff" * 64])
def test_made_up_signatures_are_refused(signature: bytes) -> None:
    with pytest.raises(SignatureRefusedError, match=key().public.keyid):
        key().public.verify(signature, b"message")


def test_another_keys_signature_is_refused() -> None:
    with pytest.raises(SignatureRefusedError):
        key().public.verify(key(OTHER_SEED).sign(b"message"), b"message")


def test_without_the_library_one_line_says_what_to_install() -> None:
    code = (
        "import sys; sys.modules['cryptography'] = None\n"
        "from ticket_agent.peft.release.keys import PrivateKey, PublicKey\n"
        "from ticket_agent.peft.release.evidence_errors import CryptographyMissingError\n"
        "for use in (lambda: PrivateKey.of(bytes(32)), lambda: PublicKey(b'A' * 32).verify(b'', b'')):\n"
        "    try: use()\n"
        "    except CryptographyMissingError as error: print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.count("pip install 'ticket-agent[release]'") == 2


@pytest.mark.parametrize("size", [0, 31, 33, 64])
def test_keys_have_32_bytes(size: int) -> None:
    for make in (PublicKey, PrivateKey.of):
        with pytest.raises(KeyFileError, match=f"has 32 bytes, not {size}"):
            make(b"A" * size)
