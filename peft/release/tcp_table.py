"""Who is connected to a port of this machine, as the kernel lists it: servers need not be trusted with it."""

from __future__ import annotations

from pathlib import Path
from typing import Final

__all__ = ["connections_to", "count_connections", "listeners", "somebody_listens"]

TCP_TABLE: Final = "/proc/net/tcp"
TCP6_TABLE: Final = "/proc/net/tcp6"

_LOCAL, _STATE = 1, 3
_ESTABLISHED: Final = "01"
_LISTEN: Final = "0A"


def count_connections(table: str, port: int) -> int:
    """Count the connections that a server on ``port`` has open, in the text of ``/proc/net/tcp``.

    A connection that its client has closed does not count.
    """
    return _count(table, port, _ESTABLISHED)


def listeners(table: str, port: int) -> int:
    """Count who listens on ``port``, on whatever address, in the text of ``/proc/net/tcp``."""
    return _count(table, port, _LISTEN)


def _count(table: str, port: int, state: str) -> int:
    rows = (line.split() for line in table.splitlines()[1:])
    suffix = f":{port:04X}"
    return sum(len(row) > _STATE and row[_LOCAL].endswith(suffix) and row[_STATE] == state for row in rows)


def connections_to(port: int) -> int:
    """Count the connections that a server on ``port`` has open now, in this network namespace.

    Raises:
        OSError: the kernel does not tell.
    """
    return count_connections(Path(TCP_TABLE).read_text(encoding="ascii"), port)


def somebody_listens(port: int) -> bool:
    """Tell whether a server would find the port taken, in this network namespace.

    Raises:
        OSError: the kernel does not tell.
    """
    if listeners(Path(TCP_TABLE).read_text(encoding="ascii"), port):
        return True
    # A socket of the newer protocol usually takes the port of the older one too.
    table = Path(TCP6_TABLE)
    return table.exists() and bool(listeners(table.read_text(encoding="ascii"), port))
