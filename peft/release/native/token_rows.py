"""Rows of text as the model sees them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ticket_agent.peft.release.data import check_tokens
from ticket_agent.peft.release.native.libraries import library
from ticket_agent.peft.release.native.native_errors import ModelMismatchError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ticket_agent.peft.release.profile import Profile

__all__ = ["collator", "tokenise"]


def tokenise(
    tokenizer: Any, rows: Sequence[str], profile: Profile, *, what: str
) -> list[dict[str, list[int]]]:
    """Turn rows into what a trainer takes, each cut to the profile's length.

    Raises:
        DocumentError: a row has too few tokens.
        ModelMismatchError: a token is outside of the base model's vocabulary.
    """
    limit, size = profile.settings.max_length, profile.stack.geometry.vocab_size
    found: list[dict[str, list[int]]] = []
    for at, row in enumerate(rows):
        ids = [int(token) for token in tokenizer(row, truncation=True, max_length=limit)["input_ids"]]
        if ids and max(ids) >= size:
            raise ModelMismatchError(
                f"{what}: row {at} has token {max(ids)}; the base model's vocabulary has {size},"
                " so the tokenizer belongs to another model"
            )
        found.append({"input_ids": ids, "attention_mask": [1] * len(ids)})
    check_tokens([len(row["input_ids"]) for row in found], what=what)
    return found


def collator(tokenizer: Any) -> Any:
    """What makes a batch of rows, with the rows themselves as labels."""
    return library("transformers").DataCollatorForLanguageModeling(tokenizer=tokenizer, mlm=False)
