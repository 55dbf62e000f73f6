from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from release_support import policy, profile, release_input, request, sha

from ticket_agent.peft.release.canonical import encode
from ticket_agent.peft.release.document_error import DocumentError
from ticket_agent.peft.release.inputs import (
    ReleaseInput,
    check_input,
    encode_input,
    input_names,
    parse_input,
)
from ticket_agent.peft.release.profile import Profile, ProfileSchema, profile_digest
from ticket_agent.peft.release.request import Entry, ReleaseRequest

OURS, V1, V2 = ProfileSchema.OURS, ProfileSchema.V1, ProfileSchema.V2
CASES = [(entry, schema) for entry in Entry for schema in ProfileSchema]


def fitting(of: Profile, entry: Entry) -> ReleaseRequest:
    return request(
        entry=entry,
        profile_sha256=profile_digest(of),
        evaluation_policy=of.evaluation_policy or policy(),
    )


@pytest.mark.parametrize(("entry", "schema"), CASES)
def test_an_input_is_read_back_and_fits(entry: Entry, schema: ProfileSchema) -> None:
    made = profile(schema)
    value = release_input(made, entry)
    data = encode_input(value)
    assert parse_input(data, entry=entry, schema=schema) == value
    assert set(json.loads(data)) == set(input_names(entry, schema))
    check_input(value, request=fitting(made, entry), profile=made)


def test_the_provenance_of_an_import_is_unknown() -> None:
    data = encode_input(release_input(profile(V2), Entry.IMPORT))
    assert json.loads(data)["training_provenance"] == "unknown"


@pytest.mark.parametrize(("entry", "schema"), CASES)
def test_members_are_exact(entry: Entry, schema: ProfileSchema) -> None:
    good = json.loads(encode_input(release_input(profile(schema), entry)))
    for name in good:
        with pytest.raises(DocumentError, match=f"has no member {name}"):
            parse_input(
                encode({key: value for key, value in good.items() if key != name}), entry=entry, schema=schema
            )
    with pytest.raises(DocumentError, match="unknown member extra"):
        parse_input(encode(good | {"extra": 1}), entry=entry, schema=schema)


def test_an_input_is_read_for_its_entry_and_schema_only() -> None:
    for schema in ProfileSchema:
        for entry in Entry:
            data = encode_input(release_input(profile(schema), entry))
            for other_schema in ProfileSchema:
                for other in Entry:
                    same = set(input_names(entry, schema)) == set(input_names(other, other_schema))
                    if not same:
                        with pytest.raises(DocumentError):
                            parse_input(data, entry=other, schema=other_schema)


BAD = [
    ("profile_sha256", "x", "profile_sha256"),
    ("source_sha256", None, "source_sha256"),
    ("attestations", [], "1..=4"),
    ("attestations", [sha(str(n)) for n in range(5)], "1..=4"),
    ("attestations", ["x"], "each of attestations"),
    ("license_refs", [], "1..=8"),
    ("license_refs", [1], "license_refs"),
    ("checkpoint", sha("checkpoint"), "nothing is trained"),
    ("checkpoint", "", "checkpoint"),
    ("adapter_bundle_sha256", "AB" * 32, "adapter_bundle_sha256"),
    ("base_sha256", 1, "base_sha256"),
    ("tokenizer_sha256", "", "tokenizer_sha256"),
    ("versions", [], "versions"),
    ("versions", {"torch": "any"}, "exact version"),
    ("training_provenance", "known", '"unknown"'),
    ("training_provenance", None, '"unknown"'),
]


@pytest.mark.parametrize(("name", "value", "words"), BAD, ids=[f"{n}-{c[0]}" for n, c in enumerate(BAD)])
def test_refused(name: str, value: object, words: str) -> None:
    good = json.loads(encode_input(release_input(profile(V2), Entry.IMPORT)))
    with pytest.raises(DocumentError) as caught:
        parse_input(encode(good | {name: value}), entry=Entry.IMPORT, schema=V2)
    assert words in str(caught.value)


def _adapter(value: ReleaseInput, **changes: Any) -> ReleaseInput:
    assert value.adapter is not None
    return replace(value, adapter=replace(value.adapter, **changes))


def test_what_does_not_belong_together_is_refused() -> None:
    made = profile(V2)
    value, wanted = release_input(made, Entry.IMPORT), fitting(made, Entry.IMPORT)
    train = release_input(made, Entry.TRAIN)
    newer = dict(made.versions) | {"torch": "2.9.2"}
    more = dict(made.versions) | {"numpy": "2.0.0"}
    cases: list[tuple[ReleaseInput, ReleaseRequest, Profile, str]] = [
        (train, wanted, made, "entry is train; it must be import"),
        (value, replace(wanted, entry=Entry.TRAIN), made, "entry is import"),
        (value, replace(wanted, profile_sha256=sha("other")), made, "profile_sha256 of the request"),
        (replace(value, profile_sha256=sha("other")), wanted, made, "profile_sha256 is"),
        (value, replace(wanted, evaluation_policy=policy(3.0)), made, "evaluation_policy of the request"),
        (replace(value, license_refs=("MIT",)), wanted, made, "licence MIT"),
        (_adapter(value, base_sha256=sha("other")), wanted, made, "base_sha256 is"),
        (_adapter(value, tokenizer_sha256=sha("other")), wanted, made, "tokenizer_sha256 is"),
        (_adapter(value, versions=tuple(newer.items())), wanted, made, "versions.torch is 2.9.2"),
        (_adapter(value, versions=tuple(more.items())), wanted, made, "versions.numpy is 2.0.0"),
    ]
    for bad, asked, under, words in cases:
        with pytest.raises(DocumentError) as caught:
            check_input(bad, request=asked, profile=under)
        assert words in str(caught.value)


def test_the_oldest_schema() -> None:
    made = profile(V1)
    wanted = fitting(made, Entry.IMPORT)
    value = release_input(made, Entry.IMPORT)
    assert value.adapter is not None
    assert value.adapter.training is not None
    training = value.adapter.training
    with pytest.raises(DocumentError, match="dataset_sha256"):
        check_input(
            _adapter(value, training=replace(training, dataset_sha256=sha("x"))),
            request=wanted,
            profile=made,
        )
    settings = replace(training.settings, rank=8)
    with pytest.raises(DocumentError, match="training_settings"):
        check_input(
            _adapter(value, training=replace(training, settings=settings)), request=wanted, profile=made
        )
    with pytest.raises(DocumentError, match="provenance"):
        check_input(_adapter(value, training=None), request=wanted, profile=made)
    resumed = release_input(made, Entry.TRAIN, checkpoint=sha("checkpoint"))
    with pytest.raises(DocumentError, match="oldest schema"):
        check_input(resumed, request=fitting(made, Entry.TRAIN), profile=made)


def test_a_training_may_go_on_from_a_checkpoint() -> None:
    made = profile(V2)
    value = release_input(made, Entry.TRAIN, checkpoint=sha("checkpoint"))
    assert parse_input(encode_input(value), entry=Entry.TRAIN, schema=V2) == value
    check_input(value, request=fitting(made, Entry.TRAIN), profile=made)


def test_our_schema_binds_like_the_newer_one() -> None:
    made = profile(OURS)
    value = release_input(made, Entry.IMPORT)
    with pytest.raises(DocumentError, match="evaluation_policy"):
        check_input(
            value, request=replace(fitting(made, Entry.IMPORT), evaluation_policy=policy()), profile=made
        )
