"""Adapters that Hugging Face's library makes in this very run; needs the extra ``train``."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import pytest
import real_adapters
from vector_files import VECTORS

from ticket_agent.peft.adapter_config import parse_hf_config, render_lora_json
from ticket_agent.peft.adapter_layout import Layout, recognise
from ticket_agent.peft.lora import summarise
from ticket_agent.peft.safetensors_header import read_header, reader_of

if TYPE_CHECKING:
    from pathlib import Path

ROOT = VECTORS.parent


pytestmark = pytest.mark.train


def python(*arguments: str) -> str:
    """Run Python as a user in the checkout's root does; without any network."""
    env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    env |= {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, *arguments], cwd=ROOT, env=env, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, dict[str, Any]]]:
    """The folder of all adapters, and by case what their maker found out about each."""
    folder = tmp_path_factory.mktemp("adapters")
    lines = python(real_adapters.__file__, str(folder)).splitlines()
    reports = {report["case"]: report for report in map(json.loads, lines)}
    return folder, reports


def test_the_library_is_found_from_the_root_of_the_checkout() -> None:
    # Without importing it, which takes seconds; the folder of this name has no origin.
    origin = python("-c", "from importlib.util import find_spec; print(find_spec('peft').origin)").strip()
    assert origin.endswith("/peft/__init__.py")


@pytest.mark.parametrize("name", real_adapters.CASES)
def test_real_adapters_are_accepted(name: str, made: tuple[Path, dict[str, Any]]) -> None:
    folder = made[0] / name
    layout = recognise((path.name for path in folder.iterdir()), what=name)
    assert layout is Layout.HUGGING_FACE
    config = parse_hf_config((folder / layout.config).read_bytes())
    fd = os.open(folder / layout.adapter, os.O_RDONLY)
    try:
        summary = asdict(summarise(read_header(reader_of(fd), os.fstat(fd).st_size), config))
    finally:
        os.close(fd)
    expected = json.loads((VECTORS / "adapters" / "adapters.json").read_text("utf-8"))[name]
    assert summary | {"target_modules": list(summary["target_modules"])} == expected["summary"]
    assert render_lora_json(config).decode() == expected["lora_json"]


@pytest.mark.parametrize("name", real_adapters.CASES)
def test_our_lora_json_says_all_that_loading_needs(name: str, made: tuple[Path, dict[str, Any]]) -> None:
    report = made[1][name]
    assert report["effect"] > 0.01
    assert report["difference"] <= real_adapters.TOLERANCE
