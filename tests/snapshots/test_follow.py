"""Following: each new thing is told once, and nothing that was seen passes for what is."""

from __future__ import annotations

import pytest
from snapshot_shelf import NOW_MS, PROVIDER, SOURCE, Shelf, record

from ticket_agent.protocol.snapshot import HostSnapshot, UnavailableReason
from ticket_agent.protocol.snapshot_enrolment import SnapshotEnrolment, SnapshotPublisher
from ticket_agent.protocol.snapshot_status import Withdrawn
from ticket_agent.snapshots import SnapshotReader, SnapshotReadError
from ticket_agent.snapshots.changes import Step
from ticket_agent.snapshots.follow import Event, Follower, What

ENROLMENT = SnapshotEnrolment(
    publishers=(
        SnapshotPublisher(source_id=SOURCE, providers=("systemd", "docker")),
        SnapshotPublisher(source_id="another", providers=("systemd",)),
    )
)
OURS = ((PROVIDER, SOURCE), ("docker", SOURCE))


class Watched:
    """A shelf and who follows it."""

    def __init__(self, pairs: tuple[tuple[str, str], ...] = OURS) -> None:
        self.shelf = Shelf(ENROLMENT)
        self.pairs = pairs
        self.follower = Follower(pairs, ENROLMENT)
        self.reader = SnapshotReader(self.shelf, ENROLMENT)

    def put(self, *snapshots: HostSnapshot) -> None:
        for snapshot in snapshots:
            self.shelf.put(snapshot)

    def round(self) -> list[Event]:
        told: list[Event] = []
        for pair in self.pairs:
            try:
                outcome = self.reader.read(*pair)
            except SnapshotReadError as error:
                told += self.follower.looked(pair, error, NOW_MS)
            else:
                told += self.follower.looked(pair, outcome, NOW_MS)
        return told + list(self.follower.round_over(NOW_MS))


def _told(events: list[Event]) -> list[tuple[What, str | None, object]]:
    return [
        (one.what, one.provider, one.code if one.observation is None else one.observation.sequence)
        for one in events
    ]


def test_a_life_of_a_pair_told_step_by_step() -> None:
    watched = Watched(((PROVIDER, SOURCE),))
    assert _told(watched.round()) == [(What.GONE, PROVIDER, "unobserved")]
    assert watched.round() == []
    watched.put(record(1, {"a": "1"}))
    (first,) = watched.round()
    assert (first.what, first.change) == (What.RECORD, None)
    assert watched.round() == []
    watched.put(record(2, {"a": "2"}))
    (second,) = watched.round()
    assert second.change is not None
    assert [entry.path for entry in second.change.entries] == ["a"]
    watched.shelf.withdraw(Withdrawn.EXPIRED, 2)
    assert _told(watched.round()) == [(What.GONE, PROVIDER, "expired")]
    assert watched.round() == []
    watched.put(record(3, reason=UnavailableReason.SOURCE_FAILED))
    (withdrawal,) = watched.round()
    assert withdrawal.change is not None
    assert withdrawal.change.availability_changed
    watched.shelf.withdraw(Withdrawn.CLOCK_REGRESSED, 3)
    assert _told(watched.round()) == [(What.GONE, PROVIDER, "clock-regressed")]
    watched.put(record(3, reason=UnavailableReason.SOURCE_FAILED))
    (again,) = watched.round()
    assert again.change is not None
    assert again.change.step is Step.SAME


def test_an_expiry_of_another_record_is_told_again() -> None:
    watched = Watched(((PROVIDER, SOURCE),))
    watched.shelf.withdraw(Withdrawn.EXPIRED, 2)
    assert len(watched.round()) == 1
    watched.shelf.withdraw(Withdrawn.EXPIRED, 3)
    assert _told(watched.round()) == [(What.GONE, PROVIDER, "expired")]


def test_a_problem_is_told_once_and_its_end_too() -> None:
    watched = Watched(((PROVIDER, SOURCE),))
    watched.put(record(1))
    watched.round()
    node = watched.shelf.enrolment.paths(PROVIDER, SOURCE).snapshot
    good, watched.shelf.nodes[node] = watched.shelf.nodes[node], ["{}"]
    assert _told(watched.round()) == [(What.PROBLEM, PROVIDER, "malformed-record")]
    assert watched.round() == []
    watched.shelf.nodes[node] = good
    assert _told(watched.round()) == [(What.RECORD, PROVIDER, 1)]


def test_what_expires_while_it_is_read_is_told_at_the_next_look() -> None:
    watched = Watched(((PROVIDER, SOURCE),))
    watched.put(record(1))
    watched.shelf.between = lambda: watched.shelf.withdraw(Withdrawn.EXPIRED, 1)
    assert watched.round() == []
    assert _told(watched.round()) == [(What.GONE, PROVIDER, "expired")]


def test_numbers_are_missed_where_every_provider_of_a_source_is_followed() -> None:
    watched = Watched()
    for sequence in (1, 3, 5):
        watched.put(record(sequence), record(sequence + 1, provider="docker"))
        assert all(one.what is What.RECORD for one in watched.round())
    watched.put(record(10), record(8, provider="docker"))
    assert [one.count for one in watched.round() if one.what is What.MISSED] == []
    (missed,) = watched.round()
    assert (missed.what, missed.source_id, missed.provider, missed.count) == (What.MISSED, SOURCE, None, 2)
    assert missed.detail.startswith("2 numbers were not seen here")
    assert watched.round() == []


def test_where_one_provider_of_a_source_is_not_followed_nothing_is_missed() -> None:
    watched = Watched(((PROVIDER, SOURCE), (PROVIDER, "another")))
    watched.put(record(1), record(1, source="another"))
    watched.round()
    watched.put(record(9), record(3, source="another"))
    told = watched.round() + watched.round()
    changes = [one.change for one in told if one.observation is not None]
    assert [change and change.between for change in changes] == [7, 1]
    assert [(one.source_id, one.count) for one in told if one.what is What.MISSED] == [("another", 1)]


def test_after_the_count_went_back_nothing_is_missed() -> None:
    watched = Watched()
    watched.put(record(100), record(101, provider="docker"))
    watched.round()
    watched.put(record(1), record(2, provider="docker"))
    steps = [one.change and one.change.step for one in watched.round() + watched.round() + watched.round()]
    assert steps == [Step.RESTARTED, Step.RESTARTED]


@pytest.mark.parametrize("times", [1, 5])
def test_a_hive_that_does_not_answer_is_told_once(times: int) -> None:
    follower = Follower(OURS, ENROLMENT)
    assert list(follower.answered(NOW_MS)) == []
    told = [one for number in range(times) for one in follower.lost("it hung up", NOW_MS + number)]
    assert [one.what for one in told] == [What.LOST]
    assert told[0].detail.startswith("it hung up; nothing is known")
    (back,) = follower.answered(NOW_MS + 93_000)
    assert (back.what, back.detail) == (What.BACK, "the hive answers again after 93 s")
    assert list(follower.answered(NOW_MS + 94_000)) == []
