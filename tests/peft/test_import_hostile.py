"""Adapters, jobs and registries that somebody made to do harm, each through the action itself.

Every one is refused with one clear line, nothing outside the roots is read or changed, and the roots are
afterwards what they were.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from adapter_files import file_with, pair
from hostile_adapters import HF, HOSTILE_HEADERS, HOSTILE_HF, HOSTILE_LORA_JSON, HOSTILE_TENSORS
from peft_actions import (
    ADAPTER,
    HF_CONFIG,
    HUGGING_FACE,
    LORA,
    MODEL,
    NATIVE,
    TENSORS,
    Places,
    import_spec,
    run_import,
    sha256,
    write_tree,
)
from peft_support import (
    Canary,
    make_device,
    make_fifo,
    make_socket,
    needs_root,
    no_descriptor_leaks,
    until_a_change_shows,
)
from registry_support import add_base, add_model

from ticket_agent.journal.outcome import (
    Committed,
    Outcome,
    Plan,
    PlanRefusedError,
    PlanWaitsError,
    Rejected,
)
from ticket_agent.peft import directory as directory_module
from ticket_agent.peft import imports
from ticket_agent.peft.adapter_config import render_lora_json
from ticket_agent.peft.copying import Copied, copy_hashed
from ticket_agent.peft.directory import Directory, Kind
from ticket_agent.peft.imports import ImportProvider
from ticket_agent.peft.limits import MAX_ADAPTER_BYTES, MAX_LORA_BYTES, MAX_METRICS_BYTES
from ticket_agent.peft.locks import RootLock

if TYPE_CHECKING:
    from collections.abc import Iterator

Make = Callable[[Path], object]
Build = Callable[[Places], object]

OUTSIDE = "../../../outside"
"""From an adapter's, a job's or a model's directory to the canary."""


@pytest.fixture
def places(tmp_path: Path) -> Iterator[Places]:
    made = Places(tmp_path / "host").make()
    made.add_job()
    made.add_adapter()
    (made.registry / "available").mkdir()
    canary = Canary(tmp_path / "outside")
    with no_descriptor_leaks():
        yield made
    canary.check()


def check_line(line: str, wanted: str) -> None:
    assert wanted in line
    assert line.isprintable()
    assert len(line) <= 450
    # What is said is sent to the hive, which has no business with this host's paths.
    assert "/host/" not in line


def refuse(places: Places, wanted: str, request: Any = None) -> None:
    before = places.snapshot()
    with pytest.raises(PlanRefusedError) as caught:
        ImportProvider(places.roots).plan(request or import_spec())
    check_line(str(caught.value), wanted)
    assert places.snapshot() == before


def reject(places: Places, plan: Plan, wanted: str) -> None:
    before = places.snapshot()
    outcome = ImportProvider(places.roots).execute(plan)
    assert type(outcome) is Rejected, outcome
    check_line(outcome.detail, wanted)
    assert places.snapshot() == before


# -- content: the tables of the formats, through the action -------------------------------------------------

TENSOR_ROWS = [
    *(
        pytest.param({"adapter.safetensors": data, "lora.json": b"{}\n"}, line, id=f"header: {name}")
        for name, data, line in HOSTILE_HEADERS
        if data
    ),
    *(
        pytest.param(
            {"adapter.safetensors": file_with(tensors), "lora.json": render_lora_json(config)},
            line,
            id=f"tensors: {name}",
        )
        for name, tensors, config, line in HOSTILE_TENSORS
    ),
]


@pytest.mark.parametrize(("files", "line"), TENSOR_ROWS)
def test_hostile_tensors(
    places: Places, files: dict[str, bytes], line: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Refused when planned; and when only the copy is looked at, refused then."""
    shutil.rmtree(places.adapter)
    places.add_adapter(files)
    refuse(places, line)
    with monkeypatch.context() as patch:
        patch.setattr(imports, "check_tensors", lambda *_: None)
        plan = ImportProvider(places.roots).plan(import_spec())
    # A result's message has room for 192 bytes of ASCII.
    reject(places, plan, line.partition(";")[0][:60].encode("ascii", "backslashreplace").decode())


CONFIG_ROWS = [
    *(
        pytest.param(
            {"adapter_model.safetensors": TENSORS, "adapter_config.json": json.dumps(HF | members).encode()},
            line,
            id=f"Hugging Face: {line[:60]}",
        )
        for members, line in HOSTILE_HF
    ),
    *(
        pytest.param({"adapter.safetensors": TENSORS, "lora.json": data}, line, id=f"lora.json: {line[:60]}")
        for data, line in HOSTILE_LORA_JSON
        if 0 < len(data) <= MAX_LORA_BYTES
    ),
]


@pytest.mark.parametrize(("files", "line"), CONFIG_ROWS)
def test_hostile_configurations(places: Places, files: dict[str, bytes], line: str) -> None:
    shutil.rmtree(places.adapter)
    places.add_adapter(files)
    refuse(places, line)


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({"r": 8}, "is of rank 4, the configuration says 8"),
        (
            {"target_modules": ["q_proj"]},
            "is adapted, but it is not among the configuration's target_modules",
        ),
        ({"use_dora": True}, "a magnitude vector is missing"),
        ({"lora_bias": True}, "a bias of B is missing"),
    ],
)
def test_a_configuration_of_another_adapter(places: Places, changes: dict[str, Any], line: str) -> None:
    places.add_adapter(HUGGING_FACE | {"adapter_config.json": json.dumps(HF_CONFIG | changes).encode()}, "hf")
    refuse(places, f"adapter_model.safetensors: {line}"[:26], import_spec(adapter_ref="hf"))
    refuse(places, line, import_spec(adapter_ref="hf"))


# -- trees --------------------------------------------------------------------------------------------------


def link_to_secret(path: Path) -> None:
    path.symlink_to(f"{OUTSIDE}/secret")


def link_to_fifo(path: Path) -> None:
    path.symlink_to(f"{OUTSIDE}/fifo")


def link_to_good(path: Path) -> None:
    """Within the root and harmless, and still a link."""
    good = write_tree(path.parent.parent / "good", {path.name: NATIVE.get(path.name, b"x")})
    path.symlink_to(good / path.name)


def absolute_link(path: Path) -> None:
    path.symlink_to("/etc/passwd")


def looping_link(path: Path) -> None:
    path.symlink_to(path.name)


def hard_link(path: Path) -> None:
    path.write_bytes(NATIVE.get(path.name, b"x"))
    (path.parent.parent / "second-name").hardlink_to(path)


def directory(path: Path) -> None:
    path.mkdir()


def nothing(path: Path) -> None:
    pass


def empty(path: Path) -> None:
    path.touch()


def sparse_giant(path: Path) -> None:
    path.touch()
    os.truncate(path, 2**40)


KINDS: list[tuple[Make, str]] = [
    (link_to_secret, "is a symlink, not a regular file"),
    (link_to_fifo, "is a symlink, not a regular file"),
    (link_to_good, "is a symlink, not a regular file"),
    (absolute_link, "is a symlink, not a regular file"),
    (looping_link, "is a symlink, not a regular file"),
    (hard_link, "has 2 names (hard links); only a file with one name is used"),
    (directory, "is a directory, not a regular file"),
    (make_fifo, "is a device, FIFO or socket, not a regular file"),
    (make_socket, "is a device, FIFO or socket, not a regular file"),
    (make_device, "is a device, FIFO or socket, not a regular file"),
    (empty, "is empty"),
    (sparse_giant, "has 1099511627776 bytes; at most"),
]

FILES = [
    "adapters/run-7/adapter.safetensors",
    "adapters/run-7/lora.json",
    "adapters/run-7/metrics.json",
    "exports/job-1/telemetry.cbor",
    "exports/job-1/base_model.ref",
    "exports/job-1/policy.toml",
]


@pytest.mark.parametrize("file", FILES)
@pytest.mark.parametrize(
    ("make", "line"),
    [
        pytest.param(make, line, id=make.__name__, marks=needs_root if make is make_device else ())
        for make, line in KINDS
    ],
)
def test_files_that_are_none(places: Places, file: str, make: Make, line: str) -> None:
    plan = ImportProvider(places.roots).plan(import_spec())
    (places.base / file).unlink()
    make(places.base / file)
    refuse(places, f"{file} {line}")
    reject(places, plan, f"not applied: {file} {line}")


@pytest.mark.parametrize(
    ("file", "limit"),
    [
        ("adapter.safetensors", MAX_ADAPTER_BYTES),
        ("lora.json", MAX_LORA_BYTES),
        ("metrics.json", MAX_METRICS_BYTES),
    ],
)
def test_files_of_one_byte_too_many(places: Places, file: str, limit: int) -> None:
    os.truncate(places.adapter / file, limit + 1)
    refuse(places, f"adapters/{ADAPTER}/{file} has {limit + 1} bytes; at most {limit} are accepted")
    os.truncate(places.adapter / file, limit)
    if file == "metrics.json":
        assert isinstance(run_import(places), Committed)
    else:
        refuse(places, file)


@pytest.mark.parametrize("file", FILES)
def test_files_that_are_missing(places: Places, file: str) -> None:
    plan = ImportProvider(places.roots).plan(import_spec())
    (places.base / file).unlink()
    name = file.rpartition("/")[2]
    if name == "metrics.json":
        reject(places, plan, "metrics.json was changed since it was planned")
        return
    line = f"{name} is missing" if file.startswith("exports") else f"has no {name}"
    refuse(places, line)
    reject(places, plan, line)


FOLDERS = ["adapters/run-7", "exports/job-1"]


def _good_elsewhere(path: Path) -> None:
    shutil.copytree(path.with_name(f"{path.name}.was"), path.with_name("good"))
    path.symlink_to("good", target_is_directory=True)


def _link_outside(path: Path) -> None:
    path.symlink_to("../../outside", target_is_directory=True)


def _file(path: Path) -> None:
    path.write_bytes(TENSORS)


def _dangling(path: Path) -> None:
    path.symlink_to("../../outside/new")


FOLDER_KINDS: list[tuple[Make, str]] = [
    (_good_elsewhere, "is a symlink, not a directory"),
    (_link_outside, "is a symlink, not a directory"),
    (_dangling, "is a symlink, not a directory"),
    (_file, "is a regular file, not a directory"),
    (make_fifo, "is a device, FIFO or socket, not a directory"),
    (make_socket, "is a device, FIFO or socket, not a directory"),
    (make_device, "is a device, FIFO or socket, not a directory"),
]


@pytest.mark.parametrize("folder", FOLDERS)
@pytest.mark.parametrize(
    ("make", "line"),
    [
        pytest.param(make, line, id=make.__name__, marks=needs_root if make is make_device else ())
        for make, line in FOLDER_KINDS
    ],
)
def test_directories_that_are_none(places: Places, folder: str, make: Make, line: str) -> None:
    plan = ImportProvider(places.roots).plan(import_spec())
    path = places.base / folder
    path.rename(path.with_name(f"{path.name}.was"))
    make(path)
    refuse(places, f"{folder} {line}")
    reject(places, plan, f"{folder} {line}")


@pytest.mark.parametrize(
    ("folder", "line"), [("adapters/run-7", "does not exist"), ("exports/job-1", "job-1 does not exist")]
)
def test_directories_that_are_missing(places: Places, folder: str, line: str) -> None:
    plan = ImportProvider(places.roots).plan(import_spec())
    shutil.rmtree(places.base / folder)
    refuse(places, line)
    reject(places, plan, line)


def _in_adapter(name: str | bytes, make: Make = empty) -> Build:
    return lambda places: make(places.adapter / (name if isinstance(name, str) else os.fsdecode(name)))


def _deep(path: Path) -> None:
    for _ in range(300):
        path.mkdir()
        path /= "d"


def _crowd(places: Places) -> None:
    for number in range(SMALL_CROWD):
        (places.adapter / f"{number}.bin").touch()


SMALL_CROWD = 40


def _renamed(old: str, new: str) -> Build:
    return lambda places: (places.adapter / old).rename(places.adapter / new)


NAMES: list[tuple[str, Build, str]] = [
    (
        "not UTF-8",
        _in_adapter(b"\xff\xfe.json"),
        r'holds "\udcff\udcfe.json", which is no part of an adapter',
    ),
    ("a terminal's escape", _in_adapter("\x1b[2Jx"), r'holds "\x1b[2Jx", which is no part of an adapter'),
    ("a newline", _in_adapter("a\nb"), r'holds "a\nb", which is no part of an adapter'),
    ("turned around", _in_adapter("\u202exyz"), r'holds "\u202exyz", which is no part of an adapter'),
    ("the longest name", _in_adapter("n" * 255), f'holds "{"n" * 99}'),
    (
        "a pickle",
        _in_adapter("adapter_model.bin"),
        'holds "adapter_model.bin", which may run code when loaded',
    ),
    ("a pickle in capitals", _in_adapter("MODEL.PT"), 'holds "MODEL.PT", which may run code when loaded'),
    ("a pickle behind a link", _in_adapter("x.pkl", absolute_link), 'holds "x.pkl", which may run code'),
    ("training state", _in_adapter("optimizer.pt"), 'holds "optimizer.pt", which may run code'),
    ("code", _in_adapter("modeling.py"), 'holds "modeling.py", which is no part of an adapter'),
    ("a manifest", _in_adapter("manifest.toml"), 'holds "manifest.toml", which is no part of an adapter'),
    ("a directory", _in_adapter("checkpoint-5", directory), 'holds "checkpoint-5", which is no part'),
    ("a deep tree", _in_adapter("deep", _deep), 'holds "deep", which is no part of an adapter'),
    ("a hidden file", _in_adapter(".hidden"), 'holds ".hidden", which is no part of an adapter'),
    ("a link to outside", _in_adapter("x", _link_outside), 'holds "x", which is no part of an adapter'),
    ("case: a second configuration", _in_adapter("LORA.JSON"), 'holds "LORA.JSON", which is no part'),
    (
        "case: a second adapter",
        _in_adapter("Adapter.safetensors"),
        'holds "Adapter.safetensors", which is no',
    ),
    ("case: only another one", _renamed("lora.json", "Lora.json"), "has no lora.json"),
    ("looks the same", _in_adapter("l\u043era.json"), "which is no part of an adapter"),
    (
        "both layouts",
        _in_adapter("adapter_config.json"),
        "holds both adapter.safetensors and adapter_config.json",
    ),
    ("half of the other", _renamed("lora.json", "adapter_config.json"), "holds both adapter.safetensors and"),
    (
        "a second tensors' file",
        _in_adapter("adapter_model.safetensors"),
        "holds both adapter.safetensors and",
    ),
    ("too many", _crowd, f"has more than {SMALL_CROWD} entries; remove some"),
]


@pytest.mark.parametrize(("build", "line"), [row[1:] for row in NAMES], ids=[row[0] for row in NAMES])
def test_hostile_names_in_an_adapter(
    places: Places, build: Build, line: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(directory_module, "MAX_DIRECTORY_NAMES", SMALL_CROWD)
    plan = ImportProvider(places.roots).plan(import_spec())
    build(places)
    refuse(places, f"adapters/{ADAPTER} {line}" if not line.startswith("which") else line)
    reject(places, plan, line)


def _job_file(name: str, data: bytes) -> Build:
    return lambda places: (places.job / name).write_bytes(data)


PIN = f'[export]\ntelemetry_sha256 = "{sha256(b"other")}"'.encode()

JOBS: list[tuple[str, Build, str]] = [
    (
        "base: a path up",
        _job_file("base_model.ref", b"../vision-base-v1\n"),
        "the base model in base_model.ref",
    ),
    (
        "base: TOML",
        _job_file("base_model.ref", b'b"\n[model]\nid = "x"\n'),
        "the base model in base_model.ref",
    ),
    (
        "base: no line",
        _job_file("base_model.ref", b"\n\n"),
        "the base model in base_model.ref must be 1..=128",
    ),
    ("base: a colon", _job_file("base_model.ref", b"a:b"), "base_model.ref must not contain a colon"),
    ("base: not UTF-8", _job_file("base_model.ref", b"\xff"), "base_model.ref is not UTF-8 text"),
    (
        "base: too long",
        _job_file("base_model.ref", b"b" * 1025),
        "base_model.ref has 1025 bytes; at most 1024",
    ),
    ("policy: too long", _job_file("policy.toml", b"p" * 8193), "policy.toml has 8193 bytes; at most 8192"),
    ("telemetry: too long", _job_file("telemetry.cbor", b"t" * 131_073), "telemetry.cbor has 131073 bytes"),
    (
        "telemetry: not the pinned",
        _job_file("policy.toml", PIN),
        "telemetry.cbor is not the one that policy.toml",
    ),
    (
        "telemetry: a pin that is none",
        _job_file("policy.toml", PIN[:-2]),
        "names telemetry_sha256 and is not",
    ),
]


@pytest.mark.parametrize(("build", "line"), [row[1:] for row in JOBS], ids=[row[0] for row in JOBS])
def test_hostile_jobs(places: Places, build: Build, line: str) -> None:
    plan = ImportProvider(places.roots).plan(import_spec())
    build(places)
    refuse(places, line)
    reject(places, plan, line)


def _at_model(make: Make) -> Build:
    return lambda places: make(places.model)


def _unfinished(places: Places) -> None:
    write_tree(places.model, {"adapter.safetensors": TENSORS, "lora.json": LORA})


def _manifest(data: bytes) -> Build:
    return lambda places: write_tree(places.model, {"manifest.toml": data})


def _available(make: Make) -> Build:
    def build(places: Places) -> None:
        (places.registry / "available").rmdir()
        make(places.registry / "available")

    return build


def _linked_manifest(places: Places) -> None:
    write_tree(places.model, {}).joinpath("manifest.toml").symlink_to(f"../{OUTSIDE}/secret")


REGISTRIES: list[tuple[str, Build, str]] = [
    ("model: a file", _at_model(_file), f"registry/available/{MODEL} is a regular file, not a directory"),
    ("model: a link outside", _at_model(_link_outside), f"available/{MODEL} is a symlink, not a directory"),
    ("model: a dangling link", _at_model(_dangling), f"available/{MODEL} is a symlink, not a directory"),
    (
        "model: a FIFO",
        _at_model(make_fifo),
        f"available/{MODEL} is a device, FIFO or socket, not a directory",
    ),
    ("model: an empty directory", _at_model(directory), f"available/{MODEL} "),
    ("model: an unfinished import", _unfinished, f"available/{MODEL} "),
    ("model: no TOML", _manifest(b"[[["), "manifest.toml: is not valid TOML"),
    ("model: an empty manifest", _manifest(b""), "manifest.toml is empty"),
    ("model: of another name", _manifest(b'[model]\nid = "other"\n'), "is that of model other, not of"),
    ("model: a giant manifest", _manifest(b"#" * 8193), "manifest.toml has 8193 bytes; at most 8192"),
    ("model: a linked manifest", _linked_manifest, "manifest.toml is a symlink, not a regular file"),
    (
        "model: a base model",
        lambda places: add_base(places.registry, MODEL),
        "is there already: it is a base",
    ),
    (
        "model: another one",
        lambda places: add_model(places.registry, MODEL),
        "is there already: its base model",
    ),
    (
        "model: in capitals",
        lambda places: add_model(places.registry, MODEL.upper()),
        f"available holds {MODEL.upper()}, which differs only in upper and lower case",
    ),
    (
        "model: a file in capitals",
        lambda places: (places.registry / "available" / "Llama-Edge").touch(),
        "available holds Llama-Edge, which differs only in upper and lower case",
    ),
    ("available: a link", _available(_link_outside), "registry/available is a symlink, not a directory"),
    ("available: a file", _available(_file), "registry/available is a regular file, not a directory"),
    ("available: a FIFO", _available(make_fifo), "registry/available is a device, FIFO or socket"),
]


@pytest.mark.parametrize(
    ("build", "line"), [row[1:] for row in REGISTRIES], ids=[row[0] for row in REGISTRIES]
)
def test_hostile_registries(places: Places, build: Build, line: str) -> None:
    plan = ImportProvider(places.roots).plan(import_spec())
    build(places)
    refuse(places, line)
    before = places.snapshot()
    outcome = ImportProvider(places.roots).execute(plan)
    assert not isinstance(outcome, Committed)
    assert places.snapshot() == before


@pytest.mark.parametrize("lock", [RootLock.REGISTRY, RootLock.ADAPTER, RootLock.EXPORT])
@pytest.mark.parametrize("make", [link_to_secret, _dangling, hard_link, directory, make_fifo])
def test_locks_that_are_none(places: Places, lock: RootLock, make: Make) -> None:
    plan = ImportProvider(places.roots).plan(import_spec())
    roots = {
        RootLock.REGISTRY: places.registry,
        RootLock.ADAPTER: places.adapters,
        RootLock.EXPORT: places.exports,
    }
    (roots[lock] / lock).unlink()
    make(roots[lock] / lock)
    before = places.snapshot()
    with pytest.raises(PlanWaitsError, match=r"remove (it|what is there)$"):
        ImportProvider(places.roots).plan(import_spec())
    assert not isinstance(ImportProvider(places.roots).execute(plan), Committed)
    assert places.snapshot() == before


def _tree_with_links(path: Path) -> None:
    folder = write_tree(path, {"adapter.safetensors": b"x"})
    (folder / "dir").mkdir()
    (folder / "dir" / "link").symlink_to("../../../../outside/secret")
    (folder / "link").symlink_to("../../../outside", target_is_directory=True)
    make_fifo(folder / "fifo")


@pytest.mark.parametrize("make", [_link_outside, _dangling, _file, make_fifo, directory, _tree_with_links])
def test_what_lies_where_the_model_is_put_together_goes_and_is_not_followed(
    places: Places, make: Make
) -> None:
    provider = ImportProvider(places.roots)
    plan = provider.plan(import_spec())
    place = places.registry / str(plan.intent["staging"])
    make(place)
    assert isinstance(provider.execute(plan), Committed)
    assert not place.exists()
    assert not place.is_symlink()
    assert {path.name for path in places.model.iterdir()} == NATIVE.keys() | {"manifest.toml"}


def test_companions_of_an_adapter_are_not_even_looked_at(places: Places) -> None:
    (places.adapter / "README.md").symlink_to(f"{OUTSIDE}/secret")
    make_fifo(places.adapter / "tokenizer.json")
    assert isinstance(run_import(places), Committed)
    assert {path.name for path in places.model.iterdir()} == NATIVE.keys() | {"manifest.toml"}


# -- swaps --------------------------------------------------------------------------------------------------


def swapping(patch: pytest.MonkeyPatch, place: Path, make: Make) -> None:
    """Let the next look at ``place`` be followed at once by somebody who puts something else there."""
    real = Directory.kind
    done: list[str] = []

    def kind(self: Directory, name: str) -> Kind | None:
        found = real(self, name)
        if name == place.name and not done:
            done.append(name)
            place.rename(place.parent.parent / "moved-away")
            make(place)
        return found

    patch.setattr(Directory, "kind", kind)


SWAPS: list[tuple[Make, str]] = [
    (link_to_secret, "was replaced while it was opened"),
    (link_to_fifo, "was replaced while it was opened"),
    (make_socket, "was replaced while it was opened"),
    (directory, "is a directory"),
    (make_fifo, "is a device, FIFO or socket"),
    (hard_link, "has 2 names"),
    (sparse_giant, "has 1099511627776 bytes"),
    (empty, "is empty"),
]


@pytest.mark.parametrize("file", FILES)
@pytest.mark.parametrize(("make", "line"), SWAPS, ids=[make.__name__ for make, _ in SWAPS])
def test_a_file_swapped_between_look_and_opening(
    places: Places, file: str, make: Make, line: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    provider = ImportProvider(places.roots)
    plan = provider.plan(import_spec())
    with monkeypatch.context() as patch:
        swapping(patch, places.base / file, make)
        outcome = provider.execute(plan)
    assert isinstance(outcome, Rejected)
    check_line(outcome.detail, f"{file} {line}")
    assert list(places.registry.glob("**/*.safetensors")) == []
    assert list(places.registry.glob(".cohesix-import-*")) == []


@pytest.mark.parametrize("folder", [*FOLDERS, "registry/available"])
def test_a_directory_swapped_between_look_and_opening(
    places: Places, folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    provider = ImportProvider(places.roots)
    plan = provider.plan(import_spec())
    with monkeypatch.context() as patch:
        swapping(patch, places.base / folder, _link_outside)
        assert isinstance(provider.execute(plan), Rejected)
    assert list(places.registry.glob(".cohesix-import-*")) == []


def test_a_file_that_is_written_to_while_it_is_copied(
    places: Places, monkeypatch: pytest.MonkeyPatch
) -> None:
    provider = ImportProvider(places.roots)
    plan = provider.plan(import_spec())
    before = places.snapshot()
    real = os.preadv
    source = places.adapter / "adapter.safetensors"
    until_a_change_shows(source)
    inode = source.stat().st_ino

    def preadv(fd: int, buffers: Any, offset: int) -> int:
        count = real(fd, buffers, offset)
        if offset == 0 and os.fstat(fd).st_ino == inode:
            with source.open("r+b") as writer:
                writer.seek(500)
                writer.write(b"\1")
        return count

    monkeypatch.setattr(os, "preadv", preadv)
    outcome = provider.execute(plan)
    assert isinstance(outcome, Rejected)
    assert f"adapters/{ADAPTER}/adapter.safetensors was changed while it was read" in outcome.detail
    registry = str(places.registry)
    after = {name: entry for name, entry in places.snapshot().items() if name.startswith(registry)}
    assert after == {name: entry for name, entry in before.items() if name.startswith(registry)}


def test_what_is_checked_is_the_copy(places: Places, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bad while it is copied, and good again in the same place as soon as it was."""
    source = places.adapter / "adapter.safetensors"
    source.write_bytes(b"\xff" * len(TENSORS))

    def copy_and_restore(*arguments: Any, **options: Any) -> Copied:
        copied = copy_hashed(*arguments, **options)
        source.write_bytes(TENSORS)
        return copied

    with monkeypatch.context() as patch:
        patch.setattr(imports, "check_tensors", lambda *_: None)
        plan = ImportProvider(places.roots).plan(import_spec())
    monkeypatch.setattr(imports, "copy_hashed", copy_and_restore)
    outcome = ImportProvider(places.roots).execute(plan)
    assert isinstance(outcome, Rejected)
    assert "adapter.safetensors is not a safetensors file" in outcome.detail
    assert not places.model.exists()


_FLIP = """
import ctypes, os, random, sys, time
exchange = ctypes.CDLL(None).renameat2
print("ready", flush=True)
while os.getppid() != 1:
    if exchange(-100, sys.argv[1].encode(), -100, sys.argv[2].encode(), 2):
        sys.exit("no exchange here")
    until = time.monotonic() + random.choice([0, 0.001, 0.02]) * random.random()
    while time.monotonic() < until:
        pass
"""


def _imported(provider: ImportProvider, ticket: str) -> Outcome:
    try:
        return provider.execute(provider.plan(import_spec(ticket=ticket)))
    except (PlanRefusedError, PlanWaitsError):
        return Rejected("not planned")


@pytest.mark.timeout(600)
@pytest.mark.parametrize("evil", ["link", "other"])
def test_an_adapter_that_somebody_swaps_all_the_time(places: Places, evil: str) -> None:
    """For a link to a secret, or for another good adapter; whatever is published is one of the good ones."""
    other = file_with(pair() | pair("base_model.model.model.layers.0.self_attn.v_proj"), format="xy")
    bad = places.adapters / "bad"
    if evil == "link":
        bad.symlink_to("../../outside/secret")
    else:
        bad.write_bytes(other)
    command = [sys.executable, "-c", _FLIP, str(places.adapter / "adapter.safetensors"), str(bad)]
    provider = ImportProvider(places.roots)
    seen = {"published": 0, "not": 0}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
            for number in range(2000):
                outcome = _imported(provider, f"t{number}")
                if isinstance(outcome, Committed):
                    data = (places.model / "adapter.safetensors").read_bytes()
                    assert sha256(data) == outcome.evidence["adapter_sha256"]
                    assert data in (TENSORS, other)
                    shutil.rmtree(places.model)
                    seen["published"] += 1
                else:
                    assert not places.model.exists()
                    seen["not"] += 1
                if min(seen.values()) >= 5:
                    break
            assert process.poll() is None, "the other process gave up"
        finally:
            # It never ends by itself.
            process.kill()
    assert min(seen.values()) >= 1, seen
    assert list(places.registry.glob(".cohesix-import-*")) == []


def test_how_many_there_are() -> None:
    """Distinct adapters and trees that went through planning and execution above."""
    trees = len(FILES) * (len(KINDS) + 1 + len(SWAPS)) + len(FOLDERS) * (len(FOLDER_KINDS) + 1)
    assert len(TENSOR_ROWS) + len(CONFIG_ROWS) >= 200
    assert trees + len(NAMES) + len(JOBS) + len(REGISTRIES) >= 180
