"""The relay queue of the published Rust agent, read strictly, and what becomes of each of its entries.

That agent keeps ``relay-wal.json`` in two forms. The first has the states ``pending`` and ``delivered``, is
saved only after sending, and brings no results back. The second says ``schema_version`` 2, is saved before
contact, and waits for the peer's terminal result; what else its entries hold is not looked at, because only
the peer's own logs are evidence here.

===================  ===================================================================================
entry                becomes
===================  ===================================================================================
pending              executing: it may have been sent, so the peer is read back and it is not sent again;
                     or prepared, if the operator says that it is to be sent
awaiting_terminal    executing, delivered: the peer's result is awaited
terminal_retained    the same: the result is read from the peer once more
delivered            terminal: nothing is left to do, and the ticket is never relayed again
rejected             the same
===================  ===================================================================================
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from ticket_agent.agent.foreign_journal import ForeignStateError
from ticket_agent.agent.keys import RELAY_FAMILY, relay_key
from ticket_agent.agent.relay.book import RELAY_EPOCH
from ticket_agent.agent.relay.steps import DELIVERED
from ticket_agent.agent.staging import staged_result
from ticket_agent.agent.takeover import FORMER, history_of
from ticket_agent.journal.outcome import TAKEN_OVER, Plan
from ticket_agent.journal.record import ProviderResult, Record, Uncertainty
from ticket_agent.journal.transitions import State
from ticket_agent.protocol.errors import ProtocolError
from ticket_agent.protocol.federation import relayed
from ticket_agent.protocol.json_strict import parse_object
from ticket_agent.protocol.members import DEFAULT_MAX_LINE_BYTES
from ticket_agent.protocol.paths import TicketPaths
from ticket_agent.protocol.spec import parse_spec
from ticket_agent.protocol.tokens import U64_MAX

if TYPE_CHECKING:
    from ticket_agent.journal.takeover import Takeover
    from ticket_agent.protocol.spec import HostTicketSpec

__all__ = ["MAX_WAL_BYTES", "ForeignRelay", "parse_relay_wal", "relay_records_of"]

MAX_WAL_BYTES = 16_777_216
MAX_ENTRIES = 16_384

_FIRST = frozenset({"pending", "delivered"})
_SECOND = _FIRST | {"awaiting_terminal", "terminal_retained", "rejected"}
_ENTRY = frozenset({"seq", "key", "target_hive", "payload", "state", "attempts", "last_error"})


@dataclass(frozen=True, slots=True, kw_only=True)
class ForeignRelay:
    """One entry of the queue.

    Attributes:
        seq: its place.
        state: one of the five states.
        spec: the request before it was relayed: without correlation id, its hop one lower.
        line: the payload as that agent sends it.
    """

    seq: int
    state: str
    spec: HostTicketSpec
    line: str

    @property
    def key(self) -> str:
        """Its name in our journal."""
        return relay_key(self.spec, self.spec.source_hive or "")


def parse_relay_wal(data: bytes) -> tuple[ForeignRelay, ...]:
    """Read the queue, in its order.

    Raises:
        ForeignStateError: any refusal; nothing of the file is taken over then.
    """
    try:
        document = parse_object(data, what="the relay queue", max_bytes=MAX_WAL_BYTES)
    except ProtocolError as error:
        raise ForeignStateError(str(error)) from None
    second = "schema_version" in document
    if second and document["schema_version"] != 2:  # noqa: PLR2004 - the form's own number
        raise ForeignStateError("must be 2", member="schema_version")
    listed = document.get("entries")
    if not isinstance(listed, list) or len(listed) > MAX_ENTRIES:
        raise ForeignStateError(f"must be a list of at most {MAX_ENTRIES}", member="entries")
    found = [_entry(entry, f"entries.{at}", second=second) for at, entry in enumerate(listed)]
    for what, names in (("key", [one.key for one in found]), ("seq", [str(one.seq) for one in found])):
        if len(set(names)) != len(names):
            raise ForeignStateError(f"two entries have the same {what}", member="entries")
    following = document.get("next_seq")
    if type(following) is not int or any(one.seq >= following for one in found):
        raise ForeignStateError("must be a number above that of every entry", member="next_seq")
    return tuple(sorted(found, key=lambda one: one.seq))


def relay_records_of(
    entries: tuple[ForeignRelay, ...], takeover: Takeover, *, mount: str, resend: bool
) -> list[Record]:
    """Our record of every entry.

    Args:
        entries: as they were read.
        takeover: source, time and boot of the takeover.
        mount: where that agent saw the host tree.
        resend: the operator says that pending entries are to be sent.
    """
    return [
        _record(entry, number, takeover, TicketPaths(mount), resend=resend)
        for number, entry in enumerate(entries, start=1)
    ]


def _entry(entry: object, where: str, *, second: bool) -> ForeignRelay:
    if not isinstance(entry, dict):
        raise ForeignStateError("must be an object", member=where)
    for member in entry:
        if not second and member not in _ENTRY:
            raise ForeignStateError("is unknown", member=f"{where}.{member}")
    state, seq = entry.get("state"), entry.get("seq")
    if not isinstance(state, str) or state not in (_SECOND if second else _FIRST):
        raise ForeignStateError("is no state of this form", member=f"{where}.state")
    if type(seq) is not int or not 0 <= seq <= U64_MAX:
        raise ForeignStateError("must be a number", member=f"{where}.seq")
    spec, line = _payload(entry, where)
    return ForeignRelay(seq=seq, state=state, spec=spec, line=line)


def _payload(entry: dict[str, Any], where: str) -> tuple[HostTicketSpec, str]:
    payload = entry.get("payload")
    try:
        sent = parse_spec(payload.encode() if isinstance(payload, str) else b"", source="raw")
    except (ProtocolError, UnicodeEncodeError) as error:
        raise ForeignStateError(f"is refused: {error}", member=f"{where}.payload") from None
    if sent.version != 1 or sent.target_hive is None or sent.relay_hop is None:
        raise ForeignStateError("is no relayed ticket", member=f"{where}.payload")
    if entry.get("target_hive") != sent.target_hive:
        raise ForeignStateError("is not that of the payload", member=f"{where}.target_hive")
    name = f"{sent.id}:{sent.idempotency_key}:{sent.source_hive}:{sent.target_hive}"
    if entry.get("key") != name:
        raise ForeignStateError(f"is not {name[:200]}", member=f"{where}.key")
    hop = sent.relay_hop - 1 or None
    spec = replace(sent, relay_hop=hop, relay_correlation_id=None)
    if relayed(spec, local_hive=sent.source_hive or "").spec != sent:
        raise ForeignStateError("is not what a relay makes of a ticket", member=f"{where}.payload")
    return spec, str(payload)


def _record(
    entry: ForeignRelay, number: int, takeover: Takeover, paths: TicketPaths, *, resend: bool
) -> Record:
    pending = entry.state == "pending"
    ended = entry.state in {"delivered", "rejected"}
    states = [State.PREPARED]
    if not (pending and resend):
        states.append(State.EXECUTING)
    if ended:
        states += [State.PERSISTED, State.TERMINAL]
    plan = Plan(
        before={TAKEN_OVER: takeover.source},
        intent={
            "peer": entry.spec.target_hive,
            "path": paths.spec,
            "line": entry.line,
            DELIVERED: not pending,
        },
    )
    uncertain = Uncertainty(
        since_unix_ms=takeover.unix_ms, detail=f"{FORMER} may have sent it; the peer is not read back yet"
    )
    result = ProviderResult(
        outcome="rejected" if entry.state == "rejected" else "confirmed",
        message=f"{FORMER} had noted it as {entry.state}",
        evidence={TAKEN_OVER: takeover.source},
    )
    begun = State.EXECUTING in states
    return Record(
        key=entry.key,
        family=RELAY_FAMILY,
        epoch=RELAY_EPOCH,
        sequence=number,
        request=entry.spec.encode(),
        state=states[-1],
        history=history_of(states, takeover),
        plan=plan if begun else None,
        uncertain=uncertain if begun and pending else None,
        result=result if ended else None,
        staged=staged_result(entry.spec, result, paths=paths, max_line_bytes=DEFAULT_MAX_LINE_BYTES)
        if ended
        else None,
        withdrawn=f"ended by {FORMER}, which knows whether it published a result" if ended else None,
    )
