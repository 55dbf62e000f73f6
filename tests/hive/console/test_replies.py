from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ticket_agent.hive.console.acks import lost_session, parse_ack, refusal_of, speaks_older_bounds
from ticket_agent.hive.console.replies import (
    SHAPES,
    Answer,
    Command,
    Done,
    Ended,
    Err,
    Outcome,
    Verb,
    Violation,
)
from ticket_agent.protocol.namespace import Refusal, RefusalKind

LS = Command(Verb.LS, "/host")
CAT = Command(Verb.CAT, "/proc/boot")
TAIL = Command(Verb.TAIL, "/worker/worker-1/telemetry")
ECHO = Command(Verb.ECHO, "/host/tickets/status", '{"a":1}')
PING = Command(Verb.PING)
QUIT = Command(Verb.QUIT)


def outcome_of(command: Command, *lines: str) -> Outcome | None:
    """Feed all lines; nothing but the last may complete the answer."""
    answer = Answer(command)
    outcome = None
    for line in lines:
        assert outcome is None, f"the answer was complete before {line!r}"
        outcome = answer.receive(line.encode())
    return outcome


@pytest.mark.parametrize(
    ("command", "line"),
    [
        (LS, "LS /host"),
        (CAT, "CAT /proc/boot"),
        (TAIL, "TAIL /worker/worker-1/telemetry"),
        (ECHO, 'ECHO /host/tickets/status {"a":1}'),
        (PING, "PING"),
        (QUIT, "QUIT"),
    ],
)
def test_the_line_of_a_command(command: Command, line: str) -> None:
    assert command.line == line
    assert set(SHAPES) == set(Verb)


def test_a_payload_stays_out_of_messages() -> None:
    assert '"a"' not in repr(ECHO)


@pytest.mark.parametrize(
    ("command", "lines", "done"),
    [
        (LS, ["OK LS path=/host entries=2", "a", "b", "END"], Done("path=/host entries=2", ("a", "b"))),
        (LS, ["OK LS path=/host entries=0", "END"], Done("path=/host entries=0")),
        (
            CAT,
            ["OK CAT path=/proc/boot data=one|two path=/x", "one", "", "END"],
            Done("path=/proc/boot data=one|two path=/x", ("one", "")),
        ),
        (
            TAIL,
            ["OK TAIL path=/worker/worker-1/telemetry", "hb 1", "END"],
            Done("path=/worker/worker-1/telemetry", ("hb 1",)),
        ),
        (ECHO, ["OK ECHO path=/host/tickets/status bytes=7"], Done("path=/host/tickets/status bytes=7")),
        (PING, ["OK PING reply=pong"], Done("reply=pong")),
        (QUIT, ["OK QUIT"], Done("")),
        (
            CAT,
            ["PONG", "OK CAT path=/proc/boot", "PONG", "x", "PONG", "END"],
            Done("path=/proc/boot", ("x",)),
        ),
        (
            CAT,
            ["OK CAT path=/proc/boot", "OK", "END ", "ENDS", "END"],
            Done("path=/proc/boot", ("OK", "END ", "ENDS")),
        ),
        (CAT, ["OK CAT path=/proc/boot", *["x"] * 64, "END"], Done("path=/proc/boot", ("x",) * 64)),
    ],
)
def test_orderly_answers(command: Command, lines: list[str], done: Done) -> None:
    assert outcome_of(command, *lines) == done


@pytest.mark.parametrize("command", [LS, CAT, TAIL])
def test_a_streamed_answer_needs_its_end(command: Command) -> None:
    assert outcome_of(command, f"OK {command.verb} path={command.path}", "a") is None


@pytest.mark.parametrize(
    ("command", "lines", "why"),
    [
        (LS, ["END"], "END came before"),
        (LS, ["tickets"], "data line came before"),
        (ECHO, ["tickets"], "data line came before"),
        (ECHO, ["END"], "END came before"),
        (LS, ["OK CAT path=/host"], "another verb"),
        (LS, ["ERR CAT reason=policy detail=denied"], "another verb"),
        (LS, ["OK ls path=/host entries=2"], "another verb"),
        (ECHO, ["OK PING reply=pong"], "another verb"),
        (LS, ["OK LS path=/hos entries=2"], "another path"),
        (LS, ["OK LS entries=2"], "another path"),
        (LS, ["OK LS"], "another path"),
        (ECHO, ["OK ECHO path=/host/tickets/deadletter bytes=7"], "another path"),
        (ECHO, ["OK ECHO bytes=7 data=path=/host/tickets/status"], "another path"),
        (ECHO, ["ERR ECHO reason=policy detail=denied path=/log/queen.log error=EPERM"], "another path"),
        (ECHO, ["ERR ECHO reason=policy detail=denied path=/host/tickets error=EPERM"], "another path"),
        (CAT, ["OK CAT path=/proc/boot", "OK LS injected"], "looks like an acknowledgement"),
        (CAT, ["OK CAT path=/proc/boot", "ERR CAT injected"], "looks like a refusal"),
        (CAT, ["OK CAT path=/proc/boot", "ERR PARSE reason=policy"], "looks like a refusal"),
        (CAT, ["OK CAT path=/proc/boot", *["x"] * 65], "more than 64 data lines"),
    ],
)
def test_whatever_does_not_fit_is_a_violation(command: Command, lines: list[str], why: str) -> None:
    outcome = outcome_of(command, *lines)
    assert isinstance(outcome, Violation)
    assert why in outcome.why


def test_a_violation_never_quotes_stored_data() -> None:
    outcome = outcome_of(CAT, "OK CAT path=/proc/boot", "OK hunter2 hunter2")
    assert isinstance(outcome, Violation)
    assert "hunter2" not in outcome.why


def test_a_line_that_is_not_utf8_is_a_violation() -> None:
    answer = Answer(CAT)
    assert answer.receive(b"OK CAT path=/proc/boot") is None
    assert isinstance(answer.receive(b"\xff"), Violation)


def test_nothing_but_a_stray_pong_may_follow_a_complete_answer() -> None:
    answer = Answer(PING)
    assert answer.receive(b"OK PING reply=pong") == Done("reply=pong")
    assert answer.receive(b"PONG") is None
    assert isinstance(answer.receive(b"END"), Violation)


@pytest.mark.parametrize("command", [LS, CAT, TAIL, ECHO, PING])
def test_the_console_may_end_the_session(command: Command) -> None:
    outcome = outcome_of(command, "ERR CONSOLE reason=timeout")
    assert outcome == Ended("the console ended the session: ERR CONSOLE reason=timeout")


REFUSALS = [
    (ECHO, "ERR ECHO reason=busy detail=busy path=/host/tickets/status error=busy", RefusalKind.BUSY),
    (ECHO, "ERR ECHO reason=busy", RefusalKind.BUSY),
    (
        ECHO,
        "ERR ECHO reason=quota detail=buffer-full path=/host/tickets/status error=buffer full",
        RefusalKind.BUFFER_FULL,
    ),
    (ECHO, "ERR ECHO reason=policy detail=denied path=/host/tickets/status error=EPERM", RefusalKind.DENIED),
    (ECHO, "ERR ECHO reason=policy detail=denied", RefusalKind.DENIED),
    (LS, "ERR LS reason=policy path=/host error=EPERM", RefusalKind.DENIED),
    (CAT, "ERR CAT reason=quota path=/proc/boot error=ELIMIT", RefusalKind.LIMIT),
    (
        CAT,
        "ERR CAT reason=policy detail=invalid-path path=/proc/boot error=invalid path",
        RefusalKind.INVALID_PATH,
    ),
    (
        ECHO,
        "ERR ECHO reason=policy detail=invalid-payload path=/host/tickets/status error=invalid payload",
        RefusalKind.INVALID_PAYLOAD,
    ),
    (TAIL, "ERR TAIL reason=quota detail=buffer-full path=/worker/worker", RefusalKind.BUFFER_FULL),
    (LS, "ERR LS reason=policy ", RefusalKind.OTHER),
    (LS, "ERR LS reason=policy detail=invalid-pa", RefusalKind.OTHER),
    (LS, "ERR LS reason=quota ", RefusalKind.OTHER),
    (LS, "ERR LS reason=cut detail=root-unreachable", RefusalKind.OTHER),
    (LS, "ERR LS reason=policy detail=unauthenticated", RefusalKind.OTHER),
    (LS, "ERR LS", RefusalKind.OTHER),
    (ECHO, "ERR PARSE reason=policy detail=argument payload exceeds allowed length", RefusalKind.GRAMMAR),
    (LS, "ERR PARSE reason=policy detail=missing required argument: path", RefusalKind.GRAMMAR),
    (PING, "ERR FRAME reason=invalid-length", RefusalKind.GRAMMAR),
    (ECHO, "err echo reason=busy detail=busy", None),
]


@pytest.mark.parametrize(("command", "line", "kind"), REFUSALS)
def test_refusals_are_classified(command: Command, line: str, kind: RefusalKind | None) -> None:
    outcome = outcome_of(command, line)
    if kind is None:
        assert isinstance(outcome, Violation)
    else:
        assert outcome == Err(Refusal(kind=kind, text=line.strip()))


def test_a_refusal_is_one_bounded_printable_line() -> None:
    outcome = outcome_of(LS, "ERR LS reason=policy detail=\x1b[2J\nboo " + "x" * 900)
    assert isinstance(outcome, Err)
    assert len(outcome.refusal.text) <= 256
    assert outcome.refusal.text.isprintable()


@pytest.mark.parametrize(
    ("line", "older"),
    [
        ("ERR PARSE reason=policy detail=argument payload exceeds allowed length", True),
        ("ERR FRAME reason=invalid-length", True),
        ("ERR PARSE reason=policy detail=argument path exceeds allowed length", False),
        ("ERR PARSE reason=policy detail=unsupported console command", False),
        ("ERR ECHO reason=policy detail=invalid-payload path=/x error=payload exceeds allowed length", False),
    ],
)
def test_older_bounds_are_recognised(line: str, older: bool) -> None:
    ack = parse_ack(line)
    assert ack is not None
    assert speaks_older_bounds(refusal_of(ack)) is older


@pytest.mark.parametrize(
    ("line", "lost"),
    [
        ("ERR LS reason=policy detail=unauthenticated", True),
        ("ERR LS reason=policy detail=denied", False),
        ("OK LS detail=unauthenticated", False),
    ],
)
def test_a_lost_session_is_recognised(line: str, lost: bool) -> None:
    assert lost_session(Refusal(kind=RefusalKind.OTHER, text=line)) is lost


@pytest.mark.parametrize("line", ["", "OK", "ERR", "OKAY LS", "END", "PONG", "ok ls path=/"])
def test_other_lines_are_no_acknowledgements(line: str) -> None:
    assert parse_ack(line) is None


def test_the_words_of_an_acknowledgement() -> None:
    ack = parse_ack("ERR CAT reason=policy detail=invalid-path path=/nope error=invalid path=/x")
    assert ack is not None
    assert (ack.ok, ack.verb, ack.last_key) == (False, "CAT", "error")
    assert dict(ack.words) == {
        "reason": "policy",
        "detail": "invalid-path",
        "path": "/nope",
        "error": "invalid path=/x",
    }


data_lines = st.text(
    alphabet=st.characters(min_codepoint=0x20, max_codepoint=0x2FF, exclude_categories=["Cs"]), max_size=40
).filter(lambda line: line not in {"END", "PONG"} and not line.startswith(("OK ", "ERR ")))


@given(st.lists(data_lines, max_size=80))
def test_every_harmless_line_arrives_as_it_was_sent(lines: list[str]) -> None:
    answer = Answer(CAT)
    assert answer.receive(b"OK CAT path=/proc/boot data=") is None
    outcome = None
    for line in [*lines, "END"]:
        outcome = answer.receive(line.encode())
        if outcome is not None:
            break
    if len(lines) <= 64:
        assert outcome == Done("path=/proc/boot data=", tuple(lines))
    else:
        assert isinstance(outcome, Violation)


@given(st.lists(st.binary(max_size=60), max_size=10), st.sampled_from([LS, CAT, TAIL, ECHO, PING, QUIT]))
def test_no_bytes_whatsoever_raise(payloads: list[bytes], command: Command) -> None:
    answer = Answer(command)
    for payload in payloads:
        outcome = answer.receive(payload)
        assert outcome is None or isinstance(outcome, Done | Err | Ended | Violation)
