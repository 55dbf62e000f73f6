"""The published Python client, against our console server."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import pytest
from hive_support import (
    DEADLETTER,
    SNAPSHOT,
    SPEC,
    STATUS,
    TOKEN,
    admitted,
    raw_grant,
    result_line,
    running_hive,
)

from ticket_agent.hive.reference import SessionOptions
from ticket_agent.protocol import parse_spec

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ticket_agent.hive.reference import ConsoleServer

cohesix_backends = pytest.importorskip(
    "cohesix.backends", reason="needs the extra 'interop' (cohesix==1.2.0)"
)
cohesix_errors = pytest.importorskip("cohesix.errors", reason="needs the extra 'interop' (cohesix==1.2.0)")

MAX_BYTES = 65536


@contextlib.contextmanager
def backend(server: ConsoleServer) -> Iterator[Any]:
    client = cohesix_backends.TcpBackend("127.0.0.1", server.port, TOKEN, "queen", None)
    try:
        yield client
    finally:
        client.close()


def test_it_lists_the_ticket_nodes() -> None:
    with running_hive() as (_, server), backend(server) as client:
        assert "host" in client.list_dir("/")
        assert set(client.list_dir("/host/tickets")) >= {
            "spec",
            "status",
            "deadletter",
            "spec.snapshot",
            "status.snapshot",
            "deadletter.snapshot",
        }


def test_it_submits_a_ticket_and_reads_the_admitted_line_through_c1() -> None:
    with running_hive() as (hive, server), backend(server) as client:
        worker = hive.spawn_worker("worker-gpu")
        raw = raw_grant(hive, worker, "ticket-interop-1", "lease-interop-1", ttl_s=30, priority=3)
        assert client.write_append(SPEC, raw.encode() + b"\n") == len(raw) + 1

        lines = client.read_file(SNAPSHOT, MAX_BYTES).splitlines()
        assert len(lines) == 1
        assert len(lines[0]) > 256
        spec = parse_spec(lines[0], source="admitted")
        assert spec.admitted
        assert spec.key == ("ticket-interop-1", "key-ticket-interop-1")
        assert spec.encode() == lines[0]
        assert client.tail_file(SNAPSHOT, MAX_BYTES).splitlines() == lines


def test_it_publishes_a_result_that_the_hive_accepts_once() -> None:
    with running_hive() as (hive, server), backend(server) as client:
        worker = hive.spawn_worker("worker-gpu")
        client.write_append(SPEC, raw_grant(hive, worker, "t-1", "l-1").encode())
        line = result_line(admitted(hive, "t-1"))
        for _ in range(2):
            client.write_append(STATUS, line.encode())
        assert client.read_file(STATUS, MAX_BYTES).decode().splitlines() == [line]
        assert hive.terminal_lines(("t-1", "key-t-1")) == [line]
        with pytest.raises(cohesix_errors.CohesixError, match="invalid-payload"):
            client.write_append(DEADLETTER, result_line(admitted(hive, "t-1"), "failed").encode())


def test_it_is_told_why_something_was_refused() -> None:
    with running_hive() as (_, server), backend(server) as client:
        with pytest.raises(cohesix_errors.CohesixError, match="detail=invalid-path path=/nope"):
            client.read_file("/nope", MAX_BYTES)
        with pytest.raises(cohesix_errors.CohesixError, match="detail=denied"):
            client.write_append(SNAPSHOT, b"{}")
        assert client.list_dir("/gpu")


@pytest.mark.parametrize("silent", [False, True])
def test_a_wrong_token_is_an_error_in_both_dialects(silent: bool) -> None:
    options = SessionOptions(silent_auth=silent)
    # Its constructor leaves the socket open when it fails, so that the object must exist beforehand.
    client = cohesix_backends.TcpBackend.__new__(cohesix_backends.TcpBackend)
    with running_hive(options=options) as (_, server), contextlib.ExitStack() as stack:
        stack.callback(client.close)
        with pytest.raises(cohesix_errors.CohesixError, match="AUTH"):
            client.__init__("127.0.0.1", server.port, "lab-token-0815", "queen", None)
