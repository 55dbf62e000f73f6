from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest
from collector_support import context, encoded, late_context, values
from network_support import host, ip_program, route

from ticket_agent.protocol.collecting import CollectError
from ticket_agent.protocol.snapshot import UnavailableReason
from ticket_agent.snapshots.collectors.network import MAX_TABLE_BYTES, collect

if TYPE_CHECKING:
    from pathlib import Path

IP = next((path for path in ("/usr/sbin/ip", "/sbin/ip") if os.path.exists(path)), None)  # noqa: PTH110
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="needs Linux")


def tables(**changed: bytes | list[Any]) -> dict[str, bytes | list[Any]]:
    found = host(2)
    native: dict[str, bytes | list[Any]] = {
        "links": list(found.links or ()),
        "addresses": list(found.addresses or ()),
        "routes": list(found.routes or ()),
    }
    return {**native, **changed}


@pytest.mark.skipif(IP is None, reason="needs iproute2 (Debian: iproute2)")
def test_the_network_of_this_machine() -> None:
    assert IP is not None
    entries = collect(context())
    assert encoded(entries)
    found = values(entries)
    assert found["source"] == "iproute2-rtnetlink-json"
    printed = json.loads(
        subprocess.run([IP, "-json", "link", "show"], check=True, capture_output=True).stdout
    )
    names = {row["ifname"] for row in printed}
    shown = {value[1] for path, value in found.items() if path.startswith("links/")}
    assert shown <= names
    assert "lo" in shown
    assert shown == names or found["projection"]["links"]["seen"] == len(names)


def test_each_table_is_what_its_command_prints(tmp_path: Path) -> None:
    entries = collect(context(), programs=["/nowhere/ip", ip_program(tmp_path, tables())])
    found = values(entries)
    assert [found[f"links/{number}"][1] for number in range(2)] == ["lo", "eth0"]
    assert found["addresses/1"][:2] == [2, "eth0"]
    assert found["routes/0"][-1][0] == "default"
    assert encoded(entries)


def test_a_table_larger_than_what_is_read_hides_no_other(tmp_path: Path) -> None:
    routes = [route(f"10.{n >> 16}.{n >> 8 & 255}.{n & 255}", protocol="bgp") for n in range(100_000)]
    assert len(json.dumps(routes)) > MAX_TABLE_BYTES
    entries = collect(context(), programs=[ip_program(tmp_path, tables(routes=routes))])
    found = values(entries)
    assert found["projection"]["routes"] == {"seen": None, "shown": 0}
    assert found["projection"]["links"] == {"seen": 2, "shown": 2}
    assert encoded(entries)


@pytest.mark.parametrize("table", ["links", "addresses", "routes"])
@pytest.mark.parametrize("output", [b"", b"{}", b"no", b"[" * 100_000, b"[1", b"\xef\xbb\xbf[]"])
def test_what_is_no_array_is_a_failure(tmp_path: Path, table: str, output: bytes) -> None:
    program = ip_program(tmp_path, tables(**{table: output}))
    with pytest.raises(CollectError, match=r"prints no JSON array .* iproute2") as caught:
        collect(context(), programs=[program])
    assert caught.value.reason is UnavailableReason.SOURCE_FAILED


def test_rows_that_nest_too_deep_are_a_failure(tmp_path: Path) -> None:
    deep = b'[{"mtu":' + b"[" * 900 + b"]" * 900 + b"}]"
    program = ip_program(tmp_path, tables(links=deep))
    try:
        entries = collect(context(), programs=[program])
    except CollectError as error:
        assert error.reason is UnavailableReason.SOURCE_FAILED  # noqa: PT017 - either way is good
    else:
        assert encoded(entries)


@pytest.mark.parametrize("table", ["links", "addresses", "routes"])
def test_a_failing_command_is_a_failure(tmp_path: Path, table: str) -> None:
    program = ip_program(tmp_path, tables(), failing=table)
    with pytest.raises(CollectError, match=r"ended with status 255.* BusyBox") as caught:
        collect(context(), programs=[program])
    assert caught.value.reason is UnavailableReason.SOURCE_FAILED


def test_without_iproute2_it_is_said_what_to_install(tmp_path: Path) -> None:
    with pytest.raises(CollectError, match="install the package iproute2") as caught:
        collect(context(), programs=[str(tmp_path / "ip"), str(tmp_path / "ip2")])
    assert caught.value.reason is UnavailableReason.SOURCE_FAILED


def test_nothing_is_looked_at_after_the_deadline(tmp_path: Path) -> None:
    with pytest.raises(CollectError) as caught:
        collect(late_context(), programs=[ip_program(tmp_path, tables())])
    assert caught.value.reason is UnavailableReason.TIMED_OUT


@pytest.mark.parametrize(
    ("platform", "told"),
    [("darwin", "COHESIX_MACOS_NETWORK_HELPER is not read"), ("freebsd14", "freebsd14"), ("win32", "win32")],
)
def test_other_systems_are_not_supported(platform: str, told: str) -> None:
    with pytest.raises(CollectError, match=told) as caught:
        collect(context({"COHESIX_MACOS_NETWORK_HELPER": "/bin/true"}), platform=platform)
    assert caught.value.reason is UnavailableReason.NOT_SUPPORTED
