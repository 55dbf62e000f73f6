"""`release plan`: every gate of a release with its verdict; nothing is changed."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import click

from ticket_agent.cli.output import emit_json, plain, styled
from ticket_agent.cli.release_asked import asked_of, asked_options, looked_at
from ticket_agent.cli.release_common import release_config, release_config_option
from ticket_agent.cli.release_differences import difference_lines, difference_members
from ticket_agent.exits import Exit

if TYPE_CHECKING:
    from pathlib import Path

    from ticket_agent.peft.release.gates import Gate

__all__ = ["plan"]

_WORDS = {"pass": ("PASS", "green"), "refused": ("FAIL", "red"), "waits": ("WAIT", "yellow")}


@click.command()
@release_config_option
@asked_options
@click.option("--json", "as_json", is_flag=True, help="One JSON line per gate, then the verdict (NDJSON).")
def plan(*, config_file: Path, as_json: bool, **options: Any) -> None:
    """Look at everything that a release meets before its first phase. Changes nothing.

    Each gate is PASS; or FAIL, and the release can never succeed as it was asked for; or WAIT, for somebody
    else or until the host is in order.

    The exit code is 0 when all pass, 1 when one fails, and 4 when one waits.
    """
    config = release_config(config_file)
    asked, request, profile = asked_of(config, options)
    found: list[Gate] = []
    for gate in looked_at(config, asked, profile):
        found.append(gate)
        _tell(gate, as_json=as_json)
    verdicts = {gate.verdict.value for gate in found}
    verdict = next(name for name in ("refused", "waits", "pass") if name in verdicts)
    if as_json:
        emit_json(
            "release-plan",
            {
                "operation_id": asked.operation_id,
                "model_id": asked.model_id,
                "request_sha256": asked.request_sha256,
                "entry": request.entry.value,
                "recovery_only": asked.recovery_only,
                "verdict": verdict,
            },
        )
    else:
        click.echo(_summary(found, verdict))
    sys.exit(int({"pass": Exit.OK, "refused": Exit.FAILURE, "waits": Exit.DEGRADED}[verdict]))


def _tell(gate: Gate, *, as_json: bool) -> None:
    if as_json:
        emit_json(
            "gate",
            {
                "code": gate.code,
                "verdict": gate.verdict.value,
                "detail": gate.detail,
                "remedy": gate.remedy,
                "differences": difference_members(gate.differences),
            },
        )
        return
    word, colour = _WORDS[gate.verdict.value]
    click.echo(f"{styled(word, colour)}  {gate.code}: {plain(gate.detail)}")
    if gate.remedy is not None:
        click.echo(f"      to do: {plain(gate.remedy)}")
    for line in difference_lines(gate.differences):
        click.echo(f"      {line}")


def _summary(found: list[Gate], verdict: str) -> str:
    bad = sum(gate.verdict.value != "pass" for gate in found)
    words = {
        "pass": "it can be submitted",
        "waits": "submitted now, it would wait",
        "refused": "submitted now, it would be refused",
    }
    return f"{len(found)} gates, {bad} not passed: {words[verdict]}"
