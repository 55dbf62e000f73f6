"""Whoever follows the registry sees whole models only, while a writer is killed over and over."""

from __future__ import annotations

import itertools
import os
import random
import subprocess
import sys
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import peft_reader
import peft_writer
import pytest
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

OPERATIONS = 100_000
"""More than there is time for: every writer but the last is killed."""
TIMEOUT_S = 900
"""Of the test, which has two processes at work and starts some twenty; a minute on a busy machine."""


@dataclass(frozen=True)
class Seen:
    """How much there was for the reader to see, and how often it looked.

    All of this is a matter of who gets the processor when: there are writers until it is enough.
    """

    kills: int
    switches: int
    reconciled: int
    rounds: int
    active: int

    @property
    def enough(self) -> bool:
        """Whether it proves something that nothing was wrong."""
        return (
            self.kills >= 8
            and self.switches >= 500
            and self.reconciled >= 3
            and self.rounds > 100
            and self.active > 50
        )


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


def _write_and_kill(folder: Path, chance: random.Random) -> None:
    """A writer that is killed at a random moment."""
    with _python(peft_writer, folder, OPERATIONS, stdin=subprocess.DEVNULL) as writer:
        assert writer.stdout is not None
        lines = chance.randrange(10, 90)
        assert writer.stdout.readline()
        started = time.monotonic()
        for _ in range(lines):
            assert writer.stdout.readline(), "the writer ended by itself"
        # Not at a line: anywhere within what an operation takes here and now.
        time.sleep(chance.random() * (time.monotonic() - started) / lines)
        writer.kill()


def _write_to_the_end(folder: Path) -> None:
    """A writer that finishes what the last one left open."""
    with _python(peft_writer, folder, 0, stdin=subprocess.DEVNULL) as writer:
        assert writer.stdout is not None
        writer.stdout.read()
    assert writer.returncode == 0


def _told(reader: subprocess.Popen[str]) -> tuple[int, int, int]:
    """Rounds, models and active ones so far."""
    assert reader.stdin is not None
    assert reader.stdout is not None
    reader.stdin.write("\n")
    reader.stdin.flush()
    return _counts(reader.stdout.readline())


def _counts(line: str) -> tuple[int, int, int]:
    assert line, "the reader ended: it found what must not be"
    rounds, models, active = map(int, line.split())
    return rounds, models, active


def _seen(records: Iterable[Record], *, kills: int, rounds: int, active: int) -> Seen:
    results = [(spec_of(record).action, record.result) for record in records if record.result is not None]
    return Seen(
        kills=kills,
        switches=sum(action != "peft.import" for action, _ in results),
        reconciled=sum(result.reconciled for _, result in results),
        rounds=rounds,
        active=active,
    )


def _until_enough(folder: Path, reader: subprocess.Popen[str]) -> None:
    """Writers until there was enough to see, each killed at a random moment, and one that ends."""
    chance = random.Random(20261130)
    for kills in itertools.count(1):
        _write_and_kill(folder, chance)
        rounds, _, active = _told(reader)
        records = read_journal(folder / "state").records.values()
        if _seen(records, kills=kills, rounds=rounds, active=active).enough:
            break
    _write_to_the_end(folder)


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


@pytest.mark.timeout(TIMEOUT_S)
def test_a_reader_sees_whole_models_only_while_the_writer_is_killed(tmp_path: Path) -> None:
    places = _prepare(tmp_path)
    with _python(peft_reader, places.registry, stdin=subprocess.PIPE) as reader:
        assert reader.stdout is not None
        try:
            assert reader.stdout.readline() == "reading\n"
            _until_enough(tmp_path, reader)
            told, _ = reader.communicate("")
        finally:
            reader.kill()
    assert reader.returncode == 0, told
    _, models, _ = _counts(told)

    view = read_journal(tmp_path / "state")
    assert not view.quarantined
    records = list(view.records.values())
    assert all(record.terminal for record in records)
    outcomes = Counter((spec_of(r).action, r.result.outcome) for r in records if r.result is not None)
    with places.roots.open_registry() as root, Registry.open(root) as registry:
        assert read_control(root) == _expected(records)
        assert [verdict for verdict in verify(registry) if not verdict.ok or verdict.reason] == []
    assert models == outcomes["peft.import", "confirmed"]
