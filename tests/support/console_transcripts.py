"""Reads the recorded console traffic under ``vectors/console_transcripts``."""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass
from pathlib import Path

TRANSCRIPTS = Path(__file__).resolve().parents[2] / "vectors" / "console_transcripts"

EVENT = re.compile(
    r"\s*(?P<at>\d+\.\d{3}) (?P<what>[<>!*]) (?:(?P<raw>raw) |\[(?P<total>\d+)\] )?(?P<rest>.*)"
)


@dataclass(frozen=True, slots=True)
class Event:
    """One line of a recording; ``total`` is the recorded frame length, None for raw bytes and remarks."""

    at: float
    what: str
    total: int | None
    payload: bytes


def replayable() -> list[Path]:
    """All recordings in the line format."""
    return [
        path
        for path in sorted(TRANSCRIPTS.glob("*.txt"))
        if path.read_bytes().lstrip().startswith(b"0.") and b" * connected " in path.read_bytes()
    ]


def events(path: Path) -> list[Event]:
    """Parse one recording; a line that does not parse is an error."""
    found = []
    for number, line in enumerate(path.read_text().splitlines(), start=1):
        match = EVENT.fullmatch(line)
        if match is None:
            raise ValueError(f"{path.name}:{number} is no event: {line!r}")
        payload = match["rest"].encode()
        if match["what"] in "<>":
            payload = ast.literal_eval(match["rest"])
            assert isinstance(payload, bytes)
        total = None if match["total"] is None else int(match["total"])
        found.append(Event(float(match["at"]), match["what"], total, payload))
    return found
