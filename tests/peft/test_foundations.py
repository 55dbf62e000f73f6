from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

import pytest
from peft_support import held_elsewhere, no_descriptor_leaks, root

from ticket_agent.peft.copying import copy_hashed, hash_file
from ticket_agent.peft.directory import Kind
from ticket_agent.peft.errors import LockHeldError, NameTakenError
from ticket_agent.peft.locks import RootLock, locked

if TYPE_CHECKING:
    from pathlib import Path


def test_a_model_is_staged_and_published_with_one_rename(tmp_path: Path) -> None:
    source = tmp_path / "adapters"
    (source / "a1").mkdir(parents=True)
    data = bytes(range(256)) * 5000
    (source / "a1" / "adapter.safetensors").write_bytes(data)
    with (
        no_descriptor_leaks(),
        root(tmp_path / "registry") as registry,
        root(source, label="adapter root") as adapters,
        locked({RootLock.REGISTRY: registry, RootLock.ADAPTER: adapters}),
    ):
        with (
            adapters.open_dir("a1") as adapter,
            adapter.open_file("adapter.safetensors", max_bytes=1 << 21) as file,
            registry.open_dir("available", create=True) as available,
            registry.open_dir(".cohesix-import-0123456789abcdef", create=True) as staging,
        ):
            copied = copy_hashed(file, staging, "adapter.safetensors", max_bytes=1 << 21)
            assert copied == hash_file(file)
            staging.write_file("manifest.toml", b"[model]\n")
            staging.sync()
            registry.rename(".cohesix-import-0123456789abcdef", available, "m1", replace=False)
        assert copied.sha256 == hashlib.sha256(data).hexdigest()
        assert copied.bytes == len(data)
        assert registry.names() == [".cohesix-registry.lock", "available"]
        with registry.open_dir("available") as available, available.open_dir("m1") as model:
            assert model.names() == ["adapter.safetensors", "manifest.toml"]
            assert model.read_file("manifest.toml", max_bytes=100) == b"[model]\n"
            assert available.kind("m1") is Kind.DIR
            with pytest.raises(NameTakenError, match=r"m1 exists already"):
                available.make_dir("m1")
            available.remove_tree("m1")
            assert available.names() == []


def test_a_held_lock_names_its_holder(tmp_path: Path) -> None:
    with root(tmp_path / "r") as registry, held_elsewhere(tmp_path / "r", RootLock.REGISTRY) as other:
        with pytest.raises(LockHeldError) as refused, locked({RootLock.REGISTRY: registry}):
            pass
        assert refused.value.pid == other.pid
        assert refused.value.command is not None
        assert refused.value.command.startswith("python")
        assert str(other.pid) in str(refused.value)
