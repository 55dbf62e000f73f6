from __future__ import annotations

import json
import os
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from release_support import CANARY
from serving_support import (
    BASE_ANSWERS,
    QUICK,
    TRANSFORMERS,
    VLLM,
    Running,
    double,
    expected,
    instance,
)

from ticket_agent.peft.release.canary import Reference
from ticket_agent.peft.release.canary_run import BASE, INCUMBENT, CanaryRun
from ticket_agent.peft.release.settings import Acceptance, Match

if TYPE_CHECKING:
    from pathlib import Path

    from ticket_agent.peft.release.canary import CanaryReport
    from ticket_agent.peft.release.serving import Backend

BASE_REFERENCE = Reference(kind=BASE, texts=tuple("".join(BASE_ANSWERS[prompt]) for prompt in CANARY.prompts))


def tolerant(**changes: Any) -> Acceptance:
    members: dict[str, Any] = {
        "match": Match.PREFIX,
        "prefix_tokens": 2,
        "minimum_matches": 4,
        "minimum_logprob_shift": None,
    }
    return Acceptance(**(members | changes))


def run(running: Running, backend: Backend = TRANSFORMERS, **changes: Any) -> CanaryReport:
    members: dict[str, Any] = {
        "client": running.client,
        "backend": backend,
        "instance": running.instance,
        "canary": QUICK,
        "expected": expected(running.instance.generation),
        "references": (BASE_REFERENCE,) if backend is TRANSFORMERS else (),
        "identity": running.identity,
        "first_s": 60.0,
    }
    return CanaryRun(**(members | changes)).run()


@pytest.mark.parametrize("backend", [TRANSFORMERS, VLLM], ids=lambda backend: backend.kind)
def test_a_good_server_passes(backend: Backend, tmp_path: Path) -> None:
    with double(tmp_path, backend) as running:
        report = run(running, backend)
    assert report.passed, report.findings
    assert report.effect is not None
    assert dict(report.effect.changed) == {BASE: 4}
    idle, loaded = report.rounds
    assert (idle.background, idle.failures, loaded.failures) == (0, 0, 0)
    assert loaded.background >= 1
    assert len(json.dumps(report.members())) < 4500


def test_the_base_model_needs_no_effect(tmp_path: Path) -> None:
    with double(tmp_path, generation=0) as running:
        report = run(running, references=())
    assert report.passed, report.findings
    assert report.effect is None


FAULTS = [
    ("wrong-name", "serving-name", "the server answers as somebody-else"),
    ("other-list", "serving-name", "the server lists somebody-else"),
    ("more-names", "serving-name", "left-behind"),
    ("open", "serving-answer", "answers without a token"),
    ("base-output", "canary-output", "0 of 4 answers are as evaluated"),
    ("stale-cache", "canary-output", "0 of 4 answers are as evaluated"),
    ("wrong-under-load", "canary-output", "loaded:"),
    ("refuses-others", None, None),
    ("crash-on-first-use", "serving-unreachable", None),
    ("dies-half-way", "serving-answer", "finish_reason"),
    ("fails-half-way", "serving-answer", "CUDA error"),
    ("no-finish", "serving-answer", "finish_reason"),
    ("endless", "serving-answer", "exceeds"),
]


@pytest.mark.parametrize(("fault", "rule", "text"), FAULTS, ids=[fault for fault, _, _ in FAULTS])
def test_a_bad_server_is_found_out(fault: str, rule: str | None, text: str | None, tmp_path: Path) -> None:
    with double(tmp_path, fault=fault) as running:
        report = run(running)
    assert not report.passed
    found = report.findings[0]
    assert rule in {None, found.rule}, found
    assert text is None or text in found.text
    assert len(json.dumps(report.members())) < 4500


def test_a_slow_server_is_found_out(tmp_path: Path) -> None:
    with double(tmp_path, delay_s=0.15) as running:
        report = run(running, canary=replace(QUICK, maximum_latency_ms=100))
    assert {finding.rule for finding in report.findings} == {"canary-latency"}


def test_a_dripping_server_gets_no_more_time_than_a_silent_one(tmp_path: Path) -> None:
    with double(tmp_path, fault="drips") as running:
        report = run(running, first_s=0.3)
    assert [finding.rule for finding in report.findings] == ["serving-timeout"]


def test_output_of_the_base_model_is_no_effect_even_where_it_was_expected(tmp_path: Path) -> None:
    with double(tmp_path, fault="base-output") as running:
        report = run(running, expected=expected(0))
    assert [finding.rule for finding in report.findings] == ["canary-effect"]
    assert "base model" in report.findings[0].text


def test_an_incumbent_that_still_answers_is_no_effect(tmp_path: Path) -> None:
    same = tuple(item.text for item in expected(1))
    with double(tmp_path) as running:
        report = run(running, references=(BASE_REFERENCE, Reference(kind=INCUMBENT, texts=same)))
    assert [finding.rule for finding in report.findings] == ["canary-effect"]
    assert "incumbent" in report.findings[0].text


@pytest.mark.parametrize(
    ("matched", "tensors", "proven"), [(8, 8, True), (8, None, True), (7, 8, False), (0, None, False)]
)
def test_the_servers_own_count_decides(
    matched: int, tensors: int | None, proven: bool, tmp_path: Path
) -> None:
    with double(tmp_path, fault="base-output", matched_tensors=matched) as running:
        report = run(running, expected=expected(0), tensors=tensors)
    assert report.passed == proven


@pytest.mark.parametrize(
    ("shift", "least", "proven"), [(0.5, 0.1, True), (0.05, 0.1, False), (0.5, None, False)]
)
def test_a_moved_probability_is_an_effect(
    shift: float, least: float | None, proven: bool, tmp_path: Path
) -> None:
    canary = replace(QUICK, acceptance=tolerant(minimum_logprob_shift=least))
    name = instance().name
    logprobs = {name: -1.0 - shift, f"{name}-base": -1.0}
    with double(tmp_path, VLLM, fault="base-output", logprobs=logprobs) as running:
        report = run(running, VLLM, canary=canary, expected=expected(0))
    assert report.passed == proven, report.findings


def test_a_restart_during_the_canary_is_noticed(tmp_path: Path) -> None:
    names = iter(["one", "another"])
    with double(tmp_path) as running:
        report = run(running, identity=lambda: next(names))
    assert [finding.rule for finding in report.findings] == ["canary-identity"]


def test_what_is_tolerated_is_what_the_profile_says(tmp_path: Path) -> None:
    with double(tmp_path, fault="wrong-under-load") as running:
        report = run(running, canary=replace(QUICK, acceptance=tolerant(prefix_tokens=3)))
    assert report.passed, report.findings


def test_proxies_are_ignored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "ALL_PROXY", "https_proxy"):
        monkeypatch.setitem(os.environ, name, "http://127.0.0.1:1")
    with double(tmp_path) as running:
        assert run(running).passed
