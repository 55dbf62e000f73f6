from __future__ import annotations

import copy
import os
import pickle
from typing import TYPE_CHECKING

import pytest

from ticket_agent.hive.credentials import (
    MAX_SECRET_LEN,
    PLACEHOLDERS,
    CredentialError,
    Secret,
    console_secret,
    resolve_secret,
)
from ticket_agent.protocol.namespace import HiveAuthError

if TYPE_CHECKING:
    from pathlib import Path

TOKEN = "tok-4711"


def test_a_secret_shows_itself_only_when_asked() -> None:
    secret = Secret(TOKEN)
    assert secret.reveal() == TOKEN
    assert TOKEN not in f"{secret} {secret!r} {[secret]} {secret!s:>40}"
    assert secret.scrub(f"got {TOKEN}, {TOKEN}") == "got [redacted], [redacted]"


def test_secrets_compare_by_value_and_are_never_serialised() -> None:
    assert Secret("a") == Secret("a") != Secret("b")
    assert Secret("a") != "a"
    assert len({Secret("a"), Secret("a"), Secret("b")}) == 2
    for serialise in (pickle.dumps, copy.deepcopy):
        with pytest.raises(TypeError, match="never serialised"):
            serialise(Secret(TOKEN))


def test_a_literal_is_the_secret() -> None:
    assert resolve_secret(TOKEN, env={}).reveal() == TOKEN


def test_a_variable_is_read_at_each_call() -> None:
    env = {"HIVE": "one"}
    assert resolve_secret("env:HIVE", env=env).reveal() == "one"
    env["HIVE"] = "two"
    assert resolve_secret("env:HIVE", env=env).reveal() == "two"


def test_a_variable_is_not_a_reference_again() -> None:
    assert resolve_secret("env:HIVE", env={"HIVE": "env:OTHER", "OTHER": "x"}).reveal() == "env:OTHER"


@pytest.mark.parametrize("content", [b"tok-4711", b"tok-4711\n"])
def test_a_file_loses_one_newline(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "token"
    path.write_bytes(content)
    assert resolve_secret(f"file:{path}", env={}).reveal() == TOKEN


def test_a_file_may_be_rotated(tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_text("first")
    first = resolve_secret(f"file:{path}", env={})
    path.write_text("second")
    assert first != resolve_secret(f"file:{path}", env={})


def test_the_longest_secret_fits(tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_text("x" * MAX_SECRET_LEN + "\n")
    assert len(resolve_secret(f"file:{path}", env={}).reveal()) == MAX_SECRET_LEN


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "empty"),
        (b"\n", "empty"),
        (b"two words", "blank"),
        (b"tok\n\n", "control"),
        (b"tok\r\n", "control"),
        (b" tok", "blank"),
        (b"tok\x00", "control"),
        ("t\u00f6k".encode(), "non-ASCII"),
        (b"\xff\xfe", "non-ASCII"),
        (b"x" * (MAX_SECRET_LEN + 1), "longer than 4096"),
        (b"x" * (MAX_SECRET_LEN + 2), "larger than 4096"),
        (b"ChangeMe\n", "placeholder"),
    ],
)
def test_malformed_files_are_refused_without_being_quoted(tmp_path: Path, content: bytes, words: str) -> None:
    path = tmp_path / "token"
    path.write_bytes(content)
    with pytest.raises(CredentialError, match=words) as caught:
        resolve_secret(f"file:{path}", env={})
    shown = str(caught.value)
    assert "\n" not in shown
    assert str(path) in shown
    assert "two words" not in shown


def test_files_that_are_no_regular_files_are_refused(tmp_path: Path) -> None:
    real = tmp_path / "token"
    real.write_text(TOKEN)
    link = tmp_path / "link"
    link.symlink_to(real)
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    for path, words in (
        (link, "symbolic link"),
        (fifo, "not a regular file"),
        (tmp_path, "not a regular file"),
        (tmp_path / "missing", "No such file"),
    ):
        with pytest.raises(CredentialError, match=words):
            resolve_secret(f"file:{path}", env={})


@pytest.mark.parametrize(
    "ref",
    ["file:token", "file:", "file:/etc/../etc/hostname", "file:/etc/..", "file:./token", "file:/a\0b"],
)
def test_only_absolute_plain_paths_are_opened(ref: str) -> None:
    with pytest.raises(CredentialError, match="absolute path"):
        resolve_secret(ref, env={})


@pytest.mark.parametrize("ref", ["env:", "env:1X", "env:A B", "env:A=B"])
def test_a_variable_needs_a_name(ref: str) -> None:
    with pytest.raises(CredentialError, match="name of an environment variable"):
        resolve_secret(ref, env={})


def test_an_unset_variable_is_no_reason_to_look_elsewhere() -> None:
    with pytest.raises(CredentialError, match="HIVE is not set"):
        console_secret("env:HIVE", env={"COH_AUTH_TOKEN": TOKEN})
    with pytest.raises(CredentialError, match="HIVE is not set"):
        console_secret(None, env={"COH_AUTH_TOKEN_REF": "env:HIVE", "COH_AUTH_TOKEN": TOKEN})


def test_a_set_but_empty_variable_is_refused() -> None:
    with pytest.raises(CredentialError, match="variable HIVE is empty"):
        resolve_secret("env:HIVE", env={"HIVE": ""})


@pytest.mark.parametrize("placeholder", sorted(PLACEHOLDERS))
def test_placeholders_are_for_labs_only(placeholder: str) -> None:
    for spelling in (placeholder, placeholder.upper()):
        with pytest.raises(CredentialError, match="placeholder"):
            resolve_secret(spelling, env={})
        assert resolve_secret(spelling, env={}, allow_placeholder=True).reveal() == spelling


@pytest.mark.parametrize(
    ("flag", "env", "expected"),
    [
        ("flag", {"COH_AUTH_TOKEN_REF": "env:R", "R": "ref"}, "flag"),
        ("env:R", {"R": "ref"}, "ref"),
        (None, {"COH_AUTH_TOKEN_REF": "env:R", "R": "ref", "COH_AUTH_TOKEN": "coh"}, "ref"),
        (None, {"COH_AUTH_TOKEN": "coh", "COHSH_AUTH_TOKEN": "cohsh"}, "coh"),
        (None, {"COHSH_AUTH_TOKEN": "cohsh"}, "cohsh"),
        (None, {"COH_AUTH_TOKEN_REF": "", "COH_AUTH_TOKEN": "", "COHSH_AUTH_TOKEN": "cohsh"}, "cohsh"),
        (None, {"COH_AUTH_TOKEN": "env:R", "R": "ref"}, "env:R"),
    ],
)
def test_lookup_order(flag: str | None, env: dict[str, str], expected: str) -> None:
    assert console_secret(flag, env=env).reveal() == expected


def test_a_reference_variable_holds_no_literal() -> None:
    with pytest.raises(CredentialError, match="neither env:NAME nor file:") as caught:
        console_secret(None, env={"COH_AUTH_TOKEN_REF": TOKEN})
    assert TOKEN not in str(caught.value)


def test_without_any_source_the_error_names_the_variable() -> None:
    with pytest.raises(CredentialError, match="COH_AUTH_TOKEN_REF"):
        console_secret(None, env={})
    with pytest.raises(HiveAuthError, match="the given token is empty"):
        console_secret("", env={"COH_AUTH_TOKEN": TOKEN})
