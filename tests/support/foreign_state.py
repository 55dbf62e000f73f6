"""The published agent's files as a test writes them, and a hive that this agent had worked on."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from agent_support import BOOT
from hive_support import DEADLETTER, LEASE_CTL, START_MS, STATUS, admitted, raw_grant, result_line

from ticket_agent.agent.staging import RESULT_STATE
from ticket_agent.agent.takeover import cursor_of, mount_of, records_of, takeover_of
from ticket_agent.cli.foreign_dir import opened, read_state
from ticket_agent.journal.fs import RealFs
from ticket_agent.journal.taking_over import take_over
from ticket_agent.protocol.json_strict import dumps
from ticket_agent.protocol.lease import GrantControl
from ticket_agent.protocol.spec import parse_spec

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from ticket_agent.hive.reference import ReferenceHive
    from ticket_agent.journal.fs import Fs
    from ticket_agent.journal.takeover import Takeover
    from ticket_agent.protocol.spec import HostTicketSpec

STATES = ("prepared", "executing", "provider-result-persisted", "result-published", "terminal")
SCHEMA = "host-ticket-execution-journal/v{}"


def admitted_spec(sequence: int, **changes: Any) -> HostTicketSpec:
    """A lease grant as root admits it under a number."""
    document = {
        "schema": "host-ticket/v2",
        "id": f"t-{sequence}",
        "idempotency_key": f"k-{sequence}",
        "action": "gpu.lease.grant",
        "args": {"ttl_s": 60},
        "receipt_mode": "worker",
        "operation_id": f"lease-{sequence}",
        "subject_ref": "GPU-0",
        "receipt_worker_role": "worker-gpu",
        "receipt_worker_id": "worker-1",
        "receipt_supervisor_generation": 2,
        "receipt_cap_generation": 3,
        "resolved_worker_slot": 0,
        "resolved_lease_epoch": 4,
        "admission_sequence": sequence,
    }
    return parse_spec(dumps(document | changes), source="admitted")


def entry(
    spec: HostTicketSpec,
    state: str,
    *,
    outcome: str = "confirmed",
    message: str = "committed",
    staged: bool = True,
    **changes: Any,
) -> dict[str, Any]:
    """One entry as the agent of the time writes it; ``changes`` replace members, a None removes one."""
    made: dict[str, Any] = {"key": spec.journal_key, "spec": json.loads(spec.encode()), "state": state}
    if STATES.index(state) >= 2:
        made["provider_result"] = {"outcome": outcome, "message": message, "reconciled": False}
        if staged:
            made["result_path"] = STATUS if outcome == "confirmed" else DEADLETTER
            made["result_line"] = result_line(spec, RESULT_STATE[outcome], message)
    made |= changes
    return {name: value for name, value in made.items() if value is not None}


def journal(entries: list[dict[str, Any]], *, through: int | None = None) -> dict[str, Any]:
    """A whole journal: format 3 if there is a fence, else 2."""
    fence = {} if through is None else {"completed_through_admission_sequence": through}
    schema = SCHEMA.format(2 if through is None else 3)
    return {"schema": schema, **fence, "entries": {made["key"]: made for made in entries}}


def write_files(directory: Path, files: Mapping[str, Any]) -> Path:
    """Write files, pretty-printed where they are not text already."""
    directory.mkdir(exist_ok=True)
    for name, content in files.items():
        text = content if isinstance(content, str) else json.dumps(content, indent=2)
        (directory / name).write_text(text, encoding="utf-8")
    return directory


def write_state(
    directory: Path,
    entries: list[dict[str, Any]],
    *,
    through: int | None = None,
    cursor: Mapping[str, int] | None = None,
) -> Path:
    """A directory of the former agent with one lane, at rest."""
    return write_files(
        directory,
        {
            "execution-journal.json": journal(entries, through=through),
            "cursor.json": dict(cursor or {"raw_next_spec_index": 0, "snapshot_next_spec_index": 0}),
            "agent.lock": "pid=4711\n",
        },
    )


def take_in(
    source: Path, state_dir: Path, *, fs: Fs | None = None, clock: Callable[[], int] = lambda: START_MS
) -> Takeover:
    """What `journal import` does, in this process."""
    with opened(source) as fd:
        found = read_state(fd, RealFs())
    mount = mount_of(found.state) or "/host"
    wanted = takeover_of(
        found.state, directory=str(source), sha256=found.sha256, unix_ms=clock(), boot_id=BOOT
    )
    return take_over(
        state_dir,
        takeover=wanted,
        build=lambda begun: records_of(found.state, begun, mount=mount),
        cursor=lambda begun: cursor_of(found.state, begun),
        fs=fs,
    )


@dataclass
class FormerLife:
    """What the former agent did on a hive: real admissions, real effects, real results."""

    hive: ReferenceHive
    entries: list[dict[str, Any]] = field(default_factory=list)
    lines: dict[str, tuple[str, str]] = field(default_factory=dict)
    worker: str | None = None

    def admit(self, ticket: str, *, expires: int | None = None) -> HostTicketSpec:
        """Let root admit a grant of ``lease-<ticket>`` on a Worker of its own."""
        if self.worker is None or self.hive.profile.exclusive_workers:
            self.worker = self.hive.spawn_worker("worker-gpu").worker_id
        worker = self.worker
        self.hive.submit(raw_grant(self.hive, worker, ticket, f"lease-{ticket}", ttl_s=60, expires=expires))
        return admitted(self.hive, ticket)

    def effect(self, spec: HostTicketSpec) -> None:
        """The lease write of a grant."""
        control = GrantControl(
            id=str(spec.operation_id),
            subject=str(spec.receipt_worker_id),
            resource=str(spec.subject_ref),
            ttl_s=60,
            priority=0,
        )
        self.hive.echo(LEASE_CTL, control.encode())

    def publish(self, spec: HostTicketSpec, state: str = "succeeded", message: str = "committed") -> None:
        self.hive.echo(STATUS if state == "succeeded" else DEADLETTER, result_line(spec, state, message))

    def claim(self, spec: HostTicketSpec) -> None:
        """The intermediate results."""
        for state in ("claimed", "running"):
            self.hive.echo(STATUS, result_line(spec, state, state))

    def reach(
        self, ticket: str, state: str, *, applied: bool = True, keep: bool = True, expires: int | None = None
    ) -> HostTicketSpec:
        """Bring a new ticket to a state, as the former agent would have; ``keep`` makes an entry of it."""
        spec = self.admit(ticket, expires=expires)
        reached = STATES.index(state)
        if reached >= 1:
            self.claim(spec)
            if applied:
                self.effect(spec)
        made = entry(spec, state)
        if reached >= 3:
            self.publish(spec)
        if reached >= 2:
            self.lines[ticket] = (made["result_path"], made["result_line"])
        if keep:
            self.entries.append(made)
        return spec
