"""The way through a REST gateway."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from hive_support import TOKEN
from transports import ConfiguredAgent, Transport

from ticket_agent.hive.reference import Faults, GatewayServer, GatewayTimes, ReferenceHive

if TYPE_CHECKING:
    from pathlib import Path

    from agent_support import AgentProcess

QUICK_CACHE_S = 0.05
"""Where an agent is not to wait for its answers, the gateway's cache is short and known to be."""


class RestServed:
    """A gateway, whose cache is as the agent's configuration says."""

    def __init__(self, hive: ReferenceHive, faults: Faults) -> None:
        self._hive, self._faults = hive, faults
        self._times = GatewayTimes()
        self._server = self._listen(0)
        self.port = self._server.port

    def _listen(self, port: int) -> GatewayServer:
        server = GatewayServer(
            self._hive,
            clock=lambda: time.time_ns() // 1_000_000,
            port=port,
            token=TOKEN,
            faults=self._faults,
            times=self._times,
        )
        server.start()
        return server

    def agent(
        self, state_dir: Path, port: int, tmp: Path, *, timeout_s: float | None, poll_ms: int | None
    ) -> AgentProcess:
        rest = f'[rest]\nurl = "http://127.0.0.1:{port}"\nauth_token = "env:LAB_TOKEN"\n'
        if timeout_s is not None:
            rest += f"timeout_s = {timeout_s}\ncache_s = {QUICK_CACHE_S}\n"
            self._times = GatewayTimes(cache_s=QUICK_CACHE_S)
            self.restart()
        return ConfiguredAgent(state_dir, tmp, rest, poll_ms=poll_ms)

    def restart(self) -> None:
        self._server.stop()
        self._server = self._listen(self.port)

    def close(self) -> None:
        self._server.stop()


REST = Transport("rest", RestServed)
