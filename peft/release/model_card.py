"""The model card of a release: what came of it, on one page of Markdown. Pure."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from ticket_agent.journal.text import plain, stamp
from ticket_agent.peft.release.consistency import deployed_after
from ticket_agent.peft.release.evidence_errors import EvidenceError
from ticket_agent.peft.release.layout import BUNDLE_FILE
from ticket_agent.peft.release.phases import Phase, ReleaseState
from ticket_agent.peft.release.told import canary_rounds, detail_of, eval_losses, training_losses

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ticket_agent.peft.release.bundle import BundleManifest
    from ticket_agent.peft.release.inputs import ReleaseInput
    from ticket_agent.peft.release.layout import Begun
    from ticket_agent.peft.release.paired import PairedLosses
    from ticket_agent.peft.release.profile import Profile
    from ticket_agent.peft.release.release_record import ReleaseRecord
    from ticket_agent.peft.release.request import ReleaseRequest

__all__ = ["MAX_CARD_BYTES", "CardFacts", "render_card"]

MAX_CARD_BYTES: Final = 256 * 1024

_ENDS: Final = {
    ReleaseState.SUCCEEDED: "The candidate was promoted and is served.",
    ReleaseState.FAILED: "The candidate was never served. What was deployed before still is.",
    ReleaseState.RECOVERED_FAILURE: "What was deployed before is deployed again.",
    ReleaseState.ROLLBACK_FAILED: "The rollback failed. **What is served now is not known.**",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class CardFacts:
    """What the card tells; None for what there is not, or not any more.

    Attributes:
        record: how the release ended.
        begun: what was settled when it began.
        request: what was asked for.
        profile: under which profile.
        input: what was trained or imported.
        base: the base model.
        losses: of the held-out rows, side by side.
        evidence_sha256: the native evidence.
        signed: there is a signed bundle.
        problem: why there is none although there should be.
    """

    record: ReleaseRecord
    begun: Begun
    request: ReleaseRequest | None
    profile: Profile | None
    input: ReleaseInput | None
    base: BundleManifest | None
    losses: PairedLosses | None
    evidence_sha256: str | None
    signed: bool
    problem: str | None


def render_card(facts: CardFacts) -> str:
    """Return the card; the same facts give the same text, of at most ``MAX_CARD_BYTES``."""
    request, record = facts.request, facts.record
    title = record.operation_id if request is None else request.model_id
    lines = [
        f"# {_text(title)}",
        "",
        f"Release `{record.operation_id}` ended **{record.state.value}**. {_ENDS[record.state]}",
    ]
    if record.blocker is not None:
        lines += ["", f"Stopped by: {_text(record.blocker)}"]
    for heading, part in (
        ("Model", _model(facts)),
        ("Data and licences", _data(facts)),
        ("Training", _training(facts)),
        ("Evaluation", _evaluation(facts)),
        ("Canary", _canary(facts)),
        ("How the phases were confined", _confinement(facts)),
        ("Outcome", _outcome(facts)),
        ("How to verify", _verify(facts)),
    ):
        found = list(part)
        if found:
            lines += ["", f"## {heading}", "", *found]
    return "\n".join(lines) + "\n"


def _model(facts: CardFacts) -> Iterator[str]:
    record, request = facts.record, facts.request
    if facts.base is not None:
        yield f"- Base model: {_text(facts.base.source)}, revision {_text(facts.base.revision)}"
    if facts.profile is not None:
        yield f"- Base bundle: `{facts.profile.base}`"
        yield f"- Tokenizer: `{facts.profile.tokenizer_sha256}`"
    yield f"- Adapter: {_adapter(record)}"
    bundle = detail_of(record, Phase.STAGE).get("serving_bundle_sha256")
    if isinstance(bundle, str):
        yield f"- Adapter bundle: `{_text(bundle)}`"
    if request is not None:
        yield f"- Entry: {request.entry.value}"
        yield f"- Profile: `{request.profile_sha256}`"
    yield f"- Request: `{record.request_sha256}`"


def _adapter(record: ReleaseRecord) -> str:
    if record.comparison is not None:
        return f"`{record.comparison.candidate_sha256}`"
    seen = detail_of(record, Phase.EVALUATE).get("candidate")
    found = seen.get("artifact_sha256") if isinstance(seen, dict) else None
    return f"`{_text(found)}` (not accepted)" if isinstance(found, str) else "none was evaluated"


def _data(facts: CardFacts) -> Iterator[str]:
    value, profile = facts.input, facts.profile
    if profile is not None:
        trained_elsewhere = value is not None and value.adapter is not None and value.adapter.training is None
        if trained_elsewhere:
            yield "- Training data: unknown, the adapter was imported"
        else:
            yield f"- Training data: `{profile.train_data}`"
        yield f"- Evaluation data: `{profile.eval_data}`"
    if value is not None:
        yield f"- Sources: `{value.source_sha256}`"
        yield f"- Licences: {', '.join(map(_text, value.license_refs))}"
    if facts.base is not None:
        yield f"- Licence of the base model: {_text(facts.base.license_ref)}"


def _training(facts: CardFacts) -> Iterator[str]:
    if facts.request is None or facts.profile is None or facts.record.record_of(Phase.TRAIN) is None:
        return
    settings = facts.profile.settings
    for name in ("max_steps", "learning_rate", "rank", "max_length", "batch_size", "seed"):
        yield f"- {name}: {getattr(settings, name)}"
    losses = training_losses(detail_of(facts.record, Phase.TRAIN))
    if losses:
        (first, start), (last, end) = losses[0], losses[-1]
        yield f"- Loss: {start:.6f} at step {first}, {end:.6f} at step {last}"
    if facts.input is not None and facts.input.checkpoint is not None:
        yield f"- Went on from checkpoint `{facts.input.checkpoint}`"


def _evaluation(facts: CardFacts) -> Iterator[str]:
    losses = facts.losses
    if losses is None:
        told = eval_losses(detail_of(facts.record, Phase.EVALUATE))
        for who, value in zip(("Baseline", "Candidate"), told, strict=True):
            if value is not None:
                yield f"- {who}: {value:.6f}"
        return
    yield f"Losses of {len(losses.rows)} held-out rows, in nats per token."
    yield ""
    yield "| | mean | standard error |"
    yield "|---|---:|---:|"
    for name, values in (
        ("baseline", losses.baseline),
        ("candidate", losses.candidate),
        ("difference, row by row", losses.differences),
    ):
        yield f"| {name} | {math.fsum(values) / len(values):.6f} | {_error(values)} |"
    better = sum(value < 0 for value in losses.differences)
    yield ""
    yield f"The candidate is better on {better} of {len(losses.rows)} rows."


def _error(values: tuple[float, ...]) -> str:
    count = len(values)
    if count == 1:
        return "-"
    mean = math.fsum(values) / count
    spread = math.fsum((value - mean) ** 2 for value in values) / (count - 1)
    return f"{math.sqrt(spread / count):.6f}"


def _canary(facts: CardFacts) -> Iterator[str]:
    rows = [
        f"| {phase.value} | {_text(told.condition)} |"
        f" {', '.join(map(str, told.latency_ms))} | {max(told.latency_ms)} | {told.failures} |"
        for phase in (Phase.CANARY, Phase.PROMOTE, Phase.ROLLBACK)
        for told in canary_rounds(detail_of(facts.record, phase))
        if told.latency_ms
    ]
    if not rows:
        return
    if facts.profile is not None:
        yield f"At most {facts.profile.canary.maximum_latency_ms} ms are allowed for an answer."
        yield ""
    yield "| phase | condition | latencies, ms | longest | failed requests |"
    yield "|---|---|---|---:|---:|"
    yield from rows


def _confinement(facts: CardFacts) -> Iterator[str]:
    launcher = facts.begun.launcher
    yield f"Launcher: {_text(launcher.name)}"
    yield ""
    yield from (f"- held: {_text(guarantee)}" for guarantee in launcher.guarantees)
    yield from (f"- **not held**: {_text(guarantee)}" for guarantee in launcher.missing)


def _outcome(facts: CardFacts) -> Iterator[str]:
    record = facts.record
    for entry in record.phases:
        told = entry.result
        if told is None:
            yield f"- {entry.phase.value}: nobody saw how it ended"
        else:
            word = "succeeded" if told.succeeded else "failed"
            yield f"- {entry.phase.value}: {word}, {stamp(told.completed_unix_ms)}"
    yield f"- Ticket: {_text(record.authority.ticket_id)}, writer epoch {record.authority.writer_epoch}"
    if record.recovery is not None:
        yield f"- Recovered under ticket {_text(record.recovery.ticket_id)}"
    if facts.request is not None:
        try:
            deployed = deployed_after(facts.request, record)
        except EvidenceError:
            deployed = None
        if deployed is None:
            yield "- Deployed: unknown"
        else:
            yield f"- Deployed: generation {deployed.generation}, `{deployed.served_artifact_sha256}`"


def _verify(facts: CardFacts) -> Iterator[str]:
    if facts.evidence_sha256 is not None:
        yield f"Native evidence: `{facts.evidence_sha256}`"
    else:
        yield "Nothing was observed, so there is no evidence."
    yield ""
    if facts.signed:
        yield f"    ticket-agent release verify {BUNDLE_FILE} --public-key KEY"
    elif facts.problem is not None:
        yield f"Nothing was signed: {_text(facts.problem)}"
    else:
        yield "Nothing was signed."


def _text(text: str) -> str:
    """Text of others as text of a page: no markup, one line."""
    return "".join(f"\\{char}" if char in r"\`*_[]<>#|" else char for char in plain(text))
