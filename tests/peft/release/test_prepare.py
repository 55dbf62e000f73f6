"""Preparing releases: the same choice gives the same bytes, and what cannot work leaves no trace."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("cryptography", reason="signatures need the extra: pip install 'ticket-agent[release]'")

from cli_support import contents
from private_roots import deaths
from release_lab import Lab, tensors_of, write_adapter

from ticket_agent.peft.errors import PeftError
from ticket_agent.peft.release.attestation import parse_attestation, trusted_keys, verify_attestations
from ticket_agent.peft.release.canonical import digest, encode
from ticket_agent.peft.release.checkpoint import CHECKPOINT_FILES, CheckpointManifest, encode_checkpoint
from ticket_agent.peft.release.claims import input_claim, profile_claim
from ticket_agent.peft.release.inputs import parse_input
from ticket_agent.peft.release.layout import BEGUN_FILE
from ticket_agent.peft.release.markers import RuntimeSelection
from ticket_agent.peft.release.prepare import first_deployment
from ticket_agent.peft.release.prepared import PREPARED_FILE, Preparation, find_preparation
from ticket_agent.peft.release.profile import ProfileSchema, parse_profile
from ticket_agent.peft.release.request import Entry
from ticket_agent.peft.release.resume_choice import published_checkpoint
from ticket_agent.peft.release.skeleton_base import TINY_GEOMETRY, safetensors_bytes

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


@pytest.fixture
def lab(tmp_path: Path) -> Lab:
    return Lab.make(tmp_path / "release")


# -- what comes of it -------------------------------------------------------------------------------------


def test_a_training_is_prepared(lab: Lab) -> None:
    prepared = lab.prepare()
    request, profile = prepared.request, prepared.profile
    assert (request.entry, request.operation_id, request.model_id) == (
        Entry.TRAIN,
        "release-one",
        "assistant",
    )
    assert request.profile_sha256 == prepared.profile_sha256
    assert request.baseline == first_deployment(profile)
    assert request.evaluation_policy == profile.evaluation_policy
    assert profile.schema is ProfileSchema.OURS
    assert profile.stack.geometry == TINY_GEOMETRY
    assert (prepared.adapter_sha256, prepared.again) == (None, False)
    with lab.opened() as root:
        assert parse_profile(root.objects.load(prepared.profile_sha256)) == profile
        assert root.control.accepted() == first_deployment(profile)
        assert root.control.runtime() == RuntimeSelection(bundle_sha256=profile.base, adapter_sha256=None)
        assert find_preparation(root, "release-one") == Preparation(
            operation_id="release-one", request_sha256=prepared.request_sha256, model_id="assistant"
        )
    files = {path.name for path in (lab.config.root / "bundles" / profile.base).iterdir()}
    assert files == {path.name for path in (lab.folder / "base").iterdir()}


def test_an_import_is_prepared(lab: Lab) -> None:
    prepared = lab.prepare(adapter=lab.adapter())
    assert prepared.adapter_bundle_sha256 is not None
    bundle = lab.config.root / "bundles" / prepared.adapter_bundle_sha256
    assert {path.name for path in bundle.iterdir()} == {"adapter_config.json", "adapter_model.safetensors"}
    with lab.opened() as root:
        value = parse_input(
            root.objects.load(prepared.input_sha256), entry=Entry.IMPORT, schema=prepared.profile.schema
        )
        assert value.adapter is not None
        assert value.adapter.bundle_sha256 == prepared.adapter_bundle_sha256
        assert value.source_sha256 != prepared.profile.source_sha256


@pytest.mark.parametrize("imports", [False, True])
def test_somebody_vouches_for_profile_and_input(lab: Lab, imports: bool) -> None:
    prepared = lab.prepare(adapter=lab.adapter() if imports else None)
    profile, entry = prepared.profile, prepared.request.entry
    with lab.opened() as root:
        value = parse_input(root.objects.load(prepared.input_sha256), entry=entry, schema=profile.schema)
        of_input = input_claim(value, profile)
        assert of_input.imported is imports
        assert of_input.adapter_bundle_sha256 == prepared.adapter_bundle_sha256
        assert of_input.dataset_sha256 == (None if imports else profile.train_data)
        for references, claim in (
            (profile.attestations, profile_claim(profile)),
            (value.attestations, of_input),
        ):
            records = [root.objects.load(reference) for reference in references]
            (found,) = verify_attestations(records, keys=trusted_keys(profile), expected=claim)
            assert found.key_id == "local-source"
            assert parse_attestation(records[0]).claim == claim


def test_what_lies_beside_an_adapter_is_not_taken(lab: Lab) -> None:
    plain = lab.prepare("plain", adapter=lab.adapter("plain")).adapter_sha256
    beside = lab.adapter("beside")
    (beside / "README.md").write_text("a card")
    (beside / "tokenizer.json").write_text("{}")
    assert lab.prepare("beside", adapter=beside).adapter_sha256 == plain


# -- again ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("imports", [False, True])
def test_preparing_again_changes_nothing(lab: Lab, imports: bool) -> None:
    adapter = lab.adapter() if imports else None
    first = lab.prepare(adapter=adapter)
    before = contents(lab.config.root)
    assert lab.prepare(adapter=adapter) == replace(first, again=True)
    assert contents(lab.config.root) == before


def test_the_same_choice_gives_the_same_digests_anywhere(lab: Lab, tmp_path: Path) -> None:
    here = lab.prepare()
    other = Lab.make(tmp_path / "other")
    shutil.copy(lab.folder / "source.key", other.folder / "source.key")
    there = other.prepare()
    assert there.request_sha256 == here.request_sha256


def test_a_process_that_dies_anywhere_leaves_what_can_be_prepared(lab: Lab) -> None:
    adapter = lab.adapter()
    fresh = lab.folder.parent / "fresh"
    shutil.copytree(lab.folder, fresh)
    wanted = lab.prepare(adapter=adapter)
    done = contents(lab.config.root)
    dying = replace(lab, config=replace(lab.config, root=fresh / "root"))
    count = 0
    for _ in deaths(lambda: dying.prepare(adapter=adapter), step=3):
        count += 1
        with dying.opened() as root:
            taken = find_preparation(root, "release-one")
        assert taken is None or taken.request_sha256 == wanted.request_sha256
    assert count > 20
    with dying.opened() as root, root.locked():
        root.sweep()
    assert dying.prepare(adapter=adapter).request_sha256 == wanted.request_sha256
    found = contents(dying.config.root)
    assert {name: entry[2] for name, entry in found.items()} == {
        name: entry[2] for name, entry in done.items()
    }


# -- an id for each ---------------------------------------------------------------------------------------


def refused(line: str, action: Callable[[], object]) -> None:
    with pytest.raises(PeftError) as error:
        action()
    assert line in str(error.value)


def test_an_id_belongs_to_one_request(lab: Lab) -> None:
    lab.prepare()
    before = contents(lab.config.root)
    for line, options in (
        ("another entry, input_sha256", {"adapter": lab.adapter()}),
        ("another model_id", {"model": "somebody"}),
        ("another profile_sha256, input_sha256", {"settings": replace(lab.selection.settings, seed=1)}),
    ):
        wanted = f"operation release-one was prepared for another request: {line}; choose a new operation id"
        refused(wanted, lambda options=options: lab.prepare(**options))  # type: ignore[misc]
    assert contents(lab.config.root) == before


def test_an_id_stays_with_the_generation_that_it_started_from(lab: Lab) -> None:
    prepared = lab.prepare()
    successor = replace(
        prepared.request.baseline,
        generation=1,
        adapter_sha256="ab" * 32,
        served_artifact_sha256="ab" * 32,
    )
    with lab.opened() as root, root.locked():
        root.control.promote(prepared.request.baseline, successor)
    refused("generation 0 was deployed then, generation 1 is now", lab.prepare)
    assert lab.prepare("release-two").request.baseline == successor


def test_an_id_that_began_elsewhere_is_taken(lab: Lab) -> None:
    with lab.opened() as root, root.locked():
        root.write_operation_file("release-one", BEGUN_FILE, b"{}")
    refused("operation release-one has begun, and was prepared elsewhere", lab.prepare)


@pytest.mark.parametrize("operation", ["", "a.b", "-a", "a/b", "x" * 65, "ä"])
def test_ids_have_the_form_that_everybody_accepts(lab: Lab, operation: str) -> None:
    refused("operation_id must be 1..=64 ASCII letters", lambda: lab.prepare(operation))
    assert not (lab.config.root / "accepted.json").exists()


def test_a_damaged_note_of_an_id_stops_everything(lab: Lab) -> None:
    lab.prepare()
    note = lab.config.root / "operations/release-one" / PREPARED_FILE
    note.write_bytes(note.read_bytes() + b" ")
    refused("prepared.json: is not spelled in its one form", lab.prepare)


# -- what does not fit ------------------------------------------------------------------------------------

WIDE = TINY_GEOMETRY.hidden_size * 2


def _renamed(old: str, new: str) -> dict[str, Any]:
    return {name.replace(old, new): tensor for name, tensor in tensors_of(1).items()}


def _vocabulary() -> dict[str, Any]:
    shape = (TINY_GEOMETRY.vocab_size + 4, TINY_GEOMETRY.hidden_size)
    data = bytes(4 * shape[0] * shape[1])
    return tensors_of(1) | {"base_model.model.lm_head.weight": (shape, data)}


def _other_width() -> dict[str, Any]:
    found = tensors_of(1)
    name = next(name for name in found if name.endswith("q_proj.lora_A.weight"))
    return found | {name: ((2, WIDE), bytes(8 * WIDE))}


GOOD = safetensors_bytes(tensors_of(1))
ADAPTERS: dict[str, tuple[dict[str, Any], str]] = {
    "pointer": (
        {"weights": b"version https://git-lfs.github.com/spec/v1\noid sha256:" + b"0" * 64},
        "adapter_model.safetensors is a Git LFS pointer, not the file itself",
    ),
    "truncated": ({"weights": GOOD[:-400]}, "is cut short: 400 bytes of its tensors are missing"),
    "page": ({"weights": b"<html>not found</html>"}, "is not a safetensors file"),
    "other base": (
        {"config": {"base_model_name_or_path": "someone/else"}},
        "base_model is someone/else; the profile says local/tiny-llama",
    ),
    "other revision": ({"config": {"revision": "main"}}, "revision is main; the profile pins seed-7"),
    "other rank": (
        {"config": {"r": 4, "lora_alpha": 8}, "tensors": tensors_of(1, rank=4)},
        "rank is 4; the profile says 2",
    ),
    "other width": (
        {"tensors": _other_width()},
        f"expected shape [2, {TINY_GEOMETRY.hidden_size}], found [2, {WIDE}]",
    ),
    "missing keys": (
        {"tensors": dict(list(tensors_of(1).items())[1:])},
        "does not have exactly the 8 tensors of the profile's geometry: 1 missing",
    ),
    "other prefix": (
        {"tensors": _renamed("model.layers", "language_model.layers")},
        "8 missing, like",
    ),
    "resized vocabulary": (
        {"tensors": _vocabulary()},
        "expected shape [96, 32], found [100, 32]. It was trained with a resized vocabulary",
    ),
    "dora": ({"config": {"use_dora": True}}, "use_dora is True; the profile says False"),
    "untrained": (
        {
            "tensors": {
                name: (shape, bytes(len(data)) if "lora_B" in name else data)
                for name, (shape, data) in tensors_of(1).items()
            }
        },
        "all of lora_B is 0, so the adapter changes nothing",
    ),
    "not a number": (
        {"tensors": {name: (shape, b"\xff" * len(data)) for name, (shape, data) in tensors_of(1).items()}},
        "has a number that is infinite or NaN",
    ),
}


@pytest.mark.parametrize("kind", ADAPTERS)
def test_an_adapter_that_does_not_fit_leaves_no_trace(lab: Lab, kind: str) -> None:
    spoiling, line = ADAPTERS[kind]
    adapter = write_adapter(lab.folder.parent / "spoilt", **spoiling)
    before = contents(lab.config.root)
    refused(line, lambda: lab.prepare(adapter=adapter))
    after = contents(lab.config.root)
    after.pop("lock", None)
    assert after == before


def test_a_directory_with_a_pickle_is_refused(lab: Lab) -> None:
    adapter = lab.adapter()
    (adapter / "optimizer.pt").write_bytes(b"x")
    refused(
        'adapter holds "optimizer.pt", which may run code when loaded', lambda: lab.prepare(adapter=adapter)
    )


def _edit_json(name: str, **changes: Any) -> Callable[[Path], None]:
    def edit(folder: Path) -> None:
        path = folder / "base" / name
        document = json.loads(path.read_text()) | changes
        path.write_text(json.dumps({key: value for key, value in document.items() if value is not None}))

    return edit


def _write(name: str, data: bytes) -> Callable[[Path], None]:
    def write(folder: Path) -> None:
        (folder / name).write_bytes(data)

    return write


def _remove(name: str) -> Callable[[Path], None]:
    return lambda folder: (folder / name).unlink()


def _rows(*rows: object) -> bytes:
    return json.dumps(rows).encode()


SOME = [f"row number {number} of a set of rows" for number in range(16)]
SELECTED: dict[str, tuple[Callable[[Path], object], str]] = {
    "no weights": (_remove("base/model.safetensors"), "base model: has no model.safetensors"),
    "no tokenizer": (_remove("base/tokenizer_config.json"), "base model: has no tokenizer_config.json"),
    "weights are a pointer": (
        _write("base/model.safetensors", b"version https://git-lfs.github.com/spec/v1\n"),
        "model.safetensors is a Git LFS pointer",
    ),
    "weights in parts": (
        _write("base/model.safetensors.index.json", b"{}"),
        "has model.safetensors.index.json: the weights are in several files",
    ),
    "template of its own": (
        _write("base/chat_template.jinja", b"x"),
        "has chat_template.jinja: put the template into tokenizer_config.json",
    ),
    "no template": (_edit_json("tokenizer_config.json", chat_template=None), "has no chat_template"),
    "other class": (
        _edit_json("config.json", architectures=["GPT2LMHeadModel"]),
        'architecture must be "LlamaForCausalLM"',
    ),
    "no class": (_edit_json("config.json", architectures=[]), "must name exactly one class"),
    "foreign code": (_edit_json("config.json", auto_map={"a": "b"}), "has auto_map, which is not supported"),
    "other sizes": (
        _edit_json("config.json", vocab_size=100),
        "lm_head.weight: expected shape [100, 32], found shape [96, 32]",
    ),
    "size missing": (_edit_json("config.json", vocab_size=None), "vocab_size must be an integer"),
    "a row in both": (
        lambda folder: (folder / "train.json").write_bytes((folder / "eval.json").read_bytes()),
        "is a training row too",
    ),
    "too few rows": (_write("eval.json", _rows(*SOME[1:])), "has 15 rows; it must have 16"),
    "the same row twice": (_write("eval.json", _rows(*SOME[1:], SOME[1])), "rows 0 and 15 are the same"),
    "short row": (_write("eval.json", _rows(*SOME[1:], "short")), "row 15 must be text of 16..=2048"),
    "no rows": (_write("train.json", b"{}"), "train_data train.json: "),
    "rows are gone": (_remove("train.json"), "train_data: cannot read"),
    "key is gone": (_remove("source.key"), "key file"),
    "key for all": (lambda folder: (folder / "source.key").chmod(0o644), "is open to others (mode 0644)"),
}


@pytest.mark.parametrize("kind", SELECTED)
def test_what_cannot_be_released_leaves_no_trace(lab: Lab, kind: str) -> None:
    spoil, line = SELECTED[kind]
    spoil(lab.folder)
    before = contents(lab.config.root)
    refused(line, lab.prepare)
    after = contents(lab.config.root)
    after.pop("lock", None)
    assert after == before


def test_the_choice_must_fit_the_entry(lab: Lab) -> None:
    refused("only a training can go on", lambda: lab.prepare(adapter=lab.adapter(), resume="earlier"))


def test_a_licence_must_be_chosen_where_there_are_more(lab: Lab) -> None:
    licences = ("CC0-1.0", "MIT")
    refused(
        "say under which licence the adapter is; the profile has CC0-1.0, MIT",
        lambda: lab.prepare(adapter=lab.adapter(), license_refs=licences),
    )


# -- what is deployed already -----------------------------------------------------------------------------


def test_another_stack_than_the_deployed_one_is_refused(lab: Lab) -> None:
    lab.prepare()
    versions = tuple(
        (name, "9.9.9" if name == "torch" else found) for name, found in lab.selection.stack.versions
    )
    stack = replace(lab.selection.stack, versions=versions)
    refused("generation 0 is deployed on another runtime", lambda: lab.prepare("two", stack=stack))


def test_another_base_model_than_the_deployed_one_is_refused(lab: Lab) -> None:
    lab.prepare()
    base = replace(lab.selection.base, revision="seed-8")
    refused("another base model is deployed", lambda: lab.prepare("two", base=base))


# -- going on ---------------------------------------------------------------------------------------------


def _publish(lab: Lab, operation: str, request_sha256: str, **changes: Any) -> str:
    """Leave what a training leaves; returns the digest of its manifest."""
    with lab.opened() as root:
        request = json.loads(root.objects.load(request_sha256))
    out = lab.config.root / "operations" / operation / "train/out"
    files = {name: f"content of {name}".encode() for name in CHECKPOINT_FILES}
    files["trainer_state.json"] = encode({"global_step": 4})
    manifest = CheckpointManifest(
        **{
            "source_operation": operation,
            "request_sha256": request_sha256,
            "profile_sha256": request["profile_sha256"],
            "input_sha256": request["input_sha256"],
            "step": 4,
            "files": tuple((name, digest(data)) for name, data in files.items()),
        }
        | changes
    )
    data = encode_checkpoint(manifest)
    folder = out / "checkpoints" / digest(data)
    folder.mkdir(parents=True, mode=0o700)
    for name, content in files.items():
        (folder / name).write_bytes(content)
    (out / "checkpoint.json").write_bytes(data)
    for path in (out.parent, out, out / "checkpoints"):
        path.chmod(0o700)
    return digest(data)


def test_a_training_goes_on_from_the_newest_checkpoint(lab: Lab) -> None:
    first = lab.prepare()
    sha256 = _publish(lab, "release-one", first.request_sha256)
    prepared = lab.prepare("release-two", resume="release-one")
    with lab.opened() as root:
        assert published_checkpoint(root, "release-one") == sha256
        value = parse_input(
            root.objects.load(prepared.input_sha256), entry=Entry.TRAIN, schema=prepared.profile.schema
        )
        assert value.checkpoint == sha256
        for content in json.loads(root.objects.load(sha256))["files"].values():
            assert content in root.objects
    assert lab.prepare("release-two", resume="release-one").again


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({"step": 12}, "is of step 12 of 12; nothing is left"),
        ({"profile_sha256": "ab" * 32}, "was made with another profile"),
        ({"source_operation": "release-two"}, "is of this very operation"),
        ({"input_sha256": "ab" * 32}, "does not belong to the request that it names"),
        (
            {"files": tuple((name, "ab" * 32) for name in CHECKPOINT_FILES)},
            "is not what its manifest says",
        ),
    ],
)
def test_a_checkpoint_that_cannot_be_gone_on_from(lab: Lab, changes: dict[str, Any], line: str) -> None:
    _publish(lab, "release-one", lab.prepare().request_sha256, **changes)
    refused(line, lambda: lab.prepare("release-two", resume="release-one"))
    with lab.opened() as root:
        assert find_preparation(root, "release-two") is None


def test_an_operation_without_a_checkpoint(lab: Lab) -> None:
    lab.prepare()
    refused(
        "operation release-one has published no checkpoint", lambda: lab.prepare("two", resume="release-one")
    )
