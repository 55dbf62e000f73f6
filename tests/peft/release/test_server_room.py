"""Servers of a root: started once, found again by anybody, asked to end, ended, proven gone."""

from __future__ import annotations

import signal
import socket
import stat
import time
from contextlib import closing
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from control_scene import NEW, OLD, ControlScene, scene
from phase_support import BUBBLEWRAP, SYSTEMD, needs_bubblewrap
from serving_support import QUICK, TOKEN

from ticket_agent.peft.directory import Directory
from ticket_agent.peft.release.completion import CompletionReader
from ticket_agent.peft.release.confine import Unconfined
from ticket_agent.peft.release.detect import detect
from ticket_agent.peft.release.interpreter import Interpreter, device_files
from ticket_agent.peft.release.launch_errors import LaunchRefusedError
from ticket_agent.peft.release.launcher import ConfinedLauncher, python_paths
from ticket_agent.peft.release.process import send_signal
from ticket_agent.peft.release.running_phase import Lost, Running
from ticket_agent.peft.release.server_record import ServerRecord
from ticket_agent.peft.release.server_room import RoomServers, ServerRoom, read_token
from ticket_agent.peft.release.serving import COMPLETIONS_PATH
from ticket_agent.peft.release.serving_errors import InstanceRefusedError
from ticket_agent.peft.release.serving_pointer import ServingPointer
from ticket_agent.peft.release.tcp_table import listeners, somebody_listens

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from ticket_agent.peft.release.confine import Confinement
    from ticket_agent.peft.release.known_server import KnownServer

CONFINEMENTS = [
    pytest.param(Unconfined(), id="unconfined"),
    pytest.param(BUBBLEWRAP, id="bubblewrap", marks=needs_bubblewrap),
]
if SYSTEMD is not None:
    CONFINEMENTS.append(pytest.param(SYSTEMD, id="systemd"))


@pytest.fixture
def made(tmp_path: Path) -> Iterator[ControlScene]:
    with scene(tmp_path) as found:
        yield found


GONE_S = 30.0


def wait_gone(made: ControlScene, server: KnownServer) -> None:
    server.phase.wait(GONE_S)
    assert made.room.gone(server)


def wait_nothing_left(made: ControlScene, server: KnownServer) -> None:
    """Wait until a server without its supervisor is gone: who dies gives back its memory before its port."""
    end = time.monotonic() + GONE_S
    while not made.room.gone(server):
        assert time.monotonic() < end
        time.sleep(0.01)


@pytest.mark.parametrize("confinement", CONFINEMENTS)
def test_a_server_answers_what_it_has_begun_before_it_ends(confinement: Confinement, tmp_path: Path) -> None:
    with scene(tmp_path, launcher=ConfinedLauncher(confinement)) as made:
        server = made.start_old()
        made.ready(OLD)
        assert server.running() is True
        assert server.identity() == made.server(OLD).identity() != "gone"
        made.fault(1, "slow")
        question = server.backend.question(server.instance.name, QUICK.prompts[0], 8)
        answer = server.client().post_streamed(COMPLETIONS_PATH, question, deadline_s=60)
        reader = CompletionReader(server.backend.answer_names(server.instance.name))
        # A connection alone is not an answer that was begun: it may wait to be accepted, and wait in vain.
        reader.feed(next(answer))
        server.stop()
        assert server.ending
        assert not server.usable()
        for line in answer:
            reader.feed(line)
        assert reader.finish().text == "this is 1 to 0"
        wait_gone(made, server)
        assert server.running() is False
        assert server.identity() == "gone"
        server.stop()
        server.kill()


def test_the_record_is_there_first_and_has_no_secret(made: ControlScene) -> None:
    server = made.start_old()
    record = made.path / "servers" / f"{OLD}.json"
    assert stat.S_IMODE(record.stat().st_mode) == 0o600
    assert TOKEN.encode() not in record.read_bytes()
    assert ServerRecord.parse(record.read_bytes(), what="record") == server.record
    assert TOKEN not in repr(server.instance)
    found = made.room.known(OLD)
    assert found is not None
    assert found.instance == server.instance
    assert found.backend == made.room.backend(made.profile)
    assert found.caps == made.profile.stack.caps
    assert made.room.known("nobody.server") is None


def test_a_launch_id_is_used_once(made: ControlScene) -> None:
    server = made.start_old()
    backend, caps = server.backend, server.caps
    again = replace(server.instance, port=made.room.free_port())
    with pytest.raises(InstanceRefusedError, match="was begun before"):
        made.room.start(OLD, again, backend=backend, caps=caps)
    server.kill()
    with pytest.raises(InstanceRefusedError, match="was begun before"):
        made.room.start(OLD, again, backend=backend, caps=caps)
    with pytest.raises(InstanceRefusedError, match="is not of launch"):
        made.room.start("other.server", again, backend=backend, caps=caps)
    with pytest.raises(InstanceRefusedError, match="starts none"):
        ServerRoom(made.path, None, made.config).start(OLD, again, backend=backend, caps=caps)


@pytest.mark.parametrize("launch_id", ["", "-x", "a/b", "a.json", "a.run", "a.ending", "x" * 121, "a\n"])
def test_launch_ids_that_would_be_other_files_are_refused(launch_id: str, made: ControlScene) -> None:
    with pytest.raises(InstanceRefusedError, match="launch id"):
        made.room.known(launch_id)


def test_a_start_that_is_refused_leaves_a_server_that_never_ran(made: ControlScene) -> None:
    made.config.python.unlink()
    with pytest.raises(LaunchRefusedError):
        made.start_old()
    server = made.server(OLD)
    assert server.running() is False
    assert made.room.gone(server)
    made.room.remove(server)
    assert list((made.path / "servers").iterdir()) == []


def test_ports(made: ControlScene) -> None:
    first, second, third, fourth = made.config.ports
    assert made.room.free_port() == first
    server = made.start_old()
    assert server.instance.port == first
    with closing(socket.socket(socket.AF_INET6)) as other:
        other.bind(("::", second))
        other.listen()
        assert somebody_listens(second)
        assert made.room.free_port() == third
        assert made.room.free_port(besides=[third]) == fourth
        with pytest.raises(InstanceRefusedError, match="none of the configured ports"):
            made.room.free_port(besides=[third, fourth])
    server.kill()
    assert made.room.free_port() == first


def test_who_serves_is_found_by_the_pointer(made: ControlScene) -> None:
    assert made.room.all() == ()
    old = made.start_old()
    pointer = ServingPointer.of(old.instance)
    assert same(made.room.serving(pointer), old)
    assert made.room.serving(replace(pointer, port=pointer.port + 1)) is None
    old.kill()
    again = made.room.again(old, "again.server", port=old.instance.port)
    assert (again.name, again.run_dir) == (old.instance.name, str(made.path / "servers" / "again.server"))
    made.room.start("again.server", again, backend=old.backend, caps=old.caps)
    assert same(made.room.serving(pointer), made.server("again.server"))
    made.server("again.server").kill()
    assert same(made.room.serving(pointer), made.server("again.server"))
    assert [server.launch_id for server in made.room.all()] == ["again.server", OLD]


@pytest.mark.parametrize("opened", [False, True])
def test_a_server_whose_files_are_removed_meanwhile_hides_no_other_one(
    opened: bool, made: ControlScene, monkeypatch: pytest.MonkeyPatch
) -> None:
    old, other = made.start_old(), made.start_old("again.server")
    other.kill()
    record, real = made.path / "servers" / "again.server.json", Directory._open

    def opening(directory: Directory, name: str, *details: Any) -> int:
        if name != record.name or not record.exists():
            return real(directory, name, *details)
        if not opened:
            record.unlink()
        fd = real(directory, name, *details)
        record.unlink()
        return fd

    monkeypatch.setattr(Directory, "_open", opening)
    assert [server.launch_id for server in made.room.all()] == [OLD]
    assert same(made.room.serving(ServingPointer.of(old.instance)), old)
    assert made.room.known("again.server") is None


def same(one: KnownServer | None, other: KnownServer) -> bool:
    return one is not None and one.launch_id == other.launch_id


def test_files_of_a_server_that_runs_stay(made: ControlScene) -> None:
    server = made.start_old()
    with pytest.raises(InstanceRefusedError, match="may still run"):
        made.room.remove(server)
    server.kill()
    made.room.remove(server)
    assert made.room.known(OLD) is None
    made.room.remove(server)


@pytest.mark.parametrize("confinement", CONFINEMENTS)
def test_a_server_whose_supervisor_was_killed_is_seen_and_ended(
    confinement: Confinement, tmp_path: Path
) -> None:
    with scene(tmp_path, launcher=ConfinedLauncher(confinement)) as made:
        server = made.start_old()
        state = server.phase.poll()
        assert isinstance(state, Running)
        assert state.record is not None
        send_signal(state.record.supervisor, signal.SIGKILL)
        assert isinstance(server.phase.wait(GONE_S), Lost)
        server.kill()
        assert server.running() is False
        wait_nothing_left(made, server)


def test_the_servers_of_a_switch(made: ControlScene) -> None:
    server = made.start_old()
    hands = RoomServers(room=made.room, backend=server.backend, caps=server.caps)
    other = made.room.again(server, "again.server", port=made.room.free_port())
    assert hands.running(other) is None
    with pytest.raises(InstanceRefusedError, match="ever noted down"):
        hands.stop(other)
    hands.start(other)
    assert hands.running(other) is True
    hands.stop(server.instance)
    hands.kill(other)
    assert hands.running(other) is False
    wait_gone(made, server)


def token_open(path: Path) -> None:
    path.chmod(0o640)


def token_short(path: Path) -> None:
    path.write_text("short")


def token_linked(path: Path) -> None:
    path.rename(path.with_name("elsewhere"))
    path.symlink_to(path.with_name("elsewhere"))


def token_absent(path: Path) -> None:
    path.unlink()


@pytest.mark.parametrize("spoil", [token_open, token_short, token_linked, token_absent])
def test_tokens_that_are_none_or_not_secret(spoil: Callable[[Path], None], tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_text(f"{TOKEN}\n")
    path.chmod(0o600)
    assert read_token(path) == TOKEN
    spoil(path)
    with pytest.raises(InstanceRefusedError, match="token") as refused:
        read_token(path)
    assert TOKEN not in str(refused.value)


def test_damaged_records_are_told(made: ControlScene) -> None:
    server = made.start_old()
    path = made.path / "servers" / f"{OLD}.json"
    data = path.read_bytes()
    (path.parent / "other.json").write_bytes(data)
    with pytest.raises(InstanceRefusedError, match=r"other\.json is the record of launch"):
        made.room.all()
    (path.parent / "other.json").unlink()
    path.write_bytes(data.replace(b'"port":', b'"port" :'))
    with pytest.raises(Exception, match="is not spelled in its one form"):
        made.room.known(OLD)
    path.write_bytes(data)
    server.kill()


def test_listeners_are_told_from_connections() -> None:
    row = "   0: 0100007F:{port:04X} 0100007F:9C40 {state} 00000000:00000000"
    table = "\n".join(["header", row.format(port=8000, state="01"), row.format(port=8001, state="0A")])
    assert [listeners(table, port) for port in (8000, 8001, 8002)] == [0, 1, 0]


def test_an_interpreter_is_seen_with_what_it_builds_on(tmp_path: Path) -> None:
    home, venv = tmp_path / "home", tmp_path / "venv"
    for folder in (home, venv):
        (folder / "bin").mkdir(parents=True)
    (home / "bin" / "python3").write_bytes(b"")
    (venv / "bin" / "python").symlink_to(home / "bin" / "python3")
    (venv / "pyvenv.cfg").write_text(f"home = {home}/bin\n")
    (tmp_path / "link").symlink_to(venv)
    found = Interpreter.of(tmp_path / "link" / "bin" / "python")
    assert found.program == venv / "bin" / "python"
    assert set(found.paths) == {home, venv, *python_paths()}


@pytest.mark.parametrize(("device", "names"), [("cpu", []), ("cuda:1", ["nvidia1", "nvidiactl"])])
def test_devices_of_a_server(device: str, names: list[str], made: ControlScene, tmp_path: Path) -> None:
    folder = tmp_path / "dev"
    folder.mkdir()
    for name in ("nvidia0", "nvidia1", "nvidiactl"):
        (folder / name).touch()
    settings: Any = {"device": device, "memory_fraction": 0.5 if device != "cpu" else None}
    wanted = replace(made.profile.stack.device, **settings)
    assert device_files(wanted, folder) == tuple(folder / name for name in names)


def test_what_is_detected_here_serves(tmp_path: Path) -> None:
    with scene(tmp_path, launcher=detect(unconfined=True).launcher) as made:
        made.start_old()
        made.start_new()
        made.ready(OLD, NEW)


def test_a_server_that_was_asked_to_end_is_not_usable(made: ControlScene) -> None:
    served: dict[str, Any] = {"generation": 1, "artifact_sha256": made.baseline.served_artifact_sha256}
    assert made.room.usable(**served) is None
    old = made.start_old()
    assert same(made.room.usable(**served), old)
    assert made.room.usable(generation=2, artifact_sha256=old.instance.artifact_sha256) is None
    made.ready(OLD)
    made.fault(1, "unstoppable")
    old.stop()
    assert old.running() is True
    assert made.room.usable(**served) is None
    again = made.start_old("again.server")
    assert same(made.room.usable(**served), again)
