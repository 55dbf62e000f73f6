"""The bundle of a release: it verifies with the public key alone, and no byte and no lie goes unnoticed."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from key_files import OTHER_SEED, key
from release_scene import (
    CLAIM,
    DEPLOYED,
    POLICY,
    SCENES,
    WORSE,
    Scene,
    attestation,
    bundle_of,
    statement_of,
    successor,
)

from ticket_agent.journal.same_tar import read_files, write_files
from ticket_agent.peft.release.attestation import attest
from ticket_agent.peft.release.bundle_file import (
    ENVELOPE,
    EVIDENCE,
    MANIFEST,
    REPORTS,
    REQUEST,
    STATEMENT,
    TOP,
    attestation_name,
    build_bundle,
    manifest_of,
    observation_names,
)
from ticket_agent.peft.release.bundle_verify import BundleVerification, Verdict
from ticket_agent.peft.release.canonical import digest
from ticket_agent.peft.release.document_error import DocumentError
from ticket_agent.peft.release.dsse import IN_TOTO, sign
from ticket_agent.peft.release.evidence import NativeEvidence
from ticket_agent.peft.release.evidence_errors import AttestationError, BundleFileError, InconsistentError
from ticket_agent.peft.release.phases import Phase, ReleaseState
from ticket_agent.peft.release.spelled import spell
from ticket_agent.protocol.json_strict import dumps

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ticket_agent.peft.release.evaluation import RowLosses
    from ticket_agent.peft.release.release_record import ReleaseRecord

GOOD = bundle_of(Scene(), key())
MANY = 64
CHECKS = [
    "archive",
    "manifest",
    "signature",
    "statement",
    "request",
    "native evidence",
    "observations",
    "attestations",
    "evaluation reports",
    "order of phases",
    "comparison",
    "candidate",
    "outcome",
    "statement made again",
]


def verdicts(data: bytes, seed: bytes | None = None) -> list[Verdict]:
    public = key().public if seed is None else key(seed).public
    return list(BundleVerification(data, public).verdicts())


def failed(data: bytes) -> dict[str, str]:
    return {verdict.check: verdict.reason for verdict in verdicts(data) if verdict.ok is False}


def files_of(data: bytes) -> dict[str, bytes]:
    return read_files(data, TOP, max_files=MANY)


def sealed(files: dict[str, bytes], *, manifest: bool = True) -> bytes:
    """A bundle of these files, with a manifest that fits them."""
    if manifest:
        files = files | {MANIFEST: manifest_of(files)}
    return write_files(TOP, files)


def signed(files: dict[str, bytes], **predicate: Any) -> dict[str, bytes]:
    """The same with another statement, properly signed: what a lying signer can do."""
    document = json.loads(files[STATEMENT])
    document["predicate"] |= predicate
    envelope = sign(spell(document), payload_type=IN_TOTO, key=key())
    return files | {STATEMENT: envelope.payload, ENVELOPE: envelope.encode()}


def told(record: ReleaseRecord, reports: tuple[RowLosses, RowLosses] | None = None) -> bytes:
    """A bundle of a release that went as ``record`` says, signed by somebody who does not look."""
    evidence = NativeEvidence(provider_graph_sha256="77" * 32, record=record)
    files = {name: data for name, data in files_of(GOOD).items() if not name.startswith("observations/")}
    names = observation_names(record)
    files |= {names[entry.phase]: entry.encode() for entry in record.observations()}
    files |= {name: report.encode() for name, report in zip(REPORTS, reports or Scene().reports, strict=True)}
    files[EVIDENCE] = evidence.encode()
    return sealed(signed(files, native_evidence_sha256=evidence.sha256))


@pytest.mark.parametrize("scene", SCENES.values(), ids=SCENES)
def test_every_way_to_end_verifies(scene: Scene) -> None:
    found = verdicts(bundle_of(scene, key()))
    assert [verdict.check for verdict in found] == CHECKS
    assert [verdict for verdict in found if verdict.ok is not True] == []


def test_the_same_release_gives_the_same_bytes() -> None:
    assert bundle_of(Scene(), key()) == GOOD
    assert bundle_of(Scene(), key(OTHER_SEED)) != GOOD


SMALL = files_of(bundle_of(SCENES["bad input"], key()))


@pytest.mark.parametrize("name", SMALL)
def test_every_changed_byte_is_noticed_by_the_signature(name: str) -> None:
    data = SMALL[name]
    for index in range(len(data)):
        changed = bytearray(data)
        changed[index] ^= 1 << (index % 7)
        files = SMALL | {name: bytes(changed)}
        # Where it can, the manifest fits what is there: what notices is not the manifest.
        assert _refused(sealed(files, manifest=name != MANIFEST)), index


def test_changed_bytes_of_a_whole_release_are_noticed_by_the_manifest() -> None:
    files = files_of(GOOD)
    for name, data in files.items():
        for index in range(0, len(data), 29):
            changed = bytearray(data)
            changed[index] ^= 1 << (index % 7)
            assert _refused(write_files(TOP, files | {name: bytes(changed)})), (name, index)


def _refused(data: bytes) -> bool:
    return any(verdict.ok is False for verdict in BundleVerification(data, key().public).verdicts())


@pytest.mark.parametrize("name", [name for name in files_of(GOOD) if name != MANIFEST])
def test_a_manifest_that_fits_does_not_help(name: str) -> None:
    files = files_of(GOOD)
    for changed in (files[name][:-1], files[name] + b"\n", b"{}", b"x"):
        bad = failed(sealed(files | {name: changed}))
        assert bad
        assert "manifest" not in bad
    without = {other: data for other, data in files.items() if other != name}
    assert failed(sealed(without))


SKIPPED = {
    ENVELOPE: {*CHECKS} - {"archive", "manifest", "signature", "evaluation reports"},
    REQUEST: {"order of phases", "comparison", "outcome", "statement made again"},
    EVIDENCE: {*CHECKS[6:]} - {"attestations", "evaluation reports"},
    REPORTS[1]: {"comparison", "statement made again"},
}


@pytest.mark.parametrize(("name", "skipped"), SKIPPED.items())
def test_what_cannot_be_looked_at_any_more_is_said(name: str, skipped: set[str]) -> None:
    found = verdicts(sealed(files_of(GOOD) | {name: b"{}"}))
    assert {verdict.check for verdict in found if verdict.ok is None} == skipped
    assert [verdict.check for verdict in found] == CHECKS
    assert sum(verdict.ok is False for verdict in found) == 1


def test_a_file_too_many_is_noticed() -> None:
    bad = failed(sealed(files_of(GOOD) | {"observations/09-rollback.json": b"{}"}))
    assert list(bad) == ["statement made again"]
    assert "does not belong to this release" in bad["statement made again"]


@pytest.mark.parametrize("index", [0, 100, 511, 600, len(GOOD) - 1])
def test_a_changed_byte_of_the_archive_itself_is_noticed(index: int) -> None:
    changed = bytearray(GOOD)
    changed[index] ^= 1
    assert _refused(bytes(changed))


@pytest.mark.parametrize("size", [0, 1, 511, 512, 1024, len(GOOD) // 2, len(GOOD) - 1])
def test_a_cut_bundle_is_refused(size: int) -> None:
    first, *rest = verdicts(GOOD[:size])
    assert (first.check, first.ok) == ("archive", False)
    assert {verdict.ok for verdict in rest} == {None}


def test_a_large_file_is_not_a_bundle() -> None:
    assert "at most" in failed(GOOD + bytes(1 << 20))["archive"]


@given(st.binary(max_size=2000))
def test_any_bytes_are_judged_and_never_accepted(data: bytes) -> None:
    assert _refused(data)


def test_another_signer_is_named() -> None:
    bad = {verdict.check: verdict for verdict in verdicts(GOOD, OTHER_SEED) if verdict.ok is False}
    assert list(bad) == ["signature"]
    assert f"not by {key(OTHER_SEED).public.keyid}" in bad["signature"].reason


def test_the_documents_of_another_release_are_refused() -> None:
    files = files_of(GOOD)
    other = files_of(bundle_of(replace(Scene(), policy=replace(POLICY, minimum_samples=15)), key()))
    for name in (REQUEST, EVIDENCE):
        bad = failed(sealed(files | {name: other[name]}))
        check = {REQUEST: "request", EVIDENCE: "native evidence"}[name]
        assert "the statement names" in bad[check]


# -- a signer who lies ------------------------------------------------------------------------------------

RECORD = Scene().record


def without(phase: Phase) -> ReleaseRecord:
    return replace(RECORD, phases=tuple(entry for entry in RECORD.phases if entry.phase is not phase))


def changed(phase: Phase, **changes: Any) -> ReleaseRecord:
    phases = []
    for entry in RECORD.phases:
        result = entry.result
        if entry.phase is phase and result is not None:
            result = replace(result, **changes)
        phases.append(replace(entry, result=result))
    return replace(RECORD, phases=tuple(phases))


def swapped() -> ReleaseRecord:
    first, second, *rest = RECORD.phases
    return replace(RECORD, phases=(second, first, *rest))


def lost(phase: Phase) -> ReleaseRecord:
    phases = [replace(e, result=None) if e.phase is phase else e for e in RECORD.phases]
    return replace(RECORD, phases=tuple(phases))


def late() -> ReleaseRecord:
    """Canary and promotion a minute after the evaluation."""
    phases = []
    for entry in RECORD.phases:
        result = entry.result
        if entry.phase in (Phase.CANARY, Phase.PROMOTE) and result is not None:
            result = replace(result, completed_unix_ms=result.completed_unix_ms + POLICY.maximum_age_ms)
        phases.append(replace(entry, result=result))
    return replace(RECORD, phases=tuple(phases))


STOP = "stopped"
LIES: dict[str, tuple[ReleaseRecord, str, str]] = {
    "left out scan": (without(Phase.SCAN), "order of phases", "stage cannot come where scan must"),
    "left out validate": (without(Phase.VALIDATE), "order of phases", "evaluate cannot come where"),
    "left out promote": (without(Phase.PROMOTE), "outcome", "succeeded without each of"),
    "swapped phases": (swapped(), "order of phases", "evaluate cannot come where validate must"),
    "went on after a failure": (changed(Phase.SCAN, succeeded=False), "order of phases", "went on"),
    "went on after a loss": (lost(Phase.STAGE), "order of phases", "went on after stage"),
    "ended before it began": (
        changed(Phase.CANARY, completed_unix_ms=5),
        "order of phases",
        "canary ended before load",
    ),
    "scanned something else": (
        changed(Phase.SCAN, detail={"adapter_sha256": "ee" * 32}),
        "candidate",
        "scan found another adapter",
    ),
    "staged something else": (changed(Phase.STAGE, detail={}), "candidate", "stage found another"),
    "promoted something else": (
        changed(Phase.PROMOTE, detail={"accepted": successor(DEPLOYED, "ee" * 32).members()}),
        "outcome",
        "promote left something else deployed",
    ),
    "promoted an unhealthy one": (
        changed(Phase.PROMOTE, detail={"accepted": successor(DEPLOYED).members() | {"healthy": False}}),
        "outcome",
        "something else deployed",
    ),
    "promoted two generations": (
        changed(Phase.PROMOTE, detail={"accepted": successor(successor(DEPLOYED)).members()}),
        "outcome",
        "something else deployed",
    ),
    "another runtime": (
        changed(
            Phase.PROMOTE,
            detail={"accepted": replace(successor(DEPLOYED), runtime_sha256="ee" * 32).members()},
        ),
        "outcome",
        "something else deployed",
    ),
    "promote told nothing": (changed(Phase.PROMOTE, detail={}), "outcome", "accepted"),
    "success with a blocker": (replace(RECORD, blocker=STOP), "outcome", "something stops it"),
    "failure without a reason": (
        replace(Scene(fails=Phase.SCAN).record, state=ReleaseState.FAILED),
        "outcome",
        "something stops it",
    ),
    "failed, but served": (
        replace(RECORD, state=ReleaseState.FAILED, blocker=STOP),
        "outcome",
        "must be rolled back",
    ),
    "failed, but unknown": (
        replace(Scene(lost=Phase.STAGE).record, state=ReleaseState.FAILED, blocker=STOP),
        "outcome",
        "nobody knows how stage ended",
    ),
    "recovered without rollback": (
        replace(Scene(fails=Phase.CANARY).record, state=ReleaseState.RECOVERED_FAILURE, blocker=STOP),
        "outcome",
        "rollback was not observed",
    ),
    "recovered though rollback failed": (
        replace(
            Scene(fails=Phase.CANARY, rolled_back=False).record,
            state=ReleaseState.RECOVERED_FAILURE,
            blocker=STOP,
        ),
        "outcome",
        "rollback was not observed",
    ),
    "recovered to something else": (
        replace(
            Scene(
                fails=Phase.CANARY,
                rolled_back=True,
                details={Phase.ROLLBACK: {"accepted": successor(DEPLOYED).members()}},
            ).record,
            state=ReleaseState.RECOVERED_FAILURE,
            blocker=STOP,
        ),
        "outcome",
        "rollback left something else",
    ),
    "recovered what was never loaded": (
        replace(
            Scene(fails=Phase.STAGE, rolled_back=True).record,
            state=ReleaseState.RECOVERED_FAILURE,
            blocker=STOP,
        ),
        "outcome",
        "never to be served",
    ),
    "rollback of what was never loaded": (
        replace(Scene(fails=Phase.STAGE).record, state=ReleaseState.ROLLBACK_FAILED, blocker=STOP),
        "outcome",
        "never to be served",
    ),
    "no decision": (replace(RECORD, comparison=None), "comparison", "without a decision"),
    "decision about another adapter": (
        replace(RECORD, comparison=replace(Scene().comparison, candidate_sha256="ee" * 32)),
        "comparison",
        "not the one that follows",
    ),
    "decision by another policy": (
        replace(RECORD, comparison=replace(Scene().comparison, policy_sha256="ee" * 32)),
        "comparison",
        "not the one that follows",
    ),
    "no evaluations": (changed(Phase.EVALUATE, detail={}), "comparison", "both baseline and candidate"),
    "too old at promotion": (
        late(),
        "comparison",
        "it must be younger",
    ),
}


@pytest.mark.parametrize(("record", "check", "words"), LIES.values(), ids=LIES)
def test_a_signed_lie_about_how_it_went_is_found(record: ReleaseRecord, check: str, words: str) -> None:
    bad = failed(told(record))
    assert words in bad[check], bad
    assert not {"archive", "manifest", "signature", "statement", "request", "native evidence"} & bad.keys()


def evaluated(**changes: Any) -> ReleaseRecord:
    """The candidate's evaluation tells something else than its report."""
    baseline, candidate = Scene().evaluations
    detail = {"baseline": baseline.members(), "candidate": replace(candidate, **changes).members()}
    return changed(Phase.EVALUATE, detail=detail)


@pytest.mark.parametrize(("record", "words"), [(lie[0], lie[2]) for lie in LIES.values()], ids=LIES)
def test_who_looks_does_not_sign_it(record: ReleaseRecord, words: str) -> None:
    evidence = NativeEvidence(provider_graph_sha256="77" * 32, record=record)
    with pytest.raises((InconsistentError, DocumentError), match=re.escape(words)):
        statement_of(Scene(), evidence=evidence)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"metrics": {"eval_loss": 3.0}}, "eval_loss is told as 3.0, and the rows have 3.32"),
        ({"samples": 17}, "tells 17 rows, and its report 16"),
        ({"artifact_sha256": "ee" * 32}, "of another artifact"),
        ({"native_report_sha256": "ee" * 32}, "not the report that the evaluation names"),
    ],
)
def test_an_evaluation_that_its_rows_contradict_is_found(changes: dict[str, Any], words: str) -> None:
    assert words in failed(told(evaluated(**changes)))["comparison"]


def test_a_worse_candidate_cannot_have_been_accepted() -> None:
    worse = Scene(candidate_losses=WORSE, stops_before=Phase.SCAN)
    evaluate = {entry.phase: entry for entry in worse.phases}[Phase.EVALUATE]
    phases = [evaluate if entry.phase is Phase.EVALUATE else entry for entry in RECORD.phases]
    bad = failed(told(replace(RECORD, phases=tuple(phases)), reports=worse.reports))
    assert "the candidate was accepted, although eval_loss is" in bad["comparison"]


def test_other_rows_are_not_compared() -> None:
    baseline, candidate = Scene().reports
    shuffled = replace(candidate, rows=tuple(reversed(candidate.rows)))
    record = evaluated(native_report_sha256=shuffled.sha256)
    assert "same rows" in failed(told(record, reports=(baseline, shuffled)))["comparison"]


PREDICATE: dict[str, Any] = {
    "operation_id": "release-two",
    "model_id": "adapter-two",
    "entry": "train",
    "ticket": {"ticket_id": "x", "idempotency_key": "once", "writer_epoch": 7},
    "recovery_ticket": {"ticket_id": "x", "idempotency_key": "once", "writer_epoch": 7},
    "profile_sha256": "ee" * 32,
    "input_sha256": "ee" * 32,
    "phases": [],
    "metrics": None,
    "comparison": None,
    "baseline": successor(DEPLOYED).members(),
    "deployed": DEPLOYED.members(),
    "observed_unix_ms": 1,
    "outcome": {"state": "failed", "blocker": None},
}


@pytest.mark.parametrize(("name", "value"), PREDICATE.items())
def test_a_statement_that_says_something_else_than_its_documents_is_found(name: str, value: object) -> None:
    bad = failed(sealed(signed(files_of(GOOD), **{name: value})))
    assert list(bad) == ["statement made again"]


SIGNED_ALONE: dict[str, tuple[dict[str, Any], str]] = {
    "inputs": ({"inputs": replace(CLAIM, source_sha256="ee" * 32).members()}, "attestations"),
    "no inputs": ({"inputs": None}, "attestations"),
    "no attestations": ({"attestations": []}, "statement made again"),
    "another member": ({"extra": 1}, "statement"),
    "no launcher": ({"launcher": None}, "statement"),
    "a guarantee twice": (
        {"launcher": {"name": "x", "guarantees": ["a"], "missing": ["a"]}},
        "statement",
    ),
}


@pytest.mark.parametrize(("predicate", "check"), SIGNED_ALONE.values(), ids=SIGNED_ALONE)
def test_what_the_statement_tells_alone_is_held_to_its_rules(predicate: dict[str, Any], check: str) -> None:
    assert check in failed(sealed(signed(files_of(GOOD), **predicate)))


def test_inputs_must_be_those_of_the_evaluation() -> None:
    claim = replace(CLAIM, base_sha256="ee" * 32)
    made = attest(claim, key_id="local-reference-source", key=key())
    attested = {"key_id": made.key_id, "public_key": key().public.raw.hex(), "sha256": made.sha256}
    files = files_of(GOOD) | {attestation_name(0): made.encode()}
    bad = failed(sealed(signed(files, inputs=claim.members(), attestations=[attested])))
    assert "another base_sha256 than the inputs" in bad["statement made again"]


def test_a_subject_that_was_changed_is_found() -> None:
    files = files_of(GOOD)
    document = json.loads(files[STATEMENT])
    document["subject"][0]["digest"]["sha256"] = "ee" * 32
    envelope = sign(spell(document), payload_type=IN_TOTO, key=key())
    bad = failed(sealed(files | {STATEMENT: envelope.payload, ENVELOPE: envelope.encode()}))
    assert list(bad) == ["statement made again"]


def test_a_bundle_needs_the_attestations_that_its_statement_names() -> None:
    statement = statement_of(Scene())
    with pytest.raises(BundleFileError, match="names 1 attestations, and 0"):
        build_bundle(statement, (), key())
    with pytest.raises(AttestationError, match="not the one that the statement names"):
        build_bundle(statement, (attest(CLAIM, key_id="x", key=key()),), key())
    assert build_bundle(statement, (attestation(),), key()) == GOOD


def _places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The path of every value in a document of JSON."""
    if path:
        yield path
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for name, item in items:
        yield from _places(item, (*path, name))


STRANGE: tuple[object, ...] = (None, True, 7, -1.5, "x", [], {}, [[]], {"x": {}})


@pytest.mark.parametrize("strange", STRANGE, ids=repr)
def test_a_signer_can_write_anything_anywhere_and_is_refused(strange: object) -> None:
    document = json.loads(files_of(GOOD)[STATEMENT])
    # Guarantees are the signer's word; losses of single rows are all alike.
    skipped = ("launcher", "metrics")
    places = [path for path in _places(document) if not (len(path) > 2 and path[1] in skipped)]
    for path in places:
        changed = _with(document, path, strange)
        if changed == document:
            continue
        envelope = sign(spell(changed), payload_type=IN_TOTO, key=key())
        files = files_of(GOOD) | {STATEMENT: envelope.payload, ENVELOPE: envelope.encode()}
        assert _refused(sealed(files)), path


@pytest.mark.parametrize("strange", STRANGE, ids=repr)
def test_evidence_can_hold_anything_and_is_judged(strange: object) -> None:
    """Judged, not always refused: details of a phase that nobody looks at may be anything."""
    files = files_of(GOOD)
    document = json.loads(files[EVIDENCE])
    for path in _places(document):
        evidence = dumps(_with(document, path, strange))
        told = signed(files | {EVIDENCE: evidence}, native_evidence_sha256=digest(evidence))
        assert len(verdicts(sealed(told))) == len(CHECKS), path


def _with(document: Any, path: tuple[Any, ...], value: object) -> Any:
    changed = json.loads(dumps(document))
    inner = changed
    for name in path[:-1]:
        inner = inner[name]
    inner[path[-1]] = value
    return changed
