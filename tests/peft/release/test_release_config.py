"""The file that says how releases run on a host: what it must hold, and what is said when it does not."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest

from ticket_agent.peft.release.release_config import (
    MAX_RELEASE_CONFIG_BYTES,
    ReleaseConfig,
    ReleaseConfigError,
    load_release_config,
)

LEAST = 'root = "/srv/release"\nports = [8101, 8102]\ntoken_file = "/srv/token"\n'


def write(folder: Path, text: str, mode: int = 0o600) -> Path:
    path = folder / "release.toml"
    path.write_text(text, encoding="utf-8")
    path.chmod(mode)
    return path


def test_what_is_left_out_has_a_default(tmp_path: Path) -> None:
    found = load_release_config(write(tmp_path, LEAST))
    assert found == ReleaseConfig(
        root=Path("/srv/release"),
        python=Path(sys.executable),
        ports=(8101, 8102),
        token_file=Path("/srv/token"),
    )
    assert found.evidence == Path("/srv/release/evidence")
    assert not found.unconfined
    other = write(tmp_path, LEAST + 'evidence_root = "/srv/proof"\nunconfined = true\nsoak_s = 0\n')
    assert load_release_config(other) == replace(
        found, evidence_root=Path("/srv/proof"), unconfined=True, soak_s=0
    )


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("root = ", "not valid TOML"),
        (LEAST + "colour = 1\n", "unknown key colour; known here: authority_grace_s"),
        ('ports = [8101, 8102]\ntoken_file = "/srv/token"\n', "root is missing"),
        (LEAST.replace('"/srv/release"', '"srv/release"'), "root must be an absolute path"),
        (LEAST.replace('"/srv/release"', '"/srv/../release"'), "root must be an absolute path without .."),
        (LEAST.replace('"/srv/release"', '""'), "root must be a path in quotes"),
        (LEAST.replace('"/srv/release"', "7"), "root must be a path in quotes"),
        (LEAST.replace("[8101, 8102]", "8101"), "ports must be a list"),
        (LEAST.replace("[8101, 8102]", "[8101]"), "ports must be 2 to 8 different ports"),
        (LEAST.replace("[8101, 8102]", "[8101, 8101]"), "ports must be 2 to 8 different ports"),
        (LEAST.replace("[8101, 8102]", str(list(range(8101, 8110)))), "ports must be 2 to 8"),
        (LEAST.replace("8102", "80"), "ports must be in 1024..=65535"),
        (LEAST.replace("8102", "65536"), "ports must be in 1024..=65535"),
        (LEAST.replace("8102", "true"), "ports must be in 1024..=65535"),
        (LEAST + 'unconfined = "yes"\n', "unconfined must be true or false"),
        (LEAST + "drain_s = -1\n", "drain_s must be a number of seconds, at most 86400"),
        (LEAST + "drain_s = 86401\n", "drain_s must be a number of seconds, at most 86400"),
        (LEAST + "drain_s = nan\n", "drain_s must be a number of seconds"),
        (LEAST + "drain_s = true\n", "drain_s must be a number of seconds"),
        (LEAST + "drain_s = 0\n", "drain_s must be above 0"),
        (LEAST + "#" * MAX_RELEASE_CONFIG_BYTES, "is larger than 8192 bytes"),
    ],
)
def test_what_is_refused(tmp_path: Path, text: str, words: str) -> None:
    path = write(tmp_path, text)
    with pytest.raises(ReleaseConfigError) as caught:
        load_release_config(path)
    assert words in str(caught.value)
    assert str(path) in str(caught.value)


def test_a_file_that_others_can_write_to_is_not_believed(tmp_path: Path) -> None:
    with pytest.raises(ReleaseConfigError, match="nobody else may write to it"):
        load_release_config(write(tmp_path, LEAST, 0o666))
    with pytest.raises(ReleaseConfigError, match=r"cannot read .*: No such file"):
        load_release_config(tmp_path / "absent.toml")
