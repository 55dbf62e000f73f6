"""A release as one page that needs nothing else and holds no script. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from ticket_agent.journal.report_lanes import HEAD, ROW, safe
from ticket_agent.journal.report_style import style_sheet
from ticket_agent.journal.text import span, stamp
from ticket_agent.peft.release.phases import Phase, ReleaseState
from ticket_agent.peft.release.release_plots import (
    PLOT_STYLE,
    latency_plot,
    loss_plot,
    paired_plot,
    phases_plot,
)
from ticket_agent.peft.release.release_view import Stage, Standing
from ticket_agent.peft.release.told import canary_rounds

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from ticket_agent.peft.release.paired import PairedLosses
    from ticket_agent.peft.release.release_explain import Explained
    from ticket_agent.peft.release.release_view import DeploymentView, PhaseView, ReleaseView
    from ticket_agent.peft.release.told import CanaryRound

__all__ = ["ReportFacts", "render_release"]

_TAGS: Final = {
    Standing.SUCCEEDED: "confirmed",
    Standing.FAILED: "rejected",
    Standing.LOST: "uncertain",
    Standing.UNKNOWN: "uncertain",
    Standing.RUNNING: "stale",
    Standing.NOT_STARTED: "quiet",
}
_ENOUGH: Final = 2.0
"""Standard errors from which on a difference is more than chance would easily give."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportFacts:
    """What the page is made of.

    Attributes:
        view: the release.
        deployment: what is deployed now.
        explained: why it stands as it does.
        losses: of the held-out rows, or None.
        evidence_sha256: the native evidence, or None.
        source: the release root.
        program: which program made the page.
        made_unix_ms: when it looked.
    """

    view: ReleaseView
    deployment: DeploymentView
    explained: Explained
    losses: PairedLosses | None
    evidence_sha256: str | None
    source: str
    program: str
    made_unix_ms: int


def render_release(facts: ReportFacts) -> str:
    """Return the page as HTML; the same facts give the same page."""
    view = facts.view
    body = [
        _header(facts),
        _tiles(facts),
        *_verdict(facts),
        "<h2>Phases</h2>",
        phases_plot(view.phases, facts.made_unix_ms),
        _phases_table(view.phases, facts.made_unix_ms),
        *_training(view),
        *_evaluation(facts.losses),
        *_canary(view),
        *_confinement(view),
        *_identity(facts),
    ]
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">\n'
        '<meta http-equiv="Content-Security-Policy" content="default-src \'none\'; '
        "style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'\">\n"
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="referrer" content="no-referrer">\n'
        f"<title>Release {safe(view.operation_id)}</title>\n"
        f"<style>\n{style_sheet(head=HEAD, row=ROW)}{PLOT_STYLE}</style></head>\n<body>\n"
        + "\n".join(part for part in body if part)
        + "\n</body></html>\n"
    )


def _header(facts: ReportFacts) -> str:
    view = facts.view
    what = "" if view.request is None else f", {view.request.entry.value} of {view.request.model_id}"
    return (
        f"<header><h1>Release {safe(view.operation_id)}{safe(what)}</h1>"
        f'<p class="quiet"><code>{safe(facts.source)}</code>, read {safe(stamp(facts.made_unix_ms))} '
        f"by {safe(facts.program)}. All times are UTC.</p></header>"
    )


def _tiles(facts: ReportFacts) -> str:
    view, losses = facts.view, facts.losses
    state = view.stage.value if view.stage is not Stage.ENDED or view.state is None else view.state.value
    bad = view.state in (ReleaseState.FAILED, ReleaseState.RECOVERED_FAILURE, ReleaseState.ROLLBACK_FAILED)
    unsure = view.stage is Stage.AMBIGUOUS or view.state is ReleaseState.ROLLBACK_FAILED
    done = sum(phase.standing is Standing.SUCCEEDED for phase in view.phases)
    tiles = [
        ("unsure" if unsure else "bad" if bad else "", state.replace("_", " "), "release"),
        ("", f"{done} of {len(view.phases)}", "phases succeeded"),
    ]
    if losses is not None:
        error = losses.standard_error
        spread = "" if error is None else f" ± {error:.4f}"
        tiles.append(("", f"{losses.mean_difference:+.4f}{spread}", "loss against the baseline"))
    if facts.deployment.accepted is not None:
        tiles.append(("", str(facts.deployment.accepted.generation), "generation deployed now"))
    return (
        '<ul class="tiles">'
        + "".join(f'<li class="{kind}"><b>{safe(value)}</b> {name}</li>' for kind, value, name in tiles)
        + "</ul>"
    )


def _verdict(facts: ReportFacts) -> Iterator[str]:
    told = facts.explained
    yield f"<p>{safe(told.stands)}</p>"
    if told.where is not None:
        rule = "" if told.rule is None else f" <code>{safe(told.rule)}</code>"
        what = "" if told.what is None else f": {safe(told.what)}"
        yield f'<p class="alert" role="alert"><b>{safe(told.where)}</b>{rule}{what}</p>'
    for line in (told.meaning, told.remedy):
        if line is not None:
            yield f"<p>{safe(line)}</p>"
    for problem in (*facts.view.problems, *facts.deployment.problems):
        yield f'<p class="alert" role="alert">{safe(problem)}</p>'


def _phases_table(phases: Sequence[PhaseView], now_ms: int) -> str:
    rows = []
    for view in phases:
        start = "-" if view.started_unix_ms is None else stamp(view.started_unix_ms)
        took = "-"
        if view.started_unix_ms is not None:
            end = now_ms if view.standing is Standing.RUNNING else view.ended_unix_ms
            took = "-" if end is None else span(max(0, end - view.started_unix_ms))
        tag = f'<span class="tag t-{_TAGS[view.standing]}">{view.standing.value}</span>'
        rows.append([view.phase.value, tag, start, took, safe(view.reason or "")])
    return _table(["phase", "standing", "started", "took", "why"], rows)


def _training(view: ReleaseView) -> Iterator[str]:
    losses = view.losses
    if losses is None or not losses.losses:
        return
    yield "<h2>Training</h2>"
    yield loss_plot(losses)
    rows = [[str(step), f"{loss:.6f}"] for step, loss in zip(losses.steps, losses.losses, strict=True)]
    yield _details("Losses by step", _table(["step", "loss"], rows))


def _evaluation(losses: PairedLosses | None) -> Iterator[str]:
    if losses is None:
        return
    yield "<h2>Evaluation</h2>"
    yield paired_plot(losses)
    better = sum(value < 0 for value in losses.differences)
    error = losses.standard_error
    sure = "" if error is None else f", standard error {error:.6f}"
    yield (
        f"<p>The candidate is better on {better} of {len(losses.rows)} rows. Mean difference "
        f"{losses.mean_difference:+.6f}{sure}.</p>"
    )
    if error is not None and abs(losses.mean_difference) < _ENOUGH * error:
        yield "<p>That is less than two standard errors: other rows could show the opposite.</p>"
    rows = [
        [str(index + 1), f"{before:.6f}", f"{after:.6f}", f"{after - before:+.6f}"]
        for index, (before, after) in enumerate(zip(losses.baseline, losses.candidate, strict=True))
    ]
    yield _details("Losses by row", _table(["row", "baseline", "candidate", "difference"], rows))


def _canary(view: ReleaseView) -> Iterator[str]:
    rounds: list[tuple[str, CanaryRound]] = [
        (phase.phase.value, told)
        for phase in view.phases
        if phase.observation is not None and phase.phase in (Phase.CANARY, Phase.PROMOTE, Phase.ROLLBACK)
        for told in canary_rounds(phase.observation.detail)
        if told.latency_ms
    ]
    if not rounds:
        return
    limit = None if view.profile is None else view.profile.canary.maximum_latency_ms
    yield "<h2>Canary</h2>"
    yield latency_plot(rounds, limit)
    rows = [
        [phase, safe(told.condition), ", ".join(map(str, told.latency_ms)), str(told.failures)]
        for phase, told in rounds
    ]
    yield _table(["phase", "condition", "latencies, ms", "failed requests"], rows)


def _confinement(view: ReleaseView) -> Iterator[str]:
    if view.begun is None:
        return
    launcher = view.begun.launcher
    yield f"<h2>Confinement: {safe(launcher.name)}</h2>"
    rows = [["held", safe(text)] for text in launcher.guarantees]
    rows += [["<b>not held</b>", safe(text)] for text in launcher.missing]
    yield _table(["", "guarantee"], rows)


def _identity(facts: ReportFacts) -> Iterator[str]:
    view = facts.view
    rows = []
    if view.begun is not None:
        rows += [["request", view.begun.request_sha256], ["ticket", safe(view.begun.authority.ticket_id)]]
    if view.request is not None:
        rows += [["profile", view.request.profile_sha256], ["input", view.request.input_sha256]]
    if view.end is not None and view.end.comparison is not None:
        rows.append(["adapter", view.end.comparison.candidate_sha256])
    if facts.evidence_sha256 is not None:
        rows.append(["native evidence", facts.evidence_sha256])
    if rows:
        yield "<h2>Identity</h2>"
        yield _table(["", ""], [[name, f"<code>{value}</code>"] for name, value in rows])


def _table(headers: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table; cells are HTML already."""
    head = "".join(f"<th>{header}</th>" for header in headers)
    body = "".join("<tr>" + "".join(f"<td>{cell}</td>" for cell in row) + "</tr>" for row in rows)
    return f'<div class="table"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


def _details(summary: str, content: str) -> str:
    return f"<details><summary>{summary}</summary>{content}</details>"
