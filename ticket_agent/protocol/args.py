"""Arguments of the version-2 actions: exact keys, exact types, no conversion (host tickets: args)."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from .errors import SpecError
from .text import has_control
from .tokens import MAX_TOKEN_BYTES, SHA256_PATTERN, TOKEN_PATTERN, U8_MAX, U32_MAX

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = [
    "ActionArgs",
    "EmptyArgs",
    "LeaseReleaseArgs",
    "LeaseTermArgs",
    "PeftImportArgs",
    "PeftReleaseArgs",
    "parse_args",
]

MAX_REASON_BYTES = 128

Token = Annotated[str, Field(pattern=f"^{TOKEN_PATTERN}$", max_length=MAX_TOKEN_BYTES)]
Sha256 = Annotated[str, Field(pattern=f"^{SHA256_PATTERN}$")]


class _Args(BaseModel):
    model_config = ConfigDict(strict=True, frozen=True, extra="forbid")


class LeaseTermArgs(_Args):
    """Of ``gpu.lease.grant`` and ``gpu.lease.renew``.

    Attributes:
        ttl_s: term in seconds, 1..=u32::MAX.
        priority: 0..=255.
    """

    ttl_s: int = Field(default=120, ge=1, le=U32_MAX)
    priority: int = Field(default=0, ge=0, le=U8_MAX)


class LeaseReleaseArgs(_Args):
    """Of ``gpu.lease.release``.

    Attributes:
        reason: 1..=128 bytes without control characters. The root takes a narrower set.
    """

    reason: str = "host-ticket-release"

    @field_validator("reason")
    @classmethod
    def _bounded_line(cls, reason: str) -> str:
        if not 1 <= len(reason.encode("utf-8")) <= MAX_REASON_BYTES or has_control(reason):
            raise ValueError
        return reason


class EmptyArgs(_Args):
    """Of ``peft.export``, ``peft.activate`` and ``peft.rollback``, which take none."""


class PeftImportArgs(_Args):
    """Of ``peft.import``.

    Attributes:
        adapter_ref: directory below the adapter root.
        job_id: exported job.
        adapter_sha256: expected digest of ``adapter.safetensors``, as the next two of ``lora.json`` and
            ``metrics.json``.
    """

    adapter_ref: Token
    job_id: Token
    adapter_sha256: Sha256 | None = None
    lora_sha256: Sha256 | None = None
    metrics_sha256: Sha256 | None = None


class PeftReleaseArgs(_Args):
    """Of ``peft.release``.

    Attributes:
        request_sha256: digest of the release request in the content store.
        recovery_only: only finish or undo an earlier release of this request.
    """

    request_sha256: Sha256
    recovery_only: bool = False


ActionArgs = LeaseTermArgs | LeaseReleaseArgs | EmptyArgs | PeftImportArgs | PeftReleaseArgs

_MODELS: Mapping[str, type[ActionArgs]] = MappingProxyType(
    {
        "gpu.lease.grant": LeaseTermArgs,
        "gpu.lease.renew": LeaseTermArgs,
        "gpu.lease.release": LeaseReleaseArgs,
        "peft.export": EmptyArgs,
        "peft.import": PeftImportArgs,
        "peft.activate": EmptyArgs,
        "peft.rollback": EmptyArgs,
        "peft.release": PeftReleaseArgs,
    }
)

_SHA256_RULE = "a SHA-256 of 64 lowercase hexadecimal digits"
_TOKEN_RULE = f"1..={MAX_TOKEN_BYTES} ASCII letters, digits or . - _ : without a leading -"
_RULES: Mapping[str, str] = MappingProxyType(
    {
        "ttl_s": f"an integer in 1..={U32_MAX}",
        "priority": f"an integer in 0..={U8_MAX}",
        "reason": f"a string of 1..={MAX_REASON_BYTES} bytes without control characters",
        "adapter_ref": _TOKEN_RULE,
        "job_id": _TOKEN_RULE,
        "adapter_sha256": _SHA256_RULE,
        "lora_sha256": _SHA256_RULE,
        "metrics_sha256": _SHA256_RULE,
        "request_sha256": _SHA256_RULE,
        "recovery_only": "true or false",
    }
)


def parse_args(action: str, args: object) -> ActionArgs:
    """Check the arguments of a version-2 action and fill in the defaults.

    Args:
        action: a receipt action.
        args: the JSON value of the member ``args``.

    Raises:
        SpecError: an action without receipt, no object, or a bad argument; ``member`` names it, as in
            ``args.ttl_s``.
    """
    model = _MODELS.get(action)
    if model is None:
        raise SpecError(
            f"action {action} does not exist in version 2; one of {', '.join(_MODELS)} does",
            code="action",
            member="action",
        )
    if not isinstance(args, dict):
        raise SpecError(
            f"args of {action} must be a JSON object; write {{}} where there is nothing to say",
            code="args",
            member="args",
        )
    _refuse_null(args)
    try:
        return model.model_validate(args)
    except ValidationError as error:
        raise _refused(action, error) from None


def _refuse_null(args: dict[str, Any]) -> None:
    """An optional argument is absent or of its type; the models' None stands for absent alone."""
    for name, value in args.items():
        if value is None and name in _RULES:
            raise SpecError(
                f"args.{name} must be {_RULES[name]}, not null", code="args", member=f"args.{name}"
            )


def _refused(action: str, error: ValidationError) -> SpecError:
    first = error.errors(include_url=False, include_input=False, include_context=False)[0]
    name = str(first["loc"][0])
    member = f"args.{name}"
    if first["type"] == "extra_forbidden":
        return SpecError(f"{member} is no argument of {action}", code="args-unknown", member=member)
    if first["type"] == "missing":
        return SpecError(f"{action} needs {member}", code="args-missing", member=member)
    return SpecError(f"{member} must be {_RULES[name]}", code="args", member=member)
