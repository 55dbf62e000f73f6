from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

import pytest
from peft_actions import JOB, Places
from peft_support import make_device, make_fifo, make_socket, needs_root, root

from ticket_agent.hive.reference.exports import sample_job
from ticket_agent.peft.errors import AbsentError, ArtifactRefusedError, FileRefusedError
from ticket_agent.peft.job import (
    JOB_FILES,
    POLICY_FILE,
    TELEMETRY_FILE,
    ExportJob,
    job_digest,
    read_job,
)

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


def job(telemetry: bytes = b"t", base: bytes = b"base\n", policy: bytes = b"p") -> ExportJob:
    return ExportJob(telemetry=telemetry, base_model=base, policy=policy)


@pytest.fixture
def places(tmp_path: Path) -> Places:
    return Places(tmp_path).make()


def found(places: Places) -> ExportJob:
    with root(places.exports, label="exports") as exports:
        return read_job(exports, JOB)


def test_the_digest_is_the_published_one() -> None:
    files = sample_job()
    assert list(files) == list(JOB_FILES)
    whole = ExportJob(
        telemetry=files["telemetry.cbor"], base_model=files["base_model.ref"], policy=files["policy.toml"]
    )
    assert whole.files == files
    assert job_digest(whole.artifacts) == "5f1ab66dfc3b098d1e305ca73d3ffdd5de6736eac216deb366da6985670eb488"


def test_the_three_shortest_files_are_a_job() -> None:
    whole = job(b"telemetry", b"model", b"policy")
    assert sum(artifact.bytes for artifact in whole.artifacts.values()) == 20
    assert whole.base() == "model"


@pytest.mark.parametrize("name", JOB_FILES)
def test_bounds_are_inclusive(name: str) -> None:
    members = {"telemetry.cbor": "telemetry", "base_model.ref": "base_model", "policy.toml": "policy"}
    files = {"telemetry": b"t", "base_model": b"b", "policy": b"p"}
    limit = JOB_FILES[name]
    assert len(ExportJob(**files | {members[name]: b"x" * limit}).files[name]) == limit
    with pytest.raises(ArtifactRefusedError, match=f"^{name} has {limit + 1} bytes; at most {limit}"):
        ExportJob(**files | {members[name]: b"x" * (limit + 1)})
    with pytest.raises(ArtifactRefusedError, match=f"^{name} is empty$"):
        ExportJob(**files | {members[name]: b""})


@pytest.mark.parametrize(
    ("text", "base"),
    [
        (b"vision-base-v1\n", "vision-base-v1"),
        (b"vision-base-v1", "vision-base-v1"),
        (b"\n \n\t base_2.0 \r\nsecond line\n", "base_2.0"),
        ("\u00a0base\u00a0\n".encode(), "base"),
        (b"b" * 128, "b" * 128),
    ],
)
def test_the_base_model_is_the_first_line_that_says_something(text: bytes, base: str) -> None:
    assert job(base=text).base() == base


RULE = "the base model in base_model.ref must "
NO_BASE: list[tuple[bytes, str]] = [
    (b"\n", RULE + "be 1..=128"),
    (b" \n\n\t", RULE + "be 1..=128"),
    (b"b" * 129, RULE + "be 1..=128"),
    (b"../vision-base-v1", RULE + "be 1..=128"),
    (b"org/base", RULE + "be 1..=128"),
    (b"/srv/base", RULE + "be 1..=128"),
    (b"base v1", RULE + "be 1..=128"),
    (b'base"\nx = "y', RULE + "be 1..=128"),
    (b"-base", RULE + "be 1..=128"),
    (b"base\0", RULE + "be 1..=128"),
    ("b\u00e4se".encode(), RULE + "be 1..=128"),
    (b"..", RULE + "not be .., which names a place"),
    (b".", RULE + "not be ., which names a place"),
    (b".cohesix-registry.lock", RULE + "not start with .cohesix-"),
    (b"org:base", RULE + "not contain a colon"),
    (b"\xff\xfe", "base_model.ref is not UTF-8 text"),
]


@pytest.mark.parametrize(("text", "line"), NO_BASE)
def test_what_is_no_base_model(text: bytes, line: str) -> None:
    with pytest.raises(ArtifactRefusedError) as caught:
        job(base=text).base()
    assert str(caught.value).startswith(line)
    assert str(caught.value).isprintable()


PIN = hashlib.sha256(b"\xa2\x00\xff\n").hexdigest()


@pytest.mark.parametrize(
    "policy",
    [
        f'[export]\ntelemetry_sha256 = "{PIN}"\n',
        f'title = "x"\n[export]\nother = 1\ntelemetry_sha256 = "{PIN}"\n[more]\n',
        f'export = {{ telemetry_sha256 = "{PIN}" }}',
        "[export]\nother = 1\n",
        'export = "text"\n',
        '[policy]\ntelemetry_sha256 = "of something else"\n',
        "not TOML at all",
        "[[[",
        "\x01",
    ],
)
def test_telemetry_that_the_policy_does_not_exclude(policy: str) -> None:
    assert job(b"\xa2\x00\xff\n", policy=policy.encode()).telemetry == b"\xa2\x00\xff\n"


def test_pinned_telemetry_that_a_transport_changed() -> None:
    policy = f'[export]\ntelemetry_sha256 = "{PIN}"\n'.encode()
    with pytest.raises(ArtifactRefusedError) as caught:
        job(b"\xa2\x00\xff", policy=policy)
    assert str(caught.value) == (
        "telemetry.cbor is not the one that policy.toml pins;"
        " a transport of text lines cannot carry binary telemetry"
    )


NO_PIN = "must be a SHA-256 of 64 lowercase"


@pytest.mark.parametrize(
    ("policy", "line"),
    [
        ("[export]\ntelemetry_sha256 = 7\n", NO_PIN),
        ('[export]\ntelemetry_sha256 = ""\n', NO_PIN),
        (f'[export]\ntelemetry_sha256 = "{PIN.upper()}"\n', NO_PIN),
        (f'[export]\ntelemetry_sha256 = "{PIN[:-1]}"\n', NO_PIN),
        (f'[export]\ntelemetry_sha256 = ["{PIN}"]\n', NO_PIN),
        (f'[export\ntelemetry_sha256 = "{PIN}"\n', "names telemetry_sha256 and is not valid TOML"),
        ("[export]\ntelemetry_sha256 = '", "names telemetry_sha256 and is not valid TOML"),
        (f'[export]\ntelemetry_sha256 = "{PIN}"\n' * 2, "names telemetry_sha256 and is not valid TOML"),
    ],
)
def test_a_pin_that_cannot_be_read_is_no_absent_one(policy: str, line: str) -> None:
    with pytest.raises(ArtifactRefusedError, match=f"^{POLICY_FILE}.*{line}"):
        job(policy=policy.encode())


def test_a_policy_that_is_not_utf8_and_names_a_pin() -> None:
    with pytest.raises(ArtifactRefusedError, match="names telemetry_sha256 and is not valid TOML"):
        job(policy=b"\xff[export]\ntelemetry_sha256 = ''\n")


def test_a_job_is_read_from_its_directory_and_other_entries_are_passed_over(places: Places) -> None:
    places.add_job(files=sample_job() | {"notes.txt": b"n", ".telemetry.cbor.7.0.partial": b"t"})
    assert found(places).files == sample_job()


def test_there_is_no_such_job(places: Places) -> None:
    with pytest.raises(AbsentError, match=f"^export job {JOB} does not exist; export it first$"):
        found(places)


@pytest.mark.parametrize("name", JOB_FILES)
def test_an_incomplete_job_is_refused_by_the_name_of_the_file(places: Places, name: str) -> None:
    (places.add_job() / name).unlink()
    with pytest.raises(ArtifactRefusedError, match=f"^export job {JOB} is not complete: {name} is missing"):
        found(places)


def _link(path: Path) -> None:
    path.symlink_to("/etc/passwd")


def make_directory(path: Path) -> None:
    path.mkdir()


@pytest.mark.parametrize("name", JOB_FILES)
@pytest.mark.parametrize(
    "make",
    [_link, make_fifo, make_socket, make_directory, pytest.param(make_device, marks=needs_root)],
)
def test_a_file_of_another_kind_is_refused(places: Places, name: str, make: Callable[[Path], None]) -> None:
    folder = places.add_job()
    (folder / name).unlink()
    make(folder / name)
    with pytest.raises(FileRefusedError, match=f"^exports {places.exports}/{JOB}/{name} is a"):
        found(places)


def test_damaged_telemetry_is_noticed_on_disk_too(places: Places) -> None:
    policy = f'[export]\ntelemetry_sha256 = "{PIN}"\n'.encode()
    folder = places.add_job(files=sample_job() | {POLICY_FILE: policy, TELEMETRY_FILE: b"\xa2\x00\xff\n"})
    assert found(places).policy == policy
    (folder / TELEMETRY_FILE).write_bytes(b"\xa2\x00\xfe\n")
    with pytest.raises(ArtifactRefusedError, match=f"^export job {JOB}: telemetry.cbor is not the one"):
        found(places)
