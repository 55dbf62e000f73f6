"""Reading a pair: what agrees is handed out, everything else has a name and says what to do."""

from __future__ import annotations

from dataclasses import FrozenInstanceError, replace
from typing import TYPE_CHECKING

import pytest
from snapshot_shelf import NOW_MS, PROVIDER, SOURCE, Shelf, record

import ticket_agent.snapshots
from ticket_agent.protocol.namespace import HiveRefusedError, HiveUnreachableError, Refusal, RefusalKind
from ticket_agent.protocol.snapshot import UnavailableReason, encode_snapshot, snapshot_digest
from ticket_agent.protocol.snapshot_enrolment import (
    DEFAULT_ENROLMENT,
    SnapshotEnrolment,
    SnapshotPublisher,
)
from ticket_agent.protocol.snapshot_status import Withdrawn, encode_status, status_of
from ticket_agent.snapshots import (
    ClockRegressedError,
    DisagreementError,
    ExpiredError,
    MalformedRecordError,
    MalformedStatusError,
    NoSuchNodeError,
    NotEnrolledError,
    NothingVisibleError,
    NotObservedError,
    ReplacedError,
    SnapshotReader,
    SnapshotReadError,
    WithdrawnError,
    ttl_left_ms,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from ticket_agent.protocol.snapshot import HostSnapshot

READ_MS = NOW_MS + 1500


def reader_of(shelf: Shelf, **options: object) -> SnapshotReader:
    return SnapshotReader(shelf, shelf.enrolment, clock=lambda: READ_MS, **options)  # type: ignore[arg-type]


def _status_line(snapshot: HostSnapshot, **members: object) -> str:
    data = encode_snapshot(snapshot, domain=snapshot.source, bounds=DEFAULT_ENROLMENT.bounds)
    return encode_status(replace(status_of(snapshot, snapshot_digest(data)), **members))  # type: ignore[arg-type]


# -- what agrees ---------------------------------------------------------------------------------------------


def test_a_record_that_its_status_vouches_for_is_handed_out_whole() -> None:
    shelf = Shelf()
    snapshot = record(12, {"source": '"x"', "units/a": '{"up":true}'})
    shelf.put(snapshot)
    seen = reader_of(shelf, lag_s=2.0).read(PROVIDER, SOURCE)
    data = encode_snapshot(snapshot, domain=snapshot.source, bounds=shelf.enrolment.bounds)
    assert (seen.provider, seen.source_id, seen.pair) == (PROVIDER, SOURCE, f"{PROVIDER}/{SOURCE}")
    assert (seen.epoch, seen.sequence, seen.observed_unix_ms, seen.ttl_ms) == (1, 12, NOW_MS, 30_000)
    assert (seen.available_at_read, seen.reason, seen.entries) == (True, None, snapshot.entries)
    assert (seen.sha256, seen.size) == (snapshot_digest(data), len(data))
    assert (seen.read_unix_ms, seen.lag_s) == (READ_MS, 2.0)
    assert (seen.text("units/a"), seen.text("units/b")) == ('{"up":true}', None)
    with pytest.raises(FrozenInstanceError):
        seen.sequence = 13  # type: ignore[misc]


@pytest.mark.parametrize("reason", UnavailableReason)
def test_a_record_without_state_is_an_observation_too(reason: UnavailableReason) -> None:
    shelf = Shelf()
    shelf.put(record(reason=reason))
    seen = reader_of(shelf).read(PROVIDER, SOURCE)
    assert (seen.available_at_read, seen.reason, seen.entries) == (False, reason, ())
    assert ttl_left_ms(seen, READ_MS) is None


def test_the_record_is_read_before_its_status_and_nothing_is_kept() -> None:
    shelf = Shelf()
    reader = reader_of(shelf)
    shelf.put(record(1))
    assert reader.read(PROVIDER, SOURCE).sequence == 1
    paths = shelf.enrolment.paths(PROVIDER, SOURCE)
    assert shelf.reads == [paths.snapshot, paths.status]
    shelf.withdraw(Withdrawn.EXPIRED, 1)
    with pytest.raises(ExpiredError):
        reader.read(PROVIDER, SOURCE)
    assert shelf.reads == [paths.snapshot, paths.status] * 2


@pytest.mark.parametrize(
    ("later_ms", "left_ms"),
    [(-5_000, 30_000), (0, 30_000), (1, 29_999), (29_999, 1), (30_000, 0), (90_000, 0)],
)
def test_the_life_that_is_left_is_bounded_by_the_observation(later_ms: int, left_ms: int) -> None:
    shelf = Shelf()
    shelf.put(record())
    assert ttl_left_ms(reader_of(shelf).read(PROVIDER, SOURCE), NOW_MS + later_ms) == left_ms


def test_another_mount_and_epoch_are_the_enrolments() -> None:
    publisher = SnapshotPublisher(source_id="host-a", providers=("network",))
    shelf = Shelf(SnapshotEnrolment(mount="/elsewhere", epoch=7, publishers=(publisher,)))
    shelf.put(record(provider="network", source="host-a", epoch=7))
    assert reader_of(shelf).read("network", "host-a").epoch == 7
    assert shelf.reads[0] == "/elsewhere/snapshots/network/host-a/snapshot"


# -- nothing to see ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("reason", "sequence", "error", "words"),
    [
        (Withdrawn.UNOBSERVED, 0, NotObservedError, "start the publisher on linux-reference"),
        (Withdrawn.EXPIRED, 41, ExpiredError, "the last record had sequence 41; see on linux-reference"),
        (Withdrawn.CLOCK_REGRESSED, 41, ClockRegressedError, "receiver's clock went back"),
    ],
)
@pytest.mark.parametrize("lines", [[], [""]], ids=["no line", "an empty line"])
def test_an_empty_snapshot_is_explained_by_its_status(
    reason: Withdrawn, sequence: int, error: type[NothingVisibleError], words: str, lines: list[str]
) -> None:
    shelf = Shelf()
    shelf.withdraw(reason, sequence)
    shelf.nodes[shelf.enrolment.paths(PROVIDER, SOURCE).snapshot] = lines
    with pytest.raises(error, match=words) as caught:
        reader_of(shelf).read(PROVIDER, SOURCE)
    assert (caught.value.status.reason, caught.value.status.sequence) == (reason, sequence)
    assert str(caught.value) == f"{PROVIDER}/{SOURCE}: {caught.value.detail}"


@pytest.mark.parametrize(
    ("provider", "source"),
    [("launchd", SOURCE), (PROVIDER, "mac-controller"), (PROVIDER, "another"), ("", ""), ("..", SOURCE)],
)
def test_what_is_not_enrolled_is_not_asked_for(provider: str, source: str) -> None:
    shelf = Shelf()
    for ask in (reader_of(shelf).read, reader_of(shelf).status, reader_of(shelf).read_settled):
        with pytest.raises(NotEnrolledError, match="is not enrolled"):
            ask(provider, source)
    assert shelf.reads == []


def test_a_hive_without_the_pair_is_told_apart() -> None:
    shelf = Shelf()
    shelf.remove()
    with pytest.raises(NoSuchNodeError, match="runs with another manifest, or without snapshots"):
        reader_of(shelf).read(PROVIDER, SOURCE)
    with pytest.raises(NoSuchNodeError):
        reader_of(shelf).status(PROVIDER, SOURCE)


# -- between the two reads -----------------------------------------------------------------------------------

BETWEEN: dict[str, tuple[Callable[[Shelf], None], type[SnapshotReadError], str]] = {
    "replaced": (lambda shelf: shelf.put(record(6)), ReplacedError, "sequence 5 gave way to 6"),
    "replaced by a withdrawal": (
        lambda shelf: shelf.put(record(6, reason=UnavailableReason.SOURCE_FAILED)),
        ReplacedError,
        "sequence 5 gave way to 6",
    ),
    "expired": (
        lambda shelf: shelf.withdraw(Withdrawn.EXPIRED, 5),
        WithdrawnError,
        "sequence 5 expired while it was read",
    ),
    "replaced, then expired": (
        lambda shelf: shelf.withdraw(Withdrawn.EXPIRED, 6),
        WithdrawnError,
        "sequence 6 expired while it was read",
    ),
    "clock regressed": (
        lambda shelf: shelf.withdraw(Withdrawn.CLOCK_REGRESSED, 5),
        WithdrawnError,
        "the receiver's clock went back",
    ),
    "restarted": (
        lambda shelf: shelf.withdraw(Withdrawn.UNOBSERVED, 0),
        WithdrawnError,
        "the receiver restarted while sequence 5 was read",
    ),
    "restarted and observed again": (
        lambda shelf: shelf.put(record(2)),
        ReplacedError,
        r"sequence 5 gave way to 2 while it was read \(the receiver restarted\)",
    ),
    "restarted without the pair": (lambda shelf: shelf.remove(), NoSuchNodeError, "has no /host/snapshots"),
    "other bytes, same sequence": (
        lambda shelf: shelf.put(record(5, {"source": '"y"'})),
        DisagreementError,
        "differ in sha256",
    ),
}


@pytest.mark.parametrize("what", BETWEEN)
def test_what_happens_between_the_two_reads_shows_and_nothing_is_handed_out(what: str) -> None:
    change, error, words = BETWEEN[what]
    shelf = Shelf()
    shelf.put(record(5))
    shelf.between = lambda: change(shelf)
    with pytest.raises(error, match=words) as caught:
        reader_of(shelf).read(PROVIDER, SOURCE)
    assert type(caught.value) is error
    assert shelf.between is None


@pytest.mark.parametrize("before", [None, Withdrawn.UNOBSERVED, Withdrawn.EXPIRED])
def test_a_record_that_appears_between_the_two_reads_can_be_read_again(before: Withdrawn | None) -> None:
    shelf = Shelf()
    if before is not None:
        shelf.withdraw(before, 0 if before is Withdrawn.UNOBSERVED else 4)
    shelf.between = lambda: shelf.put(record(5))
    with pytest.raises(ReplacedError, match="sequence 5 appeared while it was read"):
        reader_of(shelf).read(PROVIDER, SOURCE)
    assert reader_of(shelf).read(PROVIDER, SOURCE).sequence == 5


@pytest.mark.parametrize(
    "stale",
    [
        lambda shelf: shelf.put(record(4), None),
        lambda shelf: shelf.withdraw(Withdrawn.EXPIRED, 4),
        lambda shelf: shelf.withdraw(Withdrawn.UNOBSERVED, 0),
    ],
    ids=["another record", "expired", "unobserved"],
)
def test_behind_a_gateway_an_older_status_says_nothing_about_a_newer_record(
    stale: Callable[[Shelf], None],
) -> None:
    shelf = Shelf()
    shelf.put(record(5))
    shelf.between = lambda: stale(shelf)
    with pytest.raises(
        ReplacedError, match=r"is older than its record \(sequence 5\); read it again in 2.0 s"
    ):
        reader_of(shelf, lag_s=2.0).read(PROVIDER, SOURCE)
    shelf.put(record(5))
    shelf.between = lambda: stale(shelf)
    reader = reader_of(shelf, lag_s=2.0, sleep=lambda _: shelf.put(record(5)))
    assert reader.read_settled(PROVIDER, SOURCE).sequence == 5


@pytest.mark.parametrize(
    ("members", "words"),
    [
        ({"epoch": 2}, "differ in epoch: 1 and 2"),
        ({"observed_unix_ms": NOW_MS + 1}, "differ in observed_unix_ms"),
        ({"ttl_ms": 29_999}, "differ in ttl_ms: 30000 and 29999"),
        ({"sha256": "0" * 64}, "differ in sha256"),
        ({"available": False}, "differ in state: available and unavailable"),
        ({"provider": "docker"}, "the status is of docker/linux-reference"),
        ({"source_id": "another"}, "the status is of systemd/another"),
        ({"provider": "docker", "sequence": 9}, "the status is of docker/linux-reference"),
    ],
)
def test_a_status_that_contradicts_its_record_is_no_replacement(
    members: dict[str, object], words: str
) -> None:
    shelf = Shelf()
    shelf.put(record(5), _status_line(record(5), **members))
    with pytest.raises(DisagreementError, match=words):
        reader_of(shelf).read_settled(PROVIDER, SOURCE)
    assert len(shelf.reads) == 2


# -- reading again -------------------------------------------------------------------------------------------


def _replace_each_time(shelf: Shelf, times: int) -> None:
    """Let the next ``times`` readings each find a newer status."""

    def change(sequence: int) -> None:
        shelf.put(record(sequence))
        if sequence <= times:
            shelf.between = lambda: change(sequence + 1)

    shelf.put(record(1))
    if times:
        shelf.between = lambda: change(2)


@pytest.mark.parametrize(("replaced", "attempts"), [(0, 1), (1, 2), (2, 3), (0, 3)])
@pytest.mark.parametrize("lag_s", [0.0, 2.0])
def test_a_replaced_record_is_read_again(replaced: int, attempts: int, lag_s: float) -> None:
    shelf = Shelf()
    _replace_each_time(shelf, replaced)
    slept: list[float] = []
    seen = reader_of(shelf, lag_s=lag_s, sleep=slept.append).read_settled(PROVIDER, SOURCE, attempts)
    assert seen.sequence == 1 + replaced
    assert len(slept) == (replaced if lag_s else 0)
    assert all(lag_s < one < lag_s + 0.1 for one in slept)


def test_a_record_that_is_replaced_each_time_is_given_up() -> None:
    shelf = Shelf()
    _replace_each_time(shelf, 9)
    with pytest.raises(ReplacedError, match="sequence 3 gave way to 4"):
        reader_of(shelf).read_settled(PROVIDER, SOURCE)
    assert len(shelf.reads) == 6


@pytest.mark.parametrize(
    "what", [what for what, (_, error, _) in BETWEEN.items() if error is not ReplacedError]
)
def test_nothing_but_a_replacement_is_read_again(what: str) -> None:
    change, error, _ = BETWEEN[what]
    shelf = Shelf()
    shelf.put(record(5))
    shelf.between = lambda: change(shelf)
    with pytest.raises(error):
        reader_of(shelf).read_settled(PROVIDER, SOURCE)
    assert len(shelf.reads) == 2


# -- what is no record and no status -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        (["{}"], "must have exactly the members"),
        (["not json"], "is not valid JSON"),
        (["[]"], "must be a JSON object"),
        (["{}", "{}"], "has 2 lines, not one"),
        (["", ""], "has 2 lines, not one"),
        ([" "], "is not valid JSON"),
        (["\udcff{}"], "is not UTF-8"),
        (["x" * 8193], "takes 8193 bytes"),
        (["[" * 8000], "nests more than"),
        (["{\x1b[2J}"], "is not valid JSON"),
    ],
)
def test_what_is_no_record_is_refused_without_asking_for_its_status(lines: list[str], words: str) -> None:
    shelf = Shelf()
    shelf.nodes[shelf.enrolment.paths(PROVIDER, SOURCE).snapshot] = lines
    with pytest.raises(MalformedRecordError, match=words) as caught:
        reader_of(shelf).read(PROVIDER, SOURCE)
    assert str(caught.value).isprintable()
    assert len(shelf.reads) == 1


def test_a_record_of_another_provider_of_the_source_is_refused() -> None:
    shelf = Shelf()
    other = record(provider="docker")
    data = encode_snapshot(other, domain=other.source, bounds=shelf.enrolment.bounds)
    shelf.put_raw(data, encode_status(status_of(replace(other, provider=PROVIDER), snapshot_digest(data))))
    with pytest.raises(MalformedRecordError, match="the record is of docker"):
        reader_of(shelf).read(PROVIDER, SOURCE)


def test_a_record_of_another_epoch_points_to_the_manifest() -> None:
    shelf = Shelf()
    shelf.put(record(epoch=2))
    with pytest.raises(MalformedRecordError, match="epoch must be 1; check that the manifest is this hive's"):
        reader_of(shelf).read(PROVIDER, SOURCE)


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        ([], "has 0 lines, not one"),
        (["a=1", "b=2"], "has 2 lines, not one"),
        ([""], "is no key=value field"),
        (["schema=host-snapshot-status/v2 state=available source=a provider=b sequence=1"], "schema must be"),
        (["x" * 1025], "at most 1024 bytes"),
        (["sch\xe9ma=1"], "ASCII"),
        (["schema=\x1b[2J"], "is missing"),
    ],
)
@pytest.mark.parametrize("visible", [True, False])
def test_what_is_no_status_is_refused(lines: list[str], words: str, visible: bool) -> None:
    shelf = Shelf()
    if visible:
        shelf.put(record())
    shelf.nodes[shelf.enrolment.paths(PROVIDER, SOURCE).status] = lines
    with pytest.raises(MalformedStatusError, match=words) as caught:
        reader_of(shelf).read(PROVIDER, SOURCE)
    assert str(caught.value).isprintable()
    with pytest.raises(MalformedStatusError, match=words):
        reader_of(shelf).status(PROVIDER, SOURCE)


def test_a_status_can_be_had_alone() -> None:
    shelf = Shelf()
    shelf.put(record(3))
    status = reader_of(shelf).status(PROVIDER, SOURCE)
    assert (status.sequence, status.available, status.reason) == (3, True, None)
    assert len(shelf.reads) == 1


@pytest.mark.parametrize(
    "error",
    [
        HiveUnreachableError("the console hung up"),
        HiveRefusedError("CAT", "/x", Refusal(kind=RefusalKind.DENIED, text="ERR CAT reason=denied")),
    ],
    ids=["unreachable", "denied"],
)
def test_errors_of_the_hive_pass_through(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    shelf = Shelf()

    def fail(path: str) -> list[str]:
        raise error

    monkeypatch.setattr(shelf, "read", fail)
    with pytest.raises(type(error)) as caught:
        reader_of(shelf).read_settled(PROVIDER, SOURCE)
    assert caught.value is error


# -- names ---------------------------------------------------------------------------------------------------


def test_the_package_offers_what_it_names_and_nothing_else() -> None:
    for name in ticket_agent.snapshots.__all__:
        assert getattr(ticket_agent.snapshots, name).__name__ == name
        assert name in dir(ticket_agent.snapshots)
    with pytest.raises(AttributeError, match="has no attribute 'Cache'"):
        _ = ticket_agent.snapshots.Cache


def test_every_error_has_a_code_of_its_own() -> None:
    errors = [
        value
        for name in ticket_agent.snapshots.__all__
        if isinstance(value := getattr(ticket_agent.snapshots, name), type)
        and issubclass(value, SnapshotReadError)
    ]
    assert len({error.code for error in errors}) == len(errors) == 12
    assert all(error.code.replace("-", "").isalpha() for error in errors)
