"""A plugin: a whole run uses all processors, the benches run alone, and what was counted is printed once.

``-n 0`` runs everything in one process, ``-n 4`` in four. A run of single files is one process, and so is
one with ``-s`` or ``--pdb``.
"""

from __future__ import annotations

import fcntl
import os
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import bench_table
import crash_report
import pytest
import told_lines

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

TESTS = Path(__file__).parents[1]
MOST_PROCESSES = 8
ONE_MORE = 1
"""Than there are processors: many tests wait for other programs."""
REPORTS = {
    "crash tests": crash_report,
    "long tests": told_lines,
    "measured on this machine, in this run": bench_table,
}
"""What tests count or measure beside passing, by its heading."""


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """What ``-n auto`` means here; asked once, by the process that starts the others."""
    return processes(config.args, captured=config.option.capture != "no")


def processes(arguments: Sequence[str], *, captured: bool) -> int:
    """How many processes run these arguments of pytest; 0 is the one that was started.

    Args:
        arguments: folders, files and single tests.
        captured: whether output is captured; of several processes nobody sees it.
    """
    if not captured or not all(Path(argument).is_dir() for argument in arguments):
        return 0
    return min(len(os.sched_getaffinity(0)) + ONE_MORE, MOST_PROCESSES)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """Let a bench wait until nothing else runs, and everything else until no bench does.

    Before the time limit of the test begins, and before any of its fixtures is made.
    """
    with ExitStack() as held:
        if is_one_of_many(item.config):
            alone = runs_alone(item.get_closest_marker("bench"))
            held.enter_context(turn(TESTS, gate=TESTS / "bench", alone=alone))
        return (yield)


def runs_alone(bench: pytest.Mark | None) -> bool:
    """Whether this is a bench that others would disturb; of the processor's time, say, they take nothing."""
    return bench is not None and bool(bench.kwargs.get("alone", True))


def is_one_of_many(config: pytest.Config) -> bool:
    """Whether this process is one of several that share a run.

    The environment does not tell: a test that runs pytest hands it on, and waits for it while a bench waits.
    """
    return hasattr(config, "workerinput")


@contextmanager
def turn(place: Path, *, gate: Path, alone: bool) -> Iterator[None]:
    """Hold the right to run a test, with others or alone.

    Everybody passes a gate first: whoever wants to be alone closes it, so that nobody overtakes him.

    Args:
        place: the folder that is locked; nothing is written into it.
        gate: another one.
        alone: whether nobody else may have the right meanwhile.
    """
    with _folder(place) as right:
        with _folder(gate) as entrance:
            fcntl.flock(entrance, fcntl.LOCK_EX)
            fcntl.flock(right, fcntl.LOCK_EX if alone else fcntl.LOCK_SH)
        yield


@contextmanager
def _folder(path: Path) -> Iterator[int]:
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield fd
    finally:
        os.close(fd)


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Hand over what this process counted."""
    output: dict[str, Any] | None = getattr(session.config, "workeroutput", None)
    if output is not None:
        output["reports"] = {heading: report.handed_over() for heading, report in REPORTS.items()}


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """Take over what another process counted; one that died has nothing to say."""
    for heading, values in getattr(node, "workeroutput", {}).get("reports", {}).items():
        REPORTS[heading].take_over(values)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    for heading, report in REPORTS.items():
        lines = report.summary_lines()
        if lines:
            terminalreporter.section(heading)
            for line in lines:
                terminalreporter.write_line(line)
