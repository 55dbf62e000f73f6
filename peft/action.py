"""What the actions share: their lane, and what an error of the trees means to whom."""

from __future__ import annotations

import hashlib
import os
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from ticket_agent.journal.outcome import PlanRefusedError, PlanWaitsError
from ticket_agent.peft.errors import (
    FileChangedError,
    LockHeldError,
    PeftError,
    PeftIoError,
    RootRefusedError,
)

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

__all__ = ["PASSING", "REGISTRY_LANE", "export_lane", "planning", "root_tag"]

REGISTRY_LANE: Final = "peft-registry"
"""Lane of every action that can change the registry."""

PASSING: Final = (RootRefusedError, LockHeldError, PeftIoError, FileChangedError)
"""What says nothing about the request: it ends by itself, or when somebody puts the host in order."""

_TAG_DIGITS: Final = 16


def export_lane(job: str | None) -> str:
    """Lane of the exports of a job."""
    return f"peft-export/{job}"


@contextmanager
def planning(what: str) -> Iterator[None]:
    """Tell what an error in the body, which only looks, means for a plan.

    Args:
        what: the action and its subject, to begin the line with.

    Raises:
        PlanWaitsError: the trees cannot be looked at now.
        PlanRefusedError: the request can never be performed as it is.
    """
    try:
        yield
    except PASSING as error:
        raise PlanWaitsError(f"{what}: {error}") from error
    except PeftError as error:
        raise PlanRefusedError(f"{what}: {error}") from error


def root_tag(path: Path) -> str:
    """Tell one configured root from another in a plan, without its path."""
    return hashlib.sha256(os.fsencode(path)).hexdigest()[:_TAG_DIGITS]
