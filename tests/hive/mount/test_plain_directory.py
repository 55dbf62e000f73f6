"""A directory of plain files as a hive: what the client trusts, follows, reads and refuses there."""

from __future__ import annotations

import errno
import os
import signal
from typing import TYPE_CHECKING, Any

import pytest

from ticket_agent.hive.mount.answers import MountIncompatibleError, nothing_written, of_reading
from ticket_agent.hive.mount.client import MountConfig, MountNamespace
from ticket_agent.hive.mount.tree import Tree
from ticket_agent.protocol.namespace import (
    Acked,
    HiveBusyError,
    HiveError,
    HiveRefusedError,
    HiveUnreachableError,
    HiveViolationError,
    RefusalKind,
    Refused,
    Unknown,
)
from ticket_agent.protocol.paths import TicketPaths
from ticket_agent.protocol.retention import Retention, encode_retention

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

SPEC = "/host/tickets/spec"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    tree = tmp_path / "hive"
    (tree / "host" / "tickets").mkdir(parents=True)
    (tree / "proc").mkdir()
    (tree / "proc" / "boot").write_text("Cohesix boot: root-task online")
    for leaf in ("spec", "spec.snapshot", "status", "deadletter"):
        (tree / "host" / "tickets" / leaf).touch()
    tree.chmod(0o755)
    return tree


@pytest.fixture
def namespace(root: Path) -> Iterator[MountNamespace]:
    with _namespace(root) as opened:
        yield opened


def _namespace(root: Path, *, exclusive: bool = False) -> MountNamespace:
    def never(seconds: float) -> None:
        raise AssertionError(f"waited {seconds} s")

    config = MountConfig(path=root, tickets=TicketPaths(), exclusive=exclusive)
    return MountNamespace(config, sleep=never)


@pytest.mark.parametrize(
    ("content", "lines"),
    [
        (b"", []),
        (b"one", ["one"]),
        (b"one\ntwo", ["one", "two"]),
        (b"one\ntwo\n", ["one", "two"]),
        (b"one\n\ntwo", ["one", "", "two"]),
        (b"\n", [""]),
        ("grüß\n".encode(), ["grüß"]),
        (b'{"id":"\xff"}\nnext', ['{"id":"\0"}', "next"]),
        (b'{"id":"\\\xff"}\nnext', ['{"id":"\\\0"}', "next"]),
        (b"C1:0000:0002:no group\nnext", ["C1:0000:0002:no group", "next"]),
        (b"a\r\nb", ["a\r", "b"]),
    ],
)
def test_what_a_node_holds(root: Path, namespace: MountNamespace, content: bytes, lines: list[str]) -> None:
    (root / "host" / "tickets" / "spec").write_bytes(content)
    assert namespace.read(SPEC) == lines
    assert namespace.tail(SPEC) == lines


def test_only_what_a_mount_shows_is_listed(root: Path, namespace: MountNamespace) -> None:
    (root / "updates").mkdir()
    (root / "host" / "tickets" / "current").mkdir()
    assert namespace.ls("/") == ["host", "proc"]
    assert namespace.ls("/host/tickets") == ["deadletter", "spec", "spec.snapshot", "status"]
    with pytest.raises(HiveRefusedError, match="not offered"):
        namespace.read("/updates/x")
    answer = namespace.append("/updates/x", "line")
    assert isinstance(answer, Refused)
    assert answer.refusal.kind is RefusalKind.DENIED


def test_an_append_is_one_line_at_the_end(root: Path, namespace: MountNamespace) -> None:
    assert isinstance(namespace.append(SPEC, '{"a":1}'), Acked)
    assert isinstance(namespace.append(SPEC, '{"a":2}', session=1), Acked)
    assert (root / "host" / "tickets" / "spec").read_bytes() == b'{"a":1}\n{"a":2}\n'


@pytest.mark.parametrize("line", ["", "two\nlines", "x" * 2049, "grüß", " blank"])
def test_a_line_that_no_hive_stores_is_not_written(root: Path, namespace: MountNamespace, line: str) -> None:
    with pytest.raises(HiveError):
        namespace.append(SPEC, line)
    assert (root / "host" / "tickets" / "spec").read_bytes() == b""


@pytest.mark.parametrize(
    "path", ["host/x", "/host/../proc/boot", "/host/./x", "/host//x", "/a/b/c/d/e/f/g/h/i"]
)
def test_a_path_that_no_hive_has_is_not_walked(namespace: MountNamespace, path: str) -> None:
    with pytest.raises(HiveError):
        namespace.read(path)


@pytest.mark.parametrize(
    ("link", "target", "path"),
    [
        ("host/tickets/spec.snapshot", "/etc/hostname", "/host/tickets/spec.snapshot"),
        ("host/other", "tickets", "/host/other/spec"),
    ],
)
def test_links_are_not_followed(
    root: Path, namespace: MountNamespace, link: str, target: str, path: str
) -> None:
    (root / link).unlink(missing_ok=True)
    (root / link).symlink_to(target)
    with pytest.raises(HiveViolationError, match="link"):
        namespace.read(path)
    with pytest.raises(HiveViolationError, match="link"):
        namespace.append(path, "line")


@pytest.mark.parametrize(
    ("path", "kind"),
    [("/host/none", RefusalKind.INVALID_PATH), ("/host/tickets", RefusalKind.INVALID_PATH)],
)
def test_nothing_is_created(root: Path, namespace: MountNamespace, path: str, kind: RefusalKind) -> None:
    with pytest.raises(HiveRefusedError) as refused:
        namespace.read(path)
    assert refused.value.refusal.kind is kind
    answer = namespace.append(path, "line")
    assert isinstance(answer, Refused)
    assert answer.refusal.kind is kind
    assert not (root / "host" / "none").exists()


def test_a_named_pipe_holds_nobody_up(root: Path, namespace: MountNamespace) -> None:
    os.mkfifo(root / "host" / "pipe")
    with pytest.raises(HiveRefusedError):
        namespace.read("/host/pipe")
    assert isinstance(namespace.append("/host/pipe", "line"), Refused)


def test_a_file_without_end_is_refused(root: Path, namespace: MountNamespace) -> None:
    (root / "host" / "big").write_bytes(b"x" * (1024 * 1024 + 1))
    with pytest.raises(HiveRefusedError, match="EFBIG"):
        namespace.read("/host/big")


def test_another_directory_in_its_place_is_another_session(root: Path, namespace: MountNamespace) -> None:
    namespace.read(SPEC)
    assert namespace.session == 1
    root.rename(root.with_name("former"))
    with pytest.raises(HiveUnreachableError, match="is the hive mounted there"):
        namespace.read(SPEC)
    (root / "host" / "tickets").mkdir(parents=True)
    (root / "host" / "tickets" / "spec").write_text("of the other")
    with pytest.raises(HiveUnreachableError, match="session 1 is over; nothing was sent"):
        namespace.append(SPEC, "line", session=1)
    assert namespace.read(SPEC) == ["of the other"]
    assert namespace.session == 2


def _retention(end: int) -> str:
    return encode_retention(
        Retention(
            path="spec",
            base=0,
            next=end,
            retained_bytes=end,
            retained_wire_lines=1,
            dropped_lines=0,
            dropped_bytes=0,
        )
    )


@pytest.mark.parametrize("asked", [True, False])
def test_logs_that_begin_anew_are_another_session(root: Path, namespace: MountNamespace, asked: bool) -> None:
    retention = root / "host" / "tickets" / "retention"
    retention.write_text(_retention(500))
    namespace.read(SPEC)
    retention.write_text(_retention(700))
    assert isinstance(namespace.append(SPEC, "line", session=1), Acked)
    retention.write_text(_retention(699))
    if asked:
        namespace.read("/host/tickets/retention")
        assert namespace.session == 2
    with pytest.raises(HiveUnreachableError, match="nothing was sent"):
        namespace.append(SPEC, "line", session=1)
    assert namespace.session == 2


def test_two_agents_on_one_directory(root: Path) -> None:
    with _namespace(root, exclusive=True) as first:
        first.connect()
        with _namespace(root, exclusive=True) as second, pytest.raises(HiveBusyError, match="another agent"):
            second.read(SPEC)
        with _namespace(root) as caller:
            assert isinstance(caller.append(SPEC, "line"), Acked)
    with _namespace(root, exclusive=True) as next_one:
        assert next_one.read(SPEC) == ["line"]


def test_a_directory_that_everybody_may_write_to(root: Path) -> None:
    root.chmod(0o777)
    with _namespace(root) as namespace, pytest.raises(MountIncompatibleError, match="chmod o-w"):
        namespace.read(SPEC)


def test_a_link_to_the_directory(root: Path) -> None:
    link = root.with_name("link")
    link.symlink_to(root)
    with _namespace(link) as namespace, pytest.raises(MountIncompatibleError, match="is a link"):
        namespace.read(SPEC)


@pytest.mark.parametrize("number", [errno.ENOTCONN, errno.EACCES, errno.EIO, errno.ENOENT])
def test_a_directory_of_which_nothing_is_told(
    root: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    """A mount whose process is gone tells neither what it holds nor what kind of file it is."""

    def failing(*_: object, **__: object) -> None:
        raise OSError(number, os.strerror(number))

    with _namespace(root) as namespace:
        namespace.connect()
        for name in ("open", "stat", "lstat"):
            monkeypatch.setattr(os, name, failing)
        for operation in (
            namespace.connect,
            lambda: namespace.read(SPEC),
            lambda: namespace.append(SPEC, "line", session=1),
        ):
            with pytest.raises(HiveUnreachableError, match=errno.errorcode[number]):
                operation()
        monkeypatch.undo()
        assert namespace.read(SPEC) == []
        assert namespace.session == 2


def test_a_hive_whose_every_file_is_empty(root: Path) -> None:
    (root / "proc" / "boot").write_text("")
    with _namespace(root) as namespace, pytest.raises(MountIncompatibleError, match="every file as empty"):
        namespace.ls("/")


def test_pieces_of_two_states_are_not_taken_for_one(
    namespace: MountNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    namespace.connect()
    readings = iter([(b"a1\na2", False), (b"b1\nb2", False), (b"b1\nb2", False)])
    monkeypatch.setattr(Tree, "_content_once", lambda self, path: next(readings))
    assert namespace.read(SPEC) == ["b1", "b2"]


def test_what_never_holds_still_is_not_believed(
    namespace: MountNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    namespace.connect()
    count = iter(range(1000))
    monkeypatch.setattr(Tree, "_content_once", lambda self, path: (b"%d" % next(count), False))
    with pytest.raises(HiveError):
        namespace.read(SPEC)


@pytest.mark.parametrize(
    ("failure", "unknown"),
    [
        (OSError(errno.EIO, "x"), True),
        (OSError(errno.ENOTCONN, "x"), True),
        (OSError(errno.EACCES, "x"), True),
        (OSError(errno.ENOSPC, "x"), True),
        (3, True),
        (5, False),
    ],
)
def test_every_other_end_of_a_write_is_unknown(
    namespace: MountNamespace, monkeypatch: pytest.MonkeyPatch, failure: Any, unknown: bool
) -> None:
    namespace.connect()
    writes = []

    def write(fd: int, data: bytes) -> int:
        writes.append(data)
        # No signal may end the call: the interpreter would repeat it.
        assert signal.SIGTERM in signal.pthread_sigmask(signal.SIG_BLOCK, ())
        if isinstance(failure, OSError):
            raise failure
        return int(failure)

    monkeypatch.setattr("ticket_agent.hive.mount.tree.os.write", write)
    answer = namespace.append(SPEC, "line")
    assert isinstance(answer, Unknown if unknown else Acked)
    assert writes == [b"line\n"]
    assert signal.SIGTERM not in signal.pthread_sigmask(signal.SIG_BLOCK, ())


@pytest.mark.parametrize(
    ("number", "kind"),
    [
        (errno.ENOENT, RefusalKind.INVALID_PATH),
        (errno.EISDIR, RefusalKind.INVALID_PATH),
        (errno.EACCES, RefusalKind.DENIED),
        (errno.EPERM, RefusalKind.DENIED),
        (errno.EROFS, RefusalKind.DENIED),
        (errno.ENOSYS, RefusalKind.GRAMMAR),
        (errno.EINVAL, RefusalKind.BUSY),
        (errno.EMFILE, RefusalKind.OTHER),
    ],
)
def test_errors_before_anything_was_written_are_refusals(number: int, kind: RefusalKind) -> None:
    refusal = nothing_written(number)
    assert refusal.kind is kind
    assert errno.errorcode[number] in refusal.text


@pytest.mark.parametrize(
    ("number", "alive", "error"),
    [
        (errno.EIO, True, HiveRefusedError),
        (errno.EIO, False, HiveUnreachableError),
        (errno.EINVAL, True, HiveRefusedError),
        (errno.ENOTCONN, True, HiveUnreachableError),
        (errno.ESTALE, False, HiveUnreachableError),
        (errno.ELOOP, True, HiveViolationError),
        (errno.ENOENT, True, HiveRefusedError),
        (errno.EACCES, True, HiveRefusedError),
    ],
)
def test_errors_of_readings(number: int, alive: bool, error: type[HiveError]) -> None:
    found = of_reading("CAT", "/host/x", number, peer="mount /m", alive=alive)
    assert type(found) is error
    assert isinstance(found, HiveRefusedError) is (error is HiveRefusedError)
    assert not isinstance(found, HiveRefusedError) or found.absent is (number == errno.ENOENT)
