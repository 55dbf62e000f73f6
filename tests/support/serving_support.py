"""Instances of the server that answers from a table, for tests of serving."""

from __future__ import annotations

import itertools
import json
import os
import signal
import socket
import subprocess
import sys
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from release_support import CANARY, sha, tiny_stack

from ticket_agent.peft.release.canary import Expected
from ticket_agent.peft.release.loopback import LoopbackClient
from ticket_agent.peft.release.serving import Instance, TransformersServe, Vllm

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ticket_agent.peft.release.serving import Backend

DOUBLE = Path(__file__).parent / "serving_double.py"
TOKEN = "t" * 40
TRANSFORMERS = TransformersServe(version="5.24.0", python=sys.executable)
VLLM = Vllm(python=sys.executable)
BASE_ANSWERS = {prompt: ["base", " of", f" {number}"] for number, prompt in enumerate(CANARY.prompts)}
QUICK = replace(CANARY, maximum_latency_ms=20_000)


def answers(generation: int) -> dict[str, list[str]]:
    """What generation ``generation`` says to each prompt; the base model is generation 0."""
    if generation == 0:
        return BASE_ANSWERS
    return {
        prompt: ["this", " is", f" {generation}", f" to {number}"]
        for number, prompt in enumerate(CANARY.prompts)
    }


def expected(generation: int) -> tuple[Expected, ...]:
    return tuple(Expected(pieces=tuple(answers(generation)[prompt])) for prompt in CANARY.prompts)


_FIRST_PORT = 20_000
_SHARE = 250
_SHARES = 48


def _own_share() -> int:
    """The first port of a share that no other process of tests on this host has while this one lives."""
    for number in range(_SHARES):
        with socket.socket(socket.AF_UNIX) as taken, suppress(OSError):
            taken.bind(f"\0ticket-agent-test-ports-{number}")
            taken.detach()  # held until this process ends
            return _FIRST_PORT + number * _SHARE
    return _FIRST_PORT + os.getpid() % _SHARES * _SHARE


_OWN_SHARE = _own_share()
_PORTS = (_OWN_SHARE + number % _SHARE for number in itertools.count())


def free_port() -> int:
    """A port that stays free until its server takes it.

    It is below those that the kernel gives to whoever asks for any, and of this process's own share of them.
    """
    while True:
        port = next(_PORTS)
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port


def instance(generation: int = 1, *, run_dir: Path | str = "/run/server", **changes: Any) -> Instance:
    adapter = generation > 0
    members: dict[str, Any] = {
        "model_id": "assistant",
        "generation": generation,
        "artifact_sha256": sha(f"artifact {generation}"),
        "bundle": "/models/adapter" if adapter else "/models/base",
        "base": "/models/base",
        "rank": 4 if adapter else None,
        "run_dir": str(run_dir),
        "port": 8001,
        "token": TOKEN,
        "device": tiny_stack().device,
    }
    return Instance(**(members | changes))


@dataclass
class Running:
    """A started instance, its process and a client to it."""

    instance: Instance
    process: subprocess.Popen[str]
    client: LoopbackClient

    def identity(self) -> str:
        stat = Path(f"/proc/{self.process.pid}/stat").read_text(encoding="ascii") if self.alive() else ""
        return f"{self.process.pid}/{stat.rpartition(')')[2].split()[19] if stat else 'gone'}"

    def alive(self) -> bool:
        return self.process.poll() is None

    def terminate(self) -> None:
        if self.alive():
            os.kill(self.process.pid, signal.SIGTERM)


def start_double(directory: Path, backend: Backend, made: Instance, **spec: Any) -> Running:
    """Start an instance of the stand-in; it listens when this returns, unless ``start_s`` is given."""
    known: dict[str, Any] = {made.name: answers(made.generation)}
    base = backend.base_name(made)
    if base is not None:
        known[base] = BASE_ANSWERS
    document: dict[str, Any] = {
        "port": made.port,
        "token": made.token,
        "answers": known,
        "base": BASE_ANSWERS,
        "says_done": backend is VLLM,
    }
    path = directory / f"double-{made.port}.json"
    path.write_text(json.dumps(document | spec), encoding="utf-8")
    command = [sys.executable, "-I", str(DOUBLE), str(path)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    running = Running(made, process, LoopbackClient(port=made.port, token=made.token))
    if "start_s" not in spec:
        assert process.stdout is not None
        assert process.stdout.readline() == "listening\n"
    return running


@contextmanager
def double(
    directory: Path, backend: Backend = TRANSFORMERS, generation: int = 1, **spec: Any
) -> Iterator[Running]:
    """Run an instance of the stand-in for the body."""
    running = start_double(directory, backend, instance(generation, port=free_port()), **spec)
    try:
        yield running
    finally:
        running.process.kill()
        running.process.wait()
        if running.process.stdout is not None:
            running.process.stdout.close()
