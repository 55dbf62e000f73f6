from __future__ import annotations

import json
import os
import threading
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from private_roots import deaths, opened
from serving_support import instance

from ticket_agent.peft.errors import PeftError
from ticket_agent.peft.release.document_error import DocumentError
from ticket_agent.peft.release.guard import Guard
from ticket_agent.peft.release.serving_errors import InstanceRefusedError
from ticket_agent.peft.release.serving_pointer import (
    POINTER_FILE,
    PointerConflictError,
    PointerFile,
    ServingPointer,
)
from ticket_agent.peft.roots import open_root

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

ONE, TWO, THREE = (ServingPointer.of(instance(number, port=8000 + number)) for number in (1, 2, 3))


@contextmanager
def pointer_in(path: Path) -> Iterator[PointerFile]:
    opened(path).close()
    with open_root(path, label="root", owner_uid=os.geteuid(), create=False, private=True) as root:
        yield PointerFile(root, Guard())


def test_it_moves_by_compare_and_set(tmp_path: Path) -> None:
    with pointer_in(tmp_path / "root") as pointer:
        assert pointer.read() is None
        assert pointer.move(None, ONE)
        assert not pointer.move(None, ONE)
        assert pointer.move(ONE, TWO)
        assert not pointer.move(ONE, TWO)
        for expected in (None, ONE, THREE):
            with pytest.raises(PointerConflictError):
                pointer.move(expected, replace(THREE, port=9000))
        assert pointer.read() == TWO


def test_a_crash_leaves_the_old_one_or_the_new_one_and_the_move_can_be_repeated(tmp_path: Path) -> None:
    seen = set()
    path = tmp_path / "root"
    with pointer_in(path) as pointer:
        pointer.move(None, ONE)
        for _ in deaths(lambda: pointer.move(ONE, TWO)):
            found = pointer.read()
            assert found in {ONE, TWO}
            seen.add(found)
            pointer.move(ONE, TWO)
            pointer.move(TWO, ONE)
        assert pointer.read() == TWO
    assert seen == {ONE, TWO}


def test_whoever_reads_while_it_moves_gets_one_of_the_two(tmp_path: Path) -> None:
    over = threading.Event()
    errors: list[PeftError] = []
    with pointer_in(tmp_path / "root") as pointer:
        pointer.move(None, ONE)

        def read() -> None:
            while not over.is_set():
                try:
                    assert pointer.read() in {ONE, TWO}
                except PeftError as error:
                    errors.append(error)

        thread = threading.Thread(target=read)
        thread.start()
        try:
            for _ in range(150):
                pointer.move(ONE, TWO)
                pointer.move(TWO, ONE)
        finally:
            over.set()
            thread.join()
    assert errors == []


@pytest.mark.parametrize(
    "changes",
    [
        {"schema": "ticket-agent-serving/v2"},
        {"port": 80},
        {"name": ""},
        {"name": "x" * 193},
        {"generation": -1},
        {"artifact_sha256": "x"},
        {"more": 1},
    ],
)
def test_a_damaged_pointer_is_refused(changes: dict[str, Any], tmp_path: Path) -> None:
    document = json.loads(ONE.encode()) | changes
    data = json.dumps(document, sort_keys=True, separators=(",", ":")).encode()
    with pointer_in(tmp_path / "root") as pointer:
        (tmp_path / "root" / POINTER_FILE).write_bytes(data)
        with pytest.raises((DocumentError, InstanceRefusedError)):
            pointer.read()
        with pytest.raises((DocumentError, InstanceRefusedError)):
            pointer.move(ONE, TWO)
    assert ServingPointer.parse(ONE.encode()) == ONE
