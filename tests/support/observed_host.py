"""A host with everything that there is a collector for: real interfaces, and stand-ins behind them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from hive_support import TOKEN
from jetson_support import nvpmodel, orin
from nvml_support import build_stub
from scripted_peer import ScriptedPeer, http
from systemd_standin import DAEMON, Manager, bus, unit_properties
from tls_authority import TlsAuthority

from ticket_agent.snapshots.collectors import jetson

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from ticket_agent.protocol.collecting import Collector

BY_PROCESS = ("systemd", "docker", "k8s", "nvidia", "network")
"""Providers of ``linux-reference`` that a publisher of this host collects as it is."""
SOURCE = "linux-reference"
NODE_TOKEN = "node-token-4711"
NODES: dict[str, Any] = {
    "kind": "NodeList",
    "apiVersion": "v1",
    "metadata": {"resourceVersion": "4711"},
    "items": [
        {
            "metadata": {"name": f"edge-{number}", "uid": f"uid-{number}", "resourceVersion": "9"},
            "spec": {},
            "status": {"conditions": [{"type": "Ready", "status": "True"}]},
        }
        for number in range(3)
    ],
}
ENGINE = {"ApiVersion": "1.50", "MinAPIVersion": "1.44", "Version": "28.2.2"}
INFO = {
    "Containers": 4,
    "ContainersRunning": 2,
    "ContainersPaused": 1,
    "ContainersStopped": 1,
    "ServerVersion": "28.2.2+dfsg1",
}


COMMAND = (sys.executable, "-m", "ticket_agent", "snapshots")


@dataclass(frozen=True)
class ObservedHost:
    """Settings for collectors on this host, and the one that needs another kind of machine."""

    environ: Mapping[str, str]
    jetson: Collector

    def publish(self, state_dir: Path, *options: str, providers: tuple[str, ...] = BY_PROCESS) -> list[Any]:
        """Run the real command; what it printed for each provider."""
        named = [f"--provider={provider}" for provider in providers]
        with self.publisher(f"--state-dir={state_dir}", "--json", *named, *options) as process:
            printed, said = process.communicate()
        assert (process.returncode, said) == (0, ""), said
        return [json.loads(line) for line in printed.splitlines()]

    @contextmanager
    def publisher(self, *options: str) -> Iterator[subprocess.Popen[str]]:
        """The real command, started."""
        command = [*COMMAND, "publish", "--default-enrolment", *options]
        with subprocess.Popen(
            command, env=self._environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd="/"
        ) as process:
            yield process

    def discover(self, provider: str) -> Any:
        """What the real command prints about a provider."""
        command = [*COMMAND, "discover", provider, "--json"]
        done = subprocess.run(command, env=self._environ, capture_output=True, text=True, check=True, cwd="/")
        return json.loads(done.stdout)

    @property
    def _environ(self) -> dict[str, str]:
        return {**os.environ, **self.environ, "LAB_TOKEN": TOKEN}


@contextmanager
def observed_host(folder: Path) -> Iterator[ObservedHost]:
    """Everything runs while the block lasts; without a bus of messages there is no systemd."""
    authority = TlsAuthority(folder)
    libraries = folder / "lib"
    libraries.mkdir()
    build_stub(libraries)
    socket = folder / "docker.sock"
    environ = {
        "DOCKER_HOST": f"unix://{socket}",
        "COHESIX_K8S_TOKEN_REF": "env:NODE_TOKEN",
        "NODE_TOKEN": NODE_TOKEN,
        "COHESIX_K8S_CA_FILE": str(authority.ca_file),
        "LD_LIBRARY_PATH": str(libraries),
    }
    board = partial(
        jetson.collect,
        platform="linux",
        machine="aarch64",
        root=orin(folder / "board"),
        nvpmodel=nvpmodel(folder),
    )
    nodes: dict[str, object] = {"/api/v1/nodes?limit=65": http(200, NODES)}
    engine: dict[str, object] = {"/version": http(200, ENGINE), "/v1.50/info": http(200, INFO)}
    with ExitStack() as stack:
        cluster = stack.enter_context(ScriptedPeer.secured(authority.server(), nodes))
        environ["COHESIX_K8S_API_URL"] = f"https://127.0.0.1:{cluster.port}"
        stack.enter_context(ScriptedPeer.at(socket, engine))
        if DAEMON is not None:
            environ["DBUS_SYSTEM_BUS_ADDRESS"] = stack.enter_context(bus(folder))
            units = {name: unit_properties(name) for name in ("cohesix.service", "ssh.service")}
            stack.enter_context(Manager(units=units).running(environ["DBUS_SYSTEM_BUS_ADDRESS"]))
        yield ObservedHost(environ=environ, jetson=board)
