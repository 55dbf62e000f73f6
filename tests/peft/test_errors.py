from __future__ import annotations

import errno

import pytest

from ticket_agent.peft import errors
from ticket_agent.peft.errors import FileRefusedError, LockHeldError, PeftError, PeftIoError

CLASSES = [getattr(errors, name) for name in errors.__all__]


def test_one_root_and_a_code_of_its_own_for_each() -> None:
    assert all(issubclass(cls, PeftError) for cls in CLASSES)
    assert len({cls.code for cls in CLASSES}) == len(CLASSES)


@pytest.mark.parametrize("text", ["two\nlines", "\x1b[31mred", "\udcff", "\u202eturned", "x" * 5000])
def test_a_text_is_one_printable_line(text: str) -> None:
    line = str(FileRefusedError(text))
    assert line.isprintable()
    assert 0 < len(line) <= 400


@pytest.mark.parametrize(
    ("pid", "command", "who"),
    [(7, "coh", "process 7 (coh)"), (7, None, "process 7"), (None, None, "another process")],
)
def test_who_holds_a_lock(pid: int | None, command: str | None, who: str) -> None:
    error = LockHeldError("export root /x", pid=pid, command=command)
    assert str(error) == f"export root /x is in use by {who}; try again when it has finished"


@pytest.mark.parametrize("applied", [False, True])
def test_what_the_system_said(applied: bool) -> None:
    error = PeftIoError("writing x", OSError(errno.ENOSPC, "No space left on device"), applied=applied)
    assert str(error) == "writing x failed: No space left on device"
    assert (error.errno, error.applied) == (errno.ENOSPC, applied)
    assert str(PeftIoError("writing x", OSError("strange"))) == "writing x failed: strange"
