"""The qualified profile as data: SmolLM2-135M on one GPU, with the packages it was qualified with.

Profiles of the two older schemas mean this stack without repeating it. Profiles of our own schema may say the
same, or anything else.
"""

from __future__ import annotations

from typing import Final

from ticket_agent.peft.release.geometry import LLAMA, Geometry
from ticket_agent.peft.release.stack import (
    TRANSFORMERS_SERVE,
    BasePin,
    Caps,
    Device,
    Limits,
    Platform,
    Stack,
)

__all__ = ["QUALIFIED_STACK", "QUALIFIED_VERSIONS"]

_MEBI: Final = 1024 * 1024
_GIBI: Final = 1024 * _MEBI

QUALIFIED_VERSIONS: Final = (
    ("accelerate", "1.10.1"),
    ("cryptography", "45.0.7"),
    ("fastapi", "0.116.1"),
    ("huggingface-hub", "0.34.4"),
    ("openai", "1.106.1"),
    ("peft", "0.17.1"),
    ("pydantic", "2.11.7"),
    ("safetensors", "0.6.2"),
    ("tokenizers", "0.22.0"),
    ("torch", "2.9.1+cu126"),
    ("transformers", "4.56.2"),
    ("uvicorn", "0.35.0"),
)

QUALIFIED_STACK: Final = Stack(
    base=BasePin(
        source="HuggingFaceTB/SmolLM2-135M",
        revision="93efa2f097d58c2a74874c7e644dbc9b0cee75a2",
        weights_sha256="80521b40281d6ce74e35c9282c22539e75aa0ac8578892b2a59955ef78d55da1",
    ),
    geometry=Geometry(
        architecture=LLAMA,
        layers=30,
        hidden_size=576,
        intermediate_size=1536,
        heads=9,
        kv_heads=3,
        head_dim=64,
        vocab_size=49152,
        target_modules=("q_proj", "v_proj"),
    ),
    platform=Platform(python="3.11", cuda="12.6"),
    device=Device(device="cuda:0", dtype="float32", attention="eager", threads=2, memory_fraction=0.4),
    serving=TRANSFORMERS_SERVE,
    caps=Caps(
        phase_memory_bytes=3 * _GIBI,
        serving_memory_bytes=2 * _GIBI,
        # A phase may have to write the base model's weights into a bundle.
        file_bytes=_GIBI,
        tasks=128,
        cpu_percent=200,
        phase_ms=300_000,
    ),
    limits=Limits(
        ranks=(2, 4, 8),
        lengths=(64, 128),
        steps=64,
        learning_rate=0.001,
        checkpoint_interval=16,
        eval_rows=16,
        loss=8.0,
        adapter_bytes=32 * _MEBI,
        base_bytes=_GIBI,
    ),
)
