"""No bytes may crash, hang or fatten the console's machines.

A sample runs with the suite. ``TICKET_AGENT_FUZZ=all pytest -s tests/hive/console/test_fuzz.py`` gives each
of them 100,000 inputs and prints what became of them.
"""

from __future__ import annotations

import os
import random

import pytest
from console_fuzz import TARGETS, run
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

ALL = os.environ.get("TICKET_AGENT_FUZZ") == "all"
MUTATED, INVENTED = (95_000, 5_000) if ALL else (1_000, 100)
GROWTH_KIB = 64 * 1024
SLOWEST_S = 2.0


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("name", TARGETS)
def test_mutated_recordings(name: str) -> None:
    summary = run(name, MUTATED)
    print(f"\n{summary.line(name)}")
    assert summary.inputs == MUTATED
    assert summary.slowest_s < SLOWEST_S
    assert summary.grown_kib < GROWTH_KIB
    # Inputs that all end the same way reach nothing.
    assert len(summary.endings) >= 4


FRAME = st.binary(max_size=300).map(lambda payload: (4 + len(payload)).to_bytes(4, "little") + payload)
STREAM = st.lists(FRAME | st.binary(min_size=1, max_size=8), min_size=1, max_size=12).map(b"".join)


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("name", TARGETS)
def test_invented_streams(name: str) -> None:
    strike, _ = TARGETS[name]
    given_count = 0

    @settings(max_examples=INVENTED, deadline=None, suppress_health_check=list(HealthCheck), database=None)
    @given(STREAM, st.integers(0, 2**32))
    def check(data: bytes, seed: int) -> None:
        nonlocal given_count
        given_count += 1
        strike(data, random.Random(seed))

    check()
    print(f"\n{name}: {given_count} invented streams")
    assert given_count >= INVENTED


def test_a_machine_that_breaks_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    def breaks(data: bytes, rng: random.Random) -> str:
        if b"END" in data:
            raise ValueError("an END")
        return "fine"

    monkeypatch.setitem(TARGETS, "client", (breaks, "<"))
    with pytest.raises(AssertionError, match="seed 1:client:"):
        run("client", 200)
