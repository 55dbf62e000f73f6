"""`doctor`: one line per check, with what to do where a check fails."""

from __future__ import annotations

import os
import sys
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import click

from ticket_agent.cli.assembly import console
from ticket_agent.cli.options import agent_options, config_from
from ticket_agent.cli.output import emit_json, styled, table
from ticket_agent.exits import Exit

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from ticket_agent.config import AgentConfig

__all__ = ["doctor"]

MIN_FREE_BYTES = 64 * 1024 * 1024
EARLIEST_CLOCK_S = 1_704_067_200
"""2024-01-01: a clock before it was never set."""


@dataclass(frozen=True, slots=True)
class Check:
    """One finding."""

    name: str
    verdict: Literal["ok", "warn", "fail"]
    detail: str
    code: Exit = Exit.OK


@click.command()
@agent_options
@click.option("--offline", is_flag=True, help="Do not ask the hive.")
@click.option("--json", "as_json", is_flag=True, help="One JSON line per check (NDJSON).")
def doctor(*, offline: bool, as_json: bool, **options: Any) -> None:
    """Check configuration, state directory, fence, journal, clock, hive and GPUs. Changes nothing."""
    config = config_from(options)
    checks = list(_checks(config, offline=offline))
    colours = {"ok": "green", "warn": "yellow", "fail": "red"}
    if as_json:
        for check in checks:
            emit_json("check", {"name": check.name, "verdict": check.verdict, "detail": check.detail})
    else:
        rows = [[check.name, styled(check.verdict, colours[check.verdict]), check.detail] for check in checks]
        click.echo(table(["CHECK", "VERDICT", "DETAIL"], rows))
    failed = [check.code for check in checks if check.verdict == "fail"]
    sys.exit(int(failed[0] if failed else Exit.OK))


def _checks(config: AgentConfig, *, offline: bool) -> Iterator[Check]:
    local: list[Callable[[AgentConfig], Iterator[Check]]] = [_directory, _journal, _clock, _gpus]
    for check in local:
        yield from check(config)
    if not offline:
        yield from _hive(config)


def _directory(config: AgentConfig) -> Iterator[Check]:
    path = config.state_dir
    if path.is_symlink():
        yield Check(
            "state directory", "fail", f"{path} is a symlink; name the directory itself", Exit.FAILURE
        )
        return
    try:
        found = path.stat()
    except FileNotFoundError:
        yield Check(
            "state directory", "ok", f"{path} does not exist yet; the agent creates it with mode 0700"
        )
        return
    except OSError as error:
        yield Check("state directory", "fail", f"{path}: {error.strerror}", Exit.FAILURE)
        return
    if found.st_uid != os.geteuid():
        detail = f"{path} belongs to uid {found.st_uid}; run as its owner, uid {os.geteuid()} is another"
        yield Check("state directory", "fail", detail, Exit.FAILURE)
    elif found.st_mode & 0o022:
        yield Check("state directory", "fail", f"{path} is writable by others; chmod go-w it", Exit.FAILURE)
    else:
        yield Check("state directory", "ok", f"{path}, mode {found.st_mode & 0o777:04o}")
    disk = os.statvfs(path)
    free = disk.f_bavail * disk.f_frsize
    verdict: Literal["ok", "warn"] = "ok" if free >= MIN_FREE_BYTES else "warn"
    yield Check("disk", verdict, f"{free // (1024 * 1024)} MiB free, {disk.f_favail} inodes")


def _journal(config: AgentConfig) -> Iterator[Check]:
    from ticket_agent.journal.errors import JournalError  # noqa: PLC0415 - start-up time
    from ticket_agent.journal.view import read_journal  # noqa: PLC0415 - start-up time

    if not config.state_dir.exists():
        return
    try:
        view = read_journal(config.state_dir)
    except (JournalError, OSError) as error:
        yield Check("journal", "fail", str(error), Exit.FAILURE)
        return
    owner = f"held by pid {view.owner.pid}" if view.owner is not None else "free"
    yield Check("fence", "ok", owner)
    if view.quarantined or view.cursor_problem:
        detail = (
            view.cursor_problem or f"{len(view.quarantined)} unreadable record(s); see `ticket-agent status`"
        )
        yield Check("journal", "fail", detail, Exit.DEGRADED)
    else:
        open_count = sum(not record.terminal for record in view.records.values())
        yield Check("journal", "ok", f"{len(view.records)} records, {open_count} open")
    if view.cursor.held is not None:
        yield Check("admissions", "fail", f"gap held: {view.cursor.held.reason}", Exit.DEGRADED)


def _clock(config: AgentConfig) -> Iterator[Check]:
    del config
    now = time.time()
    if now < EARLIEST_CLOCK_S:
        yield Check("clock", "fail", "the wall clock was never set; expiry cannot be judged", Exit.FAILURE)
    else:
        yield Check("clock", "ok", time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(now)))


def _gpus(config: AgentConfig) -> Iterator[Check]:
    del config
    from ticket_agent.gpu.inventory import read_inventory  # noqa: PLC0415 - loads NVML

    found = read_inventory()
    if found.problems:
        yield Check("gpus", "warn", f"unknown: {found.problems[0]}")
    else:
        count = len(found.gpus) if isinstance(found.gpus, tuple) else 0
        yield Check("gpus", "ok", f"{count} GPU(s), driver {found.driver}")


def _hive(config: AgentConfig) -> Iterator[Check]:
    from ticket_agent.protocol.lifecycle import parse_lifecycle_state, publishing_allowed  # noqa: PLC0415
    from ticket_agent.protocol.namespace import HiveAuthError, HiveError  # noqa: PLC0415 - start-up time
    from ticket_agent.protocol.paths import LIFECYCLE_STATE, TicketPaths  # noqa: PLC0415 - start-up time

    namespace = console(config)
    try:
        names = namespace.ls(TicketPaths(config.mount).directory)
        yield Check(
            "hive", "ok", f"console {config.console.host}:{config.console.port} serves {len(names)} nodes"
        )
        lines = namespace.read(LIFECYCLE_STATE)
        state = parse_lifecycle_state(lines[0] if lines else "")
        if publishing_allowed(state):
            yield Check("lifecycle", "ok", state.value)
        else:
            yield Check(
                "lifecycle", "warn", f"{state.value}: results wait until the hive is ONLINE or DEGRADED"
            )
    except HiveAuthError as error:
        yield Check("hive", "fail", str(error), Exit.HIVE_REFUSED)
    except HiveError as error:
        yield Check("hive", "fail", str(error), Exit.HIVE_UNREACHABLE)
    finally:
        namespace.close()
