"""How releases run on this host: the file that ``--peft-release-config`` names.

It is TOML, read once when the agent starts. Nothing in it is secret; keys and tokens stand in files of their
own, which are read when they are needed.
"""

from __future__ import annotations

import os
import stat
import sys
import tomllib
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Final

from ticket_agent.peft.errors import PeftError
from ticket_agent.peft.names import shown

__all__ = ["MAX_RELEASE_CONFIG_BYTES", "ReleaseConfig", "ReleaseConfigError", "load_release_config"]

MAX_RELEASE_CONFIG_BYTES: Final = 8192

_PATHS: Final = ("root", "python", "token_file", "signing_key", "evidence_root")
_SECONDS: Final = ("ready_s", "settle_s", "drain_s", "gone_s", "soak_s", "soak_pause_s", "authority_grace_s")
_MIN_PORT: Final = 1024
_MAX_PORT: Final = 65535
_MAX_SECONDS: Final = 86_400.0
_MIN_PORTS: Final = 2
_MAX_PORTS: Final = 8
_OTHERS_WRITE: Final = stat.S_IWGRP | stat.S_IWOTH


class ReleaseConfigError(PeftError):
    """The file cannot be used; one line names the member and what it must be."""

    code = "release-config"


@dataclass(frozen=True, slots=True, kw_only=True)
class ReleaseConfig:
    """How releases run here.

    Attributes:
        root: the private root of the releases.
        python: interpreter with the libraries that train and serve (extra ``train``); this one by default.
        ports: of the loopback interface, 2..=8 different ones in 1024..=65535; at every moment one belongs to
            what is served, and another one is for the candidate.
        token_file: holds the token that every request to a served model must carry.
        signing_key: Ed25519 key that signs what came of a release; without it nothing is signed.
        evidence_root: where native evidence is kept; ``evidence`` below the root by default.
        unconfined: whether phases may run without confinement when none works here; the evidence says so.
        ready_s: how long a server may take to answer, in seconds; like all of these above 0 and at most a
            day.
        settle_s: how long an old server must have had no connection before it is stopped.
        drain_s: when it is stopped all the same.
        gone_s: how long a stopped server may take to be gone.
        soak_s: how long a promoted candidate is watched; what it fails then takes it back. 0: not at all.
        soak_pause_s: between two looks at it.
        authority_grace_s: how long a phase may go on when the hive cannot be asked whether the release is
            still allowed.

    Raises:
        ReleaseConfigError: a value out of its range.
    """

    root: Path
    python: Path
    ports: tuple[int, ...]
    token_file: Path
    signing_key: Path | None = None
    evidence_root: Path | None = None
    unconfined: bool = False
    ready_s: float = 120.0
    settle_s: float = 2.0
    drain_s: float = 30.0
    gone_s: float = 10.0
    soak_s: float = 30.0
    soak_pause_s: float = 1.0
    authority_grace_s: float = 10.0

    def __post_init__(self) -> None:
        for name in _PATHS:
            path = getattr(self, name)
            if path is not None and not (path.is_absolute() and ".." not in path.parts):
                raise ReleaseConfigError(
                    f"{name} must be an absolute path without .., not {shown(str(path))}"
                )
        if not _MIN_PORTS <= len(self.ports) <= _MAX_PORTS or len(set(self.ports)) != len(self.ports):
            raise ReleaseConfigError(f"ports must be {_MIN_PORTS} to {_MAX_PORTS} different ports")
        for port in self.ports:
            if type(port) is not int or not _MIN_PORT <= port <= _MAX_PORT:
                raise ReleaseConfigError(f"ports must be in {_MIN_PORT}..={_MAX_PORT}")
        if type(self.unconfined) is not bool:
            raise ReleaseConfigError("unconfined must be true or false")
        for name in _SECONDS:
            value = getattr(self, name)
            if type(value) not in {int, float} or not 0 <= value <= _MAX_SECONDS:
                raise ReleaseConfigError(f"{name} must be a number of seconds, at most {_MAX_SECONDS:.0f}")
            if value == 0 and name != "soak_s":
                raise ReleaseConfigError(f"{name} must be above 0")

    @property
    def evidence(self) -> Path:
        """Where native evidence is kept."""
        return self.root / "evidence" if self.evidence_root is None else self.evidence_root


def load_release_config(path: Path) -> ReleaseConfig:
    """Read the file.

    Raises:
        ReleaseConfigError: it cannot be read, others can write to it, or a member is not as it must be.
    """
    data = _read(path)
    try:
        document = tomllib.loads(data.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise ReleaseConfigError(f"{path} is not valid TOML: {error}") from None
    try:
        return _of(document)
    except ReleaseConfigError as error:
        raise ReleaseConfigError(f"{path}: {error}") from None


def _of(document: dict[str, Any]) -> ReleaseConfig:
    known = {field.name for field in fields(ReleaseConfig)}
    for name in sorted(document.keys() - known):
        raise ReleaseConfigError(f"unknown key {shown(name)}; known here: {', '.join(sorted(known))}")
    members: dict[str, Any] = {"python": sys.executable} | document
    for name in ("root", "ports", "token_file"):
        if name not in members:
            raise ReleaseConfigError(f"{name} is missing")
    for name in _PATHS:
        value = members.get(name)
        if value is not None:
            if not isinstance(value, str) or not value or "\0" in value:
                raise ReleaseConfigError(f"{name} must be a path in quotes")
            members[name] = Path(value)
    if not isinstance(members["ports"], list):
        raise ReleaseConfigError("ports must be a list of ports")
    members["ports"] = tuple(members["ports"])
    return ReleaseConfig(**members)


def _read(path: Path) -> bytes:
    try:
        with path.open("rb") as stream:
            status = os.fstat(stream.fileno())
            data = stream.read(MAX_RELEASE_CONFIG_BYTES + 1)
    except OSError as error:
        raise ReleaseConfigError(f"cannot read {path}: {error.strerror}") from None
    if status.st_uid not in {0, os.geteuid()} or status.st_mode & _OTHERS_WRITE:
        raise ReleaseConfigError(
            f"{path} must belong to root or this account, and nobody else may write to it"
        )
    if len(data) > MAX_RELEASE_CONFIG_BYTES:
        raise ReleaseConfigError(
            f"{path} is larger than {MAX_RELEASE_CONFIG_BYTES} bytes; is it the right file?"
        )
    return data
