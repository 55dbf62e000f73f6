"""What has to be vouched for, told from the documents themselves."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ticket_agent.peft.release.attestation import SourceClaim

if TYPE_CHECKING:
    from ticket_agent.peft.release.inputs import ReleaseInput
    from ticket_agent.peft.release.profile import Profile

__all__ = ["claim_of"]


def claim_of(value: ReleaseInput, profile: Profile) -> SourceClaim:
    """The claim that every attestation of an input has to make.

    An imported adapter of which nobody says how it was trained has the claim of the version for imports.
    """
    adapter = value.adapter
    imported = adapter is not None and adapter.training is None
    return SourceClaim(
        source_sha256=value.source_sha256,
        base_sha256=profile.base,
        tokenizer_sha256=profile.tokenizer_sha256,
        dataset_sha256=None if imported else profile.train_data,
        adapter_bundle_sha256=None if adapter is None else adapter.bundle_sha256,
        license_refs=value.license_refs,
        imported=imported,
    )
