from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ticket_agent.hive.console.handshake import Attached, FailureKind, Handshake, HandshakeFailure, Send
from ticket_agent.hive.credentials import Secret

TOKEN = "tok-4711"
TICKET = "cohesix-ticket-00.11"


def begun(role: str = "queen", ticket: str | None = None) -> Handshake:
    return Handshake(token=Secret(TOKEN), role=role, ticket=None if ticket is None else Secret(ticket))


def authenticated(role: str = "queen", ticket: str | None = None) -> Handshake:
    handshake = begun(role, ticket)
    assert isinstance(handshake.receive(b"OK AUTH"), Send)
    return handshake


def test_auth_then_attach() -> None:
    handshake = begun()
    assert handshake.start() == Send(f"AUTH {TOKEN}")
    before = handshake.authenticated
    assert handshake.receive(b"OK AUTH") == Send("ATTACH queen")
    assert (before, handshake.authenticated) == (False, True)
    assert handshake.receive(b"OK ATTACH role=queen") == Attached("queen")


def test_a_ticket_follows_the_role() -> None:
    handshake = begun("worker-gpu", TICKET)
    assert handshake.receive(b"OK AUTH") == Send(f"ATTACH worker-gpu {TICKET}")
    assert handshake.receive(b"OK ATTACH role=worker-gpu") == Attached("worker-gpu")


def test_the_worker_alias_may_be_answered_with_its_full_name() -> None:
    assert authenticated("worker").receive(b"OK ATTACH role=worker-heartbeat") == Attached("worker-heartbeat")


def test_a_stray_pong_is_dropped() -> None:
    handshake = begun()
    assert handshake.receive(b"PONG") is None
    assert isinstance(handshake.receive(b"OK AUTH"), Send)


@pytest.mark.parametrize(
    ("line", "kind", "words"),
    [
        ("ERR AUTH reason=invalid-token", FailureKind.AUTH_REFUSED, "refused the token"),
        ("ERR AUTH reason=invalid-length", FailureKind.AUTH_REFUSED, "length"),
        ("ERR AUTH reason=expected-token", FailureKind.AUTH_REFUSED, "AUTH line"),
        ("ERR AUTH reason=timeout", FailureKind.UNAVAILABLE, "deadline"),
        ("ERR AUTH reason=new-thing", FailureKind.AUTH_REFUSED, "ERR AUTH reason=new-thing"),
        ("ERR AUTH", FailureKind.AUTH_REFUSED, "ERR AUTH"),
        ("ERR FRAME reason=invalid-length", FailureKind.UNAVAILABLE, "ERR FRAME"),
        ("ERR CONSOLE reason=timeout", FailureKind.UNAVAILABLE, "ERR CONSOLE"),
        ("OK ATTACH role=queen", FailureKind.VIOLATION, "instead of answering AUTH"),
        ("SSH-2.0-OpenSSH_9.6", FailureKind.VIOLATION, "Cohesix console"),
    ],
)
def test_failures_of_auth(line: str, kind: FailureKind, words: str) -> None:
    failure = begun().receive(line.encode())
    assert isinstance(failure, HandshakeFailure)
    assert failure.kind is kind
    assert words in failure.why
    assert failure.delay_s is None


@pytest.mark.parametrize(
    ("line", "kind", "words", "delay_s"),
    [
        ("reason=policy detail=invalid-role", FailureKind.ATTACH_REFUSED, "know the role", None),
        ("reason=policy detail=denied", FailureKind.ATTACH_REFUSED, "ticket", None),
        ("reason=policy detail=expired", FailureKind.ATTACH_REFUSED, "expired", None),
        ("reason=policy detail=invalid-claims", FailureKind.ATTACH_REFUSED, "claims", None),
        ("reason=quota detail=throttled delay_ms=240", FailureKind.THROTTLED, "throttled", 0.24),
        ("reason=quota detail=rate-limited delay_ms=90000", FailureKind.THROTTLED, "locked out", 90.0),
        ("reason=quota detail=throttled", FailureKind.THROTTLED, "throttled", 1.0),
        ("reason=quota detail=throttled delay_ms=x", FailureKind.THROTTLED, "throttled", 1.0),
        ("reason=quota detail=throttled delay_ms=-5", FailureKind.THROTTLED, "throttled", 1.0),
        (f"reason=quota detail=throttled delay_ms={'9' * 5000}", FailureKind.THROTTLED, "throttled", 120.0),
        ("reason=cut detail=root-unreachable", FailureKind.UNAVAILABLE, "root task", None),
        ("reason=busy detail=attach-timeout", FailureKind.UNAVAILABLE, "timed out", None),
        (
            "reason=policy detail=lifecycle-denied state=QUIESCED",
            FailureKind.UNAVAILABLE,
            "state=QUIESCED",
            None,
        ),
        ("reason=policy detail=new-thing", FailureKind.ATTACH_REFUSED, "new-thing", None),
        ("", FailureKind.ATTACH_REFUSED, "role and ticket", None),
    ],
)
def test_failures_of_attach(line: str, kind: FailureKind, words: str, delay_s: float | None) -> None:
    failure = authenticated().receive(f"ERR ATTACH {line}".encode())
    assert isinstance(failure, HandshakeFailure)
    assert failure.kind is kind
    assert words in failure.why
    assert failure.delay_s == delay_s


@pytest.mark.parametrize("line", ["OK ATTACH role=worker-gpu", "OK ATTACH", "OK AUTH", "queen", "END"])
def test_only_our_own_role_counts_as_attached(line: str) -> None:
    failure = authenticated().receive(line.encode())
    assert isinstance(failure, HandshakeFailure)
    assert failure.kind is FailureKind.VIOLATION


def test_what_the_end_of_the_connection_means() -> None:
    assert begun().closed().kind is FailureKind.SILENT_CLOSE
    assert "another client" in begun().closed().why
    assert authenticated().closed().kind is FailureKind.UNAVAILABLE


def test_what_silence_means() -> None:
    assert begun().timed_out().kind is FailureKind.NO_ANSWER
    assert authenticated().timed_out().kind is FailureKind.UNAVAILABLE


@pytest.mark.parametrize(
    "line", ["ERR AUTH reason={}", "ERR {} x", "OK {}", "ERR AUTH reason=invalid-token detail={}", "{}"]
)
def test_a_peer_that_quotes_the_token_does_not_get_it_into_messages(line: str) -> None:
    failure = begun().receive(line.format(TOKEN).encode())
    assert isinstance(failure, HandshakeFailure)
    assert TOKEN not in repr(failure)
    assert TOKEN.upper() not in repr(failure)


@pytest.mark.parametrize("secret", [TOKEN, TICKET])
@pytest.mark.parametrize(
    "line", ["OK ATTACH role={}", "ERR ATTACH reason=policy detail={}", "ERR CONSOLE {}"]
)
def test_neither_token_nor_ticket_leave_the_attach_phase(line: str, secret: str) -> None:
    failure = authenticated(ticket=TICKET).receive(line.format(secret).encode())
    assert isinstance(failure, HandshakeFailure)
    assert secret not in repr(failure)


def test_lines_to_send_hide_themselves() -> None:
    assert TOKEN not in repr(begun().start())


@given(st.lists(st.binary(max_size=60), max_size=4))
def test_no_bytes_whatsoever_raise(payloads: list[bytes]) -> None:
    handshake = begun()
    for payload in payloads:
        step = handshake.receive(payload)
        assert step is None or isinstance(step, Send | Attached | HandshakeFailure)
