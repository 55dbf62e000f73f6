"""Everything an export or import needs on disk and on a hive, and requests for them."""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from adapter_files import PREFIX, RANK, file_with, pair
from peft_support import snapshot

from ticket_agent.hive.reference.exports import sample_job
from ticket_agent.peft.imports import ImportProvider
from ticket_agent.peft.locks import RootLock
from ticket_agent.peft.settings import PeftRoots
from ticket_agent.protocol.namespace import (
    HiveRefusedError,
    HiveUnreachableError,
    Refusal,
    RefusalKind,
)
from ticket_agent.protocol.spec import HostTicketSpec, parse_spec

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from ticket_agent.journal.outcome import Outcome

MODEL, JOB, ADAPTER = "llama-edge", "job-1", "run-7"

TENSORS = file_with(pair() | pair(f"{PREFIX}v_proj"), format="pt")
LORA = b'{"rank":%d,"alpha":8,"target_modules":["q_proj","v_proj"]}\n' % RANK
METRICS = b'{"loss":0.02}\n'
HF_CONFIG: dict[str, Any] = {
    "peft_type": "LORA",
    "r": RANK,
    "lora_alpha": 8,
    "target_modules": ["q_proj", "v_proj"],
    "base_model_name_or_path": "org/base-7b",
    "task_type": "CAUSAL_LM",
    "bias": "none",
    "inference_mode": True,
}
NATIVE = {"adapter.safetensors": TENSORS, "lora.json": LORA, "metrics.json": METRICS}
HUGGING_FACE = {
    "adapter_model.safetensors": TENSORS,
    "adapter_config.json": json.dumps(HF_CONFIG).encode(),
    "README.md": b"# A card\n",
}

LOCK_FILES = frozenset(RootLock)


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


@dataclass(frozen=True)
class Places:
    """Three roots side by side."""

    base: Path

    @property
    def registry(self) -> Path:
        return self.base / "registry"

    @property
    def exports(self) -> Path:
        return self.base / "exports"

    @property
    def adapters(self) -> Path:
        return self.base / "adapters"

    @property
    def model(self) -> Path:
        return self.registry / "available" / MODEL

    @property
    def job(self) -> Path:
        return self.exports / JOB

    @property
    def adapter(self) -> Path:
        return self.adapters / ADAPTER

    @property
    def roots(self) -> PeftRoots:
        return PeftRoots(
            registry=self.registry, export=self.exports, adapter=self.adapters, owner_uid=os.geteuid()
        )

    def make(self) -> Places:
        for path in (self.registry, self.exports, self.adapters):
            path.mkdir(parents=True)
        return self

    def add_job(self, job: str = JOB, files: Mapping[str, bytes] | None = None) -> Path:
        return write_tree(self.exports / job, sample_job() if files is None else files)

    def add_adapter(self, files: Mapping[str, bytes] = NATIVE, ref: str = ADAPTER) -> Path:
        return write_tree(self.adapters / ref, files)

    def snapshot(self) -> dict[str, tuple[object, ...]]:
        """All three roots but for their lock files, and without the times of the roots themselves."""
        found = {}
        for path in (self.registry, self.exports, self.adapters):
            for name, entry in snapshot(path).items():
                if name == str(path):
                    found[name] = entry[:1]
                elif os.path.basename(name) not in LOCK_FILES:  # noqa: PTH119 - a text from a snapshot
                    found[name] = entry
        return found


def write_tree(folder: Path, files: Mapping[str, bytes]) -> Path:
    folder.mkdir()
    for name, data in files.items():
        (folder / name).write_bytes(data)
    return folder


def spec(action: str, subject: str, *, ticket: str = "t1", **args: Any) -> HostTicketSpec:
    """An admitted version-2 request."""
    members = {
        "schema": "host-ticket/v2",
        "id": ticket,
        "idempotency_key": f"key-{ticket}",
        "action": action,
        "args": args,
        "receipt_mode": "worker",
        "operation_id": f"op-{ticket}",
        "subject_ref": subject,
        "receipt_worker_role": "worker-lora",
        "receipt_worker_id": "worker-lora-1",
        "receipt_supervisor_generation": 1,
        "receipt_cap_generation": 1,
        "resolved_worker_slot": 1,
        "resolved_lease_epoch": 1,
        "admission_sequence": 1,
    }
    return parse_spec(json.dumps(members).encode(), source="admitted")


def import_spec(model: str = MODEL, *, ticket: str = "t1", **args: Any) -> HostTicketSpec:
    return spec("peft.import", model, ticket=ticket, **{"adapter_ref": ADAPTER, "job_id": JOB, **args})


def export_spec(job: str = JOB, *, ticket: str = "t1") -> HostTicketSpec:
    return spec("peft.export", job, ticket=ticket)


def run_import(places: Places, request: HostTicketSpec | None = None) -> Outcome:
    """Plan and execute at once."""
    provider = ImportProvider(places.roots)
    return provider.execute(provider.plan(request or import_spec()))


@dataclass
class Shelf:
    """The jobs of a hive, as a namespace that only reads; it can be made to fail, and counts what is asked.

    Lines are those of the console: the end of a file is not told.
    """

    jobs: dict[str, dict[str, bytes]] = field(default_factory=dict)
    refusals: dict[str, Refusal] = field(default_factory=dict)
    unreachable_after: int | None = None
    asked: list[str] = field(default_factory=list)
    session: int = 1

    def ls(self, path: str) -> list[str]:
        self._ask("LS", path)
        job = path.removeprefix("/queen/export/lora_jobs/")
        if job not in self.jobs:
            raise refused("LS", path, RefusalKind.INVALID_PATH)
        return list(self.jobs[job])

    def read(self, path: str) -> list[str]:
        self._ask("CAT", path)
        job, name = path.removeprefix("/queen/export/lora_jobs/").split("/")
        lines = self.jobs[job][name].decode().split("\n")
        return lines[:-1] if lines[-1] == "" else lines

    def tail(self, path: str) -> list[str]:
        raise AssertionError(path)

    def append(self, path: str, line: str, *, session: int | None = None) -> Any:
        raise AssertionError(path)

    def close(self) -> None:
        pass

    def _ask(self, verb: str, path: str) -> None:
        if self.unreachable_after is not None and len(self.asked) >= self.unreachable_after:
            raise HiveUnreachableError("the hive is gone")
        self.asked.append(f"{verb} {path}")
        if path in self.refusals:
            raise HiveRefusedError(verb, path, self.refusals[path])


def refused(verb: str, path: str, kind: RefusalKind) -> HiveRefusedError:
    return HiveRefusedError(verb, path, Refusal(kind=kind, text=f"ERR {verb} detail={kind.value}"))
