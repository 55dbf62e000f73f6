"""Export jobs: what `peft.export` takes from the hive (PEFT, export).

A job is published by the host side and only read through the console, whose answers are lines of text: the
final newline of a file is not told, and a file that is no UTF-8 text, or holds other control characters, has
no console form at all and is refused as such.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from .errors import LabError, buffer_full

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["EXPORT_FILES", "ExportJobs", "sample_job"]

EXPORT_FILES: Final = ("telemetry.cbor", "base_model.ref", "policy.toml")
"""The files of a complete job, in the order in which they are taken."""

_JOB_ID: Final = re.compile(r"[A-Za-z0-9._:][A-Za-z0-9._:-]{0,127}")
_NO_LINE: Final = re.compile(r"[\x00-\x09\x0b-\x1f\x7f]")


class ExportJobs:
    """Published jobs by id; they outlive a reboot of the root task, whose memory they are not part of."""

    def __init__(self) -> None:
        self._jobs: dict[str, dict[str, bytes]] = {}

    def publish(self, job_id: str, files: Mapping[str, bytes]) -> None:
        """Publish a job, complete or not, in place of an earlier one of the same id.

        Raises:
            LabError: the id is no path component.
        """
        if _JOB_ID.fullmatch(job_id) is None or job_id in {".", ".."}:
            raise LabError(f"{job_id!r} is no job id; use 1 to 128 of A-Z a-z 0-9 . _ : -")
        self._jobs[job_id] = dict(files)

    def withdraw(self, job_id: str) -> None:
        """Take a job back; an unknown one is gone already."""
        self._jobs.pop(job_id, None)

    def ids(self) -> list[str]:
        """Ids in the order of publication."""
        return list(self._jobs)

    def names(self, job_id: str) -> list[str] | None:
        """Names of a job's files, or None for an unknown job."""
        files = self._jobs.get(job_id)
        return None if files is None else list(files)

    def lines(self, job_id: str, name: str) -> list[str] | None:
        """The lines of a file, or None when there is no such file.

        Raises:
            RefusalError: buffer-full for a file that no lines can carry.
        """
        data = self._jobs.get(job_id, {}).get(name)
        if data is None:
            return None
        try:
            text = data.decode("utf-8")
        except UnicodeDecodeError:
            raise buffer_full() from None
        if _NO_LINE.search(text):
            raise buffer_full()
        lines = text.split("\n")
        return lines[:-1] if lines[-1] == "" else lines


def sample_job(base: str = "vision-base-v1") -> dict[str, bytes]:
    """A small complete job with a text in place of telemetry."""
    return {
        "telemetry.cbor": b"telemetry-v1\n",
        "base_model.ref": f"{base}\n".encode(),
        "policy.toml": b'[policy]\nname = "default"\n',
    }
