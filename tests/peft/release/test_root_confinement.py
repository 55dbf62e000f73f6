"""Nothing that works in a private root resolves a path, read off the system calls of a whole run."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from crash_process import missing_tracer
from peft_support import Canary
from traced_calls import TRACER, traced_calls

_RUN = """
import os, sys
sys.path.insert(0, sys.argv[2])
from private_roots import store_bundle
from release_support import base_state, promoted, sha
from ticket_agent.peft.errors import PeftError
from ticket_agent.peft.release.markers import Blocker, Owner, RuntimeSelection
from ticket_agent.peft.release.private_root import PrivateRoot

one = Owner(operation_id="release-one", request_sha256=sha("one"))
reason = Blocker(operation_id="release-one", request_sha256=sha("one"), reason="x", since_unix_ms=1)
next_state = promoted(base_state(), sha("a"))
refused = 0

def plant(path):
    with PrivateRoot.open(path, create=True) as root:
        linked = store_bundle(root, {"linked.json": b"{}"})
    os.symlink("../../outside/secret", f"{path}/objects/" + sha("link"))
    os.symlink("../../outside", f"{path}/bundles/{linked}", target_is_directory=True)
    os.symlink("../../outside", f"{path}/operations/linked", target_is_directory=True)
    return linked

def everything(path, linked):
    global refused
    with PrivateRoot.open(path, create=True) as root, root.locked():
        control = root.control
        bundle = store_bundle(root, {"config.json": b"{}", "README.md": b"# x"})
        for _ in range(2):
            root.materialise(bundle)
            root.objects.store(b"x")
        control.initialise(base_state())
        control.claim(one)
        root.operation("release-one", create=True).close()
        control.select_runtime(RuntimeSelection(bundle_sha256=bundle, adapter_sha256=None))
        control.promote(base_state(), next_state)
        control.restore(base_state(), next_state)
        control.block(reason)
        control.unblock(one)
        control.disclaim(one)
        for call, name in (
            (root.objects.load, sha("link")),
            (root.materialise, linked),
            (root.operation, "linked"),
        ):
            try:
                call(name)
            except PeftError:
                refused += 1
        root.sweep()

roots = [f"{sys.argv[1]}/root-{number}" for number in (1, 2)]
linked = [plant(path) for path in roots]
# The first time imports what is imported late; only the second one is looked at.
everything(roots[0], linked[0])
os.access("/begin", 0)
everything(roots[1], linked[1])
os.access("/end", 0)
print(refused)
"""

_SUPPORT = Path(__file__).parents[2] / "support"
_WHY_NOT = missing_tracer()


@pytest.mark.skipif(_WHY_NOT is not None, reason=str(_WHY_NOT))
def test_no_system_call_takes_a_path(tmp_path: Path) -> None:
    canary = Canary(tmp_path / "outside")
    trace = tmp_path / "trace"
    done = subprocess.run(
        [*TRACER, str(trace), sys.executable, "-c", _RUN, str(tmp_path), str(_SUPPORT)],
        capture_output=True,
        text=True,
        check=True,
    )
    assert int(done.stdout) == 6
    calls = traced_calls(trace)
    assert {"openat", "newfstatat", "mkdirat", "renameat2", "unlinkat"} <= {call.name for call in calls}
    assert len(calls) > 100
    assert [(call, fault) for call in calls if (fault := call.fault())] == []
    canary.check()
