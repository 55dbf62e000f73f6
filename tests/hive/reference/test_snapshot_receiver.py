from __future__ import annotations

import base64
import hashlib
from typing import TYPE_CHECKING, Any

import pytest
from snapshot_vectors import ENROLMENT, LINUX, TRANSFERS, encoded, record

from ticket_agent.hive.reference import RefusalError
from ticket_agent.hive.reference.snapshot_receiver import SnapshotReceiver
from ticket_agent.protocol.snapshot_transfer import transfer_lines
from ticket_agent.protocol.tokens import U64_MAX

if TYPE_CHECKING:
    from ticket_agent.protocol.snapshot import HostSnapshot

MAC = "mac-controller"
ZEROS = "0" * 64
UNOBSERVED = (
    "schema=host-snapshot-status/v1 state=unavailable source=linux-reference provider=systemd sequence=0"
    " reason=unobserved"
)


class Played:
    """A receiver and what happens to one of its pairs; every operation polls first, as a hive does."""

    def __init__(self, provider: str = "systemd", source_id: str = LINUX) -> None:
        self.receiver = SnapshotReceiver(ENROLMENT)
        self.provider, self.source_id = provider, source_id

    def write(self, now: int, payload: str) -> str:
        self.receiver.poll(now)
        try:
            self.receiver.write(self.provider, self.source_id, payload, now)
        except RefusalError as refusal:
            return "err" if refusal.detail == "invalid-payload" else refusal.detail
        return "ok"

    def send(self, now: int, snapshot: HostSnapshot, *, end: int | None = None) -> str:
        """Transfer a record; what ``end`` is answered."""
        *lines, last = transfer_lines(encoded(snapshot), chunk_characters=80)
        assert {self.write(now, line) for line in lines} == {"ok"}
        return self.write(now if end is None else end, last)

    def snapshot(self, now: int) -> str:
        self.receiver.poll(now)
        return self.receiver.snapshot(self.provider, self.source_id)

    def status(self, now: int) -> str:
        self.receiver.poll(now)
        return self.receiver.status(self.provider, self.source_id)

    def reason(self, now: int) -> str:
        """What stands behind ``reason=`` in the status."""
        return self.status(now).partition(" reason=")[2]


@pytest.mark.parametrize("name", TRANSFERS)
def test_the_traces_of_the_vectors(name: str) -> None:
    played = Played()
    for now, step, expected in TRANSFERS[name]["steps"]:
        match step:
            case "READ snapshot":
                shown = played.snapshot(now)
                assert (hashlib.sha256(shown.encode()).hexdigest() if shown else "") == expected
            case "READ status":
                assert played.status(now) == expected
            case "POLL":
                played.receiver.poll(now)
                assert expected == "withdrawn"
                assert played.snapshot(now) == ""
            case _:
                assert played.write(now, step) == expected, step


def begin(size: int, digest: str = ZEROS) -> str:
    return f"begin bytes={size} sha256={digest}"


MALFORMED = [
    "",
    "END",
    " end",
    "end ",
    "end\n",
    "end\r",
    "\nend",
    "abort",
    "b64:",
    "B64:e30=",
    " b64:e30=",
    "b64:e30=\n",
    "b64:e30\re30",
    "begin",
    "begin ",
    " " + begin(2),
    begin(2) + "\n",
    begin(0),
    begin(8193),
    begin(10**30),
    f"begin bytes=+2 sha256={ZEROS}",
    f"begin bytes=-2 sha256={ZEROS}",
    f"begin bytes=02 sha256={ZEROS}",
    f"begin bytes=2.0 sha256={ZEROS}",
    f"begin bytes=٢ sha256={ZEROS}",
    f"begin bytes=2 bytes=2 sha256={ZEROS}",
    f"begin bytes=2 sha256={ZEROS} sha256={ZEROS}",
    f"begin bytes=2 sha256={ZEROS} ttl=1",
    f"begin bytes=2 sha256={ZEROS} x",
    f"begin bytes sha256={ZEROS}",
    "begin bytes=2",
    f"begin sha256={ZEROS}",
    begin(2, "A" * 64),
    begin(2, "0" * 63),
    begin(2, "0" * 65),
    begin(2, "g" * 64),
]


@pytest.mark.parametrize("payload", MALFORMED)
def test_what_is_no_command_costs_nothing(payload: str) -> None:
    played = Played()
    *lines, end = transfer_lines(encoded(record()))
    for line in lines:
        assert played.write(10, line) == "ok"
    assert played.write(10, payload) == "err"
    assert played.write(10, end) == "ok"


def test_the_keys_of_begin_come_in_any_order() -> None:
    data = encoded(record())
    played = Played()
    first, *rest = transfer_lines(data)
    words = first.split(" ")
    assert played.write(10, f"begin   {words[2]}  {words[1]} ") == "ok"
    assert [played.write(10, line) for line in rest] == ["ok", "ok"]
    assert played.snapshot(10).encode() == data


def test_nothing_can_be_appended_or_ended_before_it_begins() -> None:
    played = Played()
    assert [played.write(1, line) for line in ("b64:e30=", "end")] == ["err", "err"]
    assert played.status(1) == UNOBSERVED


def test_a_new_begin_replaces_the_upload() -> None:
    played = Played()
    assert played.write(1, begin(2)) == "ok"
    assert played.write(1, "b64:e3") == "ok"
    assert played.send(2, record()) == "ok"


@pytest.mark.parametrize(("size", "most"), [(1, 4), (2, 4), (3, 4), (4, 8), (8190, 10920), (8192, 10924)])
def test_no_more_text_is_taken_than_was_announced(size: int, most: int) -> None:
    played = Played()
    assert played.write(1, begin(size)) == "ok"
    assert played.write(1, "b64:" + "A" * (most + 1)) == "err"
    assert played.write(1, "b64:" + "A" * (most - 1)) == "ok"
    assert played.write(1, "b64:AA") == "err"
    assert played.write(1, "b64:é") == "err"
    assert played.write(1, "b64:A") == "ok"


def _text(data: bytes) -> str:
    return base64.b64encode(data).decode()


BROKEN = {
    "no base64": (b"ab", "!!!="),
    "no ascii": (b"abc", "éé"),
    "a lone surrogate": (b"abc", "\ud800"),
    "without its padding": (b"ab", "YWI"),
    "padding within": (b"abcd", "YWI=YWI="),
    "unused bits": (b"ab", "YWJ="),
    "url alphabet": (b"\xff\xff\xff", "____"),
    "blanks": (b"abcd", "YWJj ZA="),
    "too short": (b"abc", _text(b"ab")),
    "too long": (b"ab", _text(b"abc")),
    "other bytes": (b"ab", _text(b"cd")),
    "no utf-8": (b"\xff\xfe", _text(b"\xff\xfe")),
    "no record": (b"{}", _text(b"{}")),
    "another source": ((other := encoded(record(source_id=MAC))), _text(other)),
    "another provider": ((other := encoded(record(provider="docker"))), _text(other)),
    "not canonical": ((other := encoded(record()) + b" "), _text(other)),
}


@pytest.mark.parametrize(("announced", "text"), BROKEN.values(), ids=BROKEN)
def test_a_failed_end_takes_the_upload_and_nothing_else(announced: bytes, text: str) -> None:
    played = Played()
    assert played.send(1, record()) == "ok"
    before = (played.snapshot(5), played.status(5))
    digest = hashlib.sha256(announced).hexdigest()
    assert played.write(5, begin(len(announced), digest)) == "ok"
    assert played.write(5, f"b64:{text}") == "ok"
    assert played.write(5, "end") == "err"
    assert played.write(5, "b64:A") == "err"
    assert played.write(5, "end") == "err"
    assert (played.snapshot(5), played.status(5)) == before


def test_an_upload_lapses_with_the_longest_time_to_live() -> None:
    played = Played()
    longest = ENROLMENT.bounds.max_ttl_ms
    assert played.write(7, begin(2)) == "ok"
    assert played.write(7 + longest - 1, "b64:e3") == "ok"
    assert played.write(7 + longest, "b64:0=") == "err"
    assert played.write(7 + longest - 1, "b64:0=") == "err"


def test_a_refused_begin_leaves_the_upload_and_a_late_deadline_is_refused() -> None:
    played = Played()
    now = U64_MAX - ENROLMENT.bounds.max_ttl_ms
    assert played.write(now, begin(2)) == "ok"
    assert played.write(now + 1, begin(2)) == "err"
    assert played.write(now + 1, "b64:e30=") == "ok"


def test_an_end_after_the_time_to_live_does_not_use_up_the_sequence() -> None:
    played = Played()
    assert played.send(10, record(), end=110) == "err"
    assert played.status(110) == UNOBSERVED
    assert played.send(110, record(), end=209) == "ok"
    assert played.snapshot(209)
    assert (played.snapshot(210), played.reason(210)) == ("", "expired")


def test_a_retry_acknowledges_and_tells_of_what_is_visible() -> None:
    played = Played()
    assert played.send(20, record()) == "ok"
    before = played.status(20)
    assert played.send(115, record()) == "ok"
    assert played.status(119) == before
    assert (played.snapshot(120), played.reason(120)) == ("", "expired")
    assert played.send(130, record()) == "ok"
    assert (played.snapshot(130), played.reason(130)) == ("", "expired")


def test_two_sources_of_a_provider_do_not_know_of_each_other() -> None:
    linux = Played("network")
    mac = Played("network", MAC)
    mac.receiver = linux.receiver
    assert linux.send(10, record(5, provider="network")) == "ok"
    assert mac.send(60, record(1, provider="network", source_id=MAC)) == "ok"
    *lines, _ = transfer_lines(encoded(record(6, provider="network")))
    for line in lines:
        linux.write(60, line)
    assert mac.write(60, "end") == "err"
    assert linux.write(60, "end") == "ok"
    assert (linux.snapshot(159) != "", mac.snapshot(159) != "") == (True, True)
    assert (linux.reason(160), mac.reason(160)) == ("expired", "expired")


def test_a_clock_that_runs_backwards_withdraws_until_something_new_comes() -> None:
    played = Played()
    assert played.send(100, record(4)) == "ok"
    assert played.write(100, begin(2)) == "ok"
    assert (played.snapshot(99), played.reason(99)) == ("", "clock_regressed")
    assert " sequence=4 " in played.status(99)
    assert played.write(99, "b64:e30=") == "err"
    # Until the clock has caught up, whatever begins is dropped by the next operation.
    assert [played.write(99, line) for line in transfer_lines(encoded(record(5)))] == ["ok", "err", "err"]
    assert played.reason(100) == "clock_regressed"
    assert played.send(100, record(4)) == "ok"
    assert played.reason(100) == "expired"
    assert played.send(101, record(5)) == "ok"
    assert played.snapshot(101)


def test_a_pair_that_never_showed_anything_stays_unobserved() -> None:
    played = Played()
    assert [played.status(now) for now in (100, 50, 200)] == [UNOBSERVED] * 3


@pytest.mark.parametrize("pair", [("systemd", MAC), ("nope", LINUX), ("systemd", ""), (LINUX, "systemd")])
def test_what_is_not_enrolled_is_not_there(pair: tuple[str, str]) -> None:
    receiver = SnapshotReceiver(ENROLMENT)
    calls: list[Any] = [
        lambda: receiver.write(*pair, "end", 1),
        lambda: receiver.snapshot(*pair),
        lambda: receiver.status(*pair),
    ]
    for call in calls:
        with pytest.raises(RefusalError, match="invalid-path"):
            call()
