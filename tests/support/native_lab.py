"""What the tests of the native phases share: libraries, a base model, and an adapter trained on it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path

    from native_jobs import Prepared, World
    from native_worker import Worker


@dataclass(frozen=True, kw_only=True)
class Trained:
    """A training that has ended."""

    job: Prepared
    observed: dict[str, Any]

    @property
    def adapter(self) -> Path:
        return self.job.out / "adapter"


@dataclass(frozen=True, kw_only=True)
class Lab:
    """All three."""

    worker: Worker
    world: World
    trained: Trained
