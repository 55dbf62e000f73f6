"""`release explain`, `recover` and `history`: why, what next, and what there was."""

from __future__ import annotations

import re
import shutil
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from cli_support import contents
from release_host import HOW, ReleaseHost, put
from release_scene import RESCUE, SCENES, STOPPED, Scene, successor

from ticket_agent.exits import Exit
from ticket_agent.peft.release.layout import OperationFiles
from ticket_agent.peft.release.markers import Blocker
from ticket_agent.peft.release.phases import Phase, ReleaseState
from ticket_agent.peft.release.release_explain import Explained, explain_release
from ticket_agent.peft.release.release_reader import ReleaseReader
from ticket_agent.peft.release.rule_words import words_for_phase, words_for_rule, words_for_text
from ticket_agent.peft.release.spelled import spell

if TYPE_CHECKING:
    from pathlib import Path

    from cli_support import Answer, Operator


@pytest.fixture
def host(tmp_path: Path) -> ReleaseHost:
    return ReleaseHost(tmp_path)


def ask(operator: Operator, host: ReleaseHost, *arguments: str) -> Answer:
    return operator.run("release", *arguments, "--release-config", str(host.file))


def explained(
    host: ReleaseHost, operation_id: str = "release-one", *, now_ms: int = 1_700_000_100_000
) -> Explained:
    with ReleaseReader(host.place) as reader:
        return explain_release(reader.release(operation_id), reader.deployment(), now_ms=now_ms)


@pytest.mark.parametrize(
    ("name", "where", "rule", "what"),
    [
        ("imported", None, None, None),
        ("bad input", "validate", None, "it did not work"),
        ("training failed", "train", None, "it did not work"),
        (
            "regression",
            "comparison",
            "candidate-regression eval_loss",
            "eval_loss is 4.075; it must be at most 4.0",
        ),
        ("authority gone", "after stage", "stopped", STOPPED),
        ("canary failed", "canary", None, "it did not work"),
        ("load lost", "load", "lost", "its process and its supervisor are gone"),
        ("rollback failed", "rollback", None, "it did not work"),
        (
            "no authority to roll back",
            "rollback",
            "release-authority-expired",
            "expired native-phase-deadline",
        ),
    ],
)
def test_every_end_is_explained(
    host: ReleaseHost, name: str, where: str | None, rule: str | None, what: str | None
) -> None:
    scene = host.scene(**HOW[name])
    host.end(scene)
    told = explained(host)
    assert (told.where, told.rule, told.what) == (where, rule, what)
    assert (told.meaning is None) is (told.remedy is None) is (where is None)


@pytest.mark.parametrize(
    ("detail", "rule", "meaning"),
    [
        ({"rule": "native-pins", "reason": "torch is 2.0"}, "native-pins", "Packages, interpreter or device"),
        ({"rule": "unheard-of", "reason": "strange"}, "unheard-of", "The candidate's server did not pass"),
        ({"error": "MemoryError"}, None, "The candidate's server did not pass"),
        (
            {"canary": {"findings": [{"rule": "canary-output", "text": "idle: prompt 2"}]}},
            "canary-output",
            "The served model answers otherwise",
        ),
        (
            {"findings": [{"rule": "canary-latency", "text": "9 s"}]},
            "canary-latency",
            "An answer took longer",
        ),
    ],
)
def test_the_rule_of_a_phase_is_the_one_it_told(
    host: ReleaseHost, detail: dict[str, Any], rule: str | None, meaning: str
) -> None:
    scene = host.scene(**HOW["canary failed"])
    files = host.play(scene)
    failed = replace(scene.observation(Phase.CANARY, succeeded=False), detail=detail)
    put(files.observation(Phase.CANARY), failed.encode())
    put(files.path / "release.json", spell(scene.record.members()))
    with host.root() as root, root.locked():
        root.control.disclaim(host.owner(scene))
    told = explained(host)
    assert (told.where, told.rule) == ("canary", rule)
    assert told.meaning is not None
    assert told.meaning.startswith(meaning)


def test_what_goes_on_says_what_it_waits_for(host: ReleaseHost) -> None:
    scene = host.scene(stops_before=Phase.SCAN, state=ReleaseState.RUNNING)
    assert explained(host).where == "the ticket"
    other = host.scene("two", fails=Phase.VALIDATE, state=ReleaseState.RUNNING)
    files = host.begin(scene)
    assert (explained(host, "release-two").where, explained(host, "release-two").rule) == (
        "another release",
        "release-owned",
    )
    assert explained(host).stands.startswith("It has begun, and no phase was started yet; its ticket expires")
    host.phase(scene, Phase.VALIDATE)
    assert explained(host).stands.startswith("validate has succeeded; the agent has to start the next phase")
    with host.running(files, Phase.EVALUATE, at=1_700_000_090_000):
        told = explained(host)
    assert (told.where, told.what) == ("evaluate", "evaluate has been running for 10 s")
    told = explained(host, now_ms=1_800_000_000_000)
    assert (told.where, told.rule) == ("evaluate", "ambiguous")
    assert "its ticket expired at 2023-11-14T23:13:20.000Z" in told.stands
    assert told.remedy is not None
    assert "release recover release-one" in told.remedy
    del other


def test_a_failed_phase_before_the_end_is_told(host: ReleaseHost) -> None:
    host.play(host.scene(**HOW["bad input"]))
    told = explained(host)
    assert (told.where, told.what) == ("validate", "it did not work")
    assert told.stands.startswith("validate did not succeed; the agent has to end the release")


def test_one_whose_evidence_is_not_kept_yet(host: ReleaseHost) -> None:
    host.end(host.scene(), conclude=False)
    assert explained(host).where == "the evidence"


def block(host: ReleaseHost, scene: Scene) -> None:
    owner = host.owner(scene)
    with host.root() as root, root.locked():
        root.control.block(
            Blocker(
                operation_id=owner.operation_id,
                request_sha256=owner.request_sha256,
                reason="the server did not come back",
                since_unix_ms=1,
            )
        )


def test_a_blocked_root_is_what_the_next_one_waits_for(host: ReleaseHost) -> None:
    scene = host.scene(**HOW["rollback failed"])
    host.end(scene)
    block(host, scene)
    told = explained(host, "release-next")
    assert (told.where, told.rule) == ("the blocked root", "release-blocked")


@pytest.mark.parametrize("phase", Phase)
def test_every_phase_has_words(phase: Phase) -> None:
    words = words_for_phase(phase)
    assert words.meaning.endswith(".")
    assert words.remedy.endswith((".", "`."))


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("expired native-phase-deadline", "release-authority-expired"),
        ("the Worker is not READY", "authority"),
        ("baseline-generation: something else is deployed before load", "baseline-generation"),
        ("refused candidate-regression eval_loss", "candidate-regression"),
        ("no longer allowed before canary", "authority"),
        ("the candidate is refused", "candidate-regression"),
        ("the decision for the candidate does not hold any more", "comparison-outdated"),
        ("train was not started", "phase-not-started"),
        ("promotion-postcondition: the candidate is not what is deployed", "promotion-postcondition"),
        ("the rollback did not bring the baseline back", None),
        ("it is already there", None),
        ("something else", None),
    ],
)
def test_a_line_speaks_of_a_rule(text: str, rule: str | None) -> None:
    found = words_for_text(text)
    assert (None if found is None else found[0]) == rule
    assert words_for_rule("unheard-of") is None


def test_the_command_prints_it_and_changes_nothing(operator: Operator, host: ReleaseHost) -> None:
    host.end(host.scene(**HOW["regression"]))
    before = contents(host.place)
    answer = ask(operator, host, "explain", "release-one")
    assert (answer.code, answer.err) == (Exit.OK, "")
    assert answer.out.splitlines() == [
        "release release-one (import of adapter-one)  failed: refused candidate-regression eval_loss",
        "stands    The candidate was never served; what was deployed before still is.",
        "where     comparison",
        "rule      candidate-regression eval_loss",
        "what      eval_loss is 4.075; it must be at most 4.0",
        "meaning   Candidate and incumbent cannot be compared, or the candidate is not good enough.",
        "remedy    Train it better; bounds are loosened by a new profile only.",
    ]
    told = ask(operator, host, "explain", "release-one", "--json").object
    assert (told["kind"], told["stage"], told["state"]) == ("release-explanation", "ended", "failed")
    assert told["rule"] == "candidate-regression eval_loss"
    assert contents(host.place) == before


def test_recover_names_the_next_command(operator: Operator, host: ReleaseHost) -> None:
    answer = ask(operator, host, "recover")
    assert answer.code == Exit.OK
    assert "nothing to recover" in answer.out
    assert "next" not in answer.out
    scene = host.scene(**HOW["rollback failed"])
    host.end(scene)
    block(host, scene)
    run = host.place / "servers" / "release-one.server.run"
    files = OperationFiles(root=host.place, operation_id="release-one")
    host.started(files, Phase.ROLLBACK)
    run.parent.mkdir(mode=0o700)
    shutil.copytree(files.run(Phase.ROLLBACK), run)
    before = contents(host.place)
    answer = ask(operator, host, "recover")
    assert answer.code == Exit.OK
    lines = answer.out.splitlines()
    assert "blocked   by release release-one: the server did not come back" in lines
    assert "deployed  generation 0, the base model" in lines
    assert lines[-1] == (
        "next      ticket-agent release submit --recovery-only --operation release-one"
        f" --release-config {host.file} --worker WORKER"
    )
    assert contents(host.place) == before
    told = ask(operator, host, "recover", "release-one", "--json").object
    assert told["next"] in answer.out
    assert told["deployment"]["blocked_by"] == "release-one"
    assert [server["launch_id"] for server in told["servers"]] == ["release-one.server"]


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("imported", "it has ended, and nothing of it has to be put back"),
        ("canary failed", "it has ended, and nothing of it has to be put back"),
    ],
)
def test_recover_offers_nothing_where_nothing_helps(
    operator: Operator, host: ReleaseHost, name: str, why: str
) -> None:
    host.end(host.scene(**HOW[name]))
    told = ask(operator, host, "recover", "release-one", "--json").object
    assert (told["why"], told["next"]) == (why, None)


def test_recover_of_a_lost_phase_and_after_too_many_attempts(operator: Operator, host: ReleaseHost) -> None:
    lost = host.scene(**HOW["rescued"] | {"rolled_back": None, "state": "ambiguous", "recovery": None})
    host.play(lost)
    told = ask(operator, host, "recover", "--json").object
    assert (told["operation_id"], told["stage"]) == ("release-one", "ambiguous")
    assert "--recovery-only --operation release-one" in told["next"]
    failed = replace(lost, rolled_back=False, recovery=RESCUE, state=ReleaseState.ROLLBACK_FAILED)
    for number in range(4):
        files = OperationFiles(root=host.place, operation_id="release-one", recovery=f"ticket-{number}")
        put(files.path / "begun.json", host.begun(failed).encode())
        put(files.path / "release.json", spell(failed.record.members()))
    told = ask(operator, host, "recover", "--json").object
    assert told["next"] is None
    assert "by hand" in told["why"]


def test_recover_does_not_guess_where_files_are_damaged(operator: Operator, host: ReleaseHost) -> None:
    host.end(host.scene(**HOW["rollback failed"]))
    put(host.place / "accepted.json", b"damaged")
    told = ask(operator, host, "recover", "--json").object
    assert told["next"] is None
    assert "cannot be read" in told["why"]
    assert ask(operator, host, "recover", "of-nobody").code == Exit.FAILURE


def test_history_lists_generations_and_failures(operator: Operator, host: ReleaseHost) -> None:
    assert ask(operator, host, "history").out == "no release yet\n"
    one = host.scene("one")
    host.end(one)
    first = successor(host.bare, one.candidate)
    hour = 3_600_000
    two = host.scene("two", baseline=first, began_ms=one.began_ms + hour, model_id="adapter-two")
    host.end(two)
    second = successor(first, two.candidate)
    bad = host.scene("bad", baseline=second, began_ms=one.began_ms + 2 * hour, **HOW["regression"])
    files = host.end(bad)
    shutil.rmtree(host.files(one).path)
    answer = ask(operator, host, "history")
    assert (answer.code, answer.err) == (Exit.OK, "")
    rows = [re.split(r"  +", line) for line in answer.out.splitlines()]
    assert [row[:3] + row[4:] for row in rows[1:]] == [
        ["1", "release-one", "adapter-one", "succeeded", one.candidate[:12], "3.326875", "3.575000"],
        ["2 *", "release-two", "adapter-two", "succeeded", two.candidate[:12], "3.326875", "3.575000"],
        ["-", "release-bad", "adapter-one", "failed", bad.candidate[:12], "4.075000", "3.575000"],
    ]
    objects = ask(operator, host, "history", "--json", "--generations").objects
    assert [(entry["generation"], entry["deployed"]) for entry in objects] == [(1, False), (2, True)]
    put(files.path / "release.json", b"damaged")
    answer = ask(operator, host, "history", "--json")
    assert answer.code == Exit.DEGRADED
    assert [entry["kind"] for entry in answer.objects].count("problem") == 1


def test_scenes_are_all_explained_by_words() -> None:
    assert set(HOW) == set(SCENES)
