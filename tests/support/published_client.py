"""The published Python client at work on a registry; tests that use it are skipped where it is missing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from pathlib import Path

cohesix_backends = pytest.importorskip(
    "cohesix.backends", reason="needs the extra 'interop' (cohesix==1.2.0)"
)
cohesix_client = pytest.importorskip("cohesix.client", reason="needs the extra 'interop' (cohesix==1.2.0)")
cohesix_errors = pytest.importorskip("cohesix.errors", reason="needs the extra 'interop' (cohesix==1.2.0)")

JOB = "job_8932"
"""The job that the client's own mock hive offers."""


class Published:
    """The client at work in a folder: its mock hive, an exported job, adapters, a registry."""

    def __init__(self, folder: Path) -> None:
        self.client: Any = cohesix_client.CohesixClient(
            cohesix_backends.MockBackend(root=str(folder / "hive"))
        )
        self.exports = folder / "exports"
        self.registry = folder / "registry"
        self.adapters = folder / "adapters"
        self.client.peft_export(JOB, self.exports)

    def import_model(self, model: str, *, metrics: bool = True) -> None:
        adapter = self.adapters / model
        adapter.mkdir(parents=True)
        (adapter / "adapter.safetensors").write_text(f"adapter-bytes of {model}\n")
        (adapter / "lora.json").write_text('{"rank":8}\n')
        if metrics:
            (adapter / "metrics.json").write_text('{"loss":0.02}\n')
        self.import_adapter(model, adapter)

    def import_adapter(self, model: str, adapter: Path, *, job: str = JOB) -> None:
        self.client.peft_import(model, adapter, self.exports, job, self.registry)

    def activate(self, model: str) -> None:
        self.client.peft_activate(model, self.registry)

    def rollback(self) -> None:
        self.client.peft_rollback(self.registry)
