"""What reaches the terminal: colours only where they belong, and no traceback wherever the output goes."""

from __future__ import annotations

import os
import pty
import subprocess
from typing import TYPE_CHECKING

import pytest
from cli_support import COMMAND, ESCAPE, PATIENCE_S

from ticket_agent.exits import Exit

if TYPE_CHECKING:
    from pathlib import Path

    from cli_support import Operator

COLOURED = (
    ["journal", "list"],
    ["journal", "verify"],
    ["status"],
    ["journal", "show", "5"],
    ["doctor", "--offline"],
)
PRINTING = (*COLOURED, ["inventory"], ["--help"], ["run", "--help"], ["completion", "bash"], ["--version"])


def _on_a_terminal(operator: Operator, command: list[str], **env: str) -> str:
    reading, terminal = pty.openpty()
    with subprocess.Popen(
        [*COMMAND, *command], env=operator.env | env, stdout=terminal, stderr=subprocess.PIPE
    ) as process:
        os.close(terminal)
        shown = b""
        try:
            while chunk := os.read(reading, 65536):
                shown += chunk
        except OSError:  # how Linux tells that the last writer of a terminal is gone
            pass
        finally:
            os.close(reading)
        assert process.wait(PATIENCE_S) == Exit.OK
    return shown.decode()


@pytest.mark.parametrize("command", COLOURED, ids=" ".join)
def test_colours_are_for_terminals_that_want_them(
    operator: Operator, journal: Path, command: list[str]
) -> None:
    assert ESCAPE in _on_a_terminal(operator, command, TERM="xterm")
    assert ESCAPE not in _on_a_terminal(operator, command, TERM="xterm", NO_COLOR="1")
    assert ESCAPE not in operator.run(*command, env={"TERM": "xterm"}).out


def test_columns_stand_below_each_other_in_colour(operator: Operator, journal: Path) -> None:
    def timeline(text: str) -> list[str]:
        plain = "".join(
            part.partition("m")[2] if index else part for index, part in enumerate(text.split(ESCAPE))
        )
        return [line for line in plain.replace("\r", "").splitlines() if line.startswith("  20")]

    shown = timeline(_on_a_terminal(operator, ["journal", "show", "5"], TERM="xterm"))
    assert shown == timeline(operator.run("journal", "show", "5").out)
    assert len({line.index("+") for line in shown[1:]}) == 1


@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize("command", PRINTING, ids=" ".join)
def test_a_full_disk_behind_the_output_is_one_line(
    operator: Operator, journal: Path, command: list[str], unbuffered: str
) -> None:
    with open("/dev/full", "wb") as full:  # noqa: PTH123 - a device, not a path to compute with
        done = subprocess.run(
            [*COMMAND, *command],
            env=operator.env | {"PYTHONUNBUFFERED": unbuffered},
            stdout=full,
            stderr=subprocess.PIPE,
            check=False,
            timeout=PATIENCE_S,
        )
    assert done.stderr == b"ticket-agent: cannot write the output: No space left on device\n"
    assert done.returncode == Exit.FAILURE


@pytest.mark.parametrize("command", [*PRINTING, ["demo", "--json"]], ids=" ".join)
def test_a_reader_that_leaves_early_is_no_error_to_talk_about(
    operator: Operator, journal: Path, command: list[str]
) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    try:
        done = subprocess.run(
            [*COMMAND, *command],
            env=operator.env,
            stdout=writing,
            stderr=subprocess.PIPE,
            check=False,
            timeout=PATIENCE_S,
        )
    finally:
        os.close(writing)
    assert done.stderr == b""


@pytest.mark.parametrize("closed", [(1,), (2,), (0, 1, 2)], ids=str)
@pytest.mark.parametrize(
    "command", [["journal", "list"], ["status"], ["once", "--mock"], ["nonsense"]], ids=" ".join
)
def test_closed_descriptors_are_no_error(
    operator: Operator, journal: Path, command: list[str], closed: tuple[int, ...]
) -> None:
    shut = " ".join(f"{number}>&-" if number else "0<&-" for number in closed)
    done = subprocess.run(
        ["sh", "-c", f'"$@" {shut}', "sh", *COMMAND, *command],
        env=operator.env,
        capture_output=True,
        check=False,
        timeout=PATIENCE_S,
    )
    assert b"Traceback" not in done.stderr
    assert b"Exception ignored" not in done.stderr
    assert done.returncode == (Exit.USAGE if command == ["nonsense"] else Exit.OK)


def test_no_file_of_the_journal_takes_the_place_of_a_closed_stream(operator: Operator) -> None:
    """Descriptor 2 closed: what anybody writes to standard error must not land in the next file opened."""
    code = (
        "import os, sys\n"
        "from ticket_agent.cli.entry import _secure_streams\n"
        "_secure_streams()\n"
        "fd = os.open('opened', os.O_CREAT | os.O_WRONLY)\n"
        "os.write(2, b'noise')\n"
        "sys.stderr.write('noise')\n"
        "sys.exit(0 if fd > 2 else 1)"
    )
    done = subprocess.run(
        ["sh", "-c", '"$@" 0<&- 1>&- 2>&-', "sh", COMMAND[0], "-c", code],
        env=operator.env,
        cwd=operator.home,
        check=False,
        timeout=PATIENCE_S,
    )
    assert done.returncode == 0
    assert (operator.home / "opened").read_bytes() == b""


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "utf-8"])
def test_every_encoding_can_show_every_text(operator: Operator, journal: Path, encoding: str) -> None:
    options = ["--from", "1", "--through", "2", "--reason", "gehört zu Ω"]
    assert operator.run("journal", "acknowledge-gap", *options).code == Exit.OK
    (journal / "ops" / "Ω").write_bytes(b"")
    for command in (["status"], ["journal", "list"], ["journal", "verify"], ["journal", "show", "Ω"]):
        done = subprocess.run(
            [*COMMAND, *command],
            env=operator.env | {"PYTHONIOENCODING": encoding},
            capture_output=True,
            check=False,
            timeout=PATIENCE_S,
        )
        assert b"Traceback" not in done.stderr
        # A stream that claims ASCII is taken for a misconfigured UTF-8 one.
        shown = (done.stdout + done.stderr).decode("utf-8" if encoding == "ascii" else encoding)
        assert "\\u03a9" in shown or "Ω" in shown


def test_inventory_without_a_driver_says_unknown(operator: Operator) -> None:
    answer = operator.run("inventory")
    told = operator.run("inventory", "--json").object
    assert told["kind"] == "inventory"
    if told["health"] == "ok":
        pytest.skip("this host has a driver")
    assert answer.code == Exit.FAILURE
    assert "unknown" in answer.out
    assert "free" not in answer.out


def test_a_user_without_a_home_is_told_to_name_a_directory(operator: Operator) -> None:
    code = (
        "import sys, pathlib\n"
        "def nobody(): raise RuntimeError('Could not determine home directory.')\n"
        "pathlib.Path.home = nobody\n"
        "sys.argv = ['ticket-agent', 'status']\n"
        "from ticket_agent.cli import main\n"
        "main()"
    )
    env = {name: value for name, value in operator.env.items() if name != "STATE_DIRECTORY"}
    done = subprocess.run([COMMAND[0], "-c", code], env=env, capture_output=True, text=True, check=False)
    assert done.returncode == Exit.USAGE
    assert (
        done.stderr
        == "ticket-agent: this user has no home directory; name the state directory with --state-dir\n"
    )
