from __future__ import annotations

import json
import os
import stat
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from release_support import sha, tiny_stack
from serving_support import TOKEN, TRANSFORMERS, VLLM, instance

from ticket_agent.peft.errors import NameRefusedError, PeftIoError
from ticket_agent.peft.release.document_error import DocumentError
from ticket_agent.peft.release.serve_guard import GuardSettings
from ticket_agent.peft.release.serving import (
    Launch,
    TransformersServe,
    Vllm,
    backend_for,
    served_models,
    served_name,
)
from ticket_agent.peft.release.serving_errors import AnswerRefusedError, InstanceRefusedError
from ticket_agent.peft.release.serving_run_dir import make_run_dir
from ticket_agent.peft.release.tcp_table import count_connections

if TYPE_CHECKING:
    from pathlib import Path

OLD = TransformersServe(version="4.56.2", python="/usr/bin/python3")
GPU = replace(tiny_stack().device, device="cuda:1", memory_fraction=0.4)


def test_a_name_is_of_one_artifact_in_one_generation() -> None:
    names = {served_name("a", generation, sha(text)) for generation in (1, 2) for text in "xy"}
    assert len(names) == 4
    assert served_name("a", 7, "0123456789abcdef" * 4) == "a-g7-0123456789ab"


@pytest.mark.parametrize(
    ("model", "generation", "digest", "error"),
    [
        ("../a", 1, sha("x"), NameRefusedError),
        ("a:b", 1, sha("x"), NameRefusedError),
        ("a", -1, sha("x"), DocumentError),
        ("a", 1, "xyz", DocumentError),
    ],
)
def test_what_has_no_name_is_refused(
    model: str, generation: int, digest: str, error: type[Exception]
) -> None:
    with pytest.raises(error):
        served_name(model, generation, digest)


@pytest.mark.parametrize(
    "changes",
    [
        {"port": 80},
        {"port": 65536},
        {"port": "8001"},
        {"token": "short"},
        {"token": "t" * 31 + "\n"},
        {"token": None},
        {"bundle": "relative"},
        {"base": "/models/../etc"},
        {"run_dir": "/run/\x07"},
        {"rank": None},
    ],
)
def test_an_instance_that_must_not_be_is_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(InstanceRefusedError) as refused:
        instance(**changes)
    assert TOKEN not in str(refused.value)


def test_no_secret_is_visible_from_outside() -> None:
    made = instance()
    assert TOKEN not in repr(made)
    for backend in (TRANSFORMERS, OLD, VLLM):
        launch = backend.launch(made)
        assert TOKEN not in " ".join(launch.argv)
        assert TOKEN not in " ".join(launch.environment.values())
        assert any(TOKEN.encode() in data for _, data in launch.files)


def test_transformers_serve_is_started_behind_the_guard() -> None:
    made = instance()
    launch = TRANSFORMERS.launch(made)
    assert launch.argv[1:] == ("-I", "-m", "ticket_agent.peft.release.serve_guard", "/run/server/server.json")
    settings = GuardSettings.parse(dict(launch.files)["server.json"])
    assert settings.arguments == (
        *("serve", made.name, "--host", "127.0.0.1", "--port", "8001", "--device", "cpu"),
        *("--dtype", "float32", "--attn-implementation", "eager"),
    )
    assert (settings.name, settings.adapter, settings.token) == (made.name, True, TOKEN)
    assert launch.directories == ((made.name, ("/models/adapter", "/models/base")),)
    base = TRANSFORMERS.launch(instance(0))
    assert base.directories == ((instance(0).name, ("/models/base",)),)
    assert launch.environment["HF_HUB_OFFLINE"] == "1"


def test_older_versions_are_called_in_their_way() -> None:
    made = instance()
    arguments = GuardSettings.parse(dict(OLD.launch(made).files)["server.json"]).arguments
    assert arguments[:3] == ("serve", "--force-model", made.name)
    assert OLD.answer_names(made.name) == {f"{made.name}@main"}
    assert TRANSFORMERS.answer_names(made.name) == {made.name}


def test_vllm_serves_the_adapter_and_the_base_model_and_loads_nothing_else() -> None:
    made = instance(device=GPU, rank=12)
    launch = VLLM.launch(made)
    line = " ".join(launch.argv)
    assert f"--lora-modules {made.name}=/models/adapter" in line
    assert f"--served-model-name {made.name}-base" in line
    assert "--max-lora-rank 16" in line
    assert "--host 127.0.0.1 --port 8001" in line
    assert "--gpu-memory-utilization 0.4" in line
    assert launch.environment["CUDA_VISIBLE_DEVICES"] == "1"
    assert launch.environment["VLLM_ALLOW_RUNTIME_LORA_UPDATING"] == "0"
    assert json.loads(dict(launch.files)["vllm.json"]) == {"api-key": TOKEN}
    assert VLLM.listed_names(made) == {made.name, f"{made.name}-base"}
    assert VLLM.question("n", "p", 3)["logprobs"] is True


def test_vllm_serves_the_base_model_alone_under_its_own_name() -> None:
    made = instance(0)
    line = " ".join(VLLM.launch(made).argv)
    assert "lora" not in line
    assert f"--served-model-name {made.name} " in line
    assert VLLM.base_name(made) is None
    assert VLLM.listed_names(made) == {made.name}


def test_a_profile_names_its_backend() -> None:
    assert backend_for("vllm-local", {}, python="/p") == Vllm(python="/p")
    found = backend_for("transformers-serve-local", {"transformers": "4.56.2"}, python="/p")
    assert found == TransformersServe(version="4.56.2", python="/p")
    for kind, python in (("sglang", "/p"), ("transformers-serve-local", "/p"), ("vllm-local", "python")):
        with pytest.raises(InstanceRefusedError):
            backend_for(kind, {}, python=python)


@pytest.mark.parametrize(
    "answer",
    [
        {},
        {"data": {}},
        {"data": [None]},
        {"data": [{"id": 1}]},
        {"data": [{"id": "a", "matched_tensors": -1}]},
        {"data": [{"id": "a", "matched_tensors": True}]},
        {"data": [{"id": "a"}] * 65},
    ],
)
def test_what_is_no_list_of_models_is_refused(answer: dict[str, Any]) -> None:
    with pytest.raises(AnswerRefusedError):
        served_models(answer)


# -- the directory of an instance ----------------------------------------------------------------------------


def launch(sources: tuple[str, ...]) -> Launch:
    return Launch(
        argv=("/p",),
        environment={},
        working_dir="/",
        files=(("secret.json", b"{}"),),
        directories=(("model", sources),),
    )


def test_an_instance_gets_a_private_directory(tmp_path: Path) -> None:
    for folder, names in (("adapter", ("config.json", "adapter")), ("base", ("config.json", "weights"))):
        (tmp_path / folder).mkdir()
        for name in names:
            (tmp_path / folder / name).write_text(folder)
    run_dir = tmp_path / "run"
    old = os.umask(0)
    try:
        make_run_dir(str(run_dir), launch((str(tmp_path / "adapter"), str(tmp_path / "base"))))
    finally:
        os.umask(old)
    assert stat.S_IMODE(run_dir.stat().st_mode) == 0o700
    assert stat.S_IMODE((run_dir / "secret.json").stat().st_mode) == 0o600
    read = {path.name: path.read_text() for path in (run_dir / "model").iterdir()}
    assert read == {"config.json": "adapter", "adapter": "adapter", "weights": "base"}


def test_a_directory_is_never_used_again(tmp_path: Path) -> None:
    (tmp_path / "run").symlink_to(tmp_path / "elsewhere")
    for _ in range(2):
        with pytest.raises(InstanceRefusedError, match="started before"):
            make_run_dir(str(tmp_path / "run"), launch(()))
    with pytest.raises(PeftIoError):
        make_run_dir(str(tmp_path / "new"), launch((str(tmp_path / "missing"),)))


# -- who is connected ----------------------------------------------------------------------------------------

TABLE = """  sl  local_address rem_address   st tx_queue rx_queue
   0: 0100007F:1F41 00000000:0000 0A 00000000:00000000
   1: 0100007F:1F41 0100007F:C350 01 00000000:00000000
   2: 0100007F:C350 0100007F:1F41 01 00000000:00000000
   3: 0100007F:1F41 0100007F:C351 08 00000000:00000000
   4: 0100007F:1F41 0100007F:C352 06 00000000:00000000
   5: 0100007F:1F41 0100007F:C353 01 00000000:00000000
"""


@pytest.mark.parametrize(("port", "count"), [(8001, 2), (50000, 1), (8002, 0)])
def test_connections_are_counted_on_the_servers_side(port: int, count: int) -> None:
    assert count_connections(TABLE, port) == count
    assert count_connections("", port) == 0
