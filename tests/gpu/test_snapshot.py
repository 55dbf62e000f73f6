from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from collector_support import context, encoded, late_context
from nvml_support import NvmlHost, build_stub

from ticket_agent.gpu.inventory import Gpu, Inventory, Memory, Unreadable, Utilisation
from ticket_agent.gpu.nvml_codes import NVML_NAMES, nvml_hint, nvml_name
from ticket_agent.gpu.snapshot import collect, project
from ticket_agent.protocol.collecting import CollectError
from ticket_agent.protocol.snapshot import DEFAULT_BOUNDS, SnapshotBounds, SnapshotEntry, UnavailableReason

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

CODES = [*(code for code in NVML_NAMES if code != 3), 4711]
DEVICE_CALLS = [
    "nvmlDeviceGetHandleByIndex",
    "nvmlDeviceGetUUID",
    "nvmlDeviceGetPciInfo",
    "nvmlDeviceGetName",
    "nvmlDeviceGetMemoryInfo",
    "nvmlDeviceGetUtilizationRates",
    "nvmlDeviceGetTemperature",
    "nvmlDeviceGetPowerUsage",
]
UUIDS = [f"GPU-11111111-2222-3333-4444-00000000000{number}" for number in range(8)]
BUSES = [f"00000000:{0x41 + number:02X}:00.0" for number in range(8)]


def row(number: int, **changed: str) -> dict[str, str]:
    healthy = {
        "driver_version": "580.95.05",
        "memory_total_mib": "81920",
        "memory_used_mib": "1024",
        "pci_bus_id": BUSES[number],
        "power_draw_w": "71.50",
        "temperature_c": "33",
        "uuid": UUIDS[number],
    }
    return {**healthy, **changed}


def shown(answer: dict[str, Any]) -> dict[str, Any]:
    """The values of a collector's entries, which fit a record."""
    entries = [SnapshotEntry(path, value) for path, value in answer["entries"]]
    assert encoded(entries)
    return {entry.path: json.loads(entry.value) for entry in entries}


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NvmlHost]:
    host = NvmlHost(build_stub(tmp_path_factory.mktemp("nvml")))
    yield host
    host.close()


def test_each_gpu_has_a_row_of_texts(host: NvmlHost) -> None:
    answer = host.snapshot()
    assert shown(answer) == {"source": "nvidia-nvml-query", "gpu/0": row(0), "gpu/1": row(1)}
    members = list(json.loads(dict(answer["entries"])["gpu/0"]))
    assert members == sorted(members)


def test_eight_gpus_fit_the_default_bounds(host: NvmlHost) -> None:
    found = shown(host.snapshot(NVML_STUB_COUNT="8"))
    assert found == {"source": "nvidia-nvml-query", **{f"gpu/{number}": row(number) for number in range(8)}}


def test_gpus_that_do_not_fit_are_counted(host: NvmlHost) -> None:
    found = shown(host.snapshot({"max_bytes": 1500}, NVML_STUB_COUNT="8"))
    rows = sorted(path for path in found if path.startswith("gpu/"))
    assert 1 <= len(rows) < 8
    assert rows == [f"gpu/{number}" for number in range(len(rows))]
    assert found["omitted"] == {"gpus": 8 - len(rows)}


def test_bounds_without_room_for_anything_are_told(host: NvmlHost) -> None:
    answer = host.snapshot({"max_entries": 1})
    assert answer["reason"] == "source_failed"
    assert "raise ecosystem.host.snapshots" in answer["detail"]


def test_a_host_without_gpus_is_not_enabled(host: NvmlHost) -> None:
    assert host.snapshot(NVML_STUB_COUNT="0") == {
        "reason": "not_enabled",
        "detail": "NVML counts no GPU on this host",
    }


def test_a_host_without_the_library_is_not_enabled(tmp_path: Path) -> None:
    host = NvmlHost(tmp_path)
    answer = host.snapshot()
    host.close()
    assert answer["reason"] == "not_enabled"
    assert "LIBRARY_NOT_FOUND" in answer["detail"]
    assert nvml_hint(12) in answer["detail"]


@pytest.mark.parametrize("code", [*CODES, 3])
@pytest.mark.parametrize("call", ["nvmlInit", "nvmlDeviceGetCount"])
def test_a_host_that_cannot_be_counted_shows_nothing(host: NvmlHost, call: str, code: int) -> None:
    answer = host.snapshot(NVML_STUB_FAIL=f"{call}:{code}")
    no_driver = (call, code) == ("nvmlInit", 12)
    assert answer["reason"] == ("not_enabled" if no_driver else "source_failed")
    assert nvml_name(code) in answer["detail"]
    assert nvml_hint(code) in answer["detail"]


@pytest.mark.parametrize("code", CODES)
def test_rows_without_a_driver_version_are_not_shown(host: NvmlHost, code: int) -> None:
    answer = host.snapshot(NVML_STUB_FAIL=f"nvmlSystemGetDriverVersion:{code}")
    assert answer["reason"] == "source_failed"
    assert f"nvmlSystemGetDriverVersion: {nvml_name(code)}" in answer["detail"]


@pytest.mark.parametrize("code", [*CODES, 3])
def test_a_failed_shutdown_takes_nothing_back(host: NvmlHost, code: int) -> None:
    found = shown(host.snapshot(NVML_STUB_FAIL=f"nvmlShutdown:{code}"))
    assert found == {"source": "nvidia-nvml-query", "gpu/0": row(0), "gpu/1": row(1)}


@pytest.mark.parametrize("code", CODES)
@pytest.mark.parametrize("call", DEVICE_CALLS)
def test_one_failing_gpu_says_so_and_hides_no_other(host: NvmlHost, call: str, code: int) -> None:
    found = shown(host.snapshot(NVML_STUB_FAIL=f"{call}:{code}:1"))
    known = {"pci_bus_id": BUSES[1], "uuid": UUIDS[1]}
    if call in {"nvmlDeviceGetHandleByIndex", "nvmlDeviceGetUUID"}:
        del known["uuid"]
    if call in {"nvmlDeviceGetHandleByIndex", "nvmlDeviceGetPciInfo"}:
        del known["pci_bus_id"]
    assert found == {
        "source": "nvidia-nvml-query",
        "gpu/0": row(0),
        "gpu/1": {"error": nvml_name(code), **known},
    }


@pytest.mark.parametrize("code", CODES)
@pytest.mark.parametrize("call", DEVICE_CALLS)
def test_when_every_gpu_fails_there_is_nothing_to_show(host: NvmlHost, call: str, code: int) -> None:
    answer = host.snapshot(NVML_STUB_FAIL=f"{call}:{code}")
    assert answer["reason"] == "source_failed"
    assert f"{call}: {nvml_name(code)}" in answer["detail"]
    assert nvml_hint(code) in answer["detail"]


@pytest.mark.parametrize(
    ("call", "changed"),
    [
        ("nvmlSystemGetDriverVersion", {"driver_version": "[N/A]"}),
        ("nvmlDeviceGetPciInfo", {"pci_bus_id": "[N/A]"}),
        ("nvmlDeviceGetName", {}),
        ("nvmlDeviceGetMemoryInfo", {"memory_total_mib": "[N/A]", "memory_used_mib": "[N/A]"}),
        ("nvmlDeviceGetUtilizationRates", {}),
        ("nvmlDeviceGetTemperature", {"temperature_c": "[N/A]"}),
        ("nvmlDeviceGetPowerUsage", {"power_draw_w": "[N/A]"}),
    ],
)
def test_a_reading_that_a_device_does_not_offer_is_not_available(
    host: NvmlHost, call: str, changed: dict[str, str]
) -> None:
    found = shown(host.snapshot(NVML_STUB_FAIL=f"{call}:3"))
    assert found["gpu/0"] == row(0, **changed)
    assert found["gpu/1"] == row(1, **changed)


@pytest.mark.parametrize("call", ["nvmlDeviceGetHandleByIndex", "nvmlDeviceGetUUID"])
def test_a_gpu_that_cannot_be_named_is_a_failing_one(host: NvmlHost, call: str) -> None:
    found = shown(host.snapshot(NVML_STUB_FAIL=f"{call}:3:1"))
    assert found["gpu/0"] == row(0)
    assert found["gpu/1"]["error"] == "NOT_SUPPORTED"


def test_that_a_gpu_is_lost_comes_before_what_else_fails(host: NvmlHost) -> None:
    failing = "nvmlDeviceGetName:999:1,nvmlDeviceGetPowerUsage:15:1"
    found = shown(host.snapshot(NVML_STUB_FAIL=failing))
    assert found["gpu/1"]["error"] == "GPU_IS_LOST"


def test_an_unreadable_uuid_is_told(host: NvmlHost) -> None:
    answer = host.snapshot(NVML_STUB_UUID="")
    assert answer["reason"] == "source_failed"
    assert "GARBLED_TEXT" in answer["detail"]


def test_a_long_text_of_a_driver_leaves_its_row_out() -> None:
    def gpu(uuid: str) -> Gpu:
        return Gpu(
            uuid=uuid,
            pci_bus_id="00000000:41:00.0",
            name="n",
            memory=Memory(total=1, free=1, used=0),
            utilisation=Utilisation(gpu=0, memory=0),
        )

    entries = project(Inventory(driver="1", gpus=(gpu("x" * 2000), gpu("GPU-b"))), DEFAULT_BOUNDS)
    assert encoded(entries)
    assert [entry.path for entry in entries] == ["source", "omitted", "gpu/1"]


def test_a_missing_binding_is_told() -> None:
    absent = Unreadable(call="import pynvml", code=None, name="BINDING_NOT_INSTALLED", hint="install it")
    with pytest.raises(CollectError, match="BINDING_NOT_INSTALLED; install it") as caught:
        project(Inventory(driver=absent, gpus=absent), SnapshotBounds())
    assert caught.value.reason is UnavailableReason.SOURCE_FAILED


def test_nothing_is_read_after_the_deadline() -> None:
    with pytest.raises(CollectError) as caught:
        collect(late_context())
    assert caught.value.reason is UnavailableReason.TIMED_OUT


@pytest.mark.parametrize("platform", ["darwin", "win32"])
def test_other_systems_are_not_supported(platform: str) -> None:
    with pytest.raises(CollectError, match=platform) as caught:
        collect(context(), platform=platform)
    assert caught.value.reason is UnavailableReason.NOT_SUPPORTED
