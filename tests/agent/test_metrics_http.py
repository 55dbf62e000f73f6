"""`GET /metrics` over a real socket: one path, few readers at a time, and an end."""

from __future__ import annotations

import http.client
import select
import socket
import threading
import time
from contextlib import ExitStack, contextmanager, suppress
from typing import TYPE_CHECKING

import pytest
from metrics_support import scrape_url
from prometheus_client.core import CollectorRegistry, GaugeMetricFamily
from prometheus_client.openmetrics.parser import text_string_to_metric_families
from prometheus_client.registry import Collector

from ticket_agent.agent.metrics_http import MAX_CONNECTIONS, MetricsServer

if TYPE_CHECKING:
    from collections.abc import Iterator

    from prometheus_client.core import Metric

PATIENCE_S = 20
METRICS = b"GET /metrics HTTP/1.0\r\n\r\n"


class One(Collector):
    """A single gauge; counts who looked, and can fail or wait."""

    def __init__(self) -> None:
        self.looks = 0
        self.broken = False
        self.goes_on = threading.Event()
        self.goes_on.set()

    def collect(self) -> Iterator[Metric]:
        self.looks += 1
        assert self.goes_on.wait(PATIENCE_S)
        if self.broken:
            raise RuntimeError
        yield GaugeMetricFamily("ticket_agent_one", "One.", 1)


@contextmanager
def serving(host: str = "127.0.0.1") -> Iterator[tuple[MetricsServer, One]]:
    registry, one = CollectorRegistry(), One()
    registry.register(one)
    server = MetricsServer(host, 0, registry)
    with server.serving():
        yield server, one


def _ask(server: MetricsServer, method: str, path: str, **headers: str) -> tuple[int, str, bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=PATIENCE_S)
    try:
        connection.request(method, path, headers=headers)
        answer = connection.getresponse()
        return answer.status, answer.getheader("Content-Type", ""), answer.read()
    finally:
        connection.close()


def _connection(server: MetricsServer) -> socket.socket:
    return socket.create_connection(("127.0.0.1", server.port), timeout=PATIENCE_S)


def _all(channel: socket.socket) -> bytes:
    """What comes until the other side ends; with a reset, if it did not want all that was sent."""
    data = b""
    with suppress(ConnectionResetError):
        while chunk := channel.recv(65536):
            data += chunk
    return data


@pytest.mark.parametrize("host", ["127.0.0.1", "127.0.0.2", "::1"])
def test_it_listens_on_any_loopback_address(host: str) -> None:
    if host == "::1" and not socket.has_ipv6:
        pytest.skip("this host has no IPv6")
    with serving(host) as (server, _):
        shown = f"[{host}]" if ":" in host else host
        assert scrape_url(f"http://{shown}:{server.port}/metrics")("one") == 1


@pytest.mark.parametrize(
    ("method", "path", "status", "looks"),
    [
        ("GET", "/metrics", 200, 1),
        ("GET", "/metrics?name=x", 200, 1),
        ("GET", "/", 404, 0),
        ("GET", "/metrics/", 404, 0),
        ("GET", "/metrics/../status", 404, 0),
        ("HEAD", "/metrics", 501, 0),
        ("POST", "/metrics", 501, 0),
        ("DELETE", "/metrics", 501, 0),
    ],
)
def test_there_is_one_path_and_one_method(method: str, path: str, status: int, looks: int) -> None:
    with serving() as (server, one):
        assert _ask(server, method, path)[0] == status
        assert one.looks == looks


def test_a_reader_that_prefers_openmetrics_gets_it() -> None:
    with serving() as (server, _):
        wanted = "application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.5"
        status, content_type, body = _ask(server, "GET", "/metrics", Accept=wanted)
    assert (status, content_type.split(";")[0]) == (200, "application/openmetrics-text")
    families = text_string_to_metric_families(body.decode())  # type: ignore[no-untyped-call]
    assert [family.name for family in families] == ["ticket_agent_one"]


@pytest.mark.parametrize(
    "request_bytes",
    [b"", b"\n", b"garbage\r\n\r\n", b"GET " + b"/" * 70_000 + b" HTTP/1.0\r\n\r\n", b"\0" * 100, b"GET"],
    ids=["nothing", "a newline", "garbage", "a long line", "zeros", "a torn line"],
)
def test_garbage_disturbs_nobody(request_bytes: bytes, capfd: pytest.CaptureFixture[str]) -> None:
    with serving() as (server, one):
        with _connection(server) as channel:
            # It may have heard enough, and be gone, before we are ready.
            with suppress(OSError):
                channel.sendall(request_bytes)
                channel.shutdown(socket.SHUT_WR)
            assert b"200 OK" not in _all(channel)
        assert one.looks == 0
        assert _ask(server, "GET", "/metrics")[0] == 200
    assert capfd.readouterr() == ("", "")


def test_an_error_while_collecting_ends_one_answer_only(capfd: pytest.CaptureFixture[str]) -> None:
    with serving() as (server, one):
        one.broken = True
        with _connection(server) as channel:
            channel.sendall(METRICS)
            assert b"200 OK" not in _all(channel)
        one.broken = False
        assert _ask(server, "GET", "/metrics")[0] == 200
    assert capfd.readouterr() == ("", "")


def _answer(server: MetricsServer) -> bytes:
    """What a reader gets, or nothing where it is sent away."""
    with suppress(ConnectionError), _connection(server) as channel:
        channel.sendall(METRICS)
        return _all(channel)
    return b""


def _busy(server: MetricsServer, one: One, stack: ExitStack) -> socket.socket:
    """A reader whose answer is being made and held back.

    A place that was given up a moment ago may still count as taken; until it does not, whoever comes is sent
    away.
    """
    looks = one.looks
    while True:
        channel = stack.enter_context(_connection(server))
        channel.sendall(METRICS)
        while not select.select([channel], [], [], 0.01)[0]:
            if one.looks > looks:
                return channel


def test_silent_readers_hold_up_nobody_and_are_few() -> None:
    with serving() as (server, one), ExitStack() as stack:
        silent = [stack.enter_context(_connection(server)) for _ in range(MAX_CONNECTIONS - 1)]
        assert _ask(server, "GET", "/metrics")[0] == 200
        # One place is left; whoever comes while it is taken is sent away at once.
        one.goes_on.clear()
        busy = _busy(server, one, stack)
        late = stack.enter_context(_connection(server))
        assert late.recv(1) == b""
        one.goes_on.set()
        assert b"200 OK" in _all(busy)
        silent[0].close()
        deadline = time.monotonic() + 30
        while b"200 OK" not in _answer(server):
            assert time.monotonic() < deadline


def test_its_end_closes_the_port_and_its_threads() -> None:
    # Threads of other tests may still be on their way out.
    before = set(threading.enumerate())
    with serving() as (server, _):
        assert [thread.name for thread in set(threading.enumerate()) - before] == ["metrics"]
    assert set(threading.enumerate()) <= before
    with pytest.raises(ConnectionRefusedError):
        _connection(server)


def test_a_port_that_is_taken_is_an_error() -> None:
    with serving() as (server, _), pytest.raises(OSError, match="in use"):
        MetricsServer("127.0.0.1", server.port, CollectorRegistry())
