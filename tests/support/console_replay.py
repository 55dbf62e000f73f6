"""Replays recorded client traffic into the reference console and compares what it answers."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from console_transcripts import events

from ticket_agent.hive.console.acks import parse_ack
from ticket_agent.hive.console.framing import FrameDecoder, encode_frame
from ticket_agent.hive.reference import OLDER_CONSOLE
from ticket_agent.hive.reference.errors import RefusalError
from ticket_agent.hive.reference.limiter import AttachLimiter
from ticket_agent.hive.reference.session import ConsoleSession, Reply
from ticket_agent.hive.reference.tickets import TicketDesk
from ticket_agent.protocol.capability import decode_ticket

if TYPE_CHECKING:
    from pathlib import Path

    from console_transcripts import Event

ROLE_SECRETS = {"queen": "bootstrap", "worker-heartbeat": "worker", "worker-gpu": "worker-gpu"}
"""What the recorded release mints its tickets with; published in its image."""


TICKET = rb"cohesix-ticket-[0-9a-f]+\.[0-9a-f]{64}"


class RecordedTree:
    """A namespace that holds what the recording showed next; everything around it has to be derived."""

    def __init__(self) -> None:
        self.answer: list[str] = []

    def _refusal(self) -> RefusalError | None:
        ack = parse_ack(self.answer[0]) if self.answer else None
        if ack is None or ack.ok:
            return None
        if "detail" not in ack.words:
            # A refusal whose line did not fit: what was cut off has to be cut off by our console too.
            return RefusalError(ack.words["reason"], "invalid-path", "invalid path")
        return RefusalError(ack.words["reason"], ack.words["detail"], ack.words.get("error", "invalid path"))

    def echo(self, path: str, payload: str, *, role: str) -> int:
        if (refusal := self._refusal()) is not None:
            raise refusal
        return len(payload.strip())

    def wire(self, verb: str, path: str, *, role: str, newest: int | None = None) -> list[str]:
        if (refusal := self._refusal()) is not None:
            raise refusal
        return self.answer[1:-1]


class Ticking:
    """Seconds of the recording, so far as the limiter and the tickets look at them."""

    def __init__(self) -> None:
        self.at = 0.0
        self.base_ms = 0

    def __call__(self) -> float:
        return self.at

    def now_ms(self) -> int:
        return self.base_ms + int(self.at * 1000)


@dataclass
class Comparison:
    """What the console answered like the recorded one, and what not.

    Attributes:
        same: commands with the recorded answer.
        different: line sent, recorded answer, our answer.
    """

    same: int = 0
    different: list[tuple[str, list[str], list[str]]] = field(default_factory=list)


def compare(path: Path) -> Comparison:
    recording = events(path)
    token = "lab-tok7" if any(b"31437" in event.payload for event in recording) else "changeme"
    ticking = Ticking()
    if (ticket := re.search(TICKET, b" ".join(event.payload for event in recording))) is not None:
        ticking.base_ms = decode_ticket(ticket[0].decode()).claims.issued_at_ms
    tree = RecordedTree()
    session = ConsoleSession(
        tree,
        token=token,
        limiter=AttachLimiter(ticking),
        options=OLDER_CONSOLE,
        desk=TicketDesk(ROLE_SECRETS, clock=ticking.now_ms),
    )
    found = Comparison()
    if not any(event.what == ">" for event in recording):
        ours = [*session.silence().lines, "<end>"]
        found.same += ours == ["<end>"]
    for index, event in enumerate(recording):
        if event.what != ">":
            continue
        ticking.at = event.at
        recorded = _answer_after(recording, index)
        tree.answer = [line for line in recorded if line != "<end>"]
        ours = _ask(session, event)
        line = "(raw bytes)" if event.total is None else event.payload.decode()
        if [_comparable(text) for text in ours] == [_comparable(text) for text in recorded]:
            found.same += 1
        else:
            found.different.append((line, recorded, ours))
    return found


def _answer_after(recording: list[Event], index: int) -> list[str]:
    """The recorded answer to one command: a late ``PONG`` belongs to the command before."""
    lines: list[str] = []
    for event in recording[index + 1 :]:
        if event.what == ">":
            break
        if event.what == "<" and event.payload != b"PONG":
            lines.append(event.payload.decode())
        elif event.what == "!":
            lines.append("<end>")
    return lines


def _ask(session: ConsoleSession, event: Event) -> list[str]:
    data = event.payload if event.total is None else encode_frame(event.payload.decode())
    session.connection.receive(data)
    answered = bytearray()
    closed = False
    while not closed and (heard := session.connection.next_event()) is not None:
        reply = session.hear(heard)
        if not isinstance(reply, Reply):
            reply = session.execute(reply)
        answered += b"".join(encode_frame(line) for line in reply.lines)
        closed = reply.close
    lines = [payload.decode() for payload in FrameDecoder().feed(bytes(answered))]
    return [line for line in lines if line != "PONG"] + ["<end>"] * closed


def _comparable(line: str) -> str:
    # The preview is lossy, and delays are of the target's own clock, which runs at another speed.
    return re.sub(r"delay_ms=\d+", "delay_ms=N", re.sub(r" data=.*", " data=…", line))
