"""A release directory as `release init` makes it, with what tests prepare in it; needs no torch."""

from __future__ import annotations

import json
import random
import sys
from array import array
from dataclasses import dataclass, replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from types import MappingProxyType
from typing import Any

from ticket_agent.peft.release.adapter_choice import AdapterChoice
from ticket_agent.peft.release.geometry import adapter_tensors
from ticket_agent.peft.release.installed import AGENT, Installed
from ticket_agent.peft.release.prepare import PreparedRelease, prepare_release
from ticket_agent.peft.release.private_root import PrivateRoot
from ticket_agent.peft.release.release_config import ReleaseConfig, load_release_config
from ticket_agent.peft.release.request import Entry
from ticket_agent.peft.release.selection import Selection, load_selection
from ticket_agent.peft.release.skeleton import make_skeleton
from ticket_agent.peft.release.skeleton_base import REVISION, SOURCE, TINY_GEOMETRY, safetensors_bytes
from ticket_agent.peft.release.stack import TRANSFORMERS_SERVE, required_packages

PORTS = (18101, 18102, 18103)
MODEL = "assistant"
RANK = 2

ADAPTER_CONFIG: dict[str, Any] = {
    "base_model_name_or_path": SOURCE,
    "bias": "none",
    "lora_alpha": 2 * RANK,
    "lora_dropout": 0.0,
    "peft_type": "LORA",
    "r": RANK,
    "revision": REVISION,
    "target_modules": ["q_proj", "v_proj"],
    "task_type": "CAUSAL_LM",
}


def installed() -> Installed:
    """What this interpreter has; a made-up version for what it lacks, as nothing but real phases uses it."""
    found: dict[str, str | None] = {}
    for name in (*required_packages(TRANSFORMERS_SERVE), AGENT):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = "5.0.0"
    return Installed(
        python=f"{sys.version_info[0]}.{sys.version_info[1]}", cuda=None, versions=MappingProxyType(found)
    )


@dataclass(frozen=True, kw_only=True)
class Lab:
    """A release directory."""

    folder: Path
    config: ReleaseConfig
    selection: Selection

    @classmethod
    def make(
        cls,
        folder: Path,
        *,
        ports: tuple[int, ...] = PORTS,
        python: Path | None = None,
        unconfined: bool = False,
        **config: Any,
    ) -> Lab:
        """Make it; ``config`` changes the host's configuration."""
        interpreter = python or Path(sys.executable)
        has = installed()
        versions = has.require(required_packages(TRANSFORMERS_SERVE), interpreter)
        made = make_skeleton(
            folder, python=interpreter, installed=has, versions=versions, ports=ports, unconfined=unconfined
        )
        return cls(
            folder=folder,
            config=replace(load_release_config(made.config), **config),
            selection=load_selection(made.selection),
        )

    def opened(self) -> PrivateRoot:
        """The private root; close it."""
        return PrivateRoot.open(self.config.root, create=False)

    def prepare(
        self,
        operation: str = "release-one",
        *,
        adapter: Path | None = None,
        resume: str | None = None,
        model: str = MODEL,
        **selection: Any,
    ) -> PreparedRelease:
        """Prepare a release that imports ``adapter``, or trains; ``selection`` changes what is chosen."""
        with self.opened() as root, root.locked():
            return prepare_release(
                root,
                replace(self.selection, **selection),
                operation_id=operation,
                model_id=model,
                entry=Entry.TRAIN if adapter is None else Entry.IMPORT,
                adapter=None if adapter is None else AdapterChoice(path=adapter),
                resume=resume,
            )

    def adapter(self, name: str = "adapter", *, seed: int = 1, **spoiling: Any) -> Path:
        """A complete adapter of random numbers, or one that is spoilt; see :func:`write_adapter`."""
        return write_adapter(self.folder.parent / name, seed=seed, **spoiling)


def tensors_of(seed: int, rank: int = RANK) -> dict[str, tuple[tuple[int, ...], bytes]]:
    draw = random.Random(seed)
    found: dict[str, tuple[tuple[int, ...], bytes]] = {}
    for name, shape in adapter_tensors(TINY_GEOMETRY, rank).items():
        numbers = [draw.uniform(-0.3, 0.3) for _ in range(shape[0] * shape[1])]
        found[name] = (shape, array("f", numbers).tobytes())
    return found


def write_adapter(
    folder: Path,
    *,
    seed: int = 1,
    config: dict[str, Any] | None = None,
    tensors: dict[str, tuple[tuple[int, ...], bytes]] | None = None,
    weights: bytes | None = None,
) -> Path:
    """Write an adapter as PEFT does; ``config`` changes members, the others replace what they name."""
    folder.mkdir(parents=True)
    text = json.dumps(ADAPTER_CONFIG | (config or {}))
    (folder / "adapter_config.json").write_text(text)
    data = safetensors_bytes(tensors_of(seed) if tensors is None else tensors)
    (folder / "adapter_model.safetensors").write_bytes(data if weights is None else weights)
    return folder
