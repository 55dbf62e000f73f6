"""Replays recorded console traffic through the client's connection and says what it concluded."""

from __future__ import annotations

import ast
import re
from collections import Counter
from typing import TYPE_CHECKING

from console_transcripts import TRANSCRIPTS, events, replayable

from ticket_agent.hive.console.acks import parse_ack
from ticket_agent.hive.console.connection import Answered, ClientConnection, ClientEvent, State, ToSend
from ticket_agent.hive.console.framing import encode_frame
from ticket_agent.hive.console.handshake import Attached, FailureKind, HandshakeFailure
from ticket_agent.hive.console.replies import Command, Done, Ended, Err, Verb, Violation
from ticket_agent.hive.credentials import Secret
from ticket_agent.protocol.capability import decode_ticket, verify_mac
from ticket_agent.protocol.namespace import RefusalKind

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from console_transcripts import Event

UNUSED_VERBS = frozenset({"SPAWN", "KILL", "NETSTATS", "HELP"})
"""Commands of the recordings that no client of ours sends and whose answers have a shape of their own."""


def connection_for(token: str, role: str = "queen", ticket: str | None = None) -> ClientConnection:
    return ClientConnection(token=Secret(token), role=role, ticket=None if ticket is None else Secret(ticket))


def idle_connection(role: str = "queen") -> ClientConnection:
    """A connection whose session is attached."""
    connection = connection_for("tok", role)
    connection.start()
    connection.receive(encode_frame("OK AUTH") + encode_frame(f"OK ATTACH role={role}"))
    while connection.next_event() is not None:
        pass
    assert connection.state is State.IDLE
    return connection


def command_of(line: str) -> Command | None:
    """The command of a recorded line; one in flight for what no parser knows; None for unused verbs."""
    word, _, rest = line.partition(" ")
    if word.upper() in UNUSED_VERBS:
        return None
    if word.upper() not in Verb.__members__:
        return Command(Verb.LS, "/")
    verb = Verb(word.upper())
    if verb in {Verb.PING, Verb.QUIT}:
        return Command(verb)
    path, _, payload = rest.partition(" ")
    return Command(verb, path, payload or None)


class ClientReplay:
    """Feeds one recording to the connection.

    Where the recorded client went on after a refusal that ours takes for the end, a fresh one stands in.

    Attributes:
        results: what became of each recorded line.
        same_bytes: lines that our client would have sent byte for byte.
    """

    def __init__(self, recording: list[Event], *, cut: int = 0) -> None:
        self.results: list[tuple[str, ClientEvent]] = []
        self.same_bytes = 0
        self.strays = 0
        self._cut = cut
        self._line = ""
        self._connection: ClientConnection | None = None
        self._proposed: bytes | None = None
        self._attaches = [
            event.payload.decode().split(" ")[1:3]
            for event in recording
            if event.what == ">" and event.payload.startswith(b"ATTACH ")
        ]
        for event in recording:
            self._take(event)

    def _take(self, event: Event) -> None:
        if event.what == ">":
            self._sent(event)
        elif event.what == "<" and self._connection is not None:
            self.strays += event.payload == b"PONG"
            self._received(encode_frame(event.payload.decode()))
        elif event.what == "!" and self._connection is not None:
            self._note(self._connection.ended())
            self._connection = None
        elif event.what == "*" and event.payload.startswith(b"connected"):
            # A client that sends nothing in time is told what one that was too late is told.
            self._line = "(nothing)"
            self._connection = connection_for("tok")
            self._connection.start()

    def _sent(self, event: Event) -> None:
        self._line = "(raw bytes)" if event.total is None else event.payload.decode()
        word, _, rest = self._line.partition(" ")
        if word in {"AUTH", "HELO"} or (
            self._connection is not None and self._connection.state is State.AUTH
        ):
            role, *ticket = self._attaches.pop(0) if self._attaches else ["queen"]
            self._connection = connection_for(rest or "tok", role, *ticket)
            self._compare(event, self._connection.start())
        elif word == "ATTACH":
            self._attach(event, rest)
        else:
            self._command(event)

    def _attach(self, event: Event, rest: str) -> None:
        if self._connection is not None and self._connection.state is State.ATTACH:
            self._compare(event, self._proposed or b"")
            return
        role, *ticket = rest.split(" ")
        self._connection = connection_for("tok", role, *ticket)
        self._connection.start()
        self._connection.receive(encode_frame("OK AUTH"))
        step = self._connection.next_event()
        assert isinstance(step, ToSend)
        self._compare(event, step.data)

    def _command(self, event: Event) -> None:
        command = command_of("?" if event.total is None else self._line)
        if command is None:
            self._connection = None
            return
        if self._connection is None or self._connection.state is not State.IDLE:
            self._connection = idle_connection()
        self._compare(event, self._connection.command(command))

    def _compare(self, event: Event, ours: bytes) -> None:
        self.same_bytes += event.total is not None and ours == encode_frame(event.payload.decode())

    def _received(self, data: bytes) -> None:
        connection = self._connection
        assert connection is not None
        for start in range(0, len(data), self._cut or len(data)):
            connection.receive(data[start : start + (self._cut or len(data))])
            while (event := connection.next_event()) is not None:
                if isinstance(event, ToSend):
                    self._proposed = event.data
                self._note(event)

    def _note(self, event: ClientEvent | None) -> None:
        if event is not None:
            self.results.append((self._line, event))


FAILURES = {
    FailureKind.SILENT_CLOSE: "end before OK AUTH: refused credential, busy console, or too late",
    FailureKind.ATTACH_REFUSED: "attach refused",
    FailureKind.THROTTLED: "attach throttled",
}


def conclusion(results: Iterable[tuple[str, ClientEvent]]) -> str:
    """What a run amounts to, in one line."""
    counted: Counter[str] = Counter()
    for line, event in results:
        for words in _words(line, event):
            counted[words] += 1
    return "; ".join(f"{words} ({count})" if count > 1 else words for words, count in counted.items())


def _words(line: str, event: ClientEvent) -> Iterator[str]:
    match event:
        case Attached(role):
            yield f"attached as {role}"
        case HandshakeFailure():
            yield FAILURES.get(event.kind, event.kind)
        case Answered(Done()) if line == "QUIT":
            yield "orderly end"
        case Answered(Done()):
            yield "done"
        case Answered(Err(refusal)):
            ack = parse_ack(refusal.text)
            assert ack is not None
            of_grammar = refusal.kind is RefusalKind.GRAMMAR
            detail = f" ERR {ack.verb}" if of_grammar else f" {ack.words.get('detail', 'without a detail')}"
            other = refusal.kind in {RefusalKind.GRAMMAR, RefusalKind.OTHER}
            yield f"refused: {refusal.kind}{detail if other else ''}"
        case Answered(Violation(why)):
            yield f"violation: {why}"
        case Answered(Ended(why)):
            yield f"lost: {why}"


def replay(path: Path, *, cut: int = 0) -> ClientReplay:
    return ClientReplay(events(path), cut=cut)


# The notes of runs: each has a form of its own, and each is fed to the same connection.


def conclusions() -> dict[str, str]:
    """Every recording, and what our client makes of it."""
    found = {path.stem: conclusion(replay(path).results) for path in replayable()}
    for stem, conclude in NOTES.items():
        found[stem] = conclude((TRANSCRIPTS / f"{stem}.txt").read_text())
    return dict(sorted(found.items()))


def outcomes(command: Command | None, frames: Iterable[str | bytes]) -> list[ClientEvent]:
    """Feed an answer to a connection with that command in flight (None: with AUTH sent)."""
    if command is None:
        connection = connection_for("tok")
        connection.start()
    else:
        connection = idle_connection()
        connection.command(command)
    for frame in frames:
        text = frame if isinstance(frame, str) else frame.decode()
        connection.receive(encode_frame(text))
    found: list[ClientEvent] = []
    while (event := connection.next_event()) is not None:
        found.append(event)
    return found


def told(line: str, frames: Iterable[str | bytes]) -> str:
    command = command_of(line)
    return conclusion((line, event) for event in outcomes(command, frames)) or "no answer yet"


def _pipelining(text: str) -> str:
    lists = [ast.literal_eval(line) for line in text.splitlines() if line.startswith("[")]
    pings = lists[3]
    answered = sum(frame != b"PONG" for frame in pings)
    first, *rest = outcomes(Command(Verb.PING), pings)
    assert isinstance(first, Answered)
    echoes = len(ast.literal_eval(text.splitlines()[9].partition(" ")[2]))
    return (
        f"lossy pipelining: of 12 and 20 commands in one segment {answered} and {echoes} were answered; "
        f"with one in flight: done, then {type(rest[0]).__name__.lower()} line and close"
    )


def _two_clients(text: str) -> str:
    second = connection_for("tok")
    second.start()
    silent = second.expired()
    third = connection_for("tok")
    third.start()
    ended = third.ended()
    assert isinstance(silent, HandshakeFailure)
    assert isinstance(ended, HandshakeFailure)
    assert "B auth b''" in text
    tries = [line for line in text.splitlines() if line.startswith("D try")]
    return (
        f"second client: no byte ({silent.kind}: another client holds the console), then {ended.kind}; "
        f"after a reset attached at try {len(tries)}"
    )


def _reconnects(text: str) -> str:
    attempts = [int(number) for number in re.findall(r"attempts (\d)", text)]
    late = re.findall(r"delay ([\d.]+) b'<EOF>'", text)
    return (
        f"reconnected in {min(attempts)} to {max(attempts)} attempts; an AUTH {late[0]} s after connect "
        f"is answered by an end: {FAILURES[FailureKind.SILENT_CLOSE]}"
    )


def _rings(text: str) -> str:
    full = re.search(r"'(ERR ECHO [^']*)'", text)
    read = re.search(r"CAT lines 1 (ERR CAT [^|]*) \|", text)
    assert full is not None
    assert read is not None
    path = "/queen/telemetry/gp-2/seg/seg-000001"
    return f"full segment: {told(f'ECHO {path} x', [full[1]])}; 65 lines: {told(f'CAT {path}', [read[1]])}"


def _quirks(text: str) -> str:
    blocks = re.split(r"^> ", text, flags=re.MULTILINE)[1:]
    found: list[tuple[str, ClientEvent]] = []
    for block in blocks:
        line, *rest = block.splitlines()
        frames = [ast.literal_eval(entry.split(" ", 4)[4]) for entry in rest if entry.startswith("  <")]
        command = command_of(line) if not line.startswith("ATTACH") else None
        if command is not None:
            found += [(line, event) for event in outcomes(command, frames)]
    corrupted = "\\xc3\\x83\\xc2\\xa9" in text
    return f"{conclusion(found)}; non-ASCII came back {'corrupted' if corrupted else 'unchanged'}"


def _tails(text: str) -> str:
    found: list[tuple[str, ClientEvent]] = []
    for line in text.splitlines():
        asked, arrow, listed = line.removeprefix("> ").partition(" < ")
        if line.startswith("> ") and arrow and not asked.endswith(" 5"):
            found += [(asked, e) for e in outcomes(command_of(asked), ast.literal_eval(listed))]
    lost = re.search(r"12 pipelined LS -> OK LS count (\d) END (\d)", text)
    assert lost is not None
    return f"{conclusion(found)}; of 12 pipelined LS {lost[1]} were answered"


def _other_client(text: str) -> str:
    """Acknowledgements that another tool printed."""
    acks = [parse_ack(line.removeprefix("[console] ")) for line in text.splitlines()]
    verbs = Counter(f"{'OK' if ack.ok else 'ERR'} {ack.verb}" for ack in acks if ack is not None)
    shown = ", ".join(f"{verb} ({count})" for verb, count in sorted(verbs.items()) if "DOCTOR" not in verb)
    return f"another tool's log; acknowledgements in it: {shown}"


def _pypi(text: str) -> str:
    parse = told(
        "ECHO /x " + "y" * 200, ["ERR PARSE reason=policy detail=argument payload exceeds allowed length"]
    )
    frame = told("ECHO /x " + "y" * 400, ["ERR FRAME reason=invalid-length"])
    hung = text.count("connection closed (timed out)")
    return f"where the published client hung ({hung}): {parse}; {frame}"


def _no_console(text: str) -> str:
    assert "OK AUTH" not in text
    return "no console traffic: a mounted namespace"


def _vectors(text: str) -> str:
    minted = re.search(r"^(cohesix-ticket-\S+) 206$", text, re.MULTILINE)
    assert minted is not None
    capability = decode_ticket(minted[1])
    sound = verify_mac(capability, "bootstrap")
    claims = capability.claims
    return f"ticket: role {claims.role}, subject {claims.subject}, MAC {'good' if sound else 'WRONG'}"


NOTES = {
    "10_fragment_pipeline": _pipelining,
    "11_two_clients": _two_clients,
    "12_pipelined_handshake_reconnect": _reconnects,
    "18_ring_and_segments": _rings,
    "19_quirks": _quirks,
    "20_cohsh_official_client": _other_client,
    "21_pypi_tcpbackend": _pypi,
    "22_coh_official_client": _other_client,
    "23_coh_mount": _no_console,
    "23b_coh_mount_same_fd": _no_console,
    "25_tail_cursor": _tails,
    "27_other_official_clients": _other_client,
    "28_ticket_vectors": _vectors,
}
