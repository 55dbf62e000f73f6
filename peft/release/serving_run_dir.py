"""The directory of one instance: made for it, filled with what its start takes, and never used again."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final

from ticket_agent.peft.errors import PeftIoError
from ticket_agent.peft.names import check_entry
from ticket_agent.peft.release.serving_errors import InstanceRefusedError

if TYPE_CHECKING:
    from ticket_agent.peft.release.serving import Launch

__all__ = ["make_run_dir"]

_FILE: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


def make_run_dir(path: str, launch: Launch) -> None:
    """Make the directory, with mode 0700, and put the launch's files (0600) and directories into it.

    Nothing of it has to outlast a crash: an instance that was not started by then is not started later.

    Raises:
        InstanceRefusedError: the directory exists, so the instance may have been started before.
        PeftIoError: the system failed.
    """
    try:
        os.mkdir(path, 0o700)  # noqa: PTH102 - a name of one directory, like the calls below
        directory = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            for name, data in launch.files:
                check_entry(name)
                with os.fdopen(os.open(name, _FILE, 0o600, dir_fd=directory), "wb") as file:
                    file.write(data)
            for name, sources in launch.directories:
                check_entry(name)
                os.mkdir(name, 0o700, dir_fd=directory)
                for entry, target in _first_of_each(sources).items():
                    os.symlink(target, f"{name}/{entry}", dir_fd=directory)
        finally:
            os.close(directory)
    except FileExistsError:
        raise InstanceRefusedError(f"{path} exists: its server may have been started before") from None
    except OSError as error:
        raise PeftIoError(f"making {path}", error) from error


def _first_of_each(sources: tuple[str, ...]) -> dict[str, str]:
    found: dict[str, str] = {}
    for source in sources:
        for entry in sorted(os.listdir(source)):  # noqa: PTH208 - names are what is wanted
            found.setdefault(check_entry(entry), f"{source}/{entry}")
    return found
