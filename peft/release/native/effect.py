"""Proof that an adapter does something: the model must answer at least one frozen prompt differently."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from ticket_agent.peft.release.canary import Expected
from ticket_agent.peft.release.native.libraries import library
from ticket_agent.peft.release.native.native_errors import EffectMissingError

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["as_served", "continuations", "pieces_of", "prompt_logits", "require_effect"]

_REPLACEMENT: Final = "\ufffd"


def prompt_logits(model: Any, tokenizer: Any, prompts: Sequence[str]) -> list[Any]:
    """What a model says after each prompt, before anything is chosen from it."""
    torch = library("torch")
    place = next(model.parameters()).device
    found = []
    with torch.no_grad():
        for prompt in prompts:
            ids = tokenizer(prompt, return_tensors="pt")["input_ids"].to(place)
            found.append(model(input_ids=ids).logits[0].float().cpu())
    return found


def require_effect(base: list[Any], again: list[Any], adapted: list[Any], *, matched: int) -> dict[str, Any]:
    """Compare logits with and without the adapter.

    Args:
        base: of the base model.
        again: of the base model a second time; what differs there is noise.
        adapted: of the base model with the adapter.
        matched: tensors of the adapter that are in the model.

    Raises:
        EffectMissingError: no logit of any prompt differs by more than noise.
    """
    noise = max(_difference(one, other) for one, other in zip(base, again, strict=True))
    differences = [_difference(one, other) for one, other in zip(base, adapted, strict=True)]
    changed = sum(difference > noise for difference in differences)
    if not changed:
        raise EffectMissingError(
            f"the adapter's {matched} tensors are loaded and change no logit of {len(base)} prompts:"
            " it has no effect on this base model"
        )
    return {
        "matched_tensors": matched,
        "changed_prompts": changed,
        "prompts": len(base),
        "largest_logit_difference": max(differences),
        "noise": noise,
    }


def _difference(one: Any, other: Any) -> float:
    return float((one - other).abs().max()) + 0.0


def continuations(
    model: Any, tokenizer: Any, prompts: Sequence[str], max_tokens: int
) -> tuple[Expected, ...]:
    """What a model goes on with after each prompt, always taking the likeliest token."""
    torch = library("torch")
    place = next(model.parameters()).device
    found = []
    for prompt in prompts:
        asked, special = as_served(tokenizer, prompt)
        ids = tokenizer(asked, return_tensors="pt", add_special_tokens=special)["input_ids"].to(place)
        with torch.no_grad():
            answer = model.generate(
                input_ids=ids,
                attention_mask=torch.ones_like(ids),
                do_sample=False,
                max_new_tokens=max_tokens,
                pad_token_id=tokenizer.pad_token_id,
            )
        new = answer[0, ids.shape[1] :]
        texts = [tokenizer.decode(new[:end], skip_special_tokens=True) for end in range(1, len(new) + 1)]
        found.append(Expected(pieces=pieces_of(texts)))
    return tuple(found)


def as_served(tokenizer: Any, prompt: str) -> tuple[str, bool]:
    """A prompt as a server puts it, and whether the tokenizer adds its special tokens to that.

    Servers put it through the chat template, which then says by itself which special tokens there are. Only
    where there is none it is put as it is.
    """
    if tokenizer.chat_template is None:
        return prompt, True
    message = [{"role": "user", "content": prompt}]
    return tokenizer.apply_chat_template(message, tokenize=False, add_generation_prompt=True), False


def pieces_of(texts: Sequence[str]) -> tuple[str, ...]:
    """What each token added to an answer.

    Args:
        texts: the answer after one token, after two, and so on; where a character takes several tokens, it
            ends with a replacement character until the last of them.

    Returns:
        As many pieces; together they are the whole answer.
    """
    told, pieces = "", []
    for number, text in enumerate(texts, start=1):
        complete = number == len(texts) or not text.endswith(_REPLACEMENT)
        # Text that a later token changes cannot have been told before: what is told is what stays.
        if complete and text.startswith(told) and texts[-1].startswith(text):
            pieces.append(text[len(told) :])
            told = text
        else:
            pieces.append("")
    return tuple(pieces)
