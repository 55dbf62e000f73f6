from __future__ import annotations

import pytest

from ticket_agent.hive.console.checks import (
    ConsoleUsageError,
    check_keepalive,
    check_line,
    check_path,
    check_port,
    check_role,
)
from ticket_agent.protocol.namespace import HiveError


@pytest.mark.parametrize(
    "path", ["/", "/gpu", "/host/tickets/spec.snapshot", "/" + "p" * 95, "/a/b/c/d/e/f/g/h", "/a/..b/c..."]
)
def test_legal_paths(path: str) -> None:
    assert check_path(path) == path


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("", "absolute"),
        ("host", "absolute"),
        ("/" + "p" * 96, "97 characters"),
        ("/a/b/c/d/e/f/g/h/i", "8 components"),
        ("/a/./b", "'.'"),
        ("/../a", "'..'"),
        ("/a/", "empty"),
        ("//a", "empty"),
        ("/a b", "blank"),
        ("/a\0", "control"),
        ("/a\nCAT /b", "control"),
        ("/\u00e9", "non-ASCII"),
    ],
)
def test_illegal_paths_are_a_defect_of_the_caller(path: str, words: str) -> None:
    with pytest.raises(ConsoleUsageError, match=words) as caught:
        check_path(path)
    assert isinstance(caught.value, HiveError)
    assert isinstance(caught.value, ValueError)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("line", ["x", '{"a":"b  c"}', "{" + "x" * 2047])
def test_legal_lines(line: str) -> None:
    assert check_line(line) == line


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("", "empty"),
        ("x" * 2049, "2049"),
        (" x", "blank"),
        ("x ", "blank"),
        ("\tx", "control"),
        ("x\ny", "control"),
        ("x\r", "control"),
        ("x\0", "control"),
        ("x\x7f", "control"),
        ("\u00e9", "non-ASCII"),
        ("\u2028", "non-ASCII"),
    ],
)
def test_lines_a_console_would_alter_are_refused(line: str, words: str) -> None:
    with pytest.raises(ConsoleUsageError, match=words):
        check_line(line)


@pytest.mark.parametrize("role", ["queen", "worker-gpu", "worker-heartbeat", "w" * 16])
def test_legal_roles(role: str) -> None:
    assert check_role(role) == role


@pytest.mark.parametrize("role", ["", "Queen", "queen x", "w" * 17, "-queen", "queen\n"])
def test_illegal_roles(role: str) -> None:
    with pytest.raises(ConsoleUsageError, match="no role token"):
        check_role(role)


def test_ports() -> None:
    assert [check_port(port) for port in (1, 65535)] == [1, 65535]
    for port in (-1, 0, 65536):
        with pytest.raises(ConsoleUsageError, match="outside"):
            check_port(port)


@pytest.mark.parametrize("seconds", [0.1, 15])
def test_keepalives_that_every_console_bears(seconds: float) -> None:
    assert check_keepalive(seconds) == seconds


@pytest.mark.parametrize("seconds", [0, -1, 15.1, float("inf"), float("nan")])
def test_other_keepalives(seconds: float) -> None:
    with pytest.raises(ConsoleUsageError, match="keep-alive"):
        check_keepalive(seconds)
