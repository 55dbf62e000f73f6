"""What a peer's logs prove about a line that was sent: the only ground on which it is ever sent again."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from hive_support import SPEC, STATUS, ManualClock, new_hive
from hypothesis import given, settings
from hypothesis import strategies as st
from relay_support import LOCAL, perform, ticket

from ticket_agent.agent.events import EventLog
from ticket_agent.agent.relay.contact import PeerLink, look_at
from ticket_agent.agent.relay.peer import Peer
from ticket_agent.agent.relay.sighting import Arrival, Sighting, SightingIndex, before_image
from ticket_agent.hive.reference import DEFAULT, STRICT_A, HiveProfile, ReferenceHive
from ticket_agent.journal.outcome import Plan
from ticket_agent.journal.record import own_plan
from ticket_agent.protocol.chunks import decode_lines
from ticket_agent.protocol.federation import relayed
from ticket_agent.protocol.paths import TicketPaths
from ticket_agent.protocol.result import build_result
from ticket_agent.protocol.spec import parse_spec

if TYPE_CHECKING:
    from collections.abc import Callable

    from ticket_agent.protocol.namespace import AppendAnswer

GOING = relayed(parse_spec(ticket().encode(), source="raw"), local_hive=LOCAL)
SMALL = replace(DEFAULT, log_frames=4)


class Direct:
    """A hive without a transport."""

    session = 1

    def __init__(self, hive: ReferenceHive) -> None:
        self.hive = hive

    def ls(self, path: str) -> list[str]:
        return self.hive.ls(path)

    def read(self, path: str) -> list[str]:
        return decode_lines(self.hive.cat(path))

    def tail(self, path: str) -> list[str]:
        return self.read(path)

    def append(self, path: str, line: str, *, session: int | None = None) -> AppendAnswer:
        raise AssertionError(f"a look only reads, and wrote to {path}")

    def close(self) -> None:
        return


def seen(hive: ReferenceHive) -> Sighting:
    return look_at(Direct(hive), TicketPaths("/host"), number=1)


def others(hive: ReferenceHive, count: int, name: str = "other") -> None:
    for number in range(count):
        hive.echo(SPEC, ticket(f"{name}-{number}", target=None, source=None))


def sent(hive: ReferenceHive) -> None:
    hive.echo(SPEC, GOING.line)


def answered(hive: ReferenceHive) -> None:
    hive.echo(STATUS, build_result(GOING.spec, state="running", message="x", max_line_bytes=2048).decode())


def rebooted(hive: ReferenceHive) -> None:
    hive.reboot()


NO_HIVES = {"source_hive": None, "target_hive": None, "relay_hop": None, "relay_correlation_id": None}
NOTHING: tuple[Callable[[ReferenceHive], None], ...] = ()
ONE_MORE = (lambda hive: others(hive, 1, "later"),)
MANY_MORE = (lambda hive: others(hive, 9, "later"),)


@pytest.mark.parametrize(
    ("profile", "before", "after", "arrival"),
    [
        pytest.param(DEFAULT, 1, NOTHING, Arrival.ABSENT, id="nothing happened"),
        pytest.param(DEFAULT, 1, ONE_MORE, Arrival.ABSENT, id="others came"),
        pytest.param(DEFAULT, 1, (sent,), Arrival.ARRIVED, id="it is there"),
        pytest.param(DEFAULT, 0, (sent,), Arrival.ARRIVED, id="it is there, alone"),
        pytest.param(DEFAULT, 0, NOTHING, Arrival.UNPROVEN, id="an empty peer may have rebooted"),
        pytest.param(SMALL, 1, MANY_MORE, Arrival.UNPROVEN, id="lines were dropped since"),
        pytest.param(SMALL, 1, (sent, *MANY_MORE), Arrival.UNPROVEN, id="it was dropped"),
        pytest.param(SMALL, 1, (sent, answered, *MANY_MORE), Arrival.ARRIVED, id="a result remains"),
        pytest.param(DEFAULT, 1, (rebooted,), Arrival.UNPROVEN, id="rebooted"),
        pytest.param(DEFAULT, 1, (sent, rebooted), Arrival.UNPROVEN, id="rebooted after it took it"),
        pytest.param(DEFAULT, 1, (rebooted, *MANY_MORE), Arrival.UNPROVEN, id="rebooted, then busy"),
        pytest.param(STRICT_A, 1, NOTHING, Arrival.ABSENT, id="without offsets"),
        pytest.param(STRICT_A, 1, (*ONE_MORE, sent), Arrival.ARRIVED, id="without offsets, there"),
        pytest.param(STRICT_A, 0, NOTHING, Arrival.UNPROVEN, id="without offsets, empty"),
        pytest.param(STRICT_A, 2, (rebooted, *MANY_MORE), Arrival.UNPROVEN, id="without offsets, rebooted"),
    ],
)
def test_what_is_proven(
    profile: HiveProfile, before: int, after: tuple[Callable[[ReferenceHive], None], ...], arrival: Arrival
) -> None:
    hive = new_hive(profile)
    others(hive, before)
    image = before_image(seen(hive))
    for happens in after:
        happens(hive)
    found, why = SightingIndex(seen(hive)).arrival(GOING.spec, image)
    assert found is arrival, why
    assert why


def test_an_image_can_stand_in_a_record() -> None:
    hive = new_hive()
    others(hive, 2)
    image = before_image(seen(hive))
    assert own_plan(Plan(before=image, intent={})).before == image


def test_without_an_image_nothing_is_proven() -> None:
    hive = new_hive()
    others(hive, 2)
    assert SightingIndex(seen(hive)).arrival(GOING.spec, {})[0] is Arrival.UNPROVEN


@pytest.mark.parametrize(
    ("changes", "counts"),
    [
        ({}, True),
        (NO_HIVES, False),
        ({"source_hive": "hive-z"}, False),
        ({"action": "systemd.stop"}, False),
        ({"idempotency_key": "another"}, False),
    ],
)
def test_which_results_are_of_the_ticket(changes: dict[str, str | None], counts: bool) -> None:
    hive = new_hive()
    answer = replace(GOING.spec, **changes)  # type: ignore[arg-type]
    hive.echo(STATUS, build_result(answer, state="succeeded", message="x", max_line_bytes=2048).decode())
    assert (SightingIndex(seen(hive)).result_of(GOING.spec) is not None) is counts


def test_a_result_that_had_no_room_for_the_hives_counts() -> None:
    """The names are so long that every agent has to leave them out."""
    hive = new_hive()
    spec = parse_spec(ticket("t" * 45, key="k" * 45).encode(), source="raw")
    going = relayed(spec, local_hive=LOCAL).spec
    line = build_result(going, state="succeeded", message="x", max_line_bytes=2048).decode()
    assert "hive-b" not in line
    hive.echo(STATUS, line)
    assert SightingIndex(seen(hive)).result_of(going) is not None


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.sampled_from(["other", "perform", "reboot", "look"]), max_size=8),
    st.lists(st.sampled_from(["other", "perform", "reboot", "sent"]), max_size=10),
    st.sampled_from([DEFAULT, STRICT_A, SMALL]),
)
def test_what_was_sent_is_never_proven_absent(
    first: list[str], then: list[str], profile: HiveProfile
) -> None:
    """Whatever happens before and after: a line that the peer ever took is not sent again."""
    hive = new_hive(profile)
    image, took = before_image(seen(hive)), False
    for step, name in enumerate([*first, "look", *then]):
        if name == "other":
            others(hive, 1, f"n{step}")
        elif name == "perform":
            perform(hive)
        elif name == "reboot":
            hive.reboot()
        elif name == "look":
            image = before_image(seen(hive))
        elif not took:
            sent(hive)
            took = True
        if step >= len(first):
            found, _ = SightingIndex(seen(hive)).arrival(GOING.spec, image)
            assert found is not (Arrival.ABSENT if took else Arrival.ARRIVED)


class Moving(Direct):
    """A hive that takes results right before chosen ones of its readings."""

    def __init__(self, hive: ReferenceHive) -> None:
        super().__init__(hive)
        self.told: list[str] = []
        self.shown: set[str] = set()
        self.moves: dict[int, int] = {}
        """How many results come right before the reading with this number, counted from the next one."""
        self._readings = 0

    def results(self, count: int) -> None:
        for _ in range(count):
            spec = replace(GOING.spec, id=f"r{len(self.told)}")
            line = build_result(spec, state="succeeded", message="x", max_line_bytes=2048).decode()
            self.hive.echo(STATUS, line)
            self.told.append(line)

    def read(self, path: str) -> list[str]:
        self.results(self.moves.pop(self._readings, 0))
        self._readings += 1
        lines = super().read(path)
        if path == STATUS:
            self.shown |= set(lines)
        return lines

    def look(self, number: int, moves: dict[int, int]) -> Sighting:
        self.moves, self._readings = moves, 0
        return look_at(self, TicketPaths("/host"), number=number)


READINGS_OF_A_LOOK = 5
MOVES = st.dictionaries(st.integers(0, READINGS_OF_A_LOOK - 1), st.integers(1, 6), max_size=3)


@settings(max_examples=200, deadline=None)
@given(st.lists(st.tuples(MOVES, st.integers(0, 6)), min_size=2, max_size=5))
def test_results_that_no_look_showed_are_told_whenever_the_log_moves(
    looks: list[tuple[dict[int, int], int]],
) -> None:
    """Before, within and after every look: what was dropped unseen is said."""
    hive, said = Moving(new_hive(SMALL)), io.StringIO()
    link = PeerLink("hive-b", lambda: hive, paths=TicketPaths("/host"))
    peer = Peer(link, EventLog(said, clock=ManualClock(), style="json"))
    peer._take(hive.look(0, {}), 0.0)
    for number, (moves, later) in enumerate(looks, start=1):
        peer._take(hive.look(number, dict(moves)), float(number))
        hive.results(later)
    peer._take(hive.look(len(looks) + 1, {}), len(looks) + 1.0)
    events = [json.loads(line)["event"] for line in said.getvalue().splitlines()]
    if set(hive.told) - hive.shown:
        assert "relay-results-missed" in events
    if not any(moves for moves, _ in looks):
        assert ("relay-results-missed" in events) == bool(set(hive.told) - hive.shown)
