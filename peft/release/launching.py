"""A launch in a thread of its own: a supervisor takes a tenth of a second to answer, a busy host longer.

Until it has answered, the caller must not look whether the phase runs: that it does not means nothing yet.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Final, Protocol

from ticket_agent.peft.errors import PeftError
from ticket_agent.peft.release.launch_errors import LaunchUnknownError

if TYPE_CHECKING:
    from collections.abc import Callable

    from ticket_agent.journal.outcome import JsonValue
    from ticket_agent.peft.release.phases import Phase
    from ticket_agent.peft.release.release_story import Story

__all__ = ["Launching", "Starter"]


class Starter(Protocol):
    """Prepares and starts phases."""

    def prepare(self, story: Story, phase: Phase) -> dict[str, JsonValue]:
        """Make everything ready that the phase needs; return its intent. May be repeated.

        Raises:
            PeftError: it cannot be made ready now.
        """

    def launch(self, story: Story, phase: Phase, intent: dict[str, JsonValue]) -> Callable[[], None]:
        """Return what starts it, once, in whatever thread.

        That raises LaunchUnknownError when looking has to tell whether the phase was started, and another
        PeftError when it was not.

        Raises:
            PeftError: it cannot be started.
        """


class Launching:
    """One launch, begun when this is made. A process that ends waits for it, so that none is left half done.

    Attributes:
        phase: what is launched.
    """

    def __init__(self, phase: Phase, launch: Callable[[], None]) -> None:
        self.phase: Final = phase
        self._launch = launch
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name=f"launch-{phase}")
        self._thread.start()

    @property
    def goes_on(self) -> bool:
        """Whether the supervisor has not answered yet."""
        return self._thread.is_alive()

    def finish(self) -> str | None:
        """Wait for the answer; return why nothing was started, or None: looking at the phase tells.

        Raises:
            BaseException: whatever else went wrong; then too, looking tells.
        """
        self._thread.join()
        if self._failure is None or isinstance(self._failure, LaunchUnknownError):
            return None
        if isinstance(self._failure, PeftError):
            return str(self._failure)
        raise self._failure

    def _run(self) -> None:
        try:
            self._launch()
        except BaseException as error:  # noqa: BLE001 - it is raised where it is understood
            self._failure = error
