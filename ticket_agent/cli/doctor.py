"""`doctor`: one line per check, with what to do where a check fails."""

from __future__ import annotations

import contextlib
import os
import stat
import sys
import time
from typing import TYPE_CHECKING, Any

import click

from ticket_agent.cli.assembly import console, exit_of_hive, gateway, hive_place, now_ms
from ticket_agent.cli.doctor_check import Check, show_checks
from ticket_agent.cli.options import agent_options, config_from
from ticket_agent.cli.output import age
from ticket_agent.cli.status import daemon_status
from ticket_agent.exits import Exit

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from ticket_agent.config import AgentConfig
    from ticket_agent.peft.directory import Directory
    from ticket_agent.protocol.namespace import HiveBusyError, Namespace

__all__ = ["doctor"]

MIN_FREE_BYTES = 64 * 1024 * 1024
EARLIEST_CLOCK_S = 1_704_067_200
"""2024-01-01: a clock before it was never set."""


@click.command()
@agent_options
@click.option("--offline", is_flag=True, help="Do not ask the hive.")
@click.option("--json", "as_json", is_flag=True, help="One JSON line per check (NDJSON).")
def doctor(*, offline: bool, as_json: bool, **options: Any) -> None:
    """Check configuration, state directory, fence, journal, clock, GPUs, PEFT and hive. Changes nothing."""
    config = config_from(options)
    checks = list(_checks(config, offline=offline))
    show_checks(checks, as_json=as_json)
    failed = [check.code for check in checks if check.verdict == "fail"]
    sys.exit(int(failed[0] if failed else Exit.OK))


def _checks(config: AgentConfig, *, offline: bool) -> Iterator[Check]:
    local: list[Callable[[AgentConfig], Iterator[Check]]] = [
        _directory,
        _journal,
        _clock,
        _gpus,
        _peft,
        _releases,
    ]
    for check in local:
        yield from check(config)
    if not offline:
        yield from _hive(config)


def _directory(config: AgentConfig) -> Iterator[Check]:
    path = config.state_dir
    try:
        found = path.lstat()
    except FileNotFoundError:
        text = f"{path} does not exist yet; the agent creates it with mode 0700"
        yield Check("state directory", "ok", text)
        return
    except OSError as error:
        yield Check("state directory", "fail", f"{path}: {error.strerror}", Exit.FAILURE)
        return
    problem = _problem_of(path, found)
    if problem is not None:
        yield Check("state directory", "fail", problem, Exit.FAILURE)
    else:
        yield Check("state directory", "ok", f"{path}, mode {found.st_mode & 0o777:04o}")
    if stat.S_ISDIR(found.st_mode):
        yield _disk(path)


def _problem_of(path: Path, found: os.stat_result) -> str | None:
    """Why the agent would not accept its directory, with what to do; None when it would."""
    if not stat.S_ISDIR(found.st_mode):
        return f"{path} is a symlink or not a directory; name the directory itself"
    if found.st_uid != os.geteuid():
        return (
            f"{path} belongs to uid {found.st_uid}, you are {os.geteuid()}; the agent must run as its owner"
        )
    if found.st_mode & 0o022:
        return f"{path} can be written by others; run: chmod go-w {path}"
    return None


def _disk(path: Path) -> Check:
    try:
        disk = os.statvfs(path)
    except OSError as error:
        return Check("disk", "warn", f"{path}: {error.strerror}")
    free = disk.f_bavail * disk.f_frsize
    text = f"{free // (1024 * 1024)} MiB free, {disk.f_favail} inodes"
    if free < MIN_FREE_BYTES:
        need = MIN_FREE_BYTES // (1024 * 1024)
        return Check("disk", "warn", f"{text}; below {need} MiB tickets may have to wait, make room")
    return Check("disk", "ok", text)


def _journal(config: AgentConfig) -> Iterator[Check]:
    from ticket_agent.journal.errors import JournalError  # noqa: PLC0415 - start-up time
    from ticket_agent.journal.view import read_journal  # noqa: PLC0415 - start-up time

    if not os.path.lexists(config.state_dir):
        return
    try:
        view = read_journal(config.state_dir)
    except (JournalError, OSError) as error:
        yield Check("journal", "fail", str(error), Exit.FAILURE)
        return
    owner = f"held by pid {view.owner.pid or 'unknown'}" if view.owner is not None else "free"
    yield Check("fence", "ok", owner)
    if view.takeover_problem is not None:
        yield Check("journal", "fail", view.takeover_problem, Exit.FAILURE)
    elif view.quarantined or view.cursor_problem:
        count = len(view.quarantined)
        detail = view.cursor_problem or f"{count} unreadable record(s); see `ticket-agent journal verify`"
        yield Check("journal", "fail", detail, Exit.DEGRADED)
    else:
        open_count = sum(not record.terminal for record in view.records.values())
        yield Check("journal", "ok", f"{len(view.records)} records, {open_count} open")
    if view.cursor.held is not None:
        detail = f"gap held: {view.cursor.held.reason}; see `ticket-agent status`"
        yield Check("admissions", "fail", detail, Exit.DEGRADED)


def _clock(config: AgentConfig) -> Iterator[Check]:
    del config
    now = time.time()
    if now < EARLIEST_CLOCK_S:
        text = "the wall clock was never set, so expiry cannot be judged; set it before the agent runs"
        yield Check("clock", "fail", text, Exit.FAILURE)
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


def _peft(config: AgentConfig) -> Iterator[Check]:
    from ticket_agent.config import PEFT_ROOTS  # noqa: PLC0415 - start-up time
    from ticket_agent.peft.errors import PeftError  # noqa: PLC0415 - start-up time
    from ticket_agent.peft.roots import open_root  # noqa: PLC0415 - start-up time

    unnamed = config.peft.unnamed
    if len(unnamed) == len(PEFT_ROOTS):
        yield Check("peft", "ok", "not enabled: the configuration names no directories in [peft]")
        return
    for name in PEFT_ROOTS:
        label, path = name.replace("_", " "), getattr(config.peft, name)
        if path is None:
            text = f"[peft] {name} is not named; the agent needs all three directories or none"
            yield Check(label, "fail", text, Exit.USAGE)
            continue
        try:
            with open_root(path, label=label, owner_uid=os.geteuid(), create=False) as root:
                yield _registry(root, path) if name == "registry_root" else Check(label, "ok", str(path))
        except PeftError as error:
            yield Check(label, "fail", str(error), Exit.FAILURE)


def _registry(root: Directory, path: Path) -> Check:
    """What the control files say; whether the models are whole is the business of `peft verify`."""
    from ticket_agent.peft.control import read_control  # noqa: PLC0415 - start-up time

    control = read_control(root)
    if not control.consistent:
        text = f"{path}: its two files disagree ({control}); activate a model, and they agree again"
        return Check("registry root", "warn", text)
    return Check("registry root", "ok", f"{path}, active {control.pointer or 'none'}")


def _releases(config: AgentConfig) -> Iterator[Check]:
    from ticket_agent.cli.doctor_release import release_checks  # noqa: PLC0415 - start-up time

    yield from release_checks(config.peft.release_config)


def _hive(config: AgentConfig) -> Iterator[Check]:
    if config.rest.url is not None:
        yield from _gateway(config)
        return
    yield from _namespace(config, hive_place(config), console(config))


def _gateway(config: AgentConfig) -> Iterator[Check]:
    """The gateway itself, then the hive behind it."""
    from ticket_agent.protocol.namespace import HiveError  # noqa: PLC0415 - start-up time

    behind = gateway(config.rest)
    where = behind.config.peer
    try:
        limit = _largest_append(behind.bounds())
        if limit is not None and limit < config.max_line_bytes:
            text = f"{where} takes lines of {limit} bytes; results of up to {config.max_line_bytes} need more"
            yield Check("gateway", "fail", text, Exit.FAILURE)
        elif behind.config.origin.exposes_credentials:
            yield Check("gateway", "warn", f"{where} is asked over http: token and ticket cross the network")
        else:
            yield Check("gateway", "ok", f"{where}, lines of {limit or 'unknown many'} bytes")
    except HiveError as error:
        behind.close()
        yield Check("gateway", "fail", str(error), exit_of_hive(error))
        return
    yield from _namespace(config, where, behind)


def _largest_append(bounds: dict[str, Any]) -> int | None:
    console_bounds = bounds.get("console")
    limit = console_bounds.get("max_echo_len") if isinstance(console_bounds, dict) else None
    return limit if isinstance(limit, int) else None


def _namespace(config: AgentConfig, where: str, namespace: Namespace) -> Iterator[Check]:
    from ticket_agent.protocol.errors import ProtocolError  # noqa: PLC0415 - start-up time
    from ticket_agent.protocol.namespace import HiveBusyError, HiveError  # noqa: PLC0415 - start-up time
    from ticket_agent.protocol.paths import LIFECYCLE_STATE, TicketPaths  # noqa: PLC0415 - start-up time

    try:
        names = namespace.ls(TicketPaths(config.mount).directory)
        yield Check("hive", "ok", f"{where} serves {len(names)} ticket nodes")
        yield _lifecycle(namespace.read(LIFECYCLE_STATE))
        if config.mount_dir is not None:
            yield _worker_telemetry(namespace, config.shard_bits)
    except HiveBusyError as error:
        yield _busy(config, error)
    except HiveError as error:
        yield Check("hive", "fail", str(error), exit_of_hive(error))
    except ProtocolError as error:
        yield Check("lifecycle", "fail", str(error), Exit.FAILURE)
    finally:
        namespace.close()


def _lifecycle(lines: list[str]) -> Check:
    from ticket_agent.protocol.lifecycle import parse_lifecycle_state, publishing_allowed  # noqa: PLC0415

    state = parse_lifecycle_state(lines[0] if lines else "")
    if publishing_allowed(state):
        return Check("lifecycle", "ok", state.value)
    return Check("lifecycle", "warn", f"{state.value}: results wait until the hive is ONLINE or DEGRADED")


def _worker_telemetry(namespace: Namespace, shard_bits: int) -> Check:
    """A mount reads by CAT alone; roots that show their Workers to TAIL alone cannot be served over one."""
    from ticket_agent.protocol.namespace import HiveRefusedError  # noqa: PLC0415 - start-up time
    from ticket_agent.protocol.shard import telemetry_path  # noqa: PLC0415 - start-up time

    name, workers = "workers", namespace.ls("/worker")
    if not workers:
        return Check(name, "warn", "there is no Worker yet whose telemetry could be read")
    try:
        namespace.tail(telemetry_path(workers[0], shard_bits=shard_bits))
    except HiveRefusedError as error:
        text = f"{error}; no ticket can be executed over this mount, use the console or a gateway"
        return Check(name, "fail", text, Exit.HIVE_REFUSED)
    return Check(name, "ok", f"the telemetry of {workers[0]} can be read")


def _busy(config: AgentConfig, error: HiveBusyError) -> Check:
    """A console has one owner; that the agent of this state directory is it, is how things should be."""
    from ticket_agent.journal.errors import JournalError  # noqa: PLC0415 - start-up time
    from ticket_agent.journal.view import read_journal  # noqa: PLC0415 - start-up time

    owner, said = None, daemon_status(config.state_dir)
    with contextlib.suppress(JournalError, OSError):
        owner = read_journal(config.state_dir).owner
    if owner is None or said is None:
        return Check("hive", "fail", str(error), exit_of_hive(error))
    when = age(said["unix_ms"], now_ms())
    text = (
        f"the running agent, pid {owner.pid or 'unknown'}, owns the console; it said {when}: {said['hive']}"
    )
    return Check("hive", "ok" if said["hive"] == "connected" else "warn", text)
