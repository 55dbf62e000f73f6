"""Bounds of a release's evidence. Sizes are bytes and inclusive.

They fit each other: whatever a release observes can be kept, signed, bundled and read back. A test builds the
largest of everything and holds that.
"""

from __future__ import annotations

from typing import Final

__all__ = [
    "MAX_ATTESTATION_BYTES",
    "MAX_BLOCKER_BYTES",
    "MAX_BUNDLE_BYTES",
    "MAX_ENVELOPE_BYTES",
    "MAX_EVALUATE_BYTES",
    "MAX_EVALUATION_BYTES",
    "MAX_EVIDENCE_BYTES",
    "MAX_EVIDENCE_OBJECTS",
    "MAX_GUARANTEES",
    "MAX_IDENTITY_BYTES",
    "MAX_KEY_FILE_BYTES",
    "MAX_LABEL_BYTES",
    "MAX_METRICS",
    "MAX_OBSERVATION_BYTES",
    "MAX_PHASES",
    "MAX_REPORT_BYTES",
    "MAX_ROWS",
    "MAX_STATEMENT_BYTES",
]

MAX_EVIDENCE_BYTES: Final = 64 * 1024
"""Native evidence; what its readers accept."""
MAX_EVIDENCE_OBJECTS: Final = 4096
"""Files in the directory of native evidence."""

MAX_PHASES: Final = 10
"""Phase records of one release."""
MAX_OBSERVATION_BYTES: Final = 5632
"""One phase's observation, except for ``evaluate``."""
MAX_EVALUATE_BYTES: Final = 10 * 1024
"""The observation of ``evaluate``, which holds two evaluations. With the largest of nine other phases it
leaves 4 KiB of the native evidence for everything else."""
MAX_IDENTITY_BYTES: Final = 256
"""Native identity of the process that ran a phase."""
MAX_BLOCKER_BYTES: Final = 256
"""What stopped a release."""

MAX_METRICS: Final = 16
MAX_EVALUATION_BYTES: Final = 5 * 1024
"""One evaluation in its canonical form."""
MAX_LABEL_BYTES: Final = 128
"""A label of an evaluation's context, or a ticket's id."""
MAX_ROWS: Final = 256
"""Held-out rows whose losses are kept."""
MAX_REPORT_BYTES: Final = 64 * 1024
"""A native evaluation report with the losses of ``MAX_ROWS`` rows."""
MAX_GUARANTEES: Final = 32
"""Guarantees that a launcher gives, or does not give, together."""

MAX_ATTESTATION_BYTES: Final = 8 * 1024
"""One attestation of the inputs."""

MAX_STATEMENT_BYTES: Final = 64 * 1024
MAX_ENVELOPE_BYTES: Final = 88 * 1024
"""A statement in base64, which takes four bytes for three, and the signature."""
MAX_BUNDLE_BYTES: Final = 640 * 1024
"""The bundle of one release, uncompressed."""

MAX_KEY_FILE_BYTES: Final = 4 * 1024
