"""Options shared by the commands that serve or ask a hive, and their way into one configuration."""

from __future__ import annotations

import getpass
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from ticket_agent.cli.output import fail
from ticket_agent.exits import Exit

if TYPE_CHECKING:
    from ticket_agent.config import AgentConfig

__all__ = [
    "DirectoryPath",
    "agent_options",
    "config_from",
    "default_state_dir",
    "hive_options",
    "metrics_listen_option",
    "metrics_textfile_option",
    "mock_option",
    "relay_option",
    "root_option",
    "state_dir_option",
]

CommandT = TypeVar("CommandT", bound=Callable[..., Any])


class DirectoryPath(click.Path):
    """A directory by name; the empty name, an unset variable most likely, does not mean the current one."""

    def __init__(self) -> None:
        super().__init__(path_type=Path, file_okay=False)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Refuse the empty name."""
        if value == "":
            self.fail("an empty name is no directory (is a variable unset?)", param, ctx)
        return super().convert(value, param, ctx)


RETIRED = {
    "--cursor": "the cursor lives in the state directory: use --state-dir",
    "--execution-journal": "the journal is a folder of records in the state directory: use --state-dir",
    "--agent-lock": "the fence lives in the state directory: use --state-dir",
    "--execution-lanes": "lanes follow from the resources of the tickets and need no number",
    "--relay-wal": "what waits to be relayed is in the journal of the state directory: use --state-dir",
    "--policy": "the bounds of the published policy are built in",
}


def default_state_dir() -> Path:
    """``$STATE_DIRECTORY`` as systemd sets it, else the XDG state directory of the user."""
    from_systemd = os.environ.get("STATE_DIRECTORY", "").split(":")[0]
    if from_systemd:
        return Path(from_systemd)
    try:
        base = os.environ.get("XDG_STATE_HOME") or str(Path.home() / ".local" / "state")
    except RuntimeError:
        fail("this user has no home directory; name the state directory with --state-dir", Exit.USAGE)
    return Path(base) / "ticket-agent"


def login_name() -> str:
    """Who runs this command, as far as the host knows."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return f"uid {os.getuid()}"


def _retired(flag: str, advice: str) -> Callable[[CommandT], CommandT]:
    def refuse(ctx: click.Context, param: click.Parameter, value: str | None) -> None:  # noqa: ARG001
        if value is not None:
            raise click.UsageError(f"{flag} is not an option here: {advice}")

    # Some of them were switches: the advice must come with and without a value behind the flag.
    return click.option(
        flag, hidden=True, expose_value=False, callback=refuse, is_eager=True, is_flag=False, flag_value=""
    )


def _apply(command: CommandT, decorators: list[Callable[[CommandT], CommandT]]) -> CommandT:
    for decorate in reversed(decorators):
        command = decorate(command)
    return command


def state_dir_option(command: CommandT) -> CommandT:
    """``--state-dir`` alone, for the commands that only read a journal."""
    return click.option(
        "--state-dir",
        type=DirectoryPath(),
        default=None,
        show_default="$STATE_DIRECTORY or ~/.local/state/ticket-agent",
        help="Directory of journal, cursor and fence.",
    )(command)


def hive_options(command: CommandT) -> CommandT:
    """Where the hive is: its console, or a gateway in front of it, and how to get in."""
    path = click.Path(path_type=Path, dir_okay=False)
    return _apply(
        command,
        [
            click.option("--config", type=path, help="TOML file; flags win over it."),
            click.option(
                "--mount-dir",
                type=DirectoryPath(),
                help="Directory that the hive is mounted on, in place of a console.",
            ),
            click.option("--tcp-host", help="Console host (default 127.0.0.1)."),
            click.option("--tcp-port", type=click.IntRange(1, 65535), help="Console port (default 31337)."),
            click.option(
                "--auth-token",
                help="Console token: env:NAME or file:/absolute/path; on this host also the token.",
            ),
            click.option("--role", type=click.Choice(["queen"]), help="Role to attach as."),
            click.option("--ticket", help="Capability ticket for the attach; env: or file: as above."),
            click.option("--rest-url", help="A hive gateway instead of a console, http[s]://host[:port]."),
            click.option(
                "--rest-auth-token",
                help="Its request token; env:, file: or the token, else $HIVE_GATEWAY_REQUEST_AUTH_TOKEN.",
            ),
            click.option(
                "--rest-ticket", help="Delegated ticket for it; env: or file:, else $COH_REST_TICKET."
            ),
            click.option("--rest-ca-file", type=path, help="Certificates (PEM) to trust for https."),
            click.option(
                "--allow-placeholder-token", is_flag=True, help="Accept well-known lab tokens. Only in a lab."
            ),
        ],
    )


def agent_options(command: CommandT) -> CommandT:
    """Everything that `run`, `once` and `doctor` take."""
    path = click.Path(path_type=Path, dir_okay=False)
    retired: list[Callable[[CommandT], CommandT]] = [
        _retired(flag, advice) for flag, advice in RETIRED.items()
    ]
    return _apply(
        command,
        [
            hive_options,
            state_dir_option,
            click.option("--manifest", type=path, help="The hive's resolved manifest (JSON)."),
            click.option("--mount", help="Where the host tree is mounted in the namespace (default /host)."),
            click.option("--poll-ms", type=click.IntRange(10, 1000), help="Longest pause between two looks."),
            click.option("--local-hive", help="Name of this hive, for version-1 tickets."),
            click.option(
                "--log-format", type=click.Choice(["text", "json"]), help="Log format (default text)."
            ),
            click.option(
                "--log-level", type=click.Choice(["debug", "info", "warning", "error"]), help="Default info."
            ),
            root_option("--registry-root", "Directory of the models, an absolute path."),
            root_option("--export-root", "Directory for exported jobs, an absolute path."),
            root_option("--adapter-root", "Directory of the adapters to import, an absolute path."),
            click.option(
                "--peft-release-config", type=path, help="TOML file that says how peft.release runs here."
            ),
            *retired,
        ],
    )


def root_option(flag: str, text: str) -> Callable[[CommandT], CommandT]:
    """One of the directories of the PEFT actions."""
    return click.option(flag, type=DirectoryPath(), default=None, help=text)


def relay_option(command: CommandT) -> CommandT:
    """``--relay``, for the commands that serve."""
    text = "Relay version-1 tickets for other hives to the peers in [relay], and bring their results back."
    return click.option("--relay", is_flag=True, help=text)(command)


def mock_option(command: CommandT) -> CommandT:
    """``--mock``, for the commands that serve."""
    text = "Serve an embedded reference hive; its journal stays apart from a real one's."
    return click.option("--mock", is_flag=True, help=text)(command)


def metrics_listen_option(command: CommandT) -> CommandT:
    """``--metrics-listen``, for the command that serves until it is stopped."""
    text = "Answer GET /metrics there, on loopback only, e.g. 127.0.0.1:9464 (default off)."
    return click.option("--metrics-listen", metavar="ADDRESS:PORT", help=text)(command)


def metrics_textfile_option(command: CommandT) -> CommandT:
    """``--metrics-textfile``, for the commands that serve."""
    text = "Write metrics into this file, which must end in .prom (default off)."
    path = click.Path(path_type=Path, dir_okay=False)
    return click.option("--metrics-textfile", type=path, help=text)(command)


def config_from(options: dict[str, Any]) -> AgentConfig:
    """Merge file, flags and manifest; a wrong configuration ends the command with exit code 2."""
    from ticket_agent.config import (  # noqa: PLC0415 - pydantic
        PEFT_ROOTS,
        ConfigError,
        apply_manifest,
        load_config,
    )

    state_dir, textfile = options.get("state_dir"), options.get("metrics_textfile")
    release, mounted = options.get("peft_release_config"), options.get("mount_dir")
    overrides: dict[str, Any] = {
        "state_dir": str(state_dir) if state_dir is not None else None,
        "mount": options.get("mount"),
        "local_hive": options.get("local_hive"),
        "console": {
            "host": options.get("tcp_host"),
            "port": options.get("tcp_port"),
            "auth_token": options.get("auth_token"),
            "role": options.get("role"),
            "ticket": options.get("ticket"),
            "allow_placeholder_token": options.get("allow_placeholder_token") or None,
        },
        "rest": _rest(options),
        "mount_dir": {"path": str(mounted.absolute()) if mounted is not None else None},
        "poll": {"idle_ms": options.get("poll_ms")},
        "log": {"format": options.get("log_format"), "level": options.get("log_level")},
        "metrics": {
            "listen": options.get("metrics_listen"),
            "textfile": str(textfile.absolute()) if textfile is not None else None,
        },
        "peft": {
            **{name: str(options[name]) for name in PEFT_ROOTS if options.get(name) is not None},
            "release_config": str(release.absolute()) if release is not None else None,
        },
    }
    try:
        config = load_config(options.get("config"), overrides | _state_default(options, state_dir))
        manifest = options.get("manifest")
        return apply_manifest(config, manifest) if manifest is not None else config
    except ConfigError as error:
        fail(str(error), Exit.USAGE)


def _rest(options: dict[str, Any]) -> dict[str, Any]:
    ca_file = options.get("rest_ca_file")
    return {
        "url": options.get("rest_url"),
        "auth_token": options.get("rest_auth_token"),
        "ticket": options.get("rest_ticket"),
        "ca_file": str(ca_file.absolute()) if ca_file is not None else None,
        # One flag for both ways into a lab; a token for a gateway that is not used means nothing.
        "allow_placeholder_token": (options.get("rest_url") and options.get("allow_placeholder_token"))
        or None,
    }


def _state_default(options: dict[str, Any], state_dir: Path | None) -> dict[str, Any]:
    """The default directory must not hide one that the file names."""
    if state_dir is not None:
        return {}
    config_path = options.get("config")
    if config_path is not None and _names_state_dir(config_path):
        return {}
    directory = default_state_dir()
    # An embedded hive numbers its admissions anew each time; a real hive's journal must never hold them.
    chosen = directory.with_name(f"{directory.name}-mock") if options.get("mock") else directory
    return {"state_dir": str(chosen)}


def _names_state_dir(path: Path) -> bool:
    import tomllib  # noqa: PLC0415 - only where a file is given

    try:
        return "state_dir" in tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return False
