"""What copying an adapter costs, against the least that a durable and verified copy can cost."""

from __future__ import annotations

import hashlib
import os
import shutil
import statistics
import time
import tracemalloc
from typing import TYPE_CHECKING

import pytest
from peft_support import root

from ticket_agent.peft.copying import copy_hashed
from ticket_agent.peft.limits import MAX_ADAPTER_BYTES

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from bench_table import Table

pytestmark = [pytest.mark.bench, pytest.mark.timeout(240)]

ROUNDS = 7


def _plain(source: Path, target: Path) -> None:
    shutil.copyfile(source, target)
    with target.open("rb") as file:
        hashlib.file_digest(file, "sha256")
        os.fsync(file.fileno())


def _seconds(call: Callable[[], object]) -> float:
    os.sync()  # what earlier rounds wrote must not be part of this one's fsync
    started = time.perf_counter()
    call()
    return time.perf_counter() - started


def test_copying_a_full_size_adapter(tmp_path: Path, table: Table) -> None:
    folder = tmp_path / "adapters"
    folder.mkdir()
    path = folder / "adapter.safetensors"
    path.write_bytes(os.urandom(MAX_ADAPTER_BYTES))
    ours, plain = [], []
    with root(folder) as adapters, root(tmp_path / "staging") as into:

        def copy() -> None:
            with adapters.open_file(path.name, max_bytes=MAX_ADAPTER_BYTES) as file:
                copy_hashed(file, into, "copy", max_bytes=MAX_ADAPTER_BYTES)

        for _ in range(ROUNDS):
            plain.append(_seconds(lambda: _plain(path, tmp_path / "plain")))
            (tmp_path / "plain").unlink()
            ours.append(_seconds(copy))
            into.unlink("copy")
        tracemalloc.start()
        copy()
        peak = tracemalloc.get_traced_memory()[1] / 1024
        tracemalloc.stop()
    ratio = statistics.median(ours) / statistics.median(plain)
    shown = f"{ratio:.2f}x ({statistics.median(ours):.3f} s / {statistics.median(plain):.3f} s)"
    table.add("copy and hash 64 MiB vs plain copy, sha256, fsync", shown, "<= 1.3x")
    table.add("extra memory of that copy", f"{peak:.0f} KiB", "<= 2048 KiB")
