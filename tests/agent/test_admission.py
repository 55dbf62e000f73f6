"""The gap rule and the hive epoch: a pure decision, tested against a root that really keeps rings."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ticket_agent.agent.admission import Consumed, StreamView, Verdict, classify, line_digest, line_offsets

if TYPE_CHECKING:
    from collections.abc import Mapping


def line(sequence: int, filler: str = "x") -> str:
    return f'{{"admission_sequence":{sequence},"f":"{filler}"}}'


def view(
    sequences: list[int], *, base: int | None, ends: Mapping[str, int] | None = None, filler: str = "x"
) -> StreamView:
    lines = [line(sequence, filler) for sequence in sequences]
    size = sum(len(text) + 1 for text in lines)
    found = {"spec.snapshot": base + size} if base is not None else {}
    return StreamView(lines=lines, sequences=sequences, base=base, ends={**found, **(ends or {})})


def consumed(sequence: int, offset: int | None, filler: str = "x") -> Consumed:
    text = line(sequence, filler)
    return Consumed(sequence=sequence, sha256=line_digest(text), offset=offset, length=len(text) + 1)


SIZE = len(line(1)) + 1


@pytest.mark.parametrize(
    ("last", "ends", "seen", "verdict", "start"),
    [
        pytest.param(
            None, {}, view([3, 4], base=50), Verdict.FIRST_CONTACT, 0, id="first-look-takes-what-is-there"
        ),
        pytest.param(
            None,
            {"spec": 90},
            view([1], base=0, ends={"spec": 40}),
            Verdict.NEW_EPOCH,
            0,
            id="another-log-went-back",
        ),
        pytest.param(consumed(2, SIZE), {}, view([1, 2, 3], base=0), Verdict.GREW, 2, id="still-there"),
        pytest.param(
            consumed(2, None),
            {},
            view([1, 2, 3], base=None),
            Verdict.GREW,
            2,
            id="still-there-without-offsets",
        ),
        pytest.param(consumed(2, SIZE), {}, view([1, 2], base=0), Verdict.GREW, 2, id="nothing-new"),
        pytest.param(
            consumed(2, SIZE), {}, view([2, 9], base=SIZE), Verdict.GREW, 1, id="root-skipped-numbers"
        ),
        pytest.param(
            consumed(2, SIZE), {}, view([7], base=2 * SIZE), Verdict.GREW, 0, id="ours-was-the-last-evicted"
        ),
        pytest.param(
            consumed(2, SIZE), {}, view([7], base=3 * SIZE), Verdict.POSSIBLE_LOSS, 0, id="more-was-evicted"
        ),
        pytest.param(
            consumed(2, None), {}, view([7], base=3 * SIZE), Verdict.POSSIBLE_LOSS, 0, id="offset-unknown"
        ),
        pytest.param(
            consumed(2, SIZE), {}, view([7], base=None), Verdict.POSSIBLE_LOSS, 0, id="offsets-vanished"
        ),
        pytest.param(
            consumed(2, SIZE), {}, view([], base=9 * SIZE), Verdict.POSSIBLE_LOSS, 0, id="everything-evicted"
        ),
        pytest.param(
            consumed(2, SIZE), {}, view([1], base=9 * SIZE), Verdict.NEW_EPOCH, 0, id="sequence-restarted"
        ),
        pytest.param(
            consumed(2, SIZE),
            {},
            view([2, 3], base=9 * SIZE, filler="y"),
            Verdict.NEW_EPOCH,
            0,
            id="same-number-other-ticket",
        ),
        pytest.param(
            consumed(2, SIZE), {}, view([2], base=0), Verdict.NEW_EPOCH, 0, id="same-line-at-another-place"
        ),
        pytest.param(
            consumed(2, SIZE), {}, view([3, 4], base=0), Verdict.NEW_EPOCH, 0, id="other-lines-at-its-place"
        ),
        pytest.param(
            consumed(2, SIZE),
            {"spec.snapshot": 99},
            view([], base=0),
            Verdict.NEW_EPOCH,
            0,
            id="log-is-shorter",
        ),
        pytest.param(
            consumed(2, None),
            {},
            view([5], base=None),
            Verdict.NEW_EPOCH,
            0,
            id="gone-from-a-log-that-drops-nothing",
        ),
        pytest.param(
            consumed(2, None),
            {},
            view([], base=None),
            Verdict.NEW_EPOCH,
            0,
            id="log-that-drops-nothing-is-empty",
        ),
    ],
)
def test_rule(
    last: Consumed | None, ends: Mapping[str, int], seen: StreamView, verdict: Verdict, start: int
) -> None:
    standing = classify(last, ends, seen)
    assert (standing.verdict, standing.start) == (verdict, start)
    assert standing.evidence


CUT = 10


@pytest.mark.parametrize(
    ("last", "first", "base", "verdict", "start"),
    [
        pytest.param(consumed(2, SIZE), line(2)[CUT:], SIZE + CUT, Verdict.GREW, 1, id="the-end-of-ours"),
        pytest.param(
            consumed(2, SIZE), line(2)[CUT + 1 :], SIZE + CUT, Verdict.POSSIBLE_LOSS, 0, id="not-its-length"
        ),
        pytest.param(
            consumed(2, SIZE),
            "{" + line(2)[CUT + 1 :],
            SIZE + CUT,
            Verdict.POSSIBLE_LOSS,
            0,
            id="a-whole-line",
        ),
        pytest.param(
            consumed(1, 0), line(2)[CUT:], SIZE + CUT, Verdict.POSSIBLE_LOSS, 0, id="the-end-of-an-unseen-one"
        ),
        pytest.param(None, line(2)[CUT:], SIZE + CUT, Verdict.FIRST_CONTACT, 1, id="first-contact"),
        pytest.param(None, '{"of": "root"}', SIZE, Verdict.FIRST_CONTACT, 0, id="first-contact-whole-line"),
        pytest.param(None, line(2)[CUT:], 0, Verdict.FIRST_CONTACT, 0, id="nothing-was-evicted"),
    ],
)
def test_a_record_torn_by_eviction(
    last: Consumed | None, first: str, base: int, verdict: Verdict, start: int
) -> None:
    """What is left of a record that was consumed, or of one that was evicted before us, is no record."""
    lines = [first, line(3)]
    size = sum(len(text) + 1 for text in lines)
    seen = StreamView(lines=lines, sequences=[None, 3], base=base, ends={"spec.snapshot": base + size})
    standing = classify(last, {}, seen)
    assert (standing.verdict, standing.start) == (verdict, start), standing.evidence


def test_possible_loss_names_the_range() -> None:
    standing = classify(consumed(2, SIZE), {}, view([7, 8], base=5 * SIZE))
    assert (standing.first, standing.through) == (3, 6)


class Root:
    """A root that numbers, keeps a ring and reboots: the truth that `classify` has to find out."""

    def __init__(self) -> None:
        self.boot()

    def boot(self) -> None:
        self.sequence = 0
        self.base = 0
        self.lines: list[str] = []

    def admit(self, step: int, filler: str) -> None:
        self.sequence += step
        self.lines.append(line(self.sequence, filler))

    def evict(self, count: int) -> None:
        for _ in range(min(count, len(self.lines))):
            self.base += len(self.lines.pop(0)) + 1

    def view(self) -> StreamView:
        sequences = [int(text.split(":")[1].split(",")[0]) for text in self.lines]
        end = self.base + sum(len(text) + 1 for text in self.lines)
        return StreamView(
            lines=list(self.lines), sequences=sequences, base=self.base, ends={"spec.snapshot": end}
        )


EVENTS = st.lists(
    st.one_of(
        st.tuples(st.just("admit"), st.integers(1, 3), st.sampled_from(["x", "yy"])),
        st.tuples(st.just("evict"), st.integers(1, 4), st.just("")),
        st.tuples(st.just("look"), st.just(0), st.just("")),
        st.tuples(st.just("reboot"), st.just(0), st.just("")),
    ),
    max_size=40,
)


@settings(max_examples=300, deadline=None)
@given(events=EVENTS)
def test_never_skips_and_never_takes_an_admission_twice(events: list[tuple[str, int, str]]) -> None:
    """Against every history of a real root: what is taken was never taken before in that life, in order,
    and nothing that was admitted and looked for is passed over without being named as possibly lost."""
    root = Root()
    life = 0
    last: Consumed | None = None
    ends: dict[str, int] = {}
    taken: set[tuple[int, int]] = set()
    admitted_unseen: set[int] = set()
    for kind, number, filler in events:
        if kind == "admit":
            root.admit(number, filler)
            admitted_unseen.add(root.sequence)
        elif kind == "evict":
            root.evict(number)
        elif kind == "reboot":
            root.boot()
            life += 1
            admitted_unseen.clear()
        else:
            seen = root.view()
            standing = classify(last, ends, seen)
            if standing.verdict is Verdict.POSSIBLE_LOSS:
                return  # held: nothing is executed until an operator speaks
            if standing.verdict is Verdict.NEW_EPOCH:
                assert life > 0, f"an epoch out of nothing: {standing.evidence}"
                last, ends = None, {}
            retained = set(seen.sequences)
            first_contact = last is None
            for index in range(standing.start, len(seen.lines)):
                sequence = seen.sequences[index]
                assert sequence is not None
                if standing.verdict is Verdict.GREW:
                    assert (life, sequence) not in taken
                taken.add((life, sequence))
                text = seen.lines[index]
                last = Consumed(
                    sequence=sequence,
                    sha256=line_digest(text),
                    offset=line_offsets(seen)[index],
                    length=len(text.encode()) + 1,
                )
            if not first_contact:
                missed = {seq for seq in admitted_unseen if (life, seq) not in taken and seq not in retained}
                assert not missed or not taken & {(life, seq) for seq in range(1, root.sequence + 1)}
            admitted_unseen.clear()
            ends = {leaf: max(end, ends.get(leaf, 0)) for leaf, end in seen.ends.items()}
