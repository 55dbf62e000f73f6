"""One line of `doctor`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from ticket_agent.exits import Exit

__all__ = ["Check"]


@dataclass(frozen=True, slots=True)
class Check:
    """One finding."""

    name: str
    verdict: Literal["ok", "warn", "fail"]
    detail: str
    code: Exit = Exit.OK
