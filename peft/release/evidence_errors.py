"""Why evidence of a release cannot be made or is not believed: one printable line each."""

from __future__ import annotations

from ticket_agent.peft.errors import PeftError

__all__ = [
    "AttestationError",
    "BundleFileError",
    "ComparisonRefusedError",
    "CryptographyMissingError",
    "EvidenceError",
    "EvidenceStoreError",
    "InconsistentError",
    "KeyFileError",
    "SignatureRefusedError",
]


class EvidenceError(PeftError):
    """Root of these errors."""

    code = "release-evidence"


class CryptographyMissingError(EvidenceError):
    """The library that signs and verifies is not installed."""

    code = "release-no-cryptography"

    def __init__(self) -> None:
        super().__init__(
            "signatures need the library cryptography; install it with: pip install 'ticket-agent[release]'"
        )


class KeyFileError(EvidenceError):
    """A key file cannot be read, is open to others, or holds something else than the key that is needed."""

    code = "release-key"


class SignatureRefusedError(EvidenceError):
    """A well-formed signature that is not that of the given key over these bytes."""

    code = "release-signature"


class AttestationError(EvidenceError):
    """Nobody who is trusted vouches for the inputs as they are."""

    code = "release-attestation"


class EvidenceStoreError(EvidenceError):
    """The directory of native evidence holds something else than was stored, or is full."""

    code = "release-evidence-store"


class BundleFileError(EvidenceError):
    """Not the bundle of a release."""

    code = "release-bundle"


class ComparisonRefusedError(EvidenceError):
    """Candidate and incumbent cannot be compared, or the candidate is not good enough.

    Attributes:
        member: what was compared, such as a metric's name or a member of the evaluation's context.
        regression: the reports are comparable, and the candidate is worse than the policy allows.
    """

    code = "release-comparison"

    def __init__(self, text: str, *, member: str, regression: bool = False) -> None:
        super().__init__(text)
        self.member = member
        self.regression = regression


class InconsistentError(EvidenceError):
    """What a release is said to have done cannot be: its parts contradict each other."""

    code = "release-inconsistent"
