"""A control phase that dies at one place, as a program:

    python control_death.py PHASE JOB module:Class.method before|after COUNT

It ends without a word, like a process that was killed, before or after the COUNT-th call of the method.
"""

from __future__ import annotations

import importlib
import os
import sys
from typing import Any

from ticket_agent.peft.release.control import main

DIED = 9


def dying_at(place: str, when: str, count: int) -> None:
    module, _, path = place.partition(":")
    owner_name, _, method = path.partition(".")
    owner = getattr(importlib.import_module(module), owner_name)
    real = getattr(owner, method)
    calls = 0

    def call(*args: Any, **kwargs: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == count and when == "before":
            os._exit(DIED)
        result = real(*args, **kwargs)
        if calls == count:
            os._exit(DIED)
        return result

    setattr(owner, method, call)


if __name__ == "__main__":
    phase, job, place, when, count = sys.argv[1:]
    dying_at(place, when, int(count))
    sys.exit(main([phase, "--job", job]))
