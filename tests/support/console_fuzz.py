"""Hostile bytes for the console's machines: recorded traffic, mutated; and what must hold whatever comes."""

from __future__ import annotations

import random
import re
import resource
import time
from collections import Counter
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING

from console_transcripts import events, replayable
from hive_support import TOKEN, new_hive
from transcript_replay import connection_for, idle_connection

from ticket_agent.hive.console.connection import Answered, ClientConnection, State, ToSend
from ticket_agent.hive.console.framing import MAX_FRAME_LEN, encode_frame
from ticket_agent.hive.console.replies import Command, Verb
from ticket_agent.hive.reference import OLDER_CONSOLE, SessionOptions
from ticket_agent.hive.reference.limiter import AttachLimiter
from ticket_agent.hive.reference.session import ConsoleSession, Reply
from ticket_agent.protocol.chunks import decode_lines, encode_line
from ticket_agent.protocol.errors import ChunkError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

CHUNK = 65536
MAX_EVENTS = CHUNK // 4 + 8
"""More events than a chunk of empty frames can make: a machine that exceeds it does not stop."""


@cache
def recorded(what: str) -> tuple[tuple[bytes, ...], ...]:
    """The frames of one direction, one list per recording."""
    streams = []
    for path in replayable():
        frames = [
            event.payload if event.total is None else encode_frame(event.payload.decode())
            for event in events(path)
            if event.what == what
        ]
        if frames:
            streams.append(tuple(frames))
    return tuple(streams)


@cache
def interesting() -> tuple[bytes, ...]:
    """Single pieces that meet the machines' corners."""
    lines = (
        *("END", "PONG", "OK AUTH", "OK ATTACH role=queen", "OK QUIT", "ERR CONSOLE reason=timeout", ""),
        *("ERR PARSE reason=policy detail=x", "ERR FRAME reason=invalid-length", "OK", "ERR", "OK ", "ERR  "),
        *("OK CAT path=/x data=", "OK LS path=/x entries=0"),
        *("ERR ATTACH reason=quota delay_ms=9999999999999", "C1:0000:0001:", f"C1:ffff:ffff:{'0' * 64}:x"),
        *(f"AUTH {TOKEN}", "ATTACH queen", "LS /", "TAIL / 9"),
        *encode_line("\u00e9" * 200),
    )
    sizes = (0, 3, 4, 5, 260, 2308, 2309, 8192, 8193, 2**31, 2**32 - 1)
    headers = tuple(size.to_bytes(4, "little") for size in sizes)
    return tuple(encode_frame(line) for line in lines) + headers


def mutated(rng: random.Random, corpus: tuple[tuple[bytes, ...], ...]) -> bytes:
    """Some frames of one recording, from its start or from anywhere, with one to six changes."""
    frames = rng.choice(corpus)
    start = rng.randrange(len(frames)) if rng.random() < 0.7 else 0
    base = bytearray(b"".join(frames[start : start + rng.randint(1, 40)])[:8192])
    for _ in range(rng.randint(1, 6)):
        at = rng.randrange(len(base) + 1)
        match rng.randrange(7):
            case 0:
                base[at : at + 1] = bytes([rng.randrange(256)])
            case 1:
                del base[at : at + rng.randint(1, 16)]
            case 2:
                base[at:at] = rng.choice(interesting())
            case 3:
                base[at:at] = base[at : at + rng.randint(1, 64)]
            case 4:
                base[at:at] = rng.randbytes(rng.randint(1, 32))
            case 5:
                other = b"".join(rng.choice(corpus))
                cut = rng.randrange(len(other))
                base[at:] = other[cut : cut + 512]
            case _:
                base[at : at + 4] = rng.choice(
                    ((8192).to_bytes(4, "little"), b"\0\0\0\0", b"\xff\xff\xff\xff")
                )
    return bytes(base)


COMMANDS = (
    Command(Verb.LS, "/"),
    Command(Verb.CAT, "/proc/lifecycle/state"),
    Command(Verb.TAIL, "/log/queen.log"),
    Command(Verb.ECHO, "/log/queen.log", "x"),
    Command(Verb.PING),
    Command(Verb.QUIT),
)


NAMED = re.compile(rb"(?:OK|ERR) (LS|CAT|TAIL|ECHO|PING|QUIT)(?:[^/]{0,60}path=(/[!-~]*))?")


def _questions(data: bytes, rng: random.Random) -> Iterator[Command]:
    """Commands that the stream may answer, in its order; anything once it is through."""
    for verb, path in NAMED.findall(data):
        named = verb not in {b"PING", b"QUIT"}
        yield Command(Verb(verb.decode()), path.decode() if named else None, "x" if verb == b"ECHO" else None)
    while True:
        yield rng.choice(COMMANDS)


def _client(data: bytes, rng: random.Random, questions: Iterator[Command]) -> ClientConnection:
    if b"OK AUTH" in data[:16] or rng.random() < 0.1:
        connection = connection_for("tok", ticket="cohesix-ticket-00.00" if rng.random() < 0.5 else None)
        connection.start()
        return connection
    connection = idle_connection()
    if rng.random() < 0.9:
        connection.command(next(questions))
    return connection


def _cuts(rng: random.Random, data: bytes) -> list[bytes]:
    size = rng.choice((1, 3, 17, 256, CHUNK))
    return [data[start : start + size] for start in range(0, len(data), size)]


def strike_client(data: bytes, rng: random.Random) -> str:
    """Give a client's connection these bytes; return how it ended."""
    questions = _questions(data, rng)
    connection = _client(data, rng, questions)
    answers = 0
    for piece in _cuts(rng, data):
        connection.receive(piece)
        for _ in range(MAX_EVENTS):
            event = connection.next_event()
            if event is None:
                break
            answers += isinstance(event, Answered)
            # A client that goes on asking: the machine has to keep up with a whole stream of answers.
            if connection.state is State.IDLE and not isinstance(event, ToSend) and rng.random() < 0.9:
                connection.command(next(questions))
        else:
            raise AssertionError("the client's connection does not stop")
        assert connection.buffered <= MAX_FRAME_LEN
        if connection.state is State.CLOSED:
            assert connection.buffered == 0
    before = connection.state
    connection.ended()
    assert connection.state is State.CLOSED
    connection.receive(data)
    assert connection.next_event() is None
    assert connection.buffered == 0
    return f"{before}, {'some' if answers > 2 else answers} answers"


@cache
def _hive() -> object:
    return new_hive()


def strike_server(data: bytes, rng: random.Random) -> str:
    """Give a console's session these bytes; return how it ended."""
    options = rng.choice((SessionOptions(), OLDER_CONSOLE))
    session = ConsoleSession(
        new_hive() if rng.random() < 0.01 else _hive(),  # type: ignore[arg-type]
        token=TOKEN,
        limiter=AttachLimiter(lambda: 0.0),
        options=options,
    )
    if rng.random() < 0.8:
        data = encode_frame(f"AUTH {TOKEN}") + encode_frame("ATTACH queen") * (rng.random() < 0.8) + data
    answered = 0
    for piece in _cuts(rng, data):
        session.connection.receive(piece)
        for _ in range(MAX_EVENTS):
            event = session.connection.next_event()
            if event is None:
                break
            heard = session.hear(event)
            reply = heard if isinstance(heard, Reply) else session.execute(heard)
            answered += 1
            assert all(len(line.encode()) <= 256 for line in reply.lines)
            for line in reply.lines:
                encode_frame(line)
            if reply.close:
                session.connection.close()
        else:
            raise AssertionError("the console's connection does not stop")
        assert session.connection.buffered <= MAX_FRAME_LEN
    return f"{session.connection.state}, {'some' if answered > 2 else answered} answers"


def strike_chunks(data: bytes, rng: random.Random) -> str:
    """Give the C1 decoder lines that were frames once; return what it said."""
    text = data.decode("latin-1") if rng.random() < 0.5 else data.decode(errors="replace")
    lines: list[str] = []
    for _ in range(rng.randint(1, 3)):
        lines += encode_line(text[: rng.choice((10, 300, 2000))] or "x")
        text = text[rng.randint(0, 50) :]
    for _ in range(rng.randint(0, 2)):
        at = rng.randrange(len(lines))
        match rng.randrange(5):
            case 0:
                del lines[at]
            case 1:
                lines.insert(at, rng.choice(lines))
            case 2:
                lines[at] = lines[at][: rng.randrange(len(lines[at]) + 1)]
            case 3:
                cut = rng.randrange(len(lines[at]) + 1)
                lines[at] = lines[at][:cut] + chr(rng.randrange(0x110000)) + lines[at][cut + 1 :]
            case _:
                rng.shuffle(lines)
        if not lines:
            lines = ["C1:0000:0002:"]
    try:
        logical = decode_lines(lines)
    except ChunkError as error:
        return error.code
    assert sum(map(len, logical)) <= sum(map(len, lines))
    return "accepted"


TARGETS: dict[str, tuple[Callable[[bytes, random.Random], str], str]] = {
    "client": (strike_client, "<"),
    "server": (strike_server, ">"),
    "chunks": (strike_chunks, "<"),
}
"""Machine, and the direction of recorded traffic that is mutated for it."""


@dataclass
class Summary:
    """What a run amounted to.

    Attributes:
        inputs: how many were given.
        size: their bytes.
        slowest_s: processor seconds of the slowest one.
        grown_kib: growth of the process's largest resident set.
        endings: how often it ended how.
    """

    inputs: int = 0
    size: int = 0
    slowest_s: float = 0.0
    grown_kib: int = 0
    endings: Counter[str] = field(default_factory=Counter)

    def line(self, name: str) -> str:
        common = ", ".join(f"{words} {count}" for words, count in self.endings.most_common(6))
        return (
            f"{name}: {self.inputs} inputs, {self.size / 1e6:.1f} MB, "
            f"slowest {self.slowest_s * 1000:.1f} ms, resident set +{self.grown_kib} KiB; {common}"
        )


def peak_kib() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def run(name: str, count: int, *, seed: int = 1) -> Summary:
    """Strike one machine with ``count`` mutated streams; an input that fails is named by its seed."""
    strike, direction = TARGETS[name]
    corpus = recorded(direction)
    summary = Summary()
    before = peak_kib()
    for number in range(count):
        rng = random.Random(f"{seed}:{name}:{number}")
        data = mutated(rng, corpus)
        started = time.process_time()
        try:
            ending = strike(data, rng)
        except Exception as error:
            raise AssertionError(f"{name}: seed {seed}:{name}:{number} broke it with {data!r}") from error
        summary.slowest_s = max(summary.slowest_s, time.process_time() - started)
        summary.inputs += 1
        summary.size += len(data)
        summary.endings[ending] += 1
    summary.grown_kib = peak_kib() - before
    return summary
