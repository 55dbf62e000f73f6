"""The documents of a release, made from what was chosen and found; nothing is stored here.

Each document is kept by its digest from the moment that another one names it, so that all of them can be
stored afterwards and none can be forgotten.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ticket_agent.peft.release.attestation import attest
from ticket_agent.peft.release.bundle import BASE_WEIGHTS, encode_bundle, tokenizer_digest
from ticket_agent.peft.release.canonical import MAX_JSON_BYTES, digest, encode
from ticket_agent.peft.release.claims import input_claim, profile_claim
from ticket_agent.peft.release.data import check_disjoint, encode_rows
from ticket_agent.peft.release.document_error import DocumentError, reading
from ticket_agent.peft.release.inputs import ImportedAdapter, ReleaseInput, encode_input
from ticket_agent.peft.release.profile import Profile, ProfileSchema, encode_profile
from ticket_agent.peft.release.stack import BasePin, Stack
from ticket_agent.protocol.json_strict import parse_array

if TYPE_CHECKING:
    from pathlib import Path

    from ticket_agent.peft.release.adapter_choice import ChosenAdapter
    from ticket_agent.peft.release.attestation import SourceClaim
    from ticket_agent.peft.release.base_choice import ChosenBase
    from ticket_agent.peft.release.keys import PrivateKey
    from ticket_agent.peft.release.selection import Selection

__all__ = ["SOURCES_SCHEMA", "Draft"]

SOURCES_SCHEMA: Final = "ticket-agent-release-sources/v1"
_UNKNOWN: Final = "0" * 64


class Draft:
    """A profile, and the inputs that go with it.

    Attributes:
        documents: every document so far, by digest.
        profile: the profile.
        profile_sha256: its digest.

    Raises:
        DocumentError: a choice that no profile has.
    """

    def __init__(self, selection: Selection, base: ChosenBase, key: PrivateKey) -> None:
        self._selection: Final = selection
        self._base: Final = base
        self._key: Final = key
        self.documents: Final[dict[str, bytes]] = {}
        limits = selection.stack.limits
        train = _rows(selection.train_data, "train_data")
        evaluation = _rows(selection.eval_data, "eval_data")
        self._train: Final = self._keep(encode_rows(train, what="train_data"))
        self._eval: Final = self._keep(
            encode_rows(evaluation, what="eval_data", low=limits.eval_rows, high=limits.eval_rows)
        )
        check_disjoint(train, evaluation)
        self.profile: Final = self._profile()
        self.profile_sha256: Final = self._keep(encode_profile(self.profile))

    def _profile(self) -> Profile:
        selection, manifest = self._selection, self._base.manifest
        stack = selection.stack
        source = self._sources()

        def profile(attestations: tuple[str, ...]) -> Profile:
            return Profile(
                schema=ProfileSchema.OURS,
                versions=stack.versions,
                base=self._keep(encode_bundle(manifest)),
                tokenizer_sha256=tokenizer_digest(dict(manifest.files)),
                train_data=self._train,
                eval_data=self._eval,
                settings=selection.settings,
                canary=selection.canary,
                license_refs=selection.license_refs,
                source_sha256=source,
                attestations=attestations,
                attestation_keys=((selection.key_id, self._key.public.raw.hex()),),
                evaluation_policy=selection.evaluation_policy,
                stack=Stack(
                    base=BasePin(
                        source=manifest.source,
                        revision=manifest.revision,
                        weights_sha256=manifest.file(BASE_WEIGHTS),
                    ),
                    geometry=self._base.geometry,
                    platform=stack.platform,
                    device=stack.device,
                    serving=stack.serving,
                    caps=selection.caps,
                    limits=stack.limits,
                ),
            )

        # What is vouched for does not depend on who vouches for it.
        return profile((self._attested(profile_claim(profile((_UNKNOWN,)))),))

    def release_input(self, adapter: ChosenAdapter | None, checkpoint: str | None) -> ReleaseInput:
        """The input of a release that imports an adapter, or trains, perhaps going on from a checkpoint."""
        imported = None
        if adapter is not None:
            imported = ImportedAdapter(
                bundle_sha256=self._keep(encode_bundle(adapter.manifest)),
                base_sha256=self.profile.base,
                tokenizer_sha256=self.profile.tokenizer_sha256,
                versions=self.profile.versions,
            )

        def value(attestation: str) -> ReleaseInput:
            return ReleaseInput(
                profile_sha256=self.profile_sha256,
                source_sha256=self._sources(adapter),
                attestations=(attestation,),
                license_refs=self.profile.license_refs,
                checkpoint=checkpoint,
                adapter=imported,
            )

        made = value(self._attested(input_claim(value(_UNKNOWN), self.profile)))
        self._keep(encode_input(made))
        return made

    def _attested(self, claim: SourceClaim) -> str:
        return self._keep(attest(claim, key_id=self._selection.key_id, key=self._key).encode())

    def _sources(self, adapter: ChosenAdapter | None = None) -> str:
        """The description of where it all comes from, which inputs and attestations name by its digest."""
        base = self._base.manifest
        sources: dict[str, object] = {
            "schema": SOURCES_SCHEMA,
            "base": {"source": base.source, "revision": base.revision, "license_ref": base.license_ref},
            "train_data": self._train,
            "eval_data": self._eval,
            "license_refs": list(self._selection.license_refs),
        }
        if adapter is not None:
            told = adapter.manifest
            sources["adapter"] = {
                "source": told.source,
                "revision": told.revision,
                "license_ref": told.license_ref,
            }
        return self._keep(encode(sources))

    def _keep(self, data: bytes) -> str:
        sha256 = digest(data)
        self.documents[sha256] = data
        return sha256


def _rows(path: Path, what: str) -> list[str]:
    try:
        with path.open("rb") as stream:
            data = stream.read(2 * MAX_JSON_BYTES + 1)
    except OSError as error:
        raise DocumentError(f"{what}: cannot read {path}: {error.strerror or error}") from None
    with reading(f"{what} {path.name}"):
        return parse_array(data, what="the file", max_bytes=2 * MAX_JSON_BYTES)
