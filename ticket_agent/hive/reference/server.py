"""The reference hive's TCP console."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final, Self

from .endpoint import Endpoint, Timeouts
from .faults import Faults
from .limiter import AttachLimiter
from .session import ConsoleSession, SessionOptions
from .tickets import TicketDesk

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from types import TracebackType

    from .hive import ReferenceHive

__all__ = ["ConsoleServer"]

_OPTIONS: Final = SessionOptions()
_TIMEOUTS: Final = Timeouts()


class ConsoleServer:
    """Serves a hive over real TCP in background threads; a context manager.

    It has a single owner at a time, speaks the newer bounds (command line 2304 bytes, append 2048) and cuts
    long ticket lines into C1 frames. A lab console is a second, equally single-owner console of the same hive
    on another port, without faults, so that people can submit while an agent owns the first one.

    Args:
        hive: the hive to serve.
        host: address to bind.
        port: port to bind, 0 for a free one.
        token: what a client must authenticate with.
        faults: rules of the main console.
        lab_port: port of the lab console, 0 for a free one, None for none.
        options: quirks of older consoles.
        timeouts: waits, seconds.
        ticket_secrets: secret of each role whose capability tickets are accepted; none by default.
        monotonic: clock of the attach limiters, seconds.

    Raises:
        OSError: a port cannot be bound.
    """

    def __init__(
        self,
        hive: ReferenceHive,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        token: str,
        faults: Faults | None = None,
        lab_port: int | None = None,
        options: SessionOptions = _OPTIONS,
        timeouts: Timeouts = _TIMEOUTS,
        monotonic: Callable[[], float] = time.monotonic,
        ticket_secrets: Mapping[str, str] | None = None,
    ) -> None:
        self.hive = hive
        self.host = host
        self.faults = Faults() if faults is None else faults
        limiter = AttachLimiter(monotonic)
        desk = TicketDesk(ticket_secrets or {}, clock=hive.now_ms)

        def new_session() -> ConsoleSession:
            return ConsoleSession(hive, token=token, limiter=limiter, options=options, desk=desk)

        self._main = Endpoint(
            host=host, port=port, new_session=new_session, faults=self.faults, timeouts=timeouts
        )
        self._lab: Endpoint | None = None
        if lab_port is not None:
            try:
                self._lab = Endpoint(
                    host=host, port=lab_port, new_session=new_session, faults=Faults(), timeouts=timeouts
                )
            except OSError:
                self._main.stop()
                raise

    @property
    def port(self) -> int:
        """Port of the main console."""
        return self._main.port

    @property
    def lab_port(self) -> int | None:
        """Port of the lab console, None when there is none."""
        return None if self._lab is None else self._lab.port

    def start(self) -> None:
        """Begin to serve; connections made since construction are waiting in the kernel."""
        self._main.start()
        if self._lab is not None:
            self._lab.start()

    def stop(self) -> None:
        """End all connections and threads; returns when they are gone. May be called twice."""
        self._main.stop()
        if self._lab is not None:
            self._lab.stop()

    def kick(self) -> None:
        """End the main console's current connection, as a crash of its transport would."""
        self._main.kick()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
