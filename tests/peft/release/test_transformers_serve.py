"""The canary of a real ``transformers serve`` with a tiny model on the CPU."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from contextlib import contextmanager
from dataclasses import replace
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from release_support import CANARY
from serving_support import Running, free_port, instance

from ticket_agent.peft.release.canary import Expected, Reference
from ticket_agent.peft.release.canary_run import BASE, CanaryRun
from ticket_agent.peft.release.loopback import LoopbackClient
from ticket_agent.peft.release.readiness import wait_ready
from ticket_agent.peft.release.serving import TransformersServe
from ticket_agent.peft.release.serving_errors import ServerRefusedError, ServerUnreachableError
from ticket_agent.peft.release.serving_run_dir import make_run_dir

if TYPE_CHECKING:
    from collections.abc import Iterator

MISSING = [
    name
    for name in ("torch", "transformers", "peft", "accelerate", "uvicorn", "fastapi", "openai")
    if find_spec(name) is None
]
pytestmark = pytest.mark.skipif(
    bool(MISSING), reason=f"needs the extra train: {', '.join(MISSING)} not installed"
)

MAKER = Path(__file__).parents[2] / "support" / "serving_models.py"
TENSORS = 8


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models") / "made"
    done = subprocess.run(
        [sys.executable, str(MAKER), str(folder)], capture_output=True, text=True, check=False, env=offline()
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return folder


def offline() -> dict[str, str]:
    support = os.pathsep.join([str(MAKER.parent), str(MAKER.parents[2])])
    return os.environ | {"HF_HUB_OFFLINE": "1", "PYTHONPATH": support}


@contextmanager
def started(models: Path, name: str, run_dir: Path) -> Iterator[Running]:
    backend = TransformersServe(version=version("transformers"), python=sys.executable)
    adapter = name != "base"
    made = instance(
        1 if adapter else 0,
        port=free_port(),
        run_dir=run_dir,
        bundle=str(models / name),
        base=str(models / "base"),
        rank=4 if adapter else None,
    )
    launch = backend.launch(made)
    make_run_dir(made.run_dir, launch)
    with (run_dir / "log").open("wb") as log:
        process: Any = subprocess.Popen(
            launch.argv,
            cwd=launch.working_dir,
            env=dict(launch.environment) | {"PATH": os.environ["PATH"], "HOME": str(run_dir)},
            stdout=log,
            stderr=subprocess.STDOUT,
        )
    try:
        yield Running(made, process, LoopbackClient(port=made.port, token=made.token))
    finally:
        process.kill()
        process.wait()


def wait(running: Running) -> Any:
    backend = TransformersServe(version=version("transformers"), python=sys.executable)
    try:
        return wait_ready(running.client, backend, running.instance, alive=running.alive, deadline_s=80)
    except ServerUnreachableError as error:
        log = Path(running.instance.run_dir, "log").read_text(encoding="utf-8", errors="replace")
        raise AssertionError(f"{error}: {log[-3000:]}") from error


def test_a_real_server_passes_the_canary(models: Path, tmp_path: Path) -> None:
    told = json.loads((models / "expected.json").read_text())
    assert told["base"] != told["one"] != told["two"]
    backend = TransformersServe(version=version("transformers"), python=sys.executable)
    with started(models, "one", tmp_path / "server") as running:
        (listed,) = wait(running)
        assert listed.matched_tensors == TENSORS
        report = CanaryRun(
            client=running.client,
            backend=backend,
            instance=running.instance,
            canary=replace(CANARY, maximum_latency_ms=10_000),
            expected=tuple(Expected(pieces=tuple(pieces)) for pieces in told["one"]),
            references=(Reference(kind=BASE, texts=tuple("".join(pieces) for pieces in told["base"])),),
            identity=running.identity,
            tensors=TENSORS,
        ).run()
        assert report.passed, report.findings
        assert report.effect is not None
        assert dict(report.effect.changed)[BASE] > 0
        refusals(running)
        assert report.members()["name"] == running.instance.name


def refusals(running: Running) -> None:
    """Only the one model is reached, with the token alone."""
    client = running.client
    for path in ("/health", "/docs", "/openapi.json", "/reset", "/v1/models/x"):
        with pytest.raises(ServerRefusedError) as refused:
            client.get(path, deadline_s=5)
        assert refused.value.status == 404
    for path in ("/load_model", "/reset", "/v1/completions", "/v1/responses"):
        with pytest.raises(ServerRefusedError) as refused:
            list(client.post_streamed(path, {"model": running.instance.name}, deadline_s=5))
        assert refused.value.status == 404
    for token, status in (("x" * 40, 401), (client.token, 404)):
        other = LoopbackClient(port=client.port, token=token)
        with pytest.raises(ServerRefusedError) as refused:
            list(other.post_streamed("/v1/chat/completions", {"model": "other"}, deadline_s=5))
        assert refused.value.status == status


@pytest.mark.parametrize("name", ["lacking", "elsewhere"])
def test_a_server_that_could_not_apply_the_adapter_ends(name: str, models: Path, tmp_path: Path) -> None:
    with started(models, name, tmp_path / "server") as running:
        assert running.process.wait(timeout=80) != 0
        log = Path(running.instance.run_dir, "log").read_text(encoding="utf-8", errors="replace")
    loaded = {"lacking": f"the server loaded {TENSORS - 1} of {TENSORS - 1}", "elsewhere": "loaded 0 of"}
    assert loaded[name] in log
