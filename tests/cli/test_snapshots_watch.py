"""`snapshots watch`: what comes, changes and goes, over a console that dies and comes back."""

from __future__ import annotations

import json
import os
import pty
import re
import signal
import struct
import subprocess
import termios
import threading
from contextlib import ExitStack
from fcntl import ioctl
from typing import TYPE_CHECKING, Any

import click
import pytest
from cli_support import COMMAND, ESCAPE, PATIENCE_S, Running
from hive_support import TOKEN
from scripted_console import kept_port, refused_port
from snapshot_lab import ENROLMENT, Lab, snapshot_lab
from snapshot_shelf import NOW_MS, Shelf, record

from ticket_agent.cli.snapshots_display import event_lines, event_members
from ticket_agent.cli.snapshots_watch import LONGEST_PAUSE_S, _Watching
from ticket_agent.exits import Exit
from ticket_agent.hive.reference import ConsoleServer
from ticket_agent.protocol.namespace import HiveBusyError, HiveUnreachableError
from ticket_agent.protocol.snapshot import UnavailableReason
from ticket_agent.snapshots import HostObservation, SnapshotReader, SnapshotReadError, changes_between
from ticket_agent.snapshots.follow import Event, What

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from cli_support import Operator

FAST = ["--interval", "0.05"]


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Lab]:
    with snapshot_lab(tmp_path) as opened:
        yield opened


def _event(running: Running, **members: object) -> dict[str, Any]:
    """The next JSON line with these members."""

    def fits(text: str) -> bool:
        return text.startswith("{") and members.items() <= json.loads(text).items()

    found: dict[str, Any] = json.loads(running.until(fits))
    return found


def test_a_life_of_a_pair_as_lines_of_json(operator: Operator, lab: Lab) -> None:
    command = ["snapshots", "watch", "systemd", "--json", *FAST, *lab.at]
    with operator.spawn(*command) as running:
        assert _event(running, event="gone")["error"] == "unobserved"
        lab.publish(entries={"unit": '{"state":"active","job":1}'})
        first = _event(running, event="record")
        assert (first["kind"], first["sequence"], first["change"]) == ("snapshots-change", 1, None)
        lab.publish(entries={"unit": '{"state":"failed","job":1}', "z": "1"})
        second = _event(running, event="record")
        assert second["change"]["step"] == "forward"
        assert second["change"]["changes"] == [
            {
                "path": "unit",
                "before": '{"state":"active","job":1}',
                "after": '{"state":"failed","job":1}',
                "members": [{"name": "state", "before": '"active"', "after": '"failed"'}],
            },
            {"path": "z", "before": None, "after": "1", "members": []},
        ]
        lab.pass_by(30_000)
        assert _event(running, event="gone")["error"] == "expired"
        lab.publish(reason=UnavailableReason.TIMED_OUT)
        withdrawal = _event(running, event="record")
        assert (withdrawal["available"], withdrawal["reason"], withdrawal["ttl_left_ms"]) == (
            False,
            "timed_out",
            None,
        )
        assert running.stop(signal.SIGINT) == Exit.OK
    assert not any(ESCAPE in line for line in running.lines)


def test_a_life_of_a_pair_as_text(operator: Operator, lab: Lab) -> None:
    with operator.spawn("snapshots", "watch", *FAST, *lab.at) as running:
        running.until(lambda text: "network/host-b  unobserved: nothing was published" in text)
        lab.publish(entries={"unit": '{"state":"active"}', "old": "\x1b[2J"})
        running.until(lambda text: "systemd/host-a  sequence 1, available, 2 entries, " in text)
        lab.publish(entries={"unit": '{"state":"failed"}', "new": "1"})
        running.until(lambda text: text.endswith("systemd/host-a  sequence 2"))
        assert running.until(lambda text: text.startswith("    + ")) == "    + new  1"
        assert running.until(lambda text: text.startswith("    - ")) == "    - old  \\x1b[2J"
        assert running.until(lambda text: "~" in text) == '    ~ unit  state "active" -> "failed"'
        lab.publish(entries={"unit": '{"state":"failed"}', "new": "1"})
        running.until(lambda text: text.endswith("systemd/host-a  sequence 3, nothing changed"))
        lab.publish(reason=UnavailableReason.SOURCE_FAILED)
        running.until(lambda text: "sequence 4, now unavailable, source_failed: looking failed there" in text)
        lab.publish(reason=UnavailableReason.SOURCE_FAILED)
        running.until(lambda text: "sequence 5, still unavailable" in text)
        lab.sequence += 2
        lab.publish()
        running.until(lambda text: "sequence 8, now available" in text)
        running.until(lambda text: "  host-a  missed: 2 numbers were not seen here" in text)
        assert running.stop(signal.SIGTERM) == Exit.OK


def test_it_ends_after_so_many_records_or_seconds(operator: Operator, lab: Lab) -> None:
    for provider, source in ENROLMENT.pairs():
        lab.publish(provider, source)
    two = operator.run("snapshots", "watch", "--json", "--count", "2", *lab.at)
    assert (two.code, [one["event"] for one in two.objects]) == (Exit.OK, ["record", "record"])
    none = operator.run("snapshots", "watch", "--json", "--for", "0", *FAST, *lab.at)
    assert (none.code, len(none.objects)) == (Exit.OK, 3)


def test_a_hive_that_restarts_is_lost_and_found(operator: Operator, lab: Lab) -> None:
    lab.publish()
    with operator.spawn("snapshots", "watch", "systemd", "--json", *FAST, *lab.at) as running:
        _event(running, event="record")
        port = lab.server.port
        lab.server.stop()
        with ExitStack() as stack:
            with kept_port(port):
                lost = _event(running, event="lost")
                assert (lost["provider"], lost["source_id"]) == (None, None)
                assert "nothing is known about any snapshot, trying again" in lost["detail"]
                lab.hive.reboot()
                stack.enter_context(ConsoleServer(lab.hive, token=TOKEN, port=port))
            assert _event(running, event="back")["detail"].startswith("the hive answers again after ")
            assert _event(running, event="gone")["error"] == "unobserved"
            lab.publish()
            assert _event(running, event="record")["sequence"] == 2
            assert running.stop(signal.SIGINT) == Exit.OK


def test_without_a_hive_it_ends_with_the_code_that_says_so(operator: Operator, lab: Lab) -> None:
    away = ["--tcp-port", str(refused_port()), "--auth-token", "env:LAB_TOKEN"]
    answer = operator.run("snapshots", "watch", "--json", "--for", "0.2", *lab.at[:2], *away)
    assert (answer.code, answer.object["event"]) == (Exit.HIVE_UNREACHABLE, "lost")
    wrong = operator.run("snapshots", "watch", *lab.at[:4], "--auth-token", "wrong")
    assert (wrong.code, wrong.out) == (Exit.HIVE_REFUSED, "")


def test_a_table_is_drawn_over_and_fits_its_window(operator: Operator, lab: Lab) -> None:
    lab.publish(entries={"a": "\x1b[31m"})
    reading, terminal = pty.openpty()
    ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 30, 60, 0, 0))
    env = {key: value for key, value in operator.env.items() if key not in {"COLUMNS", "LINES"}}
    with subprocess.Popen(
        [*COMMAND, "snapshots", "watch", "--table", *FAST, *lab.at],
        env=env | {"TERM": "xterm"},
        stdout=terminal,
        stderr=subprocess.PIPE,
    ) as process:
        os.close(terminal)
        shown = b""
        while shown.count(b"PROVIDER") < 3:
            shown += os.read(reading, 65536)
        lab.server.stop()
        while b"unreachable" not in shown:
            shown += os.read(reading, 65536)
        process.send_signal(signal.SIGINT)
        assert process.wait(PATIENCE_S) == Exit.OK
    os.close(reading)
    text = shown.decode(errors="ignore")
    assert re.search(r"\x1b\[\d+A\r\x1b\[J", text)
    assert "systemd   host-a  available" in click.unstyle(text)
    bare = re.sub(r"\x1b\[\d*[AJ]", "", text)
    assert all(len(click.unstyle(line).replace("\r", "")) <= 60 for line in bare.split("\n"))
    # What was seen before the hive was lost is not shown as what is.
    assert "available" not in text[text.rindex("PROVIDER") :]


# -- patience ------------------------------------------------------------------------------------------------


class _Patience(threading.Event):
    """Notes each pause instead of waiting; ends after a few."""

    def __init__(self, rounds: int) -> None:
        super().__init__()
        self.pauses: list[float] = []
        self._rounds = rounds

    def wait(self, timeout: float | None = None) -> bool:
        assert timeout is not None
        self.pauses.append(timeout)
        return len(self.pauses) >= self._rounds


class _Told:
    """A display that keeps what it is told."""

    def __init__(self) -> None:
        self.events: list[Event] = []

    def looked(self, pair: tuple[str, str], outcome: HostObservation | SnapshotReadError) -> None:
        """Not kept."""

    def tell(self, event: Event) -> None:
        self.events.append(event)

    def round_over(self, at_unix_ms: int) -> None:
        """Not kept."""

    def lost(self, at_unix_ms: int) -> None:
        """Not kept."""


@pytest.mark.parametrize("error", [HiveUnreachableError("gone"), HiveBusyError("somebody else is there")])
def test_a_hive_that_does_not_answer_is_asked_less_and_less_often(
    error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    shelf = Shelf()
    shelf.put(record())
    read, failures = shelf.read, iter([True] * 8 + [False] * 2 + [True] * 2)

    def failing(path: str) -> list[str]:
        if path.endswith("/snapshot") and next(failures):
            raise error
        return read(path)

    monkeypatch.setattr(shelf, "read", failing)
    stop, told = _Patience(12), _Told()
    watching = _Watching(
        SnapshotReader(shelf, shelf.enrolment),
        [("systemd", "linux-reference")],
        told,
        stop=stop,
        deadline=None,
        count=None,
    )
    assert watching.run(0.5) is False
    assert stop.pauses == [1, 2, 4, 8, 16, *[LONGEST_PAUSE_S] * 3, 0.5, 0.5, 1, 2]
    assert [event.what for event in told.events] == [What.LOST, What.BACK, What.RECORD, What.LOST]


# -- words ---------------------------------------------------------------------------------------------------


def _observed(sequence: int, value: str) -> HostObservation:
    shelf = Shelf()
    shelf.put(record(sequence, {"a": value}))
    return SnapshotReader(shelf, shelf.enrolment).read("systemd", "linux-reference")


@pytest.mark.parametrize(
    ("before", "after", "words"),
    [
        ((5, "1"), (2, "1"), "sequence 2, the count went back: the hive restarted"),
        ((5, "1"), (5, "2"), "sequence 5, the same number with other bytes: do two publishers"),
        ((5, "1"), (5, "1"), "sequence 5, visible again, nothing changed"),
        ((5, "1"), (6, "1"), "sequence 6, nothing changed"),
    ],
)
def test_how_a_record_follows_another_is_said(
    before: tuple[int, str], after: tuple[int, str], words: str
) -> None:
    observation = _observed(*after)
    event = Event(
        what=What.RECORD,
        at_unix_ms=NOW_MS,
        provider="systemd",
        source_id="linux-reference",
        observation=observation,
        change=changes_between(_observed(*before), observation),
    )
    assert words in event_lines(event)[0]
    json.dumps(event_members(event))
