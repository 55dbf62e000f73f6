"""Numbers in a file of tensors, looked at without a library for numbers."""

from __future__ import annotations

import math
import struct
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ticket_agent.peft.artifact_errors import HeaderRefusedError
from ticket_agent.peft.release.native.weights import check_finite, is_all_zero
from ticket_agent.peft.release.skeleton_base import safetensors_bytes
from ticket_agent.peft.roots import open_to_read
from ticket_agent.peft.safetensors_header import read_header, reader_of

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

KINDS = {"F16": "<e", "F32": "<f", "F64": "<d"}


def judge(folder: Path, kind: str, data: bytes) -> tuple[bool, bool]:
    """Whether all numbers are finite, and whether all are 0."""
    size = {"F16": 2, "BF16": 2, "F32": 4, "F64": 8}[kind]
    text = safetensors_bytes({"a": ((len(data) // size,), data)}).replace(b'"F32"', f'"{kind}"'.encode())
    length = int.from_bytes(text[:8], "little") + len(kind) - len("F32")
    (folder / "file").write_bytes(length.to_bytes(8, "little") + text[8:])
    with (
        open_to_read(folder, label="folder") as directory,
        directory.open_file("file", max_bytes=1 << 20) as file,
    ):
        header = read_header(reader_of(file.fd), file.size)
        try:
            check_finite(file, header, "file")
        except HeaderRefusedError:
            finite = False
        else:
            finite = True
        return finite, is_all_zero(file, header, header.tensors[0])


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("weights")


@pytest.mark.parametrize("kind", KINDS)
@given(data=st.data())
def test_numbers_are_judged_as_the_machine_does(folder: Path, kind: str, data: st.DataObject) -> None:
    width = {"F16": 16, "F32": 32, "F64": 64}[kind]
    some = st.sampled_from([0.0, -0.0, 1.0, math.inf, -math.inf, math.nan]) | st.floats(width=width)  # type: ignore[arg-type]
    numbers: Sequence[float] = data.draw(st.lists(some, min_size=1, max_size=40))
    packed = b"".join(struct.pack(KINDS[kind], number) for number in numbers)
    wanted = all(map(math.isfinite, numbers)), not any(numbers)
    assert judge(folder, kind, packed) == wanted


@given(st.lists(st.binary(min_size=2, max_size=2), min_size=1, max_size=40))
def test_brain_floats_are_the_upper_half_of_floats(folder: Path, halves: list[bytes]) -> None:
    numbers = [struct.unpack("<f", b"\0\0" + half)[0] for half in halves]
    wanted = all(map(math.isfinite, numbers)), not any(numbers)
    assert judge(folder, "BF16", b"".join(halves)) == wanted


@pytest.mark.parametrize("at", [0, 262_143, 262_144, 300_000])
def test_every_part_of_a_large_tensor_is_looked_at(folder: Path, at: int) -> None:
    numbers = bytearray(4 * 300_001)
    numbers[4 * at : 4 * at + 4] = struct.pack("<f", 1.0)
    path = folder / f"large-{at}"
    path.mkdir()
    data = safetensors_bytes({"a": ((300_001,), bytes(numbers))})
    (path / "file").write_bytes(data)
    with (
        open_to_read(path, label="folder") as directory,
        directory.open_file("file", max_bytes=1 << 22) as file,
    ):
        header = read_header(reader_of(file.fd), file.size)
        assert not is_all_zero(file, header, header.tensors[0])
        check_finite(file, header, "file")
