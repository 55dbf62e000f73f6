from __future__ import annotations

import threading

import pytest
from hive_support import LEASE_CTL, PATIENCE_S, TOKEN, RawConsole, running_hive

from ticket_agent.hive.reference import Fault, FaultKind, Faults, FaultSyntaxError, parse_fault

GRANT = '{"op":"grant","id":"lease-1","subject":"worker-1","resource":"GPU-0","ttl_s":9,"priority":0}'
ECHO = f"ECHO {LEASE_CTL} {GRANT}"
OK = f"OK ECHO path={LEASE_CTL} bytes={len(GRANT)}"


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("drop-before", Fault(kind=FaultKind.DROP_BEFORE)),
        ("silent:/host", Fault(kind=FaultKind.SILENT, prefix="/host")),
        ("drop-after:/queen/lease/ctl:every=2", Fault(kind=FaultKind.DROP_AFTER, prefix=LEASE_CTL, every=2)),
        (
            "delay:/host:verb=echo,nth=3,seconds=0.5",
            Fault(kind=FaultKind.DELAY, prefix="/host", verb="ECHO", nth=3, seconds=0.5),
        ),
        (
            "err::nth=1,text=ERR {verb} reason=x, y: z=1",
            Fault(kind=FaultKind.ERR, nth=1, text="ERR {verb} reason=x, y: z=1"),
        ),
    ],
)
def test_the_text_form(text: str, fault: Fault) -> None:
    assert parse_fault(text) == fault


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("explode", "unknown fault 'explode'"),
        ("", "unknown fault ''"),
        ("silent:/x:often", "unknown fault option 'often'"),
        ("silent:/x:often=1", "unknown fault option 'often'"),
        ("silent:/x:nth=0", "nth=0"),
        ("silent:/x:every=two", "every=two"),
        ("delay:/x:seconds=soon", "seconds=soon"),
        ("delay:/x:seconds=nan", "seconds=nan"),
        ("delay:/x:seconds=-1", "seconds=-1"),
    ],
)
def test_a_bad_text_form_says_what_is_wrong(text: str, complaint: str) -> None:
    with pytest.raises(FaultSyntaxError) as refused:
        parse_fault(text)
    assert complaint in str(refused.value)


def test_which_command_a_rule_strikes() -> None:
    def struck(rule: Fault) -> list[int]:
        faults = Faults(rule)
        return [n for n in range(1, 7) if faults.decide("ECHO", "/a/b", f"line {n}") is rule]

    kind = FaultKind.SILENT
    assert struck(Fault(kind=kind)) == [1, 2, 3, 4, 5, 6]
    assert struck(Fault(kind=kind, nth=3)) == [3]
    assert struck(Fault(kind=kind, every=2)) == [2, 4, 6]
    assert struck(Fault(kind=kind, prefix="/b")) == []
    assert struck(Fault(kind=kind, verb="CAT")) == []
    assert struck(Fault(kind=kind, predicate=lambda line: line.endswith("4"))) == [4]
    assert struck(Fault(kind=kind, predicate=lambda line: line > "line 2", nth=2)) == [4]


def test_the_first_rule_that_strikes_decides_and_all_count() -> None:
    first, second = Fault(kind=FaultKind.SILENT, nth=2), Fault(kind=FaultKind.ERR, every=2)
    faults = Faults(first)
    faults.add(second)
    assert [faults.decide("LS", "/", "") for _ in range(4)] == [None, first, None, second]
    assert (faults.struck(FaultKind.SILENT), faults.struck(FaultKind.ERR)) == (1, 1)
    faults.clear()
    assert faults.decide("LS", "/", "") is None


@pytest.mark.parametrize(
    ("kind", "applied", "answer", "alive"),
    [
        (FaultKind.DROP_BEFORE, 0, None, False),
        (FaultKind.DROP_AFTER, 1, None, False),
        (FaultKind.ERR, 0, f"ERR ECHO reason=busy detail=busy path={LEASE_CTL} error=busy", True),
        (FaultKind.GARBAGE, 1, "OK LS path=/elsewhere entries=1", True),
        (FaultKind.DELAY, 1, OK, True),
        (FaultKind.DELAY_ANSWER, 1, OK, True),
        (FaultKind.SILENT, 1, "OK PING reply=pong", True),
        (FaultKind.SWALLOW, 0, "OK PING reply=pong", True),
    ],
)
def test_each_fault_over_a_real_connection(
    kind: FaultKind, applied: int, answer: str | None, alive: bool
) -> None:
    faults = Faults(Fault(kind=kind, prefix=LEASE_CTL, nth=1, seconds=0.01))
    with running_hive(faults=faults) as (hive, server), RawConsole(server.port) as console:
        console.send(ECHO, *(["PING"] if kind in {FaultKind.SILENT, FaultKind.SWALLOW} else []))
        assert console.line() == answer
        assert hive.effect_count("grant", "lease-1") == applied
        if alive:
            assert console.ask("PING") == "OK PING reply=pong"
        assert faults.struck(kind) == 1


def test_a_delayed_command_is_applied_although_its_client_has_left() -> None:
    go, done = threading.Event(), threading.Event()
    faults = Faults(Fault(kind=FaultKind.DELAY, prefix=LEASE_CTL, event=go, seconds=PATIENCE_S))
    faults.on_applied(lambda _path, _line: done.set())
    with running_hive(faults=faults) as (hive, server):
        with RawConsole(server.port) as console:
            console.send(ECHO)
            console.sock.close()
        assert hive.effect_count("grant", "lease-1") == 0
        go.set()
        assert done.wait(PATIENCE_S)
        assert hive.effect_count("grant", "lease-1") == 1


def test_listeners_hear_applied_appends_before_their_answer_and_no_others() -> None:
    heard: list[tuple[str, str]] = []
    faults = Faults()
    faults.on_applied(lambda path, line: heard.append((path, line)))
    with running_hive(faults=faults) as (_hive, server), RawConsole(server.port) as console:
        assert console.ask(ECHO) == OK
        assert heard == [(LEASE_CTL, GRANT)]
        refused = console.ask(ECHO)
        assert refused is not None
        assert refused.startswith("ERR ECHO")
        console.ask("PING")
    assert heard == [(LEASE_CTL, GRANT)]


def test_stopping_does_not_wait_for_a_delay() -> None:
    faults = Faults(Fault(kind=FaultKind.DELAY, seconds=3000))
    with running_hive(faults=faults) as (_, server), RawConsole(server.port, attach=False) as console:
        console.send(f"AUTH {TOKEN}", "PING")
        assert console.line() == "OK AUTH"
        server.stop()
        assert console.line() is None
