"""`release watch`: releases that run, wait, end in every way, read by a process of its own."""

from __future__ import annotations

import os
import pty
import re
import struct
import subprocess
import termios
from fcntl import ioctl
from typing import TYPE_CHECKING

import click
import pytest
from cli_support import COMMAND, PATIENCE_S, contents
from release_host import HOW, ReleaseHost, put
from release_scene import SCENES, STOPPED, Scene

from ticket_agent.cli.release_screen import changes, exit_of, screen
from ticket_agent.exits import RELEASE_MEANING, Exit, ReleaseExit
from ticket_agent.peft.release.evidence_check import evidence_problem
from ticket_agent.peft.release.phases import Phase, ReleaseState
from ticket_agent.peft.release.release_reader import ReleaseReader
from ticket_agent.peft.release.request import Entry
from ticket_agent.peft.release.spelled import spell

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from cli_support import Answer, Operator

    from ticket_agent.peft.release.layout import OperationFiles


@pytest.fixture
def host(tmp_path: Path) -> ReleaseHost:
    return ReleaseHost(tmp_path)


def watch(operator: Operator, host: ReleaseHost, *options: str, operation: str = "release-one") -> Answer:
    return operator.run("release", "watch", operation, "--release-config", str(host.file), *options)


def code_of(host: ReleaseHost, scene: Scene) -> tuple[ReleaseExit, str | None]:
    with ReleaseReader(host.place) as reader:
        view = reader.release(scene.operation_id)
        problem = evidence_problem(host.config, view)
        return exit_of(view, problem), problem


CODES = {
    "succeeded": ReleaseExit.SUCCEEDED,
    "failed": ReleaseExit.FAILED,
    "recovered_failure": ReleaseExit.RECOVERED_FAILURE,
    "rollback_failed": ReleaseExit.FAILED,
}


@pytest.mark.parametrize("name", SCENES)
def test_every_end_has_its_code(host: ReleaseHost, name: str) -> None:
    scene = host.scene(**HOW[name])
    host.end(scene)
    assert code_of(host, scene) == (CODES[scene.state], None)


def test_what_has_not_ended_has_a_code_too(host: ReleaseHost) -> None:
    scene = host.scene(stops_before=Phase.SCAN, state=ReleaseState.RUNNING)
    assert code_of(host, scene)[0] is ReleaseExit.PENDING
    files = host.play(scene)
    assert code_of(host, scene)[0] is ReleaseExit.RUNNING
    host.started(files, Phase.SCAN)
    assert code_of(host, scene)[0] is ReleaseExit.AMBIGUOUS


def test_a_release_that_nothing_ran_for_was_refused(host: ReleaseHost) -> None:
    scene = host.scene(stops_before=Phase.VALIDATE, state=ReleaseState.FAILED, blocker=STOPPED)
    host.end(scene)
    assert code_of(host, scene) == (ReleaseExit.REFUSED, None)


def _no_evidence(host: ReleaseHost, files: OperationFiles) -> None:
    for path in host.config.evidence.iterdir():
        path.unlink()


def _damaged_evidence(host: ReleaseHost, files: OperationFiles) -> None:
    (path,) = host.config.evidence.iterdir()
    put(path, path.read_bytes() + b" ")


def _damaged_bundle(host: ReleaseHost, files: OperationFiles) -> None:
    path = files.path / "bundle.tar"
    data = bytearray(path.read_bytes())
    data[data.index(b'"payload":"') + 20] ^= 1
    put(path, bytes(data))


def _foreign_bundle(host: ReleaseHost, files: OperationFiles) -> None:
    other = host.scene("two", **HOW["regression"])
    put(files.path / "bundle.tar", (host.end(other).path / "bundle.tar").read_bytes())


def _other_end(host: ReleaseHost, files: OperationFiles) -> None:
    path = files.path / "release.json"
    put(path, path.read_bytes().replace(b'"writer_epoch":7', b'"writer_epoch":8'))


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (_no_evidence, "does not exist"),
        (_damaged_evidence, "does not hold what its name says"),
        (_damaged_bundle, "bundle.tar: "),
        (_foreign_bundle, "is of another release"),
        (_other_end, "does not exist"),
    ],
)
def test_evidence_that_is_not_in_order_has_a_code(
    host: ReleaseHost, damage: Callable[[ReleaseHost, OperationFiles], None], reason: str
) -> None:
    scene = host.scene()
    damage(host, host.end(scene))
    code, problem = code_of(host, scene)
    assert code is ReleaseExit.INVALID_EVIDENCE
    assert problem is not None
    assert reason in problem


def test_a_bundle_that_nobody_here_can_verify_is_no_problem(host: ReleaseHost) -> None:
    scene = host.scene()
    host.end(scene)
    assert host.key is not None
    host.key.unlink()
    assert code_of(host, scene) == (ReleaseExit.SUCCEEDED, None)


def test_every_code_has_a_meaning_and_means_nothing_else_elsewhere() -> None:
    assert RELEASE_MEANING.keys() == set(ReleaseExit)
    assert {int(code) for code in ReleaseExit} & {int(code) for code in Exit} == {0}


def test_an_ended_release_is_shown_whole(operator: Operator, host: ReleaseHost) -> None:
    scene = host.scene(**HOW["trained"])
    host.end(scene)
    before = contents(host.place)
    answer = watch(operator, host)
    assert (answer.code, answer.err) == (0, "")
    lines = answer.out.splitlines()
    assert lines[0] == "release release-one (train of adapter-one)  succeeded"
    assert lines[1] == f"deployed  generation 1, adapter {scene.candidate[:12]}"
    assert lines[2] == "validate  succeeded     900 ms"
    assert lines[4] == "evaluate  succeeded     900 ms  loss 3.326875, baseline 3.575000"
    assert lines[8] == "canary    succeeded     900 ms  slowest answer 49 ms"
    assert lines[10] == ("training  step 3/32, loss 3.2500  [##----------------------] 9 %  █▃▁")
    assert lines[11:] == ["-- output of promote --", "working", RELEASE_MEANING[ReleaseExit.SUCCEEDED]]
    assert contents(host.place) == before


def test_what_stopped_a_release_is_shown(operator: Operator, host: ReleaseHost) -> None:
    scene = host.scene(**HOW["canary failed"])
    host.end(scene)
    answer = watch(operator, host, "--log", "0")
    assert answer.code == ReleaseExit.RECOVERED_FAILURE
    lines = answer.out.splitlines()
    assert lines[0] == "release release-one (import of adapter-one)  recovered_failure: canary"
    assert "canary    failed        900 ms  it did not work" in lines
    assert "promote   not started" in lines
    assert not any(line.startswith("--") for line in lines)


def test_it_follows_until_the_end(operator: Operator, host: ReleaseHost) -> None:
    """A release that goes on while a process watches; each step is taken when the one before was seen."""
    scene = host.scene(entry=Entry.TRAIN)
    command = ["release", "watch", "release-one", "--release-config", str(host.file), "--interval", "0.05"]
    with operator.spawn(*command) as running:
        running.until(lambda line: line.endswith("pending"))
        files = host.begin(scene)
        running.until(lambda line: line.endswith("running"))
        host.phase(scene, Phase.VALIDATE)
        running.until(lambda line: line.endswith("validate succeeded"))
        with host.running(files, Phase.TRAIN):
            running.until(lambda line: line.endswith("train running"))
            told = {"schema": "ticket-agent-training-progress/v1", "max_steps": 32}
            put(
                files.job(Phase.TRAIN) / "out" / "progress.json",
                spell(told | {"steps": [1, 2], "losses": [4.0, 3.5]}),
            )
            running.until(lambda line: line == "training  step 2/32, loss 3.5000")
        lost = running.until(lambda line: line.startswith("train "))
        assert re.fullmatch(r"train +lost +its process and its supervisor are gone", lost)
        assert running.process.wait(PATIENCE_S) == ReleaseExit.AMBIGUOUS


def test_it_follows_a_release_to_its_success(operator: Operator, host: ReleaseHost) -> None:
    scene = host.scene()
    command = ["release", "watch", "release-one", "--release-config", str(host.file), "--interval", "0.05"]
    with operator.spawn(*command) as running:
        running.until(lambda line: line.endswith("pending"))
        host.end(scene)
        running.until(lambda line: line == RELEASE_MEANING[ReleaseExit.SUCCEEDED])
        assert running.process.wait(PATIENCE_S) == ReleaseExit.SUCCEEDED


def test_objects_come_one_per_change(operator: Operator, host: ReleaseHost) -> None:
    scene = host.scene(**HOW["regression"])
    host.end(scene)
    answer = watch(operator, host, "--json")
    assert answer.code == ReleaseExit.FAILED
    told = answer.object
    assert (told["kind"], told["state"], told["stage"], told["exit"]) == (
        "release-watch",
        "failed",
        "ended",
        16,
    )
    assert told["blocker"] == scene.blocker
    assert told["deployment"]["accepted"]["generation"] == 0
    assert [phase["standing"] for phase in told["phases"]] == ["succeeded"] * 2 + ["not started"] * 5
    assert (told["log_phase"], told["log"]) == ("evaluate", ["working"])


@pytest.mark.parametrize("options", [["--once"], ["--timeout", "0"], ["--timeout", "0.2", "--json"]])
def test_one_look_and_a_time_that_is_over(operator: Operator, host: ReleaseHost, options: list[str]) -> None:
    answer = watch(operator, host, *options, operation="release-of-nobody")
    assert answer.code == (ReleaseExit.PENDING if options == ["--once"] else ReleaseExit.TIMEOUT)
    if "--json" in options:
        first, last = answer.objects
        assert (first["stage"], first["exit"]) == ("pending", None)
        assert last == {
            "schema": "ticket-agent-output/v1",
            "kind": "release-timeout",
            "operation_id": "release-of-nobody",
            "exit": 17,
        }


def test_a_terminal_is_drawn_over(operator: Operator, host: ReleaseHost) -> None:
    scene = host.scene(stops_before=Phase.SCAN, state=ReleaseState.RUNNING)
    files = host.play(scene)
    reading, terminal = pty.openpty()
    ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 30, 60, 0, 0))
    command = ["release", "watch", "release-one", "--release-config", str(host.file), "--interval", "0.05"]
    with (
        host.running(files, Phase.SCAN, lines=b"x" * 500),
        subprocess.Popen(
            [*COMMAND, *command],
            env={key: value for key, value in operator.env.items() if key not in {"COLUMNS", "LINES"}}
            | {"TERM": "xterm"},
            stdout=terminal,
            stderr=subprocess.PIPE,
        ) as process,
    ):
        os.close(terminal)
        shown = b""
        while shown.count(b"scan") < 3:
            shown += os.read(reading, 65536)
        process.terminate()
        process.wait(PATIENCE_S)
    os.close(reading)
    text = shown.decode(errors="ignore")
    assert "\x1b[J" in text
    assert re.search(r"\x1b\[\d+A\x1b\[J", text)
    assert re.search(r"scan      \x1b\[33m\S*running\x1b\[0m", text)
    assert all(len(click.unstyle(line)) <= 60 for line in re.sub(r"\x1b\[\d*[AJ]", "", text).splitlines())


def test_lines_keep_their_width_and_hostile_text_is_shown_escaped(host: ReleaseHost) -> None:
    scene = host.scene(stops_before=Phase.SCAN, state=ReleaseState.RUNNING)
    files = host.play(scene)
    with (
        host.running(files, Phase.SCAN, lines="\x1b[2Jgone \u202e backwards\n".encode()),
        ReleaseReader(host.place) as reader,
    ):
        view, deployment = reader.release("release-one"), reader.deployment()
    lines = screen(view, deployment, now_ms=0, width=50)
    assert all(len(line) <= 50 and line.isprintable() for line in lines)
    assert any(line.endswith("…") for line in lines)
    assert "\\x1b[2Jgone \\u202e backwards" in lines
    assert changes(view, view) == []


def test_what_cannot_be_opened_is_one_line(operator: Operator, host: ReleaseHost) -> None:
    answer = operator.run("release", "watch", "a", "--release-config", "absent.toml")
    assert (answer.code, answer.out) == (Exit.USAGE, "")
    assert "absent.toml" in answer.line
    answer = watch(operator, host, operation="-a/../b")
    assert answer.code in (Exit.FAILURE, Exit.USAGE)
    answer = watch(operator, host, operation="a/b")
    assert answer.code == Exit.FAILURE
    assert "operation_id must be" in answer.line
