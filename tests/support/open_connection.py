"""A connection that somebody keeps open, and says nothing on."""

from __future__ import annotations

import socket


def connected_to(port: int) -> socket.socket:
    """Connect; the caller closes it."""
    return socket.create_connection(("127.0.0.1", port), timeout=60)
