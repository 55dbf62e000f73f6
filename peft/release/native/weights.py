"""Opening a safetensors file: what looks like one and is none is named as what it is."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any, Final

from ticket_agent.peft.artifact_errors import HeaderRefusedError
from ticket_agent.peft.release.native.libraries import library
from ticket_agent.peft.safetensors_header import read_header, reader_of

if TYPE_CHECKING:
    from ticket_agent.peft.opened import OpenedFile
    from ticket_agent.peft.safetensors_header import SafetensorsHeader, Tensor

__all__ = ["check_finite", "is_all_zero", "refuse_pointer", "weights_header"]

_POINTER: Final = b"version https://git-lfs.github.com/spec/"
_CHUNK_BYTES: Final = 1024 * 1024

_BITS: Final = {
    "F16": ("uint16", 0x7C00, 0x7FFF),
    "BF16": ("uint16", 0x7F80, 0x7FFF),
    "F32": ("uint32", 0x7F800000, 0x7FFFFFFF),
    "F64": ("uint64", 0x7FF0000000000000, 0x7FFFFFFFFFFFFFFF),
}
"""For each kind of number: an unsigned type of its size, the bits of the exponent, all bits but the sign."""


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
        _, exponent, _ = _BITS[tensor.dtype]
        for numbers in _numbers(file, header, tensor):
            if bool(((numbers & exponent) == exponent).any()):
                raise HeaderRefusedError(f"{what}: {tensor.name} has a number that is infinite or NaN")


def is_all_zero(file: OpenedFile, header: SafetensorsHeader, tensor: Tensor) -> bool:
    """Tell whether all of a tensor's numbers are 0."""
    _, _, size = _BITS[tensor.dtype]
    return not any(bool((numbers & size).any()) for numbers in _numbers(file, header, tensor))


def _numbers(file: OpenedFile, header: SafetensorsHeader, tensor: Tensor) -> Any:
    """A tensor's numbers as unsigned integers, part by part."""
    numpy = library("numpy")
    kind, _, _ = _BITS[tensor.dtype]
    start = 8 + header.header_bytes
    for offset in range(tensor.begin, tensor.end, _CHUNK_BYTES):
        data = os.pread(file.fd, min(_CHUNK_BYTES, tensor.end - offset), start + offset)
        yield numpy.frombuffer(data, dtype=numpy.dtype(kind).newbyteorder("<"))
