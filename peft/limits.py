"""Bounds of the PEFT actions. Sizes are bytes and inclusive; they are tested before anything is read.

The first group is the published policy of the registry's other users: what exceeds it they would refuse.
"""

from __future__ import annotations

from typing import Final

__all__ = [
    "COPY_CHUNK_BYTES",
    "LOCK_PAUSE_S",
    "LOCK_WAIT_S",
    "MAX_ADAPTER_BYTES",
    "MAX_BASE_MODEL_BYTES",
    "MAX_COMPONENT_BYTES",
    "MAX_DIRECTORY_NAMES",
    "MAX_ENTRY_BYTES",
    "MAX_LISTING_BYTES",
    "MAX_LORA_BYTES",
    "MAX_MANIFEST_BYTES",
    "MAX_METRICS_BYTES",
    "MAX_POINTER_BYTES",
    "MAX_POLICY_BYTES",
    "MAX_ROOT_DEPTH",
    "MAX_SHOWN",
    "MAX_STATE_BYTES",
    "MAX_TELEMETRY_BYTES",
    "MAX_TREE_DEPTH",
    "MAX_TREE_ENTRIES",
]

MAX_TELEMETRY_BYTES: Final = 128 * 1024
"""``telemetry.cbor`` of an export job."""
MAX_POLICY_BYTES: Final = 8 * 1024
"""``policy.toml`` of an export job."""
MAX_BASE_MODEL_BYTES: Final = 1024
"""``base_model.ref`` of an export job."""
MAX_ADAPTER_BYTES: Final = 64 * 1024 * 1024
"""``adapter.safetensors``."""
MAX_LORA_BYTES: Final = 64 * 1024
"""``lora.json``."""
MAX_METRICS_BYTES: Final = 64 * 1024
"""``metrics.json``."""
MAX_MANIFEST_BYTES: Final = 8 * 1024
"""``manifest.toml`` of a model."""
MAX_COMPONENT_BYTES: Final = 128
"""A model, job or adapter id."""
MAX_POINTER_BYTES: Final = MAX_COMPONENT_BYTES + 1
"""``active``: one id and its newline."""
MAX_STATE_BYTES: Final = 4 * 1024
"""``active_state.toml``."""
MAX_LISTING_BYTES: Final = 64 * 1024
"""A directory listing that the hive sends."""

MAX_ENTRY_BYTES: Final = 255
"""Any directory entry; what Linux file systems allow."""
MAX_DIRECTORY_NAMES: Final = 10_000
"""Entries of one directory that a listing takes in; a directory with more is refused."""
MAX_TREE_DEPTH: Final = 16
"""Levels of directories that are removed at once. Our own trees have one."""
MAX_TREE_ENTRIES: Final = 10_000
"""Entries, at all levels together, that are removed at once."""
MAX_ROOT_DEPTH: Final = 64
"""Components of a configured root's path."""

COPY_CHUNK_BYTES: Final = 256 * 1024
"""The one buffer of a copy. Larger ones were measured and are not faster."""

MAX_SHOWN: Final = 64
"""Characters of one name in an error line; a root's path may take twice as many."""

LOCK_WAIT_S: Final = 1.0
"""How long an action that is due waits for a lock; looking never waits."""
LOCK_PAUSE_S: Final = 0.02
"""Between two tries for a lock."""
