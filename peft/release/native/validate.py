"""The phase ``validate``: nothing is computed yet; everything that could be refused later is refused now."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ticket_agent.peft.release.data import check_disjoint
from ticket_agent.peft.release.native.base_model import check_base_model
from ticket_agent.peft.release.native.checkpoints import check_checkpoint
from ticket_agent.peft.release.native.models import load_tokenizer
from ticket_agent.peft.release.native.pins import check_pins
from ticket_agent.peft.release.native.scan import scan_imported
from ticket_agent.peft.release.native.token_rows import tokenise

if TYPE_CHECKING:
    from ticket_agent.peft.release.native.job import Job

__all__ = ["validate"]


def validate(job: Job) -> dict[str, Any]:
    """Check documents, digests, base model, packages, rows, and what the release starts from.

    Raises:
        PeftError: the first thing that is not as it must be.
    """
    profile, released = job.profile, job.release_input
    check_pins(profile)
    base = check_base_model(job)
    check_disjoint(job.train_rows, job.eval_rows)
    tokenizer = load_tokenizer(job.input_path("base"))
    rows = {
        what: tokenise(tokenizer, texts, profile, what=f"{what} rows")
        for what, texts in (("training", job.train_rows), ("evaluation", job.eval_rows))
    }
    detail: dict[str, Any] = {
        "entry": released.entry.value,
        "base": base,
        "context": profile.context.members(),
        "rows": {
            what: {"count": len(found), "tokens": sum(len(row["input_ids"]) for row in found)}
            for what, found in rows.items()
        },
    }
    imported = scan_imported(job)
    if imported is not None:
        detail["candidate"] = imported.members()
        detail["training_provenance"] = "unknown"
    if job.checkpoint is not None:
        check_checkpoint(job, job.checkpoint)
        detail["resumes"] = {
            "checkpoint_sha256": released.checkpoint,
            "source_operation": job.checkpoint.source_operation,
            "step": job.checkpoint.step,
        }
    return detail
