"""Whether a served model answers as it was evaluated, in time, and with its adapter applied.

Pure: it is given what was expected and what was answered, and says what is wrong. The asking is done in
:mod:`ticket_agent.peft.release.canary_run`.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final

from ticket_agent.peft.names import shown
from ticket_agent.peft.release.canonical import digest
from ticket_agent.peft.release.completion import MAX_TEXT_BYTES
from ticket_agent.peft.release.rules import array, refuse
from ticket_agent.peft.release.settings import MAX_TOKENS, PROMPTS, Acceptance, Canary, Match

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ticket_agent.peft.release.completion import Completion

__all__ = [
    "CanaryReport",
    "Condition",
    "Effect",
    "Expected",
    "Finding",
    "Reference",
    "Round",
    "Sample",
    "find_effect",
    "finding_of",
    "judge",
]

MAX_FINDINGS: Final = 8
MAX_FINDING_CHARACTERS: Final = 200


class Condition(StrEnum):
    """What else a server had to do while it was asked."""

    IDLE = "idle"
    LOADED = "loaded"


@dataclass(frozen=True, slots=True, kw_only=True)
class Expected:
    """The answer of the evaluation to one prompt.

    Attributes:
        pieces: the text that each generated token added, in order; 1..=8 of them. Where one character takes
            several tokens, all but the last of them added nothing.

    Raises:
        DocumentError: a value that no answer has.
    """

    pieces: tuple[str, ...]

    def __post_init__(self) -> None:
        for piece in array(self.pieces, "pieces", 1, MAX_TOKENS):
            if (
                not isinstance(piece, str)
                or len(piece.encode("utf-8", "replace")) > MAX_TEXT_BYTES // MAX_TOKENS
            ):
                refuse("each of pieces", f"text of at most {MAX_TEXT_BYTES // MAX_TOKENS} bytes")

    @property
    def text(self) -> str:
        """All of the answer."""
        return "".join(self.pieces)

    def matches(self, answer: str, acceptance: Acceptance) -> bool:
        """Tell whether an answer is this one, as far as is asked for.

        An expected answer that is not longer than the prefix has to be given as it is: it ended there.
        """
        tokens = acceptance.prefix_tokens
        if acceptance.match is Match.EXACT or tokens is None or tokens >= len(self.pieces):
            return answer == self.text
        return answer.startswith("".join(self.pieces[:tokens]))


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One answer of the server, and how long the whole of it took."""

    completion: Completion
    latency_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """The answers to the four prompts under one condition.

    Attributes:
        condition: what else the server had to do.
        samples: one for each prompt, in their order.
        background: answers that it gave to others meanwhile.
        failures: requests of others that it failed.
    """

    condition: Condition
    samples: tuple[Sample, ...]
    background: int = 0
    failures: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Reference:
    """Answers to the same prompts by what the candidate must differ from.

    Attributes:
        kind: like ``base model`` or ``incumbent``.
        texts: one for each prompt.
        logprobs: of the tokens of each; empty where they are not known.
    """

    kind: str
    texts: tuple[str, ...]
    logprobs: tuple[tuple[float, ...], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Effect:
    """What shows that the adapter is applied.

    Attributes:
        matched_tensors: tensors that the server found in its model; None where it cannot tell.
        changed: for each kind of reference, to how many prompts the answer differs from its.
        shift: for each kind, how far a log-probability moved where the texts are equal; None: not known.
        proven: one of these is proof.
    """

    matched_tensors: int | None
    changed: tuple[tuple[str, int], ...]
    shift: tuple[tuple[str, float | None], ...]
    proven: bool

    def members(self) -> dict[str, Any]:
        """The value as an object of JSON."""
        return {
            "matched_tensors": self.matched_tensors,
            "changed": dict(self.changed),
            "shift": {kind: None if moved is None else round(moved, 4) for kind, moved in self.shift},
            "proven": self.proven,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing that is wrong; ``rule`` is its stable name."""

    rule: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CanaryReport:
    """What came of a canary. It passed when nothing was found.

    Attributes:
        name: under which the server was asked.
        rounds: what it answered; fewer than two where it broke off.
        matched: for each round, which answers were the expected ones.
        effect: of the adapter; None where none is served, or it was not reached.
        findings: at most eight.
    """

    name: str
    rounds: tuple[Round, ...]
    matched: tuple[tuple[bool, ...], ...]
    effect: Effect | None
    findings: tuple[Finding, ...]

    @property
    def passed(self) -> bool:
        """Nothing was found."""
        return not self.findings

    def members(self) -> dict[str, Any]:
        """The report as an object of JSON, of bounded size; answers are there by their digests only."""
        return {
            "name": self.name,
            "healthy": self.passed,
            "rounds": [
                {
                    "condition": found.condition.value,
                    "behavior_sha256": [digest(sample.completion.text.encode()) for sample in found.samples],
                    "latency_ms": [sample.latency_ms for sample in found.samples],
                    "matched": list(matched),
                    "background": found.background,
                    "failures": found.failures,
                }
                for found, matched in zip(self.rounds, self.matched, strict=True)
            ],
            "effect": None if self.effect is None else self.effect.members(),
            "findings": [{"rule": finding.rule, "text": finding.text} for finding in self.findings],
        }


def judge(
    *,
    name: str,
    canary: Canary,
    expected: tuple[Expected, ...],
    rounds: Sequence[Round],
    effect: Effect | None,
    also: Sequence[Finding] = (),
) -> CanaryReport:
    """Say what is wrong with the answers.

    Args:
        name: under which the server was asked.
        canary: the prompts, the longest latency, and what is accepted.
        expected: the evaluation's answer to each prompt.
        rounds: what the server answered.
        effect: of the adapter; None where none is served.
        also: what was found by others.

    Raises:
        DocumentError: there is not one expected answer to each prompt.
    """
    array(expected, "expected", PROMPTS, PROMPTS)
    acceptance = canary.acceptance
    findings = list(also)
    matched = []
    for found in rounds:
        pairs = list(zip(expected, found.samples, strict=True))
        good = tuple(want.matches(got.completion.text, acceptance) for want, got in pairs)
        matched.append(good)
        if sum(good) < acceptance.minimum_matches:
            findings.append(_mismatch(found, good, pairs, acceptance))
        slowest = max(sample.latency_ms for sample in found.samples)
        if slowest > canary.maximum_latency_ms:
            findings.append(
                finding_of(
                    "canary-latency",
                    f"{found.condition}: an answer took {slowest} ms;"
                    f" the limit is {canary.maximum_latency_ms} ms",
                )
            )
        if found.failures:
            findings.append(
                finding_of(
                    "canary-load", f"{found.condition}: {found.failures} other requests failed meanwhile"
                )
            )
        if found.condition is Condition.LOADED and not found.background + found.failures:
            findings.append(
                finding_of("canary-load", "loaded: the server had nothing else to do, so it proves nothing")
            )
    if effect is not None and not effect.proven:
        findings.append(_no_effect(effect))
    return CanaryReport(
        name=name,
        rounds=tuple(rounds),
        matched=tuple(matched),
        effect=effect,
        findings=tuple(findings[:MAX_FINDINGS]),
    )


def find_effect(
    samples: Sequence[Sample],
    references: Sequence[Reference],
    *,
    matched_tensors: int | None,
    tensors: int | None = None,
    acceptance: Acceptance,
) -> Effect:
    """Look for what shows that the adapter is applied.

    The server's own count is proof, and a count that falls short is proof of the contrary. Else the answers
    have to differ from those of every reference: from the base model, or nothing is applied; from the
    incumbent, or the old adapter still is.

    Args:
        samples: the answers.
        references: what they are compared with.
        matched_tensors: the server's count, or None.
        tensors: how many the adapter has; None: not known, any count but zero will do.
        acceptance: what else counts as a difference.
    """
    changed, shift = [], []
    for reference in references:
        texts = [sample.completion.text for sample in samples]
        changed.append(
            (reference.kind, sum(a != b for a, b in zip(texts, reference.texts, strict=True))),
        )
        shift.append((reference.kind, _shift(samples, reference)))
    least = acceptance.minimum_logprob_shift
    differs = [
        bool(count) or (least is not None and moved is not None and moved >= least)
        for (_, count), (_, moved) in zip(changed, shift, strict=True)
    ]
    if matched_tensors is None:
        proven = bool(differs) and all(differs)
    else:
        proven = matched_tensors > 0 and tensors in {None, matched_tensors}
    return Effect(matched_tensors=matched_tensors, changed=tuple(changed), shift=tuple(shift), proven=proven)


def _shift(samples: Sequence[Sample], reference: Reference) -> float | None:
    moved: float | None = None
    for sample, text, theirs in zip(samples, reference.texts, reference.logprobs, strict=False):
        ours = sample.completion.logprobs
        if sample.completion.text == text and ours and len(ours) == len(theirs):
            moved = max(moved or 0.0, *(abs(a - b) for a, b in zip(ours, theirs, strict=True)))
    return moved


def _mismatch(
    found: Round, good: tuple[bool, ...], pairs: Sequence[tuple[Expected, Sample]], acceptance: Acceptance
) -> Finding:
    at = good.index(False)
    want, got = pairs[at][0].text, pairs[at][1].completion.text
    if acceptance.prefix_tokens is not None:
        want = "".join(pairs[at][0].pieces[: acceptance.prefix_tokens])
    return finding_of(
        "canary-output",
        f"{found.condition}: {sum(good)} of {len(good)} answers are as evaluated,"
        f" {acceptance.minimum_matches} must be;"
        f" prompt {at + 1} gives '{shown(got, 32)}' instead of '{shown(want, 32)}'",
    )


def _no_effect(effect: Effect) -> Finding:
    if effect.matched_tensors is not None:
        count = effect.matched_tensors or "none"
        return finding_of(
            "canary-effect", f"the server found {count} of the adapter's tensors in its model, not all"
        )
    same = [kind for kind, count in effect.changed if not count]
    if not effect.changed:
        return finding_of(
            "canary-effect", "nothing to compare with: that the adapter is applied is not shown"
        )
    return finding_of(
        "canary-effect",
        f"every answer is that of the {' and of the '.join(same)}: the adapter seems not applied",
    )


def finding_of(rule: str, text: str) -> Finding:
    """A finding whose text is short ASCII, whatever a server made it of."""
    plain = text.encode("ascii", "backslashreplace").decode("ascii")
    return Finding(rule=rule, text=shown(plain, MAX_FINDING_CHARACTERS).replace("…", "~"))
