"""What the crash tests did, collected for the end of the run."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

__all__ = [
    "BOUNDARIES",
    "CAUGHT",
    "NOTES",
    "STATES",
    "SWEEPS",
    "Sweep",
    "handed_over",
    "summary_lines",
    "take_over",
]

BOUNDARIES = "boundaries"
STATES = "crash states"


@dataclass
class Sweep:
    """Runs over the boundaries of one recording.

    Attributes:
        name: where it was done.
        faults: what was done at each boundary.
        possible: how many runs there could have been.
        unit: what is counted: boundaries of calls, or states that a cut can leave.
        runs: how many there were.
        missed: labels of the runs in which the boundary was never met.
        violations: what the oracle or the test found wrong, one line each.
        seconds: wall-clock time.
    """

    name: str
    faults: tuple[str, ...]
    possible: int
    unit: str = BOUNDARIES
    runs: int = 0
    missed: list[str] = field(default_factory=list)
    violations: list[str] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def boundaries(self) -> int:
        """How many places there are to do it at."""
        return self.possible // len(self.faults)

    def line(self) -> str:
        return (
            f"{self.name}: {self.boundaries} {self.unit} x {_counted(self.faults)}, "
            f"{self.runs} of {self.possible} runs, {len(self.missed)} missed, "
            f"{len(self.violations)} violations, {self.seconds:.1f} s"
        )


SWEEPS: list[Sweep] = []
CAUGHT: dict[str, str] = {}
"""Check that caught each mutant, by the mutant's name."""
NOTES: list[str] = []
"""What else is worth a line."""


def handed_over() -> dict[str, Any]:
    """What this process did, as plain values."""
    return {"sweeps": [asdict(sweep) for sweep in SWEEPS], "caught": CAUGHT, "notes": NOTES}


def take_over(done: dict[str, Any]) -> None:
    """Add what another process did."""
    SWEEPS.extend(Sweep(**sweep) for sweep in done["sweeps"])
    CAUGHT.update(done["caught"])
    NOTES.extend(done["notes"])


def summary_lines() -> list[str]:
    """Every sweep, every mutant, and one line over all sweeps."""
    lines = [sweep.line() for sweep in SWEEPS]
    if CAUGHT:
        width = max(len(name) for name in CAUGHT)
        lines += [f"{name:<{width}}  caught by  {check}" for name, check in CAUGHT.items()]
        lines.append(f"{len(CAUGHT)} mutants caught")
    lines += NOTES
    lines += [_total(unit) for unit in (STATES, BOUNDARIES) if any(sweep.unit == unit for sweep in SWEEPS)]
    return lines


def _total(unit: str) -> str:
    sweeps = [sweep for sweep in SWEEPS if sweep.unit == unit]
    faults = dict.fromkeys(fault for sweep in sweeps for fault in sweep.faults)
    runs, possible = sum(sweep.runs for sweep in sweeps), sum(sweep.possible for sweep in sweeps)
    missed = sum(len(sweep.missed) for sweep in sweeps)
    violations = sum(len(sweep.violations) for sweep in sweeps)
    return (
        f"in all: {runs} of {possible} runs at {sum(sweep.boundaries for sweep in sweeps)} {unit} "
        f"with {len(faults)} kind{'s' * (len(faults) > 1)} of fault, {missed} missed, {violations} violations"
    )


def _counted(faults: tuple[str, ...]) -> str:
    return faults[0] if len(faults) == 1 else f"{len(faults)} faults"
