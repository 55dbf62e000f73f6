"""What a document of a release is refused with."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from ticket_agent.peft.errors import PeftError
from ticket_agent.protocol.errors import JsonError

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["DocumentError", "reading"]


class DocumentError(PeftError):
    """A document, or a value that must not become one. It will be refused for ever: nothing to wait for.

    Attributes:
        rule: stable name of the broken rule, for scripts and reports.
        reason: the line without the names of the documents around it.
    """

    code = "release-document"

    def __init__(self, reason: str, *, rule: str = "release-document", path: tuple[str, ...] = ()) -> None:
        super().__init__(": ".join((*path, reason)))
        self.rule = rule
        self.reason = reason
        self._path = path

    def within(self, what: str) -> DocumentError:
        """The same refusal, named as one of a part of ``what``."""
        return DocumentError(self.reason, rule=self.rule, path=(what, *self._path))


@contextmanager
def reading(what: str) -> Iterator[None]:
    """Name ``what`` in every refusal of the body.

    Raises:
        DocumentError: for that, and in place of :class:`JsonError`.
    """
    try:
        yield
    except DocumentError as error:
        raise error.within(what) from None
    except JsonError as error:
        raise DocumentError(str(error), rule=error.code, path=(what,)) from None
