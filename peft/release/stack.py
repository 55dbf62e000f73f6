"""The native stack of a profile as data: base model, geometry, device, serving, caps and limits.

Nothing here is about one model: a larger one, another device or a tiny one on a CPU is another value. What
the programs below could choose by themselves has to be said, so nothing has a default.
"""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass
from typing import Any, Final, TypeVar

from ticket_agent.peft.release.bundle import MAX_BASE_WEIGHTS_BYTES, MAX_BUNDLE_FILE_BYTES
from ticket_agent.peft.release.data import MAX_ROWS, MIN_ROWS
from ticket_agent.peft.release.document_error import DocumentError, reading
from ticket_agent.peft.release.geometry import Geometry
from ticket_agent.peft.release.rules import (
    array,
    choice,
    digest_text,
    exact,
    field_names,
    integer,
    number,
    refuse,
    text,
)

__all__ = ["BasePin", "Caps", "Device", "Limits", "Platform", "Stack", "required_packages"]

TRANSFORMERS_SERVE: Final = "transformers-serve-local"
VLLM: Final = "vllm-local"

MAX_LOSS: Final = 100.0

_COMMON: Final = (
    "accelerate",
    "cryptography",
    "huggingface-hub",
    "peft",
    "safetensors",
    "tokenizers",
    "torch",
    "transformers",
)
_BACKENDS: Final = {
    TRANSFORMERS_SERVE: ("fastapi", "openai", "pydantic", "uvicorn"),
    VLLM: ("vllm",),
}
T = TypeVar("T")

_DEVICE = re.compile(r"cpu|cuda:[0-9]{1,2}")
_RELEASE = re.compile(r"[0-9]{1,3}\.[0-9]{1,3}")
_MEBI: Final = 1024 * 1024
_TEBI: Final = 1024 * 1024 * 1024 * 1024


def required_packages(serving: str) -> tuple[str, ...]:
    """The packages that a profile must pin for a serving backend, sorted.

    Raises:
        DocumentError: there is no such backend.
    """
    choice(serving, "serving", _BACKENDS)
    return tuple(sorted((*_COMMON, *_BACKENDS[serving])))


@dataclass(frozen=True, slots=True, kw_only=True)
class BasePin:
    """Which base model it is: where it comes from, which revision, and the digest of its weights."""

    source: str
    revision: str
    weights_sha256: str

    def __post_init__(self) -> None:
        text(self.source, "source", 256)
        text(self.revision, "revision", 128)
        digest_text(self.weights_sha256, "weights_sha256")


@dataclass(frozen=True, slots=True, kw_only=True)
class Platform:
    """What the packages run on: versions of Python and, on a GPU, of CUDA; like ``3.11`` and ``12.6``."""

    python: str
    cuda: str | None

    def __post_init__(self) -> None:
        for name, value in (("python", self.python), ("cuda", self.cuda)):
            if value is not None and _RELEASE.fullmatch(text(value, name, 7)) is None:
                refuse(name, "a version of two numbers, like 3.11")
        text(self.python, "python", 7)


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """How the model is computed.

    Attributes:
        device: ``cpu``, or ``cuda:<n>``.
        dtype: type of the weights in memory.
        attention: which implementation of attention.
        threads: of the CPU, 1..=64.
        memory_fraction: of the GPU's memory that one process may take, above 0 and at most 1; None on a CPU.
    """

    device: str
    dtype: str
    attention: str
    threads: int
    memory_fraction: float | None

    def __post_init__(self) -> None:
        if _DEVICE.fullmatch(text(self.device, "device", 16)) is None:
            refuse("device", "cpu or cuda:<number>")
        choice(self.dtype, "dtype", ("float32", "bfloat16", "float16"))
        choice(self.attention, "attention", ("eager", "sdpa"))
        integer(self.threads, "threads", 1, 64)
        if self.on_gpu:
            if not 0 < number(self.memory_fraction, "memory_fraction") <= 1:
                refuse("memory_fraction", "above 0.0 and at most 1.0")
        elif self.memory_fraction is not None:
            refuse("memory_fraction", "null on a CPU")

    @property
    def on_gpu(self) -> bool:
        """It is computed on a GPU."""
        return self.device != "cpu"


@dataclass(frozen=True, slots=True, kw_only=True)
class Caps:
    """What native processes may use; bytes, except where it says otherwise.

    Attributes:
        phase_memory_bytes: memory of one phase.
        serving_memory_bytes: memory of one server.
        file_bytes: longest file that a phase can write. At least as much as the largest file that it has to.
        tasks: processes and threads of a phase or server.
        cpu_percent: of one CPU.
        phase_ms: longest time of one phase, in milliseconds.
    """

    phase_memory_bytes: int
    serving_memory_bytes: int
    file_bytes: int
    tasks: int
    cpu_percent: int
    phase_ms: int

    def __post_init__(self) -> None:
        integer(self.phase_memory_bytes, "phase_memory_bytes", 64 * _MEBI, _TEBI)
        integer(self.serving_memory_bytes, "serving_memory_bytes", 64 * _MEBI, _TEBI)
        integer(self.file_bytes, "file_bytes", _MEBI, _TEBI)
        integer(self.tasks, "tasks", 8, 4096)
        integer(self.cpu_percent, "cpu_percent", 10, 100 * 256)
        integer(self.phase_ms, "phase_ms", 1000, 3_600_000)


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What the settings, the data and the policy of a profile may ask for.

    Attributes:
        ranks: the ranks an adapter may have, ascending.
        lengths: the lengths, in tokens, that rows may be cut to, ascending.
        steps: most training steps.
        learning_rate: the highest.
        checkpoint_interval: most steps between two checkpoints.
        eval_rows: rows of the evaluation, exactly.
        loss: the highest bound that a policy may set.
        adapter_bytes: largest weights of an adapter.
        base_bytes: largest weights of the base model.
    """

    ranks: tuple[int, ...]
    lengths: tuple[int, ...]
    steps: int
    learning_rate: float
    checkpoint_interval: int
    eval_rows: int
    loss: float
    adapter_bytes: int
    base_bytes: int

    def __post_init__(self) -> None:
        _ascending(self.ranks, "ranks", 1, 256)
        _ascending(self.lengths, "lengths", 8, 8192)
        integer(self.steps, "steps", 1, 100_000)
        if not 0 < number(self.learning_rate, "learning_rate") <= 1:
            refuse("learning_rate", "above 0.0 and at most 1.0")
        integer(self.checkpoint_interval, "checkpoint_interval", 1, self.steps)
        integer(self.eval_rows, "eval_rows", MIN_ROWS, MAX_ROWS)
        if not 0 < number(self.loss, "loss") <= MAX_LOSS:
            refuse("loss", f"above 0.0 and at most {MAX_LOSS}")
        integer(self.adapter_bytes, "adapter_bytes", 1, MAX_BUNDLE_FILE_BYTES)
        integer(self.base_bytes, "base_bytes", 1, MAX_BASE_WEIGHTS_BYTES)


@dataclass(frozen=True, slots=True, kw_only=True)
class Stack:
    """Everything that a profile pins besides the versions of packages.

    Raises:
        DocumentError: parts that contradict each other.
    """

    base: BasePin
    geometry: Geometry
    platform: Platform
    device: Device
    serving: str
    caps: Caps
    limits: Limits

    def __post_init__(self) -> None:
        required_packages(self.serving)
        if self.device.on_gpu != (self.platform.cuda is not None):
            refuse("platform.cuda", "a version on a GPU and null on a CPU")
        largest = max(self.limits.base_bytes, self.limits.adapter_bytes)
        if self.caps.file_bytes < largest:
            refuse("caps.file_bytes", f"at least {largest}, or a phase cannot write its largest file")

    def members(self) -> dict[str, Any]:
        """The value as an object of JSON."""
        return asdict(self)

    @classmethod
    def of_members(cls, value: object) -> Stack:
        """The value of :meth:`members`.

        Raises:
            DocumentError: anything else; a member that is missing is a pin that is missing.
        """
        document = exact(value, field_names(cls))
        return cls(
            base=_part(BasePin, document, "base"),
            geometry=_part(Geometry, document, "geometry"),
            platform=_part(Platform, document, "platform"),
            device=_part(Device, document, "device"),
            serving=document["serving"],
            caps=_part(Caps, document, "caps"),
            limits=_part(Limits, document, "limits"),
        )


def _part(cls: type[T], document: dict[str, Any], name: str) -> T:
    with reading(name):
        members = exact(document[name], field_names(cls))
        return cls(
            **{name: tuple(item) if isinstance(item, list) else item for name, item in members.items()}
        )


def _ascending(values: object, member: str, low: int, high: int) -> None:
    numbers = array(values, member, 1, 16)
    for value in numbers:
        integer(value, f"each of {member}", low, high)
    if list(numbers) != sorted(set(numbers)):
        raise DocumentError(f"{member} must be ascending, each number once")
