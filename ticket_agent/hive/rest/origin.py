"""Where a gateway is and how to reach it: a checked URL, deadlines, sources of the credentials."""

from __future__ import annotations

from dataclasses import dataclass, field
from ipaddress import ip_address
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from ticket_agent.hive.credentials import CredentialError, Secret, resolve_secret
from ticket_agent.protocol.namespace import HiveError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

__all__ = ["Credentials", "Origin", "RestConfig", "RestUsageError", "parse_origin", "read_credentials"]

TOKEN_VARIABLES: Final = ("HIVE_GATEWAY_REQUEST_AUTH_TOKEN", "COHSH_REST_AUTH_TOKEN", "COH_REST_AUTH_TOKEN")
TICKET_VARIABLE: Final = "COH_REST_TICKET"
TICKET_PREFIX: Final = "cohesix-ticket-"
MAX_TICKET_LEN: Final = 224
DEFAULT_PORTS: Final = {"http": 80, "https": 443}

DATA_S: Final = 130.0
"""A gateway waits 5 s in its queue and 120 s for the target; it needs a moment to say so."""

METADATA_S: Final = 3.0
CACHE_S: Final = 2.0


class RestUsageError(HiveError, ValueError):
    """The gateway's URL or proxy cannot be; nothing was sent."""

    code = "hive-usage"


@dataclass(frozen=True, slots=True)
class Origin:
    """A checked ``http`` or ``https`` URL.

    Attributes:
        tls: whether it is https.
        host: name or address, without brackets.
        port: TCP port.
        prefix: path that every endpoint is below, without a trailing ``/``; mostly empty.
    """

    tls: bool
    host: str
    port: int
    prefix: str

    @property
    def authority(self) -> str:
        """Value of the Host header."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == DEFAULT_PORTS["https" if self.tls else "http"] else f"{host}:{self.port}"

    @property
    def exposes_credentials(self) -> bool:
        """Whether credentials cross a network in the clear."""
        if self.tls or self.host == "localhost":
            return False
        try:
            return not ip_address(self.host).is_loopback
        except ValueError:
            return True


def parse_origin(url: str, *, what: str = "the gateway's URL") -> Origin:
    """Read ``http[s]://host[:port][/prefix]``.

    Raises:
        RestUsageError: another scheme, no host, a bad port, credentials, a query or a fragment, or a
            character that does not belong there. The text never quotes the URL, which may hold a password.
    """
    if not all("!" <= char <= "~" for char in url):
        raise RestUsageError(f"{what} holds a blank, control or non-ASCII character")
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        raise RestUsageError(f"{what} has no usable host or port") from None
    if parts.scheme not in DEFAULT_PORTS or not parts.hostname or port == 0:
        raise RestUsageError(f"{what} must look like http://127.0.0.1:8080 or https://gateway.example")
    if parts.username is not None or parts.password is not None:
        raise RestUsageError(f"{what} must not hold credentials; name them by reference")
    if parts.query or parts.fragment or "?" in url or "#" in url:
        raise RestUsageError(f"{what} must not have a query or a fragment")
    return Origin(
        tls=parts.scheme == "https",
        host=parts.hostname,
        port=DEFAULT_PORTS[parts.scheme] if port is None else port,
        prefix=parts.path.rstrip("/"),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class RestConfig:
    """How to reach a gateway; all times in seconds.

    Attributes:
        url: ``http[s]://host[:port][/prefix]``.
        auth_token: request token: literal, ``env:NAME`` or ``file:/absolute/path``; None looks into the
            environment, and without any none is sent.
        ticket: delegated capability ticket in the same forms.
        allow_placeholder: accept well-known example tokens; for a lab only.
        ca_file: certificates (PEM) to trust instead of the system's, read at each connect.
        proxy: ``http://host:port`` of a proxy to go through, or None for none. The environment is not asked.
        data_s: deadline of one read or append.
        metadata_s: deadline for connecting, and for one look at the gateway's own state.
        cache_s: how long the gateway may answer a read from its cache.

    Raises:
        RestUsageError: the URL or the proxy cannot be.
    """

    url: str
    auth_token: str | None = field(default=None, repr=False)
    ticket: str | None = field(default=None, repr=False)
    allow_placeholder: bool = False
    ca_file: Path | None = None
    proxy: str | None = None
    data_s: float = DATA_S
    metadata_s: float = METADATA_S
    cache_s: float = CACHE_S

    def __post_init__(self) -> None:
        parse_origin(self.url)
        if self.proxy is not None and parse_origin(self.proxy, what="the proxy's URL").tls:
            raise RestUsageError("the proxy's URL must begin with http://; https goes through it end to end")

    @property
    def origin(self) -> Origin:
        """The URL, taken apart."""
        return parse_origin(self.url)

    @property
    def peer(self) -> str:
        """The gateway's name in messages."""
        return f"gateway {self.origin.authority}"


@dataclass(frozen=True, slots=True)
class Credentials:
    """What a request carries to prove itself."""

    token: Secret | None
    ticket: Secret | None

    def headers(self) -> list[tuple[str, str]]:
        """Both names of the request token, as gateways differ in which one they read; the ticket once."""
        found: list[tuple[str, str]] = []
        if self.token is not None:
            found.append(("Authorization", f"Bearer {self.token.reveal()}"))
            found.append(("x-cohesix-auth", self.token.reveal()))
        if self.ticket is not None:
            found.append(("x-cohesix-ticket", self.ticket.reveal()))
        return found

    def scrub(self, text: str) -> str:
        """Return ``text`` without the credentials."""
        for secret in (self.token, self.ticket):
            text = text if secret is None else secret.scrub(text)
        return text


def read_credentials(config: RestConfig, env: Mapping[str, str]) -> Credentials:
    """Read token and ticket from their sources, so that a rotated one takes effect with the next request.

    Raises:
        CredentialError: the source that was chosen fails, or what it holds cannot be used.
    """
    token = config.auth_token or _first_variable(TOKEN_VARIABLES, env)
    ticket = config.ticket or _first_variable((TICKET_VARIABLE,), env)
    return Credentials(
        None if token is None else resolve_secret(token, env=env, allow_placeholder=config.allow_placeholder),
        None if ticket is None else _ticket(resolve_secret(ticket, env=env)),
    )


def _first_variable(names: tuple[str, ...], env: Mapping[str, str]) -> str | None:
    return next((f"env:{name}" for name in names if env.get(name, "").strip()), None)


def _ticket(secret: Secret) -> Secret:
    text = secret.reveal()
    if not text.startswith(TICKET_PREFIX) or len(text) > MAX_TICKET_LEN:
        raise CredentialError(
            f"the delegated ticket must begin with {TICKET_PREFIX} and have at most "
            f"{MAX_TICKET_LEN} characters"
        )
    return secret
