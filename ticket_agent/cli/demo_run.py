"""What the demo does, apart from how it is shown: hive, submitter, agent process, kill, books."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import secrets
import signal
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ticket_agent.cli.assembly import now_ms
from ticket_agent.cli.demo_peft import PEFT_STEPS, PeftStory
from ticket_agent.hive.reference import ConsoleServer, Fault, FaultKind, Faults, ReferenceHive, RefusalError
from ticket_agent.journal.view import read_journal
from ticket_agent.peft.errors import PeftError
from ticket_agent.protocol.paths import LEASE_CTL

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

__all__ = ["Books", "DemoError", "DemoRun", "Row"]

DEADLINE_S = 90.0
"""The demo gives up after this long; it usually takes a few seconds."""

TOKEN_VARIABLE = "TICKET_AGENT_DEMO_TOKEN"  # noqa: S105 - the name of a variable, not a secret
STEPS = ("gpu.lease.grant", "gpu.lease.renew", "gpu.lease.release")


class DemoError(Exception):
    """The demo could not come to its end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One ticket at the end: what the journal says, and what the hive and the kernel counted."""

    sequence: int
    ticket: str
    action: str
    states: tuple[str, ...]
    outcome: str
    receipt: str
    effects: int
    results: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Books:
    """Every ticket, checked against counts that the agent has no part in.

    The hive counts the lease lines that it applied; the kernel, what was renamed into place.
    """

    rows: tuple[Row, ...]
    kills: int

    @property
    def dispatched(self) -> int:
        """Tickets whose side effect happened."""
        return sum(row.effects > 0 for row in self.rows)

    @property
    def repeated(self) -> int:
        """Side effects beyond the first of a ticket."""
        return sum(max(row.effects - 1, 0) for row in self.rows)

    @property
    def kept_promise(self) -> bool:
        """Whether every ticket has one effect, one terminal result and a confirmed receipt."""
        return all(
            row.effects == 1
            and row.results == 1
            and row.receipt == "confirmed"
            and row.states[-1] == "terminal"
            for row in self.rows
        )

    def summary(self) -> dict[str, Any]:
        """The last line of ``demo --json``."""
        return {
            "tickets": len(self.rows),
            "terminal": sum(row.states[-1] == "terminal" for row in self.rows),
            "dispatched": self.dispatched,
            "repeated": self.repeated,
            "confirmed": sum(row.receipt == "confirmed" for row in self.rows),
            "results": sum(row.results for row in self.rows),
            "kills": self.kills,
        }


class DemoRun:
    """One performance of the demo."""

    def __init__(
        self,
        *,
        state_dir: Path,
        roots_dir: Path | None,
        workers: int,
        show: Callable[[dict[str, Any]], None],
    ) -> None:
        """Prepare the hive.

        Args:
            state_dir: where the agent keeps its journal.
            roots_dir: where directories for an adapter can be made; None leaves the adapter out.
            workers: how many Workers submit lease tickets.
            show: is told every event.
        """
        self._state_dir = state_dir
        self._roots_dir = roots_dir
        self._show = show
        self._token = secrets.token_hex(16)
        self._hive = ReferenceHive(clock=now_ms, gpus=tuple(f"GPU-{number}" for number in range(workers)))
        self._workers = [self._hive.spawn_worker("worker-gpu") for _ in range(workers)]
        self._todo = {worker.worker_id: list(STEPS) for worker in self._workers}
        self._events: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
        self._ended = 0
        self._kills = 0
        self._answer_may_go = threading.Event()
        self._kill_asked = False

    def perform(self) -> Books:
        """Run to the end.

        Raises:
            DemoError: the agent ended unexpectedly, or not every ticket ended in time.
        """
        with (
            self._told() as story,
            ConsoleServer(self._hive, token=self._token, faults=self._faults()) as server,
        ):
            count = len(self._workers) + (story is not None)
            self._say("hive", f"reference hive on 127.0.0.1:{server.port}, {count} READY Workers")
            agent = self._start(server.port, story)
            try:
                agent = self._pump(agent, server.port, story)
                self._stop(agent)
            finally:
                self._answer_may_go.set()
                self._end(agent)
            return self._books(story)

    @contextlib.contextmanager
    def _told(self) -> Iterator[PeftStory | None]:
        if self._roots_dir is None:
            yield None
            return
        try:
            story = PeftStory(self._hive, self._roots_dir)
        except (PeftError, OSError) as error:
            text = f"directories for the adapter cannot be made, see --leases-only: {error}"
            raise DemoError(text) from error
        with story:
            yield story

    # -- hive ------------------------------------------------------------------------------------------------

    def _faults(self) -> Faults:
        """Applied, and then no answer: the moment at which nobody can tell. It happens once, at a renewal."""
        faults = Faults(
            Fault(
                kind=FaultKind.DELAY_ANSWER,
                verb="ECHO",
                prefix=LEASE_CTL,
                predicate=_is_renewal,
                nth=1,
                seconds=DEADLINE_S,
                event=self._answer_may_go,
            )
        )
        faults.on_applied(self._applied)
        return faults

    def _applied(self, path: str, line: str) -> None:
        if path == LEASE_CTL and _is_renewal(line) and not self._kill_asked:
            self._kill_asked = True
            self._events.put({"event": "kill-now"})

    def _submit_what_can_be(self, story: PeftStory | None) -> None:
        # A refusal is "busy": an earlier ticket of the Worker is still open.
        for number, worker in enumerate(self._workers):
            todo = self._todo[worker.worker_id]
            if not todo:
                continue
            with contextlib.suppress(RefusalError):
                self._hive.submit(self._request(worker.worker_id, number, todo[0]))
                todo.pop(0)
        request = None if story is None else story.next_request()
        if story is not None and request is not None:
            with contextlib.suppress(RefusalError):
                self._hive.submit(request)
                story.submitted()

    def _request(self, worker_id: str, number: int, action: str) -> str:
        worker = self._hive.worker(worker_id)
        name = f"{action.rsplit('.', 1)[1]}-{number}"
        arguments: dict[str, Any] = {"reason": "demo-over"} if action.endswith("release") else {"ttl_s": 60}
        return json.dumps(
            {
                "schema": "host-ticket/v2",
                "id": name,
                "idempotency_key": f"demo-{name}",
                "action": action,
                "args": arguments,
                "receipt_mode": "worker",
                "operation_id": f"lease-{number}",
                "subject_ref": f"GPU-{number}",
                "receipt_worker_role": "worker-gpu",
                "receipt_worker_id": worker_id,
                "receipt_supervisor_generation": worker.supervisor_generation,
                "receipt_cap_generation": worker.cap_generation,
            },
            separators=(",", ":"),
        )

    # -- agent -----------------------------------------------------------------------------------------------

    def _start(self, port: int, story: PeftStory | None) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "ticket_agent", "run", "--state-dir", str(self._state_dir)]
        command += ["--tcp-port", str(port), "--auth-token", f"env:{TOKEN_VARIABLE}", "--log-format", "json"]
        command += [] if story is None else story.options
        agent = subprocess.Popen(  # noqa: S603 - our own command line
            command,
            env=os.environ | {TOKEN_VARIABLE: self._token},
            stderr=subprocess.PIPE,
            text=True,
        )
        threading.Thread(target=self._read_events, args=(agent,), daemon=True).start()
        return agent

    def _read_events(self, agent: subprocess.Popen[str]) -> None:
        if agent.stderr is None:
            return
        with agent.stderr as stream:
            for line in stream:
                try:
                    event = json.loads(line)
                except ValueError:
                    event = {
                        "event": "message",
                        "unix_ms": now_ms(),
                        "detail": line.strip().removeprefix("ticket-agent: "),
                    }
                self._events.put(event)
        self._events.put({"event": "agent-gone", "pid": agent.pid})

    def _pump(
        self, agent: subprocess.Popen[str], port: int, story: PeftStory | None
    ) -> subprocess.Popen[str]:
        """Submit, show and kill until every ticket has ended; returns the agent that is alive then."""
        wanted = len(self._workers) * len(STEPS) + (0 if story is None else len(PEFT_STEPS))
        deadline = time.monotonic() + DEADLINE_S
        while self._ended < wanted:
            self._submit_what_can_be(story)
            if time.monotonic() > deadline:
                raise DemoError(f"only {self._ended} of {wanted} tickets ended within {DEADLINE_S:.0f} s")
            try:
                event = self._events.get(timeout=0.05)
            except queue.Empty:
                continue
            if event["event"] == "kill-now":
                agent = self._kill_and_restart(agent, port, story)
            elif event["event"] == "agent-gone":
                if event["pid"] == agent.pid:
                    raise DemoError(f"the agent ended by itself with exit code {agent.wait()}")
            elif event["event"] == "message":
                raise DemoError(event["detail"])
            else:
                self._ended += event["event"] == "transition" and event["state"] == "terminal"
                self._show(event)
        return agent

    def _kill_and_restart(
        self, agent: subprocess.Popen[str], port: int, story: PeftStory | None
    ) -> subprocess.Popen[str]:
        agent.kill()
        agent.wait()
        self._kills += 1
        self._answer_may_go.set()
        self._say(
            "killed", f"SIGKILL to agent {agent.pid}: its lease write was applied, the answer never arrived"
        )
        fresh = self._start(port, story)
        self._say("restarted", f"agent {fresh.pid} on the same journal")
        return fresh

    @staticmethod
    def _stop(agent: subprocess.Popen[str]) -> None:
        agent.send_signal(signal.SIGTERM)
        try:
            code = agent.wait(DEADLINE_S)
        except subprocess.TimeoutExpired:
            raise DemoError(f"the agent did not end within {DEADLINE_S:.0f} s") from None
        if code != 0:
            raise DemoError(f"the agent ended with exit code {code}")

    @staticmethod
    def _end(agent: subprocess.Popen[str]) -> None:
        if agent.poll() is None:
            agent.kill()
            agent.wait()

    def _say(self, event: str, detail: str) -> None:
        self._show({"event": event, "unix_ms": now_ms(), "detail": detail})

    # -- books -----------------------------------------------------------------------------------------------

    def _books(self, story: PeftStory | None) -> Books:
        receipts = {view.sequence: view.outcome or "none" for view in self._hive.admissions()}
        rows = []
        for record in sorted(
            read_journal(self._state_dir).records.values(), key=lambda record: record.sequence
        ):
            request = json.loads(record.request)
            key = (request["id"], request["idempotency_key"])
            rows.append(
                Row(
                    sequence=record.sequence,
                    ticket=request["id"],
                    action=request["action"],
                    states=tuple(entry.state.value for entry in record.history),
                    outcome=record.result.outcome if record.result is not None else "none",
                    receipt=str(receipts.get(record.sequence, "none")),
                    effects=story.effects_of(request["action"])
                    if story is not None and request["action"] in PEFT_STEPS
                    else self._effects_of(request["action"], request["operation_id"]),
                    results=len(self._hive.terminal_lines(key)),
                )
            )
        return Books(rows=tuple(rows), kills=self._kills)

    def _effects_of(self, action: str, lease_id: str) -> int:
        operation = {"grant": "grant", "renew": "renew", "release": "preempt"}[action.rsplit(".", 1)[1]]
        return sum(
            count
            for effect, count in self._hive.effects.items()
            if effect.subject == lease_id and effect.kind.startswith(operation)
        )


def _is_renewal(line: str) -> bool:
    return '"renew-bound"' in line
