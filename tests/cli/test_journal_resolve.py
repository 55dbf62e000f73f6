"""`journal resolve`: the one way to end an uncertain operation by hand, and everything it refuses."""

from __future__ import annotations

import getpass
import json
from typing import TYPE_CHECKING

import pytest
from agent_support import agent_on
from cli_support import contents, now_ms
from hive_support import DEADLETTER, ManualClock, finish, running_hive
from journal_support import PLAN, open_store, prepare
from left_behind import leave, leave_undecidable, submit

from ticket_agent.exits import Exit
from ticket_agent.hive.reference import Fault, FaultKind
from ticket_agent.journal.resolution import resolution_of
from ticket_agent.journal.view import read_journal

if TYPE_CHECKING:
    from collections.abc import Iterator

    from cli_support import Answer, Operator

    from ticket_agent.hive.reference import ConsoleServer, ReferenceHive
    from ticket_agent.journal.record import Record

KEY = ("t1", "key-t1")
REASON = "the lease log of the host shows it"


class Scene:
    """A hive, an operator, and what a dead agent left."""

    def __init__(self, operator: Operator, hive: ReferenceHive, server: ConsoleServer) -> None:
        self.operator, self.hive, self.server = operator, hive, server
        self.clock = ManualClock(now_ms() - 60_000)

    def left(self, state: str) -> None:
        submit(self.hive)
        leave(self.server, self.operator.state, state, clock=self.clock)

    def undecidable(self, *, expires: int | None = None) -> None:
        leave_undecidable(self.hive, self.server, self.operator.state, clock=self.clock, expires=expires)

    def resolve(self, *more: str, said: str = "done", reason: str = REASON) -> Answer:
        asked = ["journal", "resolve", "t1", "--as", said, "--reason", reason]
        return self.operator.run(*asked, *self.operator.at(self.server), *more)

    def gone(self, *more: str) -> Answer:
        asked = ["journal", "resolve", "t1", "--as", "not-done", "--reason", REASON, *more]
        return self.operator.run(*asked, "--tcp-port", "1", "--auth-token", "env:LAB_TOKEN")

    @property
    def record(self) -> Record:
        return read_journal(self.operator.state).records["2:t1:key-t1"]


@pytest.fixture
def scene(operator: Operator) -> Iterator[Scene]:
    with running_hive(clock=now_ms) as (hive, server):
        yield Scene(operator, hive, server)


@pytest.mark.parametrize(
    ("said", "outcome", "published"), [("done", "stale", "expired"), ("not-done", "rejected", "failed")]
)
def test_it_is_planned_then_written_then_published(
    scene: Scene, said: str, outcome: str, published: str
) -> None:
    scene.undecidable()
    effects = scene.hive.effects
    before = contents(scene.operator.state)
    plan = scene.resolve("--json", said=said)
    assert plan.code == Exit.OK
    assert (plan.object["applied"], plan.object["outcome"]) == (False, outcome)
    assert contents(scene.operator.state) == before
    started = now_ms()
    done = scene.resolve("--json", "--apply", "--by", "Ada", said=said)
    assert done.code == Exit.OK
    assert (done.object["applied"], done.object["state"]) == (True, "provider-result-persisted")
    word = resolution_of(scene.record)
    assert word is not None
    assert (word.said, word.by, word.reason) == (said, "Ada", REASON)
    assert started <= word.unix_ms <= now_ms()
    assert word.observed.startswith("Unknown: ")
    assert "renewed or not" in word.observed
    assert not scene.hive.terminal_lines(KEY)
    assert (
        scene.operator.run("journal", "replay", "--apply", *scene.operator.at(scene.server)).code == Exit.OK
    )
    (line,) = scene.hive.terminal_lines(KEY)
    assert line == done.object["staged"]["line"]
    result = json.loads(line)
    assert result["state"] == published
    assert "Ada" in result["message"]
    assert REASON in result["message"]
    assert scene.hive.cat(DEADLETTER) == [line]
    assert scene.hive.effects == effects
    shown = scene.operator.run("journal", "show", "t1").out
    assert f"outcome    {outcome} (by hand): " in shown
    assert f"resolved   as {said} by Ada at 20" in shown
    assert scene.operator.run("journal", "show", "t1", "--json").object["resolved"]["reason"] == REASON
    assert scene.operator.run("status").code == Exit.OK


def test_the_login_name_speaks_unless_another_is_named(scene: Scene) -> None:
    scene.undecidable()
    answer = scene.resolve()
    assert f"ended by {getpass.getuser()} as done, which no observation proves: {REASON}" in answer.out
    assert answer.out.endswith("nothing was written; to resolve it: --apply\n")


def test_its_lane_goes_on(scene: Scene) -> None:
    """A later ticket of the same lease waits for the uncertain one and for nothing else."""
    scene.undecidable()
    submit(scene.hive, ticket="t2")
    assert scene.resolve("--apply").code == Exit.OK
    with agent_on(scene.server, scene.operator.state, clock=ManualClock(now_ms())) as bench:
        bench.settle()
        assert bench.record("t2").terminal
    assert scene.hive.effect_count("grant", "lease-2") == 1


@pytest.mark.parametrize(
    ("left", "words"),
    [
        ("prepared", "never dispatched"),
        ("executing", "the observer can tell that it is not done"),
        ("effected", "the observer can tell that it is done"),
        ("persisted", "its outcome is decided (confirmed)"),
        ("published", "its outcome is decided (confirmed)"),
    ],
)
def test_what_is_decided_or_can_be_is_refused(scene: Scene, left: str, words: str) -> None:
    scene.left(left)
    before = scene.record
    answer = scene.resolve("--apply", "--hive-is-gone")
    assert (answer.code, answer.out) == (Exit.FAILURE, "")
    assert words in answer.line
    assert scene.record == before


def test_an_ended_operation_is_refused(scene: Scene) -> None:
    scene.left("published")
    scene.operator.run("journal", "replay", "--apply", *scene.operator.at(scene.server))
    assert "it has ended as confirmed; an end is never changed" in scene.resolve("--apply").line


def test_an_operation_that_recovery_ends_is_refused(scene: Scene) -> None:
    scene.undecidable(expires=scene.clock() + 30_000)
    assert "recovery ends it as stale by rule" in scene.resolve("--apply").line
    assert scene.record.result is None


def test_an_observer_that_could_not_look_is_asked_again(scene: Scene) -> None:
    scene.left("effected")
    scene.server.faults.add(Fault(kind=FaultKind.ERR, verb="CAT", prefix="/proc/lease"))
    answer = scene.resolve("--apply", said="not-done")
    assert answer.code == Exit.FAILURE
    assert "its observer could not look just now" in answer.line
    scene.server.faults.clear()
    assert "the observer can tell that it is done" in scene.resolve("--apply", said="not-done").line


def test_a_visible_result_is_taken_over_instead(scene: Scene) -> None:
    scene.undecidable()

    finish(scene.hive, "t1", "failed", "ended by another")
    assert "the root already shows a result of it" in scene.resolve("--apply").line


def test_a_disabled_observer_is_asked_and_named(scene: Scene) -> None:
    scene.left("effected")
    config = scene.operator.home / "agent.toml"
    config.write_text('action_allowlist = ["gpu.lease.release"]\n[gpu]\nenabled = false\n')
    answer = scene.resolve("--apply", "--config", str(config), "--state-dir", str(scene.operator.state))
    assert answer.code == Exit.FAILURE
    assert "it is done" in answer.line
    assert "does not enable gpu.lease.grant" in answer.line


@pytest.mark.parametrize("apply", [[], ["--apply"]], ids=["plan", "apply"])
def test_another_owner_is_named(scene: Scene, apply: list[str]) -> None:
    scene.undecidable()
    with open_store(scene.operator.state):
        answer = scene.resolve(*apply)
    assert (answer.code, answer.out) == (Exit.OTHER_OWNER, "")
    assert "owns this state directory" in answer.line


def test_without_a_hive_only_a_hive_that_is_gone_goes_on(scene: Scene) -> None:
    scene.left("effected")
    refused = scene.gone("--apply")
    assert (refused.code, refused.out) == (Exit.HIVE_UNREACHABLE, "")
    assert "--hive-is-gone" in refused.line
    assert scene.record.result is None
    assert scene.gone("--apply", "--hive-is-gone").code == Exit.OK
    word = resolution_of(scene.record)
    assert word is not None
    assert word.observed.startswith("the hive is gone; ")


def test_a_busy_console_or_a_refused_credential_is_no_hive_that_is_gone(scene: Scene) -> None:
    scene.left("effected")
    answer = scene.operator.run(
        *["journal", "resolve", "t1", "--as", "done", "--reason", REASON, "--apply", "--hive-is-gone"],
        *scene.operator.at(scene.server),
        env={"LAB_TOKEN": "wrong-token"},
    )
    assert (answer.code, answer.out) == (Exit.HIVE_REFUSED, "")
    with agent_on(scene.server, scene.operator.home / "other", clock=scene.clock) as bench:
        bench.passes(1)
        busy = scene.resolve("--apply", "--hive-is-gone")
    assert (busy.code, busy.out) == (Exit.HIVE_UNREACHABLE, "")
    assert scene.record.result is None


def test_a_hive_that_hangs_up_in_the_middle_is_not_gone(scene: Scene) -> None:
    scene.undecidable()
    scene.server.faults.add(Fault(kind=FaultKind.DROP_BEFORE, verb="CAT", prefix="/host/tickets"))
    answer = scene.resolve("--apply", "--hive-is-gone")
    assert answer.code == Exit.HIVE_UNREACHABLE
    assert scene.record.result is None


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (["--reason", ""], "reason must have 1..=192 bytes"),
        (["--reason", "x" * 193], "reason must have 1..=192 bytes"),
        (["--reason", "two\nlines"], "reason must not hold control characters"),
        (["--by", ""], "by must have 1..=192 bytes"),
        (["--as", "maybe"], "'maybe' is not one of 'done', 'not-done'"),
    ],
)
def test_a_word_that_cannot_be_kept_is_refused_before_anybody_is_asked(
    operator: Operator, more: list[str], words: str
) -> None:
    with open_store(operator.state) as store:
        prepare(store)
    asked = ["journal", "resolve", "1", "--as", "done", "--reason", "r", "--tcp-port", "1", *more]
    answer = operator.run(*asked)
    assert (answer.code, answer.out) == (Exit.USAGE, "")
    assert words in answer.line


def test_a_request_that_cannot_be_parsed_is_left_alone(operator: Operator) -> None:

    with open_store(operator.state) as store:
        store.dispatch(prepare(store).key, PLAN)
    asked = ["journal", "resolve", "1", "--as", "done", "--reason", "r", "--tcp-port", "1", "--hive-is-gone"]
    answer = operator.run(*asked, "--apply")
    assert answer.code == Exit.FAILURE
    assert "its request cannot be parsed" in answer.line


def test_no_reason_or_no_side_is_no_word(operator: Operator) -> None:
    for asked, words in ((["--as", "done"], "--reason"), (["--reason", "r"], "--as")):
        answer = operator.run("journal", "resolve", "1", *asked)
        assert answer.code == Exit.USAGE
        assert words in answer.line
