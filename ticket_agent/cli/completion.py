"""Shell completion."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

from ticket_agent.cli.output import fail
from ticket_agent.exits import Exit

__all__ = ["completion"]


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print the completion script of a shell.

    For bash: ``eval "$(ticket-agent completion bash)"``.
    """
    from ticket_agent.cli.root import cli  # noqa: PLC0415 - the root imports this module

    completer = get_completion_class(shell)
    if completer is None:
        fail(f"no completion for {shell}", Exit.FAILURE)
    try:
        click.echo(completer(cli, {}, "ticket-agent", "_TICKET_AGENT_COMPLETE").source())
    except RuntimeError as error:
        fail(str(error), Exit.FAILURE)
