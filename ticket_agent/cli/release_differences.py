"""In what an adapter differs from what a profile wants, as a table and as JSON."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from ticket_agent.cli.output import plain, table

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ticket_agent.peft.release.adapter_diff import Difference

__all__ = ["difference_lines", "difference_members"]


def difference_lines(found: Sequence[Difference]) -> list[str]:
    """One line for each, and a heading; nothing where nothing differs."""
    if not found:
        return []
    rows = [[plain(item.what), plain(item.expected), plain(item.found), str(item.count)] for item in found]
    return table(["DIFFERS", "PROFILE", "ADAPTER", "COUNT"], rows).splitlines()


def difference_members(found: Sequence[Difference]) -> list[dict[str, Any]]:
    """One object for each."""
    return [asdict(item) for item in found]
