"""What comes next in a release: the table, and laws over every walk that a release can take."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ticket_agent.peft.release.phase_machine import (
    AcceptedIs,
    Act,
    Allowed,
    Compared,
    Move,
    Situation,
    Standing,
    decide,
)
from ticket_agent.peft.release.phases import Phase, ReleaseState, forward_phases
from ticket_agent.peft.release.request import Entry

if TYPE_CHECKING:
    from collections.abc import Sequence

TOUCHING = (Phase.LOAD, Phase.CANARY, Phase.PROMOTE)
GOOD = Situation(entry=Entry.IMPORT, phases=(), allowed=Allowed.HELD, accepted=AcceptedIs.BASELINE)


def after(phase: Phase, standing: Standing, *, entry: Entry = Entry.TRAIN, **changes: Any) -> Situation:
    """All phases before ``phase`` succeeded, and it stands as given."""
    order = forward_phases(entry)
    done = [(each, Standing.SUCCEEDED) for each in order[: order.index(phase)]]
    compared = Compared.ACCEPTED if any(each is Phase.EVALUATE for each, _ in done) else Compared.NOT_YET
    return replace(GOOD, entry=entry, phases=(*done, (phase, standing)), **({"compared": compared} | changes))


@pytest.mark.parametrize("entry", list(Entry))
def test_a_release_that_goes_well_does_every_phase_once(entry: Entry) -> None:
    situation, begun = replace(GOOD, entry=entry), []
    while (move := decide(situation)).act is not Act.END:
        if move.act is Act.COMPARE:
            situation = replace(situation, compared=Compared.ACCEPTED)
            continue
        assert move.act is Act.BEGIN
        assert move.phase is not None
        begun.append(move.phase)
        if move.phase is Phase.PROMOTE:
            situation = replace(situation, accepted=AcceptedIs.SUCCESSOR)
        situation = replace(situation, phases=(*situation.phases, (move.phase, Standing.SUCCEEDED)))
    assert tuple(begun) == forward_phases(entry)
    assert move.state is ReleaseState.SUCCEEDED


@pytest.mark.parametrize("phase", forward_phases(Entry.TRAIN))
@pytest.mark.parametrize("standing", [Standing.FAILED, Standing.NOT_STARTED, Standing.LOST])
def test_a_phase_that_does_not_succeed(phase: Phase, standing: Standing) -> None:
    move = decide(after(phase, standing))
    if phase in TOUCHING:
        assert (move.act, move.phase) == (Act.BEGIN, Phase.ROLLBACK)
    elif standing is Standing.LOST:
        assert move == Move(act=Act.END, state=ReleaseState.AMBIGUOUS, why=move.why)
    else:
        assert move == Move(act=Act.END, state=ReleaseState.FAILED, why=move.why)
    assert str(phase) in move.why


@pytest.mark.parametrize("phase", forward_phases(Entry.TRAIN))
def test_a_phase_that_runs_is_awaited_and_stopped_when_it_is_not_allowed_any_more(phase: Phase) -> None:
    assert decide(after(phase, Standing.OPEN)) == Move(act=Act.AWAIT, phase=phase)
    assert decide(after(phase, Standing.OPEN, allowed=Allowed.UNPROVEN)).act is Act.AWAIT
    assert decide(after(phase, Standing.OPEN, allowed=Allowed.LOST)) == Move(act=Act.STOP, phase=phase)


@pytest.mark.parametrize("phase", forward_phases(Entry.TRAIN)[:-1])
def test_authority_is_asked_for_before_each_phase(phase: Phase) -> None:
    situation = after(phase, Standing.SUCCEEDED)
    if phase is Phase.EVALUATE:
        situation = replace(situation, compared=Compared.ACCEPTED)
    assert decide(replace(situation, allowed=Allowed.UNPROVEN)).act is Act.WAIT
    move = decide(replace(situation, allowed=Allowed.LOST))
    wanted = ReleaseState.ROLLBACK_FAILED if phase in TOUCHING else ReleaseState.FAILED
    assert (move.act, move.state) == (Act.END, wanted)


def test_authority_that_is_lost_before_anything_fails_the_release() -> None:
    move = decide(replace(GOOD, allowed=Allowed.LOST))
    assert (move.act, move.state) == (Act.END, ReleaseState.FAILED)
    assert decide(replace(GOOD, allowed=Allowed.UNPROVEN)).act is Act.WAIT


@pytest.mark.parametrize(
    ("before", "wanted"),
    [
        (Phase.TRAIN, ReleaseState.FAILED),  # evaluate
        (Phase.STAGE, ReleaseState.FAILED),  # load
    ],
)
@pytest.mark.parametrize("accepted", [AcceptedIs.OTHER, AcceptedIs.SUCCESSOR])
def test_another_deployment_stops_what_starts_from_the_baseline(
    before: Phase, wanted: ReleaseState, accepted: AcceptedIs
) -> None:
    move = decide(after(before, Standing.SUCCEEDED, accepted=accepted))
    assert (move.act, move.state) == (Act.END, wanted)
    assert "baseline-generation" in move.why


def test_another_deployment_before_the_promotion_is_not_overwritten() -> None:
    move = decide(after(Phase.CANARY, Standing.SUCCEEDED, accepted=AcceptedIs.OTHER))
    assert (move.act, move.state) == (Act.END, ReleaseState.ROLLBACK_FAILED)
    # Nothing of this release can have written the successor before it dispatched the promotion.
    move = decide(after(Phase.CANARY, Standing.SUCCEEDED, accepted=AcceptedIs.SUCCESSOR))
    assert (move.act, move.state) == (Act.END, ReleaseState.ROLLBACK_FAILED)


@pytest.mark.parametrize("phase", [Phase.TRAIN, Phase.STAGE, Phase.CANARY, Phase.PROMOTE])
@pytest.mark.parametrize("standing", [Standing.SUCCEEDED, Standing.LOST])
def test_a_deployment_that_cannot_be_read_decides_nothing(phase: Phase, standing: Standing) -> None:
    move = decide(after(phase, standing, accepted=AcceptedIs.UNREADABLE))
    if standing is Standing.LOST and phase not in TOUCHING:
        assert move.state is ReleaseState.AMBIGUOUS  # needs no deployment to be said
    else:
        assert move.act is Act.WAIT


@pytest.mark.parametrize("accepted", list(AcceptedIs))
def test_a_promotion_counts_when_its_successor_is_deployed(accepted: AcceptedIs) -> None:
    move = decide(after(Phase.PROMOTE, Standing.SUCCEEDED, accepted=accepted))
    match accepted:
        case AcceptedIs.SUCCESSOR:
            assert (move.act, move.state) == (Act.END, ReleaseState.SUCCEEDED)
        case AcceptedIs.BASELINE:
            assert (move.act, move.phase) == (Act.BEGIN, Phase.ROLLBACK)
        case AcceptedIs.OTHER:
            assert move.state is ReleaseState.ROLLBACK_FAILED
        case AcceptedIs.UNREADABLE:
            assert move.act is Act.WAIT


@pytest.mark.parametrize("standing", [Standing.FAILED, Standing.NOT_STARTED, Standing.LOST])
def test_a_rollback_that_does_not_succeed_is_not_begun_again(standing: Standing) -> None:
    situation = after(Phase.CANARY, Standing.FAILED)
    move = decide(replace(situation, phases=(*situation.phases, (Phase.ROLLBACK, standing))))
    assert (move.act, move.state) == (Act.END, ReleaseState.ROLLBACK_FAILED)


def test_a_rollback_is_believed_when_the_baseline_is_deployed() -> None:
    situation = after(Phase.CANARY, Standing.FAILED)
    situation = replace(situation, phases=(*situation.phases, (Phase.ROLLBACK, Standing.SUCCEEDED)))
    assert decide(situation).state is ReleaseState.RECOVERED_FAILURE
    assert decide(replace(situation, accepted=AcceptedIs.OTHER)).state is ReleaseState.ROLLBACK_FAILED
    assert decide(replace(situation, accepted=AcceptedIs.UNREADABLE)).act is Act.WAIT


def test_the_decision_about_the_candidate() -> None:
    evaluated = after(Phase.EVALUATE, Standing.SUCCEEDED)
    assert decide(evaluated).act is Act.COMPARE
    refused = decide(replace(evaluated, compared=Compared.REFUSED))
    assert (refused.act, refused.state) == (Act.END, ReleaseState.FAILED)
    outdated = decide(after(Phase.CANARY, Standing.SUCCEEDED, compared=Compared.OUTDATED))
    assert (outdated.act, outdated.phase) == (Act.BEGIN, Phase.ROLLBACK)


RECOVERY = replace(GOOD, entry=None)


@pytest.mark.parametrize(
    ("situation", "wanted"),
    [
        (RECOVERY, (Act.BEGIN, Phase.ROLLBACK)),
        (replace(RECOVERY, accepted=AcceptedIs.SUCCESSOR, promoted=True), (Act.BEGIN, Phase.ROLLBACK)),
        (replace(RECOVERY, accepted=AcceptedIs.SUCCESSOR), (Act.END, ReleaseState.ROLLBACK_FAILED)),
        (
            replace(RECOVERY, accepted=AcceptedIs.OTHER, promoted=True),
            (Act.END, ReleaseState.ROLLBACK_FAILED),
        ),
        (replace(RECOVERY, allowed=Allowed.LOST), (Act.END, ReleaseState.ROLLBACK_FAILED)),
        (replace(RECOVERY, allowed=Allowed.UNPROVEN), (Act.WAIT, None)),
        (replace(RECOVERY, accepted=AcceptedIs.UNREADABLE), (Act.WAIT, None)),
    ],
)
def test_a_recovery_has_one_phase(situation: Situation, wanted: tuple[Act, object]) -> None:
    move = decide(situation)
    assert (move.act, move.phase or move.state) == wanted


# -- laws over whole walks ----------------------------------------------------------------------------------

ENDS = {Standing.SUCCEEDED, Standing.FAILED, Standing.NOT_STARTED, Standing.LOST}
draws = st.lists(
    st.tuples(
        st.sampled_from(list(Allowed)),
        st.sampled_from(list(AcceptedIs)),
        st.sampled_from([*ENDS, Standing.OPEN]),
        st.sampled_from([Compared.ACCEPTED, Compared.ACCEPTED, Compared.REFUSED, Compared.OUTDATED]),
    ),
    max_size=40,
)


def walk(entry: Entry | None, steps: Sequence[tuple[Allowed, AcceptedIs, Standing, Compared]]) -> list[Move]:
    """Let the world do as drawn, and the machine as it decides."""
    situation, moves = replace(GOOD, entry=entry), []
    for allowed, accepted, standing, compared in steps:
        situation = replace(situation, allowed=allowed, accepted=accepted)
        move = decide(situation)
        moves.append(move)
        if move.act is Act.END:
            break
        phases = situation.phases
        if move.act is Act.COMPARE:
            decided = Compared.REFUSED if compared is Compared.REFUSED else Compared.ACCEPTED
            situation = replace(situation, compared=decided)
        elif move.act is Act.BEGIN:
            assert move.phase is not None
            situation = replace(situation, phases=(*phases, (move.phase, Standing.OPEN)))
        elif move.act in {Act.AWAIT, Act.STOP}:
            ended = standing if standing in ENDS or move.act is Act.AWAIT else Standing.LOST
            situation = replace(situation, phases=(*phases[:-1], (phases[-1][0], ended)))
    return moves


@settings(max_examples=1500)
@given(entry=st.sampled_from([*Entry, None]), steps=draws)
def test_no_walk_breaks_the_rules(
    entry: Entry | None, steps: list[tuple[Allowed, AcceptedIs, Standing, Compared]]
) -> None:
    moves = walk(entry, steps)
    begun = [move.phase for move in moves if move.act is Act.BEGIN]
    assert len(set(begun)) == len(begun), "a phase is dispatched at most once"
    forward = [phase for phase in begun if phase is not Phase.ROLLBACK]
    order = () if entry is None else forward_phases(entry)
    assert tuple(forward) == order[: len(forward)], "phases come in their order"
    for move, (allowed, accepted, _, _) in zip(moves, steps, strict=False):
        if move.act is Act.BEGIN:
            assert allowed is Allowed.HELD, "nothing begins without authority"
            assert accepted is not AcceptedIs.OTHER or move.phase in {
                Phase.VALIDATE,
                Phase.TRAIN,
                Phase.SCAN,
                Phase.STAGE,
                Phase.CANARY,
            }, "what somebody else has deployed is neither replaced nor rolled back"
    end = moves[-1] if moves and moves[-1].act is Act.END else None
    if end is not None and end.state is ReleaseState.SUCCEEDED:
        assert tuple(begun) == order
    if end is not None and end.state in {ReleaseState.FAILED, ReleaseState.AMBIGUOUS}:
        assert not set(begun) & {*TOUCHING, Phase.ROLLBACK}, "what is served was not touched"
