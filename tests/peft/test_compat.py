"""Version-1 actions: the same work in the same lanes, with names that no version-2 ticket has."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from peft_actions import JOB, Places, Shelf
from peft_tickets import ticket, v1_ticket
from registry_support import add_model, set_control

from ticket_agent.hive.reference.exports import sample_job
from ticket_agent.journal.outcome import Committed, PlanRefusedError, Rejected
from ticket_agent.peft.compat import compat_peft_providers
from ticket_agent.peft.providers import peft_providers

if TYPE_CHECKING:
    from pathlib import Path

    from ticket_agent.journal.outcome import Provider
    from ticket_agent.protocol.spec import HostTicketSpec


@pytest.fixture
def places(tmp_path: Path) -> Places:
    found = Places(tmp_path / "roots").make()
    found.add_job()
    found.add_adapter()
    for model in ("a", "b"):
        add_model(found.registry, model)
    set_control(found.registry, "b", "b", "a")
    return found


def both(places: Places) -> tuple[dict[str, Provider[HostTicketSpec]], dict[str, Provider[HostTicketSpec]]]:
    shelf: Any = Shelf({JOB: sample_job(), "job-2": sample_job()})
    return compat_peft_providers(places.roots, shelf), peft_providers(places.roots, shelf)


def import_args(places: Places, **more: object) -> dict[str, object]:
    return {"model_id": "new", "job_id": JOB, "adapter_dir": str(places.adapter), **more}


def test_both_versions_work_in_the_same_lanes(places: Places) -> None:
    v1, v2 = both(places)
    arguments = {
        "peft.export": ({"job": "job-2"}, ticket("peft.export", "job-2")),
        "peft.import": (
            import_args(places),
            ticket("peft.import", "new", adapter_ref=places.adapter.name, job_id=JOB),
        ),
        "peft.activate": ({"model": "a"}, ticket("peft.activate", "a")),
        "peft.rollback": ({}, ticket("peft.rollback", "a")),
    }
    assert arguments.keys() == v1.keys() == v2.keys()
    for action, (args, newer) in arguments.items():
        assert v1[action].lane(v1_ticket(action, args)) == v2[action].lane(newer)
    lanes = {v1["peft.export"].lane(v1_ticket("peft.export", {"job": job})) for job in ("job-1", "job-2")}
    assert len(lanes) == 2


def test_what_cannot_be_carried_out_holds_nobody_up(places: Places) -> None:
    v1, v2 = both(places)
    wrong = [v1_ticket("peft.activate", {"model": "a", "registry": "/etc"}, id=name) for name in ("t1", "t2")]
    lanes = {v1["peft.activate"].lane(request) for request in wrong}
    assert len(lanes) == 2
    assert v2["peft.activate"].lane(ticket("peft.activate", "a")) not in lanes
    for request in wrong:
        with pytest.raises(PlanRefusedError, match=r"args.registry is not this agent's registry root"):
            v1["peft.activate"].plan(request)


def test_no_staging_directory_is_shared_with_version_2(places: Places) -> None:
    """The same id and key may come in both versions; what one leaves behind is not the other one's."""
    v1, v2 = both(places)
    plans = [
        v1["peft.export"].plan(v1_ticket("peft.export", {"job": "job-2"})),
        v2["peft.export"].plan(ticket("peft.export", "job-2")),
        v1["peft.import"].plan(v1_ticket("peft.import", import_args(places))),
        v2["peft.import"].plan(ticket("peft.import", "new", adapter_ref=places.adapter.name, job_id=JOB)),
    ]
    assert len({str(plan.intent["staging"]) for plan in plans}) == 4
    assert v1_ticket("peft.export").key == ticket("peft.export", JOB).key


def test_an_import_of_a_name_that_no_model_may_have_is_refused(places: Places) -> None:
    v1, _ = both(places)
    with pytest.raises(PlanRefusedError, match=r"^peft\.import"):
        v1["peft.import"].plan(v1_ticket("peft.import", import_args(places, model_id="a:b")))


def test_a_rollback_is_pinned_to_what_was_planned(places: Places) -> None:
    v1, v2 = both(places)
    rollback = v1["peft.rollback"]
    plan = rollback.plan(v1_ticket("peft.rollback"))
    assert plan.intent["model"] == "a"
    activate = v2["peft.activate"]
    assert isinstance(activate.execute(activate.plan(ticket("peft.activate", "a"))), Committed)
    outcome = rollback.execute(plan)
    assert isinstance(outcome, Rejected)
    assert "changed since it was planned" in outcome.detail
    assert (places.registry / "active").read_text() == "a\n"


@pytest.mark.parametrize(
    ("action", "args"),
    [
        ("peft.export", {"job": "job-2"}),
        ("peft.import", None),
        ("peft.activate", {"model": "a"}),
        ("peft.rollback", {}),
    ],
)
def test_each_is_planned_performed_and_observed(places: Places, action: str, args: Any) -> None:
    v1, _ = both(places)
    plan = v1[action].plan(v1_ticket(action, import_args(places) if args is None else args))
    assert isinstance(v1[action].execute(plan), Committed)
    assert isinstance(v1[action].observe(plan), Committed)
