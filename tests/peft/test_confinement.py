"""The law that confines everything, read off the system calls of a whole run.

No call takes a path: each one has a descriptor and one entry name and is told not to follow a link. Exempt
are the first step of a root, ``/`` itself, and the kernel's own tables.
"""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from crash_process import missing_tracer
from peft_support import Canary, make_fifo, make_socket, snapshot
from traced_calls import TRACER, Call, traced_calls

if TYPE_CHECKING:
    from pathlib import Path

_RUN = """
import os, sys
from ticket_agent.peft.copying import copy_hashed, hash_file
from ticket_agent.peft.errors import PeftError
from ticket_agent.peft.locks import RootLock, locked
from ticket_agent.peft.roots import open_root

base, hostile = sys.argv[1], sys.argv[2:]
me = os.geteuid()
refused = 0

def attempt(call, *args, **more):
    global refused
    try:
        opened = call(*args, **more)
    except PeftError:
        refused += 1
    else:
        getattr(opened, "close", lambda: None)()

def everything(number):
    name = f"root-{number}"
    with (
        open_root(f"{base}/deep/{name}", label="registry root", owner_uid=me, create=True) as root,
        open_root(f"{base}/adapters", label="adapter root", owner_uid=me, create=False) as adapters,
        locked({RootLock.REGISTRY: root, RootLock.ADAPTER: adapters}),
    ):
        attempt(locked({RootLock.REGISTRY: root}).__enter__)
        root.make_dir("staging")
        with root.open_dir("staging") as staging, root.open_dir("available", create=True) as available:
            with adapters.open_file("adapter.safetensors", max_bytes=1 << 20) as file:
                copy_hashed(file, staging, "adapter.safetensors", max_bytes=1 << 20)
                hash_file(file)
                attempt(copy_hashed, file, staging, "adapter.safetensors", max_bytes=1 << 20)
            staging.write_file("manifest.toml", b"x")
            staging.sync()
            root.rename("staging", available, "model", replace=False)
            with available.open_dir("model") as model:
                model.read_file("manifest.toml", max_bytes=10)
            root.write_file("active", b"a")
            root.write_file("active", b"b")
            root.rename("active", root, "active2", replace=True)
            root.unlink("active2")
            available.names()
            available.remove_tree("model")
        for bad in hostile:
            for call in (adapters.open_dir, adapters.remove_tree):
                attempt(call, bad)
            attempt(adapters.open_dir, bad, create=True)
            attempt(adapters.open_file, bad, max_bytes=100)
            attempt(adapters.write_file, bad, b"x")
            attempt(open_root, f"{base}/adapters/{bad}/x", label="r", owner_uid=me, create=True)
            attempt(open_root, f"{base}/adapters/{bad}", label="r", owner_uid=me, create=True)

# The first time imports what is imported late; only the second one is looked at.
everything(1)
os.access("/begin", 0)
everything(2)
os.access("/end", 0)
print(refused)
"""

_WHY_NOT = missing_tracer()


@pytest.mark.skipif(_WHY_NOT is not None, reason=str(_WHY_NOT))
def test_no_system_call_takes_a_path(tmp_path: Path) -> None:
    canary = Canary(tmp_path / "outside")
    adapters = tmp_path / "adapters"
    adapters.mkdir()
    (adapters / "adapter.safetensors").write_bytes(b"x" * 1000)
    (adapters / "file-link").symlink_to("../outside/secret")
    (adapters / "dir-link").symlink_to("../outside", target_is_directory=True)
    (adapters / "dangling").symlink_to("../outside/new")
    make_fifo(adapters / "fifo")
    make_socket(adapters / "socket")
    hostile = ["file-link", "dir-link", "dangling", "fifo", "socket"]
    before = snapshot(adapters)
    trace = tmp_path / "trace"
    done = subprocess.run(
        [*TRACER, str(trace), sys.executable, "-c", _RUN, str(tmp_path), *hostile],
        capture_output=True,
        text=True,
        check=True,
    )
    assert int(done.stdout) == 2 * (2 + 7 * len(hostile))
    calls = traced_calls(trace)
    assert {"openat", "newfstatat", "mkdirat", "renameat2", "unlinkat"} <= {call.name for call in calls}
    assert len(calls) > 200
    assert [(call, fault) for call in calls if (fault := call.fault())] == []
    canary.check()
    after = snapshot(adapters)
    assert after.keys() - before.keys() == {f"{adapters}/.cohesix-adapter.lock"}
    assert all(after[path] == before[path] for path in before if path != str(adapters))


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("openat", 'AT_FDCWD, "/srv/registry/active", O_RDONLY|O_NOFOLLOW'),
        ("openat", 'AT_FDCWD, "active", O_RDONLY|O_NOFOLLOW'),
        ("openat", '5, "available/model", O_RDONLY|O_NOFOLLOW'),
        ("openat", '5, "..", O_RDONLY|O_NOFOLLOW'),
        ("openat", '5, "active", O_RDONLY|O_CLOEXEC'),
        ("newfstatat", '5, "active", {st_mode=S_IFREG}, 0'),
        ("renameat2", '5, "a", 6, "../b", RENAME_NOREPLACE'),
        ("unlink", '"active"'),
        ("openat", 'AT_FDCWD, "/", O_RDONLY|O_DIRECTORY'),
        ("readlink", '"/srv/link", 0x7f'),
    ],
)
def test_what_would_break_the_law(name: str, arguments: str) -> None:
    assert Call(name, arguments).fault() is not None
