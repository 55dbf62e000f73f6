from __future__ import annotations

import json
from hashlib import sha256
from typing import TYPE_CHECKING, Any

import pytest
from collector_support import encoded, values
from hypothesis import example, given
from hypothesis import strategies as st
from network_support import address, host, link, route

from ticket_agent.protocol.collecting import CollectError
from ticket_agent.protocol.snapshot import DEFAULT_BOUNDS, SnapshotBounds, UnavailableReason
from ticket_agent.snapshots.collectors.network_projection import project
from ticket_agent.snapshots.collectors.network_ranks import (
    link_kind,
    ranked_addresses,
    ranked_links,
    ranked_routes,
)
from ticket_agent.snapshots.collectors.network_tables import Tables, parse_rows, rows_digest

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ticket_agent.protocol.snapshot import SnapshotEntry

LINK_FIELDS = ["ifindex", "ifname", "flags", "mtu", "operstate", "address", "stats64", "stats"]
ROUTE_FIELDS = [
    *("dst", "gateway", "dev", "protocol", "scope"),
    *("prefsrc", "metric", "table", "type", "flags"),
]
DEFAULT_ROUTE = {"dst": "default", "gateway": "192.0.2.1", "dev": "eth0"}


def tables(
    links: list[Any] | None = None, addresses: list[Any] | None = None, routes: list[Any] | None = None
) -> Tables:
    return Tables(links=links or [], addresses=addresses or [], routes=routes or [])


def rows_of(found: dict[str, Any], kind: str) -> list[Any]:
    """Every value below a kind, in the order of its numbers, which have no gap."""
    numbers = sorted(int(path.split("/")[1]) for path in found if path.startswith(f"{kind}/"))
    assert numbers == list(range(len(numbers)))
    return [found[f"{kind}/{number}"] for number in numbers]


def counted(entries: list[SnapshotEntry]) -> dict[str, int]:
    """Rows that are in the entries."""
    found = values(entries)
    return {
        "links": len(rows_of(found, "links")),
        "addresses": sum(len(row[2]) for row in rows_of(found, "addresses")),
        "routes": sum(len(group) for group in rows_of(found, "routes")),
    }


def test_columns_are_named_once_and_rows_are_arrays() -> None:
    """The published example of the three tables."""
    entries = project(
        tables(
            links=[
                {
                    "ifindex": 3,
                    "ifname": "eth0",
                    "stats64": {"rx": {"bytes": 4294967297, "errors": 2}, "tx": {"bytes": 4, "errors": 0}},
                }
            ],
            addresses=[
                {
                    "ifindex": 3,
                    "ifname": "eth0",
                    "addr_info": [
                        {"local": "192.0.2.1", "prefixlen": 24, "scope": "global"},
                        {"local": "2001:db8::1", "prefixlen": 64, "scope": "global", "temporary": True},
                    ],
                }
            ],
            routes=[DEFAULT_ROUTE] * 9,
        ),
        DEFAULT_BOUNDS,
    )
    row = '["default","192.0.2.1","eth0",null,null,null,null,null,null,null]'
    assert {entry.path: entry.value for entry in entries} == {
        "addresses/0": '[3,"eth0",[["192.0.2.1",24,"global",null],["2001:db8::1",64,"global",true]]]',
        "fields/address-info": '["local","prefixlen","scope","temporary"]',
        "fields/addresses": '["ifindex","ifname","addr_info"]',
        "fields/link-stats": '["bytes","errors"]',
        "fields/links": json.dumps(LINK_FIELDS, separators=(",", ":")),
        "fields/routes": json.dumps(ROUTE_FIELDS, separators=(",", ":")),
        "links/0": '[3,"eth0",null,null,null,null,{"rx":[4294967297,2],"tx":[4,0]},null]',
        "routes/0": f"[{','.join([row] * 8)}]",
        "routes/1": f"[{row}]",
        "source": '"iproute2-rtnetlink-json"',
    }


def test_empty_tables_still_name_their_columns() -> None:
    found = values(project(tables(), DEFAULT_BOUNDS))
    assert found == {
        "source": "iproute2-rtnetlink-json",
        "fields/links": LINK_FIELDS,
        "fields/link-stats": [],
        "fields/addresses": ["ifindex", "ifname", "addr_info"],
        "fields/address-info": [],
        "fields/routes": ROUTE_FIELDS,
    }


def test_a_group_of_routes_takes_768_bytes_and_keeps_their_order() -> None:
    rows = [route(f"10.0.0.{number}", note="dropped", table="x" * 100) for number in range(9)]
    groups = rows_of(values(project(tables(routes=rows), DEFAULT_BOUNDS)), "routes")
    assert [row[0] for group in groups for row in group] == [row["dst"] for row in rows]
    assert [len(group) for group in groups] == [4, 4, 1]
    assert all(len(json.dumps(group, separators=(",", ":"))) <= 768 for group in groups)


def test_counters_that_only_some_links_have_are_null_for_the_others() -> None:
    rows = [
        {"ifname": "a", "stats64": {"rx": {"x": 1}}},
        {"ifname": "b", "stats": {"tx": {"y": 2}}},
        {"ifname": "c"},
    ]
    found = values(project(tables(links=rows), DEFAULT_BOUNDS))
    assert found["fields/link-stats"] == ["x", "y"]
    assert found["links/0"][6:] == [{"rx": [1, None], "tx": [None, None]}, None]
    assert found["links/1"][6:] == [None, {"rx": [None, None], "tx": [None, 2]}]
    assert found["links/2"][6:] == [None, None]


def test_more_than_32_short_rows_are_shown_when_they_fit() -> None:
    rows = [{"ifindex": number, "ifname": f"e{number}"} for number in range(40)]
    found = values(project(tables(links=rows), DEFAULT_BOUNDS))
    assert len(rows_of(found, "links")) == 40
    assert "projection" not in found


@pytest.mark.parametrize("links", [1, 8])
def test_a_host_that_fits_has_no_projection(links: int) -> None:
    entries = project(host(links), DEFAULT_BOUNDS)
    assert "projection" not in values(entries)
    assert counted(entries) == {"links": links, "addresses": links, "routes": 4}
    assert encoded(entries)


@pytest.mark.parametrize("links", [31, 33, 300, 5000])
def test_a_host_with_many_links_shows_the_important_ones_and_counts_the_rest(links: int) -> None:
    entries = project(host(links), DEFAULT_BOUNDS)
    assert len(encoded(entries)) > 7500
    found, shown = values(entries), counted(entries)
    projection = found["projection"]
    assert projection["links"] == {"seen": links, "shown": shown["links"]}
    assert projection["addresses"] == {"seen": links, "shown": shown["addresses"]}
    assert projection["routes"] == {"seen": 4, "shown": 4}
    assert [row[1] for row in rows_of(found, "links")[:3]] == ["eth0", "lo", "veth0000000"]
    assert found["routes/0"][0][:3] == ["default", "10.0.0.1", "eth0"]
    left_out = links - shown["links"]
    assert found["groups/veth"] == {
        "count": left_out,
        "up": left_out,
        "rx_bytes": 1000 * left_out,
        "tx_bytes": 500 * left_out,
    }
    assert shown["links"] >= 12


def test_a_router_shows_its_default_route_and_all_links() -> None:
    entries = project(host(3, 100_000), DEFAULT_BOUNDS)
    found, shown = values(entries), counted(entries)
    assert found["projection"]["routes"] == {"seen": 100_000, "shown": shown["routes"]}
    assert shown["routes"] > 50
    assert shown["links"] == shown["addresses"] == 3
    assert found["routes/0"][0][0] == "default"
    assert not any(path.startswith("groups/") for path in found)
    assert encoded(entries)


def test_the_digest_tells_a_change_in_a_row_that_is_left_out() -> None:
    def digests(changed: Tables) -> Any:
        return values(project(changed, DEFAULT_BOUNDS))["projection"]["sha256"]

    before, after = host(300), host(300)
    assert digests(before) == digests(after)
    assert after.links is not None
    last: Any = after.links[-1]
    last["stats64"]["rx"]["bytes"] += 1
    assert digests(before) == digests(after)
    last["mtu"] = 9000
    assert digests(before)["links"] != digests(after)["links"]
    assert digests(before)["addresses"] == digests(after)["addresses"]


def test_running_lifetimes_do_not_change_a_digest() -> None:
    row = address(link(1, "a"), "fe80::1")
    aged = json.loads(json.dumps(row))
    aged["addr_info"][0]["valid_life_time"] = 17
    assert rows_digest([row]) == rows_digest([aged])
    assert rows_digest([route("x", expires=5)]) == rows_digest([route("x", expires=4)])
    aged["addr_info"][0]["prefixlen"] = 65
    assert rows_digest([row]) != rows_digest([aged])


def test_a_digest_is_that_of_the_compact_table() -> None:
    assert rows_digest([]) == sha256(b"[]").hexdigest()
    text = '[{"a":1,"b":"é"},2]'
    assert rows_digest([{"b": "é", "a": 1}, 2]) == sha256(text.encode()).hexdigest()


def test_a_table_that_was_too_large_to_read_has_no_number() -> None:
    found = values(project(Tables(links=[link(1, "lo")], addresses=[], routes=None), DEFAULT_BOUNDS))
    assert found["projection"]["routes"] == {"seen": None, "shown": 0}
    assert found["projection"]["sha256"]["routes"] is None
    assert found["projection"]["links"] == {"seen": 1, "shown": 1}
    assert not [path for path in found if "routes" in path]


def test_the_addresses_of_one_link_are_split_when_they_do_not_fit_one_value() -> None:
    row = link(2, "eth0")
    local = [f"2001:db8::{number:x}" for number in range(30)]
    entries = project(tables(links=[row], addresses=[address(row, *local)]), DEFAULT_BOUNDS)
    found = values(entries)
    parts = rows_of(found, "addresses")
    assert len(parts) > 1
    assert all(part[:2] == [2, "eth0"] for part in parts)
    column = found["fields/address-info"].index("local")
    assert [info[column] for part in parts for info in part[2]] == local
    assert found["projection"]["addresses"] == {"seen": 30, "shown": 30}


ODD_LINKS: list[Any] = [
    17,
    None,
    {"ifname": "x", "stats64": 5},
    {"ifname": "x", "stats": {"rx": [1]}},
    {"ifname": "\udcff"},
    {"ifname": "x" * 1100},
    {"ifname": "x", "mtu": float("inf")},
    {"ifname": "x", "stats64": {"rx": {"k" * 65: 1}}},
    {"ifname": "x", "stats64": {"rx": {f"n{number}": 1 for number in range(33)}}},
]


@pytest.mark.parametrize("odd", ODD_LINKS)
def test_one_odd_link_is_left_out_and_hides_no_other(odd: Any) -> None:
    entries = project(tables(links=[odd, link(2, "eth0"), odd]), DEFAULT_BOUNDS)
    found = values(entries)
    assert found["projection"]["links"] == {"seen": 3, "shown": 1}
    assert [row[1] for row in rows_of(found, "links")] == ["eth0"]
    assert sum(found[path]["count"] for path in found if path.startswith("groups/")) == 2
    assert encoded(entries)


@pytest.mark.parametrize(
    "odd",
    [
        3,
        {"ifindex": 1, "ifname": "x", "addr_info": 5},
        {"ifindex": 1, "ifname": "x", "addr_info": [5]},
        {"ifindex": 1, "ifname": "\udcff", "addr_info": [{"local": "fe80::1"}]},
        {"ifindex": 1, "ifname": "x", "addr_info": [{"local": "\udcff"}]},
        {"ifindex": 1, "ifname": "x" * 1100, "addr_info": [{"local": "fe80::1"}]},
        {"ifindex": 1, "ifname": "x", "addr_info": [{"k" * 65: "fe80::1"}]},
    ],
)
def test_one_odd_address_is_left_out_and_hides_no_other(odd: Any) -> None:
    good = address(link(2, "eth0"), "192.0.2.1")
    entries = project(tables(addresses=[odd, good]), DEFAULT_BOUNDS)
    found = values(entries)
    assert found["projection"]["addresses"] == {"seen": 2, "shown": 1}
    assert encoded(entries)


@pytest.mark.parametrize("odd", [3, "x", {"dst": "x" * 800}, {"dst": "\udcff"}])
def test_one_odd_route_is_left_out_and_hides_no_other(odd: Any) -> None:
    entries = project(tables(routes=[route("a"), odd, route("b"), odd, route("c")]), DEFAULT_BOUNDS)
    found = values(entries)
    assert found["projection"]["routes"] == {"seen": 5, "shown": 3}
    assert [row[0] for group in rows_of(found, "routes") for row in group] == ["a", "b", "c"]


def test_rare_kinds_are_together_and_all_groups_are_all_links_left_out() -> None:
    rows = [link(number, f"k{chr(97 + number % 12)}{number}") for number in range(200)]
    entries = project(tables(links=rows), DEFAULT_BOUNDS)
    found = values(entries)
    groups = {path: value["count"] for path, value in found.items() if path.startswith("groups/")}
    assert len(groups) == 7
    assert "groups/other" in groups
    assert sum(groups.values()) == 200 - found["projection"]["links"]["shown"]


@pytest.mark.parametrize(
    ("row", "kind"),
    [
        ({"ifname": "veth1a2b3c4"}, "veth"),
        ({"ifname": "vethabcdefa"}, "veth"),
        ({"ifname": "cali12ab"}, "cali"),
        ({"ifname": "br-0a1b2c3d"}, "br"),
        ({"ifname": "br0"}, "br"),
        ({"ifname": "docker0"}, "docker"),
        ({"ifname": "eth0.100"}, "eth"),
        ({"ifname": "enp3s0f1"}, "enp"),
        ({"ifname": "ifb0"}, "ifb"),
        ({"ifname": "lo"}, "lo"),
        ({"ifname": "anything", "linkinfo": {"info_kind": "vxlan"}}, "vxlan"),
        ({"ifname": "eth0", "linkinfo": {"info_kind": 5}}, "eth"),
        ({"ifname": "1234"}, "other"),
        ({"ifname": "über"}, "other"),
        ({"ifname": 5}, "other"),
        ({}, "other"),
        (None, "other"),
    ],
)
def test_the_kind_of_a_link(row: object, kind: str) -> None:
    assert link_kind(row) == kind


def test_links_that_lead_out_come_first_and_virtual_ones_last() -> None:
    rows = [
        link(1, "lo", "LOOPBACK", "UP"),
        link(2, "eth0", "BROADCAST"),
        link(3, "docker0"),
        link(4, "eth1"),
        link(5, "wg0"),
        link(6, "bond0"),
        {**link(7, "x"), "linkinfo": {"info_kind": "vxlan"}},
        link(8, "eth2"),
    ]
    several = {"dst": "::/0", "nexthops": [{"dev": "eth2"}, 5]}
    routes = [route("default", "wg0"), several, route("x", "eth0"), 7]
    names = [row["ifname"] for row in ranked_links(rows, routes) if isinstance(row, dict)]
    assert names == ["eth2", "wg0", "eth1", "bond0", "lo", "docker0", "x", "eth0"]


def test_routes_are_ranked_by_what_they_lead_to() -> None:
    rows = [
        route("10.0.0.0/8"),
        route("fd00::/64", pref="medium"),
        route("127.0.0.0/8", "lo", table="local"),
        route("default", gateway="fe80::1", pref="medium"),
        route("default", table=100),
        route("default", gateway="10.0.0.1"),
        5,
    ]
    assert [rows.index(row) for row in ranked_routes(rows)] == [5, 3, 4, 0, 1, 2, 6]


def test_addresses_follow_their_links() -> None:
    first, second, third = link(1, "a"), link(2, "b"), link(3, "c")
    rows = [address(first), address(second), address(third), 5]
    assert ranked_addresses(rows, [third, first]) == [rows[2], rows[0], rows[1], 5]


@pytest.mark.parametrize("text", ["{}", "", "[", "5", '"x"', "[1]]", "[1e", "[" + "9" * 5000 + "]"])
def test_anything_but_an_array_is_no_table(text: str) -> None:
    with pytest.raises(ValueError):
        parse_rows(text.encode())


def test_a_name_that_is_not_utf8_does_not_break_the_table() -> None:
    rows = parse_rows(b'[{"ifname":"\xff"},{"ifname":"eth0"}]')
    found = values(project(tables(links=rows), DEFAULT_BOUNDS))
    assert found["projection"]["links"] == {"seen": 2, "shown": 1}


@pytest.mark.parametrize(
    "bounds",
    [SnapshotBounds(max_bytes=700), SnapshotBounds(max_entries=1), SnapshotBounds(max_value_bytes=200)],
)
def test_bounds_without_room_for_the_projection_are_told(bounds: SnapshotBounds) -> None:
    with pytest.raises(CollectError, match="raise ecosystem") as caught:
        project(host(300), bounds)
    assert caught.value.reason is UnavailableReason.SOURCE_FAILED


SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**40), 2**64),
    st.text(max_size=20),
    st.floats(),
    st.just("\udcff"),
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=8), inner, max_size=3)
    ),
    max_leaves=6,
)
COUNTS = st.dictionaries(st.sampled_from(["bytes", "packets", "errors", "x" * 64, "y" * 65]), SCALARS)
LINKS = st.fixed_dictionaries(
    {},
    optional={
        "ifindex": st.one_of(st.integers(0, 99), VALUES),
        "ifname": st.one_of(st.from_regex(r"(veth|eth|br-|lo)[0-9a-f]{0,8}", fullmatch=True), VALUES),
        "flags": st.one_of(st.lists(st.sampled_from(["UP", "LOOPBACK"])), VALUES),
        "mtu": VALUES,
        "linkinfo": st.one_of(VALUES, st.fixed_dictionaries({"info_kind": VALUES})),
        "stats64": st.one_of(VALUES, st.fixed_dictionaries({"rx": COUNTS, "tx": COUNTS})),
        "stats": VALUES,
        "z": VALUES,
    },
)
INFOS = st.dictionaries(st.one_of(st.sampled_from(["local", "scope"]), st.text(max_size=70)), SCALARS)
ADDRESSES = st.fixed_dictionaries(
    {},
    optional={
        "ifindex": st.one_of(st.integers(0, 99), VALUES),
        "ifname": SCALARS,
        "addr_info": st.one_of(st.lists(INFOS, max_size=5), VALUES),
    },
)
ROUTES = st.fixed_dictionaries(
    {},
    optional={
        "dst": st.one_of(st.just("default"), st.text(max_size=900)),
        "dev": SCALARS,
        "table": SCALARS,
        "gateway": SCALARS,
        "nexthops": VALUES,
        "flags": VALUES,
    },
)


def table(rows: st.SearchStrategy[Any]) -> st.SearchStrategy[list[Any] | None]:
    some = st.lists(st.one_of(rows, VALUES), max_size=8)
    many = st.builds(lambda found, times: found * times, some, st.integers(1, 60))
    return st.one_of(st.none(), some, many)


TABLES = st.builds(Tables, links=table(LINKS), addresses=table(ADDRESSES), routes=table(ROUTES))
BOUNDS = st.one_of(
    st.just(DEFAULT_BOUNDS),
    st.builds(
        SnapshotBounds,
        max_bytes=st.integers(1, 8192),
        max_entries=st.integers(1, 64),
        max_value_bytes=st.integers(1, 4096),
    ),
    st.builds(
        SnapshotBounds,
        max_bytes=st.integers(800, 2500),
        max_entries=st.integers(2, 12),
        max_value_bytes=st.integers(300, 500),
    ),
)


def seen_addresses(rows: Sequence[object]) -> int:
    def number(row: Any) -> int:
        infos = row.get("addr_info", []) if isinstance(row, dict) else None
        good = isinstance(infos, list) and all(isinstance(info, dict) for info in infos)
        return len(infos) if good and infos is not None else 1

    return sum(number(row) for row in rows)


@given(found=TABLES, bounds=BOUNDS)
@example(found=host(300, 300), bounds=SnapshotBounds(max_bytes=900, max_value_bytes=400))
@example(found=host(300, 300), bounds=SnapshotBounds(max_bytes=1300, max_entries=3, max_value_bytes=400))
def test_whatever_is_shown_fits_and_every_row_is_shown_or_counted(
    found: Tables, bounds: SnapshotBounds
) -> None:
    try:
        entries = project(found, bounds)
    except CollectError:
        assert bounds.max_bytes < 1000 or bounds.max_entries < 2 or bounds.max_value_bytes < 400
        return
    assert encoded(entries, bounds)
    assert entries == project(found, bounds)
    shown = counted(entries)
    shown_values = values(entries)
    if "projection" not in shown_values:
        assert found.links is not None
        assert found.addresses is not None
        assert found.routes is not None
        assert shown["links"] == len(found.links)
        assert shown["routes"] == len(found.routes)
        assert shown["addresses"] == seen_addresses(found.addresses)
        return
    projection = shown_values["projection"]
    assert projection["links"]["seen"] == (None if found.links is None else len(found.links))
    assert projection["routes"]["seen"] == (None if found.routes is None else len(found.routes))
    assert projection["addresses"]["seen"] == (
        None if found.addresses is None else seen_addresses(found.addresses)
    )
    assert {kind: projection[kind]["shown"] for kind in shown} == shown
    for kind, number in shown.items():
        assert (f"fields/{kind}" in shown_values) == bool(number)
    groups = [value for path, value in shown_values.items() if path.startswith("groups/")]
    if groups:
        assert sum(group["count"] for group in groups) == len(found.links or []) - shown["links"]
