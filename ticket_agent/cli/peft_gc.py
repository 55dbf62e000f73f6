"""`peft gc`: removing what interrupted imports and exports left behind."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

import click

from ticket_agent.cli.assembly import now_ms
from ticket_agent.cli.options import root_option
from ticket_agent.cli.output import age, emit_json, plain, size, styled
from ticket_agent.cli.peft_roots import REGISTRY_LABEL, one_line_errors, registry_options, roots_from
from ticket_agent.exits import Exit

if TYPE_CHECKING:
    from pathlib import Path

    from ticket_agent.peft.gc import Removal
    from ticket_agent.peft.locks import RootLock

__all__ = ["collect_garbage"]

_COLOURS = {"removed": "green", "would remove": "cyan", "kept": None, "failed": "red"}


@click.command(name="gc")
@registry_options
@root_option("--export-root", "Directory of the exported jobs; its unfinished exports go as well.")
@click.option("--dry-run", is_flag=True, help="Only tell what would go; needs no lock and no ownership.")
@click.option(
    "--min-age",
    type=click.IntRange(0, 525_600),
    default=60,
    show_default=True,
    help="Minutes for which a leftover must not have been touched.",
)
@click.option("--json", "as_json", is_flag=True, help="One JSON line per leftover (NDJSON).")
def collect_garbage(
    *,
    config: Path | None,
    registry_root: Path | None,
    export_root: Path | None,
    dry_run: bool,
    min_age: int,
    as_json: bool,
) -> None:
    """Remove what interrupted work left behind.

    That is imports and exports that were not published, and files that were not written to their end.
    A model that has a manifest is never removed, nor is one that the control files name, nor anything that no
    import or export writes.
    """
    from ticket_agent.peft.locks import RootLock  # noqa: PLC0415 - start-up time

    registry, exports = roots_from(config, registry_root, export_root)
    outcomes: list[str] = []
    for path, lock, label in (
        (registry, RootLock.REGISTRY, REGISTRY_LABEL),
        (exports, RootLock.EXPORT, "export root"),
    ):
        if path is not None:
            for removal in _collected(path, lock, label, dry_run=dry_run, min_age_s=min_age * 60):
                outcomes.append(_outcome(removal, dry_run=dry_run))
                _tell(removal, outcomes[-1], path, as_json=as_json)
    if not as_json:
        _tell_sum(outcomes, dry_run=dry_run)
    sys.exit(int(Exit.FAILURE if "failed" in outcomes else Exit.OK))


def _collected(path: Path, lock: RootLock, label: str, *, dry_run: bool, min_age_s: int) -> list[Removal]:
    from ticket_agent.peft.gc import Removal, collect, survey  # noqa: PLC0415 - start-up time
    from ticket_agent.peft.roots import open_root, open_to_read  # noqa: PLC0415 - start-up time

    with one_line_errors():
        if dry_run:
            with open_to_read(path, label=label) as root:
                choices = survey(root, lock, now_ms=now_ms(), min_age_s=min_age_s)
            return [Removal(choice=choice) for choice in choices]
        with open_root(path, label=label, owner_uid=os.geteuid(), create=False) as root:
            return collect(root, lock, now_ms=now_ms(), min_age_s=min_age_s)


def _outcome(removal: Removal, *, dry_run: bool) -> str:
    if removal.choice.stays is not None:
        return "kept"
    if removal.problem is not None:
        return "failed"
    return "would remove" if dry_run else "removed"


def _tell(removal: Removal, outcome: str, root: Path, *, as_json: bool) -> None:
    found = removal.choice.leftover
    reason = removal.choice.stays or removal.problem
    if as_json:
        document = {
            "root": os.fsdecode(root),
            "path": "/".join(found.path),
            "what": found.why.value,
            "bytes": found.bytes,
            "outcome": outcome,
            "reason": reason,
        }
        emit_json("leftover", document)
        return
    what = f"{found.why.value}, {size(found.bytes)}, {age(found.touched_unix_ms, now_ms())}"
    told = f"{'/'.join(found.path)}  ({what})" + ("" if reason is None else f": {reason}")
    click.echo(f"{styled(outcome, _COLOURS[outcome])}  {plain(told)}")


def _tell_sum(outcomes: list[str], *, dry_run: bool) -> None:
    if not outcomes:
        click.echo("nothing was left behind")
        return
    done = "would remove" if dry_run else "removed"
    parts = [f"{outcomes.count(word)} {word}" for word in (done, "kept", "failed") if word in outcomes]
    click.echo(", ".join(parts))
