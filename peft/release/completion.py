"""A streamed completion, read line by line. Values only: no sockets and no clock."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from ticket_agent.peft.names import shown
from ticket_agent.peft.release.serving_errors import AnswerRefusedError, WrongModelError
from ticket_agent.protocol.errors import JsonError
from ticket_agent.protocol.json_strict import parse_object

if TYPE_CHECKING:
    from collections.abc import Collection

__all__ = ["MAX_LINE_BYTES", "MAX_TEXT_BYTES", "Completion", "CompletionReader"]

MAX_TEXT_BYTES: Final = 4096
"""UTF-8 of one answer; the longest one that is asked for has eight tokens."""
MAX_LINE_BYTES: Final = 16 * 1024
"""One line of a streamed answer."""
MAX_LOGPROBS: Final = 64
FINISHES: Final = ("stop", "length")

_PREFIX: Final = b"data:"
_DONE: Final = b"[DONE]"


@dataclass(frozen=True, slots=True, kw_only=True)
class Completion:
    """A complete answer.

    Attributes:
        model: the name that every chunk carried.
        text: everything that was generated.
        finish: ``stop`` or ``length``.
        logprobs: of each token that was chosen, where the server tells them; else empty.
    """

    model: str
    text: str
    finish: str
    logprobs: tuple[float, ...] = ()


class CompletionReader:
    """Takes the lines of one answer, in order, and gives the completion at their end.

    Whatever an answer to one question does not have is refused: another name in any chunk, more than one
    choice, text after the end, an error, a second end.
    """

    def __init__(self, names: Collection[str]) -> None:
        """``names``: under which the server may answer."""
        self._names = frozenset(names)
        self._model = ""
        self._parts: list[str] = []
        self._size = 0
        self._logprobs: list[float] = []
        self._finish: str | None = None
        self._done = False

    def feed(self, line: bytes) -> None:
        """Take one line without its end.

        Raises:
            WrongModelError: it is of another model.
            AnswerRefusedError: it does not belong into an answer.
        """
        if not line.startswith(_PREFIX):
            if line and not line.startswith((b":", b"event:", b"id:", b"retry:")):
                raise AnswerRefusedError(
                    f"{shown(line[:80].decode('utf-8', 'backslashreplace'))} is no event"
                )
            return
        data = line.removeprefix(_PREFIX).strip()
        if self._done:
            raise AnswerRefusedError("the server sent more after the end of the answer")
        if data == _DONE:
            self._done = True
            return
        try:
            self._chunk(parse_object(data, what="chunk", max_bytes=MAX_LINE_BYTES))
        except JsonError as error:
            raise AnswerRefusedError(str(error)) from None

    def finish(self) -> Completion:
        """Return the answer.

        Raises:
            AnswerRefusedError: the server did not say that it is complete.
        """
        if self._finish is None:
            raise AnswerRefusedError("the answer ends without a finish_reason; the server may have died")
        return Completion(
            model=self._model,
            text="".join(self._parts),
            finish=self._finish,
            logprobs=tuple(self._logprobs),
        )

    def _chunk(self, chunk: dict[str, Any]) -> None:
        if "error" in chunk:
            raise AnswerRefusedError(f"the server failed: {shown(str(chunk['error']), 160)}")
        model = chunk.get("model")
        if not isinstance(model, str) or model not in self._names:
            wanted = " or ".join(sorted(self._names))
            raise WrongModelError(f"the server answers as {shown(str(model), 160)}, not as {wanted}")
        if self._model not in {"", model}:
            raise WrongModelError(f"the server answers as {self._model} and as {model} at once")
        self._model = model
        choices = chunk.get("choices")
        if not isinstance(choices, list) or len(choices) > 1:
            raise AnswerRefusedError("a chunk must have one choice, or none")
        for choice in choices:
            self._choice(choice)

    def _choice(self, choice: object) -> None:
        if not isinstance(choice, dict) or choice.get("index") != 0:
            raise AnswerRefusedError("a choice must be the one with index 0")
        delta = choice.get("delta") or {}
        content = delta.get("content") if isinstance(delta, dict) else delta
        if content is not None and not isinstance(content, str):
            raise AnswerRefusedError("the content of a chunk must be text")
        if content:
            if self._finish is not None:
                raise AnswerRefusedError("the server sent text after the finish_reason")
            self._size += len(content.encode("utf-8"))
            if self._size > MAX_TEXT_BYTES:
                raise AnswerRefusedError(f"the answer exceeds {MAX_TEXT_BYTES} bytes of text")
            self._parts.append(content)
        self._take_logprobs(choice.get("logprobs"))
        reason = choice.get("finish_reason")
        if reason is not None:
            if reason not in FINISHES or self._finish is not None:
                raise AnswerRefusedError(f"finish_reason {shown(str(reason))} is not one stop or length")
            self._finish = reason

    def _take_logprobs(self, value: object) -> None:
        content = value.get("content") if isinstance(value, dict) else None
        for item in content or ():
            number = item.get("logprob") if isinstance(item, dict) else None
            if isinstance(number, bool) or not isinstance(number, int | float) or number > 0:
                raise AnswerRefusedError("each logprob must be a number that is not above 0")
            self._logprobs.append(float(number))
        if len(self._logprobs) > MAX_LOGPROBS:
            raise AnswerRefusedError(f"the answer has more than {MAX_LOGPROBS} logprobs")
