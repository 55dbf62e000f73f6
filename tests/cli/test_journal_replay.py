"""`journal replay`: the plan reads only; `--apply` does what the plan says and begins nothing."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING, Any

import pytest
from agent_faults import blind, effects_since
from agent_support import agent_on, crash
from cli_support import break_record, contents, now_ms
from hive_support import LEASE_CTL, ManualClock, raw_grant, running_hive
from journal_support import KEY, open_store, prepare
from left_behind import leave, leave_undecidable, submit

from ticket_agent.exits import Exit
from ticket_agent.hive.reference import STRICT_A, ConsoleServer, Fault, FaultKind, ReferenceHive

if TYPE_CHECKING:
    from collections.abc import Iterator

    from cli_support import Answer, Operator


class Scene:
    """A hive, and an operator whose state directory a dead agent left behind."""

    def __init__(self, operator: Operator, hive: ReferenceHive, server: ConsoleServer) -> None:
        self.operator, self.hive, self.server = operator, hive, server
        self.clock = ManualClock(now_ms() - 60_000)

    def left(self, state: str) -> None:
        submit(self.hive)
        leave(self.server, self.operator.state, state, clock=self.clock)

    def undecidable(self) -> None:
        leave_undecidable(self.hive, self.server, self.operator.state, clock=self.clock)

    def plan(self, *more: str) -> Answer:
        return self.operator.run("journal", "replay", *more)

    def asked(self, *more: str) -> Answer:
        return self.plan("--against-hive", *self.operator.at(self.server), *more)

    def apply(self, *more: str) -> Answer:
        return self.plan("--apply", *self.operator.at(self.server), *more)


@pytest.fixture
def scene(operator: Operator) -> Iterator[Scene]:
    with running_hive(clock=now_ms) as (hive, server):
        yield Scene(operator, hive, server)


def _of(answer: Answer, kind: str) -> dict[str, Any]:
    (found,) = [entry for entry in answer.objects if entry["kind"] == kind]
    return found


LOOKED_UP = ["visible results", "the admission"]


@pytest.mark.parametrize(
    ("left", "decision", "needs", "code"),
    [
        ("prepared", "dispatch", [*LOOKED_UP, "READY and the effect"], Exit.OK),
        ("executing", "observe", [*LOOKED_UP, "an observation"], Exit.UNCERTAIN),
        ("persisted", "publish", [*LOOKED_UP, "the publication"], Exit.OK),
        ("published", "finish", [], Exit.OK),
    ],
)
def test_the_plan_of_each_state(scene: Scene, left: str, decision: str, needs: list[str], code: Exit) -> None:
    scene.left(left)
    before = contents(scene.operator.state)
    told = scene.plan("--json")
    planned, whole = _of(told, "planned"), _of(told, "plan")
    assert (told.code, whole["exit"], whole["open"]) == (code, code, 1)
    assert (planned["decision"], planned["needs_hive"]) == (decision, needs)
    assert planned["rule"].endswith(f"-> {decision.upper()}")
    assert planned["uncertain_after"] == (code == Exit.UNCERTAIN)
    assert contents(scene.operator.state) == before


def test_nothing_open_needs_no_hive(operator: Operator) -> None:
    with open_store(operator.state):
        pass
    assert operator.run("journal", "replay").out == "nothing is open\n"
    done = operator.run("journal", "replay", "--apply", "--tcp-port", "1")
    assert (done.code, done.out) == (Exit.OK, "open before: 0; open now: 0; dispatched: 0\n")


@pytest.mark.parametrize(
    ("left", "decision", "after", "outcome"),
    [
        ("prepared", "dispatch", "prepared", None),
        ("executing", "observe", "terminal", "rejected"),
        ("effected", "observe", "terminal", "confirmed"),
        ("persisted", "publish", "terminal", "confirmed"),
        ("published", "finish", "terminal", "confirmed"),
    ],
)
def test_it_is_done_as_planned(
    scene: Scene, left: str, decision: str, after: str, outcome: str | None
) -> None:
    scene.left(left)
    before = contents(scene.operator.state)
    planned = _of(scene.asked("--json"), "planned")
    assert planned["decision"] == decision
    assert planned["facts"]["visible"]["known"] == "read"
    assert contents(scene.operator.state) == before
    effects = sum(scene.hive.effects.values())
    told = scene.apply("--json")
    done, whole = _of(told, "replayed"), _of(told, "replay")
    assert (told.code, told.err) == (Exit.OK, "")
    assert (done["before"], done["after"], done["outcome"]) == (planned["state"], after, outcome)
    assert (whole["before"], whole["open"]) == (1, after != "terminal")
    assert effects_since(scene.hive, effects) == 0
    assert scene.hive.admission_of("t1").outcome == outcome
    assert len(scene.hive.terminal_lines(("t1", "key-t1"))) == (outcome is not None)


def test_the_tables_tell_what_comes_and_what_came(scene: Scene) -> None:
    scene.left("effected")
    header, row, summary, hint = scene.plan().out.splitlines()
    assert header.split()[:5] == ["SEQ", "TICKET", "ACTION", "STATE", "NEXT"]
    assert row.split()[:5] == ["1", "t1", "gpu.lease.grant", "executing", "observe"]
    assert "visible results, the admission, an observation" in row
    assert summary == "open: 1; may stay uncertain: 1; nothing was done"
    assert "--apply" in hint
    answer = scene.apply()
    header, row, summary = answer.out.splitlines()
    assert header.split() == ["SEQ", "TICKET", "ACTION", "BEFORE", "AFTER", "OUTCOME", "NOTE"]
    assert row.split()[:6] == ["1", "t1", "gpu.lease.grant", "executing", "terminal", "confirmed"]
    assert "observed=active" in row
    assert summary == "open before: 1; open now: 0; dispatched: 0"


def test_what_stays_uncertain_has_its_code(scene: Scene) -> None:
    scene.undecidable()
    assert scene.plan().code == Exit.UNCERTAIN
    asked = scene.asked("--json")
    assert asked.code == Exit.UNCERTAIN
    planned = _of(asked, "planned")
    assert planned["observed"].startswith("Unknown: ")
    assert (planned["needs_hive"], planned["uncertain_after"]) == ([], True)
    done = scene.apply()
    assert done.code == Exit.UNCERTAIN
    assert "renewed or not" in done.out


def test_an_unobserved_operation_counts_as_uncertain_too(scene: Scene) -> None:
    scene.left("executing")
    blind(scene.server)
    scene.server.faults.add(Fault(kind=FaultKind.ERR, verb="CAT", prefix="/proc/lease"))
    assert scene.apply().code == Exit.UNCERTAIN


def test_an_expired_one_does_not_stay_uncertain(scene: Scene) -> None:
    expires = scene.clock() + 30_000
    leave_undecidable(scene.hive, scene.server, scene.operator.state, clock=scene.clock, expires=expires)
    assert scene.plan().code == Exit.OK
    done = scene.apply("--json")
    assert done.code == Exit.OK
    assert _of(done, "replayed")["outcome"] == "stale"


def test_a_result_that_the_hive_does_not_take_has_its_code(scene: Scene) -> None:
    scene.left("persisted")
    scene.hive.set_lifecycle("DRAINING")
    scene.server.faults.add(Fault(kind=FaultKind.ERR, verb="ECHO", prefix="/host/tickets"))
    answer = scene.apply("--json")
    assert answer.code == Exit.HIVE_REFUSED
    assert "not published yet" in _of(answer, "replayed")["note"]


def test_another_owner_is_named(scene: Scene) -> None:
    scene.left("effected")
    with open_store(scene.operator.state):
        assert scene.plan().code == Exit.UNCERTAIN
        answer = scene.apply()
        assert (answer.code, answer.out) == (Exit.OTHER_OWNER, "")
        assert "owns this state directory" in answer.line


def test_no_hive_and_a_refused_credential_have_their_codes(scene: Scene) -> None:
    scene.left("effected")
    gone = scene.plan("--apply", "--tcp-port", "1", "--auth-token", "env:LAB_TOKEN")
    assert gone.code == Exit.HIVE_UNREACHABLE
    assert "open before: 1; open now: 1" in gone.out
    assert gone.line
    at = scene.operator.at(scene.server)
    refused = scene.operator.run("journal", "replay", "--apply", *at, env={"LAB_TOKEN": "wrong-token"})
    assert refused.code == Exit.HIVE_REFUSED
    assert scene.apply().code == Exit.OK


def test_what_was_done_before_the_hive_went_away_is_told(scene: Scene) -> None:
    scene.left("persisted")
    scene.server.faults.add(Fault(kind=FaultKind.DROP_BEFORE, verb="ECHO", prefix="/host/tickets"))
    answer = scene.apply("--json")
    assert answer.code in {Exit.HIVE_REFUSED, Exit.HIVE_UNREACHABLE}
    assert _of(answer, "replayed")["after"] == "provider-result-persisted"


@pytest.mark.parametrize("broken", ["record", "cursor", "request"])
def test_a_degraded_journal_is_replayed_and_told(scene: Scene, broken: str) -> None:
    scene.left("effected")
    match broken:
        case "record":
            break_record(scene.operator.state, 1)
        case "cursor":
            (scene.operator.state / "cursor.json").write_bytes(b"nonsense")
        case "request":
            with open_store(scene.operator.state) as store:
                prepare(store, sequence=9)
    plan = scene.plan()
    assert plan.code == Exit.DEGRADED
    assert {"record": "1 unreadable", "cursor": "cursor: ", "request": f"left alone: {KEY}"}[
        broken
    ] in plan.out
    done = scene.apply("--json")
    assert done.code == Exit.DEGRADED
    if broken == "request":
        assert _of(scene.plan("--json"), "left-alone")["key"] == KEY
        notes = {entry["key"]: entry["note"] for entry in done.objects if entry["kind"] == "replayed"}
        assert "cannot be parsed" in notes[KEY]
        assert notes["2:t1:key-t1"].endswith("observed=active")


def test_the_plan_works_on_a_read_only_copy_beside_the_daemon(scene: Scene) -> None:
    scene.left("persisted")
    copy = scene.operator.home / "copy"
    shutil.copytree(scene.operator.state, copy)
    (copy / "agent.lock").unlink()
    for path in [copy, *copy.rglob("*")]:
        path.chmod(0o500 if path.is_dir() else 0o400)
    try:
        with open_store(scene.operator.state):
            answer = scene.plan("--state-dir", str(copy))
            assert answer.code == Exit.OK
            assert " publish " in answer.out
    finally:
        for path in [copy, *copy.rglob("*")]:
            path.chmod(0o700 if path.is_dir() else 0o600)


@pytest.mark.parametrize("what", ["absent", "empty"])
def test_no_directory_is_made_for_a_mistyped_name(scene: Scene, what: str) -> None:
    path = scene.operator.home / what
    if what == "empty":
        path.mkdir()
    answer = scene.apply("--state-dir", str(path))
    assert (answer.code, answer.out) == (Exit.FAILURE, "")
    assert "holds no journal" in answer.line
    assert what == "empty" or not path.exists()
    assert not list(path.glob("*"))


def test_the_plan_says_who_stands_behind_whom(operator: Operator) -> None:
    """Three grants of one lease on one Worker: the first holds the lane of the others."""
    clock = ManualClock(now_ms())
    with running_hive(STRICT_A, clock=clock) as (hive, server):
        worker = submit(hive)
        hive.submit(raw_grant(hive, worker, "t2", "lease-1"))
        hive.submit(raw_grant(hive, worker, "t3", "lease-3"))
        blind(server)
        server.faults.add(Fault(kind=FaultKind.DROP_AFTER, prefix=LEASE_CTL, nth=1))
        with agent_on(server, operator.state, clock=clock) as bench:
            for _ in range(4):
                bench.hurry()
                bench.passes(1)
            crash(bench)
        told = operator.run("journal", "replay", "--json")
        planned = {entry["id"]: entry for entry in told.objects if entry["kind"] == "planned"}
        assert planned["t1"]["behind"] is None
        assert (planned["t2"]["behind"]["sequence"], planned["t2"]["behind"]["shares"]) == (
            planned["t1"]["sequence"],
            "lane",
        )
        assert "behind admission" in operator.run("journal", "replay").out


def test_a_rebooted_hive_is_named(scene: Scene) -> None:
    scene.left("effected")
    scene.hive.reboot()
    answer = scene.apply()
    assert answer.code == Exit.OK
    assert "the hive has rebooted: its epoch is now 2, before it was 1" in answer.out
