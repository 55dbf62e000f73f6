"""The mount that the tests use behaves as recorded of the first release, and as known of today's.

What the recordings show stands in each row: what was tried, and what the kernel answered.
"""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING

import pytest
from fuse_hive import Mounted, mounted_hive
from hive_support import running_hive
from mount_support import NEWEST, needs_fuse

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

pytestmark = needs_fuse
LOG = "log/queen.log"


@pytest.fixture(scope="module", params=["old", "new"])
def mount(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mounted]:
    directory = tmp_path_factory.mktemp("model") / "hive"
    with (
        running_hive(NEWEST) as (_, server),
        mounted_hive(server.port, directory, request.param, attributes_live_s=0.05) as mounted,
    ):
        yield mounted


@pytest.fixture
def old(request: pytest.FixtureRequest, mount: Mounted) -> bool:
    return bool(request.node.callspec.params["mount"] == "old")


def _written(path: Path, *writes: bytes, flags: int = os.O_WRONLY | os.O_APPEND) -> list[int]:
    fd = os.open(path, flags)
    try:
        return [os.write(fd, data) for data in writes]
    finally:
        os.close(fd)


def test_sizes_and_reading(mount: Mounted, old: bool) -> None:
    path = mount.path / "proc" / "boot"
    assert (path.stat().st_size == 0) is old
    assert (path.read_bytes() == b"") is old
    assert not path.read_bytes().endswith(b"\n")


def test_what_the_root_lists(mount: Mounted, old: bool) -> None:
    names = set(os.listdir(mount.path))  # noqa: PTH208
    assert names == {"gpu", "host", "log", "proc", "queen", "worker"} | (set() if old else {"shard"})


@pytest.mark.parametrize(
    ("attempt", "number"),
    [
        (lambda root: (root / "nope").stat(), errno.EACCES),
        (lambda root: (root / "updates").stat(), errno.EACCES),
        (lambda root: (root / "host" / "x").mkdir(), errno.ENOSYS),
        (lambda root: (root / "host" / "newfile").touch(), errno.ENOSYS),
        (lambda root: (root / LOG).write_bytes(b"x"), errno.ENOSYS),
        (lambda root: _written(root / "proc" / "boot", b"x\n", flags=os.O_WRONLY), None),
        (lambda root: _written(root / LOG, b"one\ntwo\n"), errno.EIO),
        (lambda root: _written(root / LOG, b"y" * 2049 + b"\n"), errno.EIO),
    ],
)
def test_refusals(mount: Mounted, attempt: Callable[[Path], object], number: int | None) -> None:
    with pytest.raises(OSError) as refused:
        attempt(mount.path)
    assert refused.value.errno in ({number} if number is not None else {errno.EIO, errno.EINVAL})


def test_a_node_that_can_only_be_written(mount: Mounted, old: bool) -> None:
    if not old:
        assert (mount.path / "queen" / "ctl").stat().st_size == 0
        return
    with pytest.raises(FileNotFoundError):
        (mount.path / "queen" / "ctl").stat()


def test_lines_on_one_descriptor(mount: Mounted, old: bool) -> None:
    """Each write(2) is a line; the kernel and the mount agree on the size they started from."""
    if old:
        assert _written(mount.path / LOG, b"s1\n", b"s2\n", b"s3") == [3, 3, 2]
    else:
        (mount.path / LOG).read_bytes()
        assert _written(mount.path / LOG, b"s1\n")[0] == 3
