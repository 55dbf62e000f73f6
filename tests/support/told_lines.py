"""Lines that long tests tell at the end of a run, whatever process they ran in."""

from __future__ import annotations

LINES: list[str] = []


def tell(*lines: str) -> None:
    LINES.extend(line for line in lines if line.strip())


def handed_over() -> list[str]:
    """The lines of this process."""
    return LINES


def take_over(lines: list[str]) -> None:
    """Add the lines of another process."""
    LINES.extend(lines)


def summary_lines() -> list[str]:
    return LINES
