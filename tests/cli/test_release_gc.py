"""`release gc`: nothing goes unless asked for, and what goes is told with its size."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

import pytest
from cli_support import contents
from peft_support import held_elsewhere
from release_host import HOW, ReleaseHost
from release_scene import successor

from ticket_agent.exits import Exit
from ticket_agent.peft.locks import RootLock

if TYPE_CHECKING:
    from pathlib import Path

    from cli_support import Answer, Operator


@pytest.fixture
def host(tmp_path: Path) -> ReleaseHost:
    made = ReleaseHost(tmp_path)
    one = made.scene("one")
    made.end(one)
    made.end(made.scene("bad", baseline=successor(made.bare, one.candidate), **HOW["regression"]))
    then = time.time() - 100_000
    for path in made.place.rglob("*"):
        os.utime(path, (then, then), follow_symlinks=False)
    return made


def gc(operator: Operator, host: ReleaseHost, *options: str) -> Answer:
    return operator.run("release", "gc", "--release-config", str(host.file), *options)


def test_it_lists_and_then_removes(operator: Operator, host: ReleaseHost) -> None:
    before = contents(host.place)
    listed = gc(operator, host)
    assert (listed.code, listed.err) == (Exit.OK, "")
    assert contents(host.place) == before
    lines = listed.out.splitlines()
    assert lines[0].startswith("would remove  operation release-bad  (")
    assert lines[1] == lines[1].rstrip()
    assert "kept  operation release-one" in lines[1]
    assert lines[1].endswith(": deployed generation 1")
    assert "would remove (" in lines[-1]
    assert gc(operator, host, "--dry-run").out == listed.out
    removed = gc(operator, host, "--apply", "--json")
    assert removed.code == Exit.OK
    *items, total = removed.objects
    assert {item["outcome"] for item in items} == {"removed", "kept"}
    assert total["kind"] == "release-gc-sum"
    assert total["removed"]["bytes"] == sum(item["bytes"] for item in items if item["outcome"] == "removed")
    assert not (host.place / "operations" / "release-bad").exists()
    assert gc(operator, host, "--apply").out.splitlines()[-1].startswith("1 kept (")


def test_it_is_refused_in_one_line(operator: Operator, host: ReleaseHost) -> None:
    assert gc(operator, host, "--apply", "--dry-run").code == Exit.USAGE
    assert gc(operator, host, "--older-than", "59").code == Exit.USAGE
    with held_elsewhere(host.place, RootLock.RELEASE):
        answer = gc(operator, host, "--apply")
    assert answer.code == Exit.OTHER_OWNER
    assert "is in use by process" in answer.line
    host.begin(host.scene("busy"))
    answer = gc(operator, host)
    assert (answer.code, answer.out) == (Exit.FAILURE, "")
    assert "release release-busy is not finished" in answer.line
