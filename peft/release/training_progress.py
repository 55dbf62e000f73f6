"""What a training has logged until now, for those who watch: a small file that is replaced again and again.

It is no evidence: it is not synced, it may be some moments old, and it goes when the training has left the
log of all its losses. A training never fails because of it.
"""

from __future__ import annotations

import math
import os
import time
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from ticket_agent.peft.errors import AbsentError, PeftError
from ticket_agent.peft.release.document_error import DocumentError
from ticket_agent.peft.release.native.loss_log import LOG_SCHEMA, MAX_EVENTS
from ticket_agent.peft.release.replaced import read_replaced
from ticket_agent.peft.release.spelled import decode_spelled, spell

if TYPE_CHECKING:
    from collections.abc import Callable

    from ticket_agent.peft.directory import Directory
    from ticket_agent.peft.release.native.loss_log import LossLog

__all__ = ["PROGRESS_FILE", "ProgressFile", "TrainingLosses", "read_losses"]

PROGRESS_FILE: Final = "progress.json"
LOG_FILE: Final = "loss-log.json"
MAX_PROGRESS_BYTES: Final = 128 * 1024

_SCHEMA: Final = "ticket-agent-training-progress/v1"
_PARTIAL: Final = ".progress.json.partial"
_PAUSE_S: Final = 0.25
_SHOWN: Final = 256
_NEW: Final = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingLosses:
    """Losses by step, ascending.

    Attributes:
        steps: of each loss.
        losses: as they were logged, in nats.
        max_steps: where training ends; None where that is not told.
        complete: the training has logged all of them.
    """

    steps: tuple[int, ...]
    losses: tuple[float, ...]
    max_steps: int | None
    complete: bool


class ProgressFile:
    """The file of one training, written by the training itself."""

    def __init__(
        self, outputs: Directory, *, max_steps: int, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """Nothing is written yet.

        Args:
            outputs: where the file goes.
            max_steps: where training ends.
            clock: in seconds.
        """
        self._outputs: Final = outputs
        self._max_steps: Final = max_steps
        self._clock: Final = clock
        self._written_s: float | None = None

    def logged(self, log: LossLog) -> None:
        """Tell the losses that were logged, unless that was done a moment ago."""
        now_s = self._clock()
        if self._written_s is not None and now_s - self._written_s < _PAUSE_S:
            return
        self._written_s = now_s
        events = log.spread(_SHOWN)
        members = {
            "schema": _SCHEMA,
            "max_steps": self._max_steps,
            "steps": [step for step, _ in events],
            "losses": [loss for _, loss in events],
        }
        with suppress(OSError):
            fd = os.open(_PARTIAL, _NEW, 0o600, dir_fd=self._outputs.fd)
            with os.fdopen(fd, "wb") as file:
                file.write(spell(members))
            os.rename(_PARTIAL, PROGRESS_FILE, src_dir_fd=self._outputs.fd, dst_dir_fd=self._outputs.fd)

    def done(self) -> None:
        """Take the file away: the log of all losses is there."""
        for name in (_PARTIAL, PROGRESS_FILE):
            with suppress(OSError):
                os.unlink(name, dir_fd=self._outputs.fd)


def read_losses(outputs: Directory) -> TrainingLosses | None:
    """What a training has logged until now; None while that is nothing, or cannot be read.

    Args:
        outputs: the directory ``out`` of its job.
    """
    for name, schema in ((LOG_FILE, LOG_SCHEMA), (PROGRESS_FILE, _SCHEMA)):
        try:
            data = read_replaced(outputs, name, max_bytes=MAX_PROGRESS_BYTES)
            return _losses(decode_spelled(data, what=name, max_bytes=MAX_PROGRESS_BYTES), schema)
        except AbsentError:
            continue
        except PeftError:
            return None
    return None


def _losses(document: dict[str, Any], schema: str) -> TrainingLosses:
    steps, losses, most = document.get("steps"), document.get("losses"), document.get("max_steps")
    if (
        document.get("schema") != schema
        or not isinstance(steps, list)
        or not isinstance(losses, list)
        or not len(steps) == len(losses) <= MAX_EVENTS
        or not all(type(step) is int and step >= 0 for step in steps)
        or not all(type(loss) is float and math.isfinite(loss) for loss in losses)
        or not (most is None or type(most) is int)
    ):
        raise DocumentError("is no log of losses")
    return TrainingLosses(
        steps=tuple(steps), losses=tuple(losses), max_steps=most, complete=schema == LOG_SCHEMA
    )
