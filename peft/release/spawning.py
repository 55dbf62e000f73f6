"""Fork and execute one program, with a gate between the two: it runs when its identity is on disk."""

from __future__ import annotations

import os
import resource
import signal
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from ticket_agent.peft.release.niceness import give_way
from ticket_agent.peft.release.prctl import die_with_parent, gain_no_privileges

if TYPE_CHECKING:
    from ticket_agent.peft.release.supervise_spec import SuperviseSpec

__all__ = ["GatedChild"]

_PREFERRED_OOM_VICTIM = b"500"
_RESET = (signal.SIGPIPE, signal.SIGXFSZ, signal.SIGHUP, signal.SIGINT, signal.SIGTERM)


class GatedChild:
    """A forked child that waits; it dies with the process that forked it.

    Only for a process with a single thread.

    Attributes:
        pid: the child's.
    """

    def __init__(self, spec: SuperviseSpec, output_fd: int) -> None:
        gate_r, self._gate = os.pipe()
        self._failure, failure_w = os.pipe()
        parent = os.getpid()
        self.pid = os.fork()
        if self.pid == 0:
            try:
                os.close(self._gate)
                _become(spec, output_fd, gate_r, parent)
            except BaseException as error:  # noqa: BLE001 - whatever it is, the parent must hear of it
                with suppress(OSError):
                    os.write(failure_w, f"{spec.argv[0]}: {error}".encode(errors="backslashreplace")[:300])
            finally:
                os._exit(127)
        os.close(gate_r)
        os.close(failure_w)

    def release(self) -> str | None:
        """Let it execute its program; None when it does, else the reason why it could not."""
        os.write(self._gate, b"g")
        os.close(self._gate)
        said = os.read(self._failure, 512)  # closed by a successful exec
        os.close(self._failure)
        return said.decode(errors="backslashreplace") or None


def _become(spec: SuperviseSpec, output_fd: int, gate_fd: int, parent: int) -> NoReturn:
    os.setsid()
    die_with_parent()
    if os.getppid() != parent:
        os._exit(127)
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.dup2(output_fd, 1)
    os.dup2(output_fd, 2)
    if os.read(gate_fd, 1) != b"g":
        os._exit(127)
    # If memory runs out, the kernel shall take the phase and leave those who can tell about it.
    with suppress(OSError):
        Path("/proc/self/oom_score_adj").write_bytes(_PREFERRED_OOM_VICTIM)
    give_way(spec.niceness)
    if spec.no_new_privileges:
        gain_no_privileges()
    for number in _RESET:
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    os.chdir(spec.cwd)
    for name, value in spec.rlimits.items():
        _limit(getattr(resource, name), value)
    os.execve(spec.argv[0], spec.argv, spec.environment)  # noqa: S606 - no shell is the point


def _limit(kind: int, value: int) -> None:
    hard = resource.getrlimit(kind)[1]
    if hard != resource.RLIM_INFINITY:
        value = min(value, hard)
    resource.setrlimit(kind, (value, value))
