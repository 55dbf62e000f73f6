"""`peft list|show|verify|gc` as an operator uses them: on real registries, also on those of other tools."""

from __future__ import annotations

import os
import stat
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from cli_support import Answer
from click.testing import CliRunner
from peft_support import held_elsewhere, needs_root
from registry_support import add_base, add_model, set_control

from ticket_agent.cli.root import cli
from ticket_agent.exits import Exit
from ticket_agent.peft.locks import RootLock

if TYPE_CHECKING:
    from cli_support import Operator

STAGING = ".cohesix-import-0123456789abcdef"


@pytest.fixture
def registry(tmp_path: Path) -> Path:
    """Two models, of which one was active before the other, and their base."""
    folder = tmp_path / "registry"
    add_base(folder, "base-v1")
    add_model(folder, "m1")
    add_model(folder, "m2", metrics=True)
    set_control(folder, "m2", "m2", "m1")
    return folder


def peft(command: str, registry: Path, *more: str) -> Answer:
    """Run a command in this process, which is much faster than a new one."""
    done = CliRunner().invoke(cli, ["peft", command, "--registry-root", str(registry), *more])
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exc_info
    return Answer(done.exit_code, done.stdout, done.stderr)


def read_only(folder: Path) -> dict[str, Any]:
    found = {}
    for path in sorted(folder.rglob("*")):
        status = path.lstat()
        data = path.read_bytes() if stat.S_ISREG(status.st_mode) else b""
        found[str(path)] = (status.st_mode, status.st_mtime_ns, data)
    return found


def test_list_as_a_table(registry: Path) -> None:
    os.utime(registry / "available" / "m1" / "manifest.toml", (time.time() - 7200,) * 2)
    before = read_only(registry)
    answer = peft("list", registry)
    assert (answer.code, answer.err) == (Exit.OK, "")
    head, *rows = answer.out.splitlines()
    assert head.split() == ["MODEL", "STATUS", "BASE", "RANK", "SIZE", "JOB", "AGE"]
    assert [row.split()[:6] for row in rows] == [
        ["base-v1", "-", "-", "-", "23", "B"],
        ["m1", "previous", "base-v1", "8", "1.3", "KiB"],
        ["m2", "active", "base-v1", "8", "1.4", "KiB"],
    ]
    assert rows[1].endswith("job-1  2 h ago")
    assert read_only(registry) == before


def test_list_as_json(registry: Path) -> None:
    head, base, first, second = peft("list", registry, "--json").objects
    assert head == head | {
        "kind": "registry",
        "active": "m2",
        "current": "m2",
        "previous": "m1",
        "consistent": True,
        "problem": None,
    }
    assert base == base | {"kind": "model", "id": "base-v1", "base": None, "rank": None, "status": []}
    assert first == first | {"id": "m1", "status": ["previous"], "base": "base-v1", "job": "job-1", "rank": 8}
    assert second == second | {"id": "m2", "status": ["active"], "problem": None}
    assert len(second["manifest_sha256"]) == 64
    assert second["changed"].endswith("Z")


def test_an_empty_registry(tmp_path: Path, registry: Path) -> None:
    (tmp_path / "empty").mkdir()
    answer = peft("list", tmp_path / "empty")
    assert (answer.code, answer.out) == (Exit.OK, "no models\n")
    answer = peft("verify", tmp_path / "empty")
    assert (answer.code, answer.out) == (Exit.OK, "0 files, 0 failed\n")


def test_list_names_what_is_wrong(registry: Path) -> None:
    add_model(registry, "M1")
    (registry / "available" / "m1" / "manifest.toml").write_text("[model")
    (registry / "available" / "m3").mkdir()
    (registry / "available" / "a\nb").mkdir()
    set_control(registry, "m2", "m1", "m2")
    answer = peft("list", registry)
    assert answer.code == Exit.OK
    lines = answer.out.splitlines()
    assert "m1       unreadable" in answer.out
    assert "m3       unfinished" in answer.out
    assert lines[6] == (
        "the control files do not agree, the file active counts (active=m2 current=m1 previous=m2)"
    )
    assert lines[7].startswith("m1: is not valid TOML")
    assert lines[8] == "m3: has no manifest: its import was not finished"
    assert lines[9].startswith("foreign: a\\nb is no model: its name must be ")
    assert lines[10] == "differ only in upper and lower case: M1, m1"
    kinds = [found["kind"] for found in peft("list", registry, "--json").objects]
    assert kinds == ["registry", *["model"] * 5, "foreign", "twins"]


def test_list_fails_when_nobody_knows_what_is_active(registry: Path) -> None:
    (registry / "active").write_bytes(b"\xff")
    answer = peft("list", registry)
    assert answer.code == Exit.FAILURE
    assert answer.out.splitlines()[-1].startswith("active is not UTF-8 text; ")
    answer = peft("list", registry, "--json")
    assert answer.code == Exit.FAILURE
    assert answer.objects[0]["active"] is None
    assert "is not UTF-8 text" in answer.objects[0]["problem"]


def test_show(registry: Path) -> None:
    answer = peft("show", registry, "m2")
    assert (answer.code, answer.err) == (Exit.OK, "")
    fields = dict(line.split(maxsplit=1) for line in answer.out.splitlines() if not line.startswith("files"))
    assert fields["model"] == "m2"
    assert fields["status"] == "active"
    assert fields["base"] == "base-v1"
    assert fields["job"] == "job-1"
    assert fields["rank"] == "8"
    assert fields["lora.json"].startswith("11 B  sha256 8dc88968b275d53d")
    found = peft("show", registry, "m2", "--json").object
    assert list(found["files"]) == ["adapter.safetensors", "lora.json", "metrics.json"]
    assert list(found["job_files"]) == ["policy.toml", "telemetry.cbor"]
    assert found["approval"] == "pending"


def test_show_tells_that_a_base_is_elsewhere(registry: Path) -> None:
    add_model(registry, "m4", base="meta/base v2")
    answer = peft("show", registry, "m4")
    assert "base       meta/base v2 (not in this registry)\n" in answer.out
    assert "status     neither active nor previous\n" in answer.out


def test_show_of_what_cannot_be_used(registry: Path) -> None:
    (registry / "available" / "m1" / "manifest.toml").unlink()
    answer = peft("show", registry, "m1")
    assert answer.code == Exit.FAILURE
    assert "status     previous, unfinished\n" in answer.out
    assert "problem    has no manifest: its import was not finished\n" in answer.out


@pytest.mark.parametrize(
    ("model", "words"),
    [("m9", "model m9 is not available"), ("../m1", "the model must be 1..=128"), ("", "the model must be")],
)
@pytest.mark.parametrize("command", ["show", "verify"])
def test_a_model_that_is_not_there(registry: Path, command: str, model: str, words: str) -> None:
    answer = peft(command, registry, model)
    assert (answer.code, answer.out) == (Exit.FAILURE, "")
    assert words in answer.line


def test_verify_a_whole_registry(registry: Path) -> None:
    before = read_only(registry)
    answer = peft("verify", registry)
    assert (answer.code, answer.err) == (Exit.OK, "")
    lines = answer.out.splitlines()
    assert lines[0] == "PASS  active"
    assert "PASS  available/base-v1/manifest.toml  (of a base model; names no files)" in lines
    assert lines[-1] == "10 files, 0 failed"
    assert read_only(registry) == before


def test_verify_names_damage(registry: Path) -> None:
    with (registry / "available" / "m1" / "adapter.safetensors").open("r+b") as file:
        file.write(b"\0")
    (registry / "available" / "m2" / "evil\x1b[2J").write_text("x")
    answer = peft("verify", registry)
    assert answer.code == Exit.FAILURE
    assert "FAIL  available/m1/adapter.safetensors: has SHA-256 " in answer.out
    assert "FAIL  available/m2/evil\\x1b[2J: foreign: the manifest does not name it\n" in answer.out
    assert answer.out.endswith("11 files, 2 failed\n")
    found = [entry for entry in peft("verify", registry, "--json").objects if not entry["ok"]]
    assert [entry["file"] for entry in found] == [
        "available/m1/adapter.safetensors",
        "available/m2/evil\x1b[2J",
    ]
    assert peft("verify", registry, "m1").code == Exit.FAILURE
    assert peft("verify", registry, "base-v1").out.splitlines()[-1] == "1 files, 0 failed"


@needs_root
def test_reading_works_on_a_copy_of_somebody_else(registry: Path) -> None:
    for path in [registry, *registry.rglob("*")]:
        os.chown(path, 4321, 4321)
    registry.chmod(0o777)
    for command, *more in (["list"], ["show", "m1"], ["verify"], ["gc", "--dry-run"]):
        assert peft(command, registry, *more).code == Exit.OK
    answer = peft("gc", registry)
    assert answer.code == Exit.FAILURE
    assert "belongs to user 4321, not to 0" in answer.line
    assert not (registry / ".cohesix-registry.lock").exists()


def leave(registry: Path) -> None:
    """One leftover of each kind; a moment old, which only time can change."""
    (registry / STAGING).mkdir()
    (registry / STAGING / "adapter.safetensors").write_bytes(b"x" * 2048)
    (registry / "available" / "half").mkdir()
    (registry / "active.partial").write_text("m")


def test_gc(registry: Path) -> None:
    leave(registry)
    before = read_only(registry)
    answer = peft("gc", registry, "--dry-run")
    assert answer.code == Exit.OK
    assert answer.out.splitlines()[-1] == "3 kept"
    assert answer.out.count("it was touched lately; its writer may be alive") == 3
    answer = peft("gc", registry, "--dry-run", "--min-age", "0")
    assert answer.out.splitlines()[-1] == "3 would remove"
    assert f"would remove  {STAGING}  (import or export that was not published, 2.0 KiB, " in answer.out
    assert read_only(registry) == before
    answer = peft("gc", registry, "--min-age", "0")
    assert answer.code == Exit.OK
    assert "removed  available/half  (import without a manifest, 0 B, " in answer.out
    assert answer.out.splitlines()[-1] == "3 removed"
    answer = peft("gc", registry, "--min-age", "0")
    assert (answer.code, answer.out) == (Exit.OK, "nothing was left behind\n")
    assert peft("verify", registry).out.endswith("10 files, 0 failed\n")


def test_gc_as_json_and_with_an_export_root(tmp_path: Path, registry: Path) -> None:
    exports = tmp_path / "exports"
    (exports / ".cohesix-export-0123456789abcdef").mkdir(parents=True)
    (exports / "job-1").mkdir()
    (registry / "available" / "half" / "mine").mkdir(parents=True)
    answer = peft("gc", registry, "--export-root", str(exports), "--min-age", "0", "--json")
    assert answer.code == Exit.OK
    kept, gone = answer.objects
    assert kept == kept | {
        "kind": "leftover",
        "root": str(registry),
        "path": "available/half",
        "outcome": "kept",
        "reason": "mine in it is not from an import",
    }
    assert gone == gone | {
        "root": str(exports),
        "path": ".cohesix-export-0123456789abcdef",
        "outcome": "removed",
        "reason": None,
    }
    assert sorted(path.name for path in exports.iterdir()) == [".cohesix-export.lock", "job-1"]


def test_gc_waits_for_nobody(registry: Path) -> None:
    with held_elsewhere(registry, RootLock.REGISTRY) as other:
        answer = peft("gc", registry)
        assert answer.code == Exit.FAILURE
        assert f"is in use by process {other.pid} (python" in answer.line
        assert peft("gc", registry, "--dry-run").code == Exit.OK


def test_gc_tells_what_it_could_not_remove(registry: Path) -> None:
    (registry / STAGING / "/".join("d" * 20)).mkdir(parents=True)
    answer = peft("gc", registry, "--min-age", "0")
    assert answer.code == Exit.FAILURE
    assert answer.out.startswith(f"failed  {STAGING}  (")
    assert "deeper than 16 levels" in answer.out


def test_the_registry_comes_from_the_configuration(operator: Operator, registry: Path) -> None:
    path = operator.home / "agent.toml"
    path.write_text(f'[peft]\nregistry_root = "{registry}"\n')
    answer = operator.run("peft", "list", "--config", str(path), "--json")
    assert (answer.code, answer.err) == (Exit.OK, "")
    assert answer.out == peft("list", registry, "--json").out
    answer = operator.run("peft", "list", "--config", str(path), "--registry-root", "nowhere")
    assert answer.code == Exit.FAILURE
    assert f"{operator.home}/nowhere does not exist" in answer.line
    path.write_text("[peft]\nregistry = 1\n")
    answer = operator.run("peft", "list", "--config", str(path))
    assert answer.code == Exit.USAGE
    assert "`peft.registry`: unknown key" in answer.line


def test_a_registry_must_be_named(operator: Operator) -> None:
    for arguments in (["list"], ["show", "m1"], ["verify"], ["gc"]):
        answer = operator.run("peft", *arguments)
        assert (answer.code, answer.out) == (Exit.USAGE, "")
        assert "no registry is named; use --registry-root" in answer.line


def test_a_relative_name_is_taken_from_here(
    tmp_path: Path, registry: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert peft("list", Path("registry")).code == Exit.OK
    assert peft("list", Path("nowhere/../registry/.")).code == Exit.OK
    (tmp_path / "link").symlink_to("registry")
    answer = peft("list", Path("link"))
    assert answer.code == Exit.FAILURE
    assert "is a symlink; name the real path" in answer.line


@pytest.mark.parametrize("flag", ["--registry-root", "--export-root", "--adapter-root"])
def test_the_agent_takes_absolute_roots_only(operator: Operator, flag: str) -> None:
    answer = operator.run("once", flag, "out/x")
    assert answer.code == Exit.USAGE
    assert f"`peft.{flag[2:].replace('-', '_')}`: must be an absolute path" in answer.line
