"""What is relayed from here, and the exact line that goes (host tickets: federation)."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from relay_support import ACTION, LOCAL, ticket

from ticket_agent.protocol.errors import ProtocolError
from ticket_agent.protocol.federation import Skip, judge, relayed
from ticket_agent.protocol.spec import HostTicketSpec, parse_spec

ACTIONS = frozenset({ACTION})


def spec_of(line: str) -> HostTicketSpec:
    return parse_spec(line.encode(), source="raw")


@pytest.mark.parametrize(
    ("changes", "skip"),
    [
        ({}, None),
        ({"target": None}, Skip.LOCAL),
        ({"target": LOCAL}, Skip.LOCAL),
        ({"source": "hive-c"}, Skip.FOREIGN_SOURCE),
        ({"source": "hive-c", "relay_hop": 1}, Skip.FOREIGN_SOURCE),
        ({"relay_hop": 3}, None),
        ({"action": "systemd.stop"}, Skip.ACTION),
        ({"receipt_mode": "none"}, None),
    ],
)
def test_what_is_relayed(changes: dict[str, Any], skip: Skip | None) -> None:
    assert judge(spec_of(ticket(**changes)), local_hive=LOCAL, actions=ACTIONS) is skip


def test_nothing_is_relayed_twice() -> None:
    """What arrives at the target is none of the target's to relay."""
    there = spec_of(relayed(spec_of(ticket()), local_hive=LOCAL).line)
    assert judge(there, local_hive="hive-b", actions=ACTIONS) is Skip.LOCAL
    assert judge(there, local_hive="hive-c", actions=ACTIONS) is Skip.FOREIGN_SOURCE


def test_the_exact_line() -> None:
    line = ticket(args={"z": 1, "a": None, "unit": "x"}, expires_unix_ms=99, receipt_mode="none")
    assert relayed(spec_of(line), local_hive=LOCAL).line == (
        '{"schema":"host-ticket/v1","id":"t1","idempotency_key":"key-t1","action":"systemd.restart",'
        '"args":{"a":null,"unit":"x","z":1},"expires_unix_ms":99,"source_hive":"hive-a",'
        '"target_hive":"hive-b","relay_hop":1,"relay_correlation_id":"t1:key-t1:hive-a:hive-b",'
        '"receipt_mode":"none"}'
    )


def test_a_caller_s_own_hop_is_counted_up_and_its_correlation_replaced() -> None:
    going = relayed(spec_of(ticket(relay_hop=4, relay_correlation_id="mine")), local_hive=LOCAL)
    assert (going.spec.relay_hop, going.spec.relay_correlation_id) == (5, "t1:key-t1:hive-a:hive-b")


@pytest.mark.parametrize(("hop", "problem"), [(31, False), (32, True)])
def test_the_last_hop(hop: int, problem: bool) -> None:
    assert (relayed(spec_of(ticket(relay_hop=hop)), local_hive=LOCAL).problem is not None) is problem


def test_a_line_that_grew_too_long_has_a_problem_and_no_part_is_left_out() -> None:
    full = relayed(spec_of(ticket()), local_hive=LOCAL)
    fits = relayed(spec_of(ticket()), local_hive=LOCAL, max_line_bytes=len(full.line))
    short = relayed(spec_of(ticket()), local_hive=LOCAL, max_line_bytes=len(full.line) - 1)
    assert (fits.problem, fits.line) == (None, full.line)
    assert short.problem is not None
    assert str(len(full.line)) in short.problem


@pytest.mark.parametrize(("extra", "digest"), [(0, False), (1, True)])
def test_a_correlation_id_that_is_no_token_becomes_its_digest(extra: int, digest: bool) -> None:
    rest = len("t1::hive-a:hive-b")
    key = "k" * (128 - rest + extra)
    text = f"t1:{key}:hive-a:hive-b"
    found = relayed(spec_of(ticket(key=key)), local_hive=LOCAL).spec.relay_correlation_id
    assert found == (f"sha256:{hashlib.sha256(text.encode()).hexdigest()}" if digest else text)


@given(
    st.dictionaries(
        st.text(max_size=8),
        st.text(max_size=8) | st.none() | st.booleans() | st.integers(0, 2**32),
        max_size=4,
    )
)
def test_the_line_is_printable_and_says_the_same(args: dict[str, Any]) -> None:
    try:
        spec = spec_of(ticket(args=args))
    except ProtocolError:
        return
    going = relayed(spec, local_hive=LOCAL)
    assert all(" " <= char <= "~" for char in going.line)
    assert json.loads(going.line).get("args") == args
    assert spec_of(going.line) == going.spec
    assert going == relayed(spec, local_hive=LOCAL)
