"""Every row of the gateway's status table, over real sockets: what became of an append, what a read says."""

from __future__ import annotations

from typing import Any

import pytest
from rest_support import (
    LINE,
    PATH,
    TICKET,
    TOKEN,
    ScriptedGateway,
    dribble,
    echoed,
    gives,
    hang_up,
    http,
    reset,
    rest,
    said,
    silence,
    state,
)

from ticket_agent.hive.rest.answers import MEANINGS, retry_after
from ticket_agent.protocol.namespace import (
    Acked,
    HiveAuthError,
    HiveRefusedError,
    HiveUnreachableError,
    HiveViolationError,
    RefusalKind,
    Refused,
    Unknown,
)


def _err(text: str) -> dict[str, Any]:
    return {"status": "ERR", "verb": "ECHO", "path": PATH, "end": True, "lines": [], "error": text}


ABSENT = f"ERR TAIL reason=policy detail=invalid-path path={PATH}"
DENIED = f"ERR ECHO reason=policy detail=denied path={PATH} error=EPERM"
FULL = f"ERR ECHO reason=quota detail=buffer-full path={PATH} error=buffer full"
OLD = "ERR PARSE reason=policy detail=argument payload exceeds allowed length"
EPERM = _err("EPERM delegated ticket scope")

APPENDS = [
    ("200-ok", http(200, echoed()), Acked),
    ("200-ok-without-bytes", http(200, {"status": "OK", "verb": "ECHO", "path": PATH}), Acked),
    ("200-ok-of-whom", http(200, {"status": "OK"}), Unknown),
    ("200-err-of-whom", http(200, {"status": "ERR"}), Unknown),
    ("200-err-denied", http(200, _err(DENIED)), RefusalKind.DENIED),
    ("200-err-full", http(200, _err(FULL)), RefusalKind.BUFFER_FULL),
    ("200-err-older-hive", http(200, _err(OLD)), RefusalKind.GRAMMAR),
    ("200-err-in-other-words", http(200, _err("the target is upset")), RefusalKind.OTHER),
    ("200-err-without-words", http(200, {"status": "ERR", "verb": "ECHO", "path": PATH}), RefusalKind.OTHER),
    ("200-other-path", http(200, echoed(path="/host/tickets/spec")), Unknown),
    ("200-other-verb", http(200, echoed() | {"verb": "CAT"}), Unknown),
    ("200-other-size", http(200, echoed() | {"bytes": 3}), Unknown),
    ("200-no-status", http(200, {"verb": "ECHO"}), Unknown),
    ("200-no-json", http(200, b"<html>hello</html>"), Unknown),
    ("200-json-array", http(200, b"[]"), Unknown),
    ("200-repeated-member", http(200, b'{"status":"ERR","status":"OK"}'), Unknown),
    ("200-empty", http(200), Unknown),
    ("200-compressed", http(200, echoed(), Content_Encoding="gzip"), Unknown),
    ("201", http(201, echoed()), Unknown),
    ("204", b"HTTP/1.1 204 No Content\r\n\r\n", Unknown),
    ("302", http(302, b"", Location="/elsewhere"), Unknown),
    ("307", http(307, b"", Location="/elsewhere"), Unknown),
    ("400", http(400, _err("invalid path")), RefusalKind.GRAMMAR),
    ("401", http(401, _err("request auth token missing or invalid")), HiveAuthError),
    ("403", http(403, EPERM), RefusalKind.DENIED),
    ("404", http(404), RefusalKind.GRAMMAR),
    ("405", http(405), RefusalKind.GRAMMAR),
    ("408", http(408), Unknown),
    ("409", http(409), Unknown),
    ("413-text", http(413, b"length limit exceeded"), RefusalKind.GRAMMAR),
    ("415-text", http(415, b"Expected request with `Content-Type`"), RefusalKind.GRAMMAR),
    ("422-text", http(422, b"Failed to deserialize the JSON body"), RefusalKind.GRAMMAR),
    ("429", http(429, _err("gateway backpressure: queue wait")), RefusalKind.BUSY),
    ("429-quota", http(429, _err("ELIMIT delegated-ticket-ops")), RefusalKind.LIMIT),
    ("500", http(500, _err("worker task failed")), Unknown),
    ("502", http(502, b"bad gateway"), Unknown),
    ("503", http(503, _err("backend not connected")), Unknown),
    ("504", http(504, _err("broker response deadline")), Unknown),
    ("599", http(599), Unknown),
    ("no-http", gives(b"garbage\r\n\r\n"), Unknown),
    ("reset-after-the-request", reset, Unknown),
    ("end-after-the-request", hang_up, Unknown),
    ("head-cut", gives(b"HTTP/1.1 200 OK\r\nContent-"), Unknown),
    ("body-cut", gives(http(200, echoed())[:-5]), Unknown),
    ("chunk-cut", gives(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\n{"), Unknown),
    ("announced-too-large", http(200, b"", Content_Length="99999999"), Unknown),
    ("too-large", gives(b"HTTP/1.1 200 OK\r\n\r\n" + b" " * 2_000_000), Unknown),
    ("head-without-end", gives(b"HTTP/1.1 200 OK\r\nA: " + b"x" * 100_000), Unknown),
    ("interim-without-end", gives(b"HTTP/1.1 100 Continue\r\n\r\n" * 50), Unknown),
    (
        "other-protocol",
        gives(b"HTTP/1.1 101 Switching\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n"),
        Unknown,
    ),
]


@pytest.mark.parametrize(("step", "expected"), [pytest.param(*row[1:], id=row[0]) for row in APPENDS])
def test_what_became_of_an_append(step: Any, expected: Any) -> None:
    with ScriptedGateway(step) as gateway, rest(gateway.port, ticket=TICKET) as namespace:
        if isinstance(expected, type) and issubclass(expected, HiveAuthError):
            with pytest.raises(expected, match="nothing was dispatched"):
                namespace.append(PATH, LINE)
        else:
            answer = namespace.append(PATH, LINE)
            if isinstance(expected, RefusalKind):
                assert isinstance(answer, Refused)
                assert answer.refusal.kind is expected
                assert len(answer.refusal.text) <= 512
            else:
                assert isinstance(answer, expected)
        throttled = isinstance(expected, RefusalKind) and expected is RefusalKind.BUSY
        assert len(gateway.posts) == (3 if throttled else 1), "sent again without proof that it may be"


@pytest.mark.parametrize("step", [silence, dribble(b"HTTP/1.1 100 Continue\r\n\r\n"), dribble(b"H")])
def test_an_append_without_an_answer_in_time_is_unknown_however_slowly_it_is_fed(step: Any) -> None:
    with ScriptedGateway(step) as gateway, rest(gateway.port, data_s=0.3) as namespace:
        answer = namespace.append(PATH, LINE)
    assert isinstance(answer, Unknown)
    assert "read back" in answer.why
    # A client that gives up can be sooner than the gateway, which has read everything only now.
    assert len(gateway.posts) == 1


READS = [
    ("200-ok", http(200, said("TAIL", PATH, ["a", "é"])), ["a", "é"]),
    ("200-nothing", http(200, said("TAIL", PATH)), []),
    ("200-err-absent", http(200, _err(ABSENT) | {"verb": "TAIL"}), RefusalKind.INVALID_PATH),
    ("200-not-complete", http(200, said("TAIL", PATH, ["a"], end=False)), HiveViolationError),
    ("200-other-size", http(200, said("TAIL", PATH, ["a"], bytes=2)), HiveViolationError),
    ("200-newline-inside", http(200, said("TAIL", PATH, ["a\nb"])), HiveViolationError),
    ("200-numbers", http(200, said("TAIL", PATH) | {"lines": [1]}), HiveViolationError),
    ("200-no-lines", http(200, {"status": "OK"}), HiveViolationError),
    ("200-other-path", http(200, said("TAIL", "/x")), HiveViolationError),
    ("200-no-json", http(200, b"hello"), HiveViolationError),
    ("400", http(400, _err("max_bytes")), RefusalKind.GRAMMAR),
    ("401", http(401, _err("who are you")), HiveAuthError),
    ("403", http(403, EPERM), RefusalKind.DENIED),
    ("404", http(404), HiveViolationError),
    ("429", http(429, _err("gateway backpressure")), RefusalKind.BUSY),
    ("500", http(500), HiveUnreachableError),
    ("503", http(503), HiveUnreachableError),
    ("504", http(504), HiveUnreachableError),
    ("302", http(302), HiveUnreachableError),
    ("cut", gives(http(200, said("TAIL", PATH, ["a"]))[:-3]), HiveUnreachableError),
    ("reset", reset, HiveUnreachableError),
    ("too-large", gives(b"HTTP/1.1 200 OK\r\n\r\n" + b" " * 2_000_000), HiveUnreachableError),
]  # fmt: skip


@pytest.mark.parametrize(("step", "expected"), [pytest.param(*row[1:], id=row[0]) for row in READS])
def test_what_a_read_says(step: Any, expected: Any) -> None:
    with ScriptedGateway(step) as gateway, rest(gateway.port) as namespace:
        if isinstance(expected, list):
            assert namespace.tail(PATH) == expected
        elif isinstance(expected, RefusalKind):
            with pytest.raises(HiveRefusedError) as refused:
                namespace.tail(PATH)
            assert refused.value.refusal.kind is expected
        else:
            with pytest.raises(expected):
                namespace.tail(PATH)


def test_every_documented_status_is_in_both_tables() -> None:
    for table in (APPENDS, READS):
        named = {int(row[0][:3]) for row in table if row[0][:3].isdigit()}
        assert {200, 400, 401, 403, 429, 500, 503, 504} <= named
    assert set(MEANINGS) <= {int(row[0][:3]) for row in APPENDS if row[0][:3].isdigit()}


def test_neither_token_nor_ticket_is_ever_quoted() -> None:
    spiteful = http(403, _err(f"EPERM {TOKEN} and {TICKET}"))
    with ScriptedGateway(spiteful) as gateway, rest(gateway.port, ticket=TICKET) as namespace:
        answer = namespace.append(PATH, LINE)
        assert isinstance(answer, Refused)
        assert "[redacted]" in answer.refusal.text
        assert TOKEN not in answer.refusal.text
        assert TICKET not in answer.refusal.text
        assert TOKEN not in repr(namespace.config)
        assert TICKET not in repr(namespace.config)


def test_throttled_requests_come_again_when_the_gateway_says_and_only_then() -> None:
    slept: list[float] = []
    script = [
        http(429, _err("gateway backpressure"), Retry_After="1"),
        http(429, b"later"),
        http(200, echoed()),
    ]
    with ScriptedGateway(*script) as gateway, rest(gateway.port, sleep=slept.append) as namespace:
        assert isinstance(namespace.append(PATH, LINE), Acked)
        assert slept == [1.0, 0.4]
        assert len(gateway.posts) == 3


def test_a_gateway_that_asks_for_a_long_pause_is_left_alone() -> None:
    now = [0.0]
    busy = http(503, b"maintenance", Retry_After="30")
    with ScriptedGateway(busy) as gateway, rest(gateway.port, monotonic=lambda: now[0]) as namespace:
        with pytest.raises(HiveUnreachableError, match="maintenance"):
            namespace.tail(PATH)
        asked = len(gateway.asked)
        with pytest.raises(HiveUnreachableError, match="left alone for 30 s"):
            namespace.append(PATH, LINE)
        assert len(gateway.asked) == asked
        now[0] = 30.0
        with pytest.raises(HiveUnreachableError, match="maintenance"):
            namespace.tail(PATH)


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({}, None),
        ({"retry-after": "7"}, 7.0),
        ({"retry-after": " 0 "}, 0.0),
        ({"retry-after": "9" * 400}, 3600.0),
        ({"retry-after": "-1"}, None),
        ({"retry-after": "soon"}, None),
        ({"retry-after": "Mon, 30 Nov 2026 00:00:05 GMT"}, None),
        ({"retry-after": "Mon, 30 Nov 2026 00:00:05 GMT", "date": "Mon, 30 Nov 2026 00:00:00 GMT"}, 5.0),
        ({"retry-after": "Mon, 30 Nov 2026 00:00:00 GMT", "date": "Mon, 30 Nov 2026 00:00:05 GMT"}, 0.0),
    ],
)
def test_retry_after_in_seconds_or_as_a_date_of_the_gateway_s_own_clock(
    headers: dict[str, str], seconds: float | None
) -> None:
    assert retry_after(headers) == seconds


@pytest.mark.parametrize(
    ("status", "session"),
    [
        (http(403, b"EPERM admin read"), 1),
        *((http(status), None) for status in (200, 302, 400, 404, 429, 503)),
    ],
)
def test_only_a_state_that_is_hidden_from_us_may_be_missing(status: bytes, session: int | None) -> None:
    """Anything else could hide a change of the session; nothing is sent then."""
    with ScriptedGateway(http(200, echoed()), status=status) as gateway, rest(gateway.port) as namespace:
        if session is None:
            with pytest.raises((HiveUnreachableError, HiveViolationError)):
                namespace.append(PATH, LINE)
            assert not gateway.posts
        else:
            assert isinstance(namespace.append(PATH, LINE), Acked)
        assert namespace.session == (session or 0)


def test_an_acknowledgement_across_a_change_of_the_hive_s_session_is_unknown() -> None:
    with ScriptedGateway(http(200, echoed())) as gateway, rest(gateway.port) as namespace:
        assert isinstance(namespace.append(PATH, LINE), Acked)
        script = iter([http(200, state(1)), http(200, state(2))])
        gateway.status = None
        gateway._step = lambda asked: next(script) if "status" in asked.target else http(200, echoed())  # type: ignore[method-assign]
        answer = namespace.append(PATH, LINE)
        assert isinstance(answer, Unknown)
        assert namespace.session == 2


def test_nothing_is_sent_when_the_session_that_it_is_meant_for_is_over() -> None:
    with ScriptedGateway(http(200, echoed())) as gateway, rest(gateway.port) as namespace:
        namespace.connect()
        assert namespace.session == 1
        gateway.status = http(200, state(2))
        with pytest.raises(HiveUnreachableError, match="session 1 is over; nothing was sent"):
            namespace.append(PATH, LINE, session=1)
        assert not gateway.posts
        assert isinstance(namespace.append(PATH, LINE, session=2), Acked)
