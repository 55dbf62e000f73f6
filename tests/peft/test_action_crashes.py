"""Export and import with a failure, or death, at each call into the system, and what an observer tells."""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest
from call_faults import Fault, calls, die_after, die_before, fail_after, fail_before, full, in_child
from peft_actions import (
    HUGGING_FACE,
    JOB,
    MODEL,
    NATIVE,
    Places,
    Shelf,
    export_spec,
    import_spec,
    sha256,
)
from peft_support import Canary, open_descriptors, root

from ticket_agent.hive.reference.exports import sample_job
from ticket_agent.journal.outcome import Committed, Outcome, Plan, Provider, Rejected
from ticket_agent.peft.export import ExportProvider
from ticket_agent.peft.imports import ImportProvider
from ticket_agent.peft.registry import Registry
from ticket_agent.peft.verify import verify

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from ticket_agent.protocol.spec import HostTicketSpec


@dataclass(frozen=True)
class Case:
    """An action on its roots; each round begins with nothing of it done."""

    places: Places
    provider: Provider[HostTicketSpec]
    request: HostTicketSpec
    goal: Path
    content: dict[str, bytes]

    def plan(self) -> Plan:
        return self.provider.plan(self.request)

    def reset(self) -> None:
        if self.goal.exists():
            shutil.rmtree(self.goal)

    def there(self) -> bool:
        """Whether the whole effect is there; half of it must never be."""
        if not self.goal.exists():
            return False
        found = {path.name: path.read_bytes() for path in self.goal.iterdir()}
        manifest = found.pop("manifest.toml", None)
        assert {name: found.get(name) for name in self.content} == self.content
        assert (manifest is not None) == (self.goal.name == MODEL)
        return True

    def staging(self) -> list[Path]:
        return [*self.places.registry.glob(".cohesix-*-*"), *self.places.exports.glob(".cohesix-*-*")]

    def partials(self) -> list[Path]:
        return list(self.places.base.rglob("*.partial"))


@pytest.fixture(params=["export", "import", "import-hf"])
def case(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Case]:
    places = Places(tmp_path / "host").make()
    canary = Canary(tmp_path / "outside")
    if request.param == "export":
        provider = ExportProvider(places.roots, Shelf({JOB: sample_job()}))
        yield Case(places, provider, export_spec(), places.job, sample_job())
    else:
        places.add_job()
        files = NATIVE if request.param == "import" else HUGGING_FACE
        places.add_adapter(files)
        content = (
            dict(NATIVE)
            if request.param == "import"
            else {"adapter.safetensors": NATIVE["adapter.safetensors"]}
        )
        pinned = (
            {"adapter_sha256": sha256(NATIVE["adapter.safetensors"])} if request.param == "import" else {}
        )
        yield Case(places, ImportProvider(places.roots), import_spec(**pinned), places.model, content)
    canary.check()


def count(case: Case) -> int:
    """How many calls an execution makes; and it works."""
    plan = case.plan()
    with calls(None, fail_before) as counted:
        outcome = case.provider.execute(plan)
    assert isinstance(outcome, Committed)
    assert case.there()
    assert {"open", "write", "fsync", "mkdir", "flock", "rename_new"} <= set(counted.seen)
    case.reset()
    return len(counted.seen)


def check_observed(case: Case, plan: Plan) -> Outcome:
    """Whatever happened, an observer tells it, and leaves nothing half done."""
    outcome = case.provider.observe(plan)
    assert isinstance(outcome, Committed if case.there() else Rejected), outcome
    assert case.staging() == []
    assert case.partials() == []
    again = case.provider.observe(plan)
    assert again == outcome
    return outcome


@pytest.mark.parametrize("fault", [fail_before, fail_after, full])
def test_a_failure_at_each_call(case: Case, fault: Fault) -> None:
    total = count(case)
    answers = set()
    for at in range(total):
        plan = case.plan()
        descriptors = open_descriptors()
        with calls(at, fault) as counted:
            answer = case.provider.execute(plan)
        # That closing a directory fails is beyond what a system does, and costs the next one.
        assert open_descriptors() == descriptors or counted.seen[at] == "close"
        assert len(counted.seen) > at
        answers.add(type(answer))
        if isinstance(answer, Committed | Rejected):
            # A definite answer is the truth, and there is nothing left for an observer to clean.
            assert isinstance(answer, Committed) == case.there(), (counted.seen[at], answer)
            assert case.staging() == [], counted.seen[at]
        observed = check_observed(case, plan)
        if isinstance(answer, Committed | Rejected):
            assert type(observed) is type(answer)
        case.reset()
    assert {Committed, Rejected} <= answers


@pytest.mark.parametrize("fault", [die_before, die_after])
def test_death_at_each_call(case: Case, fault: Fault) -> None:
    total = count(case)
    outcomes = []
    for at in range(total):
        plan = case.plan()

        def die(plan: Plan = plan, at: int = at) -> None:
            with calls(at, fault):
                case.provider.execute(plan)

        assert os.WIFSIGNALED(in_child(die))
        outcomes.append(type(check_observed(case, plan)))
        case.reset()
    # Up to the rename there is nothing, and from it on everything.
    first = outcomes.index(Committed)
    assert set(outcomes[:first]) == {Rejected}
    assert set(outcomes[first:]) == {Committed}


def test_after_any_death_the_next_ticket_can_do_it(case: Case) -> None:
    total = count(case)
    for at in range(0, total, 7):
        plan = case.plan()

        def die(plan: Plan = plan, at: int = at) -> None:
            with calls(at, die_before):
                case.provider.execute(plan)

        in_child(die)
        again = case.plan()
        assert isinstance(case.provider.execute(again), Committed)
        assert case.there()
        if case.goal.name == MODEL:
            with root(case.places.registry) as registry, Registry.open(registry) as opened:
                assert all(verdict.ok for verdict in verify(opened))
        case.reset()


def test_failures_of_an_observer_change_nothing(case: Case) -> None:
    """It tells later what it cannot tell now, whatever it was that failed."""
    for published in (True, False):
        plan = case.plan()
        if published:
            assert isinstance(case.provider.execute(plan), Committed)
        with calls(None, fail_before) as counted:
            case.provider.observe(plan)
        for at in range(len(counted.seen)):
            with calls(at, fail_before):
                outcome = case.provider.observe(plan)
            assert not isinstance(outcome, Rejected if published else Committed), counted.seen[at]
            check_observed(case, plan)
        case.reset()
