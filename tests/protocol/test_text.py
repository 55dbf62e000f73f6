"""Texts, tokens and the error line."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from ticket_lines import tokens

from ticket_agent.protocol import (
    ProtocolError,
    ResultError,
    SpecError,
    check_sha256,
    check_token,
    is_token,
    prepare_message,
    single_line,
    truncate_utf8,
)
from ticket_agent.protocol.text import has_control, trim

any_text = st.text(st.characters())
valid_text = st.text(st.characters(exclude_categories=["Cs"]))


@given(valid_text, st.integers(-1, 400))
def test_truncation_is_the_longest_beginning_that_fits(text: str, max_bytes: int) -> None:
    cut = truncate_utf8(text, max_bytes)
    assert text.startswith(cut)
    assert len(cut.encode()) <= max(max_bytes, 0)
    if cut != text:
        assert len(text[: len(cut) + 1].encode()) > max_bytes


@given(any_text, st.integers(0, 300))
def test_single_lines_are_bounded_and_clean(text: str, max_bytes: int) -> None:
    line = single_line(text, max_bytes)
    assert len(line.encode("utf-8")) <= max_bytes
    assert not has_control(line)


@given(any_text)
def test_messages_are_clean_or_absent(text: str) -> None:
    message = prepare_message(text)
    assert message is None or (message and not has_control(message) and message.encode("utf-8"))
    assert (message is None) == (trim(text) == "")


@pytest.mark.parametrize("char", ["\x00", "\x1f", "\n", "\x7f", "\x80", "\x9f"])
def test_control_characters(char: str) -> None:
    assert has_control(f"a{char}b")
    assert single_line(f"a{char}b", 9) == "a b"


@pytest.mark.parametrize("char", [" ", "~", "\xa0", "\u2028", "\u200b", "\ufeff"])
def test_other_characters_are_no_controls(char: str) -> None:
    assert not has_control(char)


def test_separators_below_blank_are_no_white_space() -> None:
    assert trim("\u3000\x1cx\x1f\u0085") == "\x1cx\x1f"


@given(tokens())
def test_tokens(value: str) -> None:
    assert check_token(value, member="id") == value
    assert is_token(value)
    assert is_token(value, max_bytes=32) == (len(value) <= 32)


@pytest.mark.parametrize("value", ["", "-", "-a", " a", "a ", "a\n", "a/b", "é", "x" * 129, None, 1, b"a"])
def test_what_is_no_token(value: object) -> None:
    assert not is_token(value)
    with pytest.raises(ResultError, match=r"subject_ref must be 1\.\.=128 ASCII") as refusal:
        check_token(value, member="subject_ref", error=ResultError)
    assert (refusal.value.code, refusal.value.member) == ("token", "subject_ref")


@pytest.mark.parametrize("value", ["", "a" * 63, "a" * 65, "A" * 64, "g" * 64, "a" * 64 + "\n", None])
def test_what_is_no_digest(value: object) -> None:
    assert check_sha256("a" * 64, member="d") == "a" * 64
    with pytest.raises(SpecError) as refusal:
        check_sha256(value, member="d")
    assert refusal.value.member == "d"


@given(any_text, any_text)
def test_errors_are_one_printable_bounded_line(text: str, member: str) -> None:
    error = ProtocolError(text, code="code", member=member)
    assert str(error).isprintable()
    assert len(str(error)) <= 400
    assert error.member is not None
    assert error.member.isprintable()
