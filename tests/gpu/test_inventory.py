from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pynvml
import pytest
from nvml_support import NvmlHost, build_stub

from ticket_agent.gpu.inventory import Gpu, Health, Inventory, Memory, Unreadable, Utilisation
from ticket_agent.gpu.nvml_codes import NVML_NAMES, nvml_hint, nvml_name

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

CODES = {
    4: "NO_PERMISSION",
    9: "DRIVER_NOT_LOADED",
    10: "TIMEOUT",
    12: "LIBRARY_NOT_FOUND",
    15: "GPU_IS_LOST",
    16: "RESET_REQUIRED",
    18: "LIB_RM_VERSION_MISMATCH",
    999: "UNKNOWN",
    4711: "CODE_4711",
}
DEVICE_CALLS = {
    "nvmlDeviceGetUUID": "uuid",
    "nvmlDeviceGetPciInfo": "pci_bus_id",
    "nvmlDeviceGetName": "name",
    "nvmlDeviceGetMemoryInfo": "memory",
    "nvmlDeviceGetUtilizationRates": "utilisation",
}
FIRST_UUID = "GPU-11111111-2222-3333-4444-000000000000"
SECOND_UUID = "GPU-11111111-2222-3333-4444-000000000001"
HEALTHY_SECOND = {
    "uuid": SECOND_UUID,
    "pci_bus_id": "00000000:42:00.0",
    "name": "Stub Accelerator B",
    "memory": {"total_bytes": 80 << 30, "free_bytes": 79 << 30, "used_bytes": 1 << 30},
    "utilisation": {"gpu_percent": 37, "memory_percent": 12},
    "health": "ok",
}


def unknown(call: str, code: int) -> dict[str, Any]:
    return {"unknown": {"call": call, "code": code, "name": nvml_name(code), "hint": nvml_hint(code)}}


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NvmlHost]:
    host = NvmlHost(build_stub(tmp_path_factory.mktemp("nvml")))
    yield host
    host.close()


def test_a_healthy_host_is_named_by_uuid_and_bus(host: NvmlHost) -> None:
    [reading] = host.read()
    first, second = reading.pop("gpus")
    assert reading == {"health": "ok", "driver": "580.95.05", "faults": []}
    assert (first["uuid"], first["pci_bus_id"]) == (FIRST_UUID, "00000000:41:00.0")
    assert second == HEALTHY_SECOND


def test_a_host_without_gpus_is_known_to_be_empty(host: NvmlHost) -> None:
    [reading] = host.read(NVML_STUB_COUNT="0")
    assert reading["gpus"] == []
    assert reading["health"] == "ok"


@pytest.mark.parametrize("code", CODES)
def test_a_failed_init_leaves_everything_unknown(host: NvmlHost, code: int) -> None:
    [reading] = host.read(NVML_STUB_FAIL=f"nvmlInit:{code}")
    failure = unknown("nvmlInit", code)
    assert reading == {"health": "unknown", "driver": failure, "gpus": failure, "faults": []}


@pytest.mark.parametrize("code", CODES)
def test_a_failed_count_is_not_an_empty_host(host: NvmlHost, code: int) -> None:
    [reading] = host.read(NVML_STUB_FAIL=f"nvmlDeviceGetCount:{code}")
    assert reading["gpus"] == unknown("nvmlDeviceGetCount", code)
    assert reading["driver"] == "580.95.05"
    assert reading["health"] == "unknown"


@pytest.mark.parametrize("code", CODES)
def test_a_failed_driver_version_hides_no_gpu(host: NvmlHost, code: int) -> None:
    [reading] = host.read(NVML_STUB_FAIL=f"nvmlSystemGetDriverVersion:{code}")
    assert reading["driver"] == unknown("nvmlSystemGetDriverVersion", code)
    assert [gpu["health"] for gpu in reading["gpus"]] == ["ok", "ok"]
    assert reading["health"] == "unknown"


@pytest.mark.parametrize("code", CODES)
def test_a_lost_handle_keeps_its_place_and_its_neighbour(host: NvmlHost, code: int) -> None:
    [reading] = host.read(NVML_STUB_FAIL=f"nvmlDeviceGetHandleByIndex:{code}:1")
    healthy, lost = reading["gpus"]
    assert healthy["health"] == "ok"
    assert lost.pop("health") == "unknown"
    assert set(lost) == set(DEVICE_CALLS.values())
    assert all(member == unknown("nvmlDeviceGetHandleByIndex", code) for member in lost.values())
    assert reading["health"] == "unknown"


@pytest.mark.parametrize("code", CODES)
@pytest.mark.parametrize(("call", "member"), DEVICE_CALLS.items())
def test_one_failed_reading_is_one_unknown_member(host: NvmlHost, call: str, member: str, code: int) -> None:
    [reading] = host.read(NVML_STUB_FAIL=f"{call}:{code}:1")
    first, second = reading["gpus"]
    assert first["health"] == "ok"
    assert second == {**HEALTHY_SECOND, member: unknown(call, code), "health": "unknown"}
    assert reading["health"] == "unknown"


@pytest.mark.parametrize("code", CODES)
def test_a_failed_shutdown_is_shown(host: NvmlHost, code: int) -> None:
    [reading] = host.read(NVML_STUB_FAIL=f"nvmlShutdown:{code}")
    assert reading["faults"] == [unknown("nvmlShutdown", code)]
    assert reading["health"] == "unknown"
    assert len(reading["gpus"]) == 2


@pytest.mark.parametrize("call", ["nvmlDeviceGetMemoryInfo", "nvmlDeviceGetUtilizationRates"])
def test_a_reading_the_device_does_not_offer_is_no_fault(host: NvmlHost, call: str) -> None:
    [reading] = host.read(NVML_STUB_FAIL=f"{call}:3")
    assert reading["gpus"][0][DEVICE_CALLS[call]] == unknown(call, 3)
    assert reading["health"] == "ok"


@pytest.mark.parametrize(
    "call", ["nvmlDeviceGetHandleByIndex", "nvmlDeviceGetUUID", "nvmlDeviceGetPciInfo", "nvmlDeviceGetName"]
)
def test_a_gpu_without_identity_is_a_fault_even_if_merely_unsupported(host: NvmlHost, call: str) -> None:
    [reading] = host.read(NVML_STUB_FAIL=f"{call}:3")
    assert [gpu["health"] for gpu in reading["gpus"]] == ["unknown", "unknown"]


def test_each_reading_initialises_and_shuts_down(host: NvmlHost, tmp_path: Path) -> None:
    trace = tmp_path / "trace"
    host.read(times=3, NVML_STUB_TRACE=str(trace), NVML_STUB_FAIL="nvmlDeviceGetCount:999:1")
    calls = trace.read_text().split()
    assert [call for call in calls if call in {"nvmlInit", "nvmlShutdown"}] == [
        "nvmlInit",
        "nvmlShutdown",
    ] * 3


def test_a_failed_init_is_not_shut_down(host: NvmlHost, tmp_path: Path) -> None:
    trace = tmp_path / "trace"
    host.read(NVML_STUB_TRACE=str(trace), NVML_STUB_FAIL="nvmlInit:9")
    assert trace.read_text().split() == ["nvmlInit"]


def test_a_passing_fault_ends_with_the_next_reading(host: NvmlHost) -> None:
    before, after = host.read(times=2, NVML_STUB_FAIL="nvmlDeviceGetMemoryInfo:15:2")
    assert before["health"] == "ok"
    assert after["health"] == "unknown"


@pytest.mark.parametrize("uuid", ["", "\udcff\udcfe"])
def test_an_unreadable_uuid_is_unknown(host: NvmlHost, uuid: str) -> None:
    [reading] = host.read(NVML_STUB_UUID=uuid)
    failure = reading["gpus"][0]["uuid"]["unknown"]
    assert (failure["name"], failure["code"]) == ("GARBLED_TEXT", None)
    assert reading["gpus"][0]["health"] == "unknown"


def test_no_library_is_a_typed_unknown(tmp_path: Path) -> None:
    host = NvmlHost(tmp_path)
    [reading] = host.read()
    host.close()
    failure = unknown("nvmlInit", 12)
    assert reading == {"health": "unknown", "driver": failure, "gpus": failure, "faults": []}


@pytest.mark.parametrize("code", CODES)
def test_the_listed_codes_have_their_names(code: int) -> None:
    assert nvml_name(code) == CODES[code]


@pytest.mark.parametrize("code", [*NVML_NAMES, 4711])
def test_every_hint_is_one_line(code: int) -> None:
    assert nvml_hint(code).isprintable()


def test_the_names_are_those_of_the_binding() -> None:
    prefix = "NVML_ERROR_"
    theirs = {getattr(pynvml, name): name[len(prefix) :] for name in dir(pynvml) if name.startswith(prefix)}
    assert theirs.items() >= {code: NVML_NAMES[code] for code in NVML_NAMES if code in theirs}.items()
    assert len(NVML_NAMES.keys() & theirs.keys()) >= 20


def _gpu(uuid: str, bus: str | Unreadable) -> Gpu:
    return Gpu(
        uuid=uuid,
        pci_bus_id=bus,
        name="n",
        memory=Memory(total=1, free=1, used=0),
        utilisation=Utilisation(gpu=0, memory=0),
    )


def test_gpus_are_found_by_uuid_or_bus_and_never_by_index() -> None:
    lost = Unreadable(call="nvmlDeviceGetPciInfo", code=15, name="GPU_IS_LOST", hint="h")
    first, second = _gpu("GPU-aa", "00000000:41:00.0"), _gpu("GPU-bb", lost)
    inventory = Inventory(driver="1", gpus=(first, second))
    assert inventory.find("gpu-AA") is first
    assert inventory.find("00000000:41:00.0") is first
    assert inventory.find("GPU-bb") is second
    assert inventory.find("0") is None
    assert inventory.problems == (lost,)
    assert inventory.health is Health.UNKNOWN
    assert str(lost) == "nvmlDeviceGetPciInfo: GPU_IS_LOST (15); h"
    assert Inventory(driver="1", gpus=lost).find("GPU-aa") is None
