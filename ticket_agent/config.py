"""Configuration of the agent: a TOML file, a hive manifest and flags, merged into one frozen value."""

from __future__ import annotations

import json
import tomllib
from ipaddress import ip_address
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_args

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from ticket_agent.config_relay import RelaySettings, relay_of_manifest

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pydantic_core import ErrorDetails

__all__ = [
    "PEFT_ROOTS",
    "AgentConfig",
    "ConfigError",
    "ConsoleSettings",
    "GpuSettings",
    "LogSettings",
    "MetricsSettings",
    "MountSettings",
    "PeftSettings",
    "PollSettings",
    "RestSettings",
    "RetentionSettings",
    "apply_manifest",
    "load_config",
]

MAX_CONFIG_BYTES = 256 * 1024
MAX_MANIFEST_BYTES = 1024 * 1024
MAX_PORT = 65535
PEFT_ROOTS = ("registry_root", "export_root", "adapter_root")
_RELEASE_CONFIG = "release_config"
_CA_FILE = "ca_file"
_TRANSPORTS = ("console", "rest", "mount_dir")
"""Tables of which a configuration holds one, because an agent has one way to its hive."""

HostName = Annotated[str, Field(pattern=r"^[!-~]{1,253}$")]
HttpUrl = Annotated[str, Field(pattern=r"^https?://[!-~]{1,2000}$")]
HiveName = Annotated[str, Field(pattern=r"^[A-Za-z0-9._:][A-Za-z0-9._:-]{0,63}$")]


class ConfigError(Exception):
    """The configuration cannot be used; one line names the file, the key and what is wrong with it."""

    code = "config"


class _Settings(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


def _absolute(path: Path | None) -> Path | None:
    if path is not None and not path.is_absolute():
        message = "must be an absolute path"
        raise ValueError(message)
    return path


class ConsoleSettings(_Settings):
    """The TCP console of the hive.

    Attributes:
        auth_token: a reference (``env:NAME`` or ``file:/absolute/path``) or, for a console of this host, the
            token itself; absent means the environment decides.
        ticket: capability ticket for the attach, by the same kind of reference.
        allow_placeholder_token: accept well-known lab tokens such as ``changeme``.
    """

    host: HostName = "127.0.0.1"
    port: Annotated[int, Field(ge=1, le=65535)] = 31337
    role: Literal["queen"] = "queen"
    auth_token: str | None = Field(default=None, repr=False)
    ticket: str | None = Field(default=None, repr=False)
    allow_placeholder_token: bool = False
    command_timeout_s: Annotated[float, Field(gt=0, le=600)] = 5.0


class RestSettings(_Settings):
    """A REST gateway in front of the hive, in place of a direct console; used if ``url`` is given.

    Attributes:
        url: ``http[s]://host[:port][/prefix]``.
        auth_token: request token by reference (``env:NAME`` or ``file:/absolute/path``) or, for a lab, the
            token itself; absent means the environment decides.
        ticket: delegated capability ticket, by the same kind of reference.
        allow_placeholder_token: accept well-known lab tokens such as ``changeme``.
        ca_file: certificates (PEM) to trust instead of the system's.
        proxy: ``http://host:port`` of a proxy; without it none is used, whatever the environment says.
        timeout_s: deadline of one read or append; a gateway itself waits up to 125 s.
        cache_s: how long the gateway may answer reads from its cache.
    """

    url: HttpUrl | None = None
    auth_token: str | None = Field(default=None, repr=False)
    ticket: str | None = Field(default=None, repr=False)
    allow_placeholder_token: bool = False
    ca_file: Path | None = None
    proxy: HttpUrl | None = None
    timeout_s: Annotated[float, Field(gt=0, le=600)] = 130.0
    cache_s: Annotated[float, Field(ge=0, le=60)] = 2.0

    @field_validator("ca_file")
    @classmethod
    def _file_is_absolute(cls, value: Path | None) -> Path | None:
        return _absolute(value)

    @model_validator(mode="after")
    def _has_a_gateway(self) -> RestSettings:
        if self.url is None and self.model_fields_set - {"url"}:
            message = "needs a url; without one the hive's console is used"
            raise ValueError(message)
        return self


class MountSettings(_Settings):
    """A hive that is mounted as a directory of this host, in place of the console.

    Attributes:
        path: the directory, an absolute path.
    """

    path: Path

    @field_validator("path")
    @classmethod
    def _path_is_absolute(cls, value: Path) -> Path:
        if not value.is_absolute():
            message = "must be an absolute path"
            raise ValueError(message)
        return value


class PollSettings(_Settings):
    """How often the admission stream is looked at, in milliseconds: fast after activity, slow when idle."""

    fast_ms: Annotated[int, Field(ge=1, le=1000)] = 5
    idle_ms: Annotated[int, Field(ge=10, le=1000)] = 1000


class RetentionSettings(_Settings):
    """How much of the finished past stays as single records before it moves to the archive."""

    keep_days: Annotated[int, Field(ge=0, le=3650)] = 7
    keep_records: Annotated[int, Field(ge=0, le=1_000_000)] = 1024


class GpuSettings(_Settings):
    """Lease actions."""

    enabled: bool = True


class PeftSettings(_Settings):
    """Directories of the PEFT actions, as absolute paths; one that is not named is not used.

    Attributes:
        registry_root: models, and which of them is active.
        export_root: jobs that were exported.
        adapter_root: adapters that can be imported.
        release_config: file that says how ``peft.release`` runs here; without it that is not enabled.
    """

    registry_root: Path | None = None
    export_root: Path | None = None
    adapter_root: Path | None = None
    release_config: Path | None = None

    @field_validator("registry_root", "export_root", "adapter_root", "release_config")
    @classmethod
    def _root_is_absolute(cls, value: Path | None) -> Path | None:
        return _absolute(value)

    @model_validator(mode="after")
    def _roots_are_apart(self) -> PeftSettings:
        """A job called ``active`` must not become the registry's pointer."""
        named = {name: path for name in PEFT_ROOTS if (path := getattr(self, name)) is not None}
        for (one, path), (other, beside) in combinations(named.items(), 2):
            if path.is_relative_to(beside) or beside.is_relative_to(path):
                message = f"{one} and {other} must be directories apart from each other"
                raise ValueError(message)
        return self

    @property
    def unnamed(self) -> tuple[str, ...]:
        """The roots that are not named; the actions need all three."""
        return tuple(name for name in PEFT_ROOTS if getattr(self, name) is None)


class LogSettings(_Settings):
    """Structured log on standard error."""

    format: Literal["text", "json"] = "text"
    level: Literal["debug", "info", "warning", "error"] = "info"


class MetricsSettings(_Settings):
    """Prometheus metrics; off unless one of these is given.

    Attributes:
        listen: ``ADDRESS:PORT`` to answer ``GET /metrics`` on; loopback only, ``[::1]:9464`` for IPv6, port 0
            for any free one.
        textfile: absolute path of a file that ends in ``.prom``, for a collector that reads files.
    """

    listen: str | None = None
    textfile: str | None = None

    @field_validator("listen")
    @classmethod
    def _listens_on_loopback(cls, value: str | None) -> str | None:
        if value is not None:
            _loopback(value)
        return value

    @field_validator("textfile")
    @classmethod
    def _collectors_read_it(cls, value: str | None) -> str | None:
        usable = value is None or (value.startswith("/") and value.endswith(".prom") and "\0" not in value)
        if not usable:
            message = "must be an absolute path that ends in .prom; collectors read no other files"
            raise ValueError(message)
        return value

    @property
    def address(self) -> tuple[str, int] | None:
        """Host and port to listen on, or None."""
        return None if self.listen is None else _loopback(self.listen)


def _loopback(text: str) -> tuple[str, int]:
    host, colon, port = text.rpartition(":")
    host = host[1:-1] if host.startswith("[") and host.endswith("]") else host
    digits = port.isascii() and port.isdigit() and len(port) <= len("65535")
    if not colon or not digits or int(port) > MAX_PORT:
        message = "must be ADDRESS:PORT, such as 127.0.0.1:9464"
        raise ValueError(message)
    try:
        local = ip_address(host).is_loopback
    except ValueError:
        local = False
    if not local:
        message = (
            "must be an address of this host's loopback, such as 127.0.0.1:9464; put a proxy in front of it"
        )
        raise ValueError(message)
    return host, int(port)


class AgentConfig(_Settings):
    """Everything the daemon needs to know.

    Attributes:
        state_dir: journal, cursor and fence live here; nobody else may write to it.
        enabled: whether the hive's manifest offers tickets at all.
        local_hive: this hive's name; version-1 lines addressed to another one are skipped.
        mount: where the host tree sits in the hive's namespace.
        mount_dir: the directory that the hive is mounted on, if that is the way to it.
        max_line_bytes: longest ticket or result line of the hive, 1..=2048 bytes.
        shard_bits: how many bits of the Worker id's digest form the shard label, 0..=8.
        action_allowlist: actions that may run here; absent means every action this agent knows.
    """

    state_dir: Path
    enabled: bool = True
    local_hive: HiveName = "hive-a"
    mount: str = "/host"
    max_line_bytes: Annotated[int, Field(ge=1, le=2048)] = 2048
    shard_bits: Annotated[int, Field(ge=0, le=8)] = 8
    action_allowlist: frozenset[str] | None = None
    console: ConsoleSettings = ConsoleSettings()
    rest: RestSettings = RestSettings()
    mount_dir: MountSettings | None = None
    poll: PollSettings = PollSettings()
    retention: RetentionSettings = RetentionSettings()
    gpu: GpuSettings = GpuSettings()
    peft: PeftSettings = PeftSettings()
    log: LogSettings = LogSettings()
    metrics: MetricsSettings = MetricsSettings()
    relay: RelaySettings = RelaySettings()

    @model_validator(mode="after")
    def _no_peer_is_this_hive(self) -> AgentConfig:
        if any(peer.name == self.local_hive for peer in self.relay.peers):
            message = f"relay: a peer has this hive's own name, {self.local_hive}"
            raise ValueError(message)
        return self

    @field_validator("mount")
    @classmethod
    def _mount_is_plain(cls, value: str) -> str:
        stripped = value.rstrip("/")
        parts = stripped.split("/")[1:]
        printable = all("!" <= char <= "~" for char in stripped)
        if not (printable and stripped.startswith("/")) or any(part in {"", ".", ".."} for part in parts):
            message = "must be an absolute path below / in printable ASCII, without blanks, . or .."
            raise ValueError(message)
        return stripped

    @model_validator(mode="after")
    def _has_one_way_to_the_hive(self) -> AgentConfig:
        if self.rest.url is not None and self.console.model_fields_set & {"host", "port"}:
            message = "names both a console and a gateway's rest.url; exactly one of them leads to the hive"
            raise ValueError(message)
        return self


def load_config(path: Path | None, overrides: dict[str, Any]) -> AgentConfig:
    """Merge a TOML file with flags (a nested mapping; ``None`` values mean «not given»).

    Raises:
        ConfigError: the file is unreadable, too large, not TOML, or holds an unknown or wrong key.
    """
    source = str(path) if path is not None else "command line"
    document: dict[str, Any] = {}
    if path is not None:
        data = _read_bounded(path, MAX_CONFIG_BYTES)
        try:
            document = tomllib.loads(data.decode("utf-8"))
        except (ValueError, RecursionError) as error:
            raise ConfigError(f"{path} is not valid TOML: {error}") from None
    _merge(document, overrides)
    _require_one_transport(document, source)
    return _validate(document, source)


def _require_one_transport(document: dict[str, Any], source: str) -> None:
    named = [name for name in _TRANSPORTS if name in document]
    if "mount_dir" in named and len(named) > 1:
        raise ConfigError(
            f"{source}: {' and '.join(f'`{name}`' for name in named)} are both named; "
            "an agent has one way to its hive, name one"
        )


def apply_manifest(config: AgentConfig, path: Path) -> AgentConfig:
    """Take the host-ticket settings out of a hive's resolved manifest (root side: manifest).

    Unknown keys are ignored there, because the file describes a whole hive; the values that concern tickets
    are checked as strictly as our own. What the TOML file or a flag names wins over the manifest, except that
    neither can enable what the manifest does not: tickets, and actions.

    Raises:
        ConfigError: the file is unreadable, too large, not a JSON object, or a ticket setting is unusable.
    """
    data = _read_bounded(path, MAX_MANIFEST_BYTES)
    try:
        document = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"manifest {path} is not valid JSON: {error}") from None
    host = _table(_table(document, "ecosystem", path), "host", path)
    tickets = _table(host, "tickets", path)
    federation = _table(host, "federation", path)
    sharding = _table(document, "sharding", path)
    enabled = host.get("enable") is True and tickets.get("enable") is True
    changes: dict[str, Any] = {"enabled": config.enabled and enabled}
    for key, table, name in (
        ("mount", host, "mount_at"),
        ("max_line_bytes", tickets, "max_line_bytes"),
        ("local_hive", federation, "local_hive"),
        ("shard_bits", sharding, "shard_bits"),
    ):
        if name in table and key not in config.model_fields_set:
            changes[key] = table[name]
    changes["relay"] = relay_of_manifest(config.relay, federation)
    if "action_allowlist" in tickets:
        changes["action_allowlist"] = _allowed(config, tickets["action_allowlist"], path)
    merged = {name: getattr(config, name) for name in AgentConfig.model_fields} | changes
    return _validate(merged, f"manifest {path}")


def _allowed(config: AgentConfig, listed: object, path: Path) -> frozenset[str]:
    if not isinstance(listed, list) or not all(isinstance(action, str) for action in listed):
        raise ConfigError(f"manifest {path}: `action_allowlist` is not a list of actions")
    actions = frozenset(action.strip() for action in listed)
    return actions if config.action_allowlist is None else actions & config.action_allowlist


def _table(document: object, name: str, path: Path) -> dict[str, Any]:
    value = document.get(name, {}) if isinstance(document, dict) else None
    if not isinstance(value, dict):
        raise ConfigError(f"manifest {path}: `{name}` is not an object")
    return value


def _merge(document: dict[str, Any], overrides: dict[str, Any]) -> None:
    for key, value in overrides.items():
        if isinstance(value, dict):
            if all(inner is None for inner in value.values()):
                continue
            inner = document.setdefault(key, {})
            if isinstance(inner, dict):
                _merge(inner, value)
        elif value is not None:
            document[key] = value


def _validate(document: dict[str, Any], source: str) -> AgentConfig:
    listed, peft, rest = (document.get(name) for name in ("action_allowlist", "peft", "rest"))
    document = _with_paths(document, ("state_dir",), "", source)
    mounted = document.get("mount_dir")
    if isinstance(mounted, dict):
        document = document | {"mount_dir": _with_paths(mounted, ("path",), "mount_dir.", source)}
    if isinstance(peft, dict):
        document = document | {"peft": _with_paths(peft, (*PEFT_ROOTS, _RELEASE_CONFIG), "peft.", source)}
    if isinstance(rest, dict):
        document = document | {"rest": _with_paths(rest, (_CA_FILE,), "rest.", source)}
    if isinstance(listed, list) and all(isinstance(action, str) for action in listed):
        document = document | {"action_allowlist": frozenset(listed)}
    try:
        return AgentConfig.model_validate(document)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(str(part) for part in first["loc"]) or "document"
        raise ConfigError(f"{source}: `{where}`: {_in_words(first)}") from None


def _with_paths(table: dict[str, Any], names: Iterable[str], prefix: str, source: str) -> dict[str, Any]:
    """The table with paths where the file has strings."""
    paths: dict[str, Path] = {}
    for name in names:
        value = table.get(name)
        if isinstance(value, str):
            if not value or "\0" in value:
                kind = "file" if name in {_RELEASE_CONFIG, _CA_FILE} else "directory"
                raise ConfigError(f"{source}: `{prefix}{name}` is not the name of a {kind}")
            paths[name] = Path(value)
    return table | paths


def _in_words(problem: ErrorDetails) -> str:
    """What the validator found, in the words of the file."""
    match problem["type"]:
        case "extra_forbidden":
            return f"unknown key; known here: {', '.join(_keys_beside(problem['loc']))}"
        case "model_type":
            return "must be a table"
        case "frozen_set_type":
            return "must be a list of actions"
        case "is_instance_of":
            return "must be a path in quotes"
        case "string_pattern_mismatch":
            return "is empty, too long or holds characters that cannot stand there"
        case _:
            return problem["msg"].removeprefix("Value error, ").replace("Input should be", "must be")


def _keys_beside(loc: tuple[int | str, ...]) -> list[str]:
    table: type[BaseModel] = AgentConfig
    for part in loc[:-1]:
        if isinstance(part, int):
            continue
        # Of an optional table or a list of tables, what each of them is.
        annotation = table.model_fields[part].annotation
        for kind in get_args(annotation) or (annotation,):
            if isinstance(kind, type) and issubclass(kind, BaseModel):
                table = kind
    return sorted(table.model_fields)


def _read_bounded(path: Path, limit: int) -> bytes:
    try:
        with path.open("rb") as stream:
            data = stream.read(limit + 1)
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from None
    if len(data) > limit:
        raise ConfigError(f"{path} is larger than {limit} bytes; is it the right file?")
    return data
