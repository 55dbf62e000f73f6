"""Somebody who uses a deployment while its servers are replaced."""

from __future__ import annotations

import threading
import time
from itertools import pairwise
from typing import TYPE_CHECKING

from release_support import CANARY
from serving_support import TOKEN

from ticket_agent.peft.release.loopback import LoopbackClient
from ticket_agent.peft.release.readiness import ask
from ticket_agent.peft.release.serving_errors import ServingError

if TYPE_CHECKING:
    from collections.abc import Callable

    from ticket_agent.peft.release.serving import Backend
    from ticket_agent.peft.release.serving_pointer import PointerFile


class Caller:
    """Somebody who asks all the time, whomever the pointer names; every answer has to be a right one."""

    def __init__(
        self,
        pointer: PointerFile,
        backend: Backend,
        told: Callable[[int], dict[str, list[str]]],
        *,
        pause_s: float = 0.005,
    ) -> None:
        """``told``: what a generation says to each prompt. ``pause_s``: between two questions."""
        self.pause_s = pause_s
        self.pointer = pointer
        self.backend = backend
        self.told = told
        self.stop = threading.Event()
        self.answers: list[tuple[float, int]] = []
        self.failures: list[str] = []
        self.wrong: list[str] = []
        self.thread = threading.Thread(target=self._loop)

    def _loop(self) -> None:
        number = 0
        while not self.stop.wait(self.pause_s):
            number += 1
            prompt = CANARY.prompts[number % 4]
            found = self.pointer.read()
            assert found is not None
            client = LoopbackClient(port=found.port, token=TOKEN)
            try:
                said = ask(client, self.backend, found.name, prompt, max_tokens=8, deadline_s=5.0)
            except ServingError as error:
                self.failures.append(str(error))
                continue
            if said.text != "".join(self.told(found.generation)[prompt]):
                self.wrong.append(f"generation {found.generation} says {said.text}")
                self.failures.append(self.wrong[-1])
            self.answers.append((time.monotonic(), found.generation))

    def longest_gap_ms(self) -> float:
        times = [when for when, _ in self.answers]
        return max(after - before for before, after in pairwise(times)) * 1000

    def generations(self) -> list[int]:
        return sorted({generation for _, generation in self.answers})
