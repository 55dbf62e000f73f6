"""Run inside a confinement: tells what is really so there, as one JSON line. Standard library only.

Started by its path, alone, without the package. Its argument is a JSON object: ``canary`` a file outside,
``run_dir`` the run directory, ``input`` and ``output`` directories that were given, ``file_bytes`` the limit.
"""

from __future__ import annotations

import errno
import json
import os
import resource
import sys
from pathlib import Path
from typing import Any

__all__ = ["look", "main"]


def look(asked: dict[str, Any]) -> dict[str, Any]:
    """Everything that a guarantee is judged by."""
    status = _fields("/proc/self/status")
    cgroup = _text("/proc/self/cgroup")
    return {
        "interfaces": sorted(line.split(":")[0].strip() for line in _text("/proc/net/dev").splitlines()[2:]),
        "namespaces": {name: _link(f"/proc/self/ns/{name}") for name in ("net", "pid", "mnt")},
        "environment": dict(os.environ),
        "no_new_privileges": status.get("NoNewPrivs") == "1",
        "capabilities": int(status.get("CapEff", "-1"), 16),
        "uid": os.getuid(),
        "changes_kernel": os.access("/proc/sys/kernel/core_pattern", os.W_OK),
        "sees_canary": Path(asked["canary"]).exists(),
        "sees_run_dir": _lists(asked["run_dir"]),
        "reads_input": _lists(asked["input"]),
        "writes_input": _writes(Path(asked["input"])),
        "writes_output": _writes(Path(asked["output"])),
        "writes_tmp": _writes(Path("/tmp")),  # noqa: S108 - whose it is, is the question
        "file_limit_held": _hits_file_limit(Path(asked["output"]), asked["file_bytes"]),
        "limits": {
            name: resource.getrlimit(getattr(resource, name))[0] for name in ("RLIMIT_NPROC", "RLIMIT_AS")
        },
        "cgroup": cgroup,
        "memory_max": _control(cgroup, "memory.max"),
        "pids_max": _control(cgroup, "pids.max"),
    }


def main() -> None:
    """Answer on standard output."""
    print(json.dumps(look(json.loads(sys.argv[1]))))  # noqa: T201 - the answer


def _text(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def _fields(path: str) -> dict[str, str]:
    pairs = (line.partition(":") for line in _text(path).splitlines())
    return {name: value.strip() for name, _, value in pairs}


def _link(path: str) -> str:
    try:
        return str(Path(path).readlink())
    except OSError:
        return ""


def _lists(path: str) -> bool:
    try:
        return bool(list(Path(path).iterdir()))
    except OSError:
        return False


def _writes(folder: Path) -> bool:
    name = folder / f"probe-{os.getpid()}"
    try:
        name.write_bytes(b"x")
        name.unlink()
    except OSError:
        return False
    return True


def _hits_file_limit(folder: Path, limit: int) -> bool:
    name = folder / "probe-large"
    try:
        with name.open("wb") as file:
            os.pwrite(file.fileno(), b"x", limit)
    except OSError as error:
        return error.errno == errno.EFBIG
    finally:
        name.unlink(missing_ok=True)
    return False


def _control(cgroup: str, name: str) -> str:
    """A control of the unified hierarchy's group that we are in, or nothing."""
    for line in cgroup.splitlines():
        if line.startswith("0::/"):
            return _text(f"/sys/fs/cgroup{line[3:]}/{name}").strip()
    return ""


if __name__ == "__main__":
    main()
