from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ticket_agent.peft.release.completion import Completion, CompletionReader
from ticket_agent.peft.release.serving_errors import AnswerRefusedError, WrongModelError


def chunk(content: str | None = None, *, finish: str | None = None, model: str = "m", **more: Any) -> bytes:
    choice = {"index": 0, "delta": {} if content is None else {"content": content}, "finish_reason": finish}
    return b"data: " + json.dumps({"model": model, "choices": [choice | more]}).encode()


END = chunk(finish="stop")


def read(*lines: bytes) -> Completion:
    reader = CompletionReader({"m", "m@main"})
    for line in lines:
        reader.feed(line)
    return reader.finish()


@pytest.mark.parametrize(
    "lines",
    [
        [chunk("a"), chunk("b"), END],
        [chunk(""), chunk("ab"), END, b"data: [DONE]"],
        [b": hello", b"event: message", b"", chunk("ab"), b"", chunk(finish="stop"), b""],
        [chunk("ab"), END, b'data: {"model":"m","choices":[],"usage":{"total_tokens":3}}'],
        [chunk("ab", finish="stop")],
        [chunk("ab").replace(b"data: ", b"data:"), END],
    ],
)
def test_an_answer_is_read(lines: list[bytes]) -> None:
    assert read(*lines) == Completion(model="m", text="ab", finish="stop")


@pytest.mark.parametrize(
    ("lines", "error"),
    [
        ([chunk("a")], AnswerRefusedError),
        ([], AnswerRefusedError),
        ([b"data: [DONE]"], AnswerRefusedError),
        ([chunk("a", model="other"), END], WrongModelError),
        ([chunk("a"), chunk(finish="stop", model="m@main")], WrongModelError),
        ([b'data: {"choices":[]}', END], WrongModelError),
        ([b'data: {"error":"CUDA"}'], AnswerRefusedError),
        ([chunk("a"), END, chunk("b")], AnswerRefusedError),
        ([chunk("a"), END, END], AnswerRefusedError),
        ([chunk("a", finish="tool_calls")], AnswerRefusedError),
        ([chunk("a"), END, b"data: [DONE]", chunk("b")], AnswerRefusedError),
        ([b'data: {"model":"m","choices":[{"index":1}]}', END], AnswerRefusedError),
        ([b'data: {"model":"m","choices":[{"index":0},{"index":0}]}', END], AnswerRefusedError),
        ([b'data: {"model":"m"}', END], AnswerRefusedError),
        ([b'data: {"model":"m","choices":[{"index":0,"delta":{"content":7}}]}', END], AnswerRefusedError),
        ([b'data: {"model":"m","model":"m","choices":[]}', END], AnswerRefusedError),
        ([b"data: {", END], AnswerRefusedError),
        ([b"data: []", END], AnswerRefusedError),
        ([b"data: \xff", END], AnswerRefusedError),
        ([b"<html>", END], AnswerRefusedError),
        ([chunk("x" * 3000), chunk("x" * 1097), END], AnswerRefusedError),
        ([chunk("x", logprobs={"content": [{"logprob": 0.5}]}), END], AnswerRefusedError),
        ([chunk("x", logprobs={"content": [{"logprob": -0.5}] * 65}), END], AnswerRefusedError),
        ([chunk("x", logprobs={"content": [{}]}), END], AnswerRefusedError),
    ],
)
def test_what_is_no_answer_is_refused(lines: list[bytes], error: type[Exception]) -> None:
    with pytest.raises(error):
        read(*lines)


def test_probabilities_are_kept_in_their_order() -> None:
    lines = [chunk("a", logprobs={"content": [{"logprob": -0.5}]}), chunk("b", logprobs=None)]
    lines.append(chunk("c", logprobs={"content": [{"logprob": -1}, {"logprob": 0}]}))
    assert read(*lines, END).logprobs == (-0.5, -1.0, 0.0)


@given(st.lists(st.text(max_size=40), max_size=20), st.sampled_from(["stop", "length"]))
def test_the_text_does_not_depend_on_how_it_is_cut(parts: list[str], finish: str) -> None:
    whole = read(chunk("".join(parts)), chunk(finish=finish))
    assert read(*(chunk(part) for part in parts), chunk(finish=finish)) == whole
    assert whole.text == "".join(parts)


@given(st.lists(st.binary(max_size=60) | st.binary(max_size=60).map(lambda data: b"data: " + data)))
def test_any_bytes_are_refused_or_skipped(lines: list[bytes]) -> None:
    with pytest.raises(AnswerRefusedError):
        read(*lines)
