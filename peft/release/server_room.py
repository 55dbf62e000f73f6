"""The model servers of a private root: noted down before they are started, started once, found again.

```
<root>/servers/
  <launch id>.json     what is started, and how; on disk before anything else
  <launch id>/         the server's own directory, with its token
  <launch id>.run/     the run directory of its process
  <launch id>.ending   somebody has asked it to end; there before the first signal
```

A server is confined like a phase, but shares the host's network, because somebody has to reach it, and has
no deadline. It outlives the agent.
"""

from __future__ import annotations

import os
import time
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from ticket_agent.peft.errors import AbsentError, FileRefusedError, PeftError, RootRefusedError
from ticket_agent.peft.release.interpreter import Interpreter, device_files
from ticket_agent.peft.release.known_server import KnownServer
from ticket_agent.peft.release.layout import SERVERS
from ticket_agent.peft.release.loopback import check_token
from ticket_agent.peft.release.phase_command import PhaseCommand, PhaseLimits, beyond_fixed
from ticket_agent.peft.release.replaced import read_replaced
from ticket_agent.peft.release.server_record import (
    ENDING_SUFFIX,
    MAX_RECORD_BYTES,
    RECORD_SUFFIX,
    RUN_SUFFIX,
    ServerRecord,
    check_launch_id,
)
from ticket_agent.peft.release.serving import Instance, backend_for
from ticket_agent.peft.release.serving_errors import InstanceRefusedError
from ticket_agent.peft.release.serving_run_dir import make_run_dir
from ticket_agent.peft.release.tcp_table import somebody_listens
from ticket_agent.peft.roots import open_root

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from ticket_agent.peft.directory import Directory
    from ticket_agent.peft.release.launcher import Launcher
    from ticket_agent.peft.release.profile import Profile
    from ticket_agent.peft.release.release_config import ReleaseConfig
    from ticket_agent.peft.release.serving import Backend
    from ticket_agent.peft.release.serving_pointer import ServingPointer
    from ticket_agent.peft.release.stack import Caps

__all__ = ["KnownServer", "RoomServers", "ServerRoom", "read_token"]

MAX_TOKEN_FILE_BYTES: Final = 256
PAUSE_S: Final = 0.02
"""Between two looks at a server that is ending."""


def read_token(path: Path) -> str:
    """Read the token that every request to a server must carry.

    Raises:
        InstanceRefusedError: others can read or replace the file, or what it holds is no token.
        PeftIoError: it cannot be read.
    """
    try:
        with open_root(
            path.parent, label="directory of the token", owner_uid=os.geteuid(), create=False
        ) as directory:
            status = directory.status(path.name)
            if status is not None and (status.st_uid not in {0, os.geteuid()} or status.st_mode & 0o077):
                raise InstanceRefusedError(
                    f"token file {path} must belong to this account, and nobody else may read it (chmod 600)"
                )
            data = directory.read_file(path.name, max_bytes=MAX_TOKEN_FILE_BYTES)
    except (AbsentError, FileRefusedError, RootRefusedError) as error:
        raise InstanceRefusedError(f"token file: {error}") from None
    return check_token(data.decode("ascii", "replace").strip())


class ServerRoom:
    """The servers of one root.

    Whoever starts one is the only process that does so, or holds the root's lock.
    """

    def __init__(
        self,
        root: Path,
        launcher: Launcher | None,
        config: ReleaseConfig,
        *,
        now_unix_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
    ) -> None:
        """Without a launcher, servers can be found and ended, and none can be started."""
        self.root: Final = root
        self._path: Final = root / SERVERS
        self._bundles: Final = root / "bundles"
        self._launcher = launcher
        self.config: Final = config
        self._now_unix_ms = now_unix_ms

    # -- what could be started ------------------------------------------------------------------------------

    def backend(self, profile: Profile) -> Backend:
        """The kind of server that a profile names, with this host's interpreter.

        Raises:
            InstanceRefusedError: there is none.
        """
        python = str(Interpreter.of(self.config.python).program)
        return backend_for(profile.stack.serving, dict(profile.versions), python=python)

    def instance(
        self,
        launch_id: str,
        profile: Profile,
        *,
        model_id: str,
        generation: int,
        artifact_sha256: str,
        bundle_sha256: str,
        port: int,
    ) -> Instance:
        """An instance of a bundle of this root, which must be there as a directory before it is started.

        Raises:
            InstanceRefusedError: the token cannot be used, or no instance has these values.
            NameRefusedError, DocumentError: likewise.
            PeftIoError: the token's file cannot be read.
        """
        return Instance(
            model_id=model_id,
            generation=generation,
            artifact_sha256=artifact_sha256,
            bundle=str(self._bundles / bundle_sha256),
            base=str(self._bundles / profile.base),
            rank=None if bundle_sha256 == profile.base else profile.settings.rank,
            run_dir=self._run_dir(launch_id),
            port=port,
            token=read_token(self.config.token_file),
            device=profile.stack.device,
        )

    def again(self, server: KnownServer, launch_id: str, *, port: int) -> Instance:
        """Another instance of what a server serves or served.

        Raises:
            PeftError: as :meth:`instance`.
        """
        token = read_token(self.config.token_file)
        return replace(server.instance, run_dir=self._run_dir(launch_id), port=port, token=token)

    def free_port(self, *, besides: Iterable[int] = ()) -> int:
        """A configured port that nobody listens on and no live server has.

        Raises:
            InstanceRefusedError: there is none.
        """
        taken = {server.instance.port for server in self.all() if server.running() is not False}
        taken |= set(besides)
        for port in self.config.ports:
            if port not in taken and not somebody_listens(port):
                return port
        ports = ", ".join(str(port) for port in self.config.ports)
        raise InstanceRefusedError(f"none of the configured ports {ports} is free; stop what listens there")

    # -- starting -------------------------------------------------------------------------------------------

    def start(self, launch_id: str, instance: Instance, *, backend: Backend, caps: Caps) -> None:
        """Start a server, at most once for each launch id; when this returns, its program is executed.

        Raises:
            InstanceRefusedError: this launch id was used before, or the instance is not of this room.
            LaunchRefusedError: nothing was started and nothing will be.
            LaunchUnknownError: look at :meth:`known`.
            PeftIoError: the system failed before anything was started.
        """
        if self._launcher is None:
            raise InstanceRefusedError("this process looks at servers and ends them; it starts none")
        if instance.run_dir != self._run_dir(launch_id):
            raise InstanceRefusedError(f"instance {instance.name} is not of launch {launch_id}")
        record = ServerRecord.of(launch_id, instance, backend, caps=caps, now_unix_ms=self._now_unix_ms())
        launch = backend.launch(instance)
        with self._opened(create=True) as directory:
            if directory.kind(f"{launch_id}{RECORD_SUFFIX}") is not None:
                raise InstanceRefusedError(f"launch {launch_id} was begun before; it is not begun again")
            directory.write_file(f"{launch_id}{RECORD_SUFFIX}", record.encode())
        make_run_dir(instance.run_dir, launch)
        interpreter = Interpreter.of(Path(backend.python))
        models = {Path(instance.bundle), Path(instance.base)}
        self._launcher.start(
            PhaseCommand(
                launch_id=launch_id,
                argv=launch.argv,
                run_dir=self._path / f"{launch_id}{RUN_SUFFIX}",
                working_dir=Path(launch.working_dir),
                read_only=(*interpreter.paths, *sorted(models)),
                writable=(Path(instance.run_dir),),
                devices=device_files(instance.device),
                environment=beyond_fixed(launch.environment),
                deadline_s=None,
                network="host",
                limits=PhaseLimits(
                    file_bytes=caps.file_bytes,
                    processes=caps.tasks,
                    memory_bytes=caps.serving_memory_bytes,
                    cpu_percent=caps.cpu_percent,
                ),
            )
        )

    # -- finding again --------------------------------------------------------------------------------------

    def known(self, launch_id: str) -> KnownServer | None:
        """The server of a launch, or None if none was ever noted down.

        Raises:
            DocumentError, InstanceRefusedError: its record, or the token, cannot be used.
            PeftIoError: the system failed.
        """
        check_launch_id(launch_id)
        try:
            with self._opened(create=False) as directory:
                name = f"{launch_id}{RECORD_SUFFIX}"
                data = read_replaced(directory, name, max_bytes=MAX_RECORD_BYTES)
        except AbsentError:
            return None
        return self._server(data, name, read_token(self.config.token_file))

    def all(self) -> tuple[KnownServer, ...]:
        """Every server that was noted down, the newest one first. Raises as :meth:`known`."""
        found: list[tuple[bytes, str]] = []
        try:
            with self._opened(create=False) as directory:
                for name in directory.names():
                    if name.endswith(RECORD_SUFFIX):
                        # One that is removed while we look says nothing about the other ones.
                        with suppress(AbsentError):
                            found.append((read_replaced(directory, name, max_bytes=MAX_RECORD_BYTES), name))
        except AbsentError:
            return ()
        token = read_token(self.config.token_file) if found else ""
        servers = [self._server(data, name, token) for data, name in found]
        return tuple(
            sorted(servers, key=lambda item: (item.record.began_unix_ms, item.launch_id), reverse=True)
        )

    def serving(self, pointer: ServingPointer) -> KnownServer | None:
        """The server that a pointer names: one that runs, else the newest one; None if there was none."""
        found = [
            server
            for server in self.all()
            if (server.instance.name, server.instance.port) == (pointer.name, pointer.port)
        ]
        alive = [server for server in found if server.running()]
        return next(iter(alive or found), None)

    def usable(self, *, generation: int, artifact_sha256: str) -> KnownServer | None:
        """The newest server of an artifact that runs and was not asked to end; None where there is none."""
        wanted = (generation, artifact_sha256)
        return next(
            (
                server
                for server in self.all()
                if (server.instance.generation, server.instance.artifact_sha256) == wanted and server.usable()
            ),
            None,
        )

    def remove(self, server: KnownServer) -> None:
        """Remove the files of a server that has ended; its record goes last.

        Raises:
            InstanceRefusedError: it may still run.
            PeftError: the system failed.
        """
        if server.running() is not False:
            raise InstanceRefusedError(f"server {server.launch_id} may still run; its files stay")
        with self._opened(create=False) as directory:
            for name in (f"{server.launch_id}{RUN_SUFFIX}", server.launch_id):
                if directory.kind(name) is not None:
                    directory.remove_tree(name)
            directory.sync()
            for suffix in (ENDING_SUFFIX, RECORD_SUFFIX):
                if directory.kind(f"{server.launch_id}{suffix}") is not None:
                    directory.unlink(f"{server.launch_id}{suffix}")
            directory.sync()

    def gone(self, server: KnownServer) -> bool:
        """Tell whether nothing of a server is left: no process, and nobody on its port but another server."""
        if server.running() is not False:
            return False
        port = server.instance.port
        return not somebody_listens(port) or any(
            other.instance.port == port and other.running()
            for other in self.all()
            if other.launch_id != server.launch_id
        )

    def end(self, server: KnownServer, *, gone_s: float) -> bool:
        """Ask a server to end, kill it if it does not, and tell whether nothing of it is left.

        Args:
            server: nobody is sent to it any more.
            gone_s: how long each of the two may take, in seconds.

        Raises:
            PeftError: what is left cannot be told.
        """
        try:
            server.stop()
        except PeftError:
            pass  # nobody could be asked
        else:
            if self._gone_within(server, gone_s):
                return True
        # On a busy machine ending it may take longer than one call waits: what counts is whether it is there.
        with suppress(PeftError):
            server.kill()
        return self._gone_within(server, gone_s)

    def _gone_within(self, server: KnownServer, limit_s: float) -> bool:
        end = time.monotonic() + limit_s
        while not self.gone(server):
            if time.monotonic() >= end:
                return False
            time.sleep(PAUSE_S)
        return True

    def _server(self, data: bytes, name: str, token: str) -> KnownServer:
        record = ServerRecord.parse(data, what=name)
        if name != f"{record.launch_id}{RECORD_SUFFIX}":
            raise InstanceRefusedError(f"{name} is the record of launch {record.launch_id}")
        return KnownServer(self._path, record, token=token)

    def _run_dir(self, launch_id: str) -> str:
        return str(self._path / check_launch_id(launch_id))

    def _opened(self, *, create: bool) -> Directory:
        with open_root(
            self._path.parent, label="release root", owner_uid=os.geteuid(), create=False, private=True
        ) as root:
            return root.open_dir(SERVERS, create=create)


@dataclass(frozen=True, slots=True, kw_only=True)
class RoomServers:
    """The servers of a room as a switch wants them: by their instances.

    Attributes:
        room: where they are.
        backend: of what is started.
        caps: likewise.
    """

    room: ServerRoom
    backend: Backend
    caps: Caps

    def start(self, instance: Instance) -> None:
        """Start it, once. Raises as :meth:`ServerRoom.start`."""
        self.room.start(Path(instance.run_dir).name, instance, backend=self.backend, caps=self.caps)

    def running(self, instance: Instance) -> bool | None:
        """Tell whether any process of it is alive; None: that cannot be told."""
        try:
            return self._of(instance).running()
        except PeftError:
            return None

    def stop(self, instance: Instance) -> None:
        """Ask it to end; see :meth:`KnownServer.stop`."""
        self._of(instance).stop()

    def kill(self, instance: Instance) -> None:
        """End it; see :meth:`KnownServer.kill`."""
        self._of(instance).kill()

    def _of(self, instance: Instance) -> KnownServer:
        launch_id = Path(instance.run_dir).name
        found = self.room.known(launch_id)
        if found is None:
            raise InstanceRefusedError(f"no server was ever noted down as {launch_id}")
        return found
