"""The demo's adapter: exported, imported, activated and rolled back, on directories made for it."""

from __future__ import annotations

import json
import os
import struct
from collections import Counter
from typing import TYPE_CHECKING, Any, Final, Self

from ticket_agent.cli.demo_watch import Arrivals
from ticket_agent.hive.reference.exports import sample_job
from ticket_agent.peft.control import POINTER_FILE, Control, commit
from ticket_agent.peft.manifest import ADAPTER_FILE, LORA_FILE, MANIFEST_FILE
from ticket_agent.peft.registry import AVAILABLE
from ticket_agent.peft.settings import PeftRoots

if TYPE_CHECKING:
    from pathlib import Path

    from ticket_agent.hive.reference import ReferenceHive
    from ticket_agent.peft.directory import Directory

__all__ = ["PEFT_STEPS", "PeftStory"]

JOB: Final = "demo-job"
BASE: Final = "vision-base-v1"
MODEL: Final = "vision-edge-1"
ADAPTER: Final = "run-1"
PEFT_STEPS: Final = ("peft.export", "peft.import", "peft.activate", "peft.rollback")

_SUBJECTS: Final = dict(zip(PEFT_STEPS, (JOB, MODEL, MODEL, BASE), strict=True))
_RANK: Final = 2
_WIDTH: Final = 4


class PeftStory:
    """Three roots, a Worker, and four tickets one after the other; use it in a ``with`` statement.

    What the tickets do is counted without asking the agent: a job, a model and the pointer get their names by
    a rename each, and the kernel reports every rename to whoever watches.
    """

    def __init__(self, hive: ReferenceHive, folder: Path) -> None:
        """Make the directories, with a base model that is active.

        Raises:
            PeftError: the place for the directories cannot be trusted.
            OSError: they cannot be made or watched.
        """
        self._hive = hive
        self._roots = PeftRoots(
            registry=folder / "registry",
            export=folder / "exports",
            adapter=folder / "adapters",
            owner_uid=os.geteuid(),
        )
        self._make()
        available = self._roots.registry / AVAILABLE
        self._arrivals = Arrivals(self._roots.registry, available, self._roots.export)
        self._effects: Counter[str] = Counter()
        self._todo = list(PEFT_STEPS)
        self._last: str | None = None
        hive.exports.publish(JOB, sample_job(BASE))
        self._worker = hive.spawn_worker("worker-lora")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._arrivals.__exit__()

    @property
    def options(self) -> list[str]:
        """What tells the agent where to work."""
        roots = self._roots
        named = {"registry": roots.registry, "export": roots.export, "adapter": roots.adapter}
        return [text for name, path in named.items() for text in (f"--{name}-root", str(path))]

    def next_request(self) -> str | None:
        """The next ticket, once the last one is answered; None while it is not, and after the end.

        Asking settles what the last ticket did: nothing of the next one can have happened yet.
        """
        if self._last is not None:
            if not self._hive.terminal_lines(_key(self._last)):
                return None
            self._count()
        return _request(self._todo[0], self._worker) if self._todo else None

    def submitted(self) -> None:
        """The hive took it."""
        self._last = self._todo.pop(0)

    def effects_of(self, action: str) -> int:
        """How often something was renamed into place for a ticket."""
        self._count()
        return self._effects[action]

    def _count(self) -> None:
        registry, export = self._roots.registry, self._roots.export
        counted = {registry / POINTER_FILE, registry / AVAILABLE / MODEL, export / JOB}
        for path in self._arrivals.take():
            if path in counted and self._last is not None:
                self._effects[self._last] += 1

    def _make(self) -> None:
        roots = self._roots
        with (
            roots.open_registry(create=True) as registry,
            roots.open_export(create=True),
            roots.open_adapter(create=True) as adapters,
        ):
            with (
                registry.open_dir(AVAILABLE, create=True) as available,
                available.open_dir(BASE, create=True) as base,
            ):
                base.write_file(MANIFEST_FILE, f'[model]\nid = "{BASE}"\n'.encode())
            commit(registry, Control(), Control(pointer=BASE, current=BASE))
            with adapters.open_dir(ADAPTER, create=True) as adapter:
                _write_adapter(adapter)


def _write_adapter(folder: Directory) -> None:
    """A LoRA adapter of one layer, as small as they come."""
    module = "base_model.model.model.layers.0.self_attn.q_proj"
    values = struct.pack(f"<{2 * _RANK * _WIDTH}f", *(number / 64 for number in range(2 * _RANK * _WIDTH)))
    half = len(values) // 2
    header = json.dumps(
        {
            f"{module}.lora_A.weight": {
                "dtype": "F32",
                "shape": [_RANK, _WIDTH],
                "data_offsets": [0, half],
            },
            f"{module}.lora_B.weight": {
                "dtype": "F32",
                "shape": [_WIDTH, _RANK],
                "data_offsets": [half, len(values)],
            },
        },
        separators=(",", ":"),
    ).encode()
    folder.write_file(ADAPTER_FILE, struct.pack("<Q", len(header)) + header + values)
    config = {"rank": _RANK, "alpha": 2 * _RANK, "target_modules": ["q_proj"]}
    folder.write_file(LORA_FILE, json.dumps(config, separators=(",", ":")).encode() + b"\n")


def _key(action: str) -> tuple[str, str]:
    verb = action.rpartition(".")[2]
    return verb, f"demo-{verb}"


def _request(action: str, worker: Any) -> str:
    ticket_id, key = _key(action)
    args = {"adapter_ref": ADAPTER, "job_id": JOB} if action == "peft.import" else {}
    return json.dumps(
        {
            "schema": "host-ticket/v2",
            "id": ticket_id,
            "idempotency_key": key,
            "action": action,
            "args": args,
            "receipt_mode": "worker",
            "operation_id": f"adapter-{ticket_id}",
            "subject_ref": _SUBJECTS[action],
            "receipt_worker_role": worker.role,
            "receipt_worker_id": worker.worker_id,
            "receipt_supervisor_generation": worker.supervisor_generation,
            "receipt_cap_generation": worker.cap_generation,
        },
        separators=(",", ":"),
    )
