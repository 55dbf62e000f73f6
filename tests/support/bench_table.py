"""Rows of the table that the measurements are printed in; no figure in it ever fails a run."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class Table:
    rows: list[tuple[str, str, str]] = field(default_factory=list)

    def add(self, what: str, measured: str, bar: str) -> None:
        self.rows.append((what, measured, bar))


TABLE = Table()


def handed_over() -> list[tuple[str, str, str]]:
    """The rows of this process."""
    return TABLE.rows


def take_over(rows: list[tuple[str, str, str]]) -> None:
    """Add the rows of another process."""
    TABLE.rows += rows


def summary_lines() -> list[str]:
    """The table, its columns aligned."""
    widths = [max((len(row[column]) for row in TABLE.rows), default=0) for column in range(3)]
    return [f"{what:<{widths[0]}}  {measured:>{widths[1]}}  bar {bar}" for what, measured, bar in TABLE.rows]
