"""The cases that the protocol's own tests have and the faults known of it, each with where it is held."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from held import missing
from release_lab import Lab
from ticket_lines import ADMITTED, line

from ticket_agent.peft.release.phase_machine import Allowed
from ticket_agent.peft.release.provider import ReleaseProvider
from ticket_agent.peft.release.release_host import ReleaseHost
from ticket_agent.protocol.spec import parse_spec

if TYPE_CHECKING:
    from pathlib import Path

    from ticket_agent.protocol.spec import HostTicketSpec

R = "peft/release"
N = "peft/release/native"
CLI = "cli/test_release_making.py"
STORY = "agent/test_release_story.py"
CASES: dict[str, tuple[str, ...]] = {
    "arguments: a digest, and nothing else": ("protocol/test_vectors.py::test_release_arguments",),
    "a comparison, and each of eleven members that differs": (
        f"{R}/test_comparison.py::test_a_better_candidate_is_accepted_and_the_decision_says_what_it_was_made_of",
        f"{R}/test_comparison.py::test_a_context_that_differs_in_anything_is_not_comparable",
        f"{R}/test_comparison.py::test_there_are_eleven_members_of_a_context",
    ),
    "samples, times, bounds, numbers that are none, ages": (
        f"{R}/test_comparison.py::test_the_candidate_is_refused",
        f"{R}/test_comparison.py::test_an_evaluation_without_finite_metrics_cannot_exist",
    ),
    "the decision again, before the promotion": (
        f"{R}/test_comparison.py::test_the_second_decision_is_the_first",
        f"{R}/test_comparison.py::test_what_changed_meanwhile_is_named",
        f"{R}/test_phase_machine.py::test_the_decision_about_the_candidate",
    ),
    "requests": (f"{R}/test_request.py::test_accepted", f"{R}/test_request.py::test_refused"),
    "a crash after each phase goes on without a second one": (
        f"{R}/test_phase_machine.py::test_no_walk_breaks_the_rules",
        f"{R}/test_phase_machine.py::test_a_release_that_goes_well_does_every_phase_once",
        f"{R}/test_launcher.py::test_a_phase_is_launched_once",
    ),
    "load or canary fails: everything is put back": (
        f"{R}/test_phase_machine.py::test_a_phase_that_does_not_succeed",
        f"{R}/test_control_phases.py::test_a_rollback_takes_a_whole_promotion_back",
    ),
    "authority is denied before each phase": (
        f"{R}/test_phase_machine.py::test_authority_is_asked_for_before_each_phase",
        f"{R}/test_phase_machine.py::test_authority_that_is_lost_before_anything_fails_the_release",
    ),
    "somebody else deploys while the release is staged": (
        f"{R}/test_phase_machine.py::test_another_deployment_stops_what_starts_from_the_baseline",
        f"{R}/test_phase_machine.py::test_another_deployment_before_the_promotion_is_not_overwritten",
        f"{STORY}::test_adapters_are_trained_imported_refused_and_served::generation 1 is deployed",
    ),
    "a rollback that is denied, a fresh recovery, and a crash in it": (
        f"{R}/test_phase_machine.py::test_a_rollback_that_does_not_succeed_is_not_begun_again",
        f"{R}/test_phase_machine.py::test_a_recovery_has_one_phase",
        f"{R}/test_control_deaths.py::test_a_rollback_that_was_killed_is_done_again",
    ),
    "a crash in the training, and a recovery": (
        f"{STORY}::test_what_is_no_longer_allowed_is_stopped_and_put_back",
    ),
    "an observation is lost, in each phase": (
        f"{R}/test_phase_machine.py::test_a_phase_that_does_not_succeed::LOST",
    ),
    "an answer to the submission is lost": (
        f"{CLI}::test_a_lost_answer_is_looked_up_and_not_sent_again",
        f"{CLI}::test_a_release_is_asked_for_once",
    ),
    "a success is told from each failure": (
        "cli/test_release_watch.py::test_every_end_has_its_code",
        "cli/test_release_watch.py::test_evidence_that_is_not_in_order_has_a_code",
    ),
    "evidence: again, damaged, too large": (
        f"{R}/test_evidence_store.py::test_storing_twice_changes_nothing",
        f"{R}/test_evidence_store.py::test_damage_is_reported_and_kept",
        f"{R}/test_evidence_store.py::test_the_size_is_bounded",
    ),
    "objects: size, names, damage, links": (
        f"{R}/test_cas.py::test_sizes_of_objects",
        f"{R}/test_cas.py::test_only_digests_are_names",
        f"{R}/test_cas.py::test_a_hostile_object_is_neither_used_nor_replaced",
        f"{R}/test_private_root.py::test_links",
    ),
    "names of a bundle": (f"{R}/test_documents.py::test_names_that_no_bundle_has",),
    "the lock is held": (
        f"{R}/test_private_root.py::test_the_lock_is_advice_that_the_kernel_keeps",
        f"{R}/test_gates.py::test_somebody_who_works_in_the_root_is_named",
    ),
    "the time at which a ticket expires is too late": (
        f"{R}/test_upstream_cases.py::test_a_ticket_is_over_in_the_millisecond_of_its_expiry",
    ),
    "checkpoints: another profile, the last step, an older one": (
        f"{R}/test_documents.py::test_a_checkpoint_that_may_not",
        f"{R}/test_documents.py::test_a_checkpoint_of_another_release",
        f"{N}/test_native_resume.py::test_checkpoints_that_do_not_fit_are_refused",
    ),
    "attestations: another source, adapter, version, signature": (
        f"{R}/test_attestation.py::test_a_claim_about_other_inputs_is_refused",
        f"{R}/test_attestation.py::test_one_version_does_not_stand_for_the_other",
        f"{R}/test_attestation.py::test_other_signatures_are_refused",
    ),
    "a selection that would upload, or trains on its evaluation": (
        f"{R}/test_selection.py::test_a_selection_that_says_something_else_is_refused::upload",
        f"{N}/test_native_refusals.py::test_rows_of_the_evaluation_are_not_trained_on",
    ),
    "a port that somebody has, and a stop that waits": (
        f"{R}/test_server_room.py::test_ports",
        f"{R}/test_server_room.py::test_a_server_answers_what_it_has_begun_before_it_ends",
    ),
    "reports that contradict one another": (
        f"{R}/test_bundle_file.py::test_a_signed_lie_about_how_it_went_is_found",
        f"{R}/test_bundle_file.py::test_a_worse_candidate_cannot_have_been_accepted",
    ),
}
FAULTS: dict[str, tuple[str, ...]] = {
    "1 what blocks a root can be too long to be read": (
        f"{R}/test_private_root.py::test_the_longest_marker_can_be_read_back",
        f"{R}/test_private_root.py::test_a_damaged_block_is_a_block",
    ),
    "2 a phase may not write files as large as the base model": (
        f"{N}/test_native_phases.py::test_a_directory_elsewhere_has_its_files_and_no_other_one",
        f"{R}/test_materialise.py::test_files_keep_the_bound_of_their_kind",
        f"{R}/test_launcher.py::test_limits_hold",
    ),
    "3 a refusal that is certain is called unknown": (
        f"{N}/test_native_job.py::test_without_a_request_the_phase_fails_and_says_so",
        f"{N}/test_native_job.py::test_every_error_fits_into_an_observation",
        f"{R}/test_gates.py::test_what_is_wrong_shows_at_its_gate_and_at_no_other",
    ),
    "4 libraries are imported before they are told to be offline": (
        f"{N}/test_native_offline.py::test_the_command_imports_no_library_before_it_is_offline",
        f"{N}/test_native_offline.py::test_the_libraries_see_the_flags",
    ),
    "5 proxies": (f"{R}/test_canary_run.py::test_proxies_are_ignored",),
    "6 an adapter without effect passes": (
        f"{R}/test_canary_run.py::test_output_of_the_base_model_is_no_effect_even_where_it_was_expected",
        f"{N}/test_native_refusals.py::test_an_adapter_that_changes_nothing_is_refused",
    ),
    "7 an id of the hub has to be resolved": (
        f"{R}/test_field_reports.py::test_a_hub_id_is_not_asked_for",
        f"{STORY}::test_adapters_are_trained_imported_refused_and_served::SOURCE",
    ),
    "8 base weights are read into memory": (
        f"{R}/test_cas.py::test_a_file_is_stored_in_pieces",
        f"{R}/test_weights.py::test_every_part_of_a_large_tensor_is_looked_at",
    ),
    "9 the canary is asked three times": (
        f"{R}/test_control_phases.py::test_a_release_goes_all_the_way",
        f"{R}/test_bubblewrap.py::test_no_network_but_its_own_loopback",
    ),
    "10 attempts of earlier recoveries are not looked at": (
        f"{R}/test_gates.py::test_what_can_be_recovered",
        f"{R}/test_recovered.py::test_a_release_whose_recovery_goes_on_is_unknown",
    ),
    "11 a deployment that cannot be read leads to a rollback": (
        f"{R}/test_phase_machine.py::test_a_deployment_that_cannot_be_read_decides_nothing",
    ),
    "12 what passes fails the ticket": (
        f"{R}/test_gates.py::test_a_full_disk_lets_a_release_wait",
        f"{R}/test_gates.py::test_somebody_who_works_in_the_root_is_named",
        f"{STORY}::test_what_is_no_longer_allowed_is_stopped_and_put_back::Nothing is served yet",
    ),
    "13 observations that fit one by one and not together": (
        f"{R}/test_evidence_limits.py::test_the_largest_evidence_fits_and_comes_back",
        f"{R}/test_evidence_limits.py::test_the_largest_observation_fits_and_a_larger_one_is_refused",
    ),
    "14 sixteen rows, and a mean without its error": (
        f"{R}/test_paired.py::test_a_case_computed_by_hand",
        "cli/test_release_report.py::test_every_row_is_drawn_under_both_models",
    ),
}


@pytest.mark.parametrize("case", [*CASES, *FAULTS])
def test_it_is_held(case: str) -> None:
    assert missing(*(CASES | FAULTS)[case]) == []


def test_every_known_fault_is_in_the_table() -> None:
    assert [int(name.split()[0]) for name in FAULTS] == list(range(1, 15))


def test_what_is_named_must_be_there() -> None:
    assert missing(f"{R}/test_upstream_cases.py::test_it_is_held") == []
    for absent in ("test_nobody", "test_it_is_held::no such " + "case"):
        assert missing(f"{R}/test_upstream_cases.py::{absent}") != []


EXPIRY = 5_000


@pytest.mark.parametrize(
    ("now", "allowed"),
    [(EXPIRY - 1, Allowed.HELD), (EXPIRY, Allowed.LOST), (EXPIRY + 1, Allowed.LOST)],
)
def test_a_ticket_is_over_in_the_millisecond_of_its_expiry(
    now: int, allowed: Allowed, tmp_path: Path
) -> None:
    lab = Lab.make(tmp_path.resolve() / "lab")

    def authority(_: HostTicketSpec) -> tuple[Allowed, str]:
        return Allowed.HELD, "READY"

    host = ReleaseHost(
        config=lab.config, owner_uid=0, clock=lambda: now, boot_id="boot", agent_version="1+test"
    )
    provider = ReleaseProvider(
        host=host, authority=authority, clock=lambda: now, monotonic=lambda: 0.0, begins=True
    )
    members = ADMITTED | {
        "action": "peft.release",
        "args": {"request_sha256": "a" * 64},
        "receipt_worker_role": "worker-lora",
        "expires_unix_ms": EXPIRY,
    }
    assert provider._allowed(parse_spec(line(members), source="admitted"))[0] is allowed
