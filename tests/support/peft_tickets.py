"""PEFT tickets as values and as caller lines, and three roots to perform them on."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from hive_support import raw_ticket
from ticket_lines import ADMITTED, V1, line

from ticket_agent.peft.settings import PeftRoots
from ticket_agent.protocol.spec import HostTicketSpec, parse_spec

if TYPE_CHECKING:
    from pathlib import Path

    from ticket_agent.hive.reference import ReferenceHive


def roots_in(folder: Path, *, make: bool = True) -> PeftRoots:
    """Three roots below a folder, for the account that runs the tests."""
    paths = {name: folder / name for name in ("registry", "export", "adapter")}
    if make:
        for path in paths.values():
            path.mkdir(parents=True, exist_ok=True)
    return PeftRoots(
        registry=paths["registry"],
        export=paths["export"],
        adapter=paths["adapter"],
        owner_uid=os.geteuid(),
    )


def ticket(action: str, subject: str, **args: Any) -> HostTicketSpec:
    """An admitted version-2 ticket."""
    members = ADMITTED | {
        "action": action,
        "args": args,
        "subject_ref": subject,
        "operation_id": "operation-1",
        "receipt_worker_role": "worker-lora",
    }
    return parse_spec(line(members), source="admitted")


def v1_ticket(action: str, args: object = None, **changes: Any) -> HostTicketSpec:
    """A version-1 ticket."""
    return parse_spec(line(V1 | {"action": action, "args": args} | changes), source="raw")


def raw_peft(
    hive: ReferenceHive, worker: str, action: str, subject: str, *, ticket_id: str, **args: Any
) -> str:
    """A caller line for a Worker of the role that these actions need."""
    return raw_ticket(
        hive.worker(worker),
        action,
        ticket_id=ticket_id,
        operation_id=f"op-{ticket_id}",
        subject=subject,
        args=args,
    )
