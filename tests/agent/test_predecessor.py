"""The first look after a takeover as a pure decision: the rules, and the law that nothing ended is begun."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from foreign_state import admitted_spec
from hypothesis import given
from hypothesis import strategies as st

from ticket_agent.agent.admission import Verdict
from ticket_agent.agent.predecessor import Meeting, lane_of, meet
from ticket_agent.journal.takeover import Takeover

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ticket_agent.protocol.spec import HostTicketSpec

FORMER = Takeover(
    source="former", sha256="0" * 64, unix_ms=1, boot_id="b", finished=True, epoch=2, lanes=(0,), seen=0
)


def fenced(through: int, *, seen: int | None = None, lines: int = 0) -> Takeover:
    return replace(FORMER, lanes=(through,), seen=through if seen is None else seen, lines=lines)


def look(
    takeover: Takeover,
    sequences: Iterable[int | None],
    *,
    known: Iterable[int] = (),
    others: Iterable[int] = (),
    base: int | None = 100,
    shown: Iterable[int] = (),
    dropped: bool = True,
) -> Meeting:
    """``known`` are entries that equal their lines, ``others`` entries of the same number that do not."""
    entries = {number: {admitted_spec(number).encode()} for number in known}
    entries |= {number: {b"other"} for number in others}
    specs = [None if number is None else admitted_spec(number) for number in sequences]
    return meet(takeover, specs, entries, base=base, shown=frozenset(shown), dropped=dropped)


GREW, FIRST = Verdict.GREW, Verdict.FIRST_CONTACT
EPOCH, LOSS = Verdict.NEW_EPOCH, Verdict.POSSIBLE_LOSS


@pytest.mark.parametrize(
    ("met", "verdict", "passed"),
    [
        pytest.param(look(FORMER, [1, 2]), FIRST, set(), id="nothing-known"),
        pytest.param(look(FORMER, []), FIRST, set(), id="nothing-known-nothing-there"),
        pytest.param(look(FORMER, [1, 2], known=[2]), GREW, {0}, id="an-entry-is-there"),
        pytest.param(look(FORMER, [1, 2], known=[1]), GREW, set(), id="what-follows-an-entry-is-new"),
        pytest.param(look(FORMER, [2], others=[2]), FIRST, set(), id="ended-entry-of-another-life"),
        pytest.param(look(fenced(0, seen=2), [2, 3], others=[2]), EPOCH, set(), id="open-entry-is-another"),
        pytest.param(look(fenced(0, seen=9), [2, 3], known=[2]), GREW, set(), id="equal-wins-over-lower"),
        pytest.param(look(fenced(3), [2, 3, 4], shown=[3]), GREW, {0, 1}, id="fence-with-a-result"),
        pytest.param(look(fenced(3), [2, 3, 4], shown=[2]), LOSS, {0, 1}, id="fence-without-its-result"),
        pytest.param(look(fenced(3), [2, 3], dropped=False), EPOCH, set(), id="result-cannot-be-dropped"),
        pytest.param(look(fenced(3), [1, 2]), EPOCH, set(), id="newest-is-below"),
        pytest.param(look(fenced(3), []), EPOCH, set(), id="empty-is-below"),
        pytest.param(look(fenced(3), [4, 5]), GREW, set(), id="follows-on"),
        pytest.param(look(fenced(3), [5, 6]), LOSS, set(), id="does-not-follow-on"),
        pytest.param(look(fenced(3), [4, 5], base=0), EPOCH, set(), id="ours-cannot-be-dropped"),
        pytest.param(look(fenced(3), [4, 5], base=None), EPOCH, set(), id="ours-is-never-dropped"),
        pytest.param(look(fenced(3), [None]), LOSS, set(), id="only-a-malformed-line"),
        pytest.param(look(fenced(3), [None, 4], base=0), GREW, set(), id="malformed-may-be-ours"),
        pytest.param(look(fenced(3), [None, 6], base=0), LOSS, set(), id="malformed-and-a-jump"),
        pytest.param(look(fenced(3), [3, None], shown=[3]), GREW, {0}, id="malformed-behind"),
        pytest.param(look(fenced(0, lines=2), [1, 2, 3], base=None), FIRST, {0, 1}, id="lines"),
        pytest.param(look(fenced(0, lines=2), [1], base=None), EPOCH, set(), id="fewer-lines"),
        pytest.param(look(fenced(0, lines=2), [7], base=100), FIRST, {0}, id="fewer-lines-were-dropped"),
    ],
)
def test_rule(met: Meeting, verdict: Verdict, passed: set[int]) -> None:
    assert (met.standing.verdict, set(met.passed)) == (verdict, passed)
    assert met.standing.evidence
    assert met.standing.start == 0


@pytest.mark.parametrize(
    ("met", "held", "refetch"),
    [
        (look(fenced(3), [2, 3, 4]), (2, 3), False),
        (look(fenced(3), [6, 7]), (4, 5), True),
        (look(fenced(3), [None]), (4, 4), True),
    ],
)
def test_held_ranges(met: Meeting, held: tuple[int, int], refetch: bool) -> None:
    assert (met.standing.first, met.standing.through, met.standing.refetch) == (*held, refetch)


@given(data=st.data())
def test_nothing_that_was_ended_is_begun_in_its_life(data: st.DataObject) -> None:
    """Whatever is retained, dropped or shown: a line of this life at or below its lane's fence has passed."""
    count = data.draw(st.integers(1, 3))
    fences = tuple(data.draw(st.lists(st.integers(0, 9), min_size=count, max_size=count)))
    top = data.draw(st.integers(max(fences), 12))
    takeover = replace(FORMER, lanes=fences, seen=max(fences))
    first = data.draw(st.integers(1, 13))
    specs: list[HostTicketSpec | None] = [admitted_spec(number) for number in range(first, top + 1)]
    ended = [spec for spec in specs if spec and _below(spec, fences)]
    results = [spec.admission_sequence or 0 for spec in ended]
    kept = results[data.draw(st.integers(0, len(results))) :]
    met = meet(
        takeover,
        specs,
        {},
        base=None if first == 1 and data.draw(st.booleans()) else (first - 1) * 100,
        shown=frozenset(kept),
        dropped=len(kept) < len(results) or first > 1,
    )
    if met.standing.verdict is not Verdict.NEW_EPOCH:
        fresh = [spec for index, spec in enumerate(specs) if index not in met.passed]
        assert not [spec for spec in fresh if spec and _below(spec, fences)]
    # Nothing here is evidence of a reboot, because there was none.
    assert met.standing.verdict is not Verdict.NEW_EPOCH or first > top


def _below(spec: HostTicketSpec, fences: tuple[int, ...]) -> bool:
    return (spec.admission_sequence or 0) <= fences[lane_of(spec, len(fences))]
