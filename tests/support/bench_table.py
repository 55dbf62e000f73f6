"""Rows of the table that the measurements are printed in."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class Table:
    rows: list[tuple[str, str, str]] = field(default_factory=list)

    def add(self, what: str, measured: str, bar: str) -> None:
        self.rows.append((what, measured, bar))
