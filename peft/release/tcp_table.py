"""Who is connected to a port of this machine, as the kernel lists it: servers need not be trusted with it."""

from __future__ import annotations

from pathlib import Path
from typing import Final

__all__ = ["connections_to", "count_connections"]

TCP_TABLE: Final = "/proc/net/tcp"

_LOCAL, _STATE = 1, 3
_ESTABLISHED: Final = "01"


def count_connections(table: str, port: int) -> int:
    """Count the connections that a server on ``port`` has open, in the text of ``/proc/net/tcp``.

    A connection that its client has closed does not count.
    """
    rows = (line.split() for line in table.splitlines()[1:])
    suffix = f":{port:04X}"
    return sum(
        len(row) > _STATE and row[_LOCAL].endswith(suffix) and row[_STATE] == _ESTABLISHED for row in rows
    )


def connections_to(port: int) -> int:
    """Count the connections that a server on ``port`` has open now, in this network namespace.

    Raises:
        OSError: the kernel does not tell.
    """
    return count_connections(Path(TCP_TABLE).read_text(encoding="ascii"), port)
