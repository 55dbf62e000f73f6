"""Collector ``nvidia``: the GPUs of a Linux host for a host snapshot, one row each, through NVML.

A row holds texts only, ``[N/A]`` where the device has no such reading. A GPU that fails has a row that says
so instead of readings, and hides no other one; when no GPU could be read, there is nothing to show.

An NVML call that hangs cannot be ended from here; the deadline is looked at before and after the reading.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Final

from ticket_agent.gpu.inventory import Unreadable, read_inventory
from ticket_agent.gpu.nvml_codes import NVML_LIBRARY_NOT_FOUND, NVML_LOST
from ticket_agent.protocol.collecting import CollectError, fact
from ticket_agent.protocol.snapshot import UnavailableReason
from ticket_agent.protocol.snapshot_fitting import fit

if TYPE_CHECKING:
    from ticket_agent.gpu.inventory import Gpu, Inventory
    from ticket_agent.protocol.collecting import CollectContext
    from ticket_agent.protocol.snapshot import SnapshotBounds, SnapshotEntry

__all__ = ["SOURCE", "collect", "project"]

SOURCE: Final = "nvidia-nvml-query"
NOT_AVAILABLE: Final = "[N/A]"

_MIB: Final = 1 << 20


def collect(context: CollectContext, *, platform: str = sys.platform) -> list[SnapshotEntry]:
    """Look at all GPUs once.

    Args:
        context: of the observation.
        platform: as ``sys.platform``.

    Raises:
        CollectError: ``not_supported`` off Linux; ``not_enabled`` without NVML's library or without a GPU;
            ``source_failed`` when NVML, or every GPU, fails; ``timed_out``.
    """
    if platform != "linux":
        raise CollectError(
            f"nvidia is read on Linux alone, not on {platform}", UnavailableReason.NOT_SUPPORTED
        )
    context.deadline.left_s()
    inventory = read_inventory(sensors=True)
    context.deadline.left_s()
    return project(inventory, context.bounds)


def project(inventory: Inventory, bounds: SnapshotBounds) -> list[SnapshotEntry]:
    """Return the entries for one reading. Pure.

    ``source``; ``gpu/<row>`` in NVML's order; ``omitted`` with the number of GPUs without a row, if the
    bounds are too small for all. A failed shutdown of the library takes nothing back that was read before.

    Raises:
        CollectError: there is nothing to show.
    """
    if isinstance(inventory.gpus, Unreadable):
        raise _unavailable(inventory.gpus)
    if not inventory.gpus:
        raise CollectError("NVML counts no GPU on this host", UnavailableReason.NOT_ENABLED)
    driver = _reading(inventory.driver)
    if isinstance(driver, Unreadable):
        raise _unavailable(driver)
    failures = [_failure(gpu) for gpu in inventory.gpus]
    if failures[0] is not None and None not in failures:
        raise _unavailable(failures[0])
    rows = [
        fact(f"gpu/{number}", _row(gpu, driver) if failure is None else _failed_row(gpu, failure))
        for number, (gpu, failure) in enumerate(zip(inventory.gpus, failures, strict=True))
    ]
    return fit([fact("source", SOURCE)], rows, bounds, omitted=lambda left: fact("omitted", {"gpus": left}))[
        0
    ]


def _unavailable(failure: Unreadable) -> CollectError:
    if (failure.call, failure.code) == ("nvmlInit", NVML_LIBRARY_NOT_FOUND):
        return CollectError(f"no NVIDIA driver on this host: {failure}", UnavailableReason.NOT_ENABLED)
    return CollectError(str(failure), UnavailableReason.SOURCE_FAILED)


def _failure(gpu: Gpu) -> Unreadable | None:
    """Why a GPU has no row of readings; that it is gone comes before everything else."""
    readings = (gpu.pci_bus_id, gpu.name, gpu.memory, gpu.utilisation, gpu.temperature_c, gpu.power_mw)
    found = [reading for reading in readings if isinstance(reading, Unreadable) and not reading.expected]
    # Without its UUID nobody could tell which GPU it is.
    if isinstance(gpu.uuid, Unreadable):
        found.insert(0, gpu.uuid)
    lost = [failure for failure in found if failure.code == NVML_LOST]
    return next(iter([*lost, *found]), None)


def _row(gpu: Gpu, driver: str) -> dict[str, str]:
    memory, temperature, power = gpu.memory, gpu.temperature_c, gpu.power_mw
    return {
        "driver_version": driver,
        "memory_total_mib": NOT_AVAILABLE if isinstance(memory, Unreadable) else str(memory.total // _MIB),
        "memory_used_mib": NOT_AVAILABLE if isinstance(memory, Unreadable) else str(memory.used // _MIB),
        "pci_bus_id": gpu.pci_bus_id if isinstance(gpu.pci_bus_id, str) else NOT_AVAILABLE,
        "power_draw_w": f"{power / 1000:.2f}" if isinstance(power, int) else NOT_AVAILABLE,
        "temperature_c": str(temperature) if isinstance(temperature, int) else NOT_AVAILABLE,
        "uuid": gpu.uuid if isinstance(gpu.uuid, str) else NOT_AVAILABLE,
    }


def _failed_row(gpu: Gpu, failure: Unreadable) -> dict[str, str]:
    known = {"pci_bus_id": gpu.pci_bus_id, "uuid": gpu.uuid}
    return {"error": failure.name, **{name: text for name, text in known.items() if isinstance(text, str)}}


def _reading(reading: str | Unreadable) -> str | Unreadable:
    return NOT_AVAILABLE if isinstance(reading, Unreadable) and reading.expected else reading
