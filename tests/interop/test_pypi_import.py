"""Exports and imports of the published Python client and of ours, each used by the other."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import pytest
from peft_actions import NATIVE, Shelf, export_spec, import_spec, sha256, write_tree
from peft_support import snapshot
from published_client import JOB, Published, cohesix_errors

from ticket_agent.hive.reference.exports import sample_job
from ticket_agent.journal.outcome import Committed, PlanRefusedError
from ticket_agent.peft.export import ExportProvider
from ticket_agent.peft.imports import ImportProvider
from ticket_agent.peft.settings import PeftRoots

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from ticket_agent.journal.outcome import Outcome


@pytest.fixture
def client(tmp_path: Path) -> Published:
    made = Published(tmp_path)
    made.registry.mkdir()
    made.adapters.mkdir()
    return made


def roots_of(client: Published) -> PeftRoots:
    return PeftRoots(
        registry=client.registry, export=client.exports, adapter=client.adapters, owner_uid=os.geteuid()
    )


def our_import(
    client: Published, model: str, ref: str, files: Mapping[str, bytes] = NATIVE, **args: Any
) -> Outcome:
    if not (client.adapters / ref).exists():
        write_tree(client.adapters / ref, files)
    provider = ImportProvider(roots_of(client))
    return provider.execute(provider.plan(import_spec(model, adapter_ref=ref, job_id=JOB, **args)))


def test_our_import_of_its_export_can_be_activated_by_it(client: Published) -> None:
    for model in ("one", "two"):
        assert isinstance(our_import(client, model, "run"), Committed)
        client.activate(model)
    assert (client.registry / "active").read_text() == "two\n"
    client.rollback()
    assert (client.registry / "active").read_text() == "one\n"


def test_it_does_not_import_over_ours(client: Published) -> None:
    our_import(client, "model", "run")
    before = snapshot(client.registry)
    with pytest.raises(cohesix_errors.CohesixError, match="already imported"):
        client.client.peft_import("model", client.adapters / "run", client.exports, JOB, client.registry)
    assert snapshot(client.registry) == before


def test_what_it_imported_is_the_same_to_us(client: Published) -> None:
    folder = write_tree(client.adapters / "run", NATIVE)
    client.client.peft_import("model", folder, client.exports, JOB, client.registry)
    before = snapshot(client.registry / "available")
    outcome = our_import(client, "model", "run", adapter_sha256=sha256(NATIVE["adapter.safetensors"]))
    assert isinstance(outcome, Committed)
    assert "observed=manifest" in outcome.detail
    assert snapshot(client.registry / "available") == before


def test_its_fixture_is_no_adapter_to_us(client: Published) -> None:
    """It imports any bytes as an adapter; we look into them."""
    client.import_model("theirs")
    with pytest.raises(PlanRefusedError, match=r"adapter\.safetensors is not a safetensors"):
        our_import(client, "ours", "theirs")


def test_its_export_is_complete_to_us_and_ours_to_it(client: Published) -> None:
    offline = ExportProvider(roots_of(client), Shelf(unreachable_after=0))
    outcome = offline.execute(offline.plan(export_spec(JOB)))
    assert isinstance(outcome, Committed)
    assert "observed=complete files=3" in outcome.detail
    ours = ExportProvider(roots_of(client), Shelf({"job-9": sample_job()}))
    ours.execute(ours.plan(export_spec("job-9")))
    folder = write_tree(client.adapters / "run", NATIVE)
    client.client.peft_import("model", folder, client.exports, "job-9", client.registry)
    manifest = (client.registry / "available" / "model" / "manifest.toml").read_text()
    assert 'job_id = "job-9"' in manifest
    assert f'telemetry_sha256 = "{sha256(sample_job()["telemetry.cbor"])}"' in manifest
