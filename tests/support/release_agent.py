"""An agent that performs releases, as a process to be killed: a journal of tickets and the real provider.

Run as a program it imports everything once, then forks one agent for every line of JSON on standard input and
answers with its pid. An order has ``lab`` (the release directory), ``talk`` (where it says what it
does), ``config``, ``tickets`` (each as root
admitted it) and what goes wrong: ``die`` (``at`` a method, ``when``, of which ``phase``, the ``nth`` call),
``mutant`` (a name of ``release_mutants``), ``calls`` (die before that call that changes a file; -1: count).

What it did last is in ``<talk>/told.json``; it ends with 0 when all tickets have ended, with 3 when one is
uncertain and stays so, and with 1 when it must.
"""

from __future__ import annotations

import ctypes
import gc
import importlib
import json
import os
import signal
import sys
import time
import traceback
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from ticket_agent.journal.errors import JournalPoisonedError, StorageFullError
from ticket_agent.journal.outcome import Outcome, PlanRefusedError, PlanWaitsError, Underway, Unknown
from ticket_agent.journal.record import ProviderResult, StagedResult
from ticket_agent.journal.recovery import Admission, Facts, Visible, settle_observation, settled
from ticket_agent.journal.store import JournalStore
from ticket_agent.journal.transitions import State
from ticket_agent.peft.release import phase_starter
from ticket_agent.peft.release.confine import Unconfined
from ticket_agent.peft.release.detect import Detection
from ticket_agent.peft.release.launcher import ConfinedLauncher
from ticket_agent.peft.release.phase_machine import Allowed
from ticket_agent.peft.release.provider import ReleaseProvider
from ticket_agent.peft.release.release_config import ReleaseConfig
from ticket_agent.peft.release.release_host import ReleaseHost
from ticket_agent.protocol.spec import parse_spec

if TYPE_CHECKING:
    from collections.abc import Callable

    from ticket_agent.journal.record import Record
    from ticket_agent.protocol.spec import HostTicketSpec

FAMILY = "v2"
PAUSE_S = 0.004
SAME = 3
"""So many answers alike, and an uncertain release is left alone."""
CHANGES = ("fsync", "rename", "mkdir", "unlink", "rmdir", "link")
PR_SET_PDEATHSIG = 1


def detection() -> Detection:
    return Detection(launcher=ConfinedLauncher(Unconfined()), unconfined=True, verdicts=(), passed_over=())


def config_of(members: dict[str, Any]) -> ReleaseConfig:
    paths = {"root", "python", "token_file", "signing_key", "evidence_root"}
    known = {name: Path(value) if name in paths and value else value for name, value in members.items()}
    return ReleaseConfig(**(known | {"ports": tuple(members["ports"])}))


@dataclass
class _Op:
    spec: HostTicketSpec
    record: Record
    last: str = ""
    same: int = 0
    why: str = ""


class Life:
    """One life of the agent."""

    def __init__(self, order: dict[str, Any]) -> None:
        self.lab, self.talk = Path(order["lab"]), Path(order["talk"])
        config = config_of(order["config"])
        vars(phase_starter)["sys"] = SimpleNamespace(executable=str(config.python))
        host = ReleaseHost(
            config=config, owner_uid=os.geteuid(), clock=self.clock, boot_id="boot", agent_version="1+test"
        )
        host._detection = detection()
        self.provider = ReleaseProvider(
            host=host, authority=self.authority, clock=self.clock, monotonic=self.monotonic
        )
        self.store = JournalStore.open(
            self.lab / "state", clock=self.clock, boot_id="boot", agent_version="1+test"
        )
        self.ops = [self._op(text.encode()) for text in order["tickets"]]
        self.longest_s = 0.0

    def _op(self, data: bytes) -> _Op:
        spec = parse_spec(data, source="admitted")
        assert spec.admission_sequence is not None
        record = self.store.records.get(spec.id)
        if record is None:
            record = self.store.prepare(
                key=spec.id, family=FAMILY, epoch=1, sequence=spec.admission_sequence, request=data
            )
        return _Op(spec, record)

    # -- what the test changes from outside -----------------------------------------------------------------

    def clock(self) -> int:
        return time.time_ns() // 1_000_000 + self.offset("clock")

    def monotonic(self) -> float:
        return time.monotonic() + self.offset("monotonic")

    def offset(self, name: str) -> int:
        try:
            return int((self.lab / name).read_bytes())
        except FileNotFoundError:
            return 0

    def authority(self, _: HostTicketSpec) -> tuple[Allowed, str]:
        try:
            told = (self.lab / "authority").read_text(encoding="ascii")
        except FileNotFoundError:
            return Allowed.HELD, ""
        return Allowed(told), f"its Worker is {told}"

    # -- what an agent does ----------------------------------------------------------------------------------

    def run(self) -> int:
        while True:
            self.provider.tend()
            for op in self.ops:
                if op.record.state is not State.TERMINAL:
                    self.try_step(op)
            self.tell()
            open_ones = [op for op in self.ops if op.record.state is not State.TERMINAL]
            if not open_ones:
                return 0
            if all(op.last == "Unknown" and op.same >= SAME for op in open_ones):
                return 3
            time.sleep(PAUSE_S)

    def try_step(self, op: _Op) -> None:
        try:
            self.step(op)
        except StorageFullError as error:
            self.noted(op, "Waits", str(error))

    def step(self, op: _Op) -> None:
        key = op.spec.id
        match op.record.state:
            case State.PREPARED:
                self.begin(op)
            case State.EXECUTING:
                plan = op.record.plan
                assert plan is not None
                outcome = self.timed(lambda: self.provider.observe(plan))
                self.noted(op, type(outcome).__name__, outcome.detail)
                result = settle_observation(outcome, self.facts(op))
                if result is not None:
                    op.record = self.store.settle(key, result, staged(op, result))
                elif not isinstance(outcome, Underway):
                    op.record = self.store.note_uncertain(key, outcome.detail)
            case State.PERSISTED:
                op.record = self.store.publish(key)
            case State.PUBLISHED:
                op.record = self.store.finish(key)

    def begin(self, op: _Op) -> None:
        key = op.spec.id
        if self.facts(op).expired:
            return self.refuse(op, "stale", "ticket expired before dispatch; nothing was done")
        try:
            plan = self.provider.plan(op.spec)
        except PlanRefusedError as error:
            return self.refuse(op, "rejected", str(error))
        except PlanWaitsError as error:
            return self.noted(op, "Waits", str(error))
        op.record = self.store.dispatch(key, plan)
        outcome = self.timed(lambda: self.provider.execute(plan))
        self.noted(op, type(outcome).__name__, outcome.detail)
        result = settled(outcome, reconciled=False)
        if result is not None:
            op.record = self.store.settle(key, result, staged(op, result))
        return None

    def refuse(self, op: _Op, outcome: Any, why: str) -> None:
        self.noted(op, "Refused", why)
        result = ProviderResult(outcome=outcome, message=why[:192], evidence={})
        op.record = self.store.refuse(op.spec.id, result, staged(op, result))

    def facts(self, op: _Op) -> Facts:
        return Facts(
            now_unix_ms=self.clock(),
            expires_unix_ms=op.spec.expires_unix_ms,
            visible=Visible.NONE,
            admission=Admission.KNOWN,
        )

    def timed(self, call: Callable[[], Outcome]) -> Outcome:
        began = time.monotonic()
        try:
            return call()
        except JournalPoisonedError:
            raise
        except Exception as error:  # noqa: BLE001 - as the agent does; the test looks for it
            traceback.print_exc()
            return Unknown(f"{type(error).__name__} escaped: {error}")
        finally:
            self.longest_s = max(self.longest_s, time.monotonic() - began)

    def noted(self, op: _Op, kind: str, why: str) -> None:
        op.same = op.same + 1 if (kind, why) == (op.last, op.why) else 0
        op.last, op.why = kind, why

    def tell(self) -> None:
        told = {
            op.spec.id: {
                "state": op.record.state.value,
                "outcome": None if op.record.result is None else op.record.result.outcome,
                "message": None if op.record.result is None else op.record.result.message,
                "last": op.last,
                "why": op.why,
            }
            for op in self.ops
        }
        path, new = self.talk / "told.json", self.talk / "told.new"
        new.write_text(json.dumps(told | {"longest_s": self.longest_s}), encoding="utf-8")
        new.replace(path)


def staged(op: _Op, result: ProviderResult) -> StagedResult:
    line = json.dumps({"id": op.spec.id, "outcome": result.outcome, "message": result.message})
    return StagedResult(path="/results", line=line)


# -- dying --------------------------------------------------------------------------------------------------


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def dying(at: str, when: str, *, phase: str | None, nth: int) -> None:
    """SIGKILL before or after the ``nth`` call of a method, of those that a phase is an argument of."""
    module, _, path = at.partition(":")
    owner_name, _, method = path.partition(".")
    owner = getattr(importlib.import_module(module), owner_name)
    real = getattr(owner, method)
    seen = 0

    def call(*arguments: Any, **named: Any) -> Any:
        nonlocal seen
        given = [str(value) for value in (*arguments, *named.values())]
        counts = phase is None or phase in given
        seen += counts
        if counts and seen == nth and when == "before":
            die()
        result = real(*arguments, **named)
        if counts and seen == nth:
            die()
        return result

    setattr(owner, method, call)


def dying_at_call(number: int, log: Path) -> None:
    """SIGKILL before the call with this number, from 0, that changes a file; -1 only notes them down."""
    from ticket_agent.peft import directory  # noqa: PLC0415 - of the few who count
    from ticket_agent.peft.renaming import rename_new  # noqa: PLC0415

    seen = 0

    def wrap(name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **named: Any) -> Any:
            nonlocal seen
            if seen == number:
                die()
            seen += 1
            if number < 0:
                with log.open("a", encoding="utf-8") as stream:
                    print(name, _where(arguments), file=stream)
            return real(*arguments, **named)

        return call

    for name in CHANGES:
        setattr(os, name, wrap(name, getattr(os, name)))
    vars(directory)["rename_new"] = wrap("rename_new", rename_new)


def _where(arguments: tuple[Any, ...]) -> str:
    first = arguments[0] if arguments else ""
    return os.readlink(f"/proc/self/fd/{first}") if isinstance(first, int) else str(first)  # noqa: PTH115


def live(order: dict[str, Any]) -> int:
    if order.get("mutant"):
        import release_mutants  # noqa: PLC0415 - of the few that are wrong

        release_mutants.apply(order["mutant"])
    told = order.get("die")
    if told:
        dying(told["at"], told.get("when", "after"), phase=told.get("phase"), nth=told.get("nth", 1))
    life = Life(order)
    if order.get("calls") is not None:
        dying_at_call(order["calls"], life.talk / "calls")
    try:
        return life.run()
    except JournalPoisonedError as error:
        print(f"poisoned: {error}", flush=True)
        return 1


def be_the_agent(order: dict[str, Any], parent: int) -> None:
    code = 70
    try:
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != parent:
            die()
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        output = os.open(f"{order['talk']}/agent.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        os.dup2(output, 1)
        os.dup2(output, 2)
        os.umask(0o077)
        code = live(order)
    except BaseException:  # noqa: BLE001 - a traceback is what the reader looks for
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def main() -> None:
    gc.collect()
    gc.freeze()
    print(json.dumps({"ready": True}), flush=True)
    for line in sys.stdin:
        own = os.getpid()
        pid = os.fork()
        if pid == 0:
            be_the_agent(json.loads(line), own)
        print(json.dumps({"pid": pid}), flush=True)
        sys.stdin.readline()
        _, status = os.waitpid(pid, 0)
        print(json.dumps({"status": os.waitstatus_to_exitcode(status)}), flush=True)


if __name__ == "__main__":
    main()
