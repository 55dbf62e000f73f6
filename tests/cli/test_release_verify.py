"""`release verify`: on another machine, offline, with the bundle and the public key and nothing else."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from key_files import OTHER_SEED, key, private_pem, public_pem, write
from release_scene import CANDIDATE, INCUMBENT, SCENES, Scene, bundle_of

from ticket_agent.exits import Exit

if TYPE_CHECKING:
    from pathlib import Path

    from cli_support import Answer, Operator


@pytest.fixture
def public(operator: Operator) -> Path:
    return write(operator.home / "release.pub", public_pem(), mode=0o644)


def verify(operator: Operator, public: Path, *options: str, data: bytes | None = None) -> Answer:
    bundle = operator.home / "bundle.tar"
    bundle.write_bytes(bundle_of(Scene(), key()) if data is None else data)
    return operator.run("release", "verify", str(bundle), "--public-key", str(public), *options)


def test_a_good_bundle_passes_and_tells_the_release(operator: Operator, public: Path) -> None:
    answer = verify(operator, public)
    assert (answer.code, answer.err) == (Exit.OK, "")
    lines = answer.out.splitlines()
    checks = [line for line in lines if line.startswith("PASS  ")]
    assert len(checks) == 14
    assert f"PASS  signature: key {key().public.keyid}" in checks
    assert "PASS  comparison: candidate accepted, loss -0.248125, standard error 0.000427, 16 rows" in checks
    assert "operation   release-one (import of adapter-one)" in lines
    assert "ended       succeeded, 2023-11-14T22:13:27.000Z" in lines
    assert f"adapter     {CANDIDATE}" in lines
    assert "generation  2" in lines
    assert "launcher    bubblewrap: no network but loopback, private /tmp; NOT: memory limit" in lines
    assert lines[-1] == "14 checks, 0 not passed"


def test_programs_read_one_object_per_check_and_the_release(operator: Operator, public: Path) -> None:
    answer = verify(operator, public, "--json")
    assert answer.code == Exit.OK
    *verdicts, release = answer.objects
    assert [entry["kind"] for entry in verdicts] == ["verdict"] * 14
    assert all(entry["ok"] is True for entry in verdicts)
    assert release["kind"] == "release"
    assert release["state"] == "succeeded"
    assert release["generation"] == 2
    assert release["mean_difference"] == pytest.approx(-0.248125)
    assert release["signed_by"] == key().public.keyid


@pytest.mark.parametrize("name", SCENES)
def test_every_way_to_end_can_be_told(operator: Operator, public: Path, name: str) -> None:
    scene = SCENES[name]
    answer = verify(operator, public, "--json", data=bundle_of(scene, key()))
    assert answer.code == Exit.OK
    release = answer.objects[-1]
    assert (release["state"], release["blocker"]) == (scene.state, scene.blocker)
    unknown = scene.state == "rollback_failed"
    served = {"succeeded": CANDIDATE}.get(scene.state, scene.baseline.served_artifact_sha256)
    assert release["served_artifact_sha256"] == (None if unknown else served)


def test_a_failed_release_says_so(operator: Operator, public: Path) -> None:
    lines = verify(operator, public, data=bundle_of(SCENES["regression"], key())).out.splitlines()
    assert f"adapter     {CANDIDATE} (not accepted)" in lines
    assert "stopped by  refused candidate-regression eval_loss" in lines
    assert f"serving     {INCUMBENT}" in lines
    lines = verify(operator, public, data=bundle_of(SCENES["rollback failed"], key())).out.splitlines()
    assert "serving     unknown: look at the host before anything else" in lines


def test_a_changed_bundle_fails(operator: Operator, public: Path) -> None:
    data = bytearray(bundle_of(Scene(), key()))
    data[data.index(b'"state":"succeeded"') + 9] ^= 1
    answer = verify(operator, public, data=bytes(data))
    assert answer.code == Exit.FAILURE
    assert "FAIL  manifest: a file differs" in answer.out
    assert "SKIP  " in answer.out
    assert "operation " not in answer.out
    objects = verify(operator, public, "--json", data=bytes(data)).objects
    assert {entry["ok"] for entry in objects} == {True, False, None}
    assert {entry["kind"] for entry in objects} == {"verdict"}


def test_another_key_fails(operator: Operator) -> None:
    other = write(operator.home / "other.pub", public_pem(OTHER_SEED), mode=0o644)
    answer = verify(operator, other)
    assert answer.code == Exit.FAILURE
    assert f"FAIL  signature: the envelope is signed by key {key().public.keyid}" in answer.out


@pytest.mark.parametrize("data", [b"", b"no bundle", b"\x00" * 10240, bytes(1 << 20)])
def test_what_is_no_bundle_fails(operator: Operator, public: Path, data: bytes) -> None:
    answer = verify(operator, public, data=data)
    assert (answer.code, answer.err) == (Exit.FAILURE, "")
    assert answer.out.startswith("FAIL  archive: ")


def test_what_cannot_be_read_is_one_line(operator: Operator, public: Path) -> None:
    answer = operator.run("release", "verify", "absent.tar", "--public-key", str(public))
    assert (answer.code, answer.line) == (
        Exit.FAILURE,
        "ticket-agent: cannot read absent.tar: No such file or directory",
    )
    answer = verify(operator, operator.home / "absent.pub")
    assert (answer.code, answer.out) == (Exit.FAILURE, "")
    assert "absent.pub cannot be opened" in answer.line
    private = write(operator.home / "release.key", private_pem())
    assert "give the public one" in verify(operator, private).line


def test_without_the_library_one_line_says_what_to_install(operator: Operator, public: Path) -> None:
    bundle = operator.home / "bundle.tar"
    bundle.write_bytes(bundle_of(Scene(), key()))
    code = (
        "import sys; sys.modules['cryptography'] = None\n"
        f"sys.argv = {['ticket-agent', 'release', 'verify', str(bundle), '--public-key', str(public)]}\n"
        "from ticket_agent.cli import main\nmain()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (Exit.FAILURE, "")
    assert "pip install 'ticket-agent[release]'" in done.stderr


def test_no_network_is_needed(operator: Operator, public: Path) -> None:
    bundle = operator.home / "bundle.tar"
    bundle.write_bytes(bundle_of(Scene(), key()))
    code = (
        "import sys\n"
        "def refuse(event, _):\n"
        "    if event.startswith('socket.'): raise RuntimeError(event)\n"
        "sys.addaudithook(refuse)\n"
        f"sys.argv = {['ticket-agent', 'release', 'verify', str(bundle), '--public-key', str(public)]}\n"
        "from ticket_agent.cli import main\nmain()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (Exit.OK, "")
