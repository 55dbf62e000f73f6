from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from collector_support import context, encoded

from ticket_agent.protocol.collecting import CollectError
from ticket_agent.protocol.snapshot import UnavailableReason
from ticket_agent.snapshots.collectors.platform_only import endpoint_compliance, launchd

if TYPE_CHECKING:
    from collections.abc import Callable

    from ticket_agent.protocol.collecting import Collector

COLLECTORS: dict[str, Callable[..., Any]] = {"launchd": launchd, "endpoint_compliance": endpoint_compliance}


@pytest.mark.parametrize("provider", COLLECTORS)
@pytest.mark.parametrize(
    ("platform", "told"),
    [
        ("linux", "a provider of macOS; this host is linux"),
        ("win32", "a provider of macOS; this host is win32"),
        ("darwin", "an entry point {provider} of the group ticket_agent.snapshot_collectors"),
    ],
)
def test_neither_is_supported_anywhere_and_the_line_says_why(provider: str, platform: str, told: str) -> None:
    with pytest.raises(CollectError) as caught:
        COLLECTORS[provider](context(), platform=platform)
    assert caught.value.reason is UnavailableReason.NOT_SUPPORTED
    assert provider in caught.value.detail
    assert told.format(provider=provider) in caught.value.detail
    assert caught.value.detail.isprintable()


def test_they_are_collectors_like_the_others() -> None:
    collectors: list[Collector] = [launchd, endpoint_compliance]
    for collector in collectors:
        with pytest.raises(CollectError):
            collector(context())
    assert encoded([])
