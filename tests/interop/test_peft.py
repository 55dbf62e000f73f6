"""One registry, two tools that work on it in turn and at the same time: the published client and our actions.

The client takes no lock and replaces what it finds. So it is noticed and said, and nothing of it is trusted.
"""

from __future__ import annotations

import dataclasses
import json
from typing import TYPE_CHECKING, Any

import pytest
from peft_actions import NATIVE, Shelf, write_tree
from peft_support import snapshot
from peft_tickets import ticket
from published_client import JOB, Published, cohesix_client, cohesix_errors
from registry_support import add_model

from ticket_agent.hive.reference.exports import sample_job
from ticket_agent.journal.outcome import Committed, Outcome, Plan, PlanRefusedError, Rejected, Unknown
from ticket_agent.peft import activation
from ticket_agent.peft.activation import ActivateProvider, RollbackProvider
from ticket_agent.peft.control import commit
from ticket_agent.peft.export import ExportProvider
from ticket_agent.peft.imports import ImportProvider
from ticket_agent.peft.manifest import Manifest
from ticket_agent.peft.registry import Registry
from ticket_agent.peft.settings import PeftRoots
from ticket_agent.peft.verify import require_intact

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path


@dataclasses.dataclass(frozen=True)
class Both:
    """The client and our providers on the same roots."""

    client: Published
    roots: PeftRoots

    def plan(self, action: str, model: str) -> tuple[ActivateProvider | RollbackProvider, Plan]:
        provider = ActivateProvider(self.roots) if action == "activate" else RollbackProvider(self.roots)
        return provider, provider.plan(ticket(f"peft.{action}", model))

    def perform(self, action: str, model: str) -> Outcome:
        provider, plan = self.plan(action, model)
        return provider.execute(plan)

    @property
    def files(self) -> tuple[str, str]:
        registry = self.roots.registry
        return (registry / "active").read_text(), (registry / "active_state.toml").read_text()


@pytest.fixture
def both(tmp_path: Path) -> Both:
    """Models m1 and m2 imported by the client, ours in the newest layout."""
    client = Published(tmp_path)
    client.import_model("m1")
    client.import_model("m2", metrics=False)
    add_model(client.registry, "ours")
    roots = PeftRoots(
        registry=client.registry, export=client.exports, adapter=client.adapters, owner_uid=_uid(client)
    )
    return Both(client, roots)


def _uid(client: Published) -> int:
    return client.registry.stat().st_uid


def test_each_goes_on_where_the_other_stopped(both: Both) -> None:
    both.client.activate("m1")
    assert isinstance(both.perform("activate", "ours"), Committed)
    both.client.activate("m2")
    assert isinstance(both.perform("rollback", "ours"), Committed)
    both.client.rollback()
    assert both.files == ("m2\n", 'current = "m2"\nprevious = "ours"\n')
    assert isinstance(both.perform("activate", "m1"), Committed)
    both.client.rollback()
    assert isinstance(both.perform("rollback", "m1"), Committed)
    assert both.files == ("m1\n", 'current = "m1"\nprevious = "m2"\n')


def test_both_write_the_same_bytes(both: Both, tmp_path: Path) -> None:
    written = {}
    for name in ("ours", "client"):
        for control in ("active", "active_state.toml"):
            (both.roots.registry / control).unlink(missing_ok=True)
        for model in ("m1", "m2"):
            if name == "ours":
                both.perform("activate", model)
            else:
                both.client.activate(model)
        written[name] = both.files
    assert written["ours"] == written["client"]


def test_the_way_back_that_the_client_loses_is_not_invented(both: Both) -> None:
    """Activating the active model, it makes it its own previous one."""
    both.client.activate("m1")
    both.client.activate("m2")
    both.client.activate("m2")
    before = both.files
    with pytest.raises(PlanRefusedError, match="there is nothing to return to"):
        both.plan("rollback", "m2")
    with pytest.raises(PlanRefusedError, match="there is nothing to return to"):
        both.plan("rollback", "m1")
    assert both.files == before


def test_the_way_back_is_kept_where_the_client_would_lose_it(both: Both) -> None:
    both.client.activate("m1")
    both.client.activate("m2")
    before = snapshot(both.roots.registry / "available"), both.files
    assert isinstance(both.perform("activate", "m2"), Committed)
    assert (snapshot(both.roots.registry / "available"), both.files) == before
    both.client.rollback()
    assert both.files[0] == "m1\n"


def test_what_blocks_the_client_is_healed_by_an_activation(both: Both) -> None:
    both.client.activate("m1")
    (both.roots.registry / "active_state.toml").write_text('current = "m2"\nprevious = "m1"\n')
    with pytest.raises(cohesix_errors.CohesixError, match="reconcile the interrupted commit"):
        both.client.activate("m2")
    with pytest.raises(PlanRefusedError, match="disagree"):
        both.plan("rollback", "m1")
    assert isinstance(both.perform("activate", "ours"), Committed)
    both.client.rollback()
    assert both.files[0] == "m1\n"


def test_our_interrupted_commit_is_finished_under_the_clients_eyes(both: Both) -> None:
    both.client.activate("m1")
    provider, plan = both.plan("activate", "ours")
    (both.roots.registry / "active_state.toml").write_text('current = "ours"\nprevious = "m1"\n')
    with pytest.raises(cohesix_errors.CohesixError, match="reconcile the interrupted commit"):
        both.client.activate("m2")
    assert isinstance(provider.observe(plan), Committed)
    both.client.rollback()
    assert both.files[0] == "m1\n"


def test_a_damaged_model_that_the_client_activates_is_not_confirmed_by_us(both: Both) -> None:
    path = both.roots.registry / "available/m1/adapter.safetensors"
    path.write_bytes(path.read_bytes().replace(b"m1", b"mX"))
    outcome = both.perform("activate", "m1")
    assert isinstance(outcome, Rejected)
    assert "is damaged" in outcome.detail
    both.client.activate("m1")
    assert isinstance(both.perform("activate", "m1"), Rejected)


# -- jobs and models ----------------------------------------------------------------------------------------


def _import(both: Both, model: str, *, job: str = JOB, **digests: str) -> Outcome:
    provider = ImportProvider(both.roots)
    args = {"adapter_ref": "run-1", "job_id": job, **digests}
    return provider.execute(provider.plan(ticket("peft.import", model, **args)))


def _export(both: Both, job: str) -> Outcome:
    shelf: Any = Shelf({job: sample_job()})
    provider = ExportProvider(both.roots, shelf)
    return provider.execute(provider.plan(ticket("peft.export", job)))


@pytest.fixture
def adapter(both: Both) -> Path:
    """One that holds what an adapter holds; those of the client's own examples are texts."""
    return write_tree(both.roots.adapter / "run-1", NATIVE)


def _switch_through(both: Both, models: Iterable[str]) -> None:
    """Each model is activated by both."""
    for model in models:
        both.client.activate(model)
        assert isinstance(both.perform("activate", model), Committed)
        assert both.files[0] == f"{model}\n"


def test_a_job_that_the_client_exported_is_imported_by_us_and_activated_by_both(
    both: Both, adapter: Path
) -> None:
    assert isinstance(_import(both, "new"), Committed)
    _switch_through(both, ["new", "m1", "ours"])
    with pytest.raises(cohesix_errors.CohesixError, match="already imported"):
        both.client.import_adapter("new", adapter)


def test_a_job_that_we_exported_is_imported_by_the_client(both: Both, adapter: Path) -> None:
    assert isinstance(_export(both, "job-9"), Committed)
    both.client.import_adapter("theirs", adapter, job="job-9")
    assert isinstance(_import(both, "new", job="job-9"), Committed)
    _switch_through(both, ["theirs", "new"])
    available = both.roots.registry / "available"
    with both.roots.open_registry() as root, Registry.open(root) as registry:
        theirs, ours = require_intact(registry, "theirs").manifest, require_intact(registry, "new").manifest
    assert isinstance(theirs, Manifest)
    assert isinstance(ours, Manifest)
    # The same model but for its name and the layout of its manifest.
    assert dataclasses.replace(theirs, model="new", newest=True) == ours
    for name in NATIVE:
        assert (available / "theirs" / name).read_bytes() == (available / "new" / name).read_bytes()


# -- at the same time ---------------------------------------------------------------------------------------


def _switch(both: Both) -> None:
    both.client.activate("m2")


def _same(both: Both) -> None:
    both.client.activate("ours")


def _back(both: Both) -> None:
    both.client.rollback()


@pytest.mark.parametrize(
    ("client", "verdict", "words"),
    [
        (_switch, Rejected, "changed since it was planned: active=m2"),
        (_same, Rejected, "changed since it was planned: active=ours"),
    ],
)
def test_the_client_between_plan_and_execution(
    both: Both, client: Callable[[Both], None], verdict: type[Outcome], words: str
) -> None:
    both.client.activate("m1")
    provider, plan = both.plan("activate", "ours")
    client(both)
    before = both.files
    outcome = provider.execute(plan)
    assert type(outcome) is verdict
    assert words in outcome.detail
    assert both.files == before


@pytest.mark.parametrize(
    ("client", "verdict", "words"),
    [
        (_switch, Unknown, "was written and then changed by somebody else: active=m2"),
        (_same, Committed, "observed=active, but somebody else wrote previous=ours"),
        (_back, Unknown, "was written and then changed by somebody else: active=m1 current=m1 previous=ours"),
    ],
)
def test_the_client_right_after_our_commit(
    both: Both,
    monkeypatch: pytest.MonkeyPatch,
    client: Callable[[Both], None],
    verdict: type[Outcome],
    words: str,
) -> None:
    both.client.activate("m1")
    provider, plan = both.plan("activate", "ours")

    def overtaken(*arguments: Any) -> None:
        commit(*arguments)
        client(both)

    monkeypatch.setattr(activation, "commit", overtaken)
    outcome = provider.execute(plan)
    assert type(outcome) is verdict
    assert words in outcome.detail


def test_the_client_between_our_two_writes(both: Both, monkeypatch: pytest.MonkeyPatch) -> None:
    """It sees half a commit and refuses; our commit goes on."""
    both.client.activate("m1")
    provider, plan = both.plan("activate", "ours")
    real = commit
    refused = []

    def slow(registry: Any, before: Any, after: Any) -> None:
        write = registry.write_file

        def write_then_wait(name: str, data: bytes) -> None:
            write(name, data)
            if name == "active_state.toml":
                try:
                    both.client.activate("m2")
                except cohesix_errors.CohesixError as error:
                    refused.append(str(error))

        registry.write_file = write_then_wait
        real(registry, before, after)

    monkeypatch.setattr(activation, "commit", slow)
    assert isinstance(provider.execute(plan), Committed)
    assert len(refused) == 1
    assert "reconcile the interrupted commit" in refused[0]
    assert both.files == ("ours\n", 'current = "ours"\nprevious = "m1"\n')


def test_the_client_dies_half_way_and_our_record_does_not_take_the_blame(
    both: Both, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It wrote the state of m2 after our plan: neither our doing nor finished by us."""
    both.client.activate("m1")
    provider, plan = both.plan("activate", "ours")

    class Died(BaseException):
        pass

    real = cohesix_client.write_atomic

    def dying(path: Path, data: bytes) -> None:
        if path.name == "active":
            raise Died
        real(path, data)

    with monkeypatch.context() as patch:
        patch.setattr(cohesix_client, "write_atomic", dying)
        with pytest.raises(Died):
            both.client.activate("m2")
    left = both.files
    assert left == ("m1\n", 'current = "m2"\nprevious = "m1"\n')
    assert isinstance(provider.execute(plan), Rejected)
    observed = provider.observe(plan)
    assert isinstance(observed, Unknown)
    assert "changed by somebody else" in observed.detail
    assert both.files == left
    assert json.loads(json.dumps(observed.evidence))["control"]["current"] == "m2"
    assert isinstance(both.perform("activate", "ours"), Committed)
