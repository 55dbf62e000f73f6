"""The relay queue of the published agent, in both of its forms: nothing that had gone is sent."""

from __future__ import annotations

import copy
import json
from typing import TYPE_CHECKING, Any

import pytest
from foreign_state import write_files
from hive_support import SPEC, STATUS, running_hive
from relay_support import arrived, journal_key, peers, perform, relaying, run_until, ticket
from vector_files import load

from ticket_agent.agent.foreign_journal import ForeignStateError
from ticket_agent.agent.foreign_relay import parse_relay_wal
from ticket_agent.exits import Exit
from ticket_agent.journal.view import read_journal

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from cli_support import Operator

FORMS: dict[str, dict[str, Any]] = {one["name"]: one["document"] for one in load("former_relay.json")}
EMPTY = {"schema": "host-ticket-execution-journal/v2", "entries": {}}


def former(path: Path, form: str) -> Path:
    files = {
        "execution-journal.json": json.dumps(EMPTY),
        "cursor.json": "{}",
        "agent.lock": "pid=4711\n",
        "relay-wal.json": json.dumps(FORMS[form]),
    }
    return write_files(path, files)


def states(operator: Operator) -> dict[str, str]:
    records = read_journal(operator.state).records.values()
    return {json.loads(record.request)["id"]: record.state.value for record in records}


@pytest.mark.parametrize("resend", [False, True], ids=["look only", "resend"])
@pytest.mark.parametrize(
    ("form", "there"),
    [
        ("first form", {"t1": "terminal", "t2": "executing", "t3": "executing"}),
        (
            "second form",
            {"t1": "terminal", "t2": "executing", "t3": "executing", "t4": "executing", "t5": "terminal"},
        ),
    ],
)
def test_a_host_switches_in_the_middle_of_relaying(
    tmp_path: Path, operator: Operator, form: str, there: dict[str, str], resend: bool
) -> None:
    source = former(tmp_path / "former", form)
    pending = {json.loads(e["payload"])["id"] for e in FORMS[form]["entries"] if e["state"] == "pending"}
    more = ["--resend-pending"] if resend else []
    answer = operator.run("journal", "import", "--from", source, *more)
    assert answer.code == Exit.OK, answer.err
    assert states(operator) == {
        name: "prepared" if resend and name in pending else state for name, state in there.items()
    }
    with running_hive() as (hive, server), peers() as other:
        peer = other.hives["hive-b"]
        for name in there:
            hive.echo(SPEC, ticket(name))
        # The first pending one had gone out and is shown by the peer; the other ones had not.
        gone = {"t2", "t3", "t4"} - (pending - {"t2"})
        for entry in FORMS[form]["entries"]:
            if json.loads(entry["payload"])["id"] in gone:
                peer.echo(SPEC, entry["payload"])
        other.taken["hive-b"].clear()
        expected = gone & set(there) | (pending if resend else set())
        with relaying(server, operator.state, other.plan()) as bench:

            def done() -> bool:
                perform(peer)
                return len(hive.cat(STATUS)) >= len(expected)

            run_until(bench, done)
            left = {json.loads(record.request)["id"] for record in bench.store.open_records()}
            # What was not found may have been sent: it is uncertain, and stays so until somebody says more.
            run_until(
                bench,
                lambda: all(record.outcome_unknown for record in bench.store.open_records()),
            )
            assert left == set() if resend else left == pending - {"t2"}
            assert not bench.events("idempotency-conflict")
        sent = [json.loads(line)["id"] for line in other.taken["hive-b"]]
        assert sent == (sorted(pending - {"t2"}) if resend else [])
        assert [spec.id for spec in arrived(peer)].count("t2") == 1
        assert {json.loads(line)["id"] for line in hive.cat(STATUS)} == expected


@pytest.mark.parametrize("relays_at_once", [True, False], ids=["at once", "only later"])
def test_what_the_former_agent_had_passed_is_not_relayed_again(
    tmp_path: Path, operator: Operator, relays_at_once: bool
) -> None:
    """Its queue forgets what was delivered long ago; the hive may still show it."""
    source = former(tmp_path / "former", "first form")
    (source / "cursor.json").write_text('{"raw_next_spec_index":1,"snapshot_next_spec_index":0}')
    assert operator.run("journal", "import", "--from", source).code == Exit.OK
    with running_hive() as (hive, server), peers() as other:
        hive.echo(SPEC, ticket("forgotten"))
        hive.echo(SPEC, ticket("new"))
        with relaying(server, operator.state, other.plan() if relays_at_once else None) as bench:
            bench.passes(2)
            (event,) = bench.events("relay-passed")
            assert event["id"] == "forgotten"
        with relaying(server, operator.state, other.plan()) as bench:
            run_until(bench, lambda: any(spec.id == "new" for spec in arrived(other.hives["hive-b"])))
        assert [json.loads(line)["id"] for line in other.taken["hive-b"]] == ["new"]


def test_a_taken_over_line_is_the_line_we_would_send() -> None:
    for document in FORMS.values():
        for entry, read in zip(
            document["entries"], parse_relay_wal(json.dumps(document).encode()), strict=True
        ):
            assert read.line == entry["payload"]
            assert read.key == journal_key(read.spec.id)


def _set(name: str, value: object) -> Callable[[dict[str, Any]], None]:
    def change(document: dict[str, Any]) -> None:
        document["entries"][0][name] = value

    return change


def _payload(old: str, new: str) -> Callable[[dict[str, Any]], None]:
    def change(document: dict[str, Any]) -> None:
        entry = document["entries"][0]
        entry["payload"] = entry["payload"].replace(old, new)

    return change


@pytest.mark.parametrize(
    ("change", "member"),
    [
        (_set("state", "awaiting_terminal"), "entries.0.state"),
        (_set("surprise", 1), "entries.0.surprise"),
        (_set("seq", -1), "entries.0.seq"),
        (_set("seq", 2), "entries"),
        (_set("seq", 4), "next_seq"),
        (_set("key", "t1:key-t1:hive-a:hive-c"), "entries.0.key"),
        (_set("target_hive", "hive-c"), "entries.0.target_hive"),
        (_set("payload", "{}"), "entries.0.payload"),
        (_set("payload", 7), "entries.0.payload"),
        (_payload('"relay_hop":1,', ""), "entries.0.payload"),
        (_payload("t1:key-t1:hive-a", "other"), "entries.0.payload"),
        (lambda document: document.update(schema_version=3), "schema_version"),
        (lambda document: document.update(entries={}), "entries"),
        (lambda document: document.pop("next_seq"), "next_seq"),
    ],
)
def test_what_breaks_a_rule_is_refused_whole(change: Callable[[dict[str, Any]], None], member: str) -> None:
    document = copy.deepcopy(FORMS["first form"])
    change(document)
    with pytest.raises(ForeignStateError) as refused:
        parse_relay_wal(json.dumps(document).encode())
    assert refused.value.member == member
