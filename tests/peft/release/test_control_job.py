"""What control phases are told, what they expect as answers, and how a promoted candidate is watched."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from release_support import CANARY, sha
from serving_support import QUICK, TRANSFORMERS, answers, expected, instance

from ticket_agent.peft.errors import PeftError
from ticket_agent.peft.release import soak as soak_module
from ticket_agent.peft.release.behaviour import Behaviour
from ticket_agent.peft.release.canary import Expected
from ticket_agent.peft.release.completion import Completion
from ticket_agent.peft.release.control_job import CONTROL_PHASES, ControlFacts, Timing
from ticket_agent.peft.release.document_error import DocumentError
from ticket_agent.peft.release.loopback import LoopbackClient
from ticket_agent.peft.release.phases import Phase
from ticket_agent.peft.release.release_config import ReleaseConfig
from ticket_agent.peft.release.serving_errors import ServerUnreachableError
from ticket_agent.peft.release.settings import Acceptance, Match
from ticket_agent.peft.release.soak import Soak

if TYPE_CHECKING:
    from ticket_agent.peft.release.soak import SoakReport

CONFIG = ReleaseConfig(
    root=Path("/srv/releases"),
    python=Path("/opt/python"),
    ports=(8001, 8002),
    token_file=Path("/etc/token"),
    settle_s=0.0001,
    soak_s=0,
)
FACTS = ControlFacts.of(
    CONFIG,
    operation_id="release-one",
    request_sha256=sha("request"),
    phase=Phase.PROMOTE,
    native_identity="unconfined:1",
    recovery=None,
    candidate="release-one.server",
    incumbent="serve-g1-1",
    candidate_sha256=sha("candidate"),
    candidate_bundle_sha256=sha("bundle"),
    evaluate_out="/srv/releases/operations/release-one/evaluate/out",
    behaviour_sha256=sha("behaviour"),
    expires_unix_ms=1,
)


def test_facts_have_one_spelling_and_say_the_configuration() -> None:
    assert ControlFacts.parse(FACTS.encode()) == FACTS
    bare = replace(
        FACTS,
        phase=Phase.ROLLBACK,
        recovery="rescue-1",
        candidate=None,
        incumbent=None,
        candidate_sha256=None,
        candidate_bundle_sha256=None,
        evaluate_out=None,
        behaviour_sha256=None,
    )
    assert ControlFacts.parse(bare.encode()) == bare
    # To the millisecond, and never nothing at all.
    assert FACTS.config == replace(CONFIG, settle_s=0.001, soak_s=0.0)
    assert Timing.of(CONFIG).settle_s == 0.001


@pytest.mark.parametrize(
    "change",
    [
        {"phase": Phase.TRAIN},
        {"operation_id": "a.b"},
        {"request_sha256": "AB" * 32},
        {"native_identity": ""},
        {"recovery": "a/b"},
        {"candidate": "../x"},
        {"incumbent": "x.json"},
        {"candidate_sha256": "x"},
        {"behaviour_sha256": None},
        {"evaluate_out": None},
        {"evaluate_out": "out"},
        {"root": "releases"},
        {"expires_unix_ms": 0},
        {"ports": ()},
    ],
    ids=",".join,
)
def test_facts_that_no_phase_has(change: dict[str, Any]) -> None:
    with pytest.raises(PeftError):
        replace(FACTS, **change)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b'"phase":"promote"', b'"phase":"train"'),
        (b'"drain_s":30.0', b'"drain_s":30'),
        (b'"drain_s":30.0', b'"drain_s":-1.0'),
        (b'"recovery":null', b'"recovery": null'),
        (b'"recovery":null', b'"recover":null'),
        (b"control-job/v1", b"control-job/v2"),
    ],
)
def test_other_bytes_are_no_facts(old: bytes, new: bytes) -> None:
    data = FACTS.encode()
    assert data.count(old) == 1
    with pytest.raises(DocumentError):
        ControlFacts.parse(data.replace(old, new))


def test_every_control_phase_has_facts() -> None:
    for phase in CONTROL_PHASES:
        assert ControlFacts.parse(replace(FACTS, phase=phase).encode()).phase is phase


BEHAVIOUR = Behaviour(baseline=expected(1), candidate=expected(2))


def test_behaviour_has_one_spelling() -> None:
    assert Behaviour.parse(BEHAVIOUR.encode()) == BEHAVIOUR
    assert BEHAVIOUR.changed == 4
    assert Behaviour(baseline=expected(1), candidate=expected(1)).changed == 0
    with pytest.raises(DocumentError):
        Behaviour(baseline=expected(1)[:3], candidate=expected(2))
    for old, new in ((b"/v1", b"/v2"), (b'"baseline":[[', b'"baseline":[[],['), (b"this", b"thi\\u0073")):
        with pytest.raises(DocumentError):
            Behaviour.parse(BEHAVIOUR.encode().replace(old, new, 1))


# -- watching ----------------------------------------------------------------------------------------------


@dataclass
class Watched:
    """A server that says ``texts`` in turn, on a clock that only waiting moves."""

    texts: list[str | Exception] = field(default_factory=list)
    identities: list[str] = field(default_factory=lambda: ["one"])
    expires_at: float = 1000.0
    identity_s: float = 0.0
    now: float = 0.0
    asked: list[str] = field(default_factory=list)

    def ask(self, *args: Any, **_: Any) -> Completion:
        prompt = args[3]
        self.asked.append(prompt)
        number = len(self.asked) - 1
        said = self.texts[number] if number < len(self.texts) else "".join(answers(2)[prompt])
        if isinstance(said, Exception):
            raise said
        return Completion(model="m", text=said, finish="stop")

    def identity(self) -> str:
        self.now += self.identity_s
        return self.identities.pop(0) if len(self.identities) > 1 else self.identities[0]

    def sleep(self, seconds: float) -> None:
        self.now += seconds

    def watch(self, soak_s: float, acceptance: Acceptance | None = None) -> SoakReport:
        canary = QUICK if acceptance is None else replace(CANARY, acceptance=acceptance)
        return Soak(
            client=LoopbackClient(port=8001, token="t" * 40),
            backend=TRANSFORMERS,
            instance=instance(2),
            canary=canary,
            expected=expected(2),
            identity=self.identity,
            allowed=lambda: self.now < self.expires_at,
            soak_s=soak_s,
            pause_s=1.0,
            clock=lambda: self.now,
            sleep=self.sleep,
        ).run()


@pytest.fixture
def watched(monkeypatch: pytest.MonkeyPatch) -> Watched:
    made = Watched()
    monkeypatch.setattr(soak_module, "ask", made.ask)
    monkeypatch.setattr(soak_module, "check_ready", lambda *_: ())
    return made


def test_each_prompt_in_its_turn_for_as_long_as_is_asked(watched: Watched) -> None:
    found = watched.watch(5.5)
    assert (found.finding, found.looks, found.seconds) == (None, 6, 5.5)
    assert watched.asked == [*QUICK.prompts, *QUICK.prompts[:2]]
    assert watched.watch(0).members() == {"looks": 0, "seconds": 0.0, "finding": None}


def test_a_host_that_is_held_up_for_all_of_the_time_looks_once(watched: Watched) -> None:
    watched.identity_s = 10.0
    assert watched.watch(5.5).looks == 1
    watched.texts = ["good", ServerUnreachableError("gone")]
    found = watched.watch(5.5).finding
    assert found is not None
    assert found.rule == "serving-unreachable"
    assert watched.watch(0).looks == 0


@pytest.mark.parametrize(
    ("change", "rule", "looks"),
    [
        ({"texts": ["this is 2 to 0", "no"]}, "soak-output", 2),
        ({"texts": [ServerUnreachableError("gone")]}, "serving-unreachable", 1),
        ({"identities": ["one", "one", "two"]}, "soak-identity", 2),
        ({"expires_at": 2.0}, "release-authority-expired", 3),
    ],
)
def test_what_ends_it(change: dict[str, Any], rule: str, looks: int, watched: Watched) -> None:
    for name, value in change.items():
        setattr(watched, name, value)
    found = watched.watch(50)
    assert found.finding is not None
    assert (found.finding.rule, found.looks) == (rule, looks)


def test_as_many_prompts_as_in_the_canary_may_be_answered_in_another_way(watched: Watched) -> None:
    three = Acceptance(match=Match.EXACT, prefix_tokens=None, minimum_matches=3, minimum_logprob_shift=None)
    right = ["".join(Expected(pieces=tuple(pieces)).text) for pieces in answers(2).values()]
    # The first prompt is wrong each time: one prompt.
    watched.texts = ["no", *right[1:], "no", *right[1:]]
    assert watched.watch(7.5, three).finding is None
    watched.asked.clear()
    watched.texts = ["no", "no", *right[2:]]
    found = watched.watch(7.5, three)
    assert found.finding is not None
    assert found.looks == 2
