"""NVML's return codes as names and as advice: what a number means for whoever runs this host."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = [
    "NVML_LIBRARY_NOT_FOUND",
    "NVML_LOST",
    "NVML_NAMES",
    "NVML_NOT_SUPPORTED",
    "nvml_hint",
    "nvml_name",
]

NVML_NOT_SUPPORTED: Final = 3
"""The device has no such reading (MIG parents and vGPUs have no utilisation, for one): not a fault."""
NVML_LIBRARY_NOT_FOUND: Final = 12
"""There is no driver on this host, or it is not on the library path."""
NVML_LOST: Final = 15
"""The GPU fell off the bus: no reading of it can be had."""

NVML_NAMES: Final[Mapping[int, str]] = MappingProxyType(
    {
        1: "UNINITIALIZED",
        2: "INVALID_ARGUMENT",
        3: "NOT_SUPPORTED",
        4: "NO_PERMISSION",
        5: "ALREADY_INITIALIZED",
        6: "NOT_FOUND",
        7: "INSUFFICIENT_SIZE",
        8: "INSUFFICIENT_POWER",
        9: "DRIVER_NOT_LOADED",
        10: "TIMEOUT",
        11: "IRQ_ISSUE",
        12: "LIBRARY_NOT_FOUND",
        13: "FUNCTION_NOT_FOUND",
        14: "CORRUPTED_INFOROM",
        15: "GPU_IS_LOST",
        16: "RESET_REQUIRED",
        17: "OPERATING_SYSTEM",
        18: "LIB_RM_VERSION_MISMATCH",
        19: "IN_USE",
        20: "MEMORY",
        21: "NO_DATA",
        22: "VGPU_ECC_NOT_SUPPORTED",
        23: "INSUFFICIENT_RESOURCES",
        24: "FREQ_NOT_SUPPORTED",
        25: "ARGUMENT_VERSION_MISMATCH",
        26: "DEPRECATED",
        27: "NOT_READY",
        28: "GPU_NOT_FOUND",
        29: "INVALID_STATE",
        30: "RESET_TYPE_NOT_SUPPORTED",
        999: "UNKNOWN",
    }
)

_HINTS: Final[Mapping[int, str]] = MappingProxyType(
    {
        4: "the agent's user may not open /dev/nvidia*: check its groups and the container's device rules",
        8: "connect the GPU's external power",
        9: "the kernel module is not loaded: run `nvidia-smi`, then `modprobe nvidia`",
        10: "the driver did not answer in time: read again, then look for Xid lines in `dmesg`",
        11: "the kernel reports an interrupt problem with the GPU: look at `dmesg`",
        12: "libnvidia-ml.so.1 is not on the library path: install the driver, or expose it to the container",
        13: "the driver's library is too old for this reading: upgrade the driver",
        14: "the GPU's infoROM is corrupted: reset the GPU, replace it if that does not help",
        15: "the GPU fell off the bus: drain this host and reboot it",
        16: "the GPU must be reset before it can be used: stop its processes, then `nvidia-smi --gpu-reset`",
        17: "the operating system blocks the call: check cgroup and security policy",
        18: "driver and library differ (an upgrade?): reload the kernel module, restart the agent",
        27: "the driver is still starting: read again in a moment",
        28: "the GPU is no longer there: compare `lspci` with `nvidia-smi -L`",
        999: "in a container often after `systemctl daemon-reload`: restart it; else look at `dmesg`",
    }
)


def nvml_name(code: int) -> str:
    """The name of a return code without its ``NVML_ERROR_``; a code of a newer driver is ``CODE_<n>``."""
    return NVML_NAMES.get(code, f"CODE_{code}")


def nvml_hint(code: int) -> str:
    """One line that says what to do about a return code."""
    return _HINTS.get(code, "compare with `nvidia-smi -q` and read again")
