"""Registries on disk, made without the code that reads them."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

from ticket_agent.peft.manifest import ADAPTER_FILE, LORA_FILE, METRICS_FILE, Artifact, Manifest, render

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

LORA = b'{"rank":8}\n'


def artifact(data: bytes) -> Artifact:
    return Artifact(sha256=hashlib.sha256(data).hexdigest(), bytes=len(data))


def manifest_of(model: str, files: Mapping[str, bytes], *, base: str = "base-v1") -> Manifest:
    metrics = files.get(METRICS_FILE)
    return Manifest(
        model=model,
        base=base,
        job="job-1",
        adapter=artifact(files[ADAPTER_FILE]),
        lora=artifact(files[LORA_FILE]),
        metrics=None if metrics is None else artifact(metrics),
        policy=artifact(b"policy"),
        telemetry=artifact(b"telemetry"),
    )


def add_model(registry: Path, model: str, *, metrics: bool = False, base: str = "base-v1") -> Path:
    """A complete model; its adapter holds the model's name, so that no two have the same digest."""
    files = {ADAPTER_FILE: f"weights of {model}\n".encode() * 40, LORA_FILE: LORA}
    if metrics:
        files[METRICS_FILE] = b'{"loss":0.02}\n'
    folder = registry / "available" / model
    folder.mkdir(parents=True)
    for name, data in files.items():
        (folder / name).write_bytes(data)
    (folder / "manifest.toml").write_bytes(render(manifest_of(model, files, base=base)))
    return folder


def add_base(registry: Path, model: str) -> Path:
    folder = registry / "available" / model
    folder.mkdir(parents=True)
    (folder / "manifest.toml").write_text(f'[model]\nid = "{model}"\n')
    return folder


def set_control(registry: Path, pointer: str | None, current: str | None, previous: str | None) -> None:
    """Both control files, as a tool that was here before us would have left them."""
    (registry / "active").unlink(missing_ok=True)
    (registry / "active_state.toml").unlink(missing_ok=True)
    if pointer is not None:
        (registry / "active").write_text(f"{pointer}\n")
    if current is not None or previous is not None:
        text = f'current = "{current or ""}"\nprevious = "{previous or ""}"\n'
        (registry / "active_state.toml").write_text(text)
