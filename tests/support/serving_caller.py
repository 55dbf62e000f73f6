"""Somebody who uses a deployment while its servers are replaced."""

from __future__ import annotations

import threading
import time
from itertools import pairwise
from typing import TYPE_CHECKING

from release_support import CANARY
from serving_support import TOKEN

from ticket_agent.peft.release.completion import CompletionReader
from ticket_agent.peft.release.loopback import LoopbackClient
from ticket_agent.peft.release.serving import COMPLETIONS_PATH
from ticket_agent.peft.release.serving_errors import ServerUnreachableError, ServingError

if TYPE_CHECKING:
    from collections.abc import Callable

    from ticket_agent.peft.release.serving import Backend
    from ticket_agent.peft.release.serving_pointer import PointerFile, ServingPointer

DEADLINE_S = 60.0
"""For one answer; only a server that hangs takes so long."""
HEARD_S = 60.0


class Caller:
    """Somebody who asks all the time, whomever the pointer names; every answer has to be a right one.

    Nobody is left without an answer who connects within ``settle_s`` of reading the pointer. A busy machine
    may hold this thread up for longer than that: what then fails because the pointer has moved on, before a
    word of the answer has come, was asked too late, and is asked again.
    """

    def __init__(
        self,
        pointer: PointerFile,
        backend: Backend,
        told: Callable[[int], dict[str, list[str]]],
        *,
        settle_s: float,
        pause_s: float = 0.005,
    ) -> None:
        """Make one who has not begun.

        Args:
            pointer: says whom to ask.
            backend: how to ask.
            told: what a generation says to each prompt.
            settle_s: how long whoever was replaced is left alone with nobody asking.
            pause_s: between two questions.
        """
        self.pause_s = pause_s
        self.settle_s = settle_s
        self.pointer = pointer
        self.backend = backend
        self.told = told
        self.stop = threading.Event()
        self.answers: list[tuple[float, int]] = []
        self.failures: list[str] = []
        self.wrong: list[str] = []
        self.late: list[str] = []
        self.heard = False
        self.thread = threading.Thread(target=self._loop)

    def _loop(self) -> None:
        number = 0
        while not self.stop.wait(self.pause_s):
            number += 1
            prompt = CANARY.prompts[number % 4]
            began = time.monotonic()
            found = self.pointer.read()
            assert found is not None
            try:
                said = self._ask(found, prompt)
            except ServingError as error:
                late = self._late(error, found, time.monotonic() - began)
                (self.late if late else self.failures).append(str(error))
                continue
            if said != "".join(self.told(found.generation)[prompt]):
                self.wrong.append(f"generation {found.generation} says {said}")
                self.failures.append(self.wrong[-1])
            self.answers.append((time.monotonic(), found.generation))

    def _ask(self, found: ServingPointer, prompt: str) -> str:
        self.heard = False
        client = LoopbackClient(port=found.port, token=TOKEN)
        reader = CompletionReader(self.backend.answer_names(found.name))
        question = self.backend.question(found.name, prompt, 8)
        for line in client.post_streamed(COMPLETIONS_PATH, question, deadline_s=DEADLINE_S):
            self.heard = True
            reader.feed(line)
        return reader.finish().text

    def _late(self, error: ServingError, asked: ServingPointer, took_s: float) -> bool:
        """Whether it was this thread that took too long from the pointer to the server."""
        broken = isinstance(error, ServerUnreachableError) and not self.heard
        return broken and took_s > self.settle_s and self.pointer.read() != asked

    def hear(self, generation: int) -> None:
        """Wait until that generation has answered once more."""
        since, end = len(self.answers), time.monotonic() + HEARD_S
        while generation not in {found for _, found in self.answers[since:]}:
            assert time.monotonic() < end, f"generation {generation} does not answer: {self.failures}"
            time.sleep(0.01)

    def longest_gap_ms(self) -> float:
        times = [when for when, _ in self.answers]
        return max(after - before for before, after in pairwise(times)) * 1000

    def generations(self) -> list[int]:
        return sorted({generation for _, generation in self.answers})
