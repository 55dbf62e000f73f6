"""The canary of a real ``transformers serve`` with a tiny model on the CPU."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from control_scene import NEW, OLD, scene
from private_roots import opened
from release_support import CANARY
from serving_caller import Caller
from serving_support import Running, free_port, instance
from train_extra import why_not

from ticket_agent.peft.release.blue_green import BlueGreen, Patience, drive
from ticket_agent.peft.release.canary import Expected, Reference
from ticket_agent.peft.release.canary_run import BASE, CanaryRun
from ticket_agent.peft.release.detect import detect
from ticket_agent.peft.release.guard import Guard
from ticket_agent.peft.release.loopback import LoopbackClient
from ticket_agent.peft.release.phases import Phase
from ticket_agent.peft.release.readiness import wait_ready
from ticket_agent.peft.release.serving import TransformersServe
from ticket_agent.peft.release.serving_errors import ServerRefusedError, ServerUnreachableError
from ticket_agent.peft.release.serving_pointer import PointerFile, ServingPointer
from ticket_agent.peft.release.serving_run_dir import make_run_dir
from ticket_agent.peft.release.switching import End
from ticket_agent.peft.roots import open_root

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ticket_agent.peft.release.canary import CanaryReport
    from ticket_agent.peft.release.serving import Instance, ServedModel

pytestmark = [pytest.mark.train, pytest.mark.timeout(1200)]
READY_S = 400.0
"""Until a server has imported everything and answers; on a busy machine that alone takes minutes."""

MAKER = Path(__file__).parents[2] / "support" / "serving_models.py"
TENSORS = 8
BACKEND = TransformersServe(version="5.0" if why_not() else version("transformers"), python=sys.executable)


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


class Servers:
    """Real servers, each a process of its own."""

    def __init__(self, models: Path, folder: Path) -> None:
        self.models = models
        self.folder = folder
        self.known: dict[str, Running] = {}

    def instance(self, generation: int, name: str) -> Instance:
        return instance(
            generation,
            port=free_port(),
            run_dir=self.folder / name,
            bundle=str(self.models / name),
            base=str(self.models / "base"),
        )

    def start(self, instance: Instance) -> None:
        launch = BACKEND.launch(instance)
        make_run_dir(instance.run_dir, launch)
        with Path(instance.run_dir, "log").open("wb") as log:
            process: Any = subprocess.Popen(
                launch.argv,
                cwd=launch.working_dir,
                env=dict(launch.environment) | {"PATH": os.environ["PATH"], "HOME": instance.run_dir},
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        client = LoopbackClient(port=instance.port, token=instance.token)
        self.known[instance.run_dir] = Running(instance, process, client)

    def of(self, instance: Instance) -> Running:
        return self.known[instance.run_dir]

    def running(self, instance: Instance) -> bool | None:
        return instance.run_dir in self.known and self.of(instance).alive()

    def stop(self, instance: Instance) -> None:
        self.of(instance).terminate()

    def kill(self, instance: Instance) -> None:
        self.of(instance).process.kill()

    def log(self, instance: Instance) -> str:
        return Path(instance.run_dir, "log").read_text(encoding="utf-8", errors="replace")

    def wait(self, instance: Instance) -> tuple[ServedModel, ...]:
        running = self.of(instance)
        try:
            return wait_ready(running.client, BACKEND, instance, alive=running.alive, deadline_s=READY_S)
        except ServerUnreachableError as error:
            raise AssertionError(f"{error}: {self.log(instance)[-3000:]}") from error


@pytest.fixture
def servers(models: Path, tmp_path: Path) -> Iterator[Servers]:
    made = Servers(models, tmp_path)
    yield made
    for running in made.known.values():
        running.process.kill()
        running.process.wait()


@pytest.fixture(scope="module")
def told(models: Path) -> dict[str, list[list[str]]]:
    found: dict[str, list[list[str]]] = json.loads((models / "expected.json").read_text(encoding="utf-8"))
    return found


def canary(servers: Servers, of: Instance, name: str, told: dict[str, list[list[str]]]) -> CanaryReport:
    running = servers.of(of)
    return CanaryRun(
        client=running.client,
        backend=BACKEND,
        instance=of,
        canary=replace(CANARY, maximum_latency_ms=30_000),
        expected=tuple(Expected(pieces=tuple(pieces)) for pieces in told[name]),
        references=(Reference(kind=BASE, texts=tuple("".join(pieces) for pieces in told["base"])),),
        identity=running.identity,
        tensors=TENSORS,
    ).run()


def test_real_servers_pass_the_canary_and_replace_one_another(
    servers: Servers,
    told: dict[str, list[list[str]]],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert told["base"] != told["one"] != told["two"]
    old, new = servers.instance(1, "one"), servers.instance(2, "two")
    servers.start(old)
    (listed,) = servers.wait(old)
    assert listed.matched_tensors == TENSORS
    report = canary(servers, old, "one", told)
    assert report.passed, report.findings
    assert report.effect is not None
    assert dict(report.effect.changed)[BASE] > 0
    refusals(servers.of(old))
    said = {1: dict(zip(CANARY.prompts, told["one"], strict=True))}
    said[2] = dict(zip(CANARY.prompts, told["two"], strict=True))
    root = tmp_path / "root"
    opened(root).close()
    with open_root(root, label="root", owner_uid=os.geteuid(), create=False, private=True) as directory:
        pointer = PointerFile(directory, Guard())
        pointer.move(None, ServingPointer.of(old))
        patience = Patience(ready_s=READY_S, settle_s=0.2, drain_s=60, gone_s=60)
        caller = Caller(pointer, BACKEND, said.__getitem__, settle_s=patience.settle_s, pause_s=0.05)
        hands = BlueGreen(
            backend=BACKEND,
            incumbent=old,
            candidate=new,
            servers=servers,
            clients=lambda made: LoopbackClient(port=made.port, token=made.token),
            pointer=pointer,
            canary=lambda: canary(servers, new, "two", told),
            patience=patience,
        )
        caller.thread.start()
        try:
            end = drive((), hands, record=lambda _: None, authority=lambda: True)
        finally:
            caller.stop.set()
            caller.thread.join()
    assert end is End.SWITCHED, (hands.reports, servers.log(new)[-2000:])
    with capsys.disabled():
        print(f"\n{len(caller.answers)} answers, longest gap {caller.longest_gap_ms():.0f} ms")
    assert caller.failures == []
    assert caller.generations() == [1, 2]
    assert servers.of(old).process.poll() is not None


def test_a_real_release_is_loaded_promoted_and_taken_back(
    models: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    launcher = detect(unconfined=True).launcher
    with scene(tmp_path, models=models, launcher=launcher) as made:
        made.point(made.start_old())
        assert made.run(Phase.STAGE).succeeded
        made.start_new()
        made.ready(OLD)
        with made.somebody_asks() as caller:
            for phase in (Phase.LOAD, Phase.CANARY, Phase.PROMOTE):
                found = made.run(phase)
                assert found.succeeded, (found.detail, made.server(NEW).log().lines()[-20:])
            assert found.detail["canary"]["effect"]["matched_tensors"] == TENSORS
            assert made.deployed() == ("g2", 2, True, True)
            made.start_old("again.server")
            found = made.run(Phase.ROLLBACK, incumbent="again.server")
        assert found.succeeded, (found.detail, made.server("again.server").log().lines()[-20:])
        assert made.deployed() == ("g1", 1, True, True)
        assert [made.server(launch_id).running() for launch_id in (OLD, NEW)] == [False, False]
    with capsys.disabled():
        print(
            f"\n{launcher.name}: {len(caller.answers)} answers, longest gap {caller.longest_gap_ms():.0f} ms"
        )
    assert caller.failures == []
    assert caller.generations() == [1, 2]


def refusals(running: Running) -> None:
    """Only the one model is reached, with the token alone."""
    client = running.client
    for path in ("/health", "/docs", "/openapi.json", "/reset", "/v1/models/x"):
        with pytest.raises(ServerRefusedError) as refused:
            client.get(path, deadline_s=60)
        assert refused.value.status == 404
    for path in ("/load_model", "/reset", "/v1/completions", "/v1/responses"):
        with pytest.raises(ServerRefusedError) as refused:
            list(client.post_streamed(path, {"model": running.instance.name}, deadline_s=60))
        assert refused.value.status == 404
    for token, status in (("x" * 40, 401), (client.token, 404)):
        other = LoopbackClient(port=client.port, token=token)
        with pytest.raises(ServerRefusedError) as refused:
            list(other.post_streamed("/v1/chat/completions", {"model": "other"}, deadline_s=60))
        assert refused.value.status == status


def test_a_server_that_could_not_apply_its_adapter_ends(servers: Servers) -> None:
    lacking, elsewhere = servers.instance(1, "lacking"), servers.instance(1, "elsewhere")
    for made in (lacking, elsewhere):
        servers.start(made)
    for made, said in (
        (lacking, f"the model has {TENSORS - 1} of the {TENSORS - 1} tensors of {lacking.name}, and 1 of"),
        (elsewhere, f"the model has 0 of the {TENSORS} tensors of {elsewhere.name}"),
    ):
        assert servers.of(made).process.wait(timeout=READY_S) != 0
        assert said in servers.log(made)
