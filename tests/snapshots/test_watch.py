"""The publisher's loop in virtual time, on a real console: who is published when, whatever the others do."""

from __future__ import annotations

import json
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest
from publisher_bench import Bench, Clocks, publishing, state_in
from virtual_looking import VirtualLookouts

from ticket_agent.protocol.collecting import CollectError, fact
from ticket_agent.protocol.namespace import HiveUnreachableError, Refusal, RefusalKind, Refused
from ticket_agent.protocol.snapshot import UnavailableReason
from ticket_agent.snapshots.cadence import Cadence, interval_ms
from ticket_agent.snapshots.publish_errors import CursorPoisonedError, ReceiverAheadError
from ticket_agent.snapshots.watch import Watch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from ticket_agent.protocol.collecting import CollectContext
    from ticket_agent.protocol.namespace import AppendAnswer
    from ticket_agent.protocol.snapshot import SnapshotEntry
    from ticket_agent.snapshots.publisher import Publication

PROVIDERS = ("systemd", "docker", "network")


@dataclass
class Heard:
    """What the loop told."""

    publications: list[Publication] = field(default_factory=list)
    failures: list[tuple[str, str, float]] = field(default_factory=list)
    holds: list[tuple[str, float]] = field(default_factory=list)

    def published(self, publication: Publication) -> None:
        self.publications.append(publication)

    def failed(self, provider: str, error: Exception, retry_s: float) -> None:
        self.failures.append((provider, getattr(error, "code", ""), retry_s))

    def held(self, error: Exception, retry_s: float) -> None:
        self.holds.append((getattr(error, "code", ""), retry_s))

    def of(self, provider: str) -> list[str]:
        """Reasons of a provider's publications; empty: it was available."""
        return [each.reason or "" for each in self.publications if each.provider == provider]


@dataclass
class Loop:
    bench: Bench
    watch: Watch
    looking: VirtualLookouts
    heard: Heard
    collect: dict[str, Callable[[CollectContext], list[SnapshotEntry]]]

    def run(self, seconds: float) -> None:
        end = self.bench.clocks.now_s + seconds
        while self.bench.clocks.now_s < end:
            self.watch.turn(min(1.0, max(0.0, end - self.bench.clocks.now_s)))


@contextmanager
def looping(path: Path, *, providers: tuple[str, ...] = PROVIDERS, **options: Any) -> Iterator[Loop]:
    with publishing(path, **options) as bench:
        collect: dict[str, Any] = dict.fromkeys(providers, lambda _: [fact("source", "lab")])
        collectors = {name: lambda context, name=name: collect[name](context) for name in providers}
        looking = VirtualLookouts(collectors, bench.clocks)
        heard = Heard()
        intervals = {name: interval_ms(name, {}) / 1000 for name in providers}
        watch = Watch(
            bench.publisher,
            looking,
            Cadence(intervals, bench.clocks.now_s),
            clock=bench.clocks.wall,
            monotonic=bench.clocks.monotonic_s,
            environ={"SETTING": "of the publisher"},
            notes=heard,
        )
        yield Loop(bench=bench, watch=watch, looking=looking, heard=heard, collect=collect)


@pytest.fixture
def loop(tmp_path: Path) -> Iterator[Loop]:
    with looping(tmp_path / "state") as made:
        yield made


def test_each_provider_has_its_cadence(loop: Loop) -> None:
    loop.run(20.0)
    counts = {name: len(loop.heard.of(name)) for name in PROVIDERS}
    assert counts == {"systemd": 10, "docker": 10, "network": 20}
    sequences = [each.sequence for each in loop.heard.publications]
    assert sequences == list(range(1, 41))
    assert loop.watch.figures.healthy
    assert loop.watch.figures.published["network", ""] == 20


@pytest.mark.parametrize(
    ("provider", "chosen", "ms"), [("k8s", {}, 5000), ("x", {}, 1000), ("x", {"x": 7}, 7)]
)
def test_intervals(provider: str, chosen: dict[str, int], ms: int) -> None:
    assert interval_ms(provider, chosen) == ms


def test_collectors_get_what_they_may_use(loop: Loop) -> None:
    found: list[CollectContext] = []

    def look(context: CollectContext) -> list[SnapshotEntry]:
        found.append(context)
        return []

    loop.collect["systemd"] = look
    loop.run(0.1)
    assert found[0].environ == {"SETTING": "of the publisher"}
    assert found[0].bounds == loop.bench.enrolment.bounds
    assert found[0].deadline.left_s() == pytest.approx(10.0, abs=0.2)


# -- one provider's trouble is its own ---------------------------------------------------------------------


def boom(_: CollectContext) -> list[SnapshotEntry]:
    raise RuntimeError("broken\ncollector\0 of a site")


def not_enabled(_: CollectContext) -> list[SnapshotEntry]:
    raise CollectError("there is none", UnavailableReason.NOT_ENABLED)


def no_entries(_: CollectContext) -> Any:
    return [("path", "value")]


def not_iterable(_: CollectContext) -> Any:
    return 7


def too_large(_: CollectContext) -> list[SnapshotEntry]:
    return [fact(f"x{number}", 1) for number in range(65)]


def wicked(_: CollectContext) -> list[SnapshotEntry]:
    return [fact("x", "\ud800")]


@pytest.mark.parametrize(
    ("fails", "reason"),
    [
        (boom, "source_failed"),
        (not_enabled, "not_enabled"),
        (no_entries, "source_failed"),
        (not_iterable, "source_failed"),
        (too_large, "source_failed"),
        (wicked, "source_failed"),
    ],
)
def test_a_collector_that_fails_silences_nobody(
    fails: Callable[[CollectContext], Any], reason: str, loop: Loop
) -> None:
    loop.collect["systemd"] = fails
    loop.run(10.0)
    assert loop.heard.of("systemd") == [reason] * 5
    assert loop.heard.of("network") == [""] * 10
    assert all("\n" not in each.detail for each in loop.heard.publications)
    loop.collect["systemd"] = lambda _: [fact("source", "lab")]
    loop.run(2.1)
    assert loop.heard.of("systemd")[-1] == ""


def test_a_collector_that_hangs_is_withdrawn_and_holds_up_nobody(loop: Loop) -> None:
    loop.run(1.0)
    assert json.loads(loop.bench.shown("systemd"))["available"]
    loop.looking.takes_s["systemd"] = 1e9
    loop.run(60.0)
    assert loop.heard.of("network").count("") >= 60
    assert set(loop.heard.of("systemd")[1:]) == {"timed_out"}
    # Told at the deadline, and again now and then: a receiver that was restarted has forgotten it.
    assert 4 <= loop.heard.of("systemd").count("timed_out") <= 6
    record = json.loads(loop.bench.shown("systemd"))
    assert (record["available"], record["reason"]) == (False, "timed_out")
    assert [name for name, _ in loop.looking.looks].count("systemd") == 2, "it has one look at a time"
    assert set(loop.looking.stuck()) == {"systemd"}


def test_what_a_late_look_brings_is_thrown_away(loop: Loop) -> None:
    loop.looking.takes_s["systemd"] = 12.0
    loop.run(11.9)
    assert loop.heard.of("systemd") == ["timed_out"]
    loop.looking.takes_s["systemd"] = 0.0
    loop.run(1.5)
    assert loop.heard.of("systemd") == ["timed_out", ""]
    assert loop.bench.status("systemd").observed_unix_ms is not None


def test_a_slow_collector_is_published_with_the_life_that_is_left(loop: Loop) -> None:
    loop.looking.takes_s["docker"] = 8.0
    loop.run(8.5)
    assert loop.heard.of("docker") == [""]
    docker = next(each for each in loop.heard.publications if each.provider == "docker")
    assert docker.ttl_ms == 22_000
    assert len(loop.heard.of("network")) == 9


def test_a_provider_that_is_refused_is_put_off_alone(loop: Loop) -> None:
    ctl = loop.bench.enrolment.paths("docker", "linux-reference").ctl
    inner = loop.bench.namespace.append

    def append(path: str, line: str, *, session: int | None = None) -> AppendAnswer:
        if path == ctl:
            return Refused(Refusal(kind=RefusalKind.INVALID_PAYLOAD, text="ERR"))
        return inner(path, line, session=session)

    loop.bench.namespace.append = append  # type: ignore[method-assign]
    loop.run(60.0)
    pauses = [pause for name, _, pause in loop.heard.failures if name == "docker"]
    assert pauses[:5] == [2.0, 4.0, 8.0, 16.0, 30.0]
    assert len(loop.heard.of("network")) == 60
    assert not loop.heard.holds


def test_one_denied_provider_starves_nobody(loop: Loop) -> None:
    inner = loop.bench.namespace.append

    def append(path: str, line: str, *, session: int | None = None) -> AppendAnswer:
        if "/systemd/" in path:
            return Refused(Refusal(kind=RefusalKind.DENIED, text="EPERM"))
        return inner(path, line, session=session)

    loop.bench.namespace.append = append  # type: ignore[method-assign]
    loop.run(20.0)
    assert len(loop.heard.of("network")) == 20
    assert len(loop.heard.of("docker")) == 10
    assert not loop.heard.holds


@pytest.mark.parametrize("takes_s", [1.9, 2.0, 2.1, 50.0])
def test_where_records_live_as_long_as_looks_a_late_look_is_withdrawn_too(
    takes_s: float, tmp_path: Path
) -> None:
    def slow(context: CollectContext) -> list[SnapshotEntry]:
        if context.deadline.passed():
            raise CollectError("too slow", UnavailableReason.TIMED_OUT)
        return [fact("source", "lab")]

    with looping(tmp_path / "state", max_ttl_ms=2000) as loop:
        loop.collect["systemd"] = slow
        loop.looking.takes_s["systemd"] = takes_s
        loop.run(9.0)
        reasons = set(loop.heard.of("systemd"))
        assert reasons == ({""} if takes_s < 2 else {"timed_out"})
        assert not [failure for failure in loop.heard.failures if failure[0] == "systemd"]


# -- what concerns all -------------------------------------------------------------------------------------


def test_a_hive_that_is_away_is_tried_again_and_told_once_per_try(loop: Loop) -> None:
    append = loop.bench.namespace.append

    def away(*_: Any, **__: Any) -> AppendAnswer:
        raise HiveUnreachableError("nobody there")

    loop.bench.namespace.append = away  # type: ignore[method-assign]
    loop.run(100.0)
    assert [pause for _, pause in loop.heard.holds] == [1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0, 30.0]
    assert loop.heard.publications == []
    assert not loop.watch.figures.healthy
    loop.bench.namespace.append = append  # type: ignore[method-assign]
    loop.run(40.0)
    assert {each.provider for each in loop.heard.publications} == set(PROVIDERS)
    assert loop.watch.figures.healthy


def test_a_draining_hive_is_waited_for(loop: Loop) -> None:
    loop.bench.hive.set_lifecycle("DRAINING")
    loop.run(5.0)
    assert {(name, code) for name, code, _ in loop.heard.failures} == {
        (name, "snapshot-refused") for name in PROVIDERS
    }
    loop.bench.hive.set_lifecycle("ONLINE")
    loop.run(10.0)
    assert loop.heard.of("network")


def test_a_rebooted_hive_is_filled_again(loop: Loop) -> None:
    loop.run(3.0)
    loop.bench.hive.reboot()
    assert loop.bench.status("network").sequence == 0
    loop.run(5.0)
    assert all(loop.bench.status(name).available for name in PROVIDERS)


def test_a_clock_that_went_back_is_waited_for(loop: Loop) -> None:
    loop.run(3.0)
    count = len(loop.heard.publications)
    loop.bench.clocks.wall_ms -= 20_000
    loop.run(15.0)
    assert len(loop.heard.publications) == count
    assert {code for code, _ in loop.heard.holds} == {"snapshot-clock"}
    loop.run(40.0)
    assert len(loop.heard.publications) > count


def test_another_publisher_ends_the_loop(loop: Loop, tmp_path: Path) -> None:
    loop.run(3.0)
    others = state_in(tmp_path / "other", continue_after=900)
    with publishing(
        tmp_path / "unused", state=others, clocks=Clocks(wall_ms=loop.bench.clocks.wall_ms)
    ) as other:
        other.namespace.inner = loop.bench.namespace.inner
        other.publisher.publish(other.seen("network", a=1))
    with pytest.raises(ReceiverAheadError):
        loop.run(3.0)


def test_a_broken_disk_ends_the_loop(loop: Loop) -> None:
    loop.run(1.0)
    loop.bench.state.close()
    with pytest.raises(CursorPoisonedError):
        loop.run(3.0)


def test_records_lapse_when_nobody_publishes_any_more(loop: Loop) -> None:
    loop.run(5.0)
    loop.bench.clocks.advance(30.0)
    assert [loop.bench.shown(name) for name in PROVIDERS] == ["", "", ""]
