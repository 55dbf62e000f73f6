"""An interpreter of phases and servers without libraries: installed as a program named ``python``.

Whatever it runs is noted down in the release directory's ``effects`` before anything else. Native phases do
everything that the real ones leave behind except the arithmetic (``release_native``); the agent's own phases
are the real ones; servers answer from a table (``standin_python``). ``phase_faults`` says what goes wrong.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

HERE = Path(sys.argv[0]).resolve().parent
LAB = HERE.parent.parent


def note(*words: str) -> None:
    """Durable as far as a killed process is concerned; one line, so that nothing comes between."""
    with open(LAB / "effects", "ab", buffering=0) as effects:  # noqa: PTH123 - pathlib cannot append unbuffered
        effects.write((" ".join((*words, str(os.getpid()))) + "\n").encode())


PACKAGES: list[str] = []


def main(support: str, root: str) -> None:
    sys.path += [support, root, *PACKAGES]
    arguments = sys.argv[1:]
    module = arguments[arguments.index("-m") + 1]
    if module.endswith("serve_guard"):
        note("serve", Path(arguments[-1]).parent.name)
        path = Path(support) / "standin_python.py"
        # As if it were this program: it finds its files beside the program's name.
        exec(compile(path.read_bytes(), path, "exec"), {"__name__": "__main__"})
        return
    from phase_faults import LabFaults  # noqa: PLC0415 - servers need neither

    phase, job = arguments[arguments.index("-m") + 2], Path(arguments[-1])
    kind = "recovery" if job.parent.name.startswith("recovery-") else "phase"
    note(kind, phase, job.parent.name)
    faults = LabFaults(LAB, phase)
    faults.install()
    if module.endswith("native"):
        from release_native import main as run  # noqa: PLC0415
    else:
        from ticket_agent.peft.release.control import main as run  # noqa: PLC0415
    faults.begun()
    sys.exit(run([phase, "--job", str(job)]))
