"""Lines of `doctor` and `snapshots doctor`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import click

from ticket_agent.cli.output import emit_json, plain, styled, table
from ticket_agent.exits import Exit

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["Check", "show_checks"]

_COLOURS = {"ok": "green", "warn": "yellow", "fail": "red"}


@dataclass(frozen=True, slots=True)
class Check:
    """One finding."""

    name: str
    verdict: Literal["ok", "warn", "fail"]
    detail: str
    code: Exit = Exit.OK


def show_checks(checks: Iterable[Check], *, as_json: bool) -> None:
    """Print them, as a table or as one JSON line each."""
    if as_json:
        for check in checks:
            emit_json("check", {"name": check.name, "verdict": check.verdict, "detail": check.detail})
        return
    rows = [
        [check.name, styled(check.verdict, _COLOURS[check.verdict]), plain(check.detail)] for check in checks
    ]
    click.echo(table(["CHECK", "VERDICT", "DETAIL"], rows))
