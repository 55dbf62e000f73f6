"""The published Python client's REST backend against our gateway, and our client beside it."""

from __future__ import annotations

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
    running_gateway,
)
from rest_support import rest

from ticket_agent.hive.reference import Fault, FaultKind
from ticket_agent.protocol import parse_spec
from ticket_agent.protocol.namespace import Acked

if TYPE_CHECKING:
    from ticket_agent.hive.reference import GatewayServer

cohesix_backends = pytest.importorskip(
    "cohesix.backends", reason="needs the extra 'interop' (cohesix==1.2.0)"
)
cohesix_errors = pytest.importorskip("cohesix.errors", reason="needs the extra 'interop' (cohesix==1.2.0)")
cohesix_ticket = pytest.importorskip("cohesix.ticket", reason="needs the extra 'interop' (cohesix==1.2.0)")

MAX_BYTES = 65536


def _text(text: str) -> bytes:
    return len(text).to_bytes(2, "little") + text.encode()


def queen_ticket() -> str:
    """A queen's ticket with a subject, a lifetime and one scope; its client checks the structure only."""
    ttl_subject_scopes = 4 | 8 | 16
    payload = bytes([1, 0, ttl_subject_scopes])
    payload += (3600).to_bytes(8, "little") + _text("agent") + (1_700_000_000_000).to_bytes(8, "little")
    payload += _text("") + _text("") + bytes([1]) + _text("/") + bytes([2]) + (0).to_bytes(4, "little")
    return f"cohesix-ticket-{payload.hex()}.{'00' * 32}"


def backend(server: GatewayServer, **options: Any) -> Any:
    settings = {"request_auth_token": TOKEN, "delegated_ticket": queen_ticket(), "backoff_ms": 1} | options
    return cohesix_backends.RestBackend(server.url, **settings)


def test_it_lists_submits_and_reads() -> None:
    with running_gateway() as (hive, server):
        client = backend(server)
        assert "host" in client.list_dir("/")
        worker = hive.spawn_worker("worker-gpu")
        raw = raw_grant(hive, worker, "ticket-interop-1", "lease-interop-1", ttl_s=30, priority=3)
        assert client.write_append(SPEC, raw.encode() + b"\n") == len(raw)
        lines = client.read_file(SNAPSHOT, MAX_BYTES).splitlines()
        spec = parse_spec(lines[0], source="admitted")
        assert spec.key == ("ticket-interop-1", "key-ticket-interop-1")
        assert client.tail_file(SNAPSHOT, MAX_BYTES).splitlines() == lines
        with rest(server.url, auth_token=server.token) as ours:
            assert [line.encode() for line in ours.read(SNAPSHOT)] == lines


def test_results_and_refusals() -> None:
    with running_gateway() as (hive, server):
        client = backend(server)
        worker = hive.spawn_worker("worker-gpu")
        client.write_append(SPEC, raw_grant(hive, worker, "t-1", "l-1").encode())
        line = result_line(admitted(hive, "t-1"))
        for _ in range(2):
            client.write_append(STATUS, line.encode())
        assert hive.terminal_lines(("t-1", "key-t-1")) == [line]
        with pytest.raises(cohesix_errors.CohesixError, match="invalid-payload"):
            client.write_append(DEADLETTER, result_line(admitted(hive, "t-1"), "failed").encode())
        with pytest.raises(cohesix_errors.CohesixError, match="detail=invalid-path path=/nope"):
            client.read_file("/nope", MAX_BYTES)
        with pytest.raises(cohesix_errors.CohesixError, match="exceeds max_bytes 1"):
            client.read_file(SNAPSHOT, 1)


def test_it_is_refused_without_the_token() -> None:
    with (
        running_gateway() as (_, server),
        pytest.raises(cohesix_errors.CohesixError, match="request auth token"),
    ):
        backend(server, request_auth_token="another").list_dir("/")


def test_meta() -> None:
    with running_gateway() as (_, server):
        client = backend(server)
        assert client.get_bounds()["console"]["max_echo_len"] == 2048
        assert client.get_backend_class() == "host-model"
        assert client.get_worker_runtime_bounds() is None


@pytest.mark.parametrize("status", ["429", "503"])
def test_it_repeats_reads_and_never_a_write(status: str) -> None:
    with running_gateway() as (hive, server):
        server.faults.add(Fault(kind=FaultKind.STATUS_BEFORE, nth=1, verb="TAIL", text=status))
        server.faults.add(Fault(kind=FaultKind.STATUS_AFTER, verb="ECHO", text=status))
        client = backend(server)
        assert client.tail_file(SNAPSHOT, MAX_BYTES) == b""
        raw = raw_grant(hive, hive.spawn_worker("worker-gpu"), "t-1", "l-1")
        with pytest.raises(cohesix_errors.CohesixError):
            client.write_append(SPEC, raw.encode())
        assert hive.appended("spec") == 1


def test_both_clients_work_at_the_same_time() -> None:
    with running_gateway() as (hive, server), rest(server.url, auth_token=server.token) as ours:
        theirs = backend(server)
        for number in range(6):
            raw = raw_grant(hive, hive.spawn_worker("worker-gpu"), f"t-{number}", f"l-{number}")
            if number % 2:
                assert isinstance(ours.append(SPEC, raw), Acked)
            else:
                theirs.write_append(SPEC, raw.encode())
            assert len(ours.read(SNAPSHOT)) == number + 1
            assert theirs.read_file(SNAPSHOT, MAX_BYTES).count(b"\n") == number
