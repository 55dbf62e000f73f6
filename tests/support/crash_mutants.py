"""Deliberate faults of the durable core and of the agent, switched in one at a time from outside."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from ticket_agent.agent.steps import Moved, Stepper
from ticket_agent.gpu.dispatch import Dispatcher
from ticket_agent.gpu.lease import LeaseGrant
from ticket_agent.journal.atomic import ReplaceError, Step, is_temporary
from ticket_agent.journal.envelope import open_envelope
from ticket_agent.journal.errors import FenceHeldError, RecordError
from ticket_agent.journal.fence import Fence
from ticket_agent.journal.fs import RealFs
from ticket_agent.journal.index import Index
from ticket_agent.journal.outcome import Plan, Rejected, Unknown
from ticket_agent.journal.recovery import Facts, settled
from ticket_agent.journal.scan import scan_records
from ticket_agent.journal.store import JournalStore
from ticket_agent.journal.writer import Writer
from ticket_agent.protocol.namespace import Acked, Refused

if TYPE_CHECKING:
    from collections.abc import Callable

    import pytest

    from ticket_agent.agent.operation import Operation
    from ticket_agent.journal.envelope import Kind
    from ticket_agent.journal.fs import Fs
    from ticket_agent.journal.outcome import Outcome
    from ticket_agent.journal.scan import Scan
    from ticket_agent.protocol.namespace import AppendAnswer

    Apply = Callable[[pytest.MonkeyPatch], None]

WriteStep = Literal["fsync", "fsync-again", "rename", "fsync-renamed", "fsync-dir"]


@dataclass(frozen=True)
class Mutant:
    """One fault, and the name of the check that must find it."""

    name: str
    check: str
    apply: Apply


# -- writing files -------------------------------------------------------------------------------------------


def _replace_by(*order: WriteStep) -> Apply:
    """Files are written by these steps, in this order, after their data."""

    def replace_file(fs: Fs, dir_fd: int, name: str, data: bytes, *, new: bool = False) -> None:
        temporary = f".{name}.0.0.tmp"
        fd = fs.create_new(dir_fd, temporary)
        fs.write(fd, data)
        for step in order:
            try:
                if step == "fsync-again":
                    _fsync_again(fs, fd)
                elif step == "fsync":
                    fs.fsync(fd)
                elif step == "rename":
                    (fs.rename_new if new else fs.rename)(dir_fd, temporary, name)
                elif step == "fsync-renamed":
                    _fsync_by_name(fs, fd, name)
                else:
                    fs.fsync_dir(dir_fd)
            except OSError as error:
                raise ReplaceError(Step.FSYNC, name, error) from error
        fs.close(fd)

    return lambda patch: patch.setattr("ticket_agent.journal.writer.replace_file", replace_file)


def _fsync_again(fs: Fs, fd: int) -> None:
    try:
        fs.fsync(fd)
    except OSError:
        fs.fsync(fd)


def _fsync_by_name(fs: Fs, fd: int, name: str) -> None:
    """A recording file system knows a file by the name under which it was created."""
    files = getattr(fs, "_files", None)
    if files is not None:
        files[fd] = (files[fd][0], name)
    fs.fsync(fd)


def _promote_temporaries(patch: pytest.MonkeyPatch) -> None:
    def promote(fs: Fs, dir_fd: int) -> None:
        for name in fs.list(dir_fd):
            if is_temporary(name):
                fs.rename(dir_fd, name, name[1:].rsplit(".", 3)[0])

    patch.setattr("ticket_agent.journal.store.remove_temporaries", promote)


def _forget_poison(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Writer, "require_usable", lambda _: None)


# -- reading files -------------------------------------------------------------------------------------------


def _ignore_digest(patch: pytest.MonkeyPatch) -> None:
    def trusting(kind: Kind, data: bytes) -> tuple[bytes, int]:
        del kind
        start = data.find(b"\n") + 1
        return data[start:], start

    patch.setattr("ticket_agent.journal.record.open_envelope", trusting)


def _digest_of_own_writing(patch: pytest.MonkeyPatch) -> None:
    def rewriting(kind: Kind, data: bytes) -> tuple[bytes, int]:
        body, start = open_envelope(kind, data)
        ours = json.dumps(json.loads(body), ensure_ascii=False, separators=(",", ":")).encode() + b"\n"
        if sha256(ours).digest() != sha256(body).digest():
            raise RecordError("the digest is wrong")
        return body, start

    patch.setattr("ticket_agent.journal.record.open_envelope", rewriting)


def _overwrite_damaged(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Index, "blocked", lambda *_: False)
    patch.setattr(RealFs, "rename_new", RealFs.rename)


def _damaged_is_absent(patch: pytest.MonkeyPatch) -> None:
    def blind_scan(fs: Fs, ops_fd: int) -> Scan:
        scan = scan_records(fs, ops_fd)
        scan.quarantined.clear()
        return scan

    patch.setattr("ticket_agent.journal.store.scan_records", blind_scan)


def _fence_by_process_id(patch: pytest.MonkeyPatch) -> None:
    def acquire(_: type[Fence], /, fs: Fs, root_fd: int, **options: Any) -> Fence:
        del fs, options
        path = Path(f"/proc/self/fd/{root_fd}").resolve() / "agent.lock"
        if path.exists():
            pid = int(path.read_text().split()[0].removeprefix("pid="))
            if Path(f"/proc/{pid}").exists():
                raise FenceHeldError(pid=pid, boot_id=None)
        path.write_text(f"pid={os.getpid()} boot_id=b started_unix_ms=1\n")
        return Fence(())

    patch.setattr(Fence, "acquire", classmethod(acquire))


# -- deciding and acting -------------------------------------------------------------------------------------


def _execute_before_journaling(patch: pytest.MonkeyPatch) -> None:
    def execute(self: Stepper, op: Operation, plan: Plan) -> Moved:
        outcome = op.provider.execute(plan)
        self._on(op, self._store.dispatch(op.record.key, plan), "")
        return _settle(self, op, outcome)

    patch.setattr(Stepper, "_execute", execute)


def _publish_before_persisting(patch: pytest.MonkeyPatch) -> None:
    def execute(self: Stepper, op: Operation, plan: Plan) -> Moved:
        self._on(op, self._store.dispatch(op.record.key, plan), "")
        outcome = op.provider.execute(plan)
        result = settled(outcome, reconciled=False)
        if result is not None:
            staged = self._stage(op, result)
            self._streams.publish(staged.path, staged.line)
        return _settle(self, op, outcome)

    patch.setattr(Stepper, "_execute", execute)


def _settle(stepper: Stepper, op: Operation, outcome: Outcome) -> Moved:
    result = settled(outcome, reconciled=False)
    if result is None:
        return Moved.ON
    return stepper._on(op, stepper._store.settle(op.record.key, result, stepper._stage(op, result)), "")


def _build_result_again(patch: pytest.MonkeyPatch) -> None:
    def publish(self: Stepper, op: Operation, facts: Facts) -> Moved:
        del facts
        staged = op.record.staged
        assert staged is not None
        self._streams.publish(staged.path, self._result_line(op, json.loads(staged.line)["state"], "again"))
        return self._on(op, self._store.publish(op.record.key), "")

    patch.setattr(Stepper, "_publish", publish)


def _dispatch_again_after_restart(patch: pytest.MonkeyPatch) -> None:
    def settle(self: Stepper, op: Operation, facts: Facts) -> Moved:
        del facts
        plan = op.record.plan
        assert plan is not None
        # In the session of now, as an agent would have it that plans once more.
        again = Plan(before={**plan.before, "session": self._namespace.session}, intent=plan.intent)
        return _settle(self, op, op.provider.execute(again))

    patch.setattr(Stepper, "_settle_by_observation", settle)


def _send_again(patch: pytest.MonkeyPatch) -> None:
    append = Dispatcher.append

    def twice(self: Dispatcher, path: str, line: str, *, session: int | None = None) -> AppendAnswer:
        answer = append(self, path, line, session=session)
        if not isinstance(answer, Acked | Refused):
            answer = append(self, path, line)
        return answer

    patch.setattr(Dispatcher, "append", twice)


def _blind_means_rejected(patch: pytest.MonkeyPatch) -> None:
    observe = LeaseGrant.observe

    def hasty(self: LeaseGrant, plan: Plan) -> Outcome:
        outcome = observe(self, plan)
        return Rejected(outcome.detail) if isinstance(outcome, Unknown) else outcome

    patch.setattr(LeaseGrant, "observe", hasty)


def _cursor_over_open(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(JournalStore, "completed_through", JournalStore.highest_sequence)


def _never_expired(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Facts, "expired", property(lambda _: False))


MUTANTS = (
    Mutant("no fsync of the file", "power-cuts", _replace_by("rename", "fsync-dir")),
    Mutant("no fsync of the directory", "power-cuts", _replace_by("fsync", "rename")),
    Mutant("renamed before the fsync", "power-cuts", _replace_by("rename", "fsync-renamed", "fsync-dir")),
    Mutant("a temporary is promoted", "stale-temporary", _promote_temporaries),
    Mutant(
        "a failed fsync is asked again", "failed-fsync", _replace_by("fsync-again", "rename", "fsync-dir")
    ),
    Mutant("a poisoned store goes on", "failed-fsync", _forget_poison),
    Mutant("the digest is not checked", "every-byte", _ignore_digest),
    Mutant("the digest is over JSON written again", "other-serialisation", _digest_of_own_writing),
    Mutant("a quarantined record is overwritten", "damaged-record", _overwrite_damaged),
    Mutant("a damaged record counts as absent", "damaged-record", _damaged_is_absent),
    Mutant("the fence is a process id in a file", "fence", _fence_by_process_id),
    Mutant("an agent that never syncs files", "every-crash-state", _replace_by("rename", "fsync-dir")),
    Mutant("an agent that never syncs directories", "every-crash-state", _replace_by("fsync", "rename")),
    Mutant(
        "an agent that syncs the directory first",
        "every-crash-state",
        _replace_by("fsync", "fsync-dir", "rename"),
    ),
    Mutant("a temporary is promoted after a power cut", "every-crash-state", _promote_temporaries),
    Mutant("executed before `executing` is durable", "death-at-every-step", _execute_before_journaling),
    Mutant("dispatched again after a restart", "death-at-every-step", _dispatch_again_after_restart),
    Mutant("published before it is persisted", "death-at-every-step", _publish_before_persisting),
    Mutant("the result is built anew at publication", "death-at-every-step", _build_result_again),
    Mutant("an unknown answer is sent again", "lost-answer", _send_again),
    Mutant("an error while observing means not applied", "blind-observation", _blind_means_rejected),
    Mutant("the cursor passes an open operation", "cursor-behind-records", _cursor_over_open),
    Mutant("the expiry is ignored", "expiry", _never_expired),
)
