"""A process that runs workflows of five durable steps on DBOS with SQLite, one for each line it is sent.

Usage: ``python dbos_steps.py DATABASE``. First it says how it is set up, then, after each line of its
standard input, how many seconds one workflow took. DBOS is as it comes; nothing of it is exported or served.
"""

from __future__ import annotations

import json
import sys
import time
from importlib.metadata import version
from typing import Any

from dbos import DBOS
from sqlalchemy import Engine, event

_SYNCHRONOUS = {0: "OFF", 1: "NORMAL", 2: "FULL", 3: "EXTRA"}
_pragmas: dict[str, str] = {}


@event.listens_for(Engine, "connect")
def note_pragmas(connection: Any, record: Any) -> None:
    """What the connections of DBOS itself say, since one setting belongs to the connection."""
    (_pragmas["journal_mode"],) = connection.execute("PRAGMA journal_mode").fetchone()
    _pragmas["synchronous"] = _SYNCHRONOUS[connection.execute("PRAGMA synchronous").fetchone()[0]]


@DBOS.step()
def prepare(number: int) -> dict[str, Any]:
    return {"sequence": number, "request": "r" * 72}


@DBOS.step()
def dispatch(number: int) -> dict[str, Any]:
    return {
        "before": {"lease": None, "seen": ["a", "b"]},
        "intent": {"line": '{"op":"grant"}', "seq": number},
    }


@DBOS.step()
def settle(number: int) -> dict[str, Any]:
    return {"outcome": "confirmed", "message": "committed", "evidence": {"seq": number}, "line": "l" * 60}


@DBOS.step()
def publish(number: int) -> bool:
    return number > 0


@DBOS.step()
def finish(number: int) -> bool:
    return number > 0


@DBOS.workflow()
def ticket(number: int) -> bool:
    return all([prepare(number), dispatch(number), settle(number), publish(number), finish(number)])


def main(database: str) -> None:
    DBOS(
        config={
            "name": "bench",
            "system_database_url": f"sqlite:///{database}",
            "log_level": "ERROR",
            "enable_otlp": False,
        }
    )
    DBOS.launch()
    assert ticket(1)
    _say(json.dumps({"version": version("dbos"), **_pragmas}))
    for number, _ in enumerate(sys.stdin, start=2):
        started = time.perf_counter()
        done = ticket(number)
        seconds = time.perf_counter() - started
        assert done
        _say(str(seconds))
    DBOS.destroy()


def _say(line: str) -> None:
    """One line, one write: whoever traces this process tells the workflows apart by them."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main(sys.argv[1])
