"""The reference gateway over plain HTTP: who may do what, what is refused, what comes from memory."""

from __future__ import annotations

import http.client
import json
import threading
import time
from contextlib import closing
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import pytest
from hive_support import SNAPSHOT, SPEC, STATUS, TOKEN, raw_grant, result_line, running_gateway

from ticket_agent.hive.reference import Fault, FaultKind
from ticket_agent.hive.reference.gateway_access import AccessRefusal

if TYPE_CHECKING:
    from ticket_agent.hive.reference import GatewayServer

AUTH = {"x-cohesix-auth": TOKEN}
JSON = {"Content-Type": "application/json"}


def ask(
    server: GatewayServer,
    method: str,
    target: str,
    *,
    body: Any = None,
    headers: dict[str, str] | None = None,
) -> tuple[int, Any, dict[str, str]]:
    """Status, body (parsed if it is JSON) and headers."""
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=20)
    data = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
    fields = AUTH if headers is None else headers
    with closing(connection):
        connection.request(method, target, data, fields | (JSON if data is not None else {}))
        answer = connection.getresponse()
        raw = answer.read()
    parsed = json.loads(raw) if raw[:1] == b"{" else raw
    return answer.status, parsed, {name.lower(): value for name, value in answer.getheaders()}


def void(value: object) -> None:
    del value


def cat(server: GatewayServer, path: str, limit: object = 65536) -> tuple[int, Any, dict[str, str]]:
    return ask(server, "GET", f"/v1/fs/cat?path={quote(path)}&max_bytes={limit}")


def echo(server: GatewayServer, path: object, line: object) -> tuple[int, Any, dict[str, str]]:
    return ask(server, "POST", "/v1/fs/echo", body={"path": path, "line": line})


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 401),
        ({"x-cohesix-auth": "other"}, 401),
        ({"x-cohesix-auth": "café"}, 401),
        ({"Authorization": f"Bearer {TOKEN}"}, 200),
        ({"x-cohesix-auth": TOKEN}, 200),
        ({"Authorization": TOKEN}, 401),
    ],
)
def test_the_request_token(headers: dict[str, str], status: int) -> None:
    with running_gateway() as (_, server):
        assert ask(server, "GET", "/v1/fs/ls?path=/", headers=headers)[0] == status
        assert ask(server, "GET", "/v1/meta/status", headers=headers)[0] == status
        assert ask(server, "GET", "/v1/meta/bounds", headers=headers)[0] == 200
    with running_gateway(open_reads=True) as (_, server):
        assert ask(server, "GET", "/v1/fs/ls?path=/", headers=headers)[0] == 200


@pytest.mark.parametrize(
    "target",
    ["ls?path=", "ls?path=host", "ls?path=/a/../b", "ls?path=/a//b", "ls?path=/a/", "ls?path=/%00", "ls",
     "ls?path=/" + "x" * 96, "ls?path=" + "/d" * 9, "cat?path=/kmesg", "cat?path=/kmesg&max_bytes=0",
     "cat?path=/kmesg&max_bytes=x", "tail?path=/kmesg&max_bytes=-1"],
)  # fmt: skip
def test_reads_that_are_no_requests(target: str) -> None:
    with running_gateway() as (_, server):
        status, body, _ = ask(server, "GET", f"/v1/fs/{target}")
        assert (status, body["status"], body["lines"]) == (400, "ERR", [])


@pytest.mark.parametrize(
    ("body", "status", "json_body"),
    [
        (b"{", 400, False),
        (b"[]", 400, False),
        ({"path": SPEC}, 422, False),
        ({"path": SPEC, "line": 7}, 422, False),
        ({"path": SPEC, "line": "a\nb"}, 400, True),
        ({"path": SPEC, "line": "x" * 2049}, 400, True),
        ({"path": 7, "line": "x"}, 400, True),
        (b" " * 3_000_000, 413, False),
    ],
)
def test_appends_that_are_no_requests(body: Any, status: int, json_body: bool) -> None:
    with running_gateway() as (hive, server):
        got, said, _ = ask(server, "POST", "/v1/fs/echo", body=body)
        assert (got, isinstance(said, dict)) == (status, json_body)
        assert hive.appended("spec") == 0


def test_other_endpoints_methods_and_kinds() -> None:
    with running_gateway() as (_, server):
        assert ask(server, "GET", "/v1/fs/echo")[0] == 405
        assert ask(server, "POST", "/v1/fs/ls", body={})[0] == 405
        assert ask(server, "GET", "/")[0] == 404
        plain = http.client.HTTPConnection("127.0.0.1", server.port)
        plain.request("POST", "/v1/fs/echo", b"{}", AUTH | {"Content-Type": "text/plain"})
        assert plain.getresponse().status == 415
        plain.close()


def test_answers_and_refusals_have_the_documented_shape() -> None:
    with running_gateway() as (hive, server):
        line = raw_grant(hive, hive.spawn_worker("worker-gpu"), "t-1", "l-1")
        status, body, _ = echo(server, SPEC, f" {line} ")
        size = len(line) + 2
        assert (status, body) == (
            200,
            {"status": "OK", "verb": "ECHO", "path": SPEC, "end": True, "lines": [], "bytes": size},
        )
        status, body, _ = cat(server, SNAPSHOT)
        assert (body["bytes"], len(body["lines"]), body["end"]) == (len(body["lines"][0]), 1, True)
        assert len(body["lines"][0]) > 256, "C1 groups are whole"
        assert cat(server, SNAPSHOT, 10)[0] == 400
        status, body, _ = cat(server, "/nope")
        assert (status, body["status"], body["lines"]) == (200, "ERR", [])
        assert body["error"] == "ERR CAT reason=policy detail=invalid-path path=/nope error=invalid path"


@pytest.mark.parametrize(
    ("path", "lines", "status"),
    [(STATUS, 1, 200), (STATUS, 8, 200), (STATUS, 9, 400), (STATUS, 0, 400), (SPEC, 1, 400)],
)
def test_batches(path: str, lines: int, status: int) -> None:
    with running_gateway() as (hive, server):
        hive.submit(raw_grant(hive, hive.spawn_worker("worker-gpu"), "t-1", "l-1"))
        admitted = _admitted(hive)
        batch = [result_line(admitted, "running", f"step {number}") for number in range(lines)]
        got, _, _ = ask(server, "POST", "/v1/fs/echo-batch", body={"path": path, "lines": batch})
        assert got == status
        assert hive.appended("status") == (lines if status == 200 else 0)


def _admitted(hive: Any) -> Any:
    from hive_support import admitted  # noqa: PLC0415 - one use

    return admitted(hive, "t-1")


def test_cat_comes_from_memory_until_a_write_through_the_gateway_or_its_time_is_up() -> None:
    with running_gateway(cache_s=600.0) as (hive, server):

        def shown(path: str) -> list[str]:
            return cat(server, path)[1]["lines"]  # type: ignore[no-any-return]

        def submit(number: int) -> None:
            echo(server, SPEC, raw_grant(hive, hive.spawn_worker("worker-gpu"), f"t-{number}", f"l-{number}"))

        assert shown("/host/tickets/retention")
        before = shown("/proc/lease/summary"), shown("/host/tickets/retention")
        submit(1)
        assert len(shown(SNAPSHOT)) == 1, "forgotten with the write"
        assert shown("/host/tickets/retention") != before[1]
        hive.submit(raw_grant(hive, hive.spawn_worker("worker-gpu"), "t-2", "l-2"))
        assert len(shown(SNAPSHOT)) == 1, "not written through the gateway"
        grant = '{"op":"grant","id":"l-1","subject":"worker-1","resource":"GPU-0","ttl_s":60,"priority":1}'
        assert echo(server, "/queen/lease/ctl", grant)[1]["status"] == "OK"
        assert shown("/proc/lease/summary") == before[0], "a lease is not what a gateway thinks of"
        tail = ask(server, "GET", f"/v1/fs/tail?path={SNAPSHOT}&max_bytes=65536")[1]["lines"]
        assert len(tail) == 2, "TAIL is never cached"
        server.gateway._cache._monotonic = lambda: time.monotonic() + 601
        assert shown("/proc/lease/summary") != before[0]
        assert len(shown(SNAPSHOT)) == 2


def test_who_waits_too_long_for_the_console_is_turned_away() -> None:
    release = threading.Event()
    with running_gateway(queue_s=0.2) as (_, server):
        server.faults.on_applied(lambda path, line: void(release.wait(60)))
        grant = '{"op":"grant","id":"l-1","subject":"worker-1","resource":"GPU-0","ttl_s":60,"priority":1}'
        slow = threading.Thread(target=echo, args=(server, "/queen/lease/ctl", grant))
        slow.start()
        while not server.gateway._console.locked():
            time.sleep(0.001)
        status, body, headers = cat(server, "/kmesg")
        release.set()
        slow.join()
        assert (status, headers["retry-after"]) == (429, "1")
        assert body["error"].startswith("gateway backpressure")


def test_a_delegated_ticket_is_asked_for_exactly_once_and_judged() -> None:
    asked: list[tuple[str, str, bool, int]] = []

    class Delegation:
        def refusal(self, ticket: str, *, path: str, write: bool, size: int) -> AccessRefusal | None:
            asked.append((ticket, path, write, size))
            return AccessRefusal(403, "EPERM delegated ticket scope") if write else None

    with running_gateway(delegation=Delegation()) as (hive, server):
        assert cat(server, SPEC)[0] == 403
        with_ticket = AUTH | {"x-cohesix-ticket": "cohesix-ticket-x"}
        assert ask(server, "GET", f"/v1/fs/cat?path={SPEC}&max_bytes=9", headers=with_ticket)[0] == 200
        assert ask(server, "GET", "/v1/meta/status")[0] == 200
        body = {"path": SPEC, "line": "{}"}
        status, said, _ = ask(server, "POST", "/v1/fs/echo", body=body, headers=with_ticket)
        assert (status, said["error"]) == (403, "EPERM delegated ticket scope")
        assert asked == [("cohesix-ticket-x", SPEC, False, 0), ("cohesix-ticket-x", SPEC, True, 2)]
        twice = http.client.HTTPConnection("127.0.0.1", server.port)
        twice.putrequest("GET", "/v1/fs/ls?path=/")
        for name, value in (*AUTH.items(), ("x-cohesix-ticket", "a"), ("x-cohesix-ticket", "b")):
            twice.putheader(name, value)
        twice.endheaders()
        assert twice.getresponse().status == 403
        twice.close()
        assert hive.appended("spec") == 0


def test_its_status_counts_the_connections_to_the_hive() -> None:
    with running_gateway() as (hive, server):

        def state() -> tuple[int, int, int]:
            shown = ask(server, "GET", "/v1/meta/status")[1]
            return shown["connects"], shown["reconnects"], shown["last_change_unix_ms"]

        first = state()
        assert first[:2] == (1, 0)
        hive.reboot()
        assert cat(server, "/kmesg")[0] == 200
        assert state()[:2] == (2, 1)
        assert state()[2] > first[2]
        server.kick()
        assert cat(server, "/kmesg")[0] == 503
        assert cat(server, "/kmesg")[0] == 200
        assert state()[:2] == (3, 2)


def test_stopping_ends_clients_that_wait_for_ever() -> None:
    with running_gateway() as (_, server):
        server.faults.add(Fault(kind=FaultKind.SWALLOW, verb="CAT"))
        waiting = threading.Thread(target=_asks_in_vain, args=(server,))
        waiting.start()
        while not server.faults.struck(FaultKind.SWALLOW):
            time.sleep(0.001)
    waiting.join(60)
    assert not waiting.is_alive()


def _asks_in_vain(server: GatewayServer) -> None:
    with pytest.raises((http.client.HTTPException, OSError)):
        cat(server, "/kmesg")
