"""Rows as ``ip -json`` prints them, and a program in its place."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

from ticket_agent.snapshots.collectors.network_tables import Tables

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

Row = dict[str, Any]

_PROGRAM = """#!{python}
import sys
word = sys.argv[-1] if sys.argv[-1] != "all" else "route"
table = {{"show": "links" if "link" in sys.argv else "addresses", "route": "routes"}}[word]
if table == {failing!r}:
    sys.exit(255)
with open({folder!r} + "/" + table, "rb") as source:
    sys.stdout.buffer.write(source.read())
"""


def link(index: int, name: str, *flags: str, received: int = 1000) -> Row:
    counts = {"bytes": received, "packets": 9, "errors": 0, "dropped": 0}
    return {
        "ifindex": index,
        "ifname": name,
        "flags": list(flags or ("BROADCAST", "MULTICAST", "UP", "LOWER_UP")),
        "mtu": 1500,
        "qdisc": "noqueue",
        "operstate": "UP",
        "link_type": "loopback" if name == "lo" else "ether",
        "address": f"02:00:00:00:{index >> 8 & 255:02x}:{index & 255:02x}",
        "stats64": {
            "rx": {**counts, "over_errors": 0, "multicast": 0},
            "tx": {**counts, "bytes": received // 2, "carrier_errors": 0, "collisions": 0},
        },
    }


def address(row: Row, *locals_: str) -> Row:
    infos = [
        {
            "family": "inet6" if ":" in local else "inet",
            "local": local,
            "prefixlen": 64,
            "scope": "global",
            "valid_life_time": 4294967295,
            "preferred_life_time": 4294967295,
        }
        for local in locals_
    ]
    return {"ifindex": row["ifindex"], "ifname": row["ifname"], "addr_info": infos}


def route(dst: str, device: str = "eth0", **more: Any) -> Row:
    return {"dst": dst, "dev": device, **more, "flags": []}


def host(links: int, routes: int = 4) -> Tables:
    """A host with ``lo``, ``eth0`` and as many Docker links as it takes, each with an address."""
    rows = [link(1, "lo", "LOOPBACK", "UP"), link(2, "eth0")]
    rows = (rows + [link(3 + number, f"veth{number:07x}") for number in range(links)])[:links]
    return Tables(
        links=rows,
        addresses=[address(row, f"fe80::{row['ifindex']:x}") for row in rows],
        routes=[
            *(route(f"10.{n >> 16 & 255}.{n >> 8 & 255}.{n & 255}") for n in range(routes - 1)),
            route("default", gateway="10.0.0.1"),
        ],
    )


def ip_program(folder: Path, tables: Mapping[str, bytes | list[Any]], *, failing: str = "") -> str:
    """Write a program that prints these tables, and return its path."""
    for name, table in tables.items():
        (folder / name).write_bytes(table if isinstance(table, bytes) else json.dumps(table).encode())
    path = folder / "ip"
    path.write_text(_PROGRAM.format(python=sys.executable, folder=str(folder), failing=failing))
    path.chmod(0o755)
    return str(path)
