"""A reference hive for tests: running, with a clock the test owns, and tickets to put into it."""

from __future__ import annotations

import json
import socket
import time
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Final, Self

from ticket_agent.hive.console.framing import FrameDecoder, encode_frame
from ticket_agent.hive.reference import (
    DEFAULT,
    ConsoleServer,
    Faults,
    GatewayServer,
    GatewayTimes,
    HiveProfile,
    ReferenceHive,
    Timeouts,
)
from ticket_agent.protocol.result import build_result
from ticket_agent.protocol.spec import HostTicketSpec, parse_spec

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from ticket_agent.protocol.snapshot_enrolment import SnapshotEnrolment
    from ticket_agent.protocol.worker_state import WorkerState

TOKEN = "lab-token-4711"
START_MS = 1_700_000_000_000
PATIENCE_S = 20.0

WAITS: Final[dict[str, Any]] = dict.fromkeys(("connect_s", "auth_s", "command_s", "quit_s"), PATIENCE_S)
"""Deadlines of a client whose console is a thread of the same process: only a hang passes them."""

SPEC = "/host/tickets/spec"
SNAPSHOT = "/host/tickets/spec.snapshot"
STATUS = "/host/tickets/status"
DEADLETTER = "/host/tickets/deadletter"
LEASE_CTL = "/queen/lease/ctl"


class ManualClock:
    """Unix milliseconds that only the test advances."""

    def __init__(self, now_ms: int = START_MS) -> None:
        self.now_ms = now_ms

    def __call__(self) -> int:
        return self.now_ms

    def advance(self, ms: int) -> None:
        self.now_ms += ms


def kick_out(server: ConsoleServer) -> None:
    """End the console's current connection; returns when it is gone and others are served again.

    What its client sends after a mere ``kick`` may be swallowed without an answer.
    """
    server.kick()
    end = time.monotonic() + PATIENCE_S
    while True:
        # Who comes too early is turned away.
        with suppress(AssertionError, OSError), RawConsole(server.port):
            return
        assert time.monotonic() < end, "the console serves nobody"


def new_hive(profile: HiveProfile = DEFAULT, **options: Any) -> ReferenceHive:
    """A hive with a clock that stands still unless one is given."""
    return ReferenceHive(profile, **{"clock": ManualClock(), **options})


@contextmanager
def running_hive(
    profile: HiveProfile = DEFAULT,
    *,
    clock: Callable[[], int] | None = None,
    faults: Faults | None = None,
    token: str = TOKEN,
    snapshots: SnapshotEnrolment | None = None,
    snapshot_clock: Callable[[], int] | None = None,
    **options: Any,
) -> Iterator[tuple[ReferenceHive, ConsoleServer]]:
    """A hive behind a real console on loopback; ``options`` go to :class:`ConsoleServer`.

    Unless they say otherwise, it waits for a client's first frame as long as a test has patience.
    """
    options.setdefault("timeouts", Timeouts(auth_s=PATIENCE_S))
    hive = _hive(profile, clock or ManualClock(), snapshots, snapshot_clock)
    with ConsoleServer(hive, token=token, faults=faults, **options) as server:
        yield hive, server


CACHE_S = 0.05
"""How long the gateways of most tests keep what they read: long enough to mislead, short to wait for."""


@contextmanager
def running_gateway(
    profile: HiveProfile = DEFAULT,
    *,
    clock: Callable[[], int] | None = None,
    faults: Faults | None = None,
    token: str | None = TOKEN,
    cache_s: float = CACHE_S,
    queue_s: float = PATIENCE_S,
    deadline_s: float = 120.0,
    snapshots: SnapshotEnrolment | None = None,
    snapshot_clock: Callable[[], int] | None = None,
    **options: Any,
) -> Iterator[tuple[ReferenceHive, GatewayServer]]:
    """A hive behind a real gateway on loopback; ``options`` go to :class:`GatewayServer`."""
    clock = clock or ManualClock()
    hive = _hive(profile, clock, snapshots, snapshot_clock)
    times = GatewayTimes(cache_s=cache_s, queue_s=queue_s, deadline_s=deadline_s)
    with GatewayServer(hive, clock=clock, token=token, faults=faults, times=times, **options) as server:
        yield hive, server


def _hive(
    profile: HiveProfile,
    clock: Callable[[], int],
    snapshots: SnapshotEnrolment | None,
    snapshot_clock: Callable[[], int] | None,
) -> ReferenceHive:
    given: dict[str, Any] = {} if snapshot_clock is None else {"monotonic": snapshot_clock}
    return ReferenceHive(profile, clock=clock, snapshots=snapshots, **given)


def running(transport: str, **options: Any) -> Any:
    """A hive behind ``console`` or ``rest``, as :func:`running_hive` and :func:`running_gateway` give it."""
    return (running_gateway if transport == "rest" else running_hive)(**options)


TRANSPORTS = ("console", "rest")


def raw_ticket(
    worker: WorkerState,
    action: str,
    *,
    ticket_id: str,
    operation_id: str,
    subject: str,
    args: Mapping[str, Any] | None = None,
    key: str | None = None,
    expires: int | None = None,
    changes: Mapping[str, Any] | None = None,
) -> str:
    """One caller line of version 2 for a Worker; ``changes`` replace members, a None removes one."""
    members: dict[str, Any] = {
        "schema": "host-ticket/v2",
        "id": ticket_id,
        "idempotency_key": f"key-{ticket_id}" if key is None else key,
        "action": action,
        "args": dict(args or {}),
        "expires_unix_ms": expires,
        "receipt_mode": "worker",
        "operation_id": operation_id,
        "subject_ref": subject,
        "receipt_worker_role": worker.role,
        "receipt_worker_id": worker.worker_id,
        "receipt_supervisor_generation": worker.supervisor_generation,
        "receipt_cap_generation": worker.cap_generation,
        **(changes or {}),
    }
    kept = {name: value for name, value in members.items() if value is not None}
    return json.dumps(kept, separators=(",", ":"))


def raw_grant(
    hive: ReferenceHive,
    worker: WorkerState | str,
    ticket_id: str,
    lease_id: str,
    gpu: str = "GPU-0",
    *,
    key: str | None = None,
    expires: int | None = None,
    changes: Mapping[str, Any] | None = None,
    **args: Any,
) -> str:
    """A raw gpu.lease.grant; ``args`` are its arguments (``ttl_s=30``)."""
    return raw_lease(
        hive,
        worker,
        "grant",
        ticket_id,
        lease_id,
        gpu=gpu,
        key=key,
        expires=expires,
        changes=changes,
        **args,
    )


def raw_renew(
    hive: ReferenceHive,
    worker: WorkerState | str,
    ticket_id: str,
    lease_id: str,
    gpu: str = "GPU-0",
    **args: Any,
) -> str:
    """A raw gpu.lease.renew."""
    return raw_lease(hive, worker, "renew", ticket_id, lease_id, gpu=gpu, **args)


def raw_release(
    hive: ReferenceHive,
    worker: WorkerState | str,
    ticket_id: str,
    lease_id: str,
    gpu: str = "GPU-0",
    **args: Any,
) -> str:
    """A raw gpu.lease.release."""
    return raw_lease(hive, worker, "release", ticket_id, lease_id, gpu=gpu, **args)


def raw_lease(
    hive: ReferenceHive,
    worker: WorkerState | str,
    verb: str,
    ticket_id: str,
    lease_id: str,
    *,
    gpu: str = "GPU-0",
    key: str | None = None,
    expires: int | None = None,
    changes: Mapping[str, Any] | None = None,
    **args: Any,
) -> str:
    """A raw gpu.lease.<verb> pinned to the Worker as it stands now."""
    return raw_ticket(
        hive.worker(worker) if isinstance(worker, str) else worker,
        f"gpu.lease.{verb}",
        ticket_id=ticket_id,
        operation_id=lease_id,
        subject=gpu,
        args=args,
        key=key,
        expires=expires,
        changes=changes,
    )


def admitted(hive: ReferenceHive, ticket_id: str) -> HostTicketSpec:
    """The newest admission of a ticket id, parsed."""
    return parse_spec(hive.admission_of(ticket_id).line.encode(), source="admitted")


def result_line(spec: HostTicketSpec, state: str = "succeeded", message: str | None = "done") -> str:
    """The result line an agent would publish for an admission."""
    return build_result(spec, state=state, message=message, max_line_bytes=2048).decode()


def finish(
    hive: ReferenceHive, ticket_id: str, state: str = "succeeded", message: str | None = "done"
) -> str:
    """Publish a terminal result as an agent would; return its line."""
    line = result_line(admitted(hive, ticket_id), state, message)
    hive.echo(STATUS if state == "succeeded" else DEADLETTER, line)
    return line


class RawConsole:
    """A bare client that sends exactly what the test says and reads line by line."""

    def __init__(self, port: int, *, attach: bool = True, token: str = TOKEN) -> None:
        self.sock = socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S)
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._decoder = FrameDecoder()
        if attach:
            try:
                assert self.ask(f"AUTH {token}") == "OK AUTH"
                assert self.ask("ATTACH queen") == "OK ATTACH role=queen"
            except BaseException:
                self.sock.close()
                raise

    def send(self, *lines: str) -> None:
        self.sock.sendall(b"".join(encode_frame(line) for line in lines))

    def line(self) -> str | None:
        """The next line, or None at the end of the stream."""
        while (payload := self._decoder.next_frame()) is None:
            data = self.sock.recv(65536)
            if not data:
                return None
            self._decoder.receive(data)
        assert isinstance(payload, bytes)
        return payload.decode()

    def ask(self, command: str) -> str | None:
        """Send a command and return the first line of its answer."""
        self.send(command)
        return self.line()

    def stream(self, command: str) -> list[str]:
        """Send LS, CAT or TAIL and return the data lines of its successful answer."""
        head = self.ask(command)
        assert head is not None, f"the console hung up on {command!r}"
        assert head.startswith("OK "), head
        lines: list[str] = []
        while (line := self.line()) != "END":
            assert line is not None, "the console hung up within an answer"
            lines.append(line)
        return lines

    def close(self) -> None:
        """End the session; returns when the console has noticed, so that no next client is turned away."""
        with self.sock, suppress(OSError):
            self.sock.shutdown(socket.SHUT_WR)
            while self.sock.recv(65536):
                pass

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()
