"""The header of a safetensors file, read more strictly than the format's own library reads it.

A file is 8 bytes (the header's length, little-endian), the header (one JSON object) and the data. Two readers
of one file must never see different tensors, and no number in it may cost memory before it was checked. So,
beyond what the library refuses: names appear once, entries have exactly their three members, the header
begins with ``{`` and is padded with blanks only, and everything is bounded. The format has no rule about the
alignment of data, so there is none here.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import cache
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, TypeGuard

from ticket_agent.peft.artifact_errors import HeaderRefusedError, quoted
from ticket_agent.protocol.errors import JsonError
from ticket_agent.protocol.json_strict import count_outside_strings, parse_object

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    ReadAt = Callable[[int, int], bytes]
    """``(offset, n)``: ``n`` bytes from ``offset``, fewer only at the end of the file."""

__all__ = [
    "DTYPE_BYTES",
    "MAX_DIMENSIONS",
    "MAX_ELEMENTS",
    "MAX_HEADER_BYTES",
    "MAX_METADATA_BYTES",
    "MAX_METADATA_ENTRIES",
    "MAX_NAME_BYTES",
    "MAX_TENSORS",
    "SafetensorsHeader",
    "Tensor",
    "parse_header",
    "read_header",
    "reader_of",
]

LENGTH_BYTES: Final = 8
"""The header's length, in front of it."""
MAX_HEADER_BYTES: Final = 1024 * 1024
"""Without the 8 bytes of its length. A thousand adapted modules take a fifth of it."""
MAX_TENSORS: Final = 8192
MAX_NAME_BYTES: Final = 256
MAX_DIMENSIONS: Final = 8
MAX_ELEMENTS: Final = 2**40
"""Of one tensor, with each dimension of 0 counted as 1; keeps every product within 64 bits."""
MAX_METADATA_ENTRIES: Final = 256
MAX_METADATA_BYTES: Final = 64 * 1024
"""Names and values of ``__metadata__`` together, as UTF-8."""

DTYPE_BYTES: Final[Mapping[str, int]] = MappingProxyType(
    {
        "BOOL": 1,
        "U8": 1,
        "I8": 1,
        "F8_E5M2": 1,
        "F8_E4M3": 1,
        "I16": 2,
        "U16": 2,
        "F16": 2,
        "BF16": 2,
        "I32": 4,
        "U32": 4,
        "F32": 4,
        "I64": 8,
        "U64": 8,
        "F64": 8,
    }
)
"""Bytes of one element. Every supported version of the library knows these; packed types are not here."""

MAX_CONTAINERS: Final = 3 * MAX_TENSORS + 2
"""Objects and lists: the header, ``__metadata__``, and each tensor's entry, shape and offsets."""
MAX_MEMBERS: Final = 4 * MAX_TENSORS + 1 + MAX_METADATA_ENTRIES
"""Of all objects together; a tensor has its name and three more."""

METADATA: Final = "__metadata__"
MEMBERS: Final = frozenset({"dtype", "shape", "data_offsets"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Tensor:
    """One entry; ``begin`` and ``end`` are offsets into the data, which follows the header."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    begin: int
    end: int

    @property
    def elements(self) -> int:
        """The number of elements, 1 for a scalar."""
        return (self.end - self.begin) // DTYPE_BYTES[self.dtype]


@dataclass(frozen=True, slots=True, kw_only=True)
class SafetensorsHeader:
    """A header that was accepted.

    Attributes:
        tensors: in the order of their data, which they cover from its first byte to its last.
        metadata: ``__metadata__``, empty when absent.
        header_bytes: length of the header, without the 8 bytes in front of it.
        data_bytes: length of the data.
    """

    tensors: tuple[Tensor, ...]
    metadata: Mapping[str, str]
    header_bytes: int
    data_bytes: int


def read_header(read: ReadAt, size: int, *, what: str = "adapter.safetensors") -> SafetensorsHeader:
    """Read and check the header of a file, then have the library confirm it.

    At most the header is read, never the data, and the library sees only the bytes that were checked here.

    Args:
        read: reads from the file.
        size: length of the file in bytes.
        what: name of the file in error lines.

    Raises:
        HeaderRefusedError: the header is not acceptable, or the file is shorter than ``size``.
        OSError: reading failed.
    """
    length = _header_length(read(0, LENGTH_BYTES), size, what)
    text = read(LENGTH_BYTES, length)
    if len(text) != length:
        raise HeaderRefusedError(f"{what} ended early while its header was read; let its writer finish first")
    header = parse_header(text, data_bytes=size - LENGTH_BYTES - length, what=what)
    _confirm(text, header, what)
    return header


def reader_of(fd: int) -> ReadAt:
    """Return a reader of an open file; the descriptor's own offset is neither used nor moved."""

    def read(offset: int, count: int) -> bytes:
        data = os.pread(fd, count, offset)
        while len(data) < count and (more := os.pread(fd, count - len(data), offset + len(data))):
            data += more
        return data

    return read


def parse_header(text: bytes, *, data_bytes: int, what: str = "adapter.safetensors") -> SafetensorsHeader:
    """Check a header on its own.

    Args:
        text: the header without the 8 bytes of its length.
        data_bytes: how many bytes of data follow it.
        what: name of the file in error lines.

    Raises:
        HeaderRefusedError: a rule of this module is broken.
    """
    document = _document(text, what)
    metadata = _metadata(document.pop(METADATA, None), what)
    tensors = [_tensor(name, entry, data_bytes, what) for name, entry in document.items()]
    tensors.sort(key=lambda tensor: (tensor.begin, tensor.end))
    _check_cover(tensors, data_bytes, what)
    return SafetensorsHeader(
        tensors=tuple(tensors), metadata=metadata, header_bytes=len(text), data_bytes=data_bytes
    )


def _header_length(prefix: bytes, size: int, what: str) -> int:
    if size < LENGTH_BYTES or len(prefix) != LENGTH_BYTES:
        raise HeaderRefusedError(f"{what} is not a safetensors file: it is shorter than {LENGTH_BYTES} bytes")
    length = int.from_bytes(prefix, "little")
    if length > MAX_HEADER_BYTES:
        raise HeaderRefusedError(
            f"{what} is not a safetensors file, or its header is too long: its first 8 bytes announce "
            f"{length} bytes of header; the limit is {MAX_HEADER_BYTES}"
        )
    if length > size - LENGTH_BYTES:
        raise HeaderRefusedError(
            f"{what} is cut short: it announces {length} bytes of header and has {size - LENGTH_BYTES}"
        )
    return length


def _document(text: bytes, what: str) -> dict[str, Any]:
    if not text.startswith(b"{"):
        raise HeaderRefusedError(f"{what}: the header does not begin with {{")
    body = text.rstrip(b" ")
    if not body.endswith(b"}"):
        raise HeaderRefusedError(f"{what}: the header does not end with }} and blanks")
    _check_structure(body, what)
    try:
        document = parse_object(body, what=f"{what}: the header", max_bytes=MAX_HEADER_BYTES)
    except JsonError as error:
        raise HeaderRefusedError(str(error)) from None
    if len(document) > MAX_TENSORS + (METADATA in document):
        raise HeaderRefusedError(
            f"{what}: the header names {len(document)} tensors; the limit is {MAX_TENSORS}"
        )
    return document


def _check_structure(body: bytes, what: str) -> None:
    """Bound what decoding will build: small containers and members are cheap to write and dear to hold."""
    for marks, limit, kind in ((b"{[", MAX_CONTAINERS, "objects and lists"), (b":", MAX_MEMBERS, "members")):
        upper_bound = sum(body.count(mark) for mark in marks)
        if upper_bound > limit and (found := count_outside_strings(body, marks)) > limit:
            raise HeaderRefusedError(
                f"{what}: the header has {found} {kind}; "
                f"{MAX_TENSORS} tensors, the limit, take at most {limit}"
            )


def _metadata(value: object, what: str) -> Mapping[str, str]:
    if value is None:
        return MappingProxyType({})
    if not isinstance(value, dict):
        raise HeaderRefusedError(f"{what}: {METADATA} must be an object of strings")
    if len(value) > MAX_METADATA_ENTRIES:
        raise HeaderRefusedError(
            f"{what}: {METADATA} has {len(value)} entries; the limit is {MAX_METADATA_ENTRIES}"
        )
    taken = 0
    for name, item in value.items():
        if not isinstance(item, str):
            raise HeaderRefusedError(f"{what}: {METADATA} member {quoted(name)} must be a string")
        taken += len(name.encode()) + len(item.encode())
    if taken > MAX_METADATA_BYTES:
        raise HeaderRefusedError(f"{what}: {METADATA} takes {taken} bytes; the limit is {MAX_METADATA_BYTES}")
    return MappingProxyType(value)


def _tensor(name: str, entry: object, data_bytes: int, what: str) -> Tensor:
    _check_name(name, what)
    where = f"{what}: tensor {quoted(name)}"
    if not isinstance(entry, dict) or entry.keys() != MEMBERS:
        raise HeaderRefusedError(f"{where} must have exactly dtype, shape and data_offsets")
    dtype, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    if not isinstance(dtype, str) or dtype not in DTYPE_BYTES:
        shown = quoted(dtype) if isinstance(dtype, str) else "a dtype that is no string"
        raise HeaderRefusedError(f"{where} has {shown}; known dtypes are {', '.join(DTYPE_BYTES)}")
    _check_shape(shape, where)
    if not _are_counts(offsets) or len(offsets) != 2:  # noqa: PLR2004 - begin and end
        raise HeaderRefusedError(f"{where}: data_offsets must be two integers of at least 0")
    begin, end = offsets
    if not begin <= end <= data_bytes:
        raise HeaderRefusedError(
            f"{where}: data_offsets {begin}..{end} are not within the {data_bytes} bytes of data"
        )
    wanted = DTYPE_BYTES[dtype]
    for dimension in shape:
        wanted *= dimension
    if end - begin != wanted:
        raise HeaderRefusedError(
            f"{where}: {dtype} {shape} takes {wanted} bytes, its data_offsets hold {end - begin}"
        )
    return Tensor(name=name, dtype=dtype, shape=tuple(shape), begin=begin, end=end)


def _check_name(name: str, what: str) -> None:
    if not 1 <= len(name) <= MAX_NAME_BYTES:
        raise HeaderRefusedError(
            f"{what}: a tensor's name has {len(name)} characters; 1..={MAX_NAME_BYTES} are allowed"
        )
    if not (name.isascii() and name.isprintable()):
        raise HeaderRefusedError(f"{what}: tensor name {quoted(name)} is not printable ASCII")
    if "/" in name or "\\" in name or ".." in name:
        raise HeaderRefusedError(f"{what}: tensor name {quoted(name)} looks like a path")


def _check_shape(shape: object, where: str) -> None:
    if not _are_counts(shape):
        raise HeaderRefusedError(f"{where}: shape must be a list of integers of at least 0")
    if len(shape) > MAX_DIMENSIONS:
        raise HeaderRefusedError(f"{where} has {len(shape)} dimensions; the limit is {MAX_DIMENSIONS}")
    elements = 1
    for dimension in shape:
        elements *= max(dimension, 1)
    if elements > MAX_ELEMENTS:
        raise HeaderRefusedError(f"{where}: shape {shape} has more than {MAX_ELEMENTS} elements")


def _are_counts(value: object) -> TypeGuard[list[int]]:
    # `type`, because JSON's true is an int to Python.
    return isinstance(value, list) and all(type(item) is int and item >= 0 for item in value)


def _check_cover(tensors: list[Tensor], data_bytes: int, what: str) -> None:
    """Hold that the data is covered once and entirely, so that nothing can be hidden in it."""
    covered, previous = 0, "the beginning"
    for tensor in tensors:
        if tensor.begin < covered:
            raise HeaderRefusedError(f"{what}: tensors {previous} and {quoted(tensor.name)} overlap")
        if tensor.begin > covered:
            raise HeaderRefusedError(
                f"{what}: {tensor.begin - covered} bytes between {previous} and {quoted(tensor.name)} "
                "belong to no tensor"
            )
        covered, previous = tensor.end, quoted(tensor.name)
    if covered != data_bytes:
        raise HeaderRefusedError(f"{what}: {data_bytes - covered} bytes after {previous} belong to no tensor")


def _confirm(text: bytes, header: SafetensorsHeader, what: str) -> None:
    """Have the library read the header without any data.

    It checks everything about a header before it compares lengths, so the one thing it must find wrong with a
    header that has data is that the data is missing. That costs no memory for the data and touches no file.
    """
    verdict = _library_verdict(text)
    wanted = _verdict_without_data() if header.data_bytes else None
    if verdict != wanted:
        raise HeaderRefusedError(f"{what}: the safetensors library does not accept the header: {verdict}")


def _library_verdict(text: bytes) -> str | None:
    from safetensors import SafetensorError, deserialize  # noqa: PLC0415 - start-up time

    try:
        deserialize(len(text).to_bytes(LENGTH_BYTES, "little") + text)  # type: ignore[no-untyped-call]
    except SafetensorError as error:
        return str(error)
    return None


@cache
def _verdict_without_data() -> str | None:
    """Return what the library says of a good header whose data is missing; the words differ by version."""
    return _library_verdict(b'{"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}')
