"""From file, flags and manifest to one configuration: who wins, and what is refused in which words."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from ticket_agent.config import AgentConfig, ConfigError, apply_manifest, load_config
from ticket_agent.exits import Exit

if TYPE_CHECKING:
    from pathlib import Path

    from cli_support import Operator

STATE = {"state_dir": "/var/lib/ticket-agent"}


def _loaded(tmp_path: Path, text: str, **overrides: Any) -> AgentConfig:
    path = tmp_path / "agent.toml"
    path.write_text(text)
    return load_config(path, STATE | overrides)


def _manifest(tmp_path: Path, document: object) -> Path:
    path = tmp_path / "manifest.json"
    path.write_text(json.dumps(document))
    return path


def _enabled(**tickets: Any) -> dict[str, Any]:
    return {"ecosystem": {"host": {"enable": True, "tickets": {"enable": True, **tickets}}}}


def test_a_whole_file(tmp_path: Path) -> None:
    config = _loaded(
        tmp_path,
        """
        local_hive = "hive-b"
        mount = "/host/"
        action_allowlist = ["gpu.lease.grant"]
        [console]
        host = "::1"
        port = 4711
        auth_token = "env:TOKEN"
        command_timeout_s = 2
        [poll]
        idle_ms = 250
        [retention]
        keep_days = 0
        [log]
        format = "json"
        [peft]
        registry_root = "/srv/registry"
        adapter_root = "/srv/adapters"
        """,
    )
    assert str(config.peft.registry_root) == "/srv/registry"
    assert str(config.peft.adapter_root) == "/srv/adapters"
    assert config.peft.export_root is None
    assert (config.local_hive, config.mount) == ("hive-b", "/host")
    assert config.action_allowlist == frozenset({"gpu.lease.grant"})
    assert (config.console.host, config.console.port, config.console.command_timeout_s) == ("::1", 4711, 2.0)
    assert (config.poll.idle_ms, config.retention.keep_days, config.log.format) == (250, 0, "json")


def test_flags_win_over_the_file(tmp_path: Path) -> None:
    config = _loaded(
        tmp_path,
        '[console]\nport = 1\nhost = "one"\n',
        console={"port": 2, "host": None},
        log={"level": None, "format": "json"},
    )
    assert (config.console.port, config.console.host, config.log.format) == (2, "one", "json")


def test_a_token_never_shows_in_a_representation(tmp_path: Path) -> None:
    config = _loaded(tmp_path, '[console]\nauth_token = "s3cr3t-t0ken"\nticket = "t1cket-value"\n')
    assert "s3cr3t-t0ken" not in repr(config)
    assert "t1cket-value" not in repr(config)


REFUSED = {
    "x = [": "is not valid TOML",
    "a = " + "[" * 100_000: "is not valid TOML",
    "a = " + "9" * 5000: "is not valid TOML",
    "nonsense = 1": "`nonsense`: unknown key; known here: action_allowlist, console, ",
    "[console]\nprot = 1": "`console.prot`: unknown key; known here: allow_placeholder_token, auth_token, ",
    "console = 3": "`console`: must be a table",
    "state_dir = 3": "`state_dir`: must be a path in quotes",
    'state_dir = ""': "`state_dir` is not the name of a directory",
    'state_dir = "a\\u0000b"': "`state_dir` is not the name of a directory",
    'action_allowlist = "gpu.lease.grant"': "`action_allowlist`: must be a list of actions",
    "action_allowlist = [1]": "`action_allowlist`: must be a list of actions",
    "[console]\nport = 0": "`console.port`: must be greater than or equal to 1",
    '[console]\nport = "31337"': "`console.port`: must be a valid integer",
    "[console]\nport = 1.5": "`console.port`: must be a valid integer",
    "[console]\nport = true": "`console.port`: must be a valid integer",
    '[console]\nhost = ""': "`console.host`: is empty, too long",
    '[console]\nhost = "a b"': "`console.host`: is empty, too long",
    '[console]\nhost = "a\\u0000b"': "`console.host`: is empty, too long",
    '[console]\nrole = "worker-gpu"': "`console.role`: must be 'queen'",
    "[console]\ncommand_timeout_s = nan": "`console.command_timeout_s`: must be ",
    "[poll]\nidle_ms = 9": "`poll.idle_ms`: must be greater than or equal to 10",
    '[log]\nlevel = "loud"': "`log.level`: must be 'debug', 'info', 'warning' or 'error'",
    'mount = "host"': "`mount`: must be an absolute path",
    'mount = "/"': "`mount`: must be an absolute path",
    'mount = "/host/../x"': "`mount`: must be an absolute path",
    'mount = "/ho st"': "`mount`: must be an absolute path",
    'mount = "/h\\u00f6st"': "`mount`: must be an absolute path",
    'local_hive = ""': "`local_hive`: is empty, too long",
    "peft = 1": "`peft`: must be a table",
    "[peft]\nregistry = 'x'": "`peft.registry`: unknown key; known here: adapter_root, export_root, registry",
    "[peft]\nregistry_root = 1": "`peft.registry_root`: must be a path in quotes",
    "[peft]\nregistry_root = ''": "`peft.registry_root` is not the name of a directory",
    '[peft]\nexport_root = "/a\\u0000b"': "`peft.export_root` is not the name of a directory",
    "[peft]\nadapter_root = 'out/adapters'": "`peft.adapter_root`: must be an absolute path",
    "[peft]\nregistry_root = '/a'\nexport_root = '/a'": "`peft`: registry_root and export_root must be ",
    "[peft]\nexport_root = '/a/b/c'\nadapter_root = '/a/b'": "export_root and adapter_root must be ",
    "max_line_bytes = 2049": "`max_line_bytes`: must be less than or equal to 2048",
}


@pytest.mark.parametrize(("text", "words"), REFUSED.items(), ids=[text[:40] for text in REFUSED])
def test_what_a_file_must_not_hold(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "agent.toml"
    path.write_text(text)
    with pytest.raises(ConfigError) as caught:
        load_config(path, {} if "state_dir" in text else STATE)
    assert str(caught.value).startswith(f"{path}")
    assert words in str(caught.value)


@pytest.mark.parametrize("data", [b"\xff\xfe", b"a = 1\x00", b"# " + b"x" * 300_000])
def test_bytes_that_are_no_file_of_ours(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "agent.toml"
    path.write_bytes(data)
    with pytest.raises(ConfigError, match=r"is not valid TOML|is larger than 262144 bytes"):
        load_config(path, STATE)


@pytest.mark.parametrize("config", ["absent.toml", ".", "bad.toml"])
@pytest.mark.parametrize("command", ["run", "once", "doctor", "submit"])
def test_a_bad_file_ends_every_command_with_usage(operator: Operator, command: str, config: str) -> None:
    (operator.home / "bad.toml").write_text("nonsense = 1")
    more = ["gpu.lease.grant", "--worker", "worker-1", "--subject", "GPU-0"] if command == "submit" else []
    answer = operator.run(command, "--config", config, *more)
    assert (answer.code, answer.out) == (Exit.USAGE, "")
    assert config in answer.line
    assert not operator.state.exists()


def test_a_file_may_name_the_state_directory(operator: Operator) -> None:
    (operator.home / "agent.toml").write_text('state_dir = "named"\n')
    answer = operator.run("doctor", "--offline", "--config", "agent.toml", "--json")
    assert answer.objects[0]["detail"].startswith("named does not exist yet")
    answer = operator.run("doctor", "--offline", "--config", "agent.toml", "--state-dir", "flag", "--json")
    assert answer.objects[0]["detail"].startswith("flag does not exist yet")


# -- manifest ------------------------------------------------------------------------------------------------


def test_a_manifest_fills_in_what_nobody_named(tmp_path: Path) -> None:
    document = _enabled(max_line_bytes=1024, action_allowlist=[" gpu.lease.grant", "k8s.cordon"])
    document["ecosystem"]["host"] |= {"mount_at": "/hosts", "federation": {"local_hive": "hive-c"}}
    document |= {"sharding": {"shard_bits": 4}, "unknown": [1, {"deep": None}]}
    config = apply_manifest(_loaded(tmp_path, ""), _manifest(tmp_path, document))
    assert (config.enabled, config.mount, config.local_hive) == (True, "/hosts", "hive-c")
    assert (config.max_line_bytes, config.shard_bits) == (1024, 4)
    assert config.action_allowlist == frozenset({"gpu.lease.grant", "k8s.cordon"})


def test_file_and_flags_win_over_the_manifest(tmp_path: Path) -> None:
    document = _enabled()
    document["ecosystem"]["host"] |= {"mount_at": "/hosts", "federation": {"local_hive": "hive-c"}}
    config = _loaded(tmp_path, 'local_hive = "hive-b"', mount="/flag")
    merged = apply_manifest(config, _manifest(tmp_path, document))
    assert (merged.local_hive, merged.mount) == ("hive-b", "/flag")


@pytest.mark.parametrize(
    ("file", "manifest", "allowed"),
    [
        ("", None, None),
        ("", ["a", "b"], {"a", "b"}),
        ("", [], set()),
        ('action_allowlist = ["b", "c"]', None, {"b", "c"}),
        ('action_allowlist = ["b", "c"]', ["a", "b"], {"b"}),
        ("action_allowlist = []", ["a", "b"], set()),
    ],
)
def test_an_action_runs_only_if_both_allow_it(
    tmp_path: Path, file: str, manifest: list[str] | None, allowed: set[str] | None
) -> None:
    document = _enabled() if manifest is None else _enabled(action_allowlist=manifest)
    config = apply_manifest(_loaded(tmp_path, file), _manifest(tmp_path, document))
    assert config.action_allowlist == allowed


@pytest.mark.parametrize(
    "document",
    [
        {},
        {"ecosystem": {}},
        {"ecosystem": {"host": {"enable": True}}},
        {"ecosystem": {"host": {"enable": True, "tickets": {"enable": False}}}},
        {"ecosystem": {"host": {"enable": False, "tickets": {"enable": True}}}},
        {"ecosystem": {"host": {"enable": 1, "tickets": {"enable": "true"}}}},
    ],
)
def test_tickets_are_off_unless_the_manifest_says_so(tmp_path: Path, document: dict[str, Any]) -> None:
    assert not apply_manifest(_loaded(tmp_path, "enabled = true"), _manifest(tmp_path, document)).enabled


def test_a_manifest_cannot_enable_what_the_file_switched_off(tmp_path: Path) -> None:
    assert not apply_manifest(_loaded(tmp_path, "enabled = false"), _manifest(tmp_path, _enabled())).enabled


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (b"{", "is not valid JSON"),
        (b"\xff", "is not valid JSON"),
        (b"[" * 200_000, "is not valid JSON"),
        (b'{"a":' + b"9" * 5000 + b"}", "is not valid JSON"),
        (b"[]", "`ecosystem` is not an object"),
        (b"null", "`ecosystem` is not an object"),
        (b'{"ecosystem":{"host":[]}}', "`host` is not an object"),
        (b'{"ecosystem":{"host":{"tickets":null}}}', "`tickets` is not an object"),
        (b'{"sharding":{"shard_bits":9}}', "`shard_bits`: must be less than or equal to 8"),
        (b'{"ecosystem":{"host":{"mount_at":3}}}', "`mount`: must be a valid string"),
        (b'{"ecosystem":{"host":{"mount_at":"/\\ud800"}}}', "`mount`: must be "),
        (
            b'{"ecosystem":{"host":{"tickets":{"action_allowlist":"all"}}}}',
            "`action_allowlist` is not a list of actions",
        ),
        (
            b'{"ecosystem":{"host":{"tickets":{"action_allowlist":[1]}}}}',
            "`action_allowlist` is not a list of actions",
        ),
        (
            b'{"ecosystem":{"host":{"tickets":{"max_line_bytes":1e400}}}}',
            "`max_line_bytes`: must be a valid integer",
        ),
        (b"{}" + b" " * 1_100_000, "is larger than 1048576 bytes"),
    ],
    ids=range(15),
)
def test_what_a_manifest_must_not_hold(tmp_path: Path, text: bytes, words: str) -> None:
    path = tmp_path / "manifest.json"
    path.write_bytes(text)
    with pytest.raises(ConfigError) as caught:
        apply_manifest(_loaded(tmp_path, ""), path)
    assert words in str(caught.value)


@pytest.mark.parametrize(
    "command", [["run"], ["once"], ["once", "--json"], ["run", "--run-once"]], ids=" ".join
)
def test_a_hive_without_tickets_ends_the_daemon_at_once(operator: Operator, command: list[str]) -> None:
    path = _manifest(operator.home, {"ecosystem": {"host": {"enable": True}}})
    answer = operator.run(*command, "--manifest", path)
    assert (answer.code, answer.err) == (Exit.OK, "")
    if "--json" in command:
        assert answer.object["enabled"] is False
    else:
        assert (
            answer.out == "ticket-agent: this hive's manifest does not enable host tickets; nothing to do\n"
        )
    assert not operator.state.exists()
