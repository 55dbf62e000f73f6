"""Collectors by provider: built in, added by a site's package, missing, ambiguous, broken."""

from __future__ import annotations

import sys
from importlib import import_module
from typing import TYPE_CHECKING

import pytest

from ticket_agent.protocol.collecting import CollectContext, CollectError, Deadline
from ticket_agent.protocol.snapshot import UnavailableReason
from ticket_agent.protocol.snapshot_enrolment import DEFAULT_ENROLMENT
from ticket_agent.snapshots.registry import (
    BUILT_IN,
    GROUP,
    collector_for,
    installed_providers,
    provider_named,
)

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

CONTEXT = CollectContext(deadline=Deadline(10.0, lambda: 0.0))

SITE = """
from ticket_agent.protocol.collecting import fact

def collect(context):
    return [fact("rack", "b4")]

class Kept:
    @staticmethod
    def collect(context):
        return [fact("rack", "c5")]

seven = 7
"""


class Site:
    """A folder of installed packages, as pip leaves them."""

    def __init__(self, path: Path) -> None:
        self.path = path
        (path / "site_rack.py").write_text(SITE)
        (path / "site_broken.py").write_text("raise RuntimeError('no licence')\n")

    def install(self, name: str, *points: str) -> None:
        info = self.path / f"{name}-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        (info / "entry_points.txt").write_text("\n".join([f"[{GROUP}]", *points, ""]))


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    monkeypatch.syspath_prepend(str(tmp_path))
    yield Site(tmp_path)
    for name in ("site_rack", "site_broken"):
        sys.modules.pop(name, None)


def test_every_default_provider_has_a_built_in_collector() -> None:
    assert set(DEFAULT_ENROLMENT.providers()) == set(BUILT_IN)
    for target in BUILT_IN.values():
        module, _, name = target.partition(":")
        assert callable(getattr(import_module(module), name))
    assert set(BUILT_IN) <= set(installed_providers())


@pytest.mark.parametrize(
    "value", ["site_rack:collect", "site_rack:Kept.collect", "site_rack:collect [gpu]", "site_rack : collect"]
)
def test_a_site_adds_a_collector_without_a_fork(value: str, site: Site) -> None:
    site.install("site_rack", f"rack = {value}")
    assert "rack" in installed_providers()
    found = collector_for("rack")
    assert (found.provider, found.origin) == ("rack", value.removesuffix(" [gpu]").replace(" ", ""))
    (entry,) = found.collect(CONTEXT)
    assert entry.path == "rack"


def test_nothing_is_imported_before_it_is_called(site: Site) -> None:
    site.install("site_broken", "rack = site_broken:collect")
    found = collector_for("rack")
    assert "site_broken" not in sys.modules
    with pytest.raises(CollectError, match="cannot be loaded: no licence") as caught:
        found.collect(CONTEXT)
    assert caught.value.reason is UnavailableReason.SOURCE_FAILED


@pytest.mark.parametrize(
    ("points", "provider", "words", "reason"),
    [
        ([], "rack", "no collector for rack", UnavailableReason.NOT_SUPPORTED),
        (["rack = site_rack:seven"], "rack", "is no function", UnavailableReason.SOURCE_FAILED),
        (["rack = site_rack:missing"], "rack", "cannot be loaded", UnavailableReason.SOURCE_FAILED),
        (["rack = site_nowhere:x"], "rack", "cannot be loaded", UnavailableReason.SOURCE_FAILED),
        (["systemd = site_rack:collect"], "systemd", "which is built in", UnavailableReason.SOURCE_FAILED),
    ],
)
def test_what_cannot_be_used_says_so_when_it_is_asked(
    points: list[str], provider: str, words: str, reason: UnavailableReason, site: Site
) -> None:
    site.install("site", *points)
    with pytest.raises(CollectError, match=words) as caught:
        collector_for(provider).collect(CONTEXT)
    assert caught.value.reason is reason


def test_two_packages_for_one_provider_are_not_chosen_between(site: Site) -> None:
    site.install("site_one", "rack = site_rack:collect")
    site.install("site_two", "rack = site_rack:Kept.collect")
    with pytest.raises(CollectError, match="several collectors"):
        collector_for("rack").collect(CONTEXT)


@pytest.mark.parametrize(
    ("name", "provider"),
    [("net", "network"), ("endpoint-compliance", "endpoint_compliance"), ("k8s", "k8s"), ("rack", "rack")],
)
def test_other_spellings(name: str, provider: str) -> None:
    assert provider_named(name) == provider
