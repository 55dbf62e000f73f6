"""The logical operations of one agent life, told twice: by the agent's own seam, and by the kernel.

Both tellings are lists of :class:`journal_support.Op`. What an agent does to its state directory without the
seam is in the second only: it makes directories, and writes into the lock file who it is.
"""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from crash_states import APPEND
from journal_support import Op, RecordingFs

from ticket_agent.hive.console.framing import FrameDecoder

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from ticket_agent.hive.console.client import ConsoleNamespace
    from ticket_agent.protocol.namespace import AppendAnswer

TRACE_WHOLE = ["-xx", "-s", "1000000", "-e", "trace=%file,%desc,%network"]
"""Options of a tracer that prints all data of every call that can touch a file."""

_LINE = re.compile(r"(\d+) +(\w+)\((.*)\)\s+= (-?\d+)")
_STRING = re.compile(r'"((?:\\x[0-9a-f]{2})*)"')
_FD = re.compile(r"<((?:\\x[0-9a-f]{2})+|[^<>]*)>")

_READING = frozenset(
    (
        "read",
        "readv",
        "pread64",
        "close",
        "fstat",
        "newfstatat",
        "stat",
        "lstat",
        "statx",
        "statfs",
        "fstatfs",
        "getdents64",
        "lseek",
        "fcntl",
        "flock",
        "ioctl",
        "readlink",
        "readlinkat",
        "access",
        "faccessat",
        "faccessat2",
        "poll",
        "dup",
    )
)
"""Calls that change nothing."""


class UnknownCallError(AssertionError):
    """A call touches the state directory and is not one that the model knows."""


class AgentFs(RecordingFs):
    """Records what an agent asks of the seam, and its lines to the hive in between."""

    def open_kept(self, dir_fd: int, name: str) -> int:
        fd = super().open_kept(dir_fd, name)
        self._add("keep", *self._files[fd])
        return fd

    def reserve(self, fd: int, nbytes: int) -> None:
        before = os.fstat(fd)
        super().reserve(fd, nbytes)
        after = os.fstat(fd)
        if (before.st_size, before.st_blocks) != (after.st_size, after.st_blocks):
            self._add("reserve", *self._files[fd], target=str(nbytes))

    def appends(self, path: str, line: str) -> None:
        """Note a line that is about to be sent."""
        self.log.append(Op(APPEND, file=path, data=line.encode()))

    def listen(self, namespace: ConsoleNamespace) -> None:
        """Note every line that this namespace is asked to append."""
        append = namespace.append

        def noted(path: str, line: str, *, session: int | None = None) -> AppendAnswer:
            self.appends(path, line)
            return append(path, line, session=session)

        namespace.append = noted  # type: ignore[method-assign]


def record_this_process(path: Path) -> Callable[[], None]:
    """Let every store and every console of this process be recorded; returns what writes the log to a file.

    For the process of one agent; nothing is ever put back.
    """
    from ticket_agent.hive.console.client import ConsoleNamespace  # noqa: PLC0415 - patched here
    from ticket_agent.journal import store  # noqa: PLC0415 - patched here

    fs, append = AgentFs(), ConsoleNamespace.append

    def noted(self: ConsoleNamespace, node: str, line: str, *, session: int | None = None) -> AppendAnswer:
        fs.appends(node, line)
        return append(self, node, line, session=session)

    def write_down() -> None:
        path.write_text(json.dumps(as_json(fs.log)), encoding="ascii")

    store.RealFs = lambda: fs  # type: ignore[assignment, attr-defined]
    ConsoleNamespace.append = noted  # type: ignore[assignment,method-assign]
    return write_down


def as_json(log: Iterable[Op]) -> list[list[str]]:
    return [[op.name, op.folder, op.file, op.target, op.data.hex()] for op in log]


def from_json(rows: Iterable[list[Any]]) -> list[Op]:
    return [Op(name, folder, file, target, bytes.fromhex(data)) for name, folder, file, target, data in rows]


def of_seam(op: Op) -> bool:
    """Whether an operation goes through the seam in an agent that does one pass."""
    return op.name not in ("mkdir", "truncate") and (op.name, op.file) != ("write", "agent.lock")


def traced_ops(text: str, pid: int, state_dir: Path) -> list[Op]:
    """The operations of one process's main thread, from a recording with :data:`TRACE_WHOLE`.

    Raises:
        UnknownCallError: a call that the model does not know touches the state directory.
    """
    reader = _Reader(state_dir)
    log: list[Op] = []
    for line in text.splitlines():
        match = _LINE.match(line)
        if match is None or int(match[1]) != pid or int(match[4]) < 0:
            continue
        log += reader.ops(match[2], match[3], int(match[4]))
    return log


class _Reader:
    """Turns calls into operations; remembers what was sent to the hive."""

    def __init__(self, state_dir: Path) -> None:
        self._home = state_dir.parent
        self._state = state_dir
        self._frames = FrameDecoder()

    def ops(self, name: str, arguments: str, answer: int) -> Iterator[Op]:
        strings = [_bytes(text) for text in _STRING.findall(arguments)]
        paths = [_path(text) for text in _FD.findall(_STRING.sub('""', arguments))]
        if name == "sendto" and strings:
            yield from self._sent(strings[0][:answer])
            return
        if not paths or not paths[0].startswith("/"):
            return
        where = Path(paths[0])
        if name in ("fsync", "fdatasync") and where in (self._home, self._home.parent):
            yield Op("fsync_dir", where.name)
        elif name == "mkdirat" and where == self._home:
            yield Op("mkdir", where.name, strings[0].decode())
        elif where == self._state or self._state in where.parents:
            yield from self._owned(name, arguments, where, strings, answer)

    def _owned(
        self, name: str, arguments: str, where: Path, strings: list[bytes], answer: int
    ) -> Iterator[Op]:
        named = [text.decode() for text in strings] if name.endswith(("at", "at2")) else []
        here = (where.parent.name, where.name)
        match name:
            case "openat":
                if "O_CREAT" in arguments:
                    yield Op("create" if "O_EXCL" in arguments else "keep", where.name, named[0])
                elif "O_TRUNC" in arguments:
                    raise UnknownCallError(f"{name}({arguments})")
            case "mkdirat":
                yield Op("mkdir", where.name, named[0])
            case "write" | "pwrite64":
                yield Op("write", *here, data=strings[0][:answer])
            case "ftruncate":
                yield Op("truncate", *here)
            case "fallocate":
                yield Op("reserve", *here, target=arguments.rsplit(", ", 1)[1])
            case "fsync" | "fdatasync":
                yield Op("fsync_dir", where.name) if where.is_dir() else Op("fsync", *here)
            case "renameat" | "renameat2":
                yield Op("rename", where.name, named[0], named[1])
            case "linkat":
                yield Op("link", where.name, named[0], named[1])
            case "unlinkat":
                yield Op("unlink", where.name, named[0])
            case _ if name not in _READING:
                raise UnknownCallError(f"{name}({arguments})")

    def _sent(self, data: bytes) -> Iterator[Op]:
        self._frames.receive(data)
        while (frame := self._frames.next_frame()) is not None:
            verb, _, rest = bytes(frame).decode().partition(" ")  # type: ignore[arg-type]
            if verb == "ECHO":
                path, _, line = rest.partition(" ")
                yield Op(APPEND, file=path, data=line.encode())


def _bytes(text: str) -> bytes:
    return bytes.fromhex(text.replace("\\x", ""))


def _path(text: str) -> str:
    return os.fsdecode(_bytes(text)) if text.startswith("\\x") else text
