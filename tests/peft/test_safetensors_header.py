from __future__ import annotations

import json
import os
import tracemalloc
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest
import safetensors
from adapter_files import entries, file_of, file_with, pair, read
from hostile_adapters import A_TEXT, HOSTILE_HEADERS, A, B
from hypothesis import given
from hypothesis import strategies as st

from ticket_agent.peft import safetensors_header
from ticket_agent.peft.artifact_errors import ArtifactRefusedError, HeaderRefusedError
from ticket_agent.peft.safetensors_header import (
    DTYPE_BYTES,
    MAX_HEADER_BYTES,
    MAX_METADATA_BYTES,
    MAX_NAME_BYTES,
    SafetensorsHeader,
    parse_header,
    read_header,
    reader_of,
)

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


def refusal(data: bytes, *, size: int | None = None) -> str:
    with pytest.raises(HeaderRefusedError) as caught:
        read(data, size=size)
    return str(caught.value)


def of_library(data: bytes) -> dict[str, tuple[str, tuple[int, ...]]]:
    """What the library makes of a file, its data included."""
    found = safetensors.deserialize(data)  # type: ignore[no-untyped-call]
    return {name: (entry["dtype"], tuple(entry["shape"])) for name, entry in found}


def of_ours(header: SafetensorsHeader) -> dict[str, tuple[str, tuple[int, ...]]]:
    return {tensor.name: (tensor.dtype, tensor.shape) for tensor in header.tensors}


def text(**members: Any) -> bytes:
    return json.dumps(members, separators=(",", ":")).encode()


@pytest.mark.parametrize(
    ("data", "line"), [row[1:] for row in HOSTILE_HEADERS], ids=[row[0] for row in HOSTILE_HEADERS]
)
def test_hostile_files_are_refused_with_one_clear_line(data: bytes, line: str) -> None:
    shown = refusal(data)
    assert shown.startswith("adapter.safetensors")
    assert line in shown
    assert shown.isprintable()
    assert len(shown) <= 400


ACCEPTED: list[tuple[str, bytes]] = [
    ("a pair", file_with(pair())),
    ("no tensor", file_of({}, 0)),
    ("metadata only", file_of({"__metadata__": {"format": "pt"}}, 0)),
    ("every dtype", file_with({name.lower(): (name, (3,)) for name in DTYPE_BYTES})),
    ("a scalar", file_with({"a": ("F32", ())})),
    ("an empty tensor", file_with({"a": ("F32", (0, 5)), "b": ("F32", (1,))})),
    ("only empty tensors", file_with({"a": ("F32", (0,)), "b": ("U8", (4, 0))})),
    ("padded with blanks", file_of(b'{"a":%s}     ' % A_TEXT, 8)),
    ("blanks inside", file_of(json.dumps({"a": A, "b": B}, indent=2).encode(), 16)),
    ("entries not in the order of the data", file_of({"b": B, "a": A}, 16)),
    ("data that is not aligned", file_with({"a": ("U8", (3,)), "b": ("F64", (1,))})),
    ("a name of the greatest length", file_with({"n" * MAX_NAME_BYTES: ("F32", (1,))})),
    ("metadata with braces", file_with({"a": ("F32", (1,))}, note='{"x": [[]]}' * 5000, two="\u00e9\n")),
    ("metadata of the greatest length", file_with({"a": ("F32", (1,))}, x="y" * (MAX_METADATA_BYTES - 1))),
]


@pytest.mark.parametrize("data", [row[1] for row in ACCEPTED], ids=[row[0] for row in ACCEPTED])
def test_what_is_accepted_is_what_the_library_sees(data: bytes) -> None:
    assert of_ours(read(data)) == of_library(data)


def test_a_header_is_described() -> None:
    header = read(file_with({"b": ("F16", (2, 3)), "a": ("F32", ())}, format="pt"))
    first, second = header.tensors
    assert (first.name, first.dtype, first.shape, first.begin, first.end) == ("b", "F16", (2, 3), 0, 12)
    assert (first.elements, second.elements) == (6, 1)
    assert (header.metadata, header.data_bytes) == ({"format": "pt"}, 16)


def test_the_file_is_named_in_the_line() -> None:
    with pytest.raises(HeaderRefusedError, match=r"^adapter_model.safetensors is not"):
        read_header(lambda _offset, _count: b"", 0, what="adapter_model.safetensors")


def test_a_file_that_ends_while_it_is_read_is_refused() -> None:
    whole = file_with(pair())
    assert "ended early while its header was read" in refusal(whole[:20], size=len(whole))
    assert "shorter than 8 bytes" in refusal(b"", size=len(whole))


def test_a_file_is_read_through_its_descriptor(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(file_with(pair()))
    fd = os.open(path, os.O_RDONLY)
    try:
        header = read_header(reader_of(fd), path.stat().st_size)
        assert os.lseek(fd, 0, os.SEEK_CUR) == 0
    finally:
        os.close(fd)
    assert of_ours(header) == pair()


@pytest.mark.parametrize("dtype", sorted(DTYPE_BYTES))
def test_the_library_has_the_last_word(dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # As if our table were wrong: our own check passes, and the library's must not be skipped.
    monkeypatch.setattr(safetensors_header, "DTYPE_BYTES", {dtype: DTYPE_BYTES[dtype] * 2})
    members = {"a": {"dtype": dtype, "shape": [1], "data_offsets": [0, DTYPE_BYTES[dtype] * 2]}}
    data = file_of(members, DTYPE_BYTES[dtype] * 2)
    assert parse_header(data[8 : -DTYPE_BYTES[dtype] * 2], data_bytes=DTYPE_BYTES[dtype] * 2).tensors
    assert "the safetensors library does not accept the header: " in refusal(data)


def test_a_hundred_thousand_tensors_are_refused_unread() -> None:
    members = entries({f"base_model.model.layers.{n}.lora_A.weight": ("F32", (1,)) for n in range(100_000)})
    data = file_of(members, 400_000)
    reads: list[tuple[int, int]] = []

    def counting(offset: int, count: int) -> bytes:
        reads.append((offset, count))
        return data[offset : offset + count]

    with pytest.raises(HeaderRefusedError, match="or its header is too long"):
        read_header(counting, len(data))
    assert reads == [(0, 8)]


def _fullest() -> bytes:
    """A right header of the greatest length."""
    members = entries({f"layers.{n:04}.self_attn.lora_A.weight": ("F32", (16, 4096)) for n in range(8000)})
    fill = (MAX_HEADER_BYTES - len(text(**members))) // len(members) + 1
    members = {f"{name}{'x' * fill}": entry for name, entry in members.items()}
    while len(text(**members)) > MAX_HEADER_BYTES:
        members.popitem()
    return text(**members).ljust(MAX_HEADER_BYTES)


WORST = {
    "names": b"{" + b",".join(b'"%x":0' % n for n in range(100_000)) + b"}",
    "names too long": b'{"%s":0}' % (b"n" * 1_000_000),
    "lists": b'{"a":[' + b"[]," * 349_000 + b"0]}",
    "lists of numbers": b'{"a":[' + b"123456789," * 100_000 + b"0]}",
    "short strings": b'{"a":[' + b'"ab",' * 200_000 + b'"c"]}',
    "an escape behind another": b'{"a":"' + b"\\u00e9" * 170_000 + b'"}',
    "brackets and short strings": b'{"a":[' + b"[]," * 8000 + b'"ab",' * 190_000 + b"0]}",
    "quotes": b'{"a":"' + b'\\"' * 500_000 + b'"}',
}


@pytest.mark.parametrize("header", WORST.values(), ids=WORST)
def test_no_header_takes_more_memory_than_it_is_allowed(header: bytes) -> None:
    assert len(header) <= MAX_HEADER_BYTES
    with memory_below(16 * 2**20), pytest.raises(HeaderRefusedError):
        read(file_of(header, 0))


def test_the_longest_header_is_read_without_the_data() -> None:
    header = _fullest()
    assert len(header) == MAX_HEADER_BYTES
    data_bytes = max(entry["data_offsets"][1] for entry in json.loads(header).values())
    assert data_bytes > 900 * 2**20
    prefix = file_of(header, 0)
    with memory_below(16 * 2**20):
        found = read(prefix, size=len(prefix) + data_bytes)
    assert (found.tensors[-1].end, len(found.tensors)) == (data_bytes, len(json.loads(header)))


@contextmanager
def memory_below(limit: int) -> Iterator[None]:
    """Hold that what Python allocates inside stays below ``limit`` bytes at any time."""
    tracemalloc.start()
    try:
        yield
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < limit


names = st.text(st.characters(min_codepoint=0x20, max_codepoint=0x7E, exclude_characters="/\\."), min_size=1)
shapes = st.lists(st.integers(0, 5), max_size=4).map(tuple)
tensors = st.dictionaries(names, st.tuples(st.sampled_from(sorted(DTYPE_BYTES)), shapes), max_size=6)


@given(tensors, st.dictionaries(st.text(max_size=9), st.text(max_size=9), max_size=3), st.randoms())
def test_right_files_are_accepted_in_any_order(
    wanted: dict[str, tuple[str, tuple[int, ...]]], metadata: dict[str, str], random: Any
) -> None:
    members = list((entries(wanted) | {"__metadata__": metadata}).items())
    random.shuffle(members)
    size = max((entry["data_offsets"][1] for name, entry in members if name != "__metadata__"), default=0)
    data = file_of(dict(members), size)
    header = read(data)
    assert of_ours(header) == wanted == of_library(data)
    assert header.metadata == metadata


odd_values = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, 20),
    st.integers(2**31, 2**65),
    st.floats(allow_nan=False),
    st.sampled_from(["", "F32", "F16", "F4", "U8", "../x", "__metadata__", "a\0"]),
    st.lists(st.integers(-1, 9), max_size=3),
)


@given(tensors, st.data())
def test_changed_headers_are_refused_or_mean_the_same_to_the_library(
    wanted: dict[str, tuple[str, tuple[int, ...]]], data: st.DataObject
) -> None:
    members: dict[str, Any] = entries(wanted)
    size = max((entry["data_offsets"][1] for entry in members.values()), default=0)
    for _ in range(data.draw(st.integers(1, 2))):
        name = data.draw(st.sampled_from([*sorted(members), "__metadata__", "new"]))
        if isinstance(members.get(name), dict):
            member = data.draw(st.sampled_from(["dtype", "shape", "data_offsets", "extra"]))
            members[name] = {**members[name], member: data.draw(odd_values)}
        else:
            members[name] = data.draw(odd_values)
    _agree(file_of(members, max(0, size + data.draw(st.sampled_from([0, 0, 0, -1, 1, 8])))))


@given(st.binary(max_size=200))
def test_arbitrary_files_are_refused_or_read(data: bytes) -> None:
    _agree(data)


@given(st.binary(max_size=120), st.integers(0, 40))
def test_arbitrary_headers_are_refused_or_read(header: bytes, size: int) -> None:
    _agree(file_of(header, size))


@given(st.integers(8, 260), st.binary(max_size=3), st.integers(0, 3))
def test_damaged_files_are_refused_or_mean_the_same_to_the_library(at: int, new: bytes, gone: int) -> None:
    whole = file_with(pair(), format="pt")
    changed = whole[:at] + new + whole[at + gone :]
    _agree(changed)


def _agree(data: bytes) -> None:
    try:
        header = read(data)
    except ArtifactRefusedError:
        return
    assert of_ours(header) == of_library(data)
