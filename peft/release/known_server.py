"""A model server that was noted down: to be asked, to be looked at, and to be ended, by whatever process."""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

from ticket_agent.peft.errors import PeftError, PeftIoError
from ticket_agent.peft.names import shown
from ticket_agent.peft.release.launch_errors import PhaseStopError
from ticket_agent.peft.release.loopback import LoopbackClient
from ticket_agent.peft.release.phase_command import MARKER_VARIABLE
from ticket_agent.peft.release.process import descendants, marked, send_signal
from ticket_agent.peft.release.run_files import EndReason
from ticket_agent.peft.release.running_phase import Finished, Lost, Running, RunningPhase
from ticket_agent.peft.release.server_record import ENDING_SUFFIX, RUN_SUFFIX

if TYPE_CHECKING:
    from ticket_agent.peft.release.phase_log import PhaseLog
    from ticket_agent.peft.release.process import ProcessIdentity
    from ticket_agent.peft.release.run_files import RunRecord
    from ticket_agent.peft.release.server_record import ServerRecord
    from ticket_agent.peft.release.serving import Backend, Instance
    from ticket_agent.peft.release.stack import Caps

__all__ = ["KnownServer"]

KILL_S: Final = 10.0
"""How long ending every process of a server may take, in seconds."""
_LOG_LINES: Final = 6
_LOG_CHARACTERS: Final = 160
_WRAPPERS: Final = frozenset({"bwrap", "systemd-run"})
"""Programs that stand between a supervisor and its server; a signal would end them, and it, at once."""


class KnownServer:
    """One server, from before its start until its files are removed. Making one touches nothing.

    Attributes:
        launch_id: names its launch.
        record: what was noted down.
        instance: what it serves, and how it is asked.
        backend: its kind.
        phase: its process.
    """

    def __init__(self, servers: Path, record: ServerRecord, *, token: str) -> None:
        self.launch_id: Final = record.launch_id
        self.record: Final = record
        run_dir = servers / record.launch_id
        self.instance: Final[Instance] = record.instance(run_dir=str(run_dir), token=token)
        self.backend: Final[Backend] = record.backend
        self._servers = servers
        self.phase: Final = RunningPhase(
            servers / f"{record.launch_id}{RUN_SUFFIX}", launch_id=self.launch_id
        )

    @property
    def caps(self) -> Caps:
        """What it may use."""
        return self.record.caps

    @property
    def bundle_sha256(self) -> str:
        """The bundle that it was started with, by the name of its directory."""
        return Path(self.instance.bundle).name

    def running(self) -> bool | None:
        """Tell whether any process of it is alive; None: that cannot be told."""
        try:
            state = self.phase.poll()
            if isinstance(state, Lost):
                return bool(_left(state.record))
        except (PeftError, OSError):
            return None
        return isinstance(state, Running)

    @property
    def ending(self) -> bool:
        """Somebody has asked it to end, or was about to; it may still run for a while."""
        return (self._servers / f"{self.launch_id}{ENDING_SUFFIX}").exists()

    def usable(self) -> bool:
        """It runs, and nobody has asked it to end: whoever needs it later will find it."""
        return self.running() is True and not self.ending

    def identity(self) -> str:
        """Name the very process that serves; ``gone`` when there is none."""
        try:
            state = self.phase.poll()
        except PeftError as error:
            return f"unknown: {error.code}"
        if not isinstance(state, Running) or state.record is None:
            return "gone"
        child = state.record.child
        return f"{child.boot_id}/{child.pid}/{child.start_ticks}"

    def client(self) -> LoopbackClient:
        """Requests to it."""
        return LoopbackClient(port=self.instance.port, token=self.instance.token)

    def log(self) -> PhaseLog:
        """What was kept of its output. Raises PeftIoError."""
        return self.phase.log()

    def last_lines(self) -> list[str]:
        """The end of its log: a few lines of short plain ASCII, never its token."""
        try:
            lines = self.log().lines()
        except PeftError as error:
            lines = [f"its log cannot be read: {error}"]
        told = [line.replace(self.instance.token, "(token)") for line in lines if line.strip()]
        plain = [line.encode("ascii", "backslashreplace").decode("ascii") for line in told[-_LOG_LINES:]]
        return [shown(line, _LOG_CHARACTERS).replace("…", "~") for line in plain]

    def ended(self) -> str | None:
        """How it ended, in a few words; None while it runs or where nobody knows."""
        try:
            state = self.phase.poll()
        except PeftError:
            return None
        if not isinstance(state, Finished):
            return None
        end = state.record
        if end.reason is EndReason.EXITED:
            return (
                f"ended by itself with {f'code {end.code}' if end.signal is None else f'signal {end.signal}'}"
            )
        return f"ended: {end.reason}"

    def stop(self) -> None:
        """Ask it to end when it has answered what it has begun. Does not wait for that.

        Raises:
            PhaseStopError: nobody could be asked, and something of it may still run.
            PeftError: what runs is not known.
        """
        state = self.phase.poll()
        if not isinstance(state, Running | Lost):
            return
        self._note_ending()
        asked = state.record is not None and [
            identity for identity in _programs(state.record) if send_signal(identity, signal.SIGTERM)
        ]
        if not asked and self.running() is not False:
            raise PhaseStopError(f"server {self.launch_id} could not be asked to end; kill it")

    def kill(self) -> None:
        """End every process of it at once. Idempotent.

        Raises:
            PhaseStopError: something may still run; call again.
            PeftError: what runs is not known.
        """
        self._note_ending()
        self.phase.stop(timeout_s=KILL_S)

    def _note_ending(self) -> None:
        """Durable before the first signal: what still runs then is not taken for what goes on running."""
        try:
            directory = os.open(self._servers, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                flags = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
                os.close(os.open(f"{self.launch_id}{ENDING_SUFFIX}", flags, 0o600, dir_fd=directory))
                os.fsync(directory)
            finally:
                os.close(directory)
        except OSError as error:
            raise PeftIoError(f"noting down that server {self.launch_id} ends", error) from error


def _left(record: RunRecord) -> list[ProcessIdentity]:
    """What is still there of a server whose supervisor was killed."""
    left = marked(MARKER_VARIABLE, record.marker)
    return [*left, record.child] if record.child.is_running() else left


def _programs(record: RunRecord) -> list[ProcessIdentity]:
    """The server itself: the outermost process of the launch that is no confining program."""
    # Started as a service of systemd it is nobody's child here, so what tells is the launch's variable.
    found = {identity.pid: identity for identity in marked(MARKER_VARIABLE, record.marker)}
    if record.unit is None and record.child.is_running():
        found[record.child.pid] = record.child
    programs = {pid: identity for pid, identity in found.items() if _command(pid) not in _WRAPPERS}
    below = {inner.pid for pid in programs for inner in descendants(pid)}
    return [identity for pid, identity in programs.items() if pid not in below]


def _command(pid: int) -> str:
    with suppress(OSError), open(f"/proc/{pid}/comm", "rb") as stream:  # noqa: PTH123 - one of many
        return os.fsdecode(stream.read(64).strip())
    return ""
