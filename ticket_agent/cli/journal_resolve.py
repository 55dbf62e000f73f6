"""`journal resolve`: the only way to end an operation by hand whose outcome nobody can tell."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from ticket_agent.cli.assembly import console, exit_of_hive, now_ms, opened_store, provider_table
from ticket_agent.cli.journal_records import brief, find
from ticket_agent.cli.options import agent_options, config_from, login_name
from ticket_agent.cli.output import emit_json, fail, plain, state_text
from ticket_agent.cli.status import journal_view, require_used
from ticket_agent.exits import Exit

if TYPE_CHECKING:
    from ticket_agent.config import AgentConfig
    from ticket_agent.journal.cursor import Cursor
    from ticket_agent.journal.outcome import Outcome
    from ticket_agent.journal.record import ProviderResult, Record, StagedResult
    from ticket_agent.journal.recovery import Facts
    from ticket_agent.journal.resolution import Resolution, Said
    from ticket_agent.journal.store import JournalStore

__all__ = ["resolve_operation"]


@click.command(name="resolve")
@agent_options
@click.argument("operation")
@click.option(
    "--as",
    "said",
    type=click.Choice(["done", "not-done"]),
    required=True,
    help="Whether the effect happened. `done` is published as `expired`, `not-done` as `failed`.",
)
@click.option("--reason", required=True, help="How you know; one line of at most 192 bytes, kept for ever.")
@click.option("--by", default=None, help="Who says so (default: the login name).")
@click.option(
    "--hive-is-gone", is_flag=True, help="The hive never comes back: go on if it cannot be reached."
)
@click.option("--apply", "apply_it", is_flag=True, help="Write it. Without this, only the plan is shown.")
@click.option("--json", "as_json", is_flag=True, help="One JSON line.")
def resolve_operation(
    *,
    operation: str,
    said: Said,
    reason: str,
    by: str | None,
    hive_is_gone: bool,
    apply_it: bool,
    as_json: bool,
    **options: Any,
) -> None:
    """End an operation whose outcome stays unknown, by your word; shows the plan unless --apply is given.

    OPERATION is named as for `journal show`. It must be executing, and its observer is asked once more:
    what an observer, the ticket's expiry or the root can still decide is refused. Nothing is ever published
    as succeeded on somebody's word. The agent must not run at that time; afterwards it, or
    `journal replay --apply`, publishes the result.
    """
    config = config_from(options)
    require_used(config.state_dir)
    view = journal_view(config.state_dir)
    record = find(list(view.records.values()), operation)
    ask = _Asked(
        config=config,
        said=said,
        reason=reason,
        by=login_name() if by is None else by,
        hive_is_gone=hive_is_gone,
    )
    if apply_it:
        with opened_store(config) as store:
            _write(ask, store, record.key, as_json=as_json)
        return
    if view.owner is not None:
        from ticket_agent.journal.errors import FenceHeldError  # noqa: PLC0415 - start-up time

        fail(str(FenceHeldError(pid=view.owner.pid, boot_id=view.owner.boot_id)), Exit.OTHER_OWNER)
    resolution = ask.resolution(record, view.cursor)
    result, staged = ask.staged(record, resolution)
    _tell(record, resolution, result, staged, applied=False, as_json=as_json)


class _Asked:
    """What the operator asked for, and how it is checked and turned into a result."""

    def __init__(self, *, config: AgentConfig, said: Said, reason: str, by: str, hive_is_gone: bool) -> None:
        self._config = config
        self._said = said
        self._reason = reason
        self._by = by
        self._hive_is_gone = hive_is_gone

    def resolution(self, record: Record, cursor: Cursor) -> Resolution:
        """Observe once more, then refuse or word the resolution."""
        from ticket_agent.cli.journal_facts import parsed_request  # noqa: PLC0415 - start-up time
        from ticket_agent.journal.resolution import ResolutionRefusedError, require_resolvable  # noqa: PLC0415

        # Whatever is wrong with the words or the record is said before the hive is asked.
        self._worded(observed="")
        parsed_request(record)
        try:
            require_resolvable(record)
            facts, outcome = self._look(record, cursor)
            require_resolvable(record, facts, outcome)
        except ResolutionRefusedError as error:
            fail(f"{record.key} is not resolved by hand: {error}{self._disabled(record)}", Exit.FAILURE)
        answer = f"{type(outcome).__name__}: {outcome.detail}"
        return self._worded(observed=answer if facts is not None else f"the hive is gone; {answer}")

    def _worded(self, *, observed: str) -> Resolution:
        from ticket_agent.journal.errors import RecordError  # noqa: PLC0415 - start-up time
        from ticket_agent.journal.resolution import Resolution  # noqa: PLC0415 - start-up time

        try:
            return Resolution(
                said=self._said,
                by=self._by,
                reason=self._reason,
                unix_ms=max(0, now_ms()),
                observed=observed or "not yet",
            )
        except RecordError as error:
            fail(str(error), Exit.USAGE)

    def _look(self, record: Record, cursor: Cursor) -> tuple[Facts | None, Outcome]:
        """Facts and observation through the hive; no facts when it is gone, as the operator says."""
        from ticket_agent.cli.journal_facts import (  # noqa: PLC0415 - start-up time
            HiveFacts,
            observed,
            parsed_request,
        )
        from ticket_agent.journal.outcome import Unknown  # noqa: PLC0415 - start-up time
        from ticket_agent.protocol.errors import ProtocolError  # noqa: PLC0415 - start-up time
        from ticket_agent.protocol.namespace import HiveError, HiveUnreachableError  # noqa: PLC0415 - start-up time

        # Whoever was disabled since may still be able to tell.
        config = self._every_observer()
        namespace = console(config)
        try:
            found = HiveFacts(config, namespace, cursor).of(record)
            return found.facts, found.outcome or Unknown("not observed")
        except HiveError as error:
            never_there = isinstance(error, HiveUnreachableError) and namespace.session == 0
            if never_there and self._hive_is_gone:
                providers = provider_table(config, namespace, epoch=lambda: cursor.epoch, looks_only=True)
                return None, observed(providers, record, parsed_request(record))
            advice = "; if this hive never comes back, say so with --hive-is-gone" if never_there else ""
            fail(f"{error}{advice}", exit_of_hive(error))
        except ProtocolError as error:
            fail(f"the hive wrote what no hive should: {error}", Exit.FAILURE)
        finally:
            namespace.close()

    def _every_observer(self) -> AgentConfig:
        from ticket_agent.config import GpuSettings  # noqa: PLC0415 - pydantic

        return self._config.model_copy(update={"action_allowlist": None, "gpu": GpuSettings()})

    def _disabled(self, record: Record) -> str:
        """What stands between the advice and its success: an action that the agent would not observe."""
        from ticket_agent.agent.providers import NotEnabled  # noqa: PLC0415 - start-up time
        from ticket_agent.cli.journal_facts import parsed_request  # noqa: PLC0415 - start-up time

        config, spec = self._config, parsed_request(record)
        ours, every = (
            provider_table(one, console(one), epoch=lambda: 1).provider_for(spec)
            for one in (config, self._every_observer())
        )
        if isinstance(ours, NotEnabled) and not isinstance(every, NotEnabled):
            return f" (this configuration does not enable {spec.action}: enable it for that)"
        return ""

    def staged(self, record: Record, resolution: Resolution) -> tuple[ProviderResult, StagedResult]:
        """The result and its exact line, made as the agent makes every other."""
        from ticket_agent.agent.staging import staged_result  # noqa: PLC0415 - pydantic
        from ticket_agent.cli.journal_facts import parsed_request  # noqa: PLC0415 - start-up time
        from ticket_agent.protocol.paths import TicketPaths  # noqa: PLC0415 - start-up time

        result = resolution.result()
        return result, staged_result(
            parsed_request(record),
            result,
            paths=TicketPaths(self._config.mount),
            max_line_bytes=self._config.max_line_bytes,
        )


def _write(ask: _Asked, store: JournalStore, key: str, *, as_json: bool) -> None:
    from ticket_agent.journal.errors import JournalError, JournalPoisonedError  # noqa: PLC0415 - start-up time

    record = store.records.get(key)
    if record is None:
        fail(f"{key} is not in the journal any more", Exit.FAILURE)
    resolution = ask.resolution(record, store.cursor)
    result, staged = ask.staged(record, resolution)
    try:
        record = store.settle(key, result, staged)
    except JournalPoisonedError as error:
        fail(str(error), Exit.POISONED)
    except JournalError as error:
        fail(str(error), Exit.FAILURE)
    _tell(record, resolution, result, staged, applied=True, as_json=as_json)


def _tell(
    record: Record,
    resolution: Resolution,
    result: ProviderResult,
    staged: StagedResult,
    *,
    applied: bool,
    as_json: bool,
) -> None:
    if as_json:
        told = {name: getattr(resolution, name) for name in ("said", "by", "reason", "observed")}
        more = {
            "outcome": result.outcome,
            "message": result.message,
            "staged": {"path": staged.path, "line": staged.line},
            "applied": applied,
        }
        emit_json("resolution", brief(record) | told | more)
        return
    click.echo(f"operation  {plain(record.key)}, {state_text(record.state.value)}")
    click.echo(f"observed   {plain(resolution.observed)}")
    click.echo(f"outcome    {state_text(result.outcome)}: {plain(result.message)}")
    click.echo(f"staged     {plain(staged.path)}\n           {plain(staged.line)}")
    if applied:
        click.echo("resolved; the agent, or `ticket-agent journal replay --apply`, publishes it")
    else:
        click.echo("nothing was written; to resolve it: --apply")
