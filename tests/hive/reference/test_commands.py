from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ticket_agent.hive.reference.commands import Command, GrammarError, decode_line, parse_command


@pytest.mark.parametrize(
    ("line", "command"),
    [
        ("ls /", Command(verb="LS", path="/")),
        ("LS host", Command(verb="LS", path="host")),
        ("PING with text", Command(verb="PING")),
        ("  quit  ", Command(verb="QUIT")),
        ("CAT   /proc/boot  ", Command(verb="CAT", path="/proc/boot")),
        ("TAIL /log/queen.log", Command(verb="TAIL", path="/log/queen.log")),
        ("TAIL /log/queen.log 256", Command(verb="TAIL", path="/log/queen.log", lines=256)),
        ("ECHO /p   a  b  ", Command(verb="ECHO", path="/p", payload="a  b")),
        ("ATTACH queen ", Command(verb="ATTACH", payload="queen")),
        ("ATTACH worker-gpu t1", Command(verb="ATTACH", payload="worker-gpu", ticket="t1")),
        ("ECHO /p " + "x" * 2048, Command(verb="ECHO", path="/p", payload="x" * 2048)),
        ("LS /" + "p" * 95, Command(verb="LS", path="/" + "p" * 95)),
    ],
)
def test_commands(line: str, command: Command) -> None:
    assert parse_command(line) == command


@pytest.mark.parametrize(
    ("line", "detail"),
    [
        ("", "empty command"),
        ("   ", "empty command"),
        ("BOGUS x", "unsupported console command"),
        ("AUTH again", "unsupported console command"),
        ("SPAWN {}", "unsupported console command"),
        ("LS", "missing required argument: path"),
        ("ECHO", "missing required argument: path"),
        ("ECHO /p", "missing required argument: payload"),
        ("ECHO /p  ", "missing required argument: payload"),
        ("ATTACH", "missing required argument: role"),
        ("LS /" + "p" * 96, "argument path exceeds allowed length"),
        ("ECHO /p " + "x" * 2049, "argument payload exceeds allowed length"),
        ("ATTACH queen " + "t" * 225, "argument ticket exceeds allowed length"),
        ("TAIL /p 0", "invalid value for argument lines"),
        ("TAIL /p 257", "invalid value for argument lines"),
        ("TAIL /p many", "invalid value for argument lines"),
    ],
)
def test_bad_commands(line: str, detail: str) -> None:
    with pytest.raises(GrammarError) as refused:
        parse_command(line)
    assert str(refused.value) == detail


@pytest.mark.parametrize(
    ("sent", "seen"),
    [
        ("é".encode(), b"\xc3\x83\xc2\xa9"),
        ("✓".encode(), b"\xc3\xa2"),
        (b"a\tb\x7fc", b"abc"),
        (b'{"k":1}', b'{"k":1}'),
    ],
)
def test_every_byte_is_read_as_one_character(sent: bytes, seen: bytes) -> None:
    assert decode_line(sent).encode() == seen


def test_bytes_that_are_no_utf8_are_no_line() -> None:
    with pytest.raises(UnicodeDecodeError):
        decode_line(b"PING \xff")


@given(st.text("\x20aZ/9é\x85", max_size=40))
def test_any_line_is_a_command_or_a_grammar_error(line: str) -> None:
    with suppress(GrammarError):
        assert parse_command(decode_line(line.encode())).verb.isupper()
