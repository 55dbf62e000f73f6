"""The settings of a training, and the canary of a served model with what is accepted as its answers."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final

from ticket_agent.peft.release.rules import (
    array,
    choice,
    exact,
    field_names,
    integer,
    number,
    refuse,
)
from ticket_agent.protocol.tokens import U32_MAX

if TYPE_CHECKING:
    from ticket_agent.peft.release.stack import Limits

__all__ = ["EXACT", "Acceptance", "Canary", "Match", "Settings"]

PROMPTS: Final = 4
MAX_PROMPT_BYTES: Final = 256
MAX_TOKENS: Final = 8
MAX_LATENCY_MS: Final = 30_000

MAX_SHIFT: Final = 10.0

_CHECKPOINT: Final = "checkpoint_interval"
_ACCEPTANCE: Final = "acceptance"


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """How an adapter is trained.

    Attributes:
        seed: of everything random, 0..=4294967295.
        max_steps: where training ends.
        learning_rate: above 0.
        rank: of the adapter.
        max_length: tokens that a row is cut to.
        batch_size: 1.
        checkpoint_interval: steps between two checkpoints, below ``max_steps``; None: no checkpoints.

    Raises:
        DocumentError: a value that no settings have; the bounds of the others are the profile's.
    """

    seed: int
    max_steps: int
    learning_rate: float
    rank: int
    max_length: int
    batch_size: int
    checkpoint_interval: int | None

    def __post_init__(self) -> None:
        integer(self.seed, "seed", 0, U32_MAX)
        number(self.learning_rate, "learning_rate")
        integer(self.batch_size, "batch_size", 1, 1)

    def check(self, limits: Limits, *, checkpoints: bool) -> None:
        """Hold the settings to a profile's limits; with ``checkpoints``, an interval must be given.

        Raises:
            DocumentError: they exceed one.
        """
        integer(self.max_steps, "max_steps", 1, limits.steps)
        if not 0 < self.learning_rate <= limits.learning_rate:
            refuse("learning_rate", f"above 0.0 and at most {limits.learning_rate}")
        choice(self.rank, "rank", limits.ranks)
        choice(self.max_length, "max_length", limits.lengths)
        if checkpoints != (self.checkpoint_interval is not None):
            refuse(_CHECKPOINT, "given" if checkpoints else "left out in the oldest schema")
        if self.checkpoint_interval is not None:
            integer(self.checkpoint_interval, _CHECKPOINT, 1, limits.checkpoint_interval)
            if self.checkpoint_interval >= self.max_steps:
                refuse(_CHECKPOINT, f"below max_steps, which is {self.max_steps}")

    def members(self) -> dict[str, Any]:
        """The value as an object of JSON; without checkpoints the interval is left out."""
        members = asdict(self)
        if self.checkpoint_interval is None:
            del members[_CHECKPOINT]
        return members

    @classmethod
    def of_members(cls, value: object, *, checkpoints: bool) -> Settings:
        """The value of :meth:`members`.

        Raises:
            DocumentError: anything else.
        """
        names = [name for name in field_names(cls) if checkpoints or name != _CHECKPOINT]
        members: dict[str, Any] = {_CHECKPOINT: None}
        return cls(**(members | exact(value, names)))


class Match(StrEnum):
    """What it takes for an answer to be the expected one."""

    EXACT = "exact"
    PREFIX = "prefix"


@dataclass(frozen=True, slots=True, kw_only=True)
class Acceptance:
    """How many of a canary's answers must be the expected ones, and how much of each.

    Greedy answers may change with the load of a server and with how an adapter is applied, so asking for
    every character of all of them can refuse a good server. What is tolerated is said beforehand.

    Attributes:
        match: all of an answer, or its beginning.
        prefix_tokens: how many tokens of the expected answer an answer must begin with, 1..=8; None for all.
        minimum_matches: how many of the four answers must match, 1..=4.
        minimum_logprob_shift: where texts are equal, how far a token's log-probability must move for the
            adapter to count as applied; above 0, at most 10. None: log-probabilities prove nothing.

    Raises:
        DocumentError: a value that no acceptance has.
    """

    match: Match
    prefix_tokens: int | None
    minimum_matches: int
    minimum_logprob_shift: float | None

    def __post_init__(self) -> None:
        if not isinstance(self.match, Match):
            refuse("match", "exact or prefix")
        if (self.match is Match.PREFIX) != (self.prefix_tokens is not None):
            refuse("prefix_tokens", "given for prefix, and null for exact")
        if self.prefix_tokens is not None:
            integer(self.prefix_tokens, "prefix_tokens", 1, MAX_TOKENS)
        integer(self.minimum_matches, "minimum_matches", 1, PROMPTS)
        if (
            self.minimum_logprob_shift is not None
            and not 0 < number(self.minimum_logprob_shift, "minimum_logprob_shift") <= MAX_SHIFT
        ):
            refuse("minimum_logprob_shift", f"above 0.0 and at most {MAX_SHIFT}, or null")

    def members(self) -> dict[str, Any]:
        """The value as an object of JSON."""
        return asdict(self) | {"match": self.match.value}

    @classmethod
    def of_members(cls, value: object) -> Acceptance:
        """The value of :meth:`members`.

        Raises:
            DocumentError: anything else.
        """
        members = exact(value, field_names(cls), _ACCEPTANCE)
        match = Match(choice(members["match"], "match", [match.value for match in Match]))
        return cls(**(members | {"match": match}))


EXACT: Final = Acceptance(
    match=Match.EXACT, prefix_tokens=None, minimum_matches=PROMPTS, minimum_logprob_shift=None
)
"""What the older profiles mean."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Canary:
    """The frozen questions that a served model has to answer.

    Attributes:
        prompts: four different ones, each of 1..=256 bytes of UTF-8.
        max_tokens: length of an answer, 1..=8.
        maximum_latency_ms: of one answer, 1..=30000 milliseconds.
        acceptance: which answers are good enough; the older schemas cannot say another than the strictest.

    Raises:
        DocumentError: a value that no canary has.
    """

    prompts: tuple[str, ...]
    max_tokens: int
    maximum_latency_ms: int
    acceptance: Acceptance = EXACT

    def __post_init__(self) -> None:
        array(self.prompts, "prompts", PROMPTS, PROMPTS)
        for prompt in self.prompts:
            _check_prompt(prompt)
        if len(set(self.prompts)) != PROMPTS:
            refuse("prompts", "different from one another")
        integer(self.max_tokens, "max_tokens", 1, MAX_TOKENS)
        integer(self.maximum_latency_ms, "maximum_latency_ms", 1, MAX_LATENCY_MS)

    def members(self, *, older: bool) -> dict[str, Any]:
        """The value as an object of JSON; the acceptance is left out for the older schemas."""
        members = asdict(self) | {"prompts": list(self.prompts), _ACCEPTANCE: self.acceptance.members()}
        if older:
            del members[_ACCEPTANCE]
        return members

    @classmethod
    def of_members(cls, value: object, *, older: bool) -> Canary:
        """The value of :meth:`members`.

        Raises:
            DocumentError: anything else.
        """
        names = [name for name in field_names(cls) if not older or name != _ACCEPTANCE]
        members = dict(exact(value, names))
        members["prompts"] = array(members["prompts"], "prompts", PROMPTS, PROMPTS)
        if not older:
            members[_ACCEPTANCE] = Acceptance.of_members(members[_ACCEPTANCE])
        return cls(**members)


def _check_prompt(prompt: object) -> None:
    # A lone surrogate counts as one byte here; it is refused when the document is spelled.
    if not isinstance(prompt, str) or not 1 <= len(prompt.encode("utf-8", "replace")) <= MAX_PROMPT_BYTES:
        refuse("each of prompts", f"text of 1..={MAX_PROMPT_BYTES} bytes")
