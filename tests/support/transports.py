"""Every way to a hive that an agent has, for what is run over each of them.

A transport says how a hive is served, how its listener goes away and comes back, and how an agent is started.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from agent_support import AgentProcess
from hive_support import TOKEN

from ticket_agent.hive.reference import DEFAULT, ConsoleServer, Faults, HiveProfile, ReferenceHive

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


class Served(Protocol):
    """A hive that is served in one way."""

    port: int
    """Where the hive's end of the transport listens, on loopback."""

    def agent(
        self, state_dir: Path, port: int, tmp: Path, *, timeout_s: float | None, poll_ms: int | None
    ) -> AgentProcess:
        """Start `ticket-agent run`.

        Args:
            state_dir: its journal.
            port: where it finds the hive: this one's, or that of a proxy.
            tmp: for its log and configuration.
            timeout_s: how long an answer is waited for, None for the default.
            poll_ms: look so often and never faster, as an agent with a plain poll does; None for the default.
        """

    def restart(self) -> None:
        """The listener and every connection end; a new one listens on the same port."""

    def close(self) -> None:
        """The end."""


@dataclass(frozen=True)
class Transport:
    """One way to a hive.

    Attributes:
        profile: the generation of root that it needs.
        requests: a connection through a proxy is struck within so many requests.
    """

    name: str
    serve: Callable[[ReferenceHive, Faults], Served]
    profile: HiveProfile = DEFAULT
    requests: int = 70


class ConfiguredAgent(AgentProcess):
    """`ticket-agent run` with a configuration file that says how it gets to its hive."""

    def __init__(self, state_dir: Path, tmp: Path, *tables: str, poll_ms: int | None) -> None:
        poll = "" if poll_ms is None else f"[poll]\nfast_ms = {poll_ms}\nidle_ms = {poll_ms}\n"
        config = tmp / "agent.toml"
        config.write_text("".join([*tables, poll]), encoding="ascii")
        self.errors = tmp / f"agent-{time.monotonic_ns()}.log"
        command = [sys.executable, "-m", "ticket_agent", "run", "--state-dir", str(state_dir)]
        command += ["--config", str(config), "--log-format", "json"]
        environ = os.environ | {"LAB_TOKEN": TOKEN, "COHSH_CONSOLE_LOCK": "0"}
        with self.errors.open("wb") as stream:
            self.process = subprocess.Popen(command, stderr=stream, env=environ)


class ConsoleServed:
    """The TCP console."""

    def __init__(self, hive: ReferenceHive, faults: Faults) -> None:
        self._hive, self._faults = hive, faults
        self._server = ConsoleServer(hive, token=TOKEN, faults=faults)
        self._server.start()
        self.port = self._server.port

    def agent(
        self, state_dir: Path, port: int, tmp: Path, *, timeout_s: float | None, poll_ms: int | None
    ) -> AgentProcess:
        waits = "" if timeout_s is None else f"command_timeout_s = {timeout_s}\n"
        console = f'[console]\nport = {port}\nauth_token = "env:LAB_TOKEN"\n{waits}'
        return ConfiguredAgent(state_dir, tmp, console, poll_ms=poll_ms)

    def restart(self) -> None:
        self._server.stop()
        self._server = ConsoleServer(self._hive, port=self.port, token=TOKEN, faults=self._faults)
        self._server.start()

    def close(self) -> None:
        self._server.stop()


CONSOLE = Transport("console", ConsoleServed)
TRANSPORTS = [CONSOLE]


def _others() -> list[Transport]:
    # Their modules build on this one.
    from transport_mount import MOUNT  # noqa: PLC0415 - see above
    from transport_rest import REST  # noqa: PLC0415 - see above

    return [REST, MOUNT]


TRANSPORTS += _others()
