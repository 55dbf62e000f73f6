"""What `doctor` says about releases: configuration, root, confinement, interpreter, keys, servers."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
from typing import TYPE_CHECKING, Final

from ticket_agent.cli.doctor_check import Check
from ticket_agent.exits import Exit

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from ticket_agent.peft.release.release_config import ReleaseConfig

__all__ = ["release_checks"]

EXTRA: Final = ("torch", "transformers", "peft", "accelerate")
_ASK: Final = (
    "import importlib.util, sys; "
    "print(sys.version.split()[0], *(n for n in sys.argv[1:] if importlib.util.find_spec(n) is None))"
)
_ASK_S: Final = 20.0
_MIN_FREE_BYTES: Final = 1 << 30


def release_checks(path: Path | None) -> Iterator[Check]:
    """Look at everything that releases need on this host. Changes nothing.

    Args:
        path: the release configuration; None where the agent has none.
    """
    from ticket_agent.peft.release.release_config import (  # noqa: PLC0415 - start-up time
        ReleaseConfigError,
        load_release_config,
    )

    if path is None:
        yield Check("releases", "ok", "not enabled: the configuration names no release configuration")
        return
    try:
        config = load_release_config(path)
    except ReleaseConfigError as error:
        yield Check("releases", "fail", str(error), Exit.USAGE)
        return
    yield Check("releases", "ok", str(path))
    yield from _root(config)
    yield from _launcher(config)
    yield _python(config)
    yield from _secrets(config)
    yield from _servers(config)


def _root(config: ReleaseConfig) -> Iterator[Check]:
    from ticket_agent.peft.errors import PeftError  # noqa: PLC0415 - start-up time
    from ticket_agent.peft.locks import RootLock, lock_holder  # noqa: PLC0415 - start-up time
    from ticket_agent.peft.release.release_reader import ReleaseReader  # noqa: PLC0415 - start-up time
    from ticket_agent.peft.roots import open_root  # noqa: PLC0415 - start-up time

    name = "release root"
    try:
        owner = os.geteuid()
        with (
            open_root(config.root, label=name, owner_uid=owner, create=False, private=True) as root,
            ReleaseReader(config.root) as reader,
        ):
            pid, command = lock_holder(root, RootLock.RELEASE)
            found = reader.deployment()
    except PeftError as error:
        yield Check(name, "fail", str(error), Exit.FAILURE)
        return
    for problem in found.problems:
        yield Check(name, "fail", problem, Exit.FAILURE)
    accepted = found.accepted
    deployed = "nothing deployed yet" if accepted is None else f"generation {accepted.generation} deployed"
    lock = "free" if pid is None else f"held by pid {pid} ({command or 'unknown'})"
    yield Check(name, "ok", f"{config.root}, {deployed}, lock {lock}")
    if found.blocker is not None:
        text = (
            f"blocked: the rollback of {found.blocker.operation_id} failed ({found.blocker.reason});"
            f" see `ticket-agent release recover {found.blocker.operation_id}`"
        )
        yield Check("release blocker", "fail", text, Exit.DEGRADED)
    elif found.owner is not None:
        text = f"{found.owner.operation_id} is not finished; others wait for it"
        yield Check("release owner", "ok", text)
    free = shutil.disk_usage(config.root).free
    if free < _MIN_FREE_BYTES:
        text = f"{free // (1024 * 1024)} MiB free; a release may need more, see `ticket-agent release gc`"
        yield Check("release disk", "warn", text)


def _launcher(config: ReleaseConfig) -> Iterator[Check]:
    from ticket_agent.peft.errors import PeftError  # noqa: PLC0415 - start-up time
    from ticket_agent.peft.release.detect import describe, detect  # noqa: PLC0415 - start-up time

    try:
        found = detect(unconfined=config.unconfined)
    except PeftError as error:
        yield Check("launcher", "fail", str(error), Exit.FAILURE)
        return
    first, *lines = describe(found)
    yield Check("launcher", "warn" if found.unconfined else "ok", first)
    for line in lines:
        verdict = line.removeprefix("yes").removeprefix("no ").strip()
        if line.startswith("not used:"):
            yield Check("launcher", "ok", line)
        else:
            yield Check("guarantee", "ok" if line.startswith("yes") else "warn", verdict)


def _python(config: ReleaseConfig) -> Check:
    """Whether the interpreter runs and has what trains and serves; nothing of that is imported."""
    name = "release python"
    command = [str(config.python), "-I", "-c", _ASK, *EXTRA]
    try:
        done = subprocess.run(  # noqa: S603 - the configured interpreter
            command, capture_output=True, text=True, timeout=_ASK_S, check=False, stdin=subprocess.DEVNULL
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        why = error.strerror if isinstance(error, OSError) else f"no answer in {_ASK_S:.0f} s"
        return Check(name, "fail", f"{config.python}: {why}; correct python in the file", Exit.FAILURE)
    told = done.stdout.split()
    if done.returncode != 0 or not told:
        return Check(name, "fail", f"{config.python} ended with code {done.returncode}", Exit.FAILURE)
    version, *missing = told
    if missing:
        text = (
            f"{config.python}, Python {version}, has no {', '.join(missing)}; install them with"
            f" {config.python} -m pip install 'ticket-agent[train]'"
        )
        return Check(name, "fail", text, Exit.FAILURE)
    return Check(name, "ok", f"{config.python}, Python {version}, with {', '.join(EXTRA)}")


def _secrets(config: ReleaseConfig) -> Iterator[Check]:
    from ticket_agent.peft.errors import PeftError  # noqa: PLC0415 - start-up time
    from ticket_agent.peft.release.keys import read_private_key  # noqa: PLC0415 - start-up time

    problem = _token_problem(config.token_file)
    if problem is None:
        yield Check("serving token", "ok", str(config.token_file))
    else:
        yield Check("serving token", "fail", problem, Exit.FAILURE)
    if config.signing_key is None:
        yield Check(
            "signing key", "warn", "none is configured: releases leave evidence, and nothing is signed"
        )
    elif importlib.util.find_spec("cryptography") is None:
        text = f"{sys.executable} has no cryptography; pip install 'ticket-agent[release]'"
        yield Check("signing key", "fail", text, Exit.FAILURE)
    else:
        try:
            key = read_private_key(config.signing_key).public
        except PeftError as error:
            yield Check("signing key", "fail", str(error), Exit.FAILURE)
        else:
            yield Check("signing key", "ok", f"{config.signing_key}, key {key.keyid[:12]}")


def _token_problem(path: Path) -> str | None:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        return f"{path}: {error.strerror}; servers need a token of their own"
    try:
        status = os.fstat(fd)
    finally:
        os.close(fd)
    if status.st_mode & 0o077:
        return f"{path} is open to others; run: chmod 600 {path}"
    return None if status.st_size else f"{path} is empty; write a token into it"


def _servers(config: ReleaseConfig) -> Iterator[Check]:
    from ticket_agent.peft.release.server_glance import servers_at_a_glance  # noqa: PLC0415 - start-up time

    found = servers_at_a_glance(config.root)
    running = [server.launch_id for server in found if server.standing == "running"]
    dead = sum(server.dead for server in found)
    text = f"{len(running)} running" + (f" ({', '.join(running)})" if running else "")
    if dead:
        text += f", {dead} ended; `ticket-agent release gc` removes what is left of them"
    yield Check("model servers", "ok", text)
