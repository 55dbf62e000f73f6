"""What the two models of an evaluation answer to the frozen prompts; servers have to say the same."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from ticket_agent.peft.release.canary import Expected
from ticket_agent.peft.release.document_error import reading
from ticket_agent.peft.release.rules import array, choice, exact
from ticket_agent.peft.release.settings import MAX_TOKENS, PROMPTS
from ticket_agent.peft.release.spelled import decode_spelled, spell

__all__ = ["BEHAVIOUR_FILE", "MAX_BEHAVIOUR_BYTES", "Behaviour"]

BEHAVIOUR_FILE: Final = "behaviour.json"
MAX_BEHAVIOUR_BYTES: Final = 256 * 1024
_SCHEMA: Final = "ticket-agent-behaviour/v1"


@dataclass(frozen=True, slots=True, kw_only=True)
class Behaviour:
    """The answers, token by token.

    Attributes:
        baseline: of the model that was served during the evaluation, one for each prompt.
        candidate: likewise.

    Raises:
        DocumentError: not one answer to each prompt.
    """

    baseline: tuple[Expected, ...]
    candidate: tuple[Expected, ...]

    def __post_init__(self) -> None:
        array(self.baseline, "baseline", PROMPTS, PROMPTS)
        array(self.candidate, "candidate", PROMPTS, PROMPTS)

    @property
    def changed(self) -> int:
        """How many answers of the candidate are not those of the baseline."""
        return sum(one.text != other.text for one, other in zip(self.baseline, self.candidate, strict=True))

    def members(self) -> dict[str, Any]:
        """The value as an object of JSON."""
        return {
            "schema": _SCHEMA,
            "baseline": [list(answer.pieces) for answer in self.baseline],
            "candidate": [list(answer.pieces) for answer in self.candidate],
        }

    def encode(self) -> bytes:
        """The one spelling."""
        return spell(self.members())

    @classmethod
    def parse(cls, data: bytes) -> Behaviour:
        """Read what :meth:`encode` wrote.

        Raises:
            DocumentError: anything else.
        """
        document = decode_spelled(data, what=BEHAVIOUR_FILE, max_bytes=MAX_BEHAVIOUR_BYTES)
        with reading(BEHAVIOUR_FILE):
            exact(document, ("schema", "baseline", "candidate"))
            choice(document["schema"], "schema", (_SCHEMA,), code="release-schema")
            return cls(
                baseline=_answers(document["baseline"], "baseline"),
                candidate=_answers(document["candidate"], "candidate"),
            )


def _answers(value: object, member: str) -> tuple[Expected, ...]:
    return tuple(
        Expected(pieces=array(pieces, f"each of {member}", 1, MAX_TOKENS))
        for pieces in array(value, member, PROMPTS, PROMPTS)
    )
