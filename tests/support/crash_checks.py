"""Named checks of what must hold around crashes; each returns what is wrong, and nothing on the real code.

They are the measure for deliberate faults: every one of those must make the check that is named for it fail.
"""

from __future__ import annotations

import json
import os
from hashlib import sha256
from typing import TYPE_CHECKING

from agent_faults import APPENDS, STEPS, DyingAppends, DyingFs, Killed, blind, drop
from agent_support import Bench, agent_on
from crash_recover import one_of_each, record_at_the_seam, recover
from crash_scene import Scene, scene
from crash_states import crash_states
from hive_support import LEASE_CTL, ManualClock, raw_grant, running_hive
from journal_support import (
    KEY,
    ORDER,
    PLAN,
    FailingFs,
    MemoryFs,
    RecordingFs,
    open_store,
    prepare,
    record_file,
    steps,
    walk,
)

from ticket_agent.hive.reference import Fault, FaultKind
from ticket_agent.journal.errors import FenceHeldError, JournalPoisonedError, RecordError
from ticket_agent.journal.record import decode_record
from ticket_agent.journal.scan import scan_records
from ticket_agent.journal.transitions import State
from ticket_agent.journal.view import read_journal

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from ticket_agent.journal.fs import Fs

    Check = Callable[[Path], list[str]]

PATIENCE = 60
"""Passes after which an operation counts as stuck."""

ENOUGH = 8
"""Findings after which a long check stops."""


def _settle(bench: Bench) -> list[str]:
    try:
        bench.passes(1)
        bench.until(lambda: not bench.store.open_records(), limit=PATIENCE)
    except AssertionError as stuck:
        return [f"stuck: {stuck}"]
    return []


def _life(stage: Scene, clock: ManualClock, fs: Fs | None = None) -> list[str]:
    """An undisturbed life in this process, to its end or to the death that ``fs`` holds."""
    with agent_on(stage.server, stage.state_dir, clock=clock, fs=fs) as bench:
        try:
            return _settle(bench)
        except Killed:
            drop(bench)
            return []
        finally:
            stage.oracle.after_life()


# -- the store alone -----------------------------------------------------------------------------------------


def power_cuts(tmp: Path) -> list[str]:
    """No power cut tears a record or takes back a step that had returned."""
    fs = RecordingFs()
    with open_store(tmp / "state", fs=fs) as store:
        fs.log.clear()
        for step in steps(store):
            fs.note("begin")
            step()
            fs.note("done")
    found = []
    for cut in crash_states((op for op in fs.log if op.folder in ("", "ops")), "ordered"):
        scan = scan_records(MemoryFs(cut.listed("ops")), 0)
        found += [f"torn: {bad.reason}" for bad in scan.quarantined]
        record = scan.records.get(KEY)
        reached = 0 if record is None else ORDER.index(record.state) + 1
        if not scan.quarantined and not cut.done <= reached <= cut.begun:
            found.append(f"{reached} steps are left of {cut.done}")
    return found


def stale_temporary(tmp: Path) -> list[str]:
    """A complete temporary with an older state changes nothing at the next start."""
    with open_store(tmp / "state") as store:
        walk(store, upto=State.PREPARED)
        path = record_file(tmp / "state")
        older = path.read_bytes()
        store.dispatch(KEY, PLAN)
    path.with_name(f".{path.name}.1.0.tmp").write_bytes(older)
    with open_store(tmp / "state") as store:
        state = store.records[KEY].state
    return [] if state is State.EXECUTING else [f"the operation went back to {state}"]


def failed_fsync(tmp: Path) -> list[str]:
    """A failed fsync is final: the store writes nothing any more, and does not ask again."""
    fs = FailingFs(names=["fsync"], at=1)
    found = []
    with open_store(tmp / "state", fs=fs) as store:
        prepare(store)
        for attempt in ("at once", "later"):
            try:
                store.dispatch(KEY, PLAN)
            except JournalPoisonedError:
                continue
            found.append(f"dispatched {attempt}, although the plan's fsync had failed")
            break
    return found


def every_byte(tmp: Path) -> list[str]:
    """A changed bit in any byte of a record is noticed."""
    with open_store(tmp / "state") as store:
        walk(store)
    data = record_file(tmp / "state").read_bytes()
    found = []
    for at in range(len(data)):
        changed = bytearray(data)
        changed[at] ^= 1 << (at % 7)
        try:
            decode_record(bytes(changed))
        except RecordError:
            continue
        found.append(f"a changed bit in byte {at} went unnoticed")
    return found


def other_serialisation(tmp: Path) -> list[str]:
    """A record that another version wrote with other blanks and another order of members is read."""
    with open_store(tmp / "state") as store:
        walk(store)
    path = record_file(tmp / "state")
    ours = decode_record(path.read_bytes())
    members = json.loads(path.read_bytes().split(b"\n", 1)[1])
    body = json.dumps(dict(reversed(members.items())), separators=(", ", ": ")).encode() + b"\n"
    head = f"ticket-agent-journal/v1 sha256={sha256(body).hexdigest()} bytes={len(body)}\n".encode()
    path.write_bytes(head + body)
    with open_store(tmp / "state") as store:
        found = [bad.reason for bad in store.quarantined]
        return found or ([] if store.records[KEY] == ours else ["it reads differently"])


def fence(tmp: Path) -> list[str]:
    """Exactly a living owner keeps others out, whatever the lock file says about processes."""
    found = []
    with open_store(tmp / "state"):
        try:
            open_store(tmp / "state").close()
        except FenceHeldError:
            pass
        else:
            found.append("two owners at once")
    # A dead owner's process id belongs to somebody else by now.
    (tmp / "state" / "agent.lock").write_text(f"pid={os.getppid()} boot_id=b started_unix_ms=1\n")
    try:
        open_store(tmp / "state").close()
    except FenceHeldError as error:
        found.append(f"a dead owner keeps us out: {error}")
    return found


# -- the agent on a hive -------------------------------------------------------------------------------------


def every_crash_state(tmp: Path) -> list[str]:
    """A real agent recovers from every content that a power cut can leave of another one's directory."""
    recording = record_at_the_seam("grant", tmp / "recording")
    found: list[str] = []
    for number, state in enumerate(one_of_each(crash_states(recording.log, "ordered"), seed=1)):
        found += recover(recording, state, tmp / f"cut-{number}")
        if len(found) > ENOUGH:
            break
    return found


def death_at_every_step(tmp: Path) -> list[str]:
    """Death before and after each durable step and each append, then a restart."""
    found = []
    for at in range(len(STEPS)):
        for durable in (True, False):
            clock = ManualClock()
            with scene("grant", tmp / f"step-{at}-{durable}", clock=clock) as stage:
                wrong = _life(stage, clock, DyingFs(at, durable=durable)) + _life(stage, clock)
                found += [f"{STEPS[at]}: {text}" for text in wrong + stage.oracle.verdict()]
    for at in range(len(APPENDS)):
        for sent in (True, False):
            clock = ManualClock()
            with scene("grant", tmp / f"append-{at}-{sent}", clock=clock) as stage:
                wrong = _die_at_append(stage, clock, at, sent=sent) + _life(stage, clock)
                found += [f"{APPENDS[at]}: {text}" for text in wrong + stage.oracle.verdict()]
    return found


def _die_at_append(stage: Scene, clock: ManualClock, at: int, *, sent: bool) -> list[str]:
    with agent_on(stage.server, stage.state_dir, clock=clock) as bench:
        dying = DyingAppends(bench.namespace, at, sent=sent)
        bench.namespace.append = dying  # type: ignore[method-assign]
        try:
            return _settle(bench)
        except Killed:
            drop(bench)
            return []
        finally:
            stage.oracle.after_life()


def lost_answer(tmp: Path) -> list[str]:
    """A command whose answer was lost is looked for, and never sent a second time."""
    found = []
    for kind in (FaultKind.DROP_AFTER, FaultKind.DROP_BEFORE):
        clock, sent = ManualClock(), list[str]()
        with scene("grant", tmp / kind.value, clock=clock) as stage:

            def count(line: str, sent: list[str] = sent) -> bool:
                sent.append(line)
                return True

            stage.server.faults.add(Fault(kind=kind, verb="ECHO", prefix=LEASE_CTL, predicate=count, nth=1))
            found += [f"{kind}: {text}" for text in _life(stage, clock) + stage.oracle.verdict()]
            if len(sent) != 1:
                found.append(f"{kind}: sent {len(sent)} times")
    return found


def blind_observation(tmp: Path) -> list[str]:
    """A hive that cannot be read proves nothing about the effect: the operation waits, visibly uncertain."""
    clock = ManualClock()
    with scene("grant", tmp / "blind", clock=clock) as stage:
        blind(stage.server)
        found = _die_at_append(stage, clock, APPENDS.index("effect"), sent=True)
        with agent_on(stage.server, stage.state_dir, clock=clock) as bench:
            for _ in range(3):
                bench.hurry()
                bench.passes(1)
            record = bench.record("t1")
            if record.state is not State.EXECUTING or record.uncertain is None:
                found.append(f"blind, and yet {record.state}")
            stage.server.faults.clear()
            found += _settle(bench)
        return found + stage.oracle.verdict()


def cursor_behind_records(tmp: Path) -> list[str]:
    """The cursor's completion fence never passes an operation that is open."""
    clock = ManualClock()
    with scene("two-lanes", tmp / "cursor", clock=clock) as stage:
        stage.server.faults.add(Fault(kind=FaultKind.ERR, verb="CAT", prefix="/proc/lease/by-id/lease-1"))
        with agent_on(stage.server, stage.state_dir, clock=clock) as bench:
            bench.until(lambda: len(bench.store.open_records()) == 1)
            bench.agent.save_cursor()
        view = read_journal(stage.state_dir)
        through = view.cursor.completed_through(view.cursor.epoch)
        found = [
            f"the cursor stands at {through}, {record.sequence} is {record.state}"
            for record in view.records.values()
            if not record.terminal and record.sequence <= through
        ]
        stage.server.faults.clear()
        return found + _life(stage, clock) + stage.oracle.verdict()


def damaged_record(tmp: Path) -> list[str]:
    """A record that cannot be read is shown, left as it is, and its operation is not executed again."""
    clock = ManualClock()
    found = []
    for append, effects in (("running", 0), ("effect", 1)):
        with scene("grant", tmp / append, clock=clock) as stage:
            found += _die_at_append(stage, clock, APPENDS.index(append), sent=True)
            path = record_file(stage.state_dir)
            data = bytearray(path.read_bytes())
            data[len(data) // 2] ^= 1
            path.write_bytes(data)
            with agent_on(stage.server, stage.state_dir, clock=clock) as bench:
                if [bad.name for bad in bench.store.quarantined] != [path.name]:
                    found.append("the damaged record is not shown")
                for _ in range(3):
                    bench.hurry()
                    bench.passes(1)
            if path.read_bytes() != data:
                found.append("the damaged record was changed")
            if stage.oracle.effects() != effects:
                found.append(f"{stage.oracle.effects()} effects in place of {effects}")
    return found


def expiry(tmp: Path) -> list[str]:
    """An operation whose time is over ends as stale, before dispatch and while nobody can tell."""
    found = []
    for uncertain in (False, True):
        clock = ManualClock()
        with running_hive(clock=clock) as (hive, server):
            worker = hive.spawn_worker("worker-gpu").worker_id
            hive.submit(raw_grant(hive, worker, "t1", "lease-1", expires=clock() + 60_000))
            if uncertain:
                blind(server)
            else:
                server.faults.add(Fault(kind=FaultKind.ERR, verb="CAT", prefix="/proc/lease"))
            with agent_on(server, tmp / f"state-{uncertain}", clock=clock) as bench:
                bench.passes(3)
                wanted = State.EXECUTING if uncertain else State.PREPARED
                if bench.record("t1").state is not wanted:
                    found.append(f"{bench.record('t1').state} before the expiry")
                clock.advance(120_000)
                found += _settle(bench)
                result = bench.record("t1").result
                if result is None or result.outcome != "stale":
                    found.append(f"expired, and yet {result}")
    return found


CHECKS: dict[str, Check] = {
    check.__name__.replace("_", "-"): check
    for check in (
        power_cuts,
        stale_temporary,
        failed_fsync,
        every_byte,
        other_serialisation,
        fence,
        every_crash_state,
        death_at_every_step,
        lost_answer,
        blind_observation,
        cursor_behind_records,
        damaged_record,
        expiry,
    )
}
