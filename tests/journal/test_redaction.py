"""A journal without its names: nothing that is a name is left, and what is left is a journal."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from journal_support import BOOT_ID, RESULT
from past_records import agent, past

from ticket_agent.journal.cursor import Cursor, EpochMark, HeldGap, StreamMark, decode_cursor, encode_cursor
from ticket_agent.journal.gaps import Acknowledgement
from ticket_agent.journal.outcome import Plan
from ticket_agent.journal.record import decode_record
from ticket_agent.journal.redaction import Redaction, stand_in
from ticket_agent.journal.starts import Start
from ticket_agent.journal.values import StagedResult

_WORDS = "lease gpu grant worker host ticket tickets v2 status not applied the of op act"
WORDS = frozenset(_WORDS.split())
RULE = Redaction(words=WORDS)
X = "x-[0-9a-f]{16}"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("not applied", "not applied"),
        ("gpu.lease.grant", "gpu.lease.grant"),
        ("host-ticket/v2", "host-ticket/v2"),
        ("/host/tickets/status", "/host/tickets/status"),
        ("ttl_s=60", f"{X}=60"),
        ("GPU-0", X),
        ("lease-1", X),
        ("lease", "lease"),
        ("Lease", X),
        ("the lease of acme-corp.", rf"the lease of {X}\."),
        ("the lease.", r"the lease\."),
        ("/home/jane/secret.pem", f"/{X}/{X}/{X}"),
        ("jane@example.org", X),
        ("10.0.0.7", X),
        ("4711", "4711"),
        ("e3b0c44298fc1c149afbf4c8996fb924", X),
        ("1" * 21, X),
        (f"cohesix-ticket-0100.{'1' * 64} of lease", rf"(?:{X})(?:\.(?:{X}))? of lease"),
        ("-> ...", r"-> \.\.\."),
        ("münchen", X),
        ("", ""),
    ],
)
def test_tokens(text: str, shown: str) -> None:
    assert re.fullmatch(shown, RULE.text(text))


def test_a_name_has_one_stand_in_wherever_it_stands() -> None:
    value = RULE.value({"id": "lease-1", "line": '{"id":"lease-1","n":[1,"lease-1"]}', "says": "of lease-1"})
    assert value["id"] == stand_in("lease-1")
    assert json.loads(value["line"]) == {"id": stand_in("lease-1"), "n": [1, stand_in("lease-1")]}
    assert value["says"] == f"of {stand_in('lease-1')}"


def test_member_names_stay_unless_they_cannot_be_ours() -> None:
    assert RULE.value({"ttl_s": 1, "Jane Doe": 2, "lease-1": None}) == {
        "ttl_s": 1,
        stand_in("Jane Doe"): 2,
        stand_in("lease-1"): None,
    }


NAME = "Jane-Doe"
TEXTS = st.text(st.characters(exclude_categories=("Cc", "Cs")), max_size=60)
LINES = TEXTS.map(lambda text: f"x {text} y")


@given(TEXTS, TEXTS, st.sampled_from([" ", "=", '"', "/", "(", ",", ": "]))
def test_a_name_that_stands_alone_never_stays(before: str, after: str, gap: str) -> None:
    assert NAME not in RULE.text(f"{before}{gap}{NAME}{gap}{after}")
    assert NAME not in RULE.document(json.dumps({"a": f"{before}{gap}{NAME}{gap}{after}"}))


@given(LINES)
def test_redacting_keeps_different_texts_apart(text: str) -> None:
    """Stand-ins are as different as the names: a second operation never takes the first one's key."""
    assert RULE.key(text) != RULE.key(text + "-other")
    assert RULE.key(text) == RULE.key(text)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**60), 2**60) | TEXTS | TEXTS.map(lambda t: json.dumps([t])),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=8,
)


MEMBERS = st.dictionaries(TEXTS, JSON, max_size=3)
REQUESTS = JSON.map(lambda value: json.dumps(value).encode()) | LINES.map(str.encode)


@given(st.tuples(MEMBERS, MEMBERS), st.tuples(LINES, LINES, LINES), REQUESTS)
def test_every_record_stays_a_record(
    members: tuple[dict[str, Any], dict[str, Any]], texts: tuple[str, str, str], request: bytes
) -> None:
    (plan, evidence), (message, key, line) = members, texts
    record = replace(
        past([1, 2, 3, 4, 5], [agent(1)] * 4 + [agent(2)], key=key, uncertain_since=2),
        request=request,
        plan=Plan(before=plan, intent=plan),
        result=replace(RESULT, message=message[:90], evidence=evidence),
        staged=StagedResult(path="/host/tickets/status", line=line),
    )
    after = decode_record(RULE.record(record))
    assert [(entry.state, entry.unix_ms, entry.agent) for entry in after.history] == [
        (entry.state, entry.unix_ms, entry.agent) for entry in record.history
    ]
    assert after.result is not None
    assert (after.sequence, after.epoch, after.result.outcome) == (1, 1, "confirmed")
    assert after.key == RULE.key(key)


def test_what_grows_beyond_a_bound_is_replaced_as_a_whole_or_cut() -> None:
    tight = json.dumps([f"n{number}" for number in range(700)])
    record = replace(
        past([1, 2, 3], [agent(1)] * 3, key="a:" * 200),
        request=tight.encode(),
        plan=Plan(before={"a": tight}, intent={"b": tight}),
        result=replace(RESULT, message="ab " * 60, evidence={"c": tight, "d": tight}),
        staged=StagedResult(path="/" + "p/" * 100, line=json.dumps(["n"] * 400)),
    )
    after = decode_record(RULE.record(record))
    assert re.fullmatch(X, after.key)
    assert re.fullmatch(rf'\{{"redacted": "{X}"\}}', after.request.decode())
    assert after.plan is not None
    assert after.plan.before.keys() == after.plan.intent.keys() == {"redacted"}
    assert after.result is not None
    assert len(after.result.message) <= 192
    assert after.staged is not None
    assert re.fullmatch(f"/{X}", after.staged.path)


def test_hosts_and_processes_are_not_told_but_stay_apart() -> None:
    start = Start(pid=4711, boot_id=BOOT_ID, started_unix_ms=5, agent=agent(1), stopped_unix_ms=9)
    assert RULE.start(start) == replace(start, pid=0, boot_id=stand_in(BOOT_ID))
    named = replace(past([1], ["build-of-jane"]), family="of jane")
    after = decode_record(RULE.record(named))
    assert re.fullmatch(X, after.history[0].agent)
    assert re.fullmatch(f"of {X}", after.family)


def test_cursor_and_acknowledgements() -> None:
    cursor = Cursor(
        epoch=2,
        epochs=(EpochMark(number=2, opened_unix_ms=3, evidence="the status of jane", completed_through=4),),
        consumed_sequence=9,
        mark=StreamMark(sequence=9, sha256="ab" * 32, length=7, offset=None),
        ends={"status": 5, "jane": 6},
        held=HeldGap(epoch=2, first=1, through=2, reason="not jane", since_unix_ms=8),
    )
    after = decode_cursor(encode_cursor(RULE.cursor(cursor)))
    assert "jane" not in repr(after)
    assert after.mark is not None
    assert after.mark.sha256 != "ab" * 32
    assert (after.epochs[0].completed_through, after.ends["status"], after.consumed_sequence) == (4, 5, 9)
    said = Acknowledgement(epoch=1, first=1, through=2, reason="jane says not", by="jane", unix_ms=1)
    assert "jane" not in repr(RULE.acknowledgement(said))
