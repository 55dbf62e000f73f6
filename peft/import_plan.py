"""What an import is asked for, and what it was planned to publish, as values.

A plan pins everything but the digest of the tensors: hashing them is most of an import's work, and is done
once, on the way to the copy. They are pinned by which file they are and when it was last changed, and by the
ticket, when it gives their digest.
"""

from __future__ import annotations

from dataclasses import astuple, dataclass
from typing import TYPE_CHECKING, Final, Self

from ticket_agent.journal.outcome import Plan
from ticket_agent.peft.adapter_layout import Layout
from ticket_agent.peft.errors import NameRefusedError
from ticket_agent.peft.job import POLICY_FILE, TELEMETRY_FILE
from ticket_agent.peft.manifest import Artifact, Manifest
from ticket_agent.peft.names import check_component, check_model_id
from ticket_agent.peft.opened import Identity
from ticket_agent.peft.planned import (
    PlannedError,
    artifact,
    count,
    member,
    optional_sha256,
    planned,
    staging,
    text,
)

if TYPE_CHECKING:
    from ticket_agent.peft.manifest import BaseManifest

__all__ = ["ACTION", "ImportGoal", "ImportRequest"]

ACTION: Final = "peft.import"

_IDENTITY: Final = ("device", "inode", "size", "mtime_ns", "ctime_ns")


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportRequest:
    """A request for an import.

    Attributes:
        operation: identity of the request; the staging directory is named after it.
        model: id of the new model.
        job: the export job that it belongs to.
        adapter_ref: directory of the adapter.
        adapter_sha256: what the tensors' file must be, or None when that is left open.
        config_sha256: likewise the configuration's file as it is in the adapter's directory.
        metrics_sha256: likewise ``metrics.json``.

    Raises:
        NameRefusedError: a name that must not become a directory entry.
    """

    operation: str
    model: str
    job: str
    adapter_ref: str
    adapter_sha256: str | None = None
    config_sha256: str | None = None
    metrics_sha256: str | None = None

    def __post_init__(self) -> None:
        check_model_id(self.model, what="the model")
        check_component(self.job, what="the job")
        check_component(self.adapter_ref, what="the adapter")


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportGoal:
    """A plan as a value.

    Attributes:
        model: see :class:`ImportRequest`, as for the next two.
        job: the export job.
        adapter_ref: directory of the adapter.
        staging: where the model is put together.
        registry: which registry root; another one would prove nothing.
        adapters: which adapter root, likewise.
        layout: of the adapter's directory.
        base: id of the base model, from the job.
        policy: the job's ``policy.toml``.
        telemetry: the job's ``telemetry.cbor``.
        tensors: which file the tensors were in.
        tensors_sha256: what they must be, or None when the ticket leaves that open.
        config_sha256: the configuration's file as it was found.
        lora: the model's ``lora.json``.
        metrics: the model's ``metrics.json``, or None.
        existing: digest of the manifest that was there already, or None.
    """

    model: str
    job: str
    adapter_ref: str
    staging: str
    registry: str
    adapters: str
    layout: Layout
    base: str
    policy: Artifact
    telemetry: Artifact
    tensors: Identity
    tensors_sha256: str | None
    config_sha256: str
    lora: Artifact
    metrics: Artifact | None
    existing: str | None

    def says(self, clause: str) -> str:
        """One line about the operation."""
        return f"{ACTION} model={self.model} {clause}"

    def manifest(self, tensors: Artifact) -> Manifest:
        """The manifest of the model with these tensors."""
        return Manifest(
            model=self.model,
            base=self.base,
            job=self.job,
            adapter=tensors,
            lora=self.lora,
            metrics=self.metrics,
            policy=self.policy,
            telemetry=self.telemetry,
        )

    def difference(self, found: Manifest | BaseManifest) -> str | None:
        """How a manifest differs from the planned one, as far as that is known; None when it does not."""
        if not isinstance(found, Manifest):
            return "it is a base model"
        wanted = self.manifest(found.adapter)
        for name, what in (("job", "job"), ("base", "base model")):
            theirs, ours = getattr(found, name), getattr(wanted, name)
            if theirs != ours:
                return f"its {what} is {theirs}, not {ours}"
        files = (("lora", "lora.json"), ("metrics", "metrics.json"), ("policy", POLICY_FILE))
        for name, what in (*files, ("telemetry", TELEMETRY_FILE)):
            if getattr(found, name) != getattr(wanted, name):
                return f"its {what} is another one"
        if found.adapter.bytes != self.tensors.size or self.tensors_sha256 not in (
            None,
            found.adapter.sha256,
        ):
            return "its adapter.safetensors is another one"
        return None

    def to_plan(self) -> Plan:
        """The plan to journal."""
        return Plan(
            before={"manifest_sha256": self.existing},
            intent={
                "action": ACTION,
                "model": self.model,
                "job": self.job,
                "adapter_ref": self.adapter_ref,
                "staging": self.staging,
                "registry": self.registry,
                "adapters": self.adapters,
                "layout": self.layout.value,
                "base": self.base,
                "policy": planned(self.policy),
                "telemetry": planned(self.telemetry),
                "adapter": dict(zip(_IDENTITY, astuple(self.tensors), strict=True)),
                "adapter_sha256": self.tensors_sha256,
                "config_sha256": self.config_sha256,
                "lora": planned(self.lora),
                "metrics": None if self.metrics is None else planned(self.metrics),
            },
        )

    @classmethod
    def from_plan(cls, plan: Plan) -> Self:
        """The value of :meth:`to_plan`.

        Raises:
            PeftError: anything else.
        """
        intent = plan.intent
        if text(intent, "action") != ACTION:
            raise PlannedError(f"the plan is one of {text(intent, 'action')}")
        file = member(intent, "adapter")
        config = optional_sha256(intent, "config_sha256")
        if config is None:
            raise PlannedError("the plan is not one of this action: config_sha256 is not a SHA-256")
        try:
            return cls(
                model=check_model_id(text(intent, "model"), what="the planned model"),
                job=check_component(text(intent, "job"), what="the planned job"),
                adapter_ref=check_component(text(intent, "adapter_ref"), what="the planned adapter"),
                staging=staging(intent),
                registry=text(intent, "registry"),
                adapters=text(intent, "adapters"),
                layout=Layout(text(intent, "layout")),
                base=text(intent, "base"),
                policy=artifact(intent, "policy"),
                telemetry=artifact(intent, "telemetry"),
                tensors=Identity(**{name: count(file, name) for name in _IDENTITY}),
                tensors_sha256=optional_sha256(intent, "adapter_sha256"),
                config_sha256=config,
                lora=artifact(intent, "lora"),
                metrics=None if intent.get("metrics") is None else artifact(intent, "metrics"),
                existing=optional_sha256(plan.before, "manifest_sha256"),
            )
        except (NameRefusedError, ValueError) as error:
            raise PlannedError(f"the plan is not one of this action: {error}") from error
