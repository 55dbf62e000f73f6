from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from release_support import CANARY, profile

from ticket_agent.peft.release.canary import (
    MAX_FINDINGS,
    CanaryReport,
    Condition,
    Effect,
    Expected,
    Reference,
    Round,
    Sample,
    find_effect,
    finding_of,
    judge,
)
from ticket_agent.peft.release.canonical import encode
from ticket_agent.peft.release.completion import Completion
from ticket_agent.peft.release.document_error import DocumentError
from ticket_agent.peft.release.profile import ProfileSchema, encode_profile, parse_profile
from ticket_agent.peft.release.settings import EXACT, Acceptance, Match

WANT = tuple(Expected(pieces=("a", " b", f" {number}")) for number in range(4))
GOOD = tuple(want.text for want in WANT)
PROVEN = Effect(matched_tensors=8, changed=(), shift=(), proven=True)


def accept(**changes: Any) -> Acceptance:
    return replace(EXACT, **changes)


def prefix(tokens: int, matches: int = 4) -> Acceptance:
    return accept(match=Match.PREFIX, prefix_tokens=tokens, minimum_matches=matches)


def sample(text: str, latency_ms: int = 5, logprobs: tuple[float, ...] = ()) -> Sample:
    completion = Completion(model="m", text=text, finish="stop", logprobs=logprobs)
    return Sample(completion=completion, latency_ms=latency_ms)


def asked(
    *texts: str,
    condition: Condition = Condition.IDLE,
    background: int = 0,
    failures: int = 0,
    latency: int = 5,
) -> Round:
    samples = tuple(sample(text, latency) for text in texts)
    return Round(condition=condition, samples=samples, background=background, failures=failures)


def judged(*rounds: Round, acceptance: Acceptance = EXACT, effect: Effect | None = PROVEN) -> CanaryReport:
    canary = replace(CANARY, acceptance=acceptance)
    return judge(name="m", canary=canary, expected=WANT, rounds=rounds, effect=effect)


@pytest.mark.parametrize(
    ("texts", "acceptance", "good"),
    [
        (GOOD, EXACT, True),
        ((*GOOD[:3], "a b 3 "), EXACT, False),
        ((*GOOD[:3], ""), EXACT, False),
        ((*GOOD[:3], "x"), accept(minimum_matches=3), True),
        ((*GOOD[:2], "x", "x"), accept(minimum_matches=3), False),
        (("a b", "a b c", "a b 9", "a b"), prefix(2), True),
        (("a b", "a b c", "a b 9", "a"), prefix(2), False),
        (("a b", "a b c", "a b 9", "a"), prefix(2, 3), True),
        (("a", "a x", "a b", "ab"), prefix(1), True),
        (GOOD, prefix(3), True),
        ((*GOOD[:3], "a b 3 4"), prefix(3), False),
        ((*GOOD[:3], "a b 3 4"), prefix(8), False),
    ],
)
def test_answers_have_to_be_as_evaluated(texts: tuple[str, ...], acceptance: Acceptance, good: bool) -> None:
    report = judged(asked(*texts), acceptance=acceptance)
    assert report.passed == good
    assert [finding.rule for finding in report.findings] == ([] if good else ["canary-output"])


@pytest.mark.parametrize(("latency", "good"), [(5000, True), (5001, False)])
def test_every_answer_has_to_come_in_time(latency: int, good: bool) -> None:
    assert judged(asked(*GOOD, latency=latency)).passed == good


@pytest.mark.parametrize(("background", "failures", "good"), [(1, 0, True), (0, 0, False), (3, 1, False)])
def test_load_has_to_be_there_and_to_be_carried(background: int, failures: int, good: bool) -> None:
    loaded = asked(*GOOD, condition=Condition.LOADED, background=background, failures=failures)
    assert judged(asked(*GOOD), loaded).passed == good


BASE = Reference(kind="base model", texts=("b0", "b1", "b2", "b3"), logprobs=((-1.0,),) * 4)
OLD = Reference(kind="incumbent", texts=("o0", "o1", "o2", "o3"))


@pytest.mark.parametrize(
    ("texts", "references", "matched", "tensors", "proven"),
    [
        (("n", "b1", "b2", "b3"), (BASE,), None, 8, True),
        (BASE.texts, (BASE,), None, 8, False),
        (BASE.texts, (BASE,), 8, 8, True),
        (BASE.texts, (BASE,), 8, None, True),
        (("n",) * 4, (BASE,), 7, 8, False),
        (("n",) * 4, (BASE,), 0, None, False),
        (("n",) * 4, (), None, 8, False),
        (("n",) * 4, (BASE, OLD), None, 8, True),
        (OLD.texts, (BASE, OLD), None, 8, False),
        (BASE.texts, (BASE, OLD), None, 8, False),
    ],
)
def test_an_effect_is_proven_against_everything_that_it_must_differ_from(
    texts: tuple[str, ...],
    references: tuple[Reference, ...],
    matched: int | None,
    tensors: int | None,
    proven: bool,
) -> None:
    samples = [sample(text) for text in texts]
    effect = find_effect(samples, references, matched_tensors=matched, tensors=tensors, acceptance=EXACT)
    assert effect.proven == proven
    report = judged(asked(*GOOD), effect=effect)
    assert [finding.rule for finding in report.findings] == ([] if proven else ["canary-effect"])


@pytest.mark.parametrize(
    ("logprobs", "least", "proven"),
    [
        ((-1.5,), 0.5, True),
        ((-1.4,), 0.5, False),
        ((-1.5,), None, False),
        ((), 0.5, False),
        ((-3.0, 0.0), 0.5, False),
    ],
)
def test_a_probability_counts_where_texts_are_equal(
    logprobs: tuple[float, ...], least: float | None, proven: bool
) -> None:
    samples = [sample(text, logprobs=logprobs) for text in BASE.texts]
    acceptance = accept(minimum_logprob_shift=least)
    assert find_effect(samples, (BASE,), matched_tensors=None, acceptance=acceptance).proven == proven


text_of_any_size = st.text(max_size=600)


@given(st.lists(text_of_any_size, min_size=8, max_size=8), st.lists(text_of_any_size, max_size=20))
def test_a_report_is_bounded_and_canonical(texts: list[str], found: list[str]) -> None:
    rounds = (
        asked(*texts[:4], latency=30_000_000),
        asked(*texts[4:], condition=Condition.LOADED, latency=30_000_000),
    )
    effect = Effect(
        matched_tensors=None,
        changed=(("base model", 0), ("incumbent", 0)),
        shift=(("base model", 0.00001), ("incumbent", 3.3333333)),
        proven=False,
    )
    also = [finding_of("serving-unreachable", text) for text in found]
    report = judge(name="m" * 160, canary=CANARY, expected=WANT, rounds=rounds, effect=effect, also=also)
    assert len(report.findings) <= MAX_FINDINGS
    assert all(len(finding.text) <= 200 for finding in report.findings)
    assert not report.passed
    assert len(encode(report.members())) <= 4608


def test_answers_are_reported_by_their_digests_alone() -> None:
    members = judged(asked(*GOOD)).members()
    assert "a b 1" not in json.dumps(members)
    assert members["rounds"][0]["matched"] == [True] * 4
    assert members["healthy"] is True


@pytest.mark.parametrize(
    "pieces", [(), ("x",) * 9, ("x" * 513,), (1,), None], ids=["none", "many", "long", "number", "null"]
)
def test_what_no_evaluation_expects_is_refused(pieces: Any) -> None:
    with pytest.raises(DocumentError):
        Expected(pieces=pieces)


@pytest.mark.parametrize("count", [3, 5])
def test_each_prompt_has_its_expected_answer(count: int) -> None:
    with pytest.raises(DocumentError):
        judge(name="m", canary=CANARY, expected=(WANT * 2)[:count], rounds=(), effect=None)


# -- what the profile says -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "changes",
    [
        {"prefix_tokens": 2},
        {"match": Match.PREFIX},
        {"match": "exact"},
        {"match": Match.PREFIX, "prefix_tokens": 0},
        {"match": Match.PREFIX, "prefix_tokens": 9},
        {"minimum_matches": 0},
        {"minimum_matches": 5},
        {"minimum_matches": True},
        {"minimum_logprob_shift": 0.0},
        {"minimum_logprob_shift": 1},
        {"minimum_logprob_shift": 10.5},
    ],
)
def test_an_acceptance_that_means_nothing_is_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(DocumentError):
        accept(**changes)


def test_the_acceptance_is_pinned_by_the_profile() -> None:
    canary = replace(CANARY, acceptance=accept(minimum_matches=3, minimum_logprob_shift=0.5))
    made = profile(ProfileSchema.OURS, canary=canary)
    assert parse_profile(encode_profile(made)) == made
    assert b'"minimum_matches":3' in encode_profile(made)


@pytest.mark.parametrize("schema", [ProfileSchema.V1, ProfileSchema.V2])
def test_the_older_profiles_know_the_strictest_alone(schema: ProfileSchema) -> None:
    assert b"acceptance" not in encode_profile(profile(schema))
    with pytest.raises(DocumentError, match="acceptance"):
        profile(schema, canary=replace(CANARY, acceptance=accept(minimum_matches=3)))
