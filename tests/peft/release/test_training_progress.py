from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ticket_agent.peft.directory import OPEN_DIRECTORY, Directory
from ticket_agent.peft.release.native.loss_log import MAX_EVENTS, LossLog
from ticket_agent.peft.release.spelled import spell
from ticket_agent.peft.release.training_progress import ProgressFile, read_losses

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def outputs(tmp_path: Path) -> Iterator[Directory]:
    with Directory(os.open(tmp_path, OPEN_DIRECTORY), "out", private=True) as directory:
        yield directory


class Clock:
    now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def test_what_was_logged_can_be_read_while_training_goes_on(outputs: Directory, tmp_path: Path) -> None:
    clock, log = Clock(), LossLog()
    progress = ProgressFile(outputs, max_steps=9, clock=clock)
    assert read_losses(outputs) is None
    log.add(1, 4.0)
    progress.logged(log)
    log.add(2, 3.5)
    progress.logged(log)
    found = read_losses(outputs)
    assert found is not None
    assert (found.steps, found.max_steps, found.complete) == ((1,), 9, False)
    clock.now_s += 0.25
    progress.logged(log)
    found = read_losses(outputs)
    assert found is not None
    assert (found.steps, found.losses) == ((1, 2), (4.0, 3.5))
    assert outputs.names() == ["progress.json"]
    assert (tmp_path / "progress.json").stat().st_mode & 0o777 == 0o600


def test_the_complete_log_takes_its_place(outputs: Directory) -> None:
    log = LossLog()
    progress = ProgressFile(outputs, max_steps=2)
    for step in (1, 2):
        log.add(step, 4.0 - step)
    progress.logged(log)
    outputs.write_file("loss-log.json", spell(log.members()))
    found = read_losses(outputs)
    assert found is not None
    assert (found.steps, found.losses, found.max_steps, found.complete) == ((1, 2), (3.0, 2.0), None, True)
    progress.done()
    progress.done()
    assert outputs.names() == ["loss-log.json"]


def test_a_training_never_fails_because_of_it(outputs: Directory, tmp_path: Path) -> None:
    log = LossLog()
    log.add(1, 4.0)
    (tmp_path / "progress.json").mkdir()
    (tmp_path / ".progress.json.partial").mkdir()
    progress = ProgressFile(outputs, max_steps=2)
    progress.logged(log)
    progress.done()
    assert read_losses(outputs) is None


def test_the_longest_log_can_be_read(outputs: Directory) -> None:
    log = LossLog()
    for step in range(MAX_EVENTS):
        log.add(step + 10**15, 1 / (3 + step))
    ProgressFile(outputs, max_steps=10**15).logged(log)
    found = read_losses(outputs)
    assert found is not None
    assert (len(found.steps), found.steps[0], found.steps[-1]) == (256, 10**15, 10**15 + MAX_EVENTS - 1)
    outputs.write_file("loss-log.json", spell(log.members()))
    found = read_losses(outputs)
    assert found is not None
    assert len(found.steps) == MAX_EVENTS


@pytest.mark.parametrize(
    "data",
    [
        b"x",
        b"{}",
        spell({"schema": "ticket-agent-loss-log/v1", "steps": [1], "losses": []}),
        spell({"schema": "ticket-agent-loss-log/v1", "steps": [True], "losses": [1.0]}),
        spell({"schema": "ticket-agent-loss-log/v1", "steps": [1], "losses": [1]}),
        spell({"schema": "another", "steps": [1], "losses": [1.0]}),
        b"x" * 200_000,
    ],
)
def test_what_is_no_log_is_none(outputs: Directory, data: bytes) -> None:
    outputs.write_file("loss-log.json", data)
    assert read_losses(outputs) is None


@given(count=st.integers(0, 400), most=st.integers(2, 300))
def test_a_spread_has_the_first_the_last_and_no_more_than_asked(count: int, most: int) -> None:
    log = LossLog(events=[(step, 0.5) for step in range(count)])
    steps = [step for step, _ in log.spread(most)]
    assert len(steps) == min(count, most)
    assert steps == sorted(set(steps))
    assert steps[:1] + steps[-1:] == [0, count - 1][: 2 * bool(count)]
