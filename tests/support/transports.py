"""Every way to a hive that an agent has, for what is run over each of them.

A transport says how a hive is served, how its listener goes away and comes back, and how an agent is started.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from agent_support import AgentProcess
from hive_support import TOKEN

from ticket_agent.hive.reference import ConsoleServer, Faults, ReferenceHive

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


class Served(Protocol):
    """A hive that is served in one way."""

    port: int
    """Where the proxy finds it."""

    def restart(self) -> None:
        """The listener and every connection end; a new one listens on the same port."""

    def close(self) -> None: ...


class StartsAgent(Protocol):
    def __call__(
        self, state_dir: Path, port: int, tmp: Path, *, timeout_s: float = 5.0, poll_ms: int | None = None
    ) -> AgentProcess:
        """Start one.

        Args:
            state_dir: its journal.
            port: where it finds the hive.
            tmp: for its log and configuration.
            timeout_s: how long it waits for an answer.
            poll_ms: look so often and never faster, as an agent with a plain poll does.
        """


@dataclass(frozen=True)
class Transport:
    """One way to a hive.

    Attributes:
        serve: start to serve a hive.
        agent: start `ticket-agent run` whose way leads through a port of loopback.
    """

    name: str
    serve: Callable[[ReferenceHive, Faults], Served]
    agent: StartsAgent


class ConsoleServed:
    """The TCP console."""

    def __init__(self, hive: ReferenceHive, faults: Faults) -> None:
        self._hive, self._faults = hive, faults
        self._server = ConsoleServer(hive, token=TOKEN, faults=faults)
        self._server.start()
        self.port = self._server.port

    def restart(self) -> None:
        self._server.stop()
        self._server = ConsoleServer(self._hive, port=self.port, token=TOKEN, faults=self._faults)
        self._server.start()

    def close(self) -> None:
        self._server.stop()


def _config(tmp: Path, poll_ms: int | None, *tables: str) -> Path:
    path = tmp / "agent.toml"
    poll = "" if poll_ms is None else f"[poll]\nfast_ms = {poll_ms}\nidle_ms = {poll_ms}\n"
    path.write_text("".join([*tables, poll]), encoding="ascii")
    return path


def _console_agent(
    state_dir: Path, port: int, tmp: Path, *, timeout_s: float = 5.0, poll_ms: int | None = None
) -> AgentProcess:
    config = _config(tmp, poll_ms, f"[console]\ncommand_timeout_s = {timeout_s}\n")
    return AgentProcess(state_dir, port, tmp, "--config", str(config))


CONSOLE = Transport("console", ConsoleServed, _console_agent)
TRANSPORTS = [CONSOLE]
