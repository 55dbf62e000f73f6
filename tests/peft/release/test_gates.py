"""Every gate of a release: what passes, what refuses it for ever, and what lets it wait."""

from __future__ import annotations

import shutil
import subprocess
import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("cryptography", reason="signatures need the extra: pip install 'ticket-agent[release]'")

from cli_support import contents
from release_lab import Lab, installed, tensors_of, write_adapter
from serving_support import TRANSFORMERS, Running, free_port, instance, start_double

from ticket_agent.peft.release import gate_host
from ticket_agent.peft.release.adapter_diff import MAX_DIFFERENCES, Difference, differences
from ticket_agent.peft.release.bundle import BundleManifest, encode_bundle
from ticket_agent.peft.release.detect import Detection
from ticket_agent.peft.release.gates import GATES, Asked, Gate, GateVerdict, HostFacts, gates
from ticket_agent.peft.release.guarantees import Guarantee, Verdict
from ticket_agent.peft.release.inputs import encode_input, parse_input
from ticket_agent.peft.release.layout import BEGUN_FILE, END_FILE, Begun
from ticket_agent.peft.release.markers import Blocker, Owner, RuntimeSelection
from ticket_agent.peft.release.phases import ReleaseState
from ticket_agent.peft.release.release_record import Authority, ReleaseRecord
from ticket_agent.peft.release.request import Entry, encode_request
from ticket_agent.peft.release.server_room import ServerRoom
from ticket_agent.peft.release.serving_pointer import POINTER_FILE, ServingPointer
from ticket_agent.peft.release.skeleton_base import TINY_GEOMETRY
from ticket_agent.peft.release.statement import LauncherFacts
from ticket_agent.peft.roots import open_to_read
from ticket_agent.protocol.json_strict import dumps

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from ticket_agent.peft.release.installed import Installed
    from ticket_agent.peft.release.prepare import PreparedRelease
    from ticket_agent.peft.release.private_root import PrivateRoot

PASS, REFUSED, WAITS = GateVerdict.PASS, GateVerdict.REFUSED, GateVerdict.WAITS
TICKET = "t-1"


class _Launcher:
    name = "bubblewrap"

    def start(self, command: object) -> Any:
        raise AssertionError(command)


LAUNCHER = Detection(
    launcher=_Launcher(),
    unconfined=False,
    verdicts=(
        Verdict(guarantee=Guarantee.NETWORK, held=True, detail="its own"),
        Verdict(guarantee=Guarantee.MEMORY, held=False, detail="not limited"),
    ),
    passed_over=(),
)


class Scene:
    """A release that was prepared, on a host where everything is in order."""

    def __init__(self, folder: Path, *, imports: bool = False) -> None:
        self.lab = Lab.make(folder / "release")
        self.prepared: PreparedRelease = self.lab.prepare(adapter=self.lab.adapter() if imports else None)
        self.asked = Asked(
            operation_id="release-one",
            model_id="assistant",
            request_sha256=self.prepared.request_sha256,
            ticket_id=TICKET,
        )
        self.facts = HostFacts(launcher=LAUNCHER, installed=installed())
        self.thorough = False
        self.point(generation=0, artifact=self.prepared.profile.base)

    @property
    def root(self) -> Path:
        return self.lab.config.root

    def point(self, *, generation: int, artifact: str, port: int = 18101) -> ServingPointer:
        pointer = ServingPointer(
            name=f"assistant-g{generation}-{artifact[:12]}",
            port=port,
            generation=generation,
            artifact_sha256=artifact,
        )
        (self.root / POINTER_FILE).write_bytes(pointer.encode())
        return pointer

    def change(self, action: Callable[[PrivateRoot], object]) -> None:
        with self.lab.opened() as root, root.locked():
            action(root)

    def begin(self, *, ticket: str = TICKET, request: str | None = None, ended: str | None = None) -> None:
        begun = Begun(
            operation_id="release-one",
            request_sha256=request or self.asked.request_sha256,
            authority=Authority(ticket_id=ticket, idempotency_key=ticket, writer_epoch=1),
            expires_unix_ms=1,
            provider_graph_sha256="ab" * 32,
            launcher=LauncherFacts(name="bubblewrap", guarantees=(), missing=()),
            began_unix_ms=0,
        )
        self.change(lambda root: root.write_operation_file("release-one", BEGUN_FILE, begun.encode()))
        if ended is not None:
            record = ReleaseRecord(
                operation_id=begun.operation_id,
                request_sha256=begun.request_sha256,
                authority=begun.authority,
                state=ReleaseState.FAILED,
                phases=(),
            )
            data = dumps(record.members() | {"state": ended})
            self.change(lambda root: root.write_operation_file("release-one", END_FILE, data))

    def look(self) -> dict[str, Gate]:
        return {
            gate.code: gate
            for gate in gates(self.lab.config, self.asked, facts=self.facts, thorough=self.thorough)
        }

    def other(self) -> list[Gate]:
        """The gates that do not pass."""
        return [gate for gate in self.look().values() if gate.verdict is not PASS]

    def owner(self, operation: str = "release-zero") -> Owner:
        sha256 = self.asked.request_sha256 if operation == "release-one" else "cd" * 32
        return Owner(operation_id=operation, request_sha256=sha256)


class _Alive:
    """The server that a pointer names runs; the tests of servers have real ones."""

    def __init__(self, *_: object) -> None:
        pass

    def serving(self, _: ServingPointer) -> _Alive:
        return self

    def running(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def _served(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gate_host, "ServerRoom", _Alive)


def _open_folder(path: Path) -> None:
    """A directory that everybody can look into, whatever the mask is."""
    path.mkdir()
    path.chmod(0o755)


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    return Scene(tmp_path)


def test_everything_passes_in_the_documented_order(scene: Scene) -> None:
    found = scene.look()
    assert [gate.code for gate in scene.other()] == []
    assert list(found) == [code for code in GATES if code not in {"recovery", "attempts"}]
    assert all(gate.remedy is None for gate in found.values())


def test_looking_changes_nothing(scene: Scene) -> None:
    before = contents(scene.lab.folder)
    scene.thorough = True
    scene.look()
    assert contents(scene.lab.folder) == before


def test_an_import_passes_and_says_what_was_scanned(tmp_path: Path) -> None:
    scene = Scene(tmp_path, imports=True)
    assert scene.other() == []
    detail = scene.look()["adapter"].detail
    assert detail.startswith(f"{scene.prepared.adapter_sha256}, 8 tensors of F32, ")


def _config(**changes: Any) -> Callable[[Scene], None]:
    def change(scene: Scene) -> None:
        scene.lab = replace(scene.lab, config=replace(scene.lab.config, **changes))

    return change


def _asked(**changes: Any) -> Callable[[Scene], None]:
    def change(scene: Scene) -> None:
        scene.asked = replace(scene.asked, **changes)

    return change


def _remove_object(of: Callable[[PreparedRelease], str]) -> Callable[[Scene], None]:
    return lambda scene: (scene.root / "objects" / of(scene.prepared)).unlink()


def _spoil_object(of: Callable[[PreparedRelease], str]) -> Callable[[Scene], None]:
    def spoil(scene: Scene) -> None:
        path = scene.root / "objects" / of(scene.prepared)
        data = path.read_bytes()
        path.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))

    return spoil


def _facts(**changes: Any) -> Callable[[Scene], None]:
    def change(scene: Scene) -> None:
        scene.facts = replace(scene.facts, **changes)

    return change


def _versions(**changes: str | None) -> Installed:
    has = installed()
    return replace(has, versions=dict(has.versions) | changes)


def _promote(scene: Scene) -> None:
    before = scene.prepared.request.baseline
    after = replace(before, generation=1, adapter_sha256="ab" * 32, served_artifact_sha256="ab" * 32)
    scene.change(lambda root: root.control.promote(before, after))
    scene.point(generation=1, artifact="ab" * 32)


def _promoted_by_other(scene: Scene) -> None:
    _promote(scene)
    scene.change(lambda root: root.control.claim(scene.owner()))


def _block(operation: str) -> Callable[[Scene], None]:
    def block(scene: Scene) -> None:
        owner = scene.owner(operation)
        blocker = Blocker(
            operation_id=operation,
            request_sha256=owner.request_sha256,
            reason="the old server is gone",
            since_unix_ms=1,
        )
        scene.change(lambda root: root.control.block(blocker))

    return block


def _write(name: str, data: bytes) -> Callable[[Scene], object]:
    return lambda scene: (scene.root / name).write_bytes(data)


CASES: dict[str, tuple[Callable[[Scene], object], str, GateVerdict, str]] = {
    "root is gone": (lambda s: _config(root=s.root / "none")(s), "root", WAITS, "does not exist"),
    "root is open": (lambda s: s.root.chmod(0o755), "root", WAITS, "release root"),
    "operation id": (_asked(operation_id="a.b"), "ids", REFUSED, "operation_id must be 1..=64"),
    "model id": (_asked(model_id="../up"), "ids", REFUSED, "model id"),
    "other request": (
        _asked(request_sha256="ab" * 32),
        "request",
        REFUSED,
        "is not in the object store",
    ),
    "other model": (
        _asked(model_id="other"),
        "request",
        REFUSED,
        "model_id is assistant; the ticket says other",
    ),
    "request damaged": (
        _spoil_object(lambda p: p.request_sha256),
        "request",
        REFUSED,
        "does not have the content",
    ),
    "profile gone": (
        _remove_object(lambda p: p.profile_sha256),
        "request",
        REFUSED,
        "the profile is not in",
    ),
    "input gone": (_remove_object(lambda p: p.input_sha256), "request", REFUSED, "the input is not in"),
    "used by another request": (
        lambda s: s.begin(request="ab" * 32),
        "operation",
        REFUSED,
        "began with another",
    ),
    "begun by another ticket": (
        lambda s: s.begin(ticket="t-2"),
        "operation",
        REFUSED,
        "has begun under ticket t-2",
    ),
    "ended": (
        lambda s: s.begin(ended="failed"),
        "operation",
        REFUSED,
        "has ended (failed) under ticket t-1",
    ),
    "begun note damaged": (
        lambda s: s.change(lambda root: root.write_operation_file("release-one", BEGUN_FILE, b"{}")),
        "operation",
        REFUSED,
        "begun.json: ",
    ),
    "blocked": (
        _block("release-zero"),
        "blocker",
        REFUSED,
        "the rollback of release release-zero failed",
    ),
    "blocked, damaged": (
        _write("release-blocked.json", b"?"),
        "blocker",
        REFUSED,
        "release-blocked.json: ",
    ),
    "owned": (
        lambda s: s.change(lambda root: root.control.claim(s.owner())),
        "owner",
        WAITS,
        "release release-zero is not finished",
    ),
    "deployment moved": (
        _promote,
        "baseline",
        REFUSED,
        "the request starts from generation 0",
    ),
    "moved by one that is not finished": (
        _promoted_by_other,
        "baseline",
        WAITS,
        "release-zero is not finished",
    ),
    "accepted damaged": (_write("accepted.json", b"{}"), "baseline", REFUSED, "accepted.json: "),
    "base gone": (
        _remove_object(lambda p: p.profile.base),
        "base",
        REFUSED,
        "the base model's manifest is not in",
    ),
    "weights gone": (
        _remove_object(lambda p: p.profile.stack.base.weights_sha256),
        "base",
        REFUSED,
        "the base model's model.safetensors is not in",
    ),
    "rows gone": (
        _remove_object(lambda p: p.profile.eval_data),
        "rows",
        REFUSED,
        "the evaluation data is not in",
    ),
    "nobody vouches": (
        _remove_object(lambda p: p.profile.attestations[0]),
        "attestations",
        REFUSED,
        "does not exist",
    ),
    "vouching damaged": (
        _spoil_object(lambda p: p.profile.attestations[0]),
        "attestations",
        REFUSED,
        "does not have the content",
    ),
    "other package": (
        _facts(installed=_versions(torch="1.0", peft=None)),
        "interpreter",
        REFUSED,
        "peft is not installed, pinned",
    ),
    "other python": (
        _facts(installed=replace(installed(), python="3.99")),
        "interpreter",
        REFUSED,
        "python is 3.99, pinned 3.",
    ),
    "never served": (
        lambda s: (s.root / POINTER_FILE).unlink(),
        "incumbent",
        WAITS,
        "nothing was ever served",
    ),
    "other served": (
        lambda s: s.point(generation=1, artifact="ab" * 32),
        "incumbent",
        WAITS,
        "is not what is deployed",
    ),
    "nothing selected": (
        lambda s: (s.root / "runtime.json").unlink(),
        "incumbent",
        WAITS,
        "runtime.json does not exist",
    ),
    "other selected": (
        lambda s: s.change(
            lambda root: root.control.select_runtime(
                RuntimeSelection(bundle_sha256=s.prepared.profile.base, adapter_sha256="ab" * 32)
            )
        ),
        "incumbent",
        WAITS,
        "name different adapters",
    ),
    "no token": (lambda s: s.lab.config.token_file.unlink(), "token", WAITS, "does not exist"),
    "token for all": (lambda s: s.lab.config.token_file.chmod(0o640), "token", WAITS, "chmod 600"),
    "short token": (
        lambda s: s.lab.config.token_file.write_text("short"),
        "token",
        WAITS,
        "must be 32..=128",
    ),
    "no key": (
        lambda s: s.lab.config.signing_key.unlink(),  # type: ignore[union-attr]
        "signing",
        WAITS,
        "key file",
    ),
    "key for all": (
        lambda s: s.lab.config.signing_key.chmod(0o644),  # type: ignore[union-attr]
        "signing",
        WAITS,
        "is open to others",
    ),
    "evidence for all": (
        lambda s: _open_folder(s.root / "evidence"),
        "evidence",
        WAITS,
        "evidence root",
    ),
}


@pytest.mark.parametrize("kind", CASES)
def test_what_is_wrong_shows_at_its_gate_and_at_no_other(scene: Scene, kind: str) -> None:
    spoil, code, verdict, line = CASES[kind]
    spoil(scene)
    found = scene.look()
    others = [gate for gate in scene.other() if gate.code != code]
    gate = found[code]
    assert (gate.verdict, line in gate.detail) == (verdict, True), gate
    assert gate.remedy
    expected = {"baseline": {"owner", "incumbent"}, "incumbent": {"baseline"}, "base": {"incumbent"}}
    assert {gate.code for gate in others} <= expected.get(code, set()), others


def test_without_a_request_what_depends_on_it_is_not_looked_at(scene: Scene) -> None:
    _asked(request_sha256="ab" * 32)(scene)
    assert not scene.look().keys() & {"baseline", "base", "rows", "adapter", "interpreter", "space"}


def test_what_is_not_known_of_the_host_is_left_out(scene: Scene) -> None:
    scene.facts = HostFacts()
    assert not scene.look().keys() & {"interpreter", "launcher"}


def test_a_ticket_that_began_the_release_may_go_on(scene: Scene) -> None:
    scene.begin()
    scene.change(lambda root: root.control.claim(scene.owner("release-one")))
    assert scene.other() == []
    assert scene.look()["operation"].detail == "has begun under this ticket"


def test_the_launcher_says_what_it_does_not_hold(scene: Scene) -> None:
    detail = scene.look()["launcher"].detail
    assert detail == "bubblewrap: 1 guarantees held; NOT: memory"
    scene.facts = replace(scene.facts, launcher=replace(LAUNCHER, unconfined=True))
    assert scene.look()["launcher"].detail.startswith("without confinement: ")


def test_a_full_disk_lets_a_release_wait(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    class Full:
        f_bavail, f_frsize = 100, 4096

    monkeypatch.setattr("ticket_agent.peft.release.gate_host.os.statvfs", lambda _: Full)
    (gate,) = scene.other()
    assert (gate.code, gate.verdict, gate.detail) == ("space", WAITS, "0 MiB free, 129 MiB wanted")


HOLD = """
import fcntl, sys
with open(sys.argv[1], "r+") as file:
    fcntl.flock(file, fcntl.LOCK_EX)
    print("held", flush=True)
    sys.stdin.read()
"""


def test_somebody_who_works_in_the_root_is_named(scene: Scene) -> None:
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(scene.root / "lock")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    with holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        (gate,) = scene.other()
        assert (gate.code, gate.verdict) == ("lock", WAITS)
        assert gate.detail.startswith(f"process {holder.pid} (")
        holder.communicate()
    assert scene.other() == []


def test_whoever_looks_may_hold_the_lock(scene: Scene) -> None:
    with scene.lab.opened() as root, root.locked():
        found = list(gates(scene.lab.config, scene.asked, facts=scene.facts, thorough=False, root=root))
    assert [gate.code for gate in found if gate.verdict is not PASS] == []
    assert "root" not in {gate.code for gate in found}


# -- only where everything is looked at -------------------------------------------------------------------


@pytest.fixture
def served(scene: Scene, tmp_path: Path) -> Iterator[tuple[Scene, Running]]:
    """What is deployed is served by the stand-in."""
    base = scene.prepared.profile.base
    made = instance(0, port=free_port(), artifact_sha256=base, token=scene.lab.config.token_file.read_text())
    running = start_double(tmp_path, TRANSFORMERS, made)
    assert scene.point(generation=0, artifact=base, port=made.port).name == made.name
    scene.thorough = True
    yield scene, running
    running.terminate()
    running.process.communicate()


def test_the_server_is_asked(served: tuple[Scene, Running]) -> None:
    scene, running = served
    assert scene.other() == []
    running.terminate()
    running.process.wait()
    (gate,) = scene.other()
    assert (gate.code, gate.verdict) == ("incumbent", WAITS)
    assert "does not answer" in gate.detail


def test_a_server_of_something_else_is_noticed(served: tuple[Scene, Running]) -> None:
    scene, running = served
    path = scene.root / POINTER_FILE
    pointer = ServingPointer.parse(path.read_bytes())
    path.write_bytes(replace(pointer, name="assistant-g0-other").encode())
    (gate,) = scene.other()
    assert gate.detail == f"port {running.instance.port} does not serve assistant-g0-other"


@pytest.mark.parametrize("imports", [False, True])
def test_a_pointer_to_a_server_that_was_never_started_here_makes_it_wait(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, imports: bool
) -> None:
    monkeypatch.setattr(gate_host, "ServerRoom", ServerRoom)
    scene = Scene(tmp_path, imports=imports)
    (gate,) = scene.other()
    assert (gate.code, gate.verdict) == ("incumbent", WAITS)
    assert "was started here" in gate.detail


def test_bundles_that_are_gone_make_it_wait(scene: Scene) -> None:
    shutil.rmtree(scene.root / "bundles" / scene.prepared.profile.base)
    (gate,) = scene.other()
    assert (gate.code, gate.verdict) == ("bundles", WAITS)


@pytest.mark.parametrize(
    ("states", "verdict", "line"),
    [
        ([None], WAITS, "the attempt under ticket r-0 goes on"),
        (["rollback_failed"], PASS, "1 of 4 attempts made"),
        (["rollback_failed"] * 4, REFUSED, "4 attempts already"),
        (["rollback_failed", "recovered_failure"], REFUSED, "recovered already, under ticket r-1"),
    ],
)
def test_attempts_are_counted(
    scene: Scene, states: list[str | None], verdict: GateVerdict, line: str
) -> None:
    scene.begin(ended="rollback_failed")
    end = scene.root / "operations" / "release-one" / END_FILE
    for number, state in enumerate(states):
        attempt = end.parent / f"recovery-r-{number}"
        attempt.mkdir(mode=0o700)
        if state is not None:
            (attempt / END_FILE).write_bytes(end.read_bytes().replace(b"rollback_failed", state.encode()))
    scene.asked = replace(scene.asked, recovery_only=True, ticket_id="r-9")
    gate = scene.look()["attempts"]
    assert (gate.verdict, line in gate.detail) == (verdict, True), gate


def test_damaged_weights_are_found_by_reading_them(scene: Scene) -> None:
    _spoil_object(lambda p: p.profile.stack.base.weights_sha256)(scene)
    assert scene.look()["base"].verdict is PASS
    scene.thorough = True
    gate = scene.look()["base"]
    assert (gate.verdict, gate.detail) == (
        REFUSED,
        "model.safetensors of local/tiny-llama is damaged in the object store; store it again",
    )


# -- recovery ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("begun", "ticket", "verdict", "line"),
    [
        (None, "t-9", REFUSED, "no release release-one of this request ever began"),
        ({"request": "ab" * 32}, "t-9", REFUSED, "of this request ever began"),
        ({}, "t-9", PASS, "began under ticket t-1, has not ended"),
        ({}, None, PASS, "has not ended"),
        ({}, TICKET, REFUSED, "t-1 is the release's own ticket; a recovery needs another one"),
        ({"ended": "rollback_failed"}, "t-9", PASS, "ended rollback_failed"),
        ({"ended": "succeeded"}, "t-9", REFUSED, "has ended (succeeded): there is nothing to recover"),
        ({"ended": "failed"}, "t-9", REFUSED, "there is nothing to recover"),
        ({"ended": "recovered_failure"}, "t-9", REFUSED, "there is nothing to recover"),
        ({"ended": "nonsense"}, "t-9", REFUSED, "state must be"),
    ],
)
def test_what_can_be_recovered(
    scene: Scene, begun: dict[str, str] | None, ticket: str | None, verdict: GateVerdict, line: str
) -> None:
    if begun is not None:
        scene.begin(**begun)
    scene.asked = replace(scene.asked, recovery_only=True, ticket_id=ticket)
    found = scene.look()
    assert (found["recovery"].verdict, line in found["recovery"].detail) == (verdict, True), found["recovery"]
    assert not found.keys() & {"baseline", "interpreter", "incumbent", "operation"}


def test_a_recovery_passes_its_own_block_and_no_other(scene: Scene) -> None:
    scene.begin(ended="rollback_failed")
    scene.asked = replace(scene.asked, recovery_only=True, ticket_id="t-9")
    _block("release-one")(scene)
    assert scene.other() == []
    (scene.root / "release-blocked.json").unlink()
    _block("release-zero")(scene)
    (gate,) = scene.other()
    assert (gate.code, gate.verdict) == ("blocker", REFUSED)


# -- differences ------------------------------------------------------------------------------------------


def _differences(scene: Scene, **spoiling: Any) -> tuple[Difference, ...]:
    folder = write_adapter(scene.lab.folder.parent / "spoilt", **spoiling)
    with open_to_read(folder, label="adapter") as directory:
        return differences(directory, scene.prepared.profile)


def test_an_adapter_that_fits_does_not_differ(scene: Scene) -> None:
    assert _differences(scene) == ()


def test_another_rank_is_told_by_kinds_of_tensors(scene: Scene) -> None:
    found = _differences(scene, config={"r": 4, "lora_alpha": 8}, tensors=tensors_of(1, rank=4))
    told = {(item.what, item.expected, item.found, item.count) for item in found}
    prefix = "base_model.model.model.layers.*.self_attn"
    assert told == {
        ("r", "2", "4", 1),
        ("lora_alpha", "4", "8", 1),
        (f"{prefix}.q_proj.lora_A.weight", "[2, 32]", "[4, 32]", 2),
        (f"{prefix}.q_proj.lora_B.weight", "[32, 2]", "[32, 4]", 2),
        (f"{prefix}.v_proj.lora_A.weight", "[2, 32]", "[4, 32]", 2),
        (f"{prefix}.v_proj.lora_B.weight", "[16, 2]", "[16, 4]", 2),
    }


def test_missing_and_added_tensors_are_told(scene: Scene) -> None:
    tensors = dict(list(tensors_of(1).items())[1:])
    shape = (TINY_GEOMETRY.vocab_size + 1, 32)
    tensors["base_model.model.lm_head.weight"] = (shape, bytes(4 * shape[0] * shape[1]))
    found = _differences(scene, tensors=tensors, config={"use_dora": True, "modules_to_save": ["lm_head"]})
    told = [(item.what, item.expected, item.found) for item in found]
    assert ("use_dora", "not set", "True") in told
    assert ("modules_to_save", "not set", "['lm_head']") in told
    assert ("base_model.model.model.layers.*.self_attn.q_proj.lora_A.weight", "[2, 32]", "-") in told
    assert ("base_model.model.lm_head.weight", "-", "[97, 32]") in told


def test_differences_are_bounded(scene: Scene) -> None:
    tensors = tensors_of(1) | {f"extra.{number}": ((1,), bytes(4)) for number in range(200)}
    assert len(_differences(scene, tensors=tensors)) == MAX_DIFFERENCES


def test_a_file_that_cannot_be_read_has_no_differences(scene: Scene) -> None:
    assert _differences(scene, weights=b"<html>", config={"r": 2}) == ()


def test_the_gate_tells_in_what_an_adapter_differs(tmp_path: Path) -> None:
    """A request that somebody made without preparing it, for an adapter of another rank."""
    scene = Scene(tmp_path, imports=True)
    other = write_adapter(tmp_path / "other", config={"r": 4, "lora_alpha": 8}, tensors=tensors_of(1, rank=4))
    with scene.lab.opened() as root, root.locked():
        files = [(path.name, root.objects.store(path.read_bytes())) for path in sorted(other.iterdir())]
        manifest = BundleManifest(files=tuple(files), source="elsewhere", revision="1", license_ref="CC0-1.0")
        profile = scene.prepared.profile
        data = root.objects.load(scene.prepared.input_sha256)
        value = parse_input(data, entry=Entry.IMPORT, schema=profile.schema)
        assert value.adapter is not None
        adapter = replace(value.adapter, bundle_sha256=root.objects.store(encode_bundle(manifest)))
        input_sha256 = root.objects.store(encode_input(replace(value, adapter=adapter)))
        request = replace(scene.prepared.request, input_sha256=input_sha256)
        scene.asked = replace(scene.asked, request_sha256=root.objects.store(encode_request(request)))
    gate = scene.look()["adapter"]
    assert (gate.verdict, gate.detail) == (REFUSED, "adapter_config.json: rank is 4; the profile says 2")
    assert ("r", "2", "4") in {(item.what, item.expected, item.found) for item in gate.differences}
    assert scene.look()["attestations"].verdict is REFUSED
