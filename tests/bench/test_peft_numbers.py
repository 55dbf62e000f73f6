"""What copying and importing an adapter cost, against the least that a durable, verified copy can cost."""

from __future__ import annotations

import hashlib
import os
import shutil
import statistics
import subprocess
import sys
import time
import tracemalloc
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from adapter_files import entries, file_of
from peft_actions import Places, import_spec, run_import
from peft_support import root

from ticket_agent.peft.copying import copy_hashed
from ticket_agent.peft.limits import MAX_ADAPTER_BYTES

if TYPE_CHECKING:
    from collections.abc import Callable

    from bench_table import Table

pytestmark = [pytest.mark.bench, pytest.mark.disk, pytest.mark.timeout(900)]

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


def _largest_adapter() -> bytes:
    """A LoRA adapter of very nearly the most bytes that are accepted, with random weights."""
    shapes = {"A": (64, 4092), "B": (4096, 64)}
    tensors = {
        f"base_model.model.model.layers.{layer}.self_attn.q_proj.lora_{side}.weight": ("F32", shape)
        for layer in range(32)
        for side, shape in shapes.items()
    }
    members = entries(tensors)
    data = file_of(members, os.urandom(max(member["data_offsets"][1] for member in members.values())))
    assert 0.999 * MAX_ADAPTER_BYTES < len(data) <= MAX_ADAPTER_BYTES
    return data


_IMPORTS = """
import re, sys
from pathlib import Path
from peft_actions import Places, import_spec, run_import

places = Places(Path(sys.argv[1]))
def peak():
    # Not what getrusage tells: that begins with the memory of the process that started this one.
    return int(re.search(r"VmHWM:\\s+([0-9]+) kB", Path("/proc/self/status").read_text())[1])
run_import(places, import_spec("small", adapter_ref="small"))
before = peak()
run_import(places, import_spec("large-2", adapter_ref="large"))
print(peak() - before)
"""


def test_importing_a_full_size_adapter(tmp_path: Path, table: Table) -> None:
    places = Places(tmp_path / "host").make()
    places.add_job()
    large = {"adapter.safetensors": _largest_adapter(), "lora.json": b'{"rank":64,"alpha":8}'}
    source = places.add_adapter(large, "large") / "adapter.safetensors"
    places.add_adapter(ref="small")
    ours, plain = [], []
    for _ in range(ROUNDS):
        plain.append(_seconds(lambda: _plain(source, tmp_path / "plain")))
        (tmp_path / "plain").unlink()
        ours.append(_seconds(lambda: run_import(places, import_spec(adapter_ref="large"))))
        shutil.rmtree(places.model)
    ratio = statistics.median(ours) / statistics.median(plain)
    shown = f"{ratio:.2f}x ({statistics.median(ours):.3f} s / {statistics.median(plain):.3f} s)"
    table.add("import of 64 MiB, plan and all, vs plain copy, sha256, fsync", shown, "<= 1.3x")
    done = subprocess.run(
        [sys.executable, "-c", _IMPORTS, str(places.base)],
        capture_output=True,
        text=True,
        check=True,
        env=os.environ | {"PYTHONPATH": str(Path(__file__).parents[1] / "support")},
    )
    table.add("peak of resident memory that it adds", f"{int(done.stdout)} KiB", "<= 16384 KiB")
