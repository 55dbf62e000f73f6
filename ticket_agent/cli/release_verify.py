"""`release verify`: a release's bundle against the public key of who signed it."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ticket_agent.cli.output import emit_json, fail, plain, stamp, styled
from ticket_agent.exits import Exit

if TYPE_CHECKING:
    from ticket_agent.peft.release.bundle_verify import BundleVerification, Verdict

__all__ = ["verify"]

_WORDS = {True: ("PASS", "green"), False: ("FAIL", "red"), None: ("SKIP", "yellow")}


@click.command()
@click.argument("bundle", type=click.Path(path_type=Path, dir_okay=False))
@click.option(
    "--public-key",
    type=click.Path(path_type=Path, dir_okay=False),
    required=True,
    help="Ed25519 key of who signed: PEM, or 32 raw bytes.",
)
@click.option("--json", "as_json", is_flag=True, help="One JSON line per check, then the release (NDJSON).")
def verify(*, bundle: Path, public_key: Path, as_json: bool) -> None:
    """Check a release's bundle, offline and on any machine.

    Each check is PASS or FAIL with the reason, or SKIP when an earlier one left nothing to look at.

    Checked are the signature and every digest, and that the release can have gone as it says: the phases in
    their order, the comparison computed again from the rows' losses, the outcome from what was observed.

    The exit code is 1 unless all pass. The bundle of a release that failed passes too: its outcome says so.
    """
    from ticket_agent.peft.errors import PeftError  # noqa: PLC0415 - start-up time
    from ticket_agent.peft.release.bundle_verify import BundleVerification  # noqa: PLC0415 - start-up time
    from ticket_agent.peft.release.keys import read_public_key  # noqa: PLC0415 - start-up time

    data = _content(bundle)
    try:
        verification = BundleVerification(data, read_public_key(public_key))
        verdicts = list(verification.verdicts())
    except PeftError as error:
        fail(str(error), Exit.FAILURE)
    for verdict in verdicts:
        _tell(verdict, as_json=as_json)
    bad = sum(verdict.ok is not True for verdict in verdicts)
    if bad == 0:
        _tell_release(verification, as_json=as_json)
    if not as_json:
        click.echo(f"{len(verdicts)} checks, {bad} not passed")
    sys.exit(int(Exit.FAILURE if bad else Exit.OK))


def _content(bundle: Path) -> bytes:
    from ticket_agent.peft.release.evidence_limits import MAX_BUNDLE_BYTES  # noqa: PLC0415 - start-up time

    try:
        with bundle.open("rb") as stream:
            # One byte more than can be right shows that it is too large; the rest is never read.
            return stream.read(MAX_BUNDLE_BYTES + 1)
    except OSError as error:
        fail(f"cannot read {bundle}: {error.strerror or error}", Exit.FAILURE)


def _tell(verdict: Verdict, *, as_json: bool) -> None:
    if as_json:
        emit_json("verdict", {"check": verdict.check, "ok": verdict.ok, "reason": verdict.reason})
        return
    word, colour = _WORDS[verdict.ok]
    reason = f": {plain(verdict.reason)}" if verdict.reason else ""
    click.echo(f"{styled(word, colour)}  {verdict.check}{reason}")


def _tell_release(verification: BundleVerification, *, as_json: bool) -> None:
    document = _document(verification)
    if as_json:
        emit_json("release", document)
        return
    lines = [
        ("operation", f"{document['operation_id']} ({document['entry']} of {document['model_id']})"),
        ("ended", f"{document['state']}, {document['observed']}"),
        ("stopped by", document["blocker"]),
        ("adapter", _adapter(document)),
        ("serving", document["served_artifact_sha256"] or "unknown: look at the host before anything else"),
        ("generation", document["generation"]),
        ("launcher", _launcher(document)),
    ]
    for name, value in lines:
        if value is not None:
            click.echo(f"{name:<10}  {plain(str(value))}")


def _adapter(document: dict[str, Any]) -> str | None:
    if document["adapter_sha256"] is None:
        return None
    return f"{document['adapter_sha256']}{'' if document['accepted'] else ' (not accepted)'}"


def _launcher(document: dict[str, Any]) -> str:
    launcher = document["launcher"]
    missing = f"; NOT: {', '.join(launcher['missing'])}" if launcher["missing"] else ""
    return f"{launcher['name']}: {', '.join(launcher['guarantees']) or 'no guarantees'}{missing}"


def _document(verification: BundleVerification) -> dict[str, Any]:
    from ticket_agent.peft.release.consistency import deployed_after, evaluations_of  # noqa: PLC0415

    request, evidence, claims = verification.request, verification.evidence, verification.claims
    if request is None or evidence is None or claims is None:
        raise TypeError("a bundle that passed has a request, evidence and claims")
    record, losses = evidence.record, verification.losses
    deployed, found = deployed_after(request, record), evaluations_of(record)
    return {
        "operation_id": request.operation_id,
        "model_id": request.model_id,
        "entry": request.entry.value,
        "request_sha256": record.request_sha256,
        "ticket_id": record.authority.ticket_id,
        "state": record.state.value,
        "blocker": record.blocker,
        "observed": stamp(evidence.observed_unix_ms),
        "adapter_sha256": None if found is None else found[1].artifact_sha256,
        "accepted": record.comparison is not None,
        "served_artifact_sha256": None if deployed is None else deployed.served_artifact_sha256,
        "generation": None if deployed is None else deployed.generation,
        "mean_difference": None if losses is None else losses.mean_difference,
        "standard_error": None if losses is None else losses.standard_error,
        "rows": None if losses is None else len(losses.rows),
        "launcher": claims.launcher.members(),
        "native_evidence_sha256": evidence.sha256,
        "signed_by": verification.key.keyid,
    }
