"""The file that a release is prepared from: what it must say, and what it may not."""

from __future__ import annotations

import tomllib
from typing import TYPE_CHECKING, Any

import pytest
from release_lab import Lab

from ticket_agent.peft.release.document_error import DocumentError
from ticket_agent.peft.release.selection import (
    MAX_SELECTION_BYTES,
    SELECTION_SCHEMA,
    load_selection,
    parse_selection,
)
from ticket_agent.peft.release.settings import EXACT

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Lab:
    return Lab.make(tmp_path_factory.mktemp("selection") / "release")


@pytest.fixture
def document(lab: Lab) -> dict[str, Any]:
    return tomllib.loads((lab.folder / "selection.toml").read_text())


def test_the_skeletons_selection_is_complete(lab: Lab, document: dict[str, Any]) -> None:
    selection = parse_selection(document, lab.folder)
    assert selection == lab.selection
    assert selection.train_data == lab.folder / "train.json"
    assert selection.base.path == lab.folder / "base"
    assert selection.canary.acceptance == EXACT
    assert selection.stack.platform.cuda is None
    assert selection.stack.device.memory_fraction is None


def test_an_acceptance_that_is_not_said_is_the_strictest(lab: Lab, document: dict[str, Any]) -> None:
    del document["canary"]["acceptance"]
    assert parse_selection(document, lab.folder).canary.acceptance == EXACT


MISSING = object()
REFUSED: list[tuple[str, Any, str]] = [
    ("schema", "cohesix-peft-selection/v2", f'schema must be "{SELECTION_SCHEMA}"'),
    ("surprise", 1, "has an unknown member surprise"),
    ("settings", MISSING, "has no member settings"),
    ("upload", True, "upload must be false: releases are prepared offline"),
    ("gated_download", True, "gated_download must be false"),
    ("gated_download", 0, "gated_download must be false"),
    ("credential_refs", ["hf_secret"], "each of credential_refs must be a name"),
    ("credential_refs", ["env:token"], "each of credential_refs must be a name"),
    ("credential_refs", ["file:relative"], "each of credential_refs must be a name"),
    ("credential_refs", ["env:A", "env:B", "env:C", "env:D", "env:E"], "a list of 0..=4 items"),
    ("license_refs", [], "license_refs must be a list of 1..=8 items"),
    ("license_refs", ["MIT"], "base.license_ref CC0-1.0 is not among license_refs"),
    ("train_data", "", "train_data must be a path in quotes"),
    ("train_data", 7, "train_data must be a path in quotes"),
    ("base.path", MISSING, "has no member base.path"),
    ("base.source", "", "base.source must be"),
    ("base.owner", "me", "has an unknown member base.owner"),
    ("attestation.key_id", "x" * 65, "attestation.key_id must be 1..=64 bytes"),
    ("settings.rank", 3, "settings: rank must be 2 or 4 or 8"),
    ("settings.learning_rate", 1, "learning_rate must be a number with a fraction"),
    ("settings.max_steps", 4, "checkpoint_interval must be below max_steps"),
    ("settings.checkpoint_interval", MISSING, "settings: has no member checkpoint_interval"),
    ("canary.prompts", ["one"], "canary: prompts must be a list of 4..=4 items"),
    ("canary.acceptance.match", "fuzzy", 'match must be "exact" or "prefix"'),
    ("canary.acceptance.match", "prefix", "prefix_tokens must be given for prefix"),
    ("evaluation_policy.minimum_samples", 0, "minimum_samples must be an integer in 1..=1000000"),
    ("evaluation_policy.metrics.eval_loss.direction", "up", "direction must be"),
    ("resource_caps.tasks", 1, "resource_caps: tasks must be an integer in 8..=4096"),
    ("resource_caps.tasks", MISSING, "resource_caps: has no member tasks"),
    ("stack.serving", "tgi", "serving must be"),
    ("stack.python", "three", "stack: python must be a version of two numbers"),
    ("stack.versions.torch", MISSING, "versions has no pin for torch"),
    ("stack.versions.torch", ">=2", "versions.torch must be one exact version"),
    ("stack.device.memory_fraction", 0.5, "memory_fraction must be null on a CPU"),
    ("stack.limits.ranks", [4, 2], "limits: ranks must be ascending"),
]


@pytest.mark.parametrize(("path", "value", "line"), REFUSED)
def test_a_selection_that_says_something_else_is_refused(
    lab: Lab, document: dict[str, Any], path: str, value: Any, line: str
) -> None:
    *tables, name = path.split(".")
    table = document
    for part in tables:
        table = table[part]
    if value is MISSING:
        del table[name]
    else:
        table[name] = value
    with pytest.raises(DocumentError) as refused:
        parse_selection(document, lab.folder)
    assert line in str(refused.value)
    assert "hf_secret" not in str(refused.value)


@pytest.mark.parametrize(
    ("data", "line"),
    [
        (b"", "has no member schema"),
        (b"schema = ", "is not valid TOML"),
        (b"\xff", "is not valid TOML"),
        (b"#" * (MAX_SELECTION_BYTES + 1), "is larger than"),
    ],
)
def test_a_file_that_is_none_is_refused(tmp_path: Path, data: bytes, line: str) -> None:
    path = tmp_path / "selection.toml"
    path.write_bytes(data)
    with pytest.raises(DocumentError, match=f"selection selection.toml: .*{line}"):
        load_selection(path)


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(DocumentError, match=r"cannot read selection .*/none\.toml: No such file"):
        load_selection(tmp_path / "none.toml")
