from __future__ import annotations

import io
import os
import shutil
import time
from typing import TYPE_CHECKING, Any

import pytest
from collector_support import context, encoded, late_context, values
from jetson_support import MODEL, STATUS, nvpmodel, orin, write

from ticket_agent.protocol.collecting import CollectContext, CollectError, Deadline
from ticket_agent.protocol.snapshot import DEFAULT_BOUNDS, SnapshotBounds, UnavailableReason
from ticket_agent.snapshots.collectors import dpkg_status
from ticket_agent.snapshots.collectors.dpkg_status import bounded_lines, installed_versions
from ticket_agent.snapshots.collectors.jetson import collect
from ticket_agent.snapshots.collectors.small_files import read_text

if TYPE_CHECKING:
    from pathlib import Path

ZONE = "sys/class/thermal/thermal_zone0"
CPU = "sys/devices/system/cpu/cpufreq"
GPU = "sys/class/devfreq"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return orin(tmp_path / "root")


@pytest.fixture
def power(tmp_path: Path) -> str:
    return nvpmodel(tmp_path)


def look(root: Path, power: str, bounds: SnapshotBounds = DEFAULT_BOUNDS) -> dict[str, Any]:
    entries = collect(context(bounds=bounds), platform="linux", machine="aarch64", root=root, nvpmodel=power)
    assert encoded(entries, bounds)
    return values(entries)


def clock(path: str, hertz: int) -> dict[str, Any]:
    return {"frequency_hz": hertz, "source": f"/{path}"}


EXPECTED = {
    "source": "device-tree-dpkg-sysfs-nvpmodel",
    "board": MODEL,
    "packages/nvidia-jetpack": "6.2+b77",
    "packages/nvidia-l4t-core": "36.4.3-20250107174145",
    "packages/cuda-toolkit-13-2": {"state": "not_installed"},
    "packages/nvidia-container-toolkit": {"state": "not_installed"},
    "thermal/thermal_zone0": {"temperature_mc": 46093, "type": "cpu-thermal"},
    "thermal/thermal_zone1": {"temperature_mc": 42812, "type": "gpu-thermal"},
    "thermal/thermal_zone2": {"temperature_mc": 43531, "type": "soc0-thermal"},
    "thermal/thermal_zone3": {"temperature_mc": 46093, "type": "tj-thermal"},
    "thermal/thermal_zone4": {"state": "not_supported", "type": "cv0-thermal"},
    "clocks/scaling_cur_freq-0": clock(f"{CPU}/policy0/scaling_cur_freq", 2_201_600_000),
    "clocks/scaling_cur_freq-1": clock(f"{CPU}/policy4/scaling_cur_freq", 729_600_000),
    "clocks/scaling_cur_freq-2": clock(f"{CPU}/policy8/scaling_cur_freq", 729_600_000),
    "clocks/cur_freq-0": clock(f"{GPU}/15340000.vic/cur_freq", 115_200_000),
    "clocks/cur_freq-1": clock(f"{GPU}/17000000.gpu/cur_freq", 306_000_000),
    "power": {"observation": "NV Power Mode: MODE_30W\n2", "source": "nvpmodel-query"},
}


def test_an_orin_is_seen_with_all_its_parts(root: Path, power: str) -> None:
    assert look(root, power) == EXPECTED


def test_members_are_sorted(root: Path, power: str) -> None:
    for value in look(root, power).values():
        if isinstance(value, dict):
            assert list(value) == sorted(value)


@pytest.mark.parametrize(
    ("missing", "path", "value"),
    [
        ("var/lib/dpkg/status", "packages", {"state": "not_supported"}),
        ("sys/class/thermal", "thermal", {"state": "not_supported"}),
        (CPU, "clocks/scaling_cur_freq", {"source": f"/{CPU}", "state": "not_supported"}),
        (GPU, "clocks/cur_freq", {"source": f"/{GPU}", "state": "not_supported"}),
    ],
)
def test_a_missing_part_is_told_in_its_place_and_takes_no_other_with_it(
    root: Path, power: str, missing: str, path: str, value: dict[str, str]
) -> None:
    target = root / missing
    if target.is_dir():
        shutil.rmtree(target)
    else:
        target.unlink()
    rest = {name: fact for name, fact in EXPECTED.items() if name.split("-", maxsplit=1)[0] != path}
    rest = {name: fact for name, fact in rest.items() if not name.startswith(f"{path}/")}
    assert len(rest) < len(EXPECTED)
    assert look(root, power) == {**rest, path: value}


def test_an_empty_directory_is_no_failure(root: Path, power: str) -> None:
    shutil.rmtree(root / GPU)
    (root / GPU).mkdir()
    found = look(root, power)
    assert not [path for path in found if path.startswith("clocks/cur_freq")]
    assert "clocks/scaling_cur_freq-0" in found


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("-273150", {"temperature_mc": -273150}),
        ("1000000", {"temperature_mc": 1_000_000}),
        ("0\n\0\n", {"temperature_mc": 0}),
        ("-273151", {"state": "source_failed"}),
        ("1000001", {"state": "source_failed"}),
        ("9" * 400, {"state": "source_failed"}),
        ("+5", {"state": "source_failed"}),
        ("٤٢", {"state": "source_failed"}),
        ("", {"state": "source_failed"}),
        ("warm", {"state": "source_failed"}),
        (b"\xff", {"state": "source_failed"}),
        ("5" * 600, {"state": "not_supported"}),
    ],
)
def test_temperatures_are_numbers_within_their_range(
    root: Path, power: str, text: str | bytes, value: dict[str, Any]
) -> None:
    write(root, {f"{ZONE}/temp": text})
    assert look(root, power)["thermal/thermal_zone0"] == {**value, "type": "cpu-thermal"}


def test_a_sensor_that_is_switched_off_has_no_reading(root: Path, power: str) -> None:
    temperature = root / ZONE / "temp"
    temperature.unlink()
    os.mkfifo(temperature)
    # An open FIFO without data answers a reader with EAGAIN, as the kernel does for such a sensor.
    descriptor = os.open(temperature, os.O_RDWR)
    try:
        found = look(root, power)
    finally:
        os.close(descriptor)
    assert found["thermal/thermal_zone0"] == {"state": "not_supported", "type": "cpu-thermal"}
    assert found["thermal/thermal_zone1"] == EXPECTED["thermal/thermal_zone1"]


def test_a_sensor_that_is_no_file_has_no_reading(root: Path, power: str) -> None:
    (root / ZONE / "temp").unlink()
    (root / ZONE / "temp").mkdir()
    assert look(root, power)["thermal/thermal_zone0"] == {"state": "not_supported", "type": "cpu-thermal"}


@pytest.mark.parametrize("text", [None, b"\xff", b"x" * 513])
def test_a_zone_without_a_type_still_has_its_temperature(root: Path, power: str, text: bytes | None) -> None:
    if text is None:
        (root / ZONE / "type").unlink()
    else:
        write(root, {f"{ZONE}/type": text})
    assert look(root, power)["thermal/thermal_zone0"] == {"temperature_mc": 46093, "type": None}


@pytest.mark.parametrize(
    ("file", "path", "text", "value"),
    [
        (f"{CPU}/policy0/scaling_cur_freq", "clocks/scaling_cur_freq-0", "1000000000", 10**12),
        (f"{CPU}/policy0/scaling_cur_freq", "clocks/scaling_cur_freq-0", "1000000001", "source_failed"),
        (f"{CPU}/policy0/scaling_cur_freq", "clocks/scaling_cur_freq-0", "<unknown>", "source_failed"),
        (f"{GPU}/15340000.vic/cur_freq", "clocks/cur_freq-0", "1000000000000", 10**12),
        (f"{GPU}/15340000.vic/cur_freq", "clocks/cur_freq-0", "1000000000001", "source_failed"),
        (f"{GPU}/15340000.vic/cur_freq", "clocks/cur_freq-0", "-1", "source_failed"),
        (f"{GPU}/15340000.vic/cur_freq", "clocks/cur_freq-0", None, "not_supported"),
    ],
)
def test_clocks_are_numbers_within_their_range(
    root: Path, *, power: str, file: str, path: str, text: str | None, value: int | str
) -> None:
    if text is None:
        (root / file).unlink()
    else:
        write(root, {file: text})
    member = "frequency_hz" if isinstance(value, int) else "state"
    assert look(root, power)[path] == {member: value, "source": f"/{file}"}


def test_clocks_are_numbered_in_natural_order(root: Path, power: str) -> None:
    write(root, {f"{CPU}/policy10/scaling_cur_freq": "1", f"{CPU}/boost": "1"})
    found = look(root, power)
    assert found["clocks/scaling_cur_freq-3"] == clock(f"{CPU}/policy10/scaling_cur_freq", 1000)
    assert "clocks/scaling_cur_freq-4" not in found


def test_without_nvpmodel_the_power_mode_is_not_supported(root: Path, tmp_path: Path) -> None:
    found = look(root, str(tmp_path / "none"))
    assert found == {**EXPECTED, "power": {"source": "nvpmodel-query", "state": "not_supported"}}


@pytest.mark.parametrize("script", ["exit 1", "printf '\\377'", "head -c 70000 /dev/zero"])
def test_a_failing_nvpmodel_fails_only_the_power_mode(root: Path, tmp_path: Path, script: str) -> None:
    found = look(root, nvpmodel(tmp_path, script))
    assert found == {**EXPECTED, "power": {"source": "nvpmodel-query", "state": "source_failed"}}


def test_a_long_power_mode_is_left_out_and_counted(root: Path, tmp_path: Path) -> None:
    found = look(root, nvpmodel(tmp_path, "head -c 3000 /dev/zero | tr '\\0' x"))
    assert "power" not in found
    assert found["omitted"] == {"facts": 1}


def test_an_nvpmodel_that_hangs_ends_with_the_deadline(root: Path, tmp_path: Path) -> None:
    short = CollectContext(deadline=Deadline.after(0.3, time.monotonic))
    with pytest.raises(CollectError) as caught:
        collect(
            short, platform="linux", machine="aarch64", root=root, nvpmodel=nvpmodel(tmp_path, "sleep 600")
        )
    assert caught.value.reason is UnavailableReason.TIMED_OUT


@pytest.mark.parametrize("number", [60, 300])
def test_what_does_not_fit_is_counted(root: Path, power: str, number: int) -> None:
    for index in range(number):
        write(root, {f"sys/class/thermal/thermal_zone{index}/type": "t", f"{ZONE}/temp": "1"})
    found = look(root, power)
    shown = len(found) - len(["source", "board", "omitted"])
    total = len(EXPECTED) - len(["source", "board"]) - 5 + number
    assert found["omitted"] == {"facts": total - shown}
    assert found["power"] == EXPECTED["power"]


def test_a_name_that_no_path_can_hold_is_left_out_and_counted(root: Path, power: str) -> None:
    write(root, {"sys/class/thermal/thermal_zone with blanks/type": "x"})
    (root / "sys/class/thermal/thermal_zone\udcff").mkdir()
    found = look(root, power)
    assert found == {**EXPECTED, "omitted": {"facts": 2}}


@pytest.mark.parametrize("model", [None, "NVIDIA DGX Spark\0", b"Jetson\xff", "Jetson" + "x" * 600])
def test_another_board_is_not_enabled(root: Path, power: str, model: str | bytes | None) -> None:
    if model is None:
        (root / "proc/device-tree/model").unlink()
    else:
        write(root, {"proc/device-tree/model": model})
    with pytest.raises(CollectError, match="no Jetson") as caught:
        look(root, power)
    assert caught.value.reason is UnavailableReason.NOT_ENABLED


@pytest.mark.parametrize(
    ("platform", "machine"), [("linux", "x86_64"), ("linux", "armv7l"), ("darwin", "aarch64")]
)
def test_other_machines_are_not_supported(root: Path, platform: str, machine: str) -> None:
    with pytest.raises(CollectError, match=f"on {platform} on {machine}") as caught:
        collect(context(), platform=platform, machine=machine, root=root)
    assert caught.value.reason is UnavailableReason.NOT_SUPPORTED


def test_this_machine_is_looked_at_by_default() -> None:
    if os.uname().machine == "aarch64":
        entries = None
        try:
            entries = collect(context())
        except CollectError as error:
            assert error.reason is UnavailableReason.NOT_ENABLED  # noqa: PT017 - a Jetson has entries
        assert entries is None or encoded(entries)
    else:
        with pytest.raises(CollectError, match="aarch64 only"):
            collect(context())


def test_nothing_is_looked_at_after_the_deadline(root: Path) -> None:
    with pytest.raises(CollectError) as caught:
        collect(late_context(), platform="linux", machine="aarch64", root=root)
    assert caught.value.reason is UnavailableReason.TIMED_OUT


def test_bounds_without_room_for_the_board_are_told(root: Path, power: str) -> None:
    with pytest.raises(CollectError, match="the entry 'board' does not fit"):
        look(root, power, SnapshotBounds(max_entries=1))


def test_versions_are_those_of_installed_packages() -> None:
    found = installed_versions(io.BytesIO(STATUS.encode()), ["nvidia-jetpack", "nvidia-container-toolkit"])
    assert found == {"nvidia-jetpack": "6.2+b77"}


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"\n\n",
        b"Package: a\nVersion: 1\n",
        b"Package: a\nStatus: install ok unpacked\nVersion: 1\n",
        b"Package: a\nStatus: install ok installed\nVersion: \xff\n",
        b"Package: ab\nStatus: install ok installed\nVersion: 1\n",
        b"Package: a\n\nStatus: install ok installed\nVersion: 1\n",
        b" Package: a\nStatus: install ok installed\nVersion: 1\n",
    ],
)
def test_anything_else_is_not_installed(text: bytes) -> None:
    assert installed_versions(io.BytesIO(text), ["a"]) == {}


def test_a_long_status_file_is_read_in_pieces() -> None:
    padding = b"Package: x\nStatus: install ok installed\nDescription: " + b"y" * 200_000 + b"\n\n"
    text = padding * 50 + b"Package: a\nStatus: install ok installed\nVersion: 7\n" + b"\n" + padding
    checks: list[int] = []
    assert installed_versions(bounded_lines(io.BytesIO(text), lambda: checks.append(1)), ["a"]) == {"a": "7"}
    assert checks


def test_a_status_file_without_end_is_a_failure_of_its_part(
    root: Path, power: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dpkg_status, "MAX_STATUS_BYTES", 100)
    found = look(root, power)
    assert found["packages"] == {"state": "source_failed"}
    assert found["thermal/thermal_zone0"] == EXPECTED["thermal/thermal_zone0"]


def test_reading_packages_stops_at_the_deadline() -> None:
    deadline = Deadline(5.0, lambda: 5.0)
    with pytest.raises(CollectError) as caught:
        list(bounded_lines(io.BytesIO(b"a\nb\n"), deadline.left_s))
    assert caught.value.reason is UnavailableReason.TIMED_OUT


def test_small_files_lose_only_newlines_and_nuls_at_their_end(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b" a\0b \n\0\n")
    assert read_text(path) == " a\0b "
    path.write_bytes(b"x" * 512)
    assert len(read_text(path)) == 512
    path.write_bytes(b"x" * 513)
    with pytest.raises(OSError, match="more than 512 bytes"):
        read_text(path)
