"""Asks a running instance what its canary asks, idle and while others ask too."""

from __future__ import annotations

import threading
import time
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from ticket_agent.peft.release.canary import (
    CanaryReport,
    Condition,
    Reference,
    Round,
    Sample,
    find_effect,
    finding_of,
    judge,
)
from ticket_agent.peft.release.readiness import ask, check_ready
from ticket_agent.peft.release.serving_errors import ServingError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from ticket_agent.peft.release.canary import Effect, Expected, Finding
    from ticket_agent.peft.release.completion import Completion
    from ticket_agent.peft.release.loopback import LoopbackClient
    from ticket_agent.peft.release.serving import Backend, Instance
    from ticket_agent.peft.release.settings import Canary

__all__ = ["BASE", "INCUMBENT", "CanaryRun", "reference_of"]

BASE: Final = "base model"
INCUMBENT: Final = "incumbent"
LOAD_WORKERS: Final = 2
SLACK_MS: Final = 2000
"""How much longer than the longest latency an answer is waited for, so that its latency can be told."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CanaryRun:
    """One canary of one instance.

    Attributes:
        client: to the instance's port.
        backend: its kind.
        instance: what should be running there.
        canary: what it is asked.
        expected: the evaluation's answer to each prompt.
        references: what the answers must differ from, where an adapter is served.
        tensors: how many the adapter has, if that is known.
        identity: names the very process that serves, so that one that was restarted in between is noticed.
        first_s: how long the first answer may take; some servers load the model only then.
        workers: how many others ask at the same time.
        clock: in seconds.
    """

    client: LoopbackClient
    backend: Backend
    instance: Instance
    canary: Canary
    expected: tuple[Expected, ...]
    references: tuple[Reference, ...]
    identity: Callable[[], str]
    tensors: int | None = None
    first_s: float = 60.0
    workers: int = LOAD_WORKERS
    clock: Callable[[], float] = field(default=time.monotonic)

    def run(self) -> CanaryReport:
        """Ask everything and judge it. What the server does wrong is a finding; nothing is raised for it."""
        rounds: list[Round] = []
        effect: Effect | None = None
        findings: list[Finding] = []
        before = self.identity()
        try:
            check_ready(self.client, self.backend, self.instance)
            self._ask(self.instance.name, self.canary.prompts[0], self.first_s)
            rounds.append(self._round(Condition.IDLE))
            effect = self._effect(rounds[0])
            rounds.append(self._loaded_round())
            check_ready(self.client, self.backend, self.instance)
        except ServingError as error:
            findings.append(finding_of(error.code, str(error)))
        if self.identity() != before:
            findings.append(finding_of("canary-identity", "the server was restarted during its canary"))
        return judge(
            name=self.instance.name,
            canary=self.canary,
            expected=self.expected,
            rounds=rounds,
            effect=effect,
            also=findings,
        )

    def _effect(self, idle: Round) -> Effect | None:
        if self.instance.rank is None:
            return None
        references = self.references
        base = self.backend.base_name(self.instance)
        if base is not None:
            asked = tuple(self._ask(base, prompt, self._longest_s) for prompt in self.canary.prompts)
            references = (
                *(reference for reference in references if reference.kind != BASE),
                reference_of(BASE, asked),
            )
        models = check_ready(self.client, self.backend, self.instance)
        matched = next(model.matched_tensors for model in models if model.name == self.instance.name)
        return find_effect(
            idle.samples,
            references,
            matched_tensors=matched,
            tensors=self.tensors,
            acceptance=self.canary.acceptance,
        )

    @property
    def _longest_s(self) -> float:
        return (self.canary.maximum_latency_ms + SLACK_MS) / 1000

    def _ask(self, name: str, prompt: str, deadline_s: float) -> Completion:
        return ask(
            self.client,
            self.backend,
            name,
            prompt,
            max_tokens=self.canary.max_tokens,
            deadline_s=deadline_s,
        )

    def _round(self, condition: Condition) -> Round:
        samples = []
        for prompt in self.canary.prompts:
            start = self.clock()
            completion = self._ask(self.instance.name, prompt, self._longest_s)
            latency_ms = round((self.clock() - start) * 1000)
            samples.append(Sample(completion=completion, latency_ms=latency_ms))
        return Round(condition=condition, samples=tuple(samples))

    def _loaded_round(self) -> Round:
        with self._others_asking() as others:
            found = self._round(Condition.LOADED)
        return Round(
            condition=found.condition,
            samples=found.samples,
            background=others.answers,
            failures=others.failures,
        )

    @contextmanager
    def _others_asking(self) -> Iterator[_Others]:
        others = _Others()
        threads = [
            threading.Thread(target=self._keep_asking, args=(others, number), daemon=True)
            for number in range(self.workers)
        ]
        for thread in threads:
            thread.start()
        try:
            others.begun.acquire()
            yield others
        finally:
            others.stop.set()
            for thread in threads:
                thread.join()

    def _keep_asking(self, others: _Others, number: int) -> None:
        # Each begins elsewhere in the same prompts, so that what a server keeps of one is there for another.
        prompts = self.canary.prompts
        while not others.stop.is_set():
            number += 1
            others.begun.release()
            try:
                self._ask(self.instance.name, prompts[number % len(prompts)], self._longest_s)
            except ServingError:
                others.count(failed=True)
                return
            others.count(failed=False)


class _Others:
    """What the other requests came to."""

    def __init__(self) -> None:
        self.stop = threading.Event()
        self.begun = threading.Semaphore(0)
        self.answers = 0
        self.failures = 0
        self._lock = threading.Lock()

    def count(self, *, failed: bool) -> None:
        """Count one request that has ended."""
        with self._lock:
            if failed:
                self.failures += 1
            else:
                self.answers += 1


def reference_of(kind: str, completions: tuple[Completion, ...]) -> Reference:
    """Answers as something to differ from."""
    return Reference(
        kind=kind,
        texts=tuple(completion.text for completion in completions),
        logprobs=tuple(completion.logprobs for completion in completions),
    )
