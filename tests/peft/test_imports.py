from __future__ import annotations

import json
import shutil
import tomllib
import tracemalloc
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from adapter_files import entries, file_of, file_with, pair
from peft_actions import (
    ADAPTER,
    HUGGING_FACE,
    JOB,
    LORA,
    METRICS,
    MODEL,
    NATIVE,
    TENSORS,
    Places,
    export_spec,
    import_spec,
    run_import,
    sha256,
    write_tree,
)
from peft_support import (
    Canary,
    held_elsewhere,
    no_descriptor_leaks,
    root,
    synced_directories,
    until_a_change_shows,
)
from registry_support import add_base, add_model

from ticket_agent.hive.reference.exports import sample_job
from ticket_agent.journal.fs import FreeSpace
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
from ticket_agent.journal.record import own_plan
from ticket_agent.peft import adapter, directory, import_verdict, imports
from ticket_agent.peft.adapter_config import parse_hf_config, parse_lora_json
from ticket_agent.peft.errors import PeftIoError
from ticket_agent.peft.imports import ImportProvider
from ticket_agent.peft.locks import RootLock
from ticket_agent.peft.manifest import Manifest, parse, render
from ticket_agent.peft.registry import Registry
from ticket_agent.peft.verify import verify

if TYPE_CHECKING:
    from collections.abc import Iterator

VECTORS = Path(__file__).parents[2] / "vectors" / "adapters"
OTHER = file_with(pair() | pair("base_model.model.model.layers.0.self_attn.v_proj"), format="np")


@pytest.fixture
def places(tmp_path: Path) -> Iterator[Places]:
    made = Places(tmp_path / "host").make()
    made.add_job()
    made.add_adapter()
    canary = Canary(tmp_path / "outside")
    with no_descriptor_leaks():
        yield made
    canary.check()


@pytest.fixture
def provider(places: Places) -> ImportProvider:
    return ImportProvider(places.roots)


def journaled(plan: Plan) -> Plan:
    """The plan as it comes back from a journal."""
    own = own_plan(plan)
    return Plan(**json.loads(json.dumps({"before": own.before, "intent": own.intent})))


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


def staging(places: Places, plan: Plan) -> Path:
    return places.registry / str(plan.intent["staging"])


def refusal(places: Places, request: Any = None) -> str:
    """The line of a plan that is refused; nothing may have changed."""
    before = places.snapshot()
    with pytest.raises(PlanRefusedError) as caught:
        ImportProvider(places.roots).plan(request or import_spec())
    assert places.snapshot() == before
    return str(caught.value)


MANIFEST = f"""[model]
id = "{MODEL}"
cas_sha256 = "{sha256(TENSORS)}"
base = "vision-base-v1"
adapter_sha256 = "{sha256(TENSORS)}"
format = "safetensors+lora"
adapter = "adapter.safetensors"
lora = "lora.json"
metrics = "metrics.json"

[provenance]
job_id = "{JOB}"
approval = "pending"

[hashes]
adapter_sha256 = "{sha256(TENSORS)}"
adapter_bytes = {len(TENSORS)}
lora_sha256 = "{sha256(LORA)}"
lora_bytes = {len(LORA)}
metrics_sha256 = "{sha256(METRICS)}"
metrics_bytes = {len(METRICS)}
policy_sha256 = "{sha256(sample_job()["policy.toml"])}"
policy_bytes = 26
telemetry_sha256 = "{sha256(sample_job()["telemetry.cbor"])}"
telemetry_bytes = 13
"""


def test_an_adapter_becomes_a_model(places: Places) -> None:
    outcome = run_import(places)
    assert isinstance(outcome, Committed)
    assert outcome.detail == (
        f"peft.import model={MODEL} job={JOB} manifest_sha256={sha256(MANIFEST.encode())}"
        f" adapter_bytes={len(TENSORS)} lora_bytes={len(LORA)}"
    )
    assert contents(places.model) == NATIVE | {"manifest.toml": MANIFEST.encode()}
    assert outcome.evidence == {
        "manifest_sha256": sha256(MANIFEST.encode()),
        "adapter_sha256": sha256(TENSORS),
        "lora_sha256": sha256(LORA),
        "config_sha256": sha256(LORA),
        "layout": "native",
        "rank": 4,
        "modules": 2,
        "dtype": "F32",
        "base_model_of_adapter": None,
    }
    entries = {path.name for path in places.registry.iterdir()}
    assert entries == {"available", RootLock.REGISTRY}


def test_everything_is_synced_before_it_is_published_and_the_places_afterwards(
    places: Places, provider: ImportProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = provider.plan(import_spec())
    synced = synced_directories(monkeypatch)
    provider.execute(plan)
    here = str(places.registry)
    staged = f"{here}/{plan.intent['staging']}"
    names = [path.removeprefix(f"{staged}/").removeprefix(".").split(".")[0] for path in synced]
    for name in ("adapter", "lora", "metrics", "manifest"):
        assert name in names
    # Last the files' directory, then `available`, which is new, then the two that the rename touches.
    assert synced[-4:] == [staged, here, f"{here}/available", here]
    assert names.index("manifest") > max(names.index(name) for name in ("adapter", "lora", "metrics"))


def test_hugging_faces_layout_is_normalised(places: Places) -> None:
    places.add_adapter(HUGGING_FACE, "hf")
    config = HUGGING_FACE["adapter_config.json"]
    outcome = run_import(places, import_spec(adapter_ref="hf"))
    assert isinstance(outcome, Committed)
    found = contents(places.model)
    lora = found["lora.json"]
    assert found["adapter.safetensors"] == TENSORS
    assert found.keys() == {"adapter.safetensors", "lora.json", "manifest.toml"}
    assert json.loads(lora) == {
        "alpha": 8,
        "base_model": "org/base-7b",
        "rank": 4,
        "target_modules": ["q_proj", "v_proj"],
        "task_type": "CAUSAL_LM",
    }
    assert parse_lora_json(lora) == parse_hf_config(config)
    manifest = tomllib.loads(found["manifest.toml"].decode())
    assert manifest["hashes"]["lora_sha256"] == sha256(lora)
    assert manifest["model"]["base"] == "vision-base-v1"
    assert outcome.evidence["config_sha256"] == sha256(config)
    assert outcome.evidence["base_model_of_adapter"] == "org/base-7b"


def test_metrics_may_lie_beside_hugging_faces_files(places: Places) -> None:
    places.add_adapter(HUGGING_FACE | {"metrics.json": METRICS}, "hf")
    assert isinstance(run_import(places, import_spec(adapter_ref="hf")), Committed)
    assert contents(places.model)["metrics.json"] == METRICS


@pytest.mark.parametrize("case", sorted(path.name for path in VECTORS.iterdir() if path.is_dir()))
def test_adapters_made_by_hugging_faces_library_are_imported(places: Places, case: str) -> None:
    files = {path.name: path.read_bytes() for path in (VECTORS / case).iterdir()}
    places.add_adapter(files, case)
    outcome = run_import(places, import_spec(case, adapter_ref=case))
    assert isinstance(outcome, Committed), outcome
    with root(places.registry) as registry, Registry.open(registry) as opened:
        verdicts = list(verify(opened))
    assert verdicts
    assert all(verdict.ok for verdict in verdicts), verdicts


DIGESTS = {"adapter_sha256": TENSORS, "lora_sha256": LORA, "metrics_sha256": METRICS}


def test_digests_of_the_ticket_that_fit(places: Places) -> None:
    request = import_spec(**{name: sha256(data) for name, data in DIGESTS.items()})
    assert isinstance(run_import(places, request), Committed)


def test_the_digest_of_a_configuration_is_that_of_its_file(places: Places) -> None:
    config = HUGGING_FACE["adapter_config.json"]
    places.add_adapter(HUGGING_FACE, "hf")
    assert isinstance(
        run_import(places, import_spec(adapter_ref="hf", lora_sha256=sha256(config))), Committed
    )
    stored = sha256(contents(places.model)["lora.json"])
    assert stored != sha256(config)
    line = refusal(places, import_spec("other", adapter_ref="hf", lora_sha256=stored))
    assert line == (
        f"peft.import model=other: adapter_config.json SHA-256 mismatch: expected {stored}"
        f" got {sha256(config)}"
    )


@pytest.mark.parametrize("name", ["lora_sha256", "metrics_sha256"])
def test_digests_of_small_files_are_compared_before_anything_is_dispatched(places: Places, name: str) -> None:
    file = f"{name.partition('_')[0]}.json"
    assert refusal(places, import_spec(**{name: "0" * 64})) == (
        f"peft.import model={MODEL}: {file} SHA-256 mismatch: expected {'0' * 64} got {sha256(DIGESTS[name])}"
    )


def test_a_digest_of_metrics_that_are_missing(places: Places) -> None:
    (places.adapter / "metrics.json").unlink()
    line = refusal(places, import_spec(metrics_sha256=sha256(METRICS)))
    assert line.endswith("metrics.json is missing; the ticket gives its SHA-256")


def test_the_digest_of_the_tensors_is_compared_with_the_copy(
    places: Places, provider: ImportProvider
) -> None:
    plan = provider.plan(import_spec(adapter_sha256="0" * 64))
    before = places.snapshot()
    outcome = provider.execute(plan)
    assert isinstance(outcome, Rejected)
    assert outcome.detail.startswith(
        f"peft.import model={MODEL} not applied: adapter.safetensors SHA-256 mismatch: expected 000000"
    )
    assert places.snapshot() == before


# -- what is there already ----------------------------------------------------------------------------------


def test_importing_the_same_again_changes_nothing(places: Places, provider: ImportProvider) -> None:
    run_import(places)
    before = places.snapshot()
    plan = provider.plan(import_spec(ticket="t2"))
    for outcome in (provider.execute(plan), provider.observe(plan)):
        assert isinstance(outcome, Committed)
        assert outcome.detail == (
            f"peft.import model={MODEL} observed=manifest sha256={sha256(MANIFEST.encode())}"
        )
    assert places.snapshot() == before


def test_what_another_tool_imported_in_the_older_layout_is_the_same_too(
    places: Places, provider: ImportProvider
) -> None:
    run_import(places)
    manifest = parse((places.model / "manifest.toml").read_bytes())
    assert isinstance(manifest, Manifest)
    (places.model / "manifest.toml").write_bytes(render(replace(manifest, newest=False)))
    assert isinstance(run_import(places, import_spec(ticket="t2")), Committed)


def _changed(file: str, data: bytes) -> Callable[[Places], object]:
    return lambda places: (places.adapter / file).write_bytes(data)


def test_the_same_model_that_cannot_be_read_now_is_looked_at_again(
    places: Places, provider: ImportProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_import(places)
    plan = provider.plan(import_spec(ticket="t2"))

    def fails(*_: object) -> None:
        raise PeftIoError("reading", OSError("broken"))

    with monkeypatch.context() as patch:
        patch.setattr(import_verdict, "require_intact", fails)
        assert isinstance(provider.execute(plan), Unobserved)
    assert isinstance(provider.observe(plan), Committed)


CONFLICTS: list[tuple[str, Callable[[Places], object], dict[str, Any], str]] = [
    (
        "another job",
        lambda places: places.add_job("job-2"),
        {"job_id": "job-2"},
        f"its job is {JOB}, not job-2",
    ),
    (
        "another base",
        lambda places: (places.job / "base_model.ref").write_bytes(b"base-2\n"),
        {},
        "its base model is vision-base-v1, not base-2",
    ),
    (
        "another policy",
        lambda places: (places.job / "policy.toml").write_bytes(b"x = 1\n"),
        {},
        "its policy.toml is another one",
    ),
    (
        "other telemetry",
        lambda places: (places.job / "telemetry.cbor").write_bytes(b"x"),
        {},
        "its telemetry.cbor is another one",
    ),
    ("another lora.json", _changed("lora.json", b'{"rank":4}'), {}, "its lora.json is another one"),
    ("other metrics", _changed("metrics.json", b"{}"), {}, "its metrics.json is another one"),
    (
        "no metrics",
        lambda places: (places.adapter / "metrics.json").unlink(),
        {},
        "its metrics.json is another",
    ),
    (
        "a longer adapter",
        _changed("adapter.safetensors", file_with(pair())),
        {},
        "its adapter.safetensors is",
    ),
    (
        "another digest",
        lambda _: None,
        {"adapter_sha256": "0" * 64},
        "its adapter.safetensors is another one",
    ),
]


@pytest.mark.parametrize(
    ("change", "args", "line"), [row[1:] for row in CONFLICTS], ids=[row[0] for row in CONFLICTS]
)
def test_another_model_of_that_name_is_refused(
    places: Places, change: Callable[[Places], object], args: dict[str, Any], line: str
) -> None:
    run_import(places)
    change(places)
    assert refusal(places, import_spec(ticket="t2", **args)).startswith(
        f"peft.import model={MODEL}: a model of that name is there already: {line}"
    )


def test_another_adapter_of_the_same_size_is_refused_when_it_was_hashed(
    places: Places, provider: ImportProvider
) -> None:
    run_import(places)
    assert len(OTHER) == len(TENSORS)
    (places.adapter / "adapter.safetensors").write_bytes(OTHER)
    plan = provider.plan(import_spec(ticket="t2"))
    before = places.snapshot()
    outcome = provider.execute(plan)
    assert isinstance(outcome, Rejected)
    assert "a model of that name is there, and its adapter.safetensors is another one" in outcome.detail
    assert places.snapshot() == before


def test_a_damaged_model_is_not_taken_for_the_same(places: Places, provider: ImportProvider) -> None:
    run_import(places)
    (places.model / "adapter.safetensors").write_bytes(OTHER)
    outcome = provider.execute(provider.plan(import_spec(ticket="t2")))
    assert isinstance(outcome, Rejected)
    assert f"model {MODEL} is damaged: registry/available/{MODEL}/adapter.safetensors" in outcome.detail


# -- what waits ---------------------------------------------------------------------------------------------

LOCKS = [(RootLock.REGISTRY, "registry"), (RootLock.ADAPTER, "adapters"), (RootLock.EXPORT, "exports")]


@pytest.mark.parametrize(("lock", "name"), LOCKS)
def test_a_lock_that_somebody_holds(
    places: Places, provider: ImportProvider, lock: RootLock, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(imports, "LOCK_WAIT_S", 0.05)
    plan = provider.plan(import_spec())
    before = places.snapshot()
    with held_elsewhere(getattr(places, name), lock) as holder:
        held = f"{name} is in use by process {holder.pid}"
        with pytest.raises(PlanWaitsError, match=held):
            provider.plan(import_spec())
        outcome = provider.execute(plan)
        assert isinstance(outcome, Rejected)
        assert f"not applied: {held}" in outcome.detail
    assert places.snapshot() == before


@pytest.mark.parametrize("name", ["registry", "adapters", "exports"])
def test_a_root_that_cannot_be_used(places: Places, provider: ImportProvider, name: str) -> None:
    folder: Path = getattr(places, name)
    plan = provider.plan(import_spec())
    folder.chmod(0o777)
    with pytest.raises(PlanWaitsError, match=r"can be written by others .*chmod go-w"):
        provider.plan(import_spec())
    outcome = provider.execute(plan)
    assert not isinstance(outcome, Committed)
    folder.chmod(0o755)
    observed = provider.observe(plan)
    assert isinstance(observed, Rejected)
    moved = folder.rename(folder.with_name("moved"))
    with pytest.raises(PlanWaitsError, match="does not exist; create it"):
        provider.plan(import_spec())
    folder.symlink_to(moved, target_is_directory=True)
    with pytest.raises(PlanWaitsError, match="is a symlink; name the real path"):
        provider.plan(import_spec())


def test_a_disk_without_room(
    places: Places, provider: ImportProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        directory.TREE_FS, "free_space", lambda _: FreeSpace(bytes=1_000_000, inodes=None), raising=False
    )
    with pytest.raises(
        PlanWaitsError, match="to registry failed: only 1000000 bytes are free; make room there"
    ):
        provider.plan(import_spec())


def test_an_adapter_that_is_being_written_waits(
    places: Places, provider: ImportProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = directory.Directory.open_file

    def busy(self: directory.Directory, name: str, *, max_bytes: int) -> directory.OpenedFile:
        file = real(self, name, max_bytes=max_bytes)
        if name == "lora.json":
            with (places.adapter / name).open("ab") as writer:
                writer.write(b" ")
        return file

    with monkeypatch.context() as patch:
        patch.setattr(directory.Directory, "open_file", busy)
        with pytest.raises(PlanWaitsError, match=r"lora.json was changed while it was read"):
            provider.plan(import_spec())
    assert isinstance(provider.execute(provider.plan(import_spec())), Committed)


# -- between plan and execution -----------------------------------------------------------------------------


def _replaced_by_hugging_faces(places: Places) -> None:
    shutil.rmtree(places.adapter)
    places.add_adapter(HUGGING_FACE)


CHANGES: list[tuple[str, Callable[[Places], object], str]] = [
    (
        "policy",
        lambda places: (places.job / "policy.toml").write_bytes(b"x"),
        "policy.toml was changed since",
    ),
    (
        "telemetry",
        lambda places: (places.job / "telemetry.cbor").write_bytes(b"x"),
        "telemetry.cbor was changed since",
    ),
    (
        "base",
        lambda places: (places.job / "base_model.ref").write_bytes(b"base-2"),
        "the base model was changed since",
    ),
    ("job gone", lambda places: shutil.rmtree(places.job), f"export job {JOB} does not exist"),
    ("configuration", _changed("lora.json", LORA + b" "), "lora.json was changed since it was planned"),
    ("metrics", _changed("metrics.json", b"{}"), "metrics.json was changed since it was planned"),
    (
        "new metrics",
        lambda places: (places.adapter / "metrics.json").unlink(),
        "metrics.json was changed since it was planned",
    ),
    ("tensors", _changed("adapter.safetensors", OTHER), "adapter.safetensors was changed since"),
    ("adapter gone", lambda places: shutil.rmtree(places.adapter), f"adapters/{ADAPTER} does not exist"),
    (
        "another adapter",
        _replaced_by_hugging_faces,
        "the adapter's layout was changed since it was planned",
    ),
    (
        "a pickle",
        lambda places: (places.adapter / "adapter_model.bin").write_bytes(b"x"),
        f'adapters/{ADAPTER} holds "adapter_model.bin", which may run code',
    ),
    (
        "a twin",
        lambda places: add_model(places.registry, MODEL.upper()),
        f"available holds {MODEL.upper()}, which differs only in upper and lower case",
    ),
]


@pytest.mark.parametrize(("change", "line"), [row[1:] for row in CHANGES], ids=[row[0] for row in CHANGES])
def test_what_changes_between_plan_and_execution(
    places: Places, provider: ImportProvider, change: Callable[[Places], object], line: str
) -> None:
    plan = provider.plan(import_spec())
    until_a_change_shows(places.adapter / "adapter.safetensors")
    change(places)
    before = places.snapshot()
    outcome = provider.execute(plan)
    assert isinstance(outcome, Rejected), outcome
    assert outcome.detail.startswith(f"peft.import model={MODEL} not applied: {line}")
    assert places.snapshot() == before


def test_a_configuration_that_would_be_written_differently(
    places: Places, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The manifest tells about the planned ``lora.json``, so that is the one that is written."""
    places.add_adapter(HUGGING_FACE, "hf")
    provider = ImportProvider(places.roots)
    plan = provider.plan(import_spec(adapter_ref="hf"))
    monkeypatch.setattr(adapter, "render_lora_json", lambda _: b'{"rank":4}')
    outcome = provider.execute(plan)
    assert isinstance(outcome, Rejected)
    assert outcome.detail.endswith("lora.json was changed since it was planned")


def test_a_model_that_is_removed_before_it_is_found_to_be_there(
    places: Places, provider: ImportProvider
) -> None:
    run_import(places)
    plan = provider.plan(import_spec(ticket="t2"))
    shutil.rmtree(places.model)
    outcome = provider.execute(plan)
    assert isinstance(outcome, Rejected)
    assert outcome.detail.endswith("not applied: it was removed since it was planned")


def test_a_model_that_comes_before_the_execution(places: Places, provider: ImportProvider) -> None:
    plan = provider.plan(import_spec())
    run_import(places, import_spec(ticket="t2"))
    assert isinstance(provider.execute(plan), Committed)
    shutil.rmtree(places.model)
    add_model(places.registry, MODEL)
    assert isinstance(provider.execute(plan), Rejected)


def test_a_model_that_comes_at_the_last_moment(
    places: Places, provider: ImportProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The published client takes no lock; its model is neither replaced nor taken for ours."""
    plan = provider.plan(import_spec())
    real = directory.Directory.rename

    def rename(
        self: directory.Directory, name: str, to: directory.Directory, new: str, *, replace: bool
    ) -> None:
        if new == MODEL:
            add_model(places.registry, MODEL)
        real(self, name, to, new, replace=replace)

    monkeypatch.setattr(directory.Directory, "rename", rename)
    outcome = provider.execute(plan)
    assert isinstance(outcome, Rejected)
    assert "a model of that name is there: its job is job-1" not in outcome.detail
    assert "a model of that name is there: its base model is base-v1, not vision-base-v1" in outcome.detail
    assert contents(places.model)["adapter.safetensors"].startswith(b"weights of")
    assert not staging(places, plan).exists()


def test_an_empty_directory_that_comes_at_the_last_moment_stays(
    places: Places, provider: ImportProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = provider.plan(import_spec())
    real = directory.Directory.rename

    def rename(
        self: directory.Directory, name: str, to: directory.Directory, new: str, *, replace: bool
    ) -> None:
        if new == MODEL:
            places.model.mkdir()
        real(self, name, to, new, replace=replace)

    monkeypatch.setattr(directory.Directory, "rename", rename)
    assert isinstance(provider.execute(plan), Rejected)
    assert list(places.model.iterdir()) == []
    assert not staging(places, plan).exists()


# -- observing ----------------------------------------------------------------------------------------------


def _nothing(places: Places, plan: Plan) -> None:
    pass


def _staged_partly(places: Places, plan: Plan) -> None:
    write_tree(staging(places, plan), {".adapter.safetensors.7.0.partial": b"x", "lora.json": LORA})


def _staged(places: Places, plan: Plan) -> None:
    run_import(places)
    places.model.rename(staging(places, plan))


def _published(places: Places, plan: Plan) -> None:
    run_import(places, import_spec(ticket="t9"))


def _published_by_another(places: Places, plan: Plan) -> None:
    _published(places, plan)
    _staged_partly(places, plan)


def _other_job(places: Places, plan: Plan) -> None:
    places.add_job("job-2")
    run_import(places, import_spec(job_id="job-2"))


def _other_base(places: Places, plan: Plan) -> None:
    add_model(places.registry, MODEL)


def _a_base(places: Places, plan: Plan) -> None:
    add_base(places.registry, MODEL)


def _other_tensors(places: Places, plan: Plan) -> None:
    places.add_adapter(NATIVE | {"adapter.safetensors": OTHER}, "other")
    run_import(places, import_spec(adapter_ref="other", ticket="t9"))


def _published_then_changed(places: Places, plan: Plan) -> None:
    """Ours, and the adapter it was made from has been trained further since."""
    _published(places, plan)
    until_a_change_shows(places.adapter / "adapter.safetensors")
    (places.adapter / "adapter.safetensors").write_bytes(OTHER)


def _published_then_removed(places: Places, plan: Plan) -> None:
    _published(places, plan)
    shutil.rmtree(places.adapter)


def _other_tensors_then_removed(places: Places, plan: Plan) -> None:
    _other_tensors(places, plan)
    shutil.rmtree(places.adapter)
    _staged_partly(places, plan)


def _damaged(places: Places, plan: Plan) -> None:
    _published(places, plan)
    (places.model / "adapter.safetensors").write_bytes(OTHER)


def _cut(places: Places, plan: Plan) -> None:
    _published(places, plan)
    (places.model / "lora.json").unlink()


def _no_manifest(places: Places, plan: Plan) -> None:
    _published(places, plan)
    (places.model / "manifest.toml").unlink()


def _torn_manifest(places: Places, plan: Plan) -> None:
    _published(places, plan)
    (places.model / "manifest.toml").write_bytes(b"")


def _link(places: Places, plan: Plan) -> None:
    (places.registry / "available").mkdir()
    places.model.symlink_to("../../../outside", target_is_directory=True)


NOTHING = "not applied: nothing was published"
ANOTHER = "not applied: a model of that name is there"
Observed = tuple[Callable[[Places, Plan], None], type[Outcome], str, type[Outcome]]
OBSERVED: list[Observed] = [
    (_nothing, Rejected, NOTHING, Rejected),
    (_staged_partly, Rejected, NOTHING, Rejected),
    (_staged, Rejected, NOTHING, Rejected),
    (_published, Committed, "observed=manifest sha256=", Committed),
    (_published_by_another, Committed, "observed=manifest sha256=", Committed),
    (_other_job, Rejected, f"{ANOTHER}: its job is job-2", Rejected),
    (_other_base, Rejected, f"{ANOTHER}: its base model is base-v1", Rejected),
    (_a_base, Rejected, f"{ANOTHER}: it is a base model", Rejected),
    (_other_tensors, Rejected, f"{ANOTHER}, and its adapter.safetensors is another one", Rejected),
    (_published_then_changed, Unknown, "cannot be observed: a fitting model is there", Committed),
    (_published_then_removed, Unknown, "cannot be observed: a fitting model is there", Committed),
    (_other_tensors_then_removed, Rejected, f"{ANOTHER}, and its adapter", Rejected),
    (_damaged, Rejected, f"not applied: model {MODEL} is damaged", Rejected),
    (_cut, Rejected, f"not applied: model {MODEL} is damaged", Rejected),
    (_no_manifest, Rejected, f"not applied: model {MODEL} is not available", Rejected),
    (_torn_manifest, Rejected, f"not applied: model {MODEL} is damaged", Rejected),
    (_link, Rejected, f"not applied: registry/available/{MODEL} is a symlink", Rejected),
]
"""What there is; the verdict when the ticket gave no digest, how it begins, and the verdict when it did."""
OBSERVED_IDS = [make.__name__.strip("_") for make, *_ in OBSERVED]


@pytest.mark.parametrize("row", OBSERVED, ids=OBSERVED_IDS)
def test_observing(places: Places, provider: ImportProvider, row: Observed) -> None:
    make, kind, clause, pinned = row
    plans = [provider.plan(import_spec()), provider.plan(import_spec(adapter_sha256=sha256(TENSORS)))]
    make(places, plans[0])
    left = staging(places, plans[0])
    before = {name: entry for name, entry in places.snapshot().items() if not name.startswith(str(left))}
    outcome = provider.observe(journaled(plans[0]))
    assert type(outcome) is kind
    assert outcome.detail.startswith(f"peft.import model={MODEL} {clause}")
    for _ in range(2):
        assert type(provider.observe(journaled(plans[1]))) is pinned
    assert not left.exists()
    assert places.snapshot() == before


def test_what_an_observer_tells_is_durable(
    places: Places, provider: ImportProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = provider.plan(import_spec())
    _staged_partly(places, plan)
    with monkeypatch.context() as patch:
        synced = synced_directories(patch)
        assert isinstance(provider.observe(plan), Rejected)
        assert synced == [str(places.registry)]
    run_import(places)
    synced = synced_directories(monkeypatch)
    assert isinstance(provider.observe(plan), Committed)
    assert synced == [str(places.registry / "available"), str(places.registry)]


@pytest.mark.parametrize("make", [row[0] for row in OBSERVED], ids=OBSERVED_IDS)
def test_observing_while_somebody_works(
    places: Places, provider: ImportProvider, make: Callable[[Places, Plan], None]
) -> None:
    plan = provider.plan(import_spec())
    make(places, plan)
    before = places.snapshot()
    with held_elsewhere(places.registry, RootLock.REGISTRY) as holder:
        outcome = provider.observe(plan)
    assert isinstance(outcome, Pending)
    assert f"waits: registry is in use by process {holder.pid}" in outcome.detail
    assert places.snapshot() == before


def test_an_adapter_that_cannot_be_looked_at_now_is_looked_at_later(
    places: Places, provider: ImportProvider
) -> None:
    plan = provider.plan(import_spec())
    run_import(places)
    places.adapters.chmod(0o777)
    assert isinstance(provider.observe(plan), Unobserved)
    places.adapters.chmod(0o755)
    assert isinstance(provider.observe(plan), Committed)


@pytest.mark.parametrize("name", ["registry", "adapter"])
def test_another_root_proves_nothing(places: Places, provider: ImportProvider, name: str) -> None:
    plan = provider.plan(import_spec())
    run_import(places)
    elsewhere = places.base / "elsewhere"
    elsewhere.mkdir()
    there = places.roots
    roots = replace(there, registry=elsewhere) if name == "registry" else replace(there, adapter=elsewhere)
    outcome = ImportProvider(roots).observe(plan)
    assert isinstance(outcome, Unobserved)
    assert "named another root of" in outcome.detail
    assert isinstance(ImportProvider(roots).execute(plan), Rejected)


DAMAGED_PLANS: list[tuple[str, Any]] = [
    ("action", "peft.export"),
    ("model", "../x"),
    ("model", "a:b"),
    ("job", ".."),
    ("adapter_ref", None),
    ("staging", "available"),
    ("staging", ".cohesix-import-0"),
    ("registry", 7),
    ("adapters", "0" * 16),
    ("layout", "other"),
    ("base", ""),
    ("policy", None),
    ("telemetry", {"sha256": "0" * 64}),
    ("adapter", {}),
    ("adapter", {"device": True, "inode": 1, "size": 1, "mtime_ns": 1, "ctime_ns": 1}),
    ("adapter_sha256", "x"),
    ("config_sha256", None),
    ("lora", []),
    ("metrics", "x"),
]


@pytest.mark.parametrize(("member", "value"), DAMAGED_PLANS)
def test_a_plan_that_is_not_ours_does_nothing(
    places: Places, provider: ImportProvider, member: str, value: Any
) -> None:
    plan = provider.plan(import_spec())
    plan = Plan(before=plan.before, intent={**plan.intent, member: value})
    before = places.snapshot()
    assert isinstance(provider.execute(plan), Rejected)
    assert isinstance(provider.observe(plan), Unobserved)
    assert places.snapshot() == before


@pytest.mark.parametrize("member", ["adapter_sha256", "config_sha256", "metrics", "staging", "adapter"])
def test_a_plan_that_lacks_a_member(places: Places, provider: ImportProvider, member: str) -> None:
    plan = provider.plan(import_spec())
    plan = Plan(before=plan.before, intent={k: v for k, v in plan.intent.items() if k != member})
    if member != "metrics":  # as good as null: then there are none, and there are some
        assert isinstance(provider.observe(plan), Unobserved)
    assert isinstance(provider.execute(plan), Rejected)


def test_a_plan_comes_back_from_a_journal(places: Places, provider: ImportProvider) -> None:
    plan = provider.plan(import_spec(adapter_sha256=sha256(TENSORS)))
    assert len(json.dumps({"before": plan.before, "intent": plan.intent})) < 2048
    assert str(places.base) not in json.dumps(plan.intent)
    assert isinstance(ImportProvider(places.roots).execute(journaled(plan)), Committed)


def test_the_lane_is_the_registrys(provider: ImportProvider) -> None:
    assert provider.lane(import_spec()) == "peft-registry"


def test_another_action_is_refused(provider: ImportProvider) -> None:
    with pytest.raises(PlanRefusedError, match="carries no adapter and no job"):
        provider.plan(export_spec())


@pytest.mark.parametrize(
    ("request_", "line"),
    [
        (import_spec("a:b"), "the model must not contain a colon"),
        (import_spec(".."), "the model must not be .."),
        (import_spec(".cohesix-import-0123456789abcdef"), "the model must not start with .cohesix-"),
        (import_spec(adapter_ref=".."), "the adapter must not be .."),
        (import_spec(adapter_ref="."), "the adapter must not be ."),
        (import_spec(adapter_ref=".cohesix-adapter.lock"), "the adapter must not start with"),
        (import_spec(job_id=".."), "the job must not be .."),
        (import_spec(job_id=".COHESIX-export.lock"), "the job must not start with"),
    ],
)
def test_names_that_are_no_entries(places: Places, request_: Any, line: str) -> None:
    assert refusal(places, request_).startswith(f"peft.import cannot be performed: {line}")


def test_memory_does_not_grow_with_the_adapter(places: Places, provider: ImportProvider) -> None:
    tensors = {
        f"layers.{n}.q_proj.lora_{side}.weight": ("F32", shape)
        for n in range(24)
        for side, shape in (("A", (64, 2048)), ("B", (2048, 64)))
    }
    members = entries(tensors)
    size = max(member["data_offsets"][1] for member in members.values())
    assert size == 24 * 2**20
    provider.execute(provider.plan(import_spec("warm-up")))
    places.add_adapter(
        {"adapter.safetensors": file_of(members, size), "lora.json": b'{"rank":64}'}, ref="large"
    )
    tracemalloc.start()
    try:
        outcome = provider.execute(provider.plan(import_spec(adapter_ref="large")))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert isinstance(outcome, Committed)
    assert peak < 2 * 2**20
