"""How the suite itself is run: how many processes, who runs alone, what is counted, what is skipped."""

from __future__ import annotations

import fcntl
import os
import tempfile
import threading
from pathlib import Path
from types import SimpleNamespace

import bench_table
import crash_report
import execnet
import memory_folder
import parallel_run
import pytest
import train_extra
from bench_table import Table
from crash_report import Sweep
from hypothesis import HealthCheck, settings
from parallel_run import TESTS, is_one_of_many, processes, runs_alone, turn

WAIT_S = 60
LITTLE_S = 0.05
"""Long enough to see that nobody comes through a closed lock; a slow machine makes this pass, not fail."""
ALL = min(len(os.sched_getaffinity(0)) + 1, parallel_run.MOST_PROCESSES)


@pytest.mark.parametrize(
    ("arguments", "captured", "expected"),
    [
        ([str(TESTS)], True, ALL),
        ([str(TESTS / "crash"), str(TESTS / "cli")], True, ALL),
        ([str(TESTS / "test_layout.py")], True, 0),
        ([str(TESTS), str(TESTS / "test_layout.py")], True, 0),
        ([f"{TESTS / 'test_layout.py'}::test_heavy"], True, 0),
        ([str(TESTS)], False, 0),
    ],
)
def test_whole_folders_are_run_by_all_processors(arguments: list[str], captured: bool, expected: int) -> None:
    assert processes(arguments, captured=captured) == expected


class Taker:
    """A thread that takes its turn and keeps it until it is told to let go."""

    def __init__(self, place: Path, *, alone: bool) -> None:
        self.has = threading.Event()
        self.may_go = threading.Event()
        self._place = place
        self._alone = alone
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        with turn(self._place, gate=self._place / "gate", alone=self._alone):
            self.has.set()
            self.may_go.wait(WAIT_S)

    def ends(self) -> None:
        self.may_go.set()
        self._thread.join(WAIT_S)
        assert not self._thread.is_alive()


def _is_closed(gate: Path) -> bool:
    fd = os.open(gate, os.O_RDONLY)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(fd)
    return False


def test_a_bench_runs_alone_and_is_not_overtaken(tmp_path: Path) -> None:
    (tmp_path / "gate").mkdir()
    first, second = Taker(tmp_path, alone=False), Taker(tmp_path, alone=False)
    assert first.has.wait(WAIT_S)
    assert second.has.wait(WAIT_S)
    bench = Taker(tmp_path, alone=True)
    while not _is_closed(tmp_path / "gate"):
        assert not bench.has.wait(LITTLE_S)
    late = Taker(tmp_path, alone=False)
    first.ends()
    assert not bench.has.wait(LITTLE_S)
    assert not late.has.wait(LITTLE_S)
    second.ends()
    assert bench.has.wait(WAIT_S)
    assert not late.has.wait(LITTLE_S)
    bench.ends()
    assert late.has.wait(WAIT_S)
    late.ends()


@pytest.mark.parametrize(
    ("mark", "alone"),
    [
        (None, False),
        (pytest.mark.bench, True),
        (pytest.mark.bench(alone=True), True),
        (pytest.mark.bench(alone=False), False),
    ],
)
def test_a_bench_runs_alone_unless_it_says_otherwise(mark: pytest.MarkDecorator | None, alone: bool) -> None:
    assert runs_alone(None if mark is None else mark.mark) is alone


@pytest.mark.parametrize("members", [{}, {"workerinput": {}}])
def test_only_what_pytest_says_makes_a_process_one_of_many(
    monkeypatch: pytest.MonkeyPatch, members: dict[str, object]
) -> None:
    """Another pytest inside a test would wait for a turn that its own test holds."""
    monkeypatch.setenv("PYTEST_XDIST_WORKER", "gw1")
    config = SimpleNamespace(**members)
    assert is_one_of_many(config) is bool(members)  # type: ignore[arg-type]


def _sent(values: object) -> object:
    """Values as another process gets them."""
    return execnet.loads(execnet.dumps(values))


def test_what_other_processes_counted_is_added_up(monkeypatch: pytest.MonkeyPatch) -> None:
    theirs = Sweep(name="a", faults=("EIO", "EIO+"), possible=8, runs=3, missed=["x"], violations=["wrong"])
    ours = Sweep(name="b", faults=("EIO",), possible=2, runs=2, seconds=1.5)
    monkeypatch.setattr(crash_report, "SWEEPS", [theirs])
    monkeypatch.setattr(crash_report, "CAUGHT", {"mutant": "check"})
    sent = _sent(crash_report.handed_over())
    monkeypatch.setattr(crash_report, "SWEEPS", [ours])
    monkeypatch.setattr(crash_report, "CAUGHT", {})
    crash_report.take_over(sent)  # type: ignore[arg-type]
    assert [ours, theirs] == crash_report.SWEEPS
    assert crash_report.summary_lines() == [
        ours.line(),
        theirs.line(),
        "mutant  caught by  check",
        "1 mutants caught",
        "in all: 5 of 10 runs at 6 boundaries with 2 kinds of fault, 1 missed, 1 violations",
    ]


def test_what_other_processes_measured_is_one_table(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench_table, "TABLE", Table([("start", "1.2 s", "<= 2 s")]))
    sent = _sent(bench_table.handed_over())
    monkeypatch.setattr(bench_table, "TABLE", Table([("a longer one", "10.0 s", "<= 9 s")]))
    bench_table.take_over(sent)  # type: ignore[arg-type]
    assert bench_table.summary_lines() == [
        "a longer one  10.0 s  bar <= 9 s",
        "start          1.2 s  bar <= 2 s",
    ]


def test_nothing_measured_is_no_table(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench_table, "TABLE", Table())
    assert bench_table.summary_lines() == []


def test_the_packages_of_an_extra_are_those_of_the_project() -> None:
    assert train_extra.extra("lint") == ["mypy", "ruff"]
    assert {"peft", "torch", "transformers"} <= set(train_extra.extra("train"))


def test_packages_that_are_not_installed_are_named() -> None:
    assert train_extra.missing(["pytest", "no-such-package", "hypothesis"]) == ["no-such-package"]


@pytest.mark.parametrize(
    ("free", "flags", "usable"),
    [(memory_folder.ROOMY, 0, True), (memory_folder.ROOMY - 1, 0, False), (2**40, os.ST_NOEXEC, False)],
)
def test_memory_is_used_when_it_has_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, free: int, flags: int, usable: bool
) -> None:
    monkeypatch.setattr(memory_folder, "MEMORY", tmp_path)
    found = os.statvfs_result((4096, 4096, 2**40, 0, free // 4096, 0, 0, 0, flags, 255))
    monkeypatch.setattr(os, "statvfs", lambda path: found)
    assert memory_folder.memory_folder() == (tmp_path if usable else None)


def test_memory_that_is_not_there_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory_folder, "MEMORY", tmp_path / "none")
    assert memory_folder.memory_folder() is None


@pytest.mark.disk
def test_what_is_measured_is_on_the_disk(tmp_path: Path) -> None:
    assert tmp_path.parent == Path(tempfile.gettempdir())


def test_no_example_of_a_property_test_has_a_time_limit_of_its_own() -> None:
    """A machine that pauses this process for a moment, or is slow, is no counterexample."""
    assert settings().deadline is None
    assert HealthCheck.too_slow in settings().suppress_health_check
