"""`snapshots publish --watch`, as a service manager and an operator see it."""

from __future__ import annotations

import json
import signal
import socket
import time
from typing import TYPE_CHECKING

import pytest
from cli_support import PATIENCE_S
from hive_support import TOKEN
from metrics_support import Scrape, scrape_until, scrape_url
from publish_lab import EPOCH, SOURCE, Lab, publish_lab
from scripted_console import refused_port

from ticket_agent.exits import Exit
from ticket_agent.snapshots.watch import STUCK_AGAIN_S

if TYPE_CHECKING:
    from collections.abc import Iterator

    from cli_support import Operator

TICKET = "cohesix-ticket-" + "ab" * 40
QUICKLY_S = 12.0
"""Less than what is left of the longest interval."""
FAST = ["--interval", "rack=20"]


@pytest.fixture
def lab(operator: Operator) -> Iterator[Lab]:
    with publish_lab(operator, "rack", "changes") as opened:
        yield opened


@pytest.fixture
def manager(operator: Operator) -> Iterator[socket.socket]:
    """The notification socket of a service manager."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as channel:
        channel.bind(str(operator.tmp / "n"))
        channel.settimeout(PATIENCE_S)
        yield channel


# -- what is logged ------------------------------------------------------------------------------------------


def test_only_changes_are_logged(lab: Lab) -> None:
    told = lab.site / "told"
    told.write_text("1")
    with lab.watch(*FAST, "--interval", "changes=20") as publisher:
        started = publisher.event("snapshots-started")
        assert started["pid"] == publisher.process.pid
        assert (started["source"], started["epoch"], started["sequence"]) == (SOURCE, EPOCH, 0)
        assert started["providers"] == "rack,changes"
        lab.until_taken("changes", 5)
        told.unlink()
        publisher.event("snapshot-published", provider="changes", detail="not_enabled: there is no file")
        lab.until_taken("changes", 5)
        told.write_text("2")
        publisher.event("snapshot-published", provider="changes", detail="available")
        lab.until_taken("rack", 5)
        assert publisher.stop(signal.SIGTERM) == Exit.OK
        stopped = publisher.event("snapshots-stopped")
    assert stopped["sequence"] == len(lab.taken) == lab.taken[-1][0]
    found = [json.loads(line) for line in publisher.lines]
    published = [
        (entry["provider"], entry["level"]) for entry in found if entry["event"] == "snapshot-published"
    ]
    assert sorted(published) == [("changes", "info")] * 3 + [("rack", "info")]
    assert len(found) == 6


def test_a_failure_is_a_warning_and_said_once(operator: Operator) -> None:
    with (
        publish_lab(operator, "broken", "rack") as lab,
        lab.watch(*FAST, "--interval", "broken=20") as publisher,
    ):
        warning = publisher.event("snapshot-published", provider="broken")
        assert (warning["level"], warning["detail"]) == (
            "warning",
            "source_failed: RuntimeError: no licence:",
        )
        lab.until_taken("broken", 5)
        assert publisher.stop(signal.SIGINT) == Exit.OK
        publisher.event("snapshots-stopped")
        assert sum('"broken"' in line for line in publisher.lines) == 1


def test_a_log_for_people(lab: Lab) -> None:
    with lab.watch(*FAST, "--log-format", "text") as publisher:
        line = publisher.until(lambda text: "snapshot-published" in text)
        assert " info    snapshot-published detail=" in line
        assert publisher.stop(signal.SIGTERM) == Exit.OK


def test_every_publication_for_programs(lab: Lab) -> None:
    with lab.watch(*FAST, "--json", "--provider", "rack") as publisher:
        for number in (1, 2, 3):
            line = publisher.until(lambda text: "snapshots-publication" in text)
            told = json.loads(line)
            assert told["publication_schema"] == "cohesix-snapshot-publication/v1"
            assert (told["publication"]["sequence"], told["publication"]["available"]) == (number, True)
        assert publisher.stop(signal.SIGTERM) == Exit.OK


def test_no_secret_is_told(operator: Operator) -> None:
    with publish_lab(operator, "told_ticket") as lab, lab.watch("--json") as publisher:
        wanted = {"snapshots-publication", "snapshot-published"}

        def all_came(text: str) -> bool:
            # They come on two streams, in any order.
            wanted.difference_update({name for name in wanted if f'"{name}"' in text})
            return not wanted

        publisher.until(all_came)
        assert publisher.stop(signal.SIGTERM) == Exit.OK
        told = "\n".join(publisher.lines)
        assert TICKET not in told
        assert TOKEN not in told
        assert "[ticket " in told


# -- what hangs ----------------------------------------------------------------------------------------------


def test_a_look_that_hangs_is_withdrawn_and_holds_up_nobody(operator: Operator) -> None:
    opened = time.monotonic()
    with publish_lab(operator, "hangs", "rack", max_ttl_ms=4000) as lab:
        with lab.watch(*FAST, "--metrics-listen", "127.0.0.1:0") as publisher:
            url = _url(publisher)
            lab.until_taken("rack", 5)
            withdrawn = publisher.event("snapshot-published", provider="hangs")
            assert (withdrawn["level"], withdrawn["detail"]) == (
                "warning",
                "timed_out: no answer within 4.0 s",
            )
            assert json.loads(lab.shown("hangs"))["reason"] == "timed_out"
            lab.until_taken("rack", 5)
            # A look at the other one may take its second too, on a machine that has much to do.
            stuck = {("hangs",): 1, ("rack",): 0}
            found = _Prefixed(scrape_until(url, lambda found: found.all("snapshots_stuck") == stuck))
            assert found("available", provider="hangs") == 0
            began = time.monotonic()
            assert publisher.stop(signal.SIGTERM) == Exit.OK
            assert time.monotonic() - began < QUICKLY_S
        told = sum(name == "hangs" for _, name in lab.taken)
        assert 1 <= told <= 1 + (time.monotonic() - opened) // STUCK_AGAIN_S


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_it_stops_at_once_while_nothing_is_due(lab: Lab, number: int) -> None:
    with lab.watch("--interval", "rack=15000", "--interval", "changes=15000") as publisher:
        lab.until_each(1, "rack")
        began = time.monotonic()
        assert publisher.stop(number) == Exit.OK
        assert time.monotonic() - began < QUICKLY_S
        publisher.event("snapshots-stopped")


# -- the service manager -------------------------------------------------------------------------------------


def test_it_is_ready_when_the_first_record_is_visible(lab: Lab, manager: socket.socket) -> None:
    lab.hive.set_lifecycle("DRAINING")
    env = {"NOTIFY_SOCKET": str(lab.operator.tmp / "n"), "WATCHDOG_USEC": "2000000"}
    with lab.watch(*FAST, env=env) as publisher:
        publisher.event("snapshot-failed", code="snapshot-refused")
        assert [manager.recv(4096) for _ in range(2)] == [b"WATCHDOG=1"] * 2
        assert lab.taken == []
        lab.hive.set_lifecycle("ONLINE")
        while (heard := manager.recv(4096)) == b"WATCHDOG=1":
            pass
        assert heard == f"READY=1\nSTATUS=publishing for {SOURCE}".encode()
        assert lab.taken != []
        assert manager.recv(4096) == b"WATCHDOG=1"
        publisher.process.send_signal(signal.SIGTERM)
        while (heard := manager.recv(4096)) == b"WATCHDOG=1":
            pass
        assert heard == b"STOPPING=1"
        assert publisher.process.wait(PATIENCE_S) == Exit.OK


def test_without_a_watchdog_none_is_answered(lab: Lab, manager: socket.socket) -> None:
    with lab.watch(*FAST, env={"NOTIFY_SOCKET": str(lab.operator.tmp / "n")}) as publisher:
        assert manager.recv(4096).startswith(b"READY=1")
        assert publisher.stop(signal.SIGTERM) == Exit.OK
        assert manager.recv(4096) == b"STOPPING=1"


# -- metrics -------------------------------------------------------------------------------------------------


def _url(publisher: object) -> str:
    served = publisher.event("metrics-served")  # type: ignore[attr-defined]
    return f"http://{served['address']}:{served['port']}{served['path']}"


def _published(found: Scrape) -> dict[tuple[str, str], float]:
    """How many records were published, by provider and reason."""
    name = "snapshots_published_total"
    return {(provider, reason): count for (provider, reason), count in found.all(name).items()}


class _Prefixed(Scrape):
    """Samples without the part of their names that all have."""

    def __init__(self, inner: Scrape) -> None:
        self.families, self._samples = inner.families, inner._samples

    def get(self, name: str, **labels: str) -> float | None:
        return super().get(f"snapshots_{name}", **labels)


def test_it_is_scraped_and_leaves_its_last_numbers(lab: Lab) -> None:
    options = ["--metrics-listen", "127.0.0.1:0", "--metrics-textfile", "agent.prom"]
    with lab.watch("--interval", "rack=15000", "--interval", "changes=15000", *options) as publisher:
        url = _url(publisher)
        lab.until_each(1, "rack", "changes")
        found = _Prefixed(scrape_until(url, lambda found: len(_published(found)) == 2))
        assert set(_published(found)) == {("rack", "available"), ("changes", "not_enabled")}
        # One each, and more where getting here took longer than the interval lasts.
        assert found("sequence") == sum(_published(found).values())
        assert (found("healthy"), found("stuck", provider="rack")) == (1, 0)
        assert found("sent_bytes_total") > 400
        assert publisher.stop(signal.SIGTERM) == Exit.OK
    with pytest.raises(OSError, match="refused"):
        scrape_url(url)
    last = _Prefixed(Scrape((lab.operator.home / "agent.prom").read_text()))
    assert last("sequence") == len(lab.taken) == sum(_published(last).values())
    assert last("available", provider="rack") == 1


def test_an_address_that_is_taken_ends_the_start(lab: Lab) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        answer = lab.publish("--watch", "--metrics-listen", f"127.0.0.1:{port}")
    assert (answer.code, answer.out) == (Exit.FAILURE, "")
    assert (
        answer.line == f"ticket-agent: metrics cannot listen on 127.0.0.1 port {port}: Address already in use"
    )
    assert lab.taken == []


def test_a_file_that_cannot_be_written_stops_nobody(lab: Lab) -> None:
    with lab.watch(*FAST, "--metrics-textfile", "nowhere/agent.prom") as publisher:
        publisher.event("metrics-textfile-unwritable")
        lab.until_taken("rack", 3)
        assert publisher.stop(signal.SIGTERM) == Exit.OK


# -- the hive comes and goes ---------------------------------------------------------------------------------


def test_publishing_goes_on_after_a_restart_of_the_hive(lab: Lab) -> None:
    with lab.watch(*FAST) as publisher:
        lab.until_taken("rack", 3)
        lab.restart_hive()
        lab.until_taken("rack", 3)
        lab.until_taken("changes", 1)
        assert publisher.stop(signal.SIGTERM) == Exit.OK
    numbers = [number for number, _ in lab.taken]
    assert numbers == sorted(set(numbers))


def test_a_hive_that_is_not_there_is_waited_for(lab: Lab) -> None:
    away = ["--tcp-port", str(refused_port()), "--auth-token", "env:LAB_TOKEN", "--log-format", "json"]
    arguments = ["snapshots", "publish", "--watch", *lab.ours, *away]
    with lab.operator.spawn(*arguments, env=lab.env) as publisher:
        held = publisher.event("snapshots-held")
        assert (held["level"], held["retry_s"]) == ("error", 1)
        assert "check host, port and that the hive is up" in held["detail"]
        began = time.monotonic()
        assert publisher.stop(signal.SIGTERM) == Exit.OK
        assert time.monotonic() - began < QUICKLY_S


def test_a_second_publisher_elsewhere_ends_it(lab: Lab) -> None:
    other = lab.operator.home / "other"
    other.mkdir(mode=0o700)
    assert lab.publish("--provider", "rack", "--continue-after", "500").code == Exit.OK
    arguments = ["--provider", "rack", "--watch", "--state-dir", str(other)]
    answer = lab.publish(*arguments)
    assert (answer.code, answer.out) == (Exit.HIVE_REFUSED, "")
    assert "has taken sequence 501" in answer.line
    assert "start once with --continue-after 501" in answer.line
