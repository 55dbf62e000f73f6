from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st
from peft_support import root

from ticket_agent.peft.errors import NameRefusedError
from ticket_agent.peft.limits import MAX_SHOWN
from ticket_agent.peft.names import (
    EXPORT_STAGING,
    IMPORT_STAGING,
    case_twins,
    check_component,
    check_entry,
    check_model_id,
    is_partial,
    is_reserved,
    is_staging,
    new_staging_name,
    shown,
)

if TYPE_CHECKING:
    from pathlib import Path

GOOD_IDS = ["a", "A-1", "a.b_c:d", "0", "...", ".hidden", "_", ":", "x" * 128]
BAD_IDS: list[object] = [
    "",
    ".",
    "..",
    "-a",
    "--",
    "a/b",
    "/a",
    "a/",
    "../a",
    "a b",
    " a",
    "a ",
    "a\n",
    "a\0",
    "a\\b",
    "ä",
    "a\udcff",
    "x" * 129,
    ".cohesix-registry.lock",
    ".cohesix-import-0123456789abcdef",
    ".Cohesix-x",
    None,
    7,
    b"a",
]
BAD_ENTRIES: list[object] = [
    "",
    ".",
    "..",
    "a/b",
    "/",
    "a/",
    "../a",
    "a\0b",
    "\0",
    "x" * 256,
    "ä" * 128,
    "\ud800",
    None,
    b"a",
]


@pytest.mark.parametrize("name", GOOD_IDS)
def test_ids_that_may_name_a_directory(name: str) -> None:
    assert check_component(name, what="model id") == name
    assert check_entry(name) == name


@pytest.mark.parametrize("name", BAD_IDS)
def test_ids_that_may_not(name: object) -> None:
    with pytest.raises(NameRefusedError, match=r"^model id must ") as refused:
        check_component(name, what="model id")
    assert str(refused.value).isprintable()


def test_a_model_has_no_colon_in_its_name() -> None:
    assert check_model_id("a.b-c_d", what="base model") == "a.b-c_d"
    with pytest.raises(NameRefusedError, match=r"base model must not contain a colon"):
        check_model_id("a:b", what="base model")
    with pytest.raises(NameRefusedError):
        check_model_id("..", what="base model")


@pytest.mark.parametrize("name", ["-", "a b", "ä", "\udcff", "\n", "x" * 255, "\\", ".partial"])
def test_any_single_entry_can_be_looked_at(name: str) -> None:
    assert check_entry(name) == name


@pytest.mark.parametrize("name", BAD_ENTRIES)
def test_what_is_no_entry(name: object) -> None:
    with pytest.raises(NameRefusedError) as refused:
        check_entry(name)
    assert str(refused.value).isprintable()
    assert len(str(refused.value)) < 200


@given(st.binary(min_size=1, max_size=300))
def test_an_entry_is_exactly_what_a_file_system_takes(raw: bytes) -> None:
    fits = b"/" not in raw and b"\0" not in raw and raw not in (b".", b"..") and len(raw) <= 255
    try:
        check_entry(os.fsdecode(raw))
    except NameRefusedError:
        assert not fits
    else:
        assert fits


@given(st.text())
def test_an_id_is_an_entry_and_never_reserved(name: str) -> None:
    try:
        check_component(name, what="id")
    except NameRefusedError:
        return
    assert check_entry(name) == name
    assert name.isascii()
    assert not is_reserved(name)


@given(st.text(alphabet=st.characters(), max_size=400) | st.binary(max_size=300).map(os.fsdecode))
def test_a_shown_name_is_printable_and_short(name: str) -> None:
    line = shown(name)
    assert line.isprintable()
    assert len(line) <= MAX_SHOWN


def test_a_shown_name_keeps_its_ends() -> None:
    assert shown("model") == "model"
    assert shown("a\nb\udcff") == "a\\nb\\udcff"
    line = shown("begin" + "x" * 300 + "end")
    assert line.startswith("beginx")
    assert line.endswith("xend")


@pytest.mark.parametrize(
    ("name", "staging", "partial", "reserved"),
    [
        (".cohesix-import-0123456789abcdef", True, False, True),
        (".cohesix-export-0123456789abcdef", True, False, True),
        (".cohesix-import-0123456789abcde", False, False, True),
        (".cohesix-import-0123456789ABCDEF", False, False, True),
        (".cohesix-import-0123456789abcdef0", False, False, True),
        (".cohesix-registry.lock", False, False, True),
        ("x.cohesix-import-0123456789abcdef", False, False, False),
        (".active.1.0.partial", False, True, False),
        (".manifest.toml.77.12.partial", False, True, False),
        (".partial", False, False, False),
        ("active.1.0.partial", False, False, False),
        (".active.1.partial", False, False, False),
        (".active.1.0.tmp", False, False, False),
        ("model", False, False, False),
    ],
)
def test_names_of_unfinished_work(name: str, staging: bool, partial: bool, reserved: bool) -> None:
    assert (is_staging(name), is_partial(name), is_reserved(name)) == (staging, partial, reserved)


@pytest.mark.parametrize("prefix", [IMPORT_STAGING, EXPORT_STAGING])
def test_staging_names_are_new_and_known_as_such(prefix: str) -> None:
    names = {new_staging_name(prefix) for _ in range(100)}
    assert len(names) == 100
    assert all(is_staging(name) for name in names)


@pytest.mark.parametrize(
    ("names", "twins"),
    [
        ([], []),
        (["a", "b"], []),
        (["lora.json", "Lora.json"], [("Lora.json", "lora.json")]),
        (["B", "a", "b", "A", "c"], [("A", "a"), ("B", "b")]),
        (["straße", "STRASSE"], [("STRASSE", "straße")]),
        (["\udcff", "\udcfe"], []),
    ],
)
def test_names_that_differ_only_by_case(names: list[str], twins: list[tuple[str, ...]]) -> None:
    assert case_twins(names) == twins


def test_the_temporaries_of_a_write_are_known_as_partial(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[str] = []
    real = os.open

    def spy(path: str, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
        if flags & os.O_CREAT:
            seen.append(path)
        return real(path, flags, mode, dir_fd=dir_fd)

    with root(tmp_path / "r") as registry:
        monkeypatch.setattr(os, "open", spy)
        registry.write_file("active", b"m1\n")
        registry.write_file("x" * 128, b"m1\n")
    assert len(seen) == 2
    assert all(is_partial(name) for name in seen)
