"""Providers of macOS that this version has no collector for. They say so, on macOS as well."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, NoReturn

from ticket_agent.protocol.collecting import CollectError
from ticket_agent.protocol.snapshot import UnavailableReason

if TYPE_CHECKING:
    from ticket_agent.protocol.collecting import CollectContext

__all__ = ["ENTRY_POINT_GROUP", "endpoint_compliance", "launchd"]

ENTRY_POINT_GROUP = "ticket_agent.snapshot_collectors"
"""The group of entry points under which an installed package brings collectors of its own."""


def launchd(context: CollectContext, *, platform: str = sys.platform) -> NoReturn:  # noqa: ARG001
    """Services of launchd.

    Raises:
        CollectError: ``not_supported``, always.
    """
    raise _not_supported("launchd", platform)


def endpoint_compliance(context: CollectContext, *, platform: str = sys.platform) -> NoReturn:  # noqa: ARG001
    """Disk encryption, code signing and system integrity of a Mac.

    Raises:
        CollectError: ``not_supported``, always.
    """
    raise _not_supported("endpoint_compliance", platform)


def _not_supported(provider: str, platform: str) -> CollectError:
    if platform == "darwin":
        detail = (
            f"this version ships no collector for {provider}; install one as an entry point {provider} of the"
            f" group {ENTRY_POINT_GROUP}"
        )
    else:
        detail = f"{provider} is a provider of macOS; this host is {platform}, so do not enrol it here"
    return CollectError(detail, UnavailableReason.NOT_SUPPORTED)
