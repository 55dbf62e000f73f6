"""`journal export`: the bundle reads like the journal, tells no name, and is the same each time."""

from __future__ import annotations

import ast
import io
import json
import re
import subprocess
import tarfile
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from cli_support import COMMAND, break_record, contents
from journal_support import KEY, REQUEST, Clock, open_store, walk

from ticket_agent.cli.export_words import WORDS
from ticket_agent.exits import Exit
from ticket_agent.journal.archive import MAX_SEGMENT_BYTES
from ticket_agent.journal.bundle import _joined
from ticket_agent.journal.space import Limits
from ticket_agent.journal.view import read_archive

if TYPE_CHECKING:
    from cli_support import Operator

ROOT = Path(__file__).parents[2]
TOP = "journal-export"
LIMITS = Limits(retain_ms=0, retain_records=1, retire_batch=3)


def unpacked(operator: Operator, bundle: Path) -> Path:
    """What an ordinary tar makes of the bundle."""
    subprocess.run(["tar", "-xf", bundle], cwd=operator.home, check=True)
    return operator.home / TOP


def manifest(top: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((top / "manifest.json").read_bytes())
    return found


def exported(operator: Operator, *options: str, code: int = Exit.OK) -> Path:
    answer = operator.run("journal", "export", "bundle.tar.gz", *options)
    assert answer.code == code, answer.err
    return unpacked(operator, operator.home / "bundle.tar.gz")


def test_the_bundle_reads_like_the_journal(operator: Operator, journal: Path) -> None:
    top = exported(operator)
    assert operator.run("journal", "verify", "--state-dir", top).code == Exit.OK
    ours = operator.run("journal", "list", "--json").objects
    theirs = operator.run("journal", "list", "--json", "--state-dir", top).objects
    kept = ("sequence", "epoch", "family", "action", "state", "uncertain", "outcome", "changed_unix_ms")
    assert [[entry[name] for name in kept] for entry in theirs] == [
        [entry[name] for name in kept] for entry in ours
    ]
    # Equal names stay equal: three tickets each on the same subject.
    assert len({entry["subject"] for entry in theirs}) == len({entry["subject"] for entry in ours})
    shown = operator.run("journal", "show", theirs[0]["id"], "--json", "--state-dir", top).object
    assert shown["staged"]["path"] == "/host/tickets/status"
    page = operator.run("journal", "report", "--html", "page.html", "--state-dir", top, "--json").object
    assert (page["operations"], page["crashes"]) == (12, 1)


def test_no_name_is_left(operator: Operator, journal: Path) -> None:
    names = set()
    for path in (journal / "ops").iterdir():
        request = json.loads(json.loads(path.read_bytes().split(b"\n", 1)[1])["request"])
        names |= {
            request[member]
            for member in ("id", "idempotency_key", "operation_id", "subject_ref", "receipt_worker_id")
        }
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    assert len(names) > 12
    top = exported(operator)
    every = b"".join(path.read_bytes() for path in top.rglob("*") if path.is_file()).decode()
    for name in {*names, boot}:
        assert not re.search(rf"(?<![0-9A-Za-z-]){re.escape(name)}(?![0-9A-Za-z-])", every), name
    assert re.findall(r"pid=([0-9]+)", every)
    assert set(re.findall(r"pid=([0-9]+)", every)) == {"0"}
    assert not (top / "agent-status.json").exists()
    assert not (top / "reserve").exists()


def test_the_manifest_has_every_digest(operator: Operator, journal: Path) -> None:
    top = exported(operator)
    told = manifest(top)
    assert (told["schema"], told["redacted"], told["damaged"]) == ("ticket-agent-export/v1", True, [])
    files = {str(path.relative_to(top)) for path in top.rglob("*") if path.is_file()}
    assert files == {entry["path"] for entry in told["members"]} | {"manifest.json"}
    for entry in told["members"]:
        ours, theirs = (top / entry["path"]).read_bytes(), (journal / entry["original"]["path"]).read_bytes()
        assert (entry["bytes"], entry["sha256"]) == (len(ours), sha256(ours).hexdigest())
        original = entry["original"]
        assert (original["bytes"], original["sha256"]) == (len(theirs), sha256(theirs).hexdigest())


def test_without_redaction_every_byte_is_the_original(operator: Operator, journal: Path) -> None:
    path, broken = break_record(journal, 5)
    answer = operator.run("journal", "export", "bundle.tar.gz", "--no-redact")
    assert answer.code == Exit.DEGRADED
    assert "NOT redacted" in answer.out
    assert f"damaged: ops/{path.name}" in answer.out
    top = unpacked(operator, operator.home / "bundle.tar.gz")
    assert (top / "ops" / path.name).read_bytes() == broken
    for entry in manifest(top)["members"]:
        assert (top / entry["path"]).read_bytes() == (journal / entry["path"]).read_bytes()
    assert len(list((top / "ops").iterdir())) == 12


def test_a_damaged_record_is_listed_and_not_copied(operator: Operator, journal: Path) -> None:
    path, broken = break_record(journal, 5)
    (journal / "ops" / "of-jane.rec").write_bytes(b"jane")
    (journal / "ops" / ".x.1.1.tmp").write_bytes(b"jane")
    (journal / "cursor.json").write_bytes(b"jane")
    (journal / "ops" / "00000000000000000099-0000000000000000.rec").symlink_to("/etc/passwd")
    top = exported(operator, code=Exit.DEGRADED)
    damaged = {entry["path"]: entry for entry in manifest(top)["damaged"]}
    assert damaged[f"ops/{path.name}"]["sha256"] == sha256(broken).hexdigest()
    assert damaged[f"ops/{path.name}"]["bytes"] == len(broken)
    assert "changed" in damaged[f"ops/{path.name}"]["problem"]
    assert "header" in damaged["cursor.json"]["problem"]
    linked = damaged["ops/00000000000000000099-0000000000000000.rec"]
    assert "symlink" in linked["problem"]
    assert len(damaged) == 4
    assert b"jane" not in b"".join(entry.read_bytes() for entry in top.rglob("*") if entry.is_file())
    assert operator.run("journal", "verify", "--state-dir", top).code == Exit.OK
    assert len(list((top / "ops").iterdir())) == 11


@pytest.mark.parametrize("name", ["a.tar.gz", "a.tgz", "a.tar"])
def test_the_same_journal_gives_the_same_bytes(operator: Operator, journal: Path, name: str) -> None:
    assert operator.run("journal", "export", name).code == Exit.OK
    first = (operator.home / name).read_bytes()
    for path in journal.rglob("*"):
        path.touch()
    again = operator.run(
        "journal", "export", name, "--force", env={"TZ": "Asia/Tokyo", "PYTHONHASHSEED": "7"}
    )
    assert again.code == Exit.OK
    assert (operator.home / name).read_bytes() == first
    with tarfile.open(fileobj=io.BytesIO(first)) as archive:
        infos = archive.getmembers()
    assert {(info.mtime, info.uid, info.gid, info.uname) for info in infos} == {(0, 0, 0, "")}
    records = [info.name for info in infos if info.name.startswith(f"{TOP}/ops/")]
    assert (len(records), records) == (12, sorted(records))
    assert [info.name for info in infos][-1] == f"{TOP}/manifest.json"
    assert all(info.name == TOP or info.name.startswith(f"{TOP}/") for info in infos)


def test_an_archive_is_exported_too(operator: Operator) -> None:
    clock = Clock()
    with open_store(operator.state, clock=clock, limits=LIMITS) as store:
        for sequence in range(1, 30):
            walk(store, key=f"4:jane:{sequence}", sequence=sequence)
        clock.now += 10**9
        assert store.retire(keep=()) == 28
    top = exported(operator)
    ours = [record for segment in read_archive(operator.state) for record in segment.records]
    theirs = [record for segment in read_archive(top) for record in segment.records]
    assert [record.sequence for record in theirs] == [record.sequence for record in ours]
    assert not any("jane" in record.key for record in theirs)
    assert operator.run("journal", "verify", "--state-dir", top).code == Exit.OK


def test_a_broken_place_in_the_archive_costs_only_itself(operator: Operator) -> None:
    clock = Clock()
    with open_store(operator.state, clock=clock, limits=LIMITS) as store:
        for sequence in range(1, 30):
            walk(store, key=f"k{sequence}", sequence=sequence)
        clock.now += 10**9
        retired = store.retire(keep=())
    (segment,) = (operator.state / "archive").iterdir()
    data = bytearray(segment.read_bytes())
    data[300] ^= 1
    segment.write_bytes(bytes(data) + b"torn")
    top = exported(operator, code=Exit.DEGRADED)
    assert [entry["path"] for entry in manifest(top)["damaged"]] == ["archive/00000001.seg"] * 2
    (found,) = read_archive(top)
    assert len(found.records) == retired - 1


def test_a_stand_in_may_make_a_segment_too_long_and_it_is_split() -> None:
    parts = [bytes(MAX_SEGMENT_BYTES // 2)] * 2 + [b"x"]
    assert [len(segment) for segment in _joined(parts)] == [MAX_SEGMENT_BYTES, 1]


def test_standard_output_and_reading_only(operator: Operator, journal: Path) -> None:
    before = contents(journal)
    assert operator.run("journal", "export", "bundle.tar.gz").code == Exit.OK
    with (operator.home / "piped").open("wb") as stream:
        done = subprocess.run(
            [*COMMAND, "journal", "export", "-"],
            env=operator.env,
            stdout=stream,
            stderr=subprocess.PIPE,
            check=True,
        )
    assert b"wrote standard output" in done.stderr
    assert (operator.home / "piped").read_bytes() == (operator.home / "bundle.tar.gz").read_bytes()
    assert contents(journal) == before


def test_beside_a_live_owner(operator: Operator) -> None:
    with open_store(operator.state) as store:
        walk(store)
        top = exported(operator)
        assert (
            operator.run("journal", "show", "1", "--json", "--state-dir", top).object["state"] == "terminal"
        )
        assert store.records[KEY].request == REQUEST


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["bundle.zip"], Exit.USAGE, "must end in .tar.gz, .tgz or .tar"),
        (["-", "--json"], Exit.USAGE, "cannot both go to standard output"),
        (["no/such/a.tar"], Exit.FAILURE, "No such file"),
        (["a.tar", "--state-dir", "nowhere"], Exit.FAILURE, "cannot export nowhere"),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(
    operator: Operator, journal: Path, arguments: list[str], code: Exit, words: str
) -> None:
    before = sorted(operator.home.iterdir())
    answer = operator.run("journal", "export", *arguments)
    assert (answer.code, answer.out) == (code, "")
    assert words in answer.line
    assert sorted(operator.home.iterdir()) == before


def _literals(path: Path) -> set[str]:
    """Plain lower-case words in the texts of a module, docstrings left out."""
    tree = ast.parse(path.read_bytes())
    docs = {
        id(node.body[0].value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef)
        and node.body
        and isinstance(node.body[0], ast.Expr)
    }
    # A text behind an assignment, too, is its documentation.
    docs |= {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    return {
        word.rstrip(".")
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docs
        if " " in node.value
        for word in node.value.replace(":", " ").replace(";", " ").replace(",", " ").split()
        if re.fullmatch(r"[a-z]{2,24}\.?", word)
    }


SPEAKERS = sorted(
    [
        *ROOT.glob("gpu/*.py"),
        *ROOT.glob("peft/*.py"),
        *(ROOT / f"journal/{name}.py" for name in ("recovery", "resolution")),
        *(ROOT / f"ticket_agent/agent/{name}.py" for name in ("lanes", "predecessor", "steps", "takeover")),
    ]
)


@pytest.mark.parametrize("path", SPEAKERS, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_messages_of_the_agent_stay_readable(path: Path) -> None:
    """A new message must bring its words along, or an exported journal shows stand-ins for them."""
    assert _literals(path) - WORDS == set()


def test_words_are_found_in_messages() -> None:
    assert {"not", "active", "lease"} <= _literals(ROOT / "gpu" / "lease.py")
