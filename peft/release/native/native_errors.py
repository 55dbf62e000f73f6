"""Why native work ends without success. Each is a definite end: doing the same again changes nothing."""

from __future__ import annotations

from ticket_agent.peft.errors import PeftError

__all__ = [
    "CheckpointRefusedError",
    "EffectMissingError",
    "EnvironmentMismatchError",
    "EvaluationError",
    "JobError",
    "ModelMismatchError",
    "NativeError",
    "ResumeNotProvenError",
    "TrainingError",
]


class NativeError(PeftError):
    """Root of these errors."""

    code = "native"


class JobError(NativeError):
    """The job directory is not what the caller has to prepare."""

    code = "native-job"


class EnvironmentMismatchError(NativeError):
    """Packages, interpreter or device are not those that the profile pins."""

    code = "native-pins"


class ModelMismatchError(NativeError):
    """Weights and model do not fit, tensor by tensor: something is missing, left over or of another shape."""

    code = "native-keys"


class CheckpointRefusedError(NativeError):
    """A checkpoint holds more than tensors and numbers, or is not complete."""

    code = "native-checkpoint"


class ResumeNotProvenError(NativeError):
    """Training did not go on where its checkpoint stood."""

    code = "native-resume"


class TrainingError(NativeError):
    """Training cannot be started, or went wrong."""

    code = "native-training"


class EvaluationError(NativeError):
    """The losses of an evaluation cannot be used."""

    code = "native-evaluation"


class EffectMissingError(NativeError):
    """The adapter is loaded and changes nothing."""

    code = "native-effect"
