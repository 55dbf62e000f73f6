"""What is known about a write after it was made, and for how long."""

from __future__ import annotations

import pytest
from lease_double import LEASE_CTL, LeaseHive

from ticket_agent.gpu.dispatch import MAX_REMEMBERED, Dispatcher, Origin
from ticket_agent.protocol.namespace import Acked, HiveUnreachableError

LINE = '{"id":"lease-1","op":"grant","priority":0,"resource":"GPU-0","subject":"worker-gpu-1","ttl_s":1}'
OTHER = LINE.replace("lease-1", "lease-2")
EARLIER = Origin(instance="earlier", session=9, epoch=None)


def dispatcher(hive: LeaseHive, *, single_owner: bool = True) -> Dispatcher:
    return Dispatcher(hive, instance="now", single_owner=single_owner)


def test_a_write_is_dead_only_in_a_later_session() -> None:
    desk = dispatcher(LeaseHive())
    desk.append(LEASE_CTL, LINE)
    origin = desk.origin()
    assert origin == Origin(instance="now", session=1, epoch=None)
    assert [desk.writer_dead(origin, LEASE_CTL, LINE, session=number) for number in (0, 1, 2)] == [
        False,
        False,
        True,
    ]
    assert not desk.writer_dead(origin, LEASE_CTL, OTHER, session=2)
    assert not desk.writer_dead(origin, "/queen/ctl", LINE, session=2)


def test_an_earlier_process_is_dead_once_this_one_is_attached() -> None:
    desk = dispatcher(LeaseHive())
    assert not desk.writer_dead(EARLIER, LEASE_CTL, LINE, session=0)
    assert desk.writer_dead(EARLIER, LEASE_CTL, LINE, session=1)
    assert not dispatcher(LeaseHive(), single_owner=False).writer_dead(EARLIER, LEASE_CTL, LINE, session=1)


def test_an_acknowledgement_belongs_to_the_process_that_saw_it() -> None:
    desk = dispatcher(LeaseHive())
    assert isinstance(desk.append(LEASE_CTL, LINE), Acked)
    assert desk.acknowledged(desk.origin(), LEASE_CTL, LINE)
    assert not desk.acknowledged(EARLIER, LEASE_CTL, LINE)
    assert not desk.acknowledged(desk.origin(), LEASE_CTL, OTHER)


def test_a_write_that_raised_is_remembered_without_an_acknowledgement() -> None:
    hive = LeaseHive(session=3, answer="down")
    desk = dispatcher(hive)
    with pytest.raises(HiveUnreachableError):
        desk.append(LEASE_CTL, LINE)
    assert not desk.acknowledged(desk.origin(), LEASE_CTL, LINE)
    assert not desk.writer_dead(desk.origin(), LEASE_CTL, LINE, session=3)
    assert desk.writer_dead(desk.origin(), LEASE_CTL, LINE, session=4)


def test_only_so_many_writes_are_remembered_and_the_oldest_goes_first() -> None:
    hive = LeaseHive(answer="refuse")
    desk = dispatcher(hive)
    for number in range(MAX_REMEMBERED + 1):
        desk.append(LEASE_CTL, f"line-{number}")
    origin = desk.origin()
    assert not desk.writer_dead(origin, LEASE_CTL, "line-0", session=2)
    assert desk.writer_dead(origin, LEASE_CTL, "line-1", session=2)
    assert desk.writer_dead(origin, LEASE_CTL, f"line-{MAX_REMEMBERED}", session=2)


def test_epochs_are_compared_by_what_is_known() -> None:
    life = [4]
    desk = Dispatcher(LeaseHive(), instance="now", epoch=lambda: life[0])
    origin = desk.origin()
    assert desk.same_epoch(origin)
    assert not desk.same_epoch(Origin(instance="now", session=1, epoch=None))
    life[0] = 5
    assert not desk.same_epoch(origin)
    assert dispatcher(LeaseHive()).same_epoch(Origin(instance="now", session=1, epoch=None))


def test_a_write_meant_for_an_earlier_session_is_not_sent() -> None:
    hive = LeaseHive(session=3)
    desk = dispatcher(hive)
    with pytest.raises(HiveUnreachableError, match="session 2 is over"):
        desk.append(LEASE_CTL, LINE, session=2)
    assert hive.writes == []
