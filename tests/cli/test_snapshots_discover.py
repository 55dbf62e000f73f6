"""`snapshots discover`: what a collector sees here and now, whatever the collector does."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from publish_lab import SOURCE, enrolling, install_site

from ticket_agent.exits import Exit
from ticket_agent.protocol.snapshot_enrolment import encode_enrolment

if TYPE_CHECKING:
    from cli_support import Answer, Operator

TICKET = "cohesix-ticket-" + "ab" * 40


@pytest.fixture
def site(operator: Operator) -> dict[str, str]:
    """The environment with a site's collectors."""
    folder = install_site(operator.home / "site")
    return {"PYTHONPATH": f"{operator.env['PYTHONPATH']}:{folder}", "SITE_FILE": str(folder / "told")}


def discover(operator: Operator, site: dict[str, str], *arguments: str) -> Answer:
    return operator.run("snapshots", "discover", *arguments, env=site)


def test_what_is_seen_is_shown_with_what_it_takes(operator: Operator, site: dict[str, str]) -> None:
    answer = discover(operator, site, "rack")
    assert (answer.code, answer.err) == (Exit.OK, "")
    assert answer.out.splitlines() == [
        "rack: available, 2 entries, 327 B, longest value 5 B",
        'rack   "b4"',
        "units  [1,2]",
    ]
    assert not operator.state.exists()


def test_what_is_seen_for_programs(operator: Operator, site: dict[str, str]) -> None:
    found = discover(operator, site, "rack", "--json").object
    assert found == {
        "schema": "ticket-agent-output/v1",
        "kind": "snapshots-discovery",
        "discovery_schema": "cohesix-native-discovery/v1",
        "provider_id": "rack",
        "observed_mode": "live",
        "proof_class": "read_only",
        "authoritative": False,
        "available": True,
        "reason": None,
        "detail": None,
        "obstacle": None,
        "entries": [{"path": "rack", "value": '"b4"'}, {"path": "units", "value": "[1,2]"}],
    }


UNAVAILABLE: dict[str, tuple[str, str]] = {
    "broken": ("source_failed", "RuntimeError: no licence:"),
    "changes": ("not_enabled", "there is no file"),
    "pairs": ("source_failed", "TypeError: a collector returns entries, not tuple"),
    "numbers": ("source_failed", "TypeError: the path of an entry is a text, not 1"),
    "number_value": ("source_failed", "TypeError: the value of an entry is a text, not 2"),
    "nothing": ("source_failed", "TypeError: 'NoneType' object is not iterable"),
    "odd_reason": ("source_failed", "an own reason"),
    "odd_detail": ("source_failed", "17"),
    "exits": ("source_failed", "SystemExit: done here"),
    "wordless": ("source_failed", "_Silent: it has no words for it"),
    "endpoint-compliance": ("not_supported", ""),
}


@pytest.mark.parametrize("name", [*UNAVAILABLE, "nobody"])
def test_nothing_to_see_is_one_line_with_the_reason(
    operator: Operator, site: dict[str, str], name: str
) -> None:
    reason, detail = UNAVAILABLE.get(name, ("not_supported", "no collector for nobody is installed"))
    answer = discover(operator, site, name)
    provider = name.replace("-", "_")
    assert (answer.code, answer.err) == (Exit.DEGRADED, "")
    (line,) = answer.out.splitlines()
    assert line.startswith(f"{provider}: unavailable, {reason}: {detail}")
    told = discover(operator, site, name, "--json")
    assert (told.code, told.object["available"], told.object["reason"]) == (Exit.DEGRADED, False, reason)
    assert told.object["detail"].startswith(detail)
    assert told.object["entries"] == []


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("too_large", "host snapshot takes 13766 bytes; the limit is 8192"),
        ("too_long", "1 entries, 1.3 KiB, longest value 1025 B: a record holds at most 64 entries, 8192"),
        ("surrogates", "must be 1..=6 parts"),
        ("surrogate_value", "a lone surrogate"),
        ("twice", "each path once"),
    ],
)
def test_what_no_publisher_would_publish_is_shown_and_said(
    operator: Operator, site: dict[str, str], name: str, words: str
) -> None:
    answer = discover(operator, site, name)
    assert (answer.code, answer.err) == (Exit.DEGRADED, "")
    first, *entries = answer.out.splitlines()
    assert first.startswith(f"{name}: cannot be published")
    assert words in first
    told = discover(operator, site, name, "--json")
    assert told.code == Exit.DEGRADED
    assert told.object["obstacle"]
    assert len(told.object["entries"]) == len(entries) > 0


def test_bounds_of_a_manifest_are_looked_at(operator: Operator, site: dict[str, str]) -> None:
    manifest = operator.home / "manifest.json"
    manifest.write_bytes(encode_enrolment(enrolling("rack", max_entries=1)))
    narrow = discover(operator, site, "rack", "--manifest", str(manifest))
    assert narrow.code == Exit.DEGRADED
    assert "a record holds at most 1 entries" in narrow.out
    assert discover(operator, site, "rack", "--default-enrolment").code == Exit.OK


def test_values_do_nothing_to_a_terminal_and_show_no_ticket(operator: Operator, site: dict[str, str]) -> None:
    for arguments in (["hostile"], ["hostile", "--json"], ["told_ticket"], ["told_ticket", "--json"]):
        answer = discover(operator, site, *arguments)
        assert TICKET not in answer.out
        assert "[ticket " in answer.out
        assert all(line.isprintable() for line in answer.out.splitlines())


def test_one_that_hangs_is_left_behind(operator: Operator, site: dict[str, str]) -> None:
    answer = discover(operator, site, "hangs", "--timeout", "0.3")
    assert answer.code == Exit.DEGRADED
    assert answer.out == "hangs: unavailable, timed_out: no answer within 0.3 s\n"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "PROVIDER"),
        (["rack", "--timeout", "0"], "--timeout"),
        (["rack", "--timeout", "61"], "--timeout"),
        (["rack", "--manifest", "missing.json"], "No such file"),
        (["rack", "--manifest", "x", "--default-enrolment"], "exclude each other"),
        (["rack", "--source-id", SOURCE], "--source-id"),
    ],
)
def test_wrong_usage_is_one_line(
    operator: Operator, site: dict[str, str], arguments: list[str], words: Any
) -> None:
    answer = discover(operator, site, *arguments)
    assert (answer.code, answer.out) == (Exit.USAGE, "")
    assert words in answer.line
