"""Export, import, activate, roll back: the way of an adapter through a real agent, and every death on it."""

from __future__ import annotations

import hashlib
import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from agent_faults import STEPS, DyingFs, Killed, drop
from peft_actions import HUGGING_FACE, LORA, METRICS, NATIVE, TENSORS, write_tree
from peft_lab import Lab, die, peft_lab
from tree_faults import DyingTree

from ticket_agent.hive.reference import DEFAULT
from ticket_agent.hive.reference.exports import sample_job
from ticket_agent.journal.outcome import Rejected
from ticket_agent.peft.providers import peft_providers
from ticket_agent.peft.registry import Registry
from ticket_agent.peft.verify import require_intact

if TYPE_CHECKING:
    from collections.abc import Iterator

JOB = "job-1"
V1_RECEIPTS = replace(DEFAULT, accept_v1_lease_actions=True)
VECTORS = Path(__file__).parents[2] / "vectors" / "adapters"
JOB_DIGEST = "5f1ab66dfc3b098d1e305ca73d3ffdd5de6736eac216deb366da6985670eb488"
"""Of the sample job, over names and digests of its three files."""


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Lab]:
    with peft_lab(tmp_path) as found:
        yield found


def files_in(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def left_behind(lab: Lab) -> list[str]:
    """What should not be there: staging directories and unfinished files, wherever they are."""
    names = [path.name for path in (lab.folder / "roots").rglob("*")]
    return [
        name
        for name in names
        if name.endswith(".partial") or name.startswith((".cohesix-import-", ".cohesix-export-"))
    ]


def tell(lab: Lab, action: str, subject: str, ticket: str, **args: str) -> None:
    lab.submit(action, subject, ticket, **args)


def test_the_whole_way_of_two_adapters(lab: Lab) -> None:
    lab.hive.exports.publish(JOB, sample_job())
    write_tree(lab.roots.adapter / "run-1", NATIVE)
    write_tree(lab.roots.adapter / "run-2", HUGGING_FACE)
    digests = {
        "adapter_sha256": hashlib.sha256(TENSORS).hexdigest(),
        "lora_sha256": hashlib.sha256(LORA).hexdigest(),
    }
    tell(lab, "export", JOB, "t1")
    tell(lab, "import", "one", "t2", adapter_ref="run-1", job_id=JOB, **digests)
    tell(lab, "import", "two", "t3", adapter_ref="run-2", job_id=JOB)
    tell(lab, "activate", "one", "t4")
    tell(lab, "activate", "two", "t5")
    tell(lab, "rollback", "one", "t6")
    with lab.agent() as bench:
        bench.settle()
    results = {ticket: lab.result(ticket) for ticket in ("t1", "t2", "t3", "t4", "t5", "t6")}
    assert {state for state, _ in results.values()} == {"succeeded"}, results
    assert {view.outcome for view in lab.hive.admissions()} == {"confirmed"}
    assert results["t1"][1] == f"peft.export job={JOB} files=3 bytes=54 digest={JOB_DIGEST}"
    assert files_in(lab.roots.export / JOB) == sample_job()
    available = lab.roots.registry / "available"
    manifest = files_in(available / "one").pop("manifest.toml")
    sha256 = hashlib.sha256(manifest).hexdigest()
    assert results["t2"][1] == (
        f"peft.import model=one job={JOB} manifest_sha256={sha256}"
        f" adapter_bytes={len(TENSORS)} lora_bytes={len(LORA)}"
    )
    assert files_in(available / "one") == {
        "adapter.safetensors": TENSORS,
        "lora.json": LORA,
        "metrics.json": METRICS,
        "manifest.toml": manifest,
    }
    assert files_in(available / "two")["adapter.safetensors"] == TENSORS
    assert (lab.pointer, lab.state) == ("one\n", 'current = "one"\nprevious = "two"\n')
    with lab.roots.open_registry() as root, Registry.open(root) as registry:
        for model in ("one", "two"):
            require_intact(registry, model)
    assert not left_behind(lab)


@pytest.mark.parametrize("name", sorted(path.name for path in VECTORS.iterdir() if path.is_dir()))
def test_adapters_of_the_real_library_go_the_whole_way(lab: Lab, name: str) -> None:
    lab.hive.exports.publish(JOB, sample_job())
    shutil.copytree(VECTORS / name, lab.roots.adapter / "run-1")
    steps: list[tuple[str, str, dict[str, str]]] = [
        ("export", JOB, {}),
        ("import", "first", {"adapter_ref": "run-1", "job_id": JOB}),
        ("import", "second", {"adapter_ref": "run-1", "job_id": JOB}),
        ("activate", "first", {}),
        ("activate", "second", {}),
        ("rollback", "first", {}),
    ]
    for number, (action, subject, args) in enumerate(steps, start=1):
        tell(lab, action, subject, f"t{number}", **args)
    with lab.agent() as bench:
        bench.settle()
    assert {lab.result(f"t{number}")[0] for number in range(1, 7)} == {"succeeded"}
    assert lab.pointer == "first\n"
    source = (VECTORS / name / "adapter_model.safetensors").read_bytes()
    assert files_in(lab.roots.registry / "available" / "first")["adapter.safetensors"] == source


# -- death --------------------------------------------------------------------------------------------------


def prepare(lab: Lab, action: str, subject: str, ticket: str = "t1") -> Path:
    """Everything the action needs, a ticket for it, and what it is to make."""
    lab.hive.exports.publish(subject if action == "export" else JOB, sample_job())
    if action == "export":
        tell(lab, "export", subject, ticket)
        return lab.roots.export / subject
    if not (lab.roots.export / JOB).exists():
        write_tree(lab.roots.export / JOB, sample_job())
        write_tree(lab.roots.adapter / "run-1", NATIVE)
    tell(lab, "import", subject, ticket, adapter_ref="run-1", job_id=JOB)
    return lab.roots.registry / "available" / subject


EXPECTED: dict[str, set[str]] = {
    "export": set(sample_job()),
    "import": {"adapter.safetensors", "lora.json", "metrics.json", "manifest.toml"},
}


@pytest.mark.parametrize("durable", [True, False], ids=["after", "before"])
@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("action", EXPECTED)
def test_death_at_a_durable_step(lab: Lab, action: str, step: str, durable: bool) -> None:
    made = prepare(lab, action, "subject")
    with lab.agent(fs=DyingFs(STEPS.index(step), durable=durable)) as bench:
        die(bench)
    with lab.agent() as bench:
        bench.settle()
    # Death between the durable plan and the first file has used up the one dispatch.
    dispatched = not (step == "executing" and durable)
    assert made.exists() == dispatched
    assert lab.result()[0] == ("succeeded" if dispatched else "failed")
    assert lab.hive.admission_of("t1").outcome == ("confirmed" if dispatched else "rejected")
    assert lab.record().terminal
    assert not left_behind(lab)


@pytest.mark.parametrize("action", EXPECTED)
def test_death_at_every_change_of_the_trees(lab: Lab, action: str) -> None:
    """Right before each call that changes a tree: it is all there and confirmed, or nothing is."""
    outcomes = []
    for death in range(80):
        ticket = subject = f"t{death}"
        made = prepare(lab, action, subject, ticket)
        tree = DyingTree(lab.folder / "roots", death)
        with lab.agent(f"state-{death}") as bench, tree:
            try:
                bench.settle()
            except Killed:
                drop(bench)
        # A reader in between sees the whole or nothing.
        whole = made.exists()
        assert not whole or set(files_in(made)) == EXPECTED[action]
        with lab.agent(f"state-{death}") as bench:
            bench.settle()
        assert made.exists() == whole
        state, text = lab.result(ticket)
        assert state == ("succeeded" if whole else "failed"), text
        assert not left_behind(lab)
        outcomes.append(whole)
        if not tree.dead:
            break
    # Nothing is there up to the rename, everything from then on.
    assert outcomes == sorted(outcomes)
    assert outcomes.count(False) > 10
    assert 2 <= outcomes.count(True) < 10


@pytest.mark.parametrize("action", EXPECTED)
def test_a_command_that_only_reads_leaves_what_is_half_done(lab: Lab, action: str) -> None:
    prepare(lab, action, "subject")
    with lab.agent() as bench, DyingTree(lab.folder / "roots", 6):
        die(bench)
    plan = lab.record().plan
    assert plan is not None
    before = left_behind(lab)
    assert before
    with lab.agent() as bench:
        for looks_only in (True, False):
            roots = replace(lab.roots, looks_only=looks_only)
            outcome = peft_providers(roots, bench.namespace)[f"peft.{action}"].observe(plan)
            assert isinstance(outcome, Rejected)
            assert left_behind(lab) == (before if looks_only else [])


# -- version 1 ----------------------------------------------------------------------------------------------


def v1(ticket: str, action: str, args: dict[str, Any] | None = None) -> str:
    members = {
        "schema": "host-ticket/v1",
        "id": ticket,
        "idempotency_key": f"key-{ticket}",
        "action": f"peft.{action}",
    }
    return json.dumps(members if args is None else members | {"args": args})


def test_the_whole_way_in_version_1(tmp_path: Path) -> None:
    with peft_lab(tmp_path, V1_RECEIPTS) as lab:
        lab.hive.exports.publish(JOB, sample_job())
        write_tree(lab.roots.adapter / "run-1", NATIVE)
        adapter = {"adapter_dir": str(lab.roots.adapter / "run-1"), "job": JOB}
        lines = [
            v1("t1", "export", {"job_id": JOB, "out_dir": str(lab.roots.export)}),
            v1("t2", "import", adapter | {"model_id": "one", "registry_root": str(lab.roots.registry)}),
            v1("t3", "import", adapter | {"model": "two", "publish": True}),
            v1("t4", "activate", {"model_id": "one"}),
            v1("t5", "activate", {"model": "two"}),
            v1("t6", "rollback"),
        ]
        for line in lines:
            lab.hive.submit(line)
        with lab.agent() as bench:
            bench.settle()
        results = [lab.result(f"t{number}") for number in range(1, 7)]
        assert {state for state, _ in results} == {"succeeded"}, results
        assert results[5][1] == "peft.rollback model=one observed=active"
        assert (lab.pointer, lab.state) == ("one\n", 'current = "one"\nprevious = "two"\n')
        assert files_in(lab.roots.export / JOB) == sample_job()


def test_a_version_1_path_is_refused_and_not_followed(tmp_path: Path) -> None:
    with peft_lab(tmp_path, V1_RECEIPTS) as lab:
        lab.hive.exports.publish(JOB, sample_job())
        elsewhere = tmp_path / "elsewhere"
        lab.hive.submit(v1("t1", "export", {"job_id": JOB, "out_dir": str(elsewhere)}))
        with lab.agent() as bench:
            bench.settle()
        state, text = lab.result()
        assert state == "failed"
        assert "args.out_dir is not this agent's export root" in text
        assert str(tmp_path) not in text
        assert not elsewhere.exists()
        assert not files_in(lab.roots.export)


@pytest.mark.parametrize("durable", [True, False], ids=["after", "before"])
def test_a_version_1_ticket_keeps_the_promise_too(tmp_path: Path, durable: bool) -> None:
    with peft_lab(tmp_path, V1_RECEIPTS) as lab:
        lab.hive.exports.publish(JOB, sample_job())
        lab.hive.submit(v1("t1", "export", {"job": JOB}))
        with lab.agent(fs=DyingFs(STEPS.index("executing"), durable=durable)) as bench:
            die(bench)
        with lab.agent() as bench:
            bench.settle()
        assert lab.result()[0] == ("failed" if durable else "succeeded")
        assert (lab.roots.export / JOB).exists() == (not durable)
