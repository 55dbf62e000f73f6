"""24 simulated hours with two hives: nothing leaks, nothing runs twice, nothing is lost without a word.

By default an idle hive is looked at every 20 s and some hundred tickets come; ``TICKET_AGENT_DAY=all`` looks
every second, as a daemon does, and lets more than two thousand come.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from simulated_day import DAY_S, HOUR_S, Day, busy_day, growth
from told_lines import tell

from ticket_agent.hive.reference import DEFAULT
from ticket_agent.journal.view import read_archive, read_journal

if TYPE_CHECKING:
    from pathlib import Path

ALL = os.environ.get("TICKET_AGENT_DAY") == "all"
APART = "TICKET_AGENT_DAY_APART"
"""Set in the process that lives the day."""
MAX_GROWTH_KIB = 4096
KIB_PER_TICKET = 4
"""The hives live in the same process and remember every ticket and every result."""
MAX_NEW_OBJECTS = 120
"""Of the agents: what their journals retain at that hour differs a little."""


def _live(days: list[Day]) -> None:
    """Both at once; each agent is started anew at its own noon."""
    errors: list[BaseException] = []

    def one(day: Day, noon: float) -> None:
        try:
            day.live(stop_at=noon)
            day.live()
        except BaseException as error:  # noqa: BLE001 - told by the thread that asserts
            errors.append(error)

    threads = [
        threading.Thread(target=one, args=(day, (12 + number) * HOUR_S)) for number, day in enumerate(days)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors, errors


def _account(day: Day) -> dict[str, int]:
    """Every ticket of the day in one line of the books; a ticket that fits none fails."""
    ends, effects = day.ends(), day.effects()
    acknowledged = read_journal(day.state_dir).cursor
    books = {"confirmed": 0, "ended without effect": 0, "in an acknowledged gap": 0, "gone with a reboot": 0}
    assert max(effects.values(), default=0) <= 1
    assert set(effects) <= set(ends), "an effect without a record"
    for name, ticket in day.tickets.items():
        assert day.results(name) <= 1, name
        if ends.get(name) == "confirmed":
            assert effects[name] == 1, name
            books["confirmed"] += 1
        elif name in ends:
            assert ends[name] in {"stale", "rejected"}, (name, ends[name])
            books["ended without effect"] += 1
        elif name in day.lost:
            books["in an acknowledged gap"] += 1
        else:
            # Admitted and forgotten between two looks: only a hive that rebooted can do that.
            assert ticket.life < day.hive.boots, name
            books["gone with a reboot"] += 1
    assert acknowledged.held is None
    return books


@pytest.mark.timeout(1800)
def test_a_day_with_two_hives(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    if APART not in os.environ:
        # In this process a thousand other tests may have left memory that moves by itself.
        command = (sys.executable, "-m", "pytest", "-q", "-s", "-n", "0", "-p", "no:cacheprovider", __file__)
        environment = {name: text for name, text in os.environ.items() if not name.startswith("PYTEST_XDIST")}
        done = subprocess.run(
            command, env=environment | {APART: "1"}, capture_output=True, text=True, check=False
        )
        tell(*(line for line in done.stdout.splitlines() if line.startswith(("hive ", "  "))))
        assert done.returncode == 0, done.stdout[-4000:]
        return
    tickets, stretch = (1200, 1) if ALL else (240, 20)
    days = [
        busy_day(tmp_path / "a", seed=1, tickets=tickets, stretch=stretch),
        busy_day(
            tmp_path / "b",
            seed=2,
            tickets=tickets,
            stretch=stretch,
            profile=replace(DEFAULT, admission_refetch=True),
        ),
    ]
    try:
        _live(days)
        with capsys.disabled():
            for name, day in zip("ab", days, strict=True):
                _print(name, day)
        allowed = MAX_GROWTH_KIB + KIB_PER_TICKET * sum(len(day.tickets) for day in days)
        for day in days:
            _judge(day)
            assert growth(day.samples).rss_kib <= allowed
    finally:
        for day in days:
            day.close()


def _print(name: str, day: Day) -> None:
    grown = growth(day.samples)
    last = day.samples[-1]
    print(f"\nhive {name}: {day.time.polls} polls in {day.time.now_s / HOUR_S:.1f} virtual hours")
    print("  happened: " + ", ".join(f"{count} {what}" for what, count in sorted(day.happened.items())))
    print("  books:    " + ", ".join(f"{count} {what}" for what, count in _account(day).items()))
    print("  said:     " + ", ".join(f"{count} {what}" for what, count in sorted(day.events.counts.items())))
    print(
        f"  at the end {last.rss_kib // 1024} MiB, {last.descriptors} descriptors, {last.threads} threads;",
        end=" ",
    )
    print(
        f"since the second quarter {grown.rss_kib:+} KiB, {grown.descriptors:+} descriptors, "
        f"{grown.threads:+} threads, {grown.objects:+} of {last.objects} objects of the agents"
    )


def _judge(day: Day) -> None:
    assert day.time.now_s >= DAY_S
    assert len(day.samples) == 25
    grown = growth(day.samples)
    # One may be open in the moment of a sample.
    assert grown.descriptors <= 1
    assert grown.threads <= 0
    assert grown.objects <= MAX_NEW_OBJECTS
    books = _account(day)
    assert sum(books.values()) == len(day.tickets)
    assert books["confirmed"] > len(day.tickets) / 2
    assert list(read_archive(day.state_dir)), "nothing moved to the archive"
    counts = day.events.counts
    # A loss that happened is a gap that was held, unless root could be asked for what was evicted.
    refetched = day.profile.admission_refetch
    assert counts["gap-held"] == (0 if refetched else day.happened["losses"])
    assert books["in an acknowledged gap"] == (0 if refetched else len(day.lost))
    # A life of the hive in which the agent took something is told from the next one.
    ends = day.ends()
    lives = {ticket.life for name, ticket in day.tickets.items() if name in ends}
    assert len(day.events.epochs) == len(lives) - 1
