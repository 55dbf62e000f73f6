"""What interrupted work left goes; what anybody may still need stays."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from peft_support import Canary, held_elsewhere, make_fifo, no_descriptor_leaks, root, snapshot
from registry_support import add_base, add_model, set_control

from ticket_agent.peft.errors import FileRefusedError, LockHeldError, RegistryError
from ticket_agent.peft.gc import Removal, collect, survey
from ticket_agent.peft.leftovers import Leftover, Why, choose, is_unfinished_write
from ticket_agent.peft.locks import RootLock

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

STAGING = ".cohesix-import-0123456789abcdef"
EXPORT = ".cohesix-export-fedcba9876543210"
HOUR_MS = 3_600_000


def later() -> int:
    """A moment at which everything that exists now has long not been touched."""
    return time.time_ns() // 1_000_000 + 2 * HOUR_MS


def collected(folder: Path, lock: RootLock = RootLock.REGISTRY, **options: Any) -> dict[str, str | None]:
    """What gc did: for each leftover None, or why it is still there."""
    with no_descriptor_leaks(), root(folder) as opened:
        removals = collect(opened, lock, **{"now_ms": later(), **options})
    return {"/".join(removal.choice.leftover.path): _reason(removal) for removal in removals}


def _reason(removal: Removal) -> str | None:
    return removal.choice.stays or removal.problem


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A registry in use, with one leftover of each kind."""
    registry = tmp_path / "r"
    add_base(registry, "base-v1")
    for model in ("m1", "m2", "m3"):
        add_model(registry, model)
    set_control(registry, "m2", "m2", "m1")
    (registry / "available" / "m1" / ".lora.json.12.0.partial").write_text("{")
    (registry / "available" / "m2" / "adapter.safetensors.partial").write_text("x")
    (registry / "active.partial").write_text("m")
    (registry / STAGING).mkdir()
    (registry / STAGING / "adapter.safetensors").write_text("x")
    (registry / STAGING / "manifest.toml").write_text("x")
    (registry / "available" / "half").mkdir()
    (registry / "available" / "half" / "adapter.safetensors").write_text("x")
    (registry / "available" / "half" / "lora.json.partial").write_text("x")
    return registry


LEFT = {
    "active.partial",
    STAGING,
    "available/half",
    "available/m1/.lora.json.12.0.partial",
    "available/m2/adapter.safetensors.partial",
}


def test_leftovers_go_and_nothing_else_does(folder: Path) -> None:
    whole = {path for path in snapshot(folder) if not any(f"/r/{left}" in path for left in LEFT)}
    assert collected(folder) == dict.fromkeys(LEFT)
    assert set(snapshot(folder)) == whole | {str(folder / ".cohesix-registry.lock")}
    assert collected(folder) == {}


def test_telling_changes_nothing_and_needs_no_lock(folder: Path) -> None:
    with held_elsewhere(folder, RootLock.REGISTRY), root(folder) as opened:
        before = snapshot(folder)
        choices = survey(opened, RootLock.REGISTRY, now_ms=later())
        assert {"/".join(choice.leftover.path): choice.stays for choice in choices} == dict.fromkeys(LEFT)
        assert snapshot(folder) == before


def test_nothing_is_removed_while_somebody_works_on_the_registry(folder: Path) -> None:
    with held_elsewhere(folder, RootLock.REGISTRY) as other:
        before = snapshot(folder)
        with root(folder) as opened, pytest.raises(LockHeldError, match=f"process {other.pid}"):
            collect(opened, RootLock.REGISTRY, now_ms=later())
        assert snapshot(folder) == before


def test_what_was_touched_lately_stays(folder: Path) -> None:
    now = time.time_ns() // 1_000_000
    told = collected(folder, now_ms=now + HOUR_MS - 60_000)
    assert told == dict.fromkeys(LEFT, "it was touched lately; its writer may be alive")
    # A clock that was set back must not make anything look old.
    assert collected(folder, now_ms=now - 10 * HOUR_MS) == told
    assert collected(folder, now_ms=now + 60_000, min_age_s=30) == dict.fromkeys(LEFT)


def test_a_file_in_a_directory_keeps_it_young(folder: Path) -> None:
    path = folder / "available" / "half"
    ahead = later()
    os.utime(path / "lora.json.partial", ns=(ahead * 1_000_000, ahead * 1_000_000))
    assert collected(folder, now_ms=ahead)["available/half"] is not None
    assert path.exists()


@pytest.mark.parametrize(
    "control", [("half", "half", None), ("m1", "half", "m1"), ("m1", "m1", "half"), ("half", "m1", "m2")]
)
def test_what_the_control_files_name_stays(folder: Path, control: tuple[str, str, str | None]) -> None:
    set_control(folder, *control)
    told = collected(folder)
    assert told.pop("available/half") == "the registry names it as its active or previous model"
    assert told == dict.fromkeys(LEFT - {"available/half"})
    assert (folder / "available" / "half" / "adapter.safetensors").exists()


def test_staging_that_an_operation_needs_stays(folder: Path) -> None:
    told = collected(folder, keep={STAGING})
    assert told.pop(STAGING) == "an operation still needs it"
    assert set(told.values()) == {None}
    assert (folder / STAGING / "manifest.toml").exists()


@pytest.mark.parametrize("name", ["notes.txt", "adapter_model.bin", "sub"])
def test_a_directory_with_somebodys_own_files_stays(folder: Path, name: str) -> None:
    (folder / "available" / "half" / name).mkdir()
    assert collected(folder)["available/half"] == f"{name} in it is not from an import"
    assert (folder / "available" / "half" / "adapter.safetensors").exists()


def make_link(path: Path) -> None:
    path.symlink_to("/etc/passwd")


@pytest.mark.parametrize("make", [make_link, os.mkdir, make_fifo, lambda path: path.write_text("[broken")])
def test_a_model_whose_manifest_cannot_be_used_is_not_unfinished(
    folder: Path, make: Callable[[Path], Any]
) -> None:
    make(folder / "available" / "half" / "manifest.toml")
    assert "available/half" not in collected(folder)
    assert (folder / "available" / "half" / "adapter.safetensors").exists()


@pytest.mark.parametrize("make", [make_link, os.mkdir, make_fifo])
def test_what_only_has_the_name_of_a_leftover_stays(tmp_path: Path, make: Callable[[Path], Any]) -> None:
    add_model(tmp_path / "r", "m1")
    make(tmp_path / "r" / ".active.1.2.partial")
    make(tmp_path / "r" / "available" / "m1" / "lora.json.partial")
    (tmp_path / "r" / ".cohesix-import-xyz").mkdir()
    (tmp_path / "r" / ".cohesix-import-00000000000000aa").write_text("a file")
    (tmp_path / "r" / "available" / "m2").symlink_to("m1")
    (tmp_path / "r" / "available" / "a b").mkdir()
    assert collected(tmp_path / "r") == {}


def test_links_in_a_leftover_go_and_what_they_point_to_stays(folder: Path, tmp_path: Path) -> None:
    canary = Canary(tmp_path / "canary")
    (folder / STAGING / "link").symlink_to(tmp_path / "canary")
    (folder / STAGING / "file").symlink_to(tmp_path / "canary" / "secret")
    assert collected(folder) == dict.fromkeys(LEFT)
    canary.check()


def test_what_cannot_be_removed_is_told_and_keeps_nothing_else(folder: Path) -> None:
    deep = folder / STAGING
    for _ in range(20):
        deep /= "d"
    deep.mkdir(parents=True)
    told = collected(folder)
    assert "is deeper than 16 levels; look at it and remove it by hand" in str(told.pop(STAGING))
    assert told == dict.fromkeys(LEFT - {STAGING})
    assert (folder / STAGING / "manifest.toml").exists(), "refused whole"


def test_an_import_that_another_tool_finishes_meanwhile_stays(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def finishing(*arguments: Any, **options: Any) -> Any:
        (folder / "available" / "half" / "manifest.toml").write_text("finished")
        return choose(*arguments, **options)

    monkeypatch.setattr("ticket_agent.peft.gc.choose", finishing)
    told = collected(folder)
    assert told.pop("available/half") == "model half has been finished meanwhile; it stays"
    assert set(told.values()) == {None}
    assert (folder / "available" / "half" / "adapter.safetensors").exists()


@pytest.mark.parametrize(
    ("name", "data", "error"),
    [("active", b"\xff", RegistryError), ("active_state.toml", b"x" * 5000, FileRefusedError)],
)
def test_nothing_goes_when_nobody_knows_what_is_active(
    folder: Path, name: str, data: bytes, error: type[Exception]
) -> None:
    (folder / name).write_bytes(data)
    (folder / ".cohesix-registry.lock").touch()
    before = snapshot(folder)
    with root(folder) as opened, pytest.raises(error, match=name):
        collect(opened, RootLock.REGISTRY, now_ms=later())
    assert snapshot(folder) == before


def test_only_staging_goes_from_an_export_root(tmp_path: Path) -> None:
    exports = tmp_path / "exports"
    (exports / EXPORT).mkdir(parents=True)
    (exports / EXPORT / "telemetry.cbor").write_text("x")
    # A job may have any name, that of the registry's directory of models too.
    for job in ("job-1", "available"):
        (exports / job / "half").mkdir(parents=True)
        (exports / job / "policy.toml").write_text("x")
    (exports / "active").mkdir()
    (exports / "active.partial").write_text("x")
    assert collected(exports, RootLock.EXPORT) == {EXPORT: None}
    assert sorted(path.name for path in exports.iterdir()) == [
        ".cohesix-export.lock",
        "active",
        "active.partial",
        "available",
        "job-1",
    ]
    assert (exports / "available" / "half").exists()


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        (".active.1.2.partial", True),
        (".manifest.toml.4194304.17.partial", True),
        ("adapter.safetensors.partial", True),
        ("adapter.partial", True),
        ("active_state.toml.partial", True),
        ("active_state.partial", True),
        ("active.partial", True),
        ("manifest.toml", False),
        ("notes.partial", False),
        (".active.partial", False),
        (".active.1.x.partial", False),
        (".partial", False),
        ("active", False),
    ],
)
def test_names_of_unfinished_writes(name: str, expected: bool) -> None:
    assert is_unfinished_write(name) is expected


NAMES = st.sampled_from(["m1", "m2", STAGING, EXPORT])


@given(
    leftovers=st.lists(
        st.builds(
            Leftover,
            path=st.tuples(st.just("available"), NAMES),
            why=st.sampled_from(Why),
            bytes=st.just(1),
            touched_unix_ms=st.integers(0, 10_000_000),
            foreign=st.none() | st.just("notes"),
        )
    ),
    in_use=st.frozensets(NAMES),
    keep=st.frozensets(NAMES),
    now_ms=st.integers(0, 10_000_000),
    min_age_s=st.integers(0, 5000),
)
def test_what_goes_is_old_nobodys_and_not_in_use(
    leftovers: list[Leftover], in_use: frozenset[str], keep: frozenset[str], now_ms: int, min_age_s: int
) -> None:
    choices = choose(leftovers, in_use=in_use, keep=keep, now_ms=now_ms, min_age_s=min_age_s)
    assert [choice.leftover for choice in choices] == leftovers
    for choice in choices:
        found = choice.leftover
        free = (
            found.foreign is None
            and found.path[-1] not in keep
            and now_ms - found.touched_unix_ms >= min_age_s * 1000
            and not (found.why is Why.UNFINISHED and found.path[-1] in in_use)
        )
        assert (choice.stays is None) is free
