"""The conformance vectors under ``vectors/``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

VECTORS = Path(__file__).resolve().parents[2] / "vectors"


def load(name: str) -> list[dict[str, Any]]:
    """Return the entries of one file."""
    entries: list[dict[str, Any]] = json.loads((VECTORS / name).read_text("utf-8"))
    return entries


TICKETS: dict[str, dict[str, Any]] = {entry["name"]: entry for entry in load("tickets.json")}
