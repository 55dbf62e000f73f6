"""Putting an adapter on a loaded base model, so that each of its tensors is in it, and reading it back."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from ticket_agent.peft.release.bundle import ADAPTER_WEIGHTS
from ticket_agent.peft.release.native.libraries import library
from ticket_agent.peft.release.native.native_errors import ModelMismatchError

if TYPE_CHECKING:
    from pathlib import Path

    from ticket_agent.peft.release.profile import Profile

__all__ = ["attach", "lora_model", "require_same_tensors"]

_SHOWN: Final = 4


def lora_model(base: Any, profile: Profile) -> Any:
    """Wrap a base model with a new adapter as the profile describes it; the base model is changed."""
    hf = library("peft")
    rank = profile.settings.rank
    config = hf.LoraConfig(
        r=rank,
        lora_alpha=2 * rank,
        target_modules=list(profile.stack.geometry.target_modules),
        lora_dropout=0.0,
        bias="none",
        task_type="CAUSAL_LM",
    )
    model = hf.get_peft_model(base, config)
    # The library names the directory that the model was loaded from, which is this job's and says nothing.
    told = model.peft_config["default"]
    told.base_model_name_or_path = profile.stack.base.source
    told.revision = profile.stack.base.revision
    return model


def attach(base: Any, directory: Path, profile: Profile) -> tuple[Any, int]:
    """Put an adapter, which was scanned, on a base model.

    The adapter's own configuration is not used again: what it says was found to be what the profile says.

    Returns:
        The model, ready for evaluation, and the number of tensors that are in it.

    Raises:
        ModelMismatchError: a tensor of the file is not in the model afterwards, or the model has one more.
    """
    hf = library("peft")
    tensors = library("safetensors.torch").load_file(str(directory / ADAPTER_WEIGHTS))
    model = lora_model(base, profile)
    report = hf.set_peft_model_state_dict(model, tensors)
    if unexpected := sorted(report.unexpected_keys):
        raise ModelMismatchError(f"adapter: unexpected keys: {', '.join(unexpected[:_SHOWN])}")
    require_same_tensors(model, tensors, what="adapter")
    return model.eval(), len(tensors)


def require_same_tensors(model: Any, tensors: dict[str, Any], *, what: str) -> None:
    """Hold that a model's adapter has exactly these tensors, number by number.

    Raises:
        ModelMismatchError: a tensor is missing, left over or has other numbers.
    """
    torch = library("torch")
    loaded = library("peft").get_peft_model_state_dict(model)
    for names, kind in (
        (tensors.keys() - loaded.keys(), "not in the model"),
        (loaded.keys() - tensors.keys(), "missing in the file"),
    ):
        if names:
            raise ModelMismatchError(f"{what}: {len(names)} tensors {kind}, like {min(names)}")
    for name, wanted in tensors.items():
        found = loaded[name].detach().cpu()
        if not torch.equal(found, wanted.to(found.dtype)):
            raise ModelMismatchError(f"{what}: {name} has other numbers in the model than in the file")
