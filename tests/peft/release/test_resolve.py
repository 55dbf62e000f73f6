from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import pytest
from peft_support import no_descriptor_leaks, snapshot
from private_roots import opened
from release_support import profile, release_input, request, rows, sha, tiny_stack

from ticket_agent.peft.errors import AbsentError, FileRefusedError, PeftError
from ticket_agent.peft.release.bundle import (
    BundleManifest,
    adapter_identity,
    encode_bundle,
    tokenizer_digest,
)
from ticket_agent.peft.release.canonical import digest
from ticket_agent.peft.release.checkpoint import CHECKPOINT_FILES, CheckpointManifest, encode_checkpoint
from ticket_agent.peft.release.data import encode_rows
from ticket_agent.peft.release.document_error import DocumentError
from ticket_agent.peft.release.inputs import encode_input
from ticket_agent.peft.release.profile import ProfileSchema, encode_profile
from ticket_agent.peft.release.request import Entry, encode_request, request_digest
from ticket_agent.peft.release.resolve import ResolvedRelease, resolve
from ticket_agent.peft.release.root_errors import ObjectCorruptError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from ticket_agent.peft.release.private_root import PrivateRoot

CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "num_hidden_layers": 2,
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 4,
    "vocab_size": 64,
}
WEIGHTS = b"weights of the base model"


@dataclass(kw_only=True)
class Scene:
    """A store in which a release is prepared; what is to be wrong is said before :meth:`resolved`."""

    root: PrivateRoot
    entry: Entry = Entry.IMPORT
    config: bytes = json.dumps(CONFIG).encode()
    weights: bytes = WEIGHTS
    train: tuple[str, ...] = rows(32)
    evaluation: tuple[str, ...] = rows(24, "held out")
    adapter_files: tuple[str, ...] = ("adapter_config.json", "adapter_model.safetensors")
    adapter_license: str = "Apache-2.0"
    licenses: tuple[str, ...] = ("Apache-2.0",)
    source_entry: Entry = Entry.TRAIN
    step: int = 16
    resume: bool = False
    published: str | None = None

    def prepare(self) -> str:
        """Store everything; returns the request's digest."""
        store = self.root.objects.store
        stack = tiny_stack()
        stack = replace(stack, base=replace(stack.base, weights_sha256=digest(WEIGHTS)))
        base = BundleManifest(
            files=(
                ("config.json", store(self.config)),
                ("model.safetensors", store(self.weights)),
                ("tokenizer.json", store(b"{}")),
            ),
            source=stack.base.source,
            revision=stack.base.revision,
            license_ref="Apache-2.0",
        )
        self.profile = profile(
            ProfileSchema.OURS,
            stack=stack,
            base=store(encode_bundle(base)),
            tokenizer_sha256=tokenizer_digest(dict(base.files)),
            train_data=store(encode_rows(self.train, what="rows")),
            eval_data=store(encode_rows(self.evaluation, what="rows")),
        )
        profile_sha256 = store(encode_profile(self.profile))
        value = release_input(self.profile, self.entry, license_refs=self.licenses)
        if value.adapter is not None:
            value = replace(value, adapter=replace(value.adapter, bundle_sha256=self._adapter()))
        if self.resume:
            value = replace(value, checkpoint=self._checkpoint(profile_sha256))
        made = request(
            entry=self.entry,
            profile_sha256=profile_sha256,
            input_sha256=store(encode_input(value)),
            evaluation_policy=self.profile.evaluation_policy,
        )
        return store(encode_request(made))

    def _adapter(self) -> str:
        store = self.root.objects.store
        bundle = BundleManifest(
            files=tuple((name, store(name.encode())) for name in self.adapter_files),
            source="somebody/adapter",
            revision="1",
            license_ref=self.adapter_license,
        )
        return store(encode_bundle(bundle))

    def _checkpoint(self, profile_sha256: str) -> str:
        store = self.root.objects.store
        source = request(
            operation_id="train-one",
            entry=self.source_entry,
            profile_sha256=profile_sha256,
            evaluation_policy=self.profile.evaluation_policy,
        )
        store(encode_request(source))
        contents = {name: name.encode() for name in CHECKPOINT_FILES}
        contents["trainer_state.json"] = b'{"global_step":16}'
        manifest = CheckpointManifest(
            source_operation="train-one",
            request_sha256=request_digest(source),
            profile_sha256=profile_sha256,
            input_sha256=source.input_sha256,
            step=self.step,
            files=tuple((name, store(data)) for name, data in contents.items()),
        )
        self.published = self.published or digest(encode_checkpoint(manifest))
        return store(encode_checkpoint(manifest))

    def resolved(self, request_sha256: str | None = None, **changes: Any) -> ResolvedRelease:
        names: dict[str, Any] = {"operation_id": "release-one", "model_id": "adapter-one"}
        return resolve(
            self.root.objects,
            request_sha256 or self.prepare(),
            published={"train-one": self.published}.__getitem__,
            **(names | changes),
        )


@pytest.fixture
def place(tmp_path: Path) -> Path:
    return tmp_path / "private"


@pytest.fixture
def scene(place: Path) -> Iterator[Scene]:
    with no_descriptor_leaks(), opened(place) as root:
        yield Scene(root=root)


def test_an_import(scene: Scene, place: Path) -> None:
    request_sha256 = scene.prepare()
    before = snapshot(place)
    found = scene.resolved(request_sha256)
    assert found.request_sha256 == request_sha256 == request_digest(found.request)
    assert found.profile == scene.profile
    assert (found.train_rows, found.eval_rows) == (scene.train, scene.evaluation)
    assert found.adapter_sha256 == adapter_identity(
        digest(b"adapter_config.json"), digest(b"adapter_model.safetensors")
    )
    assert found.checkpoint is None
    assert snapshot(place) == before, "resolving only reads"


def test_a_training(scene: Scene) -> None:
    scene.entry = Entry.TRAIN
    found = scene.resolved()
    assert found.adapter is None
    assert found.adapter_sha256 is None


def test_a_training_that_goes_on(scene: Scene) -> None:
    scene.entry, scene.resume = Entry.TRAIN, True
    found = scene.resolved()
    assert found.checkpoint is not None
    assert found.checkpoint.step == 16


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"config": json.dumps(CONFIG | {"vocab_size": 65}).encode()}, "vocab_size is 65"),
    ({"config": b"version https://git-lfs.github.com/spec/v1"}, r"config\.json: the file is not valid JSON"),
    ({"weights": b"other weights"}, r"model\.safetensors is .* the profile pins"),
    ({"evaluation": (*rows(23, "held out"), rows(1)[0])}, "evaluation row 23 is a training row too"),
    ({"evaluation": rows(23, "held out")}, "has 23 rows; it must have 24"),
    ({"adapter_files": ("adapter_config.json",)}, "must have exactly"),
    ({"adapter_files": ("adapter_config.json", "adapter_model.safetensors", "a.json")}, "must have exactly"),
    ({"adapter_license": "CC-BY-NC-4.0"}, "under CC-BY-NC-4.0"),
    ({"licenses": ("Apache-2.0", "MIT")}, "licence MIT is not among the profile's"),
    ({"entry": Entry.TRAIN, "resume": True, "source_entry": Entry.IMPORT}, "did not train"),
    ({"entry": Entry.TRAIN, "resume": True, "step": 32}, "nothing is left"),
    ({"entry": Entry.TRAIN, "resume": True, "step": 15}, "global_step must be 15"),
    ({"entry": Entry.TRAIN, "resume": True, "published": sha("newer")}, "not the newest"),
]


@pytest.mark.parametrize(("change", "words"), REFUSED, ids=[f"{n}" for n in range(len(REFUSED))])
def test_what_does_not_belong_together(scene: Scene, change: dict[str, Any], words: str) -> None:
    for name, value in change.items():
        setattr(scene, name, value)
    with pytest.raises(DocumentError, match=words):
        scene.resolved()


@pytest.mark.parametrize("change", [{"operation_id": "release-two"}, {"model_id": "adapter-two"}])
def test_a_ticket_about_something_else(scene: Scene, change: dict[str, str]) -> None:
    with pytest.raises(DocumentError, match="the ticket says") as caught:
        scene.resolved(**change)
    assert caught.value.rule == "release-ticket-binding"


@pytest.mark.parametrize("entry", Entry)
def test_every_object_is_needed_and_checked(scene: Scene, place: Path, entry: Entry) -> None:
    scene.entry, scene.resume = entry, entry is Entry.TRAIN
    request_sha256 = scene.prepare()
    scene.resolved(request_sha256)
    # What is only looked at here is hashed where it is used.
    large = {digest(data) for data in (WEIGHTS, b"{}", b"adapter_model.safetensors")}
    if entry is Entry.TRAIN:
        large |= {digest(name.encode()) for name in CHECKPOINT_FILES}
    for path in sorted((place / "objects").iterdir()):
        data = path.read_bytes()
        path.unlink()
        with pytest.raises(AbsentError, match="not in the object store"):
            scene.resolved(request_sha256)
        path.write_bytes(b"")
        with pytest.raises(FileRefusedError, match="is empty"):
            scene.resolved(request_sha256)
        path.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
        if path.name not in large:
            with pytest.raises(ObjectCorruptError):
                scene.resolved(request_sha256)
        path.write_bytes(data)
    scene.resolved(request_sha256)


def test_large_files_keep_the_profiles_bounds(scene: Scene, place: Path) -> None:
    request_sha256 = scene.prepare()
    for data, bound in ((WEIGHTS, 16 << 20), (b"adapter_model.safetensors", 1 << 20)):
        path = place / "objects" / digest(data)
        with path.open("r+b") as file:
            file.truncate(bound + 1)
        with pytest.raises(FileRefusedError, match=f"at most {bound} are accepted"):
            scene.resolved(request_sha256)
        path.write_bytes(data)


def test_a_request_that_nobody_stored(scene: Scene) -> None:
    with pytest.raises(AbsentError, match="the request is not in the object store"):
        scene.resolved(sha("nothing"))
    with pytest.raises(PeftError):
        scene.resolved("../accepted.json")
