"""A release directory on which real agents are killed: how it is found, spoilt, asked and looked at."""

from __future__ import annotations

import itertools
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from contextlib import contextmanager, suppress
from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import phase_faults
import release_agent
from release_lab import MODEL, Lab
from serving_support import QUICK, TOKEN, free_port

from ticket_agent.peft.errors import AbsentError, PeftError
from ticket_agent.peft.release.bundle_verify import BundleVerification
from ticket_agent.peft.release.confine import Unconfined
from ticket_agent.peft.release.deployment import encode_deployment
from ticket_agent.peft.release.keys import read_public_key
from ticket_agent.peft.release.known_server import KILL_S
from ticket_agent.peft.release.launcher import ConfinedLauncher
from ticket_agent.peft.release.layout import OperationFiles
from ticket_agent.peft.release.phases import Phase
from ticket_agent.peft.release.process import send_signal
from ticket_agent.peft.release.readiness import wait_ready
from ticket_agent.peft.release.release_story import read_end
from ticket_agent.peft.release.running_phase import RunningPhase
from ticket_agent.peft.release.server_room import ServerRoom
from ticket_agent.peft.release.serving_pointer import ServingPointer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from ticket_agent.peft.release.deployment import DeploymentState
    from ticket_agent.peft.release.known_server import KnownServer
    from ticket_agent.peft.release.prepare import PreparedRelease
    from ticket_agent.peft.release.process import ProcessIdentity
    from ticket_agent.peft.release.release_config import ReleaseConfig
    from ticket_agent.peft.release.release_record import ReleaseRecord

SUPPORT = Path(__file__).parent
ROOT = SUPPORT.parents[1]
HOUR_MS = 3_600_000
WAIT_S = 120.0
"""For whatever ends by itself; a busy machine must not fail a test."""
DISK_BYTES = 192 << 20
_BENCHES = itertools.count()
OPERATION = "rel-1"
FIRST = "first.server"
TIMES: dict[str, Any] = {
    "ready_s": 60.0,
    "settle_s": 0.02,
    "drain_s": 30.0,
    "gone_s": 20.0,
    "soak_s": 0.06,
    "soak_pause_s": 0.02,
    "authority_grace_s": 20.0,
}


PATIENT = replace(QUICK, maximum_latency_ms=20_000)
"""How long an answer takes is not what these releases are about."""


class Zygote:
    """The process that has imported everything; it forks the agents, one at a time."""

    def __init__(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, str(SUPPORT / "release_agent.py")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | {"PYTHONPATH": str(SUPPORT)},
            cwd="/",
        )
        self.read()

    def read(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        found: dict[str, Any] = json.loads(self.process.stdout.readline())
        return found

    def write(self, line: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{line}\n")
        self.process.stdin.flush()

    def close(self) -> None:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.close()
        self.process.wait()
        self.process.stdout.close()


class Life:
    """One agent that was started."""

    def __init__(self, zygote: Zygote, order: dict[str, Any]) -> None:
        self.zygote = zygote
        zygote.write(json.dumps(order))
        self.pid: int = zygote.read()["pid"]
        self.status: int | None = None

    def over(self, timeout_s: float) -> bool:
        """Whether it has ended, or ends in this time."""
        if self.status is not None:
            return True
        fd = os.pidfd_open(self.pid)
        try:
            if not select.select([fd], [], [], timeout_s)[0]:
                return False
        finally:
            os.close(fd)
        self.zygote.write("collect")
        self.status = self.zygote.read()["status"]
        return True

    def kill(self) -> None:
        if self.status is None:
            os.kill(self.pid, signal.SIGKILL)
            assert self.over(WAIT_S)


class Bench:
    """One release directory, used again and again; generation 0 is served by ``first.server``."""

    def __init__(self, folder: Path, zygote: Zygote) -> None:
        os.umask(0o077)
        self.zygote = zygote
        self.folder = folder
        self.talk = folder.with_name(f"{folder.name}-talk")
        self.talk.mkdir()
        ports = tuple(sorted({free_port() for _ in range(5)}))
        self.lab = Lab.make(folder / "lab", ports=ports, **TIMES)
        self.home = self.lab.folder
        program = install(self.home)
        (self.home / "token").write_text(f"{TOKEN}\n")
        config = replace(self.lab.config, python=program, unconfined=True)
        self.lab = replace(self.lab, config=config, selection=replace(self.lab.selection, canary=PATIENT))
        self.root = self.lab.opened()
        self.room = ServerRoom(config.root, ConfinedLauncher(Unconfined()), config)
        self.prepared: dict[str, PreparedRelease] = {
            "train": self.lab.prepare(OPERATION),
            "import": self.lab.prepare("rel-imp", adapter=self.lab.adapter(seed=9)),
        }
        self.serve_first()
        self.clean = self.folder / "clean"
        self.keep(self.clean)
        self.life: Life | None = None
        self.small = False
        self.wait_s = WAIT_S
        self.wrong: dict[str, Any] = {}

    @property
    def config(self) -> ReleaseConfig:
        return self.lab.config

    # -- from one release to the next ------------------------------------------------------------------------

    def serve_first(self) -> None:
        """Have the base model served, as `release serve` would."""
        profile = self.prepared["train"].profile
        made = self.room.instance(
            FIRST,
            profile,
            model_id=MODEL,
            generation=0,
            artifact_sha256=profile.base,
            bundle_sha256=profile.base,
            port=self.room.free_port(),
        )
        backend = self.room.backend(profile)
        self.room.start(FIRST, made, backend=backend, caps=profile.stack.caps)
        known = self.server(FIRST)
        assert known is not None
        wait_ready(known.client(), backend, made, alive=lambda: known.running() is True, deadline_s=WAIT_S)
        with self.root.locked():
            self.root.pointer.move(self.root.pointer.read(), ServingPointer.of(made))

    def keep(self, place: Path) -> None:
        """Remember everything but the servers, which live."""
        shutil.rmtree(place, ignore_errors=True)
        shutil.copytree(
            self.home, place, ignore=lambda where, _: ["servers"] if where.endswith("root") else []
        )

    def back_to(self, place: Path) -> None:
        """All as it was remembered; only the first server runs."""
        self.end_life()
        self.end_phases()
        for path in self.talk.iterdir():
            path.unlink()
        first = self.server(FIRST)
        alive = first is not None and first.running() is True
        for server in self.room.all():
            if server.launch_id != FIRST or not alive:
                server.phase.stop(timeout_s=WAIT_S)
                self.room.remove(server)
        servers = self.config.root / "servers"
        for folder in (self.config.root, self.home):
            kept = place if folder == self.home else place / "root"
            for path in folder.iterdir():
                if path not in (servers, self.config.root):
                    shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
            for path in kept.iterdir():
                if path.name == "root" and folder == self.home:
                    continue
                target = folder / path.name
                shutil.copytree(path, target) if path.is_dir() else shutil.copy2(path, target)
        self.root.close()
        self.root = self.lab.opened()
        if not alive:
            self.serve_first()

    def end_life(self) -> None:
        if self.life is not None:
            self.life.kill()
            self.life = None

    def end_phases(self) -> None:
        """What a killed agent left running must not work in what comes after it."""
        for files in self.all_files():
            for phase in Phase:
                try:
                    self.process_of(files, phase).stop(timeout_s=KILL_S)
                except PeftError:
                    continue

    def close(self) -> None:
        self.end_life()
        self.end_phases()
        for server in self.room.all():
            server.phase.stop(timeout_s=WAIT_S)
        self.root.close()

    # -- agents ----------------------------------------------------------------------------------------------

    def ticket(self, entry: str = "train", number: int = 1, *, life_ms: int = HOUR_MS, **args: Any) -> str:
        """A ticket as root admitted it."""
        prepared = self.prepared[entry]
        spec = {
            "schema": "host-ticket/v2",
            "id": f"t-{number}",
            "idempotency_key": f"k-{number}",
            "action": "peft.release",
            "args": {"request_sha256": prepared.request_sha256, **args},
            "expires_unix_ms": time.time_ns() // 1_000_000 + life_ms,
            "receipt_mode": "worker",
            "operation_id": prepared.request.operation_id,
            "subject_ref": MODEL,
            "receipt_worker_role": "worker-lora",
            "receipt_worker_id": "worker-1",
            "receipt_supervisor_generation": 1,
            "receipt_cap_generation": 1,
            "resolved_worker_slot": 1,
            "resolved_lease_epoch": 1,
            "admission_sequence": number,
        }
        return json.dumps(spec)

    def start(self, *tickets: str, **wrong: Any) -> Life:
        """An agent, which goes on until something ends it."""
        self.end_life()
        config = {field.name: getattr(self.config, field.name) for field in fields(self.config)}
        order = {
            "lab": str(self.home),
            "talk": str(self.talk),
            "config": {name: str(v) if isinstance(v, Path) else v for name, v in config.items()},
            "tickets": tickets,
        }
        self.life = Life(self.zygote, order | self.wrong | wrong)
        return self.life

    def run(self, *tickets: str, **wrong: Any) -> int:
        """An agent until it ends; its exit code, negative for a signal."""
        life = self.start(*tickets, **wrong)
        if not life.over(self.wait_s):
            life.kill()
            raise AssertionError(f"it does not end: {self.told()}\n{self.output()}")
        self.life = None
        assert life.status is not None
        return life.status

    def told(self) -> dict[str, Any]:
        try:
            found: dict[str, Any] = json.loads((self.talk / "told.json").read_bytes())
        except FileNotFoundError:
            return {}
        return found

    def output(self) -> str:
        try:
            return (self.talk / "agent.log").read_text(encoding="utf-8")
        except FileNotFoundError:
            return ""

    # -- what goes wrong -------------------------------------------------------------------------------------

    def fault(self, phase: Phase | str, at: str, do: str) -> None:
        (self.home / "faults" / f"{phase}.json").write_text(json.dumps({"at": at, "do": do}))

    def unfault(self, phase: Phase | str) -> None:
        (self.home / "faults" / f"{phase}.json").unlink()

    def say(self, name: str, text: str) -> None:
        """Change what the agent asks: its clock, or its authority."""
        new = self.home / f"{name}.new"
        new.write_text(text)
        new.rename(self.home / name)

    @contextmanager
    def full_disk(self) -> Iterator[None]:
        """Nothing more can be written, as long as the body; the directory has a file system of its own."""
        ballast = self.home / "ballast"
        with ballast.open("wb", buffering=0) as stream:
            for size in (1 << 20, 4096, 1):
                with suppress(OSError):
                    while True:
                        stream.write(bytes(size))
        try:
            yield
        finally:
            ballast.unlink()

    def life_over(self) -> bool:
        return self.life is None or self.life.over(0)

    def deploy_another(self) -> DeploymentState:
        """Somebody else has deployed a newer generation meanwhile."""
        newer = replace(
            self.root.control.accepted(),
            generation=5,
            adapter_sha256="a" * 64,
            served_artifact_sha256="a" * 64,
        )
        (self.config.root / "accepted.json").write_bytes(encode_deployment(newer))
        return newer

    def held(self, phase: Phase) -> None:
        """Wait until a phase is at its place."""
        self.until((self.home / "faults" / f"{phase}.held").exists, f"{phase} is held")

    def go(self, phase: Phase) -> None:
        (self.home / "faults" / f"{phase}.go").touch()

    def until(self, done: Callable[[], bool], what: str) -> None:
        end = time.monotonic() + self.wait_s
        while not done():
            if time.monotonic() > end:
                raise AssertionError(f"never: {what}; told: {self.told()}\n{self.output()}")
            time.sleep(0.003)

    # -- what there is ---------------------------------------------------------------------------------------

    def files(self, entry: str = "train", recovery: str | None = None) -> OperationFiles:
        operation = self.prepared[entry].request.operation_id
        return OperationFiles(root=self.config.root, operation_id=operation, recovery=recovery)

    def all_files(self) -> list[OperationFiles]:
        found = []
        for entry in self.prepared:
            files = self.files(entry)
            found.append(files)
            found += [
                self.files(entry, path.name.removeprefix("recovery-"))
                for path in files.path.glob("recovery-*")
            ]
        return found

    def process(self, phase: Phase, entry: str = "train", recovery: str | None = None) -> RunningPhase:
        return self.process_of(self.files(entry, recovery), phase)

    @staticmethod
    def process_of(files: OperationFiles, phase: Phase) -> RunningPhase:
        return RunningPhase(files.run(phase), launch_id=files.launch_id(phase.value))

    def server(self, launch_id: str) -> KnownServer | None:
        return self.room.known(launch_id)

    def candidate(self, entry: str = "train") -> KnownServer | None:
        return self.server(self.files(entry).launch_id("candidate"))

    def end(self, entry: str = "train", recovery: str | None = None) -> ReleaseRecord | None:
        try:
            with self.root.operation(self.files(entry).operation_id) as directory:
                if recovery is None:
                    return read_end(directory)
                with directory.open_dir(f"recovery-{recovery}") as attempt:
                    return read_end(attempt)
        except AbsentError:
            return None

    def effects(self) -> Counter[str]:
        """How often each phase and each server was begun."""
        try:
            lines = (self.home / "effects").read_text(encoding="ascii").splitlines()
        except FileNotFoundError:
            return Counter()
        return Counter(name for line in lines if (name := line.rpartition(" ")[0]) != f"serve {FIRST}")

    def files_say(self, entry: str = "train") -> dict[str, Any]:
        """What root and pointer tell of what is deployed."""
        control, request = self.root.control, self.prepared[entry].request
        accepted, pointer, runtime = control.accepted(), self.root.pointer.read(), control.runtime()
        assert pointer is not None
        served = self.room.serving(pointer)
        return {
            "accepted": accepted.generation - request.baseline.generation,
            "pointer": pointer.generation - request.baseline.generation,
            "runtime": 0 if runtime.adapter_sha256 == request.baseline.adapter_sha256 else 1,
            "answers": served is not None and served.running() is True,
            "owner": control.owner() is not None,
            "blocked": control.blocker() is not None,
        }

    def verified(self, entry: str = "train", recovery: str | None = None) -> list[str]:
        """What is wrong with the signed bundle; it has to be there."""
        path = self.files(entry, recovery).path / "bundle.tar"
        if not path.exists():
            return ["there is no bundle"]
        verification = BundleVerification(path.read_bytes(), read_public_key(self.home / "signing.pub"))
        return [f"{v.check}: {v.reason}" for v in verification.verdicts() if v.ok is not True]


def install(home: Path) -> Path:
    """Make the interpreter of phases and servers; return its path."""
    place = home / "standin" / "bin"
    place.mkdir(parents=True)
    (home / "faults").mkdir()
    (place / "faults").mkdir()
    (place / "prompts.json").write_text(json.dumps(QUICK.prompts), encoding="utf-8")
    call = f"\nmain({str(SUPPORT)!r}, {str(ROOT)!r})\n"
    program = place / "python"
    packages = [path for path in sys.path if path.endswith("-packages")]
    text = (SUPPORT / "release_python.py").read_text(encoding="utf-8")
    text = text.replace("PACKAGES: list[str] = []", f"PACKAGES = {packages!r}")
    program.write_text(f"#!{sys.executable} -IS\n{text}{call}")
    program.chmod(0o700)
    return program


@contextmanager
def benched(folder: Path) -> Iterator[Bench]:
    """A bench in a directory that is made; on a small file system of its own where one can be mounted."""
    # Work stealing may come back to a module whose bench was closed before.
    folder = folder.with_name(f"{folder.name}-{next(_BENCHES)}")
    folder.mkdir(mode=0o700)
    mounted = os.geteuid() == 0 and (
        subprocess.run(
            ["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES},mode=0700", "tmpfs", str(folder)],
            check=False,
            capture_output=True,
        ).returncode
        == 0
    )
    zygote = Zygote()
    try:
        bench = Bench(folder, zygote)
        bench.small = mounted
        try:
            yield bench
        finally:
            bench.close()
    finally:
        zygote.close()
        if mounted:
            subprocess.run(["umount", "-l", str(folder)], check=True)


def kill(identity: ProcessIdentity | None) -> None:
    """SIGKILL."""
    assert identity is not None
    assert send_signal(identity, signal.SIGKILL)


__all__ = ["Bench", "Life", "Zygote", "kill", "phase_faults", "release_agent"]
