"""Ed25519 keys for tests, and key files of every form."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from ticket_agent.peft.release.keys import PrivateKey

if TYPE_CHECKING:
    from pathlib import Path

pytest.importorskip("cryptography", reason="signatures need the extra: pip install 'ticket-agent[release]'")

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, generate_private_key
from cryptography.hazmat.primitives.asymmetric.ed25519 import (
    Ed25519PrivateKey,
    Ed25519PublicKey,
)

__all__ = [
    "OTHER_SEED",
    "SEED",
    "Ed25519PublicKey",
    "curve_pem",
    "key",
    "private_pem",
    "public_pem",
    "write",
]

SEED = bytes(range(32))
OTHER_SEED = bytes(range(1, 33))


def key(seed: bytes = SEED) -> PrivateKey:
    return PrivateKey.of(seed)


def write(path: Path, data: bytes, *, mode: int = 0o600) -> Path:
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(fd, "wb") as stream:
        stream.write(data)
    path.chmod(mode)
    return path


def private_pem(seed: bytes = SEED, *, password: bytes | None = None) -> bytes:
    protection = (
        serialization.NoEncryption() if password is None else serialization.BestAvailableEncryption(password)
    )
    return Ed25519PrivateKey.from_private_bytes(seed).private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, protection
    )


def public_pem(seed: bytes = SEED) -> bytes:
    public = Ed25519PrivateKey.from_private_bytes(seed).public_key()
    return public.public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)


def curve_pem(*, public: bool) -> bytes:
    made = generate_private_key(SECP256R1())
    if public:
        return made.public_key().public_bytes(
            serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
        )
    return made.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
