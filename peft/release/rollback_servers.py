"""Which servers a rollback is about: the candidate's, and the one that answers in its place afterwards."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ticket_agent.peft.errors import AbsentError, PeftError
from ticket_agent.peft.release.control_promote import HISTORY_FILE
from ticket_agent.peft.release.spelled import decode_spelled
from ticket_agent.peft.release.switching import Step, history_of
from ticket_agent.peft.roots import open_to_read
from ticket_agent.protocol.errors import ProtocolError

if TYPE_CHECKING:
    from pathlib import Path

    from ticket_agent.journal.outcome import JsonValue
    from ticket_agent.peft.release.server_room import KnownServer, ServerRoom

__all__ = ["incumbent_servers", "told_to_end"]

MAX_HISTORY_BYTES: Final = 64 * 1024


def incumbent_servers(
    room: ServerRoom, incumbent: KnownServer, *, ending: bool, launch_id: str
) -> dict[str, JsonValue]:
    """Say which server is the incumbent's, as members of the intent; may be repeated.

    One that was started in its place by an earlier attempt is used again, or nobody would ever end it.

    Args:
        room: the servers.
        incumbent: what answered when the release began.
        ending: it was told to end. It may still be there, but it does not answer for long: it is ended here.
        launch_id: of the one that is started where none is left.

    Raises:
        PhaseStopError: it has not ended yet; try again.
        PeftError: likewise, or no port is free.
    """
    if incumbent.running() is not False and not ending:
        return {"incumbent": incumbent.launch_id}
    if ending:
        incumbent.kill()
    for server in room.all():
        if server.launch_id != incumbent.launch_id and _same(server, incumbent) and server.running():
            return {"incumbent": server.launch_id}
    return {"incumbent": launch_id, "again": incumbent.launch_id, "port": room.free_port()}


def told_to_end(out: Path) -> bool:
    """Whether a promotion had begun to end the incumbent, by what it left in its ``out``.

    What cannot be read counts as yes: a new instance is right in either case.
    """
    if not out.exists():
        return False
    try:
        with open_to_read(out, label="what promote left") as directory:
            data = directory.read_file(HISTORY_FILE, max_bytes=MAX_HISTORY_BYTES)
        document = decode_spelled(data, what=HISTORY_FILE, max_bytes=MAX_HISTORY_BYTES)
        history = history_of(document.get("history"))
    except AbsentError:
        return False
    except (PeftError, ProtocolError):
        return True
    return any(event.step is Step.STOP_OLD for event in history)


def _same(one: KnownServer, other: KnownServer) -> bool:
    return (one.instance.generation, one.instance.artifact_sha256, one.bundle_sha256) == (
        other.instance.generation,
        other.instance.artifact_sha256,
        other.bundle_sha256,
    )
