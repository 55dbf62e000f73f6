"""What is measured: every number moves when the thing happens, and showing it touches nothing."""

from __future__ import annotations

import errno
import os
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest
from agent_faults import blind, drop
from agent_support import Bench, agent_on
from cli_support import break_record
from hive_support import LEASE_CTL, SNAPSHOT, ManualClock, raw_grant, running_hive
from hypothesis import given
from hypothesis import strategies as st
from metrics_support import Scrape, scrape_of

from ticket_agent.agent.exposition import MetricsReport, Textfile
from ticket_agent.agent.metrics import BUCKETS_S, Meter
from ticket_agent.cli.assembly import exit_of
from ticket_agent.exits import Exit
from ticket_agent.hive.reference import ConsoleServer, Fault, FaultKind, ReferenceHive
from ticket_agent.journal.errors import JournalPoisonedError
from ticket_agent.journal.transitions import State

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

GRANT = "gpu.lease.grant"


class Ticks:
    """Seconds that move only when told to, or by a fixed step at each look."""

    def __init__(self, step: float = 0.0) -> None:
        self.now, self.step = 100.0, step

    def __call__(self) -> float:
        self.now += self.step
        return self.now


class Watched:
    """An agent with metrics on; ``pace`` is the clock that the file is paced by."""

    def __init__(self, bench: Bench, meter: Meter, textfile: Path | None) -> None:
        self.bench = bench
        self.pace = Ticks()
        self.report = MetricsReport(
            meter=meter,
            agent=bench.agent,
            store=bench.store,
            events=bench.agent._events,
            clock=bench.clock,
            monotonic=self.pace,
            textfile=Textfile(textfile, pid=os.getpid()) if textfile is not None else None,
        )

    def scrape(self) -> Scrape:
        """After a pass, as the loop has it."""
        self.report.write_if_due(self.bench.agent)
        return self.scrape_again()

    def scrape_again(self) -> Scrape:
        """What a reader sees who comes later, before the next pass."""
        return scrape_of(self.report.registry)


@contextmanager
def watched(
    server: ConsoleServer, tmp: Path, clock: ManualClock, *, textfile: Path | None = None, step: float = 0.0
) -> Iterator[Watched]:
    meter = Meter(clock=clock, stopwatch=Ticks(step))
    with agent_on(server, tmp / "state", clock=clock, meter=meter) as bench:
        yield Watched(bench, meter, textfile)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def lab(clock: ManualClock) -> Iterator[tuple[ReferenceHive, ConsoleServer]]:
    with running_hive(clock=clock) as (hive, server):
        yield hive, server


def _submit(hive: ReferenceHive, number: int = 1, worker: str | None = None) -> None:
    name = worker or hive.spawn_worker("worker-gpu").worker_id
    hive.submit(raw_grant(hive, name, f"t{number}", f"lease-{number}"))


# -- tickets -------------------------------------------------------------------------------------------------


def test_a_ticket_is_counted_in_every_state_and_at_its_end(
    tmp_path: Path, clock: ManualClock, lab: tuple[ReferenceHive, ConsoleServer]
) -> None:
    hive, server = lab
    with watched(server, tmp_path, clock) as agent:
        before = agent.scrape()
        assert before.all("transitions_total") == before.all("operations") == {}
        _submit(hive)
        agent.bench.settle()
        after = agent.scrape()
    assert after.all("transitions_total") == {(GRANT, state.value): 1 for state in State}
    assert after.all("operations_ended_total") == {(GRANT, "confirmed"): 1}
    assert after.all("operations") == {
        (GRANT, state.value): 0 for state in State if state is not State.TERMINAL
    }
    assert after("passes_total") == agent.bench.agent.totals.passes


def test_open_tickets_are_shown_where_they_wait(
    tmp_path: Path, clock: ManualClock, lab: tuple[ReferenceHive, ConsoleServer]
) -> None:
    hive, server = lab
    for number in range(3):
        _submit(hive, number)
    hive.set_lifecycle("DRAINING")
    with watched(server, tmp_path, clock) as agent:
        agent.bench.passes(1)
        assert agent.scrape()("operations", action=GRANT, state="prepared") == 3
    # A second life counts what it finds, and has seen no transition of it.
    with watched(server, tmp_path, clock) as agent:
        found = agent.scrape()
    assert found.all("operations") == {(GRANT, "prepared"): 3}
    assert found.all("transitions_total") == {}


def test_a_request_that_cannot_be_parsed_is_of_another_action(
    tmp_path: Path, clock: ManualClock, lab: tuple[ReferenceHive, ConsoleServer]
) -> None:
    with watched(lab[1], tmp_path, clock) as agent:
        agent.bench.store.prepare(key="k", family="f", epoch=1, sequence=1, request=b"from the future")
    with watched(lab[1], tmp_path, clock) as agent:
        found = agent.scrape()
    assert found.all("operations") == {("other", "prepared"): 1}
    assert found("unparsable_requests") == 1


# -- uncertainty ---------------------------------------------------------------------------------------------


def test_an_unknown_outcome_is_counted_and_ages_between_two_passes(
    tmp_path: Path, clock: ManualClock, lab: tuple[ReferenceHive, ConsoleServer]
) -> None:
    hive, server = lab
    _submit(hive, 1)
    blind(server)
    with watched(server, tmp_path, clock) as agent:
        certain = agent.scrape()
        agent.bench.passes(1)
        agent.bench.until(lambda: agent.bench.record("t1").outcome_unknown)
        clock.advance(1_500)
        agent.bench.passes(1)
        first = agent.scrape()
        clock.advance(60_000)
        later = agent.scrape_again()
        clock.advance(-3_600_000)
        backwards = agent.scrape_again()
        clock.advance(3_600_000)
        server.faults.clear()
        agent.bench.settle()
        settled = agent.scrape()
    assert [found("uncertain_operations") for found in (certain, first, later, settled)] == [0, 1, 1, 0]
    age = "oldest_uncertain_operation_age_seconds"
    assert [found(age) for found in (certain, first, later, backwards, settled)] == [0, 1.5, 61.5, 0, 0]
    assert first("operations", action=GRANT, state="executing") == 1


def test_an_outcome_that_is_known_and_not_published_yet_is_not_uncertain(
    tmp_path: Path, clock: ManualClock, lab: tuple[ReferenceHive, ConsoleServer]
) -> None:
    hive, server = lab
    _submit(hive, 1)
    blind(server)
    with watched(server, tmp_path, clock) as agent:
        agent.bench.passes(1)
        agent.bench.until(lambda: agent.bench.record("t1").outcome_unknown)
        assert exit_of(agent.bench.agent, agent.bench.store) is Exit.UNCERTAIN
        hive.set_lifecycle("DRAINING")
        server.faults.clear()
        agent.bench.until(lambda: agent.bench.record("t1").state is State.PERSISTED)
        agent.bench.passes(1)
        assert agent.bench.record("t1").uncertain is not None
        assert agent.scrape()("uncertain_operations") == 0
        assert exit_of(agent.bench.agent, agent.bench.store) is Exit.OK


def test_the_oldest_of_several_is_shown(
    tmp_path: Path, clock: ManualClock, lab: tuple[ReferenceHive, ConsoleServer]
) -> None:
    hive, server = lab
    granted: list[str] = []

    def blind_to_it(path: str, line: str) -> None:
        if path == LEASE_CTL:
            prefix = f"/proc/lease/by-id/lease-{len(granted)}"
            server.faults.add(Fault(kind=FaultKind.ERR, verb="CAT", prefix=prefix))
            granted.append(line)

    server.faults.on_applied(blind_to_it)
    with watched(server, tmp_path, clock) as agent:
        for number in range(3):
            _submit(hive, number)
            agent.bench.passes(1)
            agent.bench.until(lambda: all(r.outcome_unknown for r in agent.bench.store.open_records()))
            clock.advance(1_000)
        found = agent.scrape()
    assert found("uncertain_operations") == 3
    assert found("oldest_uncertain_operation_age_seconds") == 3


# -- latencies -----------------------------------------------------------------------------------------------


@given(st.lists(st.floats(0, 5) | st.sampled_from(BUCKETS_S)))
def test_every_duration_is_in_the_first_class_that_holds_it(durations: list[float]) -> None:
    meter = Meter(clock=lambda: 0)
    for seconds in durations:
        meter.synced("file", seconds)
    found = meter._fsync_s["file"].frozen()
    upto = [sum(found.counts[: index + 1]) for index in range(len(BUCKETS_S))]
    assert upto == [sum(seconds <= bound for seconds in durations) for bound in BUCKETS_S]
    assert sum(found.counts) == len(durations)
    assert found.sum_s == pytest.approx(sum(durations))


def test_buckets_reach_from_a_tenth_of_a_millisecond_to_a_second() -> None:
    assert (BUCKETS_S[0], BUCKETS_S[-1]) == (0.0001, 1.0)
    assert list(BUCKETS_S) == sorted(set(BUCKETS_S))


def test_every_fsync_and_every_transition_is_timed(
    tmp_path: Path,
    clock: ManualClock,
    lab: tuple[ReferenceHive, ConsoleServer],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With a stopwatch that gains 1 ms at each look, an fsync takes 1 ms and a transition 5 ms: its two
    fsyncs look four times, and the end once more."""
    hive, server = lab
    synced: list[int] = []
    fsync = os.fsync

    def counted(fd: int) -> None:
        synced.append(fd)
        fsync(fd)

    monkeypatch.setattr(os, "fsync", counted)
    with watched(server, tmp_path, clock, step=0.001) as agent:
        _submit(hive)
        agent.bench.settle()
        agent.bench.agent.save_cursor()
        found = agent.scrape()
    counts = found.all("fsync_duration_seconds_count")
    assert sum(counts.values()) == len(synced)
    # Five transitions and one cursor, each a file and its directory; the rest was the making of folders.
    assert counts[("file",)] == 6
    assert found("fsync_duration_seconds_sum", target="file") == pytest.approx(0.006)
    assert found.all("transition_duration_seconds_count") == {(state.value,): 1 for state in State}
    for state in State:
        assert found("transition_duration_seconds_sum", state=state.value) == pytest.approx(0.005)
        below = found("transition_duration_seconds_bucket", state=state.value, le="0.0025")
        above = found("transition_duration_seconds_bucket", state=state.value, le="0.01")
        assert (below, above) == (0, 1)


def test_what_is_prepared_already_is_no_transition(
    tmp_path: Path, clock: ManualClock, lab: tuple[ReferenceHive, ConsoleServer]
) -> None:
    with watched(lab[1], tmp_path, clock) as agent:
        for _ in range(2):
            agent.bench.store.prepare(key="k", family="f", epoch=1, sequence=1, request=b"x")
        assert agent.scrape().all("transitions_total") == {("other", "prepared"): 1}


# -- trouble -------------------------------------------------------------------------------------------------


def test_a_held_gap_and_its_size(
    tmp_path: Path, clock: ManualClock, lab: tuple[ReferenceHive, ConsoleServer]
) -> None:
    hive, server = lab
    for number in (1, 2):
        _submit(hive, number)
    with watched(server, tmp_path, clock) as agent:
        agent.bench.settle()
        agent.bench.passes(1)
        assert [agent.scrape()(name) for name in ("gap_held", "gap_admissions")] == [0, 0]
    for number in (3, 4, 5, 6):
        _submit(hive, number)
    hive.slide(SNAPSHOT, 4)
    with watched(server, tmp_path, clock) as agent:
        agent.bench.passes(2)
        assert [agent.scrape()(name) for name in ("gap_held", "gap_admissions")] == [1, 2]


def test_quarantined_records(
    tmp_path: Path, clock: ManualClock, lab: tuple[ReferenceHive, ConsoleServer]
) -> None:
    _submit(lab[0])
    with watched(lab[1], tmp_path, clock) as agent:
        agent.bench.settle()
        assert agent.scrape()("quarantined_records") == 0
    break_record(tmp_path / "state", 1)
    with watched(lab[1], tmp_path, clock) as agent:
        assert agent.scrape()("quarantined_records") == 1


def test_reconnects_and_outages(
    tmp_path: Path, clock: ManualClock, lab: tuple[ReferenceHive, ConsoleServer]
) -> None:
    names = ("hive_connected", "hive_reconnects_total", "hive_outages_total")
    with watched(lab[1], tmp_path, clock) as agent:
        rounds = [[agent.scrape()(name) for name in names]]
        happenings: list[Callable[[], None]] = [lambda: None, lambda: drop(agent.bench), lab[1].stop]
        for happens in happenings:
            happens()
            agent.bench.agent._one_round(agent.bench.stop, first=False)
            rounds.append([agent.scrape()(name) for name in names])
    assert rounds == [[0, 0, 0], [1, 0, 0], [1, 1, 0], [0, 1, 1]]


def test_a_poisoned_journal(
    tmp_path: Path,
    clock: ManualClock,
    lab: tuple[ReferenceHive, ConsoleServer],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    _submit(lab[0])

    def failing(fd: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with watched(lab[1], tmp_path, clock) as agent:
        assert agent.scrape()("journal_poisoned") == 0
        monkeypatch.setattr(os, "fsync", failing)
        with pytest.raises(JournalPoisonedError):
            agent.bench.agent.pass_once(agent.bench.stop)
        assert agent.scrape()("journal_poisoned") == 1


# -- showing it ----------------------------------------------------------------------------------------------


def test_a_reader_sees_one_picture_and_never_the_store(
    tmp_path: Path, clock: ManualClock, lab: tuple[ReferenceHive, ConsoleServer]
) -> None:
    """From another thread, with the journal closed, the last picture is still there and does not change."""
    with watched(lab[1], tmp_path, clock) as agent:
        _submit(lab[0])
        first = agent.scrape()
        agent.bench.settle()
        assert agent.scrape_again().all("transitions_total") == first.all("transitions_total") == {}
        agent.report.write_if_due(agent.bench.agent)
    seen: list[Scrape] = []
    for name in ("_store", "_meter"):
        delattr(agent.report, name)
    thread = threading.Thread(target=lambda: seen.append(agent.scrape_again()))
    thread.start()
    thread.join(60)
    assert seen[0]("transitions_total", action=GRANT, state="terminal") == 1


def test_names_and_helps_follow_the_conventions(
    tmp_path: Path, clock: ManualClock, lab: tuple[ReferenceHive, ConsoleServer]
) -> None:
    _submit(lab[0])
    with watched(lab[1], tmp_path, clock) as agent:
        agent.bench.settle()
        families = agent.scrape().families.values()
    for family in families:
        assert family.name.startswith("ticket_agent_")
        assert family.documentation.endswith(".")
        assert family.type in {"gauge", "counter", "histogram"}
        assert not family.name.endswith(("_ms", "_millis"))
        timed = family.name.split("_")[-2] in {"duration", "age", "timestamp"}
        assert family.name.endswith("_seconds") == timed


# -- the file ------------------------------------------------------------------------------------------------


def test_the_file_is_whole_readable_for_others_and_alone(
    tmp_path: Path, clock: ManualClock, lab: tuple[ReferenceHive, ConsoleServer]
) -> None:
    folder = tmp_path / "collector"
    folder.mkdir()
    (folder / f".agent.prom.{os.getpid()}.tmp").write_text("left behind")
    path = folder / "agent.prom"
    mask = os.umask(0o077)
    try:
        with watched(lab[1], tmp_path, clock, textfile=path) as agent:
            agent.report.write(agent.bench.agent)
            with path.open() as old:
                _submit(lab[0])
                agent.bench.settle()
                agent.report.write(agent.bench.agent)
                before, after = Scrape(old.read()), Scrape(path.read_text())
    finally:
        os.umask(mask)
    assert path.stat().st_mode & 0o7777 == 0o644
    assert [entry.name for entry in folder.iterdir()] == ["agent.prom"]
    # A reader that had it open keeps the old one to its end.
    assert before.all("operations_ended_total") == {}
    assert after.all("operations_ended_total") == {(GRANT, "confirmed"): 1}


def test_the_file_is_written_every_five_seconds_at_most_and_at_the_end(
    tmp_path: Path, clock: ManualClock, lab: tuple[ReferenceHive, ConsoleServer]
) -> None:
    path = tmp_path / "agent.prom"
    with watched(lab[1], tmp_path, clock, textfile=path) as agent:

        def passes_told(after_s: float, *, end: bool = False) -> float:
            agent.pace.now += after_s
            agent.bench.passes(1)
            (agent.report.write if end else agent.report.write_if_due)(agent.bench.agent)
            return Scrape(path.read_text())("passes_total")

        told = [passes_told(after_s) for after_s in (0, 1, 3.9, 0.2, 4.9)]
        told.append(passes_told(0, end=True))
    assert told == [1, 1, 1, 4, 4, 6]


@pytest.mark.parametrize("obstacle", ["no folder", "a folder of its name", "a full disk"])
def test_a_file_that_cannot_be_written_is_one_warning(
    tmp_path: Path,
    clock: ManualClock,
    lab: tuple[ReferenceHive, ConsoleServer],
    monkeypatch: pytest.MonkeyPatch,
    obstacle: str,
) -> None:
    folder = tmp_path / "collector"
    path = folder / "agent.prom"
    match obstacle:
        case "a folder of its name":
            path.mkdir(parents=True)
        case "a full disk":
            folder.mkdir()

    def full(fd: int, mode: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with watched(lab[1], tmp_path, clock, textfile=path) as agent:
        with monkeypatch.context() as patch:
            if obstacle == "a full disk":
                patch.setattr(os, "fchmod", full)
            for _ in range(3):
                agent.bench.passes(1)
                agent.report.write(agent.bench.agent)
        (warning,) = agent.bench.events("metrics-textfile-unwritable")
        assert warning["level"] == "warning"
        if obstacle == "a folder of its name":
            path.rmdir()
        folder.mkdir(exist_ok=True)
        assert list(folder.iterdir()) == []
        agent.report.write(agent.bench.agent)
        assert Scrape(path.read_text())("passes_total") == 3
