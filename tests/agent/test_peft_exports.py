"""Exports over a real console: what it carries, what it does not, and what the ticket says then."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from agent_support import agent_on
from hive_support import ManualClock, running_hive
from peft_actions import sha256
from peft_lab import Lab, peft_lab
from peft_support import held_elsewhere
from peft_tickets import roots_in

from ticket_agent.hive.reference import Fault, FaultKind, Faults
from ticket_agent.hive.reference.exports import sample_job
from ticket_agent.journal.transitions import State
from ticket_agent.peft.hive_jobs import EXPORT_JOBS
from ticket_agent.peft.job import JOB_FILES
from ticket_agent.peft.locks import RootLock

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

JOB = "job-1"


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Lab]:
    with peft_lab(tmp_path) as found:
        yield found


def exported(lab: Lab) -> dict[str, bytes]:
    folder = lab.roots.export / JOB
    return {path.name: path.read_bytes() for path in folder.iterdir()} if folder.exists() else {}


def outcome(lab: Lab, **files: bytes) -> tuple[str, str]:
    """Publish the sample job with other files (a dot is two underscores), export it, tell the result."""
    changed = {name.replace("__", "."): data for name, data in files.items()}
    lab.hive.exports.publish(JOB, sample_job() | changed)
    lab.submit("export", JOB)
    with lab.agent() as bench:
        bench.settle()
    return lab.result()


def test_text_arrives_with_a_newline_at_its_end(lab: Lab) -> None:
    data = "a\n\n\u00fc \u2028 C1 x\n  b".encode()
    state, text = outcome(lab, telemetry__cbor=data)
    assert state == "succeeded", text
    assert exported(lab)["telemetry.cbor"] == data + b"\n"


def test_pinned_text_arrives(lab: Lab) -> None:
    policy = f'[export]\ntelemetry_sha256 = "{sha256(b"a")}"'.encode()
    # Pinned without the newline that a console adds: then it cannot arrive.
    state, text = outcome(lab, telemetry__cbor=b"a", policy__toml=policy)
    assert state == "failed"
    assert "telemetry.cbor is not the one that policy.toml pins; a transport of text lines cannot" in text
    assert exported(lab) == {}


@pytest.mark.parametrize(
    ("name", "data", "line"),
    [
        ("telemetry__cbor", b"\xa2\x61\x61\x01\xff", "telemetry.cbor cannot be carried by this transport"),
        ("telemetry__cbor", b"\x00\x01", "telemetry.cbor cannot be carried by this transport"),
        ("telemetry__cbor", b"line\n" * 65, "telemetry.cbor cannot be carried by this transport"),
        ("telemetry__cbor", b"", "telemetry.cbor is empty"),
        ("policy__toml", b"a\tb", "policy.toml cannot be carried by this transport"),
        ("extra", b"x\n", f"export job {JOB} on the hive: unexpected file extra"),
    ],
)
def test_what_a_console_cannot_carry_is_told_by_name(lab: Lab, name: str, data: bytes, line: str) -> None:
    state, text = outcome(lab, **{name: data})
    assert state == "failed"
    assert line in text
    assert exported(lab) == {}


def test_a_job_that_the_hive_does_not_have(lab: Lab) -> None:
    lab.submit("export", "another")
    with lab.agent() as bench:
        bench.settle()
    assert lab.result() == ("failed", "peft.export job=another: export job another not found on the hive")


def test_a_held_root_is_waited_for_and_said(lab: Lab) -> None:
    lab.hive.exports.publish(JOB, sample_job())
    lab.submit("export", JOB)
    with lab.agent() as bench:
        with held_elsewhere(lab.roots.export, RootLock.EXPORT) as holder:
            bench.passes(3)
            bench.hurry()
            bench.passes(2)
            (record,) = bench.store.open_records()
            assert record.state is State.PREPARED
            assert f"exports is in use by process {holder.pid}" in bench.waiting(record.key)
        bench.settle()
    assert lab.result()[0] == "succeeded"
    assert exported(lab) == sample_job()


@pytest.mark.parametrize("name", JOB_FILES)
@pytest.mark.parametrize(
    "kind", [FaultKind.DROP_BEFORE, FaultKind.DROP_AFTER, FaultKind.GARBAGE, FaultKind.ERR]
)
def test_a_console_that_fails_while_a_file_is_read_costs_nothing_but_time(
    tmp_path: Path, name: str, kind: FaultKind
) -> None:
    clock = ManualClock()
    failing = [
        Fault(kind=kind, verb="CAT", prefix=f"{EXPORT_JOBS}/{JOB}/{name}", nth=number) for number in (1, 2, 3)
    ]
    faults = Faults(*failing)
    with running_hive(clock=clock, faults=faults) as (hive, server):
        roots = roots_in(tmp_path / "roots")
        found = Lab(hive=hive, server=server, clock=clock, roots=roots, folder=tmp_path)
        found.hive.exports.publish(JOB, sample_job())
        found.submit("export", JOB)
        with agent_on(server, tmp_path / "state", clock=clock, roots=roots) as bench:
            bench.settle()
        assert faults.struck(kind) >= 1
        assert found.result()[0] == "succeeded"
        assert exported(found) == sample_job()
