from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from key_files import OTHER_SEED, key, private_pem, write
from private_roots import deaths
from release_host import HOW, ReleaseHost, put
from release_scene import SCENES, STOPPED, Scene

from ticket_agent.peft.release.bundle_verify import BundleVerification
from ticket_agent.peft.release.conclude import MAX_MESSAGE_BYTES, Conclusion, conclude, result_message
from ticket_agent.peft.release.document_error import DocumentError
from ticket_agent.peft.release.evidence import parse_evidence
from ticket_agent.peft.release.evidence_store import EvidenceStore
from ticket_agent.peft.release.layout import OperationFiles
from ticket_agent.peft.release.phases import Phase, ReleaseState

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def host(tmp_path: Path) -> ReleaseHost:
    return ReleaseHost(tmp_path)


def concluded(host: ReleaseHost, scene: Scene, files: OperationFiles, **config: Any) -> Conclusion:
    with host.root() as root, root.locked():
        return conclude(root, replace(host.config, **config), files, host.begun(scene), scene.record)


@pytest.mark.parametrize("name", SCENES)
def test_every_end_leaves_evidence_a_bundle_that_verifies_and_a_card(host: ReleaseHost, name: str) -> None:
    scene = host.scene(**HOW[name])
    files = host.play(scene)
    left = concluded(host, scene, files)
    assert left.problem is None
    assert left.bundle == files.path / "bundle.tar"
    with EvidenceStore.open(host.config.evidence, owner_uid=host.place.stat().st_uid, create=False) as store:
        assert left.evidence_sha256 is not None
        assert parse_evidence(store.load(left.evidence_sha256)).record == scene.record
    verification = BundleVerification(left.bundle.read_bytes(), key().public)
    assert [verdict.check for verdict in verification.verdicts() if verdict.ok is not True] == []
    assert verification.evidence is not None
    assert verification.evidence.sha256 == left.evidence_sha256
    card = (files.path / "card.md").read_text()
    assert card.startswith("# adapter-one\n")
    assert f"ended **{scene.state}**" in card
    assert "ticket-agent release verify bundle.tar" in card
    assert left.evidence_sha256 in card
    assert "- held: private /tmp\n- **not held**: memory limit\n" in card
    if scene.blocker is not None:
        assert "Stopped by: " in card


def test_the_card_tells_what_the_release_was_made_of(host: ReleaseHost) -> None:
    scene = host.scene(**HOW["trained"])
    files = host.play(scene)
    concluded(host, scene, files)
    card = (files.path / "card.md").read_text()
    for line in (
        "- Base model: local/tiny-llama, revision seed-1",
        f"- Adapter: `{scene.candidate}`",
        f"- Training data: `{host.profile.train_data}`",
        f"- Evaluation data: `{host.profile.eval_data}`",
        "- Licences: Apache-2.0",
        "- learning_rate: 0.0005",
        "- Loss: 4.000000 at step 1, 3.250000 at step 3",
        "| difference, row by row | -0.248125 | 0.000427 |",
        "The candidate is better on 16 of 16 rows.",
        "| canary | idle | 40, 43, 46, 49 | 49 | 0 |",
        "At most 5000 ms are allowed for an answer.",
        "- promote: succeeded, 2023-11-14T22:13:27.000Z",
        f"- Deployed: generation 1, `{scene.candidate}`",
    ):
        assert line in card.splitlines(), line


def test_again_gives_the_same_bytes(host: ReleaseHost) -> None:
    scene = host.scene()
    files = host.play(scene)
    first = concluded(host, scene, files)
    names = ("bundle.tar", "card.md")
    before = {name: ((files.path / name).read_bytes(), (files.path / name).stat().st_ino) for name in names}
    assert concluded(host, scene, files) == first
    after = {name: ((files.path / name).read_bytes(), (files.path / name).stat().st_ino) for name in names}
    assert before == after


def test_it_can_die_at_every_system_call(host: ReleaseHost) -> None:
    scene = host.scene()
    files = host.play(scene)
    wanted = None
    for _ in deaths(lambda: concluded(host, scene, files)):
        for name in ("bundle.tar", "card.md"):
            path = files.path / name
            if path.exists():
                assert path.read_bytes()[-1:] in (b"\0", b"\n"), "half of a file has its name"
    wanted = concluded(host, scene, files)
    assert wanted.bundle is not None
    assert all(
        verdict.ok for verdict in BundleVerification(wanted.bundle.read_bytes(), key().public).verdicts()
    )
    with EvidenceStore.open(host.config.evidence, owner_uid=host.place.stat().st_uid, create=False) as store:
        assert store.digests() == [wanted.evidence_sha256]


def test_nothing_observed_is_no_evidence(host: ReleaseHost) -> None:
    scene = host.scene(stops_before=Phase.VALIDATE, state=ReleaseState.FAILED, blocker=STOPPED)
    files = host.play(scene)
    assert concluded(host, scene, files) == Conclusion(evidence_sha256=None, bundle=None)
    assert not (files.path / "bundle.tar").exists()
    assert "Nothing was observed, so there is no evidence." in (files.path / "card.md").read_text()


def test_without_a_key_nothing_is_signed(host: ReleaseHost) -> None:
    scene = host.scene()
    files = host.play(scene)
    left = concluded(host, scene, files, signing_key=None)
    assert (left.bundle, left.problem) == (None, None)
    assert left.evidence_sha256 is not None
    assert "Nothing was signed." in (files.path / "card.md").read_text().splitlines()


def test_a_release_that_goes_on_is_not_concluded(host: ReleaseHost) -> None:
    scene = host.scene(state=ReleaseState.AMBIGUOUS)
    files = host.play(scene)
    with pytest.raises(DocumentError, match="it has not ended"):
        concluded(host, scene, files)


def _no_reports(host: ReleaseHost, files: OperationFiles) -> None:
    (files.job(Phase.EVALUATE) / "out" / "baseline-rows.json").unlink()


def _other_report(host: ReleaseHost, files: OperationFiles) -> None:
    out = files.job(Phase.EVALUATE) / "out"
    put(out / "candidate-rows.json", (out / "baseline-rows.json").read_bytes())


def _no_input(host: ReleaseHost, files: OperationFiles) -> None:
    (host.place / "objects" / host.scene().input_sha256).unlink()


def _open_key(host: ReleaseHost, files: OperationFiles) -> None:
    assert host.key is not None
    host.key.chmod(0o644)


def _no_key(host: ReleaseHost, files: OperationFiles) -> None:
    assert host.key is not None
    host.key.unlink()


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (_no_reports, "baseline-rows.json does not exist"),
        (_other_report, "candidate-rows.json is not the report that the evaluation names"),
        (_no_input, "does not exist"),
        (_open_key, "signing.key"),
        (_no_key, "signing.key"),
    ],
)
def test_what_cannot_be_signed_is_said_and_the_evidence_is_kept(
    host: ReleaseHost, damage: Any, reason: str
) -> None:
    scene = host.scene()
    files = host.play(scene)
    damage(host, files)
    left = concluded(host, scene, files)
    assert left.evidence_sha256 is not None
    assert left.bundle is None
    assert left.problem is not None
    assert reason in left.problem
    assert "Nothing was signed: " in (files.path / "card.md").read_text()


def test_inputs_that_nobody_vouches_for_are_not_signed(host: ReleaseHost, monkeypatch: Any) -> None:
    scene = host.scene()
    files = host.play(scene)
    monkeypatch.setattr(
        "ticket_agent.peft.release.conclude.trusted_keys",
        lambda _: {"local-reference-source": key(OTHER_SEED).public},
    )
    problem = concluded(host, scene, files).problem
    assert problem is not None
    assert "attestation by local-reference-source" in problem


def test_another_key_signs_anew(host: ReleaseHost, tmp_path: Path) -> None:
    scene = host.scene()
    files = host.play(scene)
    concluded(host, scene, files)
    other = write(tmp_path / "other.key", private_pem(OTHER_SEED))
    left = concluded(host, scene, files, signing_key=other)
    assert left.bundle is not None
    verification = BundleVerification(left.bundle.read_bytes(), key(OTHER_SEED).public)
    assert all(verdict.ok for verdict in verification.verdicts())


def test_a_recovery_has_files_of_its_own_and_the_reports_of_the_release(host: ReleaseHost) -> None:
    scene = host.scene(**HOW["canary failed"] | {"recovery": SCENES["rescued"].recovery})
    host.play(scene)
    files = OperationFiles(root=host.place, operation_id=scene.operation_id, recovery="ticket-2")
    put(files.path / "begun.json", host.begun(scene).encode())
    left = concluded(host, scene, files)
    assert left.problem is None
    assert left.bundle == host.files(scene).path / "recovery-ticket-2" / "bundle.tar"
    assert left.bundle.exists()
    assert not (host.files(scene).path / "bundle.tar").exists()
    assert "Recovered under ticket ticket-2" in (files.path / "card.md").read_text()


SHA = "ab" * 32


@pytest.mark.parametrize(
    ("state", "blocker", "evidence", "message"),
    [
        (ReleaseState.SUCCEEDED, None, SHA, f"succeeded native_observation=sha256:{SHA}"),
        (ReleaseState.FAILED, "no", SHA, f"failed native_observation=sha256:{SHA} no"),
        (ReleaseState.FAILED, "no", None, "failed no"),
        (ReleaseState.FAILED, "nö\u2028", None, "failed n??"),
        (
            ReleaseState.ROLLBACK_FAILED,
            "x" * 256,
            SHA,
            f"rollback_failed native_observation=sha256:{SHA} {'x' * 82}...",
        ),
        (ReleaseState.FAILED, "x" * 256, None, f"failed {'x' * 182}..."),
    ],
)
def test_the_message_names_state_evidence_and_reason(
    state: ReleaseState, blocker: str | None, evidence: str | None, message: str
) -> None:
    record = replace(Scene().record, state=state)
    object.__setattr__(record, "blocker", blocker)
    assert result_message(record, evidence) == message
    assert len(message) <= MAX_MESSAGE_BYTES
