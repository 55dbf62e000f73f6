"""What a release engineer chooses: the file that a release is prepared from.

It is TOML. Beside what is trained, evaluated and asked it says the whole native stack, because a profile pins
it all; only the sizes of the base model are read from the model itself. Nothing is fetched and nothing is
sent anywhere: ``gated_download`` and ``upload`` can only be false. Credentials are named, never written down.
"""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeVar

from ticket_agent.peft.release.document_error import DocumentError, reading
from ticket_agent.peft.release.profile import MAX_KEY_ID_BYTES, check_licenses
from ticket_agent.peft.release.request import EvaluationPolicy, parse_policy
from ticket_agent.peft.release.rules import array, choice, exact, field_names, refuse, sorted_names, text
from ticket_agent.peft.release.settings import EXACT, Canary, Settings
from ticket_agent.peft.release.stack import Caps, Device, Limits, Platform, required_packages
from ticket_agent.peft.release.versions import check_versions

if TYPE_CHECKING:
    from pathlib import Path

__all__ = [
    "MAX_SELECTION_BYTES",
    "SELECTION_SCHEMA",
    "BaseChoice",
    "Selection",
    "StackChoice",
    "load_selection",
    "parse_selection",
]

SELECTION_SCHEMA: Final = "cohesix-peft-selection/v1"
MAX_SELECTION_BYTES: Final = 64 * 1024
MAX_CREDENTIALS: Final = 4

_CREDENTIAL: Final = re.compile(r"env:[A-Z][A-Z0-9_]{0,63}|file:/[^\0\n]{1,4095}")
_KEYS: Final = (
    "schema",
    "train_data",
    "eval_data",
    "license_refs",
    "credential_refs",
    "gated_download",
    "upload",
    "base",
    "attestation",
    "settings",
    "canary",
    "evaluation_policy",
    "resource_caps",
    "stack",
)
_STACK_KEYS: Final = ("python", "cuda", "serving", "target_modules", "versions", "device", "limits")
_OPTIONAL: Final[dict[str, dict[str, Any]]] = {
    "stack": {"cuda": None},
    "device": {"memory_fraction": None},
    "canary": {"acceptance": EXACT.members()},
    "acceptance": {"prefix_tokens": None, "minimum_logprob_shift": None},
}
"""TOML has no null: what a table may leave out, and what that means."""
T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class BaseChoice:
    """The base model.

    Attributes:
        path: directory with its files.
        source: where it comes from, like its id on the hub.
        revision: which version of it.
        license_ref: under which licence; one of the selection's.
    """

    path: Path
    source: str
    revision: str
    license_ref: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StackChoice:
    """The native stack, but for the base model.

    Attributes:
        platform: versions of Python and CUDA.
        device: how the model is computed.
        serving: what serves it.
        target_modules: what an adapter changes.
        versions: the packages, each with one version.
        limits: of settings, data and policy.
    """

    platform: Platform
    device: Device
    serving: str
    target_modules: tuple[str, ...]
    versions: tuple[tuple[str, str], ...]
    limits: Limits


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """A selection. Paths are absolute.

    Attributes:
        train_data: JSON array of texts that are trained on.
        eval_data: likewise, that are evaluated on.
        license_refs: licences that the inputs are used under.
        credential_refs: names of credentials; nothing here uses them.
        base: the base model.
        key_id: what the profile calls the key of who vouches for the inputs.
        private_key: file of that key.
        settings: of the training.
        canary: the frozen prompts.
        evaluation_policy: what a candidate must keep.
        caps: what native processes may use.
        stack: the native stack.
    """

    train_data: Path
    eval_data: Path
    license_refs: tuple[str, ...]
    credential_refs: tuple[str, ...]
    base: BaseChoice
    key_id: str
    private_key: Path
    settings: Settings
    canary: Canary
    evaluation_policy: EvaluationPolicy
    caps: Caps
    stack: StackChoice

    def __post_init__(self) -> None:
        check_licenses(self.license_refs)
        if self.base.license_ref not in self.license_refs:
            raise DocumentError(f"base.license_ref {self.base.license_ref} is not among license_refs")
        check_versions(self.stack.versions, required_packages(self.stack.serving))
        with reading("settings"):
            self.settings.check(self.stack.limits, checkpoints=True)


def load_selection(path: Path) -> Selection:
    """Read a selection from its file.

    Raises:
        DocumentError: it cannot be read, or is no selection.
    """
    try:
        with path.open("rb") as stream:
            data = stream.read(MAX_SELECTION_BYTES + 1)
    except OSError as error:
        raise DocumentError(f"cannot read selection {path}: {error.strerror or error}") from None
    with reading(f"selection {path.name}"):
        if len(data) > MAX_SELECTION_BYTES:
            raise DocumentError(f"is larger than {MAX_SELECTION_BYTES} bytes; is it the right file?")
        try:
            document = tomllib.loads(data.decode("utf-8"))
        except (ValueError, RecursionError) as error:
            raise DocumentError(f"is not valid TOML: {error}") from None
        return parse_selection(document, path.absolute().parent)


def parse_selection(document: dict[str, Any], folder: Path) -> Selection:
    """Make a selection of what the file says; relative paths start in ``folder``.

    Raises:
        DocumentError: a member is missing, unknown, or not as it must be.
    """
    exact(document, _KEYS)
    choice(document["schema"], "schema", (SELECTION_SCHEMA,), code="release-schema")
    for name in ("gated_download", "upload"):
        if document[name] is not False:
            refuse(name, "false: releases are prepared offline", code="offline")
    base = exact(document["base"], field_names(BaseChoice), "base")
    attestation = exact(document["attestation"], ("key_id", "private_key"), "attestation")
    canary = _filled(document, "canary")
    canary["acceptance"] = _filled(canary, "acceptance")
    with reading("settings"):
        settings = Settings.of_members(document["settings"], checkpoints=True)
    with reading("canary"):
        frozen = Canary.of_members(canary, older=False)
    return Selection(
        train_data=_path(document, "train_data", folder),
        eval_data=_path(document, "eval_data", folder),
        license_refs=array(document["license_refs"], "license_refs", 1, 8),
        credential_refs=_credentials(document["credential_refs"]),
        base=BaseChoice(
            path=_path(base, "path", folder),
            source=text(base["source"], "base.source", 256),
            revision=text(base["revision"], "base.revision", 128),
            license_ref=text(base["license_ref"], "base.license_ref", 256),
        ),
        key_id=text(attestation["key_id"], "attestation.key_id", MAX_KEY_ID_BYTES),
        private_key=_path(attestation, "private_key", folder),
        settings=settings,
        canary=frozen,
        evaluation_policy=parse_policy(document["evaluation_policy"]),
        caps=_value(Caps, document, "resource_caps"),
        stack=_stack(_filled(document, "stack")),
    )


def _stack(table: dict[str, Any]) -> StackChoice:
    with reading("stack"):
        exact(table, _STACK_KEYS)
        table["device"] = _filled(table, "device")
        versions = sorted_names(table["versions"], "versions")
        return StackChoice(
            platform=Platform(python=table["python"], cuda=table["cuda"]),
            device=_value(Device, table, "device"),
            serving=table["serving"],
            target_modules=array(table["target_modules"], "target_modules", 1, 7),
            versions=tuple(sorted(versions.items())),
            limits=_value(Limits, table, "limits"),
        )


def _filled(document: dict[str, Any], name: str) -> dict[str, Any]:
    return _OPTIONAL[name] | sorted_names(document[name], name)


def _value(cls: type[T], document: dict[str, Any], name: str) -> T:
    with reading(name):
        members = exact(document[name], field_names(cls))
        return cls(
            **{name: tuple(item) if isinstance(item, list) else item for name, item in members.items()}
        )


def _path(table: dict[str, Any], name: str, folder: Path) -> Path:
    value = table[name]
    if not isinstance(value, str) or not value or "\0" in value:
        refuse(name, "a path in quotes")
    return folder / value


def _credentials(value: object) -> tuple[str, ...]:
    found = array(value, "credential_refs", 0, MAX_CREDENTIALS)
    for reference in found:
        # Never repeated: it may be the credential itself.
        if not isinstance(reference, str) or _CREDENTIAL.fullmatch(reference) is None:
            refuse("each of credential_refs", "a name, env:NAME or file:/absolute/path, never the secret")
    return found
