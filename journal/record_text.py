"""A record as the JSON text of its file.

An operation is written five times, and most of it stays the same: the request, then the plan, then the
result. Such a part is encoded once and taken over as text while the value in the record is the same object.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ticket_agent.journal.envelope import encode_json
from ticket_agent.journal.errors import RecordError

if TYPE_CHECKING:
    from collections.abc import Callable

    from ticket_agent.journal.outcome import Plan
    from ticket_agent.journal.values import HistoryEntry, ProviderResult, Record, StagedResult, Uncertainty

__all__ = ["Parts", "plan_members", "record_text"]

Parts = dict[str, tuple[Any, str]]
"""By member: the value that was encoded, and its text."""


def record_text(record: Record, parts: Parts) -> str:
    """Return the text, the members in the order of the format.

    Args:
        record: what is written.
        parts: what was encoded for this operation before; brought up to date. Empty for a first time.

    Raises:
        RecordError: a value cannot be written as JSON.
    """
    members = [
        f'"key":{encode_json(record.key)},"family":{encode_json(record.family)}',
        f'"epoch":{record.epoch},"sequence":{record.sequence},"state":"{record.state.value}"',
        _part(parts, "request", record.request, _request),
    ]
    if record.plan is not None:
        members.append(_part(parts, "plan", record.plan, _plan))
    if record.uncertain is not None:
        members.append(_part(parts, "uncertain", record.uncertain, _uncertain))
    if record.result is not None:
        members.append(_part(parts, "result", record.result, _result))
    if record.staged is not None:
        members.append(_part(parts, "staged", record.staged, _staged))
    if record.withdrawn is not None:
        members.append(f'"withdrawn":{encode_json(record.withdrawn)}')
    members.append(_history(parts, record.history))
    return f"{{{','.join(members)}}}"


def plan_members(plan: Plan) -> dict[str, Any]:
    """A plan as the object that stands in a record."""
    return {"before": plan.before, "intent": plan.intent}


def _part(parts: Parts, name: str, value: Any, encode: Callable[[Any], str]) -> str:
    known = parts.get(name)
    if known is not None and known[0] is value:
        return known[1]
    text = f'"{name}":{encode(value)}'
    parts[name] = (value, text)
    return text


def _history(parts: Parts, history: tuple[HistoryEntry, ...]) -> str:
    known, text = parts.get("history", ((), ""))
    if history[: len(known)] != known:
        known, text = (), ""
    added = ",".join([_entry(entry) for entry in history[len(known) :]])
    text = f"{text},{added}" if text and added else text or added
    parts["history"] = (history, text)
    return f'"history":[{text}]'


# Encoding a string alone is several times faster than encoding an object that holds it.


def _request(request: bytes) -> str:
    try:
        return encode_json(request.decode())
    except UnicodeDecodeError:
        raise RecordError("request must be UTF-8") from None


def _plan(plan: Plan) -> str:
    return encode_json(plan_members(plan))


def _uncertain(uncertain: Uncertainty) -> str:
    return f'{{"since_unix_ms":{uncertain.since_unix_ms},"detail":{encode_json(uncertain.detail)}}}'


def _result(result: ProviderResult) -> str:
    return encode_json(
        {
            "outcome": result.outcome,
            "message": result.message,
            "reconciled": result.reconciled,
            "evidence": result.evidence,
        }
    )


def _staged(staged: StagedResult) -> str:
    return f'{{"path":{encode_json(staged.path)},"line":{encode_json(staged.line)}}}'


def _entry(entry: HistoryEntry) -> str:
    boot_id, agent = encode_json(entry.boot_id), encode_json(entry.agent)
    reached = f'"state":"{entry.state.value}","unix_ms":{entry.unix_ms}'
    return f'{{{reached},"boot_id":{boot_id},"agent":{agent}}}'
