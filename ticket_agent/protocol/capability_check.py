"""Whether a ticket's claims suffice for what its holder is about to do. Pure: the caller brings the time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from .capability import Access, Role

if TYPE_CHECKING:
    from collections.abc import Iterable

    from .capability import Claims

__all__ = ["CLOCK_SKEW_MS", "Finding", "Need", "agent_needs", "check_claims"]

CLOCK_SKEW_MS: Final = 5_000
"""How far ahead of this host's clock a ticket may have been issued."""

_SOON_MS: Final = 3_600_000


@dataclass(frozen=True, slots=True)
class Need:
    """Something that will be done."""

    path: str
    access: Access


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing to know about a ticket.

    Attributes:
        fatal: the ticket does not work; otherwise it works, but not well or not for long.
        code: stable name.
        text: one line for a person.
    """

    fatal: bool
    code: str
    text: str


def agent_needs(mount: str = "/host") -> tuple[Need, ...]:
    """What the agent does in a hive's namespace; ``mount`` is where the host tree is mounted."""
    tickets = f"{mount.rstrip('/')}/tickets"
    return (
        Need(tickets, Access.READ),
        Need(f"{tickets}/spec", Access.READ),
        Need(f"{tickets}/spec.snapshot", Access.READ),
        Need(f"{tickets}/retention", Access.READ),
        Need(f"{tickets}/current", Access.READ),
        Need(f"{tickets}/status", Access.READ_WRITE),
        Need(f"{tickets}/deadletter", Access.READ_WRITE),
        Need("/proc/lifecycle/state", Access.READ),
        Need("/proc/lease", Access.READ),
        Need("/gpu", Access.READ),
        Need("/shard", Access.READ),
        Need("/queen/lease/ctl", Access.WRITE),
    )


def check_claims(
    claims: Claims, *, role: str, now_ms: int, needs: Iterable[Need] = (), calls_per_s: float = 0.0
) -> list[Finding]:
    """Return what stands against using a ticket, worst first; an empty list means nothing does.

    Args:
        claims: the decoded ticket; its MAC is another question.
        role: role of the attach.
        now_ms: unix milliseconds of this host's clock.
        needs: what will be done.
        calls_per_s: operations a second that will be done on one path at times.
    """
    findings = [*_identity(claims, role), *_time(claims, now_ms), *_scopes(claims, needs, calls_per_s)]
    findings += _budgets(claims)
    return sorted(findings, key=lambda finding: not finding.fatal)


def _fatal(code: str, text: str) -> Finding:
    return Finding(fatal=True, code=code, text=text)


def _notice(code: str, text: str) -> Finding:
    return Finding(fatal=False, code=code, text=text)


def _identity(claims: Claims, role: str) -> Iterable[Finding]:
    wanted = Role.HEARTBEAT if role == "worker" else role
    if claims.role != wanted:
        yield _fatal("role", f"it is for role {claims.role}, not for {role}; the hive would deny the attach")
    if claims.role != Role.QUEEN and not claims.subject:
        yield _fatal("subject", "it names no subject, which every Worker's ticket must")


def _time(claims: Claims, now_ms: int) -> Iterable[Finding]:
    if claims.issued_at_ms > now_ms + CLOCK_SKEW_MS:
        yield _fatal("issued-later", "it was issued later than this host's clock shows; check both clocks")
    expiry = claims.expires_at_ms
    if expiry is None:
        return
    if expiry <= now_ms:
        yield _fatal(
            "expired", f"it expired {(now_ms - expiry) // 1000} s ago by this host's clock; issue a new one"
        )
    elif expiry - now_ms < _SOON_MS:
        yield _notice("expires-soon", f"it expires in {(expiry - now_ms) // 1000} s")


def _scopes(claims: Claims, needs: Iterable[Need], calls_per_s: float) -> Iterable[Finding]:
    slow: dict[str, int] = {}
    for need in needs:
        if not claims.allows(need.path, need.access):
            yield _fatal("scope", f"its scopes do not allow {need.access.label} on {need.path}")
            continue
        scope = claims.scope_for(need.path, need.access)
        if scope is not None and 0 < scope.rate_per_s < calls_per_s:
            slow[scope.path] = scope.rate_per_s
    for path, rate in slow.items():
        yield _notice(
            "rate",
            f"scope {path} allows {rate} operations a second; up to {calls_per_s:.0f} are wanted at times",
        )


def _budgets(claims: Claims) -> Iterable[Finding]:
    if claims.ops is not None:
        yield _notice("ops", f"it ends after {claims.ops} operations")
    if claims.ticks is not None:
        yield _notice("ticks", f"it ends after {claims.ticks} ticks of the target")
    if claims.quotas is not None and claims.quotas.bandwidth:
        yield _notice("bandwidth", f"it ends after {claims.quotas.bandwidth} bytes")
    if claims.quotas is not None and (claims.quotas.cursor_resumes or claims.quotas.cursor_advances):
        yield _notice(
            "cursor",
            f"it ends after {claims.quotas.cursor_resumes or 'any number of'} resumed and "
            f"{claims.quotas.cursor_advances or 'any number of'} advanced tails",
        )
