"""One look of one collector, for commands that publish nothing."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

from ticket_agent.cli.assembly import now_ms

if TYPE_CHECKING:
    from ticket_agent.protocol.snapshot import SnapshotBounds
    from ticket_agent.snapshots.looking import Seen

__all__ = ["look_at"]


def look_at(provider: str, bounds: SnapshotBounds, timeout_s: float) -> Seen:
    """Look once, as a publisher would; a collector that does not come back is left behind."""
    from ticket_agent.protocol.collecting import CollectContext, Deadline  # noqa: PLC0415 - start-up time
    from ticket_agent.snapshots.looking import Look, too_late  # noqa: PLC0415 - start-up time
    from ticket_agent.snapshots.lookouts import Lookouts  # noqa: PLC0415 - start-up time
    from ticket_agent.snapshots.registry import collector_for  # noqa: PLC0415 - start-up time

    began = time.monotonic()
    look = Look(provider=provider, observed_unix_ms=now_ms(), began_s=began, deadline_s=began + timeout_s)
    lookouts = Lookouts({provider: collector_for(provider).collect})
    deadline = Deadline(look.deadline_s, time.monotonic)
    lookouts.start(look, CollectContext(deadline=deadline, bounds=bounds, environ=dict(os.environ)))
    seen = lookouts.wait(timeout_s)
    return seen[0] if seen else too_late(look)
