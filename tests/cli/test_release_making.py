"""`release init`, `prepare`, `plan` and `submit` as an engineer uses them, without what trains."""

from __future__ import annotations

import json
import shutil
import stat
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("cryptography", reason="signatures need the extra: pip install 'ticket-agent[release]'")

from cli_support import contents, now_ms
from hive_support import SPEC, running_hive
from release_lab import Lab, installed, tensors_of, write_adapter
from scripted_console import refused_port

from ticket_agent.exits import Exit
from ticket_agent.hive.reference.faults import Fault, FaultKind, Faults
from ticket_agent.peft.release.layout import BEGUN_FILE, Begun
from ticket_agent.peft.release.release_record import Authority
from ticket_agent.peft.release.statement import LauncherFacts
from ticket_agent.protocol import parse_spec

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from cli_support import Answer, Operator

    from ticket_agent.hive.reference import ConsoleServer, ReferenceHive


@dataclass(frozen=True, kw_only=True)
class Engineer:
    """Somebody with a stand-in for the interpreter that trains."""

    operator: Operator
    python: Path

    @property
    def folder(self) -> Path:
        return self.operator.home / "release"

    def init(self, *more: str) -> Answer:
        return self.operator.run(
            "release", "init", "release", "--python", str(self.python), "--unconfined", *more
        )

    def make(self) -> Lab:
        """What `init` makes, without a process."""
        return Lab.make(self.folder, python=self.python, unconfined=True)

    def run(self, command: str, *more: str | Path) -> Answer:
        config = self.folder / "release.toml"
        return self.operator.run("release", command, "--release-config", config, *more)

    def prepare(self, operation: str = "release-1", *more: str | Path, entry: str = "train") -> Answer:
        names = ["--operation", operation, "--model", "assistant", "--entry", entry]
        return self.run("prepare", "--selection", self.folder / "selection.toml", *names, *more)


def stand_in(path: Path, **changes: str | None) -> Path:
    """An interpreter that answers as one with the extra does; it does nothing else."""
    has = installed()
    answer = {"python": has.python, "cuda": None, "versions": dict(has.versions) | changes}
    path.write_text(f"#!/bin/sh\necho '{json.dumps(answer)}'\n")
    path.chmod(0o755)
    return path


@pytest.fixture
def engineer(operator: Operator) -> Engineer:
    return Engineer(operator=operator, python=stand_in(operator.home / "python"))


@pytest.fixture
def ready(engineer: Engineer) -> Engineer:
    """With a release prepared in it."""
    engineer.make().prepare("release-1")
    return engineer


# -- init -------------------------------------------------------------------------------------------------


def test_a_directory_is_made_and_the_next_commands_work(engineer: Engineer) -> None:
    answer = engineer.init()
    assert (answer.code, answer.err) == (Exit.OK, "")
    lines = answer.out.splitlines()
    assert lines[0] == f"made {engineer.folder}"
    prepare, _, _, plan, submit, _ = (line.strip() for line in lines[lines.index("next:") + 1 :])
    done = engineer.operator.run(*prepare.split()[1:])
    assert (done.code, done.out.splitlines()[0]) == (Exit.OK, "prepared release-1: train of assistant")
    assert engineer.operator.run(*plan.split()[1:]).code == Exit.DEGRADED
    assert submit.endswith("--operation release-1 --worker WORKER")


def test_programs_read_what_was_made(engineer: Engineer) -> None:
    told = engineer.init("--json").object
    assert told["kind"] == "release-init"
    assert told["release_config"] == str(engineer.folder / "release.toml")
    assert told["changed"] == []
    assert [command.split()[2] for command in told["next"]] == [
        "prepare",
        "serve",
        "--peft-release-config",
        "plan",
        "submit",
        "watch",
    ]


def test_a_directory_is_made_once(engineer: Engineer) -> None:
    engineer.init()
    before = contents(engineer.folder)
    again = engineer.init()
    assert (again.code, again.line) == (
        Exit.FAILURE,
        f"ticket-agent: {engineer.folder} is not empty; name a new directory",
    )
    assert contents(engineer.folder) == before


def test_an_interpreter_without_the_extra_is_named_with_the_remedy(engineer: Engineer) -> None:
    bare = stand_in(engineer.operator.home / "bare", torch=None, peft=None)
    answer = engineer.operator.run("release", "init", "release", "--python", bare)
    assert answer.code == Exit.FAILURE
    assert (
        f"{bare} has no peft, torch; run: {bare} -m pip install 'ticket-agent[train,release]'" in answer.line
    )
    assert not engineer.folder.exists()


@pytest.mark.parametrize(
    ("script", "line"),
    [
        ("#!/bin/sh\necho hello\n", "does not answer like an interpreter"),
        (
            "#!/bin/sh\necho Killed >&2\nexit 1\n",
            "3.11 or newer: Killed",
        ),
        (None, "No such file or directory"),
    ],
)
def test_what_is_no_interpreter_is_named(engineer: Engineer, script: str | None, line: str) -> None:
    other = engineer.operator.home / "other"
    if script is not None:
        other.write_text(script)
        other.chmod(0o755)
    answer = engineer.operator.run("release", "init", "release", "--python", other)
    assert answer.code == Exit.FAILURE
    assert line in answer.line


def test_a_base_model_of_ones_own_is_copied(engineer: Engineer) -> None:
    engineer.make()
    model = engineer.operator.home / "model"
    shutil.copytree(engineer.folder / "base", model)
    config = json.loads((model / "tokenizer_config.json").read_text())
    del config["chat_template"]
    (model / "tokenizer_config.json").write_text(json.dumps(config))
    answer = engineer.operator.run(
        "release",
        "init",
        "own",
        "--base",
        model,
        "--python",
        engineer.python,
        "--port",
        "9001",
        "--port",
        "9002",
    )
    assert answer.code == Exit.OK
    assert "changed in the copy of the base model: tokenizer_config.json has a chat_template" in answer.out
    assert "ports = [9001, 9002]" in (engineer.operator.home / "own/release.toml").read_text()


def test_secrets_are_private(engineer: Engineer) -> None:
    engineer.make()
    for name in ("source.key", "signing.key", "token"):
        assert stat.S_IMODE((engineer.folder / name).stat().st_mode) == 0o600


# -- prepare ----------------------------------------------------------------------------------------------


def test_preparing_prints_the_digests_and_again_the_same(engineer: Engineer) -> None:
    engineer.make()
    first, second = (
        engineer.prepare("release-1", "--json").object,
        engineer.prepare("release-1", "--json").object,
    )
    assert (first.pop("again"), second.pop("again")) == (False, True)
    assert first == second
    assert len(first["request_sha256"]) == 64
    told = engineer.prepare().out
    assert told.startswith("prepared release-1: train of assistant (it was already; nothing was changed)\n")
    assert f"  request   {first['request_sha256']}\n" in told
    assert "  starts from generation 0\n" in told


def test_an_adapter_that_does_not_fit_is_told_in_full(engineer: Engineer) -> None:
    engineer.make()
    adapter = write_adapter(
        engineer.operator.home / "adapter", config={"r": 4, "lora_alpha": 8}, tensors=tensors_of(1, rank=4)
    )
    answer = engineer.prepare("release-1", "--adapter", adapter, entry="import")
    assert (answer.code, answer.line) == (
        Exit.FAILURE,
        "ticket-agent: adapter_config.json: rank is 4; the profile says 2",
    )
    heading, *rows = answer.err.splitlines()[:-1]
    assert heading.split() == ["DIFFERS", "PROFILE", "ADAPTER", "COUNT"]
    assert any(row.split()[0].endswith("*.self_attn.q_proj.lora_A.weight") for row in rows)
    assert engineer.run("plan", "--operation", "release-1").line.endswith(
        "release release-1 was not prepared here; run ticket-agent release prepare"
    )


@pytest.mark.parametrize(
    ("more", "entry", "line"),
    [
        ((), "import", "--entry import takes an adapter"),
        (("--adapter", "x"), "train", "--entry train takes no adapter"),
        (("--adapter-source", "x"), "train", "--entry train takes no adapter"),
        (("--adapter", "x", "--resume", "y"), "import", "--resume goes on with a training"),
    ],
)
def test_options_that_do_not_go_together(
    engineer: Engineer, more: tuple[str, ...], entry: str, line: str
) -> None:
    engineer.make()
    answer = engineer.prepare("release-1", *more, entry=entry)
    assert answer.code == Exit.USAGE
    assert line in answer.line


def test_an_import_says_where_it_comes_from(engineer: Engineer) -> None:
    engineer.make()
    adapter = write_adapter(engineer.operator.home / "adapter")
    origin = ("--adapter-source", "team/adapter", "--adapter-revision", "v3", "--adapter-license", "CC0-1.0")
    told = engineer.prepare("release-1", "--adapter", adapter, *origin, "--json", entry="import").object
    objects = engineer.folder / "root/objects"
    texts = [path.read_bytes() for path in objects.iterdir() if path.stat().st_size < 4096]
    assert any(b'"revision":"v3","source":"team/adapter"' in text for text in texts)
    assert told["adapter_sha256"] is not None


def test_a_wrong_configuration_is_a_usage_error(engineer: Engineer) -> None:
    engineer.make()
    path = engineer.folder / "release.toml"
    path.write_text(path.read_text() + "surprise = 1\n")
    answer = engineer.prepare()
    assert answer.code == Exit.USAGE
    assert "unknown key surprise" in answer.line


# -- plan -------------------------------------------------------------------------------------------------


def test_a_plan_tells_every_gate_and_changes_nothing(ready: Engineer) -> None:
    before = contents(ready.folder)
    answer = ready.run("plan", "--operation", "release-1")
    assert (answer.code, answer.err) == (Exit.DEGRADED, "")
    lines = answer.out.splitlines()
    assert "PASS  baseline: generation 0 is deployed, as the request says" in lines
    at = lines.index("WAIT  incumbent: nothing was ever served here")
    assert lines[at + 1] == "      to do: have what is deployed served: ticket-agent release serve"
    assert lines[-1].endswith("gates, 1 not passed: submitted now, it would wait")
    assert contents(ready.folder) == before


def test_programs_read_one_object_per_gate_and_the_verdict(ready: Engineer) -> None:
    *found, verdict = ready.run("plan", "--operation", "release-1", "--json").objects
    assert {entry["kind"] for entry in found} == {"gate"}
    assert [entry["code"] for entry in found if entry["verdict"] == "waits"] == ["incumbent"]
    assert (verdict["kind"], verdict["verdict"], verdict["entry"]) == ("release-plan", "waits", "train")
    by_digest = ready.run("plan", "--request", verdict["request_sha256"], "--json").objects
    assert by_digest[-1] == verdict


def test_a_package_that_is_not_the_pinned_one_fails(ready: Engineer) -> None:
    stand_in(ready.python, torch="0.1")
    answer = ready.run("plan", "--operation", "release-1")
    assert answer.code == Exit.FAILURE
    assert "FAIL  interpreter: torch is 0.1, pinned " in answer.out
    assert answer.out.splitlines()[-1].endswith("submitted now, it would be refused")


def test_an_interpreter_that_lost_the_extra_fails(ready: Engineer) -> None:
    stand_in(ready.python, **{"ticket-agent": None})
    answer = ready.run("plan", "--operation", "release-1")
    assert answer.code == Exit.FAILURE
    assert f"FAIL  interpreter: {ready.python} has no ticket-agent; run: " in answer.out


@pytest.mark.parametrize("more", [(), ("--operation", "a", "--request", "b")])
def test_a_release_is_named_in_one_way(ready: Engineer, more: tuple[str, ...]) -> None:
    answer = ready.run("plan", *more)
    assert (answer.code, answer.line) == (
        Exit.USAGE,
        "ticket-agent: name the release with --operation, or its request with --request",
    )


def test_a_recovery_of_nothing_fails(ready: Engineer) -> None:
    answer = ready.run("plan", "--operation", "release-1", "--recovery-only")
    assert answer.code == Exit.FAILURE
    assert "FAIL  recovery: no release release-1 of this request ever began" in answer.out


# -- submit -----------------------------------------------------------------------------------------------

WORKER = ["--worker", "worker-1"]


@pytest.fixture
def hive() -> Iterator[tuple[ReferenceHive, ConsoleServer]]:
    with running_hive(clock=now_ms) as (model, server):
        model.spawn_worker("worker-lora")
        yield model, server


def submit(ready: Engineer, server: ConsoleServer, *more: str) -> Answer:
    return ready.run("submit", "--operation", "release-1", *WORKER, *ready.operator.at(server), *more)


def test_a_release_is_asked_for_once(ready: Engineer, hive: tuple[ReferenceHive, ConsoleServer]) -> None:
    model, server = hive
    began_ms = now_ms()
    answer = submit(ready, server, "--id", "t-1")
    ended_ms = now_ms()
    assert (answer.code, answer.out) == (Exit.OK, "admitted: t-1\n")
    assert answer.err == "it will wait: incumbent: nothing was ever served here\n"
    (admission,) = model.admissions()
    request = json.loads(admission.line)
    prepared = ready.prepare("release-1", "--json").object
    assert request["action"] == "peft.release"
    assert request["args"] == {"request_sha256": prepared["request_sha256"]}
    assert (request["operation_id"], request["subject_ref"]) == ("release-1", "assistant")
    assert (request["receipt_worker_role"], request["receipt_worker_id"]) == ("worker-lora", "worker-1")
    # Eight phases and a rollback of 300 s each, two starts of a server, the watch, the end of the old one.
    assert began_ms <= request["expires_unix_ms"] - 2_991_000 <= ended_ms


def test_a_dry_run_prints_the_line_and_appends_nothing(
    ready: Engineer, hive: tuple[ReferenceHive, ConsoleServer]
) -> None:
    began_ms = now_ms()
    answer = submit(ready, hive[1], "--dry-run", "--expires-in", "60", "--key", "again")
    ended_ms = now_ms()
    spec = parse_spec(answer.out.strip().encode(), source="raw")
    assert (spec.action, spec.idempotency_key, spec.receipt_mode) == ("peft.release", "again", "worker")
    assert spec.expires_unix_ms is not None
    assert began_ms <= spec.expires_unix_ms - 60_000 <= ended_ms
    assert hive[0].appended(SPEC) == 0


def test_what_would_be_refused_is_not_sent(
    ready: Engineer, hive: tuple[ReferenceHive, ConsoleServer]
) -> None:
    stand_in(ready.python, torch="0.1")
    answer = submit(ready, hive[1])
    assert answer.code == Exit.FAILURE
    assert answer.line.startswith("ticket-agent: not submitted: interpreter: torch is 0.1, pinned ")
    assert hive[0].appended(SPEC) == 0


def _begin(ready: Engineer) -> str:
    prepared = ready.prepare("release-1", "--json").object
    begun = Begun(
        operation_id="release-1",
        request_sha256=prepared["request_sha256"],
        authority=Authority(ticket_id="t-1", idempotency_key="t-1", writer_epoch=1),
        expires_unix_ms=1,
        provider_graph_sha256="ab" * 32,
        launcher=LauncherFacts(name="bubblewrap", guarantees=(), missing=()),
        began_unix_ms=0,
    )
    (ready.folder / "root/operations/release-1" / BEGUN_FILE).write_bytes(begun.encode())
    return str(prepared["request_sha256"])


def test_a_recovery_says_so_and_has_a_ticket_of_its_own(
    ready: Engineer, hive: tuple[ReferenceHive, ConsoleServer]
) -> None:
    model, server = hive
    request_sha256 = _begin(ready)
    assert "has begun under ticket t-1" in submit(ready, server).line
    assert "a recovery needs another one" in submit(ready, server, "--recovery-only", "--id", "t-1").line
    wrong = submit(ready, server, "--recovery-only", "--id", "t.2")
    assert (wrong.code, "--id of a recovery must be 1..=64" in wrong.line) == (Exit.USAGE, True)
    assert submit(ready, server, "--recovery-only", "--id", "t-2").code == Exit.OK
    (admission,) = model.admissions()
    assert json.loads(admission.line)["args"] == {"request_sha256": request_sha256, "recovery_only": True}


def test_a_worker_that_is_not_there_takes_nothing(
    ready: Engineer, hive: tuple[ReferenceHive, ConsoleServer]
) -> None:
    at = ready.operator.at(hive[1])
    answer = ready.run("submit", "--operation", "release-1", "--worker", "worker-9", *at)
    assert answer.code == Exit.HIVE_REFUSED
    assert hive[0].appended(SPEC) == 0


def test_a_hive_that_is_not_there_is_told(ready: Engineer) -> None:
    at = ["--tcp-port", str(refused_port()), "--auth-token", "env:LAB_TOKEN"]
    answer = ready.run("submit", "--operation", "release-1", *WORKER, *at)
    assert answer.code == Exit.HIVE_UNREACHABLE


def test_a_lost_answer_is_looked_up_and_not_sent_again(ready: Engineer) -> None:
    after = Faults(Fault(kind=FaultKind.DROP_AFTER, verb="ECHO", prefix=SPEC, nth=1))
    with running_hive(clock=now_ms, faults=after) as (model, server):
        model.spawn_worker("worker-lora")
        answer = submit(ready, server, "--id", "t-1")
        assert (answer.code, answer.out) == (
            Exit.OK,
            "admitted: t-1 (read back; the answer itself was lost)\n",
        )
        assert model.appended(SPEC) == 1
    before = Faults(Fault(kind=FaultKind.DROP_BEFORE, verb="ECHO", prefix=SPEC, nth=1))
    with running_hive(clock=now_ms, faults=before) as (model, server):
        model.spawn_worker("worker-lora")
        answer = submit(ready, server, "--id", "t-1")
        assert answer.code == Exit.UNCERTAIN
        assert "whether it was admitted is not known; look with: ticket-agent status" in answer.line
        assert model.appended(SPEC) == 0
