"""What went wrong elsewhere with adapters that were trained, loaded and served, and where it is held here.

The table names the tests; those that need no other place are below it.
"""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from held import missing
from phase_support import BUBBLEWRAP, needs_bubblewrap, staged

if TYPE_CHECKING:
    from pathlib import Path

R = "peft/release"
N = "peft/release/native"
HELD: dict[str, tuple[str, ...]] = {
    "the adapter is loaded and not applied: names with another prefix": (
        f"{N}/test_native_refusals.py::test_adapters_that_are_refused_by_the_scan::names of a nested model",
        f"{N}/test_native_refusals.py::test_libraries_that_do_something_else_are_noticed",
        f"{R}/test_transformers_serve.py::test_a_server_that_could_not_apply_its_adapter_ends",
        f"{R}/test_canary_run.py::test_output_of_the_base_model_is_no_effect_even_where_it_was_expected",
    ),
    "the adapter is loaded and not applied: other target modules than the server's": (
        f"{N}/test_native_refusals.py::test_adapters_that_are_refused_by_the_scan::other modules",
        f"{R}/test_serve_guard.py::test_an_adapter_is_all_there_or_not",
        f"{R}/test_canary_run.py::test_the_servers_own_count_decides",
    ),
    "a name that is loaded again answers from the cache of the old weights": (
        f"{R}/test_serving.py::test_a_name_is_of_one_artifact_in_one_generation",
        f"{R}/test_serving.py::test_vllm_serves_the_adapter_and_the_base_model_and_loads_nothing_else",
        f"{R}/test_canary_run.py::test_an_incumbent_that_still_answers_is_no_effect",
        "agent/test_release_story.py::test_adapters_are_trained_imported_refused_and_served::check_answers",
    ),
    "an adapter that was unloaded stays in memory": (
        f"{R}/test_control_phases.py::test_a_rollback_takes_a_whole_promotion_back",
        f"{R}/test_server_room.py::test_a_server_whose_supervisor_was_killed_is_seen_and_ended",
    ),
    "loading an adapter ends the server that is in use": (
        f"{R}/test_blue_green.py::test_the_incumbent_answers_until_the_candidate_does",
        f"{R}/test_blue_green.py::test_a_bad_candidate_is_taken_away",
    ),
    "an adapter is unloaded while requests for it run": (
        f"{R}/test_blue_green.py::test_an_answer_that_has_begun_is_finished_before_the_old_server_stops",
        f"{R}/test_control_drains.py::test_a_rollback_waits_for_who_is_connected",
    ),
    "truncated weights": (
        f"{N}/test_native_refusals.py::test_adapters_that_are_refused_by_the_scan::cut short",
        "peft/test_safetensors_header.py::test_hostile_files_are_refused_with_one_clear_line",
        f"{R}/test_prepare.py::test_an_adapter_that_does_not_fit_leaves_no_trace",
    ),
    "a pointer of Git LFS instead of weights": (
        f"{N}/test_native_refusals.py::test_adapters_that_are_refused_by_the_scan::a pointer of Git LFS",
        f"{R}/test_prepare.py::test_an_adapter_that_does_not_fit_leaves_no_trace",
    ),
    "another base model, or another revision of it": (
        f"{N}/test_native_refusals.py::test_adapters_that_are_refused_by_the_scan::another base model",
        f"{N}/test_native_refusals.py::test_adapters_that_are_refused_by_the_scan::another revision of it",
        f"{N}/test_native_refusals.py::test_base_models_that_are_not_the_profiles",
        f"{R}/test_profile.py::test_another_base_is_refused",
    ),
    "missing and unexpected tensors are a warning": (
        f"{N}/test_native_refusals.py::test_adapters_that_are_refused_by_the_scan::a missing tensor",
        f"{N}/test_native_refusals.py::test_adapters_that_are_refused_by_the_scan::an unexpected tensor",
        f"{R}/test_transformers_serve.py::test_a_server_that_could_not_apply_its_adapter_ends",
        f"{R}/test_gates.py::test_missing_and_added_tensors_are_told",
    ),
    "a resized vocabulary": (
        f"{N}/test_native_refusals.py::test_adapters_that_are_refused_by_the_scan::a resized vocabulary",
        f"{N}/test_native_refusals.py::test_adapters_that_are_refused_by_the_scan::a resized head",
    ),
    "offline, the libraries ask the hub all the same": (
        f"{R}/test_field_reports.py::test_a_hub_id_is_not_asked_for",
        f"{R}/test_field_reports.py::test_a_phase_reaches_no_network",
        f"{R}/test_bubblewrap.py::test_no_network_but_its_own_loopback",
        f"{N}/test_native_offline.py::test_nothing_is_talked_to",
    ),
    "a resumed training starts from the beginning": (
        f"{N}/test_native_resume.py::test_a_trainer_that_starts_again_is_noticed",
        f"{N}/test_native_resume.py::test_a_first_loss_far_from_the_last_one_is_noticed",
    ),
    "a pickle in what is loaded is run": (
        f"{N}/test_native_resume.py::test_nothing_in_a_checkpoint_is_run",
        f"{N}/test_native_refusals.py::test_an_adapter_has_two_files",
        f"{R}/test_prepare.py::test_a_directory_with_a_pickle_is_refused",
        f"{R}/test_documents.py::test_names_that_no_bundle_has",
    ),
    "whoever reaches the server can load adapters": (
        f"{R}/test_serve_guard.py::test_nothing_else_reaches_the_server",
        f"{R}/test_serve_guard.py::test_nothing_is_answered_without_the_token",
    ),
    "a proxy in the environment gets the requests": (
        f"{R}/test_canary_run.py::test_proxies_are_ignored",
        f"{N}/test_native_offline.py::test_tokens_and_proxies_are_dropped_and_flags_set",
    ),
    "questions and answers without a bound": (
        f"{R}/test_loopback.py::test_a_question_is_bounded_too",
        f"{R}/test_loopback.py::test_streamed_lines_are_bounded",
        f"{R}/test_loopback.py::test_what_is_no_answer_is_refused",
        f"{R}/test_loopback.py::test_the_deadline_is_for_the_whole_answer",
    ),
    "greedy text changes under load": (
        f"{R}/test_canary_run.py::test_what_is_tolerated_is_what_the_profile_says",
        f"{R}/test_canary.py::test_load_has_to_be_there_and_to_be_carried",
    ),
}


@pytest.mark.parametrize("report", HELD)
def test_it_is_held(report: str) -> None:
    assert missing(*HELD[report]) == []


_ASK = """
import sys
talked = []
def hear(event, arguments):
    if event in ("socket.connect", "socket.getaddrinfo", "socket.gethostbyname", "socket.sendto"):
        talked.append(event)
sys.addaudithook(hear)
import os
from ticket_agent.peft.release.native.offline import go_offline, refuse_network
go_offline(os.environ)
refuse_network()
import huggingface_hub, transformers, peft
HUB = "HuggingFaceTB/SmolLM2-135M"
refused = 0
for ask in (
    lambda: transformers.AutoConfig.from_pretrained(HUB),
    lambda: transformers.AutoTokenizer.from_pretrained(HUB),
    lambda: transformers.AutoModelForCausalLM.from_pretrained(HUB),
    lambda: peft.PeftConfig.from_pretrained(HUB),
    lambda: peft.AutoPeftModelForCausalLM.from_pretrained(HUB),
    lambda: huggingface_hub.hf_hub_download(HUB, "config.json"),
    lambda: huggingface_hub.HfApi().model_info(HUB),
):
    try:
        ask()
    except Exception:
        refused += 1
print(refused, talked)
"""


@pytest.mark.train
def test_a_hub_id_is_not_asked_for(tmp_path: Path) -> None:
    """Nothing is even tried: no name is resolved and no socket connected, whatever asks for a model."""
    done = subprocess.run(
        [sys.executable, "-c", _ASK],
        env={"PATH": "/usr/bin:/bin", "HOME": str(tmp_path), "HF_HUB_OFFLINE": "0", "HF_TOKEN": "x"},
        cwd="/",
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.strip() == "7 []"


_REACH = """
import socket
for family, where in ((socket.AF_INET, ("192.0.2.1", 443)), (socket.AF_INET6, ("2001:db8::1", 443))):
    with socket.socket(family) as client:
        client.settimeout(2)
        try:
            client.connect(where)
        except OSError as error:
            print(type(error).__name__ if isinstance(error, TimeoutError) else error.errno)
with open("/proc/net/dev") as devices:
    print([line.split(":")[0].strip() for line in devices if ":" in line])
"""


@needs_bubblewrap
def test_a_phase_reaches_no_network(tmp_path: Path) -> None:
    """In the confinement there is no way out at all: unreachable at once, whatever code tries."""
    assert BUBBLEWRAP is not None
    with staged(tmp_path.resolve(), BUBBLEWRAP) as stage:
        phase = stage.start(_REACH)
        phase.wait(60)
        assert phase.log().lines() == ["101", "101", "['lo']"]
