from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ticket_agent.protocol.errors import SnapshotError, SnapshotLimitError
from ticket_agent.protocol.snapshot import DEFAULT_BOUNDS
from ticket_agent.protocol.snapshot_enrolment import (
    DEFAULT_ENROLMENT,
    MAX_CONSOLE_PATH,
    MAX_MANIFEST_BYTES,
    SnapshotEnrolment,
    SnapshotPublisher,
    encode_enrolment,
    parse_manifest,
)
from ticket_agent.protocol.tokens import U64_MAX

if TYPE_CHECKING:
    from collections.abc import Callable

LINUX, MAC = "linux-reference", "mac-controller"


def manifest(change: Callable[[dict[str, Any]], object] = lambda host: None, **members: Any) -> bytes:
    """The default manifest after ``change`` to ``ecosystem.host``, with other members at its top."""
    document = json.loads(encode_enrolment(DEFAULT_ENROLMENT))
    change(document["ecosystem"]["host"])
    return json.dumps(document | members).encode()


def snapshots(**members: Any) -> bytes:
    """The default manifest with other members of ``ecosystem.host.snapshots``; None takes one away."""

    def change(host: dict[str, Any]) -> None:
        host["snapshots"] |= members
        for name in [name for name, value in members.items() if value is None]:
            del host["snapshots"][name]

    return manifest(change)


def publisher(source_id: Any = "host-one", providers: Any = ("systemd",), **more: Any) -> dict[str, Any]:
    return {"source_id": source_id, "providers": providers, **more}


# -- what an unchanged manifest enrols -----------------------------------------------------------------------


def test_the_default_enrolment() -> None:
    enrolment = DEFAULT_ENROLMENT
    assert (enrolment.mount, enrolment.epoch, enrolment.bounds) == ("/host", 1, DEFAULT_BOUNDS)
    assert len(enrolment.pairs()) == 9
    assert enrolment.pairs()[:2] == (("systemd", LINUX), ("docker", LINUX))
    assert enrolment.providers() == [
        "docker",
        "endpoint_compliance",
        "jetson",
        "k8s",
        "launchd",
        "network",
        "nvidia",
        "systemd",
    ]
    assert enrolment.sources("network") == [LINUX, MAC]
    assert enrolment.sources("systemd") == [LINUX]
    assert enrolment.sources("net") == []
    assert enrolment.domain(MAC).providers == {"launchd", "network", "endpoint_compliance"}


def test_the_nodes_of_a_pair() -> None:
    paths = DEFAULT_ENROLMENT.require("network", MAC)
    assert DEFAULT_ENROLMENT.root == "/host/snapshots"
    assert (paths.ctl, paths.snapshot, paths.status) == tuple(
        f"/host/snapshots/network/mac-controller/{leaf}" for leaf in ("ctl", "snapshot", "status")
    )


@pytest.mark.parametrize(
    ("provider", "source_id", "member"),
    [("systemd", MAC, "provider"), ("net", LINUX, "provider"), ("systemd", "another", "source_id")],
)
def test_what_is_not_enrolled(provider: str, source_id: str, member: str) -> None:
    with pytest.raises(SnapshotError, match="enrolled") as refused:
        DEFAULT_ENROLMENT.require(provider, source_id)
    assert refused.value.member == member


def test_nobody_may_be_enrolled() -> None:
    enrolment = SnapshotEnrolment()
    assert (enrolment.pairs(), enrolment.providers()) == ((), [])
    with pytest.raises(SnapshotError, match="enrolled: none"):
        enrolment.publisher(LINUX)


# -- manifests -----------------------------------------------------------------------------------------------


def test_what_is_written_is_read() -> None:
    data = encode_enrolment(DEFAULT_ENROLMENT)
    assert parse_manifest(data) == DEFAULT_ENROLMENT
    assert data.endswith(b"}\n")


def test_members_that_belong_to_others_are_passed_over() -> None:
    data = manifest(lambda host: host.update(tickets={"enable": False}, providers=["x"]), profile={"a": 1})
    assert parse_manifest(data) == DEFAULT_ENROLMENT


def test_snapshots_can_be_switched_off() -> None:
    assert parse_manifest(snapshots(enable=False, publishers=[])) is None


@pytest.mark.parametrize("mount", ["/host", "/host/", "/edge/host"])
def test_mounts(mount: str) -> None:
    enrolment = parse_manifest(manifest(lambda host: host.update(mount_at=mount)))
    assert enrolment is not None
    assert enrolment.root == f"{mount.rstrip('/')}/snapshots"


REFUSED = {
    "no JSON": b"{",
    "an array": b"[]",
    "a byte order mark": b"\xef\xbb\xbf" + encode_enrolment(DEFAULT_ENROLMENT),
    "a member twice": encode_enrolment(DEFAULT_ENROLMENT).replace(
        b'"enable"', b'"enable": true, "enable"', 1
    ),
    "deep nesting": b"[" * 100_000,
    "too long": b" " * (MAX_MANIFEST_BYTES + 1),
    "no ecosystem": b"{}",
    "no host": b'{"ecosystem":{}}',
    "no snapshots": b'{"ecosystem":{"host":{}}}',
    "snapshots that are no object": manifest(lambda host: host.update(snapshots=[])),
    "no writer epoch": manifest(authority={}),
    "no authority": manifest(authority=None),
    "writer epoch 0": manifest(authority={"writer_epoch": 0}),
    "a writer epoch over u64": manifest(authority={"writer_epoch": U64_MAX + 1}),
    "true as the writer epoch": manifest(authority={"writer_epoch": True}),
    "a writer epoch that is a text": manifest(authority={"writer_epoch": "1"}),
    "host off": manifest(lambda host: host.update(enable=False)),
    "host neither on nor off": manifest(lambda host: host.pop("enable")),
    "1 as enable": snapshots(enable=1),
    "no enable": snapshots(enable=None),
    "off, with publishers": snapshots(enable=False),
    "an unknown member": snapshots(max_sources=8),
    "no mount": manifest(lambda host: host.pop("mount_at")),
    "a relative mount": manifest(lambda host: host.update(mount_at="host")),
    "a mount that climbs": manifest(lambda host: host.update(mount_at="/host/..")),
    "no publishers": snapshots(publishers=None),
    "publishers that are no array": snapshots(publishers={}),
    "a publisher that is no object": snapshots(publishers=[LINUX]),
    "a publisher with more": snapshots(publishers=[publisher(note="")]),
    "a publisher without providers": snapshots(publishers=[{"source_id": "a"}]),
    "no provider": snapshots(publishers=[publisher(providers=[])]),
    "a provider that is no text": snapshots(publishers=[publisher(providers=[1])]),
    "providers that are a text": snapshots(publishers=[publisher(providers="systemd")]),
    "a provider twice": snapshots(publishers=[publisher(providers=["systemd", "systemd"])]),
    "a provider with a leading underscore": snapshots(publishers=[publisher(providers=["_systemd"])]),
    "a provider that is a path": snapshots(publishers=[publisher(providers=["a/b"])]),
    "a source that is no text": snapshots(publishers=[publisher(source_id=1)]),
    "a source twice": snapshots(publishers=[publisher(), publisher(providers=["docker"])]),
    "a source of 33 characters": snapshots(publishers=[publisher(source_id="s" * 33)]),
    "a source that climbs": snapshots(publishers=[publisher(source_id="../x")]),
    "a source with a newline": snapshots(publishers=[publisher(source_id="a\nb")]),
    "an empty source": snapshots(publishers=[publisher(source_id="")]),
}


@pytest.mark.parametrize("data", REFUSED.values(), ids=REFUSED)
def test_refusals(data: bytes) -> None:
    with pytest.raises(SnapshotError) as refused:
        parse_manifest(data)
    assert not isinstance(refused.value, SnapshotLimitError)
    assert "\n" not in str(refused.value)


TOO_MUCH = {
    "max_bytes 8193": snapshots(max_bytes=8193),
    "max_bytes 0": snapshots(max_bytes=0),
    "no max_bytes": snapshots(max_bytes=None),
    "max_entries 65": snapshots(max_entries=65),
    "max_value_bytes 4097": snapshots(max_value_bytes=4097),
    "max_ttl_ms 30001": snapshots(max_ttl_ms=30_001),
    "true as max_ttl_ms": snapshots(max_ttl_ms=True),
    "a float as max_ttl_ms": snapshots(max_ttl_ms=1.0),
    "nine sources": snapshots(publishers=[publisher(source_id=f"s{i}") for i in range(9)]),
    "eight sources of three providers": snapshots(
        publishers=[publisher(source_id=f"s{i}", providers=["a", "b", "c"]) for i in range(8)]
    ),
    "17 providers": snapshots(publishers=[publisher(providers=[f"p{i}" for i in range(17)])]),
    "a path that no console takes": snapshots(
        publishers=[publisher(source_id="s" * 32, providers=["p" * (MAX_CONSOLE_PATH - 57)])]
    ),
}


@pytest.mark.parametrize("data", TOO_MUCH.values(), ids=TOO_MUCH)
def test_limits(data: bytes) -> None:
    with pytest.raises(SnapshotLimitError):
        parse_manifest(data)


def test_what_is_just_within_the_limits() -> None:
    eight = snapshots(publishers=[publisher(f"s{i}", ["a", "b"]) for i in range(8)])
    enrolment = parse_manifest(eight)
    assert enrolment is not None
    assert len(enrolment.pairs()) == 16
    provider = "p" * (MAX_CONSOLE_PATH - 58)
    enrolment = parse_manifest(snapshots(publishers=[publisher("s" * 32, [provider])]))
    assert enrolment is not None
    assert len(enrolment.paths(provider, "s" * 32).snapshot) == MAX_CONSOLE_PATH


NAMES = st.from_regex(r"\A[a-z0-9][a-z0-9_-]{0,11}\Z")


@st.composite
def enrolments(draw: st.DrawFn) -> SnapshotEnrolment:
    sources = draw(st.lists(NAMES, max_size=4, unique=True))
    return SnapshotEnrolment(
        mount=draw(st.sampled_from(["/host", "/edge/host"])),
        epoch=draw(st.integers(1, U64_MAX)),
        publishers=tuple(
            SnapshotPublisher(
                source_id=source,
                providers=tuple(draw(st.lists(NAMES, min_size=1, max_size=4, unique=True))),
            )
            for source in sources
        ),
    )


@given(enrolments())
def test_every_enrolment_survives_its_manifest(enrolment: SnapshotEnrolment) -> None:
    assert parse_manifest(encode_enrolment(enrolment)) == enrolment
    for provider, source_id in enrolment.pairs():
        assert provider in enrolment.providers()
        assert source_id in enrolment.sources(provider)
        assert provider in enrolment.domain(source_id).providers
        assert enrolment.require(provider, source_id) == enrolment.paths(provider, source_id)


@given(st.binary(max_size=300))
def test_no_bytes_do_anything_but_be_refused(data: bytes) -> None:
    with pytest.raises(SnapshotError):
        parse_manifest(data)
