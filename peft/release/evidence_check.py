"""Whether what is left of an ended release on its host is in order. Reads only."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from ticket_agent.peft.errors import AbsentError, PeftError
from ticket_agent.peft.release.bundle_file import EVIDENCE, read_bundle
from ticket_agent.peft.release.bundle_verify import BundleVerification
from ticket_agent.peft.release.evidence import NativeEvidence
from ticket_agent.peft.release.evidence_errors import CryptographyMissingError, EvidenceError
from ticket_agent.peft.release.evidence_limits import MAX_BUNDLE_BYTES
from ticket_agent.peft.release.evidence_store import EvidenceStore
from ticket_agent.peft.release.keys import read_private_key
from ticket_agent.peft.release.layout import BUNDLE_FILE, OperationFiles
from ticket_agent.peft.roots import open_to_read

if TYPE_CHECKING:
    from ticket_agent.peft.release.release_config import ReleaseConfig
    from ticket_agent.peft.release.release_view import ReleaseView

__all__ = ["evidence_of", "evidence_problem"]


def evidence_of(view: ReleaseView) -> NativeEvidence | None:
    """The native evidence of a release; None when nothing was observed, or while it goes on.

    Raises:
        DocumentError: no evidence can be of this.
    """
    end = view.end
    if end is None or view.state is None or next(end.observations(), None) is None:
        return None
    begun = view.begun
    for attempt in view.attempts:
        if attempt.end is end:
            begun = attempt.begun
    if begun is None:
        return None
    return NativeEvidence(provider_graph_sha256=begun.provider_graph_sha256, record=end)


def evidence_problem(config: ReleaseConfig, view: ReleaseView) -> str | None:
    """What is wrong with what was kept of a release that has ended, in one line; None when nothing is.

    The native evidence must be there, and say what the release's own files say. A bundle must hold the same;
    its signature is verified where the signing key and the library are there to do it.
    """
    try:
        evidence = evidence_of(view)
        if evidence is None:
            return None
        with EvidenceStore.open(config.evidence, owner_uid=os.geteuid(), create=False) as store:
            store.load(evidence.sha256)
        return _bundle_problem(config, view, evidence)
    except PeftError as error:
        return str(error)


def _bundle_problem(config: ReleaseConfig, view: ReleaseView, evidence: NativeEvidence) -> str | None:
    recovery = next((attempt.ticket_id for attempt in view.attempts if attempt.end is view.end), None)
    files = OperationFiles(root=config.root, operation_id=view.operation_id, recovery=recovery)
    with open_to_read(files.path, label="operation") as directory:
        try:
            data = directory.read_file(BUNDLE_FILE, max_bytes=MAX_BUNDLE_BYTES)
        except AbsentError:
            return None
    if read_bundle(data).take(EVIDENCE) != evidence.encode():
        return f"{files.path / BUNDLE_FILE} is of another release, or of another end of this one"
    if config.signing_key is None:
        return None
    try:
        key = read_private_key(config.signing_key).public
        verdicts = list(BundleVerification(data, key).verdicts())
    except (CryptographyMissingError, EvidenceError):
        # Nobody here can tell; whoever has the public key can.
        return None
    wrong = next((verdict for verdict in verdicts if verdict.ok is not True), None)
    return None if wrong is None else f"{files.path / BUNDLE_FILE}: {wrong.check}: {wrong.reason}"
