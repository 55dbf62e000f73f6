"""What does not belong together, is not whole or does nothing is refused, with a line that says why."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from adapter_edits import (
    CONFIG,
    POINTER,
    WEIGHTS,
    change_tensors,
    edited,
    renamed,
    scaled,
    with_number,
    with_zeros,
    without,
)
from native_jobs import Prepared, World, bundle, prepare

from ticket_agent.peft.artifact_errors import LayoutRefusedError, LoraRefusedError
from ticket_agent.peft.errors import PeftError
from ticket_agent.peft.release.bundle import encode_bundle, tokenizer_digest
from ticket_agent.peft.release.canonical import digest
from ticket_agent.peft.release.data import encode_rows
from ticket_agent.peft.release.native.candidate import scan_adapter
from ticket_agent.peft.release.request import Entry
from ticket_agent.peft.roots import open_to_read

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from native_lab import Lab, Trained
    from native_worker import Worker

pytestmark = pytest.mark.train

LAYER = "base_model.model.model.layers.0.self_attn"
HEAD = "base_model.model.lm_head.weight"
EMBEDDING = "base_model.model.model.embed_tokens.weight"


def refusal(job: Prepared, phase: str) -> str:
    found = job.observed(phase)
    assert found["succeeded"] is False
    detail = found["detail"]
    assert set(detail) == {"error", "reason", "rule", "resources"}
    assert len(detail["reason"]) <= 512
    return str(detail["reason"])


ADAPTERS: dict[str, tuple[dict[str, Any], str]] = {
    "cut short": ({"raw": lambda data: data[:-100]}, "cut short: 100 bytes of its tensors are missing"),
    "cut in the header": ({"raw": lambda data: data[:40]}, "is cut short"),
    "a pointer of Git LFS": ({"raw": lambda _: POINTER}, "is a Git LFS pointer, not the file itself"),
    "a page of HTML": ({"raw": lambda _: b"<!DOCTYPE html><html>not found</html>"}, "no"),
    "a missing tensor": (
        {"tensors": without("layers.1.self_attn.v_proj.lora_B")},
        "exactly the 8 tensors of the profile's geometry: 1 missing, like \"base_model",
    ),
    "an unexpected tensor": (
        {"tensors": with_zeros(f"{LAYER}.k_proj.lora_A.weight", 2, 32)},
        "1 unexpected, like",
    ),
    "names of a nested model": (
        {"tensors": renamed("model.model.layers", "model.model.language_model.layers")},
        "8 missing",
    ),
    "names without their prefix": ({"tensors": renamed("base_model.model.", "")}, "8 missing"),
    "another width": (
        {"tensors": with_zeros(f"{LAYER}.q_proj.lora_A.weight", 2, 64)},
        "expected shape [2, 32], found [2, 64]",
    ),
    "a resized vocabulary": (
        {"tensors": with_zeros(EMBEDDING, 98, 32)},
        "replaces the base model's embed_tokens: expected shape [96, 32], found [98, 32]. It was trained",
    ),
    "a resized head": (
        {"tensors": with_zeros(HEAD, 98, 32)},
        "replaces the base model's lm_head: expected shape [96, 32], found [98, 32]",
    ),
    "a whole embedding": (
        {"tensors": with_zeros(EMBEDDING, 96, 32)},
        "Save the adapter again without embedding layers",
    ),
    "never trained": ({"tensors": scaled(0.0)}, "all of lora_B is 0, so the adapter changes nothing"),
    "NaN": ({"tensors": with_number("lora_A", float("nan"))}, "infinite or NaN"),
    "infinity": ({"tensors": with_number("lora_B", float("-inf"))}, "infinite or NaN"),
    "another base model": (
        {"config": {"base_model_name_or_path": "elsewhere/other-llama"}},
        "base_model is elsewhere/other-llama; the profile says local/tiny-llama",
    ),
    "another revision of it": (
        {"config": {"revision": "main"}},
        "revision is main; the profile pins seed-7",
    ),
    "another rank": ({"config": {"r": 4}}, "rank is 4; the profile says 2"),
    "another scaling": ({"config": {"lora_alpha": 16}}, "alpha is 16; the profile says 4"),
    "other modules": ({"config": {"target_modules": ["k_proj"]}}, "target_modules is ('k_proj',)"),
    "modules by a pattern": ({"config": {"target_modules": ".*proj"}}, "is a pattern"),
    "root scaling": ({"config": {"use_rslora": True}}, "use_rslora is True"),
    "magnitudes": ({"config": {"use_dora": True}}, "use_dora is True"),
    "a rank of its own": ({"config": {"rank_pattern": {"q_proj": 4}}}, "rank_pattern is"),
    "another task": ({"config": {"task_type": "SEQ_CLS"}}, "task_type is SEQ_CLS"),
    "saved modules": ({"config": {"modules_to_save": ["lm_head"]}}, "modules_to_save is set"),
    "some layers only": ({"config": {"layers_to_transform": [0]}}, "layers_to_transform is set"),
    "dropout": ({"config": {"lora_dropout": 0.1}}, "lora_dropout must be 0"),
    "foreign code": (
        {"config": {"auto_mapping": {"base_model_class": "X", "parent_library": "evil"}}},
        "names code outside",
    ),
    "another method": ({"config": {"peft_type": "IA3"}}, "peft_type must be LORA"),
    "a changed base": ({"config": {"init_lora_weights": "pissa"}}, "may have changed the base model"),
}


@pytest.mark.parametrize("case", ADAPTERS)
def test_adapters_that_are_refused_by_the_scan(
    case: str, world: World, trained: Trained, tmp_path: Path
) -> None:
    how, reason = ADAPTERS[case]
    bad = edited(trained.adapter, tmp_path / "bad", **how)
    with (
        open_to_read(bad, label="adapter") as directory,
        pytest.raises(PeftError) as raised,
    ):
        scan_adapter(directory, world.profile, what="adapter")
    assert reason in str(raised.value)


@pytest.mark.parametrize("name", ["adapter_model.bin", "README.md", "training_args.bin", "more.safetensors"])
def test_an_adapter_has_two_files(name: str, world: World, trained: Trained, tmp_path: Path) -> None:
    bad = edited(trained.adapter, tmp_path / "bad")
    (bad / name).write_bytes(b"x")
    with (
        open_to_read(bad, label="adapter") as directory,
        pytest.raises((LayoutRefusedError, LoraRefusedError)),
    ):
        scan_adapter(directory, world.profile, what="adapter")


@pytest.mark.parametrize(
    "case", ["cut short", "a missing tensor", "a resized vocabulary", "another base model"]
)
@pytest.mark.parametrize("phase", ["validate", "evaluate", "scan"])
def test_no_phase_takes_such_an_adapter(phase: str, case: str, lab: Lab, tmp_path: Path) -> None:
    how, reason = ADAPTERS[case]
    bad = edited(lab.trained.adapter, tmp_path / "bad", **how)
    job = prepare(tmp_path / "job", lab.world, Entry.IMPORT, adapter=bad)
    lab.worker.phase(phase, job.path)
    assert reason in refusal(job, phase)


def test_an_adapter_that_changes_nothing_is_refused(lab: Lab, tmp_path: Path) -> None:
    idle = edited(lab.trained.adapter, tmp_path / "idle", tensors=scaled(0.0, "lora_A"))
    job = prepare(tmp_path / "job", lab.world, Entry.IMPORT, adapter=idle)
    lab.worker.phase("scan", job.path)
    assert job.observed("scan")["succeeded"] is True
    lab.worker.phase("evaluate", job.path)
    assert "8 tensors are loaded and change no logit of 4 prompts" in refusal(job, "evaluate")


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        ("adapter_is_switched_off", "change no logit of 4 prompts"),
        ("loading_drops_a_tensor", "has other numbers in the model than in the file"),
        ("asks_the_hub", "a native phase has no network"),
        ("loss_is_no_number", "the loss of evaluation row 0 is nan"),
    ],
)
def test_libraries_that_do_something_else_are_noticed(
    fault: str, reason: str, lab: Lab, tmp_path: Path
) -> None:
    job = prepare(tmp_path / "job", lab.world, Entry.IMPORT, adapter=lab.trained.adapter)
    lab.worker.phase("evaluate", job.path, fault)
    found = job.observed("evaluate")
    assert found["succeeded"] is False
    assert reason in found["detail"]["reason"]


def test_a_loss_that_is_no_number_ends_the_training(worker: Worker, world: World, tmp_path: Path) -> None:
    job = prepare(tmp_path / "job", world, Entry.TRAIN)
    worker.phase("train", job.path, "loss_is_no_number")
    assert "the loss of step 1 is nan; lower the learning rate" in refusal(job, "train")


def test_training_is_not_started_twice(worker: Worker, world: World, tmp_path: Path) -> None:
    job = prepare(tmp_path / "job", world, Entry.TRAIN)
    (job.out / "training").mkdir()
    worker.phase("train", job.path)
    assert "training was started before" in refusal(job, "train")


def test_an_import_trains_nothing(lab: Lab, tmp_path: Path) -> None:
    job = prepare(tmp_path / "job", lab.world, Entry.IMPORT, adapter=lab.trained.adapter)
    lab.worker.phase("train", job.path)
    assert "there is nothing to train" in refusal(job, "train")


@pytest.mark.parametrize("phase", ["evaluate", "scan"])
def test_only_the_named_candidate_is_looked_at(phase: str, lab: Lab, tmp_path: Path) -> None:
    job = prepare(tmp_path / "job", lab.world, Entry.TRAIN, adapter=lab.trained.adapter)
    other = edited(lab.trained.adapter, tmp_path / "other", tensors=scaled(2.0))
    (job.inputs / "adapter" / WEIGHTS).write_bytes((other / WEIGHTS).read_bytes())
    lab.worker.phase(phase, job.path)
    assert "adapter is adapter" in refusal(job, phase)


def test_an_import_is_the_bundle_that_its_input_names(lab: Lab, tmp_path: Path) -> None:
    job = prepare(tmp_path / "job", lab.world, Entry.IMPORT, adapter=lab.trained.adapter, named=False)
    other = edited(lab.trained.adapter, tmp_path / "other", tensors=scaled(2.0))
    (job.inputs / "adapter" / WEIGHTS).write_bytes((other / WEIGHTS).read_bytes())
    lab.worker.phase("validate", job.path)
    assert "other files than the bundle that the release input imports" in refusal(job, "validate")


def test_a_changed_incumbent_is_refused(lab: Lab, tmp_path: Path) -> None:
    job = prepare(
        tmp_path / "job", lab.world, Entry.TRAIN, adapter=lab.trained.adapter, incumbent=lab.trained.adapter
    )
    (job.inputs / "incumbent" / CONFIG).write_bytes((job.inputs / "incumbent" / CONFIG).read_bytes() + b" ")
    lab.worker.phase("evaluate", job.path)
    assert "incumbent is adapter" in refusal(job, "evaluate")


@pytest.mark.parametrize(
    "name", ["request.json", "profile.json", "input.json", "train-rows.json", "eval-rows.json", "base.json"]
)
def test_documents_are_held_against_their_digests(
    name: str, worker: Worker, world: World, tmp_path: Path
) -> None:
    job = prepare(tmp_path / "job", world, Entry.TRAIN)
    data = (job.inputs / name).read_bytes()
    (job.inputs / name).write_bytes(data + b" ")
    worker.phase("validate", job.path)
    assert f"{name} is {digest(data + b' ')}; it must be {digest(data)}" in refusal(job, "validate")


@pytest.mark.parametrize("phase", ["validate", "train", "evaluate"])
def test_files_of_the_base_model_are_held_against_their_digests(phase: str, lab: Lab, tmp_path: Path) -> None:
    adapter = lab.trained.adapter if phase == "evaluate" else None
    job = prepare(tmp_path / "job", lab.world, Entry.TRAIN, adapter=adapter)
    path = job.inputs / "base" / "model.safetensors"
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    lab.worker.phase(phase, job.path)
    assert "base/model.safetensors is" in refusal(job, phase)


def test_a_file_too_many_is_refused(worker: Worker, world: World, tmp_path: Path) -> None:
    job = prepare(tmp_path / "job", world, Entry.TRAIN)
    (job.inputs / "base" / "modeling_llama.py").write_text("x")
    worker.phase("validate", job.path)
    assert "base has modeling_llama.py" in refusal(job, "validate")


def test_a_file_too_few_is_refused(worker: Worker, world: World, tmp_path: Path) -> None:
    job = prepare(tmp_path / "job", world, Entry.TRAIN)
    (job.inputs / "base" / "tokenizer.json").unlink()
    worker.phase("validate", job.path)
    assert "base has no tokenizer.json" in refusal(job, "validate")


def rebuilt(world: World, folder: Path, change: Callable[[Path], None]) -> World:
    """A world whose base model is another one, with a profile that says all of it but what it measures."""
    folder.mkdir()
    for path in world.base.iterdir():
        (folder / path.name).write_bytes(path.read_bytes())
    change(folder)
    manifest = bundle(folder, "local/tiny-llama", "seed-7")
    weights = digest((folder / "model.safetensors").read_bytes())
    stack = replace(world.profile.stack, base=replace(world.profile.stack.base, weights_sha256=weights))
    profile = replace(
        world.profile,
        base=digest(encode_bundle(manifest)),
        tokenizer_sha256=tokenizer_digest(dict(manifest.files)),
        stack=stack,
    )
    return replace(world, base=folder, profile=profile)


def _config(**members: Any) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        path = folder / "config.json"
        path.write_text(json.dumps(json.loads(path.read_bytes()) | members))

    return change


def _weights(change: Callable[[bytes], bytes]) -> Callable[[Path], None]:
    def changed(folder: Path) -> None:
        path = folder / "model.safetensors"
        path.write_bytes(change(path.read_bytes()))

    return changed


def _tensors(change: Callable[[dict[str, Any]], dict[str, Any]]) -> Callable[[Path], None]:
    return lambda folder: change_tensors(folder / "model.safetensors", change)


BASES: dict[str, tuple[Callable[[Path], None], str]] = {
    "other layers": (_config(num_hidden_layers=3), "num_hidden_layers is 3; the profile's geometry says 2"),
    "other width": (_config(hidden_size=64), "hidden_size is 64; the profile's geometry says 32"),
    "foreign code": (_config(auto_map={"AutoModel": "evil.Model"}), "has auto_map"),
    "a pointer of Git LFS": (_weights(lambda _: POINTER), "model.safetensors is a Git LFS pointer"),
    "cut short": (_weights(lambda data: data[:-64]), "cut short: 64 bytes of its tensors are missing"),
    "a missing tensor": (
        _tensors(without("layers.1.mlp.up_proj")),
        "layers.1.mlp.up_proj.weight: expected shape [48, 32], found no such tensor",
    ),
    "a tensor too many": (
        _tensors(with_zeros("model.layers.2.mlp.up_proj.weight", 48, 32)),
        "expected no such tensor, found shape [48, 32]",
    ),
    "a resized vocabulary": (
        _tensors(with_zeros("model.embed_tokens.weight", 98, 32)),
        "model.embed_tokens.weight: expected shape [96, 32], found shape [98, 32]",
    ),
}


@pytest.mark.parametrize("case", BASES)
def test_base_models_that_are_not_the_profiles(
    case: str, worker: Worker, world: World, tmp_path: Path
) -> None:
    change, reason = BASES[case]
    job = prepare(tmp_path / "job", rebuilt(world, tmp_path / "base", change), Entry.TRAIN)
    worker.phase("validate", job.path)
    assert reason in refusal(job, "validate")


@pytest.mark.parametrize("phase", ["validate", "train", "evaluate"])
def test_another_stack_than_the_pinned_one_computes_nothing(phase: str, lab: Lab, tmp_path: Path) -> None:
    world = lab.world
    versions = dict(world.profile.versions) | {"torch": "2.9.1+cu126", "vllm": "0.11.0"}
    stack = replace(world.profile.stack, platform=replace(world.profile.stack.platform, python="3.99"))
    other = replace(world, profile=replace(world.profile, versions=tuple(versions.items()), stack=stack))
    adapter = lab.trained.adapter if phase == "evaluate" else None
    job = prepare(tmp_path / "job", other, Entry.TRAIN, adapter=adapter)
    lab.worker.phase(phase, job.path)
    reason = refusal(job, phase)
    assert f"python is {sys.version_info[0]}.{sys.version_info[1]}, pinned 3.99" in reason
    assert "pinned 2.9.1+cu126" in reason
    assert "vllm is not installed, pinned 0.11.0" in reason


def test_rows_are_long_enough_once_they_are_tokens(worker: Worker, world: World, tmp_path: Path) -> None:
    held_out = encode_rows([f"lighthouse-{number:05}" for number in range(16)], what="rows")
    other = replace(world, held_out=held_out, profile=replace(world.profile, eval_data=digest(held_out)))
    job = prepare(tmp_path / "job", other, Entry.TRAIN)
    worker.phase("validate", job.path)
    assert "evaluation rows: row 0 has 3 tokens; at least 8 are needed" in refusal(job, "validate")


def test_rows_of_the_evaluation_are_not_trained_on(worker: Worker, world: World, tmp_path: Path) -> None:
    rows = json.loads(world.held_out)
    train = encode_rows([*json.loads(world.train), rows[3]], what="rows")
    other = replace(world, train=train, profile=replace(world.profile, train_data=digest(train)))
    job = prepare(tmp_path / "job", other, Entry.TRAIN)
    worker.phase("validate", job.path)
    assert "evaluation row 3 is a training row too" in refusal(job, "validate")


def test_a_tokenizer_of_another_model_is_refused(worker: Worker, world: World, tmp_path: Path) -> None:
    def change(folder: Path) -> None:
        path = folder / "tokenizer.json"
        document = json.loads(path.read_bytes())
        document["model"]["vocab"]["keeper"] = 500
        path.write_text(json.dumps(document))

    job = prepare(tmp_path / "job", rebuilt(world, tmp_path / "base", change), Entry.TRAIN)
    worker.phase("validate", job.path)
    assert "row 0 has token 500; the base model's vocabulary has 96" in refusal(job, "validate")
