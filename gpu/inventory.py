"""What GPUs this host has, read through NVML, with everything that could not be read said in so many words.

A reading that failed is a value of its own (:class:`Unreadable`), at each NVML call separately. It never
becomes a default, so that a GPU nobody can see is never taken for a free one. GPUs are named by UUID and PCI
bus id; indices and ``/dev`` minors change over a reboot and appear nowhere.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final, TypeVar

from ticket_agent.gpu.nvml_codes import NVML_NOT_SUPPORTED, nvml_hint, nvml_name

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["Gpu", "Health", "Inventory", "Memory", "Unreadable", "Utilisation", "read_inventory"]

JsonObject = dict[str, Any]
T = TypeVar("T")


class Health(StrEnum):
    """Whether all of a GPU could be read. There is no third, hopeful state."""

    OK = "ok"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True, kw_only=True)
class Unreadable:
    """A reading that failed.

    Attributes:
        call: the NVML function that failed.
        code: NVML's return code, or None if the failure was on this side of the library.
        name: the code's name, for example ``GPU_IS_LOST``.
        hint: what to do about it, one line.
    """

    call: str
    code: int | None
    name: str
    hint: str

    @property
    def expected(self) -> bool:
        """Whether the device merely has no such reading (NOT_SUPPORTED)."""
        return self.code == NVML_NOT_SUPPORTED

    def __str__(self) -> str:
        number = "" if self.code is None else f" ({self.code})"
        return f"{self.call}: {self.name}{number}; {self.hint}"

    def to_json(self) -> JsonObject:
        """The failure as a JSON object under the single member ``unknown``."""
        return {"unknown": {"call": self.call, "code": self.code, "name": self.name, "hint": self.hint}}


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """Device memory in bytes."""

    total: int
    free: int
    used: int

    def to_json(self) -> JsonObject:
        """Members in bytes."""
        return {"total_bytes": self.total, "free_bytes": self.free, "used_bytes": self.used}


@dataclass(frozen=True, slots=True, kw_only=True)
class Utilisation:
    """Share of the last sample period in which kernels ran and memory was accessed, 0..=100 percent."""

    gpu: int
    memory: int

    def to_json(self) -> JsonObject:
        """Members in percent."""
        return {"gpu_percent": self.gpu, "memory_percent": self.memory}


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """One physical GPU; each member is a value or the reason why there is none.

    Attributes:
        temperature_c: of the chip, in degrees Celsius; None when sensors were not asked.
        power_mw: drawn now, in milliwatts; None when sensors were not asked.
    """

    uuid: str | Unreadable
    pci_bus_id: str | Unreadable
    name: str | Unreadable
    memory: Memory | Unreadable
    utilisation: Utilisation | Unreadable
    temperature_c: int | Unreadable | None = None
    power_mw: int | Unreadable | None = None

    @property
    def problems(self) -> tuple[Unreadable, ...]:
        """Failed readings, each once; a reading that the device simply does not offer is none."""
        # Integrated GPUs have no memory of their own and MIG parents no utilisation; a name every GPU has.
        required = [part for part in (self.uuid, self.pci_bus_id, self.name) if isinstance(part, Unreadable)]
        optional = [part for part in (self.memory, self.utilisation) if isinstance(part, Unreadable)]
        return tuple(dict.fromkeys([*required, *(part for part in optional if not part.expected)]))

    @property
    def health(self) -> Health:
        """OK only if nothing failed."""
        return Health.UNKNOWN if self.problems else Health.OK

    def to_json(self) -> JsonObject:
        """The GPU as a JSON object; a failed reading is an object with the member ``unknown``."""
        return {
            "uuid": _json(self.uuid),
            "pci_bus_id": _json(self.pci_bus_id),
            "name": _json(self.name),
            "memory": _json(self.memory),
            "utilisation": _json(self.utilisation),
            "health": self.health.value,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Inventory:
    """One reading of all GPUs.

    Attributes:
        driver: version of the kernel driver.
        gpus: the GPUs, or the reason why they could not even be counted.
        faults: failures that belong to no GPU and no other member (the library's shutdown).
    """

    driver: str | Unreadable
    gpus: tuple[Gpu, ...] | Unreadable
    faults: tuple[Unreadable, ...] = ()

    @property
    def problems(self) -> tuple[Unreadable, ...]:
        """All failed readings of the host and of its GPUs, each once."""
        found = [self.driver] if isinstance(self.driver, Unreadable) else []
        if isinstance(self.gpus, Unreadable):
            found.append(self.gpus)
        else:
            found.extend(problem for gpu in self.gpus for problem in gpu.problems)
        return tuple(dict.fromkeys([*found, *self.faults]))

    @property
    def health(self) -> Health:
        """OK only if the whole host could be read; an empty host that could be read is OK."""
        return Health.UNKNOWN if self.problems else Health.OK

    def find(self, name: str) -> Gpu | None:
        """The GPU with this UUID or PCI bus id (letter case does not count), or None."""
        if isinstance(self.gpus, Unreadable):
            return None
        wanted = name.casefold()
        for gpu in self.gpus:
            if any(
                isinstance(part, str) and part.casefold() == wanted for part in (gpu.uuid, gpu.pci_bus_id)
            ):
                return gpu
        return None

    def to_json(self) -> JsonObject:
        """The reading as one JSON object."""
        gpus = (
            self.gpus.to_json() if isinstance(self.gpus, Unreadable) else [gpu.to_json() for gpu in self.gpus]
        )
        return {
            "health": self.health.value,
            "driver": _json(self.driver),
            "gpus": gpus,
            "faults": [fault.to_json() for fault in self.faults],
        }


def _json(reading: str | Memory | Utilisation | Unreadable) -> str | JsonObject:
    return reading if isinstance(reading, str) else reading.to_json()


def read_inventory(*, sensors: bool = False) -> Inventory:
    """Read all GPUs of this host with an initialisation of NVML of its own.

    Never raises for what the driver does: each failure stands where its value would stand. A later call
    starts afresh, so that a passing fault (a container's ``UNKNOWN`` after a daemon reload) ends with its
    cause.

    Args:
        sensors: ask for temperature and power as well.
    """
    try:
        import pynvml  # noqa: PLC0415 - loads ctypes tables; only this function needs them
    except ImportError:
        absent = Unreadable(
            call="import pynvml",
            code=None,
            name="BINDING_NOT_INSTALLED",
            hint="install the package nvidia-ml-py",
        )
        return Inventory(driver=absent, gpus=absent)
    nvml = _Nvml(pynvml, sensors=sensors)
    started = nvml.call("nvmlInit")
    if isinstance(started, Unreadable):
        return Inventory(driver=started, gpus=started)
    try:
        driver = nvml.text("nvmlSystemGetDriverVersion")
        gpus = nvml.gpus()
    finally:
        stopped = nvml.call("nvmlShutdown")
    return Inventory(driver=driver, gpus=gpus, faults=(stopped,) if isinstance(stopped, Unreadable) else ())


class _Nvml:
    """The few NVML calls of a reading, with failures as values."""

    def __init__(self, binding: Any, *, sensors: bool) -> None:
        self._binding: Final = binding
        self._sensors: Final = sensors

    def call(self, function: str, *args: Any) -> Any | Unreadable:
        try:
            return getattr(self._binding, function)(*args)
        except self._binding.NVMLError as error:
            code = int(error.value)
            return Unreadable(call=function, code=code, name=nvml_name(code), hint=nvml_hint(code))
        except UnicodeDecodeError:
            return _garbled(function)

    def take(self, convert: Callable[[Any], T], function: str, *args: Any) -> T | Unreadable:
        answer = self.call(function, *args)
        if isinstance(answer, Unreadable):
            return answer
        try:
            return convert(answer)
        except UnicodeDecodeError:
            return _garbled(function)

    def text(self, function: str, *args: Any) -> str | Unreadable:
        text = self.take(_decoded, function, *args)
        return text or _garbled(function)

    def gpus(self) -> tuple[Gpu, ...] | Unreadable:
        count = self.take(int, "nvmlDeviceGetCount")
        return count if isinstance(count, Unreadable) else tuple(self._each(count))

    def _each(self, count: int) -> Iterator[Gpu]:
        for index in range(count):
            handle = self.call("nvmlDeviceGetHandleByIndex", index)
            if isinstance(handle, Unreadable):
                yield Gpu(uuid=handle, pci_bus_id=handle, name=handle, memory=handle, utilisation=handle)
            else:
                yield self._gpu(handle)

    def _gpu(self, handle: Any) -> Gpu:
        pci = self.take(lambda info: _decoded(info.busId), "nvmlDeviceGetPciInfo", handle)
        return Gpu(
            uuid=self.text("nvmlDeviceGetUUID", handle),
            pci_bus_id=pci or _garbled("nvmlDeviceGetPciInfo"),
            name=self.text("nvmlDeviceGetName", handle),
            memory=self.take(_memory, "nvmlDeviceGetMemoryInfo", handle),
            utilisation=self.take(_utilisation, "nvmlDeviceGetUtilizationRates", handle),
            temperature_c=self._sensor(
                "nvmlDeviceGetTemperature", handle, self._binding.NVML_TEMPERATURE_GPU
            ),
            power_mw=self._sensor("nvmlDeviceGetPowerUsage", handle),
        )

    def _sensor(self, function: str, *args: Any) -> int | Unreadable | None:
        return self.take(int, function, *args) if self._sensors else None


def _garbled(function: str) -> Unreadable:
    return Unreadable(
        call=function,
        code=None,
        name="GARBLED_TEXT",
        hint="the driver returned an empty or unreadable string: compare with `nvidia-smi -q`",
    )


def _decoded(text: str | bytes) -> str:
    return text.decode("utf-8") if isinstance(text, bytes) else text


def _memory(info: Any) -> Memory:
    return Memory(total=int(info.total), free=int(info.free), used=int(info.used))


def _utilisation(rates: Any) -> Utilisation:
    return Utilisation(gpu=int(rates.gpu), memory=int(rates.memory))
