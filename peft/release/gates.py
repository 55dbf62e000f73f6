"""Every gate of a release, in the order in which they are looked at. Nothing is changed by looking.

A gate is one function, which returns what it found, or raises what hinders the release. What says nothing
about the request makes the release wait: errors that pass by themselves, and everything that is wrong with
the host alone until somebody puts it in order. Anything else refuses it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from ticket_agent.peft.action import PASSING
from ticket_agent.peft.errors import PeftError
from ticket_agent.peft.release import gate_documents, gate_host
from ticket_agent.peft.release.adapter_diff import differences
from ticket_agent.peft.release.gate import Asked, Gate, GateVerdict, HostFacts, Look, NotYetError
from ticket_agent.peft.release.private_root import PrivateRoot
from ticket_agent.peft.release.resolve import load_adapter
from ticket_agent.peft.release.root_errors import CapacityError, RootOwnedError, RootPoisonedError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from ticket_agent.peft.release.adapter_diff import Difference
    from ticket_agent.peft.release.release_config import ReleaseConfig

__all__ = ["GATES", "Asked", "Gate", "GateVerdict", "HostFacts", "gates"]

_WAITS: Final = (*PASSING, NotYetError, RootOwnedError, RootPoisonedError, CapacityError)
_PREPARE: Final = "prepare the release again, under a new operation id"
_PREPARE_SAME: Final = "prepare the release again, with the same arguments"
_ALWAYS: Final = frozenset({False, True})
_FORWARD: Final = frozenset({False})


@dataclass(frozen=True, slots=True, kw_only=True)
class _Entry:
    code: str
    look: Callable[[Look], str]
    remedy: str
    needs: tuple[str, ...] = ()
    fact: str | None = None
    about_host: bool = False
    recovery: frozenset[bool] = field(default=_FORWARD)


_TABLE: Final = (
    _Entry(
        code="ids",
        look=gate_documents.ids,
        remedy="choose ids of letters, digits, _ and -, at most 64",
        recovery=_ALWAYS,
    ),
    _Entry(code="request", look=gate_documents.request, remedy=_PREPARE, needs=("ids",), recovery=_ALWAYS),
    _Entry(
        code="operation",
        look=gate_host.operation,
        remedy="watch or recover that one, or prepare under a new operation id",
        needs=("ids",),
    ),
    _Entry(
        code="recovery",
        look=gate_host.recovery,
        remedy="look at what began: ticket-agent release history",
        needs=("ids",),
        recovery=frozenset({True}),
    ),
    _Entry(
        code="attempts",
        look=gate_host.attempts,
        remedy="look at what the attempts came to: ticket-agent release recover",
        needs=("recovery",),
        recovery=frozenset({True}),
    ),
    _Entry(
        code="blocker",
        look=gate_host.blocker,
        remedy="recover that release first: ticket-agent release recover",
        needs=("ids",),
        recovery=_ALWAYS,
    ),
    _Entry(
        code="owner",
        look=gate_host.owner,
        remedy="wait until it has ended: ticket-agent release watch",
        needs=("ids",),
        recovery=_ALWAYS,
    ),
    _Entry(
        code="lock",
        about_host=True,
        look=gate_host.lock,
        remedy="wait until it has finished",
        recovery=_ALWAYS,
    ),
    _Entry(code="baseline", look=gate_host.baseline, remedy=_PREPARE, needs=("request",)),
    _Entry(code="base", look=gate_documents.base, remedy=_PREPARE, needs=("request",)),
    _Entry(code="rows", look=gate_documents.rows, remedy=_PREPARE, needs=("request",)),
    _Entry(
        code="adapter",
        look=gate_documents.adapter,
        remedy="import an adapter that was made for this base model and rank",
        needs=("request",),
    ),
    _Entry(code="checkpoint", look=gate_documents.checkpoint, remedy=_PREPARE, needs=("request",)),
    _Entry(code="attestations", look=gate_documents.attestations, remedy=_PREPARE, needs=("request",)),
    _Entry(
        code="interpreter",
        look=gate_host.interpreter,
        remedy="install the pinned versions there, or select those that are installed and prepare again",
        needs=("request",),
        fact="installed",
    ),
    _Entry(
        code="launcher",
        look=gate_host.launcher,
        remedy="install bubblewrap, or allow unconfined = true",
        fact="launcher",
        recovery=_ALWAYS,
    ),
    _Entry(
        code="incumbent",
        about_host=True,
        look=gate_host.incumbent,
        remedy="have what is deployed served: ticket-agent release serve",
        needs=("request",),
    ),
    _Entry(code="bundles", look=gate_host.bundles, remedy=_PREPARE_SAME, needs=("request",)),
    _Entry(
        code="token",
        about_host=True,
        look=gate_host.token,
        remedy="put 32 to 128 letters and digits into token_file, mode 0600",
        recovery=_ALWAYS,
    ),
    _Entry(
        code="signing",
        about_host=True,
        look=gate_host.signing,
        remedy="correct signing_key in the release configuration",
        recovery=_ALWAYS,
    ),
    _Entry(
        code="evidence",
        about_host=True,
        look=gate_host.evidence,
        remedy="make the directory private to this account: chmod 700",
        recovery=_ALWAYS,
    ),
    _Entry(
        code="space",
        about_host=True,
        look=gate_host.space,
        remedy="make room: ticket-agent release gc",
        needs=("request",),
    ),
)
GATES: Final = ("root", *(entry.code for entry in _TABLE))
"""Codes of all gates, in their order."""


def gates(
    config: ReleaseConfig,
    asked: Asked,
    *,
    facts: HostFacts,
    thorough: bool,
    root: PrivateRoot | None = None,
) -> Iterator[Gate]:
    """Look at every gate that can be looked at.

    Without ``thorough`` it takes milliseconds: no server is asked and the base model is not read whole. A
    gate that needs what another one did not find is left out, and so is one whose fact is not known.

    Args:
        config: how releases run here.
        asked: the release.
        facts: about the host, found out beforehand.
        thorough: look at everything.
        root: the private root, if it is open already.
    """
    if root is not None:
        yield from _through(Look(config=config, asked=asked, facts=facts, thorough=thorough, root=root))
        return
    try:
        opened = PrivateRoot.open(config.root, create=False)
    except PeftError as error:
        remedy = "run `ticket-agent release prepare`, or: chmod 700 on the root"
        yield Gate(code="root", verdict=GateVerdict.WAITS, detail=str(error), remedy=remedy)
        return
    with opened:
        yield Gate(code="root", verdict=GateVerdict.PASS, detail=f"{config.root}, private")
        yield from _through(Look(config=config, asked=asked, facts=facts, thorough=thorough, root=opened))


def _through(look: Look) -> Iterator[Gate]:
    passed: set[str] = set()
    for entry in _TABLE:
        if look.asked.recovery_only not in entry.recovery or not passed.issuperset(entry.needs):
            continue
        if entry.fact is not None and getattr(look.facts, entry.fact) is None:
            continue
        gate = _gate(entry, look)
        if gate.verdict is GateVerdict.PASS:
            passed.add(entry.code)
        yield gate


def _gate(entry: _Entry, look: Look) -> Gate:
    try:
        detail = entry.look(look)
    except PeftError as error:
        found = _differences(look) if entry.code == "adapter" else ()
        waits = entry.about_host or isinstance(error, _WAITS)
        return Gate(
            code=entry.code,
            verdict=GateVerdict.WAITS if waits else GateVerdict.REFUSED,
            detail=str(error),
            remedy=entry.remedy,
            differences=found,
        )
    return Gate(code=entry.code, verdict=GateVerdict.PASS, detail=detail)


def _differences(look: Look) -> tuple[Difference, ...]:
    try:
        manifest = load_adapter(look.root.objects, look.profile, look.input)
    except PeftError:
        return ()
    if manifest is None:
        return ()
    return differences(gate_documents.BundleFiles(look.root.objects, manifest), look.profile)
