"""``python -m ticket_agent.peft.release.native PHASE --job DIR``: one phase of a release, in its own process.

Exit code 0 when the observation was written, whatever it says; otherwise 1 or 2, and nothing is known.
"""

from __future__ import annotations

import os
import sys

from ticket_agent.peft.release.native.offline import go_offline, refuse_network

# Before anything else is imported: the libraries look at their flags only once.
go_offline(os.environ)
refuse_network()

import argparse  # noqa: E402
import time  # noqa: E402
from pathlib import Path  # noqa: E402

from ticket_agent.peft.errors import PeftError  # noqa: E402
from ticket_agent.peft.release.native.running import NATIVE_PHASES, run_phase  # noqa: E402
from ticket_agent.peft.release.phases import Phase  # noqa: E402


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


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
