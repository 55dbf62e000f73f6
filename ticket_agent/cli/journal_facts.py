"""The facts that recovery would decide by: assumed offline, or read from the hive. Nothing is written."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ticket_agent.cli.assembly import console, exit_of_hive, now_ms, provider_table
from ticket_agent.cli.output import fail
from ticket_agent.exits import Exit
from ticket_agent.journal.explain import FactName, Known
from ticket_agent.journal.recovery import Admission, Facts, Visible
from ticket_agent.journal.transitions import State

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ticket_agent.agent.feed import Look
    from ticket_agent.agent.providers import ProviderTable
    from ticket_agent.agent.streams import ResultStreams
    from ticket_agent.config import AgentConfig
    from ticket_agent.journal.cursor import Cursor
    from ticket_agent.journal.outcome import Outcome
    from ticket_agent.journal.record import Record
    from ticket_agent.protocol.namespace import Namespace
    from ticket_agent.protocol.spec import HostTicketSpec

__all__ = ["Found", "HiveFacts", "hive_facts", "observed", "offline_facts", "parsed_request"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """Facts of one operation, how each is known, and the observation if one was made."""

    facts: Facts
    known: dict[FactName, Known]
    outcome: Outcome | None = None


def parsed_request(record: Record) -> HostTicketSpec:
    """The request of a record; one that this version does not understand ends the command."""
    from ticket_agent.agent.operation import spec_of  # noqa: PLC0415 - pydantic
    from ticket_agent.protocol.errors import ProtocolError  # noqa: PLC0415 - start-up time

    try:
        return spec_of(record)
    except ProtocolError as error:
        fail(
            f"{record.key}: its request cannot be parsed, so the agent leaves it alone: {error}", Exit.FAILURE
        )


def offline_facts(record: Record, cursor: Cursor) -> Found:
    """What is known without the hive; a later epoch in the cursor proves the admission forgotten."""
    from ticket_agent.agent.keys import outlives_epochs  # noqa: PLC0415 - start-up time

    over = record.epoch < cursor.epoch and not outlives_epochs(record.family)
    return Found(
        facts=Facts(
            now_unix_ms=now_ms(),
            expires_unix_ms=parsed_request(record).expires_unix_ms,
            visible=Visible.NONE,
            admission=Admission.FORGOTTEN if over else Admission.KNOWN,
        ),
        known={
            FactName.VISIBLE: Known.RECORDED if over else Known.ASSUMED,
            FactName.ADMISSION: Known.RECORDED if over else Known.ASSUMED,
            FactName.EXPIRED: Known.RECORDED,
        },
    )


@contextlib.contextmanager
def hive_facts(config: AgentConfig, cursor: Cursor) -> Iterator[HiveFacts]:
    """Facts from the configured hive; an error of the hive ends the command with its documented code."""
    from ticket_agent.protocol.errors import ProtocolError  # noqa: PLC0415 - start-up time
    from ticket_agent.protocol.namespace import HiveError  # noqa: PLC0415 - start-up time

    namespace = console(config)
    try:
        yield HiveFacts(config, namespace, cursor)
    except HiveError as error:
        fail(str(error), exit_of_hive(error))
    except ProtocolError as error:
        fail(f"the hive wrote what no hive should: {error}", Exit.FAILURE)
    finally:
        namespace.close()


class HiveFacts:
    """One look at a hive, by reads only, from which the facts of any number of operations follow.

    Raises:
        HiveError: a read failed.
        ProtocolError: root broke the format of one of its records.
    """

    def __init__(self, config: AgentConfig, namespace: Namespace, cursor: Cursor) -> None:
        import time  # noqa: PLC0415 - only here

        from ticket_agent.agent.feed import Feed  # noqa: PLC0415 - start-up time
        from ticket_agent.agent.streams import ResultStreams  # noqa: PLC0415 - start-up time
        from ticket_agent.protocol.paths import TicketPaths  # noqa: PLC0415 - start-up time

        paths = TicketPaths(config.mount)
        feed = Feed(namespace, paths, monotonic=time.monotonic)
        look = feed.look()
        self.callers = look.callers if look is not None else ()
        """Lines of the callers' log."""
        self._namespace = namespace
        self._has_current = feed.features().current
        self._streams: ResultStreams = ResultStreams(namespace, paths)
        self._streams.refresh()
        rebooted = look is not None and _rebooted(look, cursor)
        self.epoch = cursor.epoch + 1 if rebooted else cursor.epoch
        """The hive's life by the evidence of this look: the cursor's, or the one behind it."""
        self._providers = provider_table(config, namespace, epoch=lambda: self.epoch, looks_only=True)

    def of(self, record: Record) -> Found:
        """The facts of one operation; an executing one is observed."""
        spec = parsed_request(record)
        from ticket_agent.agent.keys import outlives_epochs  # noqa: PLC0415 - start-up time

        over = record.epoch < self.epoch and not outlives_epochs(record.family)
        visible = Visible.NONE if over else self._visible(record, spec)
        facts = Facts(
            now_unix_ms=now_ms(),
            expires_unix_ms=spec.expires_unix_ms,
            visible=visible,
            admission=Admission.FORGOTTEN if over else self._admission(record, spec),
        )
        asked = over or self._asks_root(record)
        return Found(
            facts=facts,
            known={
                FactName.VISIBLE: Known.READ,
                FactName.ADMISSION: Known.READ if asked else Known.ASSUMED,
                FactName.EXPIRED: Known.RECORDED,
            },
            outcome=observed(self._providers, record, spec) if record.state is State.EXECUTING else None,
        )

    def _visible(self, record: Record, spec: HostTicketSpec) -> Visible:
        seen = Visible.NONE
        staged = record.staged
        for path, result in self._streams.terminal(spec.key):
            if not result.echoes(spec):
                continue
            if staged is not None and path == staged.path and result.encode() == staged.line.encode("utf-8"):
                return Visible.EXACT
            seen = Visible.OTHER
        return seen

    def _asks_root(self, record: Record) -> bool:
        from ticket_agent.agent.keys import V2_FAMILY  # noqa: PLC0415 - start-up time

        return self._has_current and record.family == V2_FAMILY

    def _admission(self, record: Record, spec: HostTicketSpec) -> Admission:
        from ticket_agent.agent.readiness import read_current  # noqa: PLC0415 - start-up time

        if not self._asks_root(record):
            return Admission.KNOWN
        current = read_current(self._namespace, spec)
        known = current is not None and current.admission == spec.admission_sequence
        return Admission.KNOWN if known else Admission.FORGOTTEN


def observed(providers: ProviderTable, record: Record, spec: HostTicketSpec) -> Outcome:
    """What the observer of an executing operation answers now; an error of it leaves the outcome unknown."""
    from ticket_agent.journal.outcome import Unknown  # noqa: PLC0415 - start-up time

    if record.plan is None:
        return Unknown("the record holds no plan to observe")
    try:
        return providers.provider_of(record, spec).observe(record.plan)
    except Exception as error:  # noqa: BLE001 - as in the agent
        return Unknown(f"{type(error).__name__} while observing: {error}")


def _rebooted(look: Look, cursor: Cursor) -> bool:
    """Whether the hive began another life since the cursor was saved."""
    from ticket_agent.agent.admission import Consumed, StreamView, Verdict, classify  # noqa: PLC0415
    from ticket_agent.protocol.errors import ProtocolError  # noqa: PLC0415 - start-up time
    from ticket_agent.protocol.spec import parse_spec  # noqa: PLC0415 - pydantic

    def sequence(line: str) -> int | None:
        try:
            return parse_spec(line.encode("utf-8"), source="admitted").admission_sequence
        except ProtocolError:
            return None

    mark = cursor.mark
    consumed = None
    if mark is not None:
        consumed = Consumed(
            sequence=mark.sequence, sha256=mark.sha256, offset=mark.offset, length=mark.length
        )
    snapshot = look.retention.get("spec.snapshot")
    view = StreamView(
        lines=look.admitted,
        sequences=[sequence(line) for line in look.admitted],
        base=None if snapshot is None else snapshot.base,
        ends={leaf: retention.next for leaf, retention in look.retention.items()},
    )
    return classify(consumed, cursor.ends, view).verdict is Verdict.NEW_EPOCH
