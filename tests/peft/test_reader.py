"""Whoever follows the registry sees whole models only, while a writer is killed over and over."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import peft_reader
import peft_writer
from adapter_files import PREFIX, file_with, pair
from peft_actions import LORA, METRICS, Places, write_tree

from ticket_agent.agent.operation import spec_of
from ticket_agent.journal.view import read_journal
from ticket_agent.peft.control import Control, read_control
from ticket_agent.peft.registry import Registry
from ticket_agent.peft.verify import verify

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ticket_agent.journal.values import Record

SWITCHES = 500
OPERATIONS = 690
"""Of which some import."""


def _python(module: object, *arguments: object, stdin: int) -> subprocess.Popen[str]:
    script = str(module.__file__)  # type: ignore[attr-defined]
    path = os.pathsep.join([str(Path(__file__).parents[2]), str(Path(script).parent)])
    return subprocess.Popen(
        [sys.executable, script, *map(str, arguments)],
        env=os.environ | {"PYTHONPATH": path},
        stdin=stdin,
        stdout=subprocess.PIPE,
        text=True,
    )


def _prepare(folder: Path) -> Places:
    places = Places(folder / "roots").make()
    places.add_job()
    for number in range(peft_writer.ADAPTERS):
        tensors = file_with(pair() | pair(f"{PREFIX}v_proj"), format="pt", run=str(number))
        files = {"adapter.safetensors": tensors, "lora.json": LORA} | (
            {"metrics.json": METRICS} if number else {}
        )
        write_tree(places.adapters / f"run-{number}", files)
    return places


def _write_and_kill(folder: Path) -> int:
    """Writers until everything is done, each but the last killed at a random moment; tells how many were."""
    chance, kills = random.Random(20261130), 0
    while True:
        with _python(peft_writer, folder, OPERATIONS, stdin=subprocess.DEVNULL) as writer:
            assert writer.stdout is not None
            for _ in range(chance.randrange(10, 90)):
                if not writer.stdout.readline():
                    assert writer.wait() == 0
                    return kills
            # Not at a line: anywhere within what an operation takes.
            time.sleep(chance.random() * 0.004)
            writer.kill()
            kills += 1


def _expected(records: Iterable[Record]) -> Control:
    """What the control files must say if every result that the journal tells is true."""
    control = Control()
    for record in sorted(records, key=lambda record: record.sequence):
        assert record.result is not None
        request = spec_of(record)
        if record.result.outcome == "confirmed" and request.action != "peft.import":
            model = request.subject_ref
            control = Control(pointer=model, current=model, previous=control.pointer)
    return control


def test_a_reader_sees_whole_models_only_while_the_writer_is_killed(tmp_path: Path) -> None:
    places = _prepare(tmp_path)
    with _python(peft_reader, places.registry, stdin=subprocess.PIPE) as reader:
        assert reader.stdout is not None
        assert reader.stdout.readline() == "reading\n"
        kills = _write_and_kill(tmp_path)
        told, _ = reader.communicate("")
    assert reader.returncode == 0, told
    rounds, models, active = map(int, told.split())

    view = read_journal(tmp_path / "state")
    assert not view.quarantined
    records = list(view.records.values())
    assert all(record.terminal for record in records)
    outcomes = Counter((spec_of(r).action, r.result.outcome) for r in records if r.result is not None)
    switches = sum(count for (action, _), count in outcomes.items() if action != "peft.import")
    assert switches >= SWITCHES
    with places.roots.open_registry() as root, Registry.open(root) as registry:
        assert read_control(root) == _expected(records)
        assert [verdict for verdict in verify(registry) if not verdict.ok or verdict.reason] == []
    assert kills >= 8
    assert sum(r.result.reconciled for r in records if r.result is not None) >= 3
    assert models == outcomes["peft.import", "confirmed"]
    assert rounds > 100
    assert active > 50
