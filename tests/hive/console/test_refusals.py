"""A process that is started again and again must not lock the other clients of a hive out."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

import pytest
from capability_support import ISSUED_MS, SECRET, lab_ticket
from hive_support import PATIENCE_S, TOKEN, WAITS, ManualClock, RawConsole, running_hive
from scripted_console import FakeClock

from ticket_agent.hive.console.client import ConsoleConfig, ConsoleNamespace
from ticket_agent.hive.console.lock import lock_path
from ticket_agent.hive.console.refusals import RefusalMemory, Remembered, memory_path
from ticket_agent.protocol.namespace import HiveAuthError, HiveBusyError

if TYPE_CHECKING:
    from pathlib import Path

KEPT = Remembered(attaches=(10.5, 20.25), throttled_until=33.0)


def test_what_is_saved_is_loaded(tmp_path: Path) -> None:
    path = tmp_path / "m"
    RefusalMemory(path).save(Remembered(attaches=(1.0,) * 20))
    RefusalMemory(path).save(KEPT)
    assert RefusalMemory(path).load(50.0) == KEPT
    assert path.stat().st_mode & 0o777 == 0o600


def test_times_to_come_are_of_another_clock(tmp_path: Path) -> None:
    RefusalMemory(tmp_path / "m").save(KEPT)
    assert RefusalMemory(tmp_path / "m").load(15.0).attaches == (10.5,)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"[]",
        b"7",
        b"\xff\xfe",
        b'{"boot_id":"another","attaches":[1],"throttled_until":null}',
        b'{"attaches":[1]}',
        b'{"boot_id":"BOOT","attaches":["x"],"throttled_until":null}',
        b'{"boot_id":"BOOT","attaches":[true],"throttled_until":null}',
        b'{"boot_id":"BOOT","attaches":7,"throttled_until":null}',
        b'{"boot_id":"BOOT","attaches":[NaN],"throttled_until":null}',
        b'{"boot_id":"BOOT","attaches":[],"throttled_until":Infinity}',
        b'{"boot_id":"BOOT","attaches":[1e999],"throttled_until":null}',
        b'{"boot_id":"BOOT","attaches":[1%s],"throttled_until":null}' % (b"0" * 400),
        b"[" * 2000,
    ],
)
def test_what_makes_no_sense_is_forgotten(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "m"
    RefusalMemory(path).save(KEPT)
    boot_id = path.read_bytes().split(b'"')[3]
    path.write_bytes(content.replace(b"BOOT", boot_id))
    assert RefusalMemory(path).load(50.0) == Remembered()


def test_links_and_pipes_are_neither_followed_nor_waited_for(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("precious")
    (tmp_path / "link").symlink_to(victim)
    os.mkfifo(tmp_path / "pipe")
    for name in ("link", "pipe", "absent/m"):
        memory = RefusalMemory(tmp_path / name)
        memory.save(KEPT)
        assert memory.load(50.0) == Remembered()
    assert victim.read_text() == "precious"


def client(port: int, ticket: str, clock: FakeClock, tmp_path: Path) -> ConsoleNamespace:
    config = ConsoleConfig(port=port, token=TOKEN, ticket=ticket, lock_dir=tmp_path, **WAITS)
    return ConsoleNamespace(
        config, env={}, monotonic=clock.monotonic, sleep=clock.sleep, now_ms=lambda: ISSUED_MS
    )


def when_free(port: int) -> RawConsole:
    """A client that comes when the one before has left: a console hangs up on whoever comes sooner."""
    until = time.monotonic() + PATIENCE_S
    while True:
        try:
            return RawConsole(port)
        except (AssertionError, ConnectionError):
            if time.monotonic() > until:
                raise


def test_a_service_that_restarts_with_a_bad_ticket_never_starts_the_lockout(tmp_path: Path) -> None:
    clock = FakeClock()
    with running_hive(
        clock=ManualClock(ISSUED_MS), ticket_secrets={"queen": SECRET}, monotonic=clock.monotonic
    ) as (_, server):
        told = []
        for _ in range(8):
            with client(server.port, lab_ticket(secret="foreign"), clock, tmp_path) as console:
                with pytest.raises((HiveAuthError, HiveBusyError)) as caught:
                    console.connect()
                told.append(str(caught.value))
            clock.now += 2
        assert sum("refused" in text or "needs a valid ticket" in text for text in told) >= 2
        assert "too many refused attempts within a minute" in told[-1]
        assert memory_path(lock_path("127.0.0.1", server.port, directory=tmp_path)).exists()
        # Locked out would be everybody for 90 s; another client attaches at once.
        with when_free(server.port) as other:
            assert other.ask("PING") == "OK PING reply=pong"
        clock.now += 60
        with client(server.port, lab_ticket(), clock, tmp_path) as console:
            console.connect()


def test_a_delay_that_one_process_was_told_binds_the_next(tmp_path: Path) -> None:
    clock = FakeClock()
    with running_hive(
        clock=ManualClock(ISSUED_MS), ticket_secrets={"queen": SECRET}, monotonic=clock.monotonic
    ) as (_, server):
        with RawConsole(server.port, attach=False) as rude:
            assert rude.ask(f"AUTH {TOKEN}") == "OK AUTH"
            for _ in range(3):
                assert (rude.ask("ATTACH queen x") or "").startswith("ERR ATTACH reason=policy")
                clock.now += 1
        for words in ("locked out", "the next attempt is possible in 8"):
            with client(server.port, lab_ticket(), clock, tmp_path) as console:
                with pytest.raises(HiveBusyError, match=words):
                    console.connect()
                assert console.session == 0
