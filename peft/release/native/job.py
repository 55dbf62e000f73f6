"""The directory of one native phase: what it may read, and where it leaves what it made.

    JOB/in/     written by who starts the phase, only read here
        job.json request.json profile.json input.json   documents, in their one spelling
        train-rows.json eval-rows.json                  rows
        base.json base/                                 manifest and files of the base model
        adapter.json adapter/                           the candidate; a trained one has no manifest
        incumbent/                                      the adapter that is served now, if there is one
        checkpoint.json checkpoint/                     where training goes on, if it does
    JOB/out/    made here, in all phases: <phase>.json, the observation, last of all

What is large need not be copied: a directory may stand elsewhere, as the ``places`` of ``job.json`` say.

Nothing is trusted because of its name: documents are held against the digests in the request and the profile,
files against the digests in the manifests, each before it is used.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Final

from ticket_agent.peft.copying import hash_file
from ticket_agent.peft.names import shown
from ticket_agent.peft.release.bundle import BundleManifest, file_limit, parse_bundle
from ticket_agent.peft.release.canonical import MAX_JSON_BYTES, decode_object, digest, encode
from ticket_agent.peft.release.checkpoint import CheckpointManifest, parse_checkpoint
from ticket_agent.peft.release.data import parse_rows
from ticket_agent.peft.release.document_error import reading
from ticket_agent.peft.release.evidence_limits import MAX_IDENTITY_BYTES
from ticket_agent.peft.release.inputs import ReleaseInput, check_input, parse_input
from ticket_agent.peft.release.job_directory import JobDirectory
from ticket_agent.peft.release.native.native_errors import JobError
from ticket_agent.peft.release.profile import Profile, parse_profile
from ticket_agent.peft.release.request import ReleaseRequest, parse_request
from ticket_agent.peft.release.rules import (
    check_operation_id,
    choice,
    digest_text,
    exact,
    field_names,
    refuse,
    sorted_names,
    text,
)
from ticket_agent.peft.roots import open_to_read

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from ticket_agent.peft.directory import Directory

__all__ = ["JOB_SCHEMA", "Job", "JobFacts"]

JOB_SCHEMA: Final = "ticket-agent-native-job/v1"
MAX_JOB_BYTES: Final = 24 * 1024
PLACES: Final = ("adapter", "base", "checkpoint", "incumbent")
"""Directories that may stand elsewhere."""
_MAX_PATH: Final = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class JobFacts:
    """What the starter of a phase says about it, in ``job.json``.

    Attributes:
        operation_id: the release's.
        request_sha256: digest of ``request.json``.
        native_identity: which process this is, as its launcher names it; 1..=256 bytes.
        candidate_sha256: identity of the adapter in ``in/adapter``; None before there is one.
        places: where directories stand that are not below ``in``, by the names that they would have there.
    """

    operation_id: str
    request_sha256: str
    native_identity: str
    candidate_sha256: str | None = None
    places: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_operation_id(self.operation_id)
        digest_text(self.request_sha256, "request_sha256")
        text(self.native_identity, "native_identity", MAX_IDENTITY_BYTES)
        if self.candidate_sha256 is not None:
            digest_text(self.candidate_sha256, "candidate_sha256")
        for name, place in sorted_names(self.places, "places").items():
            choice(name, "each name of places", PLACES)
            path = text(place, f"places.{name}", _MAX_PATH, ascii_only=False)
            if not path.startswith("/") or ".." in path.split("/"):
                refuse(f"places.{name}", "an absolute path without ..")

    def encode(self) -> bytes:
        """The canonical form."""
        members = {name: getattr(self, name) for name in field_names(type(self))}
        return encode(members | {"places": dict(self.places), "schema": JOB_SCHEMA})

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


class Job(JobDirectory):
    """An open job directory of a native phase; use it in a ``with`` statement.

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
        super().__init__(path)
        self.now_unix_ms: Final = now_unix_ms
        self.facts: Final = JobFacts.parse(self._read("job.json"))

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
        """Path of an input directory, for libraries that open files by themselves."""
        place = self.facts.places.get(name)
        return self.path / "in" / name if place is None else Path(place)

    def open_input(self, name: str) -> Directory:
        """Open an input directory, wherever it stands.

        Raises:
            AbsentError, RootRefusedError: it does not exist.
            FileRefusedError: it is no directory.
        """
        place = self.facts.places.get(name)
        return self.inputs.open_dir(name) if place is None else open_to_read(place, label=name)

    def output_path(self, name: str) -> Path:
        """Path of an entry below ``out``, likewise."""
        return self.path / "out" / name

    def bundle(self, sha256: str) -> BundleManifest:
        """The manifest ``adapter.json``, which must have this digest."""
        return parse_bundle(self._pinned("adapter.json", sha256))

    def check_files(self, name: str, wanted: dict[str, str]) -> None:
        """Hold that an input directory has exactly these files, with contents of these digests.

        Constant memory.

        Raises:
            JobError: a file is missing, left over or of another content.
            FileRefusedError: an entry is no plain file of an allowed size.
        """
        with self.open_input(name) as directory:
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
