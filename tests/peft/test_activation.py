"""Activating and rolling back: what is planned, done, refused, observed, and what is never touched."""

from __future__ import annotations

import json
import os
import re
import shutil
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from peft_support import held_elsewhere, no_descriptor_leaks, root, snapshot
from peft_tickets import roots_in, ticket, v1_ticket
from registry_support import add_base, add_model, set_control

from ticket_agent.journal.outcome import (
    Committed,
    Outcome,
    Pending,
    Plan,
    PlanRefusedError,
    PlanWaitsError,
    Rejected,
    Unknown,
    Unobserved,
)
from ticket_agent.peft import activation
from ticket_agent.peft.activation import ActivateProvider, RollbackProvider
from ticket_agent.peft.control import Control, commit, read_control
from ticket_agent.peft.locks import RootLock
from ticket_agent.peft.verify import require_intact

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from ticket_agent.peft.settings import PeftRoots

LOCK = ".cohesix-registry.lock"
NONE: tuple[None, None, None] = (None, None, None)


@pytest.fixture
def roots(tmp_path: Path) -> PeftRoots:
    """Models a, b and c; none is active."""
    found = roots_in(tmp_path)
    for model in "abc":
        add_model(found.registry, model)
    return found


def provider_of(roots: PeftRoots, action: str) -> ActivateProvider | RollbackProvider:
    return ActivateProvider(roots) if action == "activate" else RollbackProvider(roots)


def plan(roots: PeftRoots, action: str, model: str) -> Plan:
    found = provider_of(roots, action).plan(ticket(f"peft.{action}", model))
    # As it comes back from a record.
    return Plan(before=json.loads(json.dumps(found.before)), intent=json.loads(json.dumps(found.intent)))


def perform(roots: PeftRoots, action: str, model: str) -> Outcome:
    return provider_of(roots, action).execute(plan(roots, action, model))


def shown(roots: PeftRoots) -> tuple[str | None, str | None, str | None]:
    with root(roots.registry) as registry:
        control = read_control(registry)
    return control.pointer, control.current, control.previous


def content(roots: PeftRoots) -> dict[str, tuple[object, ...]]:
    """All of the registry but the lock file, which appears when it is first taken."""
    found = snapshot(roots.registry)
    found.pop(str(roots.registry))
    found.pop(str(roots.registry / LOCK), None)
    return found


def damage(roots: PeftRoots, model: str) -> None:
    """Same size, other bytes: only hashing tells."""
    adapter = roots.registry / "available" / model / "adapter.safetensors"
    data = bytearray(adapter.read_bytes())
    data[5] ^= 1
    adapter.write_bytes(data)


# -- done ---------------------------------------------------------------------------------------------------

DONE: dict[str, tuple[Any, str, str, Any]] = {
    "first": (NONE, "activate", "a", ("a", "a", None)),
    "next": (("a", "a", None), "activate", "b", ("b", "b", "a")),
    "third": (("b", "b", "a"), "activate", "c", ("c", "c", "b")),
    "pointer-alone": (("a", None, None), "activate", "b", ("b", "b", "a")),
    "back": (("b", "b", "a"), "rollback", "a", ("a", "a", "b")),
    # Another tool was interrupted: the pointer counts, and the files agree again.
    "heal-forward": (("a", "b", "a"), "activate", "b", ("b", "b", "a")),
    "heal-elsewhere": (("a", "b", "a"), "activate", "c", ("c", "c", "a")),
    "heal-in-place": (("a", "b", "a"), "activate", "a", ("a", "a", None)),
    "heal-no-pointer": ((None, "b", "a"), "activate", "b", ("b", "b", None)),
}


@pytest.mark.parametrize(("before", "action", "model", "after"), DONE.values(), ids=DONE)
def test_a_commit_is_planned_performed_and_observed(
    roots: PeftRoots, before: Any, action: str, model: str, after: Any
) -> None:
    set_control(roots.registry, *before)
    provider, unplanned = provider_of(roots, action), content(roots)
    with no_descriptor_leaks():
        planned = plan(roots, action, model)
        assert content(roots) == unplanned
        outcome = provider.execute(planned)
        assert (type(outcome), outcome.detail) == (Committed, f"peft.{action} model={model} observed=active")
        assert shown(roots) == after
        again = provider.observe(planned)
    assert again == outcome
    assert shown(roots) == after
    assert outcome.evidence == {"control": dict(zip(("pointer", "current", "previous"), after, strict=True))}


def test_a_plan_is_bounded_plain_and_names_no_path(roots: PeftRoots) -> None:
    longest = "m" * 128
    add_model(roots.registry, longest)
    set_control(roots.registry, "x" * 128, "x" * 128, "y" * 128)
    planned = plan(roots, "activate", longest)
    text = json.dumps([planned.before, planned.intent])
    assert len(text) < 2048
    assert "/" not in text


def test_activating_and_rolling_back_return_to_the_same_bytes(roots: PeftRoots) -> None:
    for model in "ab":
        perform(roots, "activate", model)
    control = [(roots.registry / name).read_bytes() for name in ("active", "active_state.toml")]
    assert control == [b"b\n", b'current = "b"\nprevious = "a"\n']
    for model in "ab":
        assert isinstance(perform(roots, "rollback", model), Committed)
    assert [(roots.registry / name).read_bytes() for name in ("active", "active_state.toml")] == control


@pytest.mark.parametrize("previous", ["a", None, "b"])
def test_activating_the_active_model_writes_nothing(roots: PeftRoots, previous: str | None) -> None:
    set_control(roots.registry, "b", "b", previous)
    planned = plan(roots, "activate", "b")
    before = content(roots)
    assert planned.intent["already_active"] is True
    for outcome in (
        provider_of(roots, "activate").execute(planned),
        ActivateProvider(roots).observe(planned),
    ):
        assert isinstance(outcome, Committed)
        assert outcome.detail == "peft.activate model=b observed=active (it was already)"
    assert content(roots) == before


def test_a_base_model_can_be_activated_and_returned_to(roots: PeftRoots) -> None:
    add_base(roots.registry, "base-v1")
    for action, model in [("activate", "base-v1"), ("activate", "a"), ("rollback", "base-v1")]:
        assert isinstance(perform(roots, action, model), Committed)
    assert shown(roots) == ("base-v1", "base-v1", "a")


# -- refused ------------------------------------------------------------------------------------------------

REFUSED: dict[str, tuple[Any, str, str, str]] = {
    "unknown": (NONE, "activate", "d", "model d is not available"),
    "reserved": (NONE, "activate", "..", "must"),
    "no-previous": (("a", "a", None), "rollback", "a", "there is no previous model to return to"),
    "nothing-active": (NONE, "rollback", "a", "there is no previous model to return to"),
    "other-previous": (("b", "b", "a"), "rollback", "c", "the model to return to is a; nothing was changed"),
    "active-itself": (("b", "b", "a"), "rollback", "b", "the model to return to is a; nothing was changed"),
    "previous-is-active": (("a", "a", "a"), "rollback", "a", "there is nothing to return to"),
    "disagree": (("a", "b", "a"), "rollback", "a", "two files disagree .*; activate one"),
    "previous-gone": (("b", "b", "z"), "rollback", "z", "model z is not available"),
}


@pytest.mark.parametrize(("before", "action", "model", "reason"), REFUSED.values(), ids=REFUSED)
def test_what_the_registry_excludes_is_refused_before_anything(
    roots: PeftRoots, before: Any, action: str, model: str, reason: str
) -> None:
    set_control(roots.registry, *before)
    unchanged = content(roots)
    with no_descriptor_leaks(), pytest.raises(PlanRefusedError, match=reason) as refused:
        plan(roots, action, model)
    assert str(refused.value).startswith(f"peft.{action}")
    assert str(refused.value).isprintable()
    assert content(roots) == unchanged


def _no_manifest(roots: PeftRoots) -> None:
    (roots.registry / "available/b/manifest.toml").unlink()


def _foreign_manifest(roots: PeftRoots) -> None:
    shutil.copy(roots.registry / "available/a/manifest.toml", roots.registry / "available/b/manifest.toml")


def _linked_model(roots: PeftRoots) -> None:
    (roots.registry / "available/b").rename(roots.registry / "elsewhere")
    (roots.registry / "available/b").symlink_to(roots.registry / "elsewhere")


def _linked_pointer(roots: PeftRoots) -> None:
    (roots.registry / "active").symlink_to("available/a/lora.json")


def _unreadable_state(roots: PeftRoots) -> None:
    (roots.registry / "active_state.toml").write_text("current = \n")


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (_no_manifest, "its import was not finished"),
        (_foreign_manifest, "is that of model a, not of b"),
        (_linked_model, "is a symlink"),
        (_linked_pointer, "is a symlink"),
        (_unreadable_state, "not valid TOML"),
    ],
)
def test_a_registry_out_of_order_is_refused_with_what_is_wrong(
    roots: PeftRoots, spoil: Callable[[PeftRoots], None], reason: str
) -> None:
    spoil(roots)
    unchanged = content(roots)
    with pytest.raises(PlanRefusedError, match=reason):
        plan(roots, "activate", "b")
    assert content(roots) == unchanged


@pytest.mark.parametrize("action", ["activate", "rollback"])
@pytest.mark.parametrize(
    ("args", "reason"),
    [({"model": "a"}, "args.model is no argument of"), ({}, "needs a model as its subject")],
)
def test_arguments_and_a_missing_subject_are_refused(
    roots: PeftRoots, action: str, args: dict[str, str], reason: str
) -> None:
    with pytest.raises(PlanRefusedError, match=reason):
        provider_of(roots, action).plan(v1_ticket(f"peft.{action}", args))


# -- waits --------------------------------------------------------------------------------------------------


def test_a_held_lock_is_waited_for_and_its_holder_named(roots: PeftRoots) -> None:
    with (
        held_elsewhere(roots.registry, RootLock.REGISTRY) as holder,
        pytest.raises(PlanWaitsError, match=f"is in use by process {holder.pid} "),
    ):
        plan(roots, "activate", "a")
    assert isinstance(perform(roots, "activate", "a"), Committed)


def test_a_root_that_cannot_be_trusted_is_waited_for(roots: PeftRoots) -> None:
    roots.registry.chmod(0o777)
    with pytest.raises(PlanWaitsError, match="can be written by others"):
        plan(roots, "activate", "a")
    missing = replace(roots, registry=roots.export / "missing")
    with pytest.raises(PlanWaitsError, match="does not exist"):
        plan(missing, "activate", "a")
    assert not missing.registry.exists()


# -- between plan and execution -----------------------------------------------------------------------------


def _activate_c(roots: PeftRoots) -> None:
    with root(roots.registry) as registry:
        commit(registry, read_control(registry), Control(pointer="c", current="c", previous="a"))


def _reimport_b(roots: PeftRoots) -> None:
    shutil.rmtree(roots.registry / "available/b")
    add_model(roots.registry, "b", base="base-v2")


def _swap_pointer(roots: PeftRoots) -> None:
    (roots.registry / "active").unlink()
    (roots.registry / "active").symlink_to("available/a/lora.json")


BETWEEN: dict[str, tuple[Callable[[PeftRoots], object], str]] = {
    "foreign-commit": (_activate_c, "not applied: changed since it was planned: active=c"),
    "damaged": (lambda roots: damage(roots, "b"), "not applied: model b is damaged: .*SHA-256"),
    "replaced": (_reimport_b, "not applied: model b is not the one that was planned"),
    "removed": (lambda roots: shutil.rmtree(roots.registry / "available/b"), "model b is not available"),
    "file-gone": (lambda roots: (roots.registry / "available/b/lora.json").unlink(), "lora.json is missing"),
    "root-opened-up": (lambda roots: roots.registry.chmod(0o777), "not applied: .*can be written by others"),
    "pointer-link": (_swap_pointer, "is a symlink"),
}


@pytest.mark.parametrize(("change", "reason"), BETWEEN.values(), ids=BETWEEN)
def test_what_changed_since_the_plan_is_found_before_anything_is_written(
    roots: PeftRoots, change: Callable[[PeftRoots], object], reason: str
) -> None:
    set_control(roots.registry, "a", "a", None)
    planned = plan(roots, "activate", "b")
    change(roots)
    unchanged = content(roots)
    with no_descriptor_leaks():
        outcome = ActivateProvider(roots).execute(planned)
    assert isinstance(outcome, Rejected)
    assert re.search(reason, outcome.detail), outcome.detail
    roots.registry.chmod(0o755)
    assert content(roots) == unchanged


def test_a_damaged_model_is_not_called_active_again(roots: PeftRoots) -> None:
    """It stays what the registry says, but no receipt confirms it."""
    set_control(roots.registry, "b", "b", "a")
    damage(roots, "b")
    outcome = perform(roots, "activate", "b")
    assert isinstance(outcome, Rejected)
    assert "is damaged" in outcome.detail
    assert shown(roots) == ("b", "b", "a")


def test_a_lock_held_when_it_is_due_ends_the_ticket_untouched(
    roots: PeftRoots, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(activation, "LOCK_WAIT_S", 0.05)
    planned = plan(roots, "activate", "a")
    before = content(roots)
    with held_elsewhere(roots.registry, RootLock.REGISTRY) as holder:
        outcome = ActivateProvider(roots).execute(planned)
        assert isinstance(outcome, Rejected)
        assert f"in use by process {holder.pid}" in outcome.detail
    assert content(roots) == before


# -- observed -----------------------------------------------------------------------------------------------

BEFORE = ("a", "a", None)
HALF = ("a", "b", "a")
AFTER = ("b", "b", "a")
OBSERVED: dict[str, tuple[Any, Any, type[Outcome], str]] = {
    "untouched": (BEFORE, BEFORE, Rejected, "not applied: the registry shows active=a as before"),
    "half": (HALF, AFTER, Committed, "observed=active (an interrupted commit was finished)"),
    "applied": (AFTER, AFTER, Committed, "observed=active"),
    "again": (
        ("b", "b", "b"),
        ("b", "b", "b"),
        Committed,
        "observed=active, but somebody else wrote previous=b",
    ),
    "elsewhere": (
        ("c", "c", "a"),
        ("c", "c", "a"),
        Unknown,
        "the registry was changed by somebody else: active=c current=c previous=a",
    ),
    "moved-on": (
        ("c", "c", "b"),
        ("c", "c", "b"),
        Unknown,
        "the registry was changed by somebody else: active=c current=c previous=b",
    ),
    "midway": (
        ("b", "c", "b"),
        ("b", "c", "b"),
        Unknown,
        "the registry was changed by somebody else: active=b current=c previous=b",
    ),
    "emptied": (
        NONE,
        NONE,
        Unknown,
        "the registry was changed by somebody else: active=none current=none previous=none",
    ),
}


@pytest.mark.parametrize(("found", "left", "verdict", "words"), OBSERVED.values(), ids=OBSERVED)
def test_an_observer_decides_from_the_files_and_finishes_only_what_is_half_done(
    roots: PeftRoots, found: Any, left: Any, verdict: type[Outcome], words: str
) -> None:
    set_control(roots.registry, *BEFORE)
    planned = plan(roots, "activate", "b")
    set_control(roots.registry, *found)
    with no_descriptor_leaks():
        outcome = ActivateProvider(roots).observe(planned)
    assert (type(outcome), outcome.detail) == (verdict, f"peft.activate model=b {words}")
    assert shown(roots) == left
    again = ActivateProvider(roots).observe(planned)
    assert type(again) is verdict
    assert shown(roots) == left


@pytest.mark.parametrize("state", [("a", None), None], ids=["with-state", "without-state"])
@pytest.mark.parametrize("spoil", [damage, lambda roots, model: _reimport_b(roots)], ids=["damaged", "other"])
def test_half_a_commit_of_a_damaged_model_is_taken_back(
    roots: PeftRoots, spoil: Callable[[PeftRoots, str], None], state: tuple[str, None] | None
) -> None:
    before = ("a", *(state or (None, None)))
    set_control(roots.registry, *before)
    planned = plan(roots, "activate", "b")
    set_control(roots.registry, "a", "b", "a")
    spoil(roots, "b")
    outcome = ActivateProvider(roots).observe(planned)
    assert isinstance(outcome, Rejected)
    assert outcome.detail.startswith("peft.activate model=b not applied, taken back half-way: model b is ")
    assert shown(roots) == before
    assert (roots.registry / "active_state.toml").exists() == (state is not None)
    again = ActivateProvider(roots).observe(planned)
    assert isinstance(again, Rejected)
    assert "as before" in again.detail


@pytest.mark.parametrize("found", [values[0] for values in OBSERVED.values()], ids=OBSERVED)
def test_a_command_that_only_reads_changes_nothing(roots: PeftRoots, found: Any) -> None:
    set_control(roots.registry, *BEFORE)
    planned = plan(roots, "activate", "b")
    set_control(roots.registry, *found)
    (roots.registry / ".active.7.1.partial").write_text("b\n")
    unchanged = content(roots)
    looked = ActivateProvider(replace(roots, looks_only=True)).observe(planned)
    assert content(roots) == unchanged
    observed = ActivateProvider(roots).observe(planned)
    if found == HALF:
        assert type(looked) is Pending
        assert "half done; the agent finishes it" in looked.detail
    else:
        assert looked == observed


def test_an_observer_removes_what_a_killed_writer_of_the_files_left(roots: PeftRoots) -> None:
    set_control(roots.registry, *BEFORE)
    planned = plan(roots, "activate", "b")
    kept = [
        ".active.x.7.1.partial",
        "active.partial",
        ".other.7.1.partial",
        ".active.7.partial",
        "active.7.1",
    ]
    gone = [".active.7.1.partial", ".active_state.toml.8.22.partial"]
    for name in kept + gone:
        (roots.registry / name).write_text("b\n")
    (roots.registry / ".active.9.9.partial").mkdir()
    assert isinstance(ActivateProvider(roots).observe(planned), Rejected)
    left = {path.name for path in roots.registry.iterdir()}
    assert left >= {*kept, ".active.9.9.partial"}
    assert not left & set(gone)


def test_an_observer_waits_for_whoever_is_at_work(roots: PeftRoots) -> None:
    planned = plan(roots, "activate", "a")
    with held_elsewhere(roots.registry, RootLock.REGISTRY) as holder:
        outcome = ActivateProvider(roots).observe(planned)
    assert isinstance(outcome, Pending)
    assert f"in use by process {holder.pid} " in outcome.detail


def test_another_registry_proves_nothing(roots: PeftRoots, tmp_path: Path) -> None:
    planned = plan(roots, "activate", "a")
    other = roots_in(tmp_path / "other")
    add_model(other.registry, "a")
    seen = ActivateProvider(other).observe(planned)
    done = ActivateProvider(other).execute(planned)
    assert isinstance(seen, Unobserved)
    assert isinstance(done, Rejected)
    for outcome in (seen, done):
        assert "another registry root" in outcome.detail
    assert shown(other) == NONE


@pytest.mark.parametrize(
    ("spoil", "verdict"),
    [
        (lambda roots: roots.registry.chmod(0o777), Unobserved),
        (lambda roots: roots.registry.rename(roots.registry.parent / "away"), Unobserved),
        (_unreadable_state, Unknown),
        (_swap_pointer, Unknown),
    ],
)
def test_what_cannot_be_looked_at_is_not_judged(
    roots: PeftRoots, spoil: Callable[[PeftRoots], None], verdict: type[Outcome]
) -> None:
    set_control(roots.registry, *BEFORE)
    planned = plan(roots, "activate", "b")
    spoil(roots)
    outcome = ActivateProvider(roots).observe(planned)
    assert type(outcome) is verdict
    assert "cannot be observed" in outcome.detail


@pytest.mark.parametrize("change", ["intent", "before"])
def test_a_plan_of_somebody_else_is_neither_performed_nor_judged(roots: PeftRoots, change: str) -> None:
    changed: Any = {change: {"control": {"pointer": "a"}}}
    planned = replace(plan(roots, "activate", "a"), **changed)
    assert type(ActivateProvider(roots).observe(planned)) is Unknown
    with pytest.raises(Exception, match=r"plan is not one of this action|control record"):
        ActivateProvider(roots).execute(planned)
    assert shown(roots) == NONE


# -- failing disks and other writers ------------------------------------------------------------------------


def _failing(monkeypatch: pytest.MonkeyPatch, name: str, calls: set[int]) -> list[int]:
    """Let the given calls of a function of the system fail; the list tells how many there were."""
    real, made = getattr(os, name), [0]

    def call(*arguments: Any, **options: Any) -> Any:
        made[0] += 1
        if made[0] in calls:
            raise OSError(5, "Input/output error")
        return real(*arguments, **options)

    monkeypatch.setattr(os, name, call)
    return made


@pytest.mark.parametrize("kept", [True, False], ids=["broken-for-good", "broken-once"])
@pytest.mark.parametrize("step", range(1, 5))
@pytest.mark.parametrize("name", ["fsync", "rename", "write"])
def test_a_failing_disk_never_leaves_a_wrong_answer(
    roots: PeftRoots, monkeypatch: pytest.MonkeyPatch, name: str, step: int, kept: bool
) -> None:
    set_control(roots.registry, *BEFORE)
    planned, provider = plan(roots, "activate", "b"), ActivateProvider(roots)
    with monkeypatch.context() as patch:
        made = _failing(patch, name, set(range(step, 100)) if kept else {step})
        outcome = provider.execute(planned)
    if made[0] < step:
        assert isinstance(outcome, Committed)
        return
    now = shown(roots)
    match outcome:
        case Committed():
            assert now == AFTER
            assert not kept
        case Rejected():
            assert now == BEFORE
            assert "Input/output error" in outcome.detail
        case _:
            assert isinstance(outcome, Unknown)
            assert now in (HALF, AFTER)
    settled = provider.observe(planned)
    assert isinstance(settled, Rejected if now == BEFORE else Committed)
    assert shown(roots) == (BEFORE if now == BEFORE else AFTER)
    assert not [path for path in roots.registry.iterdir() if path.name.endswith(".partial")]


@pytest.mark.parametrize(
    ("other", "verdict"),
    [
        (("c", "c", "b"), Unknown),
        (("a", "a", None), Unknown),
        (("b", "c", "b"), Unknown),
        (("b", "b", "b"), Committed),
    ],
)
def test_a_writer_without_the_lock_is_noticed_after_the_commit(
    roots: PeftRoots, monkeypatch: pytest.MonkeyPatch, other: Any, verdict: type[Outcome]
) -> None:
    set_control(roots.registry, *BEFORE)
    real = commit

    def overtaken(*arguments: Any) -> None:
        real(*arguments)
        set_control(roots.registry, *other)

    monkeypatch.setattr(activation, "commit", overtaken)
    outcome = perform(roots, "activate", "b")
    assert type(outcome) is verdict
    assert "somebody else" in outcome.detail


def test_a_writer_without_the_lock_is_noticed_before_the_commit(
    roots: PeftRoots, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the comparison and the first write, while the model is hashed."""
    set_control(roots.registry, *BEFORE)
    real = require_intact

    def slow(*arguments: Any) -> Any:
        found = real(*arguments)
        set_control(roots.registry, "c", "c", "a")
        return found

    monkeypatch.setattr(activation, "require_intact", slow)
    outcome = perform(roots, "activate", "b")
    assert isinstance(outcome, Rejected)
    assert "somebody else" in outcome.detail
    assert shown(roots) == ("c", "c", "a")
