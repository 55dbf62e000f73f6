"""What a release's journal and files tell, as one value: what is decided on, and the record at its end."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ticket_agent.peft.errors import AbsentError
from ticket_agent.peft.release.canonical import decode_object, digest, encode
from ticket_agent.peft.release.comparison import Comparison
from ticket_agent.peft.release.consistency import successor
from ticket_agent.peft.release.document_error import DocumentError, reading
from ticket_agent.peft.release.evidence_limits import MAX_BLOCKER_BYTES, MAX_EVALUATE_BYTES
from ticket_agent.peft.release.layout import BEGUN_FILE, END_FILE, MAX_BEGUN_BYTES, Begun
from ticket_agent.peft.release.observation import PhaseObservation, parse_observation
from ticket_agent.peft.release.phase_machine import Standing
from ticket_agent.peft.release.phases import Phase
from ticket_agent.peft.release.release_record import PhaseRecord, ReleaseRecord
from ticket_agent.peft.release.rules import exact
from ticket_agent.protocol.json_strict import dumps, parse_object

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ticket_agent.journal.outcome import JsonValue
    from ticket_agent.journal.record import Record
    from ticket_agent.peft.directory import Directory
    from ticket_agent.peft.release.deployment import DeploymentState
    from ticket_agent.peft.release.layout import OperationFiles
    from ticket_agent.peft.release.phase_journal import PhaseJournal
    from ticket_agent.peft.release.phases import ReleaseState
    from ticket_agent.peft.release.request import ReleaseRequest

__all__ = [
    "COMPARISON_FILE",
    "MAX_END_BYTES",
    "Decided",
    "Dispatched",
    "Story",
    "blocker_text",
    "read_begun",
    "read_end",
    "read_story",
    "write_end",
]

COMPARISON_FILE = "comparison.json"
MAX_END_BYTES = 64 * 1024
_MAX_COMPARISON_BYTES = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class Dispatched:
    """One phase that was dispatched.

    Attributes:
        phase: which one.
        standing: how it stands.
        observation: what it observed, when it succeeded or failed.
        why: what else is known of its end, in words.
        intent: what it was dispatched with.
    """

    phase: Phase
    standing: Standing
    observation: PhaseObservation | None = None
    why: str = ""
    intent: Mapping[str, JsonValue] = field(default_factory=dict)

    @property
    def because(self) -> str:
        """Why it was dispatched, of a rollback."""
        return str(self.intent.get("because", ""))

    def record(self) -> PhaseRecord:
        """As the release's record tells it."""
        return PhaseRecord(phase=self.phase, result=self.observation)


@dataclass(frozen=True, slots=True, kw_only=True)
class Decided:
    """The decision about the candidate; ``comparison`` is None when it was refused, and ``why`` says why."""

    comparison: Comparison | None
    why: str = ""

    def encode(self) -> bytes:
        """The canonical form."""
        members = None if self.comparison is None else self.comparison.members()
        return encode({"comparison": members, "why": self.why})

    @classmethod
    def parse(cls, data: bytes) -> Decided:
        """Read the canonical form.

        Raises:
            DocumentError: anything else.
        """
        document = decode_object(data, what=COMPARISON_FILE, max_bytes=_MAX_COMPARISON_BYTES)
        with reading(COMPARISON_FILE):
            exact(document, ("comparison", "why"))
            told = document["comparison"]
            return cls(
                comparison=None if told is None else Comparison.of_members(told), why=str(document["why"])
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Story:
    """One release, or one attempt to recover it.

    Attributes:
        begun: under which ticket.
        request: what was asked for.
        phases: what was dispatched, in order.
        decided: about the candidate; None before that.
    """

    begun: Begun
    request: ReleaseRequest
    phases: tuple[Dispatched, ...]
    decided: Decided | None

    def of(self, phase: Phase) -> Dispatched | None:
        """What became of a phase; None when it was not dispatched."""
        return next((entry for entry in self.phases if entry.phase is phase), None)

    def intent(self, phase: Phase) -> Mapping[str, JsonValue]:
        """What a phase was dispatched with; empty when it was not."""
        entry = self.of(phase)
        return {} if entry is None else entry.intent

    def observed(self, phase: Phase) -> PhaseObservation | None:
        """What a phase observed that succeeded."""
        entry = self.of(phase)
        return entry.observation if entry is not None and entry.standing is Standing.SUCCEEDED else None

    @property
    def candidate_sha256(self) -> str | None:
        """The adapter that was accepted; before the decision the one that was validated or trained."""
        if self.decided is not None and self.decided.comparison is not None:
            return self.decided.comparison.candidate_sha256
        for phase in (Phase.TRAIN, Phase.VALIDATE):
            observed = self.observed(phase)
            candidate = None if observed is None else observed.detail.get("candidate")
            if isinstance(candidate, dict) and isinstance(candidate.get("adapter_sha256"), str):
                return str(candidate["adapter_sha256"])
        return None

    @property
    def successor(self) -> DeploymentState | None:
        """What the release promotes; None before the candidate was accepted."""
        if self.decided is None or self.decided.comparison is None:
            return None
        return successor(self.request, self.decided.comparison.candidate_sha256)

    def ended(
        self, state: ReleaseState, blocker: str | None, *, original: Story | None = None
    ) -> ReleaseRecord:
        """The record of its end.

        Args:
            state: how it ends.
            blocker: what stopped it.
            original: the release that this is an attempt to recover.
        """
        told = self if original is None else original
        phases = [
            entry for entry in told.phases if entry.standing is not Standing.NOT_STARTED or _touches(entry)
        ]
        if original is not None:
            phases = [entry for entry in phases if entry.phase is not Phase.ROLLBACK]
            phases += self.phases
        return ReleaseRecord(
            operation_id=told.begun.operation_id,
            request_sha256=told.begun.request_sha256,
            authority=told.begun.authority,
            state=state,
            phases=tuple(entry.record() for entry in phases),
            comparison=None if told.decided is None else told.decided.comparison,
            blocker=blocker,
            recovery=None if original is None else self.begun.authority,
        )


def _touches(entry: Dispatched) -> bool:
    # The load's server is started before its process is: that it was dispatched has to be told.
    return entry.phase in {Phase.LOAD, Phase.ROLLBACK}


def blocker_text(text: str) -> str:
    """What stopped a release, as its record holds it: one line of 1..=256 bytes."""
    plain = "".join(char if char.isprintable() else " " for char in text).strip() or "unknown"
    return plain.encode("utf-8", "replace")[:MAX_BLOCKER_BYTES].decode("utf-8", "ignore").strip()


def read_begun(directory: Directory) -> Begun | None:
    """Under which ticket an operation began; None when it did not begin."""
    try:
        return Begun.parse(directory.read_file(BEGUN_FILE, max_bytes=MAX_BEGUN_BYTES))
    except AbsentError:
        return None


def read_end(directory: Directory) -> ReleaseRecord | None:
    """How an operation ended; None when it did not.

    Raises:
        DocumentError: the file is damaged.
    """
    try:
        data = directory.read_file(END_FILE, max_bytes=MAX_END_BYTES)
    except AbsentError:
        return None
    with reading(END_FILE):
        return ReleaseRecord.of_members(parse_object(data, what=END_FILE, max_bytes=MAX_END_BYTES))


def write_end(directory: Directory, record: ReleaseRecord) -> None:
    """Durably note how an operation ended."""
    directory.write_file(END_FILE, dumps(record.members()))


def read_story(
    directory: Directory,
    *,
    files: OperationFiles,
    begun: Begun,
    request: ReleaseRequest,
    journal: PhaseJournal,
) -> Story:
    """Put together what journal and files tell.

    Args:
        directory: the operation's, open.
        files: its places.
        begun: under which ticket it began.
        request: what was asked for.
        journal: of the root.

    Raises:
        DocumentError: an observation is not the one that the journal holds the digest of.
        PeftError: something cannot be read.
    """
    found = []
    for phase in Phase:
        record = journal.record(files, phase)
        standing = journal.standing(files, phase)
        if record is None or standing is None:
            continue
        observation = None
        if standing in {Standing.SUCCEEDED, Standing.FAILED}:
            observation = _observed(directory, phase, _digest(record))
        why = "" if record.result is None else record.result.message
        intent = {} if record.plan is None else record.plan.intent
        found.append(
            Dispatched(phase=phase, standing=standing, observation=observation, why=why, intent=intent)
        )
    return Story(begun=begun, request=request, phases=tuple(found), decided=_decided(directory))


def _digest(record: Record) -> str:
    assert record.result is not None  # it is settled
    return str(record.result.evidence.get("observation_sha256", ""))


def _observed(directory: Directory, phase: Phase, sha256: str) -> PhaseObservation:
    with directory.open_dir(phase.value) as job, job.open_dir("out") as out:
        data = out.read_file(f"{phase}.json", max_bytes=MAX_EVALUATE_BYTES)
    if digest(data) != sha256:
        raise DocumentError(
            f"the observation of {phase} is not the one that was journaled; look who changed it",
            rule="native-release-binding",
        )
    return parse_observation(data)


def _decided(directory: Directory) -> Decided | None:
    try:
        return Decided.parse(directory.read_file(COMPARISON_FILE, max_bytes=_MAX_COMPARISON_BYTES))
    except AbsentError:
        return None
