"""The admission log under eviction, malformed lines and death: what is held, and what goes on."""

from __future__ import annotations

import json
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from agent_faults import Killed, blind, root_of, root_writes
from agent_support import Bench, agent_on
from hive_support import SNAPSHOT, ManualClock, raw_grant, running_hive

from ticket_agent.hive.reference import DEFAULT, STRICT_A, ConsoleServer, HiveProfile, ReferenceHive
from ticket_agent.journal.fs import RealFs
from ticket_agent.journal.gaps import acknowledge_gap
from ticket_agent.journal.transitions import State

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

REFETCH = replace(DEFAULT, admission_refetch=True)


class Lab:
    """A hive, tickets numbered as they are admitted, and one agent after the other."""

    def __init__(self, hive: ReferenceHive, server: ConsoleServer, clock: ManualClock, tmp: Path) -> None:
        self.hive, self.server, self.clock = hive, server, clock
        self.state_dir = tmp / "state"
        self._count = 0

    def admit(self, count: int) -> None:
        for _ in range(count):
            self._count += 1
            worker = self.hive.spawn_worker("worker-gpu")
            self.hive.submit(raw_grant(self.hive, worker, f"t{self._count}", f"lease-{self._count}"))

    @contextmanager
    def agent(self, fs: RealFs | None = None) -> Iterator[Bench]:
        with agent_on(self.server, self.state_dir, clock=self.clock, fs=fs) as bench:
            yield bench

    def run(self) -> None:
        """A life that finishes everything and goes idle, so that its cursor is saved."""
        with self.agent() as bench:
            bench.settle()
            bench.passes(1)

    def acknowledge(self, first: int, through: int) -> None:
        acknowledge_gap(
            self.state_dir,
            epoch=1,
            first=first,
            through=through,
            reason="they are known to be lost",
            by="a test",
            clock=self.clock,
        )

    def performed(self) -> set[int]:
        assert set(self.hive.effects.values()) <= {1}
        return {int(effect.subject.removeprefix("lease-")) for effect in self.hive.effects}

    def results(self) -> set[int]:
        return {view.sequence for view in self.hive.admissions() if view.outcome is not None}


@contextmanager
def lab_on(tmp_path: Path, profile: HiveProfile = DEFAULT) -> Iterator[Lab]:
    clock = ManualClock()
    with running_hive(profile, clock=clock) as (hive, server):
        yield Lab(hive, server, clock, tmp_path)


def _passes(bench: Bench, count: int = 4) -> None:
    for _ in range(count):
        bench.hurry()
        bench.passes(1)


def _held(bench: Bench) -> tuple[int, int]:
    gap = bench.agent.intake.held
    assert gap is not None
    assert gap.reason
    return gap.first, gap.through


def _lose(lab: Lab) -> None:
    """Two consumed, four more admitted while nobody looked, the first two of these evicted."""
    lab.admit(2)
    lab.run()
    lab.admit(4)
    lab.hive.slide(SNAPSHOT, 4)


def test_unseen_eviction_is_held_until_it_is_acknowledged(tmp_path: Path) -> None:
    with lab_on(tmp_path) as lab:
        _lose(lab)
        with lab.agent() as bench:
            _passes(bench)
            assert _held(bench) == (3, 4)
            assert lab.performed() == {1, 2}
            (event,) = bench.events("gap-held")
            assert "--from 3 --through 4" in event["next"]
            lab.acknowledge(3, 3)
            _passes(bench)
            assert lab.performed() == {1, 2}
            lab.acknowledge(4, 4)
            bench.passes(1)
            bench.settle()
            assert bench.agent.intake.held is None
        assert lab.performed() == {1, 2, 5, 6}
        assert lab.results() == {1, 2, 5, 6}


def test_a_held_gap_outlasts_a_restart_and_grows_with_what_is_lost(tmp_path: Path) -> None:
    with lab_on(tmp_path) as lab:
        _lose(lab)
        with lab.agent() as bench:
            _passes(bench)
        with lab.agent() as bench:
            assert _held(bench) == (3, 4)
            _passes(bench)
            lab.hive.slide(SNAPSHOT, 1)
            lab.acknowledge(3, 4)
            _passes(bench)
            assert _held(bench) == (3, 5)
            assert lab.performed() == {1, 2}
            lab.acknowledge(3, 5)
            bench.passes(1)
            bench.settle()
        assert lab.performed() == {1, 2, 6}


def test_what_was_decided_before_is_finished_behind_a_gap(tmp_path: Path) -> None:
    with lab_on(tmp_path) as lab:
        lab.admit(2)
        lab.run()
        lab.admit(2)
        blind(lab.server, "/proc/lease/by-id/lease-3")
        with lab.agent() as bench:
            _passes(bench)
            lab.hive.set_lifecycle("DRAINING")
            assert bench.record("t3").state is State.EXECUTING
            bench.agent.save_cursor()
        lab.hive.set_lifecycle("ONLINE")
        lab.server.faults.clear()
        lab.admit(3)
        lab.hive.slide(SNAPSHOT, 5)
        with lab.agent() as bench:
            bench.passes(1)
            bench.until(lambda: not bench.store.open_records())
            assert _held(bench) == (5, 5)
        assert lab.performed() == lab.results() == {1, 2, 3, 4}


def test_a_root_that_still_knows_the_admissions_is_asked_for_them(tmp_path: Path) -> None:
    with lab_on(tmp_path, REFETCH) as lab:
        _lose(lab)
        with lab.agent() as bench:
            bench.settle()
            assert not bench.events("gap-held")
        assert lab.performed() == lab.results() == {1, 2, 3, 4, 5, 6}


def test_a_range_that_root_knows_only_in_part_is_held(tmp_path: Path) -> None:
    with lab_on(tmp_path, replace(REFETCH, window=5)) as lab:
        _lose(lab)
        assert lab.hive.admissions()[0].retired
        window = root_of(lab.hive).admissions._window
        del window[next(digest for digest, admission in window.items() if admission.sequence == 4)]
        with lab.agent() as bench:
            _passes(bench)
            assert _held(bench) == (3, 4)
        assert lab.performed() == {1, 2}


@pytest.mark.parametrize("line", ["{broken", "SAME"], ids=["malformed", "of-another-number"])
def test_a_refetched_line_that_is_not_the_one_asked_for_settles_nothing(tmp_path: Path, line: str) -> None:
    with lab_on(tmp_path, REFETCH) as lab:
        _lose(lab)
        third = root_of(lab.hive).admissions.by_sequence(3)
        assert third is not None
        third.line = lab.hive.admissions()[3].line if line == "SAME" else line
        with lab.agent() as bench:
            _passes(bench)
            assert _held(bench) == (3, 4)
        assert lab.performed() == {1, 2}


def test_eviction_of_exactly_what_was_consumed_is_no_gap(tmp_path: Path) -> None:
    with lab_on(tmp_path) as lab:
        lab.admit(2)
        lab.run()
        lab.admit(2)
        lab.hive.slide(SNAPSHOT, 2)
        lab.run()
        assert lab.performed() == {1, 2, 3, 4}


def test_eviction_while_the_agent_looks_on_is_no_gap(tmp_path: Path) -> None:
    """Far more admissions than the ring holds, each seen in time."""
    with lab_on(tmp_path) as lab, lab.agent() as bench:
        for _ in range(50):
            lab.admit(1)
            bench.settle()
            lab.hive.tear_down(f"worker-{lab._count}")
        assert not bench.events("gap-held")
        assert not bench.events("hive-epoch")
        assert len(lab.performed()) == 50


def test_numbers_that_root_skips_are_no_gap(tmp_path: Path) -> None:
    with lab_on(tmp_path, STRICT_A) as lab:
        worker = lab.hive.spawn_worker("worker-gpu").worker_id
        with lab.agent() as bench:
            for number, jump in enumerate((0, 40, 0, 7), start=1):
                entry = root_of(lab.hive).workers.get(worker)
                assert entry is not None
                entry.last_control += jump
                lab.hive.submit(raw_grant(lab.hive, worker, f"t{number}", f"lease-{number}"))
                bench.settle()
        sequences = [view.sequence for view in lab.hive.admissions()]
        assert sequences != list(range(1, 5))
        assert lab.performed() == {1, 2, 3, 4}


@pytest.mark.parametrize(
    "line",
    [
        pytest.param("{broken", id="no-json"),
        pytest.param("x" * 2100, id="too-long"),
        pytest.param("AGAIN", id="a-number-that-does-not-rise"),
        pytest.param("RAW", id="not-admitted"),
    ],
)
def test_a_line_of_root_that_cannot_be_trusted_is_held(tmp_path: Path, line: str) -> None:
    with lab_on(tmp_path) as lab:
        lab.admit(2)
        admitted = lab.hive.admissions()[0].line
        raw = raw_grant(lab.hive, lab.hive.spawn_worker("worker-gpu"), "t9", "lease-9")
        root_writes(lab.hive, "spec.snapshot", {"AGAIN": admitted, "RAW": raw}.get(line, line))
        lab.admit(2)
        with lab.agent() as bench:
            _passes(bench, 8)
            assert _held(bench)[0] == 3
            assert lab.performed() == lab.results() == {1, 2}
            lab.acknowledge(*_held(bench))
            bench.passes(1)
            bench.settle()
            assert bench.agent.intake.held is None
        lab.run()
        assert lab.performed() == {1, 2, 3, 4}


class DyingCursorFs(RealFs):
    """The process dies before the cursor is replaced, from when it is armed."""

    armed = False

    def rename(self, dir_fd: int, src: str, dst: str) -> None:
        if self.armed and dst.startswith("cursor"):
            raise Killed
        super().rename(dir_fd, src, dst)


def test_death_between_an_acknowledged_gap_and_its_cursor_is_no_reboot_of_the_hive(tmp_path: Path) -> None:
    """Records behind the saved mark are not always contiguous bytes of the log."""
    with lab_on(tmp_path) as lab:
        _lose(lab)
        fs = DyingCursorFs()
        with lab.agent(fs) as bench:
            _passes(bench)
            lab.acknowledge(3, 4)
            fs.armed = True
            with pytest.raises(Killed):
                bench.passes(1)
            assert {record.sequence for record in bench.store.open_records()} == {5, 6}
        with lab.agent() as bench:
            bench.passes(1)
            bench.settle()
            assert bench.agent.intake.epoch == 1
            assert not bench.events("hive-epoch")
        assert lab.performed() == lab.results() == {1, 2, 5, 6}


def test_a_quarantined_record_behind_the_mark_is_no_reboot_of_the_hive(tmp_path: Path) -> None:
    with lab_on(tmp_path) as lab:
        lab.admit(1)
        lab.run()
        lab.admit(2)
        with lab.agent() as bench:
            bench.settle()
        damaged = next((lab.state_dir / "ops").glob("00000000000000000002-*.rec"))
        damaged.write_bytes(damaged.read_bytes()[:-9])
        lab.admit(1)
        with lab.agent() as bench:
            bench.passes(1)
            bench.settle()
            assert bench.agent.intake.epoch == 1
            assert [record.sequence for record in bench.store.records.values()] == [1, 3, 4]
        assert lab.performed() == {1, 2, 3, 4}
        assert json.loads(lab.hive.admission_of("t4").line)["admission_sequence"] == 4
