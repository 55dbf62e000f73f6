"""An export job: three files that describe what an adapter was trained on and from.

Pure but for reading a job from a directory. The policy may pin the telemetry: a table ``[export]`` with
``telemetry_sha256 = "<64 lowercase hexadecimal digits>"``. This is a rule of this project. It is there
because telemetry is binary and not every transport carries that; where it is used, no changed telemetry is
accepted.
"""

from __future__ import annotations

import hashlib
import re
import tomllib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from ticket_agent.peft.errors import AbsentError, ArtifactRefusedError, NameRefusedError
from ticket_agent.peft.limits import MAX_BASE_MODEL_BYTES, MAX_POLICY_BYTES, MAX_TELEMETRY_BYTES
from ticket_agent.peft.manifest import Artifact
from ticket_agent.peft.names import check_model_id
from ticket_agent.protocol.text import trim
from ticket_agent.protocol.tokens import SHA256_PATTERN

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ticket_agent.peft.directory import Directory

__all__ = [
    "BASE_FILE",
    "JOB_FILES",
    "POLICY_FILE",
    "TELEMETRY_FILE",
    "ExportJob",
    "artifact_of",
    "job_digest",
    "read_job",
]

TELEMETRY_FILE: Final = "telemetry.cbor"
BASE_FILE: Final = "base_model.ref"
POLICY_FILE: Final = "policy.toml"

JOB_FILES: Final[Mapping[str, int]] = {
    TELEMETRY_FILE: MAX_TELEMETRY_BYTES,
    BASE_FILE: MAX_BASE_MODEL_BYTES,
    POLICY_FILE: MAX_POLICY_BYTES,
}
"""The files of a job in the order in which they are taken, and the most bytes each may have."""

_PINNED: Final = "telemetry_sha256"
_SHA256: Final = re.compile(SHA256_PATTERN)


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportJob:
    """A complete job, in memory: at most 137 KiB.

    Attributes:
        telemetry: 1..=131072 bytes, of any kind; what the policy says about them holds.
        base_model: 1..=1024 bytes.
        policy: 1..=8192 bytes.

    Raises:
        ArtifactRefusedError: a file is empty or too large, or the telemetry is not the one that is pinned.
    """

    telemetry: bytes
    base_model: bytes
    policy: bytes

    def __post_init__(self) -> None:
        for name, limit in JOB_FILES.items():
            size = len(self.files[name])
            if size == 0:
                raise ArtifactRefusedError(f"{name} is empty")
            if size > limit:
                raise ArtifactRefusedError(f"{name} has {size} bytes; at most {limit} are accepted")
        pinned = _pinned_telemetry(self.policy)
        found = hashlib.sha256(self.telemetry).hexdigest()
        if pinned not in (None, found):
            raise ArtifactRefusedError(
                f"{TELEMETRY_FILE} is not the one that {POLICY_FILE} pins;"
                " a transport of text lines cannot carry binary telemetry"
            )

    @property
    def files(self) -> dict[str, bytes]:
        """The content by name, in the order of ``JOB_FILES``."""
        return dict(zip(JOB_FILES, (self.telemetry, self.base_model, self.policy), strict=True))

    @property
    def artifacts(self) -> dict[str, Artifact]:
        """Digests and sizes by name, in the same order."""
        return {name: artifact_of(data) for name, data in self.files.items()}

    def base(self) -> str:
        """The id of the base model: the first line of ``base_model.ref`` that is not blank, trimmed.

        Raises:
            ArtifactRefusedError: it is no id that every reader of a registry accepts.
        """
        try:
            lines = self.base_model.decode("utf-8").splitlines()
        except UnicodeDecodeError:
            raise ArtifactRefusedError(f"{BASE_FILE} is not UTF-8 text") from None
        first = next((line for line in map(trim, lines) if line), "")
        try:
            return check_model_id(first, what=f"the base model in {BASE_FILE}")
        except NameRefusedError as error:
            raise ArtifactRefusedError(str(error)) from None


def artifact_of(data: bytes) -> Artifact:
    """Digest and size of some bytes, at least one."""
    return Artifact(sha256=hashlib.sha256(data).hexdigest(), bytes=len(data))


def job_digest(artifacts: Mapping[str, Artifact]) -> str:
    """One digest over all files of a job, as every tool that exports jobs reports it (PEFT, export)."""
    digest = hashlib.sha256()
    for name in JOB_FILES:
        digest.update(f"{name}\0{artifacts[name].sha256}\n".encode("ascii"))
    return digest.hexdigest()


def read_job(exports: Directory, job: str) -> ExportJob:
    """Read a job from its directory; other entries in it are passed over.

    Raises:
        AbsentError: there is no such job.
        ArtifactRefusedError: a file is missing or not acceptable.
        FileRefusedError: the directory or a file is a link, no directory or regular file, or too large.
        PeftIoError: the system failed.
    """
    if exports.kind(job) is None:
        raise AbsentError(f"export job {job} does not exist; export it first")
    with exports.open_dir(job) as folder:
        found = {}
        for name, limit in JOB_FILES.items():
            try:
                found[name] = folder.read_file(name, max_bytes=limit)
            except AbsentError:
                raise ArtifactRefusedError(
                    f"export job {job} is not complete: {name} is missing; complete or remove the directory"
                ) from None
    try:
        return ExportJob(
            telemetry=found[TELEMETRY_FILE], base_model=found[BASE_FILE], policy=found[POLICY_FILE]
        )
    except ArtifactRefusedError as error:
        raise ArtifactRefusedError(f"export job {job}: {error}") from None


def _pinned_telemetry(policy: bytes) -> str | None:
    """The digest that a policy gives for the telemetry; None when it gives none.

    A policy that cannot be read pins nothing, unless it seems to: then nobody can tell.

    Raises:
        ArtifactRefusedError: there is something of that name, but no digest.
    """
    try:
        export = tomllib.loads(policy.decode("utf-8")).get("export")
    except (ValueError, RecursionError) as error:
        if _PINNED.encode() in policy:
            raise ArtifactRefusedError(
                f"{POLICY_FILE} names {_PINNED} and is not valid TOML: {error}"
            ) from None
        return None
    value = export.get(_PINNED) if isinstance(export, dict) else None
    if value is None:
        return None
    if not isinstance(value, str) or _SHA256.fullmatch(value) is None:
        raise ArtifactRefusedError(
            f"{POLICY_FILE}: [export].{_PINNED} must be a SHA-256 of 64 lowercase hexadecimal digits"
        )
    return value
