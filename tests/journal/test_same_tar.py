"""Archives: the same content gives the same bytes, and no byte can change unnoticed."""

from __future__ import annotations

import io
import tarfile

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ticket_agent.journal.same_tar import ArchiveError, read_files, write_files, writing

TOP = "bundle"
FILES = {"b.json": b"{}", "a/1.json": b"x" * 513, "empty": b""}
MANY = 16
NAMES = st.text(st.sampled_from("abc./-_"), min_size=1, max_size=20)


def test_an_ordinary_reader_takes_it() -> None:
    with tarfile.open(fileobj=io.BytesIO(write_files(TOP, FILES))) as archive:
        members = archive.getmembers()
        found = {member.name: archive.extractfile(member) for member in members if member.isfile()}
        assert [member.name for member in members] == [TOP, *(f"{TOP}/{name}" for name in sorted(FILES))]
        assert {(member.mtime, member.uid, member.gid, member.uname) for member in members} == {(0, 0, 0, "")}
        assert {name: stream.read() for name, stream in found.items() if stream} == {
            f"{TOP}/{name}": data for name, data in FILES.items()
        }


@given(st.dictionaries(NAMES, st.binary(max_size=600), max_size=4))
def test_reading_gives_what_was_written(files: dict[str, bytes]) -> None:
    assert read_files(write_files(TOP, files), TOP, max_files=MANY) == files


def test_the_order_of_files_does_not_matter() -> None:
    assert write_files(TOP, FILES) == write_files(TOP, dict(reversed(FILES.items())))


@pytest.mark.parametrize("compressed", [False, True])
def test_writing_needs_nothing_but_a_stream_to_write_to(compressed: bool) -> None:
    streams = [io.BytesIO(), io.BytesIO()]
    for stream in streams:
        with writing(stream, compressed=compressed) as archive:
            archive.add_folder(TOP)
            archive.add_file(f"{TOP}/file", b"data")
    assert streams[0].getvalue() == streams[1].getvalue()


def test_every_changed_byte_is_noticed_or_read_as_it_is() -> None:
    data = write_files(TOP, {"a": b"content", "b": b"other"})
    for index in range(len(data)):
        changed = bytearray(data)
        changed[index] ^= 0x01
        try:
            files = read_files(bytes(changed), TOP, max_files=MANY)
        except ArchiveError:
            continue
        # Only content can change; what vouches for it is not the archive's.
        assert sorted(files) == ["a", "b"]
        assert sorted(files.values()) != [b"content", b"other"]


@pytest.mark.parametrize("cut", [0, 1, 511, 512, 600, 1024, 1536, 10239])
def test_a_cut_archive_is_refused(cut: int) -> None:
    with pytest.raises(ArchiveError):
        read_files(write_files(TOP, FILES)[:cut], TOP, max_files=MANY)


@given(st.binary(max_size=1200))
def test_anything_else_is_refused_with_our_error(data: bytes) -> None:
    with pytest.raises(ArchiveError):
        read_files(data, TOP, max_files=MANY)


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE, tarfile.DIRTYPE])
def test_only_files_are_read(kind: bytes) -> None:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w", format=tarfile.USTAR_FORMAT) as archive:
        for name, type_ in ((TOP, tarfile.DIRTYPE), (f"{TOP}/a", kind)):
            info = tarfile.TarInfo(name)
            info.type, info.mode, info.linkname = type_, 0o700, "/etc/passwd" if type_ == kind else ""
            archive.addfile(info)
    with pytest.raises(ArchiveError):
        read_files(stream.getvalue(), TOP, max_files=MANY)


def test_a_file_twice_and_too_many_files_are_refused() -> None:
    stream = io.BytesIO()
    with writing(stream, compressed=False) as archive:
        archive.add_folder(TOP)
        archive.add_file(f"{TOP}/a", b"1")
        archive.add_file(f"{TOP}/a", b"2")
    with pytest.raises(ArchiveError):
        read_files(stream.getvalue(), TOP, max_files=MANY)
    with pytest.raises(ArchiveError, match="no file of a bundle at byte"):
        read_files(write_files(TOP, FILES), TOP, max_files=2)
