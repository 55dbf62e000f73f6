"""Opening the directories that the configuration names as roots.

A root may be trusted when nobody but root and the service's account can change it or put something else in
its place. So every directory on the way is opened from the one above it, none may be a link, and none may be
one in which a stranger could rename.
"""

from __future__ import annotations

import os
import stat
from typing import TYPE_CHECKING, Final

from ticket_agent.peft.directory import OPEN_DIRECTORY, Directory, not_private
from ticket_agent.peft.errors import NameRefusedError, PeftIoError, RootRefusedError
from ticket_agent.peft.limits import MAX_ROOT_DEPTH, MAX_SHOWN
from ticket_agent.peft.names import check_entry, shown

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["open_root", "open_to_read"]

# A directory on the way need not be readable; passing through it is enough.
_PASS: Final = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_DIRECTORY_MODE: Final = 0o755
_PRIVATE_MODE: Final = 0o700
_OTHERS_WRITE: Final = stat.S_IWGRP | stat.S_IWOTH


def open_root(
    path: str | Path, *, label: str, owner_uid: int, create: bool, private: bool = False
) -> Directory:
    """Open a configured root.

    Args:
        path: absolute, without ``.`` and ``..``, as the configuration gives it.
        label: what to call it in error lines, like ``registry root``; the path is added.
        owner_uid: the account of the service, which must own the root.
        create: make the root and its parents if they are missing, with mode 0755 less the umask. What
            exists is checked first.
        private: nobody else may be able to look into the root; what is created has mode 0700.

    Raises:
        RootRefusedError: the path or a directory on it is not acceptable, or it does not exist.
        PeftIoError: the system failed.
    """
    return _opened(path, _Walk(_label(label, path), owner_uid=owner_uid, create=create, private=private))


def open_to_read(path: str | Path, *, label: str) -> Directory:
    """Open a root to look at what is in it, whoever owns it; it may be a copy.

    Only links are refused, so that what is shown is what the path names. A directory that was opened this way
    must not be changed: strangers may be able to change it too.

    Raises:
        RootRefusedError: the path is not acceptable, has a link in it, or does not exist.
        PeftIoError: the system failed, or reading is not permitted.
    """
    return _opened(path, _ReadersWalk(_label(label, path), owner_uid=-1, create=False))


def _label(label: str, path: str | Path) -> str:
    return f"{label} {shown(os.fspath(path), 2 * MAX_SHOWN)}"


def _opened(path: str | Path, walk: _Walk) -> Directory:
    names = walk.components(os.fspath(path))
    fd = os.open("/", _PASS)
    try:
        here = ""
        walk.check_ancestor(fd, "/")
        for name in names[:-1]:
            here = f"{here}/{name}"
            fd = _replaced(fd, walk.step(fd, name, here, _PASS))
            walk.check_ancestor(fd, here)
        fd = _replaced(fd, walk.step(fd, names[-1], f"{here}/{names[-1]}", OPEN_DIRECTORY))
        walk.check_root(fd)
    except BaseException:
        os.close(fd)
        raise
    return Directory(fd, walk.label, private=walk.private)


class _Walk:
    """The steps from ``/`` to one root."""

    def __init__(self, label: str, *, owner_uid: int, create: bool, private: bool = False) -> None:
        self.label = label
        self.private = private
        self._owner_uid = owner_uid
        self._create = create

    def components(self, text: str) -> list[str]:
        if not text.startswith("/"):
            raise RootRefusedError(f"{self.label} is a relative path; write it from / on")
        names = [name for name in text.split("/") if name]
        if not names:
            raise RootRefusedError(f"{self.label} is the whole file system; name a directory of its own")
        if len(names) > MAX_ROOT_DEPTH:
            raise RootRefusedError(f"{self.label} has more than {MAX_ROOT_DEPTH} components")
        try:
            return [check_entry(name) for name in names]
        except NameRefusedError as error:
            raise RootRefusedError(f"{self.label} is not usable: {error}") from error

    def step(self, parent: int, name: str, path: str, flags: int) -> int:
        here = shown(path, 2 * MAX_SHOWN)
        try:
            mode = os.stat(name, dir_fd=parent, follow_symlinks=False).st_mode
        except FileNotFoundError:
            self._make(parent, name, here)
        except OSError as error:
            raise PeftIoError(f"{self.label}: looking at {here}", error) from error
        else:
            if stat.S_ISLNK(mode):
                raise RootRefusedError(f"{self.label}: {here} is a symlink; name the real path")
            if not stat.S_ISDIR(mode):
                raise RootRefusedError(f"{self.label}: {here} is not a directory")
        try:
            return os.open(name, flags, dir_fd=parent)
        except NotADirectoryError as error:
            raise RootRefusedError(f"{self.label}: {here} was replaced while it was opened") from error
        except OSError as error:
            raise PeftIoError(f"{self.label}: opening {here}", error) from error

    def check_ancestor(self, fd: int, path: str) -> None:
        here = shown(path, 2 * MAX_SHOWN)
        status = os.fstat(fd)
        if status.st_uid not in (0, self._owner_uid):
            raise RootRefusedError(
                f"{self.label}: {here} belongs to user {status.st_uid}, who could replace what is in it"
            )
        sticky = status.st_mode & stat.S_ISVTX and status.st_uid == 0
        if status.st_mode & _OTHERS_WRITE and not sticky:
            raise RootRefusedError(
                f"{self.label}: {here} can be written by others, who could replace what is in it;"
                " take the permission away with chmod go-w"
            )

    def check_root(self, fd: int) -> None:
        if reason := not_private(os.fstat(fd), self._owner_uid, private=self.private):
            raise RootRefusedError(f"{self.label} {reason}")

    def _make(self, parent: int, name: str, here: str) -> None:
        if not self._create:
            raise RootRefusedError(f"{self.label}: {here} does not exist; create it or correct the path")
        if os.geteuid() != self._owner_uid:
            raise RootRefusedError(
                f"{self.label}: {here} does not exist, and user {os.geteuid()} cannot create it for user"
                f" {self._owner_uid}"
            )
        try:
            os.mkdir(name, _PRIVATE_MODE if self.private else _DIRECTORY_MODE, dir_fd=parent)
            listed = os.open(".", OPEN_DIRECTORY, dir_fd=parent)
            try:
                os.fsync(listed)
            finally:
                os.close(listed)
        except FileExistsError:
            return
        except OSError as error:
            raise PeftIoError(f"{self.label}: creating {here}", error) from error


class _ReadersWalk(_Walk):
    """The same steps for somebody who only looks: it does not matter who else can change what is there."""

    def check_ancestor(self, fd: int, path: str) -> None:
        pass

    def check_root(self, fd: int) -> None:
        pass


def _replaced(old: int, new: int) -> int:
    os.close(old)
    return new
