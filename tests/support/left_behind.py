"""State directories as a dead agent leaves them: one lease ticket, stopped at a chosen durable state."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from agent_faults import STEPS, DyingAppends, DyingFs, Killed, drop
from agent_support import agent_on
from hive_support import LEASE_CTL, raw_lease

from ticket_agent.protocol.lease import GrantControl, PreemptControl

if TYPE_CHECKING:
    from pathlib import Path

    from hive_support import ManualClock

    from ticket_agent.hive.reference import ConsoleServer, ReferenceHive

LEFT = ("prepared", "executing", "effected", "persisted", "published")
"""How an agent can leave a ticket; ``effected`` is executing with the effect applied and no answer seen."""


def submit(
    hive: ReferenceHive, verb: str = "grant", ticket: str = "t1", *, expires: int | None = None
) -> str:
    """Admit one ticket for a new Worker, with the active lease that it needs; returns the Worker."""
    worker = hive.spawn_worker("worker-gpu").worker_id
    lease = ticket.replace("t", "lease-")
    if verb != "grant":
        grant = GrantControl(id=lease, subject=worker, resource="GPU-0", ttl_s=60, priority=0)
        hive.echo(LEASE_CTL, grant.encode())
    hive.submit(raw_lease(hive, worker, verb, ticket, lease, expires=expires))
    return worker


def leave(server: ConsoleServer, state_dir: Path, left: str, *, clock: ManualClock) -> None:
    """Let an agent serve until it dies with the first ticket so far."""
    step = STEPS.index("executing" if left == "effected" else left)
    fs = None if left == "effected" else DyingFs(step, durable=True)
    with agent_on(server, state_dir, clock=clock, fs=fs) as bench:
        if left == "effected":
            # The third append is the effect, behind `claimed` and `running`.
            dying = DyingAppends(bench.namespace, 2, sent=True)
            bench.namespace.append = dying  # type: ignore[method-assign]
        with suppress(Killed):
            bench.settle()
            raise AssertionError("the agent outlived its ticket")
        drop(bench)


def leave_undecidable(
    hive: ReferenceHive,
    server: ConsoleServer,
    state_dir: Path,
    *,
    clock: ManualClock,
    expires: int | None = None,
) -> None:
    """A renewal whose lease ended before anybody looked: whether it was applied, no record tells."""
    submit(hive, "renew", expires=expires)
    leave(server, state_dir, "effected", clock=clock)
    hive.echo(LEASE_CTL, PreemptControl(id="lease-1", reason="lab").encode())
