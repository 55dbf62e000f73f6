"""An operation as the `journal` commands show it, and how they find one by a name."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from ticket_agent.cli.assembly import now_ms
from ticket_agent.cli.output import age, fail, plain, state_text
from ticket_agent.exits import Exit

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ticket_agent.journal.record import Record

__all__ = ["HEADERS", "brief", "find", "full", "is_uncertain", "ordered", "request_of", "row"]

HEADERS = ["SEQ", "EPOCH", "TICKET", "ACTION", "SUBJECT", "STATE", "OUTCOME", "CHANGED"]


def request_of(record: Record) -> dict[str, Any]:
    """The request's members for display; the record's bytes stay the truth."""
    try:
        document = json.loads(record.request)
    except (ValueError, RecursionError):
        return {}
    return document if isinstance(document, dict) else {}


def is_uncertain(record: Record) -> bool:
    """Whether the outcome of an open operation was noted as unknown."""
    return record.outcome_unknown


def ordered(records: Iterable[Record]) -> list[Record]:
    """Oldest admission first."""
    return sorted(records, key=lambda record: (record.epoch, record.family, record.sequence))


def row(record: Record) -> list[str]:
    """One line of the table under :data:`HEADERS`."""
    request = request_of(record)
    return [
        str(record.sequence),
        str(record.epoch),
        plain(str(request.get("id", record.key))),
        plain(str(request.get("action", "?"))),
        plain(_subject(record, request)),
        state_text("uncertain" if is_uncertain(record) else record.state.value),
        state_text(record.result.outcome) if record.result is not None else "-",
        age(record.changed_unix_ms, now_ms()),
    ]


def _subject(record: Record, request: dict[str, Any]) -> str:
    """What the effect is on; of a relayed ticket where it goes."""
    if record.key.startswith("relay/"):
        return f"to {request.get('target_hive', '?')}"
    return str(request.get("subject_ref", "-"))


def brief(record: Record) -> dict[str, Any]:
    """The members of an operation in a list."""
    request = request_of(record)
    return {
        "key": record.key,
        "family": record.family,
        "epoch": record.epoch,
        "sequence": record.sequence,
        "id": request.get("id"),
        "action": request.get("action"),
        "subject": request.get("subject_ref"),
        "worker": request.get("receipt_worker_id"),
        "target_hive": request.get("target_hive"),
        "state": record.state.value,
        "uncertain": is_uncertain(record),
        "outcome": record.result.outcome if record.result is not None else None,
        "changed_unix_ms": record.changed_unix_ms,
    }


def full(record: Record) -> dict[str, Any]:
    """Everything that the record holds."""
    more: dict[str, Any] = {
        "file": record.name,
        "request": record.request.decode("utf-8", "replace"),
        "history": [
            {
                "state": entry.state.value,
                "unix_ms": entry.unix_ms,
                "boot_id": entry.boot_id,
                "agent": entry.agent,
            }
            for entry in record.history
        ],
        "plan": {"before": record.plan.before, "intent": record.plan.intent}
        if record.plan is not None
        else None,
        "uncertain_since": record.uncertain.since_unix_ms if record.uncertain is not None else None,
        "uncertain_detail": record.uncertain.detail if record.uncertain is not None else None,
        "result": (
            {
                "outcome": record.result.outcome,
                "message": record.result.message,
                "reconciled": record.result.reconciled,
                "evidence": record.result.evidence,
            }
            if record.result is not None
            else None
        ),
        "staged": {"path": record.staged.path, "line": record.staged.line}
        if record.staged is not None
        else None,
        "withdrawn": record.withdrawn,
        "resolved": _resolved(record),
    }
    return brief(record) | more


def _resolved(record: Record) -> dict[str, Any] | None:
    """Who ended the operation by hand, when, as what and why."""
    from ticket_agent.journal.resolution import resolution_of  # noqa: PLC0415 - start-up time

    resolution = resolution_of(record)
    if resolution is None:
        return None
    return {name: getattr(resolution, name) for name in ("said", "by", "unix_ms", "reason", "observed")}


_SHOWN = 5
"""Most candidates named for an ambiguous OPERATION."""


def find(records: list[Record], wanted: str) -> Record:
    """The one operation of this sequence, id, key or beginning; none or several end the command."""
    exact = [r for r in records if wanted in {r.key, request_of(r).get("id")} or str(r.sequence) == wanted]
    found = exact or [
        r for r in records if r.key.startswith(wanted) or str(request_of(r).get("id", "")).startswith(wanted)
    ]
    if not found:
        fail(f"no operation `{wanted}` in this journal; `ticket-agent journal list` shows them", Exit.FAILURE)
    if len(found) > 1:
        names = ", ".join(record.key for record in found[:_SHOWN]) + (", ..." if len(found) > _SHOWN else "")
        fail(f"`{wanted}` fits {len(found)} operations ({names}); give one whole key", Exit.FAILURE)
    return found[0]
