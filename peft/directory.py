"""An open directory, the only way to anything below a root.

A path is never built and never resolved: every step is one system call on a descriptor with one entry name,
and a link is not followed at any of them. So whatever somebody else renames or swaps meanwhile, a directory
that was opened stays that directory, and nothing outside the root can be reached.

Files are created with mode 0644 and directories with 0755, less the umask: readers of a registry are other
programs, and the umask of the service says whether they may run under other accounts. Nobody else can write
in either case. Below a *private* directory the modes are 0600 and 0700, so nobody else can read either.
"""

from __future__ import annotations

import errno
import os
import stat
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final, Self

from ticket_agent.journal.atomic import ReplaceError, Step, replace_file
from ticket_agent.journal.fs import RealFs
from ticket_agent.peft.errors import (
    AbsentError,
    FileChangedError,
    FileRefusedError,
    NameTakenError,
    PeftIoError,
)
from ticket_agent.peft.limits import MAX_DIRECTORY_NAMES
from ticket_agent.peft.names import PARTIAL_SUFFIX, check_entry, shown
from ticket_agent.peft.opened import Identity, Kind, OpenedFile, kind_of
from ticket_agent.peft.renaming import rename_new
from ticket_agent.peft.tree import remove_tree

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ticket_agent.journal.fs import Fs

__all__ = ["OPEN_DIRECTORY", "TREE_FS", "Directory", "Identity", "Kind", "OpenedFile"]

OPEN_DIRECTORY: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
# Without O_NONBLOCK, a FIFO that takes the file's place in the last moment would hold us for ever.
_OPEN_FILE: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_NEW_FILE: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE_MODE: Final = 0o644
_DIRECTORY_MODE: Final = 0o755
_PRIVATE_MODE: Final = 0o700
_OTHERS: Final = stat.S_IRWXG | stat.S_IRWXO
_OTHERS_WRITE: Final = stat.S_IWGRP | stat.S_IWOTH
# What opening says when the entry is no longer what it was a moment ago.
_SWAPPED: Final = frozenset({errno.ELOOP, errno.ENOTDIR, errno.ENXIO, errno.ENODEV})


class _TreeFs(RealFs):
    """Files of these trees are for other programs to read; a journal's are not."""

    def create_new(self, dir_fd: int, name: str) -> int:
        """See :class:`Fs`."""
        return os.open(name, _NEW_FILE, _FILE_MODE, dir_fd=dir_fd)


TREE_FS: Final = _TreeFs()
_PRIVATE_FS: Final = RealFs()


class Directory:
    """An open directory; close it, or use it in a ``with`` statement.

    Every method takes the name of one entry of this directory and raises :class:`NameRefusedError` for
    anything else, :class:`PeftIoError` when the system fails, and what it says itself.

    Attributes:
        fd: the descriptor.
        label: what to call the directory in an error line, like ``registry root /srv/registry/available``.
        private: what is made below it is for its owner alone.
        fs: how files are made in it.
    """

    def __init__(self, fd: int, label: str, *, private: bool = False) -> None:
        self.fd: Final = fd
        self.label: Final = label
        self.private: Final = private
        self.fs: Final[Fs] = _PRIVATE_FS if private else TREE_FS
        self._closed = False

    def close(self) -> None:
        """Close the descriptor."""
        if not self._closed:
            self._closed = True
            os.close(self.fd)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def path(self, name: str) -> str:
        """What to call an entry in an error line; never to be opened."""
        return f"{self.label}/{shown(name)}"

    # -- looking ------------------------------------------------------------------------------------------

    def kind(self, name: str) -> Kind | None:
        """Tell what an entry is, or None when there is none; links are not followed."""
        status = self.status(name)
        return None if status is None else kind_of(status.st_mode)

    def status(self, name: str) -> os.stat_result | None:
        """What the system tells about an entry, or None when there is none; links are not followed."""
        check_entry(name)
        with _reported(f"looking at {self.path(name)}"):
            try:
                return os.stat(name, dir_fd=self.fd, follow_symlinks=False)
            except FileNotFoundError:
                return None

    def names(self) -> list[str]:
        """All entries, sorted; undecodable bytes come as surrogate escapes.

        Raises:
            FileRefusedError: there are more than ``MAX_DIRECTORY_NAMES``.
        """
        found: list[str] = []
        with _reported(f"listing {self.label}"):
            # A descriptor of its own: two listings at the same time must not share an offset.
            fd = os.open(".", OPEN_DIRECTORY, dir_fd=self.fd)
            try:
                with os.scandir(fd) as entries:
                    for entry in entries:
                        if len(found) == MAX_DIRECTORY_NAMES:
                            raise FileRefusedError(
                                f"{self.label} has more than {MAX_DIRECTORY_NAMES} entries; remove some"
                            )
                        found.append(entry.name)
            finally:
                os.close(fd)
        return sorted(found)

    def require_owned(self, owner_uid: int) -> None:
        """Refuse the directory unless only ``owner_uid`` can change what is in it.

        Raises:
            FileRefusedError: it belongs to somebody else, or group or others can write to it; of a private
                directory, not even reading is left to them.
        """
        if reason := not_private(os.fstat(self.fd), owner_uid, private=self.private):
            raise FileRefusedError(f"{self.label} {reason}")

    # -- opening ------------------------------------------------------------------------------------------

    def open_dir(self, name: str, *, create: bool = False) -> Directory:
        """Open a directory; with ``create``, make it durably if nothing has that name.

        Raises:
            AbsentError: it does not exist.
            FileRefusedError: it is a link or not a directory.
        """
        if create and self.kind(name) is None:
            try:
                self.make_dir(name)
            except NameTakenError:
                pass  # made by somebody else in this moment; what it is shows in the next step
            else:
                self.sync()
        fd = self._open(name, Kind.DIR, OPEN_DIRECTORY)
        return Directory(fd, self.path(name), private=self.private)

    def open_file(self, name: str, *, max_bytes: int) -> OpenedFile:
        """Open a regular file with one name and 1..=``max_bytes`` bytes for reading. Never blocks.

        Raises:
            AbsentError: it does not exist.
            FileRefusedError: it is a link or no regular file, has another name, is empty, or too large.
        """
        fd = self._open(name, Kind.FILE, _OPEN_FILE)
        try:
            return OpenedFile(fd, label=self.path(name), max_bytes=max_bytes)
        except BaseException:
            os.close(fd)
            raise

    def read_file(self, name: str, *, max_bytes: int) -> bytes:
        """Return the content of a small file; see :meth:`open_file`.

        Raises:
            FileChangedError: it was written to while it was read.
        """
        with self.open_file(name, max_bytes=max_bytes) as file:
            buffer = memoryview(bytearray(file.size + 1))
            return b"".join(bytes(chunk) for chunk in file.chunks(buffer))

    def _open(self, name: str, wanted: Kind, flags: int) -> int:
        # Looked at before: opening a device can have effects. Afterwards the flags keep everything but a
        # device from being opened in its place, and only root can make one.
        found = self.kind(name)
        if found is None:
            raise AbsentError(f"{self.path(name)} does not exist")
        if found is not wanted:
            raise FileRefusedError(f"{self.path(name)} is {found}, not {wanted}")
        try:
            return os.open(name, flags, dir_fd=self.fd)
        except FileNotFoundError as error:
            raise AbsentError(f"{self.path(name)} was removed while it was opened") from error
        except OSError as error:
            if error.errno in _SWAPPED:
                raise FileChangedError(f"{self.path(name)} was replaced while it was opened") from error
            raise PeftIoError(f"opening {self.path(name)}", error) from error

    # -- changing -----------------------------------------------------------------------------------------

    def write_file(self, name: str, data: bytes) -> None:
        """Durably let ``name`` hold ``data``, all or nothing; a regular file of that name is replaced.

        Raises:
            FileRefusedError: the name is that of a link, a directory, or anything else.
            PeftIoError: with ``applied``, when only the last step failed. Nothing partial stays.
        """
        found = self.kind(name)
        if found not in (None, Kind.FILE):
            raise FileRefusedError(f"{self.path(name)} is {found}, not {Kind.FILE}; it is not replaced")
        try:
            replace_file(self.fs, self.fd, name, data, suffix=PARTIAL_SUFFIX)
        except ReplaceError as error:
            raise failed_replacement(error, self.path(name)) from error

    def make_dir(self, name: str) -> None:
        """Make an empty directory; durable when this directory is synced.

        Raises:
            NameTakenError: the name exists.
        """
        check_entry(name)
        with _reported(f"making {self.path(name)}"):
            try:
                os.mkdir(name, _PRIVATE_MODE if self.private else _DIRECTORY_MODE, dir_fd=self.fd)
            except FileExistsError as error:
                raise NameTakenError(f"{self.path(name)} exists already") from error

    def rename(self, name: str, to: Directory, new: str, *, replace: bool) -> None:
        """Move an entry; durable when it returns, because both directories are synced.

        Args:
            name: the entry.
            to: the directory to move it to; it may be this one.
            new: its name there.
            replace: an entry ``new`` may be replaced. Otherwise it stays untouched.

        Raises:
            AbsentError: there is no ``name``.
            NameTakenError: ``new`` exists and is not to be replaced, or cannot be by an entry of this kind.
            PeftIoError: with ``applied``, when it was moved and syncing failed.
        """
        check_entry(name)
        check_entry(new)
        try:
            if replace:
                os.rename(name, new, src_dir_fd=self.fd, dst_dir_fd=to.fd)
            else:
                rename_new(self.fd, name, to.fd, new)
        except OSError as error:
            if error.errno == errno.ENOENT:
                raise AbsentError(f"{self.path(name)} does not exist") from error
            if error.errno in (errno.EEXIST, errno.ENOTEMPTY, errno.EISDIR, errno.ENOTDIR):
                raise NameTakenError(f"{to.path(new)} exists already") from error
            raise PeftIoError(f"moving {self.path(name)} to {to.path(new)}", error) from error
        with _reported(f"making the move of {self.path(name)} to {to.path(new)} durable", applied=True):
            os.fsync(to.fd)
            if to is not self:
                os.fsync(self.fd)

    def unlink(self, name: str) -> None:
        """Remove a name that is not a directory's; a link goes, not what it points to.

        Raises:
            AbsentError: there is none.
            FileRefusedError: it is a directory.
        """
        check_entry(name)
        with _reported(f"removing {self.path(name)}"):
            try:
                os.unlink(name, dir_fd=self.fd)
            except FileNotFoundError as error:
                raise AbsentError(f"{self.path(name)} does not exist") from error
            except (IsADirectoryError, PermissionError) as error:
                if self.kind(name) is Kind.DIR:
                    raise FileRefusedError(f"{self.path(name)} is a directory, not a file") from error
                raise

    def remove_tree(self, name: str) -> None:
        """Remove a directory with everything in it; links go, not what they point to.

        Raises:
            AbsentError: there is none.
            FileRefusedError: it is not a directory; or it is deeper or has more entries than our trees ever
                have, or something is mounted in it. In these cases nothing was removed.
        """
        with self.open_dir(name) as directory, _reported(f"removing {directory.label}"):
            remove_tree(directory.fd, directory.label)
            try:
                os.rmdir(name, dir_fd=self.fd)
            except FileNotFoundError as error:
                raise AbsentError(f"{self.path(name)} was removed by somebody else") from error

    def sync(self) -> None:
        """Make this directory's entries durable."""
        with _reported(f"syncing {self.label}"):
            os.fsync(self.fd)


def not_private(status: os.stat_result, owner_uid: int, *, private: bool = False) -> str | None:
    """What is wrong with a directory that only ``owner_uid`` may be able to change; None when nothing is.

    With ``private``, nobody else may be able to look into it either.
    """
    if status.st_uid != owner_uid:
        return f"belongs to user {status.st_uid}, not to {owner_uid}; give it to the service's account"
    if status.st_mode & _OTHERS_WRITE:
        mode = stat.S_IMODE(status.st_mode)
        return f"can be written by others (mode {mode:04o}); take the permission away with chmod go-w"
    if private and status.st_mode & _OTHERS:
        mode = stat.S_IMODE(status.st_mode)
        return f"is open to others (mode {mode:04o}); it holds private models: chmod 700"
    return None


def failed_replacement(error: ReplaceError, label: str) -> PeftIoError:
    """The error of these trees for a file that could not be written; ``label`` names the file."""
    cause = error.__cause__ if isinstance(error.__cause__, OSError) else OSError(error.errno, str(error))
    return PeftIoError(f"writing {label} ({error.step})", cause, applied=error.step is Step.FSYNC_DIR)


@contextmanager
def _reported(doing: str, *, applied: bool = False) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise PeftIoError(doing, error, applied=applied) from error
