"""What the crash tests did, collected for the end of the run."""

from __future__ import annotations

from dataclasses import dataclass, field

__all__ = ["CAUGHT", "SWEEPS", "Sweep", "summary_lines"]


@dataclass
class Sweep:
    """Runs over the boundaries of one recording.

    Attributes:
        name: what was done at each boundary.
        boundaries: how many runs there could have been.
        runs: how many there were.
        missed: labels of the runs in which the boundary was not met even at the second attempt.
        violations: what the oracle or the test found wrong, one line each.
        seconds: wall-clock time.
    """

    name: str
    boundaries: int
    runs: int = 0
    missed: list[str] = field(default_factory=list)
    violations: list[str] = field(default_factory=list)
    seconds: float = 0.0

    def line(self) -> str:
        return (
            f"{self.name}: {self.runs} of {self.boundaries} boundaries, {len(self.missed)} missed, "
            f"{len(self.violations)} violations, {self.seconds:.1f} s"
        )


SWEEPS: list[Sweep] = []
CAUGHT: dict[str, str] = {}
"""Check that caught each mutant, by the mutant's name."""


def summary_lines() -> list[str]:
    lines = [sweep.line() for sweep in SWEEPS]
    if CAUGHT:
        width = max(len(name) for name in CAUGHT)
        lines += [f"{name:<{width}}  caught by  {check}" for name, check in CAUGHT.items()]
    return lines
