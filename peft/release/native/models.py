"""Base model and tokenizer, loaded from local files and strictly: no code, no network, no key left over."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, Final

from ticket_agent.peft.release.native.libraries import library
from ticket_agent.peft.release.native.native_errors import EnvironmentMismatchError, ModelMismatchError

if TYPE_CHECKING:
    from pathlib import Path

    from ticket_agent.peft.release.profile import Profile
    from ticket_agent.peft.release.stack import Device

__all__ = ["load_base", "load_tokenizer", "prepare"]

_LOCAL: Final = {"local_files_only": True, "trust_remote_code": False}
_DTYPE_RENAMED: Final = (4, 56)
"""Version of transformers that takes ``dtype``; earlier ones call it ``torch_dtype``."""
_SHOWN: Final = 4


def prepare(profile: Profile) -> None:
    """Make this process compute as the profile says, and the same each time.

    Raises:
        EnvironmentMismatchError: it has not the device.
    """
    device = profile.stack.device
    if device.on_gpu:
        # The libraries spread over all devices that they see, so they see one.
        os.environ["CUDA_VISIBLE_DEVICES"] = device.device.partition(":")[2]
    torch, transformers = library("torch"), library("transformers")
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    torch.set_num_threads(device.threads)
    torch.use_deterministic_algorithms(True)
    if device.on_gpu:
        if not torch.cuda.is_available():
            raise EnvironmentMismatchError(f"the profile computes on {device.device}, and there is no GPU")
        torch.cuda.set_per_process_memory_fraction(device.memory_fraction)
    transformers.set_seed(profile.settings.seed)


def load_tokenizer(path: Path) -> Any:
    """Load the base model's tokenizer.

    Raises:
        ModelMismatchError: it has neither a token for padding nor one for the end.
    """
    tokenizer = library("transformers").AutoTokenizer.from_pretrained(str(path), **_LOCAL)
    if tokenizer.pad_token is None:
        if tokenizer.eos_token is None:
            raise ModelMismatchError("the tokenizer has neither a pad_token nor an eos_token")
        tokenizer.pad_token = tokenizer.eos_token
    return tokenizer


def load_base(path: Path, profile: Profile) -> Any:
    """Load the base model onto the profile's device, for evaluation.

    Raises:
        ModelMismatchError: a tensor is missing, left over or of another shape, or it is another class.
    """
    transformers = library("transformers")
    device = profile.stack.device
    dtype = getattr(library("torch"), device.dtype)
    model, report = transformers.AutoModelForCausalLM.from_pretrained(
        str(path),
        use_safetensors=True,
        attn_implementation=device.attention,
        output_loading_info=True,
        **{_dtype_name(transformers.__version__): dtype},
        **_LOCAL,
    )
    for kind in ("missing_keys", "unexpected_keys", "mismatched_keys", "error_msgs"):
        if found := sorted(map(str, report[kind])):
            raise ModelMismatchError(f"base model: {kind.replace('_', ' ')}: {', '.join(found[:_SHOWN])}")
    wanted = profile.stack.geometry.architecture
    if type(model).__name__ != wanted:
        raise ModelMismatchError(f"base model is a {type(model).__name__}; the profile says {wanted}")
    return model.to(_place(device)).eval()


def _place(device: Device) -> str:
    # The one GPU that is visible has number 0, whatever its number on the host.
    return "cuda:0" if device.on_gpu else device.device


def _dtype_name(version: str) -> str:
    major, minor = (int(part) for part in version.split(".")[:2])
    return "dtype" if (major, minor) >= _DTYPE_RENAMED else "torch_dtype"
