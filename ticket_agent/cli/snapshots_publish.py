"""`snapshots publish`: one source's observations to a hive, once or until it is stopped."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ticket_agent.cli.assembly import console, events_for, exit_of_hive, now_ms, pid, stop_on_signals
from ticket_agent.cli.options import (
    DirectoryPath,
    hive_options,
    metrics_listen_option,
    metrics_textfile_option,
)
from ticket_agent.cli.output import fail
from ticket_agent.cli.snapshots_common import enrolment_from, hive_config, lag_of, manifest_options
from ticket_agent.cli.snapshots_notes import OnceNotes, WatchNotes
from ticket_agent.exits import Exit

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from ticket_agent.agent.notify import ServiceNotifier
    from ticket_agent.config import AgentConfig
    from ticket_agent.protocol.snapshot_enrolment import SnapshotEnrolment
    from ticket_agent.snapshots.lookouts import Lookouts
    from ticket_agent.snapshots.picture import Picture
    from ticket_agent.snapshots.publisher import SnapshotPublisher
    from ticket_agent.snapshots.source_state import SourceState
    from ticket_agent.snapshots.watch import Notes, Watch

__all__ = ["chosen_providers", "chosen_state_dir", "publish", "source_option", "state_option"]

MOST_CONTINUED = 2**62
"""A slip of the finger in --continue-after must leave numbers to go on with: it cannot be taken back."""
ONCE_S = 86_400.0
"""An interval that a single publication never reaches."""


def source_option(command: Any) -> Any:
    """``--source-id``, for the commands that speak for one host."""
    return click.option(
        "--source-id", required=True, metavar="ID", help="This host, as the manifest calls it."
    )(command)


def state_option(command: Any) -> Any:
    """``--state-dir`` of a publisher: it has to exist."""
    return click.option(
        "--state-dir",
        type=DirectoryPath(),
        show_default="$STATE_DIRECTORY",
        help="Directory of the publisher's cursor: absolute, there already, mode 0700, this user's.",
    )(command)


@click.command()
@hive_options
@manifest_options
@source_option
@state_option
@click.option(
    "--provider",
    "names",
    multiple=True,
    metavar="NAME",
    help="Publish only this one; may be repeated (default: all that are enrolled for the source).",
)
@click.option("--watch", is_flag=True, help="Go on until SIGTERM or SIGINT.")
@click.option(
    "--interval",
    "intervals",
    multiple=True,
    metavar="NAME=MS",
    help="Milliseconds between two publications of a provider with --watch; may be repeated.",
)
@click.option(
    "--continue-after",
    type=click.IntRange(1, MOST_CONTINUED),
    metavar="SEQUENCE",
    help="Numbers up to this one are used: for once, after the state directory or its cursor was lost.",
)
@metrics_listen_option
@metrics_textfile_option
@click.option("--log-format", type=click.Choice(["text", "json"]), help="Log format (default text).")
@click.option("--json", "as_json", is_flag=True, help="Print each publication as one JSON line (NDJSON).")
def publish(*, watch: bool, as_json: bool, **options: Any) -> None:
    """Publish what this host's systemd, Docker, Kubernetes, GPUs, network … look like now.

    What cannot be observed is withdrawn, with the reason: nothing that was true once is left standing.
    """
    stop = stop_on_signals()
    enrolment = enrolment_from(options)
    providers = chosen_providers(enrolment, options["source_id"], options["names"])
    intervals = _intervals(options["intervals"], providers, enrolment)
    if options["metrics_listen"] is not None and not watch:
        raise click.UsageError("nobody could ask a single publication: use --metrics-textfile, or --watch")
    state_dir = chosen_state_dir(options["state_dir"])
    config = _with_own_metrics(hive_config(options | {"state_dir": state_dir}, enrolment), options)
    with contextlib.ExitStack() as stack:
        state = stack.enter_context(_opened_state(state_dir, enrolment, options))
        namespace = console(config)
        stack.callback(namespace.close)
        from ticket_agent.snapshots.publisher import SnapshotPublisher  # noqa: PLC0415 - start-up time

        notifier = _notifier()
        publisher = SnapshotPublisher(
            namespace,
            enrolment,
            state,
            clock=now_ms,
            monotonic=time.monotonic,
            lag_s=lag_of(config),
            alive=notifier.alive,
        )
        if watch:
            code = _until_stopped(publisher, intervals, config, stop, notifier, as_json=as_json)
        else:
            code = _once(publisher, providers, config, stop, as_json=as_json)
    sys.exit(int(code))


def _notifier() -> ServiceNotifier:
    from ticket_agent.agent.notify import ServiceNotifier  # noqa: PLC0415 - start-up time

    return ServiceNotifier(os.environ, pid=pid())


def _with_own_metrics(config: AgentConfig, options: Mapping[str, Any]) -> AgentConfig:
    """The configuration may be the agent's, and so are then the address and the file of its metrics."""
    textfile: Path | None = options["metrics_textfile"]
    own = {
        "listen": options["metrics_listen"],
        "textfile": None if textfile is None else str(textfile.absolute()),
    }
    return config.model_copy(update={"metrics": config.metrics.model_copy(update=own)})


def chosen_providers(enrolment: SnapshotEnrolment, source_id: str, names: Sequence[str]) -> tuple[str, ...]:
    """The providers that were named, or all that are enrolled; a wrong name ends the command."""
    from ticket_agent.protocol.errors import SnapshotError  # noqa: PLC0415 - start-up time
    from ticket_agent.snapshots.registry import provider_named  # noqa: PLC0415 - start-up time

    providers = tuple(provider_named(name) for name in names)
    try:
        enrolled = enrolment.publisher(source_id).providers
        for provider in providers:
            enrolment.require(provider, source_id)
    except SnapshotError as error:
        fail(str(error), Exit.USAGE)
    if len(set(providers)) != len(providers):
        fail("a provider is named twice; name each once", Exit.USAGE)
    return providers or enrolled


def chosen_state_dir(given: Path | None) -> Path:
    """The publisher's state directory; there is no default outside of a service manager."""
    from_systemd = os.environ.get("STATE_DIRECTORY", "").split(":")[0]
    if given is None and not from_systemd:
        fail("name the directory of the publisher's cursor with --state-dir", Exit.USAGE)
    return given or Path(from_systemd)


def _intervals(
    texts: Sequence[str], providers: Sequence[str], enrolment: SnapshotEnrolment
) -> dict[str, float]:
    from ticket_agent.snapshots.cadence import interval_ms  # noqa: PLC0415 - start-up time
    from ticket_agent.snapshots.registry import provider_named  # noqa: PLC0415 - start-up time

    chosen: dict[str, int] = {}
    # One look that comes to nothing leaves no gap then.
    most = max(1, enrolment.bounds.max_ttl_ms // 2)
    for text in texts:
        name, _, number = text.partition("=")
        provider = provider_named(name)
        if provider not in providers or provider in chosen:
            fail(f"--interval {text}: name a provider that is published, once", Exit.USAGE)
        if not number.isascii() or not number.isdigit() or not 1 <= int(number[:9]) <= most:
            fail(
                f"--interval {text}: write {name}=MS with 1 to {most}, half a record's life, so that none"
                " lapses before the next",
                Exit.USAGE,
            )
        chosen[provider] = int(number[:9])
    return {provider: min(interval_ms(provider, chosen), most) / 1000 for provider in providers}


@contextlib.contextmanager
def _opened_state(
    state_dir: Path, enrolment: SnapshotEnrolment, options: Mapping[str, Any]
) -> Iterator[SourceState]:
    from ticket_agent.journal.fs import RealFs  # noqa: PLC0415 - start-up time
    from ticket_agent.snapshots.publish_errors import PublishError  # noqa: PLC0415 - start-up time
    from ticket_agent.snapshots.source_place import open_state_root  # noqa: PLC0415 - start-up time
    from ticket_agent.snapshots.source_state import SourceState  # noqa: PLC0415 - start-up time

    try:
        root = open_state_root(state_dir)
        try:
            state = SourceState.open(
                RealFs(),
                root,
                source_id=options["source_id"],
                epoch=enrolment.epoch,
                continue_after=options["continue_after"],
            )
        finally:
            os.close(root)
    except PublishError as error:
        fail(str(error), _exit_of(error))
    with state:
        yield state


def _exit_of(error: Exception) -> Exit:
    from ticket_agent.protocol.namespace import HiveError  # noqa: PLC0415 - start-up time
    from ticket_agent.snapshots.publish_errors import (  # noqa: PLC0415 - start-up time
        CursorPoisonedError,
        ReceiverAheadError,
        SourceHeldError,
        TransferRefusedError,
        UnverifiedError,
    )

    if isinstance(error, HiveError):
        return exit_of_hive(error)
    for kind, code in (
        (SourceHeldError, Exit.OTHER_OWNER),
        (CursorPoisonedError, Exit.POISONED),
        (ReceiverAheadError, Exit.HIVE_REFUSED),
        (TransferRefusedError, Exit.HIVE_REFUSED),
        (UnverifiedError, Exit.UNCERTAIN),
    ):
        if isinstance(error, kind):
            return code
    return Exit.FAILURE


def _watch(
    publisher: SnapshotPublisher, lookouts: Lookouts, intervals: Mapping[str, float], notes: Notes
) -> Watch:
    from ticket_agent.snapshots.cadence import Cadence  # noqa: PLC0415 - start-up time
    from ticket_agent.snapshots.watch import Watch  # noqa: PLC0415 - start-up time

    return Watch(
        publisher,
        lookouts,
        Cadence(intervals, time.monotonic()),
        clock=now_ms,
        monotonic=time.monotonic,
        environ=dict(os.environ),
        notes=notes,
    )


def _lookouts(providers: Sequence[str], stop: threading.Event) -> Lookouts:
    """The collectors of these providers; the stop signal ends their wait."""
    from ticket_agent.snapshots.lookouts import Lookouts  # noqa: PLC0415 - start-up time
    from ticket_agent.snapshots.registry import collector_for  # noqa: PLC0415 - start-up time

    lookouts = Lookouts({provider: collector_for(provider).collect for provider in providers})

    def wake() -> None:
        stop.wait()
        lookouts.wake()

    threading.Thread(target=wake, name="wake-on-stop", daemon=True).start()
    return lookouts


def _picture(watch: Watch, publisher: SnapshotPublisher, lookouts: Lookouts) -> Callable[[], Picture]:
    from ticket_agent.snapshots.picture import picture_of  # noqa: PLC0415 - start-up time

    return lambda: picture_of(
        watch.figures,
        unix_ms=now_ms(),
        providers=watch.providers,
        sequence=publisher.sequence,
        sent=publisher.sent,
        stuck=frozenset(lookouts.stuck()),
    )


def _once(
    publisher: SnapshotPublisher,
    providers: Sequence[str],
    config: AgentConfig,
    stop: threading.Event,
    *,
    as_json: bool,
) -> Exit:
    from ticket_agent.cli.snapshots_metrics import metrics_of  # noqa: PLC0415 - start-up time
    from ticket_agent.snapshots.publish_errors import PublishError  # noqa: PLC0415 - start-up time

    notes = OnceNotes(as_json=as_json)
    lookouts = _lookouts(providers, stop)
    watch = _watch(publisher, lookouts, dict.fromkeys(providers, ONCE_S), notes)
    picture = _picture(watch, publisher, lookouts)
    with metrics_of(config.metrics, picture, events_for(config), listen=False):
        try:
            while not stop.is_set() and notes.stopped is None and len(notes.ended) < len(providers):
                watch.turn()
        except PublishError as error:
            notes.stopped = error
    if notes.stopped is not None:
        fail(str(notes.stopped), _exit_of(notes.stopped))
    left = [provider for provider in providers if provider not in notes.ended]
    if left:
        fail(f"stopped before {', '.join(left)} could be published", Exit.DEGRADED)
    failures = [error for error in notes.ended.values() if error is not None]
    if failures and len(failures) == len(providers):
        return _exit_of(failures[0])
    return Exit.DEGRADED if failures else Exit.OK


def _until_stopped(
    publisher: SnapshotPublisher,
    intervals: Mapping[str, float],
    config: AgentConfig,
    stop: threading.Event,
    notifier: ServiceNotifier,
    *,
    as_json: bool,
) -> Exit:
    from ticket_agent.cli.snapshots_metrics import metrics_of  # noqa: PLC0415 - start-up time
    from ticket_agent.snapshots.publish_errors import PublishError  # noqa: PLC0415 - start-up time

    events = events_for(config)
    lookouts = _lookouts(tuple(intervals), stop)
    watch = _watch(publisher, lookouts, intervals, WatchNotes(events, as_json=as_json))
    events.emit(
        "info",
        "snapshots-started",
        pid=pid(),
        source=publisher.source_id,
        epoch=publisher.enrolment.epoch,
        sequence=publisher.sequence,
        providers=",".join(intervals),
    )
    ready = False
    picture = _picture(watch, publisher, lookouts)
    with metrics_of(config.metrics, picture, events, listen=True) as metrics:
        try:
            while not stop.is_set():
                watch.turn()
                notifier.alive()
                metrics()
                if not ready and watch.figures.last:
                    ready = True
                    notifier.ready(f"publishing for {publisher.source_id}")
        except PublishError as error:
            fail(str(error), _exit_of(error))
        notifier.stopping()
    events.emit("info", "snapshots-stopped", sequence=publisher.sequence)
    return Exit.OK
