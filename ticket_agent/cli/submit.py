"""`submit`: compose a raw version-2 request and append it to the hive's request log."""

from __future__ import annotations

import json
import secrets
from typing import TYPE_CHECKING, Any, NoReturn

import click

from ticket_agent.cli.assembly import console, exit_of_hive, now_ms
from ticket_agent.cli.options import config_from, hive_options
from ticket_agent.cli.output import emit_json, fail
from ticket_agent.exits import Exit

if TYPE_CHECKING:
    from ticket_agent.config import AgentConfig
    from ticket_agent.protocol.namespace import Namespace

__all__ = ["append", "generations", "submit"]


_ADVICE = {
    "invalid-payload": "; check that the GPU is in /gpu, the Worker READY as given, the id not used before",
    "busy": "; an earlier ticket of this Worker is still open, try again when it has ended",
    "denied": "; the hive is not ONLINE or DEGRADED, see /proc/lifecycle/state",
    "buffer-full": "; the hive's log is full",
}
"""What to look at, by kind of refusal: root itself names no reason."""


@click.command()
@hive_options
@click.argument("action")
@click.option("--worker", "worker_id", required=True, help="Receipt Worker that takes the outcome.")
@click.option("--subject", required=True, help="GPU id, job id or model id the action is about.")
@click.option(
    "--operation", "operation_id", help="Operation id; for a lease it is the lease id (default: the id)."
)
@click.option("--id", "ticket_id", help="Ticket id (default: a random one).")
@click.option("--key", "idempotency_key", help="Idempotency key (default: the ticket id).")
@click.option(
    "--arg", "arguments", multiple=True, metavar="NAME=VALUE", help="Action argument; may be repeated."
)
@click.option("--expires-in", type=click.IntRange(1), metavar="SECONDS", help="Let the ticket expire.")
@click.option("--supervisor-generation", type=click.IntRange(1), help="Default: as the Worker reports it.")
@click.option("--cap-generation", type=click.IntRange(1), help="Default: as the Worker reports it.")
@click.option("--dry-run", is_flag=True, help="Print the request line; append nothing.")
@click.option("--json", "as_json", is_flag=True, help="One JSON line about what happened.")
def submit(*, dry_run: bool, as_json: bool, **options: Any) -> None:
    """Append one raw request, e.g. `submit gpu.lease.grant --worker worker-1 --subject GPU-0 --arg ttl_s=60`.

    Root admits it or refuses it; the agent reads only what root admitted. A direct console has one owner:
    submit through it only while no agent is attached, or through a second console of the reference hive.
    """
    from ticket_agent.protocol import ProtocolError, parse_spec  # noqa: PLC0415 - pydantic
    from ticket_agent.protocol.namespace import HiveError  # noqa: PLC0415 - start-up time

    config = config_from(options)
    namespace = console(config)
    try:
        document = _document(options, namespace, config)
        line = json.dumps(document, separators=(",", ":"))
        spec = parse_spec(line.encode("utf-8"), source="raw", max_line_bytes=config.max_line_bytes)
        text = spec.encode().decode("utf-8")
        if not text.isascii():
            fail("this is no valid request: a console carries ASCII only", Exit.USAGE)
        if dry_run:
            click.echo(text)
            return
        append(namespace, config, text, spec.id, as_json=as_json)
    except ProtocolError as error:
        fail(f"this is no valid request: {error}", Exit.USAGE)
    except HiveError as error:
        fail(str(error), exit_of_hive(error))
    finally:
        namespace.close()


def _document(options: dict[str, Any], namespace: Namespace, config: AgentConfig) -> dict[str, Any]:
    from ticket_agent.protocol.actions import ROLE_OF_ACTION  # noqa: PLC0415 - start-up time

    action = options["action"]
    role = ROLE_OF_ACTION.get(action)
    if role is None:
        fail(
            f"`{action}` is no version-2 action; choose one of {', '.join(sorted(ROLE_OF_ACTION))}",
            Exit.USAGE,
        )
    supervisor, cap = options["supervisor_generation"], options["cap_generation"]
    if supervisor is None or cap is None:
        found = generations(namespace, options["worker_id"], config)
        supervisor, cap = supervisor or found[0], cap or found[1]
    ticket_id = options["ticket_id"] or f"t-{secrets.token_hex(6)}"
    document: dict[str, Any] = {
        "schema": "host-ticket/v2",
        "id": ticket_id,
        "idempotency_key": options["idempotency_key"] or ticket_id,
        "action": action,
        "args": _arguments(options["arguments"]),
    }
    if options["expires_in"] is not None:
        document["expires_unix_ms"] = now_ms() + options["expires_in"] * 1000
    return document | {
        "receipt_mode": "worker",
        "operation_id": options["operation_id"] or ticket_id,
        "subject_ref": options["subject"],
        "receipt_worker_role": role,
        "receipt_worker_id": options["worker_id"],
        "receipt_supervisor_generation": supervisor,
        "receipt_cap_generation": cap,
    }


def _arguments(pairs: tuple[str, ...]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for pair in pairs:
        name, marker, value = pair.partition("=")
        if not marker or not name:
            fail(f"--arg takes NAME=VALUE, not `{pair}`", Exit.USAGE)
        if name in found:
            fail(f"--arg {name} is given twice", Exit.USAGE)
        if value in {"true", "false"}:
            found[name] = value == "true"
        else:
            found[name] = int(value) if value.isascii() and value.isdigit() and len(value) <= 20 else value  # noqa: PLR2004
    return found


def generations(namespace: Namespace, worker_id: str, config: AgentConfig) -> tuple[int, int]:
    """The generations that root would compare with, from the Worker's newest state record."""
    from ticket_agent.protocol.namespace import HiveRefusedError  # noqa: PLC0415 - start-up time
    from ticket_agent.protocol.shard import telemetry_path  # noqa: PLC0415 - start-up time
    from ticket_agent.protocol.worker_state import newest_worker_state  # noqa: PLC0415 - start-up time

    path = telemetry_path(worker_id, shard_bits=config.shard_bits)
    try:
        state = newest_worker_state(namespace.tail(path), worker_id)
    except HiveRefusedError as error:
        if not error.absent:
            raise
        state = None
    if state is None:
        fail(
            f"the hive shows no state of Worker {worker_id}; name a Worker that runs, "
            "or give --supervisor-generation and --cap-generation",
            Exit.HIVE_REFUSED,
        )
    return state.supervisor_generation, state.cap_generation


def append(
    namespace: Namespace,
    config: AgentConfig,
    text: str,
    ticket_id: str,
    *,
    as_json: bool,
    look: str = "submitting it again with the same --id and --key is safe",
) -> None:
    """Append a request once; a lost answer is looked up in the request log, and no second try follows it.

    Args:
        namespace: the hive.
        config: where its paths are.
        text: the request line.
        ticket_id: its id, for people.
        as_json: tell it to programs.
        look: what to do when nobody can tell whether it was admitted.
    """
    from ticket_agent.protocol.namespace import Acked, Refused, Unknown  # noqa: PLC0415 - start-up time
    from ticket_agent.protocol.paths import TicketPaths  # noqa: PLC0415 - start-up time

    paths = TicketPaths(config.mount)
    answer = namespace.append(paths.spec, text)
    match answer:
        case Acked():
            _tell_admitted(ticket_id, text, as_json=as_json)
        case Refused(refusal):
            fail(
                f"root refused the request: {refusal.text}{_ADVICE.get(refusal.kind, '')}", Exit.HIVE_REFUSED
            )
        case Unknown(why):
            if text not in namespace.read(paths.spec):
                _unknown(ticket_id, why, look)
            _tell_admitted(ticket_id, text, as_json=as_json, note=" (read back; the answer itself was lost)")


def _tell_admitted(ticket_id: str, text: str, *, as_json: bool, note: str = "") -> None:
    if as_json:
        emit_json("submit", {"id": ticket_id, "admitted": True, "line": text})
    else:
        click.echo(f"admitted: {ticket_id}{note}")


def _unknown(ticket_id: str, why: str, look: str) -> NoReturn:
    fail(
        f"the answer was lost and the request log does not show {ticket_id} ({why}); {look}",
        Exit.UNCERTAIN,
    )
