"""A file that a command leaves for its user: complete or not there, and never in place of anything else."""

from __future__ import annotations

import contextlib
import os
import stat
import sys
from pathlib import Path
from typing import IO, TYPE_CHECKING

from ticket_agent.cli.output import fail
from ticket_agent.exits import Exit
from ticket_agent.journal.fs import RealFs

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["STDOUT", "output_file"]

STDOUT = "-"


@contextlib.contextmanager
def output_file(target: str, *, force: bool, state_dir: Path) -> Iterator[IO[bytes]]:
    """A stream whose content becomes the file ``target`` when the block ends well; ``-`` is standard output.

    The file is private to its owner. An existing one is replaced only with ``force``, and never a symlink or
    anything else than a regular file. A place within the state directory is refused, because every file there
    means something to the agent. Each of these, and an error of the system, ends the command with one line.
    """
    if target == STDOUT:
        yield sys.stdout.buffer
        sys.stdout.buffer.flush()
        return
    path = Path(target)
    if not path.name or target.endswith("/"):
        fail(f"{target!r} names no file", Exit.USAGE)
    try:
        directory = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        fail(f"cannot write {target}: {path.parent}: {error.strerror}", Exit.FAILURE)
    try:
        _require_place(path, directory, force=force, state_dir=state_dir)
        with _replaced(directory, path, force=force) as stream:
            yield stream
    finally:
        os.close(directory)


def _require_place(path: Path, directory: int, *, force: bool, state_dir: Path) -> None:
    if Path(os.path.realpath(path.parent)).is_relative_to(os.path.realpath(state_dir)):
        fail(f"{path} lies in the state directory; write it elsewhere", Exit.USAGE)
    try:
        there = os.stat(path.name, dir_fd=directory, follow_symlinks=False)
    except FileNotFoundError:
        return
    except OSError as error:
        fail(f"cannot write {path}: {error.strerror}", Exit.FAILURE)
    if stat.S_ISLNK(there.st_mode):
        fail(f"{path} is a symlink, which is never followed or replaced; name the file itself", Exit.USAGE)
    if not stat.S_ISREG(there.st_mode):
        fail(f"{path} exists and is no regular file; name another one", Exit.USAGE)
    if not force:
        _refuse_existing(path)


def _refuse_existing(path: Path) -> None:
    fail(f"{path} exists; --force replaces it", Exit.USAGE)


@contextlib.contextmanager
def _replaced(directory: int, path: Path, *, force: bool) -> Iterator[IO[bytes]]:
    fs = RealFs()
    # Short, so that a name as long as the file system allows can be written too.
    temporary = f".ticket-agent.{os.urandom(8).hex()}.tmp"
    try:
        with os.fdopen(fs.create_new(directory, temporary), "wb") as stream:
            yield stream
            stream.flush()
            fs.fsync(stream.fileno())
        if force:
            fs.rename(directory, temporary, path.name)
        else:
            fs.rename_new(directory, temporary, path.name)
        fs.fsync_dir(directory)
    except FileExistsError:
        _refuse_existing(path)
    except OSError as error:
        fail(f"cannot write {path}: {error.strerror or error}", Exit.FAILURE)
    finally:
        with contextlib.suppress(OSError):
            fs.unlink(directory, temporary)
