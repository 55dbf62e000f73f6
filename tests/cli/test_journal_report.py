"""`journal report`: which operations the page shows, what it says, and where it may be written."""

from __future__ import annotations

import os
import re
from html.parser import HTMLParser
from typing import TYPE_CHECKING

import pytest
from cli_support import break_record, contents
from journal_support import FAMILY, Clock, open_store, prepare, walk
from past_records import BOOT, agent, past

from ticket_agent.exits import Exit
from ticket_agent.journal.record import encode_record
from ticket_agent.journal.report_style import DARK, LIGHT
from ticket_agent.journal.transitions import State

if TYPE_CHECKING:
    from pathlib import Path

    from cli_support import Operator

VOID = {"meta", "br"}


class Page(HTMLParser):
    """A page whose every element is closed in order; its texts, and its elements by name."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.texts: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.texts.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.texts).split())

    def having(self, name: str) -> list[dict[str, str | None]]:
        return [attributes for _, attributes in self.tags if name in (attributes.get("class") or "").split()]


def drawn(operator: Operator, *options: str, code: int = Exit.OK) -> Page:
    answer = operator.run("journal", "report", "--html", "page.html", "--force", *options)
    assert answer.code == code, answer.err
    return Page((operator.home / "page.html").read_text(encoding="utf-8"))


def tickets(page: Page) -> list[str | None]:
    return [attributes["data-ticket"] for attributes in page.having("lane")]


def test_the_demo_and_its_crash(operator: Operator, journal: Path) -> None:
    page = drawn(operator)
    assert len(tickets(page)) == 12
    assert len(page.having("window")) == 1 + 1  # and one in the legend
    assert "The agent ended 1 time without an orderly stop and was started again; 1 dispatch was" in page.text
    assert "1 operation had an uncertain outcome for a while and was settled" in page.text
    assert page.text.count("crash: no orderly stop") == 1 + 1
    assert "running" not in page.text
    for number in range(4):
        assert f"grant-{number}" in page.text


def test_the_page_asks_for_nothing(operator: Operator, journal: Path) -> None:
    page = drawn(operator)
    (policy,) = [found["content"] for _, found in page.tags if found.get("http-equiv")]
    assert policy is not None
    assert policy.startswith("default-src 'none'; style-src 'unsafe-inline'")
    assert not {name for name, _ in page.tags} & {"script", "link", "img", "iframe", "object", "a:link"}
    targets = [found["href"] for _, found in page.tags if "href" in found]
    ids = {found["id"] for _, found in page.tags if "id" in found}
    assert targets
    assert all(target is not None and target[0] == "#" and target[1:] in ids for target in targets)
    assert "url(" not in (operator.home / "page.html").read_text().replace("url(#hatch)", "")


def test_filters_and_the_limit_say_what_is_left_out(operator: Operator, journal: Path) -> None:
    page = drawn(operator, "--action", "gpu.lease.renew", "--limit", "3")
    assert tickets(page) == ["renew-1", "renew-2", "renew-3"] or len(tickets(page)) == 3
    assert "1 older operations are left out; --limit shows more" in page.text
    assert "8 operations do not fit the filters" in page.text
    assert "3 of 12 operations" in page.text
    assert "1 crashes" in page.text
    empty = drawn(operator, "--state", "prepared")
    assert "No operation to show." in empty.text
    assert tickets(empty) == []


@pytest.mark.parametrize("count", [0, 1, 2, 90])
def test_any_number_of_operations(operator: Operator, count: int) -> None:
    with open_store(operator.state) as store:
        for sequence in range(1, count + 1):
            prepare(store, key=f"k{sequence}", sequence=sequence)
    page = drawn(operator)
    assert len(tickets(page)) == count
    parts = len(page.having("panel"))
    assert parts == -(-count // 40)
    assert (f"{count} operations in {parts} parts" in page.text) == (parts > 1)


def test_an_open_operation_and_a_live_owner(operator: Operator) -> None:
    with open_store(operator.state) as store:
        walk(store, upto=State.EXECUTING)
        page = drawn(operator)
    assert "running" in page.text
    assert "1 operation is dispatched and not settled" in page.text
    assert any(found.get("class") == "window open" for found in page.having("window"))


def test_damage_a_gap_and_reboots_are_said(operator: Operator, journal: Path) -> None:
    path, _ = break_record(journal, 5)
    (journal / "cursor.json").write_bytes(b"nonsense")
    record = past([1_000, 2_000, 9_000], [agent(1), agent(1), agent(2)], boots=["a", "a", "b"], sequence=99)
    (journal / "ops" / record.name).write_bytes(encode_record(record))
    page = drawn(operator, code=Exit.DEGRADED)
    assert f"Quarantined: ops/{path.name}: " in page.text
    assert "The cursor: cursor.json is not valid" in page.text
    assert "after a host reboot" in page.text
    assert len(page.having("m-reboot")) > 1


def test_versions_without_start_ids_are_said_to_hide_restarts(operator: Operator) -> None:
    open_store(operator.state, clock=Clock(1)).close()
    record = past([10, 20, 30], ["0.1.0"] * 3)
    (operator.state / "ops" / record.name).write_bytes(encode_record(record))
    page = drawn(operator)
    assert "restarts within one boot of the host cannot be seen among them" in page.text
    assert "0.1.0 (possibly several starts)" in page.text


def test_a_copy_without_the_fence_knows_no_ends(operator: Operator, journal: Path) -> None:
    (journal / "agent.lock").unlink()
    page = drawn(operator)
    assert "0 crashes" in page.text
    assert page.text.count("no end recorded") == 2
    assert "1 restarts" in page.text


def test_reading_changes_nothing(operator: Operator, journal: Path) -> None:
    before = contents(journal)
    drawn(operator)
    assert contents(journal) == before


def test_the_page_to_standard_output(operator: Operator, journal: Path) -> None:
    answer = operator.run("journal", "report", "--html", "-")
    assert answer.code == Exit.OK
    assert len(tickets(Page(answer.out))) == 12
    assert answer.err.startswith("wrote standard output: ")


def test_the_line_about_the_page(operator: Operator, journal: Path) -> None:
    answer = operator.run("journal", "report", "--html", "page.html")
    size = (operator.home / "page.html").stat().st_size
    assert answer.out == (
        f"wrote page.html: {size} bytes, 12 of 12 operations, 2 starts, 1 crashes, 1 uncertain windows\n"
    )


OUTPUTS = [["journal", "report", "--html"], ["journal", "export"]]


@pytest.mark.parametrize("command", OUTPUTS, ids=" ".join)
def test_an_existing_file_stays_unless_forced(operator: Operator, journal: Path, command: list[str]) -> None:
    target = operator.home / "out.tar"
    target.write_bytes(b"precious")
    answer = operator.run(*command, "out.tar")
    assert (answer.code, answer.line) == (
        Exit.USAGE,
        "ticket-agent: out.tar exists; --force replaces it",
    )
    assert target.read_bytes() == b"precious"
    assert operator.run(*command, "out.tar", "--force").code == Exit.OK
    assert len(target.read_bytes()) > 10_000
    assert target.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("command", OUTPUTS, ids=" ".join)
@pytest.mark.parametrize("kind", ["symlink", "dangling", "directory", "fifo", "inside", "deep inside"])
@pytest.mark.parametrize("force", [[], ["--force"]], ids=["", "force"])
def test_nothing_else_is_ever_replaced(
    operator: Operator, journal: Path, command: list[str], kind: str, force: list[str]
) -> None:
    target, victim = operator.home / "out.tar", operator.home / "victim"
    victim.write_bytes(b"precious")
    match kind:
        case "symlink":
            target.symlink_to(victim)
        case "dangling":
            target.symlink_to(operator.home / "absent")
        case "directory":
            target.mkdir()
        case "fifo":
            os.mkfifo(target)
        case "inside":
            target = journal / "out.tar"
        case _:
            (operator.home / "way").symlink_to(journal / "ops")
            target = operator.home / "way" / "out.tar"
    before = contents(operator.home)
    answer = operator.run(*command, str(target), *force)
    assert answer.code == Exit.USAGE
    assert str(target) in answer.line
    assert {"symlink": "symlink", "dangling": "symlink", "inside": "state dir"}.get(kind, "") in answer.line
    assert contents(operator.home) == before


@pytest.mark.parametrize("command", OUTPUTS, ids=" ".join)
def test_a_full_disk_leaves_nothing_behind(operator: Operator, journal: Path, command: list[str]) -> None:
    import resource  # noqa: PLC0415 - only here
    import signal  # noqa: PLC0415 - only here

    def small_files() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (4_096, 4_096))

    before = sorted(operator.home.iterdir())
    answer = operator.run(*command, "out.tar", env={"PYTHONDONTWRITEBYTECODE": "1"}, preexec_fn=small_files)
    assert answer.code == Exit.FAILURE
    assert "cannot write out.tar: File too large" in answer.line
    assert sorted(operator.home.iterdir()) == before


def test_the_longest_name_can_be_written(operator: Operator, journal: Path) -> None:
    name = "n" * 255
    assert operator.run("journal", "report", "--html", name).code == Exit.OK
    assert (operator.home / name).exists()


def _luminance(colour: str) -> float:
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    linear = [part / 12.92 if part <= 0.03928 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def _contrast(one: str, other: str) -> float:
    lighter, darker = sorted((_luminance(one), _luminance(other)), reverse=True)
    return (lighter + 0.05) / (darker + 0.05)


@pytest.mark.parametrize("scheme", [LIGHT, DARK], ids=["light", "dark"])
def test_texts_and_shapes_stand_out(scheme: dict[str, str]) -> None:
    """The usual bars: 4.5 for text, 3 for what is drawn."""
    for text in ("text", "quiet", "confirmed", "stale", "uncertain", "crash", "restart", "published"):
        assert _contrast(scheme[text], scheme["page"]) >= 4.5, text
    for text in ("text", "quiet"):
        assert _contrast(scheme[text], scheme["card"]) >= 4.5, text
    for shape in ("prepared", "executing", "persisted", "published", "rejected"):
        assert _contrast(scheme[shape], scheme["page"]) >= 3, shape
    assert LIGHT.keys() == DARK.keys()


def test_show_names_a_restart_between_two_states(operator: Operator) -> None:
    open_store(operator.state).close()
    record = past([10, 20, 30, 40], [agent(1), agent(1), agent(2), agent(2)])
    (operator.state / "ops" / record.name).write_bytes(encode_record(record))
    lines = operator.run("journal", "show", "1").out.splitlines()
    (marked,) = [line for line in lines if "(agent restarted)" in line]
    assert re.search(r"provider-result-persisted +\+10 ms", marked)
    assert (record.history[0].boot_id, record.family) == (BOOT, FAMILY)
