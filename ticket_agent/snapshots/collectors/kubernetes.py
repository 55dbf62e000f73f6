"""Collector ``k8s``: the nodes of a cluster, as its API server lists them.

Entries are ``source`` and one ``nodes/<name>`` for each node. Three settings switch it on: the API server's
origin, a reference to a bearer token that may list nodes, and the one CA that is trusted. System stores and
proxies are not looked at.

A record holds fewer entries than a cluster may have nodes. Then nodes are shown in the order of their names
as far as there is room, and ``omitted`` holds ``{"nodes": n}``, the number of the others, or null when there
are some and the server does not say how many. Nodes whose names are too long for a path are among these n.

A node's object takes 5 to 20 KiB, mostly for images and fields' owners, so that an answer is allowed 4 MiB.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from ticket_agent.protocol.collecting import CollectError, fact
from ticket_agent.protocol.snapshot import UnavailableReason
from ticket_agent.protocol.snapshot_fitting import fit
from ticket_agent.protocol.snapshot_names import is_identifier
from ticket_agent.protocol.tokens import U64_MAX
from ticket_agent.snapshots.collectors.http_json import OK, Peer, connect_tls, get, json_object
from ticket_agent.snapshots.collectors.secret_files import bearer_token, read_regular

if TYPE_CHECKING:
    import ssl
    from collections.abc import Mapping

    from ticket_agent.protocol.collecting import CollectContext
    from ticket_agent.protocol.snapshot import SnapshotBounds, SnapshotEntry

__all__ = ["MAX_BODY", "TARGET", "Cluster", "collect", "project"]

URL_VARIABLE: Final = "COHESIX_K8S_API_URL"
TOKEN_VARIABLE: Final = "COHESIX_K8S_TOKEN_REF"  # noqa: S105 - the name of a setting
CA_VARIABLE: Final = "COHESIX_K8S_CA_FILE"

TARGET: Final = "/api/v1/nodes?limit=65"
"""One node more than a record could hold, which shows that there are more."""
MAX_BODY: Final = 4 * 1024 * 1024
MAX_CA_BYTES: Final = 1024 * 1024
MAX_CONDITIONS: Final = 32

_HTTPS_PORT = 443
_MAX_PORT = 65535
_MAX_NAME = 253
_HOST = re.compile(r"[A-Za-z0-9.-]{1,253}|[0-9A-Fa-f:.]{2,45}")
_NODE_NAME = re.compile(r"[a-z0-9]([a-z0-9-]*[a-z0-9])?(\.[a-z0-9]([a-z0-9-]*[a-z0-9])?)*")
_VERSION = re.compile(r"[!-~]{1,128}")
_READY = {"True": True, "False": False, "Unknown": None}
_ADVICE = {
    401: f"does not accept the token (401); renew what {TOKEN_VARIABLE} names",
    403: "does not let the token list nodes (403); give its account the verb list on nodes",
}
_REDIRECTS = range(300, 400)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """The settings.

    Attributes:
        host: of the API server; a name, or an IP address without brackets.
        port: of it.
        token: that is sent to it and to nobody else.
        authorities: the trusted certificates, PEM.
    """

    host: str
    port: int
    token: str = field(repr=False)
    authorities: str = field(repr=False)

    @classmethod
    def of(cls, environ: Mapping[str, str]) -> Cluster:
        """Read the settings and what they refer to.

        Raises:
            CollectError: ``not_enabled`` when one is missing, ``source_failed`` when one cannot be used.
        """
        missing = [name for name in (URL_VARIABLE, TOKEN_VARIABLE, CA_VARIABLE) if not environ.get(name)]
        if missing:
            raise CollectError(
                f"nodes are observed once {' and '.join(missing)} are set", UnavailableReason.NOT_ENABLED
            )
        host, port = _origin(environ[URL_VARIABLE])
        token = bearer_token(environ[TOKEN_VARIABLE], environ, setting=TOKEN_VARIABLE)
        pem = read_regular(environ[CA_VARIABLE], max_bytes=MAX_CA_BYTES, setting=CA_VARIABLE)
        # Certificates are ASCII; only remarks between them are not.
        return cls(host=host, port=port, token=token, authorities=pem.decode("ascii", "ignore"))

    @property
    def peer(self) -> Peer:
        """Whom to ask.

        Raises:
            CollectError: there is no certificate to trust.
        """
        trust = _trust(self.authorities)
        host = f"[{self.host}]" if ":" in self.host else self.host
        return Peer(
            name="the Kubernetes API server",
            host=host if self.port == _HTTPS_PORT else f"{host}:{self.port}",
            connect=lambda deadline: connect_tls(self.host, self.port, trust, deadline),
            headers=(("Authorization", f"Bearer {self.token}"),),
        )


def collect(context: CollectContext) -> list[SnapshotEntry]:
    """Ask the API server for its nodes.

    Raises:
        CollectError: ``not_enabled`` without the settings, ``timed_out``, else ``source_failed``. The token
            is in no text.
    """
    answer = get(Cluster.of(context.environ).peer, TARGET, deadline=context.deadline, max_body=MAX_BODY)
    if answer.status in _REDIRECTS:
        raise CollectError(
            f"the Kubernetes API server redirects ({answer.status}), and no redirect is followed; set"
            f" {URL_VARIABLE} to the API server itself"
        )
    if answer.status != OK:
        said = _ADVICE.get(answer.status, f"answers with status {answer.status} instead of {OK}")
        raise CollectError(f"the Kubernetes API server {said}")
    nodes = json_object(answer, what="the Kubernetes API server's list of nodes", max_bytes=MAX_BODY)
    return project(nodes, context.bounds)


def project(nodes: Mapping[str, Any], bounds: SnapshotBounds) -> list[SnapshotEntry]:
    """Return a record's entries from a ``NodeList``.

    Raises:
        CollectError: it is none, a node in it is none, or the bounds leave no room.
    """
    if nodes.get("kind") != "NodeList" or nodes.get("apiVersion") != "v1":
        raise CollectError("the Kubernetes API server's answer is no NodeList of v1")
    items = _member(nodes, "items", list, "the list")
    rows = [_node(item, f"node {index} of the list") for index, item in enumerate(items, 1)]
    if len({row.path for row in rows}) != len(rows):
        raise CollectError("the Kubernetes API server lists a node twice")
    more = _not_sent(_member(nodes, "metadata", dict, "the list"))
    entries, _ = fit(
        [fact("source", "kubernetes-core-v1")],
        sorted(rows, key=lambda entry: entry.path),
        bounds,
        omitted=lambda count: fact("omitted", {"nodes": None if more is None else count}),
        already_out=1 if more is None else more,
    )
    return sorted(entries, key=lambda entry: entry.path)


def _node(item: object, what: str) -> SnapshotEntry:
    if not isinstance(item, dict):
        raise CollectError(f"{what} is no object")
    metadata = _member(item, "metadata", dict, what)
    name, uid, version = (metadata.get(member) for member in ("name", "uid", "resourceVersion"))
    if not isinstance(name, str) or len(name) > _MAX_NAME or _NODE_NAME.fullmatch(name) is None:
        raise CollectError(f"{what} has no name that Kubernetes allows")
    if not isinstance(uid, str) or not is_identifier(uid, publishing=True):
        raise CollectError(f"{what} has a uid that is no identifier")
    if not isinstance(version, str) or _VERSION.fullmatch(version) is None:
        raise CollectError(f"{what} has no resourceVersion of 1..=128 printable characters")
    generation = metadata.get("generation")
    if generation is not None and not _is_count(generation):
        raise CollectError(f"{what} has a generation that is no u64")
    unschedulable = _member(item, "spec", dict, what).get("unschedulable")
    unschedulable = False if unschedulable is None else unschedulable
    if type(unschedulable) is not bool:
        raise CollectError(f"{what} has spec.unschedulable that is neither true nor false")
    return fact(
        f"nodes/{name}",
        {
            "name": name,
            "uid": uid,
            "resource_version": version,
            "generation": generation,
            "unschedulable": unschedulable,
            "ready": _ready(_member(item, "status", dict, what), what),
        },
    )


def _ready(status: dict[str, Any], what: str) -> bool | None:
    """What the condition ``Ready`` says; None when it is unknown or not there."""
    conditions = _member(status, "conditions", list, what)
    if len(conditions) > MAX_CONDITIONS or not all(isinstance(one, dict) for one in conditions):
        raise CollectError(f"{what} has more than {MAX_CONDITIONS} conditions, or one that is no object")
    if not all(isinstance(one.get("status"), str) and one["status"] in _READY for one in conditions):
        raise CollectError(f"{what} has a condition that is neither True, False nor Unknown")
    ready = [one["status"] for one in conditions if one.get("type") == "Ready"]
    if len(ready) > 1:
        raise CollectError(f"{what} has the condition Ready more than once")
    return _READY[ready[0]] if ready else None


def _not_sent(metadata: dict[str, Any]) -> int | None:
    """How many nodes there are beside those in the answer; None when the server does not say."""
    token = metadata.get("continue")
    if token is not None and not isinstance(token, str):
        raise CollectError("the Kubernetes API server's list goes on with what is no string")
    if not token:
        return 0
    remaining = metadata.get("remainingItemCount")
    if remaining is not None and not _is_count(remaining):
        raise CollectError("the Kubernetes API server's remainingItemCount is no u64")
    return remaining or None


def _member(item: Mapping[str, Any], name: str, kind: type[Any], what: str) -> Any:
    """Return an object or array that may be absent or null, which both mean an empty one."""
    value = item.get(name)
    if value is None:
        return kind()
    if not isinstance(value, kind):
        raise CollectError(f"{what} has {name} of another type than Kubernetes gives")
    return value


def _is_count(value: object) -> bool:
    return type(value) is int and 0 <= value <= U64_MAX


def _origin(url: str) -> tuple[str, int]:
    # The text is not repeated: it may hold a password, which is one reason to refuse it.
    refused = CollectError(
        f"{URL_VARIABLE} must be https://host or https://host:port, without user, path, query and fragment"
    )
    try:
        parts = urlsplit(url)
        port = _HTTPS_PORT if parts.port is None else parts.port
    except ValueError:
        raise refused from None
    host = parts.hostname or ""
    bare = f"[{host}]" if ":" in host else host
    origins = {f"https://{bare}", f"https://{bare}:{port}"}
    # What is not spelt like an origin is none, whatever a lenient parser finds in it.
    same = url.removesuffix("/").lower() in origins
    if not same or _HOST.fullmatch(host) is None or not 1 <= port <= _MAX_PORT:
        raise refused
    return host, port


def _trust(authorities: str) -> ssl.SSLContext:
    import ssl  # noqa: PLC0415 - start-up time

    # Not the default context, which adds the system's store and writes keys to where SSLKEYLOGFILE says.
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        context.load_verify_locations(cadata=authorities)
    except (ssl.SSLError, ValueError):
        raise CollectError(f"{CA_VARIABLE} names a file without a PEM certificate") from None
    return context
