"""`once`, `submit` and `doctor` with a hive and without: codes, and one line that says what to check."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from cli_support import break_record, now_ms
from hive_support import SPEC, RawConsole, finish, raw_grant, running_hive
from scripted_console import refused_port

from ticket_agent.exits import Exit
from ticket_agent.hive.console.lock import ConsoleLock, lock_path
from ticket_agent.hive.reference import OLDER_CONSOLE, Fault, FaultKind, Faults
from ticket_agent.protocol.spec import parse_spec

if TYPE_CHECKING:
    from collections.abc import Iterator

    from cli_support import Operator

    from ticket_agent.hive.reference import ConsoleServer, ReferenceHive

GRANT = ["submit", "gpu.lease.grant", "--worker", "worker-1", "--subject", "GPU-0"]


@pytest.fixture
def hive() -> Iterator[tuple[ReferenceHive, ConsoleServer]]:
    with running_hive(clock=now_ms, lab_port=0) as (model, server):
        for _ in range(2):
            model.spawn_worker("worker-gpu")
        yield model, server


# -- once ----------------------------------------------------------------------------------------------------


def test_once_serves_what_is_admitted(operator: Operator, hive: tuple[ReferenceHive, ConsoleServer]) -> None:
    model, server = hive
    model.submit(raw_grant(model, "worker-1", "t1", "lease-1", ttl_s=60))
    told = operator.run("once", "--json", *operator.at(server))
    assert told.code == Exit.OK
    assert told.object["by_outcome"] == {"confirmed": 1}
    assert (told.object["open"], told.object["exit"]) == (0, 0)
    assert model.effect_count("grant", "lease-1") == 1
    assert len(model.terminal_lines(("t1", "key-t1"))) == 1
    text = operator.run("once", *operator.at(server))
    assert (text.code, text.out) == (Exit.OK, "ended: 0 (none); open: 0; uncertain: 0\n")


def test_a_broken_record_is_left_alone_and_the_others_are_served(
    operator: Operator, hive: tuple[ReferenceHive, ConsoleServer]
) -> None:
    model, server = hive
    model.submit(raw_grant(model, "worker-1", "t1", "lease-1", ttl_s=60))
    assert operator.run("once", *operator.at(server)).code == Exit.OK
    path, broken = break_record(operator.state, 1)
    model.submit(raw_grant(model, "worker-2", "t2", "lease-2", gpu="GPU-1", ttl_s=60))
    told = operator.run("once", "--json", "--log-format", "json", *operator.at(server))
    assert (told.code, told.object["exit"]) == (Exit.DEGRADED, Exit.DEGRADED)
    assert (told.object["quarantined"], told.object["by_outcome"]) == (1, {"confirmed": 1})
    events = [json.loads(line) for line in told.err.splitlines()]
    assert [event["file"] for event in events if event["event"] == "quarantined"] == [path.name]
    assert path.read_bytes() == broken
    assert (model.effect_count("grant", "lease-1"), model.effect_count("grant", "lease-2")) == (1, 1)
    assert operator.run("status").code == Exit.DEGRADED
    assert "FAIL" in operator.run("journal", "verify").out


WRONG_CREDENTIALS = {
    "wrong": (["--auth-token", "not-the-token"], "token"),
    "absent": ([], "no console credential is given"),
    "empty": (["--auth-token", ""], "is empty"),
    "placeholder": (["--auth-token", "changeme"], "set the hive's own credential"),
    "unset variable": (["--auth-token", "env:NO_SUCH_VARIABLE"], "NO_SUCH_VARIABLE is not set"),
    "absent file": (["--auth-token", "file:/no/such/file"], "'/no/such/file'"),
    "not ASCII": (["--auth-token", "töken"], "printable ASCII"),
    "two lines": (["--auth-token", "a\nb"], "printable ASCII"),
    "wrong ticket": (["--auth-token", "env:LAB_TOKEN", "--ticket", "not-a-ticket"], "ticket"),
}


@pytest.mark.parametrize(
    ("command", "credential"),
    [
        *((["once"], credential) for credential in WRONG_CREDENTIALS),
        *((command, "wrong") for command in (["run"], ["doctor"], GRANT)),
    ],
    ids=lambda value: value if isinstance(value, str) else value[0],
)
def test_a_refused_credential_is_one_line_that_names_what_to_check(
    operator: Operator,
    hive: tuple[ReferenceHive, ConsoleServer],
    command: list[str],
    credential: str,
) -> None:
    options, words = WRONG_CREDENTIALS[credential]
    answer = operator.run(*command, "--tcp-port", str(hive[1].port), *options)
    assert answer.code == Exit.HIVE_REFUSED
    said = answer.out if command == ["doctor"] else answer.line
    assert words in said
    assert "not-the-token" not in said


@pytest.mark.parametrize("command", [["once"], ["once", "--json"], ["doctor"], GRANT], ids=lambda c: c[0])
def test_an_absent_hive_is_one_line(operator: Operator, command: list[str]) -> None:
    options = ["--tcp-port", str(refused_port()), "--auth-token", "env:LAB_TOKEN"]
    answer = operator.run(*command, *options)
    assert answer.code == Exit.HIVE_UNREACHABLE
    said = answer.out if command == ["doctor"] else answer.line
    assert "check host, port and that the hive is up" in said


@pytest.mark.parametrize("host", ["no such host", "", "\udcff", "a" * 300, "256.256.256.256", "a..b"])
def test_a_host_that_cannot_be(operator: Operator, host: str) -> None:
    answer = operator.run("once", "--tcp-host", host, "--auth-token", "env:LAB_TOKEN")
    assert answer.code in {Exit.USAGE, Exit.HIVE_UNREACHABLE}
    assert "host" in answer.line


@pytest.mark.parametrize("command", [["once"], GRANT], ids=lambda command: command[0])
def test_a_console_that_somebody_owns_is_busy(
    operator: Operator, hive: tuple[ReferenceHive, ConsoleServer], command: list[str]
) -> None:
    with RawConsole(hive[1].port):
        answer = operator.run(*command, *operator.at(hive[1]))
    assert answer.code == Exit.HIVE_UNREACHABLE
    assert "another client" in answer.line


def test_a_console_that_another_tool_of_this_host_locked_is_busy(
    operator: Operator, hive: tuple[ReferenceHive, ConsoleServer]
) -> None:
    lock = ConsoleLock(lock_path("127.0.0.1", hive[1].port, directory=operator.tmp))
    lock.acquire()
    try:
        answer = operator.run("once", *operator.at(hive[1]))
    finally:
        lock.release()
    assert answer.code == Exit.HIVE_UNREACHABLE
    assert "console busy: lock held at" in answer.line
    assert "owner pid=" in answer.line


def test_a_hive_without_host_tickets_is_told_apart_from_no_hive(
    operator: Operator, hive: tuple[ReferenceHive, ConsoleServer]
) -> None:
    answer = operator.run("once", "--mount", "/elsewhere", *operator.at(hive[1]))
    assert answer.code == Exit.HIVE_REFUSED
    assert "/elsewhere/tickets" in answer.line


def test_a_symlinked_state_directory_is_refused(
    operator: Operator, hive: tuple[ReferenceHive, ConsoleServer]
) -> None:
    (operator.home / "real").mkdir(mode=0o700)
    operator.state.symlink_to(operator.home / "real")
    for command in ("run", "once"):
        answer = operator.run(command, *operator.at(hive[1]))
        assert answer.code == Exit.FAILURE
        assert "is a symlink or not a directory; name the directory itself" in answer.line
    assert not list((operator.home / "real").iterdir())


@pytest.mark.parametrize("kind", ["file", "below a file", "open to others", "/proc/nowhere", "odd bytes"])
def test_a_state_directory_that_cannot_be(
    operator: Operator, hive: tuple[ReferenceHive, ConsoleServer], kind: str
) -> None:
    path = operator.home / kind
    name: str | bytes = str(path)
    match kind:
        case "file":
            path.write_bytes(b"")
        case "below a file":
            path.write_bytes(b"")
            name = str(path / "state")
        case "open to others":
            path.mkdir()
            path.chmod(0o777)
        case "odd bytes":
            name = bytes(operator.home / "x") + b"\xff" + b"a" * 300
        case _:
            name = kind
    for command in ("run", "once"):
        answer = operator.run(command, "--state-dir", name, *operator.at(hive[1]))
        assert answer.code in {Exit.FAILURE, Exit.USAGE}
        assert answer.line.isprintable()


# -- submit --------------------------------------------------------------------------------------------------


def test_submit_is_admitted(operator: Operator, hive: tuple[ReferenceHive, ConsoleServer]) -> None:
    model, server = hive
    more = ["--arg", "ttl_s=60", "--id", "t1", "--key", "k1", "--operation", "lease-1", "--expires-in", "60"]
    answer = operator.run(*GRANT, *more, *operator.at(server, lab=True))
    assert (answer.code, answer.out) == (Exit.OK, "admitted: t1\n")
    (admission,) = model.admissions()
    assert (admission.key, admission.action, admission.worker_id) == (
        ("t1", "k1"),
        "gpu.lease.grant",
        "worker-1",
    )
    request = json.loads(admission.line)
    assert (request["args"], request["operation_id"]) == ({"ttl_s": 60}, "lease-1")
    assert 0 < request["expires_unix_ms"] - now_ms() <= 60_000


def test_submit_tells_programs_what_it_appended(
    operator: Operator, hive: tuple[ReferenceHive, ConsoleServer]
) -> None:
    told = operator.run(*GRANT, "--json", *operator.at(hive[1])).object
    (admission,) = hive[0].admissions()
    assert (told["kind"], told["admitted"], told["id"]) == ("submit", True, admission.key[0])
    assert parse_spec(told["line"].encode(), source="raw").id == admission.key[0]


def test_a_dry_run_prints_the_line_and_appends_nothing(
    operator: Operator, hive: tuple[ReferenceHive, ConsoleServer]
) -> None:
    more = ["--arg", "ttl_s=60", "--arg", "priority=3", "--dry-run"]
    answer = operator.run(*GRANT, *more, *operator.at(hive[1]))
    assert (answer.code, answer.err) == (Exit.OK, "")
    spec = parse_spec(answer.out.removesuffix("\n").encode(), source="raw")
    assert spec.encode().decode() + "\n" == answer.out
    assert (spec.receipt_worker_id, spec.subject_ref, spec.args) == (
        "worker-1",
        "GPU-0",
        {"ttl_s": 60, "priority": 3},
    )
    assert hive[0].appended(SPEC) == 0


def test_a_dry_run_with_both_generations_needs_no_hive(operator: Operator) -> None:
    more = ["--dry-run", "--supervisor-generation", "3", "--cap-generation", "4"]
    answer = operator.run(*GRANT, *more, "--tcp-port", str(refused_port()))
    assert answer.code == Exit.OK
    spec = parse_spec(answer.out.strip().encode(), source="raw")
    assert (spec.receipt_supervisor_generation, spec.receipt_cap_generation) == (3, 4)


PINNED = ["--supervisor-generation", "1", "--cap-generation", "1"]
BAD_REQUESTS = {
    "unknown action": (["gpu.lease.steal", "--worker", "worker-1", "--subject", "GPU-0"], "gpu.lease.grant"),
    "argument of the wrong kind": ([*GRANT[1:], *PINNED, "--arg", "ttl_s=soon"], "ttl_s"),
    "argument out of range": ([*GRANT[1:], *PINNED, "--arg", "ttl_s=0"], "ttl_s"),
    "huge argument": ([*GRANT[1:], *PINNED, "--arg", f"ttl_s={'9' * 20}"], "ttl_s"),
    "unknown argument": ([*GRANT[1:], *PINNED, "--arg", "colour=red"], "colour"),
    "argument twice": ([*GRANT[1:], "--arg", "ttl_s=1", "--arg", "ttl_s=2"], "ttl_s is given twice"),
    "no value": ([*GRANT[1:], "--arg", "ttl_s"], "NAME=VALUE"),
    "no name": ([*GRANT[1:], "--arg", "=1"], "NAME=VALUE"),
    "id with a blank": ([*GRANT[1:], *PINNED, "--id", "a b"], "id"),
    "id not ASCII": ([*GRANT[1:], *PINNED, "--id", "tä"], ""),
    "id of odd bytes": ([*GRANT[1:], *PINNED, "--id", "\udcff"], ""),
    "long key": ([*GRANT[1:], *PINNED, "--key", "k" * 129], "idempotency_key"),
    "huge generation": ([*GRANT[1:], "--cap-generation", "9" * 30, *PINNED[:2]], "receipt_cap_generation"),
    "expires never": ([*GRANT[1:], *PINNED, "--expires-in", "9" * 30], "expires_unix_ms"),
    "generation zero": ([*GRANT[1:], "--cap-generation", "0"], "--cap-generation"),
}


@pytest.mark.parametrize("case", BAD_REQUESTS)
def test_a_request_that_no_root_would_take_is_refused_here(
    operator: Operator, hive: tuple[ReferenceHive, ConsoleServer], case: str
) -> None:
    arguments, words = BAD_REQUESTS[case]
    answer = operator.run("submit", *arguments, *operator.at(hive[1]))
    assert (answer.code, answer.out) == (Exit.USAGE, "")
    assert words in answer.line
    assert hive[0].appended(SPEC) == 0


def test_what_root_refuses_is_told_in_its_words(
    operator: Operator, hive: tuple[ReferenceHive, ConsoleServer]
) -> None:
    answer = operator.run(*GRANT, *PINNED[:2], "--cap-generation", "99", *operator.at(hive[1]))
    assert answer.code == Exit.HIVE_REFUSED
    assert "root refused the request: ERR ECHO" in answer.line
    assert not hive[0].admissions()


@pytest.mark.parametrize("worker", ["worker-99", "nobody", "a b", "\udcff", "w" * 40])
def test_a_worker_that_is_not_there(
    operator: Operator, hive: tuple[ReferenceHive, ConsoleServer], worker: str
) -> None:
    answer = operator.run(
        "submit", "gpu.lease.grant", "--worker", worker, "--subject", "GPU-0", *operator.at(hive[1])
    )
    assert answer.code in {Exit.HIVE_REFUSED, Exit.USAGE}
    assert answer.line.isprintable()


def _losing(kind: FaultKind) -> Faults:
    return Faults(Fault(kind=kind, verb="ECHO", prefix=SPEC, nth=1))


def test_a_lost_answer_is_read_back(operator: Operator) -> None:
    with running_hive(clock=now_ms, faults=_losing(FaultKind.DROP_AFTER)) as (model, server):
        model.spawn_worker("worker-gpu")
        answer = operator.run(*GRANT, "--id", "t1", *operator.at(server))
    assert (answer.code, answer.out) == (
        Exit.OK,
        "admitted: t1 (read back; the answer itself was lost)\n",
    )
    assert model.appended(SPEC) == 1


def test_a_lost_answer_that_nothing_tells_about_is_said_to_be_unknown(operator: Operator) -> None:
    with running_hive(clock=now_ms, faults=_losing(FaultKind.DROP_BEFORE)) as (model, server):
        model.spawn_worker("worker-gpu")
        answer = operator.run(*GRANT, "--id", "t1", *operator.at(server))
    assert answer.code == Exit.UNCERTAIN
    assert "submitting it again with the same --id and --key is safe" in answer.line
    assert model.appended(SPEC) == 0


# -- doctor --------------------------------------------------------------------------------------------------


def test_doctor_finds_nothing_wrong(operator: Operator, hive: tuple[ReferenceHive, ConsoleServer]) -> None:
    assert operator.run("once", *operator.at(hive[1])).code == Exit.OK
    told = operator.run("doctor", "--json", *operator.at(hive[1]))
    assert told.code == Exit.OK
    verdicts = {entry["name"]: entry["verdict"] for entry in told.objects}
    assert verdicts.pop("gpus") in {"ok", "warn"}
    assert verdicts == dict.fromkeys(
        ["state directory", "disk", "fence", "journal", "clock", "peft", "releases", "hive", "lifecycle"],
        "ok",
    )
    table = operator.run("doctor", *operator.at(hive[1])).out
    assert table.splitlines()[0].split() == ["CHECK", "VERDICT", "DETAIL"]


def test_doctor_warns_while_results_cannot_be_written(
    operator: Operator, hive: tuple[ReferenceHive, ConsoleServer]
) -> None:
    hive[0].set_lifecycle("DRAINING")
    told = operator.run("doctor", "--json", *operator.at(hive[1]))
    (lifecycle,) = [entry for entry in told.objects if entry["name"] == "lifecycle"]
    assert (told.code, lifecycle["verdict"]) == (Exit.OK, "warn")
    assert lifecycle["detail"].startswith("DRAINING: ")


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("symlink", "is a symlink or not a directory"),
        ("file", "is a symlink or not a directory"),
        ("open", "can be written by others; run: chmod go-w "),
    ],
)
def test_doctor_judges_the_state_directory(operator: Operator, kind: str, words: str) -> None:
    match kind:
        case "symlink":
            operator.state.symlink_to(operator.home)
        case "file":
            operator.state.write_bytes(b"")
        case _:
            operator.state.mkdir()
            operator.state.chmod(0o777)
    told = operator.run("doctor", "--offline", "--json")
    assert told.code == Exit.FAILURE
    assert (told.objects[0]["name"], told.objects[0]["verdict"]) == ("state directory", "fail")
    assert words in told.objects[0]["detail"]


def test_doctor_creates_nothing(operator: Operator) -> None:
    assert operator.run("doctor", "--offline").code == Exit.OK
    assert not operator.state.exists()


# -- gaps ----------------------------------------------------------------------------------------------------


def _lose_admissions(model: ReferenceHive) -> None:
    """Admissions that the log evicts while no agent looks."""
    for number in range(40):
        ticket = f"missed-{number}"
        model.submit(raw_grant(model, "worker-1", ticket, f"missed-lease-{number}", ttl_s=60))
        finish(model, ticket, "failed", "answered by hand")


def test_a_gap_is_held_until_an_operator_gives_it_up_beside_the_running_agent(
    operator: Operator, hive: tuple[ReferenceHive, ConsoleServer]
) -> None:
    model, server = hive
    model.submit(raw_grant(model, "worker-1", "t1", "lease-1", ttl_s=60))
    assert operator.run("once", *operator.at(server)).code == Exit.OK
    _lose_admissions(model)
    held = operator.run("once", "--json", *operator.at(server))
    assert (held.code, held.object["gap"]) == (Exit.DEGRADED, True)
    gap = operator.run("status", "--json").object["held_gap"]
    advice = f"acknowledge-gap --from {gap['first']} --through {gap['through']} --reason TEXT"
    assert advice in operator.run("status").out
    assert "gap held" in operator.run("doctor", "--offline").out

    acknowledge = ["journal", "acknowledge-gap", "--by", "ada", "--reason", "answered by hand"]
    with operator.serve(server) as agent:
        agent.event("hive-connected")
        short = operator.run(*acknowledge, "--from", str(gap["first"]), "--through", str(gap["through"] - 1))
        assert short.code == Exit.OK
        assert short.out.endswith(f"gap {gap['first']}..{gap['through']} of epoch 1 is NOT covered yet\n")
        last = str(gap["through"])
        told = operator.run(*acknowledge, "--from", last, "--through", last, "--json")
        assert (told.code, told.object["first"], told.object["by"]) == (Exit.OK, gap["through"], "ada")
        agent.event("gap-released")
    assert operator.run("status", "--json").object["held_gap"] is None
    assert operator.run("journal", "verify").code == Exit.OK
    assert model.effect_count("grant", "lease-1") == 1


@pytest.mark.parametrize(
    ("options", "code", "words"),
    [
        (["--from", "3", "--through", "2", "--reason", "x"], Exit.USAGE, "--through 2 lies before --from 3"),
        (["--from", "0", "--through", "2", "--reason", "x"], Exit.USAGE, "--from"),
        (["--from", "1", "--through", "9" * 30, "--reason", "x"], Exit.USAGE, "through"),
        (["--from", "1", "--through", "2", "--reason", ""], Exit.USAGE, "reason"),
        (["--from", "1", "--through", "2", "--reason", "a\nb"], Exit.USAGE, "reason"),
        (["--from", "1", "--through", "2", "--reason", "x" * 193], Exit.USAGE, "reason"),
        (["--from", "1", "--through", "2", "--reason", "\udcff"], Exit.USAGE, "reason"),
        (["--from", "1", "--through", "2", "--reason", "x", "--by", "\x1b"], Exit.USAGE, "by"),
        (["--from", "1", "--through", "2", "--reason", "x", "--epoch", "9" * 30], Exit.USAGE, "epoch"),
        (["--from", "1", "--through", "2"], Exit.USAGE, "--reason"),
    ],
)
def test_an_acknowledgement_that_cannot_be(
    operator: Operator, journal: object, options: list[str], code: Exit, words: str
) -> None:
    answer = operator.run("journal", "acknowledge-gap", *options)
    assert (answer.code, answer.out) == (code, "")
    assert words in answer.line
    assert not list((operator.state / "gaps").iterdir())


def test_the_same_range_is_acknowledged_once(operator: Operator, journal: object) -> None:
    options = ["--from", "1", "--through", "2", "--reason", "gone"]
    first = operator.run("journal", "acknowledge-gap", *options, env={"LOGNAME": "grace"})
    assert first.code == Exit.OK
    assert "no gap is held at present" in first.out
    (path,) = (operator.state / "gaps").iterdir()
    assert b'"grace"' in path.read_bytes()
    second = operator.run("journal", "acknowledge-gap", *options)
    assert second.code == Exit.FAILURE
    assert "needs no second acknowledgement" in second.line


def test_a_console_with_the_older_bounds_is_named_before_anything_is_done(operator: Operator) -> None:
    with running_hive(clock=now_ms, options=OLDER_CONSOLE) as (model, server):
        worker = model.spawn_worker("worker-gpu")
        model.submit(raw_grant(model, worker, "t1", "lease-1", ttl_s=60))
        told = operator.run("once", "--json", *operator.at(server))
        assert told.object["open"] == 1
        assert "speaks the older bounds and is incompatible; upgrade it" in told.err
        assert model.effect_count("grant", "lease-1") == 0
