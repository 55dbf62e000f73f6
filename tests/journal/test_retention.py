"""Why a terminal record stays, reason by reason, and that the owner moves exactly what is judged to leave."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st
from journal_support import FAMILY, Clock, open_store, prepare, walk

from ticket_agent.journal.retention import Stays, choose_retired, judge_retention
from ticket_agent.journal.space import Limits
from ticket_agent.journal.view import completed_through, read_journal

if TYPE_CHECKING:
    from pathlib import Path

DAY_MS = 86_400_000
NOW = 100 * DAY_MS
LIMITS = Limits(retain_ms=7 * DAY_MS, retain_records=2, retire_batch=1, fenced_families=frozenset({"v2"}))


@dataclass(frozen=True)
class Old:
    """A terminal record as retention sees it; old enough unless said otherwise."""

    sequence: int
    family: str = "v2"
    epoch: int = 1
    changed_unix_ms: int = 0

    @property
    def key(self) -> str:
        return f"{self.family}-{self.epoch}-{self.sequence}"


def _judge(
    records: list[Old], *, limits: Limits = LIMITS, keep: frozenset[str] = frozenset(), through: int = 1000
) -> dict[str, Stays | None]:
    judged = judge_retention(
        records, limits=limits, now_unix_ms=NOW, keep=keep, completed_through=lambda family, epoch: through
    )
    assert [entry.record for entry in judged] == sorted(records, key=lambda one: (one.epoch, one.sequence))
    return {entry.record.key: entry.stays for entry in judged}


@pytest.mark.parametrize(
    ("first", "options", "stays"),
    [
        (Old(1), {}, None),
        (Old(1, changed_unix_ms=NOW - 7 * DAY_MS), {}, None),
        (Old(1, changed_unix_ms=NOW - 7 * DAY_MS + 1), {}, Stays.AGE),
        (Old(1, changed_unix_ms=NOW + DAY_MS), {}, Stays.AGE),
        (Old(1), {"keep": frozenset({"v2-1-1"})}, Stays.VISIBLE),
        (Old(1), {"through": 0}, Stays.FENCE),
        (Old(1, family="v1"), {}, Stays.NEWEST),
        (Old(1), {"limits": replace(LIMITS, retain_records=4)}, Stays.COUNT),
        (Old(1, family="v1", epoch=2), {}, Stays.COUNT),
    ],
    ids=lambda value: value.value if isinstance(value, Stays) else "",
)
def test_each_reason(first: Old, options: dict[str, object], stays: Stays | None) -> None:
    others = [Old(sequence) for sequence in (2, 3, 4)]
    assert _judge([*reversed(others), first], **options)[first.key] is stays  # type: ignore[arg-type]


def test_only_fenced_families_wait_for_what_comes_before() -> None:
    records = [Old(sequence, family=family) for sequence in (1, 2, 3) for family in ("v1", "v2")]
    judged = _judge(records, through=0)
    assert judged["v2-1-1"] is Stays.FENCE
    assert judged["v1-1-1"] is None


RECORDS = st.lists(
    st.builds(
        Old,
        sequence=st.integers(1, 30),
        family=st.sampled_from(["v1", "v2"]),
        epoch=st.integers(1, 2),
        changed_unix_ms=st.sampled_from([0, NOW - DAY_MS]),
    ),
    unique_by=lambda record: record.key,
    max_size=30,
)


@given(records=RECORDS, count=st.integers(0, 8), through=st.integers(0, 30))
def test_the_limits_hold_whatever_is_there(records: list[Old], count: int, through: int) -> None:
    limits = replace(LIMITS, retain_records=count)
    leaving = choose_retired(
        records, limits=limits, now_unix_ms=NOW, keep=(), completed_through=lambda family, epoch: through
    )
    staying = [record for record in records if record not in leaving]
    assert len(staying) >= min(count, len(records))
    for record in leaving:
        assert NOW - record.changed_unix_ms >= limits.retain_ms
        assert record.family == "v1" or record.sequence <= through
        later = [one for one in staying if one.family == record.family]
        assert max((one.epoch, one.sequence) for one in later) > (record.epoch, record.sequence)


@pytest.mark.parametrize("fenced", [frozenset({FAMILY}), frozenset()], ids=["fenced", "free"])
def test_a_reader_judges_as_the_owner_does(tmp_path: Path, fenced: frozenset[str]) -> None:
    """Also where an open operation, a quarantined file and the cursor stand in the way."""
    clock = Clock()
    limits = Limits(retain_ms=0, retain_records=1, retire_batch=1, fenced_families=fenced)
    with open_store(tmp_path, clock=clock, limits=limits) as store:
        for sequence in range(1, 9):
            walk(store, f"k{sequence}", sequence)
        prepare(store, "k9", 9)
        walk(store, "k10", 10)
        walk(store, "k11", 11)
    (broken,) = (tmp_path / "ops").glob(f"{6:020d}-*.rec")
    broken.write_bytes(b"nonsense")
    view = read_journal(tmp_path)
    chosen = choose_retired(
        [record for record in view.records.values() if record.terminal],
        limits=limits,
        now_unix_ms=clock(),
        keep=(),
        completed_through=completed_through(view, limits),
    )
    with open_store(tmp_path, clock=clock, limits=limits) as store:
        before = set(store.records)
        assert store.retire(keep=()) == len(chosen)
        assert before - set(store.records) == {record.key for record in chosen}
    assert [record.sequence for record in chosen] == (
        [1, 2, 3, 4, 5] if fenced else [1, 2, 3, 4, 5, 7, 8, 10]
    )
