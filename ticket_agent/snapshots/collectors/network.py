"""Collector ``network``: links, addresses and routes of a Linux host, as iproute2 prints them.

What is published of the three tables is told in :mod:`.network_projection`.
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Final

from ticket_agent.protocol.collecting import CollectError
from ticket_agent.protocol.snapshot import UnavailableReason

from .command import CommandFailedError, OutputTooLongError, run
from .network_projection import project
from .network_tables import Tables, parse_rows

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ticket_agent.protocol.collecting import CollectContext
    from ticket_agent.protocol.snapshot import SnapshotEntry

__all__ = ["MAX_TABLE_BYTES", "collect"]

MAX_TABLE_BYTES: Final = 4 << 20
"""Most that is read of one table; a larger one is published as larger than that."""

_PROGRAMS: Final = ("/usr/sbin/ip", "/sbin/ip")
_REMEDY: Final = "install the package iproute2"


def collect(
    context: CollectContext, *, platform: str = sys.platform, programs: Sequence[str] = _PROGRAMS
) -> list[SnapshotEntry]:
    """Look at the network once.

    Args:
        context: of the observation.
        platform: as ``sys.platform``.
        programs: where iproute2's ``ip`` may be; the first one that is there is run.

    Raises:
        CollectError: ``not_supported`` off Linux; ``source_failed`` without iproute2, or when it fails or
            prints no table; ``timed_out``.
    """
    _require_linux(platform)
    program = next((path for path in programs if os.path.exists(path)), programs[0])  # noqa: PTH110
    tables = Tables(
        links=_table(context, program, "-s", "link", "show"),
        addresses=_table(context, program, "address", "show"),
        routes=_table(context, program, "route", "show", "table", "all"),
    )
    context.deadline.left_s()
    try:
        return project(tables, context.bounds)
    except RecursionError:
        raise CollectError(
            f"`{program} -json` prints rows that nest too deep; look at them by hand"
        ) from None


def _table(context: CollectContext, program: str, *arguments: str) -> list[object] | None:
    command = [program, "-json", *arguments]
    try:
        output = run(command, deadline=context.deadline, remedy=_REMEDY, max_bytes=MAX_TABLE_BYTES)
    except OutputTooLongError:
        return None
    except CommandFailedError as error:
        raise CollectError(f"{error.detail}; it must be iproute2's, since BusyBox's has no -json") from None
    try:
        return parse_rows(output)
    except (ValueError, RecursionError) as error:
        raise CollectError(
            f"`{' '.join(command)}` prints no JSON array ({error}); it must be iproute2's"
        ) from None


def _require_linux(platform: str) -> None:
    if platform == "darwin":
        raise CollectError(
            "network is not looked at on macOS: this version has no native helper for it, and"
            " COHESIX_MACOS_NETWORK_HELPER is not read",
            UnavailableReason.NOT_SUPPORTED,
        )
    if platform != "linux":
        raise CollectError(f"network is not looked at on {platform}", UnavailableReason.NOT_SUPPORTED)
