"""Releases through a real daemon: admitted tickets in, a served adapter, results and evidence out."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hive_support import TOKEN
from release_daemon import Asker, Host, now_ms, release_host, wait_for
from told_lines import tell

from ticket_agent.hive.reference.workers import Phase as WorkerPhase
from ticket_agent.peft.release.layout import BUNDLE_FILE, CARD_FILE
from ticket_agent.peft.release.skeleton_base import SOURCE

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [pytest.mark.train, pytest.mark.timeout(3000)]

TRAINER = Path(__file__).parents[1] / "support" / "adapter_training.py"
PHASES = ["validate", "train", "evaluate", "scan", "stage", "load", "canary", "promote"]


@pytest.fixture
def host(tmp_path: Path) -> Iterator[Host]:
    with release_host(tmp_path.resolve()) as made:
        yield made


def command(*arguments: str) -> tuple[int, str]:
    """Run the program; its exit code and what it printed."""
    done = subprocess.run(
        [sys.executable, "-m", "ticket_agent", *arguments],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | {"NO_COLOR": "1"},
    )
    return done.returncode, done.stdout + done.stderr


def trained_elsewhere(host: Host, folder: Path, steps: int) -> Path:
    """An adapter made by somebody else, with other settings."""
    base, rows = host.lab.folder / "base", host.lab.folder / "train.json"
    support = os.pathsep.join([str(TRAINER.parent), str(TRAINER.parents[2])])
    done = subprocess.run(
        [sys.executable, str(TRAINER), str(base), str(rows), str(steps), str(folder)],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | {"HF_HUB_OFFLINE": "1", "PYTHONPATH": support},
    )
    assert done.returncode == 0, done.stderr[-2000:]
    (folder / "README.md").unlink(missing_ok=True)
    config = folder / "adapter_config.json"
    told: dict[str, Any] = json.loads(config.read_text("utf-8"))
    config.write_text(json.dumps(told | {"base_model_name_or_path": SOURCE}), "utf-8")
    return folder


def verified(host: Host, operation: str, *, recovery: str | None = None) -> dict[str, Any]:
    """What a verifier on another machine says of the bundle of a release, or of its recovery."""
    bundle = replace(host.files(operation), recovery=recovery).path / BUNDLE_FILE
    code, said = command(
        "release", "verify", str(bundle), "--public-key", str(host.lab.folder / "signing.pub"), "--json"
    )
    assert code == 0, said
    told: dict[str, Any] = json.loads(said.splitlines()[-1])
    return told


def observed_phases(host: Host, operation: str) -> list[str]:
    end = json.loads((host.files(operation).path / "release.json").read_bytes())
    return [entry["phase"] for entry in end["phases"]]


def test_adapters_are_trained_imported_refused_and_served(host: Host, tmp_path: Path) -> None:
    clock = [time.monotonic()]
    took: list[str] = []

    def lap(what: str) -> None:
        clock.append(time.monotonic())
        took.append(f"{what} {clock[-1] - clock[-2]:.1f} s")

    short = replace(host.lab.selection.settings, max_steps=3, checkpoint_interval=2)
    first = host.lab.prepare("release-1", settings=short)
    late = host.lab.prepare("release-2", adapter=host.lab.adapter("random", seed=9))
    host.serve_base(first)
    lap("base model served")
    backend = host.room().backend(first.profile)
    agent = host.agent()
    with Asker(host, backend, first.profile.canary.prompts) as asker:
        # Killed in the middle of the training: the training goes on, and the next agent observes it.
        host.submit("t1", first)
        host.await_phase("release-1", "train")
        host.submit("t2", late)
        agent.kill()
        agent = host.agent()
        wait_for(lambda: host.found("t2") is not None, "the second ticket is taken")
        state, message = host.ended("t1")
        lap("train to generation 1")
        assert (state, message.split(" ")[0]) == ("succeeded", "succeeded"), message
        assert host.accepted().generation == 1
        assert observed_phases(host, "release-1") == PHASES
        assert len({entry.agent for entry in host.record("t1").history}) == 2
        # What waited for it began from another deployment.
        state, message = host.ended("t2")
        assert state == "failed"
        assert "generation 1 is deployed" in message

        better = host.lab.prepare("release-3", adapter=trained_elsewhere(host, tmp_path / "better", 72))
        lap("a better adapter trained elsewhere")
        host.submit("t3", better)
        state, message = host.ended("t3")
        lap("import to generation 2")
        assert state == "succeeded", message
        assert observed_phases(host, "release-3") == [name for name in PHASES if name != "train"]

        worse = host.lab.prepare("release-4", adapter=host.lab.adapter("worse", seed=3))
        host.submit("t4", worse)
        state, message = host.ended("t4")
        lap("regression refused")
        assert state == "failed"
        assert message.startswith("failed native_observation=sha256:"), message
        asker.answers.pop(2, None)
        wait_for(lambda: all(asker.answers.get(2, [set()])), "generation 2 still answers")
    assert agent.terminate() == 0
    accepted = host.accepted()
    assert (accepted.generation, accepted.adapter_sha256) == (2, better.adapter_sha256)
    assert [server.instance.generation for server in host.servers()] == [2]
    assert asker.failures == []
    check_answers(host, asker)
    check_books(host)
    gap = asker.longest_gap_s()
    tell(
        f"a release for real: {'; '.join(took)}; {len(asker.times)} answers, longest gap {gap * 1000:.0f} ms"
    )


def check_answers(host: Host, asker: Asker) -> None:
    """Each generation said what its evaluation had heard, and nothing else."""
    said = {
        0: host.said("release-1", "baseline"),
        1: host.said("release-1", "candidate"),
        2: host.said("release-3", "candidate"),
    }
    assert said[0] != said[1] != said[2]
    for generation, answers in asker.answers.items():
        for index, heard in enumerate(answers):
            assert heard <= {said[generation][index]}, generation
    assert set(asker.answers) >= {1, 2}


def check_books(host: Host) -> None:
    """Results, journal, evidence and signed bundle tell the same."""
    evidence = host.lab.config.root / "evidence"
    # The first one outlived an agent, the others were followed by the one that began them.
    for ticket, operation, state, outcome, reconciled in (
        ("t1", "release-1", "succeeded", "confirmed", True),
        ("t3", "release-3", "succeeded", "confirmed", False),
        ("t4", "release-4", "failed", "rejected", False),
    ):
        assert host.states(ticket) == (
            ["claimed", "running", "succeeded"] if state == "succeeded" else ["claimed", "running", "failed"]
        )
        record = host.record(ticket)
        assert record.result is not None
        assert (record.result.outcome, record.state.value) == (outcome, "terminal")
        assert record.result.reconciled is reconciled
        told = verified(host, operation)
        assert (told["state"], told["ticket_id"]) == (state, ticket)
        named = told["native_evidence_sha256"]
        assert f"native_observation=sha256:{named}" in host.result(ticket)[1]
        assert (evidence / f"{named}.json").exists()
        assert operation in (host.files(operation).path / CARD_FILE).read_text("utf-8")
    assert verified(host, "release-4")["generation"] == 2
    code, said = command("journal", "verify", "--state-dir", str(host.state_dir))
    assert code == 0, said


def once(host: Host) -> tuple[int, str]:
    environ = os.environ | {"LAB_TOKEN": TOKEN, "COHSH_CONSOLE_LOCK": "0"}
    program = [sys.executable, "-m", "ticket_agent", "once", "--state-dir", str(host.state_dir)]
    program += ["--tcp-port", str(host.server.port), "--auth-token", "env:LAB_TOKEN"]
    program += ["--peft-release-config", str(host.config)]
    done = subprocess.run(program, capture_output=True, text=True, check=False, env=environ)
    return done.returncode, done.stdout


def status(host: Host) -> tuple[int, str]:
    return command("status", "--state-dir", str(host.state_dir))


def test_what_is_no_longer_allowed_is_stopped_and_put_back(host: Host) -> None:
    # Its training is still going on when it is looked at, and when it is stopped, however late that is.
    chosen = host.lab.selection
    stack = replace(chosen.stack, limits=replace(chosen.stack.limits, steps=20_000))
    longest: dict[str, Any] = {
        "stack": stack,
        "settings": replace(chosen.settings, max_steps=20_000, checkpoint_interval=50),
    }
    prepared = host.lab.prepare("release-1", **longest)
    began = time.monotonic()
    assert once(host) == (0, "ended: 0 (none); open: 0; uncertain: 0\n")
    short_ms = 3_000 + round(6_000 * (time.monotonic() - began))
    # Nothing is served yet: the ticket waits, says why, and expires without having begun anything.
    host.submit("t0", host.lab.prepare("release-0"), life_ms=short_ms)
    assert once(host) == (0, "ended: 0 (none); open: 1; uncertain: 0\n")
    wait_for(lambda: now_ms() >= (host.expiry["t0"]), "t0 expires")
    assert once(host)[0] == 0
    assert host.states("t0") == ["expired"]
    assert not (host.files("release-0").path / "begun.json").exists()

    host.serve_base(prepared)
    host.submit("t1", prepared)
    assert once(host) == (0, "ended: 0 (none); open: 1; uncertain: 0\n")
    assert host.states("t1") == ["claimed", "running"]
    agent = host.agent()
    host.await_phase("release-1", "train")
    wait_for(lambda: "release release-1: train runs" in status(host)[1], "status tells the phase")
    code, said = status(host)
    assert code == 0, said
    # Its Worker leaves: what runs is ended, and nobody can tell what the training has come to.
    host.hive.move_worker(host.workers["t1"], WorkerPhase.CLOSING)
    wait_for(lambda: host.ending("release-1", "train") == "stopped", "the training is stopped")
    wait_for(lambda: status(host)[0] == 7, "the outcome is called unknown")
    assert "ambiguous, nothing served was touched" in status(host)[1]
    # A recovery puts everything back.
    host.submit("r1", prepared, recovery_only=True)
    state, message = host.ended("r1")
    assert (state, message.split(" ")[0]) == ("failed", "recovered_failure"), message
    told = verified(host, "release-1", recovery="r1")
    assert (told["state"], told["generation"]) == ("recovered_failure", 0)
    # With that the first ticket has a definite end too, which its Worker cannot receive any more.
    wait_for(lambda: host.record("t1").terminal, "the first ticket ends")
    result = host.record("t1").result
    assert result is not None
    assert (result.outcome, result.message) == ("rejected", message)
    # Then the next one begins, and its own time runs out while it works.
    host.submit("t2", host.lab.prepare("release-2", **longest), life_ms=short_ms)
    host.await_phase("release-2", "validate")
    state, message = host.ended("t2")
    # A phase that was stopped leaves the outcome unknown; between two phases nothing is unknown.
    between = "the ticket expires before" in message or "no longer allowed" in message
    assert state == ("failed" if between else "expired"), message
    assert host.accepted().generation == host.pointer().generation == 0
    assert agent.terminate() == 0
