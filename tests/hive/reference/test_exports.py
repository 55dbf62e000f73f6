"""Export jobs as a console shows them."""

from __future__ import annotations

import pytest
from hive_support import ManualClock, RawConsole, new_hive, running_hive

from ticket_agent.hive.reference import LabError, RefusalError
from ticket_agent.hive.reference.exports import EXPORT_FILES, sample_job

JOBS = "/queen/export/lora_jobs"


def test_without_jobs_there_is_no_export_root() -> None:
    hive = new_hive()
    assert "export" not in hive.ls("/queen")
    for path in ("/queen/export", JOBS, f"{JOBS}/job-1"):
        with pytest.raises(RefusalError):
            hive.ls(path)


def test_a_job_is_listed_and_read() -> None:
    hive = new_hive()
    hive.exports.publish("job-1", sample_job())
    assert "export" in hive.ls("/queen")
    assert hive.ls("/queen/export") == ["lora_jobs"]
    assert hive.ls(JOBS) == ["job-1"]
    assert hive.ls(f"{JOBS}/job-1") == list(EXPORT_FILES)
    assert hive.cat(f"{JOBS}/job-1/policy.toml") == ["[policy]", 'name = "default"']
    hive.reboot()
    assert hive.ls(JOBS) == ["job-1"]
    hive.exports.withdraw("job-1")
    with pytest.raises(RefusalError):
        hive.cat(f"{JOBS}/job-1/policy.toml")


@pytest.mark.parametrize("verb", ["cat", "tail"])
@pytest.mark.parametrize("name", ["absent", "telemetry.cbor/x", ".."])
def test_what_is_not_there_is_refused(verb: str, name: str) -> None:
    hive = new_hive()
    hive.exports.publish("job-1", sample_job())
    with pytest.raises(RefusalError):
        getattr(hive, verb)(f"{JOBS}/job-1/{name}")


def test_nobody_writes_there() -> None:
    hive = new_hive()
    hive.exports.publish("job-1", sample_job())
    with pytest.raises(RefusalError):
        hive.echo(f"{JOBS}/job-1/policy.toml", "x")


@pytest.mark.parametrize(
    "data",
    [b"\xa1\x61\x00", b"\xff\xfe", b"a\rb\n", b"a\x00b", b"x" * 257, b"x\n" * 65],
    ids=["cbor", "no utf-8", "carriage return", "nul", "long line", "many lines"],
)
def test_what_lines_cannot_carry_is_refused(data: bytes) -> None:
    hive = new_hive()
    hive.exports.publish("job-1", {"telemetry.cbor": data})
    with pytest.raises(RefusalError, match="buffer-full"):
        hive.cat(f"{JOBS}/job-1/telemetry.cbor")


@pytest.mark.parametrize("job_id", ["", ".", "..", "-x", "a/b", "a" * 129, "ü"])
def test_ids_that_are_no_component_are_refused(job_id: str) -> None:
    with pytest.raises(LabError, match="job id"):
        new_hive().exports.publish(job_id, sample_job())


def test_over_a_real_console() -> None:
    with running_hive(clock=ManualClock()) as (hive, server):
        hive.exports.publish("job-1", sample_job())
        with RawConsole(server.port) as client:
            assert client.stream(f"CAT {JOBS}/job-1/base_model.ref") == ["vision-base-v1"]
            assert client.stream(f"LS {JOBS}/job-1") == list(EXPORT_FILES)
