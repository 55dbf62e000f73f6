from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ticket_agent.peft.adapter_layout import Layout, is_pickle, recognise
from ticket_agent.peft.artifact_errors import LayoutRefusedError

NATIVE = ["adapter.safetensors", "lora.json"]
HF = ["adapter_model.safetensors", "adapter_config.json"]


@pytest.mark.parametrize(
    ("names", "layout"),
    [
        (NATIVE, Layout.NATIVE),
        ([*NATIVE, "metrics.json"], Layout.NATIVE),
        ([*NATIVE, "README.md", ".cohesix-adapter.lock"], Layout.NATIVE),
        (HF, Layout.HUGGING_FACE),
        ([*HF, "README.md", "tokenizer.json", "metrics.json"], Layout.HUGGING_FACE),
    ],
)
def test_both_layouts_are_recognised(names: list[str], layout: Layout) -> None:
    assert recognise(names, what="adapter a") is layout
    assert {layout.adapter, layout.config} <= set(names)


@pytest.mark.parametrize(
    ("names", "line"),
    [
        ([], "has no adapter.safetensors"),
        (["README.md"], "has no adapter.safetensors"),
        (NATIVE[:1], "has no lora.json"),
        (NATIVE[1:], "has no adapter.safetensors"),
        (HF[:1], "has no adapter_config.json"),
        (HF[1:], "has no adapter_model.safetensors"),
        (["Adapter.safetensors", "lora.json"], "has no adapter.safetensors"),
        (
            [*NATIVE, *HF],
            "holds both adapter.safetensors and adapter_config.json; keep the files of one layout",
        ),
        ([NATIVE[0], HF[1]], "holds both adapter.safetensors and adapter_config.json"),
        (
            [*NATIVE, "Adapter.safetensors"],
            'holds "Adapter.safetensors", which is no part of an adapter; remove it',
        ),
        ([*NATIVE, "LORA.JSON"], 'holds "LORA.JSON", which is no part of an adapter'),
        ([*NATIVE, "checkpoint-5"], 'holds "checkpoint-5", which is no part of an adapter'),
        ([*NATIVE, "manifest.toml"], 'holds "manifest.toml", which is no part of an adapter'),
        ([*NATIVE, "model.py"], 'holds "model.py", which is no part of an adapter'),
        ([*NATIVE, "a\udcff"], 'holds "a\\udcff", which is no part of an adapter'),
        ([*NATIVE, "a\nb"], 'holds "a\\nb", which is no part of an adapter'),
        ([*NATIVE, "n" * 255], f'holds "{"n" * 120}\u2026", which is no part of an adapter'),
        ([*HF, "adapter_model.bin"], 'holds "adapter_model.bin", which may run code when loaded; remove it'),
        ([*HF, "optimizer.pt"], 'holds "optimizer.pt", which may run code when loaded'),
        ([*HF, "RNG_STATE.PTH"], 'holds "RNG_STATE.PTH", which may run code when loaded'),
        (["adapter_model.bin", "adapter_config.json"], 'holds "adapter_model.bin", which may run code'),
    ],
)
def test_other_directories_are_refused(names: list[str], line: str) -> None:
    with pytest.raises(LayoutRefusedError) as caught:
        recognise(names, what="adapter a")
    assert str(caught.value).startswith(f"adapter a {line}")
    assert str(caught.value).isprintable()


@pytest.mark.parametrize(
    "name", ["a.bin", "a.pt", "a.pth", "a.pkl", "a.PICKLE", "a.ckpt", "a.npz", ".pt", "a.tar.pt"]
)
def test_pickles_are_known_by_their_names(name: str) -> None:
    assert is_pickle(name)


@pytest.mark.parametrize("name", ["adapter.safetensors", "lora.json", "pt", "bin", "a.pt.json", "README.md"])
def test_other_names_are_no_pickles(name: str) -> None:
    assert not is_pickle(name)


@given(st.lists(st.text(max_size=8) | st.sampled_from([*NATIVE, *HF, "metrics.json", "x.bin"]), max_size=6))
def test_no_pickle_and_no_stranger_gets_in(names: list[str]) -> None:
    try:
        layout = recognise(names, what="adapter a")
    except LayoutRefusedError:
        return
    known = {layout.adapter, layout.config, "metrics.json"}
    assert {name for name in names if not name.startswith(".cohesix-")} <= known
