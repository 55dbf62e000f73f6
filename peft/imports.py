"""``peft.import``: make a model of the registry from an adapter's directory and an export job.

The adapter is copied into a staging directory of the registry, hashed on the way, and read there, so that
what was hashed, what was checked and what becomes the model are the same bytes. The manifest is written last
and one rename publishes everything. The adapter's own idea of its base model is recorded in ``lora.json`` and
not compared with the job's: one is the name on a hub, the other an id of the hive, and they differ by nature.

Importing what is there already, byte for byte and under the same job, is a success. Anything else under the
name of a model that exists is refused.
"""

from __future__ import annotations

import hashlib
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from ticket_agent.journal.outcome import (
    Committed,
    Outcome,
    Pending,
    Plan,
    PlanRefusedError,
    Rejected,
    Unknown,
    Unobserved,
)
from ticket_agent.peft.action import PASSING, REGISTRY_LANE, planning, root_tag
from ticket_agent.peft.adapter import check_tensors, open_adapter
from ticket_agent.peft.copying import copy_hashed
from ticket_agent.peft.errors import (
    AbsentError,
    ArtifactRefusedError,
    LockHeldError,
    NameRefusedError,
    PeftError,
    RegistryError,
)
from ticket_agent.peft.import_plan import ACTION, ImportGoal, ImportRequest
from ticket_agent.peft.import_verdict import judge
from ticket_agent.peft.job import POLICY_FILE, TELEMETRY_FILE, artifact_of, read_job
from ticket_agent.peft.limits import LOCK_WAIT_S, MAX_ADAPTER_BYTES
from ticket_agent.peft.manifest import (
    ADAPTER_FILE,
    LORA_FILE,
    MANIFEST_FILE,
    METRICS_FILE,
    Artifact,
    render,
)
from ticket_agent.peft.names import IMPORT_STAGING, case_twins
from ticket_agent.peft.planned import PlannedError
from ticket_agent.peft.publishing import Attempt, discard, require_space, staged, staging_name
from ticket_agent.peft.registry import AVAILABLE, Registry, load_manifest
from ticket_agent.peft.trees import import_trees, locked_registry
from ticket_agent.protocol.args import PeftImportArgs
from ticket_agent.protocol.errors import ProtocolError

if TYPE_CHECKING:
    from ticket_agent.peft.adapter import AdapterSource
    from ticket_agent.peft.directory import Directory
    from ticket_agent.peft.job import ExportJob
    from ticket_agent.peft.lora import LoraSummary
    from ticket_agent.peft.manifest import BaseManifest, Manifest
    from ticket_agent.peft.settings import PeftRoots
    from ticket_agent.peft.trees import ImportTrees
    from ticket_agent.protocol.spec import HostTicketSpec

__all__ = ["ImportProvider"]


class ImportProvider:
    """The action on one registry, with its adapters and exports."""

    def __init__(self, roots: PeftRoots) -> None:
        self._roots: Final = roots

    def lane(self, request: HostTicketSpec) -> str:  # noqa: ARG002 - one registry, one lane
        """One lane for the registry."""
        return REGISTRY_LANE

    def plan(self, request: HostTicketSpec) -> Plan:
        """Look at adapter, job and registry. Reads only, and nothing of the tensors but their header.

        Raises:
            PlanRefusedError: the adapter, the job, or what the registry holds exclude the import.
            PlanWaitsError: a root cannot be used now.
        """
        try:
            args = request.action_args()
        except ProtocolError as error:
            raise PlanRefusedError(f"{ACTION} cannot be performed: {error}") from error
        if not isinstance(args, PeftImportArgs):
            raise PlanRefusedError(f"{ACTION} carries no adapter and no job")
        try:
            asked = ImportRequest(
                operation=request.journal_key,
                model=request.subject_ref or "",
                job=args.job_id,
                adapter_ref=args.adapter_ref,
                adapter_sha256=args.adapter_sha256,
                config_sha256=args.lora_sha256,
                metrics_sha256=args.metrics_sha256,
            )
        except NameRefusedError as error:
            raise PlanRefusedError(f"{ACTION} cannot be performed: {error}") from error
        return self.plan_for(asked)

    def plan_for(self, asked: ImportRequest) -> Plan:
        """Plan what was asked for; errors as for :meth:`plan`."""
        with planning(f"{ACTION} model={asked.model}"), import_trees(self._roots) as trees:
            job = read_job(trees.exports, asked.job)
            with open_adapter(trees.adapters, asked.adapter_ref) as source:
                _require_asked(asked, source)
                check_tensors(source.tensors, source)
                there, digest = _existing(trees.registry, asked.model)
                goal = self._goal_for(asked, job, source, digest)
            if there is not None and (difference := goal.difference(there)) is not None:
                raise RegistryError(f"a model of that name is there already: {difference}")
            if there is None:
                _require_no_twin(trees.registry, goal.model)
                require_space(trees.registry, goal.tensors.size + goal.lora.bytes)
            return goal.to_plan()

    def execute(self, plan: Plan) -> Outcome:
        """Copy, check and publish what was planned, once, if everything is still as the plan saw it."""
        try:
            goal = self._goal(plan)
        except PeftError as error:
            return Rejected(f"{ACTION} not applied: {error}")
        attempt = Attempt()
        try:
            with import_trees(self._roots, wait_s=LOCK_WAIT_S) as trees:
                return self._perform(trees, goal, attempt)
        except (PeftError, OSError) as error:
            if attempt.publishing:
                return self._look(goal, why=str(error))
            return Rejected(goal.says(f"not applied: {error}"))

    def observe(self, plan: Plan) -> Outcome:
        """Tell from the registry what became of the planned model; what was left half-way is removed.

        Takes the registry's lock, so that whoever dispatched it is certainly not at work any more.
        """
        try:
            goal = self._goal(plan)
        except PeftError as error:
            return Unobserved(f"{ACTION} cannot be observed: {error}")
        return self._look(goal, why="nothing was published")

    def _look(self, goal: ImportGoal, *, why: str) -> Outcome:
        try:
            with locked_registry(self._roots) as registry:
                outcome = judge(registry, goal, self._roots, why=why)
                if not self._roots.looks_only:
                    with suppress(PeftError, OSError):  # it is no part of the outcome, and is seen later
                        discard(registry, goal.staging)
                return outcome
        except LockHeldError as error:
            return Pending(goal.says(f"waits: {error}"))
        except PASSING as error:
            return Unobserved(goal.says(f"cannot be observed: {error}"))
        except (PeftError, OSError) as error:
            return Unknown(goal.says(f"cannot be observed: {error}"))

    def _perform(self, trees: ImportTrees, goal: ImportGoal, attempt: Attempt) -> Outcome:
        """Publish the model unless it is there; the locks must be held.

        Raises:
            PeftError: something was in the way; ``attempt`` says what that means.
        """
        if goal.existing is not None or _is_taken(trees.registry, goal.model):
            attempt.publishing = True  # somebody did: then only looking tells
            return judge(trees.registry, goal, self._roots, why="it was removed since it was planned")
        _require_no_twin(trees.registry, goal.model)
        job = read_job(trees.exports, goal.job)
        with open_adapter(trees.adapters, goal.adapter_ref) as source:
            _require_planned(goal, job, source)
            with staged(trees.registry, goal.staging) as folder:
                tensors, summary = _fill(folder, goal, source)
                manifest = render(goal.manifest(tensors))
                folder.write_file(MANIFEST_FILE, manifest)
                # Not before: an import that is refused leaves no trace, not even an empty directory.
                with trees.registry.open_dir(AVAILABLE, create=True) as available:
                    attempt.publishing = True
                    trees.registry.rename(goal.staging, available, goal.model, replace=False)
        return _imported(goal, tensors, summary, hashlib.sha256(manifest).hexdigest())

    def _goal_for(
        self, asked: ImportRequest, job: ExportJob, source: AdapterSource, existing: str | None
    ) -> ImportGoal:
        pinned = job.artifacts
        return ImportGoal(
            model=asked.model,
            job=asked.job,
            adapter_ref=asked.adapter_ref,
            staging=staging_name(IMPORT_STAGING, asked.operation),
            registry=root_tag(self._roots.registry),
            adapters=root_tag(self._roots.adapter),
            layout=source.layout,
            base=job.base(),
            policy=pinned[POLICY_FILE],
            telemetry=pinned[TELEMETRY_FILE],
            tensors=source.tensors.identity,
            tensors_sha256=asked.adapter_sha256,
            config_sha256=source.config_sha256,
            lora=artifact_of(source.lora),
            metrics=None if source.metrics is None else artifact_of(source.metrics),
            existing=existing,
        )

    def _goal(self, plan: Plan) -> ImportGoal:
        goal = ImportGoal.from_plan(plan)
        for name, path in (("registry", self._roots.registry), ("adapters", self._roots.adapter)):
            if getattr(goal, name) != root_tag(path):
                raise PlannedError(f"the configuration named another root of {name} when this was planned")
        return goal


def _require_asked(asked: ImportRequest, source: AdapterSource) -> None:
    """Compare the small files with the digests of the ticket, if it gives any."""
    metrics = None if source.metrics is None else hashlib.sha256(source.metrics).hexdigest()
    if asked.metrics_sha256 is not None and metrics is None:
        raise ArtifactRefusedError(f"{METRICS_FILE} is missing; the ticket gives its SHA-256")
    for name, wanted, found in (
        (source.layout.config, asked.config_sha256, source.config_sha256),
        (METRICS_FILE, asked.metrics_sha256, metrics),
    ):
        _require_digest(name, wanted, found)


def _require_digest(name: str, wanted: str | None, found: str | None) -> None:
    if wanted not in (None, found):
        raise ArtifactRefusedError(f"{name} SHA-256 mismatch: expected {wanted} got {found}")


def _existing(root: Directory, model: str) -> tuple[Manifest | BaseManifest | None, str | None]:
    """Manifest of a model that is there, and its digest; None and None when its name is free."""
    with Registry.open(root) as registry:
        if registry.available is None or registry.available.kind(model) is None:
            return None, None
        with registry.open_model(model) as folder:
            try:
                return load_manifest(folder, model)
            except AbsentError:
                raise RegistryError(
                    f"{AVAILABLE}/{model} is an import that another tool did not finish; `peft gc` removes it"
                ) from None


def _is_taken(root: Directory, model: str) -> bool:
    with Registry.open(root) as registry:
        return registry.available is not None and registry.available.kind(model) is not None


def _require_no_twin(root: Directory, model: str) -> None:
    with Registry.open(root) as registry:
        names = [] if registry.available is None else registry.available.names()
    for twins in case_twins([*names, model]):
        if model in twins:
            other = next(name for name in twins if name != model)
            raise RegistryError(f"{AVAILABLE} holds {other}, which differs only in upper and lower case")


def _require_planned(goal: ImportGoal, job: ExportJob, source: AdapterSource) -> None:
    """Compare what is there now with what the plan saw."""
    pinned = job.artifacts
    metrics = None if source.metrics is None else artifact_of(source.metrics)
    for what, same in (
        (POLICY_FILE, pinned[POLICY_FILE] == goal.policy),
        (TELEMETRY_FILE, pinned[TELEMETRY_FILE] == goal.telemetry),
        ("the base model", job.base() == goal.base),
        ("the adapter's layout", source.layout is goal.layout),
        (source.layout.config, source.config_sha256 == goal.config_sha256),
        (LORA_FILE, artifact_of(source.lora) == goal.lora),
        (METRICS_FILE, metrics == goal.metrics),
        (source.layout.adapter, source.tensors.identity == goal.tensors),
    ):
        if not same:
            raise PlannedError(f"{what} was changed since it was planned")


def _fill(folder: Directory, goal: ImportGoal, source: AdapterSource) -> tuple[Artifact, LoraSummary]:
    """Put everything but the manifest into a staging directory, checked and synced."""
    copied = copy_hashed(source.tensors, folder, ADAPTER_FILE, max_bytes=MAX_ADAPTER_BYTES)
    _require_digest(source.layout.adapter, goal.tensors_sha256, copied.sha256)
    with folder.open_file(ADAPTER_FILE, max_bytes=MAX_ADAPTER_BYTES) as copy:
        summary = check_tensors(copy, source)
    folder.write_file(LORA_FILE, source.lora)
    if source.metrics is not None:
        folder.write_file(METRICS_FILE, source.metrics)
    return Artifact(sha256=copied.sha256, bytes=copied.bytes), summary


def _imported(goal: ImportGoal, tensors: Artifact, summary: LoraSummary, manifest_sha256: str) -> Committed:
    clause = (
        f"job={goal.job} manifest_sha256={manifest_sha256}"
        f" adapter_bytes={tensors.bytes} lora_bytes={goal.lora.bytes}"
    )
    return Committed(
        goal.says(clause),
        {
            "manifest_sha256": manifest_sha256,
            "adapter_sha256": tensors.sha256,
            "lora_sha256": goal.lora.sha256,
            "config_sha256": goal.config_sha256,
            "layout": goal.layout.value,
            "rank": summary.rank,
            "modules": summary.modules,
            "dtype": summary.dtype,
            "base_model_of_adapter": summary.base_model,
        },
    )
