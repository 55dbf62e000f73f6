"""Opening a safetensors file: what looks like one and is none is named as what it is."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final

from ticket_agent.peft.artifact_errors import HeaderRefusedError
from ticket_agent.peft.safetensors_header import read_header, reader_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ticket_agent.peft.opened import OpenedFile
    from ticket_agent.peft.safetensors_header import SafetensorsHeader, Tensor

__all__ = ["check_finite", "is_all_zero", "refuse_pointer", "weights_header"]

_POINTER: Final = b"version https://git-lfs.github.com/spec/"
_CHUNK_BYTES: Final = 1024 * 1024

_EXPONENTS: Final = {
    "F16": (2, 0x7C, 0x00),
    "BF16": (2, 0x7F, 0x80),
    "F32": (4, 0x7F, 0x80),
    "F64": (8, 0x7F, 0xF0),
}
"""For each kind of number: its bytes, and the bits of the exponent in the last of them and in the one before.

The bytes of many numbers are looked at together, by their place in the number, without a library for numbers.
"""
_UNSIGNED: Final = bytes(byte & 0x7F for byte in range(256))


def refuse_pointer(prefix: bytes, what: str) -> None:
    """Refuse the text that stands in for a large file until Git LFS has fetched it.

    Raises:
        HeaderRefusedError: ``prefix``, the beginning of the file, is of such a text.
    """
    if prefix.startswith(_POINTER):
        raise HeaderRefusedError(
            f"{what} is a Git LFS pointer, not the file itself; fetch it with git lfs pull"
        )


def weights_header(file: OpenedFile, what: str) -> SafetensorsHeader:
    """Read and check the header of a safetensors file; see :func:`read_header`.

    Raises:
        HeaderRefusedError: it is a Git LFS pointer, cut short, or no acceptable safetensors file.
    """
    read = reader_of(file.fd)
    refuse_pointer(read(0, len(_POINTER)), what)
    try:
        return read_header(read, file.size, what=what)
    except HeaderRefusedError as error:
        if (missing := _missing_bytes(file)) > 0:
            raise HeaderRefusedError(
                f"{what} is cut short: {missing} bytes of its tensors are missing; fetch it again"
            ) from error
        raise


def _missing_bytes(file: OpenedFile) -> int:
    """How many bytes the file is shorter than a header that can be read says; 0 when nobody can tell."""
    read = reader_of(file.fd)
    length = int.from_bytes(read(0, 8), "little")
    if not 0 < length <= min(file.size, _CHUNK_BYTES):
        return 0
    try:
        entries = json.loads(read(8, length)).values()
        end = max(entry["data_offsets"][1] for entry in entries if "data_offsets" in entry)
    except (ValueError, RecursionError, TypeError, KeyError, IndexError, AttributeError):
        return 0
    return max(0, 8 + length + end - file.size) if type(end) is int else 0


def check_finite(file: OpenedFile, header: SafetensorsHeader, what: str) -> None:
    """Refuse numbers that are infinite or none.

    Raises:
        HeaderRefusedError: a tensor has one.
    """
    for tensor in header.tensors:
        size, last, before = _EXPONENTS[tensor.dtype]
        full = bytes(byte & last == last for byte in range(256))
        for data in _parts(file, header, tensor):
            suspects = data[size - 1 :: size].translate(full)
            at = suspects.find(1)
            while at >= 0:
                if data[at * size + size - 2] & before == before:
                    raise HeaderRefusedError(f"{what}: {tensor.name} has a number that is infinite or NaN")
                at = suspects.find(1, at + 1)


def is_all_zero(file: OpenedFile, header: SafetensorsHeader, tensor: Tensor) -> bool:
    """Tell whether all of a tensor's numbers are 0, whatever their signs."""
    size, _, _ = _EXPONENTS[tensor.dtype]
    return not any(
        data[place::size].translate(_UNSIGNED if place == size - 1 else None).strip(b"\0")
        for data in _parts(file, header, tensor)
        for place in range(size)
    )


def _parts(file: OpenedFile, header: SafetensorsHeader, tensor: Tensor) -> Iterator[bytes]:
    """A tensor's bytes, part by part; each holds whole numbers."""
    start = 8 + header.header_bytes
    read = reader_of(file.fd)
    for offset in range(tensor.begin, tensor.end, _CHUNK_BYTES):
        yield read(start + offset, min(_CHUNK_BYTES, tensor.end - offset))
