"""The directory of one native phase: what it may read, and where it leaves what it made.

    JOB/in/     written by who starts the phase, only read here
        job.json request.json profile.json input.json   documents, in their one spelling
        train-rows.json eval-rows.json                  rows
        base.json base/                                 manifest and files of the base model
        adapter.json adapter/                           the candidate; a trained one has no manifest
        incumbent/                                      the adapter that is served now, if there is one
        checkpoint.json checkpoint/                     where training goes on, if it does
    JOB/out/    made here, in all phases: <phase>.json, the observation, last of all

Nothing is trusted because of its name: documents are held against the digests in the request and the profile,
files against the digests in the manifests, each before it is used.
"""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final, Self

from ticket_agent.peft.copying import hash_file
from ticket_agent.peft.names import shown
from ticket_agent.peft.release.bundle import BundleManifest, file_limit, parse_bundle
from ticket_agent.peft.release.canonical import MAX_JSON_BYTES, decode_object, digest, encode
from ticket_agent.peft.release.checkpoint import CheckpointManifest, parse_checkpoint
from ticket_agent.peft.release.data import parse_rows
from ticket_agent.peft.release.document_error import reading
from ticket_agent.peft.release.evidence_limits import MAX_IDENTITY_BYTES
from ticket_agent.peft.release.inputs import ReleaseInput, check_input, parse_input
from ticket_agent.peft.release.native.native_errors import JobError
from ticket_agent.peft.release.profile import Profile, parse_profile
from ticket_agent.peft.release.request import ReleaseRequest, parse_request
from ticket_agent.peft.release.rules import (
    check_operation_id,
    choice,
    digest_text,
    exact,
    field_names,
    text,
)
from ticket_agent.peft.release.spelled import spell
from ticket_agent.peft.roots import open_to_read

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from ticket_agent.peft.directory import Directory

__all__ = ["JOB_SCHEMA", "Job", "JobFacts"]

JOB_SCHEMA: Final = "ticket-agent-native-job/v1"
MAX_JOB_BYTES: Final = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class JobFacts:
    """What the starter of a phase says about it, in ``job.json``.

    Attributes:
        operation_id: the release's.
        request_sha256: digest of ``request.json``.
        native_identity: which process this is, as its launcher names it; 1..=256 bytes.
        candidate_sha256: identity of the adapter in ``in/adapter``; None before there is one.
    """

    operation_id: str
    request_sha256: str
    native_identity: str
    candidate_sha256: str | None = None

    def __post_init__(self) -> None:
        check_operation_id(self.operation_id)
        digest_text(self.request_sha256, "request_sha256")
        text(self.native_identity, "native_identity", MAX_IDENTITY_BYTES)
        if self.candidate_sha256 is not None:
            digest_text(self.candidate_sha256, "candidate_sha256")

    def encode(self) -> bytes:
        """The canonical form."""
        return encode(asdict(self) | {"schema": JOB_SCHEMA})

    @classmethod
    def parse(cls, data: bytes) -> JobFacts:
        """Read the canonical form.

        Raises:
            DocumentError: anything else.
        """
        document = decode_object(data, what="job.json", max_bytes=MAX_JOB_BYTES)
        with reading("job.json"):
            exact(document, ("schema", *field_names(cls)))
            choice(document.pop("schema"), "schema", (JOB_SCHEMA,), code="release-schema")
            return cls(**document)


class Job:
    """An open job directory; use it in a ``with`` statement.

    Its documents are read and checked when they are asked for the first time. Each of these properties
    raises DocumentError or JobError for what is not as it must be, and FileRefusedError for what is no plain
    file of an allowed size.

    Attributes:
        path: the directory; libraries that load models take nothing else.
        now_unix_ms: the host's clock.
        inputs: ``in``.
        outputs: ``out``.
        facts: ``job.json``.
    """

    def __init__(self, path: Path, *, now_unix_ms: Callable[[], int]) -> None:
        self.path: Final = path
        self.now_unix_ms: Final = now_unix_ms
        with open_to_read(path, label="job directory") as root:
            self.inputs: Final[Directory] = root.open_dir("in")
            self.outputs: Final[Directory] = root.open_dir("out")
        self.outputs.require_owned(os.geteuid())
        self.facts: Final = JobFacts.parse(self._read("job.json"))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.inputs.close()
        self.outputs.close()

    @cached_property
    def request(self) -> ReleaseRequest:
        """The request that ``job.json`` names."""
        request = parse_request(self._pinned("request.json", self.facts.request_sha256))
        if request.operation_id != self.facts.operation_id:
            raise JobError("job.json and request.json are of two operations; prepare the job again")
        return request

    @cached_property
    def profile(self) -> Profile:
        """The profile that the request names."""
        return parse_profile(self._pinned("profile.json", self.request.profile_sha256))

    @cached_property
    def release_input(self) -> ReleaseInput:
        """The input that the request names; it belongs to request and profile."""
        data = self._pinned("input.json", self.request.input_sha256)
        found = parse_input(data, entry=self.request.entry, schema=self.profile.schema)
        check_input(found, request=self.request, profile=self.profile)
        return found

    @cached_property
    def train_rows(self) -> tuple[str, ...]:
        """The rows that the profile trains on."""
        return parse_rows(self._pinned("train-rows.json", self.profile.train_data), what="training rows")

    @cached_property
    def eval_rows(self) -> tuple[str, ...]:
        """The rows that the profile evaluates on."""
        count = self.profile.stack.limits.eval_rows
        data = self._pinned("eval-rows.json", self.profile.eval_data)
        return parse_rows(data, what="evaluation rows", low=count, high=count)

    @cached_property
    def base_manifest(self) -> BundleManifest:
        """The manifest of the base model that the profile names."""
        return parse_bundle(self._pinned("base.json", self.profile.base))

    @cached_property
    def checkpoint(self) -> CheckpointManifest | None:
        """The checkpoint that the input names, or None."""
        wanted = self.release_input.checkpoint
        return None if wanted is None else parse_checkpoint(self._pinned("checkpoint.json", wanted))

    @property
    def candidate_sha256(self) -> str:
        """Identity that the starter says the candidate has.

        Raises:
            JobError: it says none.
        """
        if self.facts.candidate_sha256 is None:
            raise JobError("job.json names no candidate; this phase comes after there is one")
        return self.facts.candidate_sha256

    def input_path(self, name: str) -> Path:
        """Path of a directory below ``in``, for libraries that open files by themselves."""
        return self.path / "in" / name

    def output_path(self, name: str) -> Path:
        """Path of an entry below ``out``, likewise."""
        return self.path / "out" / name

    def bundle(self, sha256: str) -> BundleManifest:
        """The manifest ``adapter.json``, which must have this digest."""
        return parse_bundle(self._pinned("adapter.json", sha256))

    def check_files(self, name: str, wanted: dict[str, str]) -> None:
        """Hold that ``in/<name>`` has exactly these files, with contents of these digests. Constant memory.

        Raises:
            JobError: a file is missing, left over or of another content.
            FileRefusedError: an entry is no plain file of an allowed size.
        """
        with self.inputs.open_dir(name) as directory:
            names = directory.names()
            for extra in sorted(set(names) - wanted.keys()):
                raise JobError(f"{name} has {shown(extra)}, which its manifest does not name")
            for file, sha256 in wanted.items():
                if file not in names:
                    raise JobError(f"{name} has no {file}, which its manifest names")
                with directory.open_file(file, max_bytes=file_limit(file)) as opened:
                    found = hash_file(opened).sha256
                if found != sha256:
                    raise JobError(f"{name}/{file} is {found}; its manifest says {sha256}")

    def check_base_files(self) -> None:
        """Hold the files of the base model against their manifest; see :meth:`check_files`."""
        self.check_files("base", dict(self.base_manifest.files))

    def _read(self, name: str) -> bytes:
        return self.inputs.read_file(name, max_bytes=MAX_JSON_BYTES)

    def _pinned(self, name: str, sha256: str) -> bytes:
        data = self._read(name)
        if (found := digest(data)) != sha256:
            raise JobError(f"{name} is {found}; it must be {sha256}")
        return data

    def leave(self, name: str, data: bytes) -> str:
        """Durably write a file below ``out``, all or nothing; return its digest."""
        self.outputs.write_file(name, data)
        return digest(data)

    def leave_members(self, name: str, members: dict[str, Any]) -> str:
        """Write an object in its one spelling; see :meth:`leave`."""
        return self.leave(name, spell(members))
