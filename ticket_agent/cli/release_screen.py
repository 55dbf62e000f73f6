"""A release as lines of a terminal. Pure: time, width and colours come from the caller."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ticket_agent.cli.output import plain, stamp, styled
from ticket_agent.exits import ReleaseExit
from ticket_agent.journal.text import span
from ticket_agent.peft.release.phases import Phase, ReleaseState
from ticket_agent.peft.release.release_view import Stage, Standing
from ticket_agent.peft.release.told import canary_rounds, eval_losses

if TYPE_CHECKING:
    from ticket_agent.peft.release.release_view import DeploymentView, PhaseView, ReleaseView

__all__ = ["changes", "deployed_line", "exit_of", "screen", "summary"]

_COLOURS: Final = {
    Standing.NOT_STARTED: None,
    Standing.RUNNING: "yellow",
    Standing.SUCCEEDED: "green",
    Standing.FAILED: "red",
    Standing.LOST: "magenta",
    Standing.UNKNOWN: "red",
}
_ENDS: Final = {
    ReleaseState.SUCCEEDED: ReleaseExit.SUCCEEDED,
    ReleaseState.RECOVERED_FAILURE: ReleaseExit.RECOVERED_FAILURE,
    ReleaseState.FAILED: ReleaseExit.FAILED,
    ReleaseState.ROLLBACK_FAILED: ReleaseExit.FAILED,
}
_STAGES: Final = {
    Stage.PENDING: ReleaseExit.PENDING,
    Stage.RUNNING: ReleaseExit.RUNNING,
    Stage.AMBIGUOUS: ReleaseExit.AMBIGUOUS,
}
_BAR: Final = 24
_MIN_WIDTH: Final = 40
_SPARKS: Final = "▁▂▃▄▅▆▇█"
_MOST_SPARKS: Final = 40


def exit_of(view: ReleaseView, evidence_problem: str | None) -> ReleaseExit:
    """The exit code that says how a release stands."""
    if view.stage is not Stage.ENDED or view.state is None:
        return _STAGES[view.stage]
    if evidence_problem is not None:
        return ReleaseExit.INVALID_EVIDENCE
    if view.state is ReleaseState.FAILED and view.end is not None and not view.end.phases:
        return ReleaseExit.REFUSED
    return _ENDS[view.state]


def summary(view: ReleaseView) -> str:
    """Which release it is and how it stands, in one line."""
    what = "" if view.request is None else f" ({view.request.entry.value} of {view.request.model_id})"
    state = view.stage.value if view.stage is not Stage.ENDED or view.state is None else view.state.value
    blocker = "" if view.end is None or view.end.blocker is None else f": {view.end.blocker}"
    return plain(f"release {view.operation_id}{what}  {state}{blocker}")


def deployed_line(deployment: DeploymentView) -> str:
    """What is deployed and who answers, in one line."""
    accepted, pointer = deployment.accepted, deployment.pointer
    if accepted is None:
        return "deployed  nothing that can be read"
    what = "the base model" if accepted.adapter_sha256 is None else f"adapter {accepted.adapter_sha256[:12]}"
    serving = "" if pointer is None else f", answering as {pointer.name} on 127.0.0.1:{pointer.port}"
    return plain(f"deployed  generation {accepted.generation}, {what}{serving}")


def screen(view: ReleaseView, deployment: DeploymentView, *, now_ms: int, width: int) -> list[str]:
    """Everything about a release as it stands now; no line is longer than ``width`` columns."""
    lines = [summary(view), deployed_line(deployment)]
    lines += [_phase_line(phase, now_ms) for phase in view.phases]
    if view.losses is not None and view.losses.losses:
        lines.append(_losses_line(view, bar=True))
    lines += [f"recovery  {plain(each.ticket_id)}  {each.rollback.standing.value}" for each in view.attempts]
    lines += [f"unreadable: {plain(problem)}" for problem in (*view.problems, *deployment.problems)]
    if view.log:
        lines += [f"-- output of {view.log_phase} --", *view.log]
    return [_cut(line, max(width, _MIN_WIDTH)) for line in lines]


def changes(before: ReleaseView | None, view: ReleaseView) -> list[str]:
    """What is new since an earlier look, one line each, for where nothing can be drawn over."""
    lines = [] if before is not None and summary(before) == summary(view) else [summary(view)]
    for phase in view.phases:
        old = None if before is None else before.phase(phase.phase)
        if phase.standing is Standing.NOT_STARTED or (old is not None and old.standing is phase.standing):
            continue
        lines.append(_change_line(phase))
    if view.losses is not None and view.losses.losses:
        known = None if before is None or before.losses is None else before.losses.steps
        if known != view.losses.steps:
            lines.append(_losses_line(view, bar=False))
    return lines


def _change_line(phase: PhaseView) -> str:
    time = phase.started_unix_ms if phase.standing is Standing.RUNNING else phase.ended_unix_ms
    when = "" if time is None else f"{stamp(time)}  "
    return f"{when}{phase.phase.value} {_word(phase)}{_facts(phase)}"


def _phase_line(phase: PhaseView, now_ms: int) -> str:
    took = ""
    if phase.started_unix_ms is not None:
        end = now_ms if phase.standing is Standing.RUNNING else phase.ended_unix_ms
        took = "" if end is None else span(max(0, end - phase.started_unix_ms))
    padding = " " * (11 - len(phase.standing.value))
    return f"{phase.phase.value:<9} {_word(phase)}{padding} {took:>8}{_facts(phase)}".rstrip()


def _word(phase: PhaseView) -> str:
    return styled(phase.standing.value, _COLOURS[phase.standing])


def _facts(phase: PhaseView) -> str:
    """What a phase found, or why it did not succeed."""
    if phase.reason is not None:
        rule = f"[{phase.rule}] " if phase.standing is Standing.FAILED and phase.rule is not None else ""
        return f"  {plain(rule + phase.reason)}"
    if phase.observation is None:
        return ""
    detail = phase.observation.detail
    if phase.phase is Phase.EVALUATE:
        baseline, candidate = eval_losses(detail)
        if baseline is not None and candidate is not None:
            return f"  loss {candidate:.6f}, baseline {baseline:.6f}"
    times = [time for told in canary_rounds(detail) for time in told.latency_ms]
    return f"  slowest answer {max(times)} ms" if times else ""


def _losses_line(view: ReleaseView, *, bar: bool) -> str:
    losses = view.losses
    if losses is None or not losses.losses:
        return ""
    step, most = losses.steps[-1], losses.max_steps
    if most is None and view.profile is not None:
        most = view.profile.settings.max_steps
    of = "" if most is None else f"/{most}"
    told = f"training  step {step}{of}, loss {losses.losses[-1]:.4f}"
    if not bar:
        return told
    if most:
        done = min(_BAR, _BAR * step // most)
        told += f"  [{'#' * done}{'-' * (_BAR - done)}] {min(100, 100 * step // most)} %"
    return f"{told}  {_sparks(losses.losses[-_MOST_SPARKS:])}"


def _sparks(losses: tuple[float, ...]) -> str:
    low, high = min(losses), max(losses)
    if high == low:
        return _SPARKS[0] * len(losses)
    return "".join(_SPARKS[round((loss - low) / (high - low) * (len(_SPARKS) - 1))] for loss in losses)


def _cut(line: str, width: int) -> str:
    """Cut by visible characters; colours are switched off again."""
    import click  # noqa: PLC0415 - start-up time

    bare = click.unstyle(line)
    if len(bare) <= width:
        return line
    # A cut line loses its colour: where the codes stand in it no longer matters.
    return bare[: width - 1] + "…"
