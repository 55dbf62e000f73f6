"""Everything that can happen to one agent and its hive, in any order: the promise holds all the same."""

from __future__ import annotations

import errno
import json
import os
import shutil
import tempfile
from collections import Counter
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agent_faults import DyingAppends, Killed, drop, root_of
from agent_support import Bench, agent_on
from hive_support import LEASE_CTL, STATUS, ManualClock, raw_lease, running_hive
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from ticket_agent.agent.operation import Operation, in_order
from ticket_agent.agent.replay import replay
from ticket_agent.agent.staging import staged_result
from ticket_agent.hive.reference import (
    DEFAULT,
    STRICT_A,
    Fault,
    FaultKind,
    HiveProfile,
    LabError,
    RefusalError,
)
from ticket_agent.hive.reference.tree import MAX_ANSWER_FRAMES
from ticket_agent.journal.errors import JournalPoisonedError
from ticket_agent.journal.fs import FreeSpace, RealFs
from ticket_agent.journal.gaps import acknowledge_gap
from ticket_agent.journal.resolution import (
    Resolution,
    ResolutionRefusedError,
    Said,
    require_resolvable,
    resolution_of,
)
from ticket_agent.journal.state_dir import RESERVE
from ticket_agent.journal.transitions import State
from ticket_agent.journal.view import read_journal
from ticket_agent.protocol.lease import PreemptControl
from ticket_agent.protocol.namespace import HiveError
from ticket_agent.protocol.paths import TicketPaths

if TYPE_CHECKING:
    from collections.abc import Callable

    from ticket_agent.journal.values import HistoryEntry, Record

WORKERS = ("worker-1", "worker-2", "worker-3")
TICKETS = st.integers(0, 15).map(lambda number: f"t{number}")
PATHS = st.sampled_from(["", LEASE_CTL, "/host/tickets/status", "/host/tickets", "/proc"])
LOSSES = st.sampled_from([FaultKind.DROP_BEFORE, FaultKind.DROP_AFTER, FaultKind.GARBAGE])
QUIET_PASSES = 40
FRAMES_PER_TICKET = 9
"""What `claimed`, `running` and the result of one ticket take in the status log."""
HOUR_MS = 3_600_000
TEN_YEARS_MS = 3_652 * 24 * HOUR_MS


class MortalFs(RealFs):
    """The real file system; the process dies at the n-th naming of a file from when it is doomed.

    While it is ``full``, no file can be made but the one that the reserve, given up, has room for.
    """

    def __init__(self, *, full: bool = False) -> None:
        self._left: int | None = None
        self._durable = False
        self.full = full
        self._given_up = False

    def create_new(self, dir_fd: int, name: str) -> int:
        if self.full and not self._given_up:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self._given_up = False
        return super().create_new(dir_fd, name)

    def unlink(self, dir_fd: int, name: str) -> None:
        super().unlink(dir_fd, name)
        self._given_up = self._given_up or name == RESERVE

    def reserve(self, fd: int, nbytes: int) -> None:
        if self.full and os.fstat(fd).st_size < nbytes:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        super().reserve(fd, nbytes)

    def free_space(self, dir_fd: int) -> FreeSpace:
        return FreeSpace(bytes=0, inodes=None) if self.full else super().free_space(dir_fd)

    def doom(self, after: int, *, durable: bool) -> None:
        self._left, self._durable = after, durable

    def spare(self) -> None:
        self._left = None

    def rename(self, dir_fd: int, src: str, dst: str) -> None:
        dies = self._counts()
        super().rename(dir_fd, src, dst)
        self._die(dies)

    def rename_new(self, dir_fd: int, src: str, dst: str) -> None:
        dies = self._counts()
        super().rename_new(dir_fd, src, dst)
        self._die(dies)

    def _counts(self) -> bool:
        if self._left is None:
            return False
        self._left -= 1
        if self._left >= 0:
            return False
        if not self._durable:
            raise Killed
        return True

    @staticmethod
    def _die(dies: bool) -> None:
        if dies:
            raise Killed


class Machine(RuleBasedStateMachine):
    """One agent after the other on one state directory, and one hive through all its lives."""

    profile: HiveProfile

    @initialize()
    def begin(self) -> None:
        self.tmp = Path(tempfile.mkdtemp(prefix="ticket-agent-machine-"))
        self.state_dir = self.tmp / "state"
        self.clock = ManualClock()
        self.stack = ExitStack()
        self.hive, self.server = self.stack.enter_context(running_hive(self.profile, clock=self.clock))
        self.agent_stack = ExitStack()
        self.histories: dict[str, tuple[HistoryEntry, ...]] = {}
        self.admitted: Counter[tuple[str, str]] = Counter()
        self.leases: list[tuple[str, str]] = []
        self.asked: list[tuple[str, str, str, str, int | None]] = []
        self.at_effect: list[Callable[[], None]] = []
        self.server.faults.on_applied(self._on_applied)
        self.count = 0
        self.lives = 1
        self.host_boots = 1
        self.disk_full = False
        self._start_agent()
        self._spawn_all()

    def teardown(self) -> None:
        if not hasattr(self, "stack"):
            return
        try:
            self._come_to_rest()
        finally:
            self.agent_stack.close()
            self.stack.close()
            shutil.rmtree(self.tmp)

    def _on_applied(self, path: str, line: str) -> None:
        while path == LEASE_CTL and self.at_effect:
            self.at_effect.pop()()

    def _spawn_all(self) -> None:
        for worker in WORKERS:
            with suppress(LabError, RefusalError):
                self.hive.spawn_worker("worker-gpu", worker)

    def _start_agent(self, *, serves: bool = True) -> None:
        self.fs = MortalFs(full=self.disk_full)
        self.bench: Bench = self.agent_stack.enter_context(
            agent_on(
                self.server,
                self.state_dir,
                clock=self.clock,
                fs=self.fs,
                instance=f"life-{self.count}",
                boot_id=f"boot-{self.host_boots}",
                serves=serves,
            )
        )
        self.count += 1

    def _restart(self, *, serves: bool = True) -> None:
        drop(self.bench)
        self.agent_stack.close()
        assert not read_journal(self.state_dir).quarantined
        self._start_agent(serves=serves)

    # -- what callers do

    @precondition(lambda self: self.asked)
    @rule(which=st.integers(0, 5))
    def submit_again(self, which: int) -> None:
        """The same ticket for the present Worker, as a caller does who saw no result."""
        verb, ticket, worker, lease, expires = self.asked[-1 - which % len(self.asked)]
        self._admit(verb, ticket, worker, lease, expires=expires)

    @precondition(lambda self: self.asked)
    @rule(which=st.integers(0, 5))
    def submit_changed(self, which: int) -> None:
        """Another request under a pair that was used before."""
        verb, ticket, worker, lease, _ = self.asked[-1 - which % len(self.asked)]
        self.count += 1
        args = {"reason": f"changed-{self.count}"} if verb == "release" else {"ttl_s": 200 + self.count}
        self._admit(verb, ticket, worker, lease, **args)

    def _admit(self, verb: str, ticket: str, worker: str, lease: str, **options: Any) -> None:
        if not self._can_be_read():
            return
        with suppress(RefusalError, LabError):
            before = len(self.hive.admissions())
            self.hive.submit(raw_lease(self.hive, worker, verb, ticket, lease, **options))
            self.admitted[ticket, f"key-{ticket}"] += len(self.hive.admissions()) - before

    def _can_be_read(self) -> bool:
        """A log without rings fits into one answer only while few tickets were admitted in this life."""
        if self.profile.evicting_logs:
            return True
        unanswered = sum(view.outcome is None for view in root_of(self.hive).admissions.history)
        return len(self.hive.wire("CAT", STATUS)) + FRAMES_PER_TICKET * (unanswered + 1) <= MAX_ANSWER_FRAMES

    def _submit(self, verb: str, ticket: str, worker: str, lease: str, expires: int | None) -> None:
        expiry = None if expires is None else max(1, self.clock() + expires)
        self.asked.append((verb, ticket, worker, lease, expiry))
        self.submit_again(0)

    @rule(
        ticket=TICKETS,
        worker=st.sampled_from(WORKERS),
        expires=st.none() | st.integers(0, 5000),
        passes=st.integers(0, 2),
    )
    def grant(self, ticket: str, worker: str, expires: int | None, passes: int) -> None:
        self.count += 1
        lease = f"lease-{self.count}"
        self.leases.append((lease, worker))
        self._submit("grant", ticket, worker, lease, expires)
        self.passes(passes)

    @precondition(lambda self: self.leases)
    @rule(
        verb=st.sampled_from(["renew", "release"]),
        ticket=TICKETS,
        which=st.integers(0, 3),
        expires=st.none() | st.integers(0, 5000),
    )
    def renew_or_release(self, verb: str, ticket: str, which: int, expires: int | None) -> None:
        lease, worker = self.leases[-1 - which % len(self.leases)]
        self._submit(verb, ticket, worker, lease, expires)

    # -- what the agent does

    @rule(count=st.integers(1, 4))
    def passes(self, count: int) -> None:
        for _ in range(count):
            self.bench.hurry()
            try:
                self.bench.passes(1)
            except JournalPoisonedError:
                self._restart()

    @rule()
    def crash(self) -> None:
        self._restart()

    @rule()
    def reboot_the_host(self) -> None:
        self.host_boots += 1
        self._restart()

    # -- what an operator does

    @rule(at=st.integers(0, 4), sent=st.booleans())
    def replay_the_journal(self, at: int, sent: bool) -> None:
        """Whatever a dead agent left open, a replay begins nothing."""
        self._submit(*self._fresh(at))
        self.bench.namespace.append = DyingAppends(  # type: ignore[method-assign]
            self.bench.namespace, at, sent=sent
        )
        with suppress(Killed):
            self.passes(2)
        self._restart(serves=False)
        known, effects = set(self.bench.store.records), self.hive.effects
        plans = {key for key, record in self.bench.store.records.items() if record.plan is not None}
        with suppress(HiveError, JournalPoisonedError):
            replay(self.bench.agent, self.bench.stop, pause_s=0)
        assert set(self.bench.store.records) == known
        assert {key for key, record in self.bench.store.records.items() if record.plan is not None} == plans
        assert self.hive.effects == effects
        self._restart()

    @precondition(lambda self: self._executing())
    @rule(which=st.integers(0, 3), said=st.sampled_from(["done", "not-done"]))
    def resolve_by_hand(self, which: int, said: Said) -> None:
        """The operator looked at the host, and tells the truth about a grant."""
        executing = self._executing()
        op = executing[which % len(executing)]
        stepper = self.bench.agent._stepper
        try:
            self.bench.agent.streams.refresh()
            outcome = stepper._observe(op)
            require_resolvable(op.record, stepper._facts(op), outcome)
        except (HiveError, ResolutionRefusedError):
            return
        if op.spec.action == "gpu.lease.grant":
            applied = self.hive.effect_count("grant", op.spec.operation_id or "")
            said = "done" if applied else "not-done"
        word = Resolution(
            said=said, by="machine", reason="I looked", unix_ms=self.clock(), observed=outcome.detail
        )
        result = word.result()
        staged = staged_result(op.spec, result, paths=TicketPaths("/host"), max_line_bytes=2048)
        with suppress(JournalPoisonedError):
            self.bench.store.settle(op.record.key, result, staged)
        self._restart()

    @rule(ticket=TICKETS, which=st.integers(0, 2), expires=st.none() | st.integers(0, 5000))
    def lose_every_trace(self, ticket: str, which: int, expires: int | None) -> None:
        """A renewal whose answer is lost, and whose lease an outsider ends before anybody looks."""
        verb, granted, worker, lease, _ = self._fresh(which)
        self._submit(verb, granted, worker, lease, None)
        self.passes(2)

        def end_the_lease() -> None:
            with suppress(RefusalError):
                self.hive.echo(LEASE_CTL, PreemptControl(id=lease, reason="outsider").encode())

        self.server.faults.add(Fault(kind=FaultKind.DROP_AFTER, prefix=LEASE_CTL, nth=1))
        self.at_effect.append(end_the_lease)
        self._submit("renew", ticket, worker, lease, expires)
        self.passes(2)

    def _executing(self) -> list[Operation]:
        operations = in_order(self.bench.agent.operations.values())
        return [op for op in operations if op.record.state is State.EXECUTING]

    @rule(after=st.integers(0, 7), durable=st.booleans())
    def crash_at_a_file(self, after: int, durable: bool) -> None:
        self.fs.doom(after, durable=durable)
        self._until_death()

    @rule(at=st.integers(0, 5), sent=st.booleans())
    def crash_at_an_append(self, at: int, sent: bool) -> None:
        self.bench.namespace.append = DyingAppends(  # type: ignore[method-assign]
            self.bench.namespace, at, sent=sent
        )
        self._until_death()

    def _until_death(self) -> None:
        try:
            self.passes(3)
        except Killed:
            self._restart()
        else:
            self.fs.spare()
            if "append" in vars(self.bench.namespace):
                del self.bench.namespace.append

    # -- what befalls them

    @rule(
        kind=LOSSES, prefix=PATHS, verb=st.sampled_from(["ECHO", "ECHO", "CAT", None]), nth=st.integers(1, 4)
    )
    def lose_an_answer(self, kind: FaultKind, prefix: str, verb: str | None, nth: int) -> None:
        self.server.faults.add(Fault(kind=kind, prefix=prefix, verb=verb, nth=nth))

    @rule(
        prefix=st.sampled_from(["/proc/lease", "/proc/lifecycle", "/host/tickets/status", LEASE_CTL]),
        verb=st.sampled_from(["CAT", "ECHO"]),
        passes=st.integers(1, 3),
    )
    def be_busy(self, prefix: str, verb: str, passes: int) -> None:
        self.server.faults.add(Fault(kind=FaultKind.ERR, prefix=prefix, verb=verb))
        self.passes(passes)
        self.server.faults.clear()

    @rule(passes=st.integers(0, 3))
    def hide_the_leases_after_the_next_effect(self, passes: int) -> None:
        self.at_effect.append(
            lambda: self.server.faults.add(Fault(kind=FaultKind.ERR, prefix="/proc/lease", verb="CAT"))
        )
        self.passes(passes)

    @rule(passes=st.integers(0, 3), answered=st.booleans())
    def reboot_at_the_next_effect(self, passes: int, answered: bool) -> None:
        self.at_effect.append(self._crash_of_the_hive)
        if not answered:
            self.server.faults.add(Fault(kind=FaultKind.DROP_AFTER, prefix=LEASE_CTL, nth=1))
        self.passes(passes)

    @rule()
    def answer_again(self) -> None:
        self.at_effect.clear()
        self.server.faults.clear()

    @rule(worker=st.sampled_from(WORKERS), replace=st.booleans())
    def end_a_worker(self, worker: str, replace: bool) -> None:
        with suppress(LabError, RefusalError):
            (self.hive.replace_worker if replace else self.hive.tear_down)(worker)

    @rule()
    def spawn(self) -> None:
        self._spawn_all()

    @rule(state=st.sampled_from(["DRAINING", "DEGRADED", "QUIESCED"]), passes=st.integers(0, 3))
    def close_the_gate(self, state: str, passes: int) -> None:
        self.hive.set_lifecycle(state)
        self.passes(passes)

    @rule()
    def open_the_gate(self) -> None:
        self.hive.set_lifecycle("ONLINE")

    @rule(resubmitted=st.integers(0, 4))
    def reboot(self, resubmitted: int) -> None:
        """The same Workers come back, and callers who saw no result submit their tickets again."""
        self._boot()
        self.server.kick()
        for which in range(min(resubmitted, len(self.asked))):
            self.submit_again(which)

    def _crash_of_the_hive(self) -> None:
        # A session never outlives its hive, even if the last answer still got through.
        self._boot()
        self.server.kick()

    def _boot(self) -> None:
        """The Workers of every life have generations of their own, so that no line of a log comes again.

        That a reboot is noticed even if lines do come again has tests of its own, beside those of epochs.
        """
        self.hive.reboot()
        self.lives += 1
        root_of(self.hive).workers._generation += 1000 * self.lives
        self._spawn_all()

    @rule(ms=st.integers(-4000, 4000))
    def move_the_clock(self, ms: int) -> None:
        self.clock.advance(ms)

    @rule(ms=st.sampled_from([HOUR_MS, -HOUR_MS, TEN_YEARS_MS, -TEN_YEARS_MS]), passes=st.integers(0, 2))
    def set_the_clock(self, ms: int, passes: int) -> None:
        self.clock.now_ms = max(1, self.clock.now_ms + ms)
        self.passes(passes)

    @rule(passes=st.integers(0, 3))
    def fill_the_disk(self, passes: int) -> None:
        self.disk_full = self.fs.full = True
        self.passes(passes)

    @rule()
    def make_room(self) -> None:
        self.disk_full = self.fs.full = False

    @rule(count=st.integers(1, 5))
    def skip_admission_numbers(self, count: int) -> None:
        root_of(self.hive).admissions._next_sequence += count

    @precondition(lambda self: self.profile.evicting_logs and self.asked)
    @rule(count=st.integers(1, 3))
    def lose_admissions(self, count: int) -> None:
        """Admitted and evicted before anybody looked."""
        for which in range(count):
            self._submit(*self._fresh(which))
        self.hive.slide("spec.snapshot", count + 1)
        self.passes(2)

    def _fresh(self, which: int) -> tuple[str, str, str, str, int | None]:
        self.count += 1
        lease, worker = f"lease-{self.count}", WORKERS[which % len(WORKERS)]
        self.leases.append((lease, worker))
        return "grant", f"u{self.count}", worker, lease, None

    @precondition(lambda self: self.profile.evicting_logs)
    @rule(leaf=st.sampled_from(["spec.snapshot", "status", "deadletter"]), count=st.integers(1, 3))
    def evict(self, leaf: str, count: int) -> None:
        self.hive.slide(leaf, count)

    @precondition(lambda self: self.bench.agent.intake.held is not None)
    @rule()
    def acknowledge(self) -> None:
        held = self.bench.agent.intake.held
        assert held is not None
        with suppress(Exception):
            acknowledge_gap(
                self.state_dir,
                epoch=held.epoch,
                first=held.first,
                through=held.through,
                reason="seen",
                by="the machine",
                clock=self.clock,
            )

    # -- what must hold, always

    @invariant()
    def no_effect_twice(self) -> None:
        if not hasattr(self, "hive"):
            return
        applied = Counter[tuple[str, str]]()
        for effect, times in self.hive.effects.items():
            applied[effect.kind, effect.subject] += times
        for (kind, subject), times in applied.items():
            assert kind == "renew-bound" or times <= 1, (kind, subject, times)

    @invariant()
    def states_move_forward(self) -> None:
        if not hasattr(self, "bench"):
            return
        for key, record in self.bench.store.records.items():
            before = self.histories.get(key, ())
            assert record.history[: len(before)] == before
            self.histories[key] = record.history

    @invariant()
    def one_terminal_line_per_admission(self) -> None:
        if not hasattr(self, "hive"):
            return
        for key, admissions in self.admitted.items():
            assert len(self.hive.terminal_lines(key)) <= admissions

    # -- and once everything works again

    def _come_to_rest(self) -> None:
        self.make_room()
        self.at_effect.clear()
        self.server.faults.clear()
        self.hive.set_lifecycle("ONLINE")
        for _ in range(QUIET_PASSES):
            self.passes(1)
        for record in self.bench.store.records.values():
            self._is_honest(record)
        assert set(self.bench.agent.operations) == {record.key for record in self.bench.store.open_records()}
        for op in self.bench.agent.operations.values():
            undecided_lane = any(
                other.lane == op.lane and other is not op and other.waiting
                for other in self.bench.agent.operations.values()
            )
            assert op.waiting or undecided_lane, op.record.key
        self.no_effect_twice()
        self.states_move_forward()
        self.one_terminal_line_per_admission()
        self.agent_stack.close()
        view = read_journal(self.state_dir)
        assert not view.quarantined

    def _is_honest(self, record: Record) -> None:
        """What the journal says of a grant is what happened to its lease, which no other ticket grants."""
        assert "refuses the result" not in (record.withdrawn or ""), record.withdrawn
        if resolution_of(record) is not None and record.staged is not None:
            assert '"state":"succeeded"' not in record.staged.line
        request = json.loads(record.request)
        if request["action"] != "gpu.lease.grant" or record.result is None or record.plan is None:
            return
        applied = self.hive.effect_count("grant", request["operation_id"])
        if record.result.outcome == "confirmed":
            assert applied == 1
        elif record.result.outcome == "rejected":
            assert applied == 0, record.result.message


class NewRoot(Machine):
    """Rings, offsets, root's own word on each admission."""

    profile = DEFAULT


class FirstRoot(Machine):
    """Logs that drop nothing, no offsets, telemetry alone, several open admissions per Worker."""

    profile = HiveProfile(
        **{name: getattr(STRICT_A, name) for name in STRICT_A.__dataclass_fields__}
        | {"slots_per_role": 4, "log_bytes": 1 << 20, "log_frames": None}
    )


BOUNDED = settings(
    max_examples=60,
    stateful_step_count=20,
    deadline=None,
    database=None,
    derandomize=True,
    suppress_health_check=list(HealthCheck),
)
TestNewRoot = NewRoot.TestCase
TestNewRoot.settings = BOUNDED
TestFirstRoot = FirstRoot.TestCase
TestFirstRoot.settings = BOUNDED
