"""``python -m ticket_agent.peft.release.native PHASE --job DIR``: one phase of a release, in its own process.

Exit code 0 when the observation was written, whatever it says; otherwise 1 or 2, and nothing is known.
"""

from __future__ import annotations

import os
import sys

from ticket_agent.peft.release.native.offline import go_offline, refuse_network
from ticket_agent.peft.release.niceness import weigh_session

if __name__ == "__main__":
    # Before anything else is imported: the libraries look at their flags only once.
    go_offline(os.environ)
    refuse_network()
    # A confining program may have made a session of its own.
    weigh_session()

    from ticket_agent.peft.release.native.command import main

    sys.exit(main(sys.argv[1:]))
