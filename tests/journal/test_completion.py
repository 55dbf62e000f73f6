from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from ticket_agent.journal.completion import CompletionFence

operations = st.lists(
    st.tuples(st.integers(1, 12), st.booleans()), unique_by=lambda pair: pair[0], max_size=12
)


@given(operations, st.integers(0, 12), st.sets(st.integers(1, 14), max_size=3), st.data())
def test_it_agrees_with_the_definition_and_never_moves_back(
    sequences: list[tuple[int, bool]], floor: int, blockers: set[int], data: st.DataObject
) -> None:
    fence = CompletionFence(floor=floor, blockers=blockers)
    open_now: set[int] = set()
    terminal: set[int] = set()
    last = fence.through()
    assert last == floor
    events = [("open", sequence) for sequence, _ in sequences]
    events += [("finish", sequence) for sequence, ends in sequences if ends]
    for kind, sequence in data.draw(st.permutations(events)):
        if kind == "open" and sequence not in terminal:
            fence.opened(str(sequence), sequence)
            open_now.add(sequence)
        elif kind == "finish":
            fence.finished(str(sequence), sequence)
            open_now.discard(sequence)
            terminal.add(sequence)
        stop = min([*open_now, *(blocker for blocker in blockers if blocker > floor)], default=10**9)
        passed = max([sequence for sequence in terminal if sequence < stop], default=0)
        last = max(last, passed)
        assert fence.through() == last
        assert fence.highest == max(open_now | terminal)


def test_a_floor_is_only_raised() -> None:
    fence = CompletionFence(floor=5)
    fence.raise_floor(3)
    assert fence.through() == 5
    fence.raise_floor(8)
    assert fence.through() == 8


def test_two_operations_of_one_sequence_are_passed_together() -> None:
    fence = CompletionFence()
    fence.opened("a", 3)
    fence.opened("b", 3)
    fence.finished("a", 3)
    assert fence.through() == 0
    fence.finished("b", 3)
    assert fence.through() == 3


def test_a_number_that_nobody_has_seen_is_not_passed() -> None:
    fence = CompletionFence()
    fence.finished("a", 3)
    fence.opened("b", 9)
    assert fence.through() == 3
