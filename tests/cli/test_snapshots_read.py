"""`snapshots read` and `snapshots list`, as processes at a real console, gateway and mount."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest
from cli_support import ESCAPE
from scripted_console import refused_port
from snapshot_lab import ENROLMENT, Lab, snapshot_lab
from snapshot_shelf import Shelf, record

from ticket_agent.cli.snapshots_screen import entry_lines, outcome_table, shown
from ticket_agent.exits import Exit
from ticket_agent.protocol.snapshot import UnavailableReason
from ticket_agent.protocol.snapshot_enrolment import DEFAULT_ENROLMENT, MAX_MANIFEST_BYTES
from ticket_agent.snapshots import SnapshotReader, changes_between

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from cli_support import Operator

HOSTILE = "\x1b[2J\x07\u202e\x7f"
TICKET = "cohesix-ticket-" + "ab" * 40


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Lab]:
    with snapshot_lab(tmp_path) as opened:
        yield opened


# -- read ----------------------------------------------------------------------------------------------------


def test_a_record_is_shown_with_its_age_life_and_entries(operator: Operator, lab: Lab) -> None:
    lab.publish(entries={"source": '"systemd-manager-dbus"', "units/a": '{"up":true}'})
    answer = operator.run("snapshots", "read", "systemd", *lab.at)
    assert (answer.code, answer.err) == (Exit.OK, "")
    lines = answer.out.splitlines()
    assert lines[0] == "systemd of host-a  available"
    assert lines[1].startswith("observed  20")
    assert lines[1].endswith("ago by this machine's clock")
    assert lines[2].startswith("life left [#")
    assert lines[2].endswith("of 30 s")
    assert lines[3].startswith("record    sequence 1, epoch 7, 2 entries, ")
    assert lines[-2:] == ['source   "systemd-manager-dbus"', 'units/a  {"up":true}']
    assert "gateway" not in answer.out


def test_a_record_for_programs(operator: Operator, lab: Lab) -> None:
    lab.publish(entries={"source": '"x"'})
    told = operator.run("snapshots", "read", "systemd", "--source", "host-a", "--json", *lab.at)
    found = told.object
    assert (told.code, found["kind"], found["exit"]) == (Exit.OK, "snapshots-read", 0)
    assert (found["provider"], found["source_id"], found["epoch"], found["sequence"]) == (
        "systemd",
        "host-a",
        7,
        1,
    )
    assert (found["visible"], found["available"], found["reason"], found["lag_s"]) == (True, True, None, 0.0)
    assert found["entries"] == [{"path": "source", "value": '"x"'}]
    assert 0 < found["ttl_left_ms"] <= found["ttl_ms"] == 30_000
    assert len(found["sha256"]) == 64


@pytest.mark.parametrize("reason", UnavailableReason)
def test_a_state_that_is_not_known_says_why_and_what_to_do(
    operator: Operator, lab: Lab, reason: UnavailableReason
) -> None:
    lab.publish(reason=reason)
    answer = operator.run("snapshots", "read", "systemd", *lab.at)
    assert (answer.code, answer.err) == (Exit.DEGRADED, "")
    lines = answer.out.splitlines()
    assert lines[0] == "systemd of host-a  unavailable"
    assert lines[1].startswith(f"reason    {reason}: ")
    assert "life left until replaced" in lines
    told = operator.run("snapshots", "read", "systemd", "--json", *lab.at)
    assert (told.code, told.object["exit"], told.object["reason"]) == (4, 4, reason)
    assert told.object["ttl_left_ms"] is None


def test_nothing_visible_is_one_line_that_says_what_to_do(operator: Operator, lab: Lab) -> None:
    unobserved = operator.run("snapshots", "read", "systemd", *lab.at)
    assert (unobserved.code, unobserved.out) == (Exit.DEGRADED, "")
    assert (
        "nothing was published since the receiver started; start the publisher on host-a" in unobserved.line
    )
    lab.publish()
    lab.pass_by(30_000)
    expired = operator.run("snapshots", "read", "systemd", *lab.at)
    assert (expired.code, expired.out) == (Exit.DEGRADED, "")
    assert "systemd/host-a: expired, the last record had sequence 1; see on host-a" in expired.line
    lab.publish()
    lab.pass_by(-10)
    regressed = operator.run("snapshots", "read", "systemd", "--json", *lab.at)
    assert (regressed.code, regressed.err) == (Exit.DEGRADED, "")
    found = regressed.object
    assert (found["visible"], found["error"], found["sequence"]) == (False, "clock-regressed", 2)
    assert found["exit"] == 4


def test_values_do_nothing_to_a_terminal_and_show_no_ticket(operator: Operator, lab: Lab) -> None:
    lab.publish(entries={"a": HOSTILE, "b": f'"{TICKET}"'})
    text = operator.run("snapshots", "read", "systemd", *lab.at)
    assert text.code == Exit.OK
    assert "a  \\x1b[2J\\x07\\u202e\\x7f" in text.out.splitlines()
    assert all(line.isprintable() for line in text.out.splitlines())
    told = operator.run("snapshots", "read", "systemd", "--json", *lab.at)
    assert told.object["entries"][0]["value"] == HOSTILE
    for answer in (text, told):
        assert TICKET not in answer.out
        assert "[ticket " in answer.out
        assert ESCAPE not in answer.out


@pytest.mark.parametrize("name", ["network", "net"])
def test_a_provider_of_two_hosts_needs_the_host_and_has_a_short_name(
    operator: Operator, lab: Lab, name: str
) -> None:
    lab.publish("network", "host-b")
    answer = operator.run("snapshots", "read", name, *lab.at)
    assert (answer.code, answer.out) == (Exit.USAGE, "")
    assert "network is published by host-a, host-b; name one with --source" in answer.line
    assert operator.run("snapshots", "read", name, "--source", "host-b", *lab.at).code == Exit.OK


def test_behind_a_gateway_the_lag_is_said(operator: Operator, tmp_path: Path) -> None:
    with snapshot_lab(tmp_path, rest=True) as lab:
        lab.publish()
        answer = operator.run("snapshots", "read", "systemd", *lab.at)
        told = operator.run("snapshots", "read", "systemd", "--json", *lab.at)
    assert answer.code == Exit.OK
    assert "read      through a gateway: this may be 2.0 s old" in answer.out.splitlines()
    assert told.object["lag_s"] == 2.0


def test_a_mounted_hive_is_read_like_any_other(operator: Operator, tmp_path: Path) -> None:
    shelf = Shelf(ENROLMENT)
    shelf.put(record(5, source="host-a", epoch=7, entries={"a": '"\u2028"'}))
    mount = tmp_path / "hive"
    (mount / "proc").mkdir(parents=True, mode=0o755)
    (mount / "proc" / "boot").write_text("a hive\n")
    for path, lines in shelf.nodes.items():
        node = mount / path.removeprefix("/")
        if "host-a" in path and "systemd" in path:
            node.parent.mkdir(parents=True, exist_ok=True)
            node.write_bytes("".join(lines).encode())
    with snapshot_lab(tmp_path) as lab:
        manifest = lab.at[:2]
    answer = operator.run("snapshots", "read", "systemd", *manifest, "--mount-dir", str(mount))
    assert (answer.code, answer.err) == (Exit.OK, "")
    assert 'a  "\\u2028"' in answer.out.splitlines()
    absent = operator.run(
        "snapshots", "read", "net", "--source", "host-b", *manifest, "--mount-dir", str(mount)
    )
    assert absent.code == Exit.HIVE_REFUSED
    assert "it runs with another manifest, or without snapshots" in absent.line


# -- list ----------------------------------------------------------------------------------------------------


def test_every_enrolled_pair_has_a_row(operator: Operator, lab: Lab) -> None:
    lab.publish()
    lab.publish("network", "host-b", reason=UnavailableReason.TIMED_OUT)
    answer = operator.run("snapshots", "list", *lab.at)
    assert (answer.code, answer.err) == (Exit.DEGRADED, "")
    header, *rows, summary = answer.out.splitlines()
    assert header.split() == [
        "PROVIDER",
        "SOURCE",
        "STATE",
        "REASON",
        "SEQUENCE",
        "OBSERVED",
        "LIFE",
        "LEFT",
        "SIZE",
    ]
    assert [row.split()[:5] for row in rows] == [
        ["systemd", "host-a", "available", "-", "1"],
        ["network", "host-a", "nothing", "unobserved", "-"],
        ["network", "host-b", "unavailable", "timed_out", "2"],
    ]
    assert "[##########]" in rows[0] or "[#########-]" in rows[0]
    assert "until replaced" in rows[2]
    assert summary == "1 of 3 available; `ticket-agent snapshots read PROVIDER` says what to do"
    told = operator.run("snapshots", "list", "--json", *lab.at)
    assert told.code == Exit.DEGRADED
    assert {one["kind"] for one in told.objects} == {"snapshots-list"}
    assert [(one["visible"], one.get("error"), one["sequence"]) for one in told.objects] == [
        (True, None, 1),
        (False, "unobserved", 0),
        (True, None, 2),
    ]


def test_a_list_on_which_everything_is_available(operator: Operator, lab: Lab) -> None:
    for provider, source in ENROLMENT.pairs():
        lab.publish(provider, source)
    answer = operator.run("snapshots", "list", *lab.at)
    assert (answer.code, answer.out.splitlines()[-1]) == (Exit.OK, "3 of 3 available")
    assert ESCAPE not in answer.out


def test_a_manifest_of_another_hive_shows_in_every_row(operator: Operator, lab: Lab) -> None:
    lab.publish()
    default = ["--default-enrolment", *lab.at[2:]]
    answer = operator.run("snapshots", "list", *default)
    assert answer.code == Exit.HIVE_REFUSED
    rows = answer.out.splitlines()[1:-1]
    assert len(rows) == len(DEFAULT_ENROLMENT.pairs())
    assert all(row.split()[2:4] == ["unreadable", "no-such-node"] for row in rows)
    (lab.manifest.parent / "other.json").write_bytes(
        lab.manifest.read_bytes().replace(b'"writer_epoch": 7', b'"writer_epoch": 8')
    )
    other = ["--manifest", str(lab.manifest.parent / "other.json"), *lab.at[2:]]
    assert operator.run("snapshots", "list", *other).code == Exit.FAILURE
    read = operator.run("snapshots", "read", "systemd", *other)
    assert read.code == Exit.FAILURE
    assert "epoch must be 8; check that the manifest is this hive's" in read.line


# -- mistakes ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "command", [["read", "systemd"], ["list"], ["watch"]], ids=lambda command: command[0]
)
@pytest.mark.parametrize(
    ("options", "words"),
    [
        ([], "--manifest FILE, or take the documented defaults with --default-enrolment"),
        (["--default-enrolment", "--manifest", "x"], "exclude each other"),
        (["--manifest", "x", "--epoch", "7"], "--epoch goes with --default-enrolment"),
        (["--epoch", "7"], "--epoch goes with --default-enrolment"),
        (["--default-enrolment", "--epoch", "0"], "--epoch"),
    ],
)
def test_which_enrolment_there_is_has_to_be_said(
    operator: Operator, command: list[str], options: list[str], words: str
) -> None:
    answer = operator.run("snapshots", *command, *options)
    assert (answer.code, answer.out) == (Exit.USAGE, "")
    assert words in answer.line
    assert answer.line.endswith(f"see: ticket-agent snapshots {command[0]} --help")


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (None, "No such file or directory"),
        (b"", "is not valid JSON"),
        (b"[]", "must be a JSON object"),
        (b"{}", "ecosystem must be an object"),
        (b" " * (MAX_MANIFEST_BYTES + 1), f"the limit is {MAX_MANIFEST_BYTES}"),
        (
            b'{"ecosystem":{"host":{"snapshots":{"enable":false,"publishers":[]}}}}',
            "host snapshots are not enabled (ecosystem.host.snapshots.enable)",
        ),
        ("a pipe", "is no regular file"),
    ],
)
def test_a_manifest_that_cannot_be_used(operator: Operator, content: bytes | str | None, words: str) -> None:
    path = operator.home / "manifest.json"
    if isinstance(content, bytes):
        path.write_bytes(content)
    elif content is not None:
        os.mkfifo(path)
    answer = operator.run("snapshots", "list", "--manifest", path)
    assert (answer.code, answer.out) == (Exit.USAGE, "")
    assert str(path) in answer.line
    assert words in answer.line


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["read"], "PROVIDER"),
        (["read", "docker"], "provider docker is not enrolled; enrolled: network, systemd"),
        (["read", "systemd", "--source", "host-b"], "not enrolled for systemd; enrolled: host-a"),
        (["watch", "docker"], "provider docker is not enrolled"),
        (["watch", "systemd", "--source", "host-b"], "nothing of that is enrolled; sources: host-a, host-b"),
        (["watch", "--count", "0"], "--count"),
        (["watch", "--interval", "0"], "--interval"),
        (["watch", "--table"], "--table needs a terminal"),
    ],
)
def test_wrong_usage_is_one_line(operator: Operator, lab: Lab, arguments: list[str], words: str) -> None:
    answer = operator.run("snapshots", *arguments, *lab.at)
    assert (answer.code, answer.out) == (Exit.USAGE, "")
    assert words in answer.line


@pytest.mark.parametrize("command", [["read", "systemd"], ["list"]], ids=lambda command: command[0])
def test_a_hive_that_is_not_there_or_refuses_is_one_line(
    operator: Operator, lab: Lab, command: list[str]
) -> None:
    manifest = lab.at[:2]
    away = ["--tcp-port", str(refused_port()), "--auth-token", "env:LAB_TOKEN"]
    absent = operator.run("snapshots", *command, *manifest, *away)
    assert (absent.code, absent.out) == (Exit.HIVE_UNREACHABLE, "")
    assert "check host, port and that the hive is up; nothing is known about any snapshot" in absent.line
    wrong = operator.run("snapshots", *command, *manifest, *lab.at[2:4], "--auth-token", "wrong")
    assert (wrong.code, wrong.out) == (Exit.HIVE_REFUSED, "")


def test_a_hive_without_snapshots_is_told_apart(operator: Operator, tmp_path: Path) -> None:
    with snapshot_lab(tmp_path, enrolled=False) as lab:
        answer = operator.run("snapshots", "read", "systemd", *lab.at)
        told = operator.run("snapshots", "read", "systemd", "--json", *lab.at)
    assert answer.code == told.code == Exit.HIVE_REFUSED
    assert (
        "the hive has no /host/snapshots/systemd/host-a/snapshot; it runs with another manifest"
        in answer.line
    )
    assert told.object["error"] == "no-such-node"


# -- what lines look like ------------------------------------------------------------------------------------


def test_long_and_hostile_values_stay_within_a_line_about_a_change() -> None:
    def observed(sequence: int, value: str) -> object:
        shelf = Shelf()
        shelf.put(record(sequence, {"a": value}))
        return SnapshotReader(shelf, shelf.enrolment).read("systemd", "linux-reference")

    before, after = observed(1, HOSTILE + "x" * 900), observed(2, '{"' + "k" * 900 + '":1}')
    lines = entry_lines(changes_between(before, after))  # type: ignore[arg-type]
    assert all(line.isprintable() and len(line) < 250 for line in lines)
    inside = entry_lines(changes_between(observed(1, '{"b":1}'), observed(2, '{"b":2,"c":[]}')))  # type: ignore[arg-type]
    assert inside == ["~ a  b 1 -> 2; c nothing -> []"]
    assert shown("abcdef", 4) == "abc…"


def test_a_pair_of_which_nothing_is_known_is_not_shown_as_anything() -> None:
    row = outcome_table([(("systemd", "host-a"), None)], 0).splitlines()[1]
    assert row.split() == ["systemd", "host-a", "unknown", "unreachable", "-", "-", "-", "-"]
