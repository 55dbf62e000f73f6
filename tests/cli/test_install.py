"""`install`: files that hold on a real systemd, a configuration that loads, and nothing written unasked."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any, get_args

import pytest
from click.testing import CliRunner, Result
from pydantic import BaseModel
from systemd_manager import under_manager, why_not

from ticket_agent.cli.install import FILES
from ticket_agent.cli.root import cli
from ticket_agent.config import AgentConfig, RestSettings, load_config
from ticket_agent.exits import Exit
from ticket_agent.hive.console.lock import lock_path

PROGRAM = "/usr/bin/true"
"""Some program that every host has, where only the unit's form matters."""


def _install(*arguments: str) -> Result:
    return CliRunner().invoke(cli, ["install", *arguments])


def _unit(name: str = "unit") -> dict[str, list[str]]:
    """Settings of all sections; a key may come more than once."""
    found: dict[str, list[str]] = {}
    for line in FILES[name].text(PROGRAM).splitlines():
        if "=" in line and not line.startswith("#"):
            key, value = line.split("=", 1)
            found.setdefault(key, []).append(value)
    return found


def _needs(program: str) -> str:
    path = shutil.which(program)
    if path is None:
        pytest.skip(f"{program} is not installed")
    return path


@pytest.fixture
def staged(tmp_path: Path) -> Path:
    result = _install("--output", str(tmp_path / "stage"), "--program", PROGRAM)
    assert result.exit_code == 0, result.output
    return tmp_path / "stage"


# -- the command -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", FILES)
def test_each_file_is_printed_as_it_is_staged(name: str, staged: Path) -> None:
    result = _install("--print", name, "--program", PROGRAM)
    assert result.exit_code == 0
    assert result.output == (staged / FILES[name].path).read_text(encoding="utf-8")
    assert "@program@" not in result.output


def test_all_are_printed_with_their_places() -> None:
    result = _install("--print")
    assert re.findall(r"^# ==> /(.*)$", result.output, re.MULTILINE) == [file.path for file in FILES.values()]


def test_as_json() -> None:
    lines = [json.loads(line) for line in _install("--print", "--json").output.splitlines()]
    assert [line["path"] for line in lines] == [f"/{file.path}" for file in FILES.values()]
    assert {line["schema"] for line in lines} == {"ticket-agent-output/v1"}


def test_modes_do_not_follow_the_umask(tmp_path: Path) -> None:
    before = os.umask(0o077)
    try:
        assert _install("--output", str(tmp_path / "stage")).exit_code == 0
    finally:
        os.umask(before)
    below = list((tmp_path / "stage").rglob("*"))
    assert {path.stat().st_mode & 0o777 for path in below if path.is_file()} == {0o644}
    assert {path.stat().st_mode & 0o777 for path in below if path.is_dir()} == {0o755}


def test_only_files_of_this_list_are_staged(staged: Path) -> None:
    found = {str(path.relative_to(staged)) for path in staged.rglob("*") if path.is_file()}
    assert found == {file.path for file in FILES.values()}


@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [
        ([], 2, "give --print to read the files, or --output DIR to stage them"),
        (["--print", "--output", "x"], 2, "give --print"),
        (["--print", "nothing"], 2, "is not one of"),
        (["--print", "unit", "--program", "ticket-agent"], 2, "must be an absolute path"),
        (["--print", "unit", "--program", "/opt/a b"], 2, "without blanks"),
        (["--print", "unit", "--program", "/opt/%n"], 2, "without blanks"),
        (["--output", "/proc/nothing/here"], 1, "cannot write below"),
    ],
)
def test_refusals(arguments: list[str], code: int, text: str) -> None:
    result = _install(*arguments)
    assert result.exit_code == code
    assert text in result.output


def test_nothing_is_replaced(staged: Path) -> None:
    (staged / FILES["config"].path).write_text("mine", encoding="utf-8")
    result = _install("--output", str(staged))
    assert result.exit_code == Exit.USAGE
    assert "is not empty" in result.output
    assert (staged / FILES["config"].path).read_text(encoding="utf-8") == "mine"


# -- the configuration -----------------------------------------------------------------------------------


WAYS = ("console", "rest", "mount_dir")


def _everything(way: str = "console") -> str:
    """The configuration with every example in force, and one way to the hive."""
    shown = re.compile(r"# (\[\[?[a-z_.]+\]\]?|[a-z_]+ *= )")
    kept, table = [], ""
    for line in FILES["config"].text(PROGRAM).splitlines():
        plain = line.removeprefix("# ") if shown.match(line) else line
        if plain.startswith("["):
            table = plain.split("]")[0].strip("[")
        if table not in WAYS or table == way:
            kept.append(plain)
    return "\n".join(kept)


def _keys(model: type[BaseModel], prefix: str = "") -> set[str]:
    found: set[str] = set()
    for name, field in model.model_fields.items():
        kinds = get_args(field.annotation) or (field.annotation,)
        tables = [kind for kind in kinds if isinstance(kind, type) and issubclass(kind, BaseModel)]
        if tables and field.annotation is not tuple and name != "peers":
            found |= _keys(tables[0], f"{prefix}{name}.")
        else:
            found.add(f"{prefix}{name}")
    return found


def _set(model: BaseModel, prefix: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name in model.model_fields_set:
        value = getattr(model, name)
        found |= (
            _set(value, f"{prefix}{name}.") if isinstance(value, BaseModel) else {f"{prefix}{name}": value}
        )
    return found


def test_the_configuration_loads_as_it_is(staged: Path) -> None:
    config = load_config(staged / FILES["config"].path, {"state_dir": "/var/lib/ticket-agent"})
    assert config.console.auth_token == "file:/etc/ticket-agent/console.token"
    assert config.log.format == "json"


def test_every_key_is_shown_and_every_example_is_valid(tmp_path: Path) -> None:
    found = set()
    for way in WAYS:
        path = tmp_path / f"{way}.toml"
        path.write_text(_everything(way), encoding="utf-8")
        found |= set(_set(load_config(path, {})))
    assert found == _keys(AgentConfig)


def test_what_is_called_a_default_is_one(tmp_path: Path) -> None:
    shown: dict[str, Any] = {}
    for way in WAYS:
        path = tmp_path / f"{way}.toml"
        path.write_text(_everything(way), encoding="utf-8")
        shown |= _set(load_config(path, {}))
    examples = {
        *(f"rest.{name}" for name in ("url", "auth_token", "ticket", "ca_file", "proxy")),
        "mount_dir.path",
        "relay.actions",
        "relay.peers",
        "state_dir",
        "action_allowlist",
        "console.auth_token",
        "console.ticket",
        "log.format",
        "metrics.listen",
        "metrics.textfile",
        *(f"peft.{name}" for name in ("registry_root", "export_root", "adapter_root", "release_config")),
    }
    plain = AgentConfig(state_dir=Path("/x"))
    for key in _keys(AgentConfig) - examples:
        value: Any = plain
        for part in key.split("."):
            value = getattr(value, part)
        assert shown[key] == value, key


# -- the unit --------------------------------------------------------------------------------------------


def test_the_unit_agrees_with_the_agent() -> None:
    unit = _unit()
    assert unit["Type"] == ["notify"]
    assert unit["ExecStart"] == [f"{PROGRAM} run --config /{FILES['config'].path}"]
    assert unit["SuccessExitStatus"] == [f"{Exit.DEGRADED:d} {Exit.UNCERTAIN:d}"]
    assert unit["RestartPreventExitStatus"] == [f"{Exit.USAGE:d} {Exit.OTHER_OWNER:d}"]
    lock = lock_path("127.0.0.1", AgentConfig(state_dir=Path("/x")).console.port, directory=Path("/tmp"))
    assert unit["BindPaths"] == [f"-{lock}"]
    assert f"f {lock} 0666 root root -" in FILES["tmpfiles"].text(PROGRAM)


def test_releases_need_to_outlive_the_agent() -> None:
    assert _unit("release-bubblewrap")["KillMode"] == ["process"]
    assert "KillMode" not in _unit("release-systemd")


@pytest.mark.parametrize("drop_in", [None, "release-bubblewrap", "release-systemd"])
def test_systemd_accepts_the_unit(drop_in: str | None, staged: Path) -> None:
    analyze = _needs("systemd-analyze")
    unit = staged / FILES["unit"].path
    if drop_in is not None:
        (staged / "ticket-agent.service.d").mkdir()
        shutil.copy(staged / FILES[drop_in].path, unit.parent / "drop-in.conf")
        directory = unit.parent / "ticket-agent.service.d"
        directory.mkdir()
        (unit.parent / "drop-in.conf").rename(directory / "release.conf")
    done = subprocess.run([analyze, "verify", "--man=no", unit], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_systemd_accepts_the_publishers_unit(staged: Path) -> None:
    analyze, unit = _needs("systemd-analyze"), staged / FILES["snapshots-unit"].path
    done = subprocess.run([analyze, "verify", "--man=no", unit], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_the_publishers_unit_says_what_the_command_takes() -> None:
    unit = _unit("snapshots-unit")
    (start,) = unit["ExecStart"]
    words = start.removeprefix(f"{PROGRAM} ").split()
    command, options = words[:2], [word for word in words if word.startswith("--")]
    assert command == ["snapshots", "publish"]
    asked = CliRunner().invoke(cli, [*command, "--help"]).output
    assert all(option in asked for option in options)
    assert f"--config /{FILES['config'].path}" in start
    assert unit["RestartPreventExitStatus"] == [f"{Exit.USAGE:d} {Exit.OTHER_OWNER:d} {Exit.HIVE_REFUSED:d}"]
    assert float(unit["WatchdogSec"][0]) > RestSettings().timeout_s


@pytest.mark.parametrize("name", ["unit", "snapshots-unit"])
def test_systemd_finds_the_units_hardened(name: str, staged: Path) -> None:
    command = [_needs("systemd-analyze"), "security", "--offline=true", "--threshold=20"]
    done = subprocess.run([*command, staged / FILES[name].path], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-500:] + done.stderr


def test_accounts_and_files_are_created_below_a_root(staged: Path) -> None:
    sysusers, tmpfiles = _needs("systemd-sysusers"), _needs("systemd-tmpfiles")
    if os.geteuid() != 0:
        pytest.skip("needs root to create accounts, if only below a directory")
    token = staged / "etc/ticket-agent/console.token"
    token.write_text("token", encoding="ascii")
    for command in ([sysusers], [tmpfiles, "--create"]):
        name = "ticket-agent.conf"
        done = subprocess.run(
            [*command, f"--root={staged}", name], capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
    accounts = (staged / "etc/passwd").read_text(encoding="ascii")
    assert accounts.startswith("ticket-agent:")
    assert accounts.strip().endswith("/nologin")
    assert token.stat().st_mode & 0o777 == 0o640
    assert token.parent.stat().st_mode & 0o777 == 0o750
    assert (staged / "tmp/cohesix-console-127.0.0.1-31337.lock").stat().st_mode & 0o777 == 0o666


@pytest.mark.timeout(600)
def test_the_agent_serves_in_its_sandbox(monkeypatch: pytest.MonkeyPatch) -> None:
    """Started by a manager: READY, a ticket, the shared lock, a clean stop; and releases."""
    if (reason := why_not()) is not None:
        pytest.skip(reason)
    _needs("bwrap")
    monkeypatch.setenv("XDG_CONFIG_HOME", "/run/lab/config")
    monkeypatch.delenv("COHSH_CONSOLE_LOCK", raising=False)
    monkeypatch.chdir(Path(__file__).parents[2])
    done = under_manager(sys.executable, "tests/support/unit_lab.py")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["outcome"] == "confirmed", found["log"]
    assert found["shown"] == {
        "ActiveState": "active",
        "StatusText": "serving the hive",
        "WatchdogUSec": "30s",
        "NoNewPrivileges": "yes",
    }
    assert found["lock"]
    assert (found["seccomp"], int(found["capabilities"], 16)) == ("2", 0)
    assert found["result"] == {"Result": "success", "ExecMainStatus": "0"}
    assert {"agent.lock", "cursor.json", "ops"} <= set(found["state"])
    assert found["bwrap"].startswith("none: ")
    assert found["bwrap, drop-in"].startswith("bubblewrap: ")


# -- the image -------------------------------------------------------------------------------------------


def _instructions() -> list[tuple[str, str]]:
    text = re.sub(r"\\\n", " ", FILES["containerfile"].text(PROGRAM))
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith("#")]
    return [(word, rest) for word, _, rest in (line.partition(" ") for line in lines)]


def test_the_image_recipe_is_sound() -> None:
    found = _instructions()
    names = [name for name, _ in found]
    assert set(names) <= {
        "FROM",
        "WORKDIR",
        "COPY",
        "RUN",
        "ENV",
        "USER",
        "VOLUME",
        "STOPSIGNAL",
        "ENTRYPOINT",
        "CMD",
    }
    bases = [rest.split()[0] for name, rest in found if name == "FROM"]
    assert all(re.fullmatch(r"[a-z.]+/[a-z/]+:[0-9][a-z0-9.-]+", base) for base in bases), bases
    last = dict(found[len(names) - 1 - names[::-1].index("FROM") :])
    assert re.fullmatch(r"[1-9][0-9]+:[1-9][0-9]+", last["USER"]), "by number and not root"
    assert names.index("RUN") < names.index("USER"), "everything is installed before the account is changed"
    assert json.loads(last["VOLUME"]) == ["/var/lib/ticket-agent"]
    assert "STATE_DIRECTORY=/var/lib/ticket-agent" in last["ENV"]
    assert last["COPY"].startswith("--from=build "), "the checkout stays out of the image"
    assert last["STOPSIGNAL"] == "SIGTERM"


def test_the_image_starts_what_the_command_line_knows() -> None:
    last = dict(_instructions())
    assert json.loads(last["ENTRYPOINT"]) == ["ticket-agent"]
    command, flag, path = json.loads(last["CMD"])
    known = {option for param in cli.get_command(None, command).params for option in param.opts}  # type: ignore[arg-type,union-attr]
    assert flag in known
    assert path == f"/{FILES['config'].path}"


def test_commands_of_the_notes_exist() -> None:
    for name in ("notes", "config", "containerfile"):
        for words in re.findall(
            r"ticket-agent ((?:[a-z]+ ?)+)(?: -|$| +#|`)", FILES[name].text(PROGRAM), re.MULTILINE
        ):
            parts = words.split()
            if parts[0] in {"status", "journal", "install", "doctor", "run"}:
                assert CliRunner().invoke(cli, [*parts, "--help"]).exit_code == 0, words
