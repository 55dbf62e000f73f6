"""Our console client against our console server, with the faults that matter."""

from __future__ import annotations

import select
from typing import TYPE_CHECKING

import pytest
from hive_support import (
    LEASE_CTL,
    SNAPSHOT,
    SPEC,
    STATUS,
    TOKEN,
    WAITS,
    RawConsole,
    admitted,
    raw_grant,
    result_line,
    running_hive,
)
from scripted_console import FakeClock

from ticket_agent.hive.console.client import ConsoleConfig, ConsoleNamespace
from ticket_agent.hive.reference import (
    OLDER_CONSOLE,
    STRICT_A,
    Fault,
    FaultKind,
    Faults,
    SessionOptions,
    Timeouts,
)
from ticket_agent.protocol import parse_spec
from ticket_agent.protocol.namespace import (
    Acked,
    HiveAuthError,
    HiveRefusedError,
    HiveUnreachableError,
    HiveViolationError,
    RefusalKind,
    Refused,
    Unknown,
)

if TYPE_CHECKING:
    from ticket_agent.hive.reference import ConsoleServer

GRANT = '{"id":"lease-1","op":"grant","priority":1,"resource":"GPU-0","subject":"worker-gpu-1","ttl_s":30}'


def client(server: ConsoleServer, *, token: str = TOKEN) -> ConsoleNamespace:
    clock = FakeClock()
    config = ConsoleConfig(port=server.port, token=token, use_lock=False, **WAITS)
    return ConsoleNamespace(config, env={}, monotonic=clock.monotonic, sleep=clock.sleep)


@pytest.mark.parametrize("stray_pong", [False, True])
def test_a_ticket_travels_both_ways(stray_pong: bool) -> None:
    with (
        running_hive(options=SessionOptions(stray_pong=stray_pong)) as (hive, server),
        client(server) as console,
    ):
        worker = hive.spawn_worker("worker-gpu")
        assert isinstance(console.append(SPEC, raw_grant(hive, worker, "t-1", "l-1")), Acked)
        (line,) = console.read(SNAPSHOT)
        spec = parse_spec(line.encode(), source="admitted")
        assert spec == admitted(hive, "t-1")
        assert isinstance(console.append(STATUS, result_line(spec)), Acked)
        assert console.tail(STATUS) == [result_line(spec)]
        assert "spec.snapshot" in console.ls("/host/tickets")
        assert console.session == 1


def test_a_full_snapshot_fits_one_answer() -> None:
    with running_hive() as (hive, server), client(server) as console:
        for number in range(40):
            worker = hive.spawn_worker("worker-gpu")
            hive.submit(raw_grant(hive, worker, f"t-{number}", f"l-{number}"))
        lines = console.read(SNAPSHOT)
        assert lines == hive.cat(SNAPSHOT)
        assert parse_spec(lines[-1].encode(), source="admitted").key == ("t-39", "key-t-39")


def test_an_answer_lost_after_the_effect_is_unknown_and_the_effect_happened_once() -> None:
    faults = Faults(Fault(kind=FaultKind.DROP_AFTER, verb="ECHO", prefix=LEASE_CTL, nth=1))
    with running_hive(faults=faults) as (hive, server), client(server) as console:
        assert isinstance(console.append(LEASE_CTL, GRANT), Unknown)
        assert faults.struck(FaultKind.DROP_AFTER) == 1
        assert console.read("/proc/lease/by-id/lease-1")
        assert console.session == 2
        assert sum(hive.effects.values()) == 1


def test_a_command_lost_before_the_effect_is_just_as_unknown() -> None:
    faults = Faults(Fault(kind=FaultKind.DROP_BEFORE, verb="ECHO", nth=1))
    with running_hive(faults=faults) as (hive, server), client(server) as console:
        assert isinstance(console.append(LEASE_CTL, GRANT), Unknown)
        assert sum(hive.effects.values()) == 0


@pytest.mark.parametrize("kind", [FaultKind.DROP_BEFORE, FaultKind.DROP_AFTER])
def test_a_read_survives_a_dropped_connection(kind: FaultKind) -> None:
    faults = Faults(Fault(kind=kind, verb="LS", nth=1))
    with running_hive(faults=faults) as (_, server), client(server) as console:
        assert "GPU-0" in console.ls("/gpu")
        assert console.session == 2


def test_a_definite_refusal_is_refused() -> None:
    faults = Faults(Fault(kind=FaultKind.ERR, verb="ECHO", nth=1))
    with running_hive(faults=faults) as (hive, server), client(server) as console:
        answer = console.append(LEASE_CTL, GRANT)
        assert isinstance(answer, Refused)
        assert answer.refusal.kind is RefusalKind.BUSY
        assert sum(hive.effects.values()) == 0
        assert isinstance(console.append(LEASE_CTL, GRANT), Acked)


def test_garbage_is_a_violation_for_a_read_and_unknown_for_an_append() -> None:
    faults = Faults(Fault(kind=FaultKind.GARBAGE, verb="CAT"), Fault(kind=FaultKind.GARBAGE, verb="ECHO"))
    with running_hive(faults=faults) as (hive, server), client(server) as console:
        with pytest.raises(HiveViolationError):
            console.read("/proc/lifecycle/state")
        assert isinstance(console.append(LEASE_CTL, GRANT), Unknown)
        assert sum(hive.effects.values()) == 1


@pytest.mark.parametrize(("kind", "effects"), [(FaultKind.SILENT, 1), (FaultKind.SWALLOW, 0)])
def test_silence_is_unknown_for_an_append_and_unreachable_for_a_read(kind: FaultKind, effects: int) -> None:
    faults = Faults(Fault(kind=kind, verb="ECHO"), Fault(kind=kind, verb="LS"))
    with running_hive(faults=faults) as (hive, server), client(server) as console:
        # For the commands alone: the handshake of the second session has its time.
        console._command_s = 0.2
        assert isinstance(console.append(LEASE_CTL, GRANT), Unknown)
        with pytest.raises(HiveUnreachableError):
            console.ls("/gpu")
        assert sum(hive.effects.values()) == effects


def test_refusals_arrive_with_their_kind() -> None:
    with running_hive() as (hive, server), client(server) as console:
        with pytest.raises(HiveRefusedError) as caught:
            console.read("/nope")
        assert caught.value.absent
        for path, line, kind in (
            (SNAPSHOT, "{}", RefusalKind.DENIED),
            (SPEC, "{}", RefusalKind.INVALID_PAYLOAD),
            ("/host/nope", "{}", RefusalKind.INVALID_PATH),
        ):
            answer = console.append(path, line)
            assert isinstance(answer, Refused)
            assert answer.refusal.kind is kind
        hive.set_lifecycle("DRAINING")
        answer = console.append(STATUS, "{}")
        assert isinstance(answer, Refused)
        assert answer.refusal.kind is RefusalKind.DENIED


def test_the_first_root_has_no_tail_on_ticket_nodes() -> None:
    with running_hive(STRICT_A) as (_, server), client(server) as console:
        with pytest.raises(HiveRefusedError) as caught:
            console.tail(SNAPSHOT)
        assert caught.value.absent
        assert console.read(SNAPSHOT) == []


@pytest.mark.parametrize("silent", [False, True])
def test_a_wrong_token_is_an_authentication_error(silent: bool) -> None:
    with (
        running_hive(options=SessionOptions(silent_auth=silent)) as (_, server),
        client(server, token="lab-token-0815") as console,
        pytest.raises(HiveAuthError, match="token"),
    ):
        console.connect()


def test_a_console_that_timed_the_session_out_is_entered_again() -> None:
    with running_hive(timeouts=Timeouts(idle_s=2.0)) as (_, server), client(server) as console:
        assert console.ls("/gpu")
        session = console.session
        assert console._link is not None
        assert select.select([console._link._sock], [], [], 60)[0]
        assert isinstance(console.append(LEASE_CTL, GRANT), Acked)
        assert console.session > session


def test_quit_hands_the_console_over_at_once() -> None:
    with running_hive() as (_, server):
        console = client(server)
        console.connect()
        console.close()
        with RawConsole(server.port) as other:
            assert other.ask("PING") == "OK PING reply=pong"


def test_an_early_console_is_called_incompatible_and_nothing_is_cut_to_fit() -> None:
    with running_hive(options=OLDER_CONSOLE) as (_, server), client(server) as console:
        assert isinstance(console.append("/log/queen.log", "x" * 128), Acked)
        for size in (129, 235, 236, 2048):
            answer = console.append("/log/queen.log", "y" * size)
            assert isinstance(answer, Refused)
            assert answer.refusal.kind is RefusalKind.GRAMMAR
            assert "speaks the older bounds and is incompatible" in answer.refusal.text
        stored = console.tail("/log/queen.log")
        assert "x" * 128 in stored
        assert not any("y" in line for line in stored)
        assert console.session == 1


def test_an_early_console_hears_auth_and_is_left_at_once() -> None:
    """It waits some 40 ms for AUTH, and closes behind QUIT without waiting for our half of the end."""
    timeouts = Timeouts(auth_s=0.5)
    with running_hive(options=OLDER_CONSOLE, timeouts=timeouts) as (_, server):
        for _ in range(3):
            with client(server) as console:
                assert console.ls("/gpu")
