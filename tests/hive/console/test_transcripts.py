"""Recorded traffic of a real console, run through the client's connection."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

import pytest
from console_transcripts import TRANSCRIPTS, events, replayable
from transcript_replay import UNUSED_VERBS, replay

from ticket_agent.hive.console.connection import Answered, ClientEvent, ToSend, Unasked
from ticket_agent.hive.console.framing import FrameDecoder, encode_frame
from ticket_agent.hive.console.handshake import Attached, FailureKind, HandshakeFailure
from ticket_agent.hive.console.replies import Answer, Command, Done, Err, Outcome, Verb, Violation
from ticket_agent.protocol.namespace import RefusalKind

if TYPE_CHECKING:
    from pathlib import Path

Result = Outcome | Attached | HandshakeFailure | ToSend | Unasked
RECORDINGS = replayable()


def results(path: Path) -> list[tuple[str, Result]]:
    """Each recorded line and what became of it."""
    return [
        (line, event.outcome if isinstance(event, Answered) else event)
        for line, event in replay(path).results
    ]


@pytest.mark.parametrize("path", RECORDINGS, ids=lambda path: path.stem)
def test_recorded_frames_have_the_recorded_length(path: Path) -> None:
    for event in events(path):
        if event.total is not None:
            frame = encode_frame(event.payload.decode())
            assert len(frame) == event.total
            assert FrameDecoder().feed(frame) == [event.payload]


@pytest.mark.parametrize("path", RECORDINGS, ids=lambda path: path.stem)
def test_every_recorded_command_ends_in_a_definite_outcome(path: Path) -> None:
    sent = [event for event in events(path) if event.what == ">"]
    unused = [event for event in sent if event.payload.split(b" ")[0].decode() in UNUSED_VERBS]
    found = replay(path).results
    # Raw bytes may hold several commands; only the first one is in flight, and our client never sends them.
    unasked = [line for line, event in found if isinstance(event, Unasked)]
    assert set(unasked) <= {"(raw bytes)"}
    assert [line for line, event in found if _violates(event)] == []
    # A connection to which nothing was sent has an outcome too: its end.
    assert len(found) == max(1, len(sent) - len(unused)) + len(unasked)


@pytest.mark.parametrize("path", RECORDINGS, ids=lambda path: path.stem)
def test_conclusions_do_not_depend_on_how_the_bytes_were_cut(path: Path) -> None:
    whole = replay(path).results
    assert all(replay(path, cut=cut).results == whole for cut in (1, 3, 7))


def _violates(event: ClientEvent) -> bool:
    return isinstance(event, Answered) and isinstance(event.outcome, Violation)


def results_of(name: str) -> dict[str, Result]:
    """Last result per line."""
    return dict(results(TRANSCRIPTS / name))


def test_a_basic_session() -> None:
    results = results_of("01_basic.txt")
    assert isinstance(results["AUTH changeme"], ToSend)
    assert results["ATTACH queen"] == Attached("queen")
    assert results["PING"] == Done("reply=pong")
    assert results["LS /queen"] == Done("path=/queen entries=3", ("ctl", "lifecycle", "telemetry"))
    assert results["LS /worker"] == Done("path=/worker entries=0")
    assert results["CAT /proc/lifecycle/state"] == Done(
        "path=/proc/lifecycle/state data=state=ONLINE", ("state=ONLINE",)
    )
    shard, tail = results["LS /shard"], results["TAIL /log/queen.log"]
    assert isinstance(shard, Err)
    assert shard.refusal.kind is RefusalKind.BUFFER_FULL
    assert isinstance(tail, Done)
    assert len(tail.lines) == 64
    assert results["QUIT"] == Done("")


@pytest.mark.parametrize("name", ["03_bad_token", "04_bad_token_len", "05b_not_auth_samelen"])
def test_a_refused_token_is_a_silent_close(name: str) -> None:
    ((_, result),) = results(TRANSCRIPTS / f"{name}.txt")
    assert isinstance(result, HandshakeFailure)
    assert result.kind is FailureKind.SILENT_CLOSE


def test_attach_refusals_and_commands_without_a_session() -> None:
    results = results_of("02_no_attach.txt")
    bogus, heartbeat, throttled = (
        results["ATTACH bogus"],
        results["ATTACH worker-heartbeat"],
        results["ATTACH queen"],
    )
    assert isinstance(bogus, HandshakeFailure)
    assert isinstance(heartbeat, HandshakeFailure)
    assert bogus.kind is heartbeat.kind is FailureKind.ATTACH_REFUSED
    assert isinstance(throttled, HandshakeFailure)
    assert (throttled.kind, throttled.delay_s) == (FailureKind.THROTTLED, 0.225)
    unattached = results["ECHO /log/queen.log x"]
    assert isinstance(unattached, Err)
    assert "unauthenticated" in unattached.refusal.text


def test_the_older_bounds() -> None:
    found = results(TRANSCRIPTS / "08_bounds.txt")
    parsed = [
        result.refusal
        for line, result in found
        if line.startswith("ECHO /log/queen.log ") and isinstance(result, Err)
    ]
    assert [refusal.kind for refusal in parsed] == [RefusalKind.GRAMMAR] * 2
    cut = [
        result
        for _, result in found
        if isinstance(result, Err) and result.refusal.text == "ERR LS reason=policy"
    ]
    assert [err.refusal.kind for err in cut] == [RefusalKind.OTHER]
    framed = [
        result
        for _, result in found
        if isinstance(result, Err) and result.refusal.text.startswith("ERR FRAME")
    ]
    assert len(framed) == 2


def test_an_attach_lockout_ends_by_itself() -> None:
    attaches = [
        result for line, result in results(TRANSCRIPTS / "17e_ticket_garbage.txt") if line == "ATTACH queen"
    ]
    assert [type(result) for result in attaches] == [HandshakeFailure, HandshakeFailure, Attached]


def test_a_scoped_session_is_refused_outside_its_scope() -> None:
    results = results_of("29a_scoped_ticket.txt")
    for line in ("LS /proc", "ECHO /log/queen.log hi"):
        result = results[line]
        assert isinstance(result, Err)
        assert result.refusal.kind is RefusalKind.DENIED
    limited = results_of("29b_scoped_ro.txt")["CAT /host/docker/status"]
    assert isinstance(limited, Err)
    assert limited.refusal.kind is RefusalKind.LIMIT


def test_the_lifecycle_gate_denies_host_writes_only() -> None:
    results = results_of("30_lifecycle_gate.txt")
    gated = results["ECHO /host/docker/status x=3"]
    assert isinstance(gated, Err)
    assert gated.refusal.kind is RefusalKind.DENIED
    assert isinstance(results['ECHO /queen/telemetry/gp-1/seg/seg-000001 {"a":1}'], Done)
    assert isinstance(results["ECHO /host/docker/status x=4"], Done)


def test_stored_lines_that_look_like_protocol_break_the_answer() -> None:
    """In this run a segment held OK, ERR and END lines; the console sent them as they are."""
    lines = (TRANSCRIPTS / "19_quirks.txt").read_text().splitlines()
    start = lines.index("> CAT /queen/telemetry/q-1/seg/seg-000001")
    answer = Answer(Command(Verb.CAT, "/queen/telemetry/q-1/seg/seg-000001"))
    received = [
        ast.literal_eval(line.split(" ", 4)[4])
        for line in lines[start + 1 : start + 3]
        if line.startswith("  <")
    ]
    outcomes = [answer.receive(payload) for payload in received]
    assert outcomes[0] is None
    assert isinstance(outcomes[1], Violation)


def test_refusals_that_lost_the_end_of_their_path() -> None:
    line = "ERR TAIL reason=policy detail=invalid-path path=/shard/00/worker/worker-4/teleme"
    assert repr(line.encode()) in (TRANSCRIPTS / "25_tail_cursor.txt").read_text()
    outcome = Answer(Command(Verb.TAIL, "/shard/00/worker/worker-4/telemetry")).receive(line.encode())
    assert isinstance(outcome, Err)
    assert outcome.refusal.kind is RefusalKind.INVALID_PATH


def test_no_recording_is_forgotten() -> None:
    assert len(RECORDINGS) == 27
