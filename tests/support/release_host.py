"""A host with releases that never ran: a private root with the files that they would have left."""

from __future__ import annotations

import fcntl
import os
from contextlib import contextmanager
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from key_files import private_pem, public_pem, write
from private_roots import opened, store_bundle
from release_scene import (
    ATTESTER,
    BARE,
    BEGAN,
    GRAPH,
    LAUNCHER,
    POLICY,
    SCENES,
    Scene,
    successor,
)
from release_support import base_bundle, profile, sha, tiny_stack

from ticket_agent.peft.release.attestation import attest
from ticket_agent.peft.release.bundle import adapter_identity, encode_bundle
from ticket_agent.peft.release.canonical import digest, encode
from ticket_agent.peft.release.claims import input_claim
from ticket_agent.peft.release.inputs import ImportedAdapter, ReleaseInput, encode_input
from ticket_agent.peft.release.keys import PrivateKey
from ticket_agent.peft.release.layout import Begun, OperationFiles
from ticket_agent.peft.release.markers import Owner, RuntimeSelection
from ticket_agent.peft.release.output_ring import output_name
from ticket_agent.peft.release.phases import Phase
from ticket_agent.peft.release.process import ProcessIdentity
from ticket_agent.peft.release.profile import Profile, ProfileSchema, encode_profile
from ticket_agent.peft.release.release_config import ReleaseConfig
from ticket_agent.peft.release.request import Entry
from ticket_agent.peft.release.run_files import (
    EndReason,
    ExitRecord,
    RunRecord,
    reserve_exit,
    write_exit,
    write_running,
)
from ticket_agent.peft.release.spelled import spell

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from ticket_agent.peft.release.private_root import PrivateRoot
    from ticket_agent.peft.release.release_record import ReleaseRecord

GONE = ProcessIdentity(pid=1, start_ticks=1, boot_id="another-boot")
HOW = {
    name: {
        field: getattr(scene, field)
        for field in (
            "entry",
            "candidate_losses",
            "fails",
            "lost",
            "stops_before",
            "rolled_back",
            "state",
            "blocker",
            "recovery",
        )
    }
    for name, scene in SCENES.items()
}
"""How each of the scenes ends, for releases with documents of their own."""

ADAPTER_FILES = ("adapter_config.json", "adapter_model.safetensors")


def adapter(word: str) -> dict[str, bytes]:
    """Two files that stand for an adapter."""
    return {name: f"{name} of {word}".encode() for name in ADAPTER_FILES}


def identity(word: str) -> str:
    return adapter_identity(*(digest(data) for data in adapter(word).values()))


class ReleaseHost:
    """Where it all stands. ``root`` exists, with generation 0 deployed."""

    def __init__(self, home: Path, *, signing: bool = True, **config: Any) -> None:
        self.home = home
        self.place = home / "private"
        self.key = write(home / "signing.key", private_pem()) if signing else None
        self.public = write(home / "signing.pub", public_pem(), mode=0o644)
        write(home / "token", b"t" * 32 + b"\n")
        members: dict[str, Any] = {
            "root": self.place,
            "python": home / "python",
            "ports": (18001, 18002),
            "token_file": home / "token",
            "signing_key": self.key,
        }
        self.config = ReleaseConfig(**(members | config))
        self.file = home / "release.toml"
        lines = [f'root = "{self.place}"', "ports = [18001, 18002]", f'token_file = "{home / "token"}"']
        if self.key is not None:
            lines.append(f'signing_key = "{self.key}"')
        self.file.write_text("\n".join(lines) + "\n")
        self.file.chmod(0o600)
        with self.root() as root, root.locked():
            for data in (b"config", b"tokenizer", b"tokenizer config", b"vocabulary", *_ROWS):
                root.objects.store(data)
            root.objects.store(encode_bundle(base_bundle(tiny_stack())))
            root.objects.store(encode_profile(self.profile))
            root.control.initialise(self.bare)
            root.control.select_runtime(
                RuntimeSelection(bundle_sha256=self.profile.base, adapter_sha256=None)
            )

    def root(self) -> PrivateRoot:
        return opened(self.place)

    @cached_property
    def profile(self) -> Profile:
        stack = tiny_stack()
        stack = replace(stack, limits=replace(stack.limits, eval_rows=16))
        attester = PrivateKey.of(ATTESTER).public.raw.hex()
        return profile(
            ProfileSchema.OURS,
            stack=stack,
            evaluation_policy=POLICY,
            attestation_keys=(("local-reference-source", attester),),
            train_data=digest(_ROWS[0]),
            eval_data=digest(_ROWS[1]),
        )

    @property
    def bare(self) -> Any:
        return replace(
            BARE,
            served_artifact_sha256=self.profile.base,
            runtime_sha256=self.profile.context.runtime_sha256,
        )

    def scene(self, word: str = "one", **changes: Any) -> Scene:
        """A release of the adapter ``word``, with what it names in the object store."""
        entry = changes.get("entry", Entry.IMPORT)
        own = ReleaseInput(
            profile_sha256=digest(encode_profile(self.profile)),
            source_sha256=sha("sources"),
            attestations=(sha("later"),),
            license_refs=("Apache-2.0",),
            adapter=None,
        )
        with self.root() as root, root.locked():
            bundle = store_bundle(root, adapter(word))
            if entry is Entry.IMPORT:
                own = replace(
                    own,
                    adapter=ImportedAdapter(
                        bundle_sha256=bundle,
                        base_sha256=self.profile.base,
                        tokenizer_sha256=self.profile.tokenizer_sha256,
                        versions=self.profile.versions,
                    ),
                )
            made = attest(
                input_claim(own, self.profile), key_id="local-reference-source", key=PrivateKey.of(ATTESTER)
            )
            own = replace(own, attestations=(root.objects.store(made.encode()),))
            root.objects.store(encode_input(own))
            root.materialise(bundle)
            members: dict[str, Any] = {
                "operation_id": f"release-{word}",
                "baseline": self.bare,
                "profile_sha256": own.profile_sha256,
                "input_sha256": digest(encode_input(own)),
                "context": self.profile.context,
                "candidate": identity(word),
            }
            scene = Scene(**(members | changes))
            details = {
                Phase.STAGE: {"adapter_sha256": scene.candidate, "serving_bundle_sha256": bundle},
                Phase.CANARY: canary(),
                Phase.TRAIN: {"losses": [[1, 4.0], [2, 3.5], [3, 3.25]], "steps": 3},
            }
            scene = replace(scene, details=details | scene.details)
            root.objects.store(scene.request_bytes)
        return scene

    def begun(self, scene: Scene) -> Begun:
        return Begun(
            operation_id=scene.operation_id,
            request_sha256=digest(scene.request_bytes),
            authority=scene.record.authority if scene.recovery is None else scene.recovery,
            expires_unix_ms=scene.began_ms + 3_600_000,
            provider_graph_sha256=GRAPH,
            launcher=LAUNCHER,
            began_unix_ms=scene.began_ms,
        )

    def owner(self, scene: Scene) -> Owner:
        return Owner(operation_id=scene.operation_id, request_sha256=digest(scene.request_bytes))

    def files(self, scene: Scene) -> OperationFiles:
        return OperationFiles(root=self.place, operation_id=scene.operation_id)

    def begin(self, scene: Scene) -> OperationFiles:
        """The release has begun, and it owns the root."""
        files = self.files(scene)
        with self.root() as root, root.locked():
            root.control.claim(self.owner(scene))
            root.operation(scene.operation_id, create=True).close()
        put(files.path / "begun.json", self.begun(scene).encode())
        return files

    def phase(self, scene: Scene, phase: Phase, *, succeeded: bool = True) -> None:
        """A phase that ended with an observation."""
        files = self.files(scene)
        with self._supervised(files, phase):
            put(files.observation(phase), scene.observation(phase, succeeded=succeeded).encode())
            self.started(files, phase, ended=True, at=scene.time_of(phase) - 900)
        if phase is Phase.EVALUATE and succeeded:
            for name, report in zip(("baseline", "candidate"), scene.reports, strict=True):
                put(files.job(phase) / "out" / f"{name}-rows.json", report.encode())
        if phase is Phase.TRAIN and succeeded:
            log = {"schema": "ticket-agent-loss-log/v1", "steps": [1, 2, 3], "losses": [4.0, 3.5, 3.25]}
            put(files.job(phase) / "out" / "loss-log.json", spell(log))

    def started(
        self,
        files: OperationFiles,
        phase: Phase,
        *,
        ended: bool = False,
        at: int = BEGAN,
        lines: bytes = b"working\n",
    ) -> None:
        """The process of a phase: it ended well, or nobody saw how it ended."""
        make(files.job(phase) / "out")
        make(run := files.run(phase))
        (run / "lock").touch(0o600)
        (run / output_name(0)).write_bytes(lines)
        launch_id = files.launch_id(phase.value)
        fd = os.open(run, os.O_RDONLY | os.O_DIRECTORY)
        try:
            write_running(
                fd,
                RunRecord(
                    launch_id=launch_id,
                    marker="m",
                    launcher="bubblewrap",
                    unit=None,
                    supervisor=GONE,
                    child=GONE,
                    started_unix_ms=at,
                ),
            )
            if ended:
                reserve_exit(fd)
                write_exit(
                    fd,
                    ExitRecord(
                        launch_id=launch_id,
                        reason=EndReason.EXITED,
                        code=0,
                        signal=None,
                        started_unix_ms=at,
                        ended_unix_ms=at + 800,
                        output_bytes=len(lines),
                        output_lost_bytes=0,
                    ),
                )
        finally:
            os.close(fd)

    @contextmanager
    def running(self, files: OperationFiles, phase: Phase, **more: Any) -> Iterator[None]:
        """A phase that runs as long as the body."""
        with self._supervised(files, phase):
            self.started(files, phase, **more)
            yield

    @contextmanager
    def _supervised(self, files: OperationFiles, phase: Phase) -> Iterator[None]:
        make(files.run(phase))
        fd = os.open(files.run(phase) / "lock", os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX)
            yield
        finally:
            os.close(fd)

    def play(self, scene: Scene) -> OperationFiles:
        """Everything that the phases of a scene leave; the release has not ended yet."""
        files = self.begin(scene)
        for entry in scene.phases:
            if entry.result is None:
                self.started(files, entry.phase, at=scene.time_of(entry.phase) - 900)
            else:
                self.phase(scene, entry.phase, succeeded=entry.result.succeeded)
        return files

    def end(self, scene: Scene, *, conclude: bool = True) -> OperationFiles:
        """A release from its begin to its end; what it promoted is deployed."""
        from ticket_agent.peft.release.conclude import conclude as concluded  # noqa: PLC0415

        files = self.play(scene)
        record: ReleaseRecord = scene.record
        put(files.path / "release.json", spell(record.members()))
        with self.root() as root, root.locked():
            if scene.state == "succeeded":
                root.control.promote(scene.baseline, successor(scene.baseline, scene.candidate))
                bundle = scene.details[Phase.STAGE]["serving_bundle_sha256"]
                root.control.select_runtime(
                    RuntimeSelection(bundle_sha256=bundle, adapter_sha256=scene.candidate)
                )
            if conclude:
                concluded(root, self.config, files, self.begun(scene), record)
                if scene.state != "rollback_failed":
                    root.control.disclaim(self.owner(scene))
        return files


def canary(latency: int = 40) -> dict[str, Any]:
    """What a canary that went well tells."""
    rounds = [
        {
            "condition": condition,
            "behavior_sha256": [sha(f"answer {number}") for number in range(4)],
            "latency_ms": [latency + 3 * number for number in range(4)],
            "matched": [True] * 4,
            "background": background,
            "failures": 0,
        }
        for condition, background in (("idle", 0), ("loaded", 9))
    ]
    return {"name": "adapter-one-g1", "healthy": True, "rounds": rounds, "effect": None, "findings": []}


def put(path: Path, data: bytes) -> None:
    """A private file in private directories."""
    make(path.parent)
    path.write_bytes(data)
    path.chmod(0o600)


def make(path: Path) -> None:
    for part in (*reversed(path.parents), path):
        if not part.exists():
            part.mkdir(0o700)


_ROWS = tuple(
    encode([f"{word} row {number}: a text of more than sixteen characters" for number in range(count)])
    for word, count in (("train", 16), ("eval", 16))
)
