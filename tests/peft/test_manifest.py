"""The manifest: the documented bytes, both layouts, and nothing else."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ticket_agent.peft.errors import RegistryError
from ticket_agent.peft.limits import (
    MAX_ADAPTER_BYTES,
    MAX_LORA_BYTES,
    MAX_MANIFEST_BYTES,
    MAX_METRICS_BYTES,
    MAX_POLICY_BYTES,
    MAX_TELEMETRY_BYTES,
)
from ticket_agent.peft.manifest import Artifact, BaseManifest, Manifest, parse, render

A, B, C, D, E = (digit * 64 for digit in "abcde")

NEWEST = f"""\
[model]
id = "m1"
cas_sha256 = "{A}"
base = "vision-base-v1"
adapter_sha256 = "{A}"
format = "safetensors+lora"
adapter = "adapter.safetensors"
lora = "lora.json"
metrics = "metrics.json"

[provenance]
job_id = "job-1"
approval = "pending"

[hashes]
adapter_sha256 = "{A}"
adapter_bytes = 1
lora_sha256 = "{B}"
lora_bytes = 2
metrics_sha256 = "{C}"
metrics_bytes = 3
policy_sha256 = "{D}"
policy_bytes = 4
telemetry_sha256 = "{E}"
telemetry_bytes = 5
"""
MANIFEST = Manifest(
    model="m1",
    base="vision-base-v1",
    job="job-1",
    adapter=Artifact(sha256=A, bytes=1),
    lora=Artifact(sha256=B, bytes=2),
    metrics=Artifact(sha256=C, bytes=3),
    policy=Artifact(sha256=D, bytes=4),
    telemetry=Artifact(sha256=E, bytes=5),
)


def without(text: str, *words: str) -> str:
    return "".join(line for line in text.splitlines(keepends=True) if not line.startswith(words))


OLDER = without(NEWEST.replace(f'adapter_sha256 = "{A}"\nformat', "format"), "cas_sha256", "format")
LAYOUTS = {
    "newest": (NEWEST, MANIFEST),
    "newest, no metrics": (without(NEWEST, "metrics"), replace(MANIFEST, metrics=None)),
    "older": (OLDER, replace(MANIFEST, newest=False)),
    "older, no metrics": (without(OLDER, "metrics"), replace(MANIFEST, newest=False, metrics=None)),
}


@pytest.mark.parametrize(("text", "manifest"), LAYOUTS.values(), ids=LAYOUTS)
def test_the_documented_bytes(text: str, manifest: Manifest) -> None:
    assert render(manifest) == text.encode()
    assert parse(text.encode()) == manifest


def test_the_order_of_members_and_tables_means_nothing() -> None:
    tables = NEWEST.split("\n\n")
    mixed = "\n\n".join("\n".join([head, *reversed(rest)]) for head, *rest in map(str.splitlines, tables))
    assert parse(mixed.encode()) == MANIFEST


def test_the_files_of_a_model() -> None:
    assert MANIFEST.files == {
        "adapter.safetensors": Artifact(sha256=A, bytes=1),
        "lora.json": Artifact(sha256=B, bytes=2),
        "metrics.json": Artifact(sha256=C, bytes=3),
    }
    assert list(replace(MANIFEST, metrics=None).files) == ["adapter.safetensors", "lora.json"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('[model]\nid = "b"\n', BaseManifest(model="b")),
        (f'[model]\nid="b"\ncas_sha256="{A}"\n', BaseManifest(model="b", cas_sha256=A)),
        (
            f'[model]\nid="b"\ncas_sha256="{A}"\nformat="gguf"\n',
            BaseManifest(model="b", cas_sha256=A, format="gguf"),
        ),
    ],
)
def test_a_base_model(text: str, expected: BaseManifest) -> None:
    assert parse(text.encode()) == expected
    assert expected.files == {}


TEXT = st.text(
    st.characters(codec="utf-8", exclude_categories=["Cc", "Zl", "Zp", "Zs", "Cn", "Co", "Cf"]),
    min_size=1,
    max_size=100,
)
IDS = st.from_regex(r"[A-Za-z0-9_][A-Za-z0-9._:-]{0,127}", fullmatch=True)


def artifacts(most: int) -> st.SearchStrategy[Artifact]:
    return st.builds(
        Artifact, sha256=st.text("0123456789abcdef", min_size=64, max_size=64), bytes=st.integers(1, most)
    )


MANIFESTS = st.builds(
    Manifest,
    model=IDS,
    job=IDS,
    base=TEXT,
    approval=TEXT.filter(lambda text: len(text.encode()) <= 128),
    newest=st.booleans(),
    adapter=artifacts(MAX_ADAPTER_BYTES),
    lora=artifacts(MAX_LORA_BYTES),
    metrics=st.none() | artifacts(MAX_METRICS_BYTES),
    policy=artifacts(MAX_POLICY_BYTES),
    telemetry=artifacts(MAX_TELEMETRY_BYTES),
)


@given(MANIFESTS)
def test_what_is_written_is_read_back(manifest: Manifest) -> None:
    data = render(manifest)
    assert len(data) <= MAX_MANIFEST_BYTES
    assert parse(data) == manifest


@given(st.binary(max_size=200))
def test_any_bytes_are_refused_in_one_line(data: bytes) -> None:
    with pytest.raises(RegistryError) as refused:
        parse(data)
    assert str(refused.value).isprintable()


@pytest.mark.parametrize("base", ['a"b', "a\\", "ünï", "a b", "meta/base", 'x"\\ny = "z', "[model]", "#"])
def test_a_base_with_special_characters_is_escaped(base: str) -> None:
    manifest = replace(MANIFEST, base=base)
    assert parse(render(manifest)) == manifest


def put(old: str, new: str) -> str:
    assert NEWEST.count(old) >= 1, old
    return NEWEST.replace(old, new)


REFUSED = {
    "not UTF-8": (b"\xff", "is not valid TOML"),
    "a byte order mark": (b"\xef\xbb\xbf" + NEWEST.encode(), "is not valid TOML"),
    "nothing": (b"", "model is missing"),
    "JSON": (b"{}", "is not valid TOML"),
    "deep": (b"a = " + b"[" * 8000, "is not valid TOML"),
    "a long number": (b"a = " + b"9" * 8000, "is not valid TOML"),
    "too large": (NEWEST.encode() + b"#" * MAX_MANIFEST_BYTES, "at most 8192 are read"),
    "a member twice": (put('base = "v', 'id = "m1"\nbase = "v'), "is not valid TOML"),
    "a table twice": (NEWEST + "[model]\n", "is not valid TOML"),
    "cut off": (NEWEST[:-3], "is not valid TOML|missing"),
    "cut after a table": (NEWEST.partition("[hashes]")[0], "hashes is missing"),
    "no provenance": (without(NEWEST, "[provenance]", "job_id", "approval"), "provenance is missing"),
    "model is no table": ("model = 1\n", "model must be a table"),
    "tables in an array": (put("[hashes]", "[[hashes]]"), "hashes must be a table"),
    "unknown table": (NEWEST + "[extra]\n", "extra is not known"),
    "unknown member at the top": ("x = 1\n" + NEWEST, ": x is not known"),
    "unknown model member": (put('id = "m1"', 'id = "m1"\ncode = "x"'), r"\[model\]\.code is not known"),
    "unknown hash": (NEWEST + "extra_bytes = 1\n", r"\[hashes\]\.extra_bytes is not known"),
    "unknown provenance": (put('job_id = "', 'x = 1\njob_id = "'), r"\[provenance\]\.x is not known"),
    "unknown name with an escape": (put('id = "m1"', '"\\u001b" = 1\nid = "m1"'), r"\\x1b is not known"),
    "unknown member of a base": ('[model]\nid = "b"\npath = "/x"\n', "provenance is missing"),
    "base without id": ("[model]\n", r"\[model\]\.id is missing"),
    "base with a bad digest": ('[model]\nid="b"\ncas_sha256="x"\n', "cas_sha256 must be a SHA-256"),
    "base with an empty format": ('[model]\nid="b"\nformat=""\n', r"\[model\]\.format must be 1"),
    "base with a bad id": ('[model]\nid = "../b"\n', r"\[model\]\.id must be"),
    "id is a number": (put('"m1"', "1"), r"\[model\]\.id must be a string"),
    "id is a path": (put('"m1"', '"a/b"'), r"\[model\]\.id must be 1..=128"),
    "id is dots": (put('"m1"', '".."'), r"\[model\]\.id must not be"),
    "id is reserved": (put('"m1"', '".cohesix-x"'), r"\[model\]\.id must not start"),
    "id is empty": (put('"m1"', '""'), r"\[model\]\.id must be"),
    "job is a path": (put('"job-1"', '"/job"'), r"\[provenance\]\.job_id must be"),
    "base is empty": (put('"vision-base-v1"', '""'), r"\[model\]\.base must be"),
    "base has blanks": (put('"vision-base-v1"', '" b"'), r"\[model\]\.base must be"),
    "base has a line break": (put('"vision-base-v1"', '"a\\nb"'), r"\[model\]\.base must be"),
    "base is long": (put('"vision-base-v1"', f'"{"b" * 1025}"'), r"\[model\]\.base must be 1..=1024"),
    "approval is a list": (put('"pending"', "[]"), r"\[provenance\]\.approval must be a string"),
    "adapter elsewhere": (put('"adapter.safetensors"', '"../x"'), r"\[model\]\.adapter is '\.\./x'; it can"),
    "lora elsewhere": (put('"lora.json"', '"/etc/passwd"'), r"\[model\]\.lora is "),
    "metrics elsewhere": (put('"metrics.json"', '"m"'), r"\[model\]\.metrics is 'm'; it can only be metrics"),
    "metrics without hash": (without(NEWEST, "metrics_sha256"), "metrics_sha256 is missing"),
    "metrics without size": (without(NEWEST, "metrics_bytes"), "metrics_bytes is missing"),
    "hash without metrics": (without(NEWEST, "metrics ="), "tells about metrics.json, which"),
    "no adapter": (without(NEWEST, "adapter ="), r"\[model\]\.adapter is missing"),
    "digest in capitals": (
        put(f'lora_sha256 = "{B}"', f'lora_sha256 = "{B.upper()}"'),
        "lora_sha256 must be",
    ),
    "digest too short": (put(B, B[1:]), "lora_sha256 must be a SHA-256"),
    "digest is a number": (put(f'"{B}"', "1"), "lora_sha256 must be a string"),
    "size is zero": (put("lora_bytes = 2", "lora_bytes = 0"), "lora_bytes must be 1..=65536"),
    "size is negative": (put("lora_bytes = 2", "lora_bytes = -2"), "lora_bytes must be 1"),
    "size is a float": (put("lora_bytes = 2", "lora_bytes = 2.0"), "lora_bytes must be an integer"),
    "size is true": (put("lora_bytes = 2", "lora_bytes = true"), "lora_bytes must be an integer"),
    "size is text": (put("lora_bytes = 2", 'lora_bytes = "2"'), "lora_bytes must be an integer"),
    "adapter too large": (put("adapter_bytes = 1", "adapter_bytes = 67108865"), "adapter_bytes must be 1"),
    "policy too large": (put("policy_bytes = 4", "policy_bytes = 8193"), "policy_bytes must be 1..=8192"),
    "telemetry too large": (put("telemetry_bytes = 5", "telemetry_bytes = 131073"), "telemetry_bytes must"),
    "newest without format": (without(NEWEST, "format"), r"\[model\]\.format is missing"),
    "newest without cas": (without(NEWEST, "cas_sha256"), r"\[model\]\.cas_sha256 is missing"),
    "another format": (put("safetensors+lora", "pickle"), r"\[model\]\.format is 'pickle'; it can only be"),
    "cas differs": (put(f'cas_sha256 = "{A}"', f'cas_sha256 = "{B}"'), "cas_sha256 and .* are different"),
    "adapter digest differs": (
        put(f'adapter_sha256 = "{A}"\nformat', f'adapter_sha256 = "{B}"\nformat'),
        r"\[model\]\.adapter_sha256 and .* are different",
    ),
}


@pytest.mark.parametrize(("text", "words"), REFUSED.values(), ids=REFUSED)
def test_what_a_manifest_must_not_hold(text: str | bytes, words: str) -> None:
    with pytest.raises(RegistryError, match=words) as refused:
        parse(text if isinstance(text, bytes) else text.encode())
    line = str(refused.value)
    assert line.startswith("manifest.toml: ")
    assert line.isprintable()


@pytest.mark.parametrize(
    "change",
    [
        {"model": "a/b"},
        {"job": ""},
        {"base": "a\nb"},
        {"approval": " "},
        {"adapter": Artifact(sha256="A" * 64, bytes=1)},
        {"lora": Artifact(sha256=A, bytes=0)},
        {"metrics": Artifact(sha256=A, bytes=MAX_LORA_BYTES + 1)},
    ],
    ids=str,
)
def test_a_value_that_could_not_be_read_back_is_never_made(change: dict[str, Any]) -> None:
    with pytest.raises(RegistryError, match=r"manifest\.toml: \["):
        replace(MANIFEST, **change)


def test_the_largest_manifest_is_one_that_readers_accept() -> None:
    most = Artifact(sha256=A, bytes=8192)
    largest = Manifest(
        model="m" * 128,
        job="j" * 128,
        base="\\" * 1024,
        approval='"' * 128,
        adapter=most,
        lora=most,
        metrics=most,
        policy=most,
        telemetry=most,
    )
    assert len(render(largest)) <= MAX_MANIFEST_BYTES
    assert parse(render(largest)) == largest


@pytest.mark.parametrize("position", range(0, len(NEWEST), 7))
def test_a_flipped_bit_is_never_read_as_the_same_manifest(position: int) -> None:
    data = bytearray(NEWEST.encode())
    data[position] ^= 1
    try:
        found = parse(bytes(data))
    except RegistryError:
        return
    assert found != MANIFEST
