from __future__ import annotations

import pytest
from hive_support import SNAPSHOT, SPEC, STATUS, TOKEN, new_hive, raw_grant

from ticket_agent.hive.console.accepting import Hello
from ticket_agent.hive.reference import ReferenceHive, SessionOptions
from ticket_agent.hive.reference.commands import Command
from ticket_agent.hive.reference.limiter import AttachLimiter
from ticket_agent.hive.reference.session import ConsoleSession, Reply


def session(
    hive: ReferenceHive | None = None,
    limiter: AttachLimiter | None = None,
    options: SessionOptions | None = None,
) -> ConsoleSession:
    return ConsoleSession(
        hive or new_hive(),
        token=TOKEN,
        limiter=limiter or AttachLimiter(lambda: 0.0),
        options=options or SessionOptions(),
    )


def greet(opened: ConsoleSession, payload: bytes) -> Command | Reply:
    """The first frame of a client."""
    opened.connection.receive((4 + len(payload)).to_bytes(4, "little") + payload)
    event = opened.connection.next_event()
    assert event == Hello(payload)
    return opened.hear(event)


def attached(hive: ReferenceHive | None = None, options: SessionOptions | None = None) -> ConsoleSession:
    opened = session(hive, options=options)
    assert greet(opened, f"AUTH {TOKEN}".encode()) == Reply(("OK AUTH",))
    assert ask(opened, "ATTACH queen") == Reply(("OK ATTACH role=queen",))
    return opened


def ask(opened: ConsoleSession, line: str | bytes) -> Reply:
    command = opened.parse(line.encode() if isinstance(line, str) else line)
    return opened.execute(command) if isinstance(command, Command) else command


@pytest.mark.parametrize(
    ("payload", "reason"),
    [
        (b"PING", "expected-token"),
        (b"HELO " + TOKEN.encode(), "expected-token"),
        (b"auth " + TOKEN.encode(), "expected-token"),
        (b"", "expected-token"),
        (b"AUTH \xff", "expected-token"),
        (b"AUTH short", "invalid-length"),
        (b"AUTH " + TOKEN.encode() + b" ", "invalid-length"),
        (b"AUTH " + TOKEN.upper().encode(), "invalid-token"),
    ],
)
def test_a_refused_first_frame_ends_the_session(payload: bytes, reason: str) -> None:
    assert greet(session(), payload) == Reply((f"ERR AUTH reason={reason}",), close=True)
    silent = session(options=SessionOptions(silent_auth=True))
    assert greet(silent, payload) == Reply(close=True)
    assert not silent.authenticated


def test_nothing_in_the_namespace_answers_before_an_attach() -> None:
    opened = session()
    greet(opened, f"AUTH {TOKEN}".encode())
    assert ask(opened, "PING").lines == ("OK PING reply=pong",)
    for line in ("LS /", "CAT /proc/boot", "TAIL /log/queen.log", "ECHO /log/queen.log x"):
        assert ask(opened, line).lines == (f"ERR {line.split()[0]} reason=policy detail=unauthenticated",)


class Seconds:
    now = 50.0

    def __call__(self) -> float:
        return self.now


def test_attach_refusals_and_the_limiter_that_all_sessions_share() -> None:
    clock = Seconds()
    limiter = AttachLimiter(clock)
    first, second = session(limiter=limiter), session(limiter=limiter)
    assert ask(first, "ATTACH bogus").lines == ("ERR ATTACH reason=policy detail=invalid-role",)
    assert ask(first, "ATTACH worker-gpu").lines == ("ERR ATTACH reason=policy detail=denied",)
    throttled = ("ERR ATTACH reason=quota detail=throttled delay_ms=250",)
    assert ask(second, "ATTACH queen").lines == throttled
    clock.now += 0.25
    assert ask(second, "ATTACH queen forged-ticket").lines == ("ERR ATTACH reason=policy detail=denied",)
    clock.now += 0.5
    assert ask(second, "ATTACH worker").lines == ("ERR ATTACH reason=policy detail=denied",)
    clock.now += 30
    limited = ("ERR ATTACH reason=quota detail=rate-limited delay_ms=60000",)
    assert ask(first, "ATTACH queen").lines == limited
    clock.now += 60
    assert ask(first, "ATTACH queen").lines == ("OK ATTACH role=queen",)
    assert ask(first, "ATTACH queen").lines == ("OK ATTACH role=queen",)


@pytest.mark.parametrize(
    ("line", "lines"),
    [
        ("PING", ("OK PING reply=pong",)),
        ("ls /queen/lease", ("OK LS path=/queen/lease entries=1", "ctl", "END")),
        (
            "CAT /proc/lifecycle/state",
            ("OK CAT path=/proc/lifecycle/state data=state=ONLINE", "state=ONLINE", "END"),
        ),
        ("CAT /proc/lease/active", ("OK CAT path=/proc/lease/active data=", "END")),
        ("TAIL /log/queen.log", ("OK TAIL path=/log/queen.log", "END")),
        ("ECHO /log/queen.log   a  b ", ("OK ECHO path=/log/queen.log bytes=4",)),
        ("CAT /nope", ("ERR CAT reason=policy detail=invalid-path path=/nope error=invalid path",)),
        ("TAIL /nope", ("ERR TAIL reason=policy detail=invalid-path path=/nope",)),
        (
            f"ECHO {SPEC} x",
            (f"ERR ECHO reason=policy detail=invalid-payload path={SPEC} error=invalid payload",),
        ),
        ("BOGUS x", ("ERR PARSE reason=policy detail=unsupported console command",)),
        ("", ("ERR PARSE reason=policy detail=empty command",)),
        ("ECHO /p", ("ERR PARSE reason=policy detail=missing required argument: payload",)),
    ],
)
def test_answers(line: str, lines: tuple[str, ...]) -> None:
    assert ask(attached(), line) == Reply(lines)


def test_quit_and_broken_text_end_the_session() -> None:
    assert ask(attached(), "QUIT") == Reply(("OK QUIT",), close=True, quit=True)
    assert ask(attached(), b"PING \xff") == Reply(close=True)


def test_the_preview_is_lossy_and_bounded() -> None:
    hive = new_hive()
    lines = ask(attached(hive), "CAT /gpu/GPU-0/info").lines
    assert lines[0].startswith('OK CAT path=/gpu/GPU-0/info data={|    "id": "GPU-0",|')
    assert len(lines[0]) == len("OK CAT ") + 128
    worker = hive.spawn_worker("worker-gpu")
    hive.submit(raw_grant(hive, worker, "t-1", "lease-1"))
    assert all(len(line) <= 256 for line in ask(attached(hive), f"CAT {SNAPSHOT}").lines)


def test_text_beyond_ascii_is_stored_corrupted() -> None:
    hive = new_hive()
    assert ask(attached(hive), "ECHO /log/queen.log é✓").lines == ("OK ECHO path=/log/queen.log bytes=6",)
    assert hive.tail("/log/queen.log") == ["Ã©â"]


def test_older_consoles() -> None:
    old = attached(options=SessionOptions(stray_pong=True, short_errors=True))
    assert ask(old, "PING").lines == ("OK PING reply=pong", "PONG")
    assert ask(old, f"LS /{'p' * 95}").lines == ("ERR LS reason=policy ",)
    assert ask(old, "LS /nope").lines == (
        "ERR LS reason=policy detail=invalid-path path=/nope error=invalid path",
    )


def test_every_answer_line_fits_the_wire() -> None:
    opened = attached()
    path = "/" + "/".join(["x" * 31] * 3)
    assert len(path) == 96
    for line in (f"LS {path}", f"CAT {path}", f"TAIL {path}", f"ECHO {path} x", f"ECHO {STATUS} x"):
        (answer,) = ask(opened, line).lines
        assert answer.startswith("ERR ")
        assert len(answer) <= 256
