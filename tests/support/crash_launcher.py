"""Run as a process: imports the agent once, then forks one agent for every order on standard input.

An agent is the command line's own entry point in a fresh process; only its imports have happened before the
fork. It waits behind a pipe until it is let go, so that a tracer can be attached before its first call, and
nothing but the agent's own calls is counted.

An order is one JSON line, ``{"args": [...], "output": path}``, and what :func:`be_prepared` knows beside. The
answers are ``{"pid": n}``, then, after any line that lets the agent go, ``{"status": n}`` as
:func:`os.waitstatus_to_exitcode` gives it.
"""

from __future__ import annotations

import ctypes
import gc
import importlib
import json
import os
import resource
import sys
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

if TYPE_CHECKING:
    from collections.abc import Callable

PR_SET_PTRACER = 0x59616D61
ANYBODY = ctypes.c_ulong(-1)


def import_everything() -> None:
    """Import what a life of the agent would, so that none of them does."""
    import ticket_agent  # noqa: PLC0415 - the point of this process

    # The folders behind links are namespace packages, which no walk over packages finds.
    for folder, _, files in os.walk(ticket_agent.__path__[0], followlinks=True):
        package = os.path.relpath(folder, Path(ticket_agent.__path__[0]).parent).replace(os.sep, ".")
        for name in files:
            if name.endswith(".py") and not name.startswith("__"):
                importlib.import_module(f"{package}.{name[:-3]}")
    for name in ("portalocker", "uuid", "socket", "select", "tomllib", "encodings.ascii", "encodings.idna"):
        importlib.import_module(name)


def be_the_agent(order: dict[str, Any], here: int, go: int) -> NoReturn:
    """The child: tell that it is ``here``, wait to ``go``, then run the command to its end."""
    output = os.open(order["output"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.close(output)
    sys.argv = ["ticket-agent", *order["args"]]
    code: object = 0
    written = be_prepared(order)
    # Nothing of the above may be counted, so no tracer is called before it is done.
    os.close(here)
    os.read(go, 1)
    os.close(go)
    try:
        from ticket_agent.cli import main  # noqa: PLC0415 - imported long ago

        main()
    except SystemExit as error:
        code = error.code
    except BaseException:  # noqa: BLE001 - a traceback is what the reader looks for
        traceback.print_exc()
        code = 1
    if written is not None:
        written()
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    except OSError:
        pass
    os._exit(code if isinstance(code, int) else 1)


def be_prepared(order: dict[str, Any]) -> Callable[[], None] | None:
    """What an order asks for beside its command; returns what is to be done at the end.

    ``seam``: write down there what was asked of the file system. ``short``: most bytes for one write.
    ``file_limit``: most bytes of a file, as the kernel enforces it.
    """
    if order.get("file_limit") is not None:
        # The log is a file as well and would be the first to be cut.
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, 1)
        os.dup2(nowhere, 2)
        sys.dont_write_bytecode = True  # a beginning of a file would be taken for the whole by others
        resource.setrlimit(resource.RLIMIT_FSIZE, (order["file_limit"],) * 2)
    if order.get("short") is not None:
        write, most = os.write, order["short"]
        os.write = lambda fd, data: write(fd, memoryview(data)[:most])
    if order.get("seam") is None:
        return None
    from crash_log import record_this_process  # noqa: PLC0415 - only for the few lives that are recorded

    return record_this_process(Path(order["seam"]))


def main() -> None:
    import_everything()
    # Otherwise only an ancestor may trace us under a hardened kernel.
    ctypes.CDLL(None).prctl(PR_SET_PTRACER, ANYBODY, 0, 0, 0)
    gc.collect()
    gc.freeze()
    print(json.dumps({"ready": True}), flush=True)
    for text in sys.stdin:
        (hearing, here), (go, writing) = os.pipe(), os.pipe()
        pid = os.fork()
        if pid == 0:
            os.close(hearing)
            os.close(writing)
            ctypes.CDLL(None).prctl(PR_SET_PTRACER, ANYBODY, 0, 0, 0)
            be_the_agent(json.loads(text), here, go)
        os.close(here)
        os.close(go)
        os.read(hearing, 1)
        os.close(hearing)
        print(json.dumps({"pid": pid}), flush=True)
        sys.stdin.readline()
        os.write(writing, b"!")
        os.close(writing)
        _, status = os.waitpid(pid, 0)
        print(json.dumps({"status": os.waitstatus_to_exitcode(status)}), flush=True)


if __name__ == "__main__":
    main()
