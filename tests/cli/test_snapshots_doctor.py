"""`snapshots doctor`: each check's line and code, and that looking changes nothing."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import pytest
from cli_support import Answer, contents, now_ms
from publish_lab import EPOCH, PART, SOURCE, Lab, enrolling, publish_lab
from scripted_console import refused_port

from ticket_agent.exits import Exit
from ticket_agent.snapshots.cursor_text import Cursor, encode_cursor

if TYPE_CHECKING:
    from collections.abc import Iterator

    from cli_support import Operator

TICKET = "cohesix-ticket-" + "ab" * 40
DAY_MS = 86_400_000


@pytest.fixture
def lab(operator: Operator) -> Iterator[Lab]:
    with publish_lab(operator, "rack", "changes") as opened:
        yield opened


def checks(answer: Answer) -> dict[str, tuple[str, str]]:
    """Verdict and detail of every check."""
    assert {entry["kind"] for entry in answer.objects} == {"check"}
    return {entry["name"]: (entry["verdict"], entry["detail"]) for entry in answer.objects}


def looked(lab: Lab, *more: str, code: Exit = Exit.OK, **options: Any) -> dict[str, tuple[str, str]]:
    """Run it, and see that it left everything as it was."""
    before, sent = contents(lab.operator.state), list(lab.sent)
    answer = lab.command("doctor", "--json", *more, **options)
    assert answer.code == code, answer.out + answer.err
    assert answer.err == ""
    assert (contents(lab.operator.state), lab.sent) == (before, sent)
    return checks(answer)


def test_everything_in_order_before_the_first_publication(lab: Lab) -> None:
    (lab.site / "told").write_text("1")
    found = looked(lab)
    assert {name: verdict for name, (verdict, _) in found.items()} == dict.fromkeys(
        [
            "enrolment",
            "state directory",
            "cursor",
            "clock",
            "provider rack",
            "provider changes",
            "hive",
            "receiver rack",
            "receiver changes",
        ],
        "ok",
    )
    assert found["enrolment"][1] == (
        f"{SOURCE} in epoch {EPOCH}: rack, changes; at most 8192 bytes, 64 entries, 1024 bytes per value,"
        " 30000 ms"
    )
    assert found["state directory"][1] == f"{lab.operator.state}, this user's, closed to others"
    assert found["cursor"][1] == "none yet; the first publisher makes it"
    assert found["provider rack"][1] == (
        "2 of 64 entries, 301 of 8192 bytes, longest value 5 of 1024; collector site_collectors:rack"
    )
    assert found["hive"][1].endswith(" answers")
    assert found["receiver rack"][1] == "sequence 0, unobserved"
    assert list(lab.operator.state.iterdir()) == []


def test_a_table_for_people(lab: Lab) -> None:
    answer = lab.command("doctor")
    assert (answer.code, answer.err) == (Exit.OK, "")
    header, *rows = answer.out.splitlines()
    assert header.split() == ["CHECK", "VERDICT", "DETAIL"]
    assert rows[5].split()[:4] == ["provider", "changes", "warn", "would"]
    assert "\x1b" not in answer.out


def test_after_and_beside_a_publisher(lab: Lab) -> None:
    assert lab.publish().code == Exit.OK
    found = looked(lab)
    assert found["cursor"][1].startswith("sequence 2, observed 20")
    assert found["owner"] == ("ok", "no publisher runs for this source from this directory")
    assert sorted(found[f"receiver {name}"][1] for name in ("rack", "changes")) in (
        ["sequence 1, available", "sequence 2, unavailable"],
        ["sequence 1, unavailable", "sequence 2, available"],
    )
    with lab.watch("--interval", "rack=15000", "--interval", "changes=15000"):
        lab.until_each(2, "rack", "changes")
        beside = looked(lab, "--offline")
        assert beside["owner"] == ("ok", "a publisher runs for this source from this directory")
    assert not {name for name in beside if name.startswith(("hive", "receiver"))}


def test_a_publisher_that_goes_on_meanwhile_is_no_other_publisher(operator: Operator) -> None:
    with (
        publish_lab(operator, "rack", "changes", rest=True) as lab,
        lab.watch("--interval", "rack=20", "--interval", "changes=20"),
    ):
        lab.until_taken("changes", 1)
        for _ in range(3):
            found = checks(lab.command("doctor", "--json"))
            assert {found[f"receiver {name}"][0] for name in ("rack", "changes")} == {"ok"}, found


def test_some_providers_alone(lab: Lab) -> None:
    found = looked(lab, "--provider", "rack", "--offline")
    assert "provider rack" in found
    assert "provider changes" not in found


# -- the state directory -------------------------------------------------------------------------------------


def _used(lab: Lab) -> None:
    assert lab.publish("--provider", "rack").code == Exit.OK


def _empty(lab: Lab) -> None:
    lab.part.mkdir(mode=0o700)


def _unfinished(lab: Lab) -> None:
    made = lab.operator.state / f".new-{PART}.999999.0"
    made.mkdir(mode=0o700)
    (made / "owner.lock").touch(mode=0o600)


def _temporary(lab: Lab) -> None:
    _used(lab)
    (lab.part / ".cursor.json.1.0.tmp").write_text("half")


@pytest.mark.parametrize("prepare", [_empty, _unfinished, _temporary])
def test_what_a_dead_publisher_left_is_left_alone(prepare: Any, lab: Lab) -> None:
    prepare(lab)
    assert looked(lab, "--provider", "rack")["cursor"][0] == "ok"


def _no_cursor(lab: Lab) -> None:
    _used(lab)
    (lab.part / "cursor.json").unlink()


def _no_lock(lab: Lab) -> None:
    _used(lab)
    (lab.part / "owner.lock").unlink()


def _damaged(lab: Lab) -> None:
    _used(lab)
    (lab.part / "cursor.json").write_text("{}")


def _open_to_others(lab: Lab) -> None:
    _used(lab)
    (lab.part / "cursor.json").chmod(0o644)


def _a_pipe(lab: Lab) -> None:
    _used(lab)
    (lab.part / "cursor.json").unlink()
    os.mkfifo(lab.part / "cursor.json", 0o600)


def _part_is_link(lab: Lab) -> None:
    _used(lab)
    lab.part.rename(lab.part.with_name("elsewhere"))
    lab.part.symlink_to("elsewhere")


def _lock_is_link(lab: Lab) -> None:
    _used(lab)
    (lab.part / "owner.lock").rename(lab.part / "other")
    (lab.part / "owner.lock").symlink_to("other")


def _lock_open_to_others(lab: Lab) -> None:
    _used(lab)
    (lab.part / "owner.lock").chmod(0o640)


def _lock_linked(lab: Lab) -> None:
    _used(lab)
    os.link(lab.part / "owner.lock", lab.operator.state / "second-name")


@pytest.mark.parametrize(
    ("prepare", "words"),
    [
        (_lock_open_to_others, "owner.lock is open to group or others"),
        (_lock_linked, "owner.lock has 2 names"),
        (_no_cursor, "has no cursor.json: what was published is not known"),
        (_no_lock, "has no owner.lock"),
        (_damaged, "cursor.json is damaged"),
        (_open_to_others, "open to group or others; run: chmod go= on it"),
        (_a_pipe, "not the kind of file it must be"),
        (_part_is_link, "cannot be used"),
        (_lock_is_link, f"{PART} in the state directory cannot be used"),
    ],
)
def test_a_part_that_no_publisher_would_use(prepare: Any, words: str, lab: Lab) -> None:
    prepare(lab)
    found = looked(lab, "--provider", "rack", "--offline", code=Exit.FAILURE)
    assert found["cursor"][0] == "fail"
    assert words in found["cursor"][1]
    assert found["clock"][0] == "ok"


def test_a_state_directory_that_is_not_there_or_open(lab: Lab) -> None:
    missing = {"STATE_DIRECTORY": str(lab.operator.home / "missing")}
    found = looked(lab, "--offline", code=Exit.FAILURE, env=missing)
    assert found["state directory"][0] == "fail"
    assert "install -d -m 0700" in found["state directory"][1]
    assert not (lab.operator.home / "missing").exists()
    assert "cursor" not in found
    lab.operator.state.chmod(0o755)
    found = looked(lab, "--offline", code=Exit.FAILURE)
    assert "chmod go=" in found["state directory"][1]
    assert lab.operator.state.stat().st_mode & 0o777 == 0o755


def test_a_clock_before_the_last_observation(lab: Lab) -> None:
    _used(lab)
    ahead = Cursor(source_id=SOURCE, epoch=EPOCH, sequence=1, observed_unix_ms=now_ms() + DAY_MS)
    (lab.part / "cursor.json").write_bytes(encode_cursor(ahead))
    verdict, detail = looked(lab, "--provider", "rack", "--offline", code=Exit.FAILURE)["clock"]
    assert verdict == "fail"
    assert "behind the last published observation (" in detail
    assert "raise authority.writer_epoch" in detail


# -- collectors ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("provider", "verdict", "code", "words"),
    [
        ("rack", "ok", Exit.OK, "2 of 64 entries"),
        ("changes", "warn", Exit.OK, "would be withdrawn, not_enabled: there is no file"),
        ("unknown", "warn", Exit.OK, "would be withdrawn, not_supported: no collector for unknown"),
        ("crowded", "warn", Exit.OK, "55 of 64 entries, 7663 of 8192 bytes, longest value 110 of 1024"),
        ("too_large", "fail", Exit.DEGRADED, "would be withdrawn: host snapshot takes 13740 bytes"),
        ("too_long", "fail", Exit.DEGRADED, "does not fit and would be withdrawn: 1 of 64 entries"),
        ("twice", "fail", Exit.DEGRADED, "each path once"),
        ("broken", "fail", Exit.DEGRADED, "source_failed: RuntimeError: no licence:"),
        ("pairs", "fail", Exit.DEGRADED, "TypeError: a collector returns entries, not tuple"),
        ("numbers", "fail", Exit.DEGRADED, "TypeError: the path of an entry is a text, not 1"),
        ("number_value", "fail", Exit.DEGRADED, "TypeError: the value of an entry is a text, not 2"),
        ("surrogates", "fail", Exit.DEGRADED, "must be 1..=6 parts"),
        ("surrogate_value", "fail", Exit.DEGRADED, "a lone surrogate"),
        ("nothing", "fail", Exit.DEGRADED, "TypeError: 'NoneType'"),
        ("odd_reason", "fail", Exit.DEGRADED, "source_failed: an own reason"),
        ("odd_detail", "fail", Exit.DEGRADED, "source_failed: 17"),
        ("exits", "fail", Exit.DEGRADED, "source_failed: SystemExit: done here"),
        ("wordless", "fail", Exit.DEGRADED, "_Silent: it has no words for it"),
    ],
)
def test_what_a_collector_does(
    operator: Operator, provider: str, verdict: str, code: Exit, words: str
) -> None:
    with publish_lab(operator, provider) as lab:
        found = looked(lab, "--offline", code=code)[f"provider {provider}"]
        assert found[0] == verdict
        assert words in found[1]


def test_one_that_hangs_takes_no_longer_than_a_record_lives(operator: Operator) -> None:
    with publish_lab(operator, "hangs", "rack", max_ttl_ms=300) as lab:
        found = looked(lab, "--offline", code=Exit.DEGRADED)
        assert found["provider hangs"] == (
            "fail",
            "would be withdrawn, timed_out: no answer within 0.3 s",
        )
        assert found["provider rack"][0] == "ok"


def test_no_ticket_and_nothing_for_a_terminal_is_shown(operator: Operator) -> None:
    with publish_lab(operator, "told_ticket") as lab:
        for answer in (lab.command("doctor"), lab.command("doctor", "--json")):
            assert TICKET not in answer.out
            assert "[ticket " in answer.out
            assert "\x1b" not in answer.out


# -- the receiver --------------------------------------------------------------------------------------------


def test_a_receiver_that_is_ahead(lab: Lab) -> None:
    assert lab.publish("--provider", "rack", "--continue-after", "41").code == Exit.OK
    lab.part.rename(lab.operator.home / "lost")
    verdict, detail = looked(lab, code=Exit.HIVE_REFUSED)["receiver rack"]
    assert verdict == "fail"
    assert "has taken sequence 42, and the cursor is at 0" in detail
    assert detail.endswith("then publish once with --continue-after 42")
    assert lab.publish("--provider", "rack", "--continue-after", "42").code == Exit.OK
    assert looked(lab)["receiver rack"] == ("ok", "sequence 43, available")


def test_a_pair_that_the_hive_does_not_enrol(operator: Operator) -> None:
    with publish_lab(operator, "rack", "changes", of_hive=enrolling("rack")) as lab:
        found = looked(lab, code=Exit.HIVE_REFUSED)
        assert found["receiver rack"][0] == "ok"
        assert found["receiver changes"][0] == "fail"
        assert "/host/snapshots/changes/" in found["receiver changes"][1]


def test_a_hive_that_is_not_there_or_refuses(lab: Lab) -> None:
    found = looked(lab, "--tcp-port", str(refused_port()), code=Exit.HIVE_UNREACHABLE)
    assert found["hive"][0] == "fail"
    assert "check host, port and that the hive is up" in found["hive"][1]
    assert "receiver rack" not in found
    found = looked(lab, "--auth-token", "another-token-4711", code=Exit.HIVE_REFUSED)
    assert found["hive"][0] == "fail"
    assert "another-token-4711" not in str(found)


def test_the_first_failure_gives_the_code(operator: Operator) -> None:
    with publish_lab(operator, "broken") as lab:
        assert lab.publish("--continue-after", "4").code == Exit.OK
        (lab.part / "cursor.json").unlink()
        found = looked(lab, code=Exit.FAILURE)
        assert [name for name, (verdict, _) in found.items() if verdict == "fail"] == [
            "cursor",
            "provider broken",
            "receiver broken",
        ]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--provider", "systemd"], "systemd"),
        (["--provider", "rack", "--provider", "rack"], "named twice"),
        (["--source-id", "host-b"], "'host-b' is not enrolled"),
        (["--state-dir", ""], "an empty name is no directory"),
        (["--watch"], "--watch"),
    ],
)
def test_wrong_usage_is_one_line(lab: Lab, options: list[str], words: str) -> None:
    answer = lab.command("doctor", *options)
    assert (answer.code, answer.out) == (Exit.USAGE, "")
    assert words in answer.line


def test_there_is_no_default_directory(lab: Lab) -> None:
    answer = lab.command("doctor", env={"STATE_DIRECTORY": ""})
    assert (answer.code, answer.out) == (Exit.USAGE, "")
    assert "--state-dir" in answer.line
