"""What goes wrong inside the libraries, for one process: each function breaks one thing, as was reported."""

from __future__ import annotations

import importlib
import os
import resource
import signal
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable


def _library(name: str) -> Any:
    return importlib.import_module(name)


def _trainer() -> Any:
    return _library("transformers").Trainer


def resume_starts_again() -> None:
    """The trainer does not use the checkpoint at all, and says nothing."""
    trainer = _trainer()
    train = trainer.train

    def forgets(self: Any, resume_from_checkpoint: Any = None, **more: Any) -> Any:
        return train(self, **more)

    trainer.train = forgets


def resume_keeps_new_weights() -> None:
    """Step, optimizer and schedule come back, and the adapter's weights do not."""
    _trainer()._load_from_checkpoint = lambda *_, **__: None


def resume_has_no_optimizer() -> None:
    """Optimizer and schedule start again."""
    _trainer()._load_optimizer_and_scheduler = lambda *_, **__: None


def _after_loading(change: Callable[[Any], None]) -> None:
    trainer = _trainer()
    load = trainer._load_optimizer_and_scheduler

    def loaded(self: Any, checkpoint: Any) -> None:
        load(self, checkpoint)
        change(self)

    trainer._load_optimizer_and_scheduler = loaded


def resume_forgets_moments() -> None:
    """The optimizer alone starts again."""
    _after_loading(lambda trainer: trainer.optimizer.state.clear())


def resume_forgets_schedule() -> None:
    """The schedule alone starts again."""
    _after_loading(lambda trainer: setattr(trainer.lr_scheduler, "last_epoch", 0))


def loading_drops_a_tensor() -> None:
    """The library leaves out what it cannot place, with a warning at most."""
    library = _library("peft")
    load = library.set_peft_model_state_dict

    def drops(model: Any, tensors: dict[str, Any], *arguments: Any, **named: Any) -> Any:
        return load(model, dict(sorted(tensors.items())[1:]), *arguments, **named)

    library.set_peft_model_state_dict = drops


def adapter_is_switched_off() -> None:
    """All tensors are in the model, and the model computes without them."""
    library = _library("peft")
    make = library.get_peft_model

    def made(*arguments: Any, **named: Any) -> Any:
        model = make(*arguments, **named)
        model.base_model.disable_adapter_layers()
        return model

    library.get_peft_model = made


def asks_the_hub() -> None:
    """Something in the libraries looks for a file on the network."""
    library = _library("transformers")
    tokenizer = library.AutoTokenizer

    class Asking:
        @staticmethod
        def from_pretrained(*arguments: Any, **named: Any) -> Any:
            importlib.import_module("socket").create_connection(("127.0.0.1", 9))
            return tokenizer.from_pretrained(*arguments, **named)

    library.AutoTokenizer = Asking


def loss_is_no_number() -> None:
    """The model computes NaN."""
    trainer = _trainer()
    compute = trainer.compute_loss

    def computed(*arguments: Any, **named: Any) -> Any:
        found = compute(*arguments, **named)
        nothing = float("nan")
        return (found[0] * nothing, *found[1:]) if isinstance(found, tuple) else found * nothing

    trainer.compute_loss = computed


def killed_in_step_ten() -> None:
    """Somebody kills the process between two checkpoints."""
    trainer = _trainer()
    step = trainer.training_step
    done = []

    def counted(*arguments: Any, **named: Any) -> Any:
        done.append(1)
        if len(done) == 10:
            os.kill(os.getpid(), signal.SIGKILL)
        return step(*arguments, **named)

    trainer.training_step = counted


def disk_is_nearly_full() -> None:
    """Nothing longer than an observation can be written."""
    sys.dont_write_bytecode = True  # a beginning of a file would be taken for the whole by others
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
    # As in any Python process: writing then fails with EFBIG.
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
