"""Where a hive's credential comes from, and a type that keeps it out of every message.

A reference is read again at each connect, so that a rotated file or variable takes effect without a restart.
The source that was chosen is the only one that is asked: when it fails, nothing else is tried.
"""

from __future__ import annotations

import errno
import hmac
import os
import re
import stat
from typing import TYPE_CHECKING, Final, NoReturn

from ticket_agent.protocol.namespace import HiveAuthError

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = [
    "MAX_SECRET_LEN",
    "PLACEHOLDERS",
    "CredentialError",
    "Secret",
    "console_secret",
    "is_reference",
    "resolve_secret",
]

MAX_SECRET_LEN: Final = 4096
"""Longest credential, in bytes."""

PLACEHOLDERS: Final = frozenset(
    {
        "bootstrap",
        "changeme",
        "default",
        "password",
        "placeholder",
        "replace-me",
        "secret",
        "worker",
        "worker-bus",
        "worker-gpu",
        "worker-lora",
        "your-token",
        "your-token-here",
    }
)
"""Values that ship in examples and images; in lower case (transports, credentials hygiene)."""

REFERENCE_VARIABLE: Final = "COH_AUTH_TOKEN_REF"
LITERAL_VARIABLES: Final = ("COH_AUTH_TOKEN", "COHSH_AUTH_TOKEN")

ENV_PREFIX: Final = "env:"
FILE_PREFIX: Final = "file:"
VARIABLE_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


class CredentialError(HiveAuthError):
    """The credential is missing, malformed or a placeholder; nothing was sent to the hive."""

    code = "hive-credential"


class Secret:
    """A credential; ``reveal`` is the only way to its characters."""

    __slots__ = ("_value",)

    def __init__(self, value: str) -> None:
        self._value = value

    def reveal(self) -> str:
        """Return the characters, for the wire only."""
        return self._value

    def scrub(self, text: str) -> str:
        """Return ``text`` with every occurrence of the credential replaced."""
        return text.replace(self._value, "[redacted]")

    def __repr__(self) -> str:
        return "Secret([redacted])"

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Secret):
            return NotImplemented
        return hmac.compare_digest(self._value.encode(), other._value.encode())

    def __hash__(self) -> int:
        return hash((Secret, self._value))

    def __reduce__(self) -> NoReturn:
        raise TypeError("a secret is never serialised")


def console_secret(flag: str | None, *, env: Mapping[str, str], allow_placeholder: bool = False) -> Secret:
    """Find the console's credential.

    Asked in this order: the flag, ``COH_AUTH_TOKEN_REF``, ``COH_AUTH_TOKEN``, ``COHSH_AUTH_TOKEN``. The first
    one that is given decides; an empty variable counts as not given.

    Args:
        flag: a literal token or a reference, or None.
        env: the environment.
        allow_placeholder: accept well-known example values; for a lab only.

    Raises:
        CredentialError: none is given, or the one that is given cannot be used.
    """
    if flag is not None:
        return resolve_secret(flag, env=env, allow_placeholder=allow_placeholder)
    if reference := env.get(REFERENCE_VARIABLE):
        if not is_reference(reference):
            raise CredentialError(
                f"{REFERENCE_VARIABLE} is neither env:NAME nor file:/absolute/path; "
                f"put a literal token in {LITERAL_VARIABLES[0]} instead"
            )
        return resolve_secret(reference, env=env, allow_placeholder=allow_placeholder)
    for name in LITERAL_VARIABLES:
        if value := env.get(name):
            return _checked(value, source=name, allow_placeholder=allow_placeholder)
    raise CredentialError(
        f"no console credential is given; pass one, or set {REFERENCE_VARIABLE} to env:NAME or "
        "file:/absolute/path"
    )


def is_reference(text: str) -> bool:
    """Whether ``text`` says where a credential is instead of being one."""
    return text.startswith((ENV_PREFIX, FILE_PREFIX))


def resolve_secret(ref: str, *, env: Mapping[str, str], allow_placeholder: bool = False) -> Secret:
    """Return the credential that ``ref`` names: a literal, ``env:NAME`` or ``file:/absolute/path``.

    A file must be regular, not a symbolic link and not larger than a credential; one trailing newline is
    dropped.

    Raises:
        CredentialError: the source cannot be read, or its value is malformed or a placeholder.
    """
    if ref.startswith(ENV_PREFIX):
        source, value = _from_environment(ref.removeprefix(ENV_PREFIX), env)
    elif ref.startswith(FILE_PREFIX):
        source, value = _from_file(ref.removeprefix(FILE_PREFIX))
    else:
        source, value = "the given token", ref
    return _checked(value, source=source, allow_placeholder=allow_placeholder)


def _from_environment(name: str, env: Mapping[str, str]) -> tuple[str, str]:
    if VARIABLE_NAME.fullmatch(name) is None:
        raise CredentialError(
            "the credential reference env: needs the name of an environment variable after it"
        )
    if name not in env:
        raise CredentialError(
            f"environment variable {name} is not set, and the credential reference names it"
        )
    return f"environment variable {name}", env[name]


def _from_file(path: str) -> tuple[str, str]:
    shown = repr(path)
    if not path.startswith("/") or ".." in path.split("/") or "\0" in path:
        raise CredentialError(f"credential file {shown} must be an absolute path without '..' components")
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise CredentialError(
                f"credential file {shown} is a symbolic link; name the file itself"
            ) from None
        raise CredentialError(f"cannot open credential file {shown}: {error.strerror}") from None
    try:
        raw = _read_regular(descriptor, shown)
    except OSError as error:
        raise CredentialError(f"cannot read credential file {shown}: {error.strerror}") from None
    finally:
        os.close(descriptor)
    # Latin-1 keeps foreign bytes visible to the ASCII check without an error that would quote them.
    return f"credential file {shown}", raw.removesuffix(b"\n").decode("latin-1")


def _read_regular(descriptor: int, shown: str) -> bytes:
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        raise CredentialError(f"credential file {shown} is not a regular file")
    limit = MAX_SECRET_LEN + len(b"\n")
    raw = b""
    while chunk := os.read(descriptor, limit + 1 - len(raw)):
        raw += chunk
    if len(raw) > limit:
        raise CredentialError(f"credential file {shown} is larger than {MAX_SECRET_LEN} bytes")
    return raw


def _checked(value: str, *, source: str, allow_placeholder: bool) -> Secret:
    if not value:
        raise CredentialError(f"{source} is empty; a credential has 1 to {MAX_SECRET_LEN} characters")
    if len(value) > MAX_SECRET_LEN:
        raise CredentialError(f"{source} is longer than {MAX_SECRET_LEN} characters; that is no credential")
    if not all("!" <= char <= "~" for char in value):
        raise CredentialError(
            f"{source} holds a blank, control or non-ASCII character; a credential is printable ASCII"
        )
    if value.lower() in PLACEHOLDERS and not allow_placeholder:
        raise CredentialError(f"{source} is a well-known placeholder; set the hive's own credential")
    return Secret(value)
