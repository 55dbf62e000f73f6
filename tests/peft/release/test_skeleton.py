"""The directory that a first release is made from: complete, private where it must be, always the same."""

from __future__ import annotations

import hashlib
import json
import shutil
import stat
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("cryptography", reason="signatures need the extra: pip install 'ticket-agent[release]'")

from release_lab import PORTS, Lab, installed

from ticket_agent.peft.errors import FileRefusedError, PeftError
from ticket_agent.peft.release.keys import read_private_key, read_public_key
from ticket_agent.peft.release.loopback import check_token
from ticket_agent.peft.release.selection import load_selection
from ticket_agent.peft.release.skeleton import Skeleton, make_skeleton, skeleton_rows
from ticket_agent.peft.release.skeleton_base import (
    CHAT_TEMPLATE,
    base_files,
    safetensors_bytes,
)
from ticket_agent.peft.release.stack import TRANSFORMERS_SERVE, required_packages

if TYPE_CHECKING:
    from pathlib import Path

BASE = {
    "config.json": "d12c23f393d1",
    "generation_config.json": "f8d6d5d8d852",
    "model.safetensors": "af67b12b96e5",
    "tokenizer.json": "a99a67b1ec0b",
    "tokenizer_config.json": "c13e69ca7c77",
}


def made(folder: Path, **options: Any) -> Skeleton:
    has = installed()
    python = folder.parent / "python"
    versions = has.require(required_packages(TRANSFORMERS_SERVE), python)
    return make_skeleton(folder, python=python, installed=has, versions=versions, ports=PORTS, **options)


def test_the_base_model_is_the_same_each_time() -> None:
    assert {name: hashlib.sha256(data).hexdigest()[:12] for name, data in base_files().items()} == BASE


def test_everything_is_there_and_private_where_it_has_to_be(tmp_path: Path) -> None:
    lab = Lab.make(tmp_path / "release")
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in lab.folder.iterdir()}
    for name in ("signing.key", "source.key", "token"):
        assert modes[name] == 0o600
    assert stat.S_IMODE(lab.folder.stat().st_mode) == modes["root"] == 0o700
    assert lab.config.signing_key is not None
    for name in ("signing", "source"):
        private = read_private_key(lab.folder / f"{name}.key")
        assert read_public_key(lab.folder / f"{name}.pub") == private.public
    check_token((lab.folder / "token").read_text())
    assert lab.config.ports == PORTS
    assert lab.config.unconfined is False


def test_two_directories_share_no_secret(tmp_path: Path) -> None:
    one, two = made(tmp_path / "one"), made(tmp_path / "two")
    for name in ("signing.key", "source.key", "token"):
        assert (one.folder / name).read_bytes() != (two.folder / name).read_bytes()


def test_a_directory_with_something_in_it_is_left_alone(tmp_path: Path) -> None:
    folder = tmp_path / "release"
    folder.mkdir()
    (folder / "notes").write_text("mine")
    with pytest.raises(FileRefusedError, match="is not empty; name a new directory"):
        made(folder)
    assert [path.name for path in folder.iterdir()] == ["notes"]


def test_rows_are_different_and_of_known_words() -> None:
    known = json.loads(base_files()["tokenizer.json"])["model"]["vocab"]
    rows = skeleton_rows(24, 100) + skeleton_rows(16, 500)
    assert len(set(rows)) == 40
    assert {word for row in rows for word in row.split()} <= known.keys()


# -- a base model of one's own ----------------------------------------------------------------------------


@pytest.fixture
def model(tmp_path: Path) -> Path:
    folder = tmp_path / "My Model"
    folder.mkdir()
    for name, data in base_files().items():
        (folder / name).write_bytes(data)
    (folder / "README.md").write_text("a card")
    return folder


def _edit(model: Path, **changes: Any) -> None:
    path = model / "tokenizer_config.json"
    document = json.loads(path.read_text()) | changes
    path.write_text(json.dumps({name: value for name, value in document.items() if value is not None}))


def test_a_complete_base_model_is_copied_as_it_is(tmp_path: Path, model: Path) -> None:
    skeleton = made(tmp_path / "release", base=model)
    assert skeleton.changed == ()
    copied = {path.name: path.read_bytes() for path in (skeleton.folder / "base").iterdir()}
    assert copied == base_files()
    chosen = load_selection(skeleton.selection).base
    assert (chosen.source, chosen.revision) == ("local/My-Model", "sha256-af67b12b96e5")


@pytest.mark.parametrize(
    ("template", "wanted", "line"),
    [
        (None, CHAT_TEMPLATE, "has a chat_template now: the messages one after the other"),
        ("{{ messages }}", "{{ messages }}", "chat_template.jinja is now the chat_template"),
    ],
)
def test_a_chat_template_is_put_where_it_belongs(
    tmp_path: Path, model: Path, template: str | None, wanted: str, line: str
) -> None:
    _edit(model, chat_template=None, pad_token=None)
    if template is not None:
        (model / "chat_template.jinja").write_text(template)
    skeleton = made(tmp_path / "release", base=model)
    assert line in skeleton.changed[0]
    assert skeleton.changed[1] == "pad_token in tokenizer_config.json is the eos_token now"
    config = json.loads((skeleton.folder / "base/tokenizer_config.json").read_text())
    assert config["chat_template"] == wanted
    assert config["pad_token"] == config["eos_token"] == "</s>"
    assert not (skeleton.folder / "base/chat_template.jinja").exists()


@pytest.mark.parametrize(
    ("spoil", "line"),
    [
        (shutil.rmtree, "has no tokenizer_config.json"),
        (lambda model: (model / "config.json").unlink(), "has no config.json"),
        (
            lambda model: (model / "model.safetensors").write_bytes(
                safetensors_bytes({"a": ((1,), bytes(4))})
            ),
            "this is not the base model of the profile's geometry",
        ),
        (lambda model: (model / "tokenizer_config.json").write_text("["), "tokenizer_config.json: "),
    ],
)
def test_a_base_model_that_cannot_be_released_with(
    tmp_path: Path, model: Path, spoil: Any, line: str
) -> None:
    spoil(model)
    with pytest.raises(PeftError) as refused:
        made(tmp_path / "release", base=model)
    assert line in str(refused.value)
    assert list((tmp_path / "release").iterdir()) == []
