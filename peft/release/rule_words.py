"""What each rule that can stop a release means, and what to do: one table, for people. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from ticket_agent.peft.release.phases import Phase

__all__ = ["Words", "words_for_phase", "words_for_rule", "words_for_text"]


@dataclass(frozen=True, slots=True)
class Words:
    """What it means that a rule stopped a release, and the remedy; one sentence each."""

    meaning: str
    remedy: str


_PREPARE: Final = "Correct that and prepare a new release: `ticket-agent release prepare`."
_RULES: Final[dict[str, Words]] = {
    "canary-output": Words(
        "The served model answers otherwise than the same model did in its evaluation.",
        "Compare packages, device and dtype of the server with the profile's: they must be the same.",
    ),
    "canary-latency": Words(
        "An answer took longer than the profile allows.",
        "Look what else uses the device, or prepare a profile with a larger maximum_latency_ms.",
    ),
    "canary-load": Words(
        "The server does not hold while several requests come at the same time.",
        "Look into the server's output in the directory servers of the release root.",
    ),
    "canary-effect": Words(
        "It is not shown that the adapter is applied: the model answers as it does without it.",
        "Look whether the adapter's tensors have the names and shapes of the model that is served.",
    ),
    "canary-identity": Words(
        "The server was restarted while it was being tested.",
        "Look into its output, and what else on this host restarts or kills it.",
    ),
    "soak-identity": Words(
        "The promoted server was restarted while it was being watched.",
        "Look into its output, and what else on this host restarts or kills it.",
    ),
    "load-tensors": Words(
        "The server found another number of the adapter's tensors in its model than the adapter has.",
        "The adapter does not fit the base model that is served; train it on the profile's base.",
    ),
    "candidate-not-gone": Words(
        "The candidate's server could not be ended, so it may still answer.",
        "End its processes by hand, then recover the release: `ticket-agent release recover`.",
    ),
    "candidate-changed-after-evaluation": Words(
        "The adapter is not the one that was evaluated.",
        "Somebody changed files of the operation; find out who, and release again under a new operation id.",
    ),
    "native-pins": Words(
        "Packages, interpreter or device are not the ones that the profile pins.",
        "Install the pinned versions for the interpreter that is configured, or prepare a new profile.",
    ),
    "native-effect": Words(
        "The adapter changes nothing that can be measured in the model's outputs.",
        "It was not trained, or is scaled to nothing; train it longer or with another rate.",
    ),
    "native-keys": Words(
        "The adapter has not exactly the tensors that the profile's geometry asks for.",
        "Export it again from the profile's base model, with the profile's target modules.",
    ),
    "native-training": Words(
        "The training went wrong.",
        "Read its output (`ticket-agent release watch --once`), then prepare a new release.",
    ),
    "native-resume": Words(
        "The training did not go on where the checkpoint ends.",
        "Prepare a new release without the checkpoint, or from an older one.",
    ),
    "native-checkpoint": Words(
        "The checkpoint cannot be gone on from.",
        "Prepare a new release without the checkpoint, or from an older one.",
    ),
    "native-evaluation": Words(
        "The evaluation went wrong, so nothing can be said about the candidate.",
        "Read its output: `ticket-agent release watch --once`.",
    ),
    "native-job": Words(
        "The files that the phase was given are not those that the request names.",
        "Nobody but the agent may change them; look who did, and release again under a new operation id.",
    ),
    "release-attestation": Words("Nobody who is trusted vouches for the inputs as they are.", _PREPARE),
    "release-comparison": Words(
        "Candidate and incumbent cannot be compared, or the candidate is not good enough.",
        "Train it better; bounds are loosened by a new profile only.",
    ),
    "release-accepted": Words(
        "Something else is deployed than this release started from.",
        "Prepare the release again: its request then names what is deployed now.",
    ),
    "serving-pointer": Words(
        "The pointer to who answers names an instance that this release does not know.",
        "Look who moved serving.json; `ticket-agent release serve` sets it to what is deployed.",
    ),
    "serving-unreachable": Words(
        "The server did not answer.", "Look into its output in the directory servers of the release root."
    ),
    "serving-timeout": Words(
        "The server took too long.",
        "Look into its output; ready_s of the release configuration is how long it may take to start.",
    ),
    "release-authority-expired": Words(
        "The ticket expired before the release was done.",
        "Submit a new release with a later expiry: `ticket-agent release submit --expires-in`.",
    ),
    "release-no-launcher": Words(
        "No confinement works on this host.", "Run `ticket-agent doctor`; installing bubblewrap mostly helps."
    ),
    "pins": Words("The profile leaves open what the stack can vary.", _PREPARE),
    "license": Words("A licence is not among those that the profile allows.", _PREPARE),
    "data-overlap": Words("Rows are in the training data and in the evaluation data.", _PREPARE),
    "base-config": Words("The base model has another geometry than the profile says.", _PREPARE),
    "base-pin": Words("The base model is not the one that the profile pins.", _PREPARE),
    "adapter-files": Words("The adapter's bundle has other files than the two of an adapter.", _PREPARE),
}

_TEXTS: Final[tuple[tuple[tuple[str, ...], str, Words], ...]] = (
    (("expired", "deadline"), "release-authority-expired", _RULES["release-authority-expired"]),
    (
        ("no longer allowed", "authority", "not ready"),
        "authority",
        Words(
            "The hive no longer allowed the release: its ticket had expired, or its Worker was gone.",
            "See that the Worker is READY, then submit a new release with enough time.",
        ),
    ),
    (
        ("baseline-generation", "something else is deployed", "somebody else's deployment"),
        "baseline-generation",
        _RULES["release-accepted"],
    ),
    (
        ("does not hold any more",),
        "comparison-outdated",
        Words(
            "When the candidate was to be promoted, the decision for it was too old.",
            "Prepare the release again; maximum_age_ms of the policy is how old it may be.",
        ),
    ),
    (("regression", "candidate is refused"), "candidate-regression", _RULES["release-comparison"]),
    (
        ("promotion-postcondition",),
        "promotion-postcondition",
        Words(
            "After the promotion something else was deployed than the candidate.",
            "Look who else changes the release root.",
        ),
    ),
    (
        ("was not started",),
        "phase-not-started",
        Words(
            "The process of the phase could not be started.",
            "Run `ticket-agent doctor`: launcher, interpreter.",
        ),
    ),
    (
        ("stopped", "cancel"),
        "stopped",
        Words("Somebody stopped the release.", "Submit a new one when it may go on."),
    ),
)

_PHASES: Final[dict[Phase, Words]] = {
    Phase.VALIDATE: Words("The inputs or the native stack are not as the profile says.", _PREPARE),
    Phase.TRAIN: _RULES["native-training"],
    Phase.EVALUATE: _RULES["native-evaluation"],
    Phase.SCAN: Words("The adapter's files are not acceptable.", _PREPARE),
    Phase.STAGE: Words(
        "The candidate could not be put where a server loads it from.",
        "Look at free space and permissions of the release root: `ticket-agent doctor`.",
    ),
    Phase.LOAD: Words(
        "The candidate's server did not come up.",
        "Look into its output in the directory servers of the release root.",
    ),
    Phase.CANARY: Words(
        "The candidate's server did not pass its canary.",
        "Look into its output in the directory servers of the release root.",
    ),
    Phase.PROMOTE: Words(
        "The candidate did not hold while it was being promoted, or in the time after.",
        "Look into its server's output, and whether something else was deployed meanwhile.",
    ),
    Phase.ROLLBACK: Words(
        "What was deployed before could not be put back.",
        "See what to do next with `ticket-agent release recover`.",
    ),
}


def words_for_rule(rule: str) -> Words | None:
    """The words for a rule's stable name; None for one that has no words of its own."""
    return _RULES.get(rule)


def words_for_text(blocker: str) -> tuple[str, Words] | None:
    """The rule that a line about what stopped a release speaks of, with its words."""
    lower = blocker.lower()
    for parts, rule, words in _TEXTS:
        if any(part in lower for part in parts):
            return rule, words
    return None


def words_for_phase(phase: Phase) -> Words:
    """The words for a phase that failed by a rule that has none."""
    return _PHASES[phase]
