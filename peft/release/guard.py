"""No change after a failed one: the journal's rule, for the trees of a release."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from ticket_agent.journal.fs import OUT_OF_SPACE
from ticket_agent.peft.errors import PeftIoError
from ticket_agent.peft.release.root_errors import RootPoisonedError

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["Guard"]


class Guard:
    """Lets changes through until one fails in a way that leaves open what is on disk.

    After a failed sync the kernel may report success the next time although data is gone, so a second try
    proves nothing. A full disk is something else: nothing was changed, and there may be room later.
    """

    def __init__(self) -> None:
        self._failed: str | None = None

    @contextmanager
    def changing(self) -> Iterator[None]:
        """Hold while something is being changed.

        Raises:
            RootPoisonedError: an earlier change failed.
        """
        if self._failed is not None:
            raise RootPoisonedError(f"an earlier change failed ({self._failed}); restart the agent")
        try:
            yield
        except PeftIoError as error:
            if error.applied or error.errno not in OUT_OF_SPACE:
                self._failed = str(error)
            raise
