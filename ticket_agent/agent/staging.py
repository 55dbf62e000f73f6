"""Result lines of a ticket and where they go: fixed here once, from the admitted request alone."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ticket_agent.journal.record import StagedResult
from ticket_agent.protocol.result import build_result, stream_of_state

if TYPE_CHECKING:
    from ticket_agent.journal.record import ProviderResult
    from ticket_agent.protocol.paths import TicketPaths
    from ticket_agent.protocol.spec import HostTicketSpec

__all__ = ["RESULT_STATE", "result_line", "staged_result", "stream_path"]

RESULT_STATE = {"confirmed": "succeeded", "rejected": "failed", "stale": "expired"}
"""Result state of each provider outcome (host tickets, recovery: outcome to state)."""


def staged_result(
    spec: HostTicketSpec, result: ProviderResult, *, paths: TicketPaths, max_line_bytes: int
) -> StagedResult:
    """The exact terminal line of an outcome and the stream it belongs to."""
    state = RESULT_STATE[result.outcome]
    line = result_line(spec, state, result.message, max_line_bytes=max_line_bytes)
    return StagedResult(path=stream_path(paths, state), line=line)


def result_line(spec: HostTicketSpec, state: str, message: str, *, max_line_bytes: int) -> str:
    """One result line, without its newline."""
    return build_result(spec, state=state, message=message, max_line_bytes=max_line_bytes).decode("utf-8")


def stream_path(paths: TicketPaths, state: str) -> str:
    """Path of the stream that results of this state go to."""
    return paths.stream(stream_of_state(state))
