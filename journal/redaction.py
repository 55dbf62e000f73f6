"""A journal without its names: the same operations, states and times, and stand-ins for every name. Pure.

One rule for every text: it is cut into tokens; a token stays if it is a number or a known word, or known
words joined by ``-``, ``.`` or ``_``; any other becomes ``x-`` and the first 16 hex digits of its SHA-256.
Equal names therefore stay equal, wherever they stand. Whoever guesses a name can recognise its stand-in;
nobody can read one off it.

Numbers, times, states, outcomes and the names of members in JSON stay; texts that are JSON are treated member
by member. What would not fit a bound of the journal any more is replaced as a whole, or cut.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, replace
from hashlib import sha256
from typing import TYPE_CHECKING, Any

from ticket_agent.journal.cursor import MAX_EVIDENCE_LINE, Cursor
from ticket_agent.journal.outcome import Plan
from ticket_agent.journal.record import encode_record
from ticket_agent.journal.values import (
    MAX_EVIDENCE_BYTES,
    MAX_KEY_BYTES,
    MAX_LINE_BYTES,
    MAX_PATH_BYTES,
    MAX_PLAN_BYTES,
    MAX_REQUEST_BYTES,
    MAX_TEXT_BYTES,
    HistoryEntry,
    Record,
    StagedResult,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ticket_agent.journal.gaps import Acknowledgement
    from ticket_agent.journal.starts import Start

__all__ = ["Redaction", "stand_in"]

_TOKEN = re.compile(r"[^\s\"'`=:,;(){}\[\]<>|/]+")
_JOINT = re.compile(r"[-._]")
_NUMBER = re.compile(r"[0-9]{1,20}")
_MEMBER = re.compile(r"[a-z][a-z0-9_]{0,39}")
_VERSION = re.compile(r"[0-9][0-9A-Za-z.]{0,40}(\+[0-9a-f]{8})?")


def stand_in(text: str) -> str:
    """What stands for a name."""
    return f"x-{sha256(text.encode('utf-8', 'surrogatepass')).hexdigest()[:16]}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Redaction:
    """The rule with the words that stay."""

    words: frozenset[str]

    def text(self, text: str, *, limit: int | None = None) -> str:
        """Redact one text; cut it to ``limit`` bytes where stand-ins made it longer."""
        shown = _TOKEN.sub(lambda found: self._token(found[0]), text)
        if limit is None or len(shown.encode("utf-8", "surrogatepass")) <= limit:
            return shown
        return shown.encode()[:limit].decode("utf-8", "ignore").strip() or stand_in(text)

    def _token(self, token: str) -> str:
        if _NUMBER.fullmatch(token) or token in self.words or not any(map(str.isalnum, token)):
            return token
        # Commas and full stops that end a sentence's word belong to the sentence.
        bare = token.rstrip(".!?")
        if bare != token and bare:
            return self._token(bare) + token[len(bare) :]
        parts = _JOINT.split(token)
        if len(parts) > 1 and all(part in self.words for part in parts):
            return token
        return stand_in(token)

    def value(self, value: Any) -> Any:
        """Redact whatever JSON can hold."""
        if isinstance(value, str):
            return self.document(value)
        if isinstance(value, list):
            return [self.value(item) for item in value]
        if isinstance(value, dict):
            return {self._member(name): self.value(item) for name, item in value.items()}
        return value

    def document(self, text: str) -> str:
        """Redact a text that may be JSON."""
        if text[:1] in ("{", "["):
            try:
                value = json.loads(text)
            except (ValueError, RecursionError):
                return self.text(text)
            return json.dumps(self.value(value), ensure_ascii=False, separators=(",", ":"))
        return self.text(text)

    def _member(self, name: str) -> str:
        return name if _MEMBER.fullmatch(name) else stand_in(name)

    def record(self, record: Record) -> bytes:
        """Return the file of the record without its names."""
        plan = record.plan
        changed = replace(
            record,
            key=self.key(record.key),
            family=self._whole_if_long(record.family, 64),
            request=_document_within(self, record.request.decode(), MAX_REQUEST_BYTES).encode(),
            history=tuple(self._entry(entry) for entry in record.history),
            plan=self._plan(plan) if plan is not None else None,
            uncertain=replace(
                record.uncertain, detail=self.text(record.uncertain.detail, limit=MAX_TEXT_BYTES)
            )
            if record.uncertain is not None
            else None,
            result=replace(
                record.result,
                message=self.text(record.result.message, limit=MAX_TEXT_BYTES),
                evidence=self._members_within(record.result.evidence, MAX_EVIDENCE_BYTES),
            )
            if record.result is not None
            else None,
            staged=self._staged(record.staged) if record.staged is not None else None,
            withdrawn=self.text(record.withdrawn, limit=MAX_TEXT_BYTES)
            if record.withdrawn is not None
            else None,
        )
        return encode_record(changed)

    def key(self, key: str) -> str:
        """What stands for an operation's key."""
        return self._whole_if_long(key, MAX_KEY_BYTES)

    def _whole_if_long(self, text: str, limit: int) -> str:
        shown = self.text(text)
        return shown if len(shown.encode()) <= limit else stand_in(text)

    def _entry(self, entry: HistoryEntry) -> HistoryEntry:
        return replace(entry, boot_id=stand_in(entry.boot_id), agent=_version(entry.agent))

    def _plan(self, plan: Plan) -> Plan:
        both = self._members_within({"before": plan.before, "intent": plan.intent}, MAX_PLAN_BYTES)
        return Plan(before=both.get("before", both), intent=both.get("intent", both))

    def _members_within(self, members: Mapping[str, Any], limit: int) -> dict[str, Any]:
        changed = {self._member(name): self.value(value) for name, value in members.items()}
        text = json.dumps(changed, ensure_ascii=False, separators=(",", ":"))
        return changed if len(text.encode()) <= limit else {"redacted": stand_in(text)}

    def _staged(self, staged: StagedResult) -> StagedResult:
        path = self.text(staged.path)
        if len(path.encode()) > MAX_PATH_BYTES:
            path = f"/{stand_in(staged.path)}"
        return StagedResult(path=path, line=_document_within(self, staged.line, MAX_LINE_BYTES))

    def cursor(self, cursor: Cursor) -> Cursor:
        """Return the cursor without names; the digest of the last line is replaced by a digest of it."""
        held, mark = cursor.held, cursor.mark
        return replace(
            cursor,
            epochs=tuple(
                replace(epoch, evidence=self.text(epoch.evidence, limit=MAX_EVIDENCE_LINE))
                for epoch in cursor.epochs
            ),
            mark=replace(mark, sha256=sha256(mark.sha256.encode()).hexdigest()) if mark is not None else None,
            ends={self._whole_if_long(log, MAX_TEXT_BYTES): end for log, end in cursor.ends.items()},
            held=replace(held, reason=self.text(held.reason, limit=MAX_TEXT_BYTES))
            if held is not None
            else None,
        )

    def acknowledgement(self, value: Acknowledgement) -> Acknowledgement:
        """Return an acknowledgement without the name and the names in the reason."""
        return replace(
            value,
            reason=self.text(value.reason, limit=MAX_TEXT_BYTES),
            by=self.text(value.by, limit=MAX_TEXT_BYTES),
        )

    def start(self, start: Start) -> Start:
        """Return a start without its process id and its boot's identity."""
        return replace(
            start,
            pid=0,
            boot_id=stand_in(start.boot_id),
            agent=_version(start.agent) if start.agent is not None else None,
        )


def _version(agent: str) -> str:
    return agent if _VERSION.fullmatch(agent) else stand_in(agent)


def _document_within(rule: Redaction, text: str, limit: int) -> str:
    shown = rule.document(text)
    if len(shown.encode("utf-8", "surrogatepass")) <= limit and _is_text(shown):
        return shown
    return json.dumps({"redacted": stand_in(text)})


def _is_text(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
