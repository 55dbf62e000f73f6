"""What has to be vouched for in a release: the claims that its attestations must make, word for word."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ticket_agent.peft.release.attestation import SourceClaim

if TYPE_CHECKING:
    from ticket_agent.peft.release.inputs import ReleaseInput
    from ticket_agent.peft.release.profile import Profile

__all__ = ["input_claim", "profile_claim"]


def profile_claim(profile: Profile) -> SourceClaim:
    """What a profile's own attestations say: base model, tokenizer and training data."""
    return SourceClaim(
        source_sha256=profile.source_sha256,
        base_sha256=profile.base,
        tokenizer_sha256=profile.tokenizer_sha256,
        dataset_sha256=profile.train_data,
        adapter_bundle_sha256=None,
        license_refs=profile.license_refs,
    )


def input_claim(value: ReleaseInput, profile: Profile) -> SourceClaim:
    """What an input's attestations say: where training is asked for, data; of an import, the adapter.

    An adapter that somebody vouches for with its data, as the oldest schema has it, is claimed with both.
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
