"""The published Python client's SnapshotReader, and ours, on what our publisher sent through our receiver.

For every collector, over a real console and a real gateway.
"""

from __future__ import annotations

import json
import time
from contextlib import closing, contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

import pytest
from hive_support import TOKEN
from observed_host import BY_PROCESS, SOURCE, observed_host
from publisher_bench import state_in
from systemd_standin import DAEMON

from ticket_agent.hive.console.client import ConsoleConfig, ConsoleNamespace
from ticket_agent.hive.reference import ConsoleServer, GatewayServer, GatewayTimes, ReferenceHive
from ticket_agent.hive.rest.client import RestConfig, RestNamespace
from ticket_agent.protocol.collecting import CollectContext, Deadline
from ticket_agent.protocol.snapshot_enrolment import DEFAULT_ENROLMENT, encode_enrolment
from ticket_agent.snapshots import SnapshotReader
from ticket_agent.snapshots.errors import NotObservedError
from ticket_agent.snapshots.looking import look_once
from ticket_agent.snapshots.publisher import SnapshotPublisher

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager
    from pathlib import Path

    from observed_host import ObservedHost

    from ticket_agent.protocol.namespace import Namespace
    from ticket_agent.snapshots import HostObservation

cohesix_backends = pytest.importorskip(
    "cohesix.backends", reason="needs the extra 'interop' (cohesix==1.2.0)"
)
cohesix_snapshots = pytest.importorskip(
    "cohesix.snapshots", reason="needs the extra 'interop' (cohesix==1.2.0)"
)
cohesix_errors = pytest.importorskip("cohesix.errors", reason="needs the extra 'interop' (cohesix==1.2.0)")

CACHE_S = 0.05
AVAILABLE = tuple(
    pytest.param(
        name,
        marks=pytest.mark.skipif(name == "systemd" and DAEMON is None, reason="dbus-daemon is not installed"),
    )
    for name in (*BY_PROCESS, "jetson")
)
ELSEWHERE = ("launchd", "endpoint_compliance")
"""Providers of ``mac-controller``, which are withdrawn on this host."""


def now_ms() -> int:
    return time.time_ns() // 1_000_000


class Served:
    """One hive, asked by the published client and then by ours: a console takes one client at a time.

    Attributes:
        options: of the publisher's command.
        ours: our client.
    """

    def __init__(
        self, options: tuple[str, ...], ours: Namespace, theirs: Callable[[], AbstractContextManager[Any]]
    ) -> None:
        self.options = options
        self.ours = ours
        self._theirs = theirs

    def both(self, provider: str, source: str = SOURCE) -> tuple[Any, HostObservation]:
        manifest = json.loads(encode_enrolment(DEFAULT_ENROLMENT))
        with self._theirs() as backend:
            found = cohesix_snapshots.SnapshotReader(backend, manifest).read(provider, source)
        with closing(self.ours):
            return found, SnapshotReader(self.ours, DEFAULT_ENROLMENT).read(provider, source)


@contextmanager
def on_console(hive: ReferenceHive) -> Iterator[Served]:
    with ConsoleServer(hive, token=TOKEN) as server:

        def theirs() -> AbstractContextManager[Any]:
            return closing(cohesix_backends.TcpBackend("127.0.0.1", server.port, TOKEN, "queen", None))

        yield Served(
            (f"--tcp-port={server.port}", "--auth-token=env:LAB_TOKEN"),
            # The other client comes right after ours, and is turned away while that is not gone.
            ConsoleNamespace(ConsoleConfig(port=server.port, token=TOKEN, quit_s=20.0)),
            theirs,
        )


@contextmanager
def on_rest(hive: ReferenceHive) -> Iterator[Served]:
    times = GatewayTimes(cache_s=CACHE_S)
    with GatewayServer(hive, clock=now_ms, token=TOKEN, times=times) as gateway:
        backend = cohesix_backends.RestBackend(gateway.url, request_auth_token=TOKEN, backoff_ms=1)
        yield Served(
            (f"--rest-url={gateway.url}", "--rest-auth-token=env:LAB_TOKEN"),
            RestNamespace(RestConfig(url=gateway.url, auth_token=TOKEN, cache_s=CACHE_S)),
            lambda: nullcontext(backend),
        )


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ObservedHost]:
    with observed_host(tmp_path_factory.mktemp("host")) as made:
        yield made


@pytest.fixture(scope="module", params=[on_console, on_rest], ids=["console", "rest"])
def published(
    request: pytest.FixtureRequest, host: ObservedHost, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Served]:
    """Everything was published, by the command as far as this host goes."""
    hive = ReferenceHive(clock=now_ms, snapshots=DEFAULT_ENROLMENT)
    state_dir: Path = tmp_path_factory.mktemp("state")
    state_dir.chmod(0o700)
    with request.param(hive) as served:
        told = host.publish(state_dir, f"--source-id={SOURCE}", *served.options)
        assert {one["publication"]["provider"] for one in told} == set(BY_PROCESS)
        host.publish(state_dir, "--source-id=mac-controller", *served.options, providers=ELSEWHERE)
        with closing(served.ours), state_in(state_dir) as state:
            publisher = SnapshotPublisher(
                served.ours, DEFAULT_ENROLMENT, state, clock=now_ms, monotonic=time.monotonic
            )
            look = publisher.begin_look("jetson")
            context = CollectContext(deadline=Deadline(look.deadline_s, time.monotonic))
            publisher.publish(look_once(host.jetson, context, look))
        yield served


def assert_same(theirs: Any, ours: HostObservation) -> None:
    """Everything that the published client hands out."""
    assert (theirs.provider, theirs.source_id) == (ours.provider, ours.source_id)
    assert (theirs.sequence, theirs.observed_unix_ms) == (ours.sequence, ours.observed_unix_ms)
    assert theirs.available_at_read is ours.available_at_read
    assert theirs.reason == ours.reason
    assert theirs.entries == tuple((entry.path, entry.value) for entry in ours.entries)
    assert theirs.sha256 == ours.sha256


@pytest.mark.parametrize("provider", AVAILABLE)
def test_both_readers_read_what_was_collected(provider: str, published: Served) -> None:
    theirs, ours = published.both(provider)
    assert_same(theirs, ours)
    assert ours.available_at_read, "every collector of the host has something to see"
    assert "source" in {entry.path for entry in ours.entries}
    for entry in ours.entries:
        json.loads(entry.value)


@pytest.mark.parametrize("provider", ELSEWHERE)
def test_both_readers_read_a_withdrawal(provider: str, published: Served) -> None:
    theirs, ours = published.both(provider, "mac-controller")
    assert_same(theirs, ours)
    assert (ours.available_at_read, ours.reason, ours.entries) == (False, "not_supported", ())


def test_both_readers_refuse_what_was_never_observed(published: Served) -> None:
    with pytest.raises(cohesix_errors.CohesixError):
        published.both("network", "mac-controller")
    with closing(published.ours), pytest.raises(NotObservedError):
        SnapshotReader(published.ours, DEFAULT_ENROLMENT).read("network", "mac-controller")
