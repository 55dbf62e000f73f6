"""Host snapshots: observing this host for a hive, and reading what hosts published.

The public names are loaded on first use.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .changes import SnapshotChange, changes_between
    from .errors import (
        ClockRegressedError,
        DisagreementError,
        ExpiredError,
        MalformedRecordError,
        MalformedStatusError,
        NoSuchNodeError,
        NotEnrolledError,
        NothingVisibleError,
        NotObservedError,
        ReplacedError,
        SnapshotReadError,
        WithdrawnError,
    )
    from .observation import HostObservation, ttl_left_ms
    from .reader import SnapshotReader

__all__ = [
    "ClockRegressedError",
    "DisagreementError",
    "ExpiredError",
    "HostObservation",
    "MalformedRecordError",
    "MalformedStatusError",
    "NoSuchNodeError",
    "NotEnrolledError",
    "NotObservedError",
    "NothingVisibleError",
    "ReplacedError",
    "SnapshotChange",
    "SnapshotReadError",
    "SnapshotReader",
    "WithdrawnError",
    "changes_between",
    "ttl_left_ms",
]

_MODULES = {
    "changes": ("SnapshotChange", "changes_between"),
    "observation": ("HostObservation", "ttl_left_ms"),
    "reader": ("SnapshotReader",),
}
_MODULE_OF = {name: module for module, names in _MODULES.items() for name in names}


def __getattr__(name: str) -> object:
    module = _MODULE_OF.get(name, "errors" if name in __all__ else None)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value: object = getattr(import_module(f".{module}", __name__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
