"""Find the confinement that works on this host, by running something in it and looking from inside."""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from ticket_agent.peft.errors import PeftError
from ticket_agent.peft.release import probe
from ticket_agent.peft.release.confine import Bubblewrap, SystemdRun, Unconfined
from ticket_agent.peft.release.guarantees import REQUIRED, Expected, Guarantee, Verdict, judge
from ticket_agent.peft.release.launch_errors import LaunchError, NoLauncherError
from ticket_agent.peft.release.launcher import ConfinedLauncher, python_paths
from ticket_agent.peft.release.output_ring import OutputBounds
from ticket_agent.peft.release.phase_command import PhaseCommand, PhaseLimits, phase_environment
from ticket_agent.peft.release.running_phase import Finished

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from ticket_agent.peft.release.confine import Confinement
    from ticket_agent.peft.release.launcher import Launcher

__all__ = ["Detection", "candidates", "describe", "detect", "evidence", "examine"]

_PROBE_S: Final = 30.0
_LIMITS: Final = PhaseLimits(
    file_bytes=1 << 20, address_space_bytes=4 << 30, memory_bytes=1 << 30, scratch_bytes=1 << 24
)
_OUTPUT: Final = OutputBounds(head_bytes=64 * 1024, piece_bytes=4096)


@dataclass(frozen=True, slots=True, kw_only=True)
class Detection:
    """What runs phases here.

    Attributes:
        launcher: use this.
        unconfined: the configuration allowed to run without confinement, and that is what happens.
        verdicts: what it holds.
        passed_over: what was tried before it, by name, and why it is not used.
    """

    launcher: Launcher
    unconfined: bool
    verdicts: tuple[Verdict, ...]
    passed_over: tuple[tuple[str, str], ...]

    @property
    def held(self) -> frozenset[Guarantee]:
        """The guarantees that it holds."""
        return frozenset(verdict.guarantee for verdict in self.verdicts if verdict.held)


def candidates(
    environment: Mapping[str, str] | None = None,
) -> tuple[list[Confinement], list[tuple[str, str]]]:
    """What could work here, best first, and what cannot, by name, with the reason."""
    environment = os.environ if environment is None else environment
    found: list[Confinement] = []
    absent: list[tuple[str, str]] = []
    run, control = shutil.which("systemd-run"), shutil.which("systemctl")
    system = Path("/run/systemd/system").is_dir()
    user = Path(environment.get("XDG_RUNTIME_DIR", "/nonexistent"), "systemd/private").exists()
    if run is None or control is None:
        absent.append(("systemd", "systemd-run is not installed"))
    elif not system and not user:
        absent.append(("systemd", "no manager of systemd is running"))
    else:
        if user:
            found.append(SystemdRun.of_host(run, control, "user", environment))
        if system and os.geteuid() == 0:
            found.append(SystemdRun.of_host(run, control, "system", environment))
    if (bwrap := shutil.which("bwrap")) is None:
        absent.append(("bubblewrap", "bwrap is not installed"))
    else:
        found.append(Bubblewrap.of_host(bwrap))
    return found, absent


def detect(
    *,
    unconfined: bool,
    choice: Iterable[Confinement] | None = None,
    scratch: Path | None = None,
) -> Detection:
    """Return the first confinement that holds what is required.

    Args:
        unconfined: whether the configuration allows to run phases without, when none works.
        choice: what to try; what this host offers by default.
        scratch: directory for the trial's files; the one for temporary files by default.

    Raises:
        NoLauncherError: none works, and running without is not allowed.
    """
    tried, passed_over = ([*choice], []) if choice is not None else candidates()
    for confinement in tried:
        try:
            verdicts = examine(confinement, scratch=scratch)
        except PeftError as error:
            passed_over.append((confinement.name, str(error)))
            continue
        if broken := [verdict for verdict in verdicts if verdict.guarantee in REQUIRED and not verdict.held]:
            passed_over.append((confinement.name, "; ".join(verdict.detail for verdict in broken)))
            continue
        return _detection(confinement, verdicts, passed_over, unconfined=False)
    if unconfined:
        return _detection(Unconfined(), examine(Unconfined(), scratch=scratch), passed_over, unconfined=True)
    reasons = "; ".join(f"{name}: {reason}" for name, reason in passed_over) or "nothing to try"
    raise NoLauncherError(
        f"no confinement works here; install bubblewrap, or allow unconfined = true ({reasons})"
    )


def _detection(
    confinement: Confinement,
    verdicts: Sequence[Verdict],
    passed_over: list[tuple[str, str]],
    *,
    unconfined: bool,
) -> Detection:
    return Detection(
        launcher=ConfinedLauncher(confinement),
        unconfined=unconfined,
        verdicts=tuple(verdicts),
        passed_over=tuple(passed_over),
    )


def examine(confinement: Confinement, *, scratch: Path | None = None) -> tuple[Verdict, ...]:
    """Run the probe in a confinement.

    Raises:
        LaunchError: it does not start or does not answer.
    """
    with (
        tempfile.TemporaryDirectory(prefix="ticket-agent-probe-", dir=scratch) as name,
        tempfile.NamedTemporaryFile(prefix="ticket-agent-probe-", dir="/tmp") as canary,
    ):
        folder = Path(name).resolve()
        command = _probe_command(folder, canary.name)
        phase = ConfinedLauncher(confinement).start(command)
        state = phase.wait(_PROBE_S + 1)
        if not isinstance(state, Finished):
            phase.stop()
            raise LaunchError("the trial did not end in time")
        lines = phase.log().lines()
        if not state.record.succeeded:
            code = state.record.code if state.record.code is not None else f"signal {state.record.signal}"
            raise LaunchError(f"the trial failed with {code}: {lines[-1] if lines else 'no output'}")
        facts = _facts(phase.log().pieces[0].data if lines else b"")
        # The launcher's random text is taken from the answer; all else must be what was given.
        wrapped = confinement.wrap(
            command, marker=facts["environment"].get("TICKET_AGENT_PHASE", ""), tasks=0
        )
        home = "/tmp" if not wrapped.home_in_run_dir else str(command.run_dir / "tmp")  # noqa: S108 - inside
        expected = Expected(
            environment=phase_environment(
                command, marker=facts["environment"].get("TICKET_AGENT_PHASE", ""), home=home
            ),
            namespaces={name: os.readlink(f"/proc/self/ns/{name}") for name in ("net", "pid", "mnt")},  # noqa: PTH115
            unit=wrapped.unit,
        )
        return judge(facts, expected)


def _facts(data: bytes) -> dict[str, Any]:
    try:
        value = json.loads(data)
    except ValueError:
        value = None
    if not isinstance(value, dict):
        raise LaunchError("the trial's answer is not what the probe writes")
    return value


def _probe_command(folder: Path, canary: str) -> PhaseCommand:
    for name in ("input", "output"):
        (folder / name).mkdir()
    (folder / "input" / "file").write_bytes(b"x")
    asked = {
        "canary": canary,
        "run_dir": str(folder / "run"),
        "input": str(folder / "input"),
        "output": str(folder / "output"),
        "file_bytes": _LIMITS.file_bytes,
    }
    return PhaseCommand(
        launch_id=f"probe-{folder.name}",
        argv=(sys.executable, "-I", "-S", str(Path(probe.__file__).resolve()), json.dumps(asked)),
        run_dir=folder / "run",
        working_dir=folder / "output",
        read_only=(*python_paths(), folder / "input"),
        writable=(folder / "output",),
        deadline_s=_PROBE_S,
        limits=_LIMITS,
        output=_OUTPUT,
    )


def describe(detection: Detection) -> tuple[str, ...]:
    """One line for people per guarantee, the launcher first."""
    name = detection.launcher.name
    first = f"phases run {'without confinement' if detection.unconfined else f'in {name}'}"
    lines = [
        f"{'yes' if verdict.held else 'no':3} {verdict.guarantee}: {verdict.detail}"
        for verdict in detection.verdicts
    ]
    lines += [f"not used: {other}: {reason}" for other, reason in detection.passed_over]
    return (first, *lines)


def evidence(detection: Detection) -> dict[str, Any]:
    """What a release's evidence states about how its phases ran; JSON values, sorted names."""
    return {
        "launcher": detection.launcher.name,
        "unconfined": detection.unconfined,
        "guarantees": {str(verdict.guarantee): verdict.held for verdict in detection.verdicts},
    }
