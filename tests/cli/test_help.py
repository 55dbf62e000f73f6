"""What a newcomer asks first: help, version, completion, and the flags of earlier agents."""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING

import click
import pytest
from click.testing import CliRunner

from ticket_agent import __version__
from ticket_agent.cli.options import RETIRED
from ticket_agent.cli.root import cli
from ticket_agent.exits import MEANING, Exit

if TYPE_CHECKING:
    from collections.abc import Iterator

    from cli_support import Operator


def _commands(
    command: click.Command, path: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    yield path, command
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            inner = command.get_command(context, name)
            assert inner is not None
            yield from _commands(inner, (*path, name))


ALL = dict(_commands(cli))


def test_the_commands_are_the_documented_ones() -> None:
    leaves = {" ".join(path) for path, command in ALL.items() if not isinstance(command, click.Group)}
    assert leaves == {
        "demo",
        "run",
        "once",
        "status",
        "journal list",
        "journal show",
        "journal explain",
        "journal verify",
        "journal acknowledge-gap",
        "journal replay",
        "journal resolve",
        "journal gc",
        "journal report",
        "journal export",
        "journal import",
        "submit",
        "doctor",
        "inventory",
        "peft list",
        "peft show",
        "peft verify",
        "peft gc",
        "release init",
        "release prepare",
        "release serve",
        "release plan",
        "release submit",
        "release watch",
        "release explain",
        "release recover",
        "release history",
        "release report",
        "release gc",
        "release verify",
        "snapshots read",
        "snapshots list",
        "snapshots watch",
        "snapshots publish",
        "snapshots discover",
        "snapshots doctor",
        "ticket show",
        "ticket check",
        "ticket mint",
        "hive serve",
        "install",
        "completion",
    }


@pytest.mark.parametrize("path", ALL, ids=" ".join)
@pytest.mark.parametrize("flag", ["--help", "-h"])
def test_every_command_explains_itself_and_its_options(path: tuple[str, ...], flag: str) -> None:
    answer = CliRunner().invoke(cli, [*path, flag])
    assert answer.exit_code == 0
    assert answer.output.startswith("Usage: ")
    command = ALL[path]
    assert command.help
    for option in command.params:
        if isinstance(option, click.Option):
            assert (option.opts[0] in answer.output.split()) is not option.hidden, option.opts
            assert option.hidden or option.help or isinstance(option.type, click.Choice), option.opts


def test_the_one_line_helps_agree_with_the_commands() -> None:
    answer = CliRunner().invoke(cli, ["--help"])
    for name in cli.list_commands(click.Context(cli)):
        assert f"\n  {name} " in answer.output


def test_version() -> None:
    assert CliRunner().invoke(cli, ["--version"]).output == f"ticket-agent, version {__version__}\n"


def test_no_command_at_all_shows_the_help(operator: Operator) -> None:
    answer = operator.run()
    assert (answer.code, answer.out) == (Exit.USAGE, "")
    assert "Commands:" in answer.err


def test_every_exit_code_has_a_meaning() -> None:
    assert set(MEANING) == set(Exit)
    assert [int(code) for code in Exit] == list(range(9))
    assert all(meaning and "\n" not in meaning for meaning in MEANING.values())


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["nonsense"], "No such command 'nonsense'"),
        (["journal", "nonsense"], "ticket-agent journal --help"),
        (["status", "--nonsense"], "--nonsense"),
        (["journal", "show"], "OPERATION"),
        (["completion"], "bash, zsh, fish"),
        (["completion", "tcsh"], "'tcsh' is not one of"),
        (["submit", "gpu.lease.grant"], "--worker"),
        (["run", "--tcp-port", "99999999999999999999"], "--tcp-port"),
        (["run", "--poll-ms", "1e3"], "--poll-ms"),
        (["run", "--state-dir", ""], "an empty name is no directory"),
        (["status", "--state-dir", ""], "an empty name is no directory"),
        (["demo", "--keep", ""], "an empty name is no directory"),
        (["run", "--registry-root", ""], "an empty name is no directory"),
        (["peft", "list", "--registry-root", ""], "an empty name is no directory"),
        (["peft", "show"], "MODEL"),
        (["release", "verify"], "BUNDLE"),
        (["release", "watch"], "OPERATION"),
        (["release", "watch", "release-one"], "--release-config"),
        (["release", "report", "release-one", "--release-config", "a.toml"], "--html"),
        (["release", "gc", "--release-config", "a.toml", "--keep", "-1"], "--keep"),
        (["release", "verify", "bundle.tar"], "--public-key"),
        (["peft", "gc", "--min-age", "-1"], "--min-age"),
        (["journal", "list", "--state", "done"], "'prepared', 'executing'"),
    ],
)
def test_wrong_usage_is_one_line_that_names_the_place(
    operator: Operator, arguments: list[str], words: str
) -> None:
    answer = operator.run(*arguments)
    assert (answer.code, answer.out) == (Exit.USAGE, "")
    assert answer.err == answer.line + "\n"
    assert words in answer.line
    assert answer.line.endswith("--help")


@pytest.mark.parametrize("command", ["run", "once", "doctor"])
@pytest.mark.parametrize("value", [[], ["x"]], ids=["alone", "with a value"])
@pytest.mark.parametrize("flag", RETIRED)
def test_retired_flags_say_what_to_use_instead(command: str, flag: str, value: list[str]) -> None:
    answer = CliRunner().invoke(cli, [command, flag, *value])
    assert answer.exit_code == Exit.USAGE
    assert f"{flag} is not an option here: {RETIRED[flag]}" in " ".join(answer.output.split())


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_prints_the_script_of_a_shell(operator: Operator, shell: str) -> None:
    answer = operator.run("completion", shell)
    assert (answer.code, answer.err) == (Exit.OK, "")
    assert "_TICKET_AGENT_COMPLETE" in answer.out
    assert "ticket-agent" in answer.out


def test_the_bash_script_is_one_that_bash_takes(operator: Operator) -> None:
    script = operator.run("completion", "bash").out
    done = subprocess.run(
        ["bash", "-c", f"{script}\ncomplete -p ticket-agent"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.rstrip().endswith("ticket-agent")


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("ticket-agent jo", {"journal"}),
        (
            "ticket-agent journal ",
            {
                "list",
                "show",
                "explain",
                "replay",
                "resolve",
                "gc",
                "verify",
                "acknowledge-gap",
                "report",
                "export",
                "import",
            },
        ),
        ("ticket-agent peft ", {"list", "show", "verify", "gc"}),
        ("ticket-agent release ver", {"verify"}),
        ("ticket-agent journal list --sta", {"--state-dir", "--state"}),
        ("ticket-agent completion f", {"fish"}),
        ("ticket-agent run --cur", set()),
    ],
)
def test_completion_answers_the_shell(operator: Operator, words: str, expected: set[str]) -> None:
    env = {
        "_TICKET_AGENT_COMPLETE": "bash_complete",
        "COMP_WORDS": words,
        "COMP_CWORD": str(words.count(" ")),
    }
    answer = operator.run(env=env)
    assert answer.code == Exit.OK
    assert {text.partition(",")[2] for text in answer.out.split()} == expected
