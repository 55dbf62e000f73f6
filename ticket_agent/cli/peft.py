"""`peft list|show`, and the group of all commands on a registry of adapters."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import click

from ticket_agent.cli.assembly import now_ms
from ticket_agent.cli.output import age, emit_json, plain, size, stamp, styled, table
from ticket_agent.cli.peft_gc import collect_garbage
from ticket_agent.cli.peft_roots import opened_registry, registry_options, roles
from ticket_agent.cli.peft_verify import verify_registry
from ticket_agent.exits import Exit

if TYPE_CHECKING:
    from pathlib import Path

    from ticket_agent.peft.control import Control
    from ticket_agent.peft.registry import Contents, Model, Registry

__all__ = ["peft"]

_COLOURS = {"active": "green", "previous": "cyan", "unfinished": "yellow", "unreadable": "red"}


@click.group()
def peft() -> None:
    """Read, verify and clean a registry of adapters; reading works on a copy, without a lock, for anybody."""


@peft.command(name="list")
@registry_options
@click.option("--json", "as_json", is_flag=True, help="One JSON line each (NDJSON).")
def list_models(*, config: Path | None, registry_root: Path | None, as_json: bool) -> None:
    """List the models and which one is active.

    The exit code is 1 when the files that say which model is active cannot be read.
    """
    with opened_registry(config, registry_root) as registry:
        control, problem = _control(registry)
        contents = registry.contents()
    if as_json:
        _emit(control, problem, contents)
    else:
        _print(control, problem, contents)
    sys.exit(int(Exit.FAILURE if problem else Exit.OK))


@peft.command()
@registry_options
@click.argument("model")
@click.option("--json", "as_json", is_flag=True, help="One JSON line.")
def show(*, config: Path | None, registry_root: Path | None, model: str, as_json: bool) -> None:
    """Show where a model comes from, and its files.

    Nothing is hashed; `peft verify MODEL` does that.
    """
    with opened_registry(config, registry_root) as registry:
        control, problem = _control(registry)
        found = registry.model(model)
        base = _text(found, "base")
        if base is not None and not _has(registry, base):
            base += " (not in this registry)"
    document = _document(found, control) | _origin(found)
    if as_json:
        emit_json("model", document)
    else:
        _print_model(found, document, base)
    if problem is not None:
        _say(problem, "red")
    sys.exit(int(Exit.FAILURE if problem or found.manifest is None else Exit.OK))


def _control(registry: Registry) -> tuple[Control | None, str | None]:
    from ticket_agent.peft.errors import PeftError  # noqa: PLC0415 - start-up time

    try:
        return registry.control(), None
    except PeftError as error:
        return None, str(error)


def _has(registry: Registry, model: str) -> bool:
    from ticket_agent.peft.errors import PeftError  # noqa: PLC0415 - start-up time

    try:
        return registry.model(model).manifest is not None
    except PeftError:
        return False


def _status(model: Model, control: Control | None) -> list[str]:
    found = roles(control, model.id)
    if model.manifest is None:
        found.append("unfinished" if model.unfinished else "unreadable")
    return found


def _document(model: Model, control: Control | None) -> dict[str, Any]:
    return {
        "id": model.id,
        "status": _status(model, control),
        "base": _text(model, "base"),
        "job": _text(model, "job"),
        "rank": model.rank,
        "bytes": model.bytes,
        "changed": stamp(model.changed_unix_ms),
        "manifest_sha256": model.manifest_sha256,
        "problem": model.problem,
    }


def _text(model: Model, member: str) -> str | None:
    value: str | None = getattr(model.manifest, member, None)
    return value


def _origin(model: Model) -> dict[str, Any]:
    from ticket_agent.peft.manifest import Manifest  # noqa: PLC0415 - start-up time

    manifest = model.manifest
    if not isinstance(manifest, Manifest):
        return {"approval": None, "files": {}, "job_files": {}}
    described = {"policy.toml": manifest.policy, "telemetry.cbor": manifest.telemetry}
    files, job_files = (
        {name: {"bytes": file.bytes, "sha256": file.sha256} for name, file in group.items()}
        for group in (manifest.files, described)
    )
    return {"approval": manifest.approval, "files": files, "job_files": job_files}


def _emit(control: Control | None, problem: str | None, contents: Contents) -> None:
    told: dict[str, Any] = {"active": None, "current": None, "previous": None, "consistent": None}
    if control is not None:
        told = {
            "active": control.pointer,
            "current": control.current,
            "previous": control.previous,
            "consistent": control.consistent,
        }
    emit_json("registry", told | {"problem": problem})
    for model in contents.models:
        emit_json("model", _document(model, control))
    for entry in contents.foreign:
        emit_json("foreign", {"name": entry.name, "reason": entry.reason})
    for twins in contents.twins:
        emit_json("twins", {"ids": list(twins)})


def _print(control: Control | None, problem: str | None, contents: Contents) -> None:
    now = now_ms()
    rows = [
        [
            model.id,
            ", ".join(styled(word, _COLOURS[word]) for word in _status(model, control)) or "-",
            plain(_text(model, "base") or "-"),
            "-" if model.rank is None else str(model.rank),
            size(model.bytes),
            _text(model, "job") or "-",
            age(model.changed_unix_ms, now),
        ]
        for model in contents.models
    ]
    headers = ["MODEL", "STATUS", "BASE", "RANK", "SIZE", "JOB", "AGE"]
    click.echo(table(headers, rows) if rows else "no models")
    if problem is not None:
        _say(problem, "red")
    elif control is not None and not control.consistent:
        _say(f"the control files do not agree, the file active counts ({control})", "yellow")
    for model in contents.models:
        if model.problem is not None:
            _say(f"{model.id}: {model.problem}", "yellow")
    for entry in contents.foreign:
        _say(f"foreign: {entry.name} {entry.reason}", "yellow")
    for twins in contents.twins:
        _say(f"differ only in upper and lower case: {', '.join(twins)}", "yellow")


def _print_model(model: Model, document: dict[str, Any], base: str | None) -> None:
    lines = [
        ("model", model.id),
        ("status", ", ".join(document["status"]) or "neither active nor previous"),
        ("problem", document["problem"]),
        ("base", base),
        ("rank", document["rank"]),
        ("job", document["job"]),
        ("approval", document["approval"]),
        ("changed", f"{document['changed']}, {age(model.changed_unix_ms, now_ms())}"),
        ("size", size(model.bytes)),
        ("manifest", document["manifest_sha256"] and f"sha256 {document['manifest_sha256']}"),
    ]
    for name, value in lines:
        if value is not None:
            click.echo(f"{name:<9}  {plain(str(value))}")
    for group, title in (("files", "files"), ("job_files", "files of the job, kept with the job")):
        if document[group]:
            click.echo(title)
        for name, file in document[group].items():
            click.echo(f"  {name:<20} {file['bytes']:>9} B  sha256 {file['sha256']}")


def _say(text: str, colour: str) -> None:
    click.echo(styled(plain(text), colour))


peft.add_command(verify_registry)
peft.add_command(collect_garbage)
