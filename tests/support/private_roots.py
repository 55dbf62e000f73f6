"""A private root with content, and a process that dies at any one of its system calls."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import pytest

from ticket_agent.peft import directory as directory_module
from ticket_agent.peft.release.bundle import BundleManifest, encode_bundle
from ticket_agent.peft.release.private_root import PrivateRoot
from ticket_agent.peft.renaming import rename_new

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from ticket_agent.peft.release.cas import StoreLimits

_CALLS = ("open", "write", "fsync", "close", "rename", "mkdir", "unlink", "rmdir")
_DIED = 9
_MAX_CALLS = 2000


def opened(path: Path, *, create: bool = True, limits: StoreLimits | None = None) -> PrivateRoot:
    return PrivateRoot.open(path, create=create, limits=limits)


def store_bundle(root: PrivateRoot, contents: dict[str, bytes]) -> str:
    """Store files and the manifest of a bundle of them; returns the manifest's digest."""
    files = tuple((name, root.objects.store(data)) for name, data in contents.items())
    manifest = BundleManifest(files=files, source="local/test", revision="1", license_ref="MIT")
    return root.objects.store(encode_bundle(manifest))


def deaths(action: Callable[[], object], *, step: int = 1) -> Iterator[int]:
    """Run ``action`` in a child that dies just before its n-th system call, for n = 1, 1 + step and so on.

    Yields after each death; ends when the action ran through.
    """
    for at in range(1, _MAX_CALLS, step):
        pid = os.fork()
        if pid == 0:
            os._exit(_run(action, at))
        _, status = os.waitpid(pid, 0)
        code = os.waitstatus_to_exitcode(status)
        if code == 0:
            return
        assert code == _DIED, "the action failed in the child"
        yield at
    pytest.fail("the action never ends")


def _run(action: Callable[[], object], at: int) -> int:
    left = at

    def dying(real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            nonlocal left
            left -= 1
            if left == 0:
                os._exit(_DIED)
            return real(*args, **kwargs)

        return call

    for name in _CALLS:
        setattr(os, name, dying(getattr(os, name)))
    setattr(directory_module, "rename_new", dying(rename_new))  # noqa: B010 - where it is called from
    try:
        action()
    except BaseException:  # noqa: BLE001 - told by the exit code
        return 1
    return 0
