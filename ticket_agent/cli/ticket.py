"""`ticket show|check|mint`: capability tickets, without ever printing one that was given."""

from __future__ import annotations

import os
import re
import sys
from typing import TYPE_CHECKING, Any, NoReturn

import click

from ticket_agent.cli.assembly import now_ms
from ticket_agent.cli.output import emit_json, fail, plain, stamp
from ticket_agent.exits import Exit

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ticket_agent.hive.credentials import Secret
    from ticket_agent.protocol.capability import Access, Capability, Claims, Scope
    from ticket_agent.protocol.capability_check import Need

__all__ = ["ticket"]

ROLES = ("queen", "worker-heartbeat", "worker-gpu", "worker-bus", "worker-lora")
MODE = 0o600
_SCOPE = re.compile(r"(?P<path>/[^:\s]*):(?P<access>rw|r|w)(?::(?P<rate>[0-9]{1,9}))?")
_NO_BLAKE3 = "the MAC of a ticket needs the package blake3: pip install 'ticket-agent[tickets]'"


@click.group()
def ticket() -> None:
    """Show, check and mint capability tickets.

    A ticket is a bearer secret: it is named as env:NAME or file:/absolute/path and shown by a fingerprint,
    the first 12 digits of the SHA-256 of its text.
    """


def _reference(ctx: click.Context, param: click.Parameter, value: str | None) -> str | None:  # noqa: ARG001
    """A secret on the command line would be in every process list."""
    from ticket_agent.hive.credentials import is_reference  # noqa: PLC0415 - start-up time

    if value is not None and not is_reference(value):
        raise click.BadParameter("must be env:NAME or file:/absolute/path, never the secret itself")
    return value


_ticket_argument = click.argument("reference", metavar="env:NAME|file:PATH", callback=_reference)
_key_option = click.option(
    "--key",
    callback=_reference,
    metavar="REF",
    help="The role's secret, as env: or file:, to verify the MAC.",
)
_placeholder_option = click.option(
    "--allow-placeholder-token",
    is_flag=True,
    help="Accept a well-known lab secret as the key. Only in a lab.",
)
_json_option = click.option("--json", "as_json", is_flag=True, help="One JSON object.")


@ticket.command()
@_ticket_argument
@_key_option
@_placeholder_option
@_json_option
def show(*, reference: str, key: str | None, allow_placeholder_token: bool, as_json: bool) -> None:
    """Show what a ticket claims; with --key also whether it is genuine."""
    capability = _decoded(reference)
    genuine = _genuine(capability, key, allow_placeholder=allow_placeholder_token)
    if as_json:
        emit_json("ticket", {**_document(capability), "mac": _mac_word(genuine)})
    else:
        for name, value in _rows(capability):
            click.echo(f"{name:<12} {plain(value)}")
        click.echo(f"{'mac':<12} {_mac_word(genuine)}")
    if genuine is False:
        sys.exit(int(Exit.FAILURE))


@ticket.command()
@_ticket_argument
@_key_option
@_placeholder_option
@click.option(
    "--role", type=click.Choice(ROLES), default="queen", show_default=True, help="Role to attach as."
)
@click.option("--mount", default="/host", show_default=True, help="Where the host tree is mounted.")
@click.option(
    "--need",
    "needs",
    multiple=True,
    metavar="PATH:r|w|rw",
    help="Check for this instead of what the agent needs; may be repeated.",
)
@click.option(
    "--calls-per-s",
    type=click.FloatRange(min=0),
    default=200.0,
    show_default=True,
    help="Operations a second on one path at times.",
)
@_json_option
def check(
    *,
    reference: str,
    key: str | None,
    allow_placeholder_token: bool,
    role: str,
    mount: str,
    needs: tuple[str, ...],
    calls_per_s: float,
    as_json: bool,
) -> None:
    """Say whether a ticket suffices for the agent, before a hive is asked; exit code 1 if it does not."""
    from ticket_agent.protocol.capability_check import Finding, agent_needs, check_claims  # noqa: PLC0415

    wanted = [_need(text) for text in needs] if needs else agent_needs(mount)
    capability = _decoded(reference)
    findings = check_claims(
        capability.claims, role=role, now_ms=now_ms(), needs=wanted, calls_per_s=calls_per_s
    )
    if _genuine(capability, key, allow_placeholder=allow_placeholder_token) is False:
        findings.insert(0, Finding(fatal=True, code="mac", text="it was not minted with this key"))
    usable = not any(finding.fatal for finding in findings)
    if as_json:
        listed = [{"fatal": one.fatal, "code": one.code, "text": one.text} for one in findings]
        emit_json(
            "ticket-check", {"fingerprint": capability.fingerprint, "usable": usable, "findings": listed}
        )
    else:
        for one in findings:
            click.echo(f"{'FAIL' if one.fatal else 'note'}  {plain(one.text)}")
        said = "can be used" if usable else "cannot be used"
        unverified = "" if key else "; its MAC was not verified, name the key with --key"
        click.echo(f"ticket {capability.fingerprint} {said}{unverified}")
    if not usable:
        sys.exit(int(Exit.FAILURE))


@ticket.command()
@click.option(
    "--key", required=True, callback=_reference, metavar="REF", help="The role's secret: env: or file:."
)
@_placeholder_option
@click.option("--role", type=click.Choice(ROLES), default="queen", show_default=True, help="Role it is for.")
@click.option("--subject", help="Whom it is issued to; Workers' tickets need one.")
@click.option(
    "--ttl-s", type=click.IntRange(1, 2**32), default=3600, show_default=True, help="Seconds to its expiry."
)
@click.option("--ops", type=click.IntRange(1), help="Budget in operations (default: none).")
@click.option(
    "--scope",
    "scopes",
    multiple=True,
    metavar="PATH:r|w|rw[:RATE]",
    help="Limit it to this part of the namespace, RATE operations a second; may be repeated.",
)
@click.option(
    "--out", type=click.Path(dir_okay=False), help="New file, mode 0600 (default: standard output)."
)
@_json_option
def mint(
    *,
    key: str,
    allow_placeholder_token: bool,
    role: str,
    subject: str | None,
    ttl_s: int,
    ops: int | None,
    scopes: tuple[str, ...],
    out: str | None,
    as_json: bool,
) -> None:
    """Make a ticket for a lab whose role secret you hold. A hive in service issues its own."""
    from ticket_agent.protocol.capability import CapabilityError, Claims, Role, mint_ticket  # noqa: PLC0415

    if role != "queen" and not subject:
        raise click.UsageError(f"a ticket of role {role} needs --subject")
    claims = Claims(
        role=Role(role),
        issued_at_ms=now_ms(),
        ttl_s=ttl_s,
        ops=ops,
        subject=subject,
        scopes=tuple(_scope(text) for text in scopes),
    )
    secret = _secret(key, allow_placeholder=allow_placeholder_token)
    try:
        minted = mint_ticket(claims, secret.reveal())
    except CapabilityError as error:
        fail(f"{error}; use fewer or shorter scopes or a shorter subject", Exit.USAGE)
    except ModuleNotFoundError:
        fail(_NO_BLAKE3, Exit.FAILURE)
    if out is not None:
        _write(out, minted.reveal())
    if as_json:
        secret_member = {"ticket": minted.reveal()} if out is None else {"out": out}
        emit_json("ticket", {**_document(minted), "mac": "good", **secret_member})
    elif out is None:
        click.echo(minted.reveal())
    else:
        click.echo(f"ticket {minted.fingerprint} for role {role} is in {out}")


def _write(out: str, text: str) -> None:
    try:
        descriptor = os.open(out, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, MODE)
        with os.fdopen(descriptor, "w", encoding="ascii") as file:
            file.write(f"{text}\n")
    except OSError as error:
        fail(f"cannot write {out}: {error.strerror}; name a file that does not exist yet", Exit.FAILURE)


def _secret(reference: str, *, allow_placeholder: bool) -> Secret:
    from ticket_agent.hive.credentials import CredentialError, resolve_secret  # noqa: PLC0415 - start-up time

    try:
        return resolve_secret(reference, env=os.environ, allow_placeholder=allow_placeholder)
    except CredentialError as error:
        fail(str(error), Exit.USAGE)


def _decoded(reference: str) -> Capability:
    from ticket_agent.protocol.capability import CapabilityError, decode_ticket  # noqa: PLC0415 - start-up time

    text = _secret(reference, allow_placeholder=True).reveal()
    try:
        return decode_ticket(text)
    except CapabilityError as error:
        fail(f"{reference} holds no usable ticket: {error}", Exit.FAILURE)


def _genuine(capability: Capability, key: str | None, *, allow_placeholder: bool) -> bool | None:
    from ticket_agent.protocol.capability import verify_mac  # noqa: PLC0415 - start-up time

    if key is None:
        return None
    secret = _secret(key, allow_placeholder=allow_placeholder)
    try:
        return verify_mac(capability, secret.reveal())
    except ModuleNotFoundError:
        fail(_NO_BLAKE3, Exit.FAILURE)


def _mac_word(genuine: bool | None) -> str:
    return {None: "not verified", True: "good", False: "wrong"}[genuine]


def _scope(text: str) -> Scope:
    from ticket_agent.protocol.capability import Scope  # noqa: PLC0415 - start-up time

    match = _SCOPE.fullmatch(text)
    if match is None:
        _bad_part("--scope", text, "/path:r, :w or :rw, and if need be :RATE")
    return Scope(path=match["path"], access=_access(match["access"]), rate_per_s=int(match["rate"] or 0))


def _need(text: str) -> Need:
    from ticket_agent.protocol.capability_check import Need  # noqa: PLC0415 - start-up time

    match = _SCOPE.fullmatch(text)
    if match is None or match["rate"] is not None:
        _bad_part("--need", text, "/path:r, :w or :rw")
    return Need(match["path"], _access(match["access"]))


def _access(label: str) -> Access:
    from ticket_agent.protocol.capability import Access  # noqa: PLC0415 - start-up time

    return next(access for access in Access if access.label == label)


def _bad_part(flag: str, text: str, form: str) -> NoReturn:
    raise click.UsageError(f"{flag} {text!r} must look like {form}")


def _document(capability: Capability) -> dict[str, Any]:
    claims = capability.claims
    return {
        "fingerprint": capability.fingerprint,
        "version": claims.version,
        "role": claims.role,
        "subject": claims.subject,
        "issued_unix_ms": claims.issued_at_ms,
        "expires_unix_ms": claims.expires_at_ms,
        "ops": claims.ops,
        "ticks": claims.ticks,
        "mount": {"service": claims.service, "at": claims.at} if claims.service or claims.at else None,
        "scopes": [
            {"path": scope.path, "access": scope.access.label, "rate_per_s": scope.rate_per_s}
            for scope in claims.scopes
        ],
        "quotas": None
        if claims.quotas is None
        else {
            "bandwidth": claims.quotas.bandwidth,
            "cursor_resumes": claims.quotas.cursor_resumes,
            "cursor_advances": claims.quotas.cursor_advances,
        },
    }


def _rows(capability: Capability) -> Iterator[tuple[str, str]]:
    claims = capability.claims
    yield "fingerprint", capability.fingerprint
    yield "role", claims.role
    yield "subject", claims.subject or "none"
    yield "issued", stamp(claims.issued_at_ms)
    yield "expires", "never" if claims.expires_at_ms is None else stamp(claims.expires_at_ms)
    yield from _limits(claims)
    if not claims.scopes:
        yield "scopes", "none: whatever the role may do"
    for scope in claims.scopes:
        rate = f", {scope.rate_per_s} operations a second" if scope.rate_per_s else ""
        yield "scope", f"{scope.path} {scope.access.label}{rate}"


def _limits(claims: Claims) -> Iterator[tuple[str, str]]:
    if claims.ops is not None:
        yield "operations", str(claims.ops)
    if claims.ticks is not None:
        yield "ticks", str(claims.ticks)
    if claims.service or claims.at:
        yield "mount", f"{claims.service} at {claims.at}"
    if claims.quotas is not None:
        quotas = claims.quotas
        tails = f"{quotas.cursor_resumes} resumed and {quotas.cursor_advances} advanced tails"
        yield "quotas", f"{quotas.bandwidth} bytes, {tails} (0: no limit)"
