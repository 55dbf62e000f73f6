"""What became of an import, told from what the registry holds."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ticket_agent.journal.outcome import Committed, Outcome, Rejected, Unknown
from ticket_agent.peft.action import PASSING
from ticket_agent.peft.copying import hash_file
from ticket_agent.peft.errors import PeftError
from ticket_agent.peft.limits import MAX_ADAPTER_BYTES
from ticket_agent.peft.manifest import Manifest
from ticket_agent.peft.registry import Registry
from ticket_agent.peft.verify import require_intact

if TYPE_CHECKING:
    from ticket_agent.peft.directory import Directory
    from ticket_agent.peft.import_plan import ImportGoal
    from ticket_agent.peft.settings import PeftRoots
    from ticket_agent.peft.verify import Intact

__all__ = ["judge"]


def judge(root: Directory, goal: ImportGoal, roots: PeftRoots, *, why: str) -> Outcome:
    """Compare what there is of a model with what was planned. The registry's lock must be held.

    The model is published whole, so either it is not there, or it is there as planned, or it is not ours.
    Whose a model with the planned content is makes no difference: it is what was asked for.

    Args:
        root: the registry's root.
        goal: the plan.
        roots: where the adapter is looked up that the model must be the same as.
        why: the reason to give when there is no such model.

    Raises:
        PeftError: it cannot be looked at now.
    """
    with Registry.open(root) as registry:
        if registry.available is None or registry.available.kind(goal.model) is None:
            return Rejected(goal.says(f"not applied: {why}"))
        try:
            intact = require_intact(registry, goal.model)
        except PASSING:
            raise
        except PeftError as error:
            return Rejected(goal.says(f"not applied: {error}"))
        doubt = _compared(root, goal, roots, intact)
        if doubt is not None:
            return doubt
        # Whoever renamed it may have died before that was durable.
        registry.available.sync()
        root.sync()
    return _observed(goal, intact)


def _compared(root: Directory, goal: ImportGoal, roots: PeftRoots, intact: Intact) -> Outcome | None:
    """The outcome when the model is not the planned one, or nobody can tell; None when it is."""
    difference = goal.difference(intact.manifest)
    if difference is not None or not isinstance(intact.manifest, Manifest):
        return Rejected(goal.says(f"not applied: a model of that name is there: {difference}"))
    if goal.tensors_sha256 is not None:
        return None
    found, planned = _source(goal, roots)
    if found == intact.manifest.adapter.sha256:
        return None
    # What was planned can only have published the file that was planned, and that under this staging name.
    if planned or root.kind(goal.staging) is not None:
        return Rejected(
            goal.says(
                "not applied: a model of that name is there, and its adapter.safetensors is another one"
            )
        )
    return Unknown(
        goal.says(
            "cannot be observed: a fitting model is there, but its adapter was changed or removed since;"
            " give adapter_sha256 to be sure"
        )
    )


def _source(goal: ImportGoal, roots: PeftRoots) -> tuple[str | None, bool]:
    """Digest of the tensors in the adapter's directory, and whether they are still the planned file."""
    try:
        with (
            roots.open_adapter() as adapters,
            adapters.open_dir(goal.adapter_ref) as folder,
            folder.open_file(goal.layout.adapter, max_bytes=MAX_ADAPTER_BYTES) as file,
        ):
            return hash_file(file).sha256, file.identity == goal.tensors
    except PASSING:
        raise
    except PeftError:
        return None, False


def _observed(goal: ImportGoal, intact: Intact) -> Committed:
    return Committed(
        goal.says(f"observed=manifest sha256={intact.manifest_sha256}"),
        {
            "manifest_sha256": intact.manifest_sha256,
            "adapter_sha256": intact.manifest.files["adapter.safetensors"].sha256,
            "lora_sha256": goal.lora.sha256,
            "config_sha256": goal.config_sha256,
            "layout": goal.layout.value,
        },
    )
