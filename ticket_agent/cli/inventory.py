"""`inventory`: this host's GPUs."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from ticket_agent.cli.output import emit_json, styled, table
from ticket_agent.exits import Exit

if TYPE_CHECKING:
    from ticket_agent.gpu.inventory import Gpu, Inventory

__all__ = ["inventory"]


@click.command()
@click.option("--json", "as_json", is_flag=True, help="One JSON line instead of a table.")
def inventory(*, as_json: bool) -> None:
    """List GPUs by UUID and PCI bus id, through NVML.

    What NVML cannot tell is shown as unknown with its reason, never as free.
    """
    from ticket_agent.gpu.inventory import read_inventory  # noqa: PLC0415 - loads NVML

    found = read_inventory()
    healthy = found.health.value == "ok"
    if as_json:
        emit_json("inventory", found.to_json())
    else:
        _print(found)
    sys.exit(int(Exit.OK if healthy else Exit.FAILURE))


def _print(found: Inventory) -> None:
    click.echo(f"driver: {_cell(found.driver)}")
    if not isinstance(found.gpus, tuple):
        click.echo(styled(f"GPUs: unknown: {found.gpus}", "yellow"))
        return
    rows = [
        [_cell(gpu.uuid), _cell(gpu.pci_bus_id), _cell(gpu.name), _memory(gpu), _load(gpu), gpu.health.value]
        for gpu in found.gpus
    ]
    click.echo(
        table(["UUID", "PCI BUS ID", "NAME", "MEMORY", "LOAD", "HEALTH"], rows) if rows else "GPUs: none"
    )
    for problem in found.problems:
        click.echo(styled(f"unknown: {problem}", "yellow"))


def _cell(value: object) -> str:
    return value if isinstance(value, str) else "unknown"


def _memory(gpu: Gpu) -> str:
    from ticket_agent.gpu.inventory import Unreadable  # noqa: PLC0415 - loads NVML

    memory = gpu.memory
    mib = 1024 * 1024
    if isinstance(memory, Unreadable):
        return "unknown"
    return f"{memory.used // mib} of {memory.total // mib} MiB"


def _load(gpu: Gpu) -> str:
    from ticket_agent.gpu.inventory import Unreadable  # noqa: PLC0415 - loads NVML

    load = gpu.utilisation
    return "unknown" if isinstance(load, Unreadable) else f"{load.gpu} %"
