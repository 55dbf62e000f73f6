"""Proof that training went on where its checkpoint stood.

A trainer that cannot use a checkpoint may start again from nothing and say so in a warning at most. So it is
looked at in the moment before the first step: the step, the weights, the optimizer and the schedule must be
the checkpoint's. The loss of some rows is compared with what it was when the checkpoint was saved, and the
first new loss with the last one that was logged.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Final

from ticket_agent.peft.release.bundle import ADAPTER_WEIGHTS
from ticket_agent.peft.release.native.adapters import require_same_tensors
from ticket_agent.peft.release.native.libraries import library
from ticket_agent.peft.release.native.native_errors import ModelMismatchError, ResumeNotProvenError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

__all__ = ["PROBE", "ResumeProof", "probe_loss"]

PROBE: Final = "probe_loss"
"""Member of an entry of the trainer's log: mean loss of the first rows when a checkpoint was saved."""
PROBE_ROWS: Final = 4
_SAME: Final = 1e-3
"""Relative difference of two losses of the same rows under the same weights."""
_NEAR: Final = 0.5
"""Likewise of losses of different rows: they vary; a model that starts again is further off or not at all."""
_FLOOR: Final = 0.5
"""In nats: below it, a ratio of losses says nothing."""


def probe_loss(model: Any, batches: Sequence[Any]) -> float:
    """Mean loss of some batches of one row; the model is left as it was, and so are random states."""
    torch = library("torch")
    training = model.training
    model.eval()
    try:
        with torch.no_grad():
            place = next(model.parameters()).device
            losses = [
                float(model(**{name: value.to(place) for name, value in batch.items()}).loss)
                for batch in batches
            ]
    finally:
        model.train(training)
    return math.fsum(losses) / len(losses)


class ResumeProof:
    """What is found out about a training that goes on; give it each of the three moments."""

    def __init__(self, directory: Path, step: int) -> None:
        self._directory: Final = directory
        self._step: Final = step
        self._last: tuple[int, float] | None = None
        self._began = False
        self._found: dict[str, Any] = {"from_step": step}

    def began(self, state: Any, model: Any, optimizer: Any, scheduler: Any, probe: float) -> None:
        """Before the first step.

        Raises:
            ResumeNotProvenError: something is not the checkpoint's.
        """
        self._require("the trainer is at step", state.global_step)
        tensors = library("safetensors.torch").load_file(str(self._directory / ADAPTER_WEIGHTS))
        try:
            require_same_tensors(model, tensors, what="checkpoint")
        except ModelMismatchError as error:
            raise ResumeNotProvenError(
                f"training did not take over the checkpoint's weights: {error}"
            ) from None
        self._require("the schedule is at step", scheduler.last_epoch)
        steps = {int(entry["step"]) for entry in _optimizer_state(optimizer).values() if "step" in entry}
        for step in steps or {0}:
            self._require("the optimizer is at step", step)
        losses = [entry for entry in state.log_history if "loss" in entry and entry["step"] <= self._step]
        if losses:
            self._last = (int(losses[-1]["step"]), float(losses[-1]["loss"]))
            self._found |= {"last_logged_step": self._last[0], "last_logged_loss": self._last[1]}
        saved = [
            entry[PROBE] for entry in state.log_history if PROBE in entry and entry["step"] == self._step
        ]
        self._found["probe_loss"] = probe
        if saved:
            self._found["saved_probe_loss"] = float(saved[-1])
            if not math.isclose(probe, saved[-1], rel_tol=_SAME, abs_tol=_SAME):
                raise ResumeNotProvenError(
                    f"the same rows cost {probe} after resuming and {saved[-1]} when the checkpoint was saved"
                )
        self._began = True

    def logged(self, step: int, loss: float) -> None:
        """A loss was logged; only the first one counts.

        Raises:
            ResumeNotProvenError: it is not the next one, or far from the last one.
        """
        if "first_loss" in self._found:
            return
        if not self._began or step <= self._step:
            raise ResumeNotProvenError(f"the first loss is of step {step}; the checkpoint is of {self._step}")
        self._found |= {"first_step": step, "first_loss": loss}
        if self._last is not None and abs(loss - self._last[1]) > max(_FLOOR, _NEAR * self._last[1]):
            raise ResumeNotProvenError(
                f"the first loss after resuming is {loss}, and the last one before was {self._last[1]}"
            )

    def members(self) -> dict[str, Any]:
        """What was found.

        Raises:
            ResumeNotProvenError: training ended without a first loss.
        """
        if "first_loss" not in self._found:
            raise ResumeNotProvenError("training ended without one step after the checkpoint")
        return dict(self._found)

    def _require(self, what: str, found: int) -> None:
        if found != self._step:
            raise ResumeNotProvenError(
                f"{what} {found}, and the checkpoint is of step {self._step}: training started again"
            )


def _optimizer_state(optimizer: Any) -> dict[Any, Any]:
    state: dict[Any, Any] = getattr(optimizer, "optimizer", optimizer).state
    return state
