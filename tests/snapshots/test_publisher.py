"""Publishing one observation: its record, number, life and transfer, and what may go wrong with each."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from hive_support import CACHE_S, TOKEN
from publisher_bench import SOURCE, START_UNIX_MS, Bench, Clocks, publishing, state_in

from ticket_agent.hive.rest.client import RestConfig, RestNamespace
from ticket_agent.protocol.collecting import fact
from ticket_agent.protocol.namespace import (
    AppendAnswer,
    HiveUnreachableError,
    Refusal,
    RefusalKind,
    Refused,
    Unknown,
)
from ticket_agent.protocol.snapshot import UnavailableReason
from ticket_agent.protocol.snapshot_enrolment import DEFAULT_ENROLMENT
from ticket_agent.protocol.snapshot_enrolment import SnapshotPublisher as Enrolled
from ticket_agent.protocol.snapshot_transfer import CHUNK_CHARACTERS
from ticket_agent.snapshots.publish_errors import (
    CursorPoisonedError,
    PublishError,
    ReceiverAheadError,
    SourceClockError,
    TooLateError,
    TransferRefusedError,
    UnverifiedError,
)
from ticket_agent.snapshots.publisher import SnapshotPublisher

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

FAILED = UnavailableReason.SOURCE_FAILED


@pytest.fixture(params=["console", "rest"])
def bench(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Bench]:
    with publishing(tmp_path / "state", transport=request.param) as made:
        yield made


@pytest.fixture
def console(tmp_path: Path) -> Iterator[Bench]:
    with publishing(tmp_path / "state") as made:
        yield made


def big(count: int = 60, size: int = 80) -> dict[str, str]:
    return {f"entry-{number:02}": "x" * size for number in range(count)}


# -- what is published -------------------------------------------------------------------------------------


def test_a_record_becomes_visible(bench: Bench) -> None:
    seen = bench.seen(source="lab", units=[1, 2])
    bench.clocks.advance(0.25)
    found = bench.publisher.publish(seen)
    assert (found.sequence, found.reason, found.entries, found.visible_ms) == (1, None, 2, 250)
    assert json.loads(bench.shown()) == {
        "schema": "cohesix-host-snapshot/v1",
        "provider": "systemd",
        "source_id": SOURCE,
        "epoch": 1,
        "sequence": 1,
        "observed_unix_ms": START_UNIX_MS,
        "ttl_ms": 29_750,
        "available": True,
        "reason": None,
        "entries": [{"path": "source", "value": '"lab"'}, {"path": "units", "value": "[1,2]"}],
    }
    status = bench.status()
    assert (status.sequence, status.sha256, status.available) == (1, found.sha256, True)
    assert found.size == len(bench.shown())


def test_the_largest_record_goes_through(bench: Bench) -> None:
    seen = bench.seen(**big(60, 97))
    found = bench.publisher.publish(seen)
    assert 7800 < found.size <= 8192
    assert bench.shown().count("entry-") == 60
    assert max(map(len, bench.namespace.lines)) == len("b64:") + CHUNK_CHARACTERS


def test_entries_are_sorted_for_the_collector(console: Bench) -> None:
    seen = console.seen()
    entries = (fact("links/2", 0), fact("links/10", 0), fact("links.x", 0))
    console.publisher.publish(replace(seen, entries=entries))
    paths = [entry["path"] for entry in json.loads(console.shown())["entries"]]
    assert paths == ["links.x", "links/10", "links/2"]


@pytest.mark.parametrize("reason", list(UnavailableReason))
def test_a_failure_withdraws_what_was_true(reason: UnavailableReason, bench: Bench) -> None:
    bench.publisher.publish(bench.seen(source="lab"))
    found = bench.publisher.publish(bench.nothing(reason))
    assert (found.sequence, found.reason, found.detail) == (2, reason, "a word of the collector")
    record = json.loads(bench.shown())
    assert (record["available"], record["reason"], record["entries"]) == (False, reason, [])
    assert "a word of the collector" not in bench.shown()


@pytest.mark.parametrize(
    ("facts", "bounds", "words"),
    [
        ({"value": "x" * 1023}, {}, "1025 bytes under value"),
        (big(65, 1), {}, "65 entries"),
        (big(64, 100), {}, "bytes; the limit is 8192"),
        ({"a": 1}, {"max_bytes": 180}, "limit is 180"),
        ({"_hidden": 1}, {}, "start with a letter or digit"),
        ({"up/../side": 1}, {}, "parts joined by /"),
        ({"/root": 1}, {}, "parts joined by /"),
        ({"a/b/c/d/e/f/g": 1}, {}, "1..=6 parts"),
        ({"bad name": 1}, {}, "ASCII letters"),
    ],
)
def test_what_breaks_a_bound_is_withdrawn_whole_and_said(
    facts: dict[str, Any], bounds: dict[str, Any], words: str, tmp_path: Path
) -> None:
    with publishing(tmp_path / "state", **bounds) as bench:
        if bounds:
            # The withdrawal is larger than that as well: nothing at all can be published.
            with pytest.raises(Exception, match=words):
                bench.publisher.publish(bench.seen(**facts))
            return
        found = bench.publisher.publish(bench.seen(**facts))
        assert found.reason is FAILED
        assert words in found.detail
        assert json.loads(bench.shown())["entries"] == []


def test_a_path_twice_is_withdrawn(console: Bench) -> None:
    entries = (fact("a", 1), fact("a", 2))
    found = console.publisher.publish(replace(console.seen(), entries=entries))
    assert found.reason is FAILED
    assert "each path once" in found.detail


def test_providers_share_their_numbers(console: Bench) -> None:
    first = console.publisher.publish(console.seen("systemd", a=1))
    other = console.publisher.publish(console.seen("docker", a=1))
    again = console.publisher.publish(console.seen("systemd", a=1))
    assert [first.sequence, other.sequence, again.sequence] == [1, 2, 3]
    assert (console.status("systemd").sequence, console.status("docker").sequence) == (3, 2)


def test_a_source_that_is_not_enrolled_has_no_publisher(tmp_path: Path) -> None:
    others = replace(DEFAULT_ENROLMENT, publishers=(Enrolled(source_id="other", providers=("systemd",)),))
    with (
        pytest.raises(Exception, match="'linux-reference' is not enrolled in the manifest; enrolled: other"),
        publishing(tmp_path / "state", enrolment=others),
    ):
        pass


# -- its life ----------------------------------------------------------------------------------------------


def test_looking_and_sending_are_taken_off_its_life(console: Bench) -> None:
    seen = console.seen(a=1)
    console.clocks.advance(9.0)
    assert console.publisher.publish(seen).ttl_ms == 21_000
    console.clocks.advance(20.999)
    assert console.shown()
    console.clocks.advance(0.001)
    assert console.shown() == ""


def test_a_record_that_is_too_old_takes_no_number(console: Bench) -> None:
    seen = console.seen(a=1)
    console.clocks.advance(30.0)
    with pytest.raises(TooLateError, match=r"looking took until 30\.0 s"):
        console.publisher.publish(seen)
    assert console.state.cursor.sequence == 0
    assert console.namespace.lines == []


def test_a_number_whose_writing_takes_too_long_is_skipped(console: Bench) -> None:
    seen = console.seen(a=1)
    reserve = console.state.reserve

    def slow(observed_unix_ms: int) -> int:
        console.clocks.advance(31.0)
        return reserve(observed_unix_ms)

    console.state.reserve = slow  # type: ignore[method-assign]
    with pytest.raises(TooLateError):
        console.publisher.publish(seen)
    assert console.namespace.lines == []
    console.state.reserve = reserve  # type: ignore[method-assign]
    assert console.publisher.publish(console.seen(a=1)).sequence == 2


@pytest.mark.parametrize("at", [1, 2, 3])
def test_a_transfer_that_takes_too_long_is_not_ended(at: int, console: Bench) -> None:
    seen = console.seen(**big(40))

    def wait(line: str, answer: AppendAnswer) -> AppendAnswer:
        if len(console.namespace.lines) == at:
            console.clocks.advance(30.0)
        return answer

    console.namespace.after = wait
    with pytest.raises(TooLateError, match=r"(sending|coming to its transfer) took until 30\.0 s"):
        console.publisher.publish(seen)
    assert "end" not in console.namespace.lines
    assert console.status().sequence == 0


def test_a_short_life_shortens_the_look(tmp_path: Path) -> None:
    with publishing(tmp_path / "state", max_ttl_ms=400) as bench:
        look = bench.publisher.begin_look("systemd")
        assert look.deadline_s - look.began_s == pytest.approx(0.4)
    with publishing(tmp_path / "state") as bench:
        look = bench.publisher.begin_look("systemd")
        assert look.deadline_s - look.began_s == 10.0


@pytest.mark.parametrize("takes_s", [0.2, 0.3, 2.0, 9.0])
def test_a_slow_beginning_does_not_make_a_record_live_longer(takes_s: float, console: Bench) -> None:
    def slow(line: str) -> None:
        if line.startswith("begin"):
            console.clocks.advance(takes_s)

    console.namespace.before = slow
    for _ in range(2):
        seen = console.seen(a=1)
        found = console.publisher.publish(seen)
        console.clocks.advance(seen.look.began_s + 30.25 - console.clocks.now_s)
        assert console.shown() == "", "it lapsed with the look's life, or a quarter of a second later"
        assert console.status().sequence == found.sequence


@pytest.mark.parametrize(("step_s", "words"), [(8.0, "coming to its transfer"), (0.0, "longer each time")])
def test_a_beginning_that_is_always_slower_is_not_tried_for_ever(
    step_s: float, words: str, console: Bench
) -> None:
    def slower(line: str) -> None:
        if line.startswith("begin"):
            count = len(console.namespace.lines)
            console.clocks.advance(step_s * count if step_s else 0.3 * 3.0**count)

    console.namespace.before = slower
    with pytest.raises(TooLateError, match=words):
        console.publisher.publish(console.seen(a=1))
    assert all(line.startswith("begin") for line in console.namespace.lines)
    assert len(console.namespace.lines) <= 3


def test_a_sign_of_life_comes_before_each_command(tmp_path: Path) -> None:
    with publishing(tmp_path / "state") as bench:
        signs: list[int] = []
        publisher = SnapshotPublisher(
            bench.namespace,
            bench.enrolment,
            bench.state,
            clock=bench.clocks.wall,
            monotonic=bench.clocks.monotonic_s,
            alive=lambda: signs.append(len(bench.namespace.lines)),
        )
        publisher.publish(bench.seen(a=1))
        # The status, begin, a piece, the end, and the status again.
        assert signs == [0, 0, 1, 2, 3]


# -- clocks ------------------------------------------------------------------------------------------------


def test_a_clock_that_went_back_publishes_nothing(console: Bench) -> None:
    console.publisher.publish(console.seen(a=1))
    console.clocks.wall_ms -= 2500
    with pytest.raises(SourceClockError, match=r"2\.5 s behind"):
        console.seen(a=2)
    console.clocks.wall_ms += 2500
    console.clocks.wall_ms -= 7_200_000
    with pytest.raises(SourceClockError, match=r"7200\.0 s behind .*raise authority\.writer_epoch"):
        console.seen(a=2)
    console.clocks.wall_ms += 7_200_000
    assert console.publisher.publish(console.seen(a=2)).sequence == 2


def test_the_last_clock_is_known_after_a_restart(tmp_path: Path) -> None:
    clocks = Clocks()
    with publishing(tmp_path / "state", clocks=clocks) as bench:
        bench.publisher.publish(bench.seen(a=1))
    clocks.wall_ms -= 1
    with publishing(tmp_path / "state", clocks=clocks) as bench, pytest.raises(SourceClockError):
        bench.seen(a=1)


def test_a_look_that_began_before_another_was_published_is_fine(console: Bench) -> None:
    slow = console.seen("docker", a=1)
    console.clocks.advance(3.0)
    console.publisher.publish(console.seen("systemd", a=1))
    console.publisher.publish(slow)
    assert console.status("docker").observed_unix_ms == START_UNIX_MS
    assert console.state.cursor.observed_unix_ms == START_UNIX_MS + 3000


# -- the receiver's answers --------------------------------------------------------------------------------


def refusing(step: str, kind: RefusalKind, *, once: bool = False) -> Callable[[str], AppendAnswer | None]:
    done: list[str] = []

    def refuse(line: str) -> AppendAnswer | None:
        if line.startswith(step) and not (once and done):
            done.append(line)
            return Refused(Refusal(kind=kind, text=f"ERR ECHO {kind}"))
        return None

    return refuse


@pytest.mark.parametrize(
    ("step", "kind", "words"),
    [
        ("begin", RefusalKind.DENIED, "/proc/lifecycle/state"),
        ("begin", RefusalKind.BUSY, "/proc/lifecycle/state"),
        ("begin", RefusalKind.INVALID_PATH, "does not enrol"),
        ("begin", RefusalKind.INVALID_PAYLOAD, "writer epoch"),
        ("b64:", RefusalKind.INVALID_PAYLOAD, "writer epoch"),
        ("end", RefusalKind.INVALID_PAYLOAD, "writer epoch"),
        ("end", RefusalKind.BUFFER_FULL, "writer epoch"),
        ("b64:", RefusalKind.LIMIT, "writer epoch"),
    ],
)
def test_a_refused_step_ends_the_transfer(step: str, kind: RefusalKind, words: str, console: Bench) -> None:
    console.namespace.before = refusing(step, kind)
    with pytest.raises(TransferRefusedError, match=f"refused {step.rstrip(':')} ") as caught:
        console.publisher.publish(console.seen(a=1))
    assert words in str(caught.value)
    assert console.status().sequence == 0
    console.namespace.before = lambda _: None
    assert console.publisher.publish(console.seen(a=1)).sequence == 2


def test_a_lifecycle_that_takes_nothing_is_named(bench: Bench) -> None:
    bench.hive.set_lifecycle("DRAINING")
    with pytest.raises(TransferRefusedError, match="/proc/lifecycle/state"):
        bench.publisher.publish(bench.seen(a=1))
    bench.hive.set_lifecycle("ONLINE")
    assert bench.publisher.publish(bench.seen(a=1)).sequence == 2


def test_an_old_console_gets_smaller_pieces(console: Bench) -> None:
    def narrow(line: str) -> AppendAnswer | None:
        return Refused(Refusal(kind=RefusalKind.LIMIT, text="payload exceeds")) if len(line) > 600 else None

    console.namespace.before = narrow
    found = console.publisher.publish(console.seen(**big(40)))
    assert console.status().sha256 == found.sha256
    tried = len(console.namespace.lines)
    console.publisher.publish(console.seen(**big(40)))
    assert all(len(line) <= 600 for line in console.namespace.lines[tried:]), "it is remembered"


def test_each_new_try_has_the_life_that_is_left(console: Bench) -> None:
    seen = console.seen(**big(40))

    def narrow(line: str) -> AppendAnswer | None:
        if len(line) > 600:
            console.clocks.advance(1.0)
            return Refused(Refusal(kind=RefusalKind.LIMIT, text="payload exceeds"))
        return None

    console.namespace.before = narrow
    found = console.publisher.publish(seen)
    assert found.ttl_ms == 28_000
    console.clocks.advance(28.0)
    assert console.shown() == ""


def test_another_epoch_is_explained(tmp_path: Path) -> None:
    with publishing(tmp_path / "state") as bench:
        hive_of_epoch_2 = publishing(tmp_path / "other", enrolment=replace(DEFAULT_ENROLMENT, epoch=2))
        with hive_of_epoch_2 as other:
            bench.namespace.inner = other.namespace.inner
            with pytest.raises(TransferRefusedError, match="writer epoch"):
                bench.publisher.publish(bench.seen(a=1))


def test_a_hive_without_snapshots_is_explained(tmp_path: Path) -> None:
    only = (Enrolled(source_id=SOURCE, providers=("docker",)),)
    with publishing(tmp_path / "state") as bench:
        other_hive = publishing(tmp_path / "other", enrolment=replace(DEFAULT_ENROLMENT, publishers=only))
        with other_hive as other:
            bench.namespace.inner = other.namespace.inner
            with pytest.raises(TransferRefusedError, match="does not enrol this pair"):
                bench.publisher.publish(bench.seen("systemd", a=1))
            bench.publisher.publish(bench.seen("docker", a=1))


@pytest.mark.parametrize("late_s", [30.0, 400.0])
def test_a_record_that_lapsed_before_it_was_verified_is_nobody_elses(late_s: float, bench: Bench) -> None:
    def asleep(line: str, answer: AppendAnswer) -> AppendAnswer:
        if line == "end":
            bench.clocks.advance(late_s)
        return answer

    bench.namespace.after = asleep
    with pytest.raises(TooLateError, match=r"has lapsed already \(expired\)"):
        bench.publisher.publish(bench.seen(a=1))
    bench.namespace.after = lambda _, answer: answer
    assert bench.publisher.publish(bench.seen(a=1)).sequence == 2


def test_a_receiver_whose_clock_went_back_is_not_another_publisher(console: Bench) -> None:
    def back(line: str, answer: AppendAnswer) -> AppendAnswer:
        if line == "end":
            console.clocks.now_s -= 5.0
        return answer

    console.namespace.after = back
    with pytest.raises(TooLateError, match="clock_regressed"):
        console.publisher.publish(console.seen(a=1))


def test_a_manifest_of_another_epoch_is_named_where_the_hive_tells(tmp_path: Path) -> None:
    with publishing(tmp_path / "state", enrolment=replace(DEFAULT_ENROLMENT, epoch=2)) as hive:
        hive.publisher.publish(hive.seen(a=1))
        state = state_in(tmp_path / "other", continue_after=7)
        with publishing(tmp_path / "unused", state=state) as bench:
            bench.namespace.inner = hive.namespace.inner
            with pytest.raises(TransferRefusedError, match="in writer epoch 2, the manifest says 1"):
                bench.publisher.publish(bench.seen(a=1))


# -- lost answers ------------------------------------------------------------------------------------------


def test_a_lost_answer_to_the_end_is_read_back(bench: Bench) -> None:
    bench.namespace.after = lambda line, answer: Unknown("reset") if line == "end" else answer
    assert bench.publisher.publish(bench.seen(a=1)).sequence == 1


def test_an_end_that_never_arrived_is_not_taken_for_one_that_did(bench: Bench) -> None:
    bench.namespace.before = lambda line: Unknown("reset") if line == "end" else None
    with pytest.raises(UnverifiedError, match=r"sequence 0 \(unobserved\), not 1"):
        bench.publisher.publish(bench.seen(a=1))
    bench.namespace.before = lambda _: None
    assert bench.publisher.publish(bench.seen(a=1)).sequence == 2


def test_a_gateway_that_told_somebody_else_before_is_asked_again(tmp_path: Path) -> None:
    with publishing(tmp_path / "state", transport="rest") as bench:
        bench.publisher.publish(bench.seen(a=1))
        gateway = bench.namespace.inner
        assert isinstance(gateway, RestNamespace)
        with_another_reader = RestNamespace(
            RestConfig(url=gateway.config.url, auth_token=TOKEN, cache_s=CACHE_S)
        )

        def read_meanwhile(line: str) -> None:
            if line == "end":
                with_another_reader.read(bench.enrolment.paths("systemd", SOURCE).status)

        bench.namespace.before = read_meanwhile
        assert bench.publisher.publish(bench.seen(a=2)).sequence == 2
        with_another_reader.close()


@pytest.mark.parametrize("step", ["begin", "b64:"])
def test_a_lost_answer_before_the_end_ends_the_transfer(step: str, console: Bench) -> None:
    console.namespace.before = lambda line: Unknown("reset") if line.startswith(step) else None
    with pytest.raises(UnverifiedError, match="was not completed"):
        console.publisher.publish(console.seen(a=1))
    assert "end" not in console.namespace.lines


def test_a_transfer_stays_in_one_session(console: Bench) -> None:
    def part(line: str) -> None:
        if line == "end":
            console.namespace.inner.close()

    console.namespace.before = part
    with pytest.raises(HiveUnreachableError):
        console.publisher.publish(console.seen(a=1))
    assert console.status().sequence == 0


def test_a_hive_that_was_rebooted_gets_no_half_of_a_transfer(console: Bench) -> None:
    def reboot(line: str) -> None:
        if line == "end":
            console.hive.reboot()

    console.namespace.before = reboot
    with pytest.raises(PublishError):
        console.publisher.publish(console.seen(a=1))
    console.namespace.before = lambda _: None
    assert console.publisher.publish(console.seen(a=1)).sequence == 2
    assert console.status().sequence == 2


# -- somebody else -----------------------------------------------------------------------------------------


def test_a_lost_state_directory_is_noticed_before_anything_is_sent(tmp_path: Path) -> None:
    with publishing(tmp_path / "state") as bench:
        for _ in range(3):
            bench.publisher.publish(bench.seen(a=1))
        lost = state_in(tmp_path / "fresh")
        with publishing(tmp_path / "unused", state=lost) as late:
            late.namespace.inner = bench.namespace.inner
            late.namespace.lines.clear()
            with pytest.raises(ReceiverAheadError, match="--continue-after 3") as caught:
                late.publisher.publish(late.seen(a=1))
            assert caught.value.sequence == 3
            assert late.namespace.lines == []
        told = state_in(tmp_path / "fresh", continue_after=3)
        with publishing(tmp_path / "unused", state=told) as late:
            late.namespace.inner = bench.namespace.inner
            assert late.publisher.publish(late.seen(a=1)).sequence == 4


def test_a_second_publisher_elsewhere_is_noticed(tmp_path: Path) -> None:
    with publishing(tmp_path / "state") as bench:
        bench.publisher.publish(bench.seen(a=1))
        with publishing(tmp_path / "other", state=state_in(tmp_path / "o", continue_after=50)) as other:
            other.namespace.inner = bench.namespace.inner
            other.publisher.publish(other.seen(a=2))
        with pytest.raises(ReceiverAheadError, match="has taken sequence 51"):
            bench.publisher.publish(bench.seen(a=1))


def test_one_that_overtakes_is_noticed(console: Bench) -> None:
    def overtake(line: str, answer: AppendAnswer) -> AppendAnswer:
        if line == "end":
            console.namespace.after = lambda _, answer: answer
            console.state.reserve(START_UNIX_MS)
            console.publisher.publish(console.seen(a=3))
        return answer

    console.namespace.after = overtake
    with pytest.raises(ReceiverAheadError, match="has taken sequence 3"):
        console.publisher.publish(console.seen(a=1))


def test_nothing_is_sent_that_is_not_durable(console: Bench) -> None:
    console.state.close()
    with pytest.raises(CursorPoisonedError):
        console.publisher.publish(console.seen(a=1))
    assert console.namespace.lines == []
