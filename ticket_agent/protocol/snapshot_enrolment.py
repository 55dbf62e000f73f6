"""Who may publish what: the manifest's ``ecosystem.host.snapshots``, and the paths that follow from it.

Enrolment comes from the manifest alone. Nothing is learnt from names that a host or a hive shows.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

from .errors import JsonError, ProtocolError, SnapshotError, SnapshotLimitError
from .json_strict import parse_object
from .paths import DEFAULT_MOUNT, TicketPaths
from .snapshot import DEFAULT_BOUNDS, SnapshotBounds, SnapshotDomain
from .snapshot_names import check_provider, check_source_id
from .tokens import U64_MAX

__all__ = [
    "DEFAULT_ENROLMENT",
    "MAX_MANIFEST_BYTES",
    "SnapshotEnrolment",
    "SnapshotPaths",
    "SnapshotPublisher",
    "encode_enrolment",
    "parse_manifest",
]

MAX_SOURCES = 8
MAX_PAIRS = 16
MAX_MANIFEST_BYTES = 4 << 20
MAX_CONSOLE_PATH = 96
"""Longest path that a console takes, in characters (transports, ECHO)."""
_WHAT = "manifest"
_SNAPSHOT_MEMBERS = frozenset(
    {"enable", "max_bytes", "max_entries", "max_value_bytes", "max_ttl_ms", "publishers"}
)


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotPublisher:
    """One host and what it may publish, in the manifest's order."""

    source_id: str
    providers: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotPaths:
    """The three nodes of one pair of provider and source."""

    directory: str

    @property
    def ctl(self) -> str:
        """Takes the transfer's commands."""
        return f"{self.directory}/ctl"

    @property
    def snapshot(self) -> str:
        """Shows the current record, or nothing."""
        return f"{self.directory}/snapshot"

    @property
    def status(self) -> str:
        """Shows the receiver's status."""
        return f"{self.directory}/status"


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotEnrolment:
    """What a manifest enrols.

    Attributes:
        mount: where host nodes are.
        epoch: the writer epoch, from 1.
        bounds: of every record.
        publishers: at most 8, with at most 16 providers in all.

    Raises:
        SnapshotLimitError: too many of them.
        SnapshotError: a name that some reader refuses, or one that appears twice.
    """

    mount: str = DEFAULT_MOUNT
    epoch: int = 1
    bounds: SnapshotBounds = field(default=DEFAULT_BOUNDS)
    publishers: tuple[SnapshotPublisher, ...] = ()

    def __post_init__(self) -> None:
        try:
            object.__setattr__(self, "mount", TicketPaths(self.mount).mount)
        except ProtocolError as error:
            raise SnapshotError(str(error), code=error.code, member="mount_at") from None
        if type(self.epoch) is not int or not 1 <= self.epoch <= U64_MAX:
            raise _invalid("authority.writer_epoch", f"must be an integer in 1..={U64_MAX}")
        if len(self.publishers) > MAX_SOURCES or len(self.pairs()) > MAX_PAIRS:
            raise SnapshotLimitError(
                f"{_WHAT}: at most {MAX_SOURCES} sources and {MAX_PAIRS} pairs of provider and source can be"
                " enrolled",
                code="enrolment-limit",
                member="publishers",
            )
        for publisher in self.publishers:
            check_source_id(publisher.source_id)
            _once(publisher.providers, f"a provider of {publisher.source_id}")
            for provider in publisher.providers:
                check_provider(provider)
                self._check_path(provider, publisher.source_id)
        _once([publisher.source_id for publisher in self.publishers], "a source")

    def _check_path(self, provider: str, source_id: str) -> None:
        path = self.paths(provider, source_id).snapshot
        if len(path) > MAX_CONSOLE_PATH:
            raise SnapshotLimitError(
                f"{_WHAT}: {path} takes {len(path)} characters; a console's limit is {MAX_CONSOLE_PATH}",
                code="enrolment-path",
                member="publishers",
            )

    @property
    def root(self) -> str:
        """The directory of all snapshots."""
        return f"{self.mount}/snapshots"

    def pairs(self) -> tuple[tuple[str, str], ...]:
        """Every enrolled (provider, source), in the manifest's order."""
        return tuple(
            (provider, publisher.source_id)
            for publisher in self.publishers
            for provider in publisher.providers
        )

    def providers(self) -> list[str]:
        """Every enrolled provider once, sorted."""
        return sorted(set(chain.from_iterable(publisher.providers for publisher in self.publishers)))

    def sources(self, provider: str) -> list[str]:
        """Every source enrolled for a provider, sorted; none for a provider that is not enrolled."""
        return sorted(source for enrolled, source in self.pairs() if enrolled == provider)

    def publisher(self, source_id: str) -> SnapshotPublisher:
        """Return a source's enrolment.

        Raises:
            SnapshotError: it has none.
        """
        for publisher in self.publishers:
            if publisher.source_id == source_id:
                return publisher
        known = ", ".join(publisher.source_id for publisher in self.publishers) or "none"
        raise SnapshotError(
            f"source {source_id!r} is not enrolled in the manifest; enrolled: {known}",
            code="enrolment-source",
            member="source_id",
        )

    def domain(self, source_id: str) -> SnapshotDomain:
        """Whose records are accepted from a source.

        Raises:
            SnapshotError: it is not enrolled.
        """
        publisher = self.publisher(source_id)
        return SnapshotDomain(source_id=source_id, epoch=self.epoch, providers=frozenset(publisher.providers))

    def paths(self, provider: str, source_id: str) -> SnapshotPaths:
        """The nodes of a pair; the pair must be enrolled for them to exist."""
        return SnapshotPaths(directory=f"{self.root}/{provider}/{source_id}")

    def require(self, provider: str, source_id: str) -> SnapshotPaths:
        """The nodes of an enrolled pair.

        Raises:
            SnapshotError: the pair is not enrolled.
        """
        publisher = self.publisher(source_id)
        if provider not in publisher.providers:
            raise SnapshotError(
                f"provider {provider!r} is not enrolled for {source_id}; enrolled:"
                f" {', '.join(publisher.providers) or 'none'}",
                code="enrolment-provider",
                member="provider",
            )
        return self.paths(provider, source_id)


def parse_manifest(data: bytes) -> SnapshotEnrolment | None:
    """Return what a resolved manifest enrols; None when it does not have snapshots switched on.

    Members outside ``ecosystem.host.snapshots`` belong to others and are passed over.

    Raises:
        SnapshotError: not one strict JSON object of at most 4 MiB, or an enrolment that breaks a rule.
    """
    try:
        document = parse_object(data, what=_WHAT, max_bytes=MAX_MANIFEST_BYTES)
    except JsonError as error:
        raise SnapshotError(str(error), code=error.code, member=error.member) from None
    host = _object(_object(document, "ecosystem"), "host", "ecosystem.")
    snapshots = _object(host, "snapshots", "ecosystem.host.")
    unknown = sorted(set(snapshots) - _SNAPSHOT_MEMBERS)
    if unknown:
        raise _invalid(f"ecosystem.host.snapshots.{unknown[0]}", "is unknown")
    enabled = _flag(snapshots, "enable")
    publishers = tuple(_publisher(item) for item in _array(snapshots, "publishers"))
    if not enabled:
        if publishers:
            raise _invalid("publishers", "must be empty when snapshots are not enabled")
        return None
    if not _flag(host, "enable"):
        raise _invalid("ecosystem.host.enable", "must be true when snapshots are enabled")
    return SnapshotEnrolment(
        mount=_text(host, "mount_at"),
        epoch=_object(document, "authority").get("writer_epoch", 0),
        bounds=SnapshotBounds(
            max_bytes=snapshots.get("max_bytes", 0),
            max_entries=snapshots.get("max_entries", 0),
            max_value_bytes=snapshots.get("max_value_bytes", 0),
            max_ttl_ms=snapshots.get("max_ttl_ms", 0),
        ),
        publishers=publishers,
    )


def encode_enrolment(enrolment: SnapshotEnrolment) -> bytes:
    """Write the part of a manifest that says the same, indented for people."""
    bounds = enrolment.bounds
    document = {
        "ecosystem": {
            "host": {
                "enable": True,
                "mount_at": enrolment.mount,
                "snapshots": {
                    "enable": True,
                    "max_bytes": bounds.max_bytes,
                    "max_entries": bounds.max_entries,
                    "max_value_bytes": bounds.max_value_bytes,
                    "max_ttl_ms": bounds.max_ttl_ms,
                    "publishers": [
                        {"source_id": publisher.source_id, "providers": list(publisher.providers)}
                        for publisher in enrolment.publishers
                    ],
                },
            }
        },
        "authority": {"writer_epoch": enrolment.epoch},
    }
    return json.dumps(document, indent=2).encode("ascii") + b"\n"


def _publisher(item: object) -> SnapshotPublisher:
    if not isinstance(item, dict) or set(item) != {"source_id", "providers"}:
        raise _invalid("publishers", "must be objects of source_id and providers")
    providers = _array(item, "providers")
    if not providers or not all(isinstance(provider, str) for provider in providers):
        raise _invalid("providers", "must be one or more strings")
    return SnapshotPublisher(source_id=_text(item, "source_id"), providers=tuple(providers))


def _object(document: dict[str, Any], name: str, parent: str = "") -> dict[str, Any]:
    value = document.get(name)
    if not isinstance(value, dict):
        raise _invalid(f"{parent}{name}", "must be an object; name the resolved manifest")
    return value


def _array(document: dict[str, Any], name: str) -> list[Any]:
    value = document.get(name)
    if not isinstance(value, list):
        raise _invalid(name, "must be an array")
    return value


def _flag(document: dict[str, Any], name: str) -> bool:
    value = document.get(name)
    if type(value) is not bool:
        raise _invalid(name, "must be true or false")
    return value


def _text(document: dict[str, Any], name: str) -> str:
    value = document.get(name)
    if not isinstance(value, str):
        raise _invalid(name, "must be a string")
    return value


def _once(names: list[str] | tuple[str, ...], what: str) -> None:
    if len(set(names)) != len(names):
        raise _invalid("publishers", f"name {what} twice")


def _invalid(member: str, rule: str) -> SnapshotError:
    return SnapshotError(f"{_WHAT}: {member} {rule}", code="manifest", member=member)


DEFAULT_ENROLMENT = SnapshotEnrolment(
    publishers=(
        SnapshotPublisher(
            source_id="linux-reference",
            providers=("systemd", "docker", "k8s", "nvidia", "jetson", "network"),
        ),
        SnapshotPublisher(
            source_id="mac-controller", providers=("launchd", "network", "endpoint_compliance")
        ),
    )
)
"""What a manifest enrols when nobody changed it, in writer epoch 1."""
