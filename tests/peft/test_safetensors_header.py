from __future__ import annotations

import json
import os
import tracemalloc
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest
import safetensors
from adapter_files import entries, file_of, file_with, pair, read
from hypothesis import given
from hypothesis import strategies as st

from ticket_agent.peft import safetensors_header
from ticket_agent.peft.artifact_errors import ArtifactRefusedError, HeaderRefusedError
from ticket_agent.peft.safetensors_header import (
    DTYPE_BYTES,
    MAX_DIMENSIONS,
    MAX_HEADER_BYTES,
    MAX_METADATA_BYTES,
    MAX_METADATA_ENTRIES,
    MAX_NAME_BYTES,
    MAX_TENSORS,
    SafetensorsHeader,
    parse_header,
    read_header,
    reader_of,
)

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

A = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}
B = {"dtype": "F32", "shape": [2], "data_offsets": [8, 16]}
A_TEXT = b'{"dtype":"F32","shape":[2],"data_offsets":[0,8]}'


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


def with_a(**changes: Any) -> dict[str, Any]:
    return {"a": A | changes}


def text(**members: Any) -> bytes:
    return json.dumps(members, separators=(",", ":")).encode()


PATH = "tensor name {} looks like a path"
NOT_PRINTABLE = "tensor name {} is not printable ASCII"
OFFSETS = 'tensor "a": data_offsets must be two integers of at least 0'
SHAPE = 'tensor "a": shape must be a list of integers of at least 0'
MEMBERS = 'tensor "a" must have exactly dtype, shape and data_offsets'

HOSTILE: list[tuple[str, bytes, str]] = [
    ("empty file", b"", "is not a safetensors file: it is shorter than 8 bytes"),
    ("seven bytes", bytes(7), "is not a safetensors file: it is shorter than 8 bytes"),
    (
        "text of the published fixture",
        b"adapter-bytes\n",
        "its first 8 bytes announce 3274791429827814497 bytes of header; the limit is 1048576",
    ),
    (
        "a pickle",
        b"\x80\x04\x95\x10\x00\x00\x00\x00" + bytes(40),
        "is not a safetensors file, or its header is too long",
    ),
    ("a zip", b"PK\x03\x04" + bytes(60), "is not a safetensors file, or its header is too long"),
    ("length of all ones", b"\xff" * 8 + b"{}", "announce 18446744073709551615 bytes of header"),
    ("length over the limit", (MAX_HEADER_BYTES + 1).to_bytes(8, "little") + b"{}", "announce 1048577 bytes"),
    ("length past the end", (3).to_bytes(8, "little") + b"{}", "announces 3 bytes of header and has 2"),
    ("no header", bytes(8), "the header does not begin with {"),
    ("leading blank", file_of(b' {"a":%s}' % A_TEXT, 8), "the header does not begin with {"),
    ("leading newline", file_of(b'\n{"a":%s}' % A_TEXT, 8), "the header does not begin with {"),
    ("byte order mark", file_of(b'\xef\xbb\xbf{"a":%s}' % A_TEXT, 8), "the header does not begin with {"),
    ("a list", file_of(b"[]", 0), "the header does not begin with {"),
    ("padded with newlines", file_of(b'{"a":%s}\n\n' % A_TEXT, 8), "does not end with } and blanks"),
    ("padded with NUL", file_of(b'{"a":%s}\0' % A_TEXT, 8), "does not end with } and blanks"),
    ("second document", file_of(b'{"a":%s}{}' % A_TEXT, 8), "is not valid JSON at character 54: Extra data"),
    ("cut JSON", file_of(b'{"a":{}', 8), "is not valid JSON at character"),
    ("comma at the end", file_of(b'{"a":%s,}' % A_TEXT, 8), "is not valid JSON at character"),
    ("single quotes", file_of(b"{'a':{}}", 8), "is not valid JSON at character"),
    ("UTF-16", file_of('{"a":1}'.encode("utf-16-le"), 0), "does not end with } and blanks"),
    ("not UTF-8", file_of(b'{"\xff":%s}' % A_TEXT, 8), "is not UTF-8 at byte 2"),
    ("name twice", file_of(b'{"a":%s,"a":%s}' % (A_TEXT, A_TEXT), 8), "member a appears more than once"),
    (
        "name twice, once escaped",
        file_of(b'{"a":%s,"\\u0061":%s}' % (A_TEXT, A_TEXT), 8),
        "member a appears more than once",
    ),
    (
        "member twice",
        file_of(b'{"a":{"dtype":"F32","dtype":"F32","shape":[2],"data_offsets":[0,8]}}', 8),
        "member a.dtype appears more than once",
    ),
    (
        "metadata twice",
        file_of(b'{"__metadata__":{},"__metadata__":{},"a":%s}' % A_TEXT, 8),
        "member __metadata__ appears more than once",
    ),
    (
        "metadata name twice",
        file_of(b'{"__metadata__":{"x":"1","x":"2"},"a":%s}' % A_TEXT, 8),
        "member __metadata__.x appears more than once",
    ),
    ("deep nesting", file_of(b'{"a":' + b"[" * 200 + b"]" * 200 + b"}", 0), "nests more than 127 containers"),
    ("very deep nesting", file_of(b'{"a":' + b"[" * 200_000 + b"}", 0), "has 200001 objects and lists"),
    ("lone surrogate", file_of(b'{"\\ud800":%s}' % A_TEXT, 8), "holds a lone surrogate"),
    ("NaN", file_of(b'{"a":NaN}', 0), "is NaN, which is not JSON"),
    ("entry is a list", file_of({"a": []}, 0), MEMBERS),
    ("entry is null", file_of({"a": None}, 0), MEMBERS),
    ("entry is empty", file_of({"a": {}}, 0), MEMBERS),
    ("a fourth member", file_of(with_a(strides=[1]), 8), MEMBERS),
    ("no shape", file_of({"a": {"dtype": "F32", "data_offsets": [0, 8]}}, 8), MEMBERS),
    (
        "members in capitals",
        file_of({"a": {"Dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}, 8),
        MEMBERS,
    ),
    ("unknown dtype", file_of(with_a(dtype="F31"), 8), 'tensor "a" has "F31"; known dtypes are BOOL, U8,'),
    ("dtype in small letters", file_of(with_a(dtype="f32"), 8), 'tensor "a" has "f32"; known dtypes'),
    ("packed dtype", file_of(with_a(dtype="F4", shape=[16]), 8), 'tensor "a" has "F4"; known dtypes'),
    ("dtype is a number", file_of(with_a(dtype=4), 8), 'tensor "a" has a dtype that is no string'),
    ("shape is a number", file_of(with_a(shape=2), 8), SHAPE),
    ("shape is a string", file_of(with_a(shape="2"), 8), SHAPE),
    ("negative dimension", file_of(with_a(shape=[-2, -1]), 8), SHAPE),
    ("fractional dimension", file_of(b'{"a":{"dtype":"F32","shape":[2.0],"data_offsets":[0,8]}}', 8), SHAPE),
    ("true as dimension", file_of(with_a(shape=[True, 2]), 8), SHAPE),
    ("dimension of 2**64", file_of(with_a(shape=[2**64]), 8), "is an integer outside i64::MIN..=u64::MAX"),
    (
        "dimension of a thousand digits",
        file_of(b'{"a":{"shape":[%s]}}' % (b"9" * 1000), 8),
        "is an integer outside",
    ),
    ("dimension is -0", file_of(b'{"a":{"shape":[-0]}}', 8), "is -0; write 0"),
    ("product overflows", file_of(with_a(shape=[2**63, 2**63]), 8), "has more than 1099511627776 elements"),
    (
        "product overflows, then 0",
        file_of(with_a(shape=[2**40, 2**40, 0], data_offsets=[0, 0]), 0),
        "has more than 1099511627776 elements",
    ),
    (
        "too many dimensions",
        file_of(with_a(shape=[1] * MAX_DIMENSIONS + [2]), 8),
        'tensor "a" has 9 dimensions; the limit is 8',
    ),
    ("one offset", file_of(with_a(data_offsets=[8]), 8), OFFSETS),
    ("three offsets", file_of(with_a(data_offsets=[0, 4, 8]), 8), OFFSETS),
    ("negative offset", file_of(with_a(data_offsets=[-8, 0]), 8), OFFSETS),
    ("fractional offset", file_of(b'{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8.0]}}', 8), OFFSETS),
    (
        "offsets reversed",
        file_of(with_a(data_offsets=[8, 0]), 8),
        "data_offsets 8..0 are not within the 8 bytes",
    ),
    (
        "offset past the end",
        file_of(with_a(data_offsets=[0, 9]), 8),
        "0..9 are not within the 8 bytes of data",
    ),
    (
        "offset far past the end",
        file_of(with_a(data_offsets=[0, 2**64 - 1]), 8),
        "data_offsets 0..18446744073709551615 are not within the 8 bytes of data",
    ),
    ("shape too large", file_of(with_a(shape=[3]), 8), "F32 [3] takes 12 bytes, its data_offsets hold 8"),
    ("shape too small", file_of(with_a(shape=[1]), 8), "F32 [1] takes 4 bytes, its data_offsets hold 8"),
    ("dtype too small", file_of(with_a(dtype="F16"), 8), "F16 [2] takes 4 bytes, its data_offsets hold 8"),
    ("overlap", file_of({"a": A, "b": B | {"data_offsets": [4, 12]}}, 12), 'tensors "a" and "b" overlap'),
    ("same data twice", file_of({"a": A, "b": A}, 8), 'tensors "a" and "b" overlap'),
    (
        "gap in front",
        file_of({"b": B}, 16),
        '8 bytes between the beginning and "b" belong to no tensor',
    ),
    (
        "gap between",
        file_of({"a": A, "b": B | {"data_offsets": [9, 17]}}, 17),
        '1 bytes between "a" and "b" belong to no tensor',
    ),
    ("data behind", file_of({"a": A}, 9), '1 bytes after "a" belong to no tensor'),
    ("data and no tensor", file_of({}, 4), "4 bytes after the beginning belong to no tensor"),
    ("polyglot: a zip behind", file_of({"a": A}, bytes(8) + b"PK\x05\x06" + bytes(18)), "22 bytes after"),
    ("data missing", file_of({"a": A}, 7), "data_offsets 0..8 are not within the 7 bytes of data"),
    ("empty name", file_of({"": A}, 8), "a tensor's name has 0 characters; 1..=256 are allowed"),
    ("long name", file_of({"n" * (MAX_NAME_BYTES + 1): A}, 8), "a tensor's name has 257 characters"),
    ("name is a path up", file_of({"../../x": A}, 8), PATH.format('"../../x"')),
    ("name is absolute", file_of({"/etc/passwd": A}, 8), PATH.format('"/etc/passwd"')),
    ("name with a backslash", file_of({"a\\b": A}, 8), PATH.format('"a\\b"')),
    ("name with dots", file_of({"a..b": A}, 8), PATH.format('"a..b"')),
    ("name with a NUL", file_of({"a\0b": A}, 8), NOT_PRINTABLE.format('"a\\x00b"')),
    ("name with an escape", file_of({"a\x1b[2Jb": A}, 8), NOT_PRINTABLE.format('"a\\x1b[2Jb"')),
    ("name with a newline", file_of({"a\nb": A}, 8), NOT_PRINTABLE.format('"a\\nb"')),
    ("name with DEL", file_of({"a\x7f": A}, 8), NOT_PRINTABLE.format('"a\\x7f"')),
    ("name looks like another", file_of({"\u0430": A}, 8), NOT_PRINTABLE.format('"\u0430"')),
    ("name turns around", file_of({"a\u202eb": A}, 8), NOT_PRINTABLE.format('"a\\u202eb"')),
    (
        "metadata is a list",
        file_of({"__metadata__": [], "a": A}, 8),
        "__metadata__ must be an object of strings",
    ),
    ("metadata is a tensor", file_of({"__metadata__": A}, 8), '__metadata__ member "shape" must be a string'),
    (
        "metadata of numbers",
        file_of({"__metadata__": {"x": 1}, "a": A}, 8),
        '__metadata__ member "x" must be',
    ),
    ("metadata nested", file_of({"__metadata__": {"x": {}}, "a": A}, 8), '__metadata__ member "x" must be'),
    (
        "metadata too long",
        file_of({"__metadata__": {"x": "y" * MAX_METADATA_BYTES}, "a": A}, 8),
        "__metadata__ takes 65537 bytes; the limit is 65536",
    ),
    (
        "metadata has too many entries",
        file_of({"__metadata__": {str(n): "" for n in range(MAX_METADATA_ENTRIES + 1)}, "a": A}, 8),
        "__metadata__ has 257 entries; the limit is 256",
    ),
    (
        "too many names",
        file_of(b"{" + b",".join(b'"%x":0' % n for n in range(MAX_TENSORS + 1)) + b"}", 0),
        "the header names 8193 tensors; the limit is 8192",
    ),
    (
        "members without end",
        file_of(b"{" + b",".join(b'"%x":0' % n for n in range(60_000)) + b"}", 0),
        "the header has 60000 members; 8192 tensors, the limit, take at most 33025",
    ),
    (
        "empty containers without end",
        file_of(b'{"a":[' + b"{}," * 300_000 + b"0]}", 0),
        "the header has 300002 objects and lists; 8192 tensors, the limit, take at most 24578",
    ),
]


@pytest.mark.parametrize(("data", "line"), [row[1:] for row in HOSTILE], ids=[row[0] for row in HOSTILE])
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
