"""PEFT tickets through a real agent and a real console: exact effects, one result each, at every death."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from agent_faults import STEPS, DyingFs, Killed, drop
from peft_lab import Lab, die, peft_lab
from peft_support import held_elsewhere
from registry_support import add_model, set_control
from tree_faults import DyingTree

from ticket_agent.journal.transitions import State
from ticket_agent.peft.locks import RootLock

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

SWITCHES = {"activate": ("b", "b\n", "a"), "rollback": ("a", "a\n", "b")}
"""Of each action: subject, the pointer afterwards, and before."""


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Lab]:
    with peft_lab(tmp_path) as found:
        for model in "ab":
            add_model(found.roots.registry, model)
        yield found


def switch(lab: Lab, action: str, ticket_id: str = "t1") -> None:
    """A registry on which the action has something to do, and a ticket for it."""
    subject, _, before = SWITCHES[action]
    set_control(lab.roots.registry, before, before, subject if action == "rollback" else None)
    lab.submit(action, subject, ticket_id)


@pytest.mark.parametrize("action", SWITCHES)
def test_a_switch_is_confirmed_and_exact(lab: Lab, action: str) -> None:
    switch(lab, action)
    subject, after, before = SWITCHES[action]
    with lab.agent() as bench:
        bench.settle()
    assert lab.hive.admission_of("t1").outcome == "confirmed"
    assert lab.result() == ("succeeded", f"peft.{action} model={subject} observed=active")
    assert lab.pointer == after
    state = lab.state
    assert state == f'current = "{subject}"\nprevious = "{before}"\n'


def test_tickets_for_one_registry_run_in_order(lab: Lab) -> None:
    steps = [("activate", "a"), ("activate", "b"), ("rollback", "a"), ("rollback", "a"), ("activate", "a")]
    for number, (action, subject) in enumerate(steps, start=1):
        lab.submit(action, subject, f"t{number}")
    with lab.agent() as bench:
        bench.settle()
    assert [lab.result(f"t{number}") for number in range(1, 6)] == [
        ("succeeded", "peft.activate model=a observed=active"),
        ("succeeded", "peft.activate model=b observed=active"),
        ("succeeded", "peft.rollback model=a observed=active"),
        ("failed", "peft.rollback model=a: the model to return to is b; nothing was changed"),
        ("succeeded", "peft.activate model=a observed=active (it was already)"),
    ]
    assert lab.state == 'current = "a"\nprevious = "b"\n'


def test_a_held_registry_is_waited_for_in_prepared(lab: Lab) -> None:
    switch(lab, "activate")
    with lab.agent() as bench:
        with held_elsewhere(lab.roots.registry, RootLock.REGISTRY) as holder:
            bench.passes(3)
            record = bench.record("t1")
            assert record.state is State.PREPARED
            assert f"in use by process {holder.pid}" in bench.waiting(record.key)
            assert "LockHeldError" not in bench.waiting(record.key)
        bench.settle()
    assert lab.result()[0] == "succeeded"


def test_a_registry_held_at_recovery_leaves_the_ticket_pending(lab: Lab) -> None:
    switch(lab, "activate")
    with lab.agent(fs=DyingFs(1, durable=True)) as bench:
        die(bench)
    with lab.agent() as bench:
        with held_elsewhere(lab.roots.registry, RootLock.REGISTRY) as holder:
            bench.passes(3)
            record = bench.record("t1")
            assert record.state is State.EXECUTING
            assert record.uncertain is not None
            assert f"in use by process {holder.pid}" in record.uncertain.detail
        bench.settle()
    assert lab.result() == (
        "failed",
        "peft.activate model=b not applied: the registry shows active=a as before",
    )


@pytest.mark.parametrize("durable", [True, False], ids=["after", "before"])
@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("action", SWITCHES)
def test_death_at_a_durable_step(
    lab: Lab,
    action: str,
    step: str,
    durable: bool,
) -> None:
    switch(lab, action)
    fs = DyingFs(STEPS.index(step), durable=durable)
    with lab.agent(fs=fs) as bench:
        die(bench)
    with lab.agent() as bench:
        bench.settle()
    # Death between the durable plan and the commit has used up the one dispatch.
    dispatched = not (step == "executing" and durable)
    _, after, before = SWITCHES[action]
    assert lab.pointer.strip() == (after.strip() if dispatched else before)
    assert lab.hive.admission_of("t1").outcome == ("confirmed" if dispatched else "rejected")
    assert lab.result()[0] == ("succeeded" if dispatched else "failed")
    assert lab.record().terminal


@pytest.mark.parametrize("action", SWITCHES)
def test_death_at_every_change_of_the_registry(lab: Lab, action: str) -> None:
    """Right before each call that changes the registry; then everything there is decides."""
    subject, after, before = SWITCHES[action]
    seen = []
    for death in range(40):
        ticket = f"t{death}"
        switch(lab, action, ticket)
        tree = DyingTree(lab.roots.registry, death)
        with lab.agent(f"state-{death}") as bench:
            with tree:
                try:
                    bench.settle()
                except Killed:
                    drop(bench)
            died = tree.dead
        with lab.agent(f"state-{death}") as bench:
            bench.settle()
        applied = lab.pointer == after
        assert applied or lab.pointer.strip() == before
        state, text = lab.result(ticket)
        assert state == ("succeeded" if applied else "failed")
        seen.append(text.removeprefix(f"peft.{action} model={subject} "))
        assert (lab.roots.registry / "active_state.toml").exists()
        if not died:
            break
    assert list(dict.fromkeys(seen)) == [
        f"not applied: the registry shows active={before} as before",
        "observed=active (an interrupted commit was finished)",
        "observed=active",
    ]
    assert len(seen) > 8
