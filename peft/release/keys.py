"""Ed25519 keys: files that hold them, and the identity by which a signature names its key.

A key file is PEM (PKCS #8 for a private key, SubjectPublicKeyInfo for a public one) or the 32 raw bytes.
A key is named by the SHA-256 of its raw public bytes.
"""

from __future__ import annotations

import hashlib
import os
import stat
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from ticket_agent.peft.errors import PeftError
from ticket_agent.peft.names import shown
from ticket_agent.peft.opened import OpenedFile
from ticket_agent.peft.release.evidence_errors import (
    CryptographyMissingError,
    KeyFileError,
    SignatureRefusedError,
)
from ticket_agent.peft.release.evidence_limits import MAX_KEY_FILE_BYTES

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

__all__ = [
    "KEY_BYTES",
    "SIGNATURE_BYTES",
    "PrivateKey",
    "PublicKey",
    "new_key_pair",
    "read_private_key",
    "read_public_key",
]

KEY_BYTES: Final = 32
SIGNATURE_BYTES: Final = 64
_OTHERS: Final = stat.S_IRWXG | stat.S_IRWXO
_OPEN: Final = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC

_P: Final = 2**255 - 19
_SIGN: Final = 1 << 255
_Y8: Final = 0x05FC536D880238B13933C6D305ACDFD5F098EFF289F4C345B027B2C28F95E826
_SMALL_ORDER: Final = frozenset({0, 1, _P - 1, _Y8, _P - _Y8})
"""The y of every point whose multiples are at most eight points. With such a "key" anybody can write a
signature that OpenSSL accepts."""


@dataclass(frozen=True, slots=True)
class PublicKey:
    """A public key that can tell signatures apart.

    Attributes:
        raw: its 32 bytes.

    Raises:
        KeyFileError: not 32 bytes, not the one encoding of a point, or a point with which anybody can sign.
    """

    raw: bytes

    def __post_init__(self) -> None:
        if len(self.raw) != KEY_BYTES:
            raise KeyFileError(f"an Ed25519 public key has {KEY_BYTES} bytes, not {len(self.raw)}")
        y = int.from_bytes(self.raw, "little") & (_SIGN - 1)
        if y >= _P or y in _SMALL_ORDER:
            raise KeyFileError("this is no Ed25519 public key that anybody signs with; check the key file")

    @property
    def keyid(self) -> str:
        """SHA-256 of the raw key, in lowercase hexadecimal digits."""
        return hashlib.sha256(self.raw).hexdigest()

    def verify(self, signature: bytes, message: bytes) -> None:
        """Return if ``signature`` is this key's over exactly ``message``.

        Raises:
            SignatureRefusedError: it is not.
            CryptographyMissingError: nothing here can tell.
        """
        with _library():
            from cryptography.exceptions import InvalidSignature  # noqa: PLC0415 - heavy
            from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey  # noqa: PLC0415
        try:
            Ed25519PublicKey.from_public_bytes(self.raw).verify(signature, message)
        except (InvalidSignature, ValueError) as error:
            raise SignatureRefusedError(
                f"the signature is not that of key {self.keyid} over these bytes"
            ) from error


@dataclass(frozen=True, slots=True)
class PrivateKey:
    """A private key; it never shows itself.

    Attributes:
        public: what others verify with.
    """

    _key: Ed25519PrivateKey = field(repr=False)
    public: PublicKey

    @classmethod
    def of(cls, raw: bytes) -> PrivateKey:
        """The key with this seed of 32 bytes.

        Raises:
            KeyFileError: not 32 bytes.
            CryptographyMissingError: nothing here can sign.
        """
        with _library():
            from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey  # noqa: PLC0415
        if len(raw) != KEY_BYTES:
            raise KeyFileError(f"an Ed25519 private key has {KEY_BYTES} bytes, not {len(raw)}")
        return _private(Ed25519PrivateKey.from_private_bytes(raw))

    def sign(self, message: bytes) -> bytes:
        """Return the 64 bytes of the signature; the same message always gives the same ones."""
        return self._key.sign(message)


def read_private_key(path: Path) -> PrivateKey:
    """Read a private key from a file that nobody but its owner can use.

    Raises:
        KeyFileError: a link, no regular file, of another owner, open to group or others, or no Ed25519 key.
        CryptographyMissingError: nothing here can sign.
    """
    data = _content(path, flags=_OPEN | os.O_NOFOLLOW, private=True)
    if len(data) == KEY_BYTES:
        return PrivateKey.of(data)
    with _library():
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey  # noqa: PLC0415
        from cryptography.hazmat.primitives.serialization import load_pem_private_key  # noqa: PLC0415
    key = _loaded(load_pem_private_key, data, path, password=None)
    if not isinstance(key, Ed25519PrivateKey):
        raise KeyFileError(f"{_label(path)} does not hold an Ed25519 private key")
    return _private(key)


def new_key_pair() -> tuple[bytes, bytes]:
    """Make a new key; return its private and its public file, both PEM. The private one is not encrypted.

    Raises:
        CryptographyMissingError: nothing here can make keys.
    """
    with _library():
        from cryptography.hazmat.primitives import serialization  # noqa: PLC0415 - heavy
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey  # noqa: PLC0415
    key = Ed25519PrivateKey.generate()
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    public = key.public_key().public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    return private, public


def read_public_key(path: Path) -> PublicKey:
    """Read a public key.

    Raises:
        KeyFileError: no regular file, or no Ed25519 public key.
        CryptographyMissingError: the file is PEM, which nothing here can read.
    """
    data = _content(path, flags=_OPEN, private=False)
    if len(data) == KEY_BYTES:
        return PublicKey(data)
    if b"PRIVATE KEY-----" in data:
        raise KeyFileError(f"{_label(path)} holds a private key; give the public one, which may be shared")
    with _library():
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey  # noqa: PLC0415
        from cryptography.hazmat.primitives.serialization import load_pem_public_key  # noqa: PLC0415
    key = _loaded(load_pem_public_key, data, path)
    if not isinstance(key, Ed25519PublicKey):
        raise KeyFileError(f"{_label(path)} does not hold an Ed25519 public key")
    return PublicKey(key.public_bytes_raw())


def _private(key: Ed25519PrivateKey) -> PrivateKey:
    return PrivateKey(key, PublicKey(key.public_key().public_bytes_raw()))


def _loaded(load: Any, data: bytes, path: Path, **arguments: object) -> object:
    with _library():
        from cryptography.exceptions import UnsupportedAlgorithm  # noqa: PLC0415
    try:
        return load(data, **arguments)
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        # The library's words may quote what is in the file.
        raise KeyFileError(
            f"{_label(path)} holds neither {KEY_BYTES} raw bytes nor an unencrypted PEM key"
        ) from error


def _content(path: Path, *, flags: int, private: bool) -> bytes:
    label = _label(path)
    try:
        fd = os.open(path, flags)
    except OSError as error:
        raise KeyFileError(f"{label} cannot be opened: {error.strerror or error}") from error
    try:
        file = OpenedFile(fd, label=label, max_bytes=MAX_KEY_FILE_BYTES)
        if private:
            _require_private(os.fstat(fd), label)
        return b"".join(bytes(chunk) for chunk in file.chunks(memoryview(bytearray(file.size + 1))))
    except PeftError as error:
        raise error if isinstance(error, KeyFileError) else KeyFileError(str(error)) from error
    finally:
        os.close(fd)


def _require_private(status: os.stat_result, label: str) -> None:
    if status.st_mode & _OTHERS:
        mode = stat.S_IMODE(status.st_mode)
        raise KeyFileError(f"{label} is open to others (mode {mode:04o}); take that away with chmod go=")
    if status.st_uid not in (0, os.geteuid()):
        raise KeyFileError(f"{label} belongs to user {status.st_uid}, who can read and change the key")


def _label(path: Path) -> str:
    return f"key file {shown(os.fspath(path), 128)}"


@contextmanager
def _library() -> Iterator[None]:
    try:
        yield
    except ImportError as error:
        raise CryptographyMissingError from error
