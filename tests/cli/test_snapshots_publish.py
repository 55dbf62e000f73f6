"""`snapshots publish` once, as a process: at a real console, a real gateway and a real mount."""

from __future__ import annotations

import json
import resource
import shutil
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from fuse_hive import mounted_hive
from hive_support import TOKEN
from mount_support import needs_fuse
from publish_lab import EPOCH, PART, SOURCE, Lab, enrolling, publish_lab
from scripted_console import refused_port

from ticket_agent.cli.snapshots_publish import _exit_of
from ticket_agent.exits import Exit
from ticket_agent.hive.reference import ConsoleServer, Fault, FaultKind
from ticket_agent.protocol.namespace import HiveAuthError, HiveUnreachableError
from ticket_agent.protocol.snapshot_status import SnapshotStatus, Withdrawn, encode_status
from ticket_agent.snapshots.publish_errors import (
    BoundsError,
    CursorFullError,
    CursorPoisonedError,
    ReceiverAheadError,
    SourceClockError,
    SourceHeldError,
    TooLateError,
    TransferRefusedError,
    UnverifiedError,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from cli_support import Operator

TICKET = "cohesix-ticket-" + "ab" * 40


@pytest.fixture
def lab(operator: Operator) -> Iterator[Lab]:
    with publish_lab(operator, "rack", "changes", "network", "endpoint_compliance") as opened:
        yield opened


# -- what is published ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("rest", [False, True], ids=["console", "gateway"])
def test_a_record_is_published_and_told_in_one_line(operator: Operator, rest: bool) -> None:
    with publish_lab(operator, "rack", rest=rest) as lab:
        answer = lab.publish()
        assert (answer.code, answer.err) == (Exit.OK, "")
        line = answer.out.removesuffix("\n")
        assert line.startswith("rack: sequence 1, 2 entries, ")
        size = len(lab.shown("rack"))
        assert line.partition("; ")[0] == f"rack: sequence 1, 2 entries, {size} bytes"
        assert lab.publish().out.startswith("rack: sequence 2, ")
        assert lab.taken == [(1, "rack"), (2, "rack")]
        assert sorted(path.name for path in lab.part.iterdir()) == ["cursor.json", "owner.lock"]


def test_all_that_are_enrolled_are_published_unless_some_are_named(lab: Lab) -> None:
    assert lab.publish().code == Exit.OK
    assert sorted(name for _, name in lab.taken) == ["changes", "endpoint_compliance", "network", "rack"]
    assert [number for number, _ in lab.taken] == [1, 2, 3, 4]
    assert lab.publish("--provider", "rack", "--provider", "changes").code == Exit.OK
    assert sorted(name for _, name in lab.taken[4:]) == ["changes", "rack"]


def test_a_publication_for_programs(lab: Lab) -> None:
    (lab.site / "told").write_text("x")
    told = lab.publish("--json", "--provider", "rack").object
    status = lab.status("rack")
    assert {name: told.pop(name) for name in ("ttl_ms", "visible_ms")}.keys() == {"ttl_ms", "visible_ms"}
    assert told == {
        "schema": "ticket-agent-output/v1",
        "kind": "snapshots-publication",
        "publication_schema": "cohesix-snapshot-publication/v1",
        "proof_class": "read_only",
        "authoritative": False,
        "publication": {
            "provider": "rack",
            "sequence": 1,
            "available": True,
            "reason": None,
            "sha256": status.sha256,
        },
        "detail": None,
        "entries": 2,
        "bytes": len(lab.shown("rack")),
    }
    (lab.site / "told").unlink()
    began = time.monotonic()
    told = lab.publish("--json", "--provider", "changes").object
    took_ms = 1000 * (time.monotonic() - began)
    assert told["publication"] | {"sha256": ""} == {
        "provider": "changes",
        "sequence": 2,
        "available": False,
        "reason": "not_enabled",
        "sha256": "",
    }
    assert (told["detail"], told["entries"]) == ("there is no file", 0)
    record = json.loads(lab.shown("changes"))
    assert (record["reason"], record["epoch"], record["source_id"]) == ("not_enabled", EPOCH, SOURCE)
    assert 30_000 - took_ms <= told["ttl_ms"] == record["ttl_ms"] <= 30_000


@pytest.mark.parametrize(
    ("name", "provider"),
    [("net", "network"), ("network", "network"), ("endpoint-compliance", "endpoint_compliance")],
)
def test_providers_have_other_spellings(lab: Lab, name: str, provider: str) -> None:
    assert lab.publish("--provider", name).code == Exit.OK
    assert lab.taken == [(1, provider)]


@pytest.mark.parametrize(
    ("provider", "words"),
    [
        ("broken", "source_failed (RuntimeError: no licence:"),
        ("too_large", "source_failed (host snapshot takes "),
        ("too_long", "source_failed (host snapshot: entries hold 1025 bytes under value"),
        ("twice", "each path once"),
        ("pairs", "source_failed (TypeError: a collector returns entries, not tuple)"),
        ("numbers", "source_failed (TypeError: the path of an entry is a text, not 1)"),
        ("number_value", "source_failed (TypeError: the value of an entry is a text, not 2)"),
        ("surrogates", "source_failed (entry path "),
        ("surrogate_value", "source_failed (text with a lone surrogate"),
        ("nothing", "source_failed (TypeError: "),
        ("odd_reason", "source_failed (an own reason)"),
        ("odd_detail", "source_failed (17)"),
        ("exits", "source_failed (SystemExit: done here)"),
        ("wordless", "source_failed (_Silent: it has no words for it)"),
        ("unknown", "not_supported (no collector for unknown is installed"),
    ],
)
def test_a_collector_that_does_wrong_is_withdrawn_and_hurts_nobody(
    operator: Operator, provider: str, words: str
) -> None:
    with publish_lab(operator, provider, "rack") as lab:
        answer = lab.publish()
        assert (answer.code, answer.err) == (Exit.OK, "")
        (line,) = [text for text in answer.out.splitlines() if text.startswith(f"{provider}: ")]
        assert words in line
        assert json.loads(lab.shown(provider))["available"] is False
        assert json.loads(lab.shown("rack"))["available"] is True


def test_one_that_hangs_is_withdrawn_and_the_command_ends(operator: Operator) -> None:
    with publish_lab(operator, "hangs", "rack", max_ttl_ms=5000) as lab:
        answer = lab.publish()
        assert answer.code == Exit.OK
        lines = answer.out.splitlines()
        assert lines[0].startswith("rack: sequence 1, 2 entries")
        assert lines[1].startswith("hangs: sequence 2, unavailable, timed_out (no answer within 5.0 s)")
        assert json.loads(lab.shown("hangs"))["reason"] == "timed_out"


def test_no_secret_is_told(operator: Operator) -> None:
    with publish_lab(operator, "told_ticket", "rack") as lab:
        answers = [lab.publish(), lab.publish("--json"), lab.publish("--metrics-textfile", "a.prom")]
        metrics = (operator.home / "a.prom").read_text()
    assert "[ticket " in answers[0].out
    for answer in answers:
        assert answer.code == Exit.OK
        assert all(text not in answer.out + answer.err + metrics for text in (TICKET, TOKEN, "\x1b"))


def test_a_single_publication_leaves_its_numbers_in_a_file(lab: Lab) -> None:
    assert lab.publish("--provider", "rack", "--metrics-textfile", "a.prom").code == Exit.OK
    text = (lab.operator.home / "a.prom").read_text()
    assert 'ticket_agent_snapshots_published_total{provider="rack",reason="available"} 1.0' in text
    assert "ticket_agent_snapshots_sequence 1.0" in text


# -- over a mount --------------------------------------------------------------------------------------------


@needs_fuse
def test_a_mounted_hive_receives(lab: Lab) -> None:
    assert isinstance(lab.server, ConsoleServer)
    with mounted_hive(lab.server.port, lab.operator.home / "hive") as mounted:
        at = ["--mount-dir", str(mounted.path), "--provider", "rack"]
        arguments = ["snapshots", "publish", *lab.ours, *at]
        for number in (1, 2):
            answer = lab.operator.run(*arguments, env=lab.env)
            assert (answer.code, answer.err) == (Exit.OK, "")
            assert answer.out.startswith(f"rack: sequence {number}, 2 entries, ")
    assert lab.taken == [(1, "rack"), (2, "rack")]


def test_plain_files_receive_nothing_and_are_not_taken_for_a_receiver(lab: Lab) -> None:
    """Nobody stands behind them who would complete a transfer."""
    node = lab.operator.home / "hive" / "host" / "snapshots" / "rack" / SOURCE
    node.mkdir(parents=True, mode=0o755)
    (lab.operator.home / "hive" / "proc").mkdir()
    (lab.operator.home / "hive" / "proc" / "boot").write_text("a hive\n")
    (node / "ctl").touch()
    status = SnapshotStatus(source_id=SOURCE, provider="rack", sequence=0, reason=Withdrawn.UNOBSERVED)
    (node / "status").write_text(encode_status(status) + "\n")
    at = ["--mount-dir", str(lab.operator.home / "hive"), "--provider", "rack"]
    answer = lab.operator.run("snapshots", "publish", *lab.ours, *at, env=lab.env)
    assert answer.code == Exit.UNCERTAIN
    assert "rack: not published: the receiver's status shows sequence 0 (unobserved), not 1" in answer.out
    steps = (node / "ctl").read_text().splitlines()
    assert (steps[0].split()[0], steps[-1]) == ("begin", "end")


# -- wrong usage ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--provider", "rack", "--provider", "rack"], "named twice"),
        (["--provider", "net", "--provider", "network"], "named twice"),
        (["--provider", "systemd"], "systemd"),
        (["--provider", ""], "enrolled"),
        (["--interval", "rack"], "--interval rack: write rack=MS with 1 to 15000"),
        (["--interval", "rack=0"], "write rack=MS with 1 to 15000, half a record's life"),
        (["--interval", "rack=30000"], "write rack=MS"),
        (["--interval", "rack=100000000000000000000"], "write rack=MS"),
        (["--interval", "rack=-1"], "write rack=MS"),
        (["--interval", "rack=1.5"], "write rack=MS"),
        (["--interval", "rack=\N{SUPERSCRIPT TWO}"], "write rack=MS"),
        (["--interval", "systemd=5"], "name a provider that is published, once"),
        (["--interval", "rack=5", "--interval", "rack=6"], "name a provider that is published, once"),
        (["--provider", "rack", "--interval", "net=5"], "name a provider that is published, once"),
        (["--metrics-listen", "127.0.0.1:0"], "use --metrics-textfile, or --watch"),
        (["--watch", "--metrics-listen", "0.0.0.0:0"], "loopback"),
        (["--continue-after", "0"], "--continue-after"),
        (["--continue-after", str(2**64 - 1)], "--continue-after"),
        (["--state-dir", ""], "an empty name is no directory"),
        (["--epoch", "3"], "--epoch goes with --default-enrolment"),
        (["--default-enrolment"], "exclude each other"),
    ],
)
def test_wrong_usage_is_one_line_before_anything_is_sent(lab: Lab, options: list[str], words: str) -> None:
    answer = lab.publish(*options)
    assert (answer.code, answer.out) == (Exit.USAGE, "")
    assert words in answer.line
    assert lab.sent == []
    assert list(lab.operator.state.iterdir()) == []


def test_a_source_that_is_not_enrolled(lab: Lab) -> None:
    answer = lab.publish("--source-id", "host-b")
    assert (answer.code, answer.out) == (Exit.USAGE, "")
    assert f"'host-b' is not enrolled in the manifest; enrolled: {SOURCE}" in answer.line


def test_which_enrolment_there_is_has_to_be_said(lab: Lab) -> None:
    answer = lab.operator.run("snapshots", "publish", "--source-id", SOURCE, *lab.at)
    assert (answer.code, answer.out) == (Exit.USAGE, "")
    assert "--manifest FILE, or take the documented defaults with --default-enrolment" in answer.line


def test_the_default_enrolment(lab: Lab) -> None:
    options = ["--default-enrolment", "--epoch", "3", "--provider", "jetson", *lab.at]
    answer = lab.operator.run("snapshots", "publish", "--source-id", "linux-reference", *options)
    assert answer.code == Exit.HIVE_REFUSED
    assert "does not enrol this pair" in answer.out
    assert (lab.operator.state / "linux-reference-epoch-3" / "cursor.json").exists()


# -- the state directory -------------------------------------------------------------------------------------


def test_there_is_no_default_directory(lab: Lab) -> None:
    answer = lab.publish(env={"STATE_DIRECTORY": ""})
    assert (answer.code, answer.out) == (Exit.USAGE, "")
    assert "--state-dir" in answer.line


def test_a_service_manager_names_the_directory_and_the_flag_wins(lab: Lab) -> None:
    named = lab.operator.home / "named"
    named.mkdir(mode=0o700)
    assert lab.publish("--provider", "rack", env={"STATE_DIRECTORY": f"{named}:/elsewhere"}).code == Exit.OK
    assert (named / PART).is_dir()
    assert not lab.part.exists()
    options = ["--provider", "rack", "--continue-after", "1", "--state-dir", str(lab.operator.state)]
    assert lab.publish(*options, env={"STATE_DIRECTORY": str(named)}).code == Exit.OK
    assert lab.part.is_dir()


@pytest.mark.parametrize(
    ("mode", "path", "words"),
    [
        (0o700, "state/missing", "install -d -m 0700 "),
        (0o750, "state", "open to group or others"),
        (0o700, "relative", "must be an absolute path"),
    ],
)
def test_a_directory_that_cannot_be_used(lab: Lab, mode: int, path: str, words: str) -> None:
    lab.operator.state.chmod(mode)
    named = Path(path) if path == "relative" else lab.operator.home / path
    answer = lab.publish(env={"STATE_DIRECTORY": str(named)})
    assert (answer.code, answer.out) == (Exit.FAILURE, "")
    assert words in answer.line
    assert lab.sent == []


def test_a_second_publisher_is_refused(lab: Lab) -> None:
    with lab.watch("--provider", "rack") as first:
        first.event("snapshot-published")
        second = lab.publish("--provider", "changes")
        assert (second.code, second.out) == (Exit.OTHER_OWNER, "")
        assert f"another process publishes for {PART}" in second.line


def test_a_lost_cursor_ends_it_and_the_operators_word_helps(lab: Lab) -> None:
    assert lab.publish("--provider", "rack").code == Exit.OK
    (lab.part / "cursor.json").unlink()
    answer = lab.publish("--provider", "rack")
    assert (answer.code, answer.out) == (Exit.FAILURE, "")
    assert "has no cursor.json" in answer.line
    assert "start once with --continue-after the highest sequence it shows" in answer.line
    assert not (lab.part / "cursor.json").exists()
    told = lab.publish("--provider", "rack", "--continue-after", "41")
    assert (told.code, told.out.partition(",")[0]) == (Exit.OK, "rack: sequence 42")
    # It only moves forward.
    told = lab.publish("--provider", "rack", "--continue-after", "7")
    assert (told.code, told.out.partition(",")[0]) == (Exit.OK, "rack: sequence 43")


def test_a_lost_directory_is_noticed_before_anything_is_sent(lab: Lab) -> None:
    for _ in range(2):
        assert lab.publish("--provider", "rack").code == Exit.OK
    shutil.rmtree(lab.part)
    sent = len(lab.sent)
    answer = lab.publish("--provider", "rack")
    assert answer.code == Exit.HIVE_REFUSED
    assert "has taken sequence 2" in answer.line
    assert "start once with --continue-after 2" in answer.line
    assert len(lab.sent) == sent
    told = lab.publish("--provider", "rack", "--continue-after", "2")
    assert (told.code, told.out.partition(",")[0]) == (Exit.OK, "rack: sequence 3")


def test_a_number_that_may_not_be_durable_ends_it(lab: Lab) -> None:
    """No file can be written any more; that is not a full disk, and so nobody knows."""

    def write_nothing() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (16, 16))

    assert lab.publish("--provider", "rack").code == Exit.OK
    sent = len(lab.sent)
    # Nor may half of a compiled module be kept for the commands that come after this one.
    whole = {"PYTHONDONTWRITEBYTECODE": "1"}
    answer = lab.publish("--provider", "rack", preexec_fn=write_nothing, env=whole)
    assert (answer.code, answer.out) == (Exit.POISONED, "")
    assert "sequence 2 may not be durable" in answer.line
    assert "check the disk, restart" in answer.line
    assert len(lab.sent) == sent
    assert lab.publish("--provider", "rack").code == Exit.OK
    assert lab.taken[-1][0] > 1


# -- the hive ------------------------------------------------------------------------------------------------


def test_a_hive_that_is_not_there(lab: Lab) -> None:
    away = ["--tcp-port", str(refused_port()), "--auth-token", "env:LAB_TOKEN"]
    answer = lab.operator.run("snapshots", "publish", *lab.ours, *away, env=lab.env)
    assert (answer.code, answer.out) == (Exit.HIVE_UNREACHABLE, "")
    assert "check host, port and that the hive is up" in answer.line


def test_a_wrong_token_is_refused(lab: Lab) -> None:
    answer = lab.publish("--auth-token", "another-token-4711")
    assert (answer.code, answer.out) == (Exit.HIVE_REFUSED, "")
    assert "another-token-4711" not in answer.err


def test_a_lifecycle_that_takes_nothing(lab: Lab) -> None:
    lab.hive.set_lifecycle("DRAINING")
    answer = lab.publish("--provider", "rack")
    assert (answer.code, answer.err) == (Exit.HIVE_REFUSED, "")
    assert answer.out.startswith("rack: not published: the receiver refused begin (")
    assert "look at /proc/lifecycle/state" in answer.out
    lab.hive.set_lifecycle("ONLINE")
    assert lab.publish("--provider", "rack").out.startswith("rack: sequence 2, ")


def test_a_record_whose_end_was_lost_is_uncertain(lab: Lab) -> None:
    lab.server.faults.add(
        Fault(kind=FaultKind.DROP_BEFORE, verb="ECHO", predicate=lambda line: line == "end")
    )
    answer = lab.publish("--provider", "rack")
    assert answer.code == Exit.UNCERTAIN
    assert "rack: not published: the receiver's status shows sequence 0 (unobserved), not 1" in answer.out
    lab.server.faults.clear()
    assert lab.publish("--provider", "rack").out.startswith("rack: sequence 2, ")


def test_some_published_and_some_not(operator: Operator) -> None:
    with publish_lab(operator, "rack", "changes", of_hive=enrolling("rack")) as lab:
        answer = lab.publish()
        assert answer.code == Exit.DEGRADED
        lines = sorted(answer.out.splitlines())
        assert "changes: not published: the hive has no /host/snapshots/changes/" in lines[0]
        assert lines[1].startswith("rack: sequence ")
        told = lab.publish("--json")
        assert told.code == Exit.DEGRADED
        (failure,) = [entry for entry in told.objects if entry["kind"] == "snapshots-failure"]
        assert (failure["provider"], failure["code"]) == ("changes", "snapshot-refused")
        assert "compare its manifest with this one" in failure["why"]
        assert lab.publish("--provider", "changes").code == Exit.HIVE_REFUSED


def test_bounds_that_leave_room_for_nothing(operator: Operator) -> None:
    with publish_lab(operator, "rack", max_bytes=180) as lab:
        answer = lab.publish()
        assert answer.code == Exit.FAILURE
        assert "rack: not published: not even a withdrawal fits" in answer.out
        assert "raise the bounds in the manifest" in answer.out
        assert lab.taken == []


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (SourceHeldError("x"), Exit.OTHER_OWNER),
        (CursorPoisonedError("x"), Exit.POISONED),
        (CursorFullError("x"), Exit.FAILURE),
        (SourceClockError("x"), Exit.FAILURE),
        (TooLateError("x"), Exit.FAILURE),
        (BoundsError("x"), Exit.FAILURE),
        (ReceiverAheadError("x", sequence=1), Exit.HIVE_REFUSED),
        (TransferRefusedError("x"), Exit.HIVE_REFUSED),
        (UnverifiedError("x"), Exit.UNCERTAIN),
        (HiveUnreachableError("x"), Exit.HIVE_UNREACHABLE),
        (HiveAuthError("x"), Exit.HIVE_REFUSED),
    ],
)
def test_every_end_has_its_code(error: Exception, code: Exit) -> None:
    assert _exit_of(error) is code
