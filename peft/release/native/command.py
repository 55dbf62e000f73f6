"""The command line of a native phase."""

from __future__ import annotations

import argparse
import os
import sys
import time
from pathlib import Path

from ticket_agent.peft.errors import PeftError
from ticket_agent.peft.release.native.running import NATIVE_PHASES, run_phase
from ticket_agent.peft.release.phases import Phase

__all__ = ["main"]


def main(arguments: list[str]) -> int:
    """Run the phase that the arguments name; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m ticket_agent.peft.release.native")
    parser.add_argument("phase", choices=[phase.value for phase in NATIVE_PHASES])
    parser.add_argument("--job", type=Path, required=True, help="absolute path of the job directory")
    chosen = parser.parse_args(arguments)
    # What is written here is for the same account only, whatever the caller's mask is.
    os.umask(0o077)
    try:
        observation = run_phase(
            Phase(chosen.phase), chosen.job, now_unix_ms=lambda: time.time_ns() // 1_000_000
        )
    except PeftError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    sys.stdout.write(f"{observation.phase} {'succeeded' if observation.succeeded else 'failed'}\n")
    return 0
