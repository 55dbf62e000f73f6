"""The reference console, as the recorded one: same commands in, same answers out.

Contents of the namespace come from the recording; framing, handshake, bounds, grammar, limiter, tickets and
the shape of every answer have to be derived.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from console_replay import compare
from console_transcripts import replayable
from hive_support import TOKEN

from ticket_agent.hive.console.framing import FrameDecoder, encode_frame
from ticket_agent.hive.reference import OLDER_CONSOLE, ConsoleServer, ReferenceHive, SessionOptions
from ticket_agent.hive.reference.limiter import AttachLimiter
from ticket_agent.hive.reference.session import ConsoleSession, Reply

if TYPE_CHECKING:
    from pathlib import Path

DIFFERENT = {
    "16_worker_spawn": {
        "SPAWN": "a verb of people's shells; hosts spawn through /queen/ctl, which is modelled",
        "KILL": "likewise",
    },
}
"""Recording, verb, and why the reference console answers otherwise.

Not compared anywhere: the preview behind ``data=``, which is lossy on purpose and differs between releases;
the number in ``delay_ms=``, which counts the target's own clock; where a late ``PONG`` stands.
"""


@pytest.mark.parametrize("path", replayable(), ids=lambda path: path.stem)
def test_the_reference_console_answers_like_the_recorded_one(path: Path) -> None:
    found = compare(path)
    print(f"{path.stem}: {found.same} answers as recorded, {len(found.different)} otherwise")
    assert {line.split(" ")[0] for line, _, _ in found.different} == set(DIFFERENT.get(path.stem, ()))
    assert found.same > 0


def _pipelined(options: SessionOptions, count: int) -> tuple[int, int]:
    """Answers to ``count`` PINGs in one segment, and commands that the console lost."""
    hive = ReferenceHive(clock=lambda: 0)
    session = ConsoleSession(hive, token=TOKEN, limiter=AttachLimiter(lambda: 0.0), options=options)
    answers = bytearray()
    for data in (encode_frame(f"AUTH {TOKEN}"), encode_frame("PING") * count):
        session.connection.receive(data)
        while (event := session.connection.next_event()) is not None:
            reply = session.hear(event)
            reply = reply if isinstance(reply, Reply) else session.execute(reply)
            answers += b"".join(encode_frame(line) for line in reply.lines)
    pongs = [line for line in FrameDecoder().feed(bytes(answers)) if line == b"OK PING reply=pong"]
    return len(pongs), session.connection.dropped


@pytest.mark.parametrize(("count", "answered", "lost"), [(8, 8, 0), (12, 8, 4), (20, 8, 12)])
def test_an_early_console_loses_what_does_not_fit_its_queue(count: int, answered: int, lost: int) -> None:
    assert _pipelined(OLDER_CONSOLE, count) == (answered, lost)
    assert _pipelined(SessionOptions(), count) == (count, 0)


def test_the_server_can_be_an_early_console() -> None:
    with ConsoleServer(ReferenceHive(clock=lambda: 0), token=TOKEN, options=OLDER_CONSOLE) as server:
        assert server.port > 0
