"""What the commands on snapshots share: the enrolment, its options, a reader over the configured hive."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from ticket_agent.cli.output import fail
from ticket_agent.exits import Exit

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from ticket_agent.config import AgentConfig
    from ticket_agent.protocol.namespace import HiveError, Namespace
    from ticket_agent.protocol.snapshot_enrolment import SnapshotEnrolment
    from ticket_agent.snapshots.reader import SnapshotReader

__all__ = [
    "enrolment_from",
    "hive_config",
    "lag_of",
    "manifest_options",
    "opened_namespace",
    "opened_reader",
    "provider_named",
]

CommandT = TypeVar("CommandT", bound=Callable[..., Any])


def manifest_options(command: CommandT) -> CommandT:
    """``--manifest``, or ``--default-enrolment`` with ``--epoch``; read by :func:`enrolment_from`."""
    for option in (
        click.option(
            "--epoch",
            "default_epoch",
            type=click.IntRange(1, 2**64 - 1),
            help="Writer epoch for --default-enrolment (default 1).",
        ),
        click.option(
            "--default-enrolment",
            is_flag=True,
            help="Take what an unchanged manifest enrols, in place of --manifest.",
        ),
        click.option(
            "--manifest",
            "snapshot_manifest",
            type=click.Path(path_type=Path, dir_okay=False),
            metavar="FILE",
            help="The hive's resolved manifest (JSON): who may publish what.",
        ),
    ):
        command = option(command)
    return command


def enrolment_from(options: Mapping[str, Any]) -> SnapshotEnrolment:
    """What is enrolled, as the options of :func:`manifest_options` say; a mistake in them ends the command.

    Which enrolment a hive has is never guessed.
    """
    manifest, default = options.get("snapshot_manifest"), options.get("default_enrolment")
    epoch = options.get("default_epoch")
    if manifest is not None and default:
        raise click.UsageError("--manifest and --default-enrolment exclude each other; name one")
    if epoch is not None and not default:
        raise click.UsageError("--epoch goes with --default-enrolment; a manifest has its own writer epoch")
    if manifest is None and not default:
        raise click.UsageError(
            "what the hive enrols is not known; name its manifest with --manifest FILE, or take the"
            " documented defaults with --default-enrolment"
        )
    from ticket_agent.cli import snapshot_manifest  # noqa: PLC0415 - start-up time

    enrolment = snapshot_manifest.enrolment_from(manifest)
    if enrolment is None:
        fail(
            f"{manifest}: host snapshots are not enabled (ecosystem.host.snapshots.enable); enable them and"
            " resolve the manifest again",
            Exit.USAGE,
        )
    return enrolment if epoch is None else replace(enrolment, epoch=epoch)


def provider_named(enrolment: SnapshotEnrolment, name: str) -> str:
    """The provider that somebody means by a name; one that nobody publishes ends the command."""
    from ticket_agent.snapshots import registry  # noqa: PLC0415 - start-up time

    enrolled = enrolment.providers()
    provider = name if name in enrolled else registry.provider_named(name)
    if provider not in enrolled:
        raise click.UsageError(f"provider {name} is not enrolled; enrolled: {', '.join(enrolled) or 'none'}")
    return provider


def hive_config(options: Mapping[str, Any], enrolment: SnapshotEnrolment) -> AgentConfig:
    """Where the hive is; its host nodes are where the manifest mounts them."""
    from ticket_agent.cli.options import config_from  # noqa: PLC0415 - start-up time

    return config_from(dict(options) | {"mount": enrolment.mount})


def lag_of(config: AgentConfig) -> float:
    """Seconds for which what is read may have been kept on the way."""
    return 0.0 if config.rest.url is None else config.rest.cache_s


@contextmanager
def opened_namespace(config: AgentConfig) -> Iterator[Namespace]:
    """The configured hive; whatever it raises ends the command with one line."""
    from ticket_agent.cli.assembly import console, exit_of_hive  # noqa: PLC0415 - start-up time
    from ticket_agent.protocol.namespace import HiveError  # noqa: PLC0415 - start-up time

    namespace = console(config)
    try:
        yield namespace
    except HiveError as error:
        fail(_text(error), exit_of_hive(error))
    finally:
        namespace.close()


def _text(error: HiveError) -> str:
    return f"{error}; nothing is known about any snapshot"


@contextmanager
def opened_reader(options: Mapping[str, Any], enrolment: SnapshotEnrolment) -> Iterator[SnapshotReader]:
    """A reader over the configured hive."""
    from ticket_agent.snapshots.reader import SnapshotReader  # noqa: PLC0415 - start-up time

    config = hive_config(options, enrolment)
    with opened_namespace(config) as namespace:
        yield SnapshotReader(namespace, enrolment, lag_s=lag_of(config))
