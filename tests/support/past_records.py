"""Records with a past of the test's making: when each state was reached, and by which process."""

from __future__ import annotations

from typing import TYPE_CHECKING

from journal_support import FAMILY, ORDER, PLAN, RESULT, STAGED

from ticket_agent.journal.transitions import State
from ticket_agent.journal.values import HistoryEntry, Record, Uncertainty

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ticket_agent.journal.values import ProviderResult

BOOT = "boot-1"


def agent(number: int) -> str:
    """What the process with this number writes into histories."""
    return f"0.1.0+{number:08x}"


def past(
    times: Sequence[int],
    agents: Sequence[str],
    *,
    sequence: int = 1,
    key: str | None = None,
    boots: Sequence[str] | None = None,
    uncertain_since: int | None = None,
    result: ProviderResult = RESULT,
    request: bytes | None = None,
) -> Record:
    """A record that walked through as many states as there are times."""
    reached = ORDER[: len(times)]
    history = tuple(
        HistoryEntry(state=state, unix_ms=time, boot_id=boot, agent=who)
        for state, time, who, boot in zip(reached, times, agents, boots or [BOOT] * len(times), strict=True)
    )
    return Record(
        key=key or f"k{sequence}",
        family=FAMILY,
        epoch=1,
        sequence=sequence,
        request=request or b'{"id":"t%d","action":"act","subject_ref":"s"}' % sequence,
        state=reached[-1],
        history=history,
        plan=PLAN if State.EXECUTING in reached else None,
        uncertain=Uncertainty(since_unix_ms=uncertain_since, detail="the answer was lost")
        if uncertain_since is not None
        else None,
        result=result if State.PERSISTED in reached else None,
        staged=STAGED if State.PERSISTED in reached else None,
    )
