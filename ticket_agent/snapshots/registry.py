"""Which function collects for which provider: the built-in ones, and those that a site has installed.

A site adds a collector without a fork: a package of its own declares an entry point in the group
``ticket_agent.snapshot_collectors``, named as the provider in the manifest, whose object is a
:class:`ticket_agent.protocol.collecting.Collector`. It cannot take the place of a built-in one.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, NoReturn, cast

from ticket_agent.protocol.collecting import CollectError
from ticket_agent.protocol.snapshot import UnavailableReason

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from importlib.metadata import EntryPoint

    from ticket_agent.protocol.collecting import CollectContext, Collector
    from ticket_agent.protocol.snapshot import SnapshotEntry

__all__ = ["ALIASES", "BUILT_IN", "GROUP", "Found", "collector_for", "installed_providers", "provider_named"]

GROUP: Final = "ticket_agent.snapshot_collectors"

_HERE: Final = "ticket_agent.snapshots.collectors"
BUILT_IN: Final[Mapping[str, str]] = MappingProxyType(
    {
        "systemd": f"{_HERE}.systemd:collect",
        "docker": f"{_HERE}.docker:collect",
        "k8s": f"{_HERE}.kubernetes:collect",
        "nvidia": "ticket_agent.gpu.snapshot:collect",
        "jetson": f"{_HERE}.jetson:collect",
        "network": f"{_HERE}.network:collect",
        "launchd": f"{_HERE}.platform_only:launchd",
        "endpoint_compliance": f"{_HERE}.platform_only:endpoint_compliance",
    }
)
"""Module and function, by provider; nothing is imported before a provider is collected."""

ALIASES: Final[Mapping[str, str]] = MappingProxyType(
    {"net": "network", "endpoint-compliance": "endpoint_compliance"}
)
"""Other spellings that command lines take."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """A provider's collector.

    Attributes:
        provider: whose state it collects.
        origin: where it comes from, for people.
        collect: the collector; calling it is what imports it.
    """

    provider: str
    origin: str
    collect: Collector


def _entry_points() -> list[EntryPoint]:
    from importlib.metadata import entry_points  # noqa: PLC0415 - reads every installed package

    return sorted(entry_points(group=GROUP), key=lambda point: point.value)


def provider_named(name: str) -> str:
    """The provider that a name on a command line means."""
    return ALIASES.get(name, name)


def installed_providers() -> list[str]:
    """Every provider that this installation can collect, sorted."""
    return sorted({*BUILT_IN, *(point.name for point in _entry_points())})


def collector_for(provider: str) -> Found:
    """Find a provider's collector; one that is missing or ambiguous is a collector that says so."""
    points = [point for point in _entry_points() if point.name == provider]
    if provider in BUILT_IN:
        if points:
            return _unusable(
                provider,
                f"{_names(points)} is installed as a collector for {provider}, which is built in; remove it,"
                " or enrol it under a name of its own",
                UnavailableReason.SOURCE_FAILED,
            )
        target = BUILT_IN[provider]
        return Found(provider=provider, origin="built in", collect=_Late(target))
    if len({point.value for point in points}) > 1:
        return _unusable(
            provider,
            f"several collectors are installed for {provider}: {_names(points)}; remove all but one",
            UnavailableReason.SOURCE_FAILED,
        )
    if points:
        target = f"{points[0].module}:{points[0].attr}"
        return Found(provider=provider, origin=target, collect=_Late(target))
    return _unusable(
        provider,
        f"no collector for {provider} is installed; a package can add one (entry point group {GROUP})",
        UnavailableReason.NOT_SUPPORTED,
    )


class _Late:
    """Imports a collector when it is first called: a broken one is that provider's trouble alone."""

    def __init__(self, target: str) -> None:
        self._target = target

    def __call__(self, context: CollectContext) -> Iterable[SnapshotEntry]:
        module, _, name = self._target.partition(":")
        try:
            found: object = import_module(module)
            for part in name.split("."):
                found = getattr(found, part)
        except Exception as error:
            raise CollectError(f"collector {self._target} cannot be loaded: {error}") from error
        if not callable(found):
            raise CollectError(f"collector {self._target} is no function")
        return cast("Collector", found)(context)


def _unusable(provider: str, why: str, reason: UnavailableReason) -> Found:
    def refuse(context: CollectContext) -> NoReturn:  # noqa: ARG001 - the signature of a collector
        raise CollectError(why, reason)

    return Found(provider=provider, origin="none", collect=refuse)


def _names(points: Iterable[EntryPoint]) -> str:
    return ", ".join(point.value for point in points)
