"""The two control files: what they can say, and how a commit survives being interrupted anywhere."""

from __future__ import annotations

import itertools
import os
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from peft_support import make_fifo, root, snapshot
from registry_support import set_control

from ticket_agent.peft.control import (
    Control,
    Progress,
    commit,
    decide,
    parse_pointer,
    parse_state,
    read_control,
    render_pointer,
    render_state,
    roll_forward,
)
from ticket_agent.peft.errors import FileRefusedError, NameRefusedError, PeftError, PeftIoError, RegistryError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

IDS = st.from_regex(r"[A-Za-z0-9_][A-Za-z0-9._:-]{0,127}", fullmatch=True)
A, B, C = "model-a", "model-b", "model-c"


def control(pointer: str | None, current: str | None, previous: str | None) -> Control:
    return Control(pointer=pointer, current=current, previous=previous)


POINTERS = {
    b"": None,
    b"\n \n\t\n": None,
    b"m1": "m1",
    b"m1\n": "m1",
    b"  m1 \r\n": "m1",
    b"\n\nm1\nm2\n": "m1",
    b"m" * 128 + b"\n": "m" * 128,
}


@pytest.mark.parametrize(("data", "model"), POINTERS.items())
def test_the_first_line_that_is_not_blank_counts(data: bytes, model: str | None) -> None:
    assert parse_pointer(data) == model


@pytest.mark.parametrize(
    "data",
    [b"\xff\n", b"../m", b"a/b", b"-m", b".", b"..", b"a b", b"m" * 129, b".cohesix-x", b"m\0", b"\xc3\xbc"],
)
def test_a_pointer_to_no_model_is_refused(data: bytes) -> None:
    with pytest.raises(RegistryError, match="activate a model after removing the file") as refused:
        parse_pointer(data)
    assert "active" in str(refused.value)
    assert str(refused.value).isprintable()


STATES = {
    "": (None, None),
    "# nothing\n": (None, None),
    'current = "a"\n': ("a", None),
    'current = "a"\nprevious = "b"\n': ("a", "b"),
    'current = "a"\nprevious = ""\n': ("a", None),
    'current = ""\nprevious = ""\n': (None, None),
    'current = ""\nprevious = "b"\n': (None, "b"),
    'previous = "b"\ncurrent = "a"': ("a", "b"),
}


@pytest.mark.parametrize(("text", "expected"), STATES.items())
def test_states_of_every_tool(text: str, expected: tuple[str | None, str | None]) -> None:
    assert parse_state(text.encode()) == expected


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"\xff", "is not valid TOML"),
        (b"current = a", "is not valid TOML"),
        (b'current = "a"\ncurrent = "b"\n', "is not valid TOML"),
        (b"a = " + b"[" * 4000, "is not valid TOML"),
        (b'previous = "a"\n', "does not say which model is current"),
        (b'current = "a"\nnext = "b"\n', "unknown member next"),
        (b'current = "a"\n"\\u001b" = "b"\n', r"unknown member \\x1b"),
        (b"current = 1\n", "cannot be used: current must be"),
        (b'current = "a"\nprevious = ["b"]\n', "cannot be used: previous must be"),
        (b'current = "../a"\n', "cannot be used: current must be"),
        (b'current = ".."\n', "cannot be used: current must not be"),
        (b'[current]\nx = "a"\n', "cannot be used: current must be"),
    ],
)
def test_what_a_state_must_not_hold(data: bytes, words: str) -> None:
    with pytest.raises(RegistryError, match=words) as refused:
        parse_state(data)
    assert str(refused.value).startswith("active_state.toml ")
    assert str(refused.value).endswith("; without the file the pointer alone counts")


@given(model=IDS, current=IDS, previous=st.none() | IDS)
def test_what_is_written_is_read_back(model: str, current: str, previous: str | None) -> None:
    assert parse_pointer(render_pointer(model)) == model
    assert parse_state(render_state(control(None, current, previous))) == (current, previous)


def test_the_written_bytes() -> None:
    assert render_pointer("m1") == b"m1\n"
    assert render_state(control("m1", "m1", None)) == b'current = "m1"\n'
    assert render_state(control("m1", "m1", "m0")) == b'current = "m1"\nprevious = "m0"\n'


@pytest.mark.parametrize(
    ("value", "consistent"),
    [
        (control(None, None, None), True),
        (control(A, None, None), True),
        (control(A, A, None), True),
        (control(A, A, B), True),
        (control(None, None, B), True),
        (control(A, B, None), False),
        (control(A, B, A), False),
        (control(None, A, None), False),
        (control(A, None, B), False),
    ],
    ids=str,
)
def test_consistency(value: Control, consistent: bool) -> None:
    assert value.consistent is consistent


def test_a_control_is_a_record_that_is_read_back() -> None:
    for value in ALL:
        assert Control.from_members(value.to_members()) == value


@pytest.mark.parametrize(
    "members",
    [
        {},
        {"pointer": A, "current": A},
        {"pointer": A, "current": A, "previous": None, "next": None},
        {"pointer": "../x", "current": A, "previous": None},
        {"pointer": 1, "current": A, "previous": None},
    ],
    ids=str,
)
def test_a_record_with_anything_else_is_refused(members: dict[str, Any]) -> None:
    with pytest.raises(RegistryError):
        Control.from_members(members)


def test_an_id_that_no_model_can_have_is_never_held() -> None:
    with pytest.raises(NameRefusedError, match="the previous model must be"):
        control(A, A, "../b")


MODELS = (None, A, B, C)
ALL = [control(*names) for names in itertools.product(MODELS, repeat=3)]
GOALS = [value for value in ALL if value.pointer is not None and value.pointer == value.current]


def expected_progress(before: Control, after: Control, found: Control) -> Progress:
    """The rule, written down a second time as a table of what the disk shows."""
    pointer_moved = found.pointer == after.pointer
    pointer_stayed = found.pointer == before.pointer
    state_new = (found.current, found.previous) == (after.current, after.previous)
    state_old = (found.current, found.previous) == (before.current, before.previous)
    match pointer_moved, pointer_stayed, state_new, state_old:
        case True, _, True, _:
            return Progress.APPLIED
        case _, True, _, True:
            return Progress.NOT_APPLIED
        case _, True, True, _:
            return Progress.HALF
    return Progress.FOREIGN


def test_every_combination_of_before_after_and_found_is_decided() -> None:
    seen = dict.fromkeys(Progress, 0)
    for before, after, found in itertools.product(ALL, GOALS, ALL):
        told = decide(before, after, found)
        assert told.progress is expected_progress(before, after, found), (before, after, found)
        assert told.control == found
        assert str(found) in told.detail
        assert told.detail.isprintable()
        seen[told.progress] += 1
    assert all(seen.values())


@pytest.mark.parametrize(
    ("found", "progress"),
    [
        (control(A, A, C), Progress.NOT_APPLIED),
        (control(A, B, A), Progress.HALF),
        (control(B, B, A), Progress.APPLIED),
        (control(B, A, C), Progress.FOREIGN),
        (control(B, B, None), Progress.FOREIGN),
        (control(A, B, None), Progress.FOREIGN),
        (control(C, B, A), Progress.FOREIGN),
        (control(None, B, A), Progress.FOREIGN),
        (control(A, None, None), Progress.FOREIGN),
        (control(None, None, None), Progress.FOREIGN),
    ],
    ids=str,
)
def test_an_activation_as_it_may_be_found(found: Control, progress: Progress) -> None:
    assert decide(control(A, A, C), control(B, B, A), found).progress is progress


@pytest.mark.parametrize("value", ALL, ids=str)
def test_reading_what_another_tool_left(tmp_path: Path, value: Control) -> None:
    with root(tmp_path / "r") as registry:
        set_control(tmp_path / "r", value.pointer, value.current, value.previous)
        assert read_control(registry) == value


def test_files_that_a_power_cut_emptied_are_no_files(tmp_path: Path) -> None:
    with root(tmp_path / "r") as registry:
        (tmp_path / "r" / "active").touch()
        (tmp_path / "r" / "active_state.toml").touch()
        assert read_control(registry) == Control()


def make_link(path: Path) -> None:
    path.symlink_to("elsewhere")


def make_hard_link(path: Path) -> None:
    path.write_text("model-a\n")
    os.link(path, path.with_name("second-name"))


def make_large(path: Path) -> None:
    path.write_bytes(b"a" * 5000)


@pytest.mark.parametrize("name", ["active", "active_state.toml"])
@pytest.mark.parametrize("make", [make_link, make_hard_link, make_large, make_fifo, os.mkdir])
def test_control_files_that_are_no_plain_files(
    tmp_path: Path, make: Callable[[Path], None], name: str
) -> None:
    with root(tmp_path / "r") as registry:
        make(tmp_path / "r" / name)
        before = snapshot(tmp_path / "r")
        with pytest.raises(FileRefusedError, match=name):
            read_control(registry)
        with pytest.raises(FileRefusedError, match=name):
            commit(registry, Control(), control(A, A, None))
        assert snapshot(tmp_path / "r") == before


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (control(None, None, None), control(A, A, None)),
        (control(A, None, None), control(B, B, A)),
        (control(A, A, B), control(B, B, A)),
        (control(A, B, None), control(C, C, A)),
    ],
    ids=str,
)
def test_a_commit_and_its_crashes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, before: Control, after: Control
) -> None:
    """Killed before and after each step of the two writes: always decided, and finished when it was half."""
    set_of_progress = []
    for step in range(1, 100):
        folder = tmp_path / str(step)
        with root(folder) as registry:
            set_control(folder, before.pointer, before.current, before.previous)
            survived = _commit_killed_at(monkeypatch, registry, before, after, step)
            found = roll_forward(registry, before, after)
            set_of_progress.append(found.progress)
            whole = read_control(registry)
            assert whole == (before if found.progress is Progress.NOT_APPLIED else after)
            again = Progress.NOT_APPLIED if whole == before else Progress.APPLIED
            assert roll_forward(registry, before, after).progress is again
        if survived:
            break
    order = [Progress.NOT_APPLIED, Progress.HALF, Progress.APPLIED]
    assert list(dict.fromkeys(set_of_progress)) == order
    assert set_of_progress.count(Progress.HALF) >= 4


class Killed(BaseException):
    """The process is gone; nothing of it runs any more, cleaning up included."""


def _commit_killed_at(
    monkeypatch: pytest.MonkeyPatch, registry: Any, before: Control, after: Control, step: int
) -> bool:
    """Commit, and die right before the given call that changes anything on disk. True: it came through."""
    calls = itertools.count(1)
    dead = False

    def dying(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            nonlocal dead
            changes = function is not real["open"] or arguments[1] & os.O_CREAT
            if dead or (changes and next(calls) == step):
                dead = True
                raise Killed
            return function(*arguments, **options)

        return call

    real = {name: getattr(os, name) for name in ("open", "write", "fsync", "rename", "unlink")}
    with monkeypatch.context() as patch:
        for name, function in real.items():
            patch.setattr(os, name, dying(function))
        try:
            commit(registry, before, after)
        except Killed:
            return False
    return True


def test_a_commit_changes_nothing_when_the_registry_is_not_as_recorded(tmp_path: Path) -> None:
    with root(tmp_path / "r") as registry:
        set_control(tmp_path / "r", A, A, None)
        before = snapshot(tmp_path / "r")
        with pytest.raises(RegistryError, match=r"changed by somebody else: active=model-a .* instead of"):
            commit(registry, control(B, B, None), control(C, C, B))
        assert snapshot(tmp_path / "r") == before


@pytest.mark.parametrize("after", [v for v in ALL if v not in GOALS], ids=str)
def test_what_is_no_goal_is_not_committed(tmp_path: Path, after: Control) -> None:
    with root(tmp_path / "r") as registry:
        with pytest.raises(RegistryError, match="is no state to commit"):
            commit(registry, Control(), after)
        assert registry.names() == []


def test_what_somebody_else_did_is_told_and_left_alone(tmp_path: Path) -> None:
    with root(tmp_path / "r") as registry:
        set_control(tmp_path / "r", C, C, A)
        before = snapshot(tmp_path / "r")
        found = roll_forward(registry, control(A, A, None), control(B, B, A))
        assert found.progress is Progress.FOREIGN
        assert found.detail == (
            "the registry was changed by somebody else: active=model-c current=model-c previous=model-a,"
            " neither active=model-a current=model-a previous=none"
            " nor active=model-b current=model-b previous=model-a"
        )
        assert snapshot(tmp_path / "r") == before


def test_a_commit_that_is_found_applied_is_made_durable_before_it_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with root(tmp_path / "r") as registry:
        set_control(tmp_path / "r", B, B, A)

        real, synced = os.fsync, []

        def broken(fd: int) -> None:
            synced.append(fd)
            if fd == registry.fd:
                raise OSError(5, "Input/output error")
            real(fd)

        monkeypatch.setattr(os, "fsync", broken)
        with pytest.raises(PeftIoError, match="Input/output error"):
            roll_forward(registry, control(A, A, None), control(B, B, A))
        # Not the directory alone: a sync that failed once says nothing about the next one.
        assert len(synced) == 2


def test_an_interrupted_commit_stays_decidable_when_finishing_it_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, after = control(A, A, None), control(B, B, A)
    with root(tmp_path / "r") as registry:
        set_control(tmp_path / "r", A, B, A)

        def full(*_: object, **__: object) -> None:
            raise OSError(28, "No space left on device")

        with monkeypatch.context() as patch:
            patch.setattr(os, "write", full)
            with pytest.raises(PeftIoError, match="No space left"):
                roll_forward(registry, before, after)
        assert registry.names() == ["active", "active_state.toml"]
        assert roll_forward(registry, before, after).progress is Progress.HALF
        assert read_control(registry) == after


@given(st.binary(max_size=129), st.binary(max_size=100))
def test_any_bytes_are_a_control_or_one_line(pointer: bytes, state: bytes) -> None:
    for parse, data in ((parse_pointer, pointer), (parse_state, state)):
        try:
            parse(data)
        except PeftError as error:
            assert str(error).isprintable()  # noqa: PT017 - most examples are refused, some are not
