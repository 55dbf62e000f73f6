"""Job directories of native phases, from what was prepared in a release directory."""

from __future__ import annotations

import importlib
import shutil
from typing import TYPE_CHECKING, Any

from native_jobs import Prepared, identity, write

from ticket_agent.peft.release.native.job import JobFacts
from ticket_agent.peft.release.skeleton import skeleton_rows

if TYPE_CHECKING:
    from pathlib import Path

    from release_lab import Lab

    from ticket_agent.peft.release.prepare import PreparedRelease


def job_of(lab: Lab, release: PreparedRelease, path: Path, *, candidate: Path | None = None) -> Prepared:
    """A job for every phase that needs no more than ``candidate``, by default the imported adapter."""
    (path / "out").mkdir(parents=True)
    inputs = path / "in"
    profile, request = release.profile, release.request
    with lab.opened() as root:
        documents = {
            "request.json": release.request_sha256,
            "profile.json": request.profile_sha256,
            "input.json": request.input_sha256,
            "train-rows.json": profile.train_data,
            "eval-rows.json": profile.eval_data,
            "base.json": profile.base,
        }
        if release.adapter_bundle_sha256 is not None:
            documents["adapter.json"] = release.adapter_bundle_sha256
            candidate = lab.config.root / "bundles" / release.adapter_bundle_sha256
        for name, sha256 in documents.items():
            write(inputs / name, root.objects.load(sha256))
    if candidate is not None:
        shutil.copytree(candidate, inputs / "adapter")
    shutil.copytree(lab.config.root / "bundles" / profile.base, inputs / "base")
    facts = JobFacts(
        operation_id=request.operation_id,
        request_sha256=release.request_sha256,
        native_identity=f"test:{request.operation_id}",
        candidate_sha256=None if candidate is None else identity(candidate),
    )
    write(inputs / "job.json", facts.encode())
    return Prepared(path=path, request=request)


def load_base_model(folder: str) -> dict[str, Any]:
    """What the libraries make of a base model; runs in a process that has them."""
    transformers = importlib.import_module("transformers")
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder, local_files_only=True)
    model, report = transformers.AutoModelForCausalLM.from_pretrained(
        folder, local_files_only=True, output_loading_info=True
    )
    row = skeleton_rows(1, 100)[0]
    ids = tokenizer(row)["input_ids"]
    return {
        "class": type(model).__name__,
        "vocabulary": model.config.vocab_size,
        "keys": sorted(map(str, (*report["missing_keys"], *report["unexpected_keys"]))),
        "unknown": tokenizer.unk_token_id in ids,
        "decoded": tokenizer.decode(ids),
        "row": row,
        "asked": tokenizer.apply_chat_template(
            [{"role": "user", "content": "the sea"}, {"role": "user", "content": " and"}], tokenize=False
        ),
    }
