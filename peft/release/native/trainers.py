"""Arguments of the one trainer that trains and evaluates; everything that it could choose itself is said."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ticket_agent.peft.release.native.libraries import library

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from ticket_agent.peft.release.profile import Profile

__all__ = ["trainer_arguments", "with_events"]


def trainer_arguments(profile: Profile, scratch: Path, **more: Any) -> Any:
    """The trainer's arguments.

    Args:
        profile: what is pinned.
        scratch: an own directory for what the trainer writes.
        more: what only training needs.
    """
    settings, device = profile.settings, profile.stack.device
    arguments = {
        "output_dir": str(scratch),
        "per_device_train_batch_size": settings.batch_size,
        "per_device_eval_batch_size": settings.batch_size,
        "seed": settings.seed,
        "data_seed": settings.seed,
        "use_cpu": not device.on_gpu,
        "dataloader_num_workers": 0,
        "dataloader_pin_memory": False,
        "disable_tqdm": True,
        "report_to": [],
        "save_strategy": "no",
        "push_to_hub": False,
        # Otherwise a loss that is no number would be shown as the mean of the others.
        "logging_nan_inf_filter": False,
    }
    return library("transformers").TrainingArguments(**(arguments | more))


def with_events(**events: Callable[..., None]) -> Any:
    """A callback of the trainer: for each event, like ``on_log``, a function of its state and details."""
    base = library("transformers").TrainerCallback

    def method(handle: Callable[..., None]) -> Callable[..., None]:
        def called(_: Any, __: Any, state: Any, ___: Any, **more: Any) -> None:
            handle(state, **more)

        return called

    return type("Events", (base,), {name: method(handle) for name, handle in events.items()})()
