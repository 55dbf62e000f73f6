"""Whose state a directory holds, if it was taken over from another program: one file beside the records.

The file is the truth, as records are, and no help that may lag: it alone knows which admissions the former
program had ended and forgotten. A directory whose file cannot be read, or says that the takeover was not
finished, is not opened.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ticket_agent.journal import checks
from ticket_agent.journal.envelope import Kind, open_envelope, parse_body, seal
from ticket_agent.journal.errors import RecordError, TakeoverError
from ticket_agent.journal.state_dir import TAKEOVER
from ticket_agent.journal.values import MAX_NAME_BYTES, MAX_TEXT_BYTES, MAX_UNIX_MS

if TYPE_CHECKING:
    from ticket_agent.journal.fs import Fs

__all__ = [
    "MAX_LANES",
    "MAX_TAKEOVER_BYTES",
    "Takeover",
    "decode_takeover",
    "encode_takeover",
    "load_takeover",
    "require_finished",
]

MAX_TAKEOVER_BYTES = 65_536
MAX_LANES = 64
_SHA256 = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Takeover:
    """What was taken over, and how far the former program had come.

    Attributes:
        source: whose state it was, one line of 1..=192 bytes.
        sha256: digest over everything that was read there; a takeover goes on only from the same bytes.
        unix_ms: when the takeover began.
        boot_id: the host's boot in which it began.
        finished: every record and the cursor are written; until then nobody may act on the directory.
        epoch: number of the hive's life in which the former program last worked. What it had ended, in this
            life or an earlier one, stands in the epoch before.
        lanes: for each of the former program's lanes, the sequence at or below which it looks at nothing any
            more; an operation of the lane there that has no record here was ended and forgotten. 1..=64
            entries.
        seen: highest sequence that the former program certainly knew in that life, 0 if none.
        lines: how many leading lines of the admission log it had passed, where no sequence tells.
        callers: how many leading lines of the callers' log it had passed.
        met: the first look at the admission log was accounted for; from then on our own records tell.
        callers_met: the first look at the callers' log was accounted for.
    """

    source: str
    sha256: str
    unix_ms: int
    boot_id: str
    finished: bool
    epoch: int
    lanes: tuple[int, ...]
    seen: int
    lines: int = 0
    callers: int = 0
    met: bool = False
    callers_met: bool = False

    def __post_init__(self) -> None:
        checks.line(self.source, "source", MAX_TEXT_BYTES)
        checks.text(self.sha256, "sha256", 64)
        if _SHA256.fullmatch(self.sha256) is None:
            raise RecordError("sha256 must be 64 lowercase hex digits")
        checks.integer(self.unix_ms, "unix_ms", 0, MAX_UNIX_MS)
        checks.line(self.boot_id, "boot_id", MAX_NAME_BYTES)
        checks.boolean(self.finished, "finished")
        checks.integer(self.epoch, "epoch", 2, checks.MAX_U64)
        if not 1 <= len(self.lanes) <= MAX_LANES:
            raise RecordError(f"lanes must have 1..={MAX_LANES} entries")
        for through in self.lanes:
            checks.integer(through, "lanes", 0, checks.MAX_U64)
        for member in ("seen", "lines", "callers"):
            checks.integer(getattr(self, member), member, 0, checks.MAX_U64)
        if max(self.lanes) > self.seen:
            raise RecordError("seen must not lie below a lane")
        checks.boolean(self.met, "met")
        checks.boolean(self.callers_met, "callers_met")


def encode_takeover(takeover: Takeover) -> bytes:
    """Return the file of a takeover."""
    body: dict[str, Any] = {name: getattr(takeover, name) for name in Takeover.__dataclass_fields__}
    return seal(Kind.TAKEOVER, body | {"lanes": list(takeover.lanes)})


def decode_takeover(data: bytes) -> Takeover:
    """Return the takeover in a file.

    Raises:
        RecordError: reason and byte offset.
    """
    body, offset = open_envelope(Kind.TAKEOVER, data)
    members = parse_body(body, offset)
    try:
        return _takeover_of(members)
    except RecordError as error:
        raise RecordError(error.reason, offset=offset) from None


def _takeover_of(members: dict[str, Any]) -> Takeover:
    if members.keys() != Takeover.__dataclass_fields__.keys():
        raise RecordError("the members of the takeover are wrong")
    if not isinstance(members["lanes"], list):
        raise RecordError("lanes must be a list")
    return Takeover(**members | {"lanes": tuple(members["lanes"])})


def load_takeover(fs: Fs, root_fd: int) -> Takeover | None:
    """Read the file; None when there is none, because nothing was taken over.

    Raises:
        TakeoverError: there is one, and it cannot be read or is not valid.
    """
    try:
        return decode_takeover(fs.read(root_fd, TAKEOVER, MAX_TAKEOVER_BYTES))
    except FileNotFoundError:
        return None
    except OSError as error:
        raise TakeoverError(
            f"{TAKEOVER} cannot be read ({error.strerror or error}), and without it ended tickets could run "
            f"again; make it readable or restore it"
        ) from error
    except RecordError as error:
        raise TakeoverError(
            f"{TAKEOVER} is not valid ({error}), and without it ended tickets could run again; restore it, "
            f"or take over again into a new state directory"
        ) from error


def require_finished(takeover: Takeover | None) -> None:
    """Refuse a directory that holds half of somebody's state.

    Raises:
        TakeoverError: the takeover was not finished.
    """
    if takeover is not None and not takeover.finished:
        raise TakeoverError(
            f"the takeover from {takeover.source} was not finished; run `ticket-agent journal import` again"
        )
