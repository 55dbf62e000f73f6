"""Answers token by token, and prompts as a server puts them; without libraries."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ticket_agent.peft.release.native.effect import as_served, pieces_of


@pytest.mark.parametrize(
    ("texts", "pieces"),
    [
        (["a", "a b", "a b c"], ("a", " b", " c")),
        # A character of three tokens, whole with the last of them.
        (["a", "a\ufffd", "a\ufffd", "a☃"], ("a", "", "", "☃")),
        # It never became whole: what there is belongs to the last token.
        (["a", "a\ufffd"], ("a", "\ufffd")),
        # The end of the text adds nothing.
        (["a", "a"], ("a", "")),
        ([""], ("",)),
        # A later token changes what an earlier one said, like a blank before a full stop.
        (["a", "a .", "a. b"], ("a", "", ". b")),
        (["x", "y"], ("", "y")),
    ],
)
def test_pieces(texts: list[str], pieces: tuple[str, ...]) -> None:
    assert pieces_of(texts) == pieces


@given(st.lists(st.text(alphabet="ab\ufffd ", max_size=4), min_size=1, max_size=8))
def test_pieces_are_the_answer(texts: list[str]) -> None:
    pieces = pieces_of(texts)
    assert len(pieces) == len(texts)
    assert "".join(pieces) == texts[-1]


class Tokenizer:
    def __init__(self, template: str | None) -> None:
        self.chat_template = template

    def apply_chat_template(self, messages: list[dict[str, str]], **options: Any) -> str:
        assert options == {"tokenize": False, "add_generation_prompt": True}
        assert self.chat_template is not None
        return self.chat_template.format(**messages[0])


@pytest.mark.parametrize(
    ("template", "asked"),
    [
        (None, ("the sea", True)),
        ("<s>{role}: {content}", ("<s>user: the sea", False)),
        # A template that adds nothing is a template all the same.
        ("{content}", ("the sea", False)),
    ],
)
def test_a_prompt_is_put_as_a_server_puts_it(template: str | None, asked: tuple[str, bool]) -> None:
    assert as_served(Tokenizer(template), "the sea") == asked
