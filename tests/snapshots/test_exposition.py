"""The publisher's numbers as a Prometheus server reads them."""

from __future__ import annotations

import threading
from dataclasses import FrozenInstanceError, fields, replace
from typing import Any

import pytest
from metrics_support import Scrape, scrape_of

from ticket_agent import __version__
from ticket_agent.protocol.snapshot import UnavailableReason
from ticket_agent.snapshots.exposition import PublisherMetrics
from ticket_agent.snapshots.picture import Picture, picture_of
from ticket_agent.snapshots.publisher import Publication
from ticket_agent.snapshots.watch import Figures

NOW_MS = 1_790_000_000_000


def publication(provider: str = "systemd", **changes: Any) -> Publication:
    members: dict[str, Any] = {
        "provider": provider,
        "sequence": 7,
        "reason": None,
        "detail": "",
        "entries": 3,
        "sha256": "0" * 64,
        "size": 400,
        "sent": 700,
        "ttl_ms": 29_000,
        "visible_ms": 250,
    }
    return Publication(**members | changes)


def busy() -> Picture:
    """A picture in which everything has happened."""
    figures = Figures(healthy=True)
    figures.published["systemd", ""] = 4
    figures.published["docker", "timed_out"] = 2
    figures.failed["docker", "snapshot-refused"] = 3
    figures.held["hive-unreachable"] = 1
    figures.last["systemd"] = publication()
    figures.last["docker"] = publication("docker", reason=UnavailableReason.TIMED_OUT, visible_ms=10_001)
    figures.last_unix_ms.update(systemd=NOW_MS - 1500, docker=NOW_MS - 90_000)
    return picture_of(
        figures,
        unix_ms=NOW_MS,
        providers=("systemd", "docker", "network"),
        sequence=9,
        sent=1234,
        stuck=frozenset({"docker"}),
    )


def shown(picture: Picture, now_ms: int = NOW_MS) -> Scrape:
    metrics = PublisherMetrics(lambda: now_ms)
    metrics.picture = picture
    return scrape_of(metrics.registry)


def test_everything_has_its_number() -> None:
    found = shown(busy())
    assert found("snapshots_build_info", version=__version__) == 1
    assert found.all("snapshots_published_total") == {("systemd", "available"): 4, ("docker", "timed_out"): 2}
    assert found.all("snapshots_failed_total") == {("snapshot-refused", "docker"): 3}
    assert found.all("snapshots_held_total") == {("hive-unreachable",): 1}
    assert found("snapshots_sent_bytes_total") == 1234
    assert found("snapshots_sequence") == 9
    assert found("snapshots_healthy") == 1
    assert found.all("snapshots_age_seconds") == {("systemd",): 1.5, ("docker",): 90}
    assert found.all("snapshots_available") == {("systemd",): 1, ("docker",): 0}
    assert found.all("snapshots_visible_seconds") == {("systemd",): 0.25, ("docker",): 10.001}
    assert found.all("snapshots_stuck") == {("systemd",): 0, ("docker",): 1, ("network",): 0}


def test_before_the_first_turn_there_is_little_to_say() -> None:
    found = shown(Picture())
    assert found("snapshots_sequence") == found("snapshots_healthy") == 0
    for name in ("published_total", "failed_total", "held_total", "age_seconds", "available", "stuck"):
        assert found.all(f"snapshots_{name}") == {}


def test_a_failure_shows_until_the_next_publication() -> None:
    assert shown(replace(busy(), healthy=False))("snapshots_healthy") == 0


def test_ages_are_those_of_the_moment_of_asking_and_never_negative() -> None:
    assert shown(busy(), NOW_MS + 60_000)("snapshots_age_seconds", provider="systemd") == 61.5
    assert shown(busy(), NOW_MS - 60_000)("snapshots_age_seconds", provider="systemd") == 0


def test_names_and_helps_follow_the_conventions() -> None:
    for family in shown(busy()).families.values():
        assert family.name.startswith("ticket_agent_snapshots_")
        assert family.documentation.endswith(".")
        assert family.type in {"gauge", "counter"}
        assert not family.name.endswith(("_ms", "_millis"))


def test_labels_of_any_provider_are_escaped() -> None:
    odd = 'a"b\\c\nd'
    picture = replace(busy(), providers=(odd,), published={(odd, ""): 1})
    found = shown(picture)
    assert found("snapshots_stuck", provider=odd) == 0
    assert found("snapshots_published_total", provider=odd, reason="available") == 1


def test_a_record_that_has_lapsed_is_not_available() -> None:
    last = publication()
    for age_ms, available in ((0, 1), (last.ttl_ms - 1, 1), (last.ttl_ms, 0), (10 * last.ttl_ms, 0)):
        picture = busy()
        found = shown(picture, picture.last_unix_ms["systemd"] + age_ms)
        assert found("snapshots_available", provider="systemd") == available


def test_a_picture_does_not_change() -> None:
    figures = Figures()
    figures.published["systemd", ""] = 1
    taken = picture_of(figures, unix_ms=1, providers=("systemd",), sequence=1, sent=1, stuck=frozenset())
    figures.published["systemd", ""] += 1
    figures.failed["systemd", "x"] += 1
    figures.held["x"] += 1
    figures.last["systemd"] = publication()
    figures.last_unix_ms["systemd"] = 5
    figures.healthy = False
    assert taken.published == {("systemd", ""): 1}
    assert (taken.failed, taken.held, taken.last, taken.last_unix_ms) == ({}, {}, {}, {})
    assert taken.healthy
    for each in fields(taken):
        with pytest.raises(FrozenInstanceError):
            setattr(taken, each.name, getattr(taken, each.name))


def test_a_reader_in_another_thread_sees_one_picture_at_a_time() -> None:
    """Each picture says its number everywhere; a mixture of two would say two."""
    metrics = PublisherMetrics(lambda: NOW_MS)
    rounds = 200
    mixed: list[str] = []

    def picture(number: int) -> Picture:
        return replace(
            busy(), sequence=number, sent=number, published={("systemd", ""): number}, held={"x": number}
        )

    metrics.picture = picture(0)
    done = threading.Event()

    def read() -> None:
        while not done.is_set():
            found = scrape_of(metrics.registry)
            said = {
                found("snapshots_sequence"),
                found("snapshots_sent_bytes_total"),
                found("snapshots_published_total", provider="systemd", reason="available"),
                found("snapshots_held_total", code="x"),
            }
            if len(said) != 1:
                mixed.append(str(said))

    reader = threading.Thread(target=read)
    reader.start()
    for number in range(rounds):
        metrics.picture = picture(number)
    done.set()
    reader.join(60)
    assert mixed == []
