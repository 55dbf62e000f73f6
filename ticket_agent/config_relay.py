"""Configuration of the federation relay: which hives tickets go on to, and how much may wait for them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["PeerSettings", "RelaySettings", "relay_of_manifest"]

PeerName = Annotated[str, Field(pattern=r"^[A-Za-z0-9._:][A-Za-z0-9._:-]{0,63}$")]
MAX_PEERS = 32


class _Settings(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class PeerSettings(_Settings):
    """One hive that tickets are relayed to.

    Attributes:
        name: the hive's name, as tickets have it in ``target_hive``.
        transport: ``rest`` for a gateway at ``url``, ``console`` for a TCP console at ``host`` and ``port``.
        auth_token: token by reference (``env:NAME`` or ``file:/absolute/path``) or, for a lab, itself. It
            must be given: another hive's must never be sent to a peer.
        ticket: capability ticket, by the same kind of reference.
        allow_placeholder_token: accept well-known lab tokens.
        mount: where the host tree sits in the peer's namespace.
        max_line_bytes: longest ticket line of the peer.
        timeout_ms: deadline of one contact's command; absent means the relay's.
    """

    name: PeerName
    transport: Literal["rest", "console"] = "rest"
    url: Annotated[str, Field(pattern=r"^https?://[!-~]{1,248}$")] | None = None
    host: Annotated[str, Field(pattern=r"^[!-~]{1,253}$")] | None = None
    port: Annotated[int, Field(ge=1, le=65535)] = 31337
    auth_token: Annotated[str, Field(min_length=1, repr=False)]
    ticket: str | None = Field(default=None, repr=False)
    allow_placeholder_token: bool = False
    mount: Annotated[str, Field(pattern=r"^/[!-~]*[!-.0-~]$")] = "/host"
    max_line_bytes: Annotated[int, Field(ge=1, le=2048)] = 2048
    timeout_ms: Annotated[int, Field(ge=100, le=60_000)] | None = None

    @model_validator(mode="after")
    def _has_one_address(self) -> PeerSettings:
        if self.transport == "rest" and (self.url is None or self.host is not None):
            message = "a peer behind a gateway needs url, and no host"
            raise ValueError(message)
        if self.transport == "console" and (self.host is None or self.url is not None):
            message = "a peer's console needs host (and port), and no url"
            raise ValueError(message)
        return self


class RelaySettings(_Settings):
    """The relay; used by ``run --relay`` only.

    Attributes:
        enabled: whether the hive's manifest offers federation; a file cannot enable what that does not.
        actions: actions that are relayed; none is, unless it is named.
        peers: hives that can be reached.
        timeout_ms: deadline of one command to a peer, 100..=60000 ms.
        queue_max_entries: tickets that may wait for their delivery.
        queue_max_bytes: bytes of their lines.
        wal_max_entries: tickets that may be open, delivered ones that await their result included.
        wal_max_bytes: bytes of their lines.
    """

    enabled: bool = True
    actions: Annotated[frozenset[str], Field(strict=False)] = frozenset()
    peers: Annotated[tuple[PeerSettings, ...], Field(strict=False, max_length=MAX_PEERS)] = ()
    timeout_ms: Annotated[int, Field(ge=100, le=60_000)] = 1_500
    queue_max_entries: Annotated[int, Field(ge=1, le=4_096)] = 256
    queue_max_bytes: Annotated[int, Field(ge=1, le=1_048_576)] = 32_768
    wal_max_entries: Annotated[int, Field(ge=1, le=16_384)] = 1_024
    wal_max_bytes: Annotated[int, Field(ge=1, le=8_388_608)] = 524_288

    @model_validator(mode="after")
    def _names_are_unique(self) -> RelaySettings:
        names = [peer.name for peer in self.peers]
        if len(set(names)) != len(names):
            message = "two peers have the same name"
            raise ValueError(message)
        return self

    @model_validator(mode="after")
    def _bounds_fit(self) -> RelaySettings:
        if self.wal_max_entries < self.queue_max_entries or self.wal_max_bytes < self.queue_max_bytes:
            message = "wal_max_entries and wal_max_bytes must not be below those of the queue"
            raise ValueError(message)
        return self


_BOUNDS = {
    "relay_timeout_ms": "timeout_ms",
    "relay_queue_max_entries": "queue_max_entries",
    "relay_queue_max_bytes": "queue_max_bytes",
    "wal_max_entries": "wal_max_entries",
    "wal_max_bytes": "wal_max_bytes",
}


def relay_of_manifest(settings: RelaySettings, federation: Mapping[str, Any]) -> dict[str, Any]:
    """Settings as a hive's manifest has them (root side: manifest, federation), where ours name none.

    Actions are those that both name; a peer's token is taken from the variable that the manifest names.
    What is wrong is left in, so that it is refused where everything else is.
    """
    found: dict[str, Any] = {name: getattr(settings, name) for name in settings.model_fields_set}
    found["enabled"] = settings.enabled and federation.get("enable") is True
    for theirs, ours in _BOUNDS.items():
        if theirs in federation and ours not in found:
            found[ours] = federation[theirs]
    listed = federation.get("action_allowlist", [])
    if isinstance(listed, list) and all(isinstance(action, str) for action in listed):
        offered = frozenset(action.strip() for action in listed if action.strip())
        found["actions"] = settings.actions & offered if "actions" in found else offered
    else:
        found["actions"] = listed
    peers = federation.get("peers", [])
    if "peers" not in found and found["enabled"]:
        found["peers"] = [_peer(peer) for peer in peers] if isinstance(peers, list) else peers
    return found


def _peer(document: object) -> object:
    if not isinstance(document, dict):
        return document
    url, variable = document.get("rest_url"), document.get("auth_ref")
    return {
        "name": document.get("name"),
        "transport": "rest",
        "url": url.rstrip("/") if isinstance(url, str) else url,
        "auth_token": f"env:{variable}" if isinstance(variable, str) else variable,
    }
