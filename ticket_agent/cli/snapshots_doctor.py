"""`snapshots doctor`: what publishing needs, one line per check, with what to do where one fails."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Any

import click

from ticket_agent.cli.assembly import now_ms
from ticket_agent.cli.doctor_check import Check, show_checks
from ticket_agent.cli.options import hive_options
from ticket_agent.cli.output import stamp
from ticket_agent.cli.snapshots_common import enrolment_from, hive_config, manifest_options
from ticket_agent.cli.snapshots_publish import (
    chosen_providers,
    chosen_state_dir,
    source_option,
    state_option,
)
from ticket_agent.exits import Exit

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from ticket_agent.protocol.namespace import Namespace
    from ticket_agent.protocol.snapshot_enrolment import SnapshotEnrolment
    from ticket_agent.snapshots.cursor_text import Cursor
    from ticket_agent.snapshots.looking import Seen

__all__ = ["doctor"]

CROWDED = 0.9
"""Part of a bound from which on a provider's growth may soon cost it entries."""
TIMEOUT_S = 10.0


@click.command()
@hive_options
@manifest_options
@source_option
@state_option
@click.option("--provider", "names", multiple=True, metavar="NAME", help="Check only this one; repeatable.")
@click.option("--offline", is_flag=True, help="Do not ask the hive.")
@click.option("--json", "as_json", is_flag=True, help="One JSON line per check (NDJSON).")
def doctor(*, source_id: str, offline: bool, as_json: bool, **options: Any) -> None:
    """Check state directory, cursor, clock, enrolment, collectors, sizes, receiver; change nothing."""
    enrolment = enrolment_from(options)
    providers = chosen_providers(enrolment, source_id, options["names"])
    checks = [_enrolment(enrolment, source_id, providers)]
    state_checks, cursor = _state(chosen_state_dir(options["state_dir"]), source_id, enrolment.epoch)
    checks += state_checks
    checks.append(_clock(cursor))
    for provider in providers:
        checks.append(_collector(provider, enrolment, source_id))
    if not offline:
        checks += _receiver(options, enrolment, source_id, providers)
    show_checks(checks, as_json=as_json)
    failed = [check.code for check in checks if check.verdict == "fail"]
    sys.exit(int(failed[0] if failed else Exit.OK))


def _enrolment(enrolment: SnapshotEnrolment, source_id: str, providers: Sequence[str]) -> Check:
    bounds = enrolment.bounds
    return Check(
        "enrolment",
        "ok",
        f"{source_id} in epoch {enrolment.epoch}: {', '.join(providers)}; at most {bounds.max_bytes} bytes,"
        f" {bounds.max_entries} entries, {bounds.max_value_bytes} bytes per value, {bounds.max_ttl_ms} ms",
    )


def _state(path: Path, source_id: str, epoch: int) -> tuple[list[Check], Cursor | None]:
    from ticket_agent.snapshots.publish_errors import CursorError  # noqa: PLC0415 - start-up time
    from ticket_agent.snapshots.source_place import look_at_source, open_state_root  # noqa: PLC0415 - start-up time

    try:
        root = open_state_root(path)
    except CursorError as error:
        return [Check("state directory", "fail", str(error), Exit.FAILURE)], None
    checks = [Check("state directory", "ok", f"{path}, this user's, closed to others")]
    try:
        found = look_at_source(root, source_id=source_id, epoch=epoch)
    except CursorError as error:
        return [*checks, Check("cursor", "fail", str(error), Exit.FAILURE)], None
    finally:
        os.close(root)
    if found is None:
        return [*checks, Check("cursor", "ok", "none yet; the first publisher makes it")], None
    cursor, held = found
    last = f", observed {stamp(cursor.observed_unix_ms)}" if cursor.sequence else ""
    checks.append(Check("cursor", "ok", f"sequence {cursor.sequence}{last}"))
    owner = "a publisher runs" if held else "no publisher runs"
    checks.append(Check("owner", "ok", f"{owner} for this source from this directory"))
    return checks, cursor


def _clock(cursor: Cursor | None) -> Check:
    from ticket_agent.snapshots.publisher import clock_behind  # noqa: PLC0415 - start-up time

    now = now_ms()
    if cursor is not None and now < cursor.observed_unix_ms:
        return Check("clock", "fail", clock_behind(now, cursor.observed_unix_ms), Exit.FAILURE)
    return Check("clock", "ok", f"{stamp(now)}, not before the last published observation")


def _collector(provider: str, enrolment: SnapshotEnrolment, source_id: str) -> Check:
    from ticket_agent.cli.snapshots_look import look_at  # noqa: PLC0415 - start-up time
    from ticket_agent.protocol.snapshot import UnavailableReason  # noqa: PLC0415 - start-up time
    from ticket_agent.snapshots.registry import collector_for  # noqa: PLC0415 - start-up time

    timeout_s = min(TIMEOUT_S, enrolment.bounds.max_ttl_ms / 1000)
    seen = look_at(provider, enrolment.bounds, timeout_s)
    name = f"provider {provider}"
    origin = collector_for(provider).origin
    if seen.reason is None:
        return _sized(name, seen, enrolment, source_id, origin)
    quiet = {UnavailableReason.NOT_ENABLED, UnavailableReason.NOT_SUPPORTED}
    return Check(
        name,
        "warn" if seen.reason in quiet else "fail",
        f"would be withdrawn, {seen.reason}: {seen.detail}",
        Exit.DEGRADED,
    )


def _sized(name: str, seen: Seen, enrolment: SnapshotEnrolment, source_id: str, origin: str) -> Check:
    from ticket_agent.protocol.errors import SnapshotError  # noqa: PLC0415 - start-up time
    from ticket_agent.snapshots.volume import measured  # noqa: PLC0415 - start-up time

    bounds = enrolment.bounds
    try:
        found = measured(seen.entries, provider=seen.look.provider, source_id=source_id)
    except SnapshotError as error:
        return Check(name, "fail", f"would be withdrawn: {error}", Exit.DEGRADED)
    text = (
        f"{found.entries} of {bounds.max_entries} entries, {found.bytes} of {bounds.max_bytes} bytes, longest"
        f" value {found.value_bytes} of {bounds.max_value_bytes}; collector {origin}"
    )
    if found.share(bounds) > 1:
        return Check(name, "fail", f"does not fit and would be withdrawn: {text}", Exit.DEGRADED)
    return Check(name, "warn" if found.share(bounds) > CROWDED else "ok", text)


def _receiver(
    options: dict[str, Any],
    enrolment: SnapshotEnrolment,
    source_id: str,
    providers: Sequence[str],
) -> Iterator[Check]:
    from ticket_agent.cli.assembly import console, exit_of_hive, hive_place  # noqa: PLC0415 - start-up time
    from ticket_agent.protocol.namespace import HiveError, HiveRefusedError  # noqa: PLC0415 - start-up time

    config = hive_config(options, enrolment)
    state_dir = chosen_state_dir(options["state_dir"])
    namespace = console(config)
    try:
        namespace.ls(enrolment.mount)
        yield Check("hive", "ok", f"{hive_place(config)} answers")
        for provider in providers:
            yield _receives(namespace, enrolment, source_id, provider, state_dir)
    except HiveRefusedError as error:
        yield Check("hive", "fail", f"{hive_place(config)}: {error}", Exit.HIVE_REFUSED)
    except HiveError as error:
        yield Check("hive", "fail", f"{hive_place(config)}: {error}", exit_of_hive(error))
    finally:
        namespace.close()


def _receives(
    namespace: Namespace, enrolment: SnapshotEnrolment, source_id: str, provider: str, state_dir: Path
) -> Check:
    from ticket_agent.snapshots.errors import SnapshotReadError  # noqa: PLC0415 - start-up time
    from ticket_agent.snapshots.reader import SnapshotReader  # noqa: PLC0415 - start-up time

    name = f"receiver {provider}"
    try:
        status = SnapshotReader(namespace, enrolment).status(provider, source_id)
    except SnapshotReadError as error:
        return Check(name, "fail", str(error), Exit.HIVE_REFUSED)
    if status.epoch is not None and status.epoch != enrolment.epoch:
        return Check(
            name,
            "fail",
            f"the hive is in writer epoch {status.epoch}, the manifest says {enrolment.epoch}; take the"
            " manifest that the hive was built with",
            Exit.HIVE_REFUSED,
        )
    # Read anew, and after the status: a publisher that runs meanwhile moves both, the cursor first.
    _, cursor = _state(state_dir, source_id, enrolment.epoch)
    mine = 0 if cursor is None else cursor.sequence
    if status.sequence > mine:
        return Check(
            name,
            "fail",
            f"has taken sequence {status.sequence}, and the cursor is at {mine}: another publisher uses this"
            " source, or the state directory was lost. Stop the other one; then publish once with"
            f" --continue-after {status.sequence}",
            Exit.HIVE_REFUSED,
        )
    shows = status.reason or ("available" if status.available else "unavailable")
    return Check(name, "ok", f"sequence {status.sequence}, {shows}")
