"""`release gc`: removing what no release needs any more."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from ticket_agent.cli.assembly import now_ms
from ticket_agent.cli.output import emit_json, fail, plain, size, styled
from ticket_agent.cli.peft_roots import one_line_errors
from ticket_agent.cli.release_common import release_config, release_config_option
from ticket_agent.exits import Exit

if TYPE_CHECKING:
    from pathlib import Path

    from ticket_agent.peft.release.gc_removal import Item

__all__ = ["gc"]

_COLOURS = {"removed": "green", "would remove": "cyan", "kept": None, "failed": "red"}


@click.command()
@release_config_option
@click.option("--apply", "apply", is_flag=True, help="Remove it; without this it is only listed.")
@click.option("--dry-run", is_flag=True, help="Only list what would go (the default).")
@click.option(
    "--keep",
    type=click.IntRange(0, 1000),
    default=3,
    show_default=True,
    help="Generations to keep before the one that is deployed.",
)
@click.option(
    "--older-than",
    # Not less: an agent that was killed reads the end of its last release when it starts again.
    type=click.IntRange(60, 525_600),
    default=1440,
    show_default=True,
    help="Minutes; what was changed in this time stays, prepared requests with all they name too.",
)
@click.option("--json", "as_json", is_flag=True, help="One JSON line per thing, then the sum (NDJSON).")
def gc(*, config_file: Path, apply: bool, dry_run: bool, keep: int, older_than: int, as_json: bool) -> None:
    """Remove operations, objects, bundles and dead servers that nothing needs.

    Kept are what is deployed, the generations before it, releases that have not ended or whose evidence is
    not kept, prepared requests that are young, and everything that these name. It is refused while a release
    is unfinished or blocks the root.
    """
    from ticket_agent.peft.errors import LockHeldError  # noqa: PLC0415 - start-up time
    from ticket_agent.peft.release.release_gc import GcLimits, collect, survey  # noqa: PLC0415

    if apply and dry_run:
        fail("--apply and --dry-run contradict each other; give one", Exit.USAGE)
    config, limits = release_config(config_file), GcLimits(keep=keep, older_than_s=older_than * 60)
    outcomes: list[tuple[str, int]] = []

    def told(item: Item) -> None:
        outcomes.append((_outcome(item, apply=apply), item.bytes))
        _tell(item, outcomes[-1][0], as_json=as_json)

    with one_line_errors():
        if apply:
            try:
                collect(config, limits, now_ms=now_ms(), told=told)
            except LockHeldError as error:
                fail(str(error), Exit.OTHER_OWNER)
        else:
            for item in survey(config, limits, now_ms=now_ms()):
                told(item)
    _tell_sum(outcomes, as_json=as_json)
    sys.exit(int(Exit.FAILURE if any(outcome == "failed" for outcome, _ in outcomes) else Exit.OK))


def _outcome(item: Item, *, apply: bool) -> str:
    if item.stays is not None:
        return "kept"
    if item.problem is not None:
        return "failed"
    return "removed" if apply else "would remove"


def _tell(item: Item, outcome: str, *, as_json: bool) -> None:
    reason = item.stays or item.problem
    if as_json:
        document = {"what": item.what.value, "name": item.name, "bytes": item.bytes}
        emit_json("release-gc", document | {"outcome": outcome, "reason": reason})
        return
    told = f"{item.what.value} {item.name}  ({size(item.bytes)})" + ("" if reason is None else f": {reason}")
    click.echo(f"{styled(outcome, _COLOURS[outcome])}  {plain(told)}")


def _tell_sum(outcomes: list[tuple[str, int]], *, as_json: bool) -> None:
    sums = {
        word: (
            sum(outcome == word for outcome, _ in outcomes),
            sum(count for outcome, count in outcomes if outcome == word),
        )
        for word in _COLOURS
    }
    if as_json:
        members = {
            word.replace(" ", "_"): {"count": count, "bytes": total} for word, (count, total) in sums.items()
        }
        emit_json("release-gc-sum", members)
        return
    parts = [f"{count} {word} ({size(total)})" for word, (count, total) in sums.items() if count]
    click.echo(", ".join(parts) or "nothing is there that could go")
