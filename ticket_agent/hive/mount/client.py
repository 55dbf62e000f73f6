"""A mounted hive as a namespace: one open per reading, one write(2) per line, and no trust in sizes."""

from __future__ import annotations

import contextlib
import errno
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Self, TypeVar

from ticket_agent.hive.console.checks import check_line, check_path
from ticket_agent.hive.mount.answers import (
    AMBIGUOUS,
    GONE,
    MountIncompatibleError,
    nothing_written,
    of_reading,
    reason,
)
from ticket_agent.hive.mount.life import Life, Lives
from ticket_agent.hive.mount.tree import ALLOWED, Tree, WriteEndedError
from ticket_agent.protocol.chunks import decode_lines
from ticket_agent.protocol.errors import ChunkError, ProtocolError
from ticket_agent.protocol.lifecycle import parse_lifecycle_state, publishing_allowed
from ticket_agent.protocol.namespace import (
    Acked,
    AppendAnswer,
    HiveError,
    HiveRefusedError,
    HiveUnreachableError,
    Refusal,
    RefusalKind,
    Refused,
    Unknown,
)
from ticket_agent.protocol.paths import LIFECYCLE_STATE, TicketPaths
from ticket_agent.protocol.retention import parse_retention

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from ticket_agent.protocol.retention import Retention

__all__ = ["MountConfig", "MountNamespace"]

T = TypeVar("T")
BOOT: Final = "/proc/boot"
ATTRIBUTES_LIVE_S: Final = 1.0
"""How long a kernel may keep believing a size that a mount told it."""

MARGIN_S: Final = 0.05
UNLISTED: Final = frozenset({"current", "admission"})
"""Directories of nodes that no listing names. A mount knows only what a listing names, so that a node which
is missing there proves nothing; they are left out, as on a hive that does not offer them."""

_NO_TEXT: Final = {0xDC00 + byte: "\0" for byte in range(0x80, 0x100)}
"""Bytes that are no UTF-8 become what no record may hold, wherever it stands."""

_READ_BACK: Final = "whether the line was appended is unknown, read back before anything else"


@dataclass(frozen=True, slots=True, kw_only=True)
class MountConfig:
    """Where a hive is mounted.

    Attributes:
        path: the directory, absolute.
        tickets: where the ticket logs are in the hive's namespace.
        exclusive: hold a lock on the directory, as an agent does that serves it.
    """

    path: Path
    tickets: TicketPaths
    exclusive: bool = False

    @property
    def peer(self) -> str:
        """The mount's name in messages."""
        return f"mount {self.path}"


class MountNamespace:
    """A namespace over a directory. For one thread.

    1. The directory is held open from the first operation on. A session ends when it is let go of, because
       its path leads elsewhere or nobody answers, and with every sign that the hive behind it booted again.
    2. Reads are repeated once before an error is believed.
    3. A line is written with one write(2), and again only after ``EINVAL``, which a mount answers before it
       sends anything, and only if it is not in the file then. Every other error of a write is ``Unknown``.
    4. A mount gives no deadline: while its process hangs, so does the operation.

    Args:
        config: where it is.
        sleep: waits that many seconds.
    """

    def __init__(self, config: MountConfig, *, sleep: Callable[[float], None] = time.sleep) -> None:
        self._config = config
        self._peer = config.peer
        self._retention = config.tickets.retention
        self._sleep = sleep
        self._tree: Tree | None = None
        self._lives = Lives()

    @property
    def session(self) -> int:
        """Number of the current session; 0 before the first."""
        return self._lives.current

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def close(self) -> None:
        """Let go of the directory; it can be unmounted then."""
        tree, self._tree = self._tree, None
        if tree is not None:
            tree.close()

    def connect(self) -> None:
        """Hold the directory, unless it is held already and still in place; every operation does this.

        Raises:
            HiveUnreachableError: there is no such directory, or the process behind it is gone.
            HiveBusyError: another agent serves it.
            MountIncompatibleError: it cannot be used at all.
        """
        if self._tree is not None and self._in_place(self._tree):
            return
        self.close()
        try:
            self._tree = Tree(self._config.path, exclusive=self._config.exclusive)
        except OSError as error:
            raise self._unusable(error) from error
        try:
            self._lives.begin(self._look())
        except BaseException:
            self.close()
            raise

    def ls(self, path: str) -> list[str]:
        """Names below a directory.

        Raises:
            HiveError: one of its subclasses, as :class:`Namespace` documents.
        """
        names = self._reading("LS", check_path(path), Tree.names)
        hidden = UNLISTED if path == self._config.tickets.directory else frozenset()
        return [name for name in names if name not in hidden]

    def read(self, path: str) -> list[str]:
        """All lines of a node.

        Raises:
            HiveError: one of its subclasses, as :class:`Namespace` documents.
        """
        lines = _lines(self._reading("CAT", check_path(path), Tree.content))
        if path == self._retention:
            with contextlib.suppress(ProtocolError):
                self._lives.see_logs(parse_retention(lines))
        return lines

    def tail(self, path: str) -> list[str]:
        """All lines of a node: a mount reads by CAT alone, and some roots offer TAIL alone on some nodes.

        Raises:
            HiveError: one of its subclasses, as :class:`Namespace` documents.
        """
        try:
            return self.read(path)
        except HiveRefusedError as error:
            if error.refusal.kind is not RefusalKind.OTHER:
                raise
            text = f"{error.refusal.text}; a mount has no TAIL, and nodes that offer nothing else need one"
            raise HiveRefusedError("TAIL", path, Refusal(kind=RefusalKind.OTHER, text=text)) from error

    def append(self, path: str, line: str, *, session: int | None = None) -> AppendAnswer:
        """Append one line; with ``session``, only if there is no sign that it is over.

        Raises:
            HiveError: nothing was sent. Whatever happens later is an answer.
        """
        data = check_line(line).encode("ascii")
        if check_path(path).split("/")[1] not in ALLOWED:
            return Refused(_not_offered(path))
        self._connect_for(session)
        answer = self._write(path, data)
        if answer is not None:
            return answer
        # The kernel believed in another size. It no longer does after this pause.
        self._sleep(ATTRIBUTES_LIVE_S + MARGIN_S)
        try:
            present = line in self.read(path)
        except HiveError as error:
            return Unknown(f"{self._peer}: {reason(errno.EINVAL)}, yet it cannot be read back: {error}")
        if present:
            return Unknown(f"{self._peer}: answered EINVAL, yet the node holds such a line; {_READ_BACK}")
        self._connect_for(session)
        return self._write(path, data) or Refused(nothing_written(errno.EINVAL))

    # -- sessions --------------------------------------------------------------------------------------------

    def _connect_for(self, session: int | None) -> None:
        fresh = self._tree is None
        self.connect()
        if session is None:
            return
        if not fresh:
            self._lives.see(self._look())
        if self.session != session:
            raise HiveUnreachableError(f"{self._peer}: session {session} is over; nothing was sent")

    def _in_place(self, tree: Tree) -> bool:
        try:
            return tree.in_place()
        except OSError:
            return False

    def _look(self) -> Life:
        """Gather what tells this life of the hive from others."""
        tree = self._held()
        boot = self._optional(BOOT)
        if boot == []:
            self._require_content()
        offsets = self._optional(self._retention)
        logs: dict[str, Retention] | None = None
        if offsets is not None:
            with contextlib.suppress(ProtocolError):
                logs = parse_retention(offsets)
        admitted = self._optional(self._config.tickets.spec_snapshot) if logs is None else None
        return Life(
            root=tree.identity,
            boot=tuple(boot or ()),
            logs=logs,
            oldest=admitted[0] if admitted else None,
        )

    def _require_content(self) -> None:
        """No hive has an empty ``/proc/boot``: a mount that shows one shows every file empty."""
        if not self._optional(LIFECYCLE_STATE):
            raise MountIncompatibleError(
                f"{self._peer} shows every file as empty, as mounts of the first release do; it cannot be "
                "used: mount with a newer tool, or use the console"
            )

    def _optional(self, path: str) -> list[str] | None:
        try:
            return _lines(self._tried("CAT", path, Tree.content))
        except HiveRefusedError as error:
            if error.absent:
                return None
            raise

    def _unusable(self, error: OSError) -> HiveError:
        if _is_link(self._config.path):
            return MountIncompatibleError(f"{self._peer} is a link; name the directory itself")
        return HiveUnreachableError(f"{self._peer}: {reason(error.errno or 0)}; is the hive mounted there?")

    # -- reading ---------------------------------------------------------------------------------------------

    def _reading(self, verb: str, path: str, read: Callable[[Tree, str], T]) -> T:
        if path != "/" and path.split("/")[1] not in ALLOWED:
            raise HiveRefusedError(verb, path, _not_offered(path))
        self.connect()
        return self._tried(verb, path, read)

    def _tried(self, verb: str, path: str, read: Callable[[Tree, str], T]) -> T:
        try:
            return read(self._held(), path)
        except OSError as error:
            if error.errno not in AMBIGUOUS:
                raise self._failed(verb, path, error) from error
        try:
            return read(self._held(), path)
        except OSError as error:
            raise self._failed(verb, path, error) from error

    def _failed(self, verb: str, path: str, error: OSError) -> HiveError:
        number = error.errno or errno.EIO
        alive = number in AMBIGUOUS and path != BOOT and self._shows_boot()
        if number in GONE or (number in AMBIGUOUS and not alive):
            self.close()
        return of_reading(verb, path, number, peer=self._peer, alive=alive)

    def _shows_boot(self) -> bool:
        try:
            return self._held().content(BOOT) is not None
        except FileNotFoundError:
            return True
        except OSError:
            return False

    def _held(self) -> Tree:
        if self._tree is None:
            raise HiveUnreachableError(f"{self._peer} was let go of")
        return self._tree

    # -- writing ---------------------------------------------------------------------------------------------

    def _write(self, path: str, data: bytes) -> AppendAnswer | None:
        """Write once; None if the mount took another size for the node's, and so wrote nothing."""
        try:
            self._held().write(path, data)
        except WriteEndedError as ended:
            if ended.number == errno.EINVAL:
                return None
            why = str(ended) if ended.number is None else reason(ended.number)
            if ended.number in GONE:
                self.close()
            return Unknown(f"{self._peer}: {why}{self._gate(path)}; {_READ_BACK}")
        except OSError as error:
            number = error.errno or errno.EIO
            if number in GONE or number in AMBIGUOUS or number == errno.ELOOP:
                raise self._failed("ECHO", path, error) from error
            return Refused(nothing_written(number))
        return Acked(f"bytes={len(data)}")

    def _gate(self, path: str) -> str:
        """What the hive's lifecycle says about a write that was not taken, as an explanation only."""
        if self._tree is None or not path.startswith(f"{self._config.tickets.mount}/"):
            return ""
        try:
            lines = self._optional(LIFECYCLE_STATE)
            state = parse_lifecycle_state(lines[0] if lines else "")
        except (HiveError, ProtocolError):
            return ""
        return "" if publishing_allowed(state) else f"; the hive is {state} and takes no such writes"


def _is_link(path: Path) -> bool:
    try:
        return path.is_symlink()
    except OSError:
        # Of a mount whose process is gone not even this is told, as soon as the kernel has forgotten it.
        return False


def _not_offered(path: str) -> Refusal:
    return Refusal(
        kind=RefusalKind.DENIED,
        text=f"{path} is not offered by a mount; it shows {', '.join(sorted(ALLOWED))}",
    )


def _lines(content: bytes) -> list[str]:
    """Split a node's content; a byte that is no text cannot hide the other lines, nor be taken for text."""
    lines = content.decode("utf-8", errors="surrogateescape").translate(_NO_TEXT).split("\n")
    if not lines[-1]:
        lines.pop()
    try:
        # A mount puts long lines together; the frames of one that does not carry their own proof.
        return decode_lines(lines)
    except ChunkError:
        return lines
