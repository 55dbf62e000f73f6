"""What an export of a journal consists of: its files, redacted or byte for byte, and a manifest of digests.

Files are read one at a time, and only those that the journal itself reads: records, cursor, acknowledgements,
archive and the fence's list of starts. The members form a state directory again, which every reading command
takes.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, field
from hashlib import sha256
from typing import TYPE_CHECKING, Any

from ticket_agent.journal.archive import MAX_SEGMENT_BYTES, is_segment
from ticket_agent.journal.atomic import is_temporary
from ticket_agent.journal.cursor import MAX_CURSOR_BYTES, decode_cursor, encode_cursor
from ticket_agent.journal.envelope import Kind, split_envelopes
from ticket_agent.journal.errors import JournalIoError, RecordError, StateDirError
from ticket_agent.journal.fs import RealFs
from ticket_agent.journal.gaps import MAX_GAP_BYTES, decode_acknowledgement, encode_acknowledgement
from ticket_agent.journal.record import decode_record
from ticket_agent.journal.redaction import stand_in
from ticket_agent.journal.scan import describe_read_error
from ticket_agent.journal.starts import MAX_CONTENT, encode_starts, parse_starts
from ticket_agent.journal.state_dir import ARCHIVE, CURSOR, GAPS, LOCK, OPS, open_readable
from ticket_agent.journal.values import MAX_RECORD_BYTES, parse_record_name, record_name

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from ticket_agent.journal.redaction import Redaction

__all__ = ["MANIFEST", "MANIFEST_SCHEMA", "Bundle", "Member"]

MANIFEST = "manifest.json"
MANIFEST_SCHEMA = "ticket-agent-export/v1"
MAX_LISTED = 64
"""Places of one segment that are named when they cannot be read; more are only counted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """One file of the bundle; its path is relative to the bundle's top."""

    path: str
    data: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class _Original:
    path: str
    data: bytes

    def members(self) -> dict[str, Any]:
        return {"path": self.path, "bytes": len(self.data), "sha256": sha256(self.data).hexdigest()}


@dataclass(slots=True)
class Bundle:
    """An export in the making: iterate over :meth:`members`, then ask for the :meth:`manifest`.

    Attributes:
        state_dir: where the journal is.
        redaction: the rule, or None for the original bytes.
        exported: manifest entries of the members so far, each as JSON: there can be very many.
        damaged: manifest entries of what is no valid file of a journal.
    """

    state_dir: Path
    redaction: Redaction | None
    exported: list[str] = field(default_factory=list)
    damaged: list[dict[str, Any]] = field(default_factory=list)
    _fs: RealFs = field(default_factory=RealFs)
    _segments: int = 0

    def members(self) -> Iterator[Member]:
        """Yield the files in an order that depends on nothing but their names.

        Beside a live agent every file is one that was there at some moment of the export. The archive is read
        last, so that a record that moves there meanwhile is not missed.

        Raises:
            StateDirError: the directory, or one in it, is a symlink, no directory or absent.
            JournalIoError: one of them cannot be read.
        """
        yield from self._folder("", self._root_file, only=(CURSOR, LOCK))
        yield from self._folder(OPS, self._record)
        yield from self._folder(GAPS, self._acknowledgement)
        yield from self._folder(ARCHIVE, self._segment)

    def manifest(self, program: str) -> Member:
        """The manifest of everything yielded so far."""
        document = {
            "schema": MANIFEST_SCHEMA,
            "program": program,
            "redacted": self.redaction is not None,
            "damaged": self.damaged,
        }
        members = ",\n".join(self.exported)
        text = f'{_json(document)[:-1]},"members":[\n{members}\n]}}\n'
        return Member(path=MANIFEST, data=text.encode("utf-8", "backslashreplace"))

    def _folder(
        self,
        folder: str,
        take: Callable[[str, bytes], Iterator[tuple[str, bytes]]],
        *,
        only: tuple[str, ...] | None = None,
    ) -> Iterator[Member]:
        path = self.state_dir / folder
        try:
            fd = open_readable(path)
        except StateDirError:
            if not folder or path.is_symlink() or path.exists():
                raise
            return
        except OSError as error:
            raise JournalIoError(f"{path} cannot be read: {error}") from error
        try:
            for name in sorted(self._fs.list(fd)):
                if is_temporary(name) or (only is not None and name not in only):
                    continue
                yield from self._file(fd, folder, name, take)
        except OSError as error:
            raise JournalIoError(f"{path} cannot be read: {error}") from error
        finally:
            os.close(fd)

    def _file(
        self, fd: int, folder: str, name: str, take: Callable[[str, bytes], Iterator[tuple[str, bytes]]]
    ) -> Iterator[Member]:
        shown = f"{folder}/{name}" if folder else name
        for attempt in (1, 2):
            try:
                original = _Original(path=shown, data=self._fs.read(fd, name, _LIMITS[folder]))
            except FileNotFoundError:
                # A live agent moved it to the archive, which comes later.
                return
            except OSError as error:
                self.damaged.append({"path": self._shown(shown), "problem": describe_read_error(error)})
                return
            try:
                parts = list(take(name, original.data))
            except RecordError as error:
                # A live agent may have replaced it while it was read.
                if attempt == 1:
                    continue
                yield from self._damage(original, error)
                return
            for path, data in parts:
                yield self._note(f"{folder}/{path}" if folder else path, data, original)
            return

    def _damage(self, original: _Original, error: RecordError) -> Iterator[Member]:
        entry = original.members() | {"offset": error.offset, "problem": error.reason}
        self.damaged.append(entry | {"path": self._shown(original.path)})
        if self.redaction is None:
            yield self._note(original.path, original.data, original)

    def _note(self, path: str, data: bytes, original: _Original) -> Member:
        entry = {"path": path, "bytes": len(data), "sha256": sha256(data).hexdigest()}
        self.exported.append(_json(entry | {"original": original.members()}))
        return Member(path=path, data=data)

    def _shown(self, path: str) -> str:
        folder, _, name = path.rpartition("/")
        known = parse_record_name(name) or is_segment(name) or path in (CURSOR, LOCK)
        if self.redaction is None or known:
            return path
        return f"{folder}/{stand_in(name)}"

    def _root_file(self, name: str, data: bytes) -> Iterator[tuple[str, bytes]]:
        if name == LOCK:
            starts = parse_starts(data)
            if self.redaction is not None:
                data = encode_starts(tuple(self.redaction.start(start) for start in starts))
        else:
            cursor = decode_cursor(data)
            if self.redaction is not None:
                data = encode_cursor(self.redaction.cursor(cursor))
        yield name, data

    def _record(self, name: str, data: bytes) -> Iterator[tuple[str, bytes]]:
        if parse_record_name(name) is None:
            raise RecordError("the file's name is not that of a record")
        record = decode_record(data, name=name)
        if self.redaction is None:
            yield name, data
        else:
            yield record_name(record.sequence, self.redaction.key(record.key)), self.redaction.record(record)

    def _acknowledgement(self, name: str, data: bytes) -> Iterator[tuple[str, bytes]]:
        value = decode_acknowledgement(data, name=name)
        if self.redaction is not None:
            data = encode_acknowledgement(self.redaction.acknowledgement(value))
        yield name, data

    def _segment(self, name: str, data: bytes) -> Iterator[tuple[str, bytes]]:
        if not is_segment(name):
            raise RecordError("the file's name is not that of a segment")
        rule = self.redaction
        if rule is None:
            _require_whole(data)
            yield name, data
            return
        parts: list[bytes] = []
        problems: list[dict[str, Any]] = []
        for offset, part in _parts(data):
            try:
                parts.append(rule.record(decode_record(part)))
            except RecordError as error:
                entry = {"bytes": len(part), "sha256": sha256(part).hexdigest(), "problem": error.reason}
                problems.append(entry | {"path": f"{ARCHIVE}/{name}", "offset": offset + error.offset})
        self.damaged += problems[:MAX_LISTED]
        if len(problems) > MAX_LISTED:
            rest = f"{len(problems) - MAX_LISTED} more places cannot be read"
            self.damaged.append({"path": f"{ARCHIVE}/{name}", "problem": rest})
        for segment in _joined(parts):
            self._segments += 1
            yield f"{self._segments:08d}.seg", segment


def _json(value: dict[str, Any]) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


_LIMITS = {"": max(MAX_CURSOR_BYTES, MAX_CONTENT), OPS: MAX_RECORD_BYTES, GAPS: MAX_GAP_BYTES}
_LIMITS[ARCHIVE] = MAX_SEGMENT_BYTES


def _parts(data: bytes) -> Iterator[tuple[int, bytes]]:
    """The files in a segment with their offsets; what follows the last whole one as one more."""
    whole, covered = split_envelopes(Kind.RECORD, data)
    at = 0
    for part in whole:
        yield at, part
        at += len(part)
    if covered < len(data):
        yield covered, data[covered:]


def _require_whole(data: bytes) -> None:
    for offset, part in _parts(data):
        try:
            decode_record(part)
        except RecordError as error:
            raise RecordError(error.reason, offset=offset + error.offset) from None


def _joined(parts: list[bytes]) -> Iterator[bytes]:
    """Segments of at most the allowed size: stand-ins can make records longer."""
    taken: list[bytes] = []
    size = 0
    for part in parts:
        if size + len(part) > MAX_SEGMENT_BYTES:
            yield b"".join(taken)
            taken, size = [], 0
        taken.append(part)
        size += len(part)
    if taken:
        yield b"".join(taken)
