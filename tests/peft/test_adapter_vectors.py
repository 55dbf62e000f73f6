"""Adapters that Hugging Face's library wrote, kept in the repository."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

import pytest
from adapter_files import file_of, read
from real_adapters import CASES
from vector_files import VECTORS

from ticket_agent.peft.adapter_config import parse_hf_config, parse_lora_json, render_lora_json
from ticket_agent.peft.artifact_errors import ArtifactRefusedError, LoraRefusedError
from ticket_agent.peft.lora import summarise

FOLDER = VECTORS / "adapters"
EXPECTED: dict[str, dict[str, Any]] = json.loads((FOLDER / "adapters.json").read_text("utf-8"))


def tensors(name: str) -> bytes:
    return (FOLDER / name / "adapter_model.safetensors").read_bytes()


def config(name: str) -> bytes:
    return (FOLDER / name / "adapter_config.json").read_bytes()


def test_every_adapter_is_expected() -> None:
    assert set(EXPECTED) == set(CASES) == {path.name for path in FOLDER.iterdir() if path.is_dir()}


@pytest.mark.parametrize("name", EXPECTED)
def test_what_hugging_face_wrote_is_accepted(name: str) -> None:
    ours = parse_hf_config(config(name))
    summary = asdict(summarise(read(tensors(name)), ours))
    assert summary | {"target_modules": list(summary["target_modules"])} == EXPECTED[name]["summary"]
    rendered = render_lora_json(ours)
    assert rendered.decode() == EXPECTED[name]["lora_json"]
    assert parse_lora_json(rendered) == ours


@pytest.mark.parametrize("name", EXPECTED)
def test_the_bare_rank_is_enough_where_the_adapter_is_plain(name: str) -> None:
    bare = parse_lora_json(b'{"rank":4}\n')
    plain = not {"use_dora", "lora_bias", "modules_to_save", "rank_pattern"} & set(CASES[name])
    if plain:
        assert summarise(read(tensors(name)), bare).rank == 4
    else:
        with pytest.raises(LoraRefusedError):
            summarise(read(tensors(name)), bare)


@pytest.mark.parametrize("name", EXPECTED)
def test_no_part_of_an_adapter_can_be_missing(name: str) -> None:
    whole = tensors(name)
    length = int.from_bytes(whole[:8], "little")
    header = json.loads(whole[8 : 8 + length])
    ours = parse_hf_config(config(name))
    for gone in [key for key in header if ".lora_" in key]:
        left = {key: dict(entry) for key, entry in header.items() if key not in {gone, "__metadata__"}}
        at = 0
        for entry in sorted(left.values(), key=lambda entry: entry["data_offsets"]):
            size = entry["data_offsets"][1] - entry["data_offsets"][0]
            entry["data_offsets"] = [at, at := at + size]
        with pytest.raises(LoraRefusedError):
            summarise(read(file_of(left, at)), ours)


@pytest.mark.parametrize("name", ["llama-attention", "llama-dora"])
def test_a_flipped_bit_in_the_header_is_seen(name: str) -> None:
    whole, ours = tensors(name), parse_hf_config(config(name))
    header_end = 8 + int.from_bytes(whole[:8], "little")
    right = summarise(read(whole), ours)
    survived = bytearray()
    for at in range(header_end):
        changed = bytearray(whole)
        changed[at] ^= 1
        try:
            summary = summarise(read(bytes(changed)), ours)
        except ArtifactRefusedError:
            continue
        survived.append(whole[at])
        assert summary == right
    # The free text of the metadata, {"format":"pt"}, is all that may change.
    assert survived == b"formatpt"
