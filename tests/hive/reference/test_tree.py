from __future__ import annotations

import json

import pytest
from hive_support import SNAPSHOT, SPEC, admitted, finish, new_hive, raw_grant, result_line

from ticket_agent.hive.reference import DEFAULT, STRICT_A, Gpu, ReferenceHive, RefusalError
from ticket_agent.protocol.chunks import decode_lines
from ticket_agent.protocol.retention import parse_retention

LOGS = ["spec", "status", "deadletter", "spec.snapshot", "status.snapshot", "deadletter.snapshot"]


@pytest.mark.parametrize(
    ("path", "names"),
    [
        ("/", ["gpu", "kmesg", "log", "proc", "queen", "trace", "updates", "shard", "worker", "host"]),
        ("/host", ["tickets", "systemd", "k8s", "docker", "nvidia"]),
        ("/host/docker", ["status"]),
        ("/host/tickets", [*LOGS, "retention", "current"]),
        ("/host/tickets/current", []),
        ("/proc/lease", ["summary", "active", "by-id", "preemptions"]),
        ("/proc/lease/by-id", []),
        ("/proc/lifecycle", ["state", "reason", "since"]),
        ("/queen/lease", ["ctl"]),
        ("/log", ["queen.log"]),
        ("/gpu", ["bridge", "models", "telemetry", "GPU-0", "GPU-1"]),
        ("/gpu/GPU-0", ["info", "ctl", "lease", "status"]),
        ("/updates", []),
        ("/worker", []),
    ],
)
def test_listings(path: str, names: list[str]) -> None:
    assert new_hive().ls(path) == names


def test_the_first_root_lists_six_ticket_nodes() -> None:
    hive = new_hive(STRICT_A)
    assert hive.ls("/host/tickets") == LOGS
    for path in ("/host/tickets/current", "/host/tickets/retention"):
        with pytest.raises(RefusalError, match="invalid-path"):
            hive.ls(path)
        with pytest.raises(RefusalError, match="invalid-path"):
            hive.cat(path)


@pytest.mark.parametrize(
    "path",
    [
        "",
        "host",
        "//",
        "/host/",
        "/host//tickets",
        "/nope",
        "/../x",
        "/host/./tickets",
        "/a/b/c/d/e/f/g/h/i",
        "/" + "c" * 65,
        "/proc/lifecycle/state",
        "/host/tickets/spec",
        "/gpu/GPU-9",
        "/gpu/GPU-0/info",
    ],
)
def test_no_directories(path: str) -> None:
    with pytest.raises(RefusalError) as refused:
        new_hive().ls(path)
    assert refused.value.line("LS", path) == (
        f"ERR LS reason=policy detail=invalid-path path={path} error=invalid path"
    )


@pytest.mark.parametrize(
    ("path", "lines"),
    [
        ("/host/docker/status", ["unavailable source=none"]),
        ("/host/tickets/spec", []),
        ("/proc/lifecycle/state", ["state=ONLINE"]),
        ("/proc/lease/active", []),
        ("/proc/lease/summary", ["active=0 preemptions=0 quotas=0 max_active=256 max_preemptions=256"]),
        ("/gpu/bridge/status", ["state=ok entries=2"]),
        ("/gpu/GPU-0/ctl", ["LEASE GPU-0"]),
        ("/gpu/GPU-0/lease", []),
        ("/gpu/GPU-0/status", []),
    ],
)
def test_contents(path: str, lines: list[str]) -> None:
    assert new_hive().cat(path) == lines


@pytest.mark.parametrize(
    "path", ["/", "/host", "/host/tickets", "/proc/lease", "/proc/lease/by-id", "/gpu/GPU-9/info", "/nope"]
)
def test_no_files(path: str) -> None:
    with pytest.raises(RefusalError) as refused:
        new_hive().cat(path)
    assert refused.value.line("CAT", path) == (
        f"ERR CAT reason=policy detail=invalid-path path={path} error=invalid path"
    )


@pytest.mark.parametrize(
    "path", ["/host/docker/status", "/proc/lifecycle/state", "/host/tickets/retention", "/gpu/GPU-0/info"]
)
def test_tail_is_for_logs_only(path: str) -> None:
    with pytest.raises(RefusalError) as refused:
        new_hive().tail(path)
    assert refused.value.line("TAIL", path) == f"ERR TAIL reason=policy detail=invalid-path path={path}"


def test_tail_of_ticket_nodes_depends_on_the_root() -> None:
    assert new_hive(DEFAULT).tail(SPEC) == []
    with pytest.raises(RefusalError, match="invalid-path"):
        new_hive(STRICT_A).tail(SPEC)


def test_gpu_info_is_the_publishers_json() -> None:
    hive = new_hive()
    gpu = Gpu(id="GPU-7", name="Tiny", memory_mb=1, sm_count=2, driver_version="9", runtime_version="1.0")
    hive.publish_inventory([gpu, "GPU-0"])
    lines = hive.cat("/gpu/GPU-7/info")
    assert lines[0] == "{"
    assert lines[1] == '    "id": "GPU-7",'
    assert list(json.loads("\n".join(lines))) == [
        "id",
        "name",
        "memory_mb",
        "sm_count",
        "driver_version",
        "runtime_version",
    ]
    assert json.loads("\n".join(hive.cat("/gpu/GPU-0/info")))["memory_mb"] == 24576
    hive.withdraw_inventory()
    assert hive.ls("/gpu") == ["bridge", "models", "telemetry"]


def filled(count: int) -> tuple[ReferenceHive, list[str]]:
    hive = new_hive()
    worker = hive.spawn_worker("worker-gpu")
    lines = []
    for number in range(count):
        hive.submit(raw_grant(hive, worker, f"t-{number:03}", f"lease-{number:03}", ttl_s=30))
        lines.append(hive.admissions()[-1].line)
        finish(hive, f"t-{number:03}", message="m" * (number % 190 + 1))
    return hive, lines


def test_long_ticket_lines_travel_as_c1_groups_within_64_frames() -> None:
    hive, lines = filled(30)
    wire = hive.wire("CAT", SNAPSHOT)
    assert len(wire) == 63
    assert all(len(line) <= 256 for line in wire)
    assert wire[0].startswith("C1:0000:0003:")
    assert decode_lines(wire) == hive.cat(SNAPSHOT) == lines[-21:]
    assert decode_lines(hive.wire("TAIL", SNAPSHOT, newest=2)) == lines[-2:]


def test_retention_tells_what_is_gone() -> None:
    hive, lines = filled(40)
    records = parse_retention(hive.cat("/host/tickets/retention"))
    assert list(records) == LOGS
    for leaf, record in records.items():
        retained = hive.cat(f"/host/tickets/{leaf}")
        assert record.retained_bytes == sum(len(line) + 1 for line in retained) == record.next - record.base
        assert record.retained_wire_lines == len(hive.wire("CAT", f"/host/tickets/{leaf}"))
        assert record.dropped_bytes == record.base
        assert record.dropped_lines == hive.appended(leaf) - len(retained)
    assert records["spec.snapshot"].next == sum(len(line) + 1 for line in lines)
    assert records["status"].base == records["status.snapshot"].base > 0
    assert records["deadletter"].next == 0


def test_sliding_a_log_is_eviction() -> None:
    hive, lines = filled(5)
    assert hive.slide(SNAPSHOT, 2) == 2
    assert hive.cat(SNAPSHOT) == lines[2:]
    record = parse_retention(hive.cat("/host/tickets/retention"))["spec.snapshot"]
    assert (record.base, record.dropped_lines) == (sum(len(line) + 1 for line in lines[:2]), 2)
    assert hive.slide(SNAPSHOT, 99) == 3
    assert hive.cat(SNAPSHOT) == []


def test_results_in_the_ring_decode_to_what_was_published() -> None:
    hive, _ = filled(1)
    worker = hive.spawn_worker("worker-gpu")
    hive.submit(raw_grant(hive, worker, "t-x", "lease-x"))
    line = result_line(admitted(hive, "t-x"), message="é" * 96)
    hive.echo("/host/tickets/status", line)
    assert decode_lines(hive.wire("CAT", "/host/tickets/status"))[-1] == line


def test_answers_over_64_lines_or_256_bytes_are_refused() -> None:
    hive = new_hive()
    for number in range(65):
        control = f'{{"op":"grant","id":"l{number}","subject":"w","resource":"G","ttl_s":1,"priority":0}}'
        hive.echo("/queen/lease/ctl", control)
    for verb, path in (("LS", "/proc/lease/by-id"), ("TAIL", "/queen/lease/ctl")):
        with pytest.raises(RefusalError) as refused:
            hive.wire(verb, path)
        assert refused.value.line(verb, path) == (
            f"ERR {verb} reason=quota detail=buffer-full path={path} error=buffer full"
        )
    with pytest.raises(RefusalError, match="buffer-full"):
        hive.echo("/log/queen.log", "x" * 257)
