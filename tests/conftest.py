"""Property tests draw the same examples in every run, so that a red run is about the change, not luck.

``TICKET_AGENT_RANDOM=1 python -m pytest`` draws new ones; run that now and then.
"""

from __future__ import annotations

import os

from hypothesis import settings

settings.register_profile("repeatable", derandomize=True)
settings.register_profile("random", print_blob=True)
settings.load_profile("random" if os.environ.get("TICKET_AGENT_RANDOM") else "repeatable")
