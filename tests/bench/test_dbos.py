"""Five durable steps on a general durable-execution library, beside the five states of one record of ours.

Both run in the same minutes on the same file system, one workflow of theirs, one life of ours, in turns. The
library's process is its own; what is timed there is the workflow alone.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import sqlite3
import statistics
import subprocess
import sys
import time
from contextlib import closing, contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from journal_support import RecordingFs, open_store, walk

from ticket_agent.agent.keys import V2_FAMILY
from ticket_agent.journal.space import Limits

if TYPE_CHECKING:
    from collections.abc import Iterator

    from bench_table import Table

pytestmark = [
    pytest.mark.bench,
    pytest.mark.disk,
    pytest.mark.timeout(900),
    pytest.mark.skipif(
        find_spec("dbos") is None, reason="dbos is not installed: pip install -e '.[bench]' brings it"
    ),
]

SCRIPT = Path(__file__).parents[1] / "support" / "dbos_steps.py"
LIMITS = Limits(fenced_families=frozenset({V2_FAMILY}))
WARM_UP = 5
LIVES = 60
TRACED = 10


class Rival:
    """The library's process; every call is one workflow."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        self.setup: dict[str, str] = json.loads(self._line())

    def __call__(self) -> float:
        """Seconds of one workflow."""
        assert self._process.stdin is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        return float(self._line())

    def _line(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, f"the library's process ended with {self._process.wait(300)}"
        return line


@contextmanager
def rival(database: Path, *, wal: bool, tracer: list[str] | None = None) -> Iterator[Rival]:
    if wal:
        with closing(sqlite3.connect(database)) as made:
            made.execute("PRAGMA journal_mode=WAL")
    environ = {name: value for name, value in os.environ.items() if not name.startswith("DBOS")}
    process = subprocess.Popen(
        [*(tracer or []), sys.executable, str(SCRIPT), str(database)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=environ,
    )
    try:
        yield Rival(process)
        process.communicate(timeout=300)
        assert process.returncode == 0
    finally:
        process.kill()
        process.communicate()


def _syncs(tmp_path: Path, *, wal: bool) -> str:
    """How often one workflow syncs, seen from outside."""
    strace = shutil.which("strace")
    if strace is None:
        return "fsyncs not counted: no strace"
    trace = tmp_path / f"trace-{wal}"
    calls = [strace, "-f", "-qq", "-e", "trace=fsync,fdatasync,write", "-o", str(trace)]
    with rival(tmp_path / f"traced-{wal}.sqlite", wal=wal, tracer=calls) as workflow:
        for _ in range(TRACED):
            workflow()
    # What a workflow synced stands between its predecessor's answer and its own. The setup is an answer too;
    # what was written before it is of helpers that ran while the library was loaded.
    lines = trace.read_text(encoding="utf-8", errors="replace").splitlines()
    answers = [at for at, line in enumerate(lines) if re.search(r"write\(1, ", line)]
    assert len(answers) > TRACED
    counted = lines[answers[-TRACED - 1] : answers[-1]]
    syncs = sum(bool(re.search(r"\bf(data)?sync\(", line)) for line in counted)
    return f"{syncs / TRACED:.0f} fsyncs"


def _our_syncs(tmp_path: Path) -> int:
    fs = RecordingFs()
    with open_store(tmp_path / "counted", fs=fs, limits=LIMITS) as store:
        before = fs.count("fsync", "fsync_dir")
        walk(store, "key-1", 1)
        return fs.count("fsync", "fsync_dir") - before


def test_five_durable_steps(tmp_path: Path, table: Table) -> None:
    ours: list[float] = []
    theirs: dict[bool, list[float]] = {False: [], True: []}
    with (
        open_store(tmp_path / "state", limits=LIMITS) as store,
        rival(tmp_path / "plain.sqlite", wal=False) as plain,
        rival(tmp_path / "wal.sqlite", wal=True) as wal,
    ):
        for number in range(1, WARM_UP + LIVES + 1):
            theirs[False].append(plain())
            theirs[True].append(wal())
            started = time.perf_counter()
            walk(store, f"key-{number}", number)
            ours.append(time.perf_counter() - started)
    mine = statistics.median(ours[WARM_UP:])
    for setup, bar, is_wal in ((plain.setup, ">= 3x", False), (wal.setup, "none: not as it comes", True)):
        median = statistics.median(theirs[is_wal][WARM_UP:])
        how = f"{setup['journal_mode']}/{setup['synchronous']}, {_syncs(tmp_path, wal=is_wal)}"
        table.add(
            f"five durable steps, DBOS {setup['version']} on SQLite ({how}) vs ours ({_our_syncs(tmp_path)})"
            if not is_wal
            else f"the same with SQLite switched to WAL ({how})",
            f"{median / mine:.2f}x ({median * 1000:.2f} ms / {mine * 1000:.2f} ms)",
            bar,
        )
