"""Bundles, checkpoints, rows; and a law for all documents: bytes are read and written back, or refused."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from release_support import base_bundle, base_state, profile, release_input, request, rows, sha

from ticket_agent.peft.release.bundle import (
    BundleManifest,
    encode_bundle,
    file_limit,
    parse_bundle,
    tokenizer_digest,
)
from ticket_agent.peft.release.canonical import digest, digest_of, encode
from ticket_agent.peft.release.checkpoint import (
    CHECKPOINT_FILES,
    CheckpointManifest,
    check_resume,
    check_source_request,
    check_trainer_state,
    encode_checkpoint,
    parse_checkpoint,
)
from ticket_agent.peft.release.data import check_disjoint, check_tokens, encode_rows, parse_rows
from ticket_agent.peft.release.deployment import encode_deployment, parse_deployment
from ticket_agent.peft.release.document_error import DocumentError
from ticket_agent.peft.release.inputs import encode_input, parse_input
from ticket_agent.peft.release.profile import ProfileSchema, encode_profile, parse_profile
from ticket_agent.peft.release.qualified import QUALIFIED_STACK
from ticket_agent.peft.release.request import Entry, encode_request, parse_request, request_digest

if TYPE_CHECKING:
    from collections.abc import Callable

# -- bundles ----------------------------------------------------------------------------------------------

BUNDLE = base_bundle(QUALIFIED_STACK)


def with_files(files: dict[str, Any]) -> bytes:
    return encode(json.loads(encode_bundle(BUNDLE)) | {"files": files})


@pytest.mark.parametrize("name", ["a.json", "A-b_c.1.safetensors", "x.txt", "README.md", "x" * 59 + ".json"])
def test_names_of_data(name: str) -> None:
    parsed = parse_bundle(with_files({name: sha("x")}))
    assert parsed.file(name) == sha("x")


@pytest.mark.parametrize(
    "name",
    [
        "weights.pkl",
        "pytorch_model.bin",
        "optimizer.pt",
        "chat_template.jinja",
        "model.py",
        "json",
        "../adapter.json",
        "/tmp/model.json",
        "a/b.json",
        "a\\b.json",
        ".",
        "..",
        "",
        "ü.json",
        "a.json\n",
        "x" * 60 + ".json",
        "A.JSON",
    ],
)
def test_names_that_no_bundle_has(name: str) -> None:
    with pytest.raises(DocumentError) as caught:
        parse_bundle(with_files({name: sha("x")}))
    assert caught.value.rule == "bundle-name"


@pytest.mark.parametrize(
    "change",
    [
        {"files": {}},
        {"files": {f"{n}.json": sha("x") for n in range(17)}},
        {"files": {"a.json": "x"}},
        {"files": ["a.json"]},
        {"source": ""},
        {"revision": None},
        {"license_ref": "\x07"},
        {"source": "x" * 257},
        {"extra": 1},
    ],
)
def test_no_bundle(change: dict[str, Any]) -> None:
    with pytest.raises(DocumentError, match=r"^bundle manifest: "):
        parse_bundle(encode(json.loads(encode_bundle(BUNDLE)) | change))


def test_a_name_only_once() -> None:
    with pytest.raises(DocumentError, match="different names"):
        BundleManifest(
            files=(("a.json", sha("a")), ("a.json", sha("b"))), source="s", revision="r", license_ref="l"
        )


def test_the_tokenizer_is_what_its_files_are() -> None:
    files = dict(BUNDLE.files)
    named = ("tokenizer.json", "tokenizer_config.json", "vocab.json")
    assert tokenizer_digest(files) == digest_of({name: files[name] for name in named})
    assert tokenizer_digest(files | {"merges.txt": sha("m")}) != tokenizer_digest(files)
    assert tokenizer_digest(files | {"config.json": sha("m")}) == tokenizer_digest(files)
    with pytest.raises(DocumentError, match="no tokenizer"):
        tokenizer_digest({"config.json": sha("c")})


def test_only_base_weights_may_be_large() -> None:
    assert file_limit("model.safetensors") == 1 << 30
    assert file_limit("adapter_model.safetensors") == file_limit("a.json") == 32 << 20


# -- checkpoints ------------------------------------------------------------------------------------------

SOURCE = request(operation_id="train-one", entry=Entry.TRAIN)
CHECKPOINT = CheckpointManifest(
    source_operation="train-one",
    request_sha256=request_digest(SOURCE),
    profile_sha256=SOURCE.profile_sha256,
    input_sha256=SOURCE.input_sha256,
    step=16,
    files=tuple((name, sha(name)) for name in CHECKPOINT_FILES),
)
RESUMING = request(operation_id="train-two", entry=Entry.TRAIN)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"schema": "cohesix-peft-checkpoint/v2"}, "schema"),
        ({"source_operation": "a.b"}, "source_operation"),
        ({"request_sha256": ""}, "request_sha256"),
        ({"step": 0}, "step"),
        ({"step": 1.0}, "step"),
        ({"files": dict.fromkeys(CHECKPOINT_FILES[:5], "ab" * 32)}, "no member files.trainer_state.json"),
        ({"files": dict.fromkeys((*CHECKPOINT_FILES, "x.pt"), "ab" * 32)}, "unknown member files.x.pt"),
        ({"files": dict.fromkeys(CHECKPOINT_FILES, "ab")}, "files.adapter_config.json"),
        ({"files": []}, "files must be an object"),
        ({"extra": 1}, "unknown member extra"),
    ],
)
def test_no_checkpoint(change: dict[str, Any], words: str) -> None:
    with pytest.raises(DocumentError, match=r"^checkpoint manifest: ") as caught:
        parse_checkpoint(encode(json.loads(encode_checkpoint(CHECKPOINT)) | change))
    assert words in str(caught.value)


def resume(**changes: Any) -> None:
    known = digest(encode_checkpoint(CHECKPOINT))
    members: dict[str, Any] = {"request": RESUMING, "max_steps": 17, "published": known, "digest": known}
    check_resume(changes.pop("manifest", CHECKPOINT), **(members | changes))


def test_a_checkpoint_that_may_be_used() -> None:
    resume()
    check_source_request(CHECKPOINT, SOURCE)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"request": replace(RESUMING, entry=Entry.IMPORT)}, "only a release that trains"),
        ({"request": replace(RESUMING, operation_id="train-one")}, "this very operation"),
        ({"request": replace(RESUMING, profile_sha256=sha("other"))}, "another profile"),
        ({"max_steps": 16}, "step 16 of 16"),
        ({"published": sha("newer")}, "not the newest"),
    ],
)
def test_a_checkpoint_that_may_not(change: dict[str, Any], words: str) -> None:
    with pytest.raises(DocumentError, match=words):
        resume(**change)


@pytest.mark.parametrize(
    ("source", "words"),
    [
        (replace(SOURCE, entry=Entry.IMPORT), "did not train"),
        (replace(SOURCE, operation_id="train-three"), "does not belong"),
        (replace(SOURCE, input_sha256=sha("x")), "does not belong"),
        (replace(SOURCE, baseline=base_state(healthy=False)), "does not belong"),
    ],
)
def test_a_checkpoint_of_another_release(source: Any, words: str) -> None:
    with pytest.raises(DocumentError, match=words):
        check_source_request(CHECKPOINT, source)


def test_the_trainer_stood_where_the_manifest_says() -> None:
    check_trainer_state(b'{"global_step": 16, "epoch": 0.5}', 16)
    for bad in (
        b'{"global_step": 15}',
        b'{"global_step": 16.0}',
        b'{"global_step": true}',
        b"{}",
        b"",
        b"[]",
    ):
        with pytest.raises(DocumentError, match=r"^trainer_state\.json: "):
            check_trainer_state(bad, 16)


# -- rows -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [16, 17, 256])
def test_rows(count: int) -> None:
    made = rows(count)
    assert parse_rows(encode_rows(made, what="rows"), what="rows") == made


@pytest.mark.parametrize(
    ("bad", "words"),
    [
        (rows(15), "15 rows; it must have 16..=256"),
        (rows(257), "257 rows"),
        ((*rows(15), rows(1)[0]), "rows 0 and 15 are the same"),
        ((*rows(15), "x" * 15), "row 15 must be text"),
        ((*rows(15), "x" * 2049), "row 15 must be text"),
        ((*rows(15), 7), "row 15 must be text"),
        ((*rows(15), None), "row 15 must be text"),
    ],
)
def test_no_rows(bad: tuple[Any, ...], words: str) -> None:
    with pytest.raises(DocumentError) as caught:
        parse_rows(encode(list(bad)), what="training rows")
    assert str(caught.value).startswith("training rows: ")
    assert words in str(caught.value)
    with pytest.raises(DocumentError):
        encode_rows(bad, what="rows")


def test_rows_of_all_lengths() -> None:
    made = ("x" * 16, "y" * 2048, *rows(14))
    assert parse_rows(encode_rows(made, what="rows"), what="rows", low=16, high=16) == made
    with pytest.raises(DocumentError, match="it must have 16"):
        parse_rows(encode(list(rows(17))), what="rows", low=16, high=16)


def test_rows_keep_the_bound_of_a_document() -> None:
    with pytest.raises(DocumentError, match="the limit is 262144"):
        encode_rows([f"{n:04}" + "x" * 2000 for n in range(200)], what="rows")


def test_no_row_is_in_both() -> None:
    check_disjoint(rows(32), rows(16, "other"))
    with pytest.raises(DocumentError, match="evaluation row 1 is a training row too"):
        check_disjoint(rows(32), ("fresh", rows(32)[31]))


def test_short_rows() -> None:
    check_tokens([8, 9], what="rows")
    with pytest.raises(DocumentError, match="row 1 has 7 tokens"):
        check_tokens([8, 7], what="rows")


# -- the law ----------------------------------------------------------------------------------------------

V2 = ProfileSchema.V2
DOCUMENTS: dict[str, tuple[bytes, Callable[[bytes], bytes]]] = {
    "request": (encode_request(request()), lambda data: encode_request(parse_request(data))),
    "deployment": (encode_deployment(base_state()), lambda data: encode_deployment(parse_deployment(data))),
    "bundle": (encode_bundle(BUNDLE), lambda data: encode_bundle(parse_bundle(data))),
    "checkpoint": (
        encode_checkpoint(CHECKPOINT),
        lambda data: encode_checkpoint(parse_checkpoint(data)),
    ),
    "rows": (
        encode_rows(rows(16), what="rows"),
        lambda data: encode_rows(parse_rows(data, what="rows"), what="rows"),
    ),
    "profile": (
        encode_profile(profile(ProfileSchema.OURS)),
        lambda data: encode_profile(parse_profile(data)),
    ),
    "import": (
        encode_input(release_input(profile(V2), Entry.IMPORT)),
        lambda data: encode_input(parse_input(data, entry=Entry.IMPORT, schema=V2)),
    ),
    "train": (
        encode_input(release_input(profile(V2), Entry.TRAIN)),
        lambda data: encode_input(parse_input(data, entry=Entry.TRAIN, schema=V2)),
    ),
}


def holds(name: str, data: bytes) -> None:
    try:
        again = DOCUMENTS[name][1](data)
    except DocumentError as error:
        line = str(error)
    else:
        assert again == data
        return
    assert line.isprintable()
    assert len(line) <= 400


@pytest.mark.parametrize("name", DOCUMENTS)
def test_the_good_one(name: str) -> None:
    data, again = DOCUMENTS[name]
    assert again(data) == data


@pytest.mark.parametrize("name", DOCUMENTS)
@given(data=st.binary(max_size=64))
@settings(max_examples=30)
def test_any_bytes(name: str, data: bytes) -> None:
    holds(name, data)


@pytest.mark.parametrize("name", DOCUMENTS)
@given(at=st.integers(0, 10_000), byte=st.integers(0, 255), drop=st.integers(0, 3))
@settings(max_examples=100)
def test_any_changed_byte(name: str, at: int, byte: int, drop: int) -> None:
    data = DOCUMENTS[name][0]
    at %= len(data)
    holds(name, data[:at] + bytes([byte]) + data[at + drop :])


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-2, 2**40)
    | st.floats(0.125, 64.0)
    | st.sampled_from(["", "x", "lower", "ab" * 32, "unknown", "\x00", "é" * 300]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("abc"), inner, max_size=2),
    max_leaves=4,
)


def places(value: object, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(found for key, item in items for found in places(item, (*path, key)))]


@pytest.mark.parametrize("name", DOCUMENTS)
@given(pick=st.integers(0, 10_000), value=JSON)
@settings(max_examples=150)
def test_any_value_in_any_place(name: str, pick: int, value: object) -> None:
    """Well spelled, so that every check behind the spelling meets values of every type."""
    document = json.loads(DOCUMENTS[name][0])
    known = places(document)[1:]
    *way, last = known[pick % len(known)]
    place = document
    for step in way:
        place = place[step]
    place[last] = value
    spelled = json.dumps(document, separators=(",", ":"), ensure_ascii=name != "request")
    holds(name, spelled.encode())
