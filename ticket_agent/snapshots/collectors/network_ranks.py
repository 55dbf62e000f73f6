"""Which links, addresses and routes matter most when not all can be shown. Pure; takes any JSON value."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

from ticket_agent.protocol.snapshot_names import is_identifier

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = [
    "OTHER",
    "is_up",
    "link_kind",
    "octets",
    "ranked_addresses",
    "ranked_links",
    "ranked_routes",
]

OTHER: Final = "other"
"""The kind of links without a name to tell it from."""

_VIRTUAL: Final = frozenset(
    {
        *(
            "br",
            "bridge",
            "cali",
            "cilium_host",
            "cilium_net",
            "cni",
            "docker",
            "dummy",
            "eni",
            "erspan",
            "flannel",
        ),
        *("gke", "gre", "gretap", "ifb", "kube-ipvs", "lo", "lxc", "podman", "sit", "tap", "tun", "tunl"),
        *("veth", "virbr", "vnet", "vxlan", "weave", "wg"),
    }
)
"""Kinds without hardware behind; bonds, teams and VLANs are not here, as hosts are reached through them."""
_STEM: Final = re.compile(r"(?:veth|cali|lxc|eni|gke|tap|br)(?=[0-9a-f-]+\Z)|[^0-9]*")
"""A name up to its first digit; the listed ones are followed by hexadecimal digits at random."""
_DEFAULT: Final = frozenset({"default", "0.0.0.0/0", "::/0"})
_MAIN: Final = (None, "main", 254)


def link_kind(row: object) -> str:
    """What kind of link it is: the kernel's word, if that was printed, else its name without a number."""
    if not isinstance(row, dict):
        return OTHER
    info = row.get("linkinfo")
    kind = info.get("info_kind") if isinstance(info, dict) else None
    if not isinstance(kind, str):
        name = row.get("ifname")
        stem = _STEM.match(name) if isinstance(name, str) else None
        kind = stem[0].strip("-._") if stem is not None else OTHER
    return kind if is_identifier(kind, publishing=True) else OTHER


def is_up(row: object) -> bool:
    """Whether a link is administratively up."""
    flags = row.get("flags") if isinstance(row, dict) else None
    return isinstance(flags, list) and "UP" in flags


def octets(row: object, direction: str) -> int:
    """Bytes that a link received (``rx``) or sent (``tx``); 0 when it does not say."""
    for counter in ("stats64", "stats"):
        cell: Any = row.get(counter) if isinstance(row, dict) else None
        counts = cell.get(direction) if isinstance(cell, dict) else None
        count = counts.get("bytes") if isinstance(counts, dict) else None
        if type(count) is int and count >= 0:
            return count
    return 0


def ranked_links(links: Sequence[object], routes: Sequence[object]) -> list[object]:
    """Links with a default route first, then those up with hardware behind, then others that are up.

    Among equals by index.
    """
    carriers = {device for route in routes if _is_default(route) for device in _devices(route)}

    def rank(position: int) -> tuple[bool, bool, bool, int, int]:
        row = links[position]
        carries = isinstance(row, dict) and isinstance(row.get("ifname"), str) and row["ifname"] in carriers
        up = is_up(row)
        return not carries, not (up and not _is_virtual(row)), not up, _index(row), position

    return [links[position] for position in sorted(range(len(links)), key=rank)]


def ranked_addresses(addresses: Sequence[object], links: Sequence[object]) -> list[object]:
    """Rows of the address table in the order of their links; those of unknown links last, as printed."""
    places = {_index(row): place for place, row in reversed(list(enumerate(links)))}
    return sorted(addresses, key=lambda row: places.get(_index(row), len(links)))


def ranked_routes(routes: Sequence[object]) -> list[object]:
    """Default routes first, then the main table, IPv4 before IPv6; among equals in the order printed."""
    return sorted(routes, key=lambda row: (not _is_default(row), not _in_main(row), _is_ipv6(row)))


def _is_virtual(row: object) -> bool:
    return not isinstance(row, dict) or row.get("link_type") == "loopback" or link_kind(row) in _VIRTUAL


def _index(row: object) -> int:
    index = row.get("ifindex") if isinstance(row, dict) else None
    return index if type(index) is int else 1 << 32


def _is_default(row: object) -> bool:
    dst = row.get("dst") if isinstance(row, dict) else None
    return isinstance(dst, str) and dst in _DEFAULT


def _in_main(row: object) -> bool:
    return isinstance(row, dict) and row.get("table") in _MAIN


def _is_ipv6(row: object) -> bool:
    if not isinstance(row, dict):
        return True
    # Only IPv6 routes have a preference.
    return "pref" in row or any(":" in str(row.get(column)) for column in ("dst", "gateway", "prefsrc"))


def _devices(row: Any) -> list[str]:
    hops = row.get("nexthops")
    found = [row, *(hops if isinstance(hops, list) else [])]
    devices = [hop.get("dev") for hop in found if isinstance(hop, dict)]
    return [device for device in devices if isinstance(device, str)]
