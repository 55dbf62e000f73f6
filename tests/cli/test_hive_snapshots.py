"""`hive serve --manifest`, and whose host snapshots the embedded hive receives."""

from __future__ import annotations

import json
import os
import signal
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from hive_support import TOKEN, RawConsole

from ticket_agent.cli.hive import embedded_hive
from ticket_agent.exits import Exit
from ticket_agent.protocol.snapshot_enrolment import (
    DEFAULT_ENROLMENT,
    MAX_MANIFEST_BYTES,
    SnapshotPublisher,
    encode_enrolment,
)

if TYPE_CHECKING:
    from pathlib import Path

    from cli_support import Operator

SERVE = ["hive", "serve", "--port", "0", "--token", "env:LAB_TOKEN"]
OURS = replace(
    DEFAULT_ENROLMENT,
    epoch=7,
    publishers=(SnapshotPublisher(source_id="host-one", providers=("systemd", "network")),),
)


def changed(**members: Any) -> bytes:
    """A manifest with other members of ``ecosystem.host.snapshots``."""
    document = json.loads(encode_enrolment(OURS))
    document["ecosystem"]["host"]["snapshots"] |= members
    return json.dumps(document).encode()


def test_a_hive_receives_what_an_unchanged_manifest_enrols(operator: Operator) -> None:
    with operator.spawn(*SERVE) as hive:
        assert hive.until(lambda text: "snapshots" in text) == (
            "host snapshots of writer epoch 1: linux-reference (systemd, docker, k8s, nvidia, jetson,"
            " network); mac-controller (launchd, network, endpoint_compliance)"
        )
        assert hive.stop(signal.SIGTERM) == Exit.OK


def test_a_hive_receives_what_its_manifest_enrols(operator: Operator, tmp_path: Path) -> None:
    manifest = tmp_path / "manifest.json"
    manifest.write_bytes(encode_enrolment(OURS))
    with operator.spawn(*SERVE, "--manifest", str(manifest), "--json") as hive:
        where = json.loads(hive.until(lambda text: "port" in text))
        assert where["snapshots"] == {"epoch": 7, "sources": {"host-one": ["systemd", "network"]}}
        with RawConsole(where["port"], token=TOKEN) as console:
            assert console.stream("LS /host/snapshots") == ["network", "systemd"]
            assert console.stream("LS /host/snapshots/systemd") == ["host-one"]
        assert hive.stop(signal.SIGTERM) == Exit.OK


def test_a_manifest_can_switch_snapshots_off(operator: Operator, tmp_path: Path) -> None:
    manifest = tmp_path / "manifest.json"
    manifest.write_bytes(changed(enable=False, publishers=[]))
    with operator.spawn(*SERVE, "--manifest", str(manifest)) as hive:
        assert hive.until(lambda text: "snapshots" in text) == "host snapshots: none are received"
        assert hive.stop(signal.SIGTERM) == Exit.OK


WRONG = {
    "no JSON": (b"[", "is not valid JSON"),
    "a bound": (changed(max_bytes=8193), "max_bytes must be an integer in 1..=8192"),
    "off, with publishers": (changed(enable=False), "must be empty when snapshots are not enabled"),
    "no snapshots": (b'{"ecosystem":{"host":{}}}', "ecosystem.host.snapshots must be an object"),
    "too long": (b" " * (MAX_MANIFEST_BYTES + 1), "bytes"),
    "another mount": (
        encode_enrolment(replace(OURS, mount="/other")),
        "set ecosystem.host.mount_at to /host",
    ),
}


@pytest.mark.parametrize(("data", "words"), WRONG.values(), ids=WRONG)
def test_a_manifest_that_cannot_be_served(
    operator: Operator, tmp_path: Path, data: bytes, words: str
) -> None:
    manifest = tmp_path / "manifest.json"
    manifest.write_bytes(data)
    answer = operator.run(*SERVE, "--manifest", str(manifest))
    assert (answer.code, answer.out) == (Exit.USAGE, "")
    assert words in answer.line


def test_a_manifest_that_cannot_be_read(operator: Operator, tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    for path, words in ((tmp_path / "none", "No such file"), (pipe, "is no regular file")):
        answer = operator.run(*SERVE, "--manifest", str(path))
        assert (answer.code, answer.out) == (Exit.USAGE, "")
        assert words in answer.line
        assert "name the resolved manifest" in answer.line


def test_the_embedded_hive_receives_too() -> None:
    with embedded_hive() as hive, RawConsole(hive.port, token=hive.token) as console:
        assert console.stream("LS /host/snapshots/network") == ["linux-reference", "mac-controller"]
