"""Putting the parts of a daemon together; every failure to do so ends with its documented exit code."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from ticket_agent import __version__
from ticket_agent.cli.output import fail
from ticket_agent.exits import Exit

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from ticket_agent.agent.events import EventLog
    from ticket_agent.agent.loop import Agent
    from ticket_agent.agent.metrics import Meter
    from ticket_agent.agent.providers import ProviderTable
    from ticket_agent.agent.relay.relay import RelayPlan
    from ticket_agent.config import AgentConfig, RestSettings
    from ticket_agent.hive.rest.client import RestNamespace
    from ticket_agent.journal.outcome import Provider
    from ticket_agent.journal.space import Limits
    from ticket_agent.journal.store import JournalStore
    from ticket_agent.peft.release.phase_machine import Allowed
    from ticket_agent.peft.release.provider import Authority, ReleaseProvider
    from ticket_agent.peft.settings import PeftRoots
    from ticket_agent.protocol.namespace import HiveError, Namespace
    from ticket_agent.protocol.spec import HostTicketSpec

__all__ = [
    "boot_id",
    "console",
    "events_for",
    "exit_of",
    "exit_of_hive",
    "gateway",
    "hive_place",
    "limits_of",
    "now_ms",
    "opened_agent",
    "opened_store",
    "peft_roots",
    "pid",
    "provider_table",
    "release_provider",
    "start_name",
    "stop_on_signals",
]


def now_ms() -> int:
    """Wall-clock time in Unix milliseconds."""
    return time.time_ns() // 1_000_000


def boot_id() -> str:
    """Identity of this boot of the host, as the kernel gives it."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return "unknown"


def start_name(draw: Callable[[int], bytes] = os.urandom) -> str:
    """The version and a start id: what tells this process from the next one in a record's history."""
    return f"{__version__}+{draw(4).hex()}"


def events_for(config: AgentConfig) -> EventLog:
    """The daemon's log on standard error."""
    from ticket_agent.agent.events import EventLog  # noqa: PLC0415 - start-up time

    return EventLog(sys.stderr, clock=now_ms, style=config.log.format, level=config.log.level)


def stop_on_signals() -> threading.Event:
    """An event that SIGTERM and SIGINT set: the current step is finished, then the process ends.

    The handlers only write to a pipe. ``Event.set`` takes a lock, and the main thread, which runs every
    handler, may be inside ``Event.wait`` and hold it at that very moment: the process would then never end.
    """
    stop = threading.Event()
    reading, writing = os.pipe()
    os.set_blocking(writing, False)

    def request_stop(number: int, frame: object) -> None:  # noqa: ARG001 - the handler's signature
        with contextlib.suppress(BlockingIOError):
            os.write(writing, b"\0")

    def relay() -> None:
        os.read(reading, 1)
        stop.set()

    threading.Thread(target=relay, name="stop-on-signals", daemon=True).start()
    signal.signal(signal.SIGTERM, request_stop)
    signal.signal(signal.SIGINT, request_stop)
    return stop


def console(config: AgentConfig, *, serves: bool = False) -> Namespace:
    """The configured hive as a namespace: its console, a gateway or a mount; connects at its first use.

    Args:
        config: where it is.
        serves: for an agent, of which a hive has one; programs that only look or submit may come beside it.
    """
    if config.rest.url is not None:
        return gateway(config.rest)
    if config.mount_dir is not None:
        return _mounted(config.mount_dir.path, config.mount, exclusive=serves)
    from ticket_agent.hive.console.client import ConsoleConfig, ConsoleNamespace  # noqa: PLC0415 - start-up time

    settings = config.console
    return ConsoleNamespace(
        ConsoleConfig(
            host=settings.host,
            port=settings.port,
            role=settings.role,
            token=settings.auth_token,
            ticket=settings.ticket,
            allow_placeholder=settings.allow_placeholder_token,
            command_s=settings.command_timeout_s,
        )
    )


def gateway(settings: RestSettings) -> RestNamespace:
    """A namespace over the configured gateway; a URL that cannot be ends the command."""
    from ticket_agent.hive.rest.client import RestNamespace  # noqa: PLC0415 - start-up time
    from ticket_agent.hive.rest.origin import RestConfig, RestUsageError  # noqa: PLC0415 - start-up time

    try:
        config = RestConfig(
            url=settings.url or "",
            auth_token=settings.auth_token,
            ticket=settings.ticket,
            allow_placeholder=settings.allow_placeholder_token,
            ca_file=settings.ca_file,
            proxy=settings.proxy,
            data_s=settings.timeout_s,
            cache_s=settings.cache_s,
        )
    except RestUsageError as error:
        fail(str(error), Exit.USAGE)
    return RestNamespace(config)


def _mounted(path: Path, mount: str, *, exclusive: bool) -> Namespace:
    from ticket_agent.hive.mount.client import MountConfig, MountNamespace  # noqa: PLC0415 - start-up time
    from ticket_agent.protocol.paths import TicketPaths  # noqa: PLC0415 - start-up time

    return MountNamespace(MountConfig(path=path, tickets=TicketPaths(mount), exclusive=exclusive))


def hive_place(config: AgentConfig) -> str:
    """Where the hive is, in words."""
    if config.rest.url is not None:
        return f"gateway {config.rest.url}"
    if config.mount_dir is not None:
        return f"mount {config.mount_dir.path}"
    return f"console {config.console.host}:{config.console.port}"


def limits_of(config: AgentConfig) -> Limits:
    """What the store holds back and keeps, as configured."""
    from ticket_agent.agent.keys import V2_FAMILY  # noqa: PLC0415 - start-up time
    from ticket_agent.journal.space import Limits  # noqa: PLC0415 - start-up time

    return Limits(
        retain_ms=config.retention.keep_days * 86_400_000,
        retain_records=config.retention.keep_records,
        fenced_families=frozenset({V2_FAMILY}),
    )


@contextlib.contextmanager
def opened_store(
    config: AgentConfig, *, limits: Limits | None = None, meter: Meter | None = None
) -> Iterator[JournalStore]:
    """The journal under its fence, with the configured limits unless others are given; timed by a meter."""
    from ticket_agent.journal.errors import (  # noqa: PLC0415 - start-up time
        FenceHeldError,
        JournalError,
        JournalPoisonedError,
    )
    from ticket_agent.journal.store import JournalStore  # noqa: PLC0415 - start-up time

    open_journal = JournalStore.open
    if meter is not None:
        from ticket_agent.agent.metered import MeteredStore  # noqa: PLC0415 - only where metrics are on

        open_journal = partial(MeteredStore.open_metered, meter=meter)
    try:
        store = open_journal(
            config.state_dir,
            clock=now_ms,
            boot_id=boot_id(),
            agent_version=start_name(),
            limits=limits or limits_of(config),
        )
    except FenceHeldError as error:
        fail(str(error), Exit.OTHER_OWNER)
    except JournalPoisonedError as error:
        fail(str(error), Exit.POISONED)
    except JournalError as error:
        fail(str(error), Exit.FAILURE)
    with store:
        yield store


def provider_table(
    config: AgentConfig,
    namespace: Namespace,
    *,
    epoch: Callable[[], int],
    looks_only: bool = False,
    release: Provider[HostTicketSpec] | None = None,
) -> ProviderTable:
    """Every provider that the configuration enables.

    Args:
        config: what is enabled.
        namespace: the hive that they act on and observe.
        epoch: number of the hive's present life, without I/O.
        looks_only: their observers change nothing, for commands that only read.
        release: the provider of ``peft.release`` that drives releases; None for one that only looks.
    """
    from ticket_agent.agent.providers import ProviderTable  # noqa: PLC0415 - start-up time
    from ticket_agent.gpu.compat import compat_lease_providers  # noqa: PLC0415 - start-up time
    from ticket_agent.gpu.lease import lease_providers  # noqa: PLC0415 - start-up time

    # A console has one client, so that a new session ends the old one. A gateway may hold a request back and
    # dispatch it later, whatever became of its connections; what is behind a mount is not known.
    single_owner = config.rest.url is None and config.mount_dir is None
    v1_leases = compat_lease_providers(namespace, single_owner=single_owner, epoch=epoch)
    v2_leases = lease_providers(namespace, single_owner=single_owner, epoch=epoch)
    peft_v1, peft_v2 = _peft_providers(config, namespace, looks_only=looks_only)
    peft_v2 = peft_v2 | {"peft.release": release or _idle_release(config)}
    return ProviderTable(
        v1=peft_v1 | (v1_leases if config.gpu.enabled else {}),
        v2=peft_v2 | (v2_leases if config.gpu.enabled else {}),
        allowlist=config.action_allowlist,
    )


def peft_roots(config: AgentConfig, *, looks_only: bool = False) -> PeftRoots | None:
    """The three roots of the PEFT actions; None when none is named.

    One or two of them alone are a mistake, and end the command.
    """
    from ticket_agent.config import PEFT_ROOTS  # noqa: PLC0415 - start-up time
    from ticket_agent.peft.settings import PeftRoots  # noqa: PLC0415 - start-up time

    roots, unnamed = config.peft, config.peft.unnamed
    if len(unnamed) == len(PEFT_ROOTS):
        return None
    if roots.registry_root is None or roots.export_root is None or roots.adapter_root is None:
        named = " and ".join(name for name in PEFT_ROOTS if name not in unnamed)
        fail(f"[peft] names {named} but not {' and '.join(unnamed)}; name all three or none", Exit.USAGE)
    return PeftRoots(
        registry=roots.registry_root,
        export=roots.export_root,
        adapter=roots.adapter_root,
        owner_uid=os.geteuid(),
        looks_only=looks_only,
    )


def _peft_providers(
    config: AgentConfig, namespace: Namespace, *, looks_only: bool
) -> tuple[dict[str, Provider[HostTicketSpec]], dict[str, Provider[HostTicketSpec]]]:
    """Those of version 1 and of version 2; without roots they refuse and say so."""
    from ticket_agent.agent.providers import NotEnabled  # noqa: PLC0415 - start-up time
    from ticket_agent.peft.compat import compat_peft_providers  # noqa: PLC0415 - start-up time
    from ticket_agent.peft.providers import PEFT_ACTIONS, peft_providers  # noqa: PLC0415 - start-up time

    roots = peft_roots(config, looks_only=looks_only)
    if roots is not None:
        return compat_peft_providers(roots, namespace), peft_providers(roots, namespace)
    refused: dict[str, Provider[HostTicketSpec]] = {
        action: NotEnabled(action, "its configuration names no directories in [peft]")
        for action in PEFT_ACTIONS
    }
    return refused, refused


def _idle_release(config: AgentConfig) -> Provider[HostTicketSpec]:
    """A provider that begins, ends and writes nothing."""
    from ticket_agent.peft.release.phase_machine import Allowed  # noqa: PLC0415 - start-up time

    provider = release_provider(
        config, lambda _: (Allowed.UNPROVEN, "nobody asks the hive here"), begins=False
    )
    if provider is None:
        from ticket_agent.agent.providers import NotEnabled  # noqa: PLC0415 - start-up time

        return NotEnabled("peft.release", "its configuration names no release_config in [peft]")
    return provider


def release_provider(config: AgentConfig, authority: Authority, *, begins: bool) -> ReleaseProvider | None:
    """The provider of ``peft.release``; None where the configuration does not enable it.

    A mistake in the file that it names ends the command.
    """
    if config.peft.release_config is None:
        return None
    from ticket_agent.peft.release.provider import ReleaseProvider  # noqa: PLC0415 - start-up time
    from ticket_agent.peft.release.release_config import (  # noqa: PLC0415 - start-up time
        ReleaseConfigError,
        load_release_config,
    )
    from ticket_agent.peft.release.release_host import ReleaseHost  # noqa: PLC0415 - start-up time

    try:
        settings = load_release_config(config.peft.release_config)
    except ReleaseConfigError as error:
        fail(str(error), Exit.USAGE)
    host = ReleaseHost(
        config=settings,
        owner_uid=os.geteuid(),
        clock=now_ms,
        boot_id=boot_id(),
        agent_version=start_name(),
    )
    return ReleaseProvider(
        host=host, authority=authority, clock=now_ms, monotonic=time.monotonic, begins=begins
    )


@contextlib.contextmanager
def opened_agent(
    config: AgentConfig,
    store: JournalStore,
    events: EventLog,
    *,
    serves: bool = True,
    relay: RelayPlan | None = None,
) -> Iterator[Agent]:
    """An agent over the configured console; without ``serves`` one that only replays."""
    from ticket_agent.agent.loop import Agent  # noqa: PLC0415 - start-up time

    namespace = console(config, serves=True)
    agents: list[Agent] = []

    def epoch() -> int:
        # The agent knows a new epoch before a full disk lets the cursor say so.
        return agents[0].intake.epoch

    def authority(spec: HostTicketSpec) -> tuple[Allowed, str]:
        return agents[0].authority(spec)

    release = release_provider(config, authority, begins=serves)
    try:
        agents.append(
            Agent(
                config=config,
                store=store,
                namespace=namespace,
                providers=provider_table(config, namespace, epoch=epoch, release=release),
                events=events,
                clock=now_ms,
                monotonic=time.monotonic,
                serves=serves,
                relay=relay,
            )
        )
        yield agents[0]
    finally:
        for agent in agents:
            agent.relay.close()
        namespace.close()
        if release is not None:
            release.close()


def exit_of_hive(error: HiveError) -> Exit:
    """The code for an error of the hive: refused, or not reached."""
    from ticket_agent.protocol.namespace import HiveAuthError, HiveRefusedError  # noqa: PLC0415 - start-up time

    return Exit.HIVE_REFUSED if isinstance(error, HiveAuthError | HiveRefusedError) else Exit.HIVE_UNREACHABLE


def exit_of(agent: Agent, store: JournalStore) -> Exit:
    """The code that tells what is left behind: degraded before uncertain before fine."""
    if store.poisoned is not None:
        return Exit.POISONED
    if (
        store.quarantined
        or store.cursor_problem is not None
        or agent.intake.held is not None
        or agent.unparsable
    ):
        return Exit.DEGRADED
    if any(record.outcome_unknown for record in store.open_records()):
        return Exit.UNCERTAIN
    return Exit.OK


def pid() -> int:
    """Process id, for the notifier and the status file."""
    return os.getpid()
